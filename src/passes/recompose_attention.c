/* recompose_attention.c -- softmax(q k^T * scale + mask) v as scaled_dot_product_attention.
 *
 * Shapes: q (b,h,t,d), k and v (b,h,s,d), mask broadcasts to (b,h,t,s).  The products are
 * bmm on (b*h, ...) between views, or matmul on 4-D tensors.
 *
 * A row that is masked out as a whole is nan after softmax and 0 in the fused op, so a
 * mask is accepted only behind PyTorch's own guard (where(all -inf, 0, softmax)), or if
 * it is a constant in which every row has an element above -inf, or if it is made of
 * finite numbers: where(cond, 0, finfo.min), as many models have it.
 */
#include <math.h>
#include <string.h>

#include "passes/match.h"
#include "passes/recompose.h"

typedef struct {
  Val *q, *k, *v, *mask;
  double scale;
  bool guarded;
} Attention;

/* The 4-D value behind a 3-D operand whose leading dimension is a fold of its first two. */
static Val *unfolded(Val *x) {
  if (x->ndim == 4) return x;
  Val *y = x;
  while (x->ndim == 3 && y->node) {
    Val *before = match_before_views(y);
    for (Val *s = y; s != before; s = s->node->args[0].val) {
      Val *from = s->node->args[0].val;
      if (from->ndim == 4 && same_last_sizes(from, x, 2)) return from;
    }
    return NULL;
  }
  return NULL;
}

/* The 4-D operand of a product, without views that change nothing. */
static Val *operand(Val *x) {
  Val *four = unfolded(x), *before = four ? match_before_views(four) : NULL;
  return before && same_sizes(before, four) ? before : four;
}

static Val *strip_scale(Val *v, double *scale) {
  double f;
  Val *x;
  while (match_scaled(v, &x, &f)) *scale *= f, v = x;
  return v;
}

/* Operands of a product of scores or of the output. */
static bool match_bmm(const Val *v, Val **a, Val **b) {
  const Node *n = v->node;
  if (!n || !(node_is(n, "aten.bmm.default") || (node_is(n, "aten.matmul.default") && v->ndim == 4))) return false;
  *a = n->args[0].val;
  *b = n->args[1].val;
  return true;
}

/* q * s, (k * s)^T or k^T * s */
static bool match_scores(Val *scores, Attention *m) {
  Val *a, *b;
  scores = match_before_views(strip_scale(scores, &m->scale));
  if (!match_bmm(scores, &a, &b)) return false;
  a = operand(a);
  b = operand(b);
  if (!a || !b) return false;
  m->q = strip_scale(a, &m->scale);
  Val *kt = strip_scale(b, &m->scale);
  Val *k = match_transposed(kt);
  if (!k) return false;
  m->k = strip_scale(k, &m->scale);
  return m->q->ndim == 4 && m->k->ndim == 4;
}

/* where(logical_not(any(logical_not(eq(scores, -inf)), -1, keepdim)), 0, softmax(scores)) */
static Val *strip_guard(Val *v, bool *guarded) {
  Node *where = match_val_node(v, "aten.where.self");
  if (!where) return v;
  double zero;
  bool is_zero = match_number(&where->args[1], &zero) && zero == 0;
  Node *full = match_node(&where->args[1], "aten.full_like.default");
  if (full) is_zero = match_number(&full->args[1], &zero) && zero == 0;
  const Val *fill = where->args[1].kind == ARG_VAL ? where->args[1].val : NULL;
  if (fill && fill->constant && fill->tensor && tensor_data(fill->tensor) && !is_zero) return v;
  Node *none = match_node(&where->args[0], "aten.logical_not.default");
  Node *any = none ? match_node(&none->args[0], "aten.any.dim") : NULL;
  Node *not_inf = any ? match_node(&any->args[0], "aten.logical_not.default") : NULL;
  Node *eq = not_inf ? match_node(&not_inf->args[0], "aten.eq.Scalar") : NULL;
  double inf;
  if (!is_zero || !eq || !match_number(&eq->args[1], &inf) || inf != -INFINITY ||
      !match_is_last_dim(&any->args[1], any->args[0].val, 0))
    return v;
  Val *softmax = where->args[2].val;
  if (!softmax->node || softmax->node->args[0].kind != ARG_VAL || softmax->node->args[0].val != eq->args[0].val)
    return v;
  *guarded = true;
  return softmax;
}

static bool every_row_attends(const Val *mask) {
  const Tensor *t = mask->constant ? mask->tensor : NULL;
  if (!t || t->dtype != DT_F32 || !tensor_data(t) || t->ndim < 1) return false;
  int64_t at[MAX_DIMS] = {0}, cols = t->size[t->ndim - 1];
  if (!tensor_numel(t)) return cols > 0; /* a rank without heads */
  for (;;) {
    int64_t offset = 0;
    bool open = false;
    for (int d = 0; d + 1 < t->ndim; d++) offset += at[d] * t->stride[d];
    for (int64_t j = 0; j < cols && !open; j++)
      open = ((const float *)tensor_data(t))[offset + j * t->stride[t->ndim - 1]] > -INFINITY;
    if (!open) return false;
    int d = t->ndim - 2;
    while (d >= 0 && ++at[d] == t->size[d]) at[d--] = 0;
    if (d < 0) return true;
  }
}

static bool match_softmax(Val *p, Attention *m) {
  p = strip_guard(p, &m->guarded);
  Node *n = p->node;
  if (!n || p->mark > (m->guarded ? 2 : 1)) return false; /* somebody else wants the probabilities */
  bool safe = node_is(n, "aten._safe_softmax.default");
  if (!safe && !node_is(n, "aten._softmax.default") && !node_is(n, "aten.softmax.int")) return false;
  m->guarded |= safe;
  if (!match_is_last_dim(&n->args[1], p, 0) || n->args[0].val->dtype != p->dtype) return false;
  Val *scores = n->args[0].val;
  Node *add = match_val_node(scores, "aten.add.Tensor");
  if (add && !match_plain_alpha(add)) return false;
  if (!add) return match_scores(scores, m);
  for (int side = 0; side < 2; side++) {
    Attention trial = *m;
    if (add->args[side].kind != ARG_VAL || add->args[1 - side].kind != ARG_VAL) return false;
    if (!same_sizes(add->args[side].val, scores) || !match_scores(add->args[side].val, &trial)) continue;
    trial.mask = add->args[1 - side].val;
    *m = trial;
    return m->guarded || every_row_attends(m->mask) || match_is_finite(m->mask);
  }
  return false;
}

/* p: the probabilities, which must be those of (b,h,t,s) and not of another grouping of them. */
static bool sizes_agree(const Attention *m, const Val *p) {
  const Val *q = m->q, *k = m->k, *v = m->v;
  if (q->ndim != 4 || k->ndim != 4 || v->ndim != 4) return false;
  if (p->size[0] != q->size[0] || p->size[1] != q->size[1] || p->size[2] != q->size[2] || p->size[3] != k->size[2])
    return false;
  for (int d = 0; d < 2; d++) {
    if (q->size[d] != k->size[d] || k->size[d] != v->size[d]) return false;
  }
  bool dtypes = q->dtype == k->dtype && k->dtype == v->dtype && (q->dtype == DT_F32 || q->dtype == DT_F64) &&
                (!m->mask || dtype_is_float(m->mask->dtype));
  return dtypes && q->size[3] == k->size[3] && k->size[2] == v->size[2] && (!m->mask || m->mask->ndim <= 4);
}

/* (b,kv,s,d) -> unsqueeze (b,kv,1,s,d) -> expand (b,kv,r,s,d) -> reshape (b,kv*r,s,d) */
static Val *unrepeated(Val *x) {
  Val *v = x;
  for (; v->node && v->ndim != 5; v = v->node->args[0].val) {
    if (!node_is(v->node, "aten.view.default") && !node_is(v->node, "aten.reshape.default") &&
        !node_is(v->node, "aten.clone.default"))
      return NULL;
    if (v->node->args[0].kind != ARG_VAL) return NULL;
  }
  Node *expand = match_val_node(match_val_node(v, "aten.clone.default") ? v->node->args[0].val : v,
                                "aten.expand.default");
  Node *unsqueeze = expand ? match_node(&expand->args[0], "aten.unsqueeze.default") : NULL;
  int64_t dim;
  if (!unsqueeze || !match_int(&unsqueeze->args[1], 0, &dim) || (dim != 2 && dim != -3)) return NULL;
  Val *source = unsqueeze->args[0].val;
  const Val *big = expand->outs[0];
  if (source->ndim != 4 || x->ndim != 4 || source->size[0] != big->size[0] || source->size[1] != big->size[1])
    return NULL;
  return same_last_sizes(source, x, 2) && same_last_sizes(source, big, 2) ? source : NULL;
}

/* Keys and values (arguments 1 and 2) that are repeated for groups of query heads: let the kernel repeat them. */
static bool share_heads(Arg *args) {
  Val *k = unrepeated(args[1].val), *v = unrepeated(args[2].val);
  if (!k || !v || k->size[1] != v->size[1]) return false;
  args[1] = arg_val(k);
  args[2] = arg_val(v);
  args[7] = arg_bool(true);
  return true;
}

/* The last node of the pattern has a 4-D result: matmul, or a view of bmm. */
Status recompose_attention(Graph *g, Node *n, Val **out) {
  Val *root = n->outs[0], *p, *v;
  if (root->ndim != 4) return OK;
  bool view = node_is(n, "aten.view.default") || node_is(n, "aten.reshape.default") ||
              node_is(n, "aten._unsafe_view.default");
  Val *product = view ? n->args[0].val : root;
  if (view && product->ndim != 3) return OK;
  if (!match_bmm(product, &p, &v)) return OK;
  if (view && !same_last_sizes(root, product, 2)) return OK;
  Attention m = {.scale = 1};
  Val *probabilities = match_before_views(p);
  if (probabilities->ndim != 4 || !match_softmax(probabilities, &m)) return OK;
  m.v = operand(v);
  if (!m.v || !sizes_agree(&m, probabilities) || root->size[0] != m.q->size[0] || root->size[1] != m.q->size[1])
    return OK;
  if (m.mask && m.mask->dtype != m.q->dtype) { /* a half mask was added to f32 scores */
    Arg cast[] = {arg_val(m.mask), arg_dtype(m.q->dtype)};
    Val wide = *m.mask;
    wide.dtype = m.q->dtype;
    TRY(graph_emit_value(g, n, n, "aten.to.dtype", cast, 2, &wide, &m.mask));
  }
  Arg args[] = {arg_val(m.q), arg_val(m.k),    arg_val(m.v),       arg_val(m.mask),
                arg_float(0), arg_bool(false), arg_float(m.scale), {.kind = ARG_UNSET}};
  share_heads(args);
  Val like = *root;
  like.stride = NULL;
  return graph_emit_value(g, n, n, "aten.scaled_dot_product_attention.default", args, 8, &like, out);
}

/* Attention as models write it. */
Status recompose_repeated_heads(Graph *g, Node *n, Val **out) {
  if (!node_is(n, "aten.scaled_dot_product_attention.default")) return OK;
  if (n->args[7].kind == ARG_BOOL && n->args[7].b) return OK;
  Arg args[8];
  memcpy(args, n->args, sizeof args);
  return share_heads(args) ? graph_emit_value(g, n, n, n->target, args, 8, n->outs[0], out) : OK;
}
