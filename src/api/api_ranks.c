/* api_ranks.c -- public functions: ranks, meshes and what watches them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/parallel.h"
#include "comm/groups.h"
#include "dist/dtensor.h"
#include "runtime/ranks.h"

static PublicCtx *inside(const TessCtx *ctx) { return (PublicCtx *)(uintptr_t)ctx; }

/* ---- worlds ---------------------------------------------------------------------------------- */

/* Makes the context one rank of a world (w NULL: of one that plans). */
static Status api_join_world(TessCtx *ctx, World *w) {
  Dist *d = NULL;
  TRY(dist_new(w, &d));
  Status s = w ? groups_new(w, &ctx->groups) : OK;
  if (s) {
    dist_free(d);
    return s;
  }
  inside(ctx)->world = w;
  if (w) ctx->kern.sharers = world_size(w);
  ctx_attach_dist(ctx, d);
  return OK;
}

void api_leave_world(TessCtx *ctx) {
  PublicCtx *p = inside(ctx);
  api_end_fsdp(ctx);
  while (p->logs) free(tess_comm_debug_end(ctx));
  if (ctx->groups && groups_busy(ctx->groups) && ctx->error) world_fail(p->world, ctx->error);
  groups_free(ctx->groups);
  ctx->groups = NULL;
  scope_clear(&ctx->scope); /* handles point to specs */
  dist_free(ctx->dist);
  ctx_detach_dist(ctx);
  if (p->owns_world && p->world && ctx->error) world_fail(p->world, ctx->error);
  if (p->owns_world) world_free(p->world);
  p->world = NULL;
}

Status api_dist(TessCtx *ctx, Dist **out) {
  PublicCtx *p = inside(ctx);
  if (!ctx->dist) {
    World *w = NULL;
    if (!p->plans) TRY(world_alone(&w));
    Status s = api_join_world(ctx, w);
    if (s) {
      world_free(w);
      return s;
    }
    p->owns_world = w != NULL;
  }
  *out = ctx->dist;
  return OK;
}

TessCtx *tess_ctx_plan(void) {
  TessCtx *ctx = tess_ctx_new(1);
  Dist *d = NULL;
  if (!ctx) return NULL;
  inside(ctx)->plans = true;
  api_stick(ctx, api_dist(ctx, &d));
  return ctx;
}

TessCtx *tess_ctx_mpi(int threads) {
  World *w = NULL;
  Status s = world_join(transport_find("mpi"), &w);
  TessCtx *ctx = tess_ctx_new(threads > 0 || !w ? threads : ranks_threads(w));
  if (!ctx) {
    world_free(w);
    status_free(s);
    return NULL;
  }
  if (!s) s = api_join_world(ctx, w);
  if (s) world_free(w);
  else inside(ctx)->owns_world = true;
  api_stick(ctx, s);
  return ctx;
}

typedef struct {
  TessRankFn *fn;
  void *arg;
  int threads;
} Launch;

static Status call_with_context(World *w, void *arg) {
  const Launch *l = arg;
  TessCtx *ctx = tess_ctx_new(l->threads);
  if (!ctx) return fail_oom();
  int code = 0;
  if (!api_stick(ctx, api_join_world(ctx, w))) code = l->fn(ctx, l->arg);
  Status s = ctx->error;
  ctx->error = OK;
  if (!s && code) s = fail(ERR_RANK, "its function returned %d", code);
  tess_ctx_free(ctx);
  return s;
}

static int share_of_cores(int n) {
  int cores = parallel_cores();
  return cores > n ? cores / n : 1;
}

static int tell(Status s, char *error, size_t cap) {
  int code = s ? (int)status_code(s) : 0;
  if (error && cap) snprintf(error, cap, "%s", s ? status_message(s) : "");
  status_free(s);
  return code;
}

int tess_run_ranks(int n, int threads, TessRankFn *fn, void *arg, char *error, size_t cap) {
  if (n < 1) return tell(fail(ERR_USAGE, "%d ranks; at least 1 is wanted", n), error, cap);
  if (!fn) return tell(fail(ERR_USAGE, "tess_run_ranks: the function is NULL"), error, cap);
  Launch l = {fn, arg, threads > 0 ? threads : share_of_cores(n)};
  return tell(world_threads(n, call_with_context, &l, NULL), error, cap);
}

struct TessHub {
  Hub *hub;
  int n;
  char *error;
};

TessHub *tess_hub_new(int n) {
  TessHub *h = n < 1 ? NULL : calloc(1, sizeof *h);
  if (!h) return NULL;
  h->n = n;
  Status s = hub_new(n, &h->hub);
  if (!s) return h;
  status_free(s);
  free(h);
  return NULL;
}

TessCtx *tess_hub_join(TessHub *hub, int rank, int threads) {
  TessCtx *ctx = hub ? tess_ctx_new(threads > 0 ? threads : share_of_cores(hub->n)) : NULL;
  World *w = NULL;
  if (!ctx) return NULL;
  if (!api_stick(ctx, hub_join(hub->hub, rank, &w))) api_stick(ctx, api_join_world(ctx, w));
  return ctx;
}

void tess_hub_leave(TessCtx *ctx, const char *failure) {
  if (!ctx) return;
  World *w = inside(ctx)->owns_world ? NULL : inside(ctx)->world; /* by itself: it is in no hub */
  Status s = ctx->error;
  ctx->error = OK;
  if (!s && failure) s = fail(ERR_RANK, "%s", failure);
  tess_ctx_free(ctx);
  if (w) hub_leave(w, s);
  status_free(s);
}

void tess_hub_fail(TessHub *hub, const char *message) {
  if (hub) hub_fail(hub->hub, ERR_RANK, message ? message : "the run was ended");
}

const char *tess_hub_error(TessHub *hub) {
  if (!hub) return "";
  Status s = hub_collect(hub->hub, NULL);
  free(hub->error);
  hub->error = s ? strdup(status_message(s)) : NULL;
  status_free(s);
  return hub->error ? hub->error : "";
}

void tess_hub_free(TessHub *hub) {
  if (!hub) return;
  hub_free(hub->hub);
  free(hub->error);
  free(hub);
}

static World *world_of(const TessCtx *ctx) { return ctx ? inside(ctx)->world : NULL; }

int tess_rank(const TessCtx *ctx) { return world_of(ctx) ? world_rank(world_of(ctx)) : 0; }
int tess_world_size(const TessCtx *ctx) { return world_of(ctx) ? world_size(world_of(ctx)) : 1; }

int tess_define_group(TessCtx *ctx, const char *name, const int *ranks, int n) {
  if (!API_BEGIN(ctx, GIVEN("the name", name), LISTED("the ranks", ranks, n))) return -1;
  if (!ctx->groups)
    return api_stick(ctx, fail(ERR_USAGE, "group '%s': this context is no rank of a world", name)) ? -1 : 0;
  return api_stick(ctx, groups_define(ctx->groups, name, ranks, n)) ? -1 : 0;
}

void tess_set_timeout(TessCtx *ctx, double seconds) {
  if (world_of(ctx)) world_set_timeout(world_of(ctx), seconds);
}

int tess_set_flight(TessCtx *ctx, const char *path) {
  if (!API_READY(ctx)) return -1;
  if (!world_of(ctx)) return 0;
  return api_stick(ctx, world_set_flight(world_of(ctx), path)) ? -1 : 0;
}

void tess_fail(TessCtx *ctx, const char *message) {
  if (!world_of(ctx)) return;
  Status s = fail(ERR_RANK, "%s", message ? message : "it gave up");
  world_fail(world_of(ctx), s);
  status_free(s);
}

int tess_mpi_launched(void) { return transport_launched() == transport_find("mpi"); }

int tess_barrier(TessCtx *ctx) {
  if (!API_READY(ctx)) return -1;
  if (!world_of(ctx)) return 0;
  return api_stick(ctx, comm_barrier(world_comm(world_of(ctx)), "tess_barrier")) ? -1 : 0;
}

/* ---- meshes ------------------------------------------------------------------------------------ */

TessMesh *tess_mesh_from_ranks(TessCtx *ctx, int naxes, const int *sizes, const char *const *names,
                               const int *ranks) {
  Dist *d = NULL;
  Mesh *m = NULL;
  if (!API_BEGIN(ctx, LISTED("the sizes", sizes, naxes)) || api_stick(ctx, api_dist(ctx, &d))) return NULL;
  return api_stick(ctx, mesh_new(d, sizes, naxes, names, ranks, &m)) ? NULL : m;
}

TessMesh *tess_init_device_mesh(TessCtx *ctx, int naxes, const int *sizes, const char *const *names) {
  return tess_mesh_from_ranks(ctx, naxes, sizes, names, NULL);
}

static Status find_axes(const Mesh *m, const char *const *names, int n, int *axes) {
  if (n < 1 || n > MAX_AXES) return fail(ERR_USAGE, "%d axis names; 1 to %d are wanted", n, MAX_AXES);
  for (int i = 0; i < n; i++) {
    if (!names[i]) return fail(ERR_USAGE, "axis name %d is NULL", i);
    axes[i] = mesh_axis_named(m, names[i]);
    if (axes[i] >= 0) continue;
    char text[256];
    return fail(ERR_USAGE, "%s has no axis '%s'", mesh_print(m, text, sizeof text), names[i]);
  }
  return OK;
}

TessMesh *tess_mesh_sub(TessCtx *ctx, TessMesh *mesh, const char *const *names, int n) {
  int axes[MAX_AXES];
  Mesh *m = NULL;
  if (!API_BEGIN(ctx, GIVEN("the mesh", mesh), LISTED("the names", names, n)) ||
      api_stick(ctx, find_axes(mesh, names, n, axes)))
    return NULL;
  return api_stick(ctx, mesh_sub(mesh, axes, n, &m)) ? NULL : m;
}

TessMesh *tess_mesh_flatten(TessCtx *ctx, TessMesh *mesh, const char *const *names, int n, const char *name) {
  int axes[MAX_AXES];
  Mesh *m = NULL;
  if (!API_BEGIN(ctx, GIVEN("the mesh", mesh), LISTED("the names", names, n)) ||
      api_stick(ctx, find_axes(mesh, names, n, axes)))
    return NULL;
  return api_stick(ctx, mesh_flatten(mesh, axes, n, name, &m)) ? NULL : m;
}

int tess_mesh_ndim(const TessMesh *mesh) { return mesh ? mesh->naxes : 0; }
int tess_mesh_size(const TessMesh *mesh, int axis) {
  return !mesh ? 0 : axis < 0 ? mesh->size : axis < mesh->naxes ? mesh->axis[axis] : 0;
}
const char *tess_mesh_name(const TessMesh *mesh, int axis) {
  return mesh && axis >= 0 && axis < mesh->naxes ? mesh->name[axis] : NULL;
}
const char *tess_mesh_repr(const TessMesh *mesh, char *buf, size_t cap) {
  if (!buf || !cap) return "";
  buf[0] = 0;
  return mesh ? mesh_print(mesh, buf, cap) : buf;
}
const int *tess_mesh_ranks(const TessMesh *mesh) { return mesh ? mesh->rank : NULL; }

int tess_mesh_coordinate(const TessMesh *mesh, int *coord) {
  if (!mesh || !mesh->inside) return -1;
  if (coord) memcpy(coord, mesh->coord, (size_t)mesh->naxes * sizeof *coord);
  return 0;
}

TessMesh *tess_set_mesh(TessCtx *ctx, TessMesh *mesh) {
  Dist *d = NULL;
  if (!API_READY(ctx) || api_stick(ctx, api_dist(ctx, &d))) return NULL;
  Mesh *former = d->current;
  d->current = mesh;
  return former;
}

/* ---- watching ------------------------------------------------------------------------------------ */

typedef struct OpenLog {
  CommLog log;
  struct OpenLog *outer;
} OpenLog;

int tess_comm_debug_begin(TessCtx *ctx) {
  Dist *d = NULL;
  if (!API_READY(ctx) || api_stick(ctx, api_dist(ctx, &d))) return -1;
  OpenLog *open = calloc(1, sizeof *open);
  if (!open) return api_stick(ctx, fail_oom()) ? -1 : 0;
  open->outer = inside(ctx)->logs;
  inside(ctx)->logs = open;
  comm_log_begin(d, &open->log);
  return 0;
}

static void print_log(const CommLog *log, TextBuf *out) {
  text_printf(out, "{\"total\": %d, \"counts\": {", log->n);
  bool first = true;
  for (int k = 0; k < STEP_KIND_COUNT; k++) {
    if (!log->count[k]) continue;
    text_printf(out, "%s\"%s\": %d", first ? "" : ", ", step_kind_name((StepKind)k), log->count[k]);
    first = false;
  }
  text_puts(out, "}, \"events\": [");
  for (int i = 0; i < log->n; i++) {
    const CommEvent *e = &log->event[i];
    text_printf(out, "%s{\"kind\": \"%s\", \"bytes\": %lld, \"why\": ", i ? ", " : "", step_kind_name(e->kind),
                (long long)e->bytes);
    text_json(out, e->why);
    text_puts(out, "}");
  }
  text_puts(out, "]}");
}

char *tess_comm_debug_end(TessCtx *ctx) {
  OpenLog *open = ctx ? inside(ctx)->logs : NULL;
  if (!ctx) return NULL;
  if (!open) {
    api_stick(ctx, fail(ERR_USAGE, "tess_comm_debug_end without begin"));
    return NULL;
  }
  inside(ctx)->logs = open->outer;
  comm_log_end(ctx->dist, &open->log);
  TextBuf out = {0};
  print_log(&open->log, &out);
  comm_log_free(&open->log);
  free(open);
  if (out.failed) api_stick(ctx, fail_oom());
  return out.text;
}

int tess_explicit_redistribution(TessCtx *ctx, int level) {
  Dist *d = NULL;
  if (!ctx || api_stick(ctx, api_dist(ctx, &d))) return -1;
  return (int)dist_set_implicit(d, level <= 0 ? IMPLICIT_ALLOWED : level == 1 ? IMPLICIT_LOUD : IMPLICIT_STRICT);
}

int tess_implicit_replication(TessCtx *ctx, int on) {
  Dist *d = NULL;
  if (!ctx || api_stick(ctx, api_dist(ctx, &d))) return -1;
  bool former = d->implicit_replication;
  d->implicit_replication = on != 0;
  return former;
}

char *tess_flight_json(TessCtx *ctx) {
  TextBuf out = {0};
  if (!ctx) return NULL;
  if (!world_of(ctx)) text_puts(&out, "[]");
  else if (api_stick(ctx, world_flight_json(world_of(ctx), &out))) {
    text_free(&out);
    return NULL;
  }
  return out.text;
}

void tess_free(void *text) { free(text); }
