/* sym_eval.c -- numbers for symbolic sizes: evaluate, and solve for one symbol.
 *
 * Arithmetic is Python's: integers stay integers, // and % round down, / gives a float;
 * but integers have 64 bits, and leaving them is an error.
 */
#include <math.h>
#include <string.h>

#include "base/textbuf.h"
#include "graph/sym.h"

enum { MAX_DEPTH = 400 };

const int64_t *sym_lookup(const SymBindings *b, const char *name) {
  for (int i = 0; b && i < b->n; i++) {
    if (!strcmp(b->v[i].name, name)) return &b->v[i].value;
  }
  return NULL;
}

typedef struct {
  bool is_float;
  int64_t i;
  double f; /* the value either way */
} Number;

static Number of_int(int64_t i) { return (Number){false, i, (double)i}; }
static Number of_float(double f) { return (Number){true, 0, f}; }

static Status fail_sym(const Sym *s, const char *why) {
  TextBuf b = {0};
  sym_print(&b, s);
  Status status = b.failed ? fail_oom() : fail(ERR_FILE, "symbolic size %.200s: %s", b.text, why);
  text_free(&b);
  return status;
}

static int order(const Number *a, const Number *b) {
  if (!a->is_float && !b->is_float) return (a->i > b->i) - (a->i < b->i);
  return (a->f > b->f) - (a->f < b->f);
}

static bool to_int(double f, int64_t *out) {
  if (!(f >= -0x1p63 && f < 0x1p63)) return false;
  *out = (int64_t)f;
  return true;
}

static Status round_number(const Sym *s, const Number *a, Number *out) {
  double f = s->kind == SYM_CEIL    ? ceil(a->f)
             : s->kind == SYM_FLOOR ? floor(a->f)
             : s->kind == SYM_TRUNC ? trunc(a->f)
                                    : rint(a->f);
  int64_t i = a->i;
  if (a->is_float && !to_int(f, &i)) return fail_sym(s, "the number is too large");
  *out = of_int(i);
  return OK;
}

static Status divide(const Sym *s, const Number *a, const Number *b, Number *out) {
  int64_t q = 0;
  if (b->f == 0) return fail_sym(s, "division by zero");
  if (s->kind == SYM_TRUEDIV || s->kind == SYM_FTRUEDIV) return *out = of_float(a->f / b->f), OK;
  if (a->is_float || b->is_float) {
    *out = of_float(s->kind == SYM_CEILDIV ? ceil(a->f / b->f) : floor(a->f / b->f));
    return OK;
  }
  int64_t rest = 0;
  bool fits = sym_floor_div(a->i, b->i, &q) && sym_floor_mod(a->i, b->i, &rest);
  if (fits && s->kind == SYM_CEILDIV && rest != 0) fits = !__builtin_add_overflow(q, 1, &q);
  if (!fits) return fail_sym(s, "the number is too large");
  *out = of_int(q);
  return OK;
}

static Status modulo(const Sym *s, const Number *a, const Number *b, Number *out) {
  int64_t r;
  if (b->f == 0) return fail_sym(s, "division by zero");
  if (a->is_float || b->is_float) return *out = of_float(a->f - b->f * floor(a->f / b->f)), OK;
  sym_floor_mod(a->i, b->i, &r);
  *out = of_int(r);
  return OK;
}

static Status power(const Sym *s, const Number *a, const Number *b, Number *out) {
  int64_t r;
  if (s->kind == SYM_FPOW || a->is_float || b->is_float || b->i < 0) return *out = of_float(pow(a->f, b->f)), OK;
  if (!sym_int_pow(a->i, b->i, &r)) return fail_sym(s, "the number is too large");
  *out = of_int(r);
  return OK;
}

static Status eval(const Sym *s, const SymBindings *b, int depth, Number *out);

/* Sums, products, max, min, and, or: from left to right. */
static Status fold(const Sym *s, const SymBindings *b, int depth, Number *out) {
  Number r = of_int(s->kind == SYM_MUL || s->kind == SYM_AND);
  for (int i = 0; i < s->nargs; i++) {
    Number x;
    TRY(eval(s->args[i], b, depth, &x));
    bool is_float = r.is_float || x.is_float, overflow = false;
    switch (s->kind) {
      case SYM_ADD:
        if (is_float) r = of_float(r.f + x.f);
        else overflow = __builtin_add_overflow(r.i, x.i, &r.i);
        break;
      case SYM_MUL:
        if (is_float) r = of_float(r.f * x.f);
        else overflow = __builtin_mul_overflow(r.i, x.i, &r.i);
        break;
      case SYM_MAX: r = i == 0 || order(&x, &r) > 0 ? x : r; break;
      case SYM_MIN: r = i == 0 || order(&x, &r) < 0 ? x : r; break;
      case SYM_AND: r = of_int(r.i && x.f != 0); break;
      default: r = of_int(r.i || x.f != 0); break;
    }
    if (overflow) return fail_sym(s, "the number is too large");
    if (!r.is_float) r.f = (double)r.i;
  }
  *out = r;
  return OK;
}

static Status eval_call(const Sym *s, const SymBindings *b, int depth, Number *out) {
  Number a[3];
  if (s->nargs < 1 || s->nargs > 3) return fail_sym(s, "wrong number of arguments");
  for (int i = 0; i < s->nargs; i++) TRY(eval(s->args[i], b, depth, &a[i]));
  switch (s->kind) {
    case SYM_FLOORDIV:
    case SYM_CLEANDIV:
    case SYM_CEILDIV:
    case SYM_TRUEDIV:
    case SYM_FTRUEDIV: return divide(s, &a[0], &a[1], out);
    case SYM_MOD:
    case SYM_PYMOD: return modulo(s, &a[0], &a[1], out);
    case SYM_POW:
    case SYM_POW2:
    case SYM_FPOW: return power(s, &a[0], &a[1], out);
    case SYM_CEIL:
    case SYM_FLOOR:
    case SYM_TRUNC:
    case SYM_ROUND: return round_number(s, &a[0], out);
    case SYM_TRUNCF: return *out = of_float(trunc(a[0].f)), OK;
    case SYM_TOFLOAT: return *out = of_float(a[0].f), OK;
    case SYM_SQRT: return *out = of_float(sqrt(a[0].f)), OK;
    case SYM_ABS:
      if (!a[0].is_float && a[0].i == INT64_MIN) return fail_sym(s, "the number is too large");
      return *out = a[0].is_float ? of_float(fabs(a[0].f)) : of_int(a[0].i < 0 ? -a[0].i : a[0].i), OK;
    case SYM_EQ:
    case SYM_NE:
    case SYM_LT:
    case SYM_LE:
    case SYM_GT:
    case SYM_GE: return *out = of_int(sym_relation(s->kind, order(&a[0], &a[1]))), OK;
    case SYM_NOT: return *out = of_int(a[0].f == 0), OK;
    case SYM_WHERE: return *out = a[0].f != 0 ? a[1] : a[2], OK;
    case SYM_MODINDEX: { /* (base // divisor) % modulus */
      Number q;
      TRY(divide(s, &a[0], &a[1], &q));
      return modulo(s, &q, &a[2], out);
    }
    default: return fail_sym(s, "not a number");
  }
}

static Status eval(const Sym *s, const SymBindings *b, int depth, Number *out) {
  if (depth > MAX_DEPTH) return fail(ERR_FILE, "a symbolic size nests more than %d levels deep", MAX_DEPTH);
  switch (s->kind) {
    case SYM_INT: return *out = of_int(s->value), OK;
    case SYM_FLOAT: return *out = of_float(s->number), OK;
    case SYM_SYMBOL: {
      const int64_t *value = sym_lookup(b, s->name);
      if (!value) return fail(ERR_FILE, "the symbol %s has no value", s->name);
      return *out = of_int(*value), OK;
    }
    case SYM_ADD:
    case SYM_MUL:
    case SYM_MAX:
    case SYM_MIN:
    case SYM_AND:
    case SYM_OR: return fold(s, b, depth + 1, out);
    default: return eval_call(s, b, depth + 1, out);
  }
}

Status sym_eval(const Sym *s, const SymBindings *b, int64_t *out) {
  if (s->kind == SYM_INT) return *out = s->value, OK; /* by far the most frequent */
  Number n;
  TRY(eval(s, b, 0, &n));
  if (!n.is_float) return *out = n.i, OK;
  if (n.f != floor(n.f) || !to_int(n.f, out)) return fail_sym(s, "the result is not an integer");
  return OK;
}

/* ---- solving -------------------------------------------------------------------------- */

static bool find_unbound(const Sym *s, const SymBindings *b, const Sym **found, int depth) {
  if (depth > MAX_DEPTH) return false;
  if (s->kind == SYM_SYMBOL && !sym_lookup(b, s->name)) {
    if (*found && *found != s) return false;
    *found = s;
  }
  for (int i = 0; i < s->nargs; i++) {
    if (!find_unbound(s->args[i], b, found, depth + 1)) return false;
  }
  return true;
}

const Sym *sym_single_unbound(const Sym *s, const SymBindings *b) {
  const Sym *found = NULL;
  return find_unbound(s, b, &found, 0) ? found : NULL;
}

const Sym *sym_first_unbound(const Sym *s, const SymBindings *b) {
  const Sym *found = NULL;
  find_unbound(s, b, &found, 0); /* stops at the second one, having found the first */
  return found;
}

static bool contains(const Sym *s, const Sym *symbol, int depth) {
  if (s == symbol) return true;
  if (depth > MAX_DEPTH) return true; /* then it is not solved */
  for (int i = 0; i < s->nargs; i++) {
    if (contains(s->args[i], symbol, depth + 1)) return true;
  }
  return false;
}

/* s = factor * symbol + rest */
static bool linear(const Sym *s, const Sym *symbol, const SymBindings *b, int depth, int64_t *factor,
                   int64_t *rest) {
  *factor = s == symbol;
  *rest = 0;
  if (s == symbol) return true;
  if (depth > MAX_DEPTH) return false;
  if (!contains(s, symbol, depth)) {
    Status status = sym_eval(s, b, rest);
    bool ok = !status;
    status_free(status);
    return ok;
  }
  int64_t f, r;
  if (s->kind == SYM_ADD) {
    for (int i = 0; i < s->nargs; i++) {
      if (!linear(s->args[i], symbol, b, depth + 1, &f, &r)) return false;
      if (__builtin_add_overflow(*factor, f, factor) || __builtin_add_overflow(*rest, r, rest)) return false;
    }
    return true;
  }
  if (s->kind != SYM_MUL) return false;
  *rest = 1;
  for (int i = 0; i < s->nargs; i++) {
    if (!linear(s->args[i], symbol, b, depth + 1, &f, &r)) return false;
    if (f != 0 && *factor != 0) return false; /* a square */
    /* (F x + R)(f x + r), one of F, f zero */
    int64_t cross, old;
    if (__builtin_mul_overflow(*rest, f, &cross) || __builtin_mul_overflow(*factor, r, &old)) return false;
    if (__builtin_add_overflow(cross, old, factor) || __builtin_mul_overflow(*rest, r, rest)) return false;
  }
  return true;
}

bool sym_solve(const Sym *s, const Sym *symbol, const SymBindings *b, int64_t value, int64_t *out) {
  int64_t factor, rest, left, remainder;
  if (!linear(s, symbol, b, 0, &factor, &rest) || factor == 0) return false;
  if (__builtin_sub_overflow(value, rest, &left)) return false;
  return sym_floor_mod(left, factor, &remainder) && remainder == 0 && sym_floor_div(left, factor, out);
}
