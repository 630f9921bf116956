/* gemm_stream.c -- products with a b that is large and used once: its panels are packed as they are used.
 *
 * Loops, outermost first: blocks of rows, k blocks (their part of a is packed as a whole and stays in L2 or L3),
 * strips of columns (tasks, shared among the workers), panels, steps of k, tiles.  A part of a panel is packed and
 * then used by all tiles, while the lines that will be packed next come from memory: arithmetic hides the way
 * there.  Nothing of b is written back to memory.
 *
 * The order of sums is that of gemm_blocked(): steps of GEMM_KC, added to c one after the other. */
#include "kernels/gemm_problem.h"
#include "kernels/gemm_simd.h"

enum {
  STRIP = 256,        /* columns of a task; they are finished together */
  A_FLOATS = 1 << 18, /* packed at a time */
  LEAST_ROWS = 48,    /* for fewer, gemm_blocked() takes longer steps of k */
  MOST_ROWS = 1024,   /* of a block */
};

typedef struct {
  const Kern *k;
  const Problem *p;
  const GemmKernels *kernels;
  int64_t i, p0, depth; /* the block: first row, first k and how many */
  Rows rows;
  float *a;             /* packed: [step of k][tile][k][mr] */
  const int64_t *lines; /* where those of a part of a panel are, behind its first one; then `slots` times 0 */
  int64_t nlines, slots;
  char *room; /* of all workers: part of a panel, room to pack, rows of gemm_finish */
  size_t room_bytes, pack_at, finish_at;
} Job;

/* Part of a panel: k from p on, columns from j on.  Where its rows can be read as they are, the first tile packs
 * them. */
static void run_part(const Job *job, int64_t p, int64_t j, char *room) {
  const Problem *x = job->p;
  const GemmKernels *kernels = job->kernels;
  int mr = kernels->mr, nr = kernels->nr;
  int64_t end = job->p0 + job->depth, kc = least(end - p, GEMM_KC), cols = least(x->n - j, nr),
          slots = kc / GEMM_AHEAD;
  float *panel = (float *)(void *)room;
  const float *a = job->a + (p - job->p0) * job->rows.tiles * mr;
  const char *b = matrix_at(&x->b, 0, p, j);
  bool as_it_is = x->b.dtype == DT_F32 && x->b.col == 1 && x->b.row != 1 && cols == nr;
  if (!as_it_is)
    gemm_pack_panel(job->k, panel, &(Matrix){(char *)b, x->b.dtype, 0, x->b.row, x->b.col}, 0, 0, cols, kc,
                    (float *)(void *)(room + job->pack_at));
  int64_t next_p = p + kc < end ? p + kc : job->p0, next_j = p + kc < end ? j : j + nr;
  const char *from = next_j < x->n ? matrix_at(&x->b, 0, next_p, next_j) : (const char *)panel;
  for (int64_t t = 0; t < job->rows.tiles; t++) {
    int64_t i = gemm_tile_begin(job->rows, t), rows = gemm_tile_begin(job->rows, t + 1) - i,
            at = next_j < x->n ? least(t * slots, job->nlines) : job->nlines;
    float *c = (float *)(void *)matrix_at(&x->c, 0, job->i + i, j), alpha = (float)x->alpha;
    GemmFetch next = {from, job->lines + at};
    if (as_it_is && t == 0)
      kernels->tile_packing((int)rows, kc, a, (const float *)(const void *)b, x->b.row, panel, c, x->c.row, alpha,
                            p > 0, next);
    else kernels->tile_packed((int)rows, (int)cols, kc, a + t * mr * kc, panel, c, x->c.row, alpha, p > 0, next);
  }
}

static void run_strips(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *x = job->p;
  char *room = job->room + job->room_bytes * (size_t)worker;
  bool last = job->p0 + job->depth == x->k;
  for (int64_t s = begin; s < end; s++) {
    int64_t cols = least(x->n - s * STRIP, STRIP);
    for (int64_t j = s * STRIP; j < s * STRIP + cols; j += job->kernels->nr) {
      for (int64_t p = job->p0; p < job->p0 + job->depth; p += GEMM_KC) run_part(job, p, j, room);
    }
    if (last && gemm_finish_needed(x))
      gemm_finish(job->k, x, 0, job->i, job->rows.count, s * STRIP, cols,
                  (const float *)(const void *)matrix_at(&x->c, 0, job->i, s * STRIP), x->c.row,
                  (float *)(void *)(room + job->finish_at));
  }
}

/* a's part of the block. */
static void pack_steps(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *x = job->p;
  float *room = (float *)(void *)(job->room + job->room_bytes * (size_t)worker + job->pack_at);
  for (int64_t s = begin; s < end; s++) {
    int64_t p = s * GEMM_KC;
    gemm_pack_tiles(job->k, job->a + p * job->rows.tiles * job->kernels->mr, &x->a, 0, job->i, job->p0 + p,
                    job->rows, least(job->depth - p, GEMM_KC), room);
  }
}

/* Lines of b's part of a panel in the order in which they are packed. */
static int64_t list_lines(const Job *job, int64_t *lines) {
  const Matrix *b = &job->p->b;
  int64_t size = (int64_t)dtype_size(b->dtype), line = GEMM_LINE * (int64_t)sizeof(float), n = 0;
  bool along_k = b->row == 1;
  int64_t runs = along_k ? job->kernels->nr : GEMM_KC, length = (along_k ? GEMM_KC : job->kernels->nr) * size,
          apart = (along_k ? b->col : b->row) * size;
  for (int64_t r = 0; r < runs; r++) {
    for (int64_t at = 0; at < length; at += line) lines[n++] = r * apart + at;
  }
  return n;
}

/* c takes the sums, and b is worth more care than a. */
bool gemm_streams(const Problem *p) {
  return p->c.dtype == DT_F32 && p->c.col == 1 && p->add.data != p->c.data && (p->b.row == 1 || p->b.col == 1) &&
         p->n > p->m && p->m >= LEAST_ROWS && p->batch == 1;
}

Status gemm_stream(Kern *k, const Problem *p) {
  Job job = {.k = k, .p = p, .kernels = SIMD_CALL(k->isa, gemm_kernels)()};
  int nr = job.kernels->nr, mr = job.kernels->mr;
  int64_t m_block = pieces(p->m, pieces(p->m, MOST_ROWS)), strips = pieces(p->n, STRIP), *lines;
  int64_t k_block = most(GEMM_KC, A_FLOATS / m_block / GEMM_KC * GEMM_KC);
  job.pack_at = floats((int64_t)nr * GEMM_KC);
  job.finish_at = job.pack_at + gemm_pack_room(k);
  job.room_bytes = (job.finish_at + gemm_finish_bytes(STRIP) + 63) & ~(size_t)63;
  job.slots = GEMM_KC / GEMM_AHEAD;
  TRY_NEW(job.room, kern_scratch(k, job.room_bytes * (size_t)k->threads));
  TRY_NEW(job.a, kern_scratch(k, floats(pieces(m_block, mr) * mr * least(k_block, p->k))));
  TRY_NEW(lines, kern_scratch(k, sizeof *lines * (size_t)(GEMM_NR_MOST * GEMM_KC / GEMM_LINE + job.slots)));
  job.nlines = list_lines(&job, lines);
  for (int64_t i = 0; i < job.slots; i++) lines[job.nlines + i] = 0;
  job.lines = lines;
  for (job.i = 0; job.i < p->m; job.i += m_block) {
    job.rows = gemm_rows(least(p->m - job.i, m_block), mr);
    for (job.p0 = 0; job.p0 < p->k; job.p0 += k_block) {
      job.depth = least(p->k - job.p0, k_block);
      parallel_for(k->threads, pieces(job.depth, GEMM_KC), 1, pack_steps, &job);
      parallel_for(k->threads, strips, 1, run_strips, &job);
    }
  }
  return OK;
}
