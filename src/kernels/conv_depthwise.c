/* conv_depthwise.c -- see conv_depthwise.h.
 *
 * Each plane is copied once, with its padding, and taken apart by the remainders of row
 * and column modulo the strides:
 *
 *   copy[row % sh][column % sw][row / sh][column / sw]      pitch elements per row
 *
 * Then result (r, i) needs, for every tap, the element r*pitch + i + offset[tap]: one long
 * run over all rows, without edges or gaps, of which some columns at the end of each row
 * are not wanted.
 */
#include "kernels/conv_depthwise.h"

#include <string.h>

enum { CHUNK = 4096 }; /* results at a time: they stay in the first cache */

typedef struct {
  Isa isa;
  const ConvSizes *c;
  const float *x, *w, *bias;
  float *y;
  int64_t *offset; /* of each tap */
  int taps;
  int64_t rows, pitch; /* of one part of the copy */
  float *scratch;      /* per worker: the copy, then a chunk of results */
  size_t copy_floats, worker_floats;
} Job;

static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* One row of the image to its places in `to` (the parts of different columns are
 * `part` apart); padded column pad comes first. */
static void copy_row(Isa isa, float *to, const float *from, int64_t width, int64_t pad, int64_t stride,
                     int64_t part) {
  if (stride == 2) {
    int64_t n = width / 2, at = pad / 2;
    bool odd = pad & 1; /* column 0 of the image is an odd one */
    SIMD_CALL(isa, depthwise_halve)(odd ? to + part + at : to + at, odd ? to + at + 1 : to + part + at, from, n);
    if (width & 1) to[odd ? part + at + n : at + n] = from[width - 1];
  } else {
    for (int64_t i = 0; i < width; i++) to[(i + pad) % stride * part + (i + pad) / stride] = from[i];
  }
}

static void copy_plane(const Job *j, float *copy, const float *x) {
  const ConvSizes *c = j->c;
  int64_t part = j->rows * j->pitch;
  if (c->stride[1] == 1 && c->stride[2] == 1) {
    SIMD_CALL(j->isa, depthwise_copy)
    (copy + c->pad[1] * j->pitch + c->pad[2], j->pitch, x, c->big[2], c->big[1], c->big[2]);
    return;
  }
  for (int64_t r = 0; r < c->big[1]; r++) {
    int64_t padded = r + c->pad[1], row = padded / c->stride[1];
    float *to = copy + padded % c->stride[1] * c->stride[2] * part + row * j->pitch;
    copy_row(j->isa, to, x + r * c->big[2], c->big[2], c->pad[2], c->stride[2], part);
  }
}

static void convolve(const Job *j, const float *copy, float *chunk, const float *w, float bias, float *y) {
  int64_t height = j->c->small[1], width = j->c->small[2], rows = max(1, CHUNK / j->pitch);
  for (int64_t r = 0; r < height; r += rows) {
    int64_t n = r + rows < height ? rows : height - r;
    SIMD_CALL(j->isa, depthwise_run)
    (chunk, (n - 1) * j->pitch + width, copy + r * j->pitch, j->offset, w, j->taps, bias);
    SIMD_CALL(j->isa, depthwise_copy)(y, width, chunk, j->pitch, n, width);
    y += n * width;
  }
}

/* Planes [begin, end) of (n, groups). */
static void run_planes(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *j = arg;
  const ConvSizes *c = j->c;
  float *copy = j->scratch + (size_t)worker * j->worker_floats, *chunk = copy + j->copy_floats;
  int64_t in = c->big[1] * c->big[2], out = c->small[1] * c->small[2], each = c->oc / c->groups;
  memset(copy, 0, j->copy_floats * sizeof *copy); /* the padding stays zero */
  for (int64_t p = begin; p < end; p++) {
    copy_plane(j, copy, j->x + p * in);
    for (int64_t e = 0; e < each; e++) {
      int64_t channel = p % c->groups * each + e;
      convolve(j, copy, chunk, j->w + channel * j->taps, j->bias ? j->bias[channel] : 0,
               j->y + (p * each + e) * out);
    }
  }
}

/* Padded rows or columns of the copy: the image's, or what the windows reach. */
static int64_t extent(const ConvSizes *c, int d) {
  int64_t reach = (c->small[d] - 1) * c->stride[d] + (c->k[d] - 1) * c->dilation[d] + 1;
  return ceil_div(max(c->pad[d] + c->big[d], reach), c->stride[d]);
}

static Status run(Kern *k, const ConvSizes *c, Job *j) {
  j->taps = (int)(c->k[1] * c->k[2]);
  j->rows = extent(c, 1);
  j->pitch = extent(c, 2);
  int64_t part = j->rows * j->pitch, chunk = max(CHUNK, j->pitch);
  j->copy_floats = (size_t)(part * c->stride[1] * c->stride[2] + DEPTHWISE_SLACK);
  j->worker_floats = (j->copy_floats + (size_t)chunk + DEPTHWISE_SLACK + 15) & ~(size_t)15;
  TRY_NEW(j->offset, kern_scratch(k, (size_t)j->taps * sizeof *j->offset));
  TRY_NEW(j->scratch, kern_scratch(k, j->worker_floats * (size_t)k->threads * sizeof *j->scratch));
  for (int t = 0; t < j->taps; t++) {
    int64_t h = t / c->k[2] * c->dilation[1], w = t % c->k[2] * c->dilation[2];
    j->offset[t] = (h % c->stride[1] * c->stride[2] + w % c->stride[2]) * part + h / c->stride[1] * j->pitch +
                   w / c->stride[2];
  }
  int64_t work = c->small[1] * c->small[2] * j->taps;
  parallel_for(k->threads, c->n * c->groups, 1 + 65536 / work, run_planes, j);
  return OK;
}

Status conv_depthwise(Kern *k, const ConvSizes *c, const float *x, const float *w, const float *bias, float *y) {
  Job j = {.isa = k->isa, .c = c, .x = x, .w = w, .bias = bias, .y = y};
  size_t mark = kern_mark(k);
  Status s = run(k, c, &j);
  kern_release(k, mark);
  return s;
}
