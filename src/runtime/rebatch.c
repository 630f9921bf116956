/* rebatch.c -- see rebatch.h. */
#include "runtime/rebatch.h"

#include <string.h>

#include "runtime/rebatch_inside.h"

/* ---- which batch ---------------------------------------------------------------------------------------- */

static bool has_rows(const Val *v) { return v->type == TY_TENSOR && v->ndim > 0 && sym_is_int(v->size[0]); }

/* Inputs that have the batch in front, like the first that can have it. */
static bool has_batch(const Val *v, int64_t from) { return has_rows(v) && v->size[0]->value == from; }

static Status note_input(Rebatch *r, const Val *v) {
  TRY_NEW(r->outer[v->id], arena_new_n(r->arena, int64_t, v->ndim));
  r->outer[v->id][0] = 1;
  return OK;
}

static Status other_rows(const Rebatch *r, const Val *v, const Tensor *t) {
  char text[128];
  return fail(ERR_FILE, "input '%s' is %s: the batch has %lld rows, as the other inputs tell", v->name,
              tensor_describe(t, text, sizeof text), (long long)r->to);
}

static Status as_program_has_it(const Val *v, const Tensor *given, Scope *scope, Value *out) {
  int64_t size[MAX_DIMS];
  Tensor *t;
  memcpy(size, given->size, sizeof size);
  size[0] = v->size[0]->value;
  TRY(tensor_meta(scope, given->dtype, given->ndim, size, &t));
  *out = val_tensor(t);
  return OK;
}

static Status note_inputs(Rebatch *r, const Exported *e, const Value *user, Scope *scope, Value *as_exported) {
  const Graph *g = e->graph;
  TRY_NEW(r->outer, arena_new_n(r->arena, int64_t *, g->nvals + 1));
  r->nvals = g->nvals;
  for (int i = 0, u = 0; i < g->ninputs; i++) {
    const Val *v = g->inputs[i];
    if (e->inputs[i].kind != IN_USER) continue;
    const Value *given = &user[u];
    as_exported[u++] = *given;
    if (!has_batch(v, r->from) || given->kind != VAL_TENSOR || given->tensor->ndim != v->ndim) continue;
    if (given->tensor->size[0] != r->to) return other_rows(r, v, given->tensor);
    TRY(note_input(r, v));
    TRY(as_program_has_it(v, given->tensor, scope, &as_exported[u - 1]));
  }
  return OK;
}

Status rebatch_find(const Exported *e, const Value *user, int n, Scope *scope, Arena *arena, Rebatch *out,
                    const Value **as_exported) {
  const Graph *g = e->graph;
  Value *own;
  *out = (Rebatch){.arena = arena, .graph = e->graph};
  *as_exported = user;
  if (n != exported_user_inputs(e)) return OK; /* told by whoever binds them */
  for (int i = 0, u = 0; i < g->ninputs && !out->from; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    const Value *given = &user[u++];
    if (given->kind != VAL_TENSOR || !has_rows(g->inputs[i]) || !given->tensor->ndim) continue;
    if (given->tensor->size[0] == g->inputs[i]->size[0]->value) return OK;
    out->from = g->inputs[i]->size[0]->value;
    out->to = given->tensor->size[0];
  }
  if (!out->from) return OK;
  TRY_NEW(own, arena_new_n(arena, Value, n + 1));
  *as_exported = own;
  return note_inputs(out, e, user, scope, own);
}

/* ---- sizes that are spelled out ---------------------------------------------------------------------------- */

/* The dimension of `out` that holds the batch of dimension `dim` of `in`, and its outer factor there: row-major
 * order stays, so the batch is where as many elements stand before it. */
static bool find_split(const Val *in, int dim, int64_t outer, const Val *out, int *at, int64_t *outer_there) {
  int64_t before = outer, seen = 1;
  for (int d = 0; d < dim; d++) before *= whole_size(in, d);
  for (int d = 0; d < out->ndim; d++) {
    int64_t size = whole_size(out, d);
    if (size <= 0) return false;
    if (seen * size > before) {
      *at = d;
      *outer_there = before / seen;
      return before % seen == 0;
    }
    seen *= size;
  }
  return false;
}

/* reshape and its like: what is put into the result is put down for rebatch_results(). */
static Status reshape_sizes(Rebatch *r, const Node *n, const Val *in, Value *sizes) {
  const int64_t *outer = outer_of(r, in);
  const Val *out = n->outs[0];
  int64_t *list, *there;
  if (!outer || sizes->kind != VAL_INTS || sizes->n != out->ndim) return OK;
  TRY_NEW(list, arena_new_n(r->arena, int64_t, sizes->n + 1));
  TRY(outer_to_be(r, out, &there));
  for (int d = 0; d < sizes->n; d++) list[d] = sizes->ints[d];
  for (int d = 0; d < in->ndim; d++) {
    int at;
    int64_t factor;
    if (outer[d] <= 0 || !find_split(in, d, outer[d], out, &at, &factor)) continue;
    if (whole_size(out, at) % (factor * r->from)) continue;
    there[at] = factor;
    if (list[at] >= 0) list[at] = now(r, list[at]);
  }
  *sizes = val_ints(list, sizes->n);
  return OK;
}

/* unflatten(x, dim, sizes): the batch is in the one before which as many elements stand. */
static Status unflatten_sizes(const Rebatch *r, const Val *in, int dim, Value *sizes) {
  const int64_t *outer = outer_of(r, in);
  int64_t *list, seen = 1;
  bool found = false;
  if (!outer || outer[dim] <= 0 || sizes->kind != VAL_INTS) return OK;
  TRY_NEW(list, arena_new_n(r->arena, int64_t, sizes->n + 1));
  for (int d = 0; d < sizes->n; d++) {
    list[d] = sizes->ints[d];
    if (found || list[d] < 0) continue;
    found = seen * list[d] > outer[dim];
    seen *= list[d];
    if (found && list[d] % r->from == 0) list[d] = now(r, list[d]);
  }
  *sizes = val_ints(list, sizes->n);
  return OK;
}

/* split(x, sizes, dim), where the parts are batches. */
static Status split_sizes(const Rebatch *r, const Val *in, int dim, Value *sizes) {
  const int64_t *outer = outer_of(r, in), *given = sizes->kind == VAL_INT ? &sizes->i : sizes->ints;
  int n = sizes->kind == VAL_INT ? 1 : sizes->n;
  int64_t *list;
  if (!outer || !outer[dim] || (sizes->kind != VAL_INT && sizes->kind != VAL_INTS)) return OK;
  TRY_NEW(list, arena_new_n(r->arena, int64_t, n + 1));
  for (int i = 0; i < n; i++) {
    if (given[i] % r->from) return fail(ERR_FAIL, "parts of %lld rows are split off", (long long)given[i]);
    list[i] = now(r, given[i]);
  }
  *sizes = sizes->kind == VAL_INT ? val_int(list[0]) : val_ints(list, n);
  return OK;
}

/* repeat(x, times): the batch stands behind the repetitions of its dimension. */
static Status repeat_rows(Rebatch *r, const Node *n, const Val *in, const Value *times) {
  const int64_t *outer = outer_of(r, in);
  int64_t *there;
  if (!outer || times->kind != VAL_INTS || times->n != n->outs[0]->ndim) return OK;
  TRY(outer_to_be(r, n->outs[0], &there));
  for (int d = 0, to = times->n - in->ndim; d < in->ndim; d++, to++)
    there[to] = outer[d] > 0 ? outer[d] * times->ints[to] : outer[d];
  return OK;
}

/* The number of rows comes first in a list of sizes. */
static Status first_size(const Rebatch *r, const Val *in, Value *sizes) {
  const int64_t *outer = outer_of(r, in);
  int64_t *list;
  if (!outer || !outer[0] || sizes->kind != VAL_INTS || !sizes->n || sizes->ints[0] % r->from) return OK;
  TRY_NEW(list, arena_new_n(r->arena, int64_t, sizes->n + 1));
  memcpy(list, sizes->ints, (size_t)sizes->n * sizeof *list);
  list[0] = now(r, list[0]);
  *sizes = val_ints(list, sizes->n);
  return OK;
}

/* expand(x, sizes): dimensions of x that hold the batch are told as they are now; new ones stay. */
static Status expand_sizes(const Rebatch *r, const Val *in, Value *sizes) {
  const int64_t *outer = outer_of(r, in);
  int64_t *list;
  if (!outer || sizes->kind != VAL_INTS || sizes->n < in->ndim) return OK;
  TRY_NEW(list, arena_new_n(r->arena, int64_t, sizes->n + 1));
  for (int d = 0; d < sizes->n; d++) {
    int from = d - (sizes->n - in->ndim);
    list[d] = sizes->ints[d];
    if (from >= 0 && outer[from] && list[d] > 0) list[d] = now(r, list[d]);
  }
  *sizes = val_ints(list, sizes->n);
  return OK;
}

/* ---- what an op does ------------------------------------------------------------------------------------- */

static const struct {
  const char *op;
  Meeting how;
} meetings[] = {
    {"aten.view.default", SPELLS_RESHAPE},
    {"aten.reshape.default", SPELLS_RESHAPE},
    {"aten._unsafe_view.default", SPELLS_RESHAPE},
    {"aten.view_copy.default", SPELLS_RESHAPE},
    {"aten.expand.default", SPELLS_EXPAND},
    {"aten.expand_copy.default", SPELLS_EXPAND},
    {"aten.unflatten.int", SPELLS_UNFLATTEN},
    {"aten.split.Tensor", SPELLS_SPLIT},
    {"aten.split_with_sizes.default", SPELLS_SPLIT},
    {"aten.affine_grid_generator.default", SPELLS_FIRST},
    {"aten.repeat.default", REPEATS},
    {"aten.copy.default", MEETS_ALL},
    {"aten.slice_scatter.default", MEETS_ALL},
    {"aten.mse_loss.default", MEETS_ALL},
    {"aten.l1_loss.default", MEETS_ALL},
    {"aten.smooth_l1_loss.default", MEETS_ALL},
    {"aten.huber_loss.default", MEETS_ALL},
    {"aten.kl_div.default", MEETS_ALL},
    {"aten.binary_cross_entropy.default", MEETS_ALL},
    {"aten.binary_cross_entropy_with_logits.default", MEETS_ALL},
    {"aten.soft_margin_loss.default", MEETS_ALL},
    {"aten.triplet_margin_loss.default", MEETS_ALL},
    {"aten.matmul.default", MEETS_MATRICES},
    {"aten.bmm.default", MEETS_MATRICES},
    {"aten.baddbmm.default", MEETS_MATRICES},
    {"aten.scaled_dot_product_attention.default", MEETS_MATRICES},
    {"aten.gather.default", MEETS_BUT_ONE},
    {"aten.scatter.src", MEETS_BUT_ONE},
    {"aten.scatter.value", MEETS_BUT_ONE},
    {"aten.scatter_add.default", MEETS_BUT_ONE},
    {"aten.scatter_reduce.two", MEETS_BUT_ONE},
    {"aten.index_add.default", MEETS_BUT_ONE},
    {"aten.index_copy.default", MEETS_BUT_ONE},
    {"aten.select_scatter.default", MEETS_AROUND},
    {"aten.cross_entropy_loss.default", MEETS_LABELS},
    {"aten.nll_loss_nd.default", MEETS_LABELS},
    {"aten.nll_loss_forward.default", MEETS_LABELS},
    {"aten.nll_loss.default", MEETS_LABELS},
    {"aten.cosine_embedding_loss.default", MEETS_LAST_LABELS},
    {"aten.lstm.input", MEETS_STATES},
    {"aten.gru.input", MEETS_STATES},
    {"aten.rnn_tanh.input", MEETS_STATES},
    {"aten.rnn_relu.input", MEETS_STATES},
    {"aten.lstm_cell.default", MEETS_CELL_STATES},
    {"aten.gru_cell.default", MEETS_CELL_STATES},
    {"aten.rnn_tanh_cell.default", MEETS_CELL_STATES},
    {"aten.rnn_relu_cell.default", MEETS_CELL_STATES},
    {"aten.cat.default", JOINS},
    {"aten.stack.default", STACKS},
    {"aten.broadcast_tensors.default", STACKS},
    {"aten.index.Tensor", PICKS},
    {"aten.index_put.default", PUTS},
    {"aten.embedding_bag.default", COUNTS_BAGS},
    {"aten.embedding_bag.padding_idx", COUNTS_BAGS},
};

static Meeting meeting_of(const Node *n) {
  for (size_t i = 0; i < sizeof meetings / sizeof *meetings; i++)
    if (node_is(n, meetings[i].op)) return meetings[i].how;
  return n->op && n->op->def->flags & OP_POINTWISE ? MEETS_ALL : MEETS_NOTHING;
}

enum { SIZES = 1 /* the argument that spells them */ };

static Status spelled(Rebatch *r, const Node *n, Value *bound, Meeting how) {
  const Val *in = tensor_arg(n, 0);
  if (!in) return OK;
  switch (how) {
    case SPELLS_RESHAPE: return n->nouts == 1 ? reshape_sizes(r, n, in, &bound[SIZES]) : OK;
    case SPELLS_EXPAND: return expand_sizes(r, in, &bound[SIZES]);
    case SPELLS_UNFLATTEN: return unflatten_sizes(r, in, dim_named(&bound[1], in->ndim), &bound[2]);
    case SPELLS_SPLIT: return split_sizes(r, in, dim_named(&bound[2], in->ndim), &bound[SIZES]);
    case SPELLS_FIRST: return first_size(r, in, &bound[SIZES]);
    default: return repeat_rows(r, n, in, &bound[SIZES]);
  }
}

Status rebatch_arguments(Rebatch *r, const Node *n, Value *bound, Call *c) {
  const Meeting how = meeting_of(n);
  Value was[MAX_PARAMS];
  if (n->graph != r->graph) return OK;
  if (how < MEETS_ALL) return spelled(r, n, bound, how);
  memcpy(was, bound, (size_t)n->nargs * sizeof *was);
  TRY(rebatch_meet(r, n, bound, c, how));
  return rebatch_note_fits(r, n, was, bound);
}

/* ---- results ------------------------------------------------------------------------------------------------ */

typedef struct {
  const Rebatch *r;
  int64_t size, outer; /* asked for; found */
} Inherit;

static void look_at_argument(void *arg, Val **ref) {
  Inherit *h = arg;
  const int64_t *outer = outer_of(h->r, *ref);
  for (int d = 0; outer && d < (*ref)->ndim; d++)
    if (outer[d] && whole_size(*ref, d) == h->size) h->outer = outer[d];
}

/* The outer factor of a dimension that is in proportion: that of an argument's dimension of the same size. */
static int64_t inherited(const Rebatch *r, const Node *n, int64_t size) {
  Inherit h = {r, size, 1};
  node_each_val((Node *)(uintptr_t)n, look_at_argument, &h);
  return h.outer;
}

static Status not_in_proportion(const Rebatch *r, const Val *v, const Tensor *t) {
  char text[128];
  return status_hint(
      fail(ERR_FILE,
           "the program is for %lld rows and cannot be run with %lld: '%s' would be %s, which is neither "
           "what it was exported with nor in proportion",
           (long long)r->from, (long long)r->to, v->name, tensor_describe(t, text, sizeof text)),
      "export it with a dynamic batch (torch.export.Dim)");
}

static Status note_result(Rebatch *r, const Node *n, const Val *v, const Tensor *t) {
  if (v->id >= r->nvals || v->type != TY_TENSOR || v->ndim != t->ndim) return OK;
  int64_t *outer = r->outer[v->id];
  for (int d = 0; d < t->ndim; d++) {
    int64_t size = whole_size(v, d);
    if (size == t->size[d] || size < 0) continue;
    if (size % r->from || size / r->from * r->to != t->size[d]) return not_in_proportion(r, v, t);
    if (!outer) TRY_NEW(outer, arena_new_n(r->arena, int64_t, t->ndim + 1));
    if (!outer[d]) outer[d] = inherited(r, n, size);
  }
  r->outer[v->id] = outer;
  return OK;
}

Status rebatch_results(Rebatch *r, const Node *n, const Value *outs, int nouts) {
  for (int i = 0; i < nouts && i < n->nouts && n->graph == r->graph; i++)
    if (outs[i].kind == VAL_TENSOR && outs[i].tensor) TRY(note_result(r, n, n->outs[i], outs[i].tensor));
  return OK;
}

/* Ranks that fail and sizes that depend on data have nothing to do with it. */
Status rebatch_explain(const Rebatch *r, Status s) {
  if (status_code(s) != ERR_FAIL && status_code(s) != ERR_USAGE) return s;
  Status other = fail(ERR_FILE, "the program is for %lld rows and cannot be run with %lld: %s", (long long)r->from,
                      (long long)r->to, status_message(s));
  status_free(s);
  return status_hint(other, "export it with a dynamic batch (torch.export.Dim)");
}
