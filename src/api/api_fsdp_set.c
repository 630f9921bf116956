/* api_fsdp_set.c -- public functions: gathering by hand, settings, watching and describing fully sharded modules.
 */
#include <stdlib.h>
#include <string.h>

#include "api/fsdp.h"

/* ---- by hand ------------------------------------------------------------------------------------------------ */

typedef Status GroupFn(FsdpGroup *g);

static int each_group(TessCtx *ctx, TessModule *m, GroupFn *fn) {
  FsdpUnit *u;
  if (!API_BEGIN(ctx, GIVEN("the module", m)) || api_stick(ctx, fsdp_unit_of(ctx, m, &u))) return -1;
  for (FsdpGroup *g = u->groups; g; g = g->next)
    if (api_stick(ctx, fn(g))) return -1;
  return 0;
}

int tess_fsdp_wait(TessCtx *ctx, TessModule *m) { return each_group(ctx, m, fsdp_wait_unshard); }
int tess_fsdp_reshard(TessCtx *ctx, TessModule *m) { return each_group(ctx, m, fsdp_reshard); }
int tess_fsdp_materialize(TessCtx *ctx, TessModule *m) { return each_group(ctx, m, fsdp_group_materialize); }
int tess_fsdp_unshard(TessCtx *ctx, TessModule *m, int wait) {
  return each_group(ctx, m, wait ? fsdp_unshard_now : fsdp_unshard);
}

int tess_fsdp_reset(TessCtx *ctx, TessModule *m) {
  FsdpUnit *u;
  if (!API_BEGIN(ctx, GIVEN("the module", m)) || api_stick(ctx, fsdp_unit_of(ctx, m, &u))) return -1;
  return api_stick(ctx, fsdp_reset(u)) ? -1 : 0;
}

/* ---- settings ----------------------------------------------------------------------------------------------- */

static Status set_reshard(FsdpUnit *u, bool on) {
  u->auto_reshard = false;
  for (FsdpGroup *g = u->groups; g; g = g->next)
    TRY(fsdp_group_set_reshard(g, on ? RESHARD_ALWAYS : RESHARD_NEVER, 0));
  return OK;
}

static Status set_most(FsdpUnit *u, double value) {
  if (!(value >= 1 && value <= 1024))
    return fail(ERR_USAGE, "1 to 1024 reductions can be under way, not %g", value);
  u->most_reducing = (int)value;
  if (u->run) u->run->most_reducing = u->most_reducing;
  return OK;
}

static Status set_in_group(FsdpGroup *g, TessFsdpSetting what, double value) {
  const bool on = value != 0;
  switch (what) {
    case TESS_FSDP_GRADIENT_SYNC: g->reduce_grads = g->all_reduce_grads = on; break;
    case TESS_FSDP_ALL_REDUCE: g->all_reduce_grads = on; break;
    case TESS_FSDP_RESHARD_AFTER_BACKWARD: g->reshard_after_backward = on; break;
    case TESS_FSDP_UNSHARD_IN_BACKWARD: g->unshard_in_backward = on; break;
    case TESS_FSDP_FORCE_SUM: g->force_sum = on; break;
    case TESS_FSDP_REDUCE_UNUSED: g->reduce_unused = on; break;
    case TESS_FSDP_DIVIDE_FACTOR:
      if (!(value >= 0)) return fail(ERR_USAGE, "gradients cannot be divided by %g", value);
      g->divide = value;
      break;
    default: return fail(ERR_USAGE, "fully sharded modules have no setting %d", (int)what);
  }
  return OK;
}

static Status set_in_unit(FsdpUnit *u, TessFsdpSetting what, double value) {
  if (what == TESS_FSDP_RESHARD_AFTER_FORWARD) return set_reshard(u, value != 0);
  if (what == TESS_FSDP_MOST_REDUCTIONS) return set_most(u, value);
  if (what == TESS_FSDP_LAST_BACKWARD) {
    u->is_last_backward = value != 0;
    if (u->run) u->run->is_last_backward = value != 0;
    return OK;
  }
  for (FsdpGroup *g = u->groups; g; g = g->next) TRY(set_in_group(g, what, value));
  return OK;
}

int tess_fsdp_set(TessCtx *ctx, TessModule *m, TessFsdpSetting what, double value, int recurse) {
  UnitList units;
  FsdpUnit *u;
  if (!API_BEGIN(ctx, GIVEN("the module", m))) return -1;
  if (!recurse) {
    Status s = fsdp_unit_of(ctx, m, &u);
    return api_stick(ctx, s ? s : set_in_unit(u, what, value)) ? -1 : 0;
  }
  if (api_stick(ctx, fsdp_units_in(m, &units))) return -1;
  for (int i = 0; i < units.n && !ctx->error; i++) api_stick(ctx, set_in_unit(units.v[i], what, value));
  fsdp_units_free(&units);
  return ctx->error ? -1 : 0;
}

static Status set_prefetch(TessCtx *ctx, FsdpUnit *u, bool backward, TessModule *const *modules, int n) {
  FsdpUnit **list, *unit, ***where = backward ? &u->backward_prefetch : &u->forward_prefetch;
  int *count = backward ? &u->nbackward : &u->nforward;
  for (int i = 0; i < n; i++) {
    if (!modules[i]) return fail(ERR_USAGE, "module %d of the list is NULL", i);
    TRY(fsdp_unit_of(ctx, modules[i], &unit));
  }
  TRY_NEW(list, calloc((size_t)n + 1, sizeof *list));
  for (int i = 0; i < n; i++) list[i] = fsdp_unit_ref(modules[i]->fsdp);
  for (int i = 0; i < *count; i++) fsdp_unit_unref((*where)[i]);
  free(*where);
  *where = list;
  *count = n;
  return OK;
}

int tess_fsdp_prefetch(TessCtx *ctx, TessModule *m, int backward, TessModule *const *modules, int n) {
  FsdpUnit *u;
  if (!API_BEGIN(ctx, GIVEN("the module", m), LISTED("the modules", modules, n)) ||
      api_stick(ctx, fsdp_unit_of(ctx, m, &u)))
    return -1;
  return api_stick(ctx, set_prefetch(ctx, u, backward != 0, modules, n)) ? -1 : 0;
}

/* ---- hooks and watching
 * ------------------------------------------------------------------------------------------ */

/* What the caller gave, behind the functions that fsdp/ calls. */
static Status call_all_reduce_hook(void *arg, Ctx *ctx, Tensor *flat) {
  const FsdpGroup *g = arg;
  TessAllReduceHook *fn = (TessAllReduceHook *)g->user_hook;
  int code = fn(ctx, flat, g->user_arg);
  Status s = ctx->error;
  ctx->error = OK;
  return s      ? s
         : code ? fail(ERR_FAIL, "group '%s': the hook of its all-reduce failed with code %d", g->name, code)
                : OK;
}

int tess_fsdp_all_reduce_hook(TessCtx *ctx, TessModule *m, TessAllReduceHook *fn, void *arg) {
  FsdpUnit *u;
  if (!API_BEGIN(ctx, GIVEN("the module", m)) || api_stick(ctx, fsdp_unit_of(ctx, m, &u))) return -1;
  for (FsdpGroup *g = u->groups; g; g = g->next) {
    g->all_reduce_hook = fn ? call_all_reduce_hook : NULL;
    g->all_reduce_arg = g;
    g->user_hook = (void (*)(void))fn;
    g->user_arg = arg;
  }
  return 0;
}

static void tell_user(void *arg, const FsdpNote *n) {
  const FsdpUnit *u = arg;
  const bool reduces = n->event == FSDP_ON_REDUCE_SCATTER || n->event == FSDP_ON_ALL_REDUCE;
  TessFsdpEvent event = {.event = fsdp_event_name(n->event),
                         .group = n->group,
                         .bytes = n->bytes,
                         .dtype = (TessDtype)n->dtype,
                         .op = !reduces           ? ""
                               : n->premultiplied ? "premul_sum"
                                                  : reduce_op_name(n->op),
                         .ranks = n->ranks,
                         .nranks = n->nranks};
  ((TessFsdpWatch *)u->user_watch)(&event, u->user_watch_arg);
}

int tess_fsdp_watch(TessCtx *ctx, TessModule *m, TessFsdpWatch *fn, void *arg) {
  UnitList units;
  if (!API_BEGIN(ctx, GIVEN("the module", m)) || api_stick(ctx, fsdp_units_in(m, &units))) return -1;
  for (int i = 0; i < units.n; i++) {
    units.v[i]->watch = fn ? tell_user : NULL;
    units.v[i]->watch_arg = units.v[i];
    units.v[i]->user_watch = (void (*)(void))fn;
    units.v[i]->user_watch_arg = arg;
  }
  fsdp_units_free(&units);
  return 0;
}

/* ---- describing
 * ---------------------------------------------------------------------------------------------------- */

static void print_sizes(TextBuf *out, const int64_t *size, int n) {
  text_printf(out, "[");
  for (int i = 0; i < n; i++) text_printf(out, "%s%lld", i ? ", " : "", (long long)size[i]);
  text_printf(out, "]");
}

static void print_param(TextBuf *out, const FsdpGroup *g, int i) {
  const FsdpParam *p = &g->param[i];
  char place[256], path[256];
  TextBuf name = {0};
  tess_module_path(p->slot[0].module, path, sizeof path);
  text_printf(&name, "%s%s%s", path, *path ? "." : "", p->slot[0].name);
  text_printf(out, "%s{\"name\": ", i ? ", " : "");
  text_json(out, name.text ? name.text : p->name);
  text_free(&name);
  text_printf(out, ", \"dtype\": \"%s\", \"shape\": ", dtype_name(p->dtype));
  print_sizes(out, p->spec->shape, p->ndim);
  text_printf(out, ", \"placements\": \"%s\", \"local\": ",
              placements_print(p->spec->place, p->spec->mesh->naxes, place, sizeof place));
  print_sizes(out, p->spec->local, p->spec->local_ndim);
  text_printf(out, ", \"shard_at\": %lld, \"gathered_at\": %lld}", (long long)g->shards.at[i],
              (long long)g->whole_at[i]);
}

static void print_group(TextBuf *out, const FsdpGroup *g) {
  static const char *const kind[] = {"FSDP", "HSDP", "DDP"};
#define X(id) &#id[sizeof "FSDP_" - 1],
  static const char *const training[] = { FSDP_TRAINING_STATES(X) }, *const sharded[] = { FSDP_SHARDED_STATES(X) };
#undef X
  text_printf(out, "{\"name\": ");
  text_json(out, g->name ? g->name : "");
  text_printf(out, ", \"kind\": \"%s\", \"state\": \"%s\", \"training\": \"%s\", \"shard_bytes\": %lld, ",
              kind[g->mesh.kind], sharded[g->state], training[g->training], (long long)g->shards.bytes);
  text_printf(out, "\"gathered_bytes\": %lld, \"params\": [", (long long)g->whole_bytes);
  for (int i = 0; i < g->n; i++) print_param(out, g, i);
  text_printf(out, "]}");
}

char *tess_fsdp_json(TessCtx *ctx, TessModule *m) {
  FsdpUnit *u;
  TextBuf out = {0};
  if (!API_BEGIN(ctx, GIVEN("the module", m)) || api_stick(ctx, fsdp_unit_of(ctx, m, &u))) return NULL;
  text_printf(&out, "[");
  for (const FsdpGroup *g = u->groups; g; g = g->next) {
    if (g != u->groups) text_printf(&out, ", ");
    print_group(&out, g);
  }
  text_printf(&out, "]");
  if (!out.failed) return out.text;
  text_free(&out);
  api_stick(ctx, fail_oom());
  return NULL;
}
