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
#include "kernels/gemm_problem.h"
#include "kernels/gemm_simd.h"

enum {
  PACK_BYTES = 4 << 20,
  OWN_PACK_BYTES = 256 << 10, /* a b of at most this is packed by the task that uses it */
  PACK_ROWS = 16,
  STRIP = 256,      /* columns that are finished at a time */
  SUM_COLS = 2048,  /* columns of a block whose sums are in the room */
  MANY_BLOCKS = 4,  /* of rows, for each worker */
  LEAST_PANELS = 4, /* of a block, when columns are split for the sake of threads */
  LEAST_ROWS = 48,  /* the same with rows */
  WORK = 1 << 18,   /* multiplications worth a thread */
};

/* ---- columns of b ---------------------------------------------------------------------- */

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
      gemm_pack_panel(job->k, job->packed + t * nr * job->depth + p * nr, &part, 0, job->j + t * nr,
                      least(job->n - t * nr, nr), least(job->depth - p, step), room);
    }
  }
}

static void pack_columns(const Kern *k, const Matrix *b, int64_t z, int64_t j, int64_t n, int64_t depth,
                         float *packed, float *room) {
  PackJob job = {k, SIMD_CALL(k->isa, gemm_kernels)(), b, z, j, n, depth, packed, room};
  parallel_for(k->threads, pieces(n, job.kernels->nr), 4, pack_panels, &job);
}

size_t gemm_packed_bytes(const Kern *k, const Problem *p) {
  int nr = SIMD_CALL(k->isa, gemm_kernels)()->nr;
  return floats(pieces(p->n, nr) * nr * p->k);
}

void gemm_pack_all(Kern *k, const Problem *p, float *packed, float *room) {
  pack_columns(k, &p->b, 0, 0, p->n, p->k, packed, room);
}

/* ---- blocks of c ---------------------------------------------------------------------- */

typedef struct {
  const Kern *k;
  const Problem *p;
  const GemmKernels *kernels;
  const float *packed; /* columns j0 .. j0+n; NULL: each task packs the b of its own product */
  int64_t z0, j0, n;   /* first product, columns */
  int64_t tasks, m_blocks, m_block, n_blocks, n_block, k_block; /* n_block counts panels */
  bool sums_in_c;
  const int64_t *fetch, *stay; /* one line after the other; always the same one */
  char *room;                  /* of all workers: A block, room to convert, sums, own panels, rows of gemm_finish */
  size_t room_bytes, convert_at, sums_at, own_at, finish_at;
} Job;

/* The sums of one task, somewhere. */
typedef struct {
  float *at;
  int64_t ld;
} Sums;

/* What a block of c is made of. */
typedef struct {
  const float *a, *packed; /* packed a; panels of b */
  Rows rows;
  int64_t panel0, panels, p, kc; /* panels of the block, k block */
} Block;

/* The panel that is read after panel t of a block; NULL: the block ends. */
static const float *panel_after(const Job *job, const Block *b, int64_t t) {
  int64_t p = b->p;
  if (++t == b->panels) {
    t = 0;
    p += b->kc;
  }
  return p < job->p->k ? b->packed + ((b->panel0 + t) * job->p->k + p) * job->kernels->nr : NULL;
}

/* One k block for panels begin .. end of a block.  While the tiles of a panel are computed, the
 * next panel comes from L3 or memory. */
static void run_strip(const Job *job, const Block *b, Sums c, int64_t begin, int64_t end) {
  const GemmKernels *kernels = job->kernels;
  int nr = kernels->nr, mr = kernels->mr;
  for (int64_t t = begin; t < end; t++) {
    int64_t cols = least(job->n - (b->panel0 + t) * nr, nr), slots = b->kc / GEMM_AHEAD,
            lines = b->kc * nr / GEMM_LINE;
    const float *panel = b->packed + ((b->panel0 + t) * job->p->k + b->p) * nr, *next = panel_after(job, b, t);
    for (int64_t tile = 0; tile < b->rows.tiles; tile++) {
      int64_t i = gemm_tile_begin(b->rows, tile), rows = gemm_tile_begin(b->rows, tile + 1) - i;
      bool fetches = next && tile * slots < lines;
      GemmFetch fetch = {(const char *)(fetches ? next + tile * slots * GEMM_LINE : panel),
                         fetches ? job->fetch : job->stay};
      kernels->tile_packed((int)rows, (int)cols, b->kc, b->a + tile * mr * b->kc, panel, c.at + i * c.ld + t * nr,
                           c.ld, (float)job->p->alpha, b->p > 0, fetch);
    }
  }
}

static void run_block(const Job *job, int64_t z, int64_t i, int64_t rows, int64_t panel0, int64_t panels,
                      const float *packed, char *room) {
  const Problem *p = job->p;
  int nr = job->kernels->nr;
  int64_t j = job->j0 + panel0 * nr, strip = STRIP / nr;
  float *a = (float *)(void *)room, *finish = (float *)(void *)(room + job->finish_at),
        *convert = (float *)(void *)(room + job->convert_at);
  Sums c = {(float *)(void *)(room + job->sums_at), panels * nr};
  if (job->sums_in_c) c = (Sums){(float *)(void *)matrix_at(&p->c, z, i, j), p->c.row};
  bool finishes = !job->sums_in_c || gemm_finish_needed(p);
  Block b = {
      .a = a, .packed = packed, .rows = gemm_rows(rows, job->kernels->mr), .panel0 = panel0, .panels = panels};
  for (; b.p < p->k; b.p += b.kc) {
    b.kc = least(p->k - b.p, job->k_block);
    gemm_pack_tiles(job->k, a, &p->a, z, i, b.p, b.rows, b.kc, convert);
    for (int64_t t = 0; t < panels; t += strip) {
      int64_t end = least(panels, t + strip), cols = least(job->n - (panel0 + t) * nr, (end - t) * nr);
      run_strip(job, &b, c, t, end);
      if (b.p + b.kc == p->k && finishes)
        gemm_finish(job->k, p, z, i, rows, j + t * nr, cols, c.at + t * nr, c.ld, finish);
    }
  }
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *p = job->p;
  int nr = job->kernels->nr;
  char *room = job->room + job->room_bytes * (size_t)worker;
  int64_t all_panels = pieces(job->n, nr), packed_z = -1;
  int64_t items = job->tasks / (job->m_blocks * job->n_blocks);
  for (int64_t t = begin; t < end; t++) {
    /* Columns, products, rows, outermost first; products come first if each has a b of its own. */
    int64_t i = t % job->m_blocks * job->m_block, rest = t / job->m_blocks;
    int64_t panel = (job->packed ? rest / items : rest % job->n_blocks) * job->n_block;
    int64_t z = job->z0 + (job->packed ? rest % items : rest / job->n_blocks);
    const float *packed = job->packed;
    if (!packed) {
      float *own = (float *)(void *)(room + job->own_at);
      for (int64_t q = 0; q < all_panels && packed_z != z; q++) {
        gemm_pack_panel(job->k, own + q * nr * p->k, &p->b, z, q * nr, least(p->n - q * nr, nr), p->k,
                        (float *)(void *)(room + job->convert_at));
      }
      packed_z = z;
      packed = own;
    }
    run_block(job, z, i, least(p->m - i, job->m_block), panel, least(all_panels - panel, job->n_block), packed,
              room);
  }
}

static size_t aligned(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* Splits c into tasks, of which every worker gets as much: by rows where there are many, else by
 * columns, so that each panel is read by one worker. */
static void plan_blocks(Job *job, int64_t items) {
  const Problem *p = job->p;
  int mr = job->kernels->mr, nr = job->kernels->nr;
  int64_t panels = pieces(job->n, nr), m_blocks = pieces(p->m, GEMM_MC), n_blocks = 1;
  int64_t workers = least(job->k->threads, most(1, items * p->m * job->n * p->k / WORK));
  if (!job->sums_in_c) n_blocks = pieces(job->n, SUM_COLS);
  if (workers > 1 && job->packed) {
    if (items * m_blocks >= MANY_BLOCKS * workers) m_blocks = pieces(m_blocks, workers) * workers;
    else if (panels >= LEAST_PANELS * workers) n_blocks = pieces(n_blocks, workers) * workers;
    else m_blocks = most(m_blocks, least(pieces(workers, items), p->m / LEAST_ROWS));
  }
  job->m_block = least(pieces(pieces(p->m, m_blocks), mr) * mr, GEMM_MC / mr * mr);
  job->m_blocks = pieces(p->m, job->m_block);
  job->n_block = pieces(panels, n_blocks);
  job->n_blocks = pieces(panels, job->n_block);
  /* One tile or two: panels do not come back, read each of them in one go. */
  bool once = p->m <= 2 * mr && p->a.col == 1 && p->a.dtype == DT_F32;
  job->k_block = once ? GEMM_MC * GEMM_KC / (2 * mr) : GEMM_KC;
}

/* Products z0 .. z0+items, columns j0 .. j0+n. */
static Status run_blocks(Kern *k, const Problem *p, const float *packed, int64_t z0, int64_t items, int64_t j0,
                         int64_t n) {
  Job job = {
      .k = k, .p = p, .kernels = SIMD_CALL(k->isa, gemm_kernels)(), .packed = packed, .z0 = z0, .j0 = j0, .n = n};
  int nr = job.kernels->nr;
  job.sums_in_c = p->c.dtype == DT_F32 && p->c.col == 1 && p->add.data != p->c.data;
  plan_blocks(&job, items);
  job.convert_at = aligned(floats((int64_t)GEMM_MC * GEMM_KC));
  job.sums_at = job.convert_at + aligned(gemm_pack_room(k));
  job.own_at = job.sums_at + (job.sums_in_c ? 0 : aligned(floats(job.m_block * job.n_block * nr)));
  job.finish_at = job.own_at + (packed ? 0 : aligned(floats(pieces(n, nr) * nr * p->k)));
  job.room_bytes = job.finish_at + aligned(gemm_finish_bytes(STRIP));
  int64_t grain = 1, *lines;
  TRY_NEW(lines, kern_scratch(k, sizeof *lines * 2 * (size_t)(job.k_block / GEMM_AHEAD)));
  for (int64_t i = 0, slots = job.k_block / GEMM_AHEAD; i < slots; i++) {
    lines[i] = i * GEMM_LINE * (int64_t)sizeof(float);
    lines[slots + i] = 0;
  }
  job.fetch = lines;
  job.stay = lines + job.k_block / GEMM_AHEAD;
  job.tasks = items * job.m_blocks * job.n_blocks;
  if (!packed)
    grain = most(job.m_blocks * job.n_blocks,
                 pieces(WORK, most(1, p->m * p->n * p->k)) * job.m_blocks * job.n_blocks);
  TRY_NEW(job.room, kern_scratch(k, job.room_bytes * (size_t)parallel_workers(k->threads, job.tasks, grain)));
  parallel_for(k->threads, job.tasks, grain, run_tasks, &job);
  return OK;
}

Status gemm_blocked(Kern *k, const Problem *p, const float *packed) {
  if (!packed && gemm_streams(p)) return gemm_stream(k, p);
  if (packed) return run_blocks(k, p, packed, 0, p->batch, 0, p->n);
  int nr = SIMD_CALL(k->isa, gemm_kernels)()->nr;
  if (p->batch > 1 && p->b.batch != 0 && floats(p->k * p->n) <= OWN_PACK_BYTES)
    return run_blocks(k, p, NULL, 0, p->batch, 0, p->n);
  int64_t width = most(nr, PACK_BYTES / (int64_t)sizeof(float) / p->k / nr * nr),
          items = p->b.batch == 0 ? p->batch : 1;
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
