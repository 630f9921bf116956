/* sym.h -- symbolic sizes.
 *
 * A Sym is an integer, a symbol (s77, u0), or a function of Syms; the functions are
 * those that torch.export writes (sympy's, and a few of its own such as FloorDiv).
 *
 * I1  Syms are interned in their table: equal expressions are the same pointer.
 * I2  Sums and products are flat, constants folded, terms in a fixed order, so that
 *     s0 + s1 and s1 + s0 are one Sym.
 * I3  A Sym never changes; it lives as long as its table's arena.
 */
#ifndef TESS_GRAPH_SYM_H
#define TESS_GRAPH_SYM_H

#include "base/arena.h"
#include "base/status.h"

/* Parsers refuse deeper nesting, so walks over a Sym may recurse. */
enum { SYM_MAX_DEPTH = 100 };

/*    kind          name in srepr        */
/* clang-format off */
#define SYM_FUNCTIONS(X)                 \
  X(ADD,            "Add")               \
  X(MUL,            "Mul")               \
  X(FLOORDIV,       "FloorDiv")          \
  X(MOD,            "Mod")               \
  X(POW,            "Pow")               \
  X(MAX,            "Max")               \
  X(MIN,            "Min")               \
  X(TRUEDIV,        "IntTrueDiv")        \
  X(FTRUEDIV,       "FloatTrueDiv")      \
  X(CEIL,           "CeilToInt")         \
  X(FLOOR,          "FloorToInt")        \
  X(TRUNC,          "TruncToInt")        \
  X(TRUNCF,         "TruncToFloat")      \
  X(ROUND,          "RoundToInt")        \
  X(TOFLOAT,        "ToFloat")           \
  X(PYMOD,          "PythonMod")         \
  X(CLEANDIV,       "CleanDiv")          \
  X(CEILDIV,        "CeilDiv")           \
  X(POW2,           "PowByNatural")      \
  X(FPOW,           "FloatPow")          \
  X(MODINDEX,       "ModularIndexing")   \
  X(ABS,            "Abs")               \
  X(SQRT,           "OpaqueUnaryFn_sqrt")\
  X(EQ,             "Equality")          \
  X(NE,             "Unequality")        \
  X(LT,             "StrictLessThan")    \
  X(LE,             "LessThan")          \
  X(GT,             "StrictGreaterThan") \
  X(GE,             "GreaterThan")       \
  X(AND,            "And")               \
  X(OR,             "Or")                \
  X(NOT,            "Not")               \
  X(WHERE,          "Where")
/* clang-format on */

typedef enum {
  SYM_INT,    /* value */
  SYM_FLOAT,  /* number */
  SYM_SYMBOL, /* name */
#define X(kind, name) SYM_##kind,
  SYM_FUNCTIONS(X)
#undef X
} SymKind;

typedef struct Sym Sym;
struct Sym {
  SymKind kind;
  int nargs;
  int64_t value;
  double number;
  const char *name;
  const Sym *const *args;
  const Sym *chain; /* next in the hash bucket */
  uint64_t hash;
  int id; /* order of creation */
};

typedef struct SymTable {
  Arena *arena;
  const Sym **buckets;
  int nbuckets, count;
} SymTable;

void symtable_init(SymTable *t, Arena *arena);

/* All return NULL when out of memory. */
const Sym *sym_int(SymTable *t, int64_t value);
const Sym *sym_float(SymTable *t, double value);
const Sym *sym_symbol(SymTable *t, const char *name);
const Sym *sym_apply(SymTable *t, SymKind fn, const Sym *const *args, int n); /* simplified */
static inline const Sym *sym_mul(SymTable *t, const Sym *a, const Sym *b) {
  return a && b ? sym_apply(t, SYM_MUL, (const Sym *const[]){a, b}, 2) : NULL;
}
static inline const Sym *sym_add(SymTable *t, const Sym *a, const Sym *b) {
  return a && b ? sym_apply(t, SYM_ADD, (const Sym *const[]){a, b}, 2) : NULL;
}

/* Whether a function takes that many arguments: parsers ask before sym_apply. */
bool sym_takes(SymKind fn, int nargs);

static inline bool sym_is_int(const Sym *s) { return s->kind == SYM_INT; }

/* What a symbol stands for in one specialisation. */
typedef struct {
  const char *name;
  int64_t value;
} SymBinding;

typedef struct {
  SymBinding *v;
  int n, cap;
} SymBindings;

const int64_t *sym_lookup(const SymBindings *b, const char *name);

/* Number of a Sym under bindings.  Fails on an unbound symbol (naming it), division by
 * zero, or a result that is not an integer. */
Status sym_eval(const Sym *s, const SymBindings *b, int64_t *out);
/* The only unbound symbol of s, if there is exactly one; else NULL. */
const Sym *sym_single_unbound(const Sym *s, const SymBindings *b);
/* Some symbol of s that is not bound; NULL if all are. */
const Sym *sym_first_unbound(const Sym *s, const SymBindings *b);
/* Solves s == value for the given symbol where s is linear in it; false if it cannot. */
bool sym_solve(const Sym *s, const Sym *symbol, const SymBindings *b, int64_t value, int64_t *out);

/* sympy's srepr: Mul(Integer(2), Symbol('s77', positive=True, integer=True)) */
Status sym_parse_srepr(SymTable *t, const char *text, const Sym **out);
/* Our own form: 2*s77 + 1, s0 // 2, max(s0, 3).  Reads up to the first character that
 * cannot continue the expression and sets *end to it. */
Status sym_parse_text(SymTable *t, const char *text, const char **end, const Sym **out);

/* Python's // and %, and integer powers; false on overflow or division by zero. */
bool sym_floor_div(int64_t a, int64_t b, int64_t *out);
bool sym_floor_mod(int64_t a, int64_t b, int64_t *out);
bool sym_int_pow(int64_t base, int64_t exponent, int64_t *out);
/* Whether a relation (EQ ... GE) holds when a - b has the sign `order`. */
bool sym_relation(SymKind fn, int order);

/* Appends to a growing buffer (see textbuf.h); srepr for writing .pt2 files. */
struct TextBuf;
void sym_print(struct TextBuf *b, const Sym *s);
void sym_print_srepr(struct TextBuf *b, const Sym *s);

#endif
