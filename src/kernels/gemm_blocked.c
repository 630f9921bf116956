/* gemm_blocked.c -- the product by packed panels and register tiles.
 *
 * Loops, outermost first: columns of b that are packed at a time (PACK_BYTES, stays in
 * L3), tasks (blocks of c, shared among the workers), k blocks, strips of columns, panels,
 * tiles.  The last k block of a strip is followed by gemm_finish while the strip is in L2.
 *
 * Takes any strides and f32, f16 or bf16: packing converts, sums are f32.  When c cannot
 * hold the sums itself (not f32, or columns apart) they live in the worker's room.
 *
 * b with a batch of its own: small ones are packed by the task that uses them, larger
 * ones by all workers, one product after the other. */
#include <string.h>

#include "kernels/convert.h"
#include "kernels/gemm_problem.h"
#include "kernels/gemm_simd.h"

enum {
  PACK_BYTES = 4 << 20,
  OWN_PACK_BYTES = 256 << 10, /* a b of at most this is packed by the task that uses it */
  PACK_ROWS = 16,
  STRIP = 256,                /* columns that are finished at a time */
  SUM_COLS = 2048,            /* columns of a block whose sums are in the room */
  LEAST_ROWS = 48,            /* of a block, when rows are split for the sake of threads */
  WORK = 1 << 16,             /* multiplications worth a thread */
};

/* ---- packing ------------------------------------------------------------------------ */

size_t gemm_pack_room(const Kern *k) {
  (void)k;
  return floats((int64_t)GEMM_NR_MOST * GEMM_LDA);
}

void gemm_pack_panel(const Kern *k, float *dst, const Matrix *b, int64_t z, int64_t j, int64_t cols, int64_t depth, float *room) {
  const GemmKernels *kernels = SIMD_CALL(k->isa, gemm_kernels)();
  int nr = kernels->nr;
  for (int64_t p = 0; p < depth; p += GEMM_KC) {
    int64_t kc = least(depth - p, GEMM_KC);
    float *to = dst + p * nr;
    if (b->row == 1 && b->dtype == DT_F32) {
      kernels->pack_rows(to, (const float *)(const void *)matrix_at(b, z, p, j), b->col, cols, kc);
    } else if (b->row == 1) {
      for (int64_t c = 0; c < cols; c++) SIMD_CALL(k->isa, convert_run)(room + c * GEMM_LDA, DT_F32, matrix_at(b, z, p, j + c), b->dtype, kc);
      kernels->pack_rows(to, room, GEMM_LDA, cols, kc);
    } else if (b->col == 1) {
      kernels->pack_cols(to, matrix_at(b, z, p, j), b->row, b->dtype, cols, kc);
    } else {
      for (int64_t q = 0; q < kc; q++) {
        for (int64_t c = 0; c < nr; c++) {
          if (c < cols) SIMD_CALL(k->isa, convert_run)(to + q * nr + c, DT_F32, matrix_at(b, z, p + q, j + c), b->dtype, 1);
          else to[q * nr + c] = 0;
        }
      }
    }
  }
}

/* Used even if a has such rows: in place was 5 to 15 % slower. */
void gemm_pack_a(const Kern *k, float *dst, const Matrix *a, int64_t z, int64_t i, int64_t p, int64_t rows, int64_t kc) {
  if (a->row == 1 && a->col != 1) { /* walk its contiguous direction */
    float line[GEMM_MC];
    for (int64_t q = 0; q < kc; q++) {
      SIMD_CALL(k->isa, convert_run)(line, DT_F32, matrix_at(a, z, i, p + q), a->dtype, rows);
      for (int64_t r = 0; r < rows; r++) dst[r * GEMM_LDA + q] = line[r];
    }
    return;
  }
  int64_t run = a->col == 1 ? kc : 1;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t q = 0; q < kc; q += run) {
      SIMD_CALL(k->isa, convert_run)(dst + r * GEMM_LDA + q, DT_F32, matrix_at(a, z, i + r, p + q), a->dtype, run);
    }
  }
}

typedef struct {
  const Kern *k;
  const GemmKernels *kernels;
  const Matrix *b;
  int64_t z, j, n, depth;
  float *packed, *room;
} PackJob;

static void pack_panels(void *arg, int64_t begin, int64_t end, int worker) {
  const PackJob *job = arg;
  int nr = job->kernels->nr;
  float *room = (float *)(void *)((char *)job->room + gemm_pack_room(job->k) * (size_t)worker);
  /* b contiguous along n: a few rows of all panels at a time, so that its lines are read in order. */
  int64_t step = job->b->col == 1 && job->b->row != 1 ? PACK_ROWS : job->depth;
  for (int64_t p = 0; p < job->depth; p += step) {
    Matrix part = *job->b;
    part.data = matrix_at(job->b, job->z, p, 0);
    for (int64_t t = begin; t < end; t++) {
      gemm_pack_panel(job->k, job->packed + t * nr * job->depth + p * nr, &part, 0, job->j + t * nr, least(job->n - t * nr, nr), least(job->depth - p, step), room);
    }
  }
}

static void pack_columns(const Kern *k, const Matrix *b, int64_t z, int64_t j, int64_t n, int64_t depth, float *packed, float *room) {
  PackJob job = {k, SIMD_CALL(k->isa, gemm_kernels)(), b, z, j, n, depth, packed, room};
  parallel_for(k->threads, pieces(n, job.kernels->nr), 4, pack_panels, &job);
}

size_t gemm_packed_bytes(const Kern *k, const Problem *p) {
  int nr = SIMD_CALL(k->isa, gemm_kernels)()->nr;
  return floats(pieces(p->n, nr) * nr * p->k);
}

void gemm_pack_all(Kern *k, const Problem *p, float *packed, float *room) { pack_columns(k, &p->b, 0, 0, p->n, p->k, packed, room); }

/* ---- blocks of c ---------------------------------------------------------------------- */

typedef struct {
  const Kern *k;
  const Problem *p;
  const GemmKernels *kernels;
  const float *packed; /* columns j0 .. j0+n; NULL: each task packs the b of its own product */
  int64_t z0, j0, n;   /* first product, columns */
  int64_t m_blocks, m_block, n_blocks, n_block; /* n_block counts panels */
  bool sums_in_c;
  char *room; /* of all workers: A block, sums, own panels, rows of gemm_finish */
  size_t room_bytes, sums_at, own_at, finish_at;
} Job;

/* The sums of one task, somewhere. */
typedef struct {
  float *at;
  int64_t ld;
} Sums;

/* One k block for one strip of panels. */
static void run_strip(const Job *job, const float *a, const float *packed, Sums c, int64_t rows, int64_t panel0, int64_t panels, int64_t p, int64_t kc) {
  const GemmKernels *kernels = job->kernels;
  int nr = kernels->nr;
  int64_t tiles = pieces(rows, kernels->mr), base = rows / tiles, extra = rows % tiles; /* rows spread evenly */
  for (int64_t t = 0; t < panels; t++) {
    int64_t cols = least(job->n - (panel0 + t) * nr, nr), i = 0;
    const float *b = packed + ((panel0 + t) * job->p->k + p) * nr;
    for (int64_t tile = 0; tile < tiles; tile++) {
      int64_t r = base + (tile < extra);
      kernels->tile((int)r, (int)cols, kc, a + i * GEMM_LDA, b, c.at + i * c.ld + t * nr, c.ld, (float)job->p->alpha, p > 0);
      i += r;
    }
  }
}

static void run_block(const Job *job, int64_t z, int64_t i, int64_t rows, int64_t panel0, int64_t panels, const float *packed, char *room) {
  const Problem *p = job->p;
  int nr = job->kernels->nr;
  int64_t j = job->j0 + panel0 * nr;
  float *a = (float *)(void *)room, *finish = (float *)(void *)(room + job->finish_at);
  Sums c = {(float *)(void *)(room + job->sums_at), panels * nr};
  if (job->sums_in_c) c = (Sums){(float *)(void *)matrix_at(&p->c, z, i, j), p->c.row};
  bool finishes = !job->sums_in_c || gemm_finish_needed(p);
  for (int64_t q = 0; q < p->k; q += GEMM_KC) {
    int64_t kc = least(p->k - q, GEMM_KC), strip = STRIP / nr;
    gemm_pack_a(job->k, a, &p->a, z, i, q, rows, kc);
    for (int64_t t = 0; t < panels; t += strip) {
      int64_t width = least(panels - t, strip), cols = least(job->n - (panel0 + t) * nr, width * nr);
      Sums part = {c.at + t * nr, c.ld};
      run_strip(job, a, packed, part, rows, panel0 + t, width, q, kc);
      if (q + kc == p->k && finishes) gemm_finish(job->k, p, z, i, rows, j + t * nr, cols, part.at, part.ld, finish);
    }
  }
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *p = job->p;
  int nr = job->kernels->nr;
  char *room = job->room + job->room_bytes * (size_t)worker;
  int64_t all_panels = pieces(job->n, nr), packed_z = -1;
  for (int64_t t = begin; t < end; t++) {
    int64_t panel = t % job->n_blocks * job->n_block, i = t / job->n_blocks % job->m_blocks * job->m_block;
    int64_t z = job->z0 + t / job->n_blocks / job->m_blocks;
    const float *packed = job->packed;
    if (!packed) {
      float *own = (float *)(void *)(room + job->own_at);
      for (int64_t q = 0; q < all_panels && packed_z != z; q++) { /* the A block is not in use yet: room to convert */
        gemm_pack_panel(job->k, own + q * nr * p->k, &p->b, z, q * nr, least(p->n - q * nr, nr), p->k, (float *)(void *)room);
      }
      packed_z = z;
      packed = own;
    }
    run_block(job, z, i, least(p->m - i, job->m_block), panel, least(all_panels - panel, job->n_block), packed, room);
  }
}

static size_t aligned(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* Splits c into tasks: a few per worker, so that a late one costs little. */
static void plan_blocks(Job *job, int64_t items) {
  const Problem *p = job->p;
  int mr = job->kernels->mr, nr = job->kernels->nr;
  int64_t panels = pieces(job->n, nr), m_blocks = pieces(p->m, GEMM_MC), n_blocks = 1;
  int64_t wanted = job->k->threads > 1 ? 4 * job->k->threads : 1;
  wanted = least(wanted, most(1, items * p->m * job->n * p->k / WORK));
  if (items * m_blocks < wanted && job->packed) {
    m_blocks = most(m_blocks, least(pieces(wanted, items), p->m / LEAST_ROWS));
    n_blocks = least(pieces(wanted, items * m_blocks), pieces(panels, 2));
  }
  if (!job->sums_in_c) n_blocks = most(n_blocks, pieces(job->n, SUM_COLS));
  job->m_block = least(pieces(pieces(p->m, m_blocks), mr) * mr, GEMM_MC / mr * mr);
  job->m_blocks = pieces(p->m, job->m_block);
  job->n_block = pieces(panels, n_blocks);
  job->n_blocks = pieces(panels, job->n_block);
}

/* Products z0 .. z0+items, columns j0 .. j0+n. */
static Status run_blocks(Kern *k, const Problem *p, const float *packed, int64_t z0, int64_t items, int64_t j0, int64_t n) {
  Job job = {.k = k, .p = p, .kernels = SIMD_CALL(k->isa, gemm_kernels)(), .packed = packed, .z0 = z0, .j0 = j0, .n = n};
  int nr = job.kernels->nr;
  job.sums_in_c = p->c.dtype == DT_F32 && p->c.col == 1 && p->add.data != p->c.data;
  plan_blocks(&job, items);
  job.sums_at = aligned(floats((int64_t)GEMM_MC * GEMM_LDA));
  job.own_at = job.sums_at + (job.sums_in_c ? 0 : aligned(floats(job.m_block * job.n_block * nr)));
  job.finish_at = job.own_at + (packed ? 0 : aligned(floats(pieces(n, nr) * nr * p->k)));
  job.room_bytes = job.finish_at + aligned(gemm_finish_bytes(STRIP));
  int64_t tasks = items * job.m_blocks * job.n_blocks, grain = 1;
  if (!packed) grain = most(job.m_blocks * job.n_blocks, pieces(WORK, most(1, p->m * p->n * p->k)) * job.m_blocks * job.n_blocks);
  TRY_NEW(job.room, kern_scratch(k, job.room_bytes * (size_t)parallel_workers(k->threads, tasks, grain)));
  parallel_for(k->threads, tasks, grain, run_tasks, &job);
  return OK;
}

Status gemm_blocked(Kern *k, const Problem *p, const float *packed) {
  if (packed) return run_blocks(k, p, packed, 0, p->batch, 0, p->n);
  int nr = SIMD_CALL(k->isa, gemm_kernels)()->nr;
  if (p->batch > 1 && p->b.batch != 0 && floats(p->k * p->n) <= OWN_PACK_BYTES) return run_blocks(k, p, NULL, 0, p->batch, 0, p->n);
  int64_t width = most(nr, PACK_BYTES / (int64_t)sizeof(float) / p->k / nr * nr), items = p->b.batch == 0 ? p->batch : 1;
  float *columns, *room;
  TRY_NEW(columns, kern_scratch(k, floats(pieces(least(p->n, width), nr) * nr * p->k)));
  TRY_NEW(room, kern_scratch(k, gemm_pack_room(k) * (size_t)k->threads));
  for (int64_t z = 0; z < p->batch; z += items) {
    for (int64_t j = 0; j < p->n; j += width) {
      int64_t n = least(p->n - j, width);
      pack_columns(k, &p->b, z, j, n, p->k, columns, room);
      size_t mark = kern_mark(k);
      TRY(run_blocks(k, p, columns, z, items, j, n));
      kern_release(k, mark);
    }
  }
  return OK;
}
