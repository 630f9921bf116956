/* autocast.c -- see autocast.h.  The two lists are PyTorch's for the CPU backend, less ops
 * that no program of ours can contain. */
#include "passes/autocast.h"

#include <string.h>

/* f32 tensors go to the region's dtype. */
static const char *const lower[] = {
    "aten.linear.",
    "aten.matmul.",
    "aten.mm.",
    "aten.bmm.",
    "aten.addmm.",
    "aten.baddbmm.",
    "aten.addbmm.",
    "aten.conv1d.",
    "aten.conv2d.",
    "aten.conv3d.",
    "aten.conv_transpose1d.",
    "aten.conv_transpose2d.",
    "aten.conv_transpose3d.",
    "aten._convolution.",
    "aten.convolution.",
    "aten.scaled_dot_product_attention.",
    "aten._addmm_activation.",
    "aten.linalg_vecdot.",
};

/* Half tensors go to f32. */
static const char *const single[] = {
    "aten.avg_pool3d.",
    "aten.binary_cross_entropy",
    "aten.grid_sampler",
    "aten.polar.",
    "aten.prod.",
    "aten.quantile.",
    "aten.nanquantile.",
    "aten.stft.",
    "aten.cdist.",
    "aten.trace.",
    "aten.view_as_complex.",
    "aten.mse_loss.",
    "aten.cosine_embedding_loss.",
    "aten.nll_loss",
    "aten.hinge_embedding_loss.",
    "aten.poisson_nll_loss.",
    "aten.smooth_l1_loss.",
    "aten.cross_entropy_loss.",
    "aten.l1_loss.",
    "aten.huber_loss.",
    "aten.margin_ranking_loss.",
    "aten.soft_margin_loss.",
    "aten.triplet_margin_loss.",
    "aten.multi_margin_loss.",
    "aten.kl_div.",
    "aten.fft_",
    "aten.linalg_",
    "aten.max_pool3d.",
    "aten.adaptive_avg_pool3d.",
    "aten.adaptive_max_pool3d.",
    "aten.replication_pad",
    "aten.reflection_pad",
    "aten.prelu.",
    "aten.fake_quantize_per_tensor_affine.",
};

static bool is_in(const Node *n, const char *const *list, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!strncmp(n->target, list[i], strlen(list[i]))) return true;
  }
  return false;
}

typedef struct {
  Graph *g;
  Node *n;
  Dtype to;
  bool from_half; /* else from f32 */
  bool any;       /* the dtypes that are noted are those of a program without casts: from any float */
  Status status;
} Cast;

static void cast_ref(void *ctx, Val **ref) {
  Cast *c = ctx;
  Val *v = *ref, *out;
  bool half = v->dtype == DT_BF16 || v->dtype == DT_F16;
  if (c->status || v->type != TY_TENSOR || (v->dtype == c->to && !c->any)) return;
  if (!(c->from_half && !c->any ? half : half || v->dtype == DT_F32)) return;
  Val like = *v;
  like.dtype = c->to;
  Arg args[] = {arg_val(v), arg_dtype(c->to)};
  c->status = graph_emit_value(c->g, c->n, c->n, "aten.to.dtype", args, 2, &like, &out);
  if (!c->status) *ref = out;
}

static Status cast_arguments(Graph *region, Dtype to, bool any) {
  for (Node *n = region->first; n; n = n->next) {
    bool low = is_in(n, lower, sizeof lower / sizeof *lower),
         high = is_in(n, single, sizeof single / sizeof *single);
    if (!low && !high) continue;
    Cast c = {region, n, low ? to : DT_F32, !low, any, OK};
    node_each_val(n, cast_ref, &c);
    TRY(c.status);
  }
  return OK;
}

/* Checks of dtypes are about the program without casts, as it was traced. */
static void forget_checks(Graph *g) {
  for (Node *n = g->first; n; n = n->next) {
    bool checks = !strcmp(n->target, "aten._assert_tensor_metadata.default");
    for (int i = 0; i < n->nargs; i++) {
      if (checks && n->args[i].kind == ARG_DTYPE) n->args[i] = (Arg){.kind = ARG_NONE};
      if (n->args[i].kind == ARG_GRAPH) forget_checks(n->args[i].graph);
    }
  }
}

Status autocast_program(Exported *e, Dtype to) {
  forget_checks(e->graph);
  e->graph->dtypes_differ = true;
  return cast_arguments(e->graph, to, true);
}

Status autocast_make_explicit(const Node *wrapper, Graph *region) {
  if (wrapper->nargs < 5 || wrapper->args[0].kind != ARG_STR || strcmp(wrapper->args[0].str, "cpu")) return OK;
  bool enabled = wrapper->args[2].kind == ARG_BOOL && wrapper->args[2].b;
  if (!enabled || wrapper->args[1].kind != ARG_DTYPE) return OK;
  return cast_arguments(region, wrapper->args[1].dtype, false);
}
