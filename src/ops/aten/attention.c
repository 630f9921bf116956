/* attention.c -- scaled dot product attention and the forms that ATen's dispatcher makes of it.
 *
 *   scaled_dot_product_attention                    as models write it
 *   _scaled_dot_product_flash_attention_for_cpu     also gives the logsumexp, [B,H,T] laid out as [B,T,H]
 *   _scaled_dot_product_attention_math              also gives the weights: made of other ops
 *
 * A four-dimensional result is laid out as (B, T, H, E), as ATen's flash attention does: the
 * transpose and reshape that follow in every model are views.
 */
#include "ops/aten/attention.h"

#include <math.h>
#include <string.h>

#include "shard/layout.h"

static Status misfit(const Call *c, const char *why) {
  char q[128], k[128], v[128];
  return op_fail(c, "query %s, key %s, value %s: %s", tensor_describe(in_tensor(c, 0), q, sizeof q),
                 tensor_describe(in_tensor(c, 1), k, sizeof k), tensor_describe(in_tensor(c, 2), v, sizeof v), why);
}

/* AttnSizes of batch dimension d of a tensor, counted from the heads. */
static int64_t batch_size(const Tensor *t, int d) { return d < t->ndim - 2 ? t->size[t->ndim - 3 - d] : 1; }

static Status sizes_of(const Call *c, bool gqa, AttnSizes *z) {
  const Tensor *q = in_tensor(c, 0), *k = in_tensor(c, 1), *v = in_tensor(c, 2);
  if (!q || !k || !v) return op_fail(c, "query, key and value must be tensors");
  if (q->ndim < 2 || k->ndim < 2 || v->ndim < 2) return misfit(c, "they need two dimensions or more");
  if (q->dtype != k->dtype || q->dtype != v->dtype) return misfit(c, "their dtypes differ");
  if (!dtype_is_float(q->dtype)) return misfit(c, "they must be floating point");
  int nq = q->ndim, nk = k->ndim, nv = v->ndim;
  *z = (AttnSizes){.t = q->size[nq - 2], .s = k->size[nk - 2], .d = q->size[nq - 1], .e = v->size[nv - 1]};
  if (k->size[nk - 1] != z->d) return misfit(c, "query and key differ in their last dimension");
  if (v->size[nv - 2] != z->s) return misfit(c, "key and value differ in length");
  z->nbatch = (nq > nk ? (nq > nv ? nq : nv) : nk > nv ? nk : nv) - 2;
  for (int i = 0; i < z->nbatch; i++) {
    int64_t a = batch_size(q, i), b = batch_size(k, i), n = batch_size(v, i), out = a == 1 ? (b == 1 ? n : b) : a;
    bool grouped = i == 0 && gqa && b == n && b > 0 && a % b == 0;
    bool fits = (a == 1 || a == out) && (b == 1 || b == out) && (n == 1 || n == out);
    if (!fits && !grouped)
      return misfit(c, i == 0 && gqa ? "the heads of the query are no multiple of those of key and value"
                                     : "their batch dimensions differ");
    z->batch[z->nbatch - 1 - i] = out;
  }
  return OK;
}

Status attn_check_mask(const Call *c, int arg, const AttnSizes *z) {
  const Tensor *m = in_tensor(c, arg), *q = in_tensor(c, 0);
  char text[128];
  if (!m) return OK;
  int64_t want[MAX_DIMS + 2];
  memcpy(want, z->batch, sizeof z->batch);
  want[z->nbatch] = z->t;
  want[z->nbatch + 1] = z->s;
  bool fits = m->ndim <= z->nbatch + 2;
  for (int d = 0; fits && d < m->ndim; d++) {
    int64_t n = m->size[m->ndim - 1 - d];
    fits = n == 1 || n == want[z->nbatch + 1 - d];
  }
  if (!fits) {
    char shape[128];
    return op_fail(c, "the mask %s does not broadcast to the scores %s", tensor_describe(m, text, sizeof text),
                   shape_describe(z->nbatch + 2, want, shape, sizeof shape));
  }
  if (m->dtype != DT_BOOL && m->dtype != DT_F32 && m->dtype != q->dtype) {
    return op_fail(c, "the mask %s must be bool or have the query's dtype", tensor_describe(m, text, sizeof text));
  }
  return OK;
}

static Status out_attention(Call *c, const AttnSizes *z) {
  int64_t size[MAX_DIMS], stride[MAX_DIMS];
  int n = z->nbatch + 2;
  if (n > MAX_DIMS) return misfit(c, "too many dimensions");
  memcpy(size, z->batch, (size_t)z->nbatch * sizeof *size);
  size[n - 2] = z->t;
  size[n - 1] = z->e;
  if (n != 4) return out_new(c, in_tensor(c, 0)->dtype, n, size);
  const int64_t order[4] = {z->t * size[1] * z->e, z->e, size[1] * z->e, 1};
  memcpy(stride, order, sizeof order);
  return out_strided(c, in_tensor(c, 0)->dtype, 4, size, stride);
}

/* ---- running ---------------------------------------------------------------------------- */

/* outer: position in the batch dimensions before the last two. */
static const View *four_of(const Tensor *t, const AttnSizes *z, const int64_t *outer, bool own_heads, AttnView *f) {
  int extra = z->nbatch > 2 ? z->nbatch - 2 : 0;
  int64_t at = 0;
  for (int i = 0; i < z->nbatch + 2; i++) { /* i counts from the last dimension */
    int d = t->ndim - 1 - i, to = 3 - i;
    int64_t n = d < 0 ? 1 : t->size[d], stride = n == 1 ? 0 : t->stride[d];
    if (i < 4) {
      bool own = i < 2 || (i == 2 && own_heads);
      f->size[to] = own ? n : z->batch[z->nbatch + 1 - i];
      f->stride[to] = own && n == 1 ? 1 : stride;
    } else {
      at += outer[extra - 1 - (i - 4)] * stride;
    }
  }
  for (int i = z->nbatch + 2; i < 4; i++) f->size[3 - i] = 1, f->stride[3 - i] = 0;
  char *data = tensor_data(t); /* NULL: an empty shard */
  f->v = (View){data ? data + at * (int64_t)dtype_size(t->dtype) : NULL, f->size, f->stride, 4, t->dtype};
  return &f->v;
}

const View *attn_mask_view(const Tensor *t, const AttnSizes *z, const int64_t *outer, AttnView *f) {
  if (!t) return NULL;
  four_of(t, z, outer, true, f);
  for (int i = 0; i < 4; i++) {
    int d = t->ndim - 1 - i;
    f->size[3 - i] = d < 0 ? 1 : t->size[d];
  }
  return &f->v;
}

double attn_scale(const Call *c, int arg, int64_t d) {
  return in_none(c, arg) ? 1 / sqrt((double)d) : in_float(c, arg);
}

Status attn_number_weights(const Call *c, const AttnSizes *z, Arena *arena, int64_t **number) {
  const ShardOf *shard = c->shard;
  int n = z->nbatch + 1;
  int64_t step = z->s, held;
  for (int d = n - 1; d >= 0; d--) {
    int64_t size = d < z->nbatch ? z->batch[d] : z->t;
    if (shard) TRY(layout_indices(&shard->layout, shard->coord, d, arena, &number[d], &held));
    else {
      TRY_NEW(number[d], arena_new_n(arena, int64_t, size + 1));
      for (int64_t i = 0; i < size; i++) number[d][i] = i;
    }
    for (int64_t i = 0; i < size; i++) number[d][i] *= step;
    step *= shard ? shard->layout.shape[d] : size;
  }
  return OK;
}

/* One call of the kernel at position `outer`: the numbers of batch, heads and queries. */
static Status number_four(const AttnSizes *z, const int64_t *outer, int64_t *const *number, Arena *arena,
                          Attention *a) {
  static const int64_t none = 0;
  int extra = z->nbatch > 2 ? z->nbatch - 2 : 0;
  int64_t first = 0, *rows;
  for (int d = 0; d < extra; d++) first += number[d][outer[d]];
  TRY_NEW(rows, arena_new_n(arena, int64_t, z->t + 1));
  for (int64_t i = 0; i < z->t; i++) rows[i] = first + number[z->nbatch][i];
  a->number[0] = z->nbatch > 1 ? number[z->nbatch - 2] : &none;
  a->number[1] = z->nbatch > 0 ? number[z->nbatch - 1] : &none;
  a->number[2] = rows;
  return OK;
}

static Status attend(Call *c, const AttnSizes *z, const int64_t *outer, int64_t *const *number, Attention *a) {
  Arena arena = {0};
  Status s = a->dropout > 0 ? number_four(z, outer, number, &arena, a) : OK;
  if (!s) s = attention(&c->ctx->kern, a);
  arena_free(&arena);
  return s;
}

static Status run_parts(Call *c, const AttnSizes *sizes, int64_t *const *number, const Tensor *mask,
                        const Tensor *logsumexp, bool causal, double scale, double dropout) {
  AttnSizes z = *sizes;
  AttnView q, k, v, out, m;
  int extra = z.nbatch > 2 ? z.nbatch - 2 : 0;
  int64_t count = 1, outer[MAX_DIMS] = {0};
  for (int d = 0; d < extra; d++) count *= z.batch[d];
  View l = logsumexp ? tensor_view(logsumexp) : (View){0};
  for (int64_t i = 0; i < count; i++) {
    int64_t rest = i;
    for (int d = extra - 1; d >= 0; rest /= z.batch[d], d--) outer[d] = rest % z.batch[d];
    Attention a = {.q = *four_of(in_tensor(c, 0), &z, outer, false, &q),
                   .k = *four_of(in_tensor(c, 1), &z, outer, true, &k),
                   .v = *four_of(in_tensor(c, 2), &z, outer, true, &v),
                   .out = *four_of(out_tensor(c, 0), &z, outer, false, &out),
                   .mask = attn_mask_view(mask, &z, outer, &m),
                   .logsumexp = logsumexp ? &l : NULL,
                   .scale = scale,
                   .causal = causal,
                   .dropout = dropout,
                   .seed = c->ctx->seed,
                   .offset = c->ctx->offset};
    if (k.size[1] != v.size[1]) { /* one of them has a single head for all */
      if (k.size[1] == 1) k.size[1] = v.size[1], k.stride[1] = 0;
      else v.size[1] = k.size[1], v.stride[1] = 0;
    }
    TRY(attend(c, &z, outer, number, &a));
  }
  return OK;
}

static Status run_attention(Call *c, bool gqa, const Tensor *mask, const Tensor *logsumexp, bool causal,
                            double scale, double dropout) {
  AttnSizes z;
  Arena arena = {0};
  int64_t *number[MAX_DIMS + 1];
  TRY(sizes_of(c, gqa, &z));
  Status s = dropout > 0 ? attn_number_weights(c, &z, &arena, number) : OK;
  if (!s) s = run_parts(c, &z, number, mask, logsumexp, causal, scale, dropout);
  if (!s && dropout > 0) c->ctx->offset += call_draws(c);
  arena_free(&arena);
  return s;
}

/* scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa) */
static Status sdpa_infer(Call *c) {
  AttnSizes z;
  TRY(sizes_of(c, in_bool(c, 7), &z));
  TRY(attn_check_mask(c, 3, &z));
  if (!(in_float(c, 4) >= 0 && in_float(c, 4) <= 1))
    return op_fail(c, "dropout_p is %g, must be between 0 and 1", in_float(c, 4));
  if (in_tensor(c, 3) && in_bool(c, 5)) return op_fail(c, "there is a mask and is_causal as well");
  return out_attention(c, &z);
}

static Status sdpa_run(Call *c) {
  const Tensor *q = in_tensor(c, 0);
  return run_attention(c, in_bool(c, 7), in_tensor(c, 3), NULL, in_bool(c, 5),
                       attn_scale(c, 6, q->size[q->ndim - 1]), in_float(c, 4));
}

/* Both products; causal masks halve the work of square scores. */
static double attention_flops(const Call *c) {
  const Tensor *q = in_tensor(c, 0), *k = in_tensor(c, 1), *out = c->nout ? out_tensor(c, 0) : NULL;
  if (!out || q->ndim < 2 || k->ndim < 2) return 0;
  double s = (double)k->size[k->ndim - 2], e = (double)out->size[out->ndim - 1], d = (double)q->size[q->ndim - 1];
  return e > 0 ? 2 * (double)tensor_numel(out) / e * s * (d + e) : 0;
}

/* ---- flash attention, with its logsumexp -------------------------------------------------- */

/* (query, key, value, dropout_p, is_causal, *, attn_mask, scale) */
static Status with_logsumexp_infer(Call *c) {
  AttnSizes z;
  TRY(sizes_of(c, true, &z));
  for (int i = 0; i < 3; i++)
    if (in_tensor(c, i)->ndim != 4) return misfit(c, "they need four dimensions");
  TRY(attn_check_mask(c, 5, &z));
  TRY(out_attention(c, &z));
  int64_t size[3] = {z.batch[0], z.batch[1], z.t}, stride[3] = {z.t * z.batch[1], 1, z.batch[1]};
  return out_strided(c, in_tensor(c, 0)->dtype == DT_F64 ? DT_F64 : DT_F32, 3, size, stride);
}

static Status flash_infer(Call *c) {
  if (in_float(c, 3) != 0) return op_fail(c, "dropout_p is %g; only 0 is supported", in_float(c, 3));
  return with_logsumexp_infer(c);
}

static Status flash_run(Call *c) {
  return run_attention(c, true, in_tensor(c, 5), out_tensor(c, 1), in_bool(c, 4),
                       attn_scale(c, 6, in_tensor(c, 0)->size[3]), 0);
}

/* The same with dropout, whose random numbers a third result tells: seed and offset. */
static Status dropout_infer(Call *c) {
  const int64_t two = 2;
  if (!(in_float(c, 3) >= 0 && in_float(c, 3) <= 1))
    return op_fail(c, "dropout_p is %g, must be between 0 and 1", in_float(c, 3));
  TRY(with_logsumexp_infer(c));
  return out_new(c, DT_I64, 1, &two);
}

static Status dropout_run(Call *c) {
  const int64_t state[2] = {(int64_t)c->ctx->seed, (int64_t)c->ctx->offset};
  memcpy(tensor_data(out_tensor(c, 2)), state, sizeof state);
  return run_attention(c, true, in_tensor(c, 5), out_tensor(c, 1), in_bool(c, 4),
                       attn_scale(c, 6, in_tensor(c, 0)->size[3]), in_float(c, 3));
}

static int64_t draws_of(const Call *c, double p) {
  const Tensor *k = in_tensor(c, 1), *out = out_tensor(c, 0);
  if (p <= 0) return 0;
  int64_t weights = k->size[k->ndim - 2];
  for (int d = 0; d < out->ndim - 1; d++) weights *= out->size[d];
  return (weights + 3) / 4;
}

static int64_t sdpa_draws(const Call *c) { return draws_of(c, in_float(c, 4)); }
static int64_t dropout_draws(const Call *c) { return draws_of(c, in_float(c, 3)); }

/* ---- with the weights as a result ------------------------------------------------------------ */

/* The scores of keys that query i may not see (j > i) become -inf. */
static Status hide_later_keys(Call *c, Tensor **scores) {
  int n = (*scores)->ndim;
  int64_t size[2] = {(*scores)->size[n - 2], (*scores)->size[n - 1]};
  Tensor *ones, *seen, *hidden;
  TRY(OP(c, "aten.new_full.default", &ones, val_tensor(*scores), val_ints(size, 2), val_bool(true),
         val_dtype(DT_BOOL)));
  TRY(OP(c, "aten.tril.default", &seen, val_tensor(ones)));
  TRY(OP(c, "aten.logical_not.default", &hidden, val_tensor(seen)));
  return OP(c, "aten.masked_fill.Scalar", scores, val_tensor(*scores), val_tensor(hidden),
            val_float(-(double)INFINITY));
}

/* Each key head once per query head that belongs to it. */
static Status repeat_heads(Call *c, const Tensor *q, Tensor **x) {
  if (q->ndim < 3 || (*x)->ndim < 3 || (*x)->size[(*x)->ndim - 3] < 1) return OK;
  int64_t times = q->size[q->ndim - 3] / (*x)->size[(*x)->ndim - 3];
  return times > 1 ? OP(c, "aten.repeat_interleave.self_int", x, val_tensor(*x), val_int(times), val_int(-3)) : OK;
}

/* (query, key, value, attn_mask, dropout_p, is_causal, dropout_mask, *, scale, enable_gqa) */
static Status math_compose(Call *c) {
  Tensor *q = in_tensor(c, 0), *k = in_tensor(c, 1), *v = in_tensor(c, 2), *kt, *scores, *weights, *kept, *out;
  AttnSizes z = {0};
  TRY(sizes_of(c, in_bool(c, 8), &z));
  if (in_tensor(c, 6)) return op_fail(c, "a given dropout mask is not supported");
  if (in_bool(c, 8)) {
    TRY(repeat_heads(c, q, &k));
    TRY(repeat_heads(c, q, &v));
  }
  Dtype dtype = q->dtype; /* half precision is computed in f32 and rounded at the end */
  if (dtype == DT_F16 || dtype == DT_BF16) {
    TRY(OP(c, "aten.to.dtype", &q, val_tensor(q), val_dtype(DT_F32)));
    TRY(OP(c, "aten.to.dtype", &k, val_tensor(k), val_dtype(DT_F32)));
    TRY(OP(c, "aten.to.dtype", &v, val_tensor(v), val_dtype(DT_F32)));
  }
  double root = sqrt(fabs(attn_scale(c, 7, z.d))); /* half of it on each side, as ATen: no overflow in f16 */
  double sign = attn_scale(c, 7, z.d) < 0 ? -1 : 1;
  TRY(OP(c, "aten.mul.Tensor", &q, val_tensor(q), val_float(root * sign)));
  TRY(OP(c, "aten.transpose.int", &kt, val_tensor(k), val_int(-2), val_int(-1)));
  TRY(OP(c, "aten.mul.Tensor", &kt, val_tensor(kt), val_float(root)));
  TRY(OP(c, "aten.matmul.default", &scores, val_tensor(q), val_tensor(kt)));
  if (in_bool(c, 5)) TRY(hide_later_keys(c, &scores));
  if (in_tensor(c, 3)) TRY(OP(c, "aten.add.Tensor", &scores, val_tensor(scores), c->arg[3]));
  TRY(OP(c, "aten._safe_softmax.default", &weights, val_tensor(scores), val_int(-1)));
  kept = weights;
  if (in_float(c, 4) > 0) TRY(OP(c, "aten.dropout.default", &kept, val_tensor(weights), c->arg[4], val_bool(true)));
  TRY(OP(c, "aten.matmul.default", &out, val_tensor(kept), val_tensor(v)));
  TRY(OP(c, "aten.to.dtype", &out, val_tensor(out), val_dtype(dtype)));
  TRY(OP(c, "aten.to.dtype", &kept, val_tensor(kept), val_dtype(dtype)));
  TRY(out_value(c, val_tensor(out)));
  return out_value(c, val_tensor(kept));
}

static Status math_infer(Call *c) {
  AttnSizes z;
  TRY(sizes_of(c, in_bool(c, 8), &z));
  TRY(out_attention(c, &z));
  int64_t size[MAX_DIMS];
  memcpy(size, z.batch, sizeof size);
  size[z.nbatch] = z.t;
  size[z.nbatch + 1] = z.s;
  return out_new(c, in_tensor(c, 0)->dtype, z.nbatch + 2, size);
}

/* ---- sharding ----------------------------------------------------------------------------------
 * The batch, then heads.  If several query heads share one of key and value, queries are cut
 * where those are.  Columns of the value are columns of the result.  Arguments: the query (and what is like it) is
 * input `q`, key and value follow it, and a mask, if there is one, is the last input. */

Placement attn_place_mask(const Tensor *m, int d, int ndim, int64_t unit) {
  int at = d - (ndim - m->ndim);
  Placement p = place_s(at);
  if (at < 0 || m->size[at] == 1) return place_r();
  p.unit = unit;
  return p;
}

/* Seed and offset, which all ranks have alike. */
static bool is_random_state(const Tensor *t) { return t->ndim == 1 && t->dtype == DT_I64; }

/* A shard of `shared` heads as one of `times` as many that go with them. */
static Placement times_as_many(Placement p, int64_t times) {
  p.unit *= times;
  for (int s = 0; s < p.nsegments; s++) p.segment[s] *= times;
  return p;
}

/* Kinds of shards that key and value have, and queries that go with them. */
static Status place_kinds(Rules *r, int q, int d, int64_t times, bool mask) {
  Placement p[12];
  for (int a = 0; a < r->naxes; a++) {
    const Placement *kind = rule_have(r, q + 1, a);
    if (!is_s_of(kind, d) || kind->turn || is_plain_s(kind)) continue;
    for (int i = 0; i < r->nout + r->nin; i++) {
      const Tensor *t = i < r->nout ? r->out[i] : r->in[i - r->nout]; /* of key and value, or of their gradients? */
      if (is_random_state(t)) p[i] = place_r();
      else p[i] = t->size[d] == r->in[q + 1]->size[d] ? *kind : times_as_many(*kind, times);
    }
    if (mask) {
      Placement *m = &p[r->nout + r->nin - 1];
      *m = attn_place_mask(r->in[r->nin - 1], d, r->in[q]->ndim, 1);
      if (is_s(m)) {
        int dim = m->dim;
        *m = p[0];
        m->dim = dim;
      }
    }
    TRY(rule_axis_exact(r, p));
  }
  return OK;
}

static Status place_dim(Rules *r, int q, int d, bool mask) {
  const Tensor *query = r->in[q], *key = r->in[q + 1];
  int64_t heads = query->size[d], shared = key->size[d], unit = shared ? heads / shared : 1, ranks = 1;
  Placement p[12];
  for (int a = 0; a < r->naxes; a++) ranks *= r->axis[a];
  if (key->ndim != query->ndim || r->in[q + 2]->size[d] != shared || !shared || heads % shared ||
      r->nout + r->nin > 12)
    return OK;
  bool plain = unit == 1 || shared % ranks == 0;
  for (int i = 0; i < r->nout + r->nin; i++) {
    const Tensor *t = i < r->nout ? r->out[i] : r->in[i - r->nout];
    bool last = mask && i == r->nout + r->nin - 1;
    p[i] = is_random_state(t) ? place_r() : place_s(d);
    if (is_s(&p[i]) && !plain && t->size[d] == heads) p[i].unit = unit;
    if (last) p[i] = attn_place_mask(t, d, query->ndim, plain ? 1 : unit);
  }
  TRY(rule_axis_exact(r, p));
  return unit == 1 ? rule_axis(r, p) : place_kinds(r, q, d, unit, mask);
}

/* One key and value for all queries along d: they are whole, however queries are cut. */
static Status place_shared(Rules *r, int q, int d, bool mask) {
  const Tensor *query = r->in[q];
  Placement p[12];
  if (r->in[q + 1]->ndim != query->ndim || r->in[q + 1]->size[d] != 1 || r->in[q + 2]->size[d] != 1 ||
      query->size[d] < 2 || r->nout + r->nin > 12)
    return OK;
  for (int i = 0; i < r->nout; i++) p[i] = is_random_state(r->out[i]) ? place_r() : place_s(d);
  for (int i = 0; i < r->nin; i++) p[r->nout + i] = i == q + 1 || i == q + 2 ? place_r() : place_s(d);
  if (mask) p[r->nout + r->nin - 1] = attn_place_mask(r->in[r->nin - 1], d, query->ndim, 1);
  return rule_axis(r, p);
}

Status attn_place_heads(Rules *r, int q, bool mask) {
  r->whole_last = true;
  for (int d = 0; d < r->in[q]->ndim - 2; d++) TRY(place_dim(r, q, d, mask));
  return OK;
}

/* Query heads are cut and the fewer heads of key and value are not: each query head gets a
 * key head of its own, of which a rank then takes those it needs. */
static Status heads_in_parts(Call *c, const Sharded *how, bool *done) {
  const Tensor *q = in_tensor(c, 0), *k = in_tensor(c, 1);
  Value arg[8];
  bool heads[MAX_DIMS] = {false};
  *done = false;
  if (!in_bool(c, 7) || q->ndim < 3 || k->ndim != q->ndim) return OK;
  int d = q->ndim - 3;
  heads[d] = true;
  if (k->size[d] < 2 || q->size[d] <= k->size[d] || q->size[d] % k->size[d]) return OK;
  if (!sharded_along(how, c, 0, heads) || sharded_along(how, c, 1, heads)) return OK;
  memcpy(arg, c->arg, sizeof arg);
  for (int i = 1; i < 3; i++) {
    Tensor *each;
    TRY(OP(c, "aten.repeat_interleave.self_int", &each, c->arg[i], val_int(q->size[d] / k->size[d]), val_int(d)));
    arg[i] = val_tensor(each);
  }
  arg[7] = val_bool(false);
  Call apart = *c;
  apart.arg = arg;
  TRY(op_dispatch(&apart));
  *done = true;
  return out_value(c, apart.out[0]);
}

/* Rows of the query (the last but one dimension) meet all keys, unless where they stand
 * decides which. */
static Status place_rows_of(Rules *r, bool mask) {
  const Schema *s = &r->call->op->schema;
  int ndim = r->in[0]->ndim;
  Placement p[8];
  if (in_bool(r->call, schema_find(s, "is_causal"))) return OK;
  for (int i = 0; i < r->nout; i++) p[i] = is_random_state(r->out[i]) ? place_r() : place_s(ndim - 2);
  for (int i = 0; i < r->nin; i++) p[r->nout + i] = i ? place_r() : place_s(ndim - 2);
  if (mask) p[r->nout + r->nin - 1] = attn_place_mask(r->in[r->nin - 1], ndim - 2, ndim, 1);
  return rule_axis(r, p);
}

static Status place_attention(Rules *r) {
  const Schema *s = &r->call->op->schema;
  bool mask = in_tensor(r->call, schema_find(s, "attn_mask")) != NULL;
  Placement p[8];
  int composed = r->call->op->def->compose != NULL;
  if (composed && in_float(r->call, schema_find(s, "dropout_p")) > 0)
    return OK; /* its random numbers are drawn by parts */
  TRY(attn_place_heads(r, 0, mask));
  for (int d = 0; d < r->in[0]->ndim - 2; d++) TRY(place_shared(r, 0, d, mask));
  TRY(place_rows_of(r, mask));
  for (int i = 0; i < r->nout + r->nin; i++) p[i] = place_r();
  p[0] = place_s(r->out[0]->ndim - 1);
  p[r->nout + 2] = place_s(r->in[2]->ndim - 1);
  return rule_axis(r, p);
}

const OpDef ops_attention[] = {
    {.schema = "aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
               "float dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
     .infer = sdpa_infer,
     .run = sdpa_run,
     .shard.place = place_attention,
     .shard.compose_sharded = heads_in_parts,
     .flags = OP_RANDOM | OP_SHARES | OP_NUMBERED,
     .draws = sdpa_draws,
     .flops = attention_flops},
    {.schema = "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float "
               "dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor "
               "output, Tensor logsumexp)",
     .infer = flash_infer,
     .run = flash_run,
     .flags = OP_SHARES,
     .shard.place = place_attention,
     .flops = attention_flops},
    {.schema =
         "tess::attention_dropout(Tensor query, Tensor key, Tensor value, float dropout_p, bool is_causal=False, "
         "*, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor random)",
     .infer = dropout_infer,
     .run = dropout_run,
     .flags = OP_RANDOM | OP_SHARES | OP_NUMBERED,
     .shard.place = place_attention,
     .draws = dropout_draws,
     .flops = attention_flops},
    {.schema = "aten::_scaled_dot_product_attention_math(Tensor query, Tensor key, Tensor value, Tensor? "
               "attn_mask=None, float dropout_p=0., bool is_causal=False, Tensor? dropout_mask=None, *, float? "
               "scale=None, bool enable_gqa=False) -> (Tensor, Tensor)",
     .compose = math_compose,
     .infer = math_infer,
     .flags = OP_SHARES,
     .shard.place = place_attention,
     .shard.compose_unmoved = math_compose},
    {0}};
