/* save.c -- see save.h. */
#include "ckpt/save.h"
#include "ckpt/source.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "ckpt/steps.h"

/* ---- finding ------------------------------------------------------------------------------------ */

Status run_latest(const char *path, Arena *arena, const char **out) {
  Steps steps;
  size_t n = strlen(path);
  char *plain, *manifest;
  while (n > 1 && path[n - 1] == '/') n--;
  if (!n) return fail(ERR_USAGE, "the name of the run folder is empty");
  TRY_NEW(plain, arena_strndup(arena, path, n));
  if (!file_exists(plain)) return fail(ERR_USAGE, "there is no run folder '%s'", plain);
  if (!file_is_folder(plain)) return fail(ERR_USAGE, "'%s' is a file, not a run folder", plain);
  TRY_NEW(manifest, arena_printf(arena, "%s/%s", plain, MANIFEST_NAME));
  *out = plain;
  if (file_exists(manifest)) return OK;
  TRY(steps_list(plain, arena, &steps));
  if (!steps.n)
    return status_hint(fail(ERR_USAGE, "the run folder '%s' holds no save", plain),
                       "nothing was saved before the run ended: start it again");
  TRY_NEW(*out, step_path(arena, plain, steps.step[steps.n - 1]));
  return OK;
}

/* What to do about a save that cannot be used: the one before it can. */
Status save_hint_before(const char *path, Status s) {
  Arena arena = {0};
  Steps steps;
  char *folder, *before = NULL;
  int64_t step;
  if (s && step_of_path(&arena, path, &step, &folder)) {
    Status listed = steps_list(folder, &arena, &steps);
    int64_t found = listed ? -1 : steps_before(&steps, step);
    status_free(listed);
    if (found >= 0) before = step_path(&arena, folder, found);
  }
  if (before)
    s = status_hint(s, "the save before it is '%s'; to go on from there, move '%s' away first", before, path);
  arena_free(&arena);
  return s;
}

/* Whatever is wrong with a file of a save is wrong with the save. */
static Status as_damage(const char *path, Status s) {
  if (!s) return OK;
  s = source_damage(s);
  return status_code(s) == ERR_CKPT ? save_hint_before(path, s) : s;
}

/* ---- opening ------------------------------------------------------------------------------------ */

static Status read_manifest(Save *s) {
  FileMap *f;
  char *path;
  TRY_NEW(path, arena_printf(&s->arena, "%s/%s", s->path, MANIFEST_NAME));
  if (!file_is_folder(s->path)) return fail(ERR_CKPT, "there is no save '%s'", s->path);
  if (!file_exists(path)) return fail(ERR_CKPT, "'%s' is no save: it has no %s", s->path, MANIFEST_NAME);
  TRY(file_map(path, &f));
  Status r = manifest_parse(path, f->data, f->size, &s->arena, &s->m);
  file_map_unref(f);
  return r;
}

static Status open_file(Save *s, int i) {
  const ManifestFile *want = &s->m.file[i];
  FileMap *f;
  char *path;
  TRY_NEW(path, arena_printf(&s->arena, "%s/%s", s->path, want->name));
  TRY(file_map(path, &f));
  Status r = OK;
  if (f->size != want->bytes)
    r = fail(ERR_CKPT, "'%s' has %zu bytes, it was saved with %llu: it was cut off or changed", path, f->size,
             (unsigned long long)want->bytes);
  if (!r) r = safetensors_from_map(f, &s->file[i]);
  file_map_unref(f);
  return r;
}

const SafeEntry *save_entry(const Save *s, const ManifestTensor *t, const ManifestChunk *c) {
  return safetensors_find(s->file[c->file], manifest_key(&s->m, t, c));
}

static Status check_chunk(const Save *s, const ManifestTensor *t, const ManifestChunk *c) {
  const SafeEntry *e = save_entry(s, t, c);
  const char *path = s->file[c->file]->file->path, *key = manifest_key(&s->m, t, c);
  if (!e) return fail(ERR_CKPT, "'%s' lacks the tensor '%s', which was saved: it was changed", path, key);
  if (e->dtype != t->dtype || e->ndim != t->ndim ||
      (t->ndim && memcmp(e->size, c->size, (size_t)t->ndim * sizeof *e->size)))
    return fail(ERR_CKPT, "'%s': the tensor '%s' has not the dtype and size that were saved: it was changed", path,
                key);
  return OK;
}

/* Files and manifest name the same tensors. */
static Status check_entries(const Save *s) {
  int64_t entries = 0, chunks = 0;
  for (int i = 0; i < s->m.files; i++) entries += s->file[i]->count;
  for (int i = 0; i < s->m.tensors; i++) {
    const ManifestTensor *t = &s->m.tensor[i];
    for (int k = 0; k < t->chunks; k++) TRY(check_chunk(s, t, &t->chunk[k]));
    chunks += t->chunks;
  }
  if (entries != chunks)
    return fail(ERR_CKPT, "'%s': the files hold %lld tensors, %lld were saved: they were changed", s->path,
                (long long)entries, (long long)chunks);
  return OK;
}

static Status fill(Save *s, const char *path) {
  TRY_NEW(s->path, arena_strdup(&s->arena, path));
  TRY(read_manifest(s));
  TRY_NEW(s->file, arena_new_n(&s->arena, SafeTensors *, s->m.files + 1));
  for (int i = 0; i < s->m.files; i++) TRY(open_file(s, i));
  return check_entries(s);
}

Status save_open(const char *path, Save **out) {
  Save *s;
  TRY_NEW(s, calloc(1, sizeof *s));
  Status r = as_damage(path, fill(s, path));
  if (r) save_close(s);
  else *out = s;
  return r;
}

void save_close(Save *s) {
  if (!s) return;
  for (int i = 0; s->file && i < s->m.files; i++) safetensors_close(s->file[i]);
  arena_free(&s->arena);
  free(s);
}

Status save_tensor(const Save *s, const char *name, Scope *scope, Tensor **out) {
  const ManifestTensor *t = manifest_find(&s->m, name);
  if (!t) return fail(ERR_USAGE, "'%s' holds no tensor '%s'", s->path, name);
  if (!manifest_is_whole(t))
    return fail(ERR_USAGE, "'%s': the tensor '%s' was saved in %d parts", s->path, name, t->chunks);
  return save_chunk(s, t, t->chunk, scope, out);
}

Status save_chunk(const Save *s, const ManifestTensor *t, const ManifestChunk *c, Scope *scope, Tensor **out) {
  return as_damage(s->path, safetensors_get(s->file[c->file], manifest_key(&s->m, t, c), scope, out));
}

/* ---- verifying ---------------------------------------------------------------------------------- */

typedef struct {
  const SafeTensors *file;
  const SafeEntry *entry;
  const ManifestTensor *tensor;
  const ManifestChunk *chunk;
  bool damaged;
} Checked;

typedef struct {
  Checked *v; /* the largest first: the last ones to be taken are small */
  int n;
  atomic_int next;
} Checking;

static int by_bytes(const void *a, const void *b) {
  const SafeEntry *x = ((const Checked *)a)->entry, *y = ((const Checked *)b)->entry;
  uint64_t nx = x->end - x->begin, ny = y->end - y->begin;
  return nx != ny ? (nx > ny ? -1 : 1) : strcmp(x->name, y->name);
}

static void check_some(void *arg, int64_t begin, int64_t end, int worker) {
  Checking *c = arg;
  (void)begin, (void)end, (void)worker;
  for (int i; (i = atomic_fetch_add(&c->next, 1)) < c->n;)
    c->v[i].damaged = safetensors_hash(c->v[i].file, c->v[i].entry) != c->v[i].chunk->hash;
}

static Status report_damage(const Save *s, const Checking *c) {
  const Checked *first = NULL;
  int count = 0;
  for (int i = 0; i < c->n; i++) {
    const Checked *k = &c->v[i];
    if (!k->damaged) continue;
    if (!count++ || strcmp(k->tensor->name, first->tensor->name) < 0) first = k;
  }
  if (!count) return OK;
  return save_hint_before(
      s->path, fail(ERR_CKPT,
                    "'%s': the bytes of the tensor '%s' do not match their checksum: the file was "
                    "damaged or edited after it was saved (%d of %d tensors)",
                    first->file->file->path, manifest_key(&s->m, first->tensor, first->chunk), count, c->n));
}

Status save_verify(const Save *s, int threads) {
  Checking c = {0};
  size_t chunks = 0;
  for (int i = 0; i < s->m.tensors; i++) chunks += (size_t)s->m.tensor[i].chunks;
  TRY_NEW(c.v, calloc(chunks + 1, sizeof *c.v));
  for (int i = 0; i < s->m.tensors; i++) {
    const ManifestTensor *t = &s->m.tensor[i];
    for (const ManifestChunk *k = t->chunk; k < t->chunk + t->chunks; k++)
      c.v[c.n++] = (Checked){s->file[k->file], save_entry(s, t, k), t, k, false};
  }
  qsort(c.v, (size_t)c.n, sizeof *c.v, by_bytes);
  parallel_for(threads, threads > 1 ? threads : 1, 1, check_some, &c);
  Status r = report_damage(s, &c);
  free(c.v);
  return r;
}
