/* opt.c -- `tessera opt`: passes by name on a program, and its text form.
 *
 * The list is run pass by pass, so that the program can be printed and counted after
 * each; what in it is a step rather than a pass is in opt_steps.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/zip.h"
#include "cli/cli.h"
#include "cli/opt_steps.h"
#include "passes/pass.h"
#include "pt2/write.h"
#include "runtime/session.h"

typedef struct {
  const char *passes, *output, *print_after, *weights, *mesh, *plan;
  int64_t rank;
  bool print, stats, verify, meta, as_run, force, json;
} OptOptions;

static const char examples[] =
    "  tessera opt model.pt2 --print\n"
    "  tessera opt model.pt2 --passes inline,functionalize,dce,cse -o model.txt --stats\n"
    "  tessera opt model.pt2 --passes 'inline,functionalize,specialize(s0=2),recompose' --print-after recompose\n"
    "  tessera opt model.pt2 --as-run --print        the program as `tessera run` executes it\n"
    "  tessera opt loss.pt2 --passes grad -o joint.pt2\n"
    "  tessera opt model.pt2 --mesh tp=2 --plan plan.json --rank 1 --print        as rank 1 has it\n"
    "  tessera opt model.pt2 --mesh tp=2 --passes 'partition,lower_torch(rank=0),dce,overlap(in_order)' -o "
    "rank0.pt2\n"
    "  tessera opt joint.pt2 --passes "
    "'ddp(world_size=4),fuse_ddp_with_concat_op(bucket_size_mb=10),schedule_comm_wait' -o ddp.pt2 --stats\n";

typedef struct {
  Ctx ctx;
  const OptOptions *o;
  const char *path;
  OptSteps steps;
  PrintOptions how;
  TextBuf json; /* of the passes so far */
} OptState;

/* ---- printing ---------------------------------------------------------------------- */

static Status print_program(const OptState *st, FILE *f) {
  TextBuf b = {0};
  graph_print(&b, st->steps.program, st->how);
  Status s = b.failed ? fail_oom() : OK;
  if (!s) fputs(b.text, f);
  text_free(&b);
  return s;
}

/* The same as a member of a JSON object. */
static void json_program(const OptState *st, TextBuf *out) {
  TextBuf b = {0};
  graph_print(&b, st->steps.program, st->how);
  text_puts(out, ", \"text\": ");
  if (!b.failed) text_json(out, b.text);
  out->failed |= b.failed;
  text_free(&b);
}

/* {"program": "model", "verified": true, "passes": [{...}], "text": "..."} */
static Status print_document(OptState *st) {
  TextBuf b = {0};
  text_puts(&b, "{\"program\": ");
  text_json(&b, st->steps.program->name);
  text_printf(&b, ", \"nodes\": %d", st->steps.program->graph->nnodes);
  if (st->o->verify) text_puts(&b, ", \"verified\": true");
  text_printf(&b, ", \"passes\": [%s%s]", st->json.len ? "\n  " : "", st->json.len ? st->json.text : "");
  if (st->o->print) json_program(st, &b);
  text_puts(&b, "}\n");
  Status s = b.failed || st->json.failed ? fail_oom() : OK;
  if (!s) fputs(b.text, stdout);
  text_free(&b);
  return s;
}

static bool is_archive(const char *path) {
  size_t n = strlen(path);
  return n > 4 && !strcmp(path + n - 4, ".pt2");
}

static Status save_archive(const OptState *st) {
  Progress bar;
  for (const Node *n = st->steps.program->graph->first; n; n = n->next) {
    if (strncmp(n->target, "tess.", 5)) continue;
    fprintf(stderr, "note: %s is an op of tessera: PyTorch will not load this file\n", n->target);
    break;
  }
  progress_begin(&bar, stderr, "writing", 0, PROGRESS_BYTES);
  Status s = pt2_write_progress(st->steps.program, st->o->output, st->o->force, &bar);
  progress_end(&bar);
  return s;
}

static Status save(const OptState *st) {
  const char *path = st->o->output;
  if (is_archive(path)) return save_archive(st);
  TextBuf b = {0};
  graph_print(&b, st->steps.program, st->how);
  Status s = b.failed ? fail_oom() : file_write_all(path, b.text, b.len, st->o->force ? FILE_OVERWRITE : 0);
  text_free(&b);
  return s;
}

/* ---- running ------------------------------------------------------------------------ */

static int count_nodes(const Graph *g) {
  int n = 0;
  for (const Node *node = g->first; node; node = node->next) n++;
  return n;
}

/* An object per pass; what the pass has to tell is a list of its lines. */
static void add_json(TextBuf *b, const char *pass, int before, int after, double ms, const char *stats) {
  text_puts(b, b->len ? ",\n  {\"pass\": " : "{\"pass\": ");
  text_json(b, pass);
  text_printf(b, ", \"nodes_before\": %d, \"nodes_after\": %d, \"ms\": %.3f, \"notes\": [", before, after, ms);
  for (const char *line = stats, *end; line && *line; line = *end ? end + 1 : end) {
    end = line + strcspn(line, "\n");
    char *copy = strndup(line, (size_t)(end - line));
    b->failed |= !copy;
    if (line > stats) text_puts(b, ", ");
    if (copy) text_json(b, copy);
    free(copy);
  }
  text_puts(b, "]");
}

/* One item of the list: "name" or "name(options)". */
static Status run_item(OptState *st, char *item) {
  size_t len = strcspn(item, "( ");
  double start = clock_now();
  int before = count_nodes(st->steps.program->graph);
  TextBuf stats = {0};
  Status s;
  if (opt_is_step(item)) s = opt_step(&st->steps, &st->ctx, item);
  else s = pass_run_list(st->steps.program, item, &st->ctx, &stats);
  item[len] = 0;
  st->how.memory |= !strcmp(item, "assign_memory");
  double ms = (clock_now() - start) * 1e3;
  int after = s ? 0 : count_nodes(st->steps.program->graph);
  const char *wanted = st->o->print_after;
  bool print = wanted && (!strcmp(wanted, item) || !strcmp(wanted, "all"));
  if (!s && st->o->json) {
    add_json(&st->json, item, before, after, ms, stats.text);
    if (print) json_program(st, &st->json);
    text_puts(&st->json, "}");
  } else if (!s && st->o->stats) {
    fprintf(stderr, "%-28s %6d -> %d nodes, %.2f ms\n", item, before, after, ms);
    if (stats.text) fputs(stats.text, stderr);
  }
  text_free(&stats);
  TRY(s);
  if (!print || st->o->json) return OK;
  printf("# after %s\n", item);
  return print_program(st, stdout);
}

static Status run_items(OptState *st, char *list) {
  for (char *item; (item = pass_list_next(&list));) {
    if (!strncmp(item, "grad", 4))
      while (list && opt_is_update(list)) TRY(opt_note_update(&st->steps, pass_list_next(&list)));
    TRY(run_item(st, item));
  }
  return OK;
}

/* Before the first one runs: a slip in the last costs no time. */
static Status check_items(const char *passes) {
  TRY(status_at(pass_list_check(passes), "--passes"));
  char *copy = strdup(passes), *rest = copy;
  if (!copy) return fail_oom();
  Status s = OK;
  for (char *item; !s && (item = pass_list_next(&rest));) {
    if (!opt_is_step(item) && !opt_is_update(item)) s = pass_check_list(item);
  }
  free(copy);
  return s;
}

static Status run_passes(OptState *st) {
  const OptOptions *o = st->o;
  char whole[1024];
  if (o->as_run)
    snprintf(whole, sizeof whole, "%s,%s,%s", passes_once, o->mesh ? "partition" : "specialize",
             passes_specialized);
  char *list = strdup(o->as_run ? whole : o->passes ? o->passes : o->mesh ? "partition" : "");
  if (!list) return fail_oom();
  Status s = run_items(st, list);
  free(list);
  return s;
}

/* The checksums of the whole file: weights too, which nobody else looks at. */
static Status verify_file(const char *path) {
  Zip *z;
  Progress bar;
  int64_t total = 0;
  TRY(zip_open(path, &z));
  for (int i = 0; i < z->count; i++) total += (int64_t)z->entries[i].size;
  progress_begin(&bar, stderr, "checking", total, PROGRESS_BYTES);
  Status s = zip_verify(z, &bar);
  progress_end(&bar);
  zip_close(z);
  return s;
}

static Status optimize(OptState *st) {
  const OptOptions *o = st->o;
  bool archive = st->steps.program->file != NULL; /* not text */
  TRY(graph_verify(st->steps.program));
  if (o->verify && archive) TRY(verify_file(st->path));
  TRY(run_passes(st));
  if (o->verify) TRY(graph_check_ops(st->steps.program));
  if (o->verify && !o->json) {
    fprintf(stderr, "%s: well formed, every op is known%s\n", st->steps.program->name,
            archive ? ", the checksums match" : "");
  }
  if (o->output) TRY(save(st));
  if (o->json) return print_document(st);
  return o->print ? print_program(st, stdout) : OK;
}

static bool names_pass(const char *list, const char *name) {
  size_t n = strlen(name);
  for (const char *p = list; (p = strstr(p, name)); p += n) {
    if ((p == list || strchr(", ", p[-1])) && (!p[n] || strchr(",( ", p[n]))) return true;
  }
  return false;
}

static Status check_options(const OptOptions *o, const TextList *words) {
  if (words->n != 1)
    return status_hint(fail(ERR_USAGE, "opt takes one program, %d were given", words->n),
                       "tessera opt model.pt2 --print");
  if (o->as_run && o->passes) return fail(ERR_USAGE, "--as-run and --passes exclude each other");
  if (o->passes) TRY(check_items(o->passes));
  if (o->mesh && o->passes && !names_pass(o->passes, "partition")) {
    return status_hint(fail(ERR_USAGE, "--mesh is for the step 'partition', which is not in the list"),
                       "put it where the program is to be partitioned");
  }
  if (!o->mesh && (o->plan || o->rank != NOT_GIVEN))
    return fail(ERR_USAGE, "%s goes with --mesh", o->plan ? "--plan" : "--rank");
  TRY(option_between("--rank", o->rank, 0, INT32_MAX));
  if (o->print_after && !o->as_run && strcmp(o->print_after, "all") &&
      !(o->passes && names_pass(o->passes, o->print_after))) {
    return fail(ERR_USAGE, "--print-after %s: that pass is not in the list", o->print_after);
  }
  if (o->output) TRY(output_check(o->output, o->force));
  if (!o->print && !o->print_after && !o->output && !o->stats && !o->json && !o->verify) {
    return status_hint(fail(ERR_USAGE, "nothing to do with the result"),
                       "give --print, -o FILE, --stats or --verify");
  }
  return OK;
}

static const Option options[] = {
    {"--passes", 'p', OPT_TEXT | TAKES_PASSES, offsetof(OptOptions, passes), "LIST",
     "passes in order: a,b(x=1),c; `tessera passes` lists them"},
    {"--as-run", 0, OPT_FLAG, offsetof(OptOptions, as_run), NULL,
     "the passes of `tessera run`, at the sizes of the export"},
    {"--mesh", 0, OPT_TEXT | TAKES_MESH, offsetof(OptOptions, mesh), "AXES",
     "partition the program over the ranks of a mesh: tp=2, dp=2,tp=4; the result is one rank's"},
    {"--plan", 0, OPT_TEXT | TAKES_PLAN, offsetof(OptOptions, plan), "FILE",
     "with --mesh: which weights are sharded how, or auto (default)"},
    {"--rank", 0, OPT_INT, offsetof(OptOptions, rank), "N", "with --mesh: whose program (default 0)"},
    {"--print", 0, OPT_FLAG, offsetof(OptOptions, print), NULL, "print the result as text"},
    {"--print-after", 0, OPT_TEXT | TAKES_PASS, offsetof(OptOptions, print_after), "PASS",
     "print the program after that pass (all: after each)"},
    {"--meta", 0, OPT_FLAG, offsetof(OptOptions, meta), NULL, "print the nodes' metadata too"},
    {"--output", 'o', OPT_TEXT | TAKES_FILE, offsetof(OptOptions, output), "FILE",
     "write the result: a .pt2 archive, or text by any other name"},
    {"--stats", 0, OPT_FLAG, offsetof(OptOptions, stats), NULL,
     "nodes and time of each pass, and what it has to tell, to stderr"},
    {"--json", 0, OPT_FLAG, offsetof(OptOptions, json), NULL,
     "the same, and what is printed, as one JSON document, to stdout"},
    {"--verify", 0, OPT_FLAG, offsetof(OptOptions, verify), NULL,
     "check the file's checksums, the result, and that every op is known (exit code 3 if not)"},
    {"--weights", 0, OPT_TEXT | TAKES_FILE, offsetof(OptOptions, weights), "FILE",
     "weights of a program in text form (.pt2 or .safetensors)"},
    {"--force", 'f', OPT_FLAG, offsetof(OptOptions, force), NULL, "overwrite the output file"},
};
const CommandSpec spec_opt = {
    .usage = "PROGRAM [--passes LIST] [options]", .examples = examples, .words = TAKES_PROGRAM, OPTIONS(options)};

Status command_opt(int argc, char **argv) {
  OptOptions o = {.rank = NOT_GIVEN};
  TextList words;
  bool help;
  TRY(options_parse("opt", &spec_opt, &o, argc, argv, &words, &help));
  if (help) return OK;
  TRY(check_options(&o, &words));
  OptState st = {.o = &o, .path = words.v[0], .how = {.meta = o.meta}};
  st.steps = (OptSteps){.mesh = o.mesh, .plan = o.plan, .rank = o.rank == NOT_GIVEN ? 0 : (int)o.rank};
  TRY(program_load(words.v[0], o.weights, &st.steps.program));
  ctx_init(&st.ctx, threads_or_default(0));
  Status s = optimize(&st);
  text_free(&st.json);
  opt_steps_free(&st.steps);
  ctx_free(&st.ctx);
  return s;
}
