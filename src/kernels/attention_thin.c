/* attention_thin.c -- few queries per key head, as when a language model writes word by
 * word: bound by reading k and v, so they are read once, in place, in their own dtype.
 *
 * A task is some queries of one key head (all heads of its group together if there are
 * enough key heads for the workers); keys come KEYS at a time. */
#include <math.h>
#include <string.h>

#include "kernels/attention_problem.h"
#include "kernels/attention_simd.h"
#include "kernels/convert.h"

enum { THIN_ROWS = 4, KEYS = 256, WORK = 1 << 17 };

typedef struct {
  const Kern *k;
  const Attention *a;
  AttentionSize z;
  int64_t heads, tasks_per_group; /* query heads of a task */
  char *room;
  size_t room_bytes;
} Job;

bool attention_thin_fits(const Attention *a) {
  AttentionSize z = attention_size(a);
  bool in_place = (a->k.stride[3] == 1 || z.d == 1) && (a->v.stride[3] == 1 || z.e == 1);
  return in_place && z.t * z.per_group <= THIN_ROWS;
}

/* One query, scaled, as f32. */
static void read_query(const Job *job, int64_t b, int64_t h, int64_t i, float *to) {
  Matrix q = attention_head(job->a->q, b, h);
  int64_t run = q.col == 1 ? job->z.d : 1;
  for (int64_t j = 0; j < job->z.d; j += run)
    SIMD_CALL(job->k->isa, convert_run)(to + j, DT_F32, matrix_at(&q, 0, i, j), q.dtype, run);
  SIMD_CALL(job->k->isa, attention_scale)(to, to, (float)job->a->scale * ATTENTION_LOG2E, job->z.d);
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const AttentionSize *z = &job->z;
  Isa isa = job->k->isa;
  int64_t most_rows = job->heads * z->t;
  float *q = (float *)(void *)(job->room + job->room_bytes * (size_t)worker), *o = q + most_rows * z->d;
  float *s = o + most_rows * z->e, *mask = s + KEYS, max[THIN_ROWS], sum[THIN_ROWS];
  for (int64_t task = begin; task < end; task++) {
    int64_t group = task / job->tasks_per_group, b = group / z->groups, g = group % z->groups;
    int64_t h0 = g * z->per_group + task % job->tasks_per_group * job->heads, rows = most_rows;
    Matrix k = attention_head(job->a->k, b, g), v = attention_head(job->a->v, b, g);
    memset(o, 0, floats(rows * z->e));
    for (int64_t r = 0; r < rows; r++) {
      max[r] = -INFINITY;
      sum[r] = 0;
      read_query(job, b, h0 + r / z->t, r % z->t, q + r * z->d);
    }
    for (int64_t s0 = 0; s0 < z->s; s0 += KEYS) {
      for (int64_t r = 0; r < rows; r++) {
        int64_t h = h0 + r / z->t, i = r % z->t, n = attention_visible(job->a, i, s0, least(z->s - s0, KEYS));
        SIMD_CALL(isa, attention_scores)(s, q + r * z->d, matrix_at(&k, 0, s0, 0), k.row, k.dtype, n, z->d);
        float largest = attention_mask_row(job->k, job->a, b, h, i, s0, n, s, mask);
        float shrink = SIMD_CALL(isa, attention_softmax_row)(s, n, largest, &max[r], &sum[r]);
        attention_drop_row(job->k, job->a, b, h, i, s0, n, s, mask);
        if (shrink != 1) SIMD_CALL(isa, attention_scale)(o + r * z->e, o + r * z->e, shrink, z->e);
        SIMD_CALL(isa, attention_values)(o + r * z->e, s, matrix_at(&v, 0, s0, 0), v.row, v.dtype, n, z->e);
      }
    }
    for (int64_t r = 0; r < rows; r++)
      attention_store_row(job->k, job->a, b, h0 + r / z->t, r % z->t, o + r * z->e, max[r], sum[r]);
  }
}

Status attention_thin(Kern *k, const Attention *a) {
  Job job = {.k = k, .a = a, .z = attention_size(a)};
  const AttentionSize *z = &job.z;
  bool enough = z->batch * z->groups >= k->threads;
  job.heads = enough ? z->per_group : 1;
  job.tasks_per_group = z->per_group / job.heads;
  job.room_bytes = floats(job.heads * z->t * (z->d + z->e) + 2 * KEYS + 8);
  int64_t tasks = z->batch * z->groups * job.tasks_per_group,
          grain = most(1, WORK / most(1, job.heads * z->t * z->s * (z->d + z->e)));
  TRY_NEW(job.room, kern_scratch(k, job.room_bytes * (size_t)parallel_workers(k->threads, tasks, grain)));
  parallel_for(k->threads, tasks, grain, run_tasks, &job);
  return OK;
}
