/* rebatch_left.c -- what is left of the program's own rows; see rebatch.h, I3.
 *
 * A value that was brought to another batch where it met the batch, such as a mask of 12 rows, has the program's
 * own rows still.  If these go elsewhere as well, as in (x * mask).sum() / mask.sum(), what comes of them is that
 * of 12 rows: the result would be wrong, and nothing else would tell.
 */
#include "runtime/rebatch_inside.h"

/* ---- what was brought to the batch ------------------------------------------------------------------------------
 */

static Status note_fit(Rebatch *r, const Node *n, const Val *v) {
  TRY_NEW(r->fit, arena_more(r->arena, r->fit, r->nfits, &r->fits_cap));
  r->fit[r->nfits++] = (RebatchFit){n, v};
  return OK;
}

Status rebatch_note_fits(Rebatch *r, const Node *n, const Value *was, const Value *bound) {
  for (int i = 0; i < n->nargs; i++) {
    const Arg *a = &n->args[i];
    if (a->kind == ARG_VAL && bound[i].kind == VAL_TENSOR && bound[i].tensor != was[i].tensor)
      TRY(note_fit(r, n, a->val));
    if (a->kind != ARG_LIST || bound[i].kind != VAL_TENSORS || bound[i].tensors == was[i].tensors) continue;
    for (int k = 0; k < a->n; k++)
      if (a->list[k].kind == ARG_VAL && bound[i].tensors[k] != was[i].tensors[k])
        TRY(note_fit(r, n, a->list[k].val));
  }
  return OK;
}

/* ---- where values go ---------------------------------------------------------------------------------------- */

typedef struct {
  const Rebatch *r;
  const Node **reader; /* by value id: a node that reads it as it is in the program, and of which an output of the
                          program comes; NULL: there is none */
  bool *is_output;     /* by value id */
  const Node *node;
  bool passes_on;
} Left;

static bool is_fitted(const Left *l, const Val *v) {
  for (int i = 0; i < l->r->nfits; i++)
    if (l->r->fit[i].node == l->node && l->r->fit[i].val == v) return true;
  return false;
}

static void note_output(void *arg, Val **ref) {
  Left *l = arg;
  if ((*ref)->id < l->r->nvals) l->is_output[(*ref)->id] = true;
}

static void note_reader(void *arg, Val **ref) {
  Left *l = arg;
  if ((*ref)->id < l->r->nvals && !is_fitted(l, *ref)) l->reader[(*ref)->id] = l->node;
}

/* One row does not depend on how many there are; a check is of the program as it was. */
static bool takes_a_row(const Node *n) { return node_is(n, "aten.select.int") || n->nouts == 0; }

/* From the last node to the first, so that all is known of what a node makes. */
static void find_readers(Left *l, const Graph *g) {
  for (int i = 0; i < g->noutputs; i++) arg_each_val(&g->outputs[i], note_output, l);
  for (Node *n = g->last; n; n = n->prev) {
    l->node = n;
    l->passes_on = false;
    for (int i = 0; i < n->nouts; i++)
      if (n->outs[i]->id < l->r->nvals) l->passes_on |= l->is_output[n->outs[i]->id] || l->reader[n->outs[i]->id];
    if (l->passes_on && !takes_a_row(n)) node_each_val(n, note_reader, l);
  }
}

/* ---- what has such rows -------------------------------------------------------------------------------------- */

static bool keeps_rows(const Node *n) {
  static const char *const names[] = {"aten.unsqueeze.default", "aten.to.dtype",       "aten._to_copy.default",
                                      "aten.clone.default",     "aten.detach.default", "aten.alias.default",
                                      "aten.contiguous.default"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (node_is(n, names[i])) return true;
  return n->op && n->op->def->flags & OP_POINTWISE;
}

static int64_t numel_of(const Val *v) {
  int64_t n = 1;
  for (int d = 0; d < v->ndim; d++) n *= whole_size(v, d);
  return n;
}

static Status check_value(const Left *l, const Val *v) {
  char source[256];
  const Node *n = v->id < l->r->nvals ? l->reader[v->id] : NULL;
  if (!n) return OK;
  node_source(n, source, sizeof source);
  return status_hint(fail(ERR_FILE,
                          "the program is for %lld rows and cannot be run with %lld: '%s' has rows of its own, "
                          "which meet the batch, "
                          "and '%s' (%s%s%s) is made of all of these",
                          (long long)l->r->from, (long long)l->r->to, v->name, n->nouts ? n->outs[0]->name : "-",
                          n->target, *source ? ", " : "", source),
                     "export it with a dynamic batch (torch.export.Dim)");
}

/* A value that was fitted, and what it was made of element by element. */
static Status check_rows(const Left *l, const Val *v, int depth) {
  enum { DEEPEST = 64 };
  TRY(check_value(l, v));
  const Node *n = v->node;
  if (!n || depth == DEEPEST || !keeps_rows(n)) return OK;
  for (int i = 0; i < n->nargs; i++) {
    const Val *made_of = tensor_arg(n, i);
    if (made_of && !outer_of(l->r, made_of) && numel_of(made_of) == numel_of(v))
      TRY(check_rows(l, made_of, depth + 1));
  }
  return OK;
}

Status rebatch_check(const Rebatch *r, const Graph *g) {
  Left l = {.r = r};
  if (!r->nfits) return OK;
  TRY_NEW(l.is_output, arena_new_n(r->arena, bool, r->nvals + 1));
  TRY_NEW(l.reader, arena_new_n(r->arena, const Node *, r->nvals + 1));
  find_readers(&l, g);
  for (int i = 0; i < r->nfits; i++) TRY(check_rows(&l, r->fit[i].val, 0));
  return OK;
}
