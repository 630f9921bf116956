/* track.c -- see track.h. */
#include "plan/track.h"

#include <string.h>

/* ---- reshapes ------------------------------------------------------------------------------------ */

/* Entries of the dimensions [from, to) of in, as one dimension of that many elements.
 * false: not one dimension with repetitions around it. */
static bool flatten(const Track *t, const Tensor *in, int from, int to, TrackDim *out) {
  int64_t before = 1, repeat = 1;
  bool found = false;
  *out = (TrackDim){0};
  for (int d = from; d < to; d++) {
    const TrackDim *l = NULL;
    for (int i = 0; i < t->n; i++)
      if (t->dims[i].dim == d) l = &t->dims[i];
    if (in->size[d] == 1) continue;
    if (!l && !found) before *= in->size[d];
    else if (!l) repeat *= in->size[d];
    else if (!found) {
      *out = *l;
      found = true;
    } else { /* the next inner one of the same features */
      if (repeat != 1 || out->repeat != 1 || l->before != 1 || out->inner != l->inner * (l->size / l->repeat))
        return false;
      out->size *= l->size;
      out->inner = l->inner;
      out->repeat = l->repeat;
    }
  }
  if (!found || (out->before > 1 && before > 1)) return false;
  out->size *= before * repeat;
  out->before *= before;
  out->repeat *= repeat;
  return true;
}

/* The features as the dimensions [from, to) of out; appends to t. */
static bool unflatten(TrackDim l, const Tensor *out, int from, int to, Track *t) {
  int64_t before = l.before, repeat = l.repeat, n = dim_pieces(&l), inner = l.inner * n;
  int last = to;
  int64_t tail[MAX_DIMS] = {0};
  for (int d = to - 1; d >= from && repeat > 1; d--) { /* repetitions are the innermost */
    int64_t size = out->size[d];
    if (repeat % size == 0) repeat /= size, last = d;
    else if (size % repeat == 0) {
      tail[d] = repeat;
      repeat = 1;
    } else return false;
  }
  if (repeat > 1) return false;
  for (int d = from; d < last; d++) {
    int64_t size = out->size[d], again = 1;
    if (size == 1) continue;
    if (before > 1 && before % size == 0) {
      before /= size;
      continue;
    }
    if (before > 1) {
      if (size % before) return false;
      again = before;
      before = 1;
    }
    int64_t copies = tail[d] ? tail[d] : 1, count = size / again / copies;
    if (!count || inner % count || t->n == MAX_DIMS) return false;
    inner /= count;
    t->dims[t->n++] = (TrackDim){d, size, inner, copies, again};
  }
  return true;
}

static bool holds(const Track *t, int from, int to) {
  for (int i = 0; i < t->n; i++)
    if (t->dims[i].dim >= from && t->dims[i].dim < to) return true;
  return false;
}

/* Groups of dimensions with equal products on both sides. */
bool track_reshape(const Track *t, const Tensor *in, const Tensor *out, Track *to) {
  int i = 0, o = 0;
  while (i < in->ndim || o < out->ndim) {
    int i0 = i, o0 = o;
    int64_t a = 1, b = 1;
    if (i < in->ndim) a = in->size[i++];
    if (o < out->ndim) b = out->size[o++];
    while (a != b) {
      if (a < b && i < in->ndim) a *= in->size[i++];
      else if (b < a && o < out->ndim) b *= out->size[o++];
      else return false;
    }
    while (i < in->ndim && in->size[i] == 1) i++;
    while (o < out->ndim && out->size[o] == 1) o++;
    TrackDim l;
    if (!holds(t, i0, i)) continue;
    if (!flatten(t, in, i0, i, &l) || !unflatten(l, out, o0, o, to)) return false;
  }
  return to->n > 0;
}

/* ---- cuts ------------------------------------------------------------------------------------------ */

/* Entries behind a dimension that vanished move up. */
static void drop_dim(Track *t, int dim) {
  for (int i = 0; i < t->n; i++) t->dims[i].dim -= t->dims[i].dim > dim;
}

bool track_cut(const Track *t, const Tensor *in, const Tensor *out, int dim, int64_t start, Track *to, Span *part) {
  int at = 0;
  bool vanishes = out->ndim < in->ndim;
  int64_t kept = vanishes ? 1 : out->size[dim];
  *part = (Span){0};
  to->base = t->base;
  to->single = t->single;
  while (at < t->n && t->dims[at].dim != dim) at++;
  memcpy(to->dims, t->dims, sizeof to->dims);
  to->n = t->n;
  if (at == t->n || kept == in->size[dim]) {
    if (vanishes) drop_dim(to, dim);
    return true;
  }
  if (t->single && at == 0) { /* a part of the one piece: still it */
    to->dims[0].size = kept;
    if (vanishes) to->n = 0;
    return to->n > 0;
  }
  if (at > 0) { /* inside of what stays whole: from there on nothing is known */
    to->n = at;
    if (vanishes) drop_dim(to, dim);
    return true;
  }
  TrackDim *l = &to->dims[0];
  if (l->before != 1 || l->repeat != 1) return false;
  to->base += start * l->inner;
  *part = (Span){to->base, to->base + kept * l->inner, 0};
  l->size = kept;
  if (kept == 1 && !vanishes) to->single = l->inner;
  if (vanishes || (kept == 1 && to->n > 1)) {
    memmove(&to->dims[0], &to->dims[1], (size_t)(to->n - 1) * sizeof *l);
    to->n--;
  }
  if (vanishes) drop_dim(to, dim);
  return to->n > 0;
}
