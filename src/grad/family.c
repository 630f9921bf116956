/* family.c -- see family.h. */
#include "grad/family.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  GradNode ref;
  uint32_t writes;
  GradNode *node; /* the call that made the elements; NULL: no gradient flows through them */
  int out;
  bool flat;   /* of the whole storage */
  Tensor lies; /* else: where they are; geometry, dtype and spec only */
} Family;

static Family *family(const Tensor *t) { return (Family *)t->family; }

static void family_release(GradNode *ref) {
  grad_unref(((Family *)ref)->node);
  free(ref);
}

static void take_node(GradNode **node, int *out, GradNode *now, int now_out) {
  GradNode *former = *node;
  *node = grad_ref(now);
  *out = now_out;
  grad_unref(former);
}

/* Geometry, dtype and spec. */
static void lie_as(const Tensor *t, Tensor *out) {
  size_t bytes = (size_t)t->ndim * sizeof *t->size;
  *out = (Tensor){.spec = t->spec, .offset = t->offset, .dtype = t->dtype, .ndim = t->ndim};
  if (!bytes) return;
  memcpy(out->size, t->size, bytes);
  memcpy(out->stride, t->stride, bytes);
}

static bool lies_as(const Family *f, const Tensor *t) {
  if (f->flat || f->lies.dtype != t->dtype || f->lies.spec != t->spec || !tensor_same_size(&f->lies, t))
    return false;
  if (f->lies.offset != t->offset) return false;
  for (int d = 0; d < t->ndim; d++)
    if (t->size[d] > 1 && f->lies.stride[d] != t->stride[d]) return false;
  return true;
}

Status family_of(Tensor *t) {
  Family *f;
  if (t->family) return OK;
  TRY_NEW(f, malloc(sizeof *f));
  f->ref.release = family_release;
  atomic_init(&f->ref.refs, 1);
  f->writes = 0;
  f->node = grad_ref(t->grad);
  f->out = t->grad_out;
  f->flat = false;
  lie_as(t, &f->lies);
  t->family = &f->ref;
  t->seen = 0;
  return OK;
}

Status family_join(Tensor *a, Tensor *b) {
  TRY(family_of(a));
  if (b->family == a->family) return OK;
  grad_unref(b->family);
  b->family = grad_ref(a->family);
  b->seen = family(a)->writes;
  return OK;
}

bool family_has_gradient(const Tensor *t) { return t->family && family(t)->node; }

bool tensor_requires_grad(const Tensor *t) {
  return t->family && t->seen != family(t)->writes ? family(t)->node != NULL : t->grad != NULL;
}

void family_is_leaf(Tensor *t) {
  Family *f = family(t);
  if (f && lies_as(f, t)) take_node(&f->node, &f->out, t->grad, t->grad_out);
}

/* ---- calls that are recorded, never run -------------------------------------------------------------- */

static Tensor flat_of(const Tensor *t) {
  Tensor whole = {.dtype = t->dtype, .ndim = 1, .stride = {1}};
  whole.size[0] = (int64_t)(t->storage->size / dtype_size(t->dtype));
  return whole;
}

static Status record(Tape *tape, const char *op, const Value *args, Tensor *result, GradNode **out) {
  Value bound[MAX_PARAMS], made = val_tensor(result);
  Call c = {.ctx = tape->ctx, .op = op_find(op), .arg = bound, .out = &made, .nout = 1};
  TapeNode *n;
  if (!c.op) return fail(ERR_FAIL, "'%s' is not in the registry", op);
  for (int i = 0; i < c.op->schema.nparams; i++) bound[i] = args[i];
  TRY(node_of_call(tape, &c, &n));
  *out = &n->ref;
  return OK;
}

/* node = as_strided_scatter(node, source), where `lies` says. */
static Status scatter(Tape *tape, Family *f, Tensor flat, const Tensor *lies, GradNode *source, int source_out) {
  Tensor into = flat, from = *lies;
  GradNode *node;
  into.grad = f->flat ? f->node : NULL;
  into.grad_out = f->out;
  from.grad = source;
  from.grad_out = source_out;
  if (!into.grad && !from.grad) return f->flat = true, OK;
  Value args[] = {val_tensor(&into), val_tensor(&from), val_ints(lies->size, lies->ndim),
                  val_ints(lies->stride, lies->ndim), val_int(lies->offset)};
  TRY(record(tape, "aten.as_strided_scatter.default", args, &flat, &node));
  grad_unref(f->node);
  f->node = node;
  f->out = 0;
  f->flat = true;
  return OK;
}

static Status write_part(Tape *tape, Family *f, Tensor *t, const Tensor *from) {
  Tensor flat = flat_of(t), lies;
  if (!f->flat) {
    GradNode *node = f->node;
    f->node = NULL;
    Status s = node ? scatter(tape, f, flat, &f->lies, node, f->out) : OK;
    grad_unref(node);
    TRY(s);
    f->flat = true;
  }
  lie_as(t, &lies);
  return scatter(tape, f, flat, &lies, from->grad, from->grad_out);
}

/* Who was to keep the gradient of a tensor keeps that of the tensor as it is now. */
static Status carry_retained(GradNode *from, int from_out, GradNode *to, int to_out) {
  Asked *was = from ? tape_node(from)->asked : NULL, *now;
  if (!to || to == from || !was || !was->retained[from_out]) return OK;
  TRY(node_asked(tape_node(to), &now));
  now->retained[to_out] = true;
  return OK;
}

Status family_wrote(Tape *tape, Tensor *t, const Tensor *from) {
  Family *f = family(t);
  if (f && lies_as(f, t)) take_node(&f->node, &f->out, from->grad, from->grad_out);
  else if (f) TRY(write_part(tape, f, t, from));
  if (f) t->seen = ++f->writes;
  TRY(carry_retained(t->grad, t->grad_out, from->grad, from->grad_out));
  take_node(&t->grad, &t->grad_out, from->grad, from->grad_out);
  return OK;
}

Status family_renew(Tape *tape, Tensor *t) {
  Family *f = family(t);
  if (t->seen == f->writes) return OK;
  if (!f->node || lies_as(f, t)) {
    TRY(carry_retained(t->grad, t->grad_out, f->node, f->out));
    take_node(&t->grad, &t->grad_out, f->node, f->out);
  } else {
    Tensor from = f->flat ? flat_of(t) : f->lies, view;
    GradNode *node;
    lie_as(t, &view);
    from.grad = f->node;
    from.grad_out = f->out;
    Value args[] = {val_tensor(&from), val_ints(t->size, t->ndim), val_ints(t->stride, t->ndim),
                    val_int(t->offset)};
    if (t->spec || t->dtype != from.dtype)
      return fail(ERR_FAIL,
                  "the gradient of a view cannot be followed after its tensor was written to in place: %s",
                  t->spec ? "they are DTensors" : "the view has another dtype");
    TRY(record(tape, "aten.as_strided.default", args, &view, &node));
    Status s = carry_retained(t->grad, t->grad_out, node, 0);
    grad_unref(t->grad);
    t->grad = node;
    t->grad_out = 0;
    TRY(s);
  }
  t->seen = f->writes;
  return OK;
}

/* ---- what may be written --------------------------------------------------------------------------------- */

Status family_check_write(const Call *c, Tensor *t) {
  Family *f = family(t);
  if (is_leaf(t->grad))
    return status_hint(op_fail(c, "a leaf that requires a gradient cannot be written to in place"),
                       "write under no_grad, or use the op that is not in place");
  if (!f) return OK;
  if (is_leaf(f->node))
    return status_hint(op_fail(c, "a view of a leaf that requires a gradient cannot be written to in place"),
                       "write under no_grad, or use the op that is not in place");
  if (!t->grad && f->node) t->seen = f->writes - 1; /* made without a gradient: it has one from here on */
  if (lies_as(f, t)) return OK;
  if (t->spec || !t->storage || (!f->flat && f->lies.dtype != t->dtype))
    return status_hint(op_fail(c, "a view of a tensor with gradients cannot be written to in place: %s",
                               t->spec ? "they are DTensors" : "it has another dtype"),
                       "write to a clone, or use the op that is not in place");
  return OK;
}
