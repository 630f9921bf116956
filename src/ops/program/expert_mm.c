/* expert_mm.c -- products of rows with matrices that each row chooses, as layers of experts have them.
 *
 *   expert_mm(x, weight, ids)[t] = x[t] @ weight[ids[t]]                    [T, k], [E, k, n], [T] -> [T, n]
 *   expert_mm_weight(x, grad, ids, weight)[e] = sum of x[t]^T grad[t] over the t with ids[t] = e,  -> [E, k, n]
 *
 * The second is the gradient of the first one's weight, of which it reads the size alone: where a weight lies tells
 * where its gradient is wanted.  Rows stand in any order, so that they may be sharded: passes/unsort_rows.c puts
 * these ops in the place of products of rows that a program has sorted by expert.
 *
 *   expert_order(ids, experts)              the rows expert by expert, where each stands among them, and where the
 *                                           rows of each expert end: for passes/keep_sorted.c
 *
 * `first` and `experts` are for ranks that hold some of the experts: the weight has those from `first` on, of
 * `experts` in all (-1: it has all).  Rows of others give zeros, so that ranks add up to the whole.
 */
#include <string.h>

#include "kernels/copy.h"
#include "kernels/gemm.h"
#include "kernels/rows.h"
#include "ops/aten/indexing.h"
#include "ops/rule.h"

/* Where the arguments of an op are. */
typedef struct {
  int weight, first, experts;
} ExpertRow;

static const ExpertRow row_mm = {1, 3, 4}, row_weight = {3, 4, 5};
enum { X, OTHER, IDS };

static const ExpertRow *row_of(const Call *c) { return c->op->def->row; }

static int64_t expert_count(const Call *c) {
  int64_t given = in_int(c, row_of(c)->experts);
  return given < 0 ? in_tensor(c, row_of(c)->weight)->size[0] : given;
}

/* ---- sizes ------------------------------------------------------------------------------------------------ */

static Status part_infer(const Call *c) {
  const Tensor *x = in_tensor(c, X), *ids = in_tensor(c, IDS), *w = in_tensor(c, row_of(c)->weight);
  const int64_t first = in_int(c, row_of(c)->first), count = expert_count(c);
  char a[128], b[128];
  if (x->ndim != 2 || w->ndim != 3 || x->size[1] != w->size[1])
    return op_fail(c, "needs rows [t,k] and weights [e,k,n], not %s and %s", tensor_describe(x, a, sizeof a),
                   tensor_describe(w, b, sizeof b));
  if (ids->ndim != 1 || ids->size[0] != x->size[0] || (ids->dtype != DT_I32 && ids->dtype != DT_I64))
    return op_fail(c, "needs an i32 or i64 per row of %s, not %s", tensor_describe(x, a, sizeof a),
                   tensor_describe(ids, b, sizeof b));
  if (first < 0 || w->size[0] > count || first > count - w->size[0])
    return op_fail(c, "%lld experts from %lld on are not among %lld", (long long)w->size[0], (long long)first,
                   (long long)count);
  return OK;
}

static Status same_floats(const Call *c, const Tensor *a, const Tensor *b) {
  if (a->dtype == b->dtype && dtype_is_float(a->dtype)) return OK;
  return op_fail(c, "there are no products of %s and %s", dtype_name(a->dtype), dtype_name(b->dtype));
}

static Status expert_mm_infer(Call *c) {
  const Tensor *x = in_tensor(c, X), *w = in_tensor(c, row_mm.weight);
  TRY(part_infer(c));
  TRY(same_floats(c, x, w));
  return out_new(c, x->dtype, 2, (int64_t[]){x->size[0], w->size[2]});
}

static Status expert_mm_weight_infer(Call *c) {
  const Tensor *x = in_tensor(c, X), *g = in_tensor(c, OTHER), *w = in_tensor(c, row_weight.weight);
  char a[128], b[128];
  TRY(part_infer(c));
  TRY(same_floats(c, x, g));
  if (g->ndim != 2 || g->size[0] != x->size[0] || g->size[1] != w->size[2])
    return op_fail(c, "needs a cotangent [t,n] for weights %s, not %s", tensor_describe(w, a, sizeof a),
                   tensor_describe(g, b, sizeof b));
  return out_new(c, x->dtype, 3, w->size);
}

/* ---- rows by expert --------------------------------------------------------------------------------------- */

typedef struct {
  int64_t n, held, count; /* rows; those of experts that are here; experts that are here */
  int64_t *row;           /* held: rows, expert by expert, in order within one */
  int64_t *begin;         /* count + 1: of each expert's rows */
  int64_t most;           /* rows of one expert */
} Sorted;

/* Experts `first` to first + count - 1 of all. */
typedef struct {
  int64_t first, count, all;
} Part;

static Part part_of(const Call *c) {
  return (Part){in_int(c, row_of(c)->first), in_tensor(c, row_of(c)->weight)->size[0], expert_count(c)};
}

/* A counting sort. */
static Status sort_rows(const Call *c, const Tensor *of, Part part, Sorted *s) {
  const int64_t first = part.first;
  Indices ids;
  TRY(indices_prepare(c, of, part.all, 0, NEGATIVE_FAILS, &ids));
  *s = (Sorted){.n = ids.size[0], .count = part.count};
  TRY_NEW(s->row, kern_scratch(&c->ctx->kern, (size_t)(s->n + 1) * sizeof *s->row));
  TRY_NEW(s->begin, kern_scratch(&c->ctx->kern, (size_t)(s->count + 2) * sizeof *s->begin));
  int64_t *next = s->begin + 1; /* where an expert's next row goes: its end when all have gone */
  memset(s->begin, 0, (size_t)(s->count + 2) * sizeof *s->begin);
  for (int64_t t = 0; t < s->n; t++) {
    const int64_t e = ids.data[t * ids.stride[0]] - first;
    if (e >= 0 && e < s->count) next[e + 1]++, s->held++;
  }
  for (int64_t e = 0; e < s->count; e++) next[e + 1] += next[e];
  for (int64_t t = 0; t < s->n; t++) {
    const int64_t e = ids.data[t * ids.stride[0]] - first;
    if (e >= 0 && e < s->count) s->row[next[e]++] = t;
  }
  for (int64_t e = 0; e < s->count; e++)
    if (s->begin[e + 1] - s->begin[e] > s->most) s->most = s->begin[e + 1] - s->begin[e];
  return OK;
}

/* Rows of one expert after the other go through the same scratch memory, which stays in the caches. */
typedef struct {
  View from;  /* a matrix, rows in one piece each */
  char *rows; /* of one expert */
} Gathered;

static Status gather_begin(const Call *c, const Sorted *s, View from, Gathered *g) {
  Kern *k = &c->ctx->kern;
  const size_t row = (size_t)from.size[1] * dtype_size(from.dtype);
  *g = (Gathered){.from = from};
  if (from.stride[1] != 1 && from.size[1] > 1) {
    int64_t *stride;
    TRY_NEW(stride, kern_scratch(k, 2 * sizeof *stride));
    TRY_NEW(g->from.data, kern_scratch(k, (size_t)from.size[0] * row + 1));
    stride[0] = from.size[1];
    stride[1] = 1;
    g->from.stride = stride;
    kernel_copy(k, g->from, from);
  }
  TRY_NEW(g->rows, kern_scratch(k, (size_t)s->most * row + 1));
  return OK;
}

static int64_t rows_of_expert(const Sorted *s, int64_t e) {
  return e < s->count ? s->begin[e + 1] - s->begin[e] : 0;
}

/* What brings the rows of expert e together; behind the last: nothing. */
static RowCopy gather(const Sorted *s, const Gathered *g, int64_t e) {
  const int64_t item = (int64_t)dtype_size(g->from.dtype);
  return (RowCopy){.to = g->rows,
                   .from = g->from.data,
                   .to_step = g->from.size[1] * item,
                   .from_step = g->from.stride[0] * item,
                   .from_row = s->row + (e < s->count ? s->begin[e] : 0),
                   .n = rows_of_expert(s, e),
                   .bytes = (size_t)(g->from.size[1] * item)};
}

static void clear(const Call *c) {
  const char zero[16] = {0};
  kernel_fill(&c->ctx->kern, out_view_of(c, 0), zero);
}

/* The tensor's matrix e. */
static View matrix(const Tensor *t, int64_t e) {
  char *data = (char *)tensor_data(t) + e * t->stride[0] * (int64_t)dtype_size(t->dtype);
  return (View){data, t->size + 1, t->stride + 1, 2, t->dtype};
}

/* y: room for the products of one expert.  They go where they belong while the next rows come. */
static Status multiply(const Call *c, const Sorted *s, const Gathered *x, char *y) {
  const Tensor *w = in_tensor(c, row_mm.weight), *out = out_tensor(c, 0);
  Kern *k = &c->ctx->kern;
  const int64_t item = (int64_t)dtype_size(w->dtype), wide = w->size[1], n = w->size[2];
  int64_t x_stride[2] = {wide, 1}, y_stride[2] = {n, 1};
  RowCopy next = gather(s, x, 0), nothing = {0};
  kernel_copy_rows(k, &nothing, &next);
  for (int64_t e = 0; e < s->count; e++) {
    const int64_t rows = rows_of_expert(s, e);
    int64_t x_size[2] = {rows, wide}, y_size[2] = {rows, n};
    View a = {x->rows, x_size, x_stride, 2, w->dtype}, to = {y, y_size, y_stride, 2, w->dtype};
    if (rows) TRY(gemm(k, &(Gemm){.a = a, .b = matrix(w, e), .c = to, .alpha = 1}));
    RowCopy back = {.to = tensor_data(out),
                    .from = y,
                    .to_step = out->stride[0] * item,
                    .from_step = n * item,
                    .to_row = s->row + s->begin[e],
                    .n = rows,
                    .bytes = (size_t)(n * item)};
    next = gather(s, x, e + 1);
    kernel_copy_rows(k, &back, &next);
  }
  return OK;
}

static Status expert_mm_body(Call *c) {
  const Tensor *out = out_tensor(c, 0);
  const size_t row = (size_t)out->size[1] * dtype_size(out->dtype);
  Sorted s;
  Gathered x;
  char *y;
  TRY(sort_rows(c, in_tensor(c, IDS), part_of(c), &s));
  if (s.held < s.n) clear(c);
  if (!s.held || !row) return OK;
  TRY(gather_begin(c, &s, in_view(c, X), &x));
  TRY_NEW(y, kern_scratch(&c->ctx->kern, (size_t)s.most * row));
  return multiply(c, &s, &x, y);
}

static Status expert_mm_run(Call *c) { return with_scratch(c, expert_mm_body); }

static Status expert_mm_weight_body(Call *c) {
  const Tensor *out = out_tensor(c, 0);
  const int64_t k = out->size[1], n = out->size[2];
  int64_t x_stride[2] = {1, k}, g_stride[2] = {n, 1}; /* x is multiplied from the left, turned around */
  Sorted s;
  Gathered x, g;
  TRY(sort_rows(c, in_tensor(c, IDS), part_of(c), &s));
  TRY(gather_begin(c, &s, in_view(c, X), &x));
  TRY(gather_begin(c, &s, in_view(c, OTHER), &g));
  for (int64_t e = 0; e < s.count; e++) {
    int64_t rows = rows_of_expert(&s, e), x_size[2] = {k, rows}, g_size[2] = {rows, n};
    RowCopy left = gather(&s, &x, e), right = gather(&s, &g, e);
    kernel_copy_rows(&c->ctx->kern, &left, &right);
    TRY(gemm(&c->ctx->kern, &(Gemm){.a = {x.rows, x_size, x_stride, 2, out->dtype},
                                    .b = {g.rows, g_size, g_stride, 2, out->dtype},
                                    .c = matrix(out, e),
                                    .alpha = 1}));
  }
  return OK;
}

static Status expert_mm_weight_run(Call *c) { return with_scratch(c, expert_mm_weight_body); }

/* Every row meets one matrix; of a part of the experts, as many rows as there are parts. */
static double expert_flops(const Call *c) {
  if (!c->nout) return 0;
  const Tensor *x = in_tensor(c, X), *w = in_tensor(c, row_of(c)->weight);
  const int64_t count = expert_count(c);
  const double share = count ? (double)w->size[0] / (double)count : 1;
  return 2.0 * (double)tensor_numel(x) * (double)w->size[2] * share;
}

/* ---- the order by itself: expert_order(ids, experts) ------------------------------------------------------------
 */

/* The rows expert by expert; where each stands among them; where the rows of each expert end. */
static Status expert_order_infer(Call *c) {
  const Tensor *ids = in_tensor(c, 0);
  const int64_t experts = in_int(c, 1);
  char a[128];
  if (ids->ndim != 1 || (ids->dtype != DT_I32 && ids->dtype != DT_I64) || experts < 0)
    return op_fail(c, "needs an i32 or i64 per row, and a number of experts, not %s and %lld",
                   tensor_describe(ids, a, sizeof a), (long long)experts);
  TRY(out_new(c, DT_I64, 1, ids->size));
  TRY(out_new(c, DT_I64, 1, ids->size));
  return out_new(c, DT_I64, 1, &experts);
}

static Status expert_order_body(Call *c) {
  const int64_t experts = in_int(c, 1);
  int64_t *order = tensor_data(out_tensor(c, 0)), *place = tensor_data(out_tensor(c, 1)),
          *ends = tensor_data(out_tensor(c, 2));
  Sorted s;
  TRY(sort_rows(c, in_tensor(c, 0), (Part){.count = experts, .all = experts}, &s));
  for (int64_t i = 0; i < s.n; i++) order[i] = s.row[i], place[s.row[i]] = i;
  for (int64_t e = 0; e < experts; e++) ends[e] = s.begin[e + 1];
  return OK;
}

static Status expert_order_run(Call *c) { return with_scratch(c, expert_order_body); }

/* ---- on several ranks ------------------------------------------------------------------------------------- */

/* Rows; columns of the weight; what is summed over; experts in one run each, where rows of those that are elsewhere
 * give zeros. */
static Status expert_mm_place(Rules *r) {
  Placement experts[4] = {place_p(REDUCE_SUM), place_r(), place_s(0), place_r()};
  TRY(rule_letters(r, "tk,[e]kn,t->tn", false));
  TRY(rule_axis_exact(r, experts));
  return rule_words(r, "ssrr srsr");
}

/* The dimensions of the gradient lie as those of the weight. */
static Status expert_mm_weight_place(Rules *r) {
  Placement experts[5] = {place_s(0), place_r(), place_r(), place_r(), place_s(0)};
  TRY(rule_letters(r, "tk,tn,t,[e]kn->[e]kn", false));
  TRY(rule_axis_exact(r, experts));
  return rule_words(r, "ssrrr srsrr");
}

static Status expert_localize(Local *l) {
  const ExpertRow *row = l->def->row;
  bool cut = false;
  int64_t begin;
  for (int a = 0; a < l->naxes; a++) cut |= is_s_of(&local_place_in(l, row->weight)[a], 0);
  if (!cut) return OK;
  TRY(local_in_begin(l, row->weight, 0, &begin));
  l->arg[row->first] = val_int(in_int(l->call, row->first) + begin);
  l->arg[row->experts] = val_int(expert_count(l->call));
  return OK;
}

const OpDef ops_expert_mm[] = {
    {.schema = "tess::expert_mm(Tensor x, Tensor weight, Tensor ids, SymInt first=0, SymInt experts=-1) -> Tensor",
     .infer = expert_mm_infer,
     .run = expert_mm_run,
     .flops = expert_flops,
     .row = &row_mm,
     .shard.place = expert_mm_place,
     .shard.localize = expert_localize},
    {.schema = "tess::expert_mm_weight(Tensor x, Tensor grad, Tensor ids, Tensor weight, SymInt first=0, SymInt "
               "experts=-1) -> Tensor",
     .infer = expert_mm_weight_infer,
     .run = expert_mm_weight_run,
     .flops = expert_flops,
     .row = &row_weight,
     .shard.place = expert_mm_weight_place,
     .shard.localize = expert_localize},
    {.schema = "tess::expert_order(Tensor ids, SymInt experts) -> (Tensor order, Tensor place, Tensor ends)",
     .infer = expert_order_infer,
     .run = expert_order_run},
    {0}};
