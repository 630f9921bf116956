/* gemm.c -- which way a product goes; see gemm.h.
 *
 * The routes and what they are good at, measured on one core of a Zen 3 (GFLOP/s, peak 104)
 * with f32 weights [n,k] of 768 x 768 to 3072 x 768; torch's MKL beside them:
 *
 *   rows        1      6      16     32     64     128    256    512
 *   torch      24    26-37  47-66  54-79  66-88  70-90  77-90  79-91
 *   thin       34    57-76  66-77  69-85                              one pass over b, nothing packed
 *   packed     30    87-90  80-94  82-95  85-96  92-95  93-96  91-95  b packed once and kept
 *   sgemm      30    30-51  51-75  66-84  74-92  77-92  75-91  78-91  oneDNN's, plain layouts
 *   blocked     -      -      -      -    69-87  72-89  75-90  77-91  our own, packs b in every call
 *
 * and with weights that are not in the cache, as in training, on a Xeon (peak 148; with AVX2 alone in brackets):
 *
 *   rows                     128             256             512
 *   sgemm    [n,k]      82-102 (61-64)  111-113 (59)   125-126 (73)
 *   streamed [n,k]     100-112 (67-69)  105-110 (70)   116-117 (69)   b is packed panel by panel as it is used
 *   sgemm    [k,n]      95-128 (46-73)  107-109 (47)
 *   streamed [k,n]      96-100 (62-66)  107-110 (65)
 *
 * So f32 is packed where b is fixed and memory allows (gemm_pack.c); else few rows are thin and
 * many take oneDNN's sgemm.  Everything that sgemm does not read in place (f16, bf16, odd
 * strides) is blocked, which converts while it packs.  The table below has the exceptions.
 */
#include "kernels/gemm.h"

#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/gemm_problem.h"
#include "kernels/onednn.h"

typedef enum {
  ROUTE_NOTHING,
  ROUTE_EMPTY_SUM,
  ROUTE_PLAIN,
  ROUTE_NAIVE,
  ROUTE_THIN,
  ROUTE_PACKED,
  ROUTE_SGEMM,
  ROUTE_BLOCKED
} Route;

/* ---- from views to problems ------------------------------------------------------------ */

enum { OPERANDS = 5 }; /* a, b, c, add, residual: the order of the Matrix fields of Problem */

/* The batch dimensions in front, as few loops as possible; the innermost one is last. */
typedef struct {
  int n;
  int64_t size[MAX_DIMS], stride[OPERANDS][MAX_DIMS]; /* 0 where an operand is broadcast */
} Batch;

static Matrix *operand(Problem *p, int i) {
  Matrix *all[] = {&p->a, &p->b, &p->c, &p->add, &p->residual};
  return all[i];
}

/* Stride of the dimension that is `from_end` dimensions from the last one. */
static int64_t stride_of(View v, int from_end) {
  int d = v.ndim - 1 - from_end;
  return d < 0 || v.size[d] == 1 ? 0 : v.stride[d];
}

static Matrix matrix_of(View v) {
  return (Matrix){.data = v.data, .dtype = v.dtype, .row = stride_of(v, 1), .col = stride_of(v, 0)};
}

/* A dimension of size 1 has no stride of its own: give it one that suits the routes. */
static void name_strides(Matrix *x, int64_t rows, int64_t cols) {
  if (cols == 1 && rows == 1) x->row = x->col = 1;
  else if (cols == 1) x->col = x->row == 1 ? rows : 1;
  else if (rows == 1) x->row = x->col == 1 ? cols : 1;
}

static bool joins(const Batch *b, int outer, int64_t size, const int64_t *stride) {
  for (int o = 0; o < OPERANDS; o++) {
    if (b->stride[o][outer] != size * stride[o]) return false;
  }
  return true;
}

static void batch_of(const View *const *views, Batch *b) {
  View c = *views[2];
  b->n = 0;
  for (int d = 0; d < c.ndim - 2; d++) {
    int64_t stride[OPERANDS];
    for (int o = 0; o < OPERANDS; o++) stride[o] = views[o] ? stride_of(*views[o], c.ndim - 1 - d) : 0;
    if (c.size[d] == 1) continue;
    bool join = b->n > 0 && joins(b, b->n - 1, c.size[d], stride);
    int at = join ? b->n - 1 : b->n++;
    b->size[at] = c.size[d] * (join ? b->size[at] : 1);
    for (int o = 0; o < OPERANDS; o++) b->stride[o][at] = stride[o];
  }
}

/* The first problem of the batch; its innermost dimension is the problem's own. */
static void problem_of(const Gemm *g, Problem *p, Batch *batch) {
  const View *views[OPERANDS] = {&g->a, &g->b, &g->c, g->beta != 0 ? g->add : NULL, g->residual};
  View a = g->a, c = g->c;
  *p = (Problem){.batch = 1,
                 .m = c.size[c.ndim - 2],
                 .n = c.size[c.ndim - 1],
                 .k = a.size[a.ndim - 1],
                 .alpha = g->alpha,
                 .beta = g->beta,
                 .act = g->act};
  batch_of(views, batch);
  if (batch->n) p->batch = batch->size[--batch->n];
  for (int o = 0; o < OPERANDS; o++) {
    if (!views[o]) continue;
    *operand(p, o) = matrix_of(*views[o]);
    operand(p, o)->batch = p->batch > 1 ? batch->stride[o][batch->n] : 0;
  }
  name_strides(&p->a, p->m, p->k);
  name_strides(&p->b, p->k, p->n);
  name_strides(&p->c, p->m, p->n);
}

/* c^T = b^T a^T: for a c whose columns are contiguous, or a single column. */
static void transpose_problem(Problem *p) {
  Matrix a = p->a;
  int64_t m = p->m;
  p->a = p->b;
  p->b = a;
  p->m = p->n;
  p->n = m;
  for (int o = 0; o < OPERANDS; o++) {
    Matrix *x = operand(p, o);
    int64_t row = x->row;
    x->row = x->col;
    x->col = row;
  }
}

/* A batch that is one product: b is the same for all, the others are rows of one matrix. */
static void fold_batch(Problem *p) {
  if (p->batch == 1 || p->b.batch != 0) return;
  for (int o = 0; o < OPERANDS; o++) {
    Matrix *x = operand(p, o);
    if (o == 1 || !x->data) continue;
    if (p->m > 1 && x->batch != p->m * x->row) return;
  }
  for (int o = 0; o < OPERANDS && p->m == 1; o++) operand(p, o)->row = o == 1 ? p->b.row : operand(p, o)->batch;
  p->m *= p->batch;
  p->batch = 1;
}

/* ---- routes --------------------------------------------------------------------------- */

enum { /* what a problem is like */
       IS_COMPLEX = 1,
       IS_WIDE = 2,       /* f64 or integers */
       IS_HALF = 4,       /* f16 or bf16 */
       NO_K = 8,          /* an empty sum */
       ALONG_K = 16,      /* b is contiguous along k: a weight [n,k] */
       ALONG_N = 32,      /* b is contiguous along n */
       HAS_PACK = 64,     /* a packed copy of b is there, or will be at the next use */
       BLAS = 128,        /* f32, and sgemm reads and writes everything in place */
       SMALL_BATCH = 256, /* many products, each too small for several threads */
       SAME_SETS = 512,   /* b along n, rows whole half pages apart: they fall into the same cache sets */
       NARROW = 1024,
       FINISHED = 2048, /* an activation or a residual comes behind */
       STREAMED = 4096, /* blocked, b would be packed as it is used */
};

enum {
  ANY = -1,
  SMALL_PRODUCT = 1 << 21, /* multiplications */
  NARROW_COLS = 512,
};

/* The first row whose facts all hold, with at most so many rows of a, decides. */
static const struct {
  unsigned facts;
  int64_t rows;
  Route route;
} table[] = {
    /* clang-format off */
    {IS_COMPLEX,                   ANY, ROUTE_NAIVE},
    {IS_WIDE | NO_K,               ANY, ROUTE_NAIVE},
    {IS_WIDE | FINISHED,           ANY, ROUTE_NAIVE},
    {IS_WIDE,                      ANY, ROUTE_PLAIN},
    {NO_K,                         ANY, ROUTE_EMPTY_SUM},
    {HAS_PACK,                     ANY, ROUTE_PACKED},
    {ALONG_K,                      4,   ROUTE_THIN},    /* bound by memory: nothing beats reading b once */
    {ALONG_N,                      2,   ROUTE_THIN},
    {ALONG_N | IS_HALF,            4,   ROUTE_THIN},
    {ALONG_K,                      32,  ROUTE_THIN},    /* dot products in place beat sgemm up to here */
    {BLAS | SMALL_BATCH,           ANY, ROUTE_BLOCKED}, /* one product per thread */
    {BLAS | SAME_SETS,             7,   ROUTE_SGEMM},
    {BLAS | SAME_SETS | NARROW,    ANY, ROUTE_BLOCKED}, /* sgemm reads such a b in place, at half its speed */
    {BLAS | SAME_SETS,             383, ROUTE_BLOCKED},
    {BLAS | ALONG_K | STREAMED,    288, ROUTE_BLOCKED}, /* sgemm reads rows of such a b far apart, each for few rows of a */
    {BLAS,                         ANY, ROUTE_SGEMM},
    {0,                            ANY, ROUTE_BLOCKED},
    /* clang-format on */
};

/* Does BLAS take it: one stride is 1, the other spans the rows. */
static bool is_blas(const Matrix *x, int64_t rows, int64_t cols) {
  return (x->col == 1 && x->row >= most(1, cols)) || (x->row == 1 && x->col >= most(1, rows));
}

static unsigned facts_of(const Problem *p, bool packed) {
  Dtype d = p->a.dtype;
  bool f32 = d == DT_F32 && p->b.dtype == DT_F32 && p->c.dtype == DT_F32;
  unsigned facts = packed ? HAS_PACK : 0;
  if (d == DT_C64) facts |= IS_COMPLEX;
  if (d == DT_F64 || dtype_is_integral(d)) facts |= IS_WIDE;
  if (d == DT_F16 || d == DT_BF16) facts |= IS_HALF;
  if (p->k == 0) facts |= NO_K;
  if (p->b.row == 1) facts |= ALONG_K;
  if (p->b.col == 1 && p->b.row != 1) facts |= ALONG_N;
  if (f32 && is_blas(&p->a, p->m, p->k) && is_blas(&p->b, p->k, p->n) && p->c.col == 1) facts |= BLAS;
  if (p->batch > 1 && p->m * p->n * p->k <= SMALL_PRODUCT) facts |= SMALL_BATCH;
  if ((facts & ALONG_N) && p->b.row % 512 == 0) facts |= SAME_SETS;
  if (p->n <= NARROW_COLS) facts |= NARROW;
  if (p->act != GEMM_ACT_NONE || p->residual.data) facts |= FINISHED;
  if (gemm_streams(p)) facts |= STREAMED;
  return facts;
}

static Route choose_route(const Problem *p, bool packed) {
  unsigned facts = facts_of(p, packed);
  if (p->batch == 0 || p->m == 0 || p->n == 0) return ROUTE_NOTHING;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if ((table[i].facts & ~facts) == 0 && (table[i].rows == ANY || p->m <= table[i].rows)) return table[i].route;
  }
  return ROUTE_BLOCKED;
}

/* ---- oneDNN's sgemm ------------------------------------------------------------------- */

static Status sgemm_one(const Problem *p, int64_t z, float beta) {
  bool ta = p->a.col != 1, tb = p->b.col != 1;
  return onednn_sgemm(ta, tb, p->m, p->n, p->k, (float)p->alpha,
                      (const float *)(const void *)matrix_at(&p->a, z, 0, 0), ta ? p->a.col : p->a.row,
                      (const float *)(const void *)matrix_at(&p->b, z, 0, 0), tb ? p->b.col : p->b.row, beta,
                      (float *)(void *)matrix_at(&p->c, z, 0, 0), p->c.row);
}

/* c = add, all of it. */
static void copy_add(Kern *k, const Problem *p) {
  int64_t size[3] = {p->batch, p->m, p->n}, c[3] = {p->c.batch, p->c.row, p->c.col},
          add[3] = {p->add.batch, p->add.row, p->add.col};
  kernel_copy(k, (View){p->c.data, size, c, 3, p->c.dtype}, (View){p->add.data, size, add, 3, p->add.dtype});
}

static Status run_sgemm(Kern *k, Problem *p) {
  float beta = 0;
  /* Without an activation add goes in first, and the product on top of it: one pass over c
   * less than afterwards.  So it is if add is there already. */
  bool in_c = p->add.data && p->add.data == p->c.data;
  if (in_c || (p->add.data && p->act == GEMM_ACT_NONE)) {
    if (!in_c) copy_add(k, p);
    beta = (float)p->beta;
    p->add.data = NULL;
  }
  for (int64_t z = 0; z < p->batch; z++) TRY(sgemm_one(p, z, beta));
  return gemm_finish_needed(p) ? gemm_finish_all(k, p) : OK;
}

/* ---- the others ----------------------------------------------------------------------- */

/* c = act(beta * add) + residual */
static Status run_empty_sum(Kern *k, const Problem *p) {
  enum { WIDTH = 1024 };
  static const float zero[WIDTH];
  float *room;
  TRY_NEW(room, kern_scratch(k, gemm_finish_bytes(WIDTH)));
  for (int64_t r = 0; r < p->batch * p->m; r++) {
    for (int64_t j = 0; j < p->n; j += WIDTH)
      gemm_finish(k, p, r / p->m, r % p->m, 1, j, least(p->n - j, WIDTH), zero, 0, room);
  }
  return OK;
}

static Status run_route(Kern *k, Problem *p, bool planned, const float *packed) {
  switch (choose_route(p, planned)) {
    case ROUTE_NOTHING: return OK;
    case ROUTE_EMPTY_SUM: return run_empty_sum(k, p);
    case ROUTE_PLAIN: return gemm_plain(k, p);
    case ROUTE_NAIVE: return gemm_naive_problem(p), OK;
    case ROUTE_THIN: return gemm_thin(k, p);
    case ROUTE_PACKED: return gemm_blocked(k, p, packed);
    case ROUTE_SGEMM: return run_sgemm(k, p);
    case ROUTE_BLOCKED: return gemm_blocked(k, p, NULL);
  }
  return OK;
}

static Status run_problem(Kern *k, Problem *p, GemmPack **pack) {
  fold_batch(p);
  bool swaps = (p->c.col != 1 && p->c.row == 1) || (p->n == 1 && p->m > 1);
  if (swaps) transpose_problem(p);
  if (pack && !swaps) TRY(gemm_pack_ensure(k, p, pack));
  bool planned = pack && *pack && !swaps && gemm_pack_planned(*pack, p);
  return run_route(k, p, planned, planned ? gemm_pack_data(*pack) : NULL);
}

/* The outer dimensions of the batch, one problem after the other. */
static Status run_all(Kern *k, const Gemm *g, bool naive) {
  Problem first;
  Batch batch;
  problem_of(g, &first, &batch);
  int64_t count = 1;
  for (int d = 0; d < batch.n; d++) count *= batch.size[d];
  for (int64_t i = 0; i < count; i++) {
    Problem p = first;
    int64_t rest = i;
    for (int d = batch.n - 1; d >= 0; rest /= batch.size[d], d--) {
      for (int o = 0; o < OPERANDS; o++) {
        Matrix *x = operand(&p, o);
        if (x->data) x->data += rest % batch.size[d] * batch.stride[o][d] * (int64_t)dtype_size(x->dtype);
      }
    }
    if (naive) {
      gemm_naive_problem(&p);
      continue;
    }
    size_t mark = kern_mark(k);
    Status s = run_problem(k, &p, count == 1 ? g->pack : NULL);
    kern_release(k, mark);
    if (s) return s;
  }
  return OK;
}

Status gemm(Kern *k, const Gemm *g) { return run_all(k, g, false); }
Status gemm_naive(Kern *k, const Gemm *g) { return run_all(k, g, true); }
