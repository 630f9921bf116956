/* im2col.c -- see im2col.h. */
#include "kernels/im2col.h"

#include <string.h>

#include "kernels/copy.h"

typedef struct {
  const Windows *win;
  View x;
  void *columns;
} Job;

/* The range of window positions along a dimension whose element k lies inside of size. */
static void inside(const Windows *w, int d, int64_t k, int64_t size, int64_t *first, int64_t *last) {
  int64_t at = k * w->dilation[d] - w->pad[d]; /* position for window 0 */
  *first = at < 0 ? (-at + w->stride[d] - 1) / w->stride[d] : 0;
  *last = at < size ? (size - at + w->stride[d] - 1) / w->stride[d] : 0;
  if (*last > w->out[d]) *last = w->out[d];
  if (*first > *last) *first = *last;
}

/* n elements of `bytes` each, `step` bytes apart. */
static void gather(char *to, const char *from, int64_t n, int64_t step, size_t bytes) {
  if (step == (int64_t)bytes) {
    memcpy(to, from, (size_t)n * bytes);
    return;
  }
  switch (bytes) {
    case 4:
      for (int64_t i = 0; i < n; i++) memcpy(to + i * 4, from + i * step, 4);
      break;
    case 8:
      for (int64_t i = 0; i < n; i++) memcpy(to + i * 8, from + i * step, 8);
      break;
    case 2:
      for (int64_t i = 0; i < n; i++) memcpy(to + i * 2, from + i * step, 2);
      break;
    default:
      for (int64_t i = 0; i < n; i++) memcpy(to + i * (int64_t)bytes, from + i * step, bytes);
  }
}

/* Rows [begin, end) of the matrix: one (channel, kh, kw) each. */
static void fill_rows(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  const Windows *w = j->win;
  size_t bytes = dtype_size(j->x.dtype);
  int64_t unit = (int64_t)bytes, oh = w->out[0], ow = w->out[1];
  for (int64_t row = begin; row < end; row++) {
    int64_t kw = row % w->k[1], kh = row / w->k[1] % w->k[0], c = row / w->k[1] / w->k[0];
    int64_t y0, y1, x0, x1;
    inside(w, 0, kh, j->x.size[1], &y0, &y1);
    inside(w, 1, kw, j->x.size[2], &x0, &x1);
    char *to = (char *)j->columns + row * oh * ow * unit;
    for (int64_t y = 0; y < oh; y++, to += ow * unit) {
      if (y < y0 || y >= y1 || x0 == x1) {
        memset(to, 0, (size_t)ow * bytes);
        continue;
      }
      int64_t sy = y * w->stride[0] - w->pad[0] + kh * w->dilation[0],
              sx = x0 * w->stride[1] - w->pad[1] + kw * w->dilation[1];
      const char *from = (const char *)j->x.data +
                         (c * j->x.stride[0] + sy * j->x.stride[1] + sx * j->x.stride[2]) * unit;
      memset(to, 0, (size_t)x0 * bytes);
      gather(to + x0 * unit, from, x1 - x0, w->stride[1] * j->x.stride[2] * unit, bytes);
      memset(to + x1 * unit, 0, (size_t)(ow - x1) * bytes);
    }
  }
}

void im2col(Kern *k, const Windows *win, View x, void *columns) {
  Job job = {win, x, columns};
  int64_t rows = x.size[0] * win->k[0] * win->k[1], width = win->out[0] * win->out[1];
  if (width == 0) return;
  parallel_for(k->threads, rows, 1 + 16384 / width, fill_rows, &job);
}

/* Images [begin, end) of (n, c), in double: a sum of at most kh*kw terms. */
static void sum_planes(void *arg, int64_t begin, int64_t end, int worker) {
  (void)worker;
  const Job *j = arg;
  const Windows *w = j->win;
  int64_t h = j->x.size[2], wd = j->x.size[3], nk = w->k[0] * w->k[1], nout = w->out[0] * w->out[1];
  for (int64_t plane = begin; plane < end; plane++) {
    double *x = (double *)j->x.data + plane * h * wd;
    memset(x, 0, (size_t)(h * wd) * sizeof *x);
    for (int64_t e = 0; e < nk; e++) {
      int64_t kh = e / w->k[1], kw = e % w->k[1], y0, y1, x0, x1;
      inside(w, 0, kh, h, &y0, &y1);
      inside(w, 1, kw, wd, &x0, &x1);
      const double *col = (const double *)j->columns + (plane * nk + e) * nout;
      for (int64_t y = y0; y < y1; y++) {
        double *to = x + (y * w->stride[0] - w->pad[0] + kh * w->dilation[0]) * wd - w->pad[1] +
                     kw * w->dilation[1];
        for (int64_t i = x0; i < x1; i++) to[i * w->stride[1]] += col[y * w->out[1] + i];
      }
    }
  }
}

Status col2im(Kern *k, const Windows *win, View columns, View x) {
  int64_t stride[4], cols = columns.size[0] * columns.size[1] * columns.size[2], planes = x.size[0] * x.size[1],
                     hw = x.size[2] * x.size[3];
  if (planes * hw == 0) return OK;
  size_t mark = kern_mark(k);
  double *from = kern_scratch(k, (size_t)(cols + 1) * sizeof *from),
         *to = from ? kern_scratch(k, (size_t)(planes * hw) * sizeof *to) : NULL;
  if (to) {
    contiguous_strides(3, columns.size, stride);
    kernel_copy(k, (View){from, columns.size, stride, 3, DT_F64}, columns);
    contiguous_strides(4, x.size, stride);
    View wide = {to, x.size, stride, 4, DT_F64};
    Job job = {win, wide, from};
    parallel_for(k->threads, planes, 1, sum_planes, &job);
    kernel_copy(k, x, wide);
  }
  kern_release(k, mark);
  return to ? OK : fail_oom();
}
