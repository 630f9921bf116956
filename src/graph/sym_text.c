/* sym_text.c -- our own notation of symbolic sizes: 2*s77 + 1, s0 // 2, max(s0, 3).
 *
 *   relation  sum [(== | != | < | <= | > | >=) sum]
 *   sum       product {(+ | -) product}
 *   product   unary {(* | // | % | /) unary}
 *   unary     - unary | power
 *   power     atom [** unary]
 *   atom      number | symbol | function(relation, ...) | (relation)
 *
 * What sym_print wrote reads back as the same Sym.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/scan.h"
#include "base/textbuf.h"
#include "graph/sym.h"

/* Twice what files may hold: multiplying out can add a level. */
enum { MAX_DEPTH = 2 * SYM_MAX_DEPTH };

enum { RELATION, SUM, PRODUCT, UNARY, POWER, ATOM };

/* Infix operators by level; the others are written name(...). */
static const struct {
  const char *text;
  int level;
} notation[] = {
    [SYM_ADD] = {" + ", SUM},
    [SYM_MUL] = {"*", PRODUCT},
    [SYM_FLOORDIV] = {" // ", PRODUCT},
    [SYM_MOD] = {" % ", PRODUCT},
    [SYM_TRUEDIV] = {" / ", PRODUCT},
    [SYM_POW] = {"**", POWER},
    [SYM_EQ] = {" == ", RELATION},
    [SYM_NE] = {" != ", RELATION},
    [SYM_LT] = {" < ", RELATION},
    [SYM_LE] = {" <= ", RELATION},
    [SYM_GT] = {" > ", RELATION},
    [SYM_GE] = {" >= ", RELATION},
    [SYM_MAX] = {"max", ATOM},
    [SYM_MIN] = {"min", ATOM},
    [SYM_FTRUEDIV] = {"float_div", ATOM},
    [SYM_CEIL] = {"ceil", ATOM},
    [SYM_FLOOR] = {"floor", ATOM},
    [SYM_TRUNC] = {"trunc", ATOM},
    [SYM_TRUNCF] = {"trunc_float", ATOM},
    [SYM_ROUND] = {"round", ATOM},
    [SYM_TOFLOAT] = {"float", ATOM},
    [SYM_PYMOD] = {"pymod", ATOM},
    [SYM_CLEANDIV] = {"clean_div", ATOM},
    [SYM_CEILDIV] = {"ceil_div", ATOM},
    [SYM_POW2] = {"int_pow", ATOM},
    [SYM_FPOW] = {"float_pow", ATOM},
    [SYM_MODINDEX] = {"mod_index", ATOM},
    [SYM_ABS] = {"abs", ATOM},
    [SYM_SQRT] = {"sqrt", ATOM},
    [SYM_AND] = {"and", ATOM},
    [SYM_OR] = {"or", ATOM},
    [SYM_NOT] = {"not", ATOM},
    [SYM_WHERE] = {"where", ATOM},
};
enum { NOTATIONS = sizeof notation / sizeof *notation };

/* ---- printing ----------------------------------------------------------------------- */

/* A term that is written with a minus in front: -3, -2*s0. */
static bool is_negative(const Sym *s) {
  if (s->kind == SYM_INT) return s->value < 0;
  if (s->kind == SYM_FLOAT) return signbit(s->number) && !isnan(s->number);
  if (s->kind != SYM_MUL || s->args[0]->kind != SYM_INT || s->args[0]->value >= 0) return false;
  for (int i = 1; i < s->nargs; i++) {
    if (s->args[i]->kind == SYM_INT || s->args[i]->kind == SYM_MUL) return false; /* did not fit in 64 bits */
  }
  return true;
}

static int level_of(const Sym *s) {
  switch (s->kind) {
    case SYM_INT:
    case SYM_FLOAT: return is_negative(s) ? UNARY : ATOM;
    case SYM_SYMBOL: return ATOM;
    default: return notation[s->kind].level;
  }
}

static void print(TextBuf *b, const Sym *s, int level);

static void print_list(TextBuf *b, const Sym *s, const char *separator, int level) {
  for (int i = 0; i < s->nargs; i++) {
    if (i) text_puts(b, separator);
    print(b, s->args[i], level);
  }
}

/* -1*x is -x; no one is printed in front of a product. */
static void print_product(TextBuf *b, const Sym *s, bool negate) {
  int first = 0;
  if (is_negative(s) && s->args[0]->value > INT64_MIN) {
    int64_t n = negate ? -s->args[0]->value : s->args[0]->value;
    if (n == 1 || n == -1) text_puts(b, n == 1 ? "" : "-");
    else text_printf(b, "%lld*", (long long)n);
    first = 1;
  }
  for (int i = first; i < s->nargs; i++) {
    if (i > first) text_puts(b, "*");
    print(b, s->args[i], i == 0 ? UNARY : POWER);
  }
}

static void print_sum(TextBuf *b, const Sym *s) {
  for (int i = 0; i < s->nargs; i++) {
    const Sym *term = s->args[i];
    bool minus = i > 0 && is_negative(term) && term->kind != SYM_FLOAT &&
                 (term->kind == SYM_INT ? term : term->args[0])->value > INT64_MIN;
    if (i) text_puts(b, minus ? " - " : " + ");
    if (!minus) print(b, term, PRODUCT);
    else if (term->kind == SYM_INT) text_printf(b, "%lld", (long long)-term->value);
    else print_product(b, term, true);
  }
}

/* In parentheses if the expression binds less tightly than its place asks for. */
static void print(TextBuf *b, const Sym *s, int level) {
  bool parens = level_of(s) < level;
  if (parens) text_puts(b, "(");
  switch (s->kind) {
    case SYM_INT: text_printf(b, "%lld", (long long)s->value); break;
    case SYM_FLOAT: text_float(b, s->number); break;
    case SYM_SYMBOL: text_puts(b, s->name); break;
    case SYM_ADD: print_sum(b, s); break;
    case SYM_MUL: print_product(b, s, false); break;
    default:
      switch (notation[s->kind].level) {
        case PRODUCT:
        case RELATION:
          print(b, s->args[0], notation[s->kind].level == PRODUCT ? PRODUCT : SUM);
          text_puts(b, notation[s->kind].text);
          print(b, s->args[1], notation[s->kind].level == PRODUCT ? UNARY : SUM);
          break;
        case POWER:
          print(b, s->args[0], ATOM);
          text_puts(b, notation[s->kind].text);
          print(b, s->args[1], UNARY);
          break;
        default:
          text_printf(b, "%s(", notation[s->kind].text);
          print_list(b, s, ", ", RELATION);
          text_puts(b, ")");
      }
  }
  if (parens) text_puts(b, ")");
}

void sym_print(TextBuf *b, const Sym *s) { print(b, s, RELATION); }

/* ---- parsing -------------------------------------------------------------------------- */

typedef struct {
  SymTable *table;
  const char *p;
  int depth;
} Parser;

/* Operands of a chain (a + b + c): given to sym_apply at once. */
typedef struct {
  const Sym **v;
  int n, cap;
} List;

static Status list_add(Parser *s, List *l, const Sym *x) {
  TRY_NEW(l->v, arena_more(s->table->arena, l->v, l->n, &l->cap));
  l->v[l->n++] = x;
  return OK;
}

static Status expected(Parser *s, const char *what) {
  return fail(ERR_FILE, "symbolic size: expected %s at '%.20s'", what, s->p);
}

static Status apply(Parser *s, SymKind fn, const Sym *const *args, int n, const Sym **out) {
  TRY_NEW(*out, sym_apply(s->table, fn, args, n));
  return OK;
}

static Status parse_relation(Parser *s, const Sym **out);

static Status parse_number(Parser *s, const Sym **out) {
  char *end_int;
  const char *end_float;
  errno = 0;
  long long i = strtoll(s->p, &end_int, 10);
  bool too_large = errno != 0;
  double f = text_to_float(s->p, &end_float);
  if (end_float > end_int) {
    s->p = end_float;
    TRY_NEW(*out, sym_float(s->table, f));
    return OK;
  }
  if (too_large) return fail(ERR_FILE, "symbolic size: the number %.30s does not fit in 64 bits", s->p);
  s->p = end_int;
  TRY_NEW(*out, sym_int(s->table, i));
  return OK;
}

static Status parse_call(Parser *s, const char *name, size_t len, const Sym **out) {
  for (int kind = 0; kind < NOTATIONS; kind++) {
    if (!notation[kind].text || notation[kind].level != ATOM) continue;
    if (strncmp(notation[kind].text, name, len) || notation[kind].text[len]) continue;
    List args = {0};
    while (!scan_take(&s->p, ")")) {
      const Sym *x;
      if (args.n && !scan_take(&s->p, ",")) return expected(s, "',' or ')'");
      TRY(parse_relation(s, &x));
      TRY(list_add(s, &args, x));
    }
    if (!sym_takes((SymKind)kind, args.n))
      return fail(ERR_FILE, "symbolic size: %s does not take %d arguments", notation[kind].text, args.n);
    return apply(s, (SymKind)kind, args.v, args.n, out);
  }
  return fail(ERR_FILE, "symbolic size: unknown function '%.*s'", (int)(len > 60 ? 60 : len), name);
}

static Status parse_atom(Parser *s, const Sym **out) {
  scan_skip(&s->p);
  if (isdigit((unsigned char)*s->p) || (*s->p == '-' && isdigit((unsigned char)s->p[1])))
    return parse_number(s, out);
  if (scan_take(&s->p, "(")) {
    TRY(parse_relation(s, out));
    return scan_take(&s->p, ")") ? OK : expected(s, "')'");
  }
  const char *name = s->p;
  if (!scan_is_word(*name)) return expected(s, "a size");
  while (scan_is_word(*s->p)) s->p++;
  size_t len = (size_t)(s->p - name);
  if (*s->p == '(') return s->p++, parse_call(s, name, len, out);
  if (len == 3 && (!strncmp(name, "inf", 3) || !strncmp(name, "nan", 3))) {
    TRY_NEW(*out, sym_float(s->table, *name == 'i' ? INFINITY : NAN));
    return OK;
  }
  char *copy;
  TRY_NEW(copy, arena_strndup(s->table->arena, name, len));
  TRY_NEW(*out, sym_symbol(s->table, copy));
  return OK;
}

static Status parse_unary(Parser *s, const Sym **out);

static Status parse_power(Parser *s, const Sym **out) {
  TRY(parse_atom(s, out));
  if (!scan_take(&s->p, "**")) return OK;
  const Sym *exponent;
  TRY(parse_unary(s, &exponent));
  return apply(s, SYM_POW, (const Sym *const[]){*out, exponent}, 2, out);
}

static Status negate(Parser *s, const Sym *x, const Sym **out) {
  if (x->kind == SYM_FLOAT) TRY_NEW(*out, sym_float(s->table, -x->number));
  else TRY_NEW(*out, sym_mul(s->table, sym_int(s->table, -1), x));
  return OK;
}

/* Every loop of the grammar passes through here. */
static Status parse_unary(Parser *s, const Sym **out) {
  if (++s->depth > MAX_DEPTH) return fail(ERR_FILE, "symbolic size: it nests more than %d levels deep", MAX_DEPTH);
  scan_skip(&s->p);
  const Sym *x;
  if (*s->p == '-' && !isdigit((unsigned char)s->p[1])) {
    s->p++;
    TRY(parse_unary(s, &x));
    TRY(negate(s, x, out));
  } else {
    TRY(parse_power(s, out));
  }
  s->depth--;
  return OK;
}

/* A run of * is one product; //, % and / take what stands left of them. */
static Status parse_product(Parser *s, const Sym **out) {
  List factors = {0};
  const Sym *x;
  TRY(parse_unary(s, &x));
  TRY(list_add(s, &factors, x));
  for (;;) {
    SymKind fn = scan_take(&s->p, "//")  ? SYM_FLOORDIV
                 : scan_take(&s->p, "%") ? SYM_MOD
                 : scan_take(&s->p, "/") ? SYM_TRUEDIV
                                         : SYM_MUL;
    if (fn == SYM_MUL && !scan_take(&s->p, "*")) break;
    TRY(parse_unary(s, &x));
    if (fn != SYM_MUL) {
      const Sym *left = factors.v[0];
      if (factors.n > 1) TRY(apply(s, SYM_MUL, factors.v, factors.n, &left));
      TRY(apply(s, fn, (const Sym *const[]){left, x}, 2, &x));
      factors.n = 0;
    }
    TRY(list_add(s, &factors, x));
  }
  if (factors.n == 1) return *out = factors.v[0], OK;
  return apply(s, SYM_MUL, factors.v, factors.n, out);
}

static Status parse_sum(Parser *s, const Sym **out) {
  List terms = {0};
  const Sym *x;
  TRY(parse_product(s, &x));
  TRY(list_add(s, &terms, x));
  for (;;) {
    bool minus = scan_take(&s->p, "-");
    if (!minus && !scan_take(&s->p, "+")) break;
    TRY(parse_product(s, &x));
    if (minus) TRY(negate(s, x, &x));
    TRY(list_add(s, &terms, x));
  }
  if (terms.n == 1) return *out = terms.v[0], OK;
  return apply(s, SYM_ADD, terms.v, terms.n, out);
}

static Status parse_relation(Parser *s, const Sym **out) {
  static const struct {
    const char *text;
    SymKind fn;
  } relations[] = {{"==", SYM_EQ}, {"!=", SYM_NE}, {"<=", SYM_LE}, {">=", SYM_GE}, {"<", SYM_LT}, {">", SYM_GT}};
  TRY(parse_sum(s, out));
  for (size_t i = 0; i < sizeof relations / sizeof *relations; i++) {
    if (!scan_take(&s->p, relations[i].text)) continue;
    const Sym *right;
    TRY(parse_sum(s, &right));
    TRY(apply(s, relations[i].fn, (const Sym *const[]){*out, right}, 2, out));
    break;
  }
  return OK;
}

Status sym_parse_text(SymTable *t, const char *text, const char **end, const Sym **out) {
  Parser s = {t, text, 0};
  TRY(parse_relation(&s, out));
  *end = s.p;
  return OK;
}
