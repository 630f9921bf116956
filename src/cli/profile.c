/* profile.c -- see profile.h. */
#include "cli/profile.h"

#include <stdlib.h>
#include <string.h>

enum { NODES_SHOWN = 20 };

typedef struct {
  const char *name;
  double seconds, flops;
  int64_t calls;
} Row;

static int slowest_first(const void *a, const void *b) {
  const Row *x = a, *y = b;
  return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : 0;
}

static int slowest_instr_first(const void *a, const void *b) {
  const Instr *x = *(Instr *const *)a, *y = *(Instr *const *)b;
  return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : 0;
}

static int collect(const Program *p, Row *rows) {
  int n = 0;
  for (int i = 0; i < p->ninstrs; i++) {
    const Instr *in = &p->instrs[i];
    int r = 0;
    while (r < n && rows[r].name != in->node->target) r++;
    if (r == n) rows[n++] = (Row){.name = in->node->target};
    rows[r].seconds += in->seconds;
    rows[r].flops += op_flops(&in->call);
    rows[r].calls++;
  }
  qsort(rows, (size_t)n, sizeof *rows, slowest_first);
  return n;
}

static void print_text(FILE *f, const Program *p, const Row *rows, int n, Instr **order, double total) {
  double runs = (double)(p->runs ? p->runs : 1);
  fprintf(f, "%-44s %6s %10s %6s %9s\n", "op", "calls", "ms/run", "share", "GFLOP/s");
  for (int i = 0; i < n; i++) {
    double s = rows[i].seconds / runs;
    fprintf(f, "%-44s %6lld %10.3f %5.1f%% %9.2f\n", rows[i].name, (long long)rows[i].calls, s * 1e3, 100 * rows[i].seconds / total,
            s > 0 ? rows[i].flops / s * 1e-9 : 0);
  }
  fprintf(f, "%-44s %6d %10.3f\n\n", "all", p->ninstrs, total / runs * 1e3);
  fprintf(f, "%-28s %-36s %10s  %s\n", "node", "op", "ms/run", "module");
  for (int i = 0; i < p->ninstrs && i < NODES_SHOWN; i++) {
    const Instr *in = order[i];
    char module[128];
    fprintf(f, "%-28s %-36s %10.3f  %s\n", in->node->nouts ? in->node->outs[0]->name : "-", in->node->target, in->seconds / runs * 1e3,
            node_module(in->node, module, sizeof module));
  }
}

static void print_json(FILE *f, const Program *p, const Row *rows, int n, Instr **order) {
  double runs = (double)(p->runs ? p->runs : 1);
  fprintf(f, "{\"ops\": [");
  for (int i = 0; i < n; i++) {
    fprintf(f, "%s{\"op\": \"%s\", \"calls\": %lld, \"ms\": %.6f, \"flops\": %.0f}", i ? ", " : "", rows[i].name, (long long)rows[i].calls,
            rows[i].seconds / runs * 1e3, rows[i].flops);
  }
  fprintf(f, "], \"nodes\": [");
  for (int i = 0; i < p->ninstrs; i++) {
    char module[128];
    fprintf(f, "%s{\"node\": \"%s\", \"op\": \"%s\", \"ms\": %.6f, \"module\": \"%s\"}", i ? ", " : "",
            order[i]->node->nouts ? order[i]->node->outs[0]->name : "", order[i]->node->target, order[i]->seconds / runs * 1e3,
            node_module(order[i]->node, module, sizeof module));
  }
  fprintf(f, "], \"slab_bytes\": %zu}\n", p->slab_bytes);
}

Status profile_print(FILE *f, Session *s, const Value *inputs, int ninputs, bool json) {
  Program *p;
  TRY(session_prepare(s, inputs, ninputs, &p));
  if (!p) return fail(ERR_FAIL, "this program is interpreted, as its sizes depend on data: there is nothing to profile");
  Row *rows = calloc((size_t)p->ninstrs + 1, sizeof *rows);
  Instr **order = calloc((size_t)p->ninstrs + 1, sizeof *order);
  Status status = rows && order ? OK : fail_oom();
  if (!status) {
    double total = 1e-12;
    int n = collect(p, rows);
    for (int i = 0; i < n; i++) total += rows[i].seconds;
    for (int i = 0; i < p->ninstrs; i++) order[i] = &p->instrs[i];
    qsort(order, (size_t)p->ninstrs, sizeof *order, slowest_instr_first);
    if (json) print_json(f, p, rows, n, order);
    else print_text(f, p, rows, n, order, total);
  }
  free(rows);
  free(order);
  return status;
}
