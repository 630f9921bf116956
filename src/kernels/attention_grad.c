/* attention_grad.c -- the gradients of attention, without ever holding all the scores.
 *
 * With p = softmax(scale q k^T + mask), from the logsumexp of the forward pass:
 *
 *     dv = p^T do      ds = scale * p * (do v^T - delta)      delta = sum(do * out, -1)
 *     dq = ds k        dk = ds^T q
 *
 * A task is one head.  Blocks of ROWS queries and KEYS keys: two products give p and ds as
 * A blocks (gemm_simd.h), three use them; p and ds are turned around for two of those. */
#include <math.h>
#include <string.h>

#include "kernels/attention_problem.h"
#include "kernels/attention_simd.h"
#include "kernels/convert.h"

enum { ROWS = 96, KEYS = 128 };

typedef struct {
  const Kern *k;
  const AttentionGrad *g;
  const GemmKernels *kernels;
  AttentionSize z;
  int64_t rows, ldd, lde; /* queries of a block; d and e in whole panels */
  char *room;
  size_t room_bytes;
} Job;

/* What a worker has.  Panels are [columns / nr][depth][nr]. */
typedef struct {
  float *kt, *vt, *k; /* panels: k^T (d deep), v^T (e deep), k (s deep) */
  float *dk, *dv;     /* (s, ldd), (s, lde) */
  float *q, *go;      /* A blocks: q and do */
  float *qp, *gop;    /* the same as panels, rows deep */
  float *p, *ds, *t;  /* A blocks: (rows, keys) twice, (keys, rows) */
  float *dq;          /* (rows, ldd) */
  float *lse, *delta; /* (rows), lse in units of log 2 */
  float *mask, *pack;
} Room;

static size_t lay_out(const Job *job, char *at, Room *r) {
  const AttentionSize *z = &job->z;
  int64_t nr = job->kernels->nr, ls = pieces(z->s, nr) * nr;
  const struct {
    float **field;
    int64_t n;
  } parts[] = {{&r->kt, ls * z->d},
               {&r->vt, ls * z->e},
               {&r->k, job->ldd * z->s},
               {&r->dk, z->s * job->ldd},
               {&r->dv, z->s * job->lde},
               {&r->q, job->rows * GEMM_LDA},
               {&r->go, job->rows * GEMM_LDA},
               {&r->qp, job->ldd * job->rows},
               {&r->gop, job->lde * job->rows},
               {&r->p, job->rows * GEMM_LDA},
               {&r->ds, job->rows * GEMM_LDA},
               {&r->t, (int64_t)KEYS * GEMM_LDA},
               {&r->dq, job->rows * job->ldd},
               {&r->lse, job->rows},
               {&r->delta, job->rows},
               {&r->mask, KEYS},
               {&r->pack, (int64_t)(gemm_pack_room(job->k) / sizeof(float))}};
  size_t total = 0;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    *parts[i].field = (float *)(void *)(at ? at + total : NULL);
    total += (floats(parts[i].n) + 63) & ~(size_t)63;
  }
  return total;
}

/* ---- products of blocks ----------------------------------------------------------------- */

/* c[rows, cols] = alpha * a panels (+ c): cols in whole panels that are `next` floats apart. */
static void multiply(const Job *job, const float *a, int64_t rows, const float *panels, int64_t next, int64_t cols,
                     int64_t depth, float *c, int64_t ldc, float alpha, bool add) {
  int64_t nr = job->kernels->nr, mr = job->kernels->mr;
  for (int64_t j = 0; j < cols; j += nr, panels += next) {
    for (int64_t i = 0; i < rows; i += mr) {
      job->kernels->tile((int)least(rows - i, mr), (int)nr, depth, a + i * GEMM_LDA, panels, c + i * ldc + j, ldc,
                         alpha, add);
    }
  }
}

static void pack_panels(const Job *job, float *to, const Matrix *x, int64_t row, int64_t depth, int64_t cols,
                        Room *r) {
  Matrix part = *x;
  part.data = matrix_at(x, 0, row, 0);
  for (int64_t j = 0; j < cols; j += job->kernels->nr) {
    gemm_pack_panel(job->k, to + j * depth, &part, 0, j, least(cols - j, job->kernels->nr), depth, r->pack);
  }
}

static Matrix turned(Matrix x) {
  int64_t row = x.row;
  x.row = x.col;
  x.col = row;
  return x;
}

/* t[keys][rows] = x[rows][keys], both GEMM_LDA apart. */
static void turn(float *t, const float *x, int64_t rows, int64_t keys) {
  for (int64_t i0 = 0; i0 < rows; i0 += 16) {
    for (int64_t j = 0; j < keys; j++) {
      for (int64_t i = i0; i < least(rows, i0 + 16); i++) t[j * GEMM_LDA + i] = x[i * GEMM_LDA + j];
    }
  }
}

/* ---- one head --------------------------------------------------------------------------- */

static float dot(const float *x, const float *y, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
  return sum;
}

/* q, do, delta and logsumexp of queries i0 .. i0+rows. */
static void read_queries(const Job *job, int64_t b, int64_t h, int64_t i0, int64_t rows, Room *r) {
  const Attention *f = &job->g->forward;
  Matrix q = attention_head(f->q, b, h), go = attention_head(job->g->grad_out, b, h),
         out = attention_head(f->out, b, h);
  const View *l = f->logsumexp;
  gemm_pack_a(job->k, r->p, &out, 0, i0, 0, rows, job->z.e); /* p is free yet */
  gemm_pack_a(job->k, r->go, &go, 0, i0, 0, rows, job->z.e);
  gemm_pack_a(job->k, r->q, &q, 0, i0, 0, rows, job->z.d);
  pack_panels(job, r->qp, &q, i0, rows, job->z.d, r);
  pack_panels(job, r->gop, &go, i0, rows, job->z.e, r);
  for (int64_t i = 0; i < rows; i++) {
    float lse = ((const float *)l->data)[b * l->stride[0] + h * l->stride[1] + (i0 + i) * l->stride[2]];
    r->lse[i] = lse * ATTENTION_LOG2E;
    r->delta[i] = dot(r->p + i * GEMM_LDA, r->go + i * GEMM_LDA, job->z.e);
  }
}

/* p and ds for keys s0 .. s0+n. */
static void score_block(const Job *job, int64_t b, int64_t h, int64_t i0, int64_t rows, int64_t s0, int64_t n,
                        Room *r) {
  const Attention *f = &job->g->forward;
  int64_t nr = job->kernels->nr, cols = pieces(n, nr) * nr;
  multiply(job, r->q, rows, r->kt + s0 * job->z.d, nr * job->z.d, cols, job->z.d, r->p, GEMM_LDA,
           (float)f->scale * ATTENTION_LOG2E, false);
  multiply(job, r->go, rows, r->vt + s0 * job->z.e, nr * job->z.e, cols, job->z.e, r->ds, GEMM_LDA, 1, false);
  for (int64_t i = 0; i < rows; i++) {
    float *p = r->p + i * GEMM_LDA, *ds = r->ds + i * GEMM_LDA;
    int64_t seen = attention_visible(f, i0 + i, s0, n);
    attention_mask_row(job->k, f, b, h, i0 + i, s0, seen, p, r->mask);
    SIMD_CALL(job->k->isa, attention_grad_row)(p, ds, seen, r->lse[i], r->delta[i], (float)f->scale);
    for (int64_t j = seen; j < n; j++) p[j] = ds[j] = 0;
  }
}

static void write_rows(const Job *job, const Matrix *to, int64_t i0, int64_t rows, int64_t cols, const float *from,
                       int64_t ld) {
  int64_t run = to->col == 1 ? cols : 1;
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < cols; j += run)
      SIMD_CALL(job->k->isa, convert_run)(matrix_at(to, 0, i0 + i, j), to->dtype, from + i * ld + j, DT_F32, run);
  }
}

static void run_head(const Job *job, int64_t b, int64_t h, Room *r) {
  const Attention *f = &job->g->forward;
  const AttentionSize *z = &job->z;
  int64_t nr = job->kernels->nr;
  Matrix k = attention_head(f->k, b, h), v = attention_head(f->v, b, h), kt = turned(k), vt = turned(v);
  Matrix dq = attention_head(job->g->grad_q, b, h), dk = attention_head(job->g->grad_k, b, h),
         dv = attention_head(job->g->grad_v, b, h);
  pack_panels(job, r->kt, &kt, 0, z->d, z->s, r);
  pack_panels(job, r->vt, &vt, 0, z->e, z->s, r);
  pack_panels(job, r->k, &k, 0, z->s, z->d, r);
  memset(r->dk, 0, floats(z->s * job->ldd));
  memset(r->dv, 0, floats(z->s * job->lde));
  for (int64_t i0 = 0; i0 < z->t; i0 += job->rows) {
    int64_t rows = least(z->t - i0, job->rows), keys = attention_visible(f, i0 + rows - 1, 0, z->s);
    read_queries(job, b, h, i0, rows, r);
    memset(r->dq, 0, floats(rows * job->ldd));
    for (int64_t s0 = 0; s0 < keys; s0 += KEYS) {
      int64_t n = least(keys - s0, KEYS);
      score_block(job, b, h, i0, rows, s0, n, r);
      multiply(job, r->ds, rows, r->k + s0 * nr, z->s * nr, job->ldd, n, r->dq, job->ldd, 1, true);
      turn(r->t, r->p, rows, n);
      multiply(job, r->t, n, r->gop, rows * nr, job->lde, rows, r->dv + s0 * job->lde, job->lde, 1, true);
      turn(r->t, r->ds, rows, n);
      multiply(job, r->t, n, r->qp, rows * nr, job->ldd, rows, r->dk + s0 * job->ldd, job->ldd, 1, true);
    }
    write_rows(job, &dq, i0, rows, z->d, r->dq, job->ldd);
  }
  write_rows(job, &dk, 0, z->s, z->d, r->dk, job->ldd);
  write_rows(job, &dv, 0, z->s, z->e, r->dv, job->lde);
}

static void run_heads(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  Room r;
  lay_out(job, job->room + job->room_bytes * (size_t)worker, &r);
  for (int64_t t = begin; t < end; t++) run_head(job, t / job->z.heads, t % job->z.heads, &r);
}

Status attention_grad(Kern *k, const AttentionGrad *g) {
  Job job = {.k = k, .g = g, .kernels = SIMD_CALL(k->isa, gemm_kernels)(), .z = attention_size(&g->forward)};
  const AttentionSize *z = &job.z;
  int64_t mr = job.kernels->mr, nr = job.kernels->nr, tasks = z->batch * z->heads;
  if (z->d > GEMM_KC || z->e > GEMM_KC || g->forward.q.dtype == DT_F64) return attention_grad_naive(k, g);
  job.rows = least(ROWS / mr, pieces(most(1, z->t), mr)) * mr;
  job.ldd = pieces(z->d, nr) * nr;
  job.lde = pieces(z->e, nr) * nr;
  Room unused;
  job.room_bytes = lay_out(&job, NULL, &unused);
  size_t mark = kern_mark(k);
  TRY_NEW(job.room, kern_scratch(k, job.room_bytes * (size_t)parallel_workers(k->threads, tasks, 1)));
  parallel_for(k->threads, tasks, 1, run_heads, &job);
  kern_release(k, mark);
  return OK;
}
