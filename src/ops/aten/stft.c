/* stft.c -- short-time Fourier transforms, written with other ops.
 *
 *   stft    frames of n_fft every hop samples, times the window, transformed:
 *           (b, samples) -> (b, frequencies, frames)
 *   istft   transformed back, times the window, added where frames overlap, and divided by
 *           the sum of the squared windows there
 */
#include <string.h>

#include "ops/op.h"

typedef struct {
  int64_t n_fft, hop, win;
  Tensor *window; /* n_fft long; NULL: all ones */
  bool normalized;
} Frames;

/* Arguments 1 to 4 of both: n_fft, hop_length, win_length, window. */
static Status read_frames(const Call *c, Frames *f) {
  f->n_fft = in_int(c, 1);
  f->hop = in_none(c, 2) ? f->n_fft / 4 : in_int(c, 2);
  f->win = in_none(c, 3) ? f->n_fft : in_int(c, 3);
  f->window = in_tensor(c, 4);
  if (f->n_fft < 1 || f->hop < 1 || f->win < 1 || f->win > f->n_fft || f->n_fft > INT32_MAX || f->hop > INT32_MAX) {
    return op_fail(c, "n_fft %lld, hop_length %lld and win_length %lld do not go together", (long long)f->n_fft,
                   (long long)f->hop, (long long)f->win);
  }
  if (f->window && (f->window->ndim != 1 || f->window->size[0] != f->win)) {
    char a[96];
    return op_fail(c, "window %s does not have win_length %lld", tensor_describe(f->window, a, sizeof a),
                   (long long)f->win);
  }
  if (f->win == f->n_fft) return OK;
  int64_t left = (f->n_fft - f->win) / 2, pad[2] = {left, f->n_fft - f->win - left}, size[1] = {f->win};
  if (!f->window) TRY(OP(c, "aten.full.default", &f->window, val_ints(size, 1), val_float(1), val_dtype(DT_F32)));
  return OP(c, "aten.constant_pad_nd.default", &f->window, val_tensor(f->window), val_ints(pad, 2), val_float(0));
}

static Status flag(const Call *c, int arg, bool otherwise, bool *out) {
  *out = in_none(c, arg) ? otherwise : in_bool(c, arg);
  return OK;
}

/* x: (b, samples) or (samples); result in *y. */
static Status stft(const Call *c, const Frames *f, Tensor *x, bool onesided, bool return_complex, Tensor **y) {
  bool batched = x->ndim == 2;
  if (!batched && x->ndim != 1) return op_fail(c, "input has %d dimensions, must have 1 or 2", x->ndim);
  if (x->size[x->ndim - 1] < f->n_fft)
    return op_fail(c, "input of %lld samples is shorter than n_fft %lld", (long long)x->size[x->ndim - 1],
                   (long long)f->n_fft);
  bool real = dtype_kind(x->dtype) != KIND_COMPLEX;
  int64_t last[1] = {-1};
  TRY(OP(c, "aten.unfold.default", &x, val_tensor(x), val_int(-1), val_int(f->n_fft), val_int(f->hop)));
  if (f->window) TRY(OP(c, "aten.mul.Tensor", &x, val_tensor(x), val_tensor(f->window)));
  Value norm = val_int(f->normalized ? 1 : 0);
  TRY(real ? OP(c, "aten._fft_r2c.default", &x, val_tensor(x), val_ints(last, 1), norm, val_bool(onesided))
           : OP(c, "aten._fft_c2c.default", &x, val_tensor(x), val_ints(last, 1), norm, val_bool(true)));
  TRY(OP(c, "aten.transpose.int", &x, val_tensor(x), val_int(-2), val_int(-1)));
  if (!return_complex) TRY(OP(c, "aten.view_as_real.default", &x, val_tensor(x)));
  *y = x;
  return OK;
}

/* (self, n_fft, hop_length, win_length, window, normalized, onesided, return_complex, align) */
static Status stft_compose(Call *c) {
  Frames f;
  Tensor *y;
  bool onesided, as_complex;
  TRY(read_frames(c, &f));
  f.normalized = in_bool(c, 5);
  TRY(flag(c, 6, dtype_kind(in_tensor(c, 0)->dtype) != KIND_COMPLEX, &onesided));
  TRY(flag(c, 7, dtype_kind(in_tensor(c, 0)->dtype) == KIND_COMPLEX, &as_complex));
  TRY(stft(c, &f, in_tensor(c, 0), onesided, as_complex, &y));
  return out_value(c, val_tensor(y));
}

/* The same with center and pad_mode at 5 and 6. */
static Status stft_center_compose(Call *c) {
  Frames f;
  Tensor *x = in_tensor(c, 0), *y;
  bool onesided, as_complex;
  TRY(read_frames(c, &f));
  f.normalized = in_bool(c, 7);
  TRY(flag(c, 8, dtype_kind(x->dtype) != KIND_COMPLEX, &onesided));
  TRY(flag(c, 9, dtype_kind(x->dtype) == KIND_COMPLEX, &as_complex));
  if (in_bool(c, 5)) { /* padding wants a batch and a channel */
    int64_t pad[2] = {f.n_fft / 2, f.n_fft / 2};
    int lead = 3 - x->ndim;
    for (int i = 0; i < lead; i++) TRY(OP(c, "aten.unsqueeze.default", &x, val_tensor(x), val_int(0)));
    TRY(OP(c, "aten.pad.default", &x, val_tensor(x), val_ints(pad, 2), val_str(in_str(c, 6))));
    for (int i = 0; i < lead; i++) TRY(OP(c, "aten.squeeze.dim", &x, val_tensor(x), val_int(0)));
  }
  TRY(stft(c, &f, x, onesided, as_complex, &y));
  return out_value(c, val_tensor(y));
}

/* x (b, n_fft, frames) -> (b, samples): frames added up. */
static Status overlap_add(const Call *c, const Frames *f, int64_t samples, Tensor **x) {
  int64_t size[2] = {1, samples}, kernel[2] = {1, f->n_fft}, one[2] = {1, 1}, none[2] = {0, 0},
          step[2] = {1, f->hop};
  TRY(OP(c, "aten.col2im.default", x, val_tensor(*x), val_ints(size, 2), val_ints(kernel, 2), val_ints(one, 2),
         val_ints(none, 2), val_ints(step, 2)));
  TRY(OP(c, "aten.squeeze.dim", x, val_tensor(*x), val_int(1)));
  return OP(c, "aten.squeeze.dim", x, val_tensor(*x), val_int(1));
}

/* The squared windows, added up as the frames were: (1, samples). */
static Status envelope(const Call *c, const Frames *f, int64_t frames, int64_t samples, Tensor **out) {
  int64_t size[3] = {1, f->n_fft, frames}, ones[1] = {f->n_fft};
  Tensor *w = f->window;
  if (!w) TRY(OP(c, "aten.full.default", &w, val_ints(ones, 1), val_float(1), val_dtype(DT_F32)));
  TRY(OP(c, "aten.mul.Tensor", &w, val_tensor(w), val_tensor(w)));
  TRY(OP(c, "aten.unsqueeze.default", &w, val_tensor(w), val_int(-1)));
  TRY(OP(c, "aten.expand.default", &w, val_tensor(w), val_ints(size, 3)));
  TRY(overlap_add(c, f, samples, &w));
  *out = w;
  return OK;
}

/* (self, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex) */
static Status istft_compose(Call *c) {
  Frames f;
  Tensor *x = in_tensor(c, 0), *weight;
  bool onesided, center = in_bool(c, 5);
  TRY(read_frames(c, &f));
  f.normalized = in_bool(c, 6);
  if (in_bool(c, 9)) return op_fail(c, "complex signals are not supported");
  if (dtype_kind(x->dtype) != KIND_COMPLEX) TRY(OP(c, "aten.view_as_complex.default", &x, val_tensor(x)));
  bool batched = x->ndim == 3;
  if (!batched) TRY(OP(c, "aten.unsqueeze.default", &x, val_tensor(x), val_int(0)));
  if (x->ndim != 3)
    return op_fail(c, "input has %d dimensions, must have [batch,] frequencies, frames", x->ndim - 1);
  TRY(flag(c, 7, x->size[1] != f.n_fft, &onesided));
  int64_t frames = x->size[2], samples = f.n_fft + f.hop * (frames - 1), last[1] = {2},
          have = onesided ? f.n_fft / 2 + 1 : f.n_fft;
  if (x->size[1] != have || frames < 1)
    return op_fail(c, "needs %lld frequencies and some frames, has %lld and %lld", (long long)have,
                   (long long)x->size[1], (long long)frames);
  TRY(OP(c, "aten.transpose.int", &x, val_tensor(x), val_int(1), val_int(2)));
  if (!onesided)
    TRY(OP(c, "aten.slice.Tensor", &x, val_tensor(x), val_int(2), val_int(0), val_int(f.n_fft / 2 + 1),
           val_int(1)));
  TRY(OP(c, "aten._fft_c2r.default", &x, val_tensor(x), val_ints(last, 1), val_int(f.normalized ? 1 : 2),
         val_int(f.n_fft)));
  if (f.window) TRY(OP(c, "aten.mul.Tensor", &x, val_tensor(x), val_tensor(f.window)));
  TRY(OP(c, "aten.transpose.int", &x, val_tensor(x), val_int(1), val_int(2)));
  TRY(overlap_add(c, &f, samples, &x));
  TRY(envelope(c, &f, frames, samples, &weight));
  int64_t begin = center ? f.n_fft / 2 : 0, end = samples - (center ? f.n_fft / 2 : 0),
          length = in_none(c, 8) ? -1 : in_int(c, 8);
  if (length >= 0) end = length < samples - begin ? begin + length : samples;
  TRY(OP(c, "aten.slice.Tensor", &x, val_tensor(x), val_int(1), val_int(begin), val_int(end), val_int(1)));
  TRY(OP(c, "aten.slice.Tensor", &weight, val_tensor(weight), val_int(1), val_int(begin), val_int(end),
         val_int(1)));
  TRY(OP(c, "aten.div.Tensor", &x, val_tensor(x), val_tensor(weight)));
  if (length > end - begin) { /* silence beyond the last frame */
    int64_t pad[2] = {0, length - (end - begin)};
    TRY(OP(c, "aten.constant_pad_nd.default", &x, val_tensor(x), val_ints(pad, 2), val_float(0)));
  }
  if (!batched) TRY(OP(c, "aten.squeeze.dim", &x, val_tensor(x), val_int(0)));
  return out_value(c, val_tensor(x));
}

#define HEAD "(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, "
#define TAIL \
  "bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor"

const OpDef ops_stft[] = {
    {.schema = "aten::stft" HEAD TAIL, .compose = stft_compose},
    {.schema = "aten::stft.center" HEAD "bool center=True, str pad_mode=\"reflect\", " TAIL,
     .compose = stft_center_compose},
    {.schema = "aten::istft" HEAD "bool center=True, bool normalized=False, bool? onesided=None, int? length=None, "
               "bool return_complex=False) -> Tensor",
     .compose = istft_compose},
    {0},
};
