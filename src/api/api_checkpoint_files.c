/* api_checkpoint_files.c -- public functions: checkpoints that are read, written and made of others. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "ckpt/change.h"
#include "ckpt/sharded_save.h"

struct TessCheckpoint {
  Source *source;
};

TessCheckpoint *tess_checkpoint_open(TessCtx *ctx, const char *path) {
  if (!API_BEGIN(ctx, GIVEN("the path", path))) return NULL;
  TessCheckpoint *c = calloc(1, sizeof *c);
  if (!api_stick(ctx, c ? source_open(path, &c->source) : fail_oom())) return c;
  free(c);
  return NULL;
}

void tess_checkpoint_close(TessCheckpoint *c) {
  if (!c) return;
  source_close(c->source);
  free(c);
}

int tess_checkpoint_count(const TessCheckpoint *c) { return c ? c->source->tensors : 0; }

const char *tess_checkpoint_name(const TessCheckpoint *c, int i) {
  return c && i >= 0 && i < c->source->tensors ? c->source->tensor[i].name : NULL;
}

int tess_checkpoint_verify(TessCtx *ctx, const TessCheckpoint *c) {
  if (!API_BEGIN(ctx, GIVEN("the checkpoint", c))) return -1;
  return api_stick(ctx, source_verify(c->source, &(SourceVerify){.threads = ((Ctx *)ctx)->kern.threads})) ? -1 : 0;
}

static Status load(TessCtx *ctx, const Source *s, const char *name, Tensor **out) {
  const SourceTensor *t = source_find(s, name);
  const int64_t nowhere[MAX_DIMS] = {0};
  if (!t) return fail(ERR_USAGE, "'%s' holds no tensor '%s'", s->path, name);
  if (!dtype_is_compute(t->dtype))
    return fail(ERR_USAGE, "'%s': '%s' has the dtype %s, which tensors of this library do not have", s->path, name,
                dtype_name(t->dtype));
  TRY(tensor_new(api_scope(ctx), t->dtype, t->ndim, t->size, out));
  return source_read(s, t, nowhere, tensor_view(*out));
}

TessTensor *tess_checkpoint_load(TessCtx *ctx, const TessCheckpoint *c, const char *name) {
  Tensor *t = NULL;
  if (!API_BEGIN(ctx, GIVEN("the checkpoint", c), GIVEN("the name", name))) return NULL;
  return api_stick(ctx, load(ctx, c->source, name, &t)) ? NULL : t;
}

int tess_checkpoint_fill(TessCtx *ctx, const TessCheckpoint *c, const char *name, TessTensor *into) {
  if (!API_BEGIN(ctx, GIVEN("the checkpoint", c), GIVEN("the name", name), GIVEN("the tensor", into))) return -1;
  return api_stick(ctx, source_fill(c->source, &(ShardItem){name, into, NULL}, ((Ctx *)ctx)->kern.threads)) ? -1
                                                                                                            : 0;
}

/* ---- saving
 * ------------------------------------------------------------------------------------------------------ */

static Status save_alone(const char *path, const char *format, const SafeItem *items, int n, bool force,
                         int threads) {
  Source *source;
  TRY(source_of_tensors(items, n, &source));
  Change c = {.opened = source, .output = path, .to = format, .fallback = "tessera", .force = force, .sync = true};
  c.how.dtype = DT_NONE;
  c.threads = threads;
  Status s = checkpoint_change(&c, NULL, NULL);
  source_close(source);
  return s;
}

static Status save_together(World *w, const char *path, const SafeItem *items, int n, bool force) {
  ShardItem *shards;
  char mesh[256] = "1";
  TRY_NEW(shards, calloc((size_t)n + 1, sizeof *shards));
  for (int i = 0; i < n; i++) {
    shards[i] = (ShardItem){items[i].name, items[i].tensor, NULL};
    if (items[i].tensor->spec) mesh_text(items[i].tensor->spec->mesh, mesh, sizeof mesh);
  }
  Status s = sharded_save_folder(path, force, world_comm(w), &(SaveFacts){.mesh = mesh}, shards, n);
  free(shards);
  return s;
}

static Status save(TessCtx *ctx, const char *path, const char *format, const SafeItem *items, int n, bool force) {
  World *w = ((PublicCtx *)ctx)->world;
  bool together = w && world_size(w) > 1;
  for (int i = 0; i < n; i++) {
    if (!items[i].name || !*items[i].name || !items[i].tensor)
      return fail(ERR_USAGE, "a tensor to be saved has no name, or is none");
    together |= items[i].tensor->spec != NULL;
  }
  if (!together) return save_alone(path, format, items, n, force, ((Ctx *)ctx)->kern.threads);
  if (format && strcmp(format, "tessera"))
    return status_hint(fail(ERR_USAGE, "several ranks save together as \"tessera\", not as \"%s\"", format),
                       "convert it then: tess_checkpoint_change()");
  return save_together(w, path, items, n, force);
}

int tess_checkpoint_save(TessCtx *ctx, const char *path, const char *format, const char *const *names,
                         const TessTensor *const *tensors, int n, int force) {
  if (!API_BEGIN(ctx, GIVEN("the path", path), LISTED("the names", names, n), LISTED("the tensors", tensors, n)))
    return -1;
  SafeItem *items = calloc((size_t)n + 1, sizeof *items);
  Status s = items ? OK : fail_oom();
  for (int i = 0; !s && i < n; i++) items[i] = (SafeItem){names[i], tensors[i]};
  if (!s) s = save(ctx, path, format, items, n, force != 0);
  free(items);
  return api_stick(ctx, s) ? -1 : 0;
}

/* ---- changing
 * ------------------------------------------------------------------------------------------------------ */

static Status told(void *arg, const Writing *w) {
  change_json(w, arg);
  return OK;
}

static Status change(const TessChange *from, int threads, TextBuf *out) {
  Change c = {.source = from->source,
              .sources = from->sources,
              .output = from->output,
              .to = from->to,
              .mesh = from->mesh,
              .plan = from->plan,
              .program = from->program,
              .shard_bytes = from->shard_bytes,
              .memory = from->memory,
              .threads = from->threads > 0 ? from->threads : threads,
              .force = from->force != 0,
              .sync = true,
              .plan_only = from->dry_run != 0};
  if (from->sources < 1 || !from->source) return fail(ERR_USAGE, "no checkpoint is given");
  for (int i = 0; i < from->sources; i++)
    if (!from->source[i]) return fail(ERR_USAGE, "checkpoint %d is missing", i);
  if (from->renames < 0 || (from->renames && !from->rename)) return fail(ERR_USAGE, "the renamings are missing");
  c.how = (DeriveHow){.select = &from->select,
                      .selects = from->select != NULL,
                      .drop = &from->drop,
                      .drops = from->drop != NULL,
                      .rename = from->rename,
                      .renames = from->renames,
                      .dtype = DT_NONE};
  if (from->dtype) {
    c.how.dtype = dtype_parse(from->dtype);
    if (c.how.dtype == DT_NONE || !dtype_is_float(c.how.dtype))
      return fail(ERR_USAGE, "a checkpoint is cast to f32, bf16, f16 or f64, not to '%s'", from->dtype);
  }
  TRY(checkpoint_change(&c, told, out));
  return out->failed || !out->text ? fail_oom() : OK;
}

char *tess_checkpoint_change(TessCtx *ctx, const TessChange *from) {
  TextBuf out = {0};
  if (!API_BEGIN(ctx, GIVEN("the change", from))) return NULL;
  if (!api_stick(ctx, change(from, ((Ctx *)ctx)->kern.threads, &out))) return out.text;
  text_free(&out);
  return NULL;
}
