/* profile.c -- see profile.h. */
#include "cli/profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"

enum { NODES_SHOWN = 20 };

/* A kind of op, or a node. */
typedef struct {
  const char *name; /* the op */
  const Node *node; /* NULL: all of that kind */
  double seconds, flops;
  int64_t calls;
} Row;

/* All in one place, whether it was compiled or interpreted. */
typedef struct {
  Row *nodes, *kinds;
  int nnodes, nkinds;
  double runs, total; /* seconds */
  size_t slab_bytes;
} Profile;

static int slowest_first(const void *a, const void *b) {
  const Row *x = a, *y = b;
  return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : 0;
}

static void add(Profile *p, const Node *n, double seconds, double flops, int64_t calls) {
  int k = 0;
  p->nodes[p->nnodes++] = (Row){n->target, n, seconds, flops, calls};
  while (k < p->nkinds && strcmp(p->kinds[k].name, n->target)) k++;
  if (k == p->nkinds) p->kinds[p->nkinds++] = (Row){.name = n->target};
  p->kinds[k].seconds += seconds;
  p->kinds[k].flops += flops;
  p->kinds[k].calls += calls;
  p->total += seconds;
}

static Status collect(Profile *p, const Program *program, const NodeTimes *times) {
  int n = program ? program->ninstrs : times->n;
  int64_t runs = program ? program->runs : times->runs;
  TRY_NEW(p->nodes, calloc((size_t)n + 1, sizeof *p->nodes));
  TRY_NEW(p->kinds, calloc((size_t)n + 1, sizeof *p->kinds));
  p->runs = runs ? (double)runs : 1;
  p->slab_bytes = program ? program->slab_bytes : 0;
  for (int i = 0; i < n; i++) {
    const Instr *in = program ? &program->instrs[i] : NULL;
    const NodeTime *t = program ? NULL : &times->list[i];
    if (in) add(p, in->node, in->seconds, op_flops(&in->call), 1);
    else if (t->calls) add(p, t->node, t->seconds, 0, (t->calls + times->runs - 1) / times->runs);
  }
  qsort(p->nodes, (size_t)p->nnodes, sizeof *p->nodes, slowest_first);
  qsort(p->kinds, (size_t)p->nkinds, sizeof *p->kinds, slowest_first);
  return OK;
}

static const char *row_node(const Row *r) { return r->node->nouts ? r->node->outs[0]->name : "-"; }

static void write_text(TextBuf *b, const Profile *p) {
  text_printf(b, "%-44s %6s %10s %6s %9s\n", "op", "calls", "ms/run", "share", "GFLOP/s");
  for (int i = 0; i < p->nkinds; i++) {
    const Row *r = &p->kinds[i];
    double s = r->seconds / p->runs;
    text_printf(b, "%-44s %6lld %10.3f %5.1f%%", r->name, (long long)r->calls, s * 1e3,
                p->total > 0 ? 100 * r->seconds / p->total : 0);
    if (r->flops > 0 && s > 0) text_printf(b, " %9.2f", r->flops / s * 1e-9);
    text_puts(b, "\n");
  }
  text_printf(b, "%-44s %6d %10.3f\n\n", "all", p->nnodes, p->total / p->runs * 1e3);
  text_printf(b, "%-28s %-36s %10s  %s\n", "node", "op", "ms/run", "module");
  for (int i = 0; i < p->nnodes && i < NODES_SHOWN; i++) {
    const Row *r = &p->nodes[i];
    char module[128];
    text_printf(b, "%-28s %-36s %10.3f  %s\n", row_node(r), r->name, r->seconds / p->runs * 1e3,
                node_module(r->node, module, sizeof module));
  }
  if (p->nnodes > NODES_SHOWN) text_printf(b, "%d more (`run --json` lists them)\n", p->nnodes - NODES_SHOWN);
}

static void write_json(TextBuf *b, const Profile *p) {
  text_puts(b, "{\"ops\": [");
  for (int i = 0; i < p->nkinds; i++) {
    const Row *r = &p->kinds[i];
    text_puts(b, i ? ", {\"op\": " : "{\"op\": ");
    text_json(b, r->name);
    text_printf(b, ", \"calls\": %lld, \"ms\": %.6f, \"flops\": %.0f}", (long long)r->calls,
                r->seconds / p->runs * 1e3, r->flops);
  }
  text_puts(b, "], \"nodes\": [");
  for (int i = 0; i < p->nnodes; i++) {
    const Row *r = &p->nodes[i];
    char module[128];
    text_puts(b, i ? ", {\"node\": " : "{\"node\": ");
    text_json(b, row_node(r));
    text_puts(b, ", \"op\": ");
    text_json(b, r->name);
    text_printf(b, ", \"ms\": %.6f, \"module\": ", r->seconds / p->runs * 1e3);
    text_json(b, node_module(r->node, module, sizeof module));
    text_puts(b, "}");
  }
  text_printf(b, "], \"runs\": %.0f, \"slab_bytes\": %zu}", p->runs, p->slab_bytes);
}

Status profile_print(FILE *f, const Session *s, bool json) {
  Profile p = {0};
  TextBuf b = {0};
  Status status = collect(&p, session_last_program(s), session_node_times(s));
  if (!status && json) write_json(&b, &p);
  else if (!status) write_text(&b, &p);
  if (!status && b.failed) status = fail_oom();
  if (!status && json) fputs(b.text, f);
  else if (!status) print_plain(f, b.text);
  free(p.nodes);
  free(p.kinds);
  text_free(&b);
  return status;
}
