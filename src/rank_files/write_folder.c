/* write_folder.c -- see write_folder.h. */
#include "rank_files/write_folder.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/human.h"
#include "base/parallel.h"
#include "passes/lower_torch.h"
#include "pt2/write.h"

static const char rank_run[] = {
#include "rank_files/rank_run.inc"
};

/* ---- plan.json ---------------------------------------------------------------------------------- */

static void print_mesh(TextBuf *b, const Mesh *m) {
  text_puts(b, "{\n \"mesh\": {");
  for (int a = 0; a < m->naxes; a++) {
    char name[24];
    snprintf(name, sizeof name, "axis%d", a);
    if (a) text_puts(b, ", ");
    text_json(b, m->name[a] ? m->name[a] : name);
    text_printf(b, ": %d", m->axis[a]);
  }
  text_puts(b, "}");
}

/* "tp": [[0, 1], [2, 3]] */
static Status print_group(TextBuf *b, const Mesh *m, unsigned axes, Arena *arena) {
  char name[256];
  int *ranks;
  bool first = true;
  TRY_NEW(ranks, arena_new_n(arena, int, m->size));
  text_json(b, mesh_group_name(m, axes, name, sizeof name));
  text_puts(b, ": [");
  for (int i = 0; i < m->size; i++) {
    int coord[MAX_AXES];
    bool leads = true;
    mesh_coord(m->axis, m->naxes, i, coord);
    for (int a = 0; a < m->naxes; a++) leads &= !(axes >> a & 1) || coord[a] == 0;
    if (!leads) continue;
    int n = mesh_group_ranks(m, axes, coord, ranks);
    text_puts(b, first ? "[" : ", [");
    for (int r = 0; r < n; r++) text_printf(b, "%s%d", r ? ", " : "", ranks[r]);
    text_puts(b, "]");
    first = false;
  }
  text_puts(b, "]");
  return OK;
}

static Status print_groups(TextBuf *b, const Partition *c, Arena *arena) {
  bool first = true;
  text_puts(b, ",\n \"groups\": {");
  for (unsigned axes = 1; axes < 1u << c->mesh->naxes; axes++) {
    if (!c->group[axes]) continue;
    text_puts(b, first ? "\n  " : ",\n  ");
    first = false;
    TRY(print_group(b, c->mesh, axes, arena));
  }
  text_puts(b, first ? "}" : "\n }");
  return OK;
}

/* A size that the files leave open. */
static bool is_open(const Partition *c, const Sym *size) { return sym_first_unbound(size, &c->fixed) != NULL; }

/* [{"dim": 0}, null]: how each axis cuts it; null if none does.  "even": the program wants a
 * size that its ranks can share evenly.  v: the value, NULL if it is none. */
static void print_cuts(TextBuf *b, const Partition *c, const Placement *p, const Val *v) {
  int naxes = c->mesh->naxes;
  bool cut = false;
  for (int a = 0; a < naxes; a++) cut |= is_s(&p[a]);
  if (!cut) {
    text_puts(b, "null");
    return;
  }
  text_puts(b, "[");
  for (int a = 0; a < naxes; a++) {
    if (a) text_puts(b, ", ");
    if (!is_s(&p[a])) {
      text_puts(b, "null");
      continue;
    }
    text_printf(b, "{\"dim\": %d", p[a].dim);
    if (p[a].factor > 1) text_printf(b, ", \"factor\": %lld", (long long)p[a].factor);
    if (p[a].unit > 1) text_printf(b, ", \"unit\": %lld", (long long)p[a].unit);
    if (v && p[a].dim < v->ndim && is_open(c, v->size[p[a].dim])) text_puts(b, ", \"even\": true");
    for (int i = 0; i < p[a].nsegments; i++)
      text_printf(b, "%s%lld", i ? ", " : ", \"segments\": [", (long long)p[a].segment[i]);
    text_puts(b, p[a].nsegments ? "]}" : "}");
  }
  text_puts(b, "]");
}

static void print_files(TextBuf *b, const Partition *c) {
  const Exported *e = c->program;
  bool first = true;
  text_puts(b, ",\n \"files\": {\n  \"inputs\": [");
  for (int i = 0; i < e->graph->ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    if (!first) text_puts(b, ", ");
    first = false;
    print_cuts(b, c, c->marks->input[i].place, e->graph->inputs[i]);
  }
  text_puts(b, "],\n  \"outputs\": [");
  first = true;
  for (int i = 0; i < e->graph->noutputs; i++) {
    if (e->outputs[i].kind != OUT_USER && e->outputs[i].kind != OUT_LOSS) continue;
    if (!first) text_puts(b, ", ");
    first = false;
    print_cuts(b, c, c->marks->output[i].place, NULL);
  }
  text_puts(b, "]\n }\n}\n");
}

/* ---- what people read ------------------------------------------------------------------------------ */

static void report_rank(TextBuf *b, const Mesh *m, int rank, const RankFacts *f) {
  char size[32], group[256];
  text_printf(b, "rank %d: %s of weights, %d nodes\n", rank,
              human_bytes((double)f->weight_bytes, size, sizeof size), f->nodes);
  for (int i = 0; i < f->log.n; i++) {
    const CommEvent *e = &f->log.event[i];
    text_printf(b, "  %-15s %-6s %12s  %s\n", step_kind_name(e->kind),
                mesh_group_name(m, e->axes, group, sizeof group), human_bytes((double)e->bytes, size, sizeof size),
                e->why);
  }
}

static void print_rank(TextBuf *b, const Mesh *m, int rank, const RankFacts *f) {
  char group[256];
  text_printf(b, "\n  {\"rank\": %d, \"weights\": %lld, \"nodes\": %d, \"collectives\": [", rank,
              (long long)f->weight_bytes, f->nodes);
  for (int i = 0; i < f->log.n; i++) {
    const CommEvent *e = &f->log.event[i];
    text_printf(b, "%s\n    {\"kind\": \"%s\", \"group\": ", i ? "," : "", step_kind_name(e->kind));
    text_json(b, mesh_group_name(m, e->axes, group, sizeof group));
    text_printf(b, ", \"bytes\": %lld, \"why\": ", (long long)e->bytes);
    text_json(b, e->why ? e->why : "");
    text_puts(b, "}");
  }
  text_puts(b, "]}");
}

static void report_symbols(TextBuf *b, const Partition *c) {
  for (int i = 0; i < c->program->nranges; i++) {
    const SymRange *r = &c->program->ranges[i];
    const int64_t *m = strmap_get(&c->multiple, r->symbol), *fixed = sym_lookup(&c->fixed, r->symbol);
    if (fixed) text_printf(b, "%s is %lld\n", r->symbol, (long long)*fixed);
    else if (m) text_printf(b, "%s must be a multiple of %lld: ranks share it\n", r->symbol, (long long)*m);
  }
}

static void print_readme(TextBuf *b, const Partition *c) {
  char mesh[256];
  const char *slash = strrchr(c->program->name, '/');
  text_printf(b, "# %s on %s\n", slash ? slash + 1 : c->program->name, mesh_print(c->mesh, mesh, sizeof mesh));
  text_printf(
      b,
      "One exported program per rank, made by `tessera shard`. They talk through functional collectives of named "
      "groups (`plan.json`, `groups`).\n\n"
      "In PyTorch (2.9 or later), on CPUs with gloo or, with `--device cuda`, on GPUs with NCCL:\n"
      "```\ntorchrun --nproc-per-node %d run.py -i in.safetensors -o out.safetensors\n```\n"
      "In tessera, on threads of one process or under mpirun:\n"
      "```\ntessera run . -i in.safetensors -o out.safetensors\nmpirun -n %d tessera run . -i "
      "in.safetensors -o out.safetensors\n```\n"
      "In a program of your own: register a process group under each name "
      "(`torch._C._distributed_c10d._register_process_group`), "
      "`torch.export.load(f\"rank{rank}.pt2\").module()`, call it. "
      "Custom operators and classes that the programs name must be defined before: `import_modules(path)` "
      "of run.py imports their "
      "modules, `run.py --import MODULE` one that it does not find.\n\n"
      "| file | what it is |\n|---|---|\n"
      "| rank*N*.pt2 | the program of rank N, with its part of the weights |\n"
      "| plan.json | the plan, the mesh, the groups, and how inputs and outputs are sharded |\n"
      "| report.txt | weights and collectives of each rank, with their causes |\n"
      "| run.py | loads and runs a rank's program |\n",
      c->mesh->size, c->mesh->size);
}

/* ---- writing ------------------------------------------------------------------------------------------ */

static Status write_text(FolderOut *f, const char *name, const TextBuf *b) {
  const char *path;
  if (b->failed) return fail_oom();
  TRY(folder_out_path(f, name, &path));
  return file_write_all(path, b->text ? b->text : "", b->len, 0);
}

/* All ranks' files, several at a time. */
typedef struct {
  Partition *c;
  const FolderOptions *o;
  const char **path; /* per rank to be written */
  TextBuf *report, *json;
  Status *status;
  atomic_bool stop;
} Ranks;

static int rank_at(const FolderOptions *o, int64_t i) { return o->ranks ? o->ranks[i] : (int)i; }

static Status go_on(const FolderOptions *o) {
  return o->interrupted && o->interrupted() ? fail(ERR_FAIL, "interrupted") : OK;
}

static Status write_rank(Ranks *r, int64_t i) {
  Exported *e;
  RankFacts facts;
  TRY(partition_rank(r->c, rank_at(r->o, i), &e, &facts));
  Status s = pt2_write_unless(e, r->path[i], false, r->o->interrupted);
  if (!s) report_rank(&r->report[i], r->c->mesh, rank_at(r->o, i), &facts);
  if (!s && r->o->json) print_rank(&r->json[i], r->c->mesh, rank_at(r->o, i), &facts);
  exported_free(e);
  rank_facts_free(&facts);
  return s;
}

static void write_some(void *arg, int64_t begin, int64_t end, int worker) {
  Ranks *r = arg;
  (void)worker;
  for (int64_t i = begin; i < end && !atomic_load(&r->stop); i++) {
    r->status[i] = go_on(r->o);
    if (!r->status[i]) r->status[i] = write_rank(r, i);
    if (r->status[i]) atomic_store(&r->stop, true);
    pthread_mutex_lock(&r->c->lock);
    progress_add(r->o->progress, 1);
    pthread_mutex_unlock(&r->c->lock);
  }
}

static Status write_ranks(Partition *c, const FolderOptions *o, FolderOut *f, TextBuf *report) {
  int n = o->ranks ? o->nranks : c->mesh->size;
  Ranks r = {.c = c, .o = o};
  Status s = OK;
  TRY_NEW(r.path, arena_new_n(&f->arena, const char *, n));
  TRY_NEW(r.report, arena_new_n(&f->arena, TextBuf, n));
  TRY_NEW(r.json, arena_new_n(&f->arena, TextBuf, n));
  TRY_NEW(r.status, arena_new_n(&f->arena, Status, n));
  for (int i = 0; i < n; i++) {
    char name[32];
    snprintf(name, sizeof name, "rank%d.pt2", rank_at(o, i));
    TRY(folder_out_path(f, name, &r.path[i]));
  }
  if (o->progress) o->progress->total = n;
  int threads = o->threads ? o->threads : parallel_cores();
  parallel_for(parallel_reserve(threads < n ? threads : n), n, 1, write_some, &r);
  for (int i = 0; i < n; i++) {
    if (r.report[i].text) text_write(report, r.report[i].text, r.report[i].len);
    if (r.json[i].text && o->json->len) text_puts(o->json, ",");
    if (r.json[i].text) text_write(o->json, r.json[i].text, r.json[i].len);
    text_free(&r.report[i]);
    text_free(&r.json[i]);
    if (s) status_free(r.status[i]);
    else s = r.status[i];
  }
  return s;
}

static Status write_plan(Partition *c, const PlanFile *plan, FolderOut *f) {
  TextBuf b = {0};
  Arena arena = {0};
  if (c->marks->derived) plan = c->marks->derived;
  print_mesh(&b, c->mesh);
  if (plan) plan_print_members(&b, plan);
  Status s = print_groups(&b, c, &arena);
  print_files(&b, c);
  if (!s) s = write_text(f, "plan.json", &b);
  arena_free(&arena);
  text_free(&b);
  return s;
}

static Status write_files(Partition *c, const PlanFile *plan, const FolderOptions *o, FolderOut *f,
                          TextBuf *report) {
  const char *run;
  TextBuf readme = {0};
  TRY(write_ranks(c, o, f, report));
  report_symbols(report, c);
  if (c->prepared->notes.text) text_puts(report, c->prepared->notes.text);
  TRY(write_plan(c, plan, f));
  TRY(write_text(f, "report.txt", report));
  TRY(folder_out_path(f, "run.py", &run));
  TRY(file_write_all(run, rank_run, sizeof rank_run - 1, 0));
  print_readme(&readme, c);
  Status s = write_text(f, "README.md", &readme);
  text_free(&readme);
  return s;
}

/* A rank's file, of an earlier and larger mesh. */
static bool is_rank_outside(const void *mesh, const char *name) {
  char *end;
  if (strncmp(name, "rank", 4) || name[4] < '0' || name[4] > '9') return false;
  return strtol(name + 4, &end, 10) >= ((const Mesh *)mesh)->size && !strcmp(end, ".pt2");
}

Status partition_write(Partition *c, const PlanFile *plan, const FolderOptions *o) {
  FolderOut f;
  TextBuf report = {0};
  TRY(folder_out_open(&f, o->folder, o->force));
  f.last = "plan.json";
  f.is_stale = is_rank_outside;
  f.arg = c->mesh;
  Status s = write_files(c, plan, o, &f, &report);
  if (!s && o->report && report.text) text_puts(o->report, report.text);
  text_free(&report);
  if (!s) s = go_on(o);
  if (!s) return folder_out_commit(&f);
  folder_out_discard(&f);
  return s;
}
