/* sym_srepr.c -- sympy's notation, which .pt2 files use for symbolic sizes:
 *
 *     Add(Mul(Integer(2), Symbol('s77', positive=True, integer=True)), Integer(1))
 *
 * A function that is not in SYM_FUNCTIONS (or an alias below) is refused by name.
 * Where(condition, a, b) is written as sympy's Piecewise, which is what sym_ite gives in PyTorch.
 * Assumptions are not kept: a symbol is a size (positive) unless it is unbacked (u0).
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/scan.h"
#include "base/textbuf.h"
#include "graph/sym.h"

enum { MAX_ARGS = 1 << 16 };

static const struct {
  const char *name;
  SymKind kind;
} functions[] = {
#define X(kind, name) {name, SYM_##kind},
    SYM_FUNCTIONS(X)
#undef X
        {"floor", SYM_FLOOR},
    {"ceiling", SYM_CEIL},
    {"Eq", SYM_EQ},
    {"Ne", SYM_NE},
    {"Lt", SYM_LT},
    {"Le", SYM_LE},
    {"Gt", SYM_GT},
    {"Ge", SYM_GE},
};

typedef struct {
  SymTable *table;
  const char *text, *p;
  int depth;
} Parser;

static Status expected(const Parser *s, const char *what) {
  return fail(ERR_FILE, "symbolic size '%.100s': expected %s at '%.20s'", s->text, what, s->p);
}

/* A name; of torch.utils._sympy.functions.FloorDiv, the last part. */
static bool take_name(Parser *s, const char **name, size_t *len) {
  scan_skip(&s->p);
  *name = s->p;
  if (isdigit((unsigned char)*s->p)) return false;
  while (scan_is_word(*s->p) || *s->p == '.') {
    if (*s->p++ == '.') *name = s->p;
  }
  *len = (size_t)(s->p - *name);
  return *len > 0;
}

static bool named(const char *name, size_t len, const char *want) {
  return strlen(want) == len && !memcmp(name, want, len);
}

static Status take_int(Parser *s, int64_t *out) {
  char *end;
  scan_skip(&s->p);
  errno = 0;
  *out = strtoll(s->p, &end, 10);
  if (end == s->p) return expected(s, "a number");
  if (errno)
    return fail(ERR_FILE, "symbolic size '%.100s': the number %.30s does not fit in 64 bits", s->text, s->p);
  s->p = end;
  return OK;
}

/* 'text': a Python string without escapes. */
static Status take_string(Parser *s, const char **text, size_t *len) {
  if (!scan_take(&s->p, "'")) return expected(s, "a quoted text");
  *text = s->p;
  while (*s->p && *s->p != '\'') s->p++;
  *len = (size_t)(s->p - *text);
  return scan_take(&s->p, "'") ? OK : expected(s, "'");
}

/* , positive=True, integer=True) */
static Status skip_keywords(Parser *s) {
  const char *name;
  size_t len;
  while (scan_take(&s->p, ",")) {
    if (!take_name(s, &name, &len) || !scan_take(&s->p, "=")) return expected(s, "name=value");
    scan_skip(&s->p);
    if (!scan_is_word(*s->p)) return expected(s, "a value");
    while (scan_is_word(*s->p)) s->p++;
  }
  return scan_take(&s->p, ")") ? OK : expected(s, "')'");
}

static Status parse_symbol(Parser *s, const Sym **out) {
  const char *text;
  size_t len;
  TRY(take_string(s, &text, &len));
  bool good = len > 0 && !isdigit((unsigned char)*text) && !named(text, len, "inf") && !named(text, len, "nan");
  for (size_t i = 0; i < len; i++) good &= scan_is_word(text[i]);
  if (!good)
    return fail(ERR_FILE, "symbolic size '%.100s': '%.*s' cannot be a symbol", s->text, (int)(len > 60 ? 60 : len),
                text);
  char *name;
  TRY_NEW(name, arena_strndup(s->table->arena, text, len));
  TRY_NEW(*out, sym_symbol(s->table, name));
  return skip_keywords(s);
}

static Status parse_float(Parser *s, const Sym **out) {
  const char *text;
  size_t len;
  const char *end;
  TRY(take_string(s, &text, &len));
  double f = text_to_float(text, &end);
  if (len == 0 || end != text + len)
    return fail(ERR_FILE, "symbolic size '%.100s': '%.*s' is not a number", s->text, (int)(len > 60 ? 60 : len),
                text);
  TRY_NEW(*out, sym_float(s->table, f));
  return skip_keywords(s);
}

static Status parse_integer(Parser *s, const Sym **out) {
  int64_t i;
  TRY(take_int(s, &i));
  TRY_NEW(*out, sym_int(s->table, i));
  return scan_take(&s->p, ")") ? OK : expected(s, "')'");
}

static Status parse_rational(Parser *s, const Sym **out) {
  int64_t over, under;
  TRY(take_int(s, &over));
  if (!scan_take(&s->p, ",")) return expected(s, "','");
  TRY(take_int(s, &under));
  if (under == 0) return fail(ERR_FILE, "symbolic size '%.100s': division by zero", s->text);
  const Sym *const args[] = {sym_int(s->table, over), sym_int(s->table, under)};
  TRY_NEW(*out, sym_apply(s->table, SYM_TRUEDIV, args, 2));
  return scan_take(&s->p, ")") ? OK : expected(s, "')'");
}

static Status parse(Parser *s, const Sym **out);

static Status parse_args(Parser *s, const Sym ***args, int *nargs) {
  int cap = 0;
  while (!scan_take(&s->p, ")")) {
    if (*nargs && !scan_take(&s->p, ",")) return expected(s, "',' or ')'");
    if (*nargs == cap) {
      const Sym **more;
      if (cap == MAX_ARGS) return fail(ERR_FILE, "symbolic size '%.100s': too many arguments", s->text);
      cap = cap ? cap * 2 : 4;
      TRY_NEW(more, arena_new_n(s->table->arena, const Sym *, cap));
      if (*nargs) memcpy(more, *args, (size_t)*nargs * sizeof *more);
      *args = more;
    }
    TRY(parse(s, &(*args)[*nargs]));
    ++*nargs;
  }
  return OK;
}

/* Piecewise(ExprCondPair(value, condition), ..., ExprCondPair(value, true)): a chain of Where. */
static Status parse_piecewise(Parser *s, const Sym **out) {
  const char *name;
  size_t len;
  const Sym *value, *condition, *rest;
  if (s->depth >= SYM_MAX_DEPTH)
    return fail(ERR_FILE, "symbolic size '%.100s': it nests more than %d levels deep", s->text, SYM_MAX_DEPTH);
  if (!take_name(s, &name, &len) || !named(name, len, "ExprCondPair") || !scan_take(&s->p, "("))
    return expected(s, "ExprCondPair(");
  TRY(parse(s, &value));
  if (!scan_take(&s->p, ",")) return expected(s, "','");
  TRY(parse(s, &condition));
  if (!scan_take(&s->p, ")")) return expected(s, "')'");
  if (scan_take(&s->p, ")")) {
    if (!sym_is_int(condition) || !condition->value)
      return fail(ERR_FILE, "symbolic size '%.100s': the last case of a Piecewise must hold always", s->text);
    *out = value;
    return OK;
  }
  if (!scan_take(&s->p, ",")) return expected(s, "',' or ')'");
  s->depth++;
  TRY(parse_piecewise(s, &rest));
  s->depth--;
  TRY_NEW(*out, sym_apply(s->table, SYM_WHERE, (const Sym *const[]){condition, value, rest}, 3));
  return OK;
}

static Status parse_function(Parser *s, const char *name, size_t len, const Sym **out) {
  const Sym **args = NULL;
  int nargs = 0;
  if (named(name, len, "Identity")) {
    TRY(parse(s, out));
    return scan_take(&s->p, ")") ? OK : expected(s, "')'");
  }
  if (named(name, len, "Piecewise")) return parse_piecewise(s, out);
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    if (!named(name, len, functions[i].name)) continue;
    TRY(parse_args(s, &args, &nargs));
    if (!sym_takes(functions[i].kind, nargs)) {
      return fail(ERR_FILE, "symbolic size '%.100s': %s does not take %d arguments", s->text, functions[i].name,
                  nargs);
    }
    TRY_NEW(*out, sym_apply(s->table, functions[i].kind, args, nargs));
    return OK;
  }
  return fail(ERR_FILE, "symbolic size '%.100s': the function %.*s is not supported", s->text,
              (int)(len > 60 ? 60 : len), name);
}

static Status parse(Parser *s, const Sym **out) {
  const char *name;
  size_t len;
  if (s->depth >= SYM_MAX_DEPTH)
    return fail(ERR_FILE, "symbolic size '%.100s': it nests more than %d levels deep", s->text, SYM_MAX_DEPTH);
  if (!take_name(s, &name, &len)) return expected(s, "a function");
  if (!scan_take(&s->p, "(")) {
    bool truth = named(name, len, "true");
    if (!truth && !named(name, len, "false")) return expected(s, "'('");
    TRY_NEW(*out, sym_int(s->table, truth));
    return OK;
  }
  s->depth++;
  Status status = named(name, len, "Integer")    ? parse_integer(s, out)
                  : named(name, len, "Symbol")   ? parse_symbol(s, out)
                  : named(name, len, "Float")    ? parse_float(s, out)
                  : named(name, len, "Rational") ? parse_rational(s, out)
                                                 : parse_function(s, name, len, out);
  s->depth--;
  return status;
}

Status sym_parse_srepr(SymTable *t, const char *text, const Sym **out) {
  Parser s = {t, text, text, 0};
  TRY(parse(&s, out));
  scan_skip(&s.p);
  return *s.p ? expected(&s, "the end") : OK;
}

/* ---- printing ------------------------------------------------------------------------- */

static bool is_rational(const Sym *s) {
  return s->kind == SYM_TRUEDIV && s->args[0]->kind == SYM_INT && s->args[1]->kind == SYM_INT;
}

/* zf0 and zuf0 are floats, u0 comes out of a tensor. */
static const char *assumptions(const char *name) {
  return name[0] == 'z' ? "" : name[0] == 'u' ? ", integer=True" : ", positive=True, integer=True";
}

/* As PyTorch writes sym_ite. */
static void print_piecewise(TextBuf *b, const Sym *s) {
  text_puts(b, "Piecewise(ExprCondPair(");
  sym_print_srepr(b, s->args[1]);
  text_puts(b, ", ");
  sym_print_srepr(b, s->args[0]);
  text_puts(b, "), ExprCondPair(");
  sym_print_srepr(b, s->args[2]);
  text_puts(b, ", true))");
}

void sym_print_srepr(TextBuf *b, const Sym *s) {
  switch (s->kind) {
    case SYM_INT: text_printf(b, "Integer(%lld)", (long long)s->value); return;
    case SYM_FLOAT:
      text_puts(b, "Float('");
      text_float(b, s->number);
      text_puts(b, "', precision=53)");
      return;
    case SYM_SYMBOL: text_printf(b, "Symbol('%s'%s)", s->name, assumptions(s->name)); return;
    case SYM_WHERE: print_piecewise(b, s); return;
    default: break;
  }
  if (is_rational(s)) {
    text_printf(b, "Rational(%lld, %lld)", (long long)s->args[0]->value, (long long)s->args[1]->value);
    return;
  }
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    if (functions[i].kind != s->kind) continue;
    text_printf(b, "%s(", functions[i].name);
    break;
  }
  for (int i = 0; i < s->nargs; i++) {
    if (i) text_puts(b, ", ");
    sym_print_srepr(b, s->args[i]);
  }
  text_puts(b, ")");
}
