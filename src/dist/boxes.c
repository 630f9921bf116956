/* boxes.c -- see boxes.h. */
#include "dist/boxes.h"

#include <string.h>

Status region_of(const Layout *l, const int *coord, Arena *arena, Region *out) {
  out->ndim = l->ndim;
  for (int d = 0; d < l->ndim; d++) TRY(layout_runs(l, coord, d, arena, &out->dim[d]));
  return OK;
}

/* A stretch, or `count` equal ones at equal distances (strided shards have thousands). */
typedef struct {
  int64_t a, b, size; /* begins in the one's and in the other's local indices */
  int64_t count, a_step, b_step;
} Stretch;

typedef struct {
  Stretch *v;
  int n;
} Stretches;

static Status common_stretches(const Runs *a, const Runs *b, Arena *arena, Stretches *out) {
  out->n = 0;
  TRY_NEW(out->v, arena_new_n(arena, Stretch, a->n + b->n + 1));
  int64_t at_a = 0, at_b = 0; /* local index of the current runs' beginnings */
  for (int i = 0, j = 0; i < a->n && j < b->n;) {
    Run x = a->run[i], y = b->run[j];
    int64_t begin = x.begin > y.begin ? x.begin : y.begin;
    int64_t x_end = x.begin + x.size, y_end = y.begin + y.size, end = x_end < y_end ? x_end : y_end;
    if (begin < end)
      out->v[out->n++] = (Stretch){at_a + begin - x.begin, at_b + begin - y.begin, end - begin, 1, 0, 0};
    if (x_end <= y_end) i++, at_a += x.size;
    if (y_end <= x_end) j++, at_b += y.size;
  }
  return OK;
}

/* Neighbours of equal size and distance become one. */
static void merge_regular(Stretches *s) {
  int n = 0;
  for (int i = 0; i < s->n;) {
    Stretch first = s->v[i];
    int j = i + 1;
    if (j < s->n && s->v[j].size == first.size) {
      int64_t a_step = s->v[j].a - first.a, b_step = s->v[j].b - first.b;
      while (j < s->n && s->v[j].size == first.size && s->v[j].a - s->v[j - 1].a == a_step &&
             s->v[j].b - s->v[j - 1].b == b_step)
        j++;
      first.count = j - i;
      first.a_step = a_step;
      first.b_step = b_step;
    }
    s->v[n++] = first;
    i = j;
  }
  s->n = n;
}

static Status add_box(BoxList *list, Arena *arena, const Box *box) {
  if (!list) return OK;
  TRY_NEW(list->v, arena_more(arena, list->v, list->n, &list->cap));
  list->v[list->n++] = *box;
  return OK;
}

static void box_dim(Box *box, int64_t size, int64_t stride) {
  box->size[box->ndim] = size;
  box->stride[box->ndim++] = stride;
}

Status boxes_shared(const Region *have, const int64_t *have_stride, const Region *want, const int64_t *want_stride,
                    int peer, Arena *arena, BoxList *from, BoxList *into) {
  Stretches per_dim[MAX_DIMS];
  int pick[MAX_DIMS] = {0}, spare = MAX_DIMS - have->ndim; /* dimensions left for repeats */
  for (int d = 0; d < have->ndim; d++) {
    TRY(common_stretches(&have->dim[d], &want->dim[d], arena, &per_dim[d]));
    if (!per_dim[d].n) return OK;
    if (spare > 0 && per_dim[d].n > 1) merge_regular(&per_dim[d]), spare--;
  }
  for (;;) {
    Box a = {.peer = peer}, b = {.peer = peer};
    for (int d = 0; d < have->ndim; d++) {
      const Stretch *s = &per_dim[d].v[pick[d]];
      a.offset += s->a * have_stride[d];
      b.offset += s->b * want_stride[d];
      if (s->count > 1) {
        box_dim(&a, s->count, s->a_step * have_stride[d]);
        box_dim(&b, s->count, s->b_step * want_stride[d]);
      }
      box_dim(&a, s->size, have_stride[d]);
      box_dim(&b, s->size, want_stride[d]);
    }
    TRY(add_box(from, arena, &a));
    TRY(add_box(into, arena, &b));
    int d = have->ndim - 1;
    while (d >= 0 && ++pick[d] == per_dim[d].n) pick[d--] = 0;
    if (d < 0) return OK;
  }
}
