/* check_ops.c -- graph_check_ops: can this program run?  All that is missing, at once. */
#include <string.h>

#include "base/near.h"
#include "base/strmap.h"
#include "base/textbuf.h"
#include "graph/graph.h"
#include "graph/walk_inside.h"

bool node_is_supported(const Node *n) {
  if (n->op || higher_order_find(n->target)) return true;
  return node_is(n, "higher_order.wrap_with_set_grad_enabled") || node_is(n, "higher_order.wrap_with_autocast");
}

/* Ops that PyTorch 2.13's run_decompositions() writes with ops that are supported, found by tracing
 * PyTorch's own samples of them.  Of others nothing is known, or it leads to ops that are missing too. */
static const char *const decomposes[] = {
    "aten._chunk_cat.default",
    "aten._unsafe_masked_index.default",
    "aten._unsafe_masked_index_put_accumulate.default",
    "aten.cartesian_prod.default",
    "aten.cross.default",
    "aten.cumulative_trapezoid.x",
    "aten.diagflat.default",
    "aten.fft_hfft.default",
    "aten.fft_hfft2.default",
    "aten.fft_hfftn.default",
    "aten.fft_ihfft.default",
    "aten.fft_ihfft2.default",
    "aten.fft_ihfftn.default",
    "aten.gradient.scalarint",
    "aten.isclose.default",
    "aten.isreal.default",
    "aten.linalg_cross.default",
    "aten.linalg_multi_dot.default",
    "aten.linalg_vander.default",
    "aten.linalg_vecdot.default",
    "aten.renorm.default",
    "aten.sum_to_size.default",
    "aten.trapezoid.x",
    "aten.trapz.x",
};

static bool is_decomposed(const char *target) {
  for (size_t i = 0; i < sizeof decomposes / sizeof *decomposes; i++) {
    if (!strcmp(target, decomposes[i])) return true;
  }
  return false;
}

typedef struct Missing {
  const Node *first;
  int count;
  struct Missing *next; /* in order of appearance */
} Missing;

typedef struct {
  Arena arena;
  StrMap by_target;
  Missing *list, **end;
  int count;
} Found;

static Status collect(Found *f, const Graph *g, int depth) {
  for (const Node *n = g->first; n; n = n->next) {
    for (int i = 0; i < n->nargs; i++) {
      if (n->args[i].kind == ARG_GRAPH && depth < 64) TRY(collect(f, n->args[i].graph, depth + 1));
    }
    if (node_is_supported(n)) continue;
    StrSlot *slot;
    TRY(strmap_slot(&f->by_target, &f->arena, n->target, &slot));
    Missing *m = slot->value;
    if (!m) {
      TRY_NEW(m, arena_new(&f->arena, Missing));
      m->first = n;
      slot->value = *f->end = m;
      f->end = &m->next;
      f->count++;
    }
    m->count++;
  }
  return OK;
}

/*   transformers.grouped_mm_fallback.default: 4 nodes, first grouped_mm at moe.py:176 in
 *   forward, module model.layers.0.mlp                                                   */
static void describe(TextBuf *b, const Missing *m) {
  char source[256], module[256];
  const Node *n = m->first;
  node_source(n, source, sizeof source);
  node_module(n, module, sizeof module);
  text_printf(b, "\n  %s: %d node%s", n->target, m->count, m->count == 1 ? "" : "s");
  if (n->nouts && n->outs[0]->name) text_printf(b, ", %s%s", m->count == 1 ? "" : "first ", n->outs[0]->name);
  if (*source) text_printf(b, " at %s", source);
  if (*module) text_printf(b, ", module %s", module);
  const Op *near = op_nearest(n->target); /* a slip of the pen in a text, not another op */
  if (near && near_distance(n->target, near->schema.name, 2) <= 2)
    text_printf(b, "; did you mean %s?", near->schema.name);
}

/* What to do: decomposing is advised where it helps only. */
static Status advise(Status s, const Found *f) {
  TextBuf b = {0};
  int helped = 0;
  for (const Missing *m = f->list; m; m = m->next) {
    if (!is_decomposed(m->first->target)) continue;
    text_printf(&b, "%s%s", helped++ ? ", " : "", m->first->target);
  }
  const char *them = f->count == 1 ? "it" : "them";
  if (b.failed) s = status_hint(s, "export the model without %s", them);
  else if (helped == f->count)
    s = status_hint(s, "export the model, then save program.run_decompositions(), which does without %s", them);
  else if (helped)
    s = status_hint(s, "program.run_decompositions() does without %s; export the model without the others", b.text);
  else s = status_hint(s, "export the model without %s; run_decompositions() is not known to help", them);
  text_free(&b);
  return s;
}

Status graph_check_ops(const Exported *e) {
  Found f = {0};
  f.end = &f.list;
  Status s = collect(&f, e->graph, 0);
  if (!s && f.count) {
    TextBuf b = {0};
    for (const Missing *m = f.list; m; m = m->next) describe(&b, m);
    s = b.failed ? fail_oom()
                 : fail(ERR_FILE, "%s: %d operator%s of this program %s not supported:%s", e->name, f.count,
                        f.count == 1 ? "" : "s", f.count == 1 ? "is" : "are", b.text);
    s = advise(s, &f);
    text_free(&b);
  }
  arena_free(&f.arena);
  return s;
}
