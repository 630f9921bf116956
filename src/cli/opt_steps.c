/* opt_steps.c -- see opt_steps.h. */
#include "cli/opt_steps.h"

#include <stdlib.h>
#include <string.h>

#include "dist/dispatch.h"
#include "passes/pass.h"
#include "rank_files/partition.h"
#include "runtime/auto_plan.h"
#include "runtime/feed_sizes.h"
#include "runtime/session.h"
#include "runtime/shards.h"
#include "runtime/specialize.h"

static bool is_named(const char *item, const char *name) {
  size_t n = strlen(name);
  return !strncmp(item, name, n) && (!item[n] || strchr("( ", item[n]));
}

bool opt_is_step(const char *item) {
  return is_named(item, "specialize") || is_named(item, "partition") || is_named(item, "grad");
}

/* What is in brackets, or stands behind the name; it is taken apart. */
static Status options_of(char *item, char **out) {
  char *options = item + strcspn(item, "( "), *end = strrchr(options, ')');
  if (*options == '(' && (!end || end[1])) return fail(ERR_USAGE, "'%s' does not end with a bracket", item);
  if (end) *end = 0;
  *out = *options == '(' ? options + 1 : options;
  return OK;
}

static Status bind_from_text(SymBindings *b, const char *step, char *text, bool *grad) {
  for (char *rest, *item = strtok_r(text, ", ", &rest); item; item = strtok_r(NULL, ", ", &rest)) {
    if (!strcmp(item, "grad")) {
      *grad = true;
      continue;
    }
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
static Status mark_rank(OptSteps *s, Ctx *ctx, bool grad, Specialize *how) {
  PlanFile *plan;
  Mesh *mesh;
  Tensor **state;
  if (!s->mesh)
    return status_hint(fail(ERR_USAGE, "partition makes the program of one rank of a mesh, and there is none"),
                       "give --mesh tp=2");
  TRY(place_rank(s, &mesh));
  TRY(pass_run_list(s->program, passes_once_for_torch, ctx, NULL));
  TRY(plan_file_read(s->plan ? s->plan : "auto", &plan));
  Status status = mark_with_plan(s->program, mesh, plan, grad ? &(GradOptions){0} : NULL, NULL, &s->marks);
  plan_file_free(plan);
  TRY(status);
  TRY(shards_of_state(&ctx->kern, s->program, s->marks, &s->scope, &s->arena, &state));
  *how = (Specialize){.marks = s->marks, .state = state};
  return OK;
}

static Status make(OptSteps *s, Ctx *ctx, bool cut, bool grad, SymBindings *sizes, Exported **out) {
  Specialize how = {0};
  GradRequest wanted;
  Value *inputs;
  int n;
  if (cut) TRY(mark_rank(s, ctx, grad, &how));
  if (grad && !cut) TRY(pass_run_list(s->program, passes_once_for_torch, ctx, NULL));
  if (grad) TRY(grad_request(s->program, &(GradOptions){0}, &s->arena, &wanted));
  if (grad) how.grad = &wanted;
  TRY(feed_sizes(s->program, sizes, &s->scope, &s->arena, &inputs, &n));
  if (cut) ctx_attach_dist(ctx, s->dist);
  Status status = specialize(ctx, s->program, &how, inputs, n, out);
  if (cut) ctx_detach_dist(ctx);
  return status;
}

/* The words of grad(...). */
static Status grad_options(OptSteps *s, char *text, GradOptions *o) {
  for (char *rest, *item = strtok_r(text, ", ", &rest); item; item = strtok_r(NULL, ", ", &rest)) {
    char *equals = strchr(item, '=');
    size_t n = equals ? (size_t)(equals - item) : strlen(item);
    if (n == 4 && equals && !strncmp(item, "loss", n)) o->loss = equals + 1;
    else if (n == 6 && !equals && !strncmp(item, "inputs", n)) o->inputs = true;
    else if (n == 10 && equals && !strncmp(item, "parameters", n))
      TRY_NEW(o->parameters, o->parameters ? arena_printf(&s->arena, "%s,%s", o->parameters, equals + 1)
                                           : arena_printf(&s->arena, "%s", equals + 1));
    else
      return status_hint(fail(ERR_USAGE, "grad: there is no option '%s'", item),
                         "loss=OUTPUT, parameters=PATTERN (may be repeated), inputs");
  }
  return OK;
}

/* ---- what is done with the gradients ------------------------------------------------------------------- */

static bool is_optimizer(const char *item) {
  for (int i = 0; optimizer_at(i); i++)
    if (is_named(item, optimizer_at(i)->name)) return true;
  return false;
}

bool opt_is_update(const char *list) {
  list += strspn(list, " ");
  size_t n = strcspn(list, ",( ");
  char name[64];
  if (n >= sizeof name) return false;
  memcpy(name, list, n);
  name[n] = 0;
  return !strcmp(name, "clip_grad_norm") || !strcmp(name, "clip_grad_value") || is_optimizer(name);
}

static void remove_spaces(char *text) {
  char *to = text;
  for (; *text; text++)
    if (*text != ' ') *to++ = *text;
  *to = 0;
}

Status opt_note_update(OptSteps *s, char *item) {
  char *options;
  const char *text;
  char name[64];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(item, "( "), item);
  TRY(options_of(item, &options));
  remove_spaces(options);
  if (s->recipe.ngroups)
    return fail(ERR_USAGE, "%s: the optimizer is the last thing that is done with the gradients", name);
  if (!strcmp(name, "clip_grad_norm")) return recipe_clip(&s->clip, options);
  if (!strcmp(name, "clip_grad_value")) {
    TRY_NEW(text, arena_printf(&s->arena, "value=%s", !strncmp(options, "max=", 4) ? options + 4 : options));
    return recipe_clip(&s->clip, text);
  }
  TRY_NEW(text, arena_printf(&s->arena, "%s,%s", name, options));
  TRY(recipe_init(&s->recipe, &s->arena, text));
  s->recipe.clip_norm = s->clip.clip_norm;
  s->recipe.clip_value = s->clip.clip_value;
  if (s->clip.norm_type > 0) s->recipe.norm_type = s->clip.norm_type;
  return OK;
}

/* What the optimizer keeps, as it is before the first step: a file has it in full. */
static Status fill_state(Kern *k, Exported *e) {
  for (int i = 0; i < e->nstate; i++) {
    StateEntry *s = &e->state[i];
    if (!s->is_filled || !s->tensor) continue;
    TRY(tensor_new(&e->scope, s->tensor->dtype, s->tensor->ndim, s->tensor->size, &s->tensor));
    update_fill(k, s, s->tensor);
    s->is_filled = false;
  }
  return OK;
}

/* One rank that is alone: a mesh of one, on which the whole is its shard. */
static Status make_joint(OptSteps *s, Ctx *ctx, char *options) {
  GradOptions o = {0};
  RankFacts facts;
  Exported *e = s->program, *made;
  TRY(grad_options(s, options, &o));
  s->program = NULL; /* taken over */
  if (s->clip.clip_norm + s->clip.clip_value > 0 && !s->recipe.ngroups) {
    exported_free(e);
    return status_hint(fail(ERR_USAGE, "gradients are clipped, but nothing is done with them"),
                       "an optimizer follows: grad,clip_grad_norm(max=1),adamw(lr=3e-4)");
  }
  const PartitionStep step = {&s->recipe, &o};
  TRY(partition_open(e, "dp=1", NULL, s->recipe.ngroups ? &step : NULL, &s->joint));
  if (!s->recipe.ngroups) TRY(partition_want_gradients(s->joint, &o));
  TRY(partition_rank(s->joint, 0, &made, &facts));
  rank_facts_free(&facts);
  s->program = made;
  return fill_state(&ctx->kern, made);
}

Status opt_step(OptSteps *s, Ctx *ctx, char *item) {
  bool cut = is_named(item, "partition"), grad = false;
  const char *name = cut ? "partition" : "specialize";
  char *options;
  SymBindings sizes;
  Exported *made;
  TRY(options_of(item, &options));
  TRY(graph_check_ops(s->program));
  if (is_named(item, "grad")) {
    if (s->source || s->joint)
      return fail(ERR_USAGE,
                  "grad stands once in a list, before specialize; see specialize(grad), partition(grad)");
    return status_at(make_joint(s, ctx, options), "grad");
  }
  if (s->source)
    return fail(ERR_USAGE,
                "%s: the sizes are numbers already; one of specialize and partition may stand in the list, once",
                name);
  TRY(feed_symbols(s->program, true, &sizes));
  Status status = bind_from_text(&sizes, name, options, &grad);
  if (!status) status = make(s, ctx, cut, grad, &sizes, &made);
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
  partition_free(s->joint);
  scope_clear(&s->scope);
  arena_free(&s->arena);
  dist_free(s->dist);
}
