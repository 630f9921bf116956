/* dtype.h -- the element types of .pt2 files, once.
 *
 * COMPUTE types have kernels; DATA types can be stored, mapped, viewed and copied
 * bit for bit, and are refused by name where arithmetic is asked of them.
 */
#ifndef TESS_TENSOR_DTYPE_H
#define TESS_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*    id       short    torch            safetensors  .pt2  bytes  kind      */
/* clang-format off */
#define DTYPES(X)                                                       \
  X(BOOL,     "bool", "bool",           "BOOL",      12,   1, BOOL)     \
  X(U8,       "u8",   "uint8",          "U8",         1,   1, INT)      \
  X(I8,       "i8",   "int8",           "I8",         2,   1, INT)      \
  X(I16,      "i16",  "int16",          "I16",        3,   2, INT)      \
  X(I32,      "i32",  "int32",          "I32",        4,   4, INT)      \
  X(I64,      "i64",  "int64",          "I64",        5,   8, INT)      \
  X(F16,      "f16",  "float16",        "F16",        6,   2, FLOAT)    \
  X(BF16,     "bf16", "bfloat16",       "BF16",      13,   2, FLOAT)    \
  X(F32,      "f32",  "float32",        "F32",        7,   4, FLOAT)    \
  X(F64,      "f64",  "float64",        "F64",        8,   8, FLOAT)    \
  X(C64,      "c64",  "complex64",      "C64",       10,   8, COMPLEX)  \
  X(C32,      "c32",  "complex32",      "",           9,   4, DATA)     \
  X(C128,     "c128", "complex128",     "",          11,  16, DATA)     \
  X(U16,      "u16",  "uint16",         "U16",       28,   2, DATA)     \
  X(U32,      "u32",  "uint32",         "U32",       34,   4, DATA)     \
  X(U64,      "u64",  "uint64",         "U64",       35,   8, DATA)     \
  X(F8E4M3,   "f8e4m3fn",   "float8_e4m3fn",   "F8_E4M3", 29, 1, DATA)  \
  X(F8E5M2,   "f8e5m2",     "float8_e5m2",     "F8_E5M2", 30, 1, DATA)  \
  X(F8E4M3Z,  "f8e4m3fnuz", "float8_e4m3fnuz", "",        31, 1, DATA)  \
  X(F8E5M2Z,  "f8e5m2fnuz", "float8_e5m2fnuz", "",        32, 1, DATA)  \
  X(F8E8M0,   "f8e8m0fnu",  "float8_e8m0fnu",  "F8_E8M0", 33, 1, DATA)
/* clang-format on */

/* clang-format off */
typedef enum {
#define X(id, ...) DT_##id,
  DTYPES(X)
#undef X
  DT_COUNT,
  DT_NONE = -1
} Dtype;
/* clang-format on */

/* Promotion compares kinds: bool < int < float < complex. */
typedef enum { KIND_BOOL, KIND_INT, KIND_FLOAT, KIND_COMPLEX, KIND_DATA } DtypeKind;

typedef struct {
  const char *name;        /* ours, short: f32 */
  const char *torch;       /* float32 */
  const char *safetensors; /* F32; "" if that format has no name for it */
  int pt2;                 /* number in .pt2 files */
  uint8_t size;            /* bytes per element */
  DtypeKind kind;
} DtypeInfo;

/* DT_NONE has a row, too: without a size, of the kind of mere data. */
extern const DtypeInfo dtype_table[DT_COUNT + 1];
#define dtype_info (dtype_table + 1)

static inline size_t dtype_size(Dtype d) { return dtype_info[d].size; }
static inline const char *dtype_name(Dtype d) { return dtype_info[d].name; }
static inline DtypeKind dtype_kind(Dtype d) { return dtype_info[d].kind; }
static inline bool dtype_is_float(Dtype d) { return dtype_info[d].kind == KIND_FLOAT; }
static inline bool dtype_is_int(Dtype d) { return dtype_info[d].kind == KIND_INT; }
/* bool and the integers */
static inline bool dtype_is_integral(Dtype d) { return dtype_info[d].kind <= KIND_INT; }
static inline bool dtype_is_compute(Dtype d) { return dtype_info[d].kind != KIND_DATA; }

/* DT_NONE if unknown.  dtype_parse takes both our names and torch's. */
Dtype dtype_parse(const char *name);
Dtype dtype_from_pt2(int code);
Dtype dtype_from_safetensors(const char *name);

/* torch.promote_types: the smallest type that holds both (bf16 + f16 = f32). */
Dtype dtype_promote(Dtype a, Dtype b);

/* The integer that a float is cut to, or the nearest there is; nan is the smallest, as x86 has it
 * and so ATen.  A plain cast is undefined for these. */
static inline int64_t f64_to_i64(double f) {
  return f >= 0x1p63 ? INT64_MAX : f >= -0x1p63 ? (int64_t)f : INT64_MIN;
}

/* ---- 16-bit floats: bits and their values --------------------------------- */

static inline float f32_from_bits(uint32_t u) {
  union {
    uint32_t u;
    float f;
  } x = {u};
  return x.f;
}
static inline uint32_t f32_bits(float f) {
  union {
    float f;
    uint32_t u;
  } x = {f};
  return x.u;
}
static inline float bf16_to_f32(uint16_t b) { return f32_from_bits((uint32_t)b << 16); }
/* Round to nearest even; nan stays nan (quiet). */
static inline uint16_t f32_to_bf16(float f) {
  uint32_t u = f32_bits(f);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  uint32_t nan = (u >> 16) | 0x40u;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
static inline float f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
  /* Exponent re-biased by a multiplication: right for subnormals too. */
  float scaled = f32_from_bits(rest) * 0x1p112f;
  uint32_t special = rest + 0x70000000u; /* inf, nan */
  uint32_t u = (h & 0x7c00u) == 0x7c00u ? special : f32_bits(scaled);
  return f32_from_bits(u | sign);
}
static inline uint16_t f32_to_f16(float f) {
  uint32_t u = f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  uint32_t odd = (a >> 13) & 1;
  uint32_t normal = (a - 0x38000000u + 0xfffu + odd) >> 13;
  /* Below 2^-14: adding 0.5 lets the adder round to the subnormal grid. */
  uint32_t tiny = f32_bits(f32_from_bits(a) + 0.5f) - 0x3f000000u;
  uint32_t out = a >= 0x47800000u ? 0x7c00u : a < 0x38800000u ? tiny : normal;
  out = a > 0x7f800000u ? 0x7e00u : out;
  return (uint16_t)(out | sign);
}

#endif
