/* write_run.c -- our own saves: a file per kind, or per kind and rank of a mesh; see writing.h. */
#include <stdlib.h>
#include <string.h>

#include "base/strmap.h"
#include "ckpt/save.h"
#include "ckpt/sharded_files.h"
#include "ckpt/write_formats.h"
#include "tessera.h"

/* Boxes of one file: those of a plan's items that go there. */
static Status plan_file(Writing *w, const StrMap *tensors, const SavePlan *plan, const RankFiles *files, int which,
                        int rank) {
  SafeFile f = {.sharded = w->how->mesh != NULL};
  const RankFile *to = &files->v[which];
  int file;
  TRY(writing_add_file(w, to->name, &file));
  w->file[file].rank = rank;
  TRY_NEW(f.box, arena_new_n(&w->arena, WriteBox, plan->n + 1));
  TRY_NEW(f.key, arena_new_n(&w->arena, const char *, plan->n + 1));
  for (int i = 0; i < plan->n; i++) {
    const WriteItem *item = &plan->v[i];
    if (files->of[i] != which) continue;
    WriteBox *b = &f.box[f.n];
    b->tensor = (int)(uintptr_t)strmap_get(tensors, item->fqn) - 1;
    memcpy(b->offset, item->chunk.offset, sizeof b->offset);
    memcpy(b->size, item->chunk.size, sizeof b->size);
    f.key[f.n++] = item->fqn + strlen(save_kinds[to->kind].prefix);
  }
  return plan_safe_file(w, file, &f);
}

static bool is_empty(const int64_t *size, int ndim) {
  for (int d = 0; d < ndim; d++)
    if (!size[d]) return true;
  return false;
}

/* Empty boxes are left out, but for those of empty tensors. */
static void drop_empty(SavePlan *p) {
  int n = 0;
  for (int i = 0; i < p->n; i++) {
    const WriteItem *item = &p->v[i];
    if (!is_empty(item->chunk.size, item->chunk.ndim) || is_empty(item->size, item->chunk.ndim))
      p->v[n++] = p->v[i];
  }
  p->n = n;
}

/* One rank that has everything. */
static Status plan_alone(Writing *w, SavePlan **plan, RankFiles *files) {
  TRY_NEW(*plan, arena_new(&w->arena, SavePlan));
  TRY_NEW(files->of, arena_new_n(&w->arena, int, w->d->n + 1));
  TRY_NEW(files->v, arena_new_n(&w->arena, RankFile, SAVE_KINDS));
  for (int k = 0; k < SAVE_KINDS; k++) {
    TRY_NEW(files->v[k].name, arena_printf(&w->arena, "%s.safetensors", save_kinds[k].stem));
    files->v[k].kind = k;
  }
  files->n = SAVE_KINDS;
  for (int i = 0; i < w->d->n; i++) {
    const DerivedTensor *t = &w->d->v[i];
    WriteItem item = {.fqn = t->name, .dtype = t->dtype, .chunk = {.ndim = t->ndim}};
    memcpy(item.size, t->size, sizeof item.size);
    memcpy(item.chunk.size, t->size, sizeof item.size);
    TRY_NEW((*plan)->v, arena_more(&w->arena, (*plan)->v, (*plan)->n, &(*plan)->cap));
    files->of[(*plan)->n] = save_kind_of(t->name);
    (*plan)->v[(*plan)->n++] = item;
  }
  return OK;
}

static Status name_tensors(Writing *w, StrMap *out) {
  for (int i = 0; i < w->d->n; i++) {
    StrSlot *slot;
    if (!text_is_utf8(w->d->v[i].name)) return fail(ERR_FAIL, "the name of a tensor is not UTF-8");
    TRY(strmap_slot(out, &w->arena, w->d->v[i].name, &slot));
    slot->value = (void *)(uintptr_t)(i + 1);
  }
  return OK;
}

Status plan_run(Writing *w) {
  StrMap tensors = {0};
  SavePlan *plan;
  RankFiles files = {0};
  int ranks = w->how->mesh ? w->how->mesh->ranks : 1;
  TRY(name_tensors(w, &tensors));
  if (w->how->mesh) TRY(writing_plan_mesh(w, &plan));
  else TRY(plan_alone(w, &plan, &files));
  for (int r = 0; r < ranks; r++) {
    if (w->how->mesh) {
      drop_empty(&plan[r]);
      TRY(rank_files(&plan[r], r, &w->arena, &files));
    }
    for (int i = 0; i < files.n; i++) TRY(plan_file(w, &tensors, &plan[r], &files, i, w->how->mesh ? r : -1));
  }
  return OK;
}

/* ---- the manifest
 * ------------------------------------------------------------------------------------------------ */

/* What the source knows of its run, if it is a save of ours. */
static void take_facts(const Writing *w, Manifest *m) {
  const Source *s = w->d->source[0];
  if (s->save && w->d->sources == 1) m->facts = s->save->m.facts;
  m->facts.version = TESS_VERSION;
  m->facts.mesh = w->how->mesh ? w->how->mesh->text : NULL;
}

static Status describe_files(Writing *w, Manifest *m) {
  TRY_NEW(m->file, arena_new_n(&w->arena, ManifestFile, w->files + 1));
  for (int i = 0; i < w->files; i++) {
    int kind = 0;
    while (strncmp(w->file[i].name, save_kinds[kind].stem, strlen(save_kinds[kind].stem))) kind++;
    m->file[i] = (ManifestFile){w->file[i].name, save_kinds[kind].prefix, w->file[i].bytes};
  }
  m->files = w->files;
  return OK;
}

static Status describe_tensors(Writing *w, Manifest *m) {
  const WriteMesh *mesh = w->how->mesh;
  m->tensors = w->d->n;
  TRY_NEW(m->tensor, arena_new_n(&w->arena, ManifestTensor, m->tensors + 1));
  for (int i = 0; i < w->boxes; i++) m->tensor[w->box[i].tensor].chunks++;
  for (int i = 0; i < m->tensors; i++) {
    const DerivedTensor *t = &w->d->v[i];
    ManifestTensor *to = &m->tensor[i];
    Placement place[MAX_AXES];
    char text[400];
    TRY_NEW(to->chunk, arena_new_n(&w->arena, ManifestChunk, to->chunks + 1));
    to->name = t->name, to->dtype = t->dtype, to->ndim = t->ndim, to->chunks = 0;
    memcpy(to->size, t->size, sizeof to->size);
    if (!mesh) continue;
    TRY(mesh->place(mesh->arg, t, place));
    TRY_NEW(to->placements, arena_strdup(&w->arena, placements_print(place, mesh->naxes, text, sizeof text)));
  }
  for (int i = 0; i < w->boxes; i++) {
    const WriteBox *b = &w->box[i];
    ManifestTensor *to = &m->tensor[b->tensor];
    ManifestChunk *c = &to->chunk[to->chunks++];
    *c = (ManifestChunk){.file = b->file, .hash = b->hash};
    memcpy(c->offset, b->offset, sizeof c->offset);
    memcpy(c->size, b->size, sizeof c->size);
  }
  return OK;
}

Status finish_run(Writing *w) {
  Manifest m = {0};
  take_facts(w, &m);
  TRY(describe_files(w, &m));
  TRY(describe_tensors(w, &m));
  TRY(manifest_sign(&m, &w->arena, &m.facts.signature));
  return manifest_write(&m, &w->out, &w->arena);
}
