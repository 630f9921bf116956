/* gradients.c -- api.jsonl: gradients of DTensors that are made, moved and opened, on real ranks.
 *
 * Values are those of the files' README: a P(sum) value sits whole on coordinate 0 of its axis, zeros elsewhere. */
#include "gradients.h"

#include <string.h>

#include "grad/tape.h"

static Status read_places(Rank *r, const char *key, int ndim, Placement *out, bool *given) {
  int n;
  yyjson_val *list = field(r->c, key);
  *given = list && !yyjson_is_null(list);
  if (*given && !read_placements(list, ndim, out, &n)) return fail(ERR_FAIL, "a placement does not parse");
  return OK;
}

/* first, first + 1 ... placed so. */
static Status counted(Rank *r, Mesh *m, int ndim, const int64_t *size, const Placement *place, double first,
                      Tensor **out) {
  Tensor *whole, *t, *local;
  Placement cut[MAX_AXES];
  bool zero = false;
  TRY(rank_arange(r, DT_F32, ndim, size, 1, first, &whole));
  for (int a = 0; a < m->naxes; a++) {
    cut[a] = is_p(&place[a]) ? place_r() : place[a];
    zero |= is_p(&place[a]) && m->coord[a] > 0;
  }
  TRY(dtensor_distribute(&r->ctx, &r->scope, whole, m, cut, -1, &t));
  TRY(dtensor_to_local(&r->ctx, &r->scope, t, &local));
  if (zero) TRY(OP(&r->call, "aten.zeros_like.default", &local, val_tensor(local)));
  FromLocal how = {.shape = t->size, .stride = t->stride, .ndim = ndim};
  return dtensor_from_local(&r->ctx, &r->scope, local, m, place, &how, out);
}

static Status same_gradient(Rank *r, const Tensor *g, const char *places) {
  Placement p[MAX_AXES];
  bool given;
  char text[200];
  Tensor *local = (Tensor *)(uintptr_t)g, *told;
  if (g->spec) {
    TRY(read_places(r, places, g->ndim, p, &given));
    if (given && !placements_equal(p, g->spec->place, g->spec->mesh->naxes))
      return fail(ERR_DIFF, "the gradient is placed %s",
                  placements_print(g->spec->place, g->spec->mesh->naxes, text, sizeof text));
    TRY(dtensor_to_local(&r->ctx, &r->scope, g, &local));
  }
  TRY(rank_read(r, DT_F32, yyjson_arr_get(field(r->c, "grad"), (size_t)r->me), &told));
  return rank_same(r, local, told, "the gradient");
}

/* A split into parts may be any: what it sums up to counts. */
static Status same_sum(Rank *r, Tensor *g, const Spec *spec) {
  Tensor *told, *sum[2];
  FromLocal how = {.shape = spec->shape, .stride = spec->stride, .ndim = spec->ndim};
  TRY(rank_read(r, DT_F32, yyjson_arr_get(field(r->c, "grad"), (size_t)r->me), &told));
  for (int i = 0; i < 2; i++) {
    TRY(dtensor_from_local(&r->ctx, &r->scope, i ? told : g, spec->mesh, spec->place, &how, &sum[i]));
    TRY(dtensor_full(&r->ctx, &r->scope, sum[i], &sum[i]));
  }
  return rank_same(r, sum[0], sum[1], "the gradient");
}

static Status fewer(Rank *r, const char *key, int since) {
  int told = told_total(field(r->c, key)), ours = r->collectives - since;
  if (ours < told) r->better = true;
  return ours <= told ? OK : fail(ERR_DIFF, "%d collectives, PyTorch has %d (%s)", ours, told, key);
}

/* ---- the cases ------------------------------------------------------------------------------------------ */

typedef struct {
  Mesh *mesh;
  int ndim;
  int64_t size[MAX_DIMS];
  Tape tape;
  bool misfit;         /* the gradient's shard is of another size than x: PyTorch adds it up where it broadcasts */
  const Spec *partial; /* the gradient is this rank's part of sums; NULL: it is not */
} Work;

typedef Status Forward(Rank *r, Work *w, Tensor **x, Tensor **y, Tensor **cotangent);

static Status redistributed(Rank *r, Work *w, Tensor **x, Tensor **y, Tensor **cotangent) {
  Placement src[MAX_AXES], dst[MAX_AXES], in[MAX_AXES];
  bool given;
  TRY(read_places(r, "src", w->ndim, src, &given));
  TRY(read_places(r, "dst", w->ndim, dst, &given));
  TRY(read_places(r, "grad_in", w->ndim, in, &given));
  TRY(counted(r, w->mesh, w->ndim, w->size, src, 0, x));
  TRY(counted(r, w->mesh, w->ndim, w->size, in, 1, cotangent));
  TRY(tape_require(&w->tape, &r->scope, *x, x));
  int before = r->collectives;
  TRY(dtensor_redistribute(&r->ctx, &r->scope, *x, NULL, dst, DT_NONE, y));
  return fewer(r, "comm_fwd", before);
}

static Status made(Rank *r, Work *w, Tensor **x, Tensor **y, Tensor **cotangent) {
  Placement place[MAX_AXES], in[MAX_AXES], grad[MAX_AXES];
  bool given;
  Tensor *t;
  TRY(read_places(r, "placements", w->ndim, place, &given));
  TRY(read_places(r, "grad_in", w->ndim, in, &given));
  TRY(read_places(r, "grad_placements", w->ndim, grad, &given));
  TRY(counted(r, w->mesh, w->ndim, w->size, place, 0, &t));
  TRY(counted(r, w->mesh, w->ndim, w->size, in, 1, cotangent));
  TRY(dtensor_to_local(&r->ctx, &r->scope, t, x));
  TRY(tape_require(&w->tape, &r->scope, *x, x));
  FromLocal how = {.shape = t->size, .stride = t->stride, .ndim = w->ndim, .grad = given ? grad : NULL};
  TRY(dtensor_from_local(&r->ctx, &r->scope, *x, w->mesh, place, &how, y));
  if (!given) return OK;
  const Spec *comes;
  TRY(spec_with((*y)->spec, grad, &comes));
  w->misfit = false;
  for (int a = 0; a < w->mesh->naxes; a++)
    w->misfit |= w->mesh->axis[a] > 1 && (is_s(&grad[a]) || is_s(&place[a])) &&
                 !placements_equal(&grad[a], &place[a], 1);
  if (comes->partial) w->partial = comes;
  return OK;
}

static Status opened_as(Rank *r, Work *w, bool full, Tensor **x, Tensor **y, Tensor **cotangent) {
  Placement place[MAX_AXES], grad[MAX_AXES];
  bool given;
  TRY(read_places(r, "placements", w->ndim, place, &given));
  TRY(read_places(r, "grad_placements", w->ndim, grad, &given));
  TRY(counted(r, w->mesh, w->ndim, w->size, place, 0, x));
  TRY(tape_require(&w->tape, &r->scope, *x, x));
  int before = r->collectives;
  TRY((full ? dtensor_full_with : dtensor_to_local_with)(&r->ctx, &r->scope, *x, given ? grad : NULL, y));
  if (full) TRY(fewer(r, "comm_fwd", before));
  return rank_arange(r, DT_F32, (*y)->ndim, (*y)->size, 0, r->me + 1, cotangent);
}
static Status opened(Rank *r, Work *w, Tensor **x, Tensor **y, Tensor **cotangent) {
  return opened_as(r, w, false, x, y, cotangent);
}
static Status gathered(Rank *r, Work *w, Tensor **x, Tensor **y, Tensor **cotangent) {
  return opened_as(r, w, true, x, y, cotangent);
}

static Status check(Rank *r, Forward *forward, const char *places, const char *comm) {
  Work w = {0};
  Tensor *x, *y, *cotangent, *g = NULL;
  TRY(rank_mesh(r, &w.mesh));
  w.ndim = read_ints(field(r->c, "shape"), w.size, MAX_DIMS);
  tape_begin(&w.tape, &r->ctx);
  Status s = forward(r, &w, &x, &y, &cotangent);
  int before = r->collectives;
  if (!s) s = tape_gradients(&w.tape, &y, &cotangent, 1, &x, 1, &(Backward){0}, &r->scope, &g);
  tape_end(&w.tape);
  if (w.misfit || field(r->c, "error")) {
    if (w.misfit && !s) return fail(ERR_DIFF, "grad_placements that do not fit are not refused");
    r->refused = s && field(r->c, "error");
    r->better = !r->refused;
    status_free(s);
    return OK;
  }
  TRY(s);
  TRY(fewer(r, comm, before));
  return w.partial ? same_sum(r, g, w.partial) : same_gradient(r, g, places);
}

Status check_grad_redistribute(Rank *r) { return check(r, redistributed, "grad_placements", "comm_bwd"); }
Status check_grad_from_local(Rank *r) { return check(r, made, "", "comm"); }
Status check_grad_to_local(Rank *r) { return check(r, opened, "x_grad_placements", "comm"); }
Status check_grad_full(Rank *r) { return check(r, gathered, "x_grad_placements", "comm_bwd"); }
