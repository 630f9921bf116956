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
#include "pt2/write.h"
#include "rank_files/folder_plan.h"

static const char rank_run[] = {
#include "rank_files/rank_run.inc"
};
static const char rank_train[] = {
#include "rank_files/rank_train.inc"
};

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

static void print_title(TextBuf *b, const Partition *c) {
  char mesh[256];
  const char *slash = strrchr(c->program->name, '/');
  text_printf(b, "# %s on %s\n", slash ? slash + 1 : c->program->name, mesh_print(c->mesh, mesh, sizeof mesh));
}

static void print_readme(TextBuf *b, const Partition *c) {
  print_title(b, c);
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

static void print_training_readme(TextBuf *b, const Partition *c) {
  print_title(b, c);
  text_printf(
      b,
      "One joint program per rank, made by `tessera shard --train`: it gives the loss and the gradients of the "
      "rank's "
      "parameters, reduced over all ranks. They talk through functional collectives of named groups (`plan.json`, "
      "`groups`).\n\n"
      "In PyTorch (2.9 or later), on CPUs with gloo or, with `--device cuda`, on GPUs with NCCL:\n"
      "```\ntorchrun --nproc-per-node %d train.py --data train.safetensors --optim adamw,lr=3e-4 --clip 1 --steps "
      "100 "
      "--save weights.safetensors\n```\n"
      "Loss and gradients of one batch, in tessera:\n"
      "```\ntessera run . -i batch.safetensors -o gradients.safetensors\n```\n"
      "In a program of your own: `Step` of train.py is a rank's program with its shards, to be called with a "
      "batch.\n\n"
      "| file | what it is |\n|---|---|\n"
      "| rank*N*.pt2 | the joint program of rank N, with its part of the weights |\n"
      "| plan.json | the plan, the mesh, the groups, how inputs are sharded (`files`), and parameters and buffers "
      "(`train`) |\n"
      "| report.txt | weights and collectives of each rank, with their causes |\n"
      "| train.py | trains them with torch.optim |\n"
      "| run.py | what train.py needs to load a rank's program |\n",
      c->mesh->size);
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
  Status s = folder_plan_print(&b, c, plan);
  if (!s) s = write_text(f, "plan.json", &b);
  text_free(&b);
  return s;
}

static Status write_script(FolderOut *f, const char *name, const char *text, size_t size) {
  const char *path;
  TRY(folder_out_path(f, name, &path));
  return file_write_all(path, text, size, 0);
}

static Status write_files(Partition *c, const PlanFile *plan, const FolderOptions *o, FolderOut *f,
                          TextBuf *report) {
  TextBuf readme = {0};
  TRY(write_ranks(c, o, f, report));
  report_symbols(report, c);
  if (c->prepared->notes.text) text_puts(report, c->prepared->notes.text);
  TRY(write_plan(c, plan, f));
  TRY(write_text(f, "report.txt", report));
  TRY(write_script(f, "run.py", rank_run, sizeof rank_run - 1));
  if (c->wants_grad) TRY(write_script(f, "train.py", rank_train, sizeof rank_train - 1));
  if (c->wants_grad) print_training_readme(&readme, c);
  else print_readme(&readme, c);
  Status s = write_text(f, "README.md", &readme);
  text_free(&readme);
  return s;
}

/* A rank's file, of an earlier and larger mesh, or what trained the programs that were here. */
static bool is_left_over(const void *partition, const char *name) {
  const Partition *c = partition;
  char *end;
  if (!strcmp(name, "train.py")) return !c->wants_grad;
  if (strncmp(name, "rank", 4) || name[4] < '0' || name[4] > '9') return false;
  return strtol(name + 4, &end, 10) >= c->mesh->size && !strcmp(end, ".pt2");
}

Status partition_write(Partition *c, const PlanFile *plan, const FolderOptions *o) {
  FolderOut f;
  TextBuf report = {0};
  TRY(folder_out_open(&f, o->folder, o->force));
  f.last = "plan.json";
  f.is_stale = is_left_over;
  f.arg = c;
  Status s = write_files(c, plan, o, &f, &report);
  if (!s && o->report && report.text) text_puts(o->report, report.text);
  text_free(&report);
  if (!s) s = go_on(o);
  if (!s) return folder_out_commit(&f);
  folder_out_discard(&f);
  return s;
}
