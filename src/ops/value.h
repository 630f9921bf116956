/* value.h -- an argument or result of an op: ATen's IValue, small.
 *
 * Pointers inside a Value are borrowed; whoever made the Value keeps them alive.
 */
#ifndef TESS_OPS_VALUE_H
#define TESS_OPS_VALUE_H

#include "tensor/tensor.h"

typedef enum {
  VAL_NONE,
  VAL_TENSOR,
  VAL_BOOL, /* the four numbers: a Scalar parameter takes any of them */
  VAL_INT,
  VAL_FLOAT,
  VAL_COMPLEX,
  VAL_STR,
  VAL_DTYPE,
  VAL_LAYOUT,
  VAL_MEMORY_FORMAT,
  VAL_DEVICE,
  VAL_INTS,
  VAL_FLOATS,
  VAL_BOOLS,
  VAL_TENSORS, /* elements may be NULL (Tensor?[]) */
  VAL_LIST,    /* anything else: strings, scalars, lists of lists */
  VAL_GRAPH,   /* sub-graph of a higher-order op */
  VAL_SPEC,    /* how a DTensor lies (dist/spec.h); never in a program */
} ValueKind;

typedef enum { MEMORY_CONTIGUOUS, MEMORY_PRESERVE, MEMORY_CHANNELS_LAST, MEMORY_CHANNELS_LAST_3D } MemoryFormat;

typedef struct TessValue Value;
struct TessValue {
  ValueKind kind;
  int n; /* length of a list */
  union {
    Tensor *tensor;
    bool b;
    int64_t i;
    double f;
    double complex_[2];
    const char *str; /* also device */
    Dtype dtype;
    MemoryFormat memory_format;
    const int64_t *ints;
    const double *floats;
    const bool *bools;
    Tensor *const *tensors;
    const Value *list;
    struct Graph *graph;
    const struct Spec *spec;
  };
};

static inline Value val_none(void) { return (Value){.kind = VAL_NONE}; }
static inline Value val_tensor(const Tensor *t) {
  return t ? (Value){.kind = VAL_TENSOR, .tensor = (Tensor *)(uintptr_t)t} : val_none();
}
static inline Value val_int(int64_t i) { return (Value){.kind = VAL_INT, .i = i}; }
static inline Value val_float(double f) { return (Value){.kind = VAL_FLOAT, .f = f}; }
static inline Value val_bool(bool b) { return (Value){.kind = VAL_BOOL, .b = b}; }
static inline Value val_str(const char *s) { return (Value){.kind = VAL_STR, .str = s}; }
static inline Value val_dtype(Dtype d) {
  return d == DT_NONE ? val_none() : (Value){.kind = VAL_DTYPE, .dtype = d};
}
static inline Value val_ints(const int64_t *v, int n) { return (Value){.kind = VAL_INTS, .n = n, .ints = v}; }
static inline Value val_floats(const double *v, int n) { return (Value){.kind = VAL_FLOATS, .n = n, .floats = v}; }
static inline Value val_bools(const bool *v, int n) { return (Value){.kind = VAL_BOOLS, .n = n, .bools = v}; }
static inline Value val_tensors(Tensor *const *v, int n) {
  return (Value){.kind = VAL_TENSORS, .n = n, .tensors = v};
}
static inline Value val_memory_format(MemoryFormat m) {
  return (Value){.kind = VAL_MEMORY_FORMAT, .memory_format = m};
}

static inline bool val_is_number(const Value *v) { return v->kind >= VAL_BOOL && v->kind <= VAL_COMPLEX; }
/* Numbers as C types; complex gives its real part, what is no number 0. */
static inline double val_as_float(const Value *v) {
  return v->kind == VAL_FLOAT     ? v->f
         : v->kind == VAL_INT     ? (double)v->i
         : v->kind == VAL_BOOL    ? (double)v->b
         : v->kind == VAL_COMPLEX ? v->complex_[0]
                                  : 0;
}
int64_t val_as_int(const Value *v); /* floats are truncated, saturating */
/* The kind of a number, for promotion: bool, int, float, complex. */
static inline DtypeKind val_number_kind(const Value *v) {
  return v->kind == VAL_BOOL    ? KIND_BOOL
         : v->kind == VAL_INT   ? KIND_INT
         : v->kind == VAL_FLOAT ? KIND_FLOAT
                                : KIND_COMPLEX;
}
/* Writes a number as one element of a dtype (as static_cast does, wrapping integers). */
void val_store(const Value *v, Dtype d, void *element);
/* Reads one element. */
Value val_load(Dtype d, const void *element);
/* A number as an element of dtype d has it. */
double val_round(Dtype d, double number);

/* The bytes of its texts and lists, and a copy that has them at *room, which moves on behind them (multiples of 8).
 */
size_t val_list_bytes(const Value *v);
static inline size_t val_bytes(const Value *v) { return v->kind < VAL_STR ? 0 : val_list_bytes(v); }
Value val_pack(const Value *v, char **room);
/* A copy whose texts and lists live in the arena; tensors stay the same handles. */
Status val_copy(Arena *arena, const Value *v, Value *out);

const char *val_kind_name(ValueKind k);

#endif
