/* run_ranks.c -- see run_ranks.h. */
#include "cli/run_ranks.h"

#include "base/clock.h"
#include "dist/mesh.h"
#include "runtime/ranks.h"

enum { MOST_RANKS = 1024 };

typedef struct {
  const RankPrograms *programs;
  const RunOptions *o;
  Prepared *shared; /* the program of all ranks; NULL: each has its own */
  double seconds;   /* that making it took */
} Job;

/* Are the ranks processes of a launch?  A name that is none is refused by run_ranks(). */
static bool are_processes(const RankOptions *ro) {
  const Transport *t = ro->comm ? transport_find(ro->comm) : transport_launched();
  return t && transport_has_processes(t);
}

bool run_ranks_wanted(const RankOptions *ro, const RankPrograms *programs, const RunOptions *o) {
  return o->mesh || ro->ranks != NOT_GIVEN || programs->per_rank || are_processes(ro) || ro->groups.n;
}

/* Files and programs for n ranks? */
static Status check_counts(const RankPrograms *programs, const RunOptions *o, int n) {
  Arena arena = {0};
  const char *path;
  Status s = OK;
  if (programs->per_rank && programs->n != n)
    s = fail(ERR_USAGE, "there are programs for %d rank%s, but %d rank%s", programs->n, PLURAL(programs->n), n,
             PLURAL(n));
  for (int i = 0; i < o->inputs.n && !s; i++) s = rank_input(&arena, o->inputs.v[i], 0, n, &path);
  for (int i = 0; i < o->expect.n && !s; i++) s = rank_input(&arena, o->expect.v[i], 0, n, &path);
  if (o->trace && !s) s = output_check(o->trace, o->force);
  for (int i = 0; i < o->outputs.n && !s; i++) {
    if (!rank_output_is_own(o->outputs.v[i])) s = output_check(o->outputs.v[i], o->force);
    for (int r = 0; r < n && !s; r++) {
      s = rank_output(&arena, o->outputs.v[i], r, &path);
      if (!s) s = output_check(path, o->force);
    }
  }
  arena_free(&arena);
  return s;
}

static Status load(Ctx *ctx, const char *path, const RunOptions *o, Prepared **out) {
  Exported *e;
  TRY(program_load(path, o->weights, &e));
  return prepare(ctx, e, out);
}

static Status mark_program(Job *job) {
  const GradientWords *words = &job->o->gradients;
  GradOptions grad = {0};
  if (words->names) grad = gradient_words_ask(words);
  return prepare_marks(job->shared, job->o->mesh, job->o->plan, words->names ? &grad : NULL);
}

/* One program for all ranks is read, prepared and marked once; ranks that are threads share it. */
static Status load_shared(Job *job) {
  double start = clock_now();
  Ctx ctx;
  if (job->programs->per_rank) return OK;
  ctx_init(&ctx, 1);
  Status s = load(&ctx, job->programs->path[0], job->o, &job->shared);
  if (!s && job->o->mesh) s = mark_program(job);
  ctx_free(&ctx);
  job->seconds = clock_now() - start;
  return s;
}

static Status run_one_rank(Ctx *ctx, World *w, void *arg) {
  const Job *job = arg;
  const RankPrograms *p = job->programs;
  double start = clock_now();
  TRY(check_counts(p, job->o, world_size(w)));
  if (job->shared) return run_calls(ctx, w, job->shared, job->o, job->seconds);
  Prepared *own;
  TRY(load(ctx, p->path[world_rank(w)], job->o, &own));
  Status s = run_calls(ctx, w, own, job->o, clock_now() - start);
  prepared_unref(own);
  return s;
}

static Status list_groups(const RankOptions *ro, const RankPrograms *programs, GroupList *out) {
  if (programs->plan) TRY(group_list_read(out, programs->plan));
  for (int i = 0; i < ro->groups.n; i++) TRY(group_list_add_text(out, ro->groups.v[i]));
  return OK;
}

/* A folder has the programs of all ranks of its mesh. */
static Status check_folder(const RankPrograms *programs, const FolderInputs *cuts) {
  int n = 0;
  if (!cuts->mesh) return OK;
  TRY(status_at(mesh_text_ranks(cuts->mesh, &n), "%s", programs->plan));
  if (programs->n == n) return OK;
  return status_hint(fail(ERR_FILE, "there are programs of %d rank%s, but %s is for the %d of the mesh %s",
                          programs->n, PLURAL(programs->n), programs->plan, n, cuts->mesh),
                     programs->n < n ? "`tessera shard` without --ranks writes them all"
                                     : "files of a larger mesh are left from before: write the folder anew");
}

Status ranks_plain_failure(Status s) {
  if (!s || status_code(s) != ERR_RANK) return s;
  Status plain = fail(ERR_FAIL, "%s", status_message(s));
  status_free(s);
  return plain;
}

Status rank_options_check(const RankOptions *ro) {
  TRY(option_between("-n", ro->ranks, 1, MOST_RANKS));
  if (ro->timeout != BY_DEFAULT && !(ro->timeout >= 0))
    return fail(ERR_USAGE, "--timeout takes a number of seconds from 0 (never) on");
  return OK;
}

Status mesh_plan_read(const char **mesh, const char *path, PlanFile **out) {
  *out = NULL;
  if (path || *mesh) TRY(plan_file_read(path ? path : "auto", out));
  if (*out && !*mesh) *mesh = (*out)->mesh;
  if (!path || *mesh) return OK;
  plan_file_free(*out);
  *out = NULL;
  return status_hint(fail(ERR_USAGE, "--plan needs a mesh, and '%s' tells none", path), "--mesh tp=2");
}

Status mesh_count_ranks(const char *mesh, const RankOptions *ro, int *out) {
  TRY(mesh_text_ranks(mesh, out));
  if (*out <= MOST_RANKS || are_processes(ro)) return OK;
  return status_hint(
      fail(ERR_USAGE, "the mesh %s has %d ranks; at most %d fit in a process", mesh, *out, MOST_RANKS),
      "tessera plan needs no ranks");
}

static Status count_ranks(const RankOptions *ro, const RankPrograms *programs, const RunOptions *o, int *out) {
  *out = ro->ranks != NOT_GIVEN ? (int)ro->ranks : programs->per_rank ? programs->n : 0;
  if (!o->mesh) return OK;
  int n = 0;
  TRY(mesh_count_ranks(o->mesh, ro, &n));
  if (programs->per_rank)
    return status_hint(fail(ERR_USAGE, "--mesh partitions one program, these are the programs of ranks already"),
                       "leave --mesh out");
  if (*out && *out != n) return fail(ERR_USAGE, "-n %d, but the mesh %s has %d ranks", *out, o->mesh, n);
  *out = n;
  return OK;
}

/* A rank's loss comes out of collectives: by its shards it has no gradient that is anybody's step. */
static Status check_gradients(const RankPrograms *programs, const RunOptions *o) {
  if (!o->gradients.names || (!programs->per_rank && o->mesh)) return OK;
  return status_hint(
      fail(ERR_USAGE, programs->per_rank ? "--grad takes one program, these are the programs of ranks"
                                         : "--grad takes a program that one rank or a mesh runs, not one with "
                                           "collectives of its own (-n)"),
      "tessera run loss.pt2 --mesh tp=2 --plan plan.json --grad partitions it, the backward included");
}

Status run_ranks(const RankOptions *ro, const RankPrograms *programs, const RunOptions *o) {
  Ranks ranks = {.threads = o->threads == NOT_GIVEN ? 0 : (int)o->threads, .flight = ro->flight};
  TRY(transport_choose(ro->comm, &ranks.transport));
  if (ro->timeout != BY_DEFAULT) ranks.timeout = &ro->timeout;
  TRY(check_gradients(programs, o));
  TRY(count_ranks(ro, programs, o, &ranks.n));
  if (!transport_has_processes(ranks.transport) && !ranks.n)
    return fail(ERR_USAGE, "--group is for several ranks: say how many with -n N");
  if (ranks.n) TRY(check_counts(programs, o, ranks.n));
  GroupList groups = {0};
  FolderInputs cuts = {0};
  atomic_bool unwritten = false;
  RunOptions mine = *o;
  Job job = {.programs = programs, .o = &mine};
  mine.cuts = &cuts;
  mine.unwritten = &unwritten;
  ranks.groups = &groups;
  Status s = programs->plan ? folder_inputs_read(programs->plan, &cuts) : OK;
  if (!s && programs->plan) s = check_folder(programs, &cuts);
  if (!s) s = list_groups(ro, programs, &groups);
  if (!s) s = load_shared(&job);
  if (!s) s = ranks_run(&ranks, run_one_rank, &job);
  prepared_unref(job.shared);
  folder_inputs_free(&cuts);
  group_list_free(&groups);
  return atomic_load(&unwritten) ? ranks_plain_failure(s) : s;
}
