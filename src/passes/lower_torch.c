/* lower_torch.c -- ops of tessera become ops that PyTorch has.
 *
 *   before:  %y = tess.redistribute(%x, mesh="tp=2", src="P(sum)", dst="R", ...)
 *   after:   %all_reduce = _c10d_functional.all_reduce(%x, "sum", "tp")
 *            %y = _c10d_functional.wait_tensor(%all_reduce)
 *
 * The program is one rank's (option rank), its sizes are numbers.  A group of ranks is
 * called by the names of its mesh axes.  Views become reshapes: a shard need not lie in
 * memory as the whole did.  Fused ops (tess.pointwise, tess.linear_act) are not for
 * PyTorch: such a program is refused.  Groups of fully sharded parameters stay: their collectives are placed, and
 * the pass lower_groups takes them apart when nothing is moved any more.
 */
#include "passes/lower_torch.h"

#include <stdio.h>
#include <string.h>

#include "graph/resolve.h"
#include "graph/walk.h"

static const char redistribute[] = "tess.redistribute.default";

/* ---- arguments --------------------------------------------------------------------------------- */

Status lower_val(Lower *l, Val *v, Tensor **out) {
  int64_t size[MAX_DIMS];
  if (v->type != TY_TENSOR || v->ndim < 0 || v->ndim > MAX_DIMS)
    return fail(ERR_FAIL, "the sizes of %s are not known", v->name);
  for (int d = 0; d < v->ndim; d++) {
    if (!sym_is_int(v->size[d]))
      return fail(ERR_USAGE, "lower_torch needs sizes that are numbers; %s has others", v->name);
    size[d] = v->size[d]->value;
  }
  TRY(tensor_meta(l->call.scope, v->dtype, v->ndim, size, out));
  for (int d = 0; v->stride && d < v->ndim; d++) (*out)->stride[d] = v->stride[d]->value;
  TRY(tensor_reserve(*out));
  (*out)->tag = v;
  return OK;
}

Status lower_tensor(Lower *l, const Node *n, int i, Tensor **out) {
  *out = NULL;
  return n->args[i].kind == ARG_VAL ? lower_val(l, n->args[i].val, out) : OK;
}

Status lower_log(const Lower *l, StepKind kind, unsigned axes, int64_t bytes, const char *why) {
  Dist *d = l->call.ctx->dist;
  return d && step_communicates(kind) ? dist_log(d, kind, axes, bytes, why) : OK;
}

/* ---- others ---------------------------------------------------------------------------------------- */

/* sum_exp(self, top, dim) */
static Status lower_sum_exp(Lower *l, const Node *n, Tensor **out) {
  const Call *c = &l->call;
  Tensor *self, *top;
  TRY(lower_tensor(l, n, 0, &self));
  TRY(lower_tensor(l, n, 1, &top));
  TRY(OP(c, "aten.sub.Tensor", out, val_tensor(self), val_tensor(top)));
  TRY(OP(c, "aten.exp.default", out, val_tensor(*out)));
  return OP(c, "aten.sum.dim_IntList", out, val_tensor(*out), val_ints(&n->args[2].i, 1), val_bool(true));
}

static Dtype sum_dtype(Dtype d) { return d == DT_F16 || d == DT_BF16 ? DT_F32 : d; }

/* mean_part(self, dim, keepdim, count, dtype): the sum, divided by what the whole counts.
 * Halves are added and divided in f32 and rounded once, as mean() does. */
static Status lower_mean(Lower *l, const Node *n, Tensor **out) {
  const Call *c = &l->call;
  Tensor *self;
  const Arg *dims = &n->args[1], *dtype = &n->args[4];
  int64_t dim[MAX_DIMS];
  int ndim = dims->kind == ARG_LIST ? dims->n : 0;
  TRY(lower_tensor(l, n, 0, &self));
  Dtype result = dtype->kind == ARG_DTYPE ? dtype->dtype : self->dtype, wide = sum_dtype(result);
  Value as = wide == self->dtype ? val_none() : val_dtype(wide);
  for (int d = 0; d < ndim; d++) dim[d] = dims->list[d].i;
  bool keep = n->args[2].kind == ARG_BOOL && n->args[2].b;
  TRY(OP(c, "aten.sum.dim_IntList", out, val_tensor(self), ndim ? val_ints(dim, ndim) : val_none(), val_bool(keep),
         as));
  TRY(OP(c, "aten.div.Scalar", out, val_tensor(*out),
         n->args[3].kind == ARG_INT ? val_float((double)n->args[3].i) : val_float(n->args[3].f)));
  return wide == result ? OK : OP(c, "aten.to.dtype", out, val_tensor(*out), val_dtype(result));
}

/* Products of halves whose result is f32: PyTorch has none of its own on every device. */
static Status lower_wide(Lower *l, const Node *n, const char *op, Tensor **out) {
  const Call *c = &l->call;
  Value arg[5] = {{0}};
  for (int i = 0; i < n->nargs; i++) {
    Tensor *t;
    TRY(lower_tensor(l, n, i, &t));
    if (t) TRY(OP(c, "aten.to.dtype", &t, val_tensor(t), val_dtype(DT_F32)));
    arg[i] = t                              ? val_tensor(t)
             : n->args[i].kind == ARG_FLOAT ? val_float(n->args[i].f)
             : n->args[i].kind == ARG_INT   ? val_int(n->args[i].i)
                                            : val_none();
  }
  int given = n->nargs;
  while (given && arg[given - 1].kind == VAL_NONE) given--;
  return op_call(c, op, out, 1, arg, given);
}

static Status lower_linear(Lower *l, const Node *n, Tensor **out) {
  return lower_wide(l, n, "aten.linear.default", out);
}
static Status lower_addmm(Lower *l, const Node *n, Tensor **out) {
  return lower_wide(l, n, "aten.addmm.default", out);
}
static Status lower_matmul(Lower *l, const Node *n, Tensor **out) {
  return lower_wide(l, n, "aten.matmul.default", out);
}

/* narrow_scatter(self, src, dim, start, length) */
static Status lower_narrow(Lower *l, const Node *n, Tensor **out) {
  Tensor *self, *src;
  TRY(lower_tensor(l, n, 0, &self));
  TRY(lower_tensor(l, n, 1, &src));
  int64_t dim = n->args[2].i, start = n->args[3].i;
  int64_t at = dim < 0 ? dim + self->ndim : dim;
  if (start < 0) start += self->size[at];
  return OP(&l->call, "aten.slice_scatter.default", out, val_tensor(self), val_tensor(src), val_int(dim),
            val_int(start), val_int(start + n->args[4].i));
}

/* align(tensors): placed so already. */
static Status lower_align(Lower *l, const Node *n, Tensor **out) {
  const Arg *list = &n->args[0];
  for (int i = 0; i < list->n && i < n->nouts; i++) TRY(lower_val(l, list->list[i].val, &out[i]));
  return OK;
}

/* An op that is written with those of PyTorch. */
static Status lower_composed(Lower *l, const Node *n, Tensor **out) {
  Value bound[MAX_PARAMS];
  for (int i = 0; i < n->nargs; i++) {
    Tensor *t;
    TRY(lower_tensor(l, n, i, &t));
    if (t) bound[i] = val_tensor(t);
    else TRY(arg_resolve(l->call.arena, NULL, &n->args[i], &bound[i]));
  }
  Call c = l->call;
  c.op = n->op;
  c.arg = bound;
  TRY(n->op->def->compose(&c));
  for (int i = 0; i < n->nouts && i < c.nout; i++) out[i] = out_tensor(&c, i);
  return OK;
}

/* view, _unsafe_view, reshape -> reshape, no size left open: an empty shard could not tell. */
static Status open_view(Lower *l, Node *n) {
  const Val *v = n->outs[0];
  Arg *size;
  TRY_NEW(size, arena_new_n(&l->e->arena, Arg, v->ndim));
  for (int d = 0; d < v->ndim; d++) size[d] = arg_int(v->size[d]->value);
  n->args[1] = arg_list(size, v->ndim);
  n->op = op_find("aten.reshape.default");
  n->target = n->op->schema.name;
  return OK;
}

static bool is_view(const Node *n) {
  return node_is(n, "aten.view.default") || node_is(n, "aten._unsafe_view.default") ||
         node_is(n, "aten.reshape.default");
}

static const struct {
  const char *target;
  Status (*lower)(Lower *l, const Node *n, Tensor **out); /* one per result of the node; NULL: not told */
} rows[] = {
    {redistribute, lower_redistribute},
    {"tess.embedding_part.default", lower_embedding},
    {"tess.embedding_dense_backward_part.default", lower_embedding_backward},
    {"tess.embedding_bag_part.default", lower_bag},
    {"tess.embedding_bag_backward_part.default", lower_bag_backward},
    {"tess.embedding_bag_samples_backward_part.default", lower_samples_backward},
    {"tess.gather_part.default", lower_gather},
    {"tess.mean_part.default", lower_mean},
    {"tess.sum_exp.default", lower_sum_exp},
    {"tess.narrow_scatter.default", lower_narrow},
    {"tess.align.default", lower_align},
    {"tess.adam_step.default", lower_adam_step},
    {"tess.sgd_step.default", lower_sgd_step},
    {"tess.adagrad_step.default", lower_adagrad_step},
    {"tess.linear_wide.default", lower_linear},
    {"tess.addmm_wide.default", lower_addmm},
    {"tess.matmul_wide.default", lower_matmul},
    {"tess.channel_moments.default", lower_channel_moments},
    {"tess.channel_gradient_sums.default", lower_channel_gradient_sums},
    {"tess.instance_norm_functional.default", lower_composed},
    {"tess.attention_mask_backward.default", lower_mask_backward},
    {"tess.attention_dropout.default", lower_attention_dropout},
    {"tess.attention_dropout_backward.default", lower_attention_dropout_backward},
    {"aten._scaled_dot_product_flash_attention_for_cpu.default", lower_attention},
    {"aten._scaled_dot_product_flash_attention_for_cpu_backward.default", lower_attention_backward},
    {"aten._fused_rms_norm_backward.default", lower_rms_norm_backward},
};

/* What lower_groups takes apart. */
static bool is_group(const Node *n) {
  return node_is(n, "tess.gather_group.default") || node_is(n, "tess.scatter_group.default");
}

/* An op that PyTorch has, called in a way that it takes. */
static bool is_as_in_torch(const Node *n) {
  return strncmp(n->target, "tess.", 5) && !attention_is_foreign(n) && !norm_is_foreign(n);
}

/* ---- the pass ---------------------------------------------------------------------------------------- */

static void is_it(void *ctx, Val **ref) {
  void **search = ctx; /* the value, and whether it was found */
  if (*ref == search[0]) *(bool *)search[1] = true;
}

/* A result that nobody can be told. */
static Status check_unused(const Node *n, Val *v) {
  bool used = false;
  graph_each_val(n->graph, is_it, (void *[]){v, &used});
  return used ? status_hint(fail(ERR_USAGE,
                                 "%s: the program uses result '%s', which a part of the table cannot tell",
                                 n->target, v->name),
                            "shard this table by columns, or not at all")
              : OK;
}

/* The results take the names of what they stand for. */
static Status replace(Lower *l, Node *n, Tensor **result) {
  for (int i = 0; i < n->nouts; i++)
    if (!result[i]) TRY(check_unused(n, n->outs[i]));
  for (int i = 0; i < n->nouts; i++) {
    Val *old = n->outs[i], *new;
    if (!result[i]) continue;
    TRY(builder_val(&l->builder, result[i], &new));
    old->forward = new;
    if (!new->node || new->node->next != n || node_is(n, redistribute)) continue;
    const char *name = old->name;
    old->name = new->name;
    new->name = name;
  }
  node_remove(n);
  return OK;
}

typedef Status LowerFn(Lower *l, const Node *n, Tensor **out);

static LowerFn *find_row(const Node *n) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (node_is(n, rows[i].target)) return rows[i].lower;
  return NULL;
}

static Status lower_node(Lower *l, Node *n) {
  Tensor **result;
  if (is_view(n)) return open_view(l, n);
  if ((is_as_in_torch(n) && !n->shard) || is_group(n)) return OK;
  LowerFn *lower = is_as_in_torch(n) ? lower_numbered : find_row(n);
  if (lower) {
    l->builder.before = n;
    l->builder.origin = n;
    TRY_NEW(result, arena_new_n(l->call.arena, Tensor *, n->nouts));
    TRY(lower(l, n, result));
    return replace(l, n, result);
  }
  return fail(ERR_USAGE, "%s is an op of tessera that lower_torch does not take apart", n->target);
}

static Status lower_graph(Lower *l, Status (*each)(Lower *l, Node *n)) {
  Ctx *ctx = l->builder.ctx;
  Handler *outer = ctx_set_handler(ctx, LEVEL_EMIT, &l->builder.handler);
  Status s = OK;
  for (Node *n = l->e->graph->first; n && !s; n = n->next) { /* a node that was removed still knows its next one */
    node_forward(n);
    s = each(l, n);
    if (s) s = status_at_node(s, n);
  }
  ctx_set_handler(ctx, LEVEL_EMIT, outer);
  if (!s) graph_forward(l->e->graph);
  return s;
}

Status lower_program(Exported *e, const PassArgs *args, Status (*each)(Lower *l, Node *n)) {
  Lower l = {.e = e, .rank = (int)pass_int(args, "rank")};
  l.call = (Call){.ctx = args->ctx, .op = op_find(redistribute), .scope = &e->scope, .arena = &e->arena};
  TRY(dist_new(NULL, &l.dist));
  builder_init(&l.builder, args->ctx, e);
  l.builder.fold = false;
  l.builder.faithful = true;
  Status s = lower_graph(&l, each);
  builder_free(&l.builder);
  dist_free(l.dist);
  return s;
}

Status pass_lower_torch(Exported *e, const PassArgs *args) { return lower_program(e, args, lower_node); }
