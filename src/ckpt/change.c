/* change.c -- see change.h. */
#include "ckpt/change.h"

#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "ckpt/place_plan.h"

static Status find_format(const Change *c, const Source *first, const WriteFormat **out) {
  static const struct { const char *end, *format; } ends[] = {{".safetensors", "safetensors"}, {".pt2", "pt2"}};
  const char *name = c->to;
  size_t n = strlen(c->output);
  for (size_t i = 0; !name && i < sizeof ends / sizeof *ends; i++)
    if (n > strlen(ends[i].end) && !strcmp(c->output + n - strlen(ends[i].end), ends[i].end)) name = ends[i].format;
  if (!name) name = c->fallback;
  if (!name) { /* a folder, of the source's format if that has folders */
    const WriteFormat *same = write_format_find(first->format->name);
    name = c->mesh ? "tessera" : same && same->folder ? same->name : "hf";
  }
  *out = write_format_find(name);
  if (*out) return OK;
  const char *near = NULL;
  for (int i = 0; i < write_format_count; i++) near = nearer_name(name, near, write_formats[i].name);
  Status s = fail(ERR_USAGE, "'%s' is no format that checkpoints are written in", name);
  if (near) return status_hint(s, "did you mean '%s'?", near);
  return status_hint(s, "formats: tessera, hf, safetensors, dcp, pt2");
}

/* ---- the mesh
 * ----------------------------------------------------------------------------------------------------- */

typedef struct {
  Dist *dist;
  PlanFile *plan;
  PlacePlan place;
  WriteMesh mesh;
} OnMesh;

static Status open_mesh(const Change *c, const Derived *d, OnMesh *m) {
  Mesh *mesh;
  const char *text = c->mesh;
  if (c->plan) TRY(plan_file_read(c->plan, &m->plan));
  if (m->plan && m->plan->automatic)
    return status_hint(fail(ERR_USAGE, "a plan is derived from a program, and there is none here"),
                       "--plan plan.json");
  if (!text) text = m->plan->mesh;
  if (!text) return status_hint(fail(ERR_USAGE, "over which ranks?"), "--mesh dp=4,tp=2");
  TRY(dist_new(NULL, &m->dist));
  TRY(mesh_parse(m->dist, text, &mesh));
  m->place = (PlacePlan){mesh, m->plan, d};
  m->mesh = (WriteMesh){
      .text = text, .naxes = mesh->naxes, .ranks = mesh->size, .place = place_by_plan, .arg = &m->place};
  memcpy(m->mesh.axis, mesh->axis, sizeof m->mesh.axis);
  return OK;
}

static void close_mesh(OnMesh *m) {
  plan_file_free(m->plan);
  if (m->dist) dist_free(m->dist);
}

/* ---- all of it
 * ---------------------------------------------------------------------------------------------------- */

static Status check_output(const Change *c, const WriteFormat *f, const Source *const *source) {
  for (int i = 0; i < c->sources; i++) {
    char *a = realpath(source[i]->path, NULL), *b = realpath(c->output, NULL);
    bool same = a && b && !strcmp(a, b);
    free(a);
    free(b);
    if (same) return fail(ERR_USAGE, "'%s' is the source: it is not touched", c->output);
  }
  if (f->folder) return folder_out_check(c->output, c->force);
  if (file_is_folder(c->output)) return fail(ERR_FAIL, "cannot write '%s': it is a folder", c->output);
  if (file_exists(c->output) && !c->force)
    return status_hint(fail(ERR_USAGE, "'%s' is there already", c->output),
                       "remove it, or allow it to be replaced (--force)");
  return OK;
}

static Status write_derived(const Change *c, const WriteFormat *f, const Derived *d, ChangeSeen *seen, void *arg) {
  OnMesh on = {0};
  Writing *w = NULL;
  Status s = OK;
  WriteHow how = {.format = f,
                  .path = c->output,
                  .shard_bytes = c->shard_bytes ? c->shard_bytes : CHANGE_SHARD,
                  .program = c->program,
                  .memory = c->memory ? c->memory : CHANGE_MEMORY,
                  .threads = c->threads > 0 ? c->threads : 1,
                  .force = c->force,
                  .sync = c->sync,
                  .progress = c->progress};
  if (!how.program && !strcmp(d->source[0]->format->name, "pt2")) how.program = d->source[0]->path;
  if (c->mesh || c->plan) {
    if (strcmp(f->name, "tessera") && strcmp(f->name, "dcp"))
      return status_hint(fail(ERR_USAGE, "%s holds whole tensors: it is not for a mesh", f->what),
                         "--to tessera, --to dcp");
    s = open_mesh(c, d, &on);
    how.mesh = &on.mesh;
  }
  if (!s) s = writing_plan(d, &how, &w);
  if (!s && !c->plan_only) s = writing_run(w);
  if (!s && seen) s = seen(arg, w);
  writing_free(w);
  close_mesh(&on);
  return s;
}

/* A distributed checkpoint has the names of a run where it is one: with an optimizer. */
static DerivedNames names_for(const WriteFormat *f, const Source *s) {
  bool optimizer = false;
  for (int i = 0; i < s->tensors; i++) optimizer |= !strncmp(s->tensor[i].name, "optim.", 6);
  return f->names == NAMES_AS_THEY_ARE && s->save && !optimizer ? NAMES_OF_MODEL : f->names;
}

static Status change(const Change *c, const Source *const *source, ChangeSeen *seen, void *arg) {
  const WriteFormat *format;
  DeriveHow how = c->how;
  Derived *d;
  TRY(find_format(c, source[0], &format));
  TRY(check_output(c, format, source));
  how.names = names_for(format, source[0]);
  TRY(derive(source, c->sources, &how, &d));
  Status s = write_derived(c, format, d, seen, arg);
  derived_free(d);
  return s;
}

Status checkpoint_change(const Change *c, ChangeSeen *seen, void *arg) {
  Source **source;
  Status s = OK;
  if (!c->output || !*c->output) return status_hint(fail(ERR_USAGE, "where to?"), "-o PATH");
  if (c->opened) {
    Change one = *c;
    one.sources = 1;
    return change(&one, &c->opened, seen, arg);
  }
  TRY_NEW(source, calloc((size_t)c->sources + 1, sizeof *source));
  for (int i = 0; !s && i < c->sources; i++) s = source_open(c->source[i], &source[i]);
  if (!s) s = change(c, (const Source *const *)source, seen, arg);
  for (int i = 0; i < c->sources; i++) source_close(source[i]);
  free(source);
  return s;
}

void change_json(const Writing *w, TextBuf *out) {
  text_puts(out, "{\"path\": ");
  text_json(out, w->how->path);
  text_printf(out,
              ", \"format\": \"%s\", \"tensors\": %d, \"bytes\": %lld, \"left_out\": %d, \"resumed_bytes\": %lld, "
              "\"files\": [",
              w->how->format->name, w->d->n, (long long)w->d->bytes, w->d->left_out, (long long)w->resumed);
  for (int i = 0; i < w->files; i++) {
    text_puts(out, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
    text_json(out, w->file[i].name);
    text_printf(out, ", \"bytes\": %llu", (unsigned long long)w->file[i].bytes);
    if (w->file[i].rank >= 0) text_printf(out, ", \"rank\": %d", w->file[i].rank);
    text_puts(out, "}");
  }
  text_puts(out, "]}");
}
