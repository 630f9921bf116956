/* kernel.h -- what every kernel is given: threads, instruction set, scratch memory.
 *
 * Kernels work on Views (tensor.h): borrowed, strided, any of the compute dtypes that
 * their own header names.  They check nothing: sizes agree, pointers are valid; the
 * ops layer has seen to it.  Empty views are allowed.
 *
 * Files in kernels/simd/ are compiled once per instruction set (CMakeLists.txt), with
 * SIMD(name) giving each its own symbol; callers choose at run time:
 *
 *     SIMD_DECLARE(void, softmax_rows_f32, (float *y, const float *x, int64_t n, int64_t c));
 *     SIMD_CALL(k->isa, softmax_rows_f32)(y, x, n, c);
 */
#ifndef TESS_KERNELS_KERNEL_H
#define TESS_KERNELS_KERNEL_H

#include "base/parallel.h"
#include "base/status.h"
#include "tensor/tensor.h"

typedef enum { ISA_BASE, ISA_AVX2, ISA_AVX512 } Isa;

/* What this CPU runs, capped by the environment variable TESSERA_ISA
 * (base, avx2 or avx512). */
Isa isa_detect(void);
const char *isa_name(Isa isa);

typedef struct Kern {
  int threads;
  int sharers; /* ranks that share the machine's memory with this one, itself included */
  Isa isa;
  struct ScratchBlock *scratch; /* newest first */
  size_t scratch_peak;          /* most bytes ever in use that did not fit one block */
  struct GemmCache *gemm;       /* packed weights; owned by gemm_pack.c */
} Kern;

void kern_init(Kern *k, int threads);
void kern_free(Kern *k);

/* Scratch memory, 64-byte aligned, released in stack order:
 *     size_t mark = kern_mark(k);  ... TRY_NEW(p, kern_scratch(k, bytes)); ...  kern_release(k, mark);
 * Blocks are kept for the next call, so a kernel in a loop does not call malloc. */
size_t kern_mark(const Kern *k);
void *kern_scratch(Kern *k, size_t bytes);
void kern_release(Kern *k, size_t mark);

#define SIMD_PASTE2(a, b) a##_##b
#define SIMD_PASTE(a, b) SIMD_PASTE2(a, b)
#define SIMD(name) SIMD_PASTE(name, SIMD_ISA) /* in kernels/simd/ only; SIMD_ISA comes from the build */

/* Before a loop whose iterations are independent: its arrays may be one and the same,
 * but none is another one shifted.  Unlike restrict this allows work in place. */
#ifdef __clang__
#define SIMD_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define SIMD_LOOP _Pragma("GCC ivdep")
#endif

#define SIMD_DECLARE(ret, name, args) \
  ret name##_base args;               \
  ret name##_avx2 args;               \
  ret name##_avx512 args

#if defined TESS_X86 && defined TESS_ONLY_AVX2
#define SIMD_CALL(isa, name) ((void)(isa), name##_avx2)
#elif defined TESS_X86
#define SIMD_CALL(isa, name) ((isa) == ISA_AVX512 ? name##_avx512 : (isa) == ISA_AVX2 ? name##_avx2 : name##_base)
#else
#define SIMD_CALL(isa, name) ((void)(isa), name##_base)
#endif

#endif
