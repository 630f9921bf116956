/* run_folder.c -- see run_folder.h. */
#include "ckpt/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/folder.h"
#include "base/human.h"
#include "ckpt/steps.h"
#include "tessera.h"

struct RunFolder {
  Arena arena;
  const char *path;
  int lock; /* descriptor; -1: none */
};

/* ---- one trainer at a time ---------------------------------------------------------------------- */

static Status fail_locked(const RunFolder *r) {
  char text[32] = "";
  ssize_t n = pread(r->lock, text, sizeof text - 1, 0);
  long pid = n > 0 ? strtol(text, NULL, 10) : 0;
  Status s = pid ? fail(ERR_USAGE, "another trainer (process %ld) is saving to '%s'", pid, r->path)
                 : fail(ERR_USAGE, "another trainer is saving to '%s'", r->path);
  return status_hint(s, "wait until it has ended, or save to another folder");
}

/* The number in the file is for messages; what counts is the lock, which ends with the process. */
static Status lock_folder(RunFolder *r) {
  char *path, text[32];
  TRY_NEW(path, arena_printf(&r->arena, "%s/.lock", r->path));
  r->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (r->lock < 0) return fail(ERR_FAIL, "cannot write '%s': %s", path, strerror(errno));
  if (flock(r->lock, LOCK_EX | LOCK_NB)) {
    if (errno == EWOULDBLOCK) return fail_locked(r);
    return OK; /* a file system without locks */
  }
  int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  if (ftruncate(r->lock, 0) || pwrite(r->lock, text, (size_t)n, 0) != n)
    return fail(ERR_FAIL, "cannot write '%s': %s", path, strerror(errno));
  return OK;
}

static Status open_run(RunFolder *r, const char *folder) {
  size_t n = strlen(folder);
  while (n > 1 && folder[n - 1] == '/') n--;
  if (!n) return fail(ERR_USAGE, "the name of the run folder is empty");
  TRY_NEW(r->path, arena_strndup(&r->arena, folder, n));
  if (file_exists(r->path) && !file_is_folder(r->path))
    return fail(ERR_USAGE, "cannot save to '%s': it is a file, not a folder", r->path);
  TRY(file_make_folder(r->path));
  TRY(lock_folder(r));
  folder_remove_abandoned(r->path, "step-", true);
  return OK;
}

Status run_folder_open(const char *folder, RunFolder **out) {
  RunFolder *r;
  TRY_NEW(r, calloc(1, sizeof *r));
  r->lock = -1;
  Status s = open_run(r, folder);
  if (s) run_folder_close(r);
  else *out = r;
  return s;
}

void run_folder_close(RunFolder *r) {
  if (!r) return;
  if (r->lock >= 0) close(r->lock);
  arena_free(&r->arena);
  free(r);
}

static Status check_later(const RunFolder *r, int64_t step, Arena *arena) {
  Steps steps;
  TRY(steps_list(r->path, arena, &steps));
  int64_t last = steps.n ? steps.step[steps.n - 1] : -1;
  if (last <= step) return OK;
  return status_hint(fail(ERR_USAGE, "'%s' holds a save of step %lld already, later than step %lld", r->path,
                          (long long)last, (long long)step),
                     "go on from there (--resume %s), save to another folder, or move the later saves away",
                     r->path);
}

Status run_folder_check_start(const RunFolder *r, int64_t step) {
  Arena arena = {0};
  Status s = check_later(r, step, &arena);
  arena_free(&arena);
  return s;
}

/* ---- a save ------------------------------------------------------------------------------------- */

typedef struct {
  FolderOut out;
  Arena arena;
  Manifest m;
  ManifestFile file[SAVE_KINDS];
  const SafeItem *items;
  Snapshot *snapshot; /* NULL: the items' own elements */
  int *from;          /* of the file that is being written: numbers of its items */
} Saving;

static Status take(void *arg, int item, uint64_t at, const void **data, size_t *size) {
  const Saving *v = arg;
  return snapshot_take(v->snapshot, v->from[item], at, data, size);
}

static void give_back(void *arg, int item, uint64_t at) {
  const Saving *v = arg;
  snapshot_give_back(v->snapshot, v->from[item], at);
}

/* Items of one file, with the names they have there; returns how many. */
static int select_items(const Saving *v, int kind, SafeItem *out, int *from) {
  int n = 0;
  for (int i = 0; i < v->m.tensors; i++) {
    if (v->m.tensor[i].chunk->file != kind) continue;
    from[n] = i;
    out[n++] = (SafeItem){v->m.tensor[i].name + strlen(save_kinds[kind].prefix), v->items[i].tensor};
  }
  return n;
}

static Status write_file(Saving *v, int kind) {
  const SafeText format = {"format", "pt"}; /* readers of Hugging Face ask for it */
  const SafeReader reader = {take, give_back, v};
  SafeWritten written = {.reader = v->snapshot ? &reader : NULL};
  SafeItem *part;
  const char *path, *name;
  TRY_NEW(part, arena_new_n(&v->arena, SafeItem, v->m.tensors + 1));
  TRY_NEW(v->from, arena_new_n(&v->arena, int, v->m.tensors + 1));
  TRY_NEW(written.hash, arena_new_n(&v->arena, uint64_t, v->m.tensors + 1));
  int n = select_items(v, kind, part, v->from);
  TRY_NEW(name, arena_printf(&v->arena, "%s.safetensors", save_kinds[kind].stem));
  TRY(folder_out_path(&v->out, name, &path));
  TRY(safetensors_save_hashed(path, part, n, &format, 1, FILE_SYNC, &written));
  for (int i = 0; i < n; i++) v->m.tensor[v->from[i]].chunk->hash = written.hash[i];
  v->file[kind] = (ManifestFile){name, save_kinds[kind].prefix, written.bytes};
  return OK;
}

static Status describe(Saving *v, const SaveFacts *facts, int n) {
  v->m.facts = *facts;
  v->m.facts.version = TESS_VERSION;
  v->m.file = v->file;
  v->m.files = SAVE_KINDS;
  v->m.tensors = n;
  TRY_NEW(v->m.tensor, arena_new_n(&v->arena, ManifestTensor, n + 1));
  for (int i = 0; i < n; i++) {
    const Tensor *t = v->items[i].tensor;
    ManifestTensor *m = &v->m.tensor[i];
    if (!text_is_utf8(v->items[i].name)) return fail(ERR_FAIL, "the name of a tensor is not UTF-8");
    *m = (ManifestTensor){.name = v->items[i].name, .dtype = t->dtype, .ndim = t->ndim, .chunks = 1};
    TRY_NEW(m->chunk, arena_new(&v->arena, ManifestChunk));
    m->chunk->file = save_kind_of(m->name);
    if (t->ndim) memcpy(m->size, t->size, (size_t)t->ndim * sizeof *m->size);
    memcpy(m->chunk->size, m->size, sizeof m->size);
  }
  return manifest_sign(&v->m, &v->arena, &v->m.facts.signature);
}

Status run_folder_begin(const RunFolder *r, int64_t step, FolderOut *out) {
  Arena arena = {0};
  char *path = step_path(&arena, r->path, step);
  Status s = step < 0 ? fail(ERR_USAGE, "a step that is saved is not negative") : check_later(r, step, &arena);
  if (!s) s = path ? folder_out_open(out, path, true) : fail_oom();
  if (!s) out->durable = true;
  arena_free(&arena);
  return s;
}

static Status write_save(const RunFolder *r, Saving *v) {
  TRY(run_folder_begin(r, v->m.facts.step, &v->out));
  for (int k = 0; k < SAVE_KINDS; k++) TRY(write_file(v, k));
  TRY(manifest_write(&v->m, &v->out, &v->arena));
  return folder_out_commit(&v->out);
}

/* ---- what stays --------------------------------------------------------------------------------- */

void run_folder_remove_old(const RunFolder *r, const KeepSaves *keep) {
  Arena arena = {0};
  Steps steps;
  if (!keep || keep->last <= 0) return;
  Status s = steps_list(r->path, &arena, &steps);
  for (int i = 0; !s && i < steps.n - keep->last; i++) {
    if (keep->every > 0 && steps.step[i] % keep->every == 0) continue;
    char *path = step_path(&arena, r->path, steps.step[i]);
    if (path) status_free(folder_remove(path));
  }
  status_free(s);
  arena_free(&arena);
}

Status run_folder_explain(const RunFolder *r, int64_t step, uint64_t bytes, Status s) {
  Arena arena = {0};
  Steps steps;
  char need[32];
  if (!s || status_code(s) == ERR_USAGE) return s;
  s = status_at(s, "saving step %lld to '%s' (%s)", (long long)step, r->path,
                human_bytes((double)bytes, need, sizeof need));
  Status listed = steps_list(r->path, &arena, &steps);
  if (!listed && steps.n)
    s = status_hint(s, "the save of step %lld is untouched: --resume %s goes on from there",
                    (long long)steps.step[steps.n - 1], r->path);
  status_free(listed);
  arena_free(&arena);
  return s;
}

static uint64_t bytes_of(const SafeItem *items, int n) {
  uint64_t bytes = 0;
  for (int i = 0; i < n; i++) bytes += (uint64_t)tensor_numel(items[i].tensor) * dtype_size(items[i].tensor->dtype);
  return bytes;
}

Status run_folder_save_snapshot(RunFolder *r, const SaveFacts *facts, const SafeItem *items, int n, Snapshot *from,
                                const KeepSaves *keep) {
  Saving v = {.items = items, .snapshot = from};
  Status s = describe(&v, facts, n);
  if (!s) {
    s = write_save(r, &v);
    folder_out_discard(&v.out);
    s = run_folder_explain(r, facts->step, bytes_of(items, n), s);
    if (!s) run_folder_remove_old(r, keep);
  }
  if (from) snapshot_close(from);
  arena_free(&v.arena);
  return s;
}

Status run_folder_save(RunFolder *r, const SaveFacts *facts, const SafeItem *items, int n, const KeepSaves *keep) {
  return run_folder_save_snapshot(r, facts, items, n, NULL, keep);
}
