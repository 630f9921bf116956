/* conv_grad.c -- gradients of a convolution's weights and bias; see conv.h.
 *
 * A transposed convolution is the transpose of one with the same weights, so the gradient
 * of its weights is that of the plain one with input and output in each other's place.
 */
#include "kernels/conv_layout.h"
#include "kernels/copy.h"

static Status grad_weights(Kern *k, const ConvGeometry *g, View x, View dy, View dw, bool *done) {
  Operand in = operand_of(x), out = operand_of(dy), w = operand_of(dw);
  OnednnDesc ours[3] = {0}, desc[3] = {0}; /* in, w, out */
  OnednnPrim *prim = NULL, *in_reorder = NULL, *w_reorder = NULL, *out_reorder = NULL;
  int64_t right[3];
  size_t in_bytes, w_bytes, out_bytes;
  void *xs, *ws, *ys, *result;
  Status s;
  for (int any = 0; any < 2; any++) {
    OnednnDesc *d = any ? desc : ours;
    TRY_GOTO(end, operand_desc(&in, any, &d[0]));
    TRY_GOTO(end, weights_desc(g, &w, any, &d[1]));
    TRY_GOTO(end, operand_desc(&out, any, &d[2]));
  }
  right_padding(g, x.size, dw.size, dy.size, right);
  OnednnConv c = {.kind = ONEDNN_CONV_WEIGHTS,
                  .src = &desc[0],
                  .weights = &desc[1],
                  .dst = &desc[2],
                  .nd = g->nd,
                  .stride = g->stride,
                  .dilation = g->dilation,
                  .pad_left = g->pad,
                  .pad_right = right};
  TRY_GOTO(end, onednn_conv_new(&c, &prim));
  *done = prim != NULL;
  if (!prim) goto end;
  TRY_GOTO(end, reorder_for(prim, DNNL_ARG_SRC, &ours[0], false, &in_bytes, &in_reorder));
  TRY_GOTO(end, reorder_for(prim, DNNL_ARG_DIFF_WEIGHTS, &ours[1], true, &w_bytes, &w_reorder));
  TRY_GOTO(end, reorder_for(prim, DNNL_ARG_DIFF_DST, &ours[2], false, &out_bytes, &out_reorder));
  TRY_GOTO(end, operand_read(k, &in, &xs));
  TRY_GOTO(end, operand_read(k, &out, &ys));
  TRY_GOTO(end, operand_room(k, &w, &ws));
  TRY_GOTO(end, reorder_run(k, in_reorder, in_bytes, &xs));
  TRY_GOTO(end, reorder_run(k, out_reorder, out_bytes, &ys));
  result = w_reorder ? kern_scratch(k, w_bytes) : ws;
  if (!result) TRY_GOTO(end, fail_oom());
  TRY_GOTO(end, onednn_prim_run(k, prim, (void *[]){xs, result, ys}));
  if (w_reorder) TRY_GOTO(end, onednn_prim_run(k, w_reorder, (void *[]){result, ws}));
  operand_store(k, &w, ws);
end:
  onednn_prim_free(prim);
  onednn_prim_free(in_reorder);
  onednn_prim_free(w_reorder);
  onednn_prim_free(out_reorder);
  for (int i = 0; i < 3; i++) {
    onednn_desc_free(&ours[i]);
    onednn_desc_free(&desc[i]);
  }
  return s;
}

Status conv_grad_weights(Kern *k, const ConvGeometry *g, View x, View dy, View dw) {
  bool float32 = x.dtype == DT_F32 || x.dtype == DT_F16 || x.dtype == DT_BF16, done = false;
  if (!float32 || view_numel(x) == 0 || view_numel(dy) == 0 || view_numel(dw) == 0)
    return conv_naive_grad_weights(k, g, x, dy, dw);
  ConvGeometry plain = *g;
  plain.transposed = false;
  size_t mark = kern_mark(k);
  Status s = g->transposed ? grad_weights(k, &plain, dy, x, dw, &done) : grad_weights(k, &plain, x, dy, dw, &done);
  kern_release(k, mark);
  return s || done ? s : conv_naive_grad_weights(k, g, x, dy, dw);
}

/* ---- bias ------------------------------------------------------------------- */

typedef struct {
  View dy;
  double *db;
} BiasJob;

/* db in double, for channels [begin, end). */
#define DEFINE_SUM(T)                                                                                           \
  static void sum_##T(void *arg, int64_t begin, int64_t end, int worker) {                                      \
    (void)worker;                                                                                               \
    const BiasJob *j = arg;                                                                                     \
    const View dy = j->dy;                                                                                      \
    int64_t rows[3] = {1, 1, 1}, step[3] = {0, 0, 0}; /* spatial, right-aligned */                              \
    for (int i = 2; i < dy.ndim; i++) rows[i + 3 - dy.ndim] = dy.size[i], step[i + 3 - dy.ndim] = dy.stride[i]; \
    for (int64_t c = begin; c < end; c++) {                                                                     \
      double sum = 0;                                                                                           \
      for (int64_t n = 0; n < dy.size[0]; n++) {                                                                \
        for (int64_t a = 0; a < rows[0]; a++) {                                                                 \
          for (int64_t b = 0; b < rows[1]; b++) {                                                               \
            const T *p = (const T *)dy.data + n * dy.stride[0] + c * dy.stride[1] + a * step[0] + b * step[1];  \
            for (int64_t i = 0; i < rows[2]; i++) sum += (double)p[i * step[2]];                                \
          }                                                                                                     \
        }                                                                                                       \
      }                                                                                                         \
      j->db[c] = sum;                                                                                           \
    }                                                                                                           \
  }
DEFINE_SUM(float)
DEFINE_SUM(double)

Status conv_grad_bias(Kern *k, View dy, View db) {
  const int64_t one = 1, channels = dy.size[1];
  size_t mark = kern_mark(k);
  Operand o = operand_of(dy);
  BiasJob job = {.dy = dy};
  Status s = OK;
  if (dy.dtype != DT_F32 && dy.dtype != DT_F64) {
    void *data;
    TRY_GOTO(end, operand_read(k, &o, &data));
    job.dy = operand_view(&o, data);
  }
  job.db = kern_scratch(k, (size_t)(channels + 1) * sizeof *job.db);
  if (!job.db) TRY_GOTO(end, fail_oom());
  parallel_for(k->threads, channels, 1, job.dy.dtype == DT_F64 ? sum_double : sum_float, &job);
  kernel_copy(k, db, (View){job.db, &channels, &one, 1, DT_F64});
end:
  kern_release(k, mark);
  return s;
}
