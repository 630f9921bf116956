/* attention.c -- attention by blocks of queries and keys; see attention.h.
 *
 * A task is a block of queries of one head.  Its worker packs the head's k and v as panels
 * (gemm_simd.h) unless it has them from the task before, then goes over the keys, KEYS at a
 * time: scores = q k^T, masked, exp and running sums (the online softmax), o += p v.  The
 * block of scores is the A block of the second product, so nothing is copied between.
 *
 * The order of the tasks of a head is 0, n-1, 1, n-2 ...: with a causal mask every range of
 * it is about as much work.
 */
#include "kernels/attention.h"

#include <math.h>
#include <string.h>

#include "kernels/attention_problem.h"
#include "kernels/attention_simd.h"
#include "kernels/convert.h"
#include "kernels/random_simd.h"

enum {
  ROWS = 66,
  KEYS = GEMM_KC,
  STRIP = 32,
  WORK = 1 << 18
}; /* queries and keys of a block; multiplications worth a thread */

/* ---- shared with the other routes ----------------------------------------------------- */

AttentionSize attention_size(const Attention *a) {
  AttentionSize z = {a->q.size[0], a->q.size[1], a->k.size[1], 1,
                     a->q.size[2], a->k.size[2], a->q.size[3], a->v.size[3]};
  z.per_group = z.groups ? z.heads / z.groups : 1;
  return z;
}

Matrix attention_head(View v, int64_t b, int64_t h) {
  int64_t at = b * v.stride[0] + h * v.stride[1];
  return (Matrix){.data = (char *)v.data + at * (int64_t)dtype_size(v.dtype),
                  .dtype = v.dtype,
                  .row = v.stride[2],
                  .col = v.stride[3]};
}

float attention_mask_row(const Kern *k, const Attention *a, int64_t b, int64_t h, int64_t i, int64_t s0, int64_t n,
                         float *s, float *room) {
  const View *m = a->mask;
  if (!m) return SIMD_CALL(k->isa, attention_largest)(s, n);
  int64_t index[4] = {b, h, i, s0}, at = 0, step = 0;
  for (int d = 0; d < m->ndim; d++) {
    step = m->size[d] == 1 ? 0 : m->stride[d];
    at += index[4 - m->ndim + d] * step;
  }
  size_t bytes = dtype_size(m->dtype);
  const char *row = (const char *)m->data + at * (int64_t)bytes;
  bool boolean = m->dtype == DT_BOOL;
  if (step != 1) { /* gathered; the row is in its own dtype or f32 afterwards */
    for (int64_t j = 0; j < n; j++) {
      const char *from = row + j * step * (int64_t)bytes;
      if (boolean) ((uint8_t *)room)[j] = *(const uint8_t *)from;
      else SIMD_CALL(k->isa, convert_run)(room + j, DT_F32, from, m->dtype, 1);
    }
    row = (const char *)room;
  } else if (!boolean && m->dtype != DT_F32) {
    SIMD_CALL(k->isa, convert_run)(room, DT_F32, row, m->dtype, n);
    row = (const char *)room;
  }
  if (boolean) return SIMD_CALL(k->isa, attention_apply_mask)(s, (const uint8_t *)row, n);
  return SIMD_CALL(k->isa, attention_add_mask)(s, (const float *)(const void *)row, n);
}

void attention_drop_row(const Kern *k, const Attention *a, int64_t b, int64_t h, int64_t i, int64_t s0, int64_t n,
                        float *s, float *room) {
  if (a->dropout <= 0) return;
  uint64_t first = attention_number(a, b, h, i) + (uint64_t)s0, skip = first % 4;
  uint32_t *words = (uint32_t *)(void *)room, threshold = (uint32_t)fmin(a->dropout * 0x1p32, 4294967295.0);
  SIMD_CALL(k->isa, random_words)(a->seed, a->offset + first / 4, ((int64_t)skip + n + 3) / 4, words);
  float factor = a->dropout < 1 ? (float)(1 / (1 - a->dropout)) : 0;
  SIMD_CALL(k->isa, attention_drop)(s, words + skip, threshold, factor, n);
}

void attention_store_row(const Kern *k, const Attention *a, int64_t b, int64_t h, int64_t i, float *o, float max,
                         float sum) {
  Matrix out = attention_head(a->out, b, h);
  int64_t e = a->out.size[3];
  char *to = matrix_at(&out, 0, i, 0);
  float factor = sum == 0 ? 0 : 1 / sum;
  if (out.dtype == DT_F32 && out.col == 1) SIMD_CALL(k->isa, attention_scale)((float *)(void *)to, o, factor, e);
  else {
    int64_t run = out.col == 1 ? e : 1;
    SIMD_CALL(k->isa, attention_scale)(o, o, factor, e);
    for (int64_t j = 0; j < e; j += run)
      SIMD_CALL(k->isa, convert_run)(matrix_at(&out, 0, i, j), out.dtype, o + j, DT_F32, run);
  }
  if (!a->logsumexp) return;
  const View *l = a->logsumexp;
  ((float *)l->data)[b * l->stride[0] + h * l->stride[1] + i * l->stride[2]] = sum == 0 ? 0
                                                                                        : max * ATTENTION_LN2 +
                                                                                              logf(sum);
}

/* ---- blocks --------------------------------------------------------------------------- */

typedef struct {
  const Kern *k;
  const Attention *a;
  const GemmKernels *kernels;
  AttentionSize z;
  int64_t rows, blocks; /* queries of a block, blocks of a head */
  int64_t ldo;          /* o: rows of e floats, rounded up to panels */
  char *room;
  size_t room_bytes;
} Job;

/* What a worker has. */
typedef struct {
  float *k, *v;         /* panels: [s / nr][d][nr] and [e / nr][s][nr] */
  float *q;             /* A blocks, one per GEMM_KC columns */
  float *p;             /* A block: scores, then exp of them */
  float *o, *max, *sum; /* rows x ldo, rows, rows */
  float *mask, *pack;   /* room for attention_mask_row, attention_drop_row, and for packing */
} Room;

static size_t take(char **at, int64_t n) {
  size_t bytes = (floats(n) + 63) & ~(size_t)63;
  if (*at) *at += bytes;
  return bytes;
}

/* Lays the room out from `at`; NULL: only its size. */
static size_t lay_out(const Job *job, char *at, Room *r) {
  const AttentionSize *z = &job->z;
  int64_t nr = job->kernels->nr, panels_s = pieces(z->s, nr) * nr, panels_e = job->ldo;
  size_t total = 0;
  const struct {
    float **field;
    int64_t n;
  } parts[] = {{&r->k, panels_s * z->d},
               {&r->v, panels_e * z->s},
               {&r->q, job->rows * GEMM_LDA * most(1, pieces(z->d, GEMM_KC))},
               {&r->p, job->rows * GEMM_LDA},
               {&r->o, job->rows * job->ldo},
               {&r->max, job->rows},
               {&r->sum, job->rows},
               {&r->mask, KEYS + 8},
               {&r->pack, (int64_t)(gemm_pack_room(job->k) / sizeof(float))}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    *parts[i].field = (float *)(void *)at;
    total += take(&at, parts[i].n);
  }
  return total;
}

static void pack_head(const Job *job, int64_t b, int64_t g, Room *r) {
  const AttentionSize *z = &job->z;
  int64_t nr = job->kernels->nr;
  Matrix k = attention_head(job->a->k, b, g), v = attention_head(job->a->v, b, g), kt = k;
  kt.row = k.col;
  kt.col = k.row;
  for (int64_t j = 0; j < z->s; j += nr)
    gemm_pack_panel(job->k, r->k + j * z->d, &kt, 0, j, least(z->s - j, nr), z->d, r->pack);
  for (int64_t p = 0; p < z->s; p += STRIP) { /* all panels of a few rows: lines of v are read once */
    for (int64_t j = 0; j < z->e; j += nr) {
      Matrix part = v;
      part.data = matrix_at(&v, 0, p, 0);
      gemm_pack_panel(job->k, r->v + j * z->s + p * nr, &part, 0, j, least(z->e - j, nr), least(z->s - p, STRIP),
                      r->pack);
    }
  }
}

/* q's rows i0 .. i0+rows. */
static void pack_queries(const Job *job, int64_t b, int64_t h, int64_t i0, int64_t rows, Room *r) {
  Matrix q = attention_head(job->a->q, b, h);
  for (int64_t p = 0; p < job->z.d; p += GEMM_KC) {
    int64_t kc = least(job->z.d - p, GEMM_KC);
    gemm_pack_a(job->k, r->q + p / GEMM_KC * job->rows * GEMM_LDA, &q, 0, i0, p, rows, kc);
  }
}

/* p[rows, n] = scale * q k^T for keys s0 .. s0+n; tiles that no query of theirs sees are left out. */
static void score_block(const Job *job, int64_t i0, int64_t rows, int64_t s0, int64_t n, Room *r) {
  int64_t nr = job->kernels->nr, tiles = pieces(rows, job->kernels->mr), base = rows / tiles, extra = rows % tiles;
  float scale = (float)job->a->scale * ATTENTION_LOG2E;
  for (int64_t j = 0; j < n; j += nr) {
    const float *panel = r->k + (s0 + j) * job->z.d;
    for (int64_t tile = 0, i = 0; tile < tiles; tile++) {
      int64_t count = base + (tile < extra);
      if (attention_visible(job->a, i0 + i + count - 1, s0 + j, nr)) {
        for (int64_t p = 0; p < job->z.d; p += GEMM_KC) {
          job->kernels->tile((int)count, (int)least(n - j, nr), least(job->z.d - p, GEMM_KC),
                             r->q + p / GEMM_KC * job->rows * GEMM_LDA + i * GEMM_LDA, panel + p * nr,
                             r->p + i * GEMM_LDA + j, GEMM_LDA, scale, p > 0);
        }
      }
      i += count;
    }
  }
}

/* exp of the masked scores, running max and sums; o shrinks with them. */
static void softmax_block(const Job *job, int64_t b, int64_t h, int64_t i0, int64_t rows, int64_t s0, int64_t n,
                          Room *r) {
  for (int64_t i = 0; i < rows; i++) {
    float *s = r->p + i * GEMM_LDA;
    int64_t seen = attention_visible(job->a, i0 + i, s0, n);
    float largest = attention_mask_row(job->k, job->a, b, h, i0 + i, s0, seen, s, r->mask);
    float shrink = SIMD_CALL(job->k->isa, attention_softmax_row)(s, seen, largest, &r->max[i], &r->sum[i]);
    attention_drop_row(job->k, job->a, b, h, i0 + i, s0, seen, s, r->mask);
    if (seen < n) memset(s + seen, 0, floats(n - seen));
    if (s0 > 0 && shrink != 1)
      SIMD_CALL(job->k->isa, attention_scale)(r->o + i * job->ldo, r->o + i * job->ldo, shrink, job->ldo);
  }
}

/* o[rows, e] += p v */
static void value_block(const Job *job, int64_t i0, int64_t rows, int64_t s0, int64_t n, Room *r) {
  int64_t nr = job->kernels->nr, tiles = pieces(rows, job->kernels->mr), base = rows / tiles, extra = rows % tiles;
  for (int64_t j = 0; j < job->ldo; j += nr) {
    const float *panel = r->v + j * job->z.s + s0 * nr;
    for (int64_t tile = 0, i = 0; tile < tiles; tile++) {
      int64_t count = base + (tile < extra), seen = attention_visible(job->a, i0 + i + count - 1, s0, n);
      if (seen)
        job->kernels->tile((int)count, (int)nr, seen, r->p + i * GEMM_LDA, panel, r->o + i * job->ldo + j, job->ldo,
                           1, s0 > 0);
      i += count;
    }
  }
}

static void run_block(const Job *job, int64_t b, int64_t h, int64_t i0, int64_t rows, Room *r) {
  int64_t keys = attention_visible(job->a, i0 + rows - 1, 0, job->z.s);
  for (int64_t i = 0; i < rows; i++) {
    r->max[i] = -INFINITY;
    r->sum[i] = 0;
  }
  if (keys == 0) memset(r->o, 0, floats(rows * job->ldo));
  pack_queries(job, b, h, i0, rows, r);
  for (int64_t s0 = 0; s0 < keys; s0 += KEYS) {
    int64_t n = least(keys - s0, KEYS);
    score_block(job, i0, rows, s0, n, r);
    softmax_block(job, b, h, i0, rows, s0, n, r);
    value_block(job, i0, rows, s0, n, r);
  }
  for (int64_t i = 0; i < rows; i++)
    attention_store_row(job->k, job->a, b, h, i0 + i, r->o + i * job->ldo, r->max[i], r->sum[i]);
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const AttentionSize *z = &job->z;
  Room r;
  int64_t packed = -1;
  lay_out(job, job->room + job->room_bytes * (size_t)worker, &r);
  for (int64_t task = begin; task < end; task++) {
    int64_t turn = task % job->blocks, head = task / job->blocks, h = head % z->heads, b = head / z->heads;
    int64_t block = turn % 2 ? job->blocks - 1 - turn / 2 : turn / 2, i0 = block * job->rows,
            key_head = head / z->per_group;
    if (packed != key_head) pack_head(job, b, h / z->per_group, &r);
    packed = key_head;
    run_block(job, b, h, i0, least(z->t - i0, job->rows), &r);
  }
}

static Status run_blocks(Kern *k, const Attention *a) {
  Job job = {.k = k, .a = a, .kernels = SIMD_CALL(k->isa, gemm_kernels)(), .z = attention_size(a)};
  const AttentionSize *z = &job.z;
  int64_t mr = job.kernels->mr, nr = job.kernels->nr;
  job.rows = pieces(pieces(z->t, pieces(z->t, ROWS)), mr) * mr; /* even blocks of whole tiles */
  job.blocks = pieces(z->t, job.rows);
  job.ldo = pieces(z->e, nr) * nr;
  Room unused;
  job.room_bytes = lay_out(&job, NULL, &unused);
  int64_t tasks = z->batch * z->heads * job.blocks,
          grain = most(1, WORK / most(1, job.rows * z->s * (z->d + z->e)));
  TRY_NEW(job.room, kern_scratch(k, job.room_bytes * (size_t)parallel_workers(k->threads, tasks, grain)));
  parallel_for(k->threads, tasks, grain, run_tasks, &job);
  return OK;
}

Status attention(Kern *k, const Attention *a) {
  AttentionSize z = attention_size(a);
  if (z.batch * z.heads * z.t == 0 || z.groups == 0) return OK;
  if (a->q.dtype == DT_F64) return attention_naive(k, a);
  size_t mark = kern_mark(k);
  Status s = attention_thin_fits(a) ? attention_thin(k, a) : run_blocks(k, a);
  kern_release(k, mark);
  return s;
}
