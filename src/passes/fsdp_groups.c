/* fsdp_groups.c -- see fsdp_groups.h. */
#include "passes/fsdp_groups.h"

#include "base/textbuf.h"
#include "passes/comm_block.h"

static int64_t numel_of(const Val *v) {
  int64_t n = 1;
  for (int d = 0; d < v->ndim; d++) n *= v->size[d]->value;
  return n;
}

/* The arguments that tell how each of the group moves. */
static Status describe_moves(Graph *graph, const Group *g, Arg *moves, Arg *shapes, Arg *list, int64_t *size) {
  Arena *arena = graph->arena;
  TextBuf text = {0};
  int n = 0, cap = 0;
  for (const Member *m = g->first; m; m = m->next) cap += 1 + m->node->args[ARG_SHAPE].n;
  Arg *numbers = arena_new_n(arena, Arg, cap + 1), *in = arena_new_n(arena, Arg, g->n + 1);
  if (!numbers || !in) return fail_oom();
  int k = 0;
  *size = 0;
  for (const Member *m = g->first; m; m = m->next) {
    const Arg *a = m->node->args;
    text_printf(&text, "%s%s>%s", k ? ";" : "", a[ARG_SRC].str, a[ARG_DST].str);
    numbers[n++] = arg_int(a[ARG_SHAPE].n);
    for (int d = 0; d < a[ARG_SHAPE].n; d++) numbers[n++] = a[ARG_SHAPE].list[d];
    in[k++] = arg_val(m->in);
    *size += numel_of(m->node->outs[0]);
  }
  const char *copy = text.failed ? NULL : arena_strdup(arena, text.text);
  text_free(&text);
  if (!copy) return fail_oom();
  *moves = arg_str(copy);
  *shapes = arg_list(numbers, n);
  *list = arg_list(in, k);
  return OK;
}

static Status add_call(Graph *graph, Node *before, const Node *like, Stage stage, const char *target,
                       const Arg *args, int nargs, Node **out) {
  TRY(graph_emit_like(graph, before, like, target, args, nargs, out));
  (*out)->stage = stage;
  return OK;
}

/* The tensors of a group as views of the buffer; results[k] of member k. */
static Status add_views(Graph *graph, const Group *g, Node *before, Stage stage, Val *flat, Val **results) {
  Arg *lengths;
  Node *split;
  int k = 0;
  TRY_NEW(lengths, arena_new_n(graph->arena, Arg, g->n + 1));
  for (const Member *m = g->first; m; m = m->next) lengths[k++] = arg_int(numel_of(m->node->outs[0]));
  TRY(add_call(graph, before, g->first->node, stage, "aten.split.sizes",
               (Arg[]){arg_val(flat), arg_list(lengths, g->n)}, 2, &split));
  k = 0;
  for (const Member *m = g->first; m; m = m->next, k++) {
    const Val *like = m->node->outs[0];
    const Sym *length;
    Val *part;
    TRY_NEW(length, sym_int(graph->syms, lengths[k].i));
    TRY(node_add_tensor(split, "getitem", like->dtype, 1, &length, &part));
  }
  k = 0;
  for (const Member *m = g->first; m; m = m->next, k++) {
    const Val *like = m->node->outs[0];
    Arg *size;
    Node *n;
    TRY_NEW(size, arena_new_n(graph->arena, Arg, like->ndim + 1));
    for (int d = 0; d < like->ndim; d++) size[d] = arg_int(like->size[d]->value);
    TRY(add_call(graph, before, m->node, stage, "aten.reshape.default",
                 (Arg[]){arg_val(split->outs[k]), arg_list(size, like->ndim)}, 2, &n));
    TRY(node_add_tensor(n, like->name, like->dtype, like->ndim, like->size, &results[k]));
  }
  return OK;
}

Status group_write(Graph *graph, const Group *g, const char *target, Node *before, Node *needed, Stage stage,
                   Val **results) {
  const Node *like = g->first->node;
  Arg args[6];
  int64_t size;
  const Sym *length;
  Node *n;
  Val *flat;
  TRY(describe_moves(graph, g, &args[2], &args[3], &args[0], &size));
  args[1] = like->args[ARG_MESH];
  args[4] = arg_int(size);
  const char *why = arena_printf(graph->arena, "group '%s'", *g->module ? g->module : "(root)");
  if (!why) return fail_oom();
  args[5] = arg_str(why);
  TRY_NEW(length, sym_int(graph->syms, size));
  TRY(add_call(graph, before, like, stage, target, args, 6, &n));
  TRY(node_add_tensor(n, "group", like->outs[0]->dtype, 1, &length, &flat));
  Arg started = arg_val(flat);
  TRY(add_call(graph, needed, like, stage, WAIT_TENSOR, &started, 1, &n));
  TRY(node_add_tensor(n, "group_wait", like->outs[0]->dtype, 1, &length, &flat));
  return add_views(graph, g, needed, stage, flat, results);
}
