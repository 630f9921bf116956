/* attention_grad.c -- the gradients of attention, without ever holding all the scores.
 *
 * With p = softmax(scale q k^T + mask), from the logsumexp of the forward pass:
 *
 *     dv = p^T do      ds = scale * p * (do v^T - delta)      delta = sum(do * out, -1)
 *     dq = ds k        dk = ds^T q
 *
 * A logsumexp that is far from zero (a query whose keys all have a mask like -1e9) has no room for the digits that
 * p needs: largest score and sum are found again for such queries, p = exp(score - largest) / sum.
 *
 * Dropout multiplies p in dv, and do v^T, by the same factors again; the sum behind delta is that of the weights
 * that were left.
 *
 * A task is a part of the queries that meet one key head: of one head, or of those that share it.  Blocks of ROWS
 * queries and KEYS keys: two products give p and ds as A blocks (gemm_simd.h), three use them; p and ds are turned
 * around for two of those.  Where a key head's queries are several tasks, their dk and dv are added up afterwards.
 *
 * The gradient of a mask is ds / scale, summed over what the mask was broadcast along.  A task is a block of
 * queries of one head of the mask. */
#include <math.h>
#include <string.h>

#include "kernels/attention_problem.h"
#include "kernels/attention_simd.h"
#include "kernels/convert.h"

enum { ROWS = 96, KEYS = 128, LEAST = 4 }; /* LEAST: blocks of queries that are worth dk and dv of their own */

static const float far = 256; /* of a logsumexp: p is right to 5 digits there */

typedef struct {
  const Kern *k;
  const AttentionGrad *g;
  const GemmKernels *kernels;
  AttentionSize z;
  int64_t rows, ldd, lde; /* queries of a block; d and e in whole panels */
  int64_t blocks, parts;  /* of a head's queries; tasks of a key head */
  float *sums;            /* dk and dv of each task, if there are several of a key head */
  const View *grad_mask;
  float ds_scale;
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
  float *factor;      /* (rows), 1 / sum where lse is the largest score, else 1 */
  float *mask, *pack;
  float *dmask; /* (rows or 1, s) */
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
               {&r->factor, job->rows},
               {&r->mask, KEYS + 8},
               {&r->pack, (int64_t)(gemm_pack_room(job->k) / sizeof(float))},
               {&r->dmask, job->grad_mask ? job->rows * z->s : 0}};
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

/* r->p: scores of keys s0 .. s0+n, in units of log 2. */
static void multiply_keys(const Job *job, int64_t rows, int64_t s0, int64_t n, Room *r) {
  const int64_t nr = job->kernels->nr, cols = pieces(n, nr) * nr;
  multiply(job, r->q, rows, r->kt + s0 * job->z.d, nr * job->z.d, cols, job->z.d, r->p, GEMM_LDA,
           (float)job->g->forward.scale * ATTENTION_LOG2E, false);
}

static float logsumexp_of(const Attention *f, int64_t b, int64_t h, int64_t i) {
  const View *l = f->logsumexp;
  return ((const float *)l->data)[b * l->stride[0] + h * l->stride[1] + i * l->stride[2]];
}

/* Of queries whose logsumexp is far from zero, r->lse becomes the largest score, and the factor 1 / sum. */
static void sum_again(const Job *job, int64_t b, int64_t h, int64_t i0, int64_t rows, Room *r) {
  const Attention *f = &job->g->forward;
  for (int64_t i = 0; i < rows; i++) {
    if (fabsf(logsumexp_of(f, b, h, i0 + i)) <= far) continue;
    r->lse[i] = -INFINITY;
    r->factor[i] = 0;
  }
  for (int64_t s0 = 0; s0 < job->z.s; s0 += KEYS) {
    const int64_t n = least(job->z.s - s0, KEYS);
    multiply_keys(job, rows, s0, n, r);
    for (int64_t i = 0; i < rows; i++) {
      if (fabsf(logsumexp_of(f, b, h, i0 + i)) <= far) continue;
      float *p = r->p + i * GEMM_LDA;
      const int64_t seen = attention_visible(f, i0 + i, s0, n);
      const float largest = attention_mask_row(job->k, f, b, h, i0 + i, s0, seen, p, r->mask);
      SIMD_CALL(job->k->isa, attention_softmax_row)(p, seen, largest, &r->lse[i], &r->factor[i]);
    }
  }
  for (int64_t i = 0; i < rows; i++)
    if (r->factor[i] > 0) r->factor[i] = 1 / r->factor[i];
}

/* q, do, delta and logsumexp of queries i0 .. i0+rows. */
static void read_queries(const Job *job, int64_t b, int64_t h, int64_t i0, int64_t rows, Room *r) {
  const Attention *f = &job->g->forward;
  Matrix q = attention_head(f->q, b, h), go = attention_head(job->g->grad_out, b, h),
         out = attention_head(f->out, b, h);
  bool again = false;
  gemm_pack_a(job->k, r->p, &out, 0, i0, 0, rows, job->z.e); /* p is free yet */
  gemm_pack_a(job->k, r->go, &go, 0, i0, 0, rows, job->z.e);
  gemm_pack_a(job->k, r->q, &q, 0, i0, 0, rows, job->z.d);
  pack_panels(job, r->qp, &q, i0, rows, job->z.d, r);
  pack_panels(job, r->gop, &go, i0, rows, job->z.e, r);
  for (int64_t i = 0; i < rows; i++) {
    const float lse = logsumexp_of(f, b, h, i0 + i);
    again |= fabsf(lse) > far;
    r->lse[i] = lse * ATTENTION_LOG2E;
    r->factor[i] = 1;
    r->delta[i] = dot(r->p + i * GEMM_LDA, r->go + i * GEMM_LDA, job->z.e);
  }
  if (again) sum_again(job, b, h, i0, rows, r);
}

/* p and ds for keys s0 .. s0+n. */
static void score_block(const Job *job, int64_t b, int64_t h, int64_t i0, int64_t rows, int64_t s0, int64_t n,
                        Room *r) {
  const Attention *f = &job->g->forward;
  int64_t nr = job->kernels->nr, cols = pieces(n, nr) * nr;
  multiply_keys(job, rows, s0, n, r);
  multiply(job, r->go, rows, r->vt + s0 * job->z.e, nr * job->z.e, cols, job->z.e, r->ds, GEMM_LDA, 1, false);
  for (int64_t i = 0; i < rows; i++) {
    float *p = r->p + i * GEMM_LDA, *ds = r->ds + i * GEMM_LDA;
    int64_t seen = attention_visible(f, i0 + i, s0, n);
    attention_mask_row(job->k, f, b, h, i0 + i, s0, seen, p, r->mask);
    attention_drop_row(job->k, f, b, h, i0 + i, s0, seen, ds, r->mask);
    SIMD_CALL(job->k->isa, attention_grad_row)(p, ds, seen, r->lse[i], r->factor[i], r->delta[i], job->ds_scale);
    attention_drop_row(job->k, f, b, h, i0 + i, s0, seen, p, r->mask);
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

/* One block of queries against all keys that it sees: dq is written, dk and dv grow. */
static void run_block(const Job *job, int64_t b, int64_t h, int64_t i0, Room *r) {
  const AttentionSize *z = &job->z;
  int64_t nr = job->kernels->nr, rows = least(z->t - i0, job->rows),
          keys = attention_visible(&job->g->forward, i0 + rows - 1, 0, z->s);
  Matrix dq = attention_head(job->g->grad_q, b, h);
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

static void read_keys(const Job *job, int64_t b, int64_t group, Room *r) {
  const AttentionSize *z = &job->z;
  Matrix k = attention_head(job->g->forward.k, b, group), v = attention_head(job->g->forward.v, b, group),
         kt = turned(k), vt = turned(v);
  pack_panels(job, r->kt, &kt, 0, z->d, z->s, r);
  pack_panels(job, r->vt, &vt, 0, z->e, z->s, r);
  if (!job->grad_mask) pack_panels(job, r->k, &k, 0, z->s, z->d, r);
}

static void write_keys(const Job *job, int64_t key_head, const float *dk, const float *dv) {
  const AttentionSize *z = &job->z;
  int64_t b = key_head / z->groups, group = key_head % z->groups;
  Matrix to_k = attention_head(job->g->grad_k, b, group), to_v = attention_head(job->g->grad_v, b, group);
  write_rows(job, &to_k, 0, z->s, z->d, dk, job->ldd);
  write_rows(job, &to_v, 0, z->s, z->e, dv, job->lde);
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const AttentionSize *z = &job->z;
  int64_t units = z->per_group * job->blocks, nk = z->s * job->ldd, nv = z->s * job->lde;
  Room r;
  lay_out(job, job->room + job->room_bytes * (size_t)worker, &r);
  for (int64_t t = begin; t < end; t++) {
    int64_t key_head = t / job->parts, part = t % job->parts, b = key_head / z->groups,
            group = key_head % z->groups;
    if (job->parts > 1) r.dk = job->sums + t * (nk + nv), r.dv = r.dk + nk;
    memset(r.dk, 0, floats(nk));
    memset(r.dv, 0, floats(nv));
    read_keys(job, b, group, &r);
    for (int64_t u = units * part / job->parts; u < units * (part + 1) / job->parts; u++)
      run_block(job, b, group * z->per_group + u / job->blocks, u % job->blocks * job->rows, &r);
    if (job->parts == 1) write_keys(job, key_head, r.dk, r.dv);
  }
}

/* The tasks of a key head added up, in their order. */
static void add_parts(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  int64_t nk = job->z.s * job->ldd, n = nk + job->z.s * job->lde;
  (void)worker;
  for (int64_t head = begin; head < end; head++) {
    float *sum = job->sums + head * job->parts * n;
    for (int64_t part = 1; part < job->parts; part++)
      for (int64_t i = 0; i < n; i++) sum[i] += sum[part * n + i];
    write_keys(job, head, sum, sum + nk);
  }
}

static bool begin_job(Kern *k, const AttentionGrad *g, Job *job) {
  *job = (Job){.k = k, .g = g, .kernels = SIMD_CALL(k->isa, gemm_kernels)(), .z = attention_size(&g->forward)};
  const AttentionSize *z = &job->z;
  int64_t mr = job->kernels->mr, nr = job->kernels->nr;
  job->rows = least(ROWS / mr, pieces(most(1, z->t), mr)) * mr;
  job->blocks = pieces(z->t, job->rows);
  job->ldd = pieces(z->d, nr) * nr;
  job->lde = pieces(z->e, nr) * nr;
  job->ds_scale = (float)g->forward.scale;
  return z->d <= GEMM_KC && z->e <= GEMM_KC && g->forward.q.dtype != DT_F64;
}

static Status find_room(Kern *k, Job *job, int64_t tasks) {
  Room unused;
  job->room_bytes = lay_out(job, NULL, &unused);
  TRY_NEW(job->room, kern_scratch(k, job->room_bytes * (size_t)parallel_workers(k->threads, tasks, 1)));
  return OK;
}

/* Key heads that the threads cannot share evenly are divided. */
static int64_t parts_of(const Kern *k, int64_t key_heads, int64_t units) {
  if (!key_heads || key_heads % k->threads == 0 || key_heads > 4 * k->threads) return 1;
  return most(1, least(pieces(4 * k->threads, key_heads), units / LEAST));
}

static Status run_job(Kern *k, Job *job) {
  const AttentionSize *z = &job->z;
  int64_t key_heads = z->batch * z->groups;
  job->parts = parts_of(k, key_heads, z->per_group * job->blocks);
  int64_t tasks = key_heads * job->parts;
  TRY(find_room(k, job, tasks));
  if (job->parts > 1) TRY_NEW(job->sums, kern_scratch(k, floats(tasks * z->s * (job->ldd + job->lde))));
  parallel_for(k->threads, tasks, 1, run_tasks, job);
  if (job->parts > 1) parallel_for(k->threads, key_heads, 1, add_parts, job);
  return OK;
}

Status attention_grad(Kern *k, const AttentionGrad *g) {
  Job job;
  if (!begin_job(k, g, &job)) return attention_grad_naive(k, g);
  size_t mark = kern_mark(k);
  Status s = run_job(k, &job);
  kern_release(k, mark);
  return s;
}

/* ---- of the mask ------------------------------------------------------------------------ */

/* dmask += ds of queries i0 .. i0+rows of one head. */
static void add_mask_block(const Job *job, int64_t b, int64_t h, int64_t i0, Room *r) {
  const AttentionSize *z = &job->z;
  int64_t rows = least(z->t - i0, job->rows), keys = attention_visible(&job->g->forward, i0 + rows - 1, 0, z->s);
  bool whole = job->grad_mask->size[2] != 1;
  read_queries(job, b, h, i0, rows, r);
  for (int64_t s0 = 0; s0 < keys; s0 += KEYS) {
    int64_t n = least(keys - s0, KEYS);
    score_block(job, b, h, i0, rows, s0, n, r);
    for (int64_t i = 0; i < rows; i++) {
      float *to = r->dmask + (whole ? i * z->s : 0) + s0;
      const float *ds = r->ds + i * GEMM_LDA;
      for (int64_t j = 0; j < n; j++) to[j] += ds[j];
    }
  }
}

static void write_mask(const Job *job, const Matrix *to, int64_t i0, int64_t rows, Room *r) {
  int64_t s = job->z.s;
  if (job->grad_mask->size[3] != 1 || s == 1) return write_rows(job, to, i0, rows, s, r->dmask, s);
  for (int64_t i = 0; i < rows; i++) {
    float sum = 0;
    for (int64_t j = 0; j < s; j++) sum += r->dmask[i * s + j];
    write_rows(job, to, i0 + i, 1, 1, &sum, 1);
  }
}

static void run_mask_tasks(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const AttentionSize *z = &job->z;
  const View *m = job->grad_mask;
  bool whole = m->size[2] != 1;
  int64_t tasks = whole ? job->blocks : 1;
  Room r;
  lay_out(job, job->room + job->room_bytes * (size_t)worker, &r);
  for (int64_t t = begin; t < end; t++) {
    int64_t mh = t / tasks % m->size[1], mb = t / tasks / m->size[1], i0 = t % tasks * job->rows,
            rows = whole ? least(z->t - i0, job->rows) : 1;
    memset(r.dmask, 0, floats(rows * z->s));
    for (int64_t b = m->size[0] == 1 ? 0 : mb; b < (m->size[0] == 1 ? z->batch : mb + 1); b++)
      for (int64_t h = m->size[1] == 1 ? 0 : mh; h < (m->size[1] == 1 ? z->heads : mh + 1); h++) {
        read_keys(job, b, h / z->per_group, &r);
        for (int64_t i = i0; i < (whole ? i0 + rows : z->t); i += job->rows) add_mask_block(job, b, h, i, &r);
      }
    Matrix to = attention_head(*m, mb, mh);
    write_mask(job, &to, i0, rows, &r);
  }
}

Status attention_grad_mask(Kern *k, const AttentionGrad *g, View grad_mask) {
  Job job;
  if (!begin_job(k, g, &job)) return attention_grad_mask_naive(k, g, grad_mask);
  job.grad_mask = &grad_mask;
  job.ds_scale = 1;
  int64_t tasks = grad_mask.size[0] * grad_mask.size[1] * (grad_mask.size[2] == 1 ? 1 : job.blocks);
  size_t mark = kern_mark(k);
  Status s = find_room(k, &job, tasks);
  if (!s) parallel_for(k->threads, tasks, 1, run_mask_tasks, &job);
  kern_release(k, mark);
  return s;
}
