/* vector.h -- f32 vectors as wide as the machine's, by the compilers' extension.
 *
 * Only what compilers do not find by themselves (fused multiply-add without contraction,
 * loads of half precision, sums over lanes) is spelled per machine. */
#ifndef TESS_KERNELS_SIMD_VECTOR_H
#define TESS_KERNELS_SIMD_VECTOR_H

#include <string.h>

#include "tensor/dtype.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#if defined __AVX512F__
enum { VL = 16 };
#elif defined __AVX2__
enum { VL = 8 };
#else
enum { VL = 4 };
#endif

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)") /* or arrays of registers stay in memory */
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vf __attribute__((vector_size(VL * sizeof(float))));
typedef uint32_t vu __attribute__((vector_size(VL * sizeof(uint32_t))));
typedef uint16_t vh __attribute__((vector_size(VL * sizeof(uint16_t))));

INLINE vf load(const float *p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}
INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }
INLINE vf splat(float x) { return x - (vf){0}; } /* x - 0 is x, -0 and nan too */

INLINE vf fma_v(vf a, vf b, vf c) {
#if defined __AVX512F__
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined __AVX2__
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

/* The larger; b where either is nan. */
INLINE vf max_v(vf a, vf b) {
#if defined __AVX512F__
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  vu mask = (vu)(a > b);
  return (vf)((mask & (vu)a) | (~mask & (vu)b));
#endif
}

INLINE float sum_v(vf v) {
#if defined __AVX512F__
  return _mm512_reduce_add_ps((__m512)v);
#elif defined __AVX2__
  __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

/* y[i] = sum_v(v[i]), four at a time. */
INLINE void sum4_v(const vf v[4], float *y) {
#if defined __AVX2__ && !defined __AVX512F__
  __m256 s = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[0], (__m256)v[1]), _mm256_hadd_ps((__m256)v[2], (__m256)v[3]));
  _mm_storeu_ps(y, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
#else
  for (int i = 0; i < 4; i++) y[i] = sum_v(v[i]);
#endif
}

INLINE float largest_v(vf v) { /* no nan */
#if defined __AVX512F__
  return _mm512_reduce_max_ps((__m512)v);
#elif defined __AVX2__
  __m128 s = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
#else
  float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
#endif
}

/* The first n < VL elements; the others are `rest`. */
INLINE vf load_part(const float *p, int64_t n, float rest) {
  vf v = splat(rest);
  memcpy(&v, p, (size_t)n * sizeof(float));
  return v;
}
INLINE void store_part(float *p, vf v, int64_t n) { memcpy(p, &v, (size_t)n * sizeof(float)); }

INLINE vf load_bf16(const uint16_t *p) {
#if defined __AVX512F__
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16);
#elif defined __AVX2__
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16);
#else
  vh h;
  memcpy(&h, p, sizeof h);
  return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

INLINE vf load_f16(const uint16_t *p) {
#if defined __AVX512F__
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif defined __AVX2__
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
#else
  float x[VL];
  for (int i = 0; i < VL; i++) x[i] = f16_to_f32(p[i]);
  return load(x);
#endif
}

/* Bytes as numbers. */
INLINE vu load_bytes(const uint8_t *p) {
#if defined __AVX512F__
  return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
#elif defined __AVX2__
  return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#else
  vu v;
  for (int i = 0; i < VL; i++) v[i] = p[i];
  return v;
#endif
}

/* Element i of an array of f32, f16 or bf16; dtype is a constant wherever it is inlined. */
INLINE vf load_as(const void *p, Dtype dtype, int64_t i) {
  return dtype == DT_F32    ? load((const float *)p + i)
         : dtype == DT_BF16 ? load_bf16((const uint16_t *)p + i)
                            : load_f16((const uint16_t *)p + i);
}
INLINE float scalar_as(const void *p, Dtype dtype, int64_t i) {
  return dtype == DT_F32    ? ((const float *)p)[i]
         : dtype == DT_BF16 ? bf16_to_f32(((const uint16_t *)p)[i])
                            : f16_to_f32(((const uint16_t *)p)[i]);
}

#endif
