/* pool_grad.c -- gradients of poolings, plane by plane, in f32 (f64 for f64), and the way
 * back from a maximum; see pool.h. */
#include <string.h>

#include "kernels/copy.h"
#include "kernels/pool.h"

typedef struct Job Job;
struct Job {
  const PoolWindow *w;
  bool include_pad;
  int64_t divisor;
  View dy, dx, indices; /* contiguous; dy and dx of the accumulator's type */
  void (*plane)(const Job *j, int64_t plane);
};

static int64_t volume(const int64_t *s) { return s[2] * s[3] * s[4]; }

#define FOR3(v, size)                        \
  for (v[0] = 0; v[0] < (size)[0]; v[0]++)   \
    for (v[1] = 0; v[1] < (size)[1]; v[1]++) \
      for (v[2] = 0; v[2] < (size)[2]; v[2]++)

/* The part of an average's window that lies in the input. */
static void clipped(const PoolWindow *w, const int64_t *in, const int64_t *o, int64_t *b, int64_t *e) {
  for (int d = 0; d < 3; d++) {
    b[d] = o[d] * w->stride[d] - w->pad[d];
    e[d] = b[d] + w->k[d];
    if (b[d] < 0) b[d] = 0;
    if (e[d] > in[d]) e[d] = in[d];
  }
}

static int64_t divisor_at(const Job *j, const int64_t *in, const int64_t *o) {
  if (j->divisor) return j->divisor;
  int64_t n = 1;
  for (int d = 0; d < 3; d++) n *= pool_span(j->w, j->include_pad, in[d], o[d], d);
  return n;
}

#define DEFINE_GRADS(T, t)                                                                        \
  static void max_##t(const Job *j, int64_t plane) {                                              \
    int64_t n = volume(j->dy.size);                                                               \
    const T *dy = (const T *)j->dy.data + plane * n;                                              \
    const int64_t *at = (const int64_t *)j->indices.data + plane * n;                             \
    T *dx = (T *)j->dx.data + plane * volume(j->dx.size);                                         \
    for (int64_t i = 0; i < n; i++) {                                                             \
      if (at[i] >= 0 && at[i] < volume(j->dx.size)) dx[at[i]] += dy[i];                           \
    }                                                                                             \
  }                                                                                               \
  static void spread_##t(T *dx, const int64_t *in, const int64_t *b, const int64_t *e, T value) { \
    for (int64_t d = b[0]; d < e[0]; d++) {                                                       \
      for (int64_t h = b[1]; h < e[1]; h++) {                                                     \
        for (int64_t w = b[2]; w < e[2]; w++) dx[(d * in[1] + h) * in[2] + w] += value;           \
      }                                                                                           \
    }                                                                                             \
  }                                                                                               \
  static void avg_##t(const Job *j, int64_t plane) {                                              \
    const int64_t *in = j->dx.size + 2, *out = j->dy.size + 2;                                    \
    const T *dy = (const T *)j->dy.data + plane * volume(j->dy.size);                             \
    T *dx = (T *)j->dx.data + plane * volume(j->dx.size);                                         \
    int64_t o[3], b[3], e[3];                                                                     \
    FOR3(o, out) {                                                                                \
      T by = (T)divisor_at(j, in, o);                                                             \
      clipped(j->w, in, o, b, e);                                                                 \
      spread_##t(dx, in, b, e, *dy++ / by);                                                       \
    }                                                                                             \
  }                                                                                               \
  static void adaptive_avg_##t(const Job *j, int64_t plane) {                                     \
    const int64_t *in = j->dx.size + 2, *out = j->dy.size + 2;                                    \
    const T *dy = (const T *)j->dy.data + plane * volume(j->dy.size);                             \
    T *dx = (T *)j->dx.data + plane * volume(j->dx.size);                                         \
    int64_t o[3], b[3], e[3];                                                                     \
    FOR3(o, out) {                                                                                \
      for (int d = 0; d < 3; d++) {                                                               \
        b[d] = pool_adaptive_begin(o[d], in[d], out[d]);                                          \
        e[d] = pool_adaptive_end(o[d], in[d], out[d]);                                            \
      }                                                                                           \
      spread_##t(dx, in, b, e, *dy++ / (T)((e[0] - b[0]) * (e[1] - b[1]) * (e[2] - b[2])));       \
    }                                                                                             \
  }
DEFINE_GRADS(float, f32)
DEFINE_GRADS(double, f64)

static void run_planes(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  size_t bytes = (size_t)volume(j->dx.size) * dtype_size(j->dx.dtype);
  for (int64_t p = begin; p < end; p++) {
    memset((char *)j->dx.data + (size_t)p * bytes, 0, bytes);
    j->plane(j, p);
  }
}

/* v, or a contiguous copy of dtype d (only room for one if !copy). */
static Status contiguous(Kern *k, View v, Dtype d, bool copy, int64_t *stride, View *out) {
  contiguous_strides(v.ndim, v.size, stride);
  *out = v;
  bool same = v.dtype == d;
  for (int i = 0; i < v.ndim; i++) same = same && (v.size[i] == 1 || v.stride[i] == stride[i]);
  if (same) return OK;
  int64_t n = 1;
  for (int i = 0; i < v.ndim; i++) n *= v.size[i];
  *out = (View){NULL, v.size, stride, v.ndim, d};
  TRY_NEW(out->data, kern_scratch(k, (size_t)n * dtype_size(d) + 8));
  if (copy) kernel_copy(k, *out, v);
  return OK;
}

typedef enum { MAX, AVG, ADAPTIVE_AVG } Kind;

static Status grad(Kern *k, Kind kind, Job j) {
  static void (*const table[3][2])(const Job *, int64_t) = {[MAX] = {max_f32, max_f64},
                                                            [AVG] = {avg_f32, avg_f64},
                                                            [ADAPTIVE_AVG] = {adaptive_avg_f32, adaptive_avg_f64}};
  int64_t planes = j.dx.size[0] * j.dx.size[1], stride[3][POOL_DIMS];
  if (planes * volume(j.dx.size) == 0) return OK;
  View dx = j.dx;
  Dtype d = dx.dtype == DT_F64 ? DT_F64 : DT_F32;
  size_t mark = kern_mark(k);
  Status s;
  TRY_GOTO(end, contiguous(k, j.dy, d, true, stride[0], &j.dy));
  TRY_GOTO(end, contiguous(k, dx, d, false, stride[1], &j.dx));
  if (kind == MAX) TRY_GOTO(end, contiguous(k, j.indices, DT_I64, true, stride[2], &j.indices));
  j.plane = table[kind][d == DT_F64];
  parallel_for(k->threads, planes, 1, run_planes, &j);
  if (j.dx.data != dx.data) kernel_copy(k, dx, j.dx);
end:
  kern_release(k, mark);
  return s;
}

Status pool_max_grad(Kern *k, View dy, View indices, View dx) {
  return grad(k, MAX, (Job){.dy = dy, .indices = indices, .dx = dx});
}

Status pool_avg_grad(Kern *k, const PoolWindow *w, bool include_pad, int64_t divisor, View dy, View dx) {
  return grad(k, AVG, (Job){.w = w, .include_pad = include_pad, .divisor = divisor, .dy = dy, .dx = dx});
}

Status pool_adaptive_avg_grad(Kern *k, View dy, View dx) {
  return grad(k, ADAPTIVE_AVG, (Job){.dy = dy, .dx = dx});
}

static Status unpool(Kern *k, View x, View indices, View y) {
  int64_t stride[3][POOL_DIMS], planes = y.size[0] * y.size[1], from = volume(x.size), to = volume(y.size);
  size_t item = dtype_size(x.dtype);
  View out;
  TRY(contiguous(k, x, x.dtype, true, stride[0], &x));
  TRY(contiguous(k, indices, DT_I64, true, stride[1], &indices));
  TRY(contiguous(k, y, y.dtype, false, stride[2], &out));
  memset(out.data, 0, (size_t)(planes * to) * item);
  for (int64_t i = 0; i < planes * from; i++) {
    int64_t at = ((const int64_t *)indices.data)[i];
    if (at < 0 || at >= to)
      return fail(ERR_FAIL, "index %lld lies outside of a plane of %lld elements", (long long)at, (long long)to);
    memcpy((char *)out.data + (size_t)(i / from * to + at) * item, (const char *)x.data + (size_t)i * item, item);
  }
  if (out.data != y.data) kernel_copy(k, y, out);
  return OK;
}

Status pool_unpool(Kern *k, View x, View indices, View y) {
  if (y.size[0] * y.size[1] * volume(y.size) == 0) return OK;
  size_t mark = kern_mark(k);
  Status s = unpool(k, x, indices, y);
  kern_release(k, mark);
  return s;
}
