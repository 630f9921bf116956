/* sym.c -- interning and simplification of symbolic sizes; see sym.h.
 *
 * Normal form (I2 of sym.h):
 *   sum       no sums inside, equal terms collected (2*s0, not s0 + s0), terms sorted by
 *             structure, the constant last
 *   product   no products inside, the constant first, equal factors collected (s0**2),
 *             a number times a sum is multiplied out
 *   quotient  a product with a fraction inside is one fraction, so that floor() of it is
 *             an exact floor division
 * Folding never overflows: what does not fit in 64 bits stays unfolded and fails in
 * sym_eval.
 */
#include "graph/sym.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* ---- interning ------------------------------------------------------------------ */

void symtable_init(SymTable *t, Arena *arena) { *t = (SymTable){.arena = arena}; }

static uint64_t hash_of(const Sym *s) {
  uint64_t h = hash_mix(0, (uint64_t)s->kind), bits = 0;
  memcpy(&bits, &s->number, sizeof bits);
  h = hash_mix(hash_mix(h, (uint64_t)s->value), bits);
  for (const char *p = s->name; p && *p; p++) h = hash_mix(h, (unsigned char)*p);
  for (int i = 0; i < s->nargs; i++) h = hash_mix(h, s->args[i]->hash);
  return h;
}

static bool same(const Sym *a, const Sym *b) {
  if (a->hash != b->hash || a->kind != b->kind || a->nargs != b->nargs || a->value != b->value) return false;
  if (memcmp(&a->number, &b->number, sizeof a->number)) return false;
  if ((a->name || b->name) && (!a->name || !b->name || strcmp(a->name, b->name))) return false;
  return a->nargs == 0 || !memcmp(a->args, b->args, (size_t)a->nargs * sizeof *a->args);
}

static bool grow(SymTable *t) {
  int n = t->nbuckets ? t->nbuckets * 2 : 64;
  const Sym **buckets = arena_new_n(t->arena, const Sym *, n);
  if (!buckets) return false;
  for (int i = 0; i < t->nbuckets; i++) {
    for (const Sym *s = t->buckets[i], *next; s; s = next) {
      const Sym **to = &buckets[s->hash & (uint64_t)(n - 1)];
      next = s->chain;
      ((Sym *)(uintptr_t)s)->chain = *to;
      *to = s;
    }
  }
  t->buckets = buckets;
  t->nbuckets = n;
  return true;
}

/* The Sym that equals proto; proto's arguments are interned, its arrays are copied. */
static const Sym *intern(SymTable *t, Sym proto) {
  proto.hash = hash_of(&proto);
  if (t->count >= t->nbuckets && !grow(t)) return NULL;
  const Sym **bucket = &t->buckets[proto.hash & (uint64_t)(t->nbuckets - 1)];
  for (const Sym *s = *bucket; s; s = s->chain) {
    if (same(s, &proto)) return s;
  }
  Sym *s = arena_new(t->arena, Sym);
  if (!s) return NULL;
  *s = proto;
  if (proto.name && !(s->name = arena_strdup(t->arena, proto.name))) return NULL;
  if (proto.nargs) {
    const Sym **args = arena_new_n(t->arena, const Sym *, proto.nargs);
    if (!args) return NULL;
    memcpy(args, proto.args, (size_t)proto.nargs * sizeof *args);
    s->args = args;
  }
  s->id = t->count++;
  s->chain = *bucket;
  *bucket = s;
  return s;
}

static const Sym *intern_call(SymTable *t, SymKind fn, const Sym *const *args, int n) {
  return intern(t, (Sym){.kind = fn, .nargs = n, .args = args});
}
static const Sym *intern_pair(SymTable *t, SymKind fn, const Sym *a, const Sym *b) {
  return a && b ? intern_call(t, fn, (const Sym *const[]){a, b}, 2) : NULL;
}

const Sym *sym_int(SymTable *t, int64_t value) { return intern(t, (Sym){.kind = SYM_INT, .value = value}); }
const Sym *sym_float(SymTable *t, double value) { return intern(t, (Sym){.kind = SYM_FLOAT, .number = value}); }
const Sym *sym_symbol(SymTable *t, const char *name) { return intern(t, (Sym){.kind = SYM_SYMBOL, .name = name}); }

/* ---- order ------------------------------------------------------------------------ */

static int sign(int64_t a, int64_t b) { return (a > b) - (a < b); }

/* By structure, never by address or age: the same expression prints the same wherever
 * it was built. */
static int compare(const Sym *a, const Sym *b) {
  if (a == b) return 0;
  if (a->kind != b->kind) return a->kind == SYM_SYMBOL ? -1 : b->kind == SYM_SYMBOL ? 1 : sign(a->kind, b->kind);
  if (a->kind == SYM_SYMBOL) return strcmp(a->name, b->name);
  if (a->kind == SYM_INT) return sign(a->value, b->value);
  if (a->kind == SYM_FLOAT) return memcmp(&a->number, &b->number, sizeof a->number);
  for (int i = 0; i < a->nargs && i < b->nargs; i++) {
    int c = compare(a->args[i], b->args[i]);
    if (c) return c;
  }
  return sign(a->nargs, b->nargs);
}

static int compare_syms(const void *a, const void *b) {
  return compare(*(const Sym *const *)a, *(const Sym *const *)b);
}

/* A term of a sum (number * sym) or a factor of a product (sym ** number). */
typedef struct {
  const Sym *sym;
  int64_t number;
} Part;

static int compare_parts(const void *a, const void *b) {
  return compare(((const Part *)a)->sym, ((const Part *)b)->sym);
}

/* Sorts and adds up the numbers of equal syms; false on overflow. */
static bool collect(Part *parts, int *n) {
  if (*n) qsort(parts, (size_t)*n, sizeof *parts, compare_parts);
  int kept = 0;
  for (int i = 0; i < *n; i++) {
    if (kept && parts[kept - 1].sym == parts[i].sym) {
      if (__builtin_add_overflow(parts[kept - 1].number, parts[i].number, &parts[kept - 1].number)) return false;
    } else {
      parts[kept++] = parts[i];
    }
  }
  *n = kept;
  return true;
}

/* ---- numbers ---------------------------------------------------------------------- */

/* Python's // and %: rounded down.  False on division by zero or overflow. */
bool sym_floor_div(int64_t a, int64_t b, int64_t *out) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return false;
  *out = a / b - (a % b != 0 && (a % b < 0) != (b < 0));
  return true;
}

bool sym_floor_mod(int64_t a, int64_t b, int64_t *out) {
  if (b == 0) return false;
  int64_t r = b == -1 ? 0 : a % b;
  *out = r != 0 && (r < 0) != (b < 0) ? r + b : r;
  return true;
}

bool sym_int_pow(int64_t base, int64_t exponent, int64_t *out) {
  int64_t r = 1;
  if (exponent < 0) return false;
  if (base == 0 || base == 1 || base == -1) {
    *out = exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base;
    return true;
  }
  for (; exponent > 0; exponent--) { /* overflows after 63 rounds at the latest */
    if (__builtin_mul_overflow(r, base, &r)) return false;
  }
  *out = r;
  return true;
}

static bool is_integer(const Sym *s) {
  switch (s->kind) {
    case SYM_SYMBOL: return s->name[0] != 'z'; /* zf0, zuf0: torch's float symbols */
    case SYM_INT:
    case SYM_CEIL:
    case SYM_FLOOR:
    case SYM_TRUNC:
    case SYM_ROUND: return true;
    case SYM_POW:
      if (s->args[1]->kind != SYM_INT || s->args[1]->value < 0) return false;
      break;
    case SYM_ADD:
    case SYM_MUL:
    case SYM_FLOORDIV:
    case SYM_MOD:
    case SYM_PYMOD:
    case SYM_CLEANDIV:
    case SYM_CEILDIV:
    case SYM_MODINDEX:
    case SYM_POW2:
    case SYM_MAX:
    case SYM_MIN:
    case SYM_ABS: break;
    default: return false;
  }
  for (int i = 0; i < s->nargs; i++) {
    if (!is_integer(s->args[i])) return false;
  }
  return true;
}

static bool is_number(const Sym *s, int64_t value) { return s->kind == SYM_INT && s->value == value; }

/* ---- sums and products ------------------------------------------------------------- */

static int flat_count(SymKind fn, const Sym *const *args, int n) {
  int count = 0;
  for (int i = 0; i < n; i++) count += args[i]->kind == fn ? args[i]->nargs : 1;
  return count;
}

/* 6*s0*s1 -> 6, s0*s1 */
static bool split_term(SymTable *t, const Sym *s, Part *out) {
  *out = (Part){s, 1};
  if (s->kind != SYM_MUL || s->args[0]->kind != SYM_INT) return true;
  out->number = s->args[0]->value;
  out->sym = s->nargs == 2 ? s->args[1] : intern_call(t, SYM_MUL, s->args + 1, s->nargs - 1);
  return out->sym != NULL;
}

/* number * sym, where sym is no sum */
static const Sym *join_term(SymTable *t, Part p) {
  if (p.number == 1) return p.sym;
  const Sym *number = sym_int(t, p.number);
  if (p.sym->kind != SYM_MUL) return intern_pair(t, SYM_MUL, number, p.sym);
  const Sym **factors = arena_new_n(t->arena, const Sym *, p.sym->nargs + 1);
  if (!factors || !number) return NULL;
  factors[0] = number;
  memcpy(factors + 1, p.sym->args, (size_t)p.sym->nargs * sizeof *factors);
  return intern_call(t, SYM_MUL, factors, p.sym->nargs + 1);
}

static const Sym *simplify_sum(SymTable *t, const Sym *const *args, int n) {
  int cap = flat_count(SYM_ADD, args, n), count = 0;
  Part *parts = arena_new_n(t->arena, Part, cap);
  const Sym **terms = arena_new_n(t->arena, const Sym *, cap + 1);
  if (!parts || !terms) return NULL;
  int64_t constant = 0;
  for (int i = 0; i < n; i++) {
    const Sym *const *inner = args[i]->kind == SYM_ADD ? args[i]->args : &args[i];
    int ninner = args[i]->kind == SYM_ADD ? args[i]->nargs : 1;
    for (int j = 0; j < ninner; j++) {
      if (inner[j]->kind == SYM_INT) {
        if (__builtin_add_overflow(constant, inner[j]->value, &constant)) return intern_call(t, SYM_ADD, args, n);
      } else if (!split_term(t, inner[j], &parts[count++])) {
        return NULL;
      }
    }
  }
  if (!collect(parts, &count)) return intern_call(t, SYM_ADD, args, n);
  int nterms = 0;
  for (int i = 0; i < count; i++) {
    if (parts[i].number != 0 && !(terms[nterms++] = join_term(t, parts[i]))) return NULL;
  }
  if (nterms == 0) return sym_int(t, constant);
  if (constant != 0 && !(terms[nterms++] = sym_int(t, constant))) return NULL;
  return nterms == 1 ? terms[0] : intern_call(t, SYM_ADD, terms, nterms);
}

static const Sym *multiply_out(SymTable *t, int64_t number, const Sym *sum) {
  const Sym **terms = arena_new_n(t->arena, const Sym *, sum->nargs), *by = sym_int(t, number);
  if (!terms || !by) return NULL;
  for (int i = 0; i < sum->nargs; i++) {
    if (!(terms[i] = sym_mul(t, by, sum->args[i]))) return NULL;
  }
  return simplify_sum(t, terms, sum->nargs);
}

/* 3/4 or 1/x: what a product pulls out. */
static bool is_fraction(const Sym *s) { return s->kind == SYM_TRUEDIV && s->args[0]->kind == SYM_INT; }

static const Sym *divide_exact(SymTable *t, const Sym *a, const Sym *b);

static const Sym *product_with_fractions(SymTable *t, const Sym *const *args, int n) {
  const Sym *over = sym_int(t, 1), *under = over;
  for (int i = 0; i < n; i++) {
    bool fraction = is_fraction(args[i]);
    over = sym_mul(t, over, fraction ? args[i]->args[0] : args[i]);
    if (fraction) under = sym_mul(t, under, args[i]->args[1]);
  }
  if (!over || !under) return NULL;
  const Sym *whole = divide_exact(t, over, under);
  return whole ? whole : intern_pair(t, SYM_TRUEDIV, over, under);
}

static const Sym *simplify_product(SymTable *t, const Sym *const *args, int n) {
  for (int i = 0; i < n; i++) {
    if (is_fraction(args[i])) return product_with_fractions(t, args, n);
  }
  int cap = flat_count(SYM_MUL, args, n), count = 0, nfactors = 0;
  Part *parts = arena_new_n(t->arena, Part, cap);
  const Sym **factors = arena_new_n(t->arena, const Sym *, cap + 1);
  if (!parts || !factors) return NULL;
  int64_t number = 1;
  bool floats = false;
  for (int i = 0; i < n; i++) {
    const Sym *const *inner = args[i]->kind == SYM_MUL ? args[i]->args : &args[i];
    int ninner = args[i]->kind == SYM_MUL ? args[i]->nargs : 1;
    for (int j = 0; j < ninner; j++) {
      const Sym *s = inner[j];
      floats |= s->kind == SYM_FLOAT;
      if (s->kind == SYM_INT) {
        if (__builtin_mul_overflow(number, s->value, &number)) return intern_call(t, SYM_MUL, args, n);
      } else if (s->kind == SYM_POW && s->args[1]->kind == SYM_INT) {
        parts[count++] = (Part){s->args[0], s->args[1]->value};
      } else {
        parts[count++] = (Part){s, 1};
      }
    }
  }
  if (number == 0 && !floats) return sym_int(t, 0);
  if (!collect(parts, &count)) return intern_call(t, SYM_MUL, args, n);
  if (count == 0) return sym_int(t, number);
  if (number != 1 && !(factors[nfactors++] = sym_int(t, number))) return NULL;
  for (int i = 0; i < count; i++) {
    const Sym *f = parts[i].number == 1 ? parts[i].sym
                                        : intern_pair(t, SYM_POW, parts[i].sym, sym_int(t, parts[i].number));
    if (!f) return NULL;
    factors[nfactors++] = f;
  }
  if (nfactors == 1) return factors[0];
  if (nfactors == 2 && number != 1 && factors[1]->kind == SYM_ADD) return multiply_out(t, number, factors[1]);
  return intern_call(t, SYM_MUL, factors, nfactors);
}

static const Sym *simplify_pow(SymTable *t, const Sym *base, const Sym *exponent) {
  int64_t folded;
  if (exponent->kind != SYM_INT) return intern_pair(t, SYM_POW, base, exponent);
  int64_t e = exponent->value;
  if (e == 0) return sym_int(t, 1);
  if (e == 1) return base;
  if (e < 0) {
    if (e == INT64_MIN || is_number(base, 0)) return intern_pair(t, SYM_POW, base, exponent);
    const Sym *under = simplify_pow(t, base, sym_int(t, -e));
    return intern_pair(t, SYM_TRUEDIV, sym_int(t, 1), under);
  }
  if (base->kind == SYM_INT && sym_int_pow(base->value, e, &folded)) return sym_int(t, folded);
  if (base->kind == SYM_POW && base->args[1]->kind == SYM_INT && base->args[1]->value > 0 &&
      !__builtin_mul_overflow(base->args[1]->value, e, &folded)) {
    return intern_pair(t, SYM_POW, base->args[0], sym_int(t, folded));
  }
  if (base->kind != SYM_MUL) return intern_pair(t, SYM_POW, base, exponent);
  const Sym **factors = arena_new_n(t->arena, const Sym *, base->nargs);
  if (!factors) return NULL;
  for (int i = 0; i < base->nargs; i++) {
    if (!(factors[i] = simplify_pow(t, base->args[i], exponent))) return NULL;
  }
  return simplify_product(t, factors, base->nargs);
}

/* ---- division ----------------------------------------------------------------------- */

/* A product without its i-th factor, which becomes `instead`. */
static const Sym *replace_factor(SymTable *t, const Sym *product, int i, const Sym *instead) {
  const Sym **factors = arena_new_n(t->arena, const Sym *, product->nargs);
  if (!factors || !instead) return NULL;
  memcpy(factors, product->args, (size_t)product->nargs * sizeof *factors);
  factors[i] = instead;
  return simplify_product(t, factors, product->nargs);
}

/* a / b if that is exact as an expression; NULL if not (or out of memory: the caller
 * then keeps the division as it is). */
static const Sym *divide_exact(SymTable *t, const Sym *a, const Sym *b) {
  if (is_number(b, 1)) return a;
  if (a == b && !is_number(b, 0)) return sym_int(t, 1);
  if (a->kind == SYM_INT && b->kind == SYM_INT) {
    int64_t q, r;
    if (!sym_floor_mod(a->value, b->value, &r) || r != 0 || !sym_floor_div(a->value, b->value, &q)) return NULL;
    return sym_int(t, q);
  }
  if (b->kind == SYM_MUL) {
    for (int i = 0; a && i < b->nargs; i++) a = divide_exact(t, a, b->args[i]);
    return a;
  }
  if (a->kind == SYM_ADD) {
    const Sym **terms = arena_new_n(t->arena, const Sym *, a->nargs);
    for (int i = 0; i < a->nargs; i++) {
      if (!terms || !(terms[i] = divide_exact(t, a->args[i], b))) return NULL;
    }
    return simplify_sum(t, terms, a->nargs);
  }
  if (a->kind == SYM_MUL) {
    for (int i = 0; i < a->nargs; i++) {
      const Sym *q = divide_exact(t, a->args[i], b);
      if (q) return replace_factor(t, a, i, q);
    }
    return NULL;
  }
  if (a->kind == SYM_POW && a->args[1]->kind == SYM_INT && a->args[1]->value > 1) {
    const Sym *base = b->kind == SYM_POW && b->args[1]->kind == SYM_INT ? b->args[0] : b;
    int64_t e = base == b ? 1 : b->args[1]->value;
    if (base == a->args[0] && e > 0 && e <= a->args[1]->value) {
      return simplify_pow(t, base, sym_int(t, a->args[1]->value - e));
    }
  }
  return NULL;
}

static const Sym *simplify_division(SymTable *t, SymKind fn, const Sym *a, const Sym *b) {
  int64_t r;
  if (!is_integer(a) || !is_integer(b)) return intern_pair(t, fn, a, b);
  if (is_number(a, 0) && !is_number(b, 0)) return a;
  const Sym *exact = divide_exact(t, a, b);
  if (exact) return exact;
  if (fn == SYM_FLOORDIV && a->kind == SYM_INT && b->kind == SYM_INT && sym_floor_div(a->value, b->value, &r)) {
    return sym_int(t, r);
  }
  if (fn == SYM_CEILDIV && a->kind == SYM_INT && b->kind == SYM_INT && sym_floor_div(a->value, b->value, &r) &&
      r < INT64_MAX) {
    return sym_int(t, r + 1); /* not exact, or it would have gone above */
  }
  return intern_pair(t, fn, a, b);
}

static const Sym *simplify_mod(SymTable *t, SymKind fn, const Sym *a, const Sym *b) {
  int64_t r;
  if (a->kind == SYM_INT && b->kind == SYM_INT && sym_floor_mod(a->value, b->value, &r)) return sym_int(t, r);
  if (!is_number(b, 0) && is_integer(a) && divide_exact(t, a, b)) return sym_int(t, 0);
  return intern_pair(t, fn, a, b);
}

static const Sym *simplify_rounding(SymTable *t, SymKind fn, const Sym *a) {
  if (is_integer(a)) return a;
  if ((fn == SYM_FLOOR || fn == SYM_CEIL) && a->kind == SYM_TRUEDIV && is_integer(a->args[0]) &&
      is_integer(a->args[1])) {
    return simplify_division(t, fn == SYM_FLOOR ? SYM_FLOORDIV : SYM_CEILDIV, a->args[0], a->args[1]);
  }
  return intern_call(t, fn, &a, 1);
}

/* ---- the rest ------------------------------------------------------------------------- */

/* max, min, and, or: flat, sorted, without repeats, constants folded. */
static const Sym *simplify_lattice(SymTable *t, SymKind fn, const Sym *const *args, int n) {
  int cap = flat_count(fn, args, n), count = 0, kept = 0;
  const Sym **flat = arena_new_n(t->arena, const Sym *, cap + 1), *constant = NULL;
  if (!flat) return NULL;
  for (int i = 0; i < n; i++) {
    const Sym *const *inner = args[i]->kind == fn ? args[i]->args : &args[i];
    int ninner = args[i]->kind == fn ? args[i]->nargs : 1;
    for (int j = 0; j < ninner; j++) {
      const Sym *s = inner[j];
      if (s->kind != SYM_INT) flat[count++] = s;
      else if (!constant) constant = s;
      else if ((s->value > constant->value) == (fn == SYM_MAX || fn == SYM_OR)) constant = s;
    }
  }
  if (count) qsort(flat, (size_t)count, sizeof *flat, compare_syms);
  for (int i = 0; i < count; i++) {
    if (!kept || flat[kept - 1] != flat[i]) flat[kept++] = flat[i];
  }
  bool logic = fn == SYM_AND || fn == SYM_OR;
  if (constant && logic && (constant->value != 0) == (fn == SYM_OR)) return sym_int(t, fn == SYM_OR);
  if (constant && (!logic || kept == 0)) flat[kept++] = constant;
  return kept == 1 ? flat[0] : intern_call(t, fn, flat, kept);
}

bool sym_relation(SymKind fn, int order) {
  switch (fn) {
    case SYM_EQ: return order == 0;
    case SYM_NE: return order != 0;
    case SYM_LT: return order < 0;
    case SYM_LE: return order <= 0;
    case SYM_GT: return order > 0;
    default: return order >= 0;
  }
}

static const Sym *simplify_relation(SymTable *t, SymKind fn, const Sym *a, const Sym *b) {
  if (a == b && is_integer(a)) return sym_int(t, sym_relation(fn, 0));
  if (a->kind == SYM_INT && b->kind == SYM_INT) return sym_int(t, sym_relation(fn, sign(a->value, b->value)));
  return intern_pair(t, fn, a, b);
}

static const struct {
  signed char least, most; /* -1: any number */
} arity[] = {
    [SYM_ADD] = {0, -1},     [SYM_MUL] = {0, -1},    [SYM_FLOORDIV] = {2, 2}, [SYM_MOD] = {2, 2},
    [SYM_POW] = {2, 2},      [SYM_MAX] = {1, -1},    [SYM_MIN] = {1, -1},     [SYM_TRUEDIV] = {2, 2},
    [SYM_FTRUEDIV] = {2, 2}, [SYM_CEIL] = {1, 1},    [SYM_FLOOR] = {1, 1},    [SYM_TRUNC] = {1, 1},
    [SYM_TRUNCF] = {1, 1},   [SYM_ROUND] = {1, 1},   [SYM_TOFLOAT] = {1, 1},  [SYM_PYMOD] = {2, 2},
    [SYM_CLEANDIV] = {2, 2}, [SYM_CEILDIV] = {2, 2}, [SYM_POW2] = {2, 2},     [SYM_FPOW] = {2, 2},
    [SYM_MODINDEX] = {3, 3}, [SYM_ABS] = {1, 1},     [SYM_SQRT] = {1, 1},     [SYM_EQ] = {2, 2},
    [SYM_NE] = {2, 2},       [SYM_LT] = {2, 2},      [SYM_LE] = {2, 2},       [SYM_GT] = {2, 2},
    [SYM_GE] = {2, 2},       [SYM_AND] = {1, -1},    [SYM_OR] = {1, -1},      [SYM_NOT] = {1, 1},
    [SYM_WHERE] = {3, 3},
};

bool sym_takes(SymKind fn, int nargs) {
  return nargs >= arity[fn].least && (arity[fn].most < 0 || nargs <= arity[fn].most);
}

const Sym *sym_apply(SymTable *t, SymKind fn, const Sym *const *args, int n) {
  for (int i = 0; i < n; i++) {
    if (!args[i]) return NULL;
  }
  switch (fn) {
    case SYM_ADD: return simplify_sum(t, args, n);
    case SYM_MUL: return simplify_product(t, args, n);
    case SYM_POW: return simplify_pow(t, args[0], args[1]);
    case SYM_POW2:
      return args[0]->kind == SYM_INT && args[1]->kind == SYM_INT ? simplify_pow(t, args[0], args[1])
                                                                  : intern_call(t, fn, args, n);
    case SYM_FLOORDIV:
    case SYM_CEILDIV:
    case SYM_CLEANDIV: return simplify_division(t, fn, args[0], args[1]);
    case SYM_MOD:
    case SYM_PYMOD: return simplify_mod(t, fn, args[0], args[1]);
    case SYM_CEIL:
    case SYM_FLOOR:
    case SYM_TRUNC:
    case SYM_ROUND: return simplify_rounding(t, fn, args[0]);
    case SYM_MAX:
    case SYM_MIN:
    case SYM_AND:
    case SYM_OR: return simplify_lattice(t, fn, args, n);
    case SYM_EQ:
    case SYM_NE:
    case SYM_LT:
    case SYM_LE:
    case SYM_GT:
    case SYM_GE: return simplify_relation(t, fn, args[0], args[1]);
    case SYM_NOT: return args[0]->kind == SYM_INT ? sym_int(t, !args[0]->value) : intern_call(t, fn, args, n);
    case SYM_WHERE: return args[0]->kind == SYM_INT ? args[args[0]->value ? 1 : 2] : intern_call(t, fn, args, n);
    default: return intern_call(t, fn, args, n);
  }
}
