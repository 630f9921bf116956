/* clip.c -- see clip.h. */
#include "optim/clip.h"

#include "dist/dist.h"
#include "dist/dtensor.h"
#include "dist/spec.h"

enum { SHARED = 1 << 10 }; /* elements of which it is worth to take a part each */

/* In a program, ranks that hold the same gradient take a part of it each: a norm is bound by reading. */
static Status share(const Formula *f, Tensor *t, Tensor **out) {
  const Mesh *m = t->spec ? t->spec->mesh : NULL;
  Placement place[MAX_AXES];
  const Spec *to;
  *out = t;
  if (!m || !m->dist || !m->dist->keep_sharded || tensor_numel(t) < SHARED) return OK;
  for (int a = 0; a < m->naxes; a++) {
    if (is_s_of(&t->spec->place[a], 0)) return OK;
    place[a] = t->spec->place[a];
  }
  int64_t rows = t->ndim ? t->size[0] : 0;
  for (int a = 0; a < m->naxes; a++) {
    if (!is_r(&place[a]) || m->axis[a] == 1 || (m->dist->apart >> a & 1) || rows < m->axis[a]) continue;
    place[a] = place_s(0);
    rows /= m->axis[a];
  }
  TRY(spec_with(t->spec, place, &to));
  return to == t->spec ? OK : dtensor_place(f->c->ctx, f->c->scope, t, to, "norm", out);
}

/* t NULL: there was an error. */
static Tensor *norm_of(Formula *f, Tensor *t, double type) {
  return F_OP(f, "aten.linalg_vector_norm.default", F_T(t), val_float(type), val_none(), val_bool(false),
              val_dtype(t && t->dtype == DT_F64 ? DT_F64 : DT_F32));
}

static const Mesh *mesh_of(const Tensor *t) { return t->spec ? t->spec->mesh : NULL; }

/* Of those on one mesh (NULL: plain): the norm of their norms. */
static Tensor *norm_on(Formula *f, const Mesh *m, Tensor *const *grad, int n, double type, Tensor **room) {
  int found = 0;
  for (int i = 0; i < n && !f->status; i++)
    if (mesh_of(grad[i]) == m) {
      Tensor *part = NULL;
      f->status = share(f, grad[i], &part);
      room[found++] = f->status ? NULL : norm_of(f, part, type);
    }
  return norm_of(f, F_OP(f, "aten.stack.default", val_tensors(room, found)), type);
}

static bool is_first_of_its_mesh(Tensor *const *grad, int i) {
  for (int k = 0; k < i; k++)
    if (mesh_of(grad[k]) == mesh_of(grad[i])) return false;
  return true;
}

/* A number that every rank knows. */
static Tensor *open_number(Formula *f, Tensor *t) {
  Tensor *whole = t;
  if (!f->status && t->spec) f->status = dtensor_full(f->c->ctx, f->c->scope, t, &whole);
  return whole;
}

Tensor *norm_of_grads(Formula *f, Tensor *const *grad, int n, double type) {
  Tensor **room = arena_new_n(f->c->arena, Tensor *, n + 1), **total = arena_new_n(f->c->arena, Tensor *, n + 1);
  int meshes = 0;
  if (!room || !total) f->status = fail_oom();
  for (int i = 0; i < n && !f->status; i++)
    if (is_first_of_its_mesh(grad, i)) total[meshes++] = norm_on(f, mesh_of(grad[i]), grad, n, type, room);
  if (f->status || meshes == 1) return f->status ? NULL : total[0];
  for (int i = 0; i < meshes; i++) {
    total[i] = open_number(f, total[i]);
    total[i] = total[i] ? f_cast(f, total[i], DT_F64) : NULL;
  }
  return f->status ? NULL
                   : f_cast(f, norm_of(f, F_OP(f, "aten.stack.default", val_tensors(total, meshes)), type), DT_F32);
}

Tensor *clip_factor(Formula *f, Tensor *norm, double most) {
  Tensor *ratio = F_OP(f, "aten.reciprocal.default", F_T(f_shift(f, norm, 1e-6)));
  return F_OP(f, "aten.clamp_max.default", F_T(f_scale(f, ratio, most)), val_float(1));
}
