/* opt_steps.c -- see opt_steps.h. */
#include "cli/opt_steps.h"

#include <stdlib.h>
#include <string.h>

#include "dist/dispatch.h"
#include "passes/pass.h"
#include "runtime/auto_plan.h"
#include "runtime/feed_sizes.h"
#include "runtime/session.h"
#include "runtime/shards.h"
#include "runtime/specialize.h"

static bool is_named(const char *item, const char *name) {
  size_t n = strlen(name);
  return !strncmp(item, name, n) && (!item[n] || strchr("( ", item[n]));
}

bool opt_is_step(const char *item) { return is_named(item, "specialize") || is_named(item, "partition"); }

static Status bind_from_text(SymBindings *b, const char *step, char *text) {
  for (char *rest, *item = strtok_r(text, ", ", &rest); item; item = strtok_r(NULL, ", ", &rest)) {
    char *equals = strchr(item, '='), *end = NULL;
    long long value = equals ? strtoll(equals + 1, &end, 10) : 0;
    if (!equals || end == equals + 1 || *end)
      return fail(ERR_USAGE, "%s: '%s' is not of the form symbol=number", step, item);
    *equals = 0;
    bool found = false;
    for (int i = 0; i < b->n; i++) {
      if (strcmp(b->v[i].name, item)) continue;
      b->v[i].value = value;
      found = true;
    }
    if (!found)
      return status_hint(fail(ERR_USAGE, "%s: the inputs have no symbol '%s'", step, item),
                         "`tessera inspect` lists them");
  }
  return OK;
}

/* The mesh as the rank sees it; the rank need not be there. */
static Status place_rank(OptSteps *s, Mesh **out) {
  TRY(dist_new(NULL, &s->dist));
  TRY(mesh_parse(s->dist, s->mesh, out));
  if (!mesh_coord_of(*out, s->rank, (*out)->coord))
    return fail(ERR_USAGE, "--rank %d: the mesh %s has ranks 0 to %d", s->rank, s->mesh, (*out)->size - 1);
  (*out)->inside = true;
  return OK;
}

/* mark: what the plan makes of every weight and input. */
static Status mark_rank(OptSteps *s, Ctx *ctx, Specialize *how) {
  PlanFile *plan;
  Mesh *mesh;
  Tensor **state;
  if (!s->mesh)
    return status_hint(fail(ERR_USAGE, "partition makes the program of one rank of a mesh, and there is none"),
                       "give --mesh tp=2");
  TRY(place_rank(s, &mesh));
  TRY(pass_run_list(s->program, passes_once, ctx, NULL));
  TRY(plan_file_read(s->plan ? s->plan : "auto", &plan));
  Status status = mark_with_plan(s->program, mesh, plan, NULL, &s->marks);
  plan_file_free(plan);
  TRY(status);
  TRY(shards_of_state(&ctx->kern, s->program, s->marks, &s->scope, &s->arena, &state));
  *how = (Specialize){.marks = s->marks, .state = state};
  return OK;
}

static Status make(OptSteps *s, Ctx *ctx, bool cut, SymBindings *sizes, Exported **out) {
  Specialize how = {0};
  Value *inputs;
  int n;
  if (cut) TRY(mark_rank(s, ctx, &how));
  TRY(feed_sizes(s->program, sizes, &s->scope, &s->arena, &inputs, &n));
  if (cut) ctx_attach_dist(ctx, s->dist);
  Status status = specialize(ctx, s->program, &how, inputs, n, out);
  if (cut) ctx_detach_dist(ctx);
  return status;
}

Status opt_step(OptSteps *s, Ctx *ctx, char *item) {
  bool cut = is_named(item, "partition");
  const char *name = cut ? "partition" : "specialize";
  char *options = item + strlen(name), *end = strrchr(options, ')');
  SymBindings sizes;
  Exported *made;
  if (end) *end = 0;
  if (*options == '(') options++;
  if (s->source)
    return fail(ERR_USAGE,
                "%s: the sizes are numbers already; one of specialize and partition may stand in the list, once",
                name);
  TRY(graph_check_ops(s->program));
  TRY(feed_symbols(s->program, true, &sizes));
  Status status = bind_from_text(&sizes, name, options);
  if (!status) status = make(s, ctx, cut, &sizes, &made);
  free(sizes.v);
  if (status) return status_at(status, "%s", name);
  s->source = s->program;
  s->program = made;
  return OK;
}

void opt_steps_free(OptSteps *s) {
  exported_free(s->program);
  marks_free(s->marks);
  exported_free(s->source);
  scope_clear(&s->scope);
  arena_free(&s->arena);
  dist_free(s->dist);
}
