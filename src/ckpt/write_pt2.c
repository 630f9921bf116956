/* write_pt2.c -- an exported program with other weights; see writing.h.
 *
 * The archive of the program is copied entry by entry; in the records of weights and buffers, the elements that
 * they are views of are replaced.  Tied weights share a record, of which the first name that is there is taken;
 * constants stay.  A record that is a plain row-major weight goes through a window; others (transposed, or parts of
 * a larger one) are put together in memory.
 */
#include <stdlib.h>
#include <string.h>

#include "base/strmap.h"
#include "base/zip.h"
#include "ckpt/windows.h"
#include "ckpt/write_formats.h"
#include "kernels/copy.h"
#include "pt2/archive.h"
#include "pt2/read.h"

typedef struct {
  Writing *w;
  const Exported *e;
  Archive archive;
  ZipOut *out;
  StrMap names;   /* of the derived checkpoint: 1 + number */
  StrMap records; /* path in the archive -> 1 + the entry of the state that replaces it */
  int used;
} Rewrite;

enum { WINDOW = 8 << 20 };

static const DerivedTensor *derived_of(const Rewrite *r, const StateEntry *e) {
  uintptr_t number = (uintptr_t)strmap_get(&r->names, e->fqn);
  return number ? &r->w->d->v[number - 1] : NULL;
}

static Status check_entry(const Rewrite *r, const StateEntry *e, const DerivedTensor *t) {
  char a[200], b[200];
  if (t->dtype == e->tensor->dtype && t->ndim == e->tensor->ndim &&
      !memcmp(t->size, e->tensor->size, (size_t)t->ndim * sizeof *t->size))
    return OK;
  Status s = fail(ERR_USAGE, "'%s' is %s%s in the checkpoint, %s in '%s'", e->fqn, dtype_name(t->dtype),
                  shape_describe(t->ndim, t->size, a, sizeof a), tensor_describe(e->tensor, b, sizeof b),
                  r->w->how->program);
  return t->dtype != e->tensor->dtype ? status_hint(s, "--dtype %s", dtype_name(e->tensor->dtype)) : s;
}

/* Which records are replaced, and by what.  Every parameter and buffer needs a value, by one of its names. */
static Status match_state(Rewrite *r) {
  for (int i = 0; i < r->w->d->n; i++) {
    StrSlot *slot;
    TRY(strmap_slot(&r->names, &r->w->arena, r->w->d->v[i].name, &slot));
    slot->value = (void *)(uintptr_t)(i + 1);
  }
  for (int i = 0; i < r->e->nstate; i++) {
    const StateEntry *e = &r->e->state[i];
    const DerivedTensor *t = derived_of(r, e);
    StrSlot *slot;
    if (!t || !e->record) continue;
    TRY(check_entry(r, e, t));
    r->used++;
    TRY(strmap_slot(&r->records, &r->w->arena, e->record, &slot));
    if (!slot->value) slot->value = (void *)(uintptr_t)(i + 1);
  }
  for (int i = 0; i < r->e->nstate; i++) {
    const StateEntry *e = &r->e->state[i];
    if (!e->record || e->is_constant || strmap_get(&r->records, e->record)) continue;
    return status_hint(fail(ERR_USAGE, "the checkpoint has no tensor '%s', '%s' has", e->fqn, r->w->how->program),
                       "--rename 'FROM=TO' maps names");
  }
  if (r->used == r->w->d->n) return OK;
  for (int i = 0; i < r->w->d->n; i++)
    if (!exported_state(r->e, r->w->d->v[i].name))
      return status_hint(fail(ERR_USAGE, "'%s' has no tensor '%s'", r->w->how->program, r->w->d->v[i].name),
                         "--drop PATTERN leaves it out");
  return OK;
}

/* ---- records
 * ----------------------------------------------------------------------------------------------------- */

static Status copy_entry(Rewrite *r, const char *name, const ZipEntry *e) {
  FileMap *map;
  TRY(zip_map(r->archive.zip, e, &map));
  Status s = zip_out_add(r->out, name, map->data, map->size);
  file_map_unref(map);
  return s;
}

static bool is_plain(const Tensor *t, uint64_t bytes) {
  return tensor_is_contiguous(t) && t->offset == 0 && (uint64_t)tensor_numel(t) * dtype_size(t->dtype) == bytes;
}

typedef struct {
  Rewrite *r;
  const DerivedTensor *t;
  void *buffer;
} Stream;

static Status put_window(void *arg, const int64_t *offset, const int64_t *size, size_t bytes) {
  const Stream *s = arg;
  TRY(derived_read(s->r->w->d, s->t, offset, size, s->buffer));
  TRY(zip_out_write(s->r->out, s->buffer, bytes));
  derived_forget(s->r->w->d, s->t, offset, size);
  return OK;
}

static Status stream(Rewrite *r, const DerivedTensor *t) {
  const int64_t nowhere[MAX_DIMS] = {0};
  Stream s = {.r = r, .t = t};
  TRY_NEW(s.buffer, malloc(WINDOW));
  Status status = each_window(t->ndim, nowhere, t->size, dtype_size(t->dtype), WINDOW, put_window, &s);
  free(s.buffer);
  return status;
}

/* The old bytes, with the elements of the view replaced. */
static Status patch(Rewrite *r, const ZipEntry *entry, const Tensor *view, const DerivedTensor *t) {
  FileMap *map;
  void *values = NULL, *bytes = NULL;
  int64_t stride[MAX_DIMS];
  Kern kern;
  TRY(zip_map(r->archive.zip, entry, &map));
  Status s = OK;
  const int64_t nowhere[MAX_DIMS] = {0};
  values = malloc((size_t)derived_bytes(t) + 1);
  bytes = malloc(map->size + 1);
  if (!values || !bytes) s = fail_oom();
  if (!s) s = derived_read(r->w->d, t, nowhere, t->size, values);
  if (!s) {
    if (map->size) memcpy(bytes, map->data, map->size);
    contiguous_strides(t->ndim, t->size, stride);
    View to = {(char *)bytes + (size_t)view->offset * dtype_size(view->dtype), view->size, view->stride, view->ndim,
               view->dtype};
    kern_init(&kern, 1);
    if (tensor_numel(view)) kernel_copy(&kern, to, (View){values, t->size, stride, t->ndim, t->dtype});
    kern_free(&kern);
    s = zip_out_write(r->out, bytes, map->size);
  }
  free(values);
  free(bytes);
  file_map_unref(map);
  return s;
}

static Status write_entry(Rewrite *r, const ZipEntry *e) {
  uintptr_t number = (uintptr_t)strmap_get(&r->records, archive_name(&r->archive, e));
  if (!number) return copy_entry(r, e->name, e);
  const StateEntry *state = &r->e->state[number - 1];
  const DerivedTensor *t = derived_of(r, state);
  TRY(zip_out_begin(r->out, e->name, e->size));
  TRY(is_plain(state->tensor, e->size) ? stream(r, t) : patch(r, e, state->tensor, t));
  return zip_out_end(r->out);
}

static int by_order(const void *a, const void *b) {
  return (*(const ZipEntry *const *)a)->order - (*(const ZipEntry *const *)b)->order;
}

static Status write_entries(Rewrite *r) {
  const Zip *z = r->archive.zip;
  const ZipEntry **order;
  TRY_NEW(order, arena_new_n(&r->w->arena, const ZipEntry *, z->count + 1));
  for (int i = 0; i < z->count; i++) order[i] = &z->entries[i];
  qsort(order, (size_t)z->count, sizeof *order, by_order);
  for (int i = 0; i < z->count; i++) TRY(write_entry(r, order[i]));
  return OK;
}

static Status rewrite(Rewrite *r, const char *path, unsigned flags) {
  FileMap *map;
  TRY(match_state(r));
  TRY(file_map(r->w->how->program, &map));
  Status s = archive_open(map, &r->archive);
  file_map_unref(map);
  TRY(s);
  TRY(zip_out_open(path, flags, &r->out));
  zip_out_progress(r->out, r->w->how->progress);
  TRY(write_entries(r));
  ZipOut *out = r->out;
  r->out = NULL;
  return zip_out_commit(out);
}

Status write_pt2(Writing *w, const char *path, unsigned flags) {
  Rewrite r = {.w = w};
  Exported *e;
  if (!w->how->program)
    return status_hint(fail(ERR_USAGE, "which program are the weights of?"), "--program model.pt2");
  TRY(pt2_read(w->how->program, &e));
  r.e = e;
  Status s = rewrite(&r, path, flags);
  zip_out_discard(r.out);
  archive_close(&r.archive);
  exported_free(e);
  return s;
}
