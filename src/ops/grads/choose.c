/* choose.c -- gradients of choices: where, masks, bounds, the larger and the smaller of two.  The cotangent goes
 * to what was chosen.
 *
 * At ties maximum and minimum give half to each side, fmax and fmin all to the first; a bound passes it. */
#include "ops/vjp.h"

/* g where the mask holds, else 0; and the other way round. */
static Tensor *kept(Vjp *v, Tensor *mask, Tensor *g) {
  return F_OP(&v->f, "aten.where.ScalarOther", F_T(mask), F_T(g), val_int(0));
}
static Tensor *dropped(Vjp *v, Tensor *mask, Tensor *g) {
  return F_OP(&v->f, "aten.where.ScalarSelf", F_T(mask), val_int(0), F_T(g));
}

static Tensor *compare(Vjp *v, const char *op, int a, int b) {
  return F_OP(&v->f, op, vjp_value(v, a), vjp_value(v, b));
}
static Tensor *both(Vjp *v, const char *op, Tensor *a, Tensor *b) { return F_OP(&v->f, op, F_T(a), F_T(b)); }

/* ---- conditions and masks ------------------------------------------------------------------------- */

/* ---- bounds ----------------------------------------------------------------------------------------- */

/* Arguments of the bounds; 0: there is none. */
static void give_clamped(Vjp *v, int low, int high) {
  const Call *c = v->forward;
  Tensor *g = vjp_cotangent(v), *inside = NULL;
  bool below = low && !in_none(c, low), above = high && !in_none(c, high);
  const char *ge = below && in_tensor(c, low) ? "aten.ge.Tensor" : "aten.ge.Scalar",
             *le = above && in_tensor(c, high) ? "aten.le.Tensor" : "aten.le.Scalar";
  if (vjp_wants(v, 0)) {
    if (below) inside = compare(v, ge, 0, low);
    if (above) {
      Tensor *under = compare(v, le, 0, high);
      inside = inside ? both(v, "aten.logical_and.default", inside, under) : under;
    }
    vjp_give(v, 0, kept(v, inside, g));
  }
  if (below && vjp_wants(v, low)) {
    Tensor *at = compare(v, "aten.lt.Tensor", 0, low);
    if (above) at = both(v, "aten.logical_and.default", at, compare(v, "aten.lt.Tensor", low, high));
    vjp_give(v, low, kept(v, at, g));
  }
  if (above && vjp_wants(v, high)) {
    Tensor *at = compare(v, "aten.gt.Tensor", 0, high);
    if (below) at = both(v, "aten.logical_or.default", at, compare(v, "aten.lt.Tensor", high, low));
    vjp_give(v, high, kept(v, at, g));
  }
}

static void vjp_clamp(Vjp *v) { give_clamped(v, 1, 2); }
static void vjp_clamp_min(Vjp *v) { give_clamped(v, 1, 0); }
static void vjp_clamp_max(Vjp *v) { give_clamped(v, 0, 1); }

/* ---- the larger and the smaller of two --------------------------------------------------------------- */

/* Equal operands share; the first loses where `lost` holds of them, the second where `won` does. */
static void give_shared(Vjp *v, const char *lost, const char *won) {
  Tensor *g = vjp_cotangent(v), *equal = compare(v, "aten.eq.Tensor", 0, 1);
  Tensor *shared = f_where(&v->f, equal, f_scale(&v->f, g, 0.5), g);
  if (vjp_wants(v, 0)) vjp_give(v, 0, dropped(v, compare(v, lost, 0, 1), shared));
  if (vjp_wants(v, 1)) vjp_give(v, 1, dropped(v, compare(v, won, 0, 1), shared));
}

static void vjp_maximum(Vjp *v) { give_shared(v, "aten.lt.Tensor", "aten.gt.Tensor"); }
static void vjp_minimum(Vjp *v) { give_shared(v, "aten.gt.Tensor", "aten.lt.Tensor"); }

/* A number wins against nan. */
static void give_number(Vjp *v, const char *won) {
  Tensor *g = vjp_cotangent(v), *nan = F_OP(&v->f, "aten.isnan.default", vjp_value(v, 1));
  Tensor *first = both(v, "aten.logical_or.default", compare(v, won, 0, 1), nan);
  if (vjp_wants(v, 0)) vjp_give(v, 0, kept(v, first, g));
  if (vjp_wants(v, 1)) vjp_give(v, 1, dropped(v, first, g));
}

static void vjp_fmax(Vjp *v) { give_number(v, "aten.ge.Tensor"); }
static void vjp_fmin(Vjp *v) { give_number(v, "aten.le.Tensor"); }

const GradDef grads_choose[] = {
    GRAD("clamp.default clip.default clamp.Tensor clip.Tensor", vjp_clamp, "self min max"),
    GRAD("clamp_min.default clamp_min.Tensor", vjp_clamp_min, "self min"),
    GRAD("clamp_max.default clamp_max.Tensor", vjp_clamp_max, "self max"),
    GRAD("maximum.default", vjp_maximum, "self other"),
    GRAD("minimum.default", vjp_minimum, "self other"),
    GRAD("fmax.default", vjp_fmax, "self other"),
    GRAD("fmin.default", vjp_fmin, "self other"),
    {0},
};
