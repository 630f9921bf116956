/* products.c -- the three products of a linear layer's training step, each route beside the others.
 *
 *     products [TOKENS ...]        default: 128 256 512 1024
 *
 * With x[tokens, in], w[out, in] and dy[tokens, out]: forward x w^T, the cotangent of x dy w, the gradient of w
 * dy^T x. As in a step, weights and gradients are not in the cache: calls go through as many of them as fill 256
 * MiB.  Tells GFLOP/s on one thread, of the best of several rounds in turns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory.h"
#include "kernels/gemm_problem.h"
#include "kernels/onednn.h"

enum { COLD_BYTES = 256 << 20, ROUNDS = 5, ROUTES = 3 };

typedef enum { FORWARD, FORWARD_IN_OUT, COTANGENT, GRADIENT, KINDS } Kind;
static const char *const kind_name[] = {"x w^T", "x w (w in,out)", "dy w", "dy^T x"};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static Matrix rows(float *at, int64_t ld) {
  return (Matrix){.data = (char *)at, .dtype = DT_F32, .row = ld, .col = 1};
}
static Matrix columns(float *at, int64_t ld) {
  return (Matrix){.data = (char *)at, .dtype = DT_F32, .row = 1, .col = ld};
}

static Problem problem(Kind kind, float *x, float *w, float *dy, int64_t t, int64_t in, int64_t out) {
  Problem p = {.batch = 1, .alpha = 1};
  switch (kind) {
    case FORWARD: p.m = t, p.n = out, p.k = in, p.a = rows(x, in), p.b = columns(w, in), p.c = rows(dy, out); break;
    case FORWARD_IN_OUT:
      p.m = t, p.n = out, p.k = in, p.a = rows(x, in), p.b = rows(w, out), p.c = rows(dy, out);
      break;
    case COTANGENT: p.m = t, p.n = in, p.k = out, p.a = rows(dy, out), p.b = rows(w, in), p.c = rows(x, in); break;
    default: p.m = out, p.n = in, p.k = t, p.a = columns(dy, out), p.b = rows(x, in), p.c = rows(w, in); break;
  }
  return p;
}

static Status run(int route, Kern *k, const Problem *p) {
  size_t mark = kern_mark(k);
  Status s = OK;
  if (route == 0)
    s = onednn_sgemm(p->a.col != 1, p->b.col != 1, p->m, p->n, p->k, 1, (const float *)(void *)p->a.data,
                     p->a.col != 1 ? p->a.col : p->a.row, (const float *)(void *)p->b.data,
                     p->b.col != 1 ? p->b.col : p->b.row, 0, (float *)(void *)p->c.data, p->c.row);
  else if (route == 1) s = gemm_blocked(k, p, NULL);
  else {
    View a = {p->a.data, (int64_t[]){p->m, p->k}, (int64_t[]){p->a.row, p->a.col}, 2, DT_F32};
    View b = {p->b.data, (int64_t[]){p->k, p->n}, (int64_t[]){p->b.row, p->b.col}, 2, DT_F32};
    View c = {p->c.data, (int64_t[]){p->m, p->n}, (int64_t[]){p->c.row, p->c.col}, 2, DT_F32};
    s = gemm(k, &(Gemm){.a = a, .b = b, .c = c, .alpha = 1});
  }
  kern_release(k, mark);
  return s;
}

int main(int argc, char **argv) {
  static const int64_t sizes[][2] = {{768, 768}, {768, 2304}, {768, 3072}, {3072, 768}, {768, 50257},
                                     {320, 960}, {320, 320},  {320, 1280}, {1280, 320}, {320, 4096}};
  static char *usual[] = {"", "128", "256", "512", "1024"};
  if (argc < 2) argc = 5, argv = usual;
  Kern kern, *k = &kern;
  kern_init(k, 1);
  float *w = memory_alloc(COLD_BYTES), *x = memory_alloc(COLD_BYTES), *dy = memory_alloc((size_t)1 << 30);
  if (!w || !x || !dy) return 1;
  for (size_t i = 0; i < COLD_BYTES / 4; i++)
    w[i] = (float)(i % 7) * 0.1f, x[i] = (float)(i % 11) * 0.1f, dy[i] = (float)(i % 5) * 0.1f;
  printf("%-16s %6s %6s %6s %9s %9s %9s\n", "product", "tokens", "in", "out", "sgemm", "blocked", "gemm()");
  for (int arg = 1; arg < argc; arg++) {
    int64_t t = atoll(argv[arg]);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
      int64_t in = sizes[s][0], out = sizes[s][1], each = in * out, copies = COLD_BYTES / 4 / each;
      if (!copies) return 1;
      if (copies > 64) copies = 64;
      for (Kind kind = 0; kind < KINDS; kind++) {
        double best[ROUTES] = {1e9, 1e9, 1e9};
        for (int round = 0; round < ROUNDS * ROUTES; round++) {
          double begin = now();
          for (int64_t i = 0; i < copies; i++) {
            Problem p = problem(kind, x, w + i * each, dy, t, in, out);
            if (run(round % ROUTES, k, &p)) return 1;
          }
          double took = (now() - begin) / (double)copies;
          if (took < best[round % ROUTES]) best[round % ROUTES] = took;
        }
        double work = 2e-9 * (double)t * (double)in * (double)out;
        printf("%-16s %6lld %6lld %6lld %9.1f %9.1f %9.1f\n", kind_name[kind], (long long)t, (long long)in,
               (long long)out, work / best[0], work / best[1], work / best[2]);
        fflush(stdout);
      }
    }
  }
  return 0;
}
