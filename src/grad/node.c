/* node.c -- see node.h. */
#include "grad/node.h"

#include <stdlib.h>
#include <string.h>

/* ---- the end of nodes ------------------------------------------------------------------------------- */

void hook_unref(TapeHook *h) {
  if (!h || atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) != 1) return;
  if (h->release) h->release(h->arg);
  free(h);
}

static void asked_free(Asked *a, int nout) {
  for (TapeHook *h = a->hooks, *next; h; h = next) {
    next = h->next;
    hook_unref(h);
  }
  for (int i = 0; i < nout; i++) tensor_release(a->gradient[i]);
  free(a);
}

static void drop(Kept *k) {
  storage_unref(k->storage);
  k->storage = NULL;
  if (k->local) drop(k->local);
}

void node_forget(TapeNode *n) {
  for (int i = 0; n->op && i < n->nin + n->nout; i++) {
    n->freed |= n->kept[i].read; /* a gradient that reads nothing can be gone through again */
    drop(&n->kept[i]);
  }
}

/* Chains of calls are as long as programs: nodes that die with this one are freed one after the other, not one
 * inside the other. */
static void node_release(GradNode *ref) {
  TapeNode *dying = tape_node(ref), *next;
  dying->next_dying = NULL;
  for (; dying; dying = next) {
    next = dying->next_dying;
    for (int i = 0; i < dying->nin; i++) {
      GradNode *source = dying->source[i];
      if (!source || atomic_fetch_sub_explicit(&source->refs, 1, memory_order_acq_rel) != 1) continue;
      tape_node(source)->next_dying = next;
      next = tape_node(source);
    }
    if (!dying->freed) node_forget(dying);
    if (dying->asked) asked_free(dying->asked, dying->nout);
    free(dying);
  }
}

/* ---- their beginning ---------------------------------------------------------------------------------- */

static void begin(Tape *t, TapeNode *n) {
  *n = (TapeNode){.ref.release = node_release, .number = ++t->calls, .origin = t->origin};
  atomic_init(&n->ref.refs, 1);
}

Status node_leaf(Tape *t, TapeNode **out) {
  TRY_NEW(*out, malloc(sizeof **out));
  begin(t, *out);
  (*out)->nout = 1;
  return OK;
}

static size_t geometry_bytes(const Tensor *t) {
  return 2 * (size_t)t->ndim * sizeof(int64_t) + (t->local ? sizeof(Kept) + geometry_bytes(t->local) : 0);
}

static void keep(Kept *k, const Tensor *t, bool read, char **room) {
  size_t half = (size_t)t->ndim * sizeof(int64_t);
  *k = (Kept){.spec = t->spec, .offset = t->offset, .dtype = t->dtype, .ndim = t->ndim, .read = read};
  k->geometry = (int64_t *)(void *)*room;
  *room += 2 * half;
  if (half) {
    memcpy(k->geometry, t->size, half);
    memcpy(k->geometry + t->ndim, t->stride, half);
  }
  if (!read) return;
  k->tag = t->tag;
  k->storage = storage_ref(t->storage);
  k->version = t->storage ? t->storage->version : 0;
  if (!t->local) return;
  k->local = (Kept *)(void *)*room;
  *room += sizeof(Kept);
  keep(k->local, t->local, true, room);
}

static void keep_inputs(TapeNode *n, const Call *c, char **room) {
  const Schema *s = &c->op->schema;
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    n->source[w.flat] = grad_ref(w.tensor->grad);
    n->source_out[w.flat] = w.tensor->grad_out;
    keep(&n->kept[w.flat], w.tensor, c->op->reads >> w.arg & 1, room);
  }
  for (int i = 0; i < s->nparams; i++) n->arg[i] = val_bytes(&c->arg[i]) ? val_pack(&c->arg[i], room) : c->arg[i];
}

static void keep_outputs(TapeNode *n, const Call *c, char **room) {
  for (TensorWalk w = call_outputs(c); tensor_next(&w);)
    keep(&n->kept[n->nin + w.flat], w.tensor, w.flat < 32 && c->op->reads_out >> w.flat & 1, room);
  for (int i = 0; i < c->nout; i++) n->out[i] = c->out[i];
}

typedef struct {
  int nin, nout;
  size_t bytes; /* behind the node and its lists of known length */
} Extent;

static Extent measure(const Call *c) {
  Extent e = {0};
  for (TensorWalk w = call_inputs(c); tensor_next(&w); e.nin++) e.bytes += geometry_bytes(w.tensor);
  for (TensorWalk w = call_outputs(c); tensor_next(&w); e.nout++) e.bytes += geometry_bytes(w.tensor);
  for (int i = 0; i < c->op->schema.nparams; i++) e.bytes += val_bytes(&c->arg[i]);
  return e;
}

static void *take(char **room, size_t bytes) {
  void *here = *room;
  *room += bytes;
  return here;
}

Status node_of_call(Tape *t, const Call *c, TapeNode **out) {
  Extent e = measure(c);
  size_t nin = (size_t)e.nin, all = (size_t)(e.nin + e.nout), nargs = (size_t)c->op->schema.nparams,
         nvalues = (size_t)c->nout;
  char *room;
  TRY_NEW(room, malloc(sizeof(TapeNode) + (nargs + nvalues) * sizeof(Value) + all * sizeof(Kept) +
                       nin * sizeof(GradNode *) + e.bytes + nin * sizeof(int)));
  TapeNode *n = take(&room, sizeof *n);
  begin(t, n);
  n->op = c->op;
  n->nin = e.nin;
  n->nout = e.nout;
  n->nvalues = c->nout;
  n->arg = take(&room, nargs * sizeof(Value));
  n->out = take(&room, nvalues * sizeof(Value));
  n->kept = take(&room, all * sizeof(Kept));
  n->source = take(&room, nin * sizeof(GradNode *));
  char *ints = room + e.bytes; /* last, as they are half as wide */
  n->source_out = take(&ints, nin * sizeof(int));
  keep_inputs(n, c, &room);
  keep_outputs(n, c, &room);
  *out = n;
  return OK;
}

/* ---- what they know ------------------------------------------------------------------------------------- */

static void handle_of(const Kept *k, Tensor *out) {
  out->storage = k->storage;
  out->spec = k->spec;
  out->local = NULL;
  out->tag = k->tag;
  out->grad = out->family = NULL;
  out->grad_out = 0;
  out->seen = 0;
  out->offset = k->offset;
  out->dtype = k->dtype;
  out->ndim = k->ndim;
  size_t half = (size_t)k->ndim * sizeof(int64_t);
  if (!half) return;
  memcpy(out->size, k->geometry, half);
  memcpy(out->stride, k->geometry + k->ndim, half);
}

void node_tensor(const TapeNode *n, int i, Tensor *out, Tensor *local) {
  const Kept *k = &n->kept[i];
  handle_of(k, out);
  if (!k->local) return;
  handle_of(k->local, local);
  out->local = local;
}

Status node_asked(TapeNode *n, Asked **out) {
  if (!n->asked) {
    size_t nout = (size_t)n->nout;
    char *room;
    TRY_NEW(room, calloc(1, sizeof(Asked) + nout * (sizeof(Tensor *) + sizeof(bool))));
    n->asked = take(&room, sizeof(Asked));
    n->asked->gradient = take(&room, nout * sizeof(Tensor *));
    n->asked->retained = take(&room, nout * sizeof(bool));
  }
  *out = n->asked;
  return OK;
}
