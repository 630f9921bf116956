/* roofline.c -- the time that a program's matrix products alone would take: each of them
 * as a plain sgemm of oneDNN, best of several, summed.  Nothing that computes the same
 * products with this library can be faster; how near a whole run comes to it is the
 * measure of everything else.
 *
 *     roofline PROGRAM [--threads T] [--cpu] [--grad|--train]        prints one JSON object
 *
 * --grad: with the products of the gradients of its loss.
 * --train: and one pass over parameters, gradients and two states, of which all but the gradients are written: 28
 * bytes per parameter, at the speed at which this machine copies memory.
 * --cpu: processor time of the one thread, for a machine that does other things too.
 */
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/parallel.h"
#include "harness/feed.h"
#include "pt2/read.h"
#include "runtime/session.h"

typedef struct {
  int64_t m, n, k; /* (m,k) x (n,k)^T */
  int64_t count;   /* how often per run */
} Product;

typedef struct {
  Product list[256];
  int n;
} Products;

static void add(Products *p, int64_t m, int64_t n, int64_t k, int64_t count) {
  if (m <= 0 || n <= 0 || k <= 0) return;
  for (int i = 0; i < p->n; i++) {
    Product *q = &p->list[i];
    if (q->m == m && q->n == n && q->k == k) {
      q->count += count;
      return;
    }
  }
  if (p->n < 256) p->list[p->n++] = (Product){m, n, k, count};
}

static void collect(const Program *program, Products *p) {
  for (int i = 0; i < program->ninstrs; i++) {
    const Call *c = &program->instrs[i].call;
    const char *name = c->op->schema.name;
    const Tensor *a = in_tensor(c, 0), *b = c->op->schema.nparams > 1 ? in_tensor(c, 1) : NULL;
    const Tensor *out = c->nout ? out_tensor(c, 0) : NULL;
    if (!a || !b || !out) continue;
    if (!strcmp(name, "aten.linear.default") || !strcmp(name, "tess.linear_act.default")) {
      add(p, tensor_numel(out) / b->size[0], b->size[0], b->size[1], 1);
    } else if (!strcmp(name, "aten.mm.default")) {
      add(p, out->size[0], out->size[1], a->size[1], 1);
    } else if (!strcmp(name, "aten.addmm.default")) {
      add(p, out->size[0], out->size[1], b->size[1], 1);
    } else if (!strcmp(name, "aten.bmm.default")) {
      add(p, out->size[1], out->size[2], a->size[2], out->size[0]);
    } else if (!strcmp(name, "aten.scaled_dot_product_attention.default") && a->ndim == 4) {
      add(p, a->size[2], b->size[2], a->size[3], a->size[0] * a->size[1]);
      add(p, a->size[2], a->size[3], b->size[2], a->size[0] * a->size[1]);
    } else if (strstr(name, "attention_for_cpu") && a->ndim == 4) { /* the backward: grad_out, query, key */
      bool backward = strstr(name, "backward");
      const Tensor *key = backward ? in_tensor(c, 2) : b;
      int64_t heads = a->size[0] * a->size[1];
      add(p, a->size[2], key->size[2], a->size[3], heads * (backward ? 2 : 1));
      add(p, a->size[2], a->size[3], key->size[2], heads * (backward ? 3 : 1));
    } else if (!strcmp(name, "aten.matmul.default") && a->ndim > 1 && b->ndim > 1) {
      int64_t m = a->size[a->ndim - 2], k = a->size[a->ndim - 1], n = b->size[b->ndim - 1];
      int64_t batch = tensor_numel(out) / (m * n);
      if (b->ndim == 2) add(p, m * batch, n, k, 1);
      else add(p, m, n, k, batch);
    } else if (strstr(name, "conv") && b->ndim == 4 && out->ndim == 4) {
      add(p, out->size[0] * out->size[2] * out->size[3], b->size[0], b->size[1] * b->size[2] * b->size[3], 1);
    }
  }
}

static double now(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds of one product, best of many within a fifth of a second. */
static double measure(const Product *q, clockid_t id) {
  size_t na = (size_t)(q->m * q->k), nb = (size_t)(q->n * q->k), nc = (size_t)(q->m * q->n);
  float *a = malloc(na * 4), *b = malloc(nb * 4), *c = malloc(nc * 4);
  double best = 1e30, end = now(id) + 0.2;
  for (size_t i = 0; a && i < na; i++) a[i] = (float)(i % 7) - 3;
  for (size_t i = 0; b && i < nb; i++) b[i] = (float)(i % 5) - 2;
  for (int r = 0; a && b && c && (r < 5 || now(id) < end); r++) {
    double start = now(id);
    dnnl_sgemm('N', 'T', q->m, q->n, q->k, 1.0f, a, q->k, b, q->k, 0.0f, c, q->n);
    double t = now(id) - start;
    if (t < best) best = t;
  }
  free(a);
  free(b);
  free(c);
  return best;
}

typedef struct {
  char *to;
  const char *from;
} Copy;

static void copy_part(void *arg, int64_t begin, int64_t end, int worker) {
  const Copy *c = arg;
  (void)worker;
  memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

/* Bytes per second that are read and written, best of several. */
static double memory_speed(int threads, clockid_t id) {
  enum { BYTES = 256 << 20 };
  Copy c = {malloc(BYTES), malloc(BYTES)};
  double best = 1e30;
  if (!c.to || !c.from) return 1e30;
  memset((char *)(uintptr_t)c.from, 1, BYTES);
  for (int r = 0; r < 6; r++) {
    double start = now(id);
    parallel_for(threads, BYTES, 1 << 20, copy_part, &c);
    double t = now(id) - start;
    if (r && t < best) best = t;
  }
  free(c.to);
  free((char *)(uintptr_t)c.from);
  return 2.0 * BYTES / best;
}

static double trained_bytes(const Exported *e) {
  double n = 0;
  for (int i = 0; i < e->nstate; i++)
    if (e->state[i].is_parameter && e->state[i].requires_grad) n += (double)tensor_numel(e->state[i].tensor);
  return 28 * n;
}

static Status roofline(const char *path, int threads, clockid_t id, bool grad, bool train) {
  Exported *e;
  Ctx ctx;
  Session *session = NULL;
  Scope scope = {0};
  Arena arena = {0};
  Value *inputs;
  int n;
  Program *program = NULL;
  TRY(pt2_read(path, &e));
  ctx_init(&ctx, threads);
  Status s = session_open(&ctx, e, &session);
  if (!s && grad) s = session_want_gradients(session, &(GradOptions){0});
  if (!s) s = feed_random(session_program(session), 0, true, &scope, &arena, &inputs, &n);
  if (!s) s = session_prepare(session, inputs, n, &program);
  if (!s && !program) s = fail(ERR_FAIL, "the program's sizes depend on data");
  if (!s) {
    Products p = {.n = 0};
    double total = 0, flops = 0;
    collect(program, &p);
    for (int i = 0; i < p.n; i++) {
      const Product *q = &p.list[i];
      total += measure(q, id) * (double)q->count;
      flops += 2.0 * (double)q->m * (double)q->n * (double)q->k * (double)q->count;
    }
    if (train) total += trained_bytes(session_program(session)) / memory_speed(threads, id);
    printf("{\"seconds\": %.6f, \"gflop\": %.3f, \"gflop_per_second\": %.2f, \"products\": %d}\n", total,
           flops * 1e-9, flops / total * 1e-9, p.n);
  }
  session_free(session);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
  return s;
}

int main(int argc, char **argv) {
  int threads = 1;
  clockid_t id = CLOCK_MONOTONIC;
  bool grad = false, train = false;
  for (int i = 2; i < argc; i++) {
    if (!strcmp(argv[i], "--threads") && i + 1 < argc) threads = atoi(argv[i + 1]);
    if (!strcmp(argv[i], "--train")) train = true;
    if (!strcmp(argv[i], "--grad") || train) grad = true;
    if (!strcmp(argv[i], "--cpu")) id = CLOCK_THREAD_CPUTIME_ID;
  }
  Status s = argc < 2 ? fail(ERR_USAGE, "usage: roofline PROGRAM [--threads T] [--cpu] [--grad|--train]")
                      : roofline(argv[1], threads, id, grad, train);
  if (!s) return 0;
  fprintf(stderr, "error: %s\n", status_message(s));
  int code = (int)status_code(s);
  status_free(s);
  return code;
}
