/* write_safetensors.c -- .safetensors files, and folders of them for Hugging Face; see writing.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/sharded_files.h"
#include "ckpt/write_formats.h"

/* ---- one file ----------------------------------------------------------------------------------------------- */

static Status file_texts(Writing *w, const SafeFile *f, SafeText *text, int *n) {
  const int64_t **offset;
  int *ndim;
  text[0] = (SafeText){"format", "pt"};
  *n = 1;
  if (!f->sharded) return OK;
  TRY_NEW(offset, arena_new_n(&w->arena, const int64_t *, f->n + 1));
  TRY_NEW(ndim, arena_new_n(&w->arena, int, f->n + 1));
  for (int i = 0; i < f->n; i++) {
    offset[i] = f->box[i].offset;
    ndim[i] = w->d->v[f->box[i].tensor].ndim;
  }
  text[1].key = SHARDING_KEY;
  TRY(sharding_info(f->key, offset, ndim, f->n, &w->arena, &text[1].value));
  *n = 2;
  return OK;
}

Status plan_safe_file(Writing *w, int file, SafeFile *f) {
  SafeEntry *e;
  SafeText text[2];
  int texts;
  void *head, *copy;
  size_t bytes;
  TRY_NEW(e, arena_new_n(&w->arena, SafeEntry, f->n + 1));
  for (int i = 0; i < f->n; i++) {
    const DerivedTensor *t = &w->d->v[f->box[i].tensor];
    e[i] = (SafeEntry){.name = f->key[i], .dtype = t->dtype, .ndim = t->ndim};
    memcpy(e[i].size, f->box[i].size, sizeof e[i].size);
  }
  TRY(file_texts(w, f, text, &texts));
  TRY(safetensors_plan(e, f->n, text, texts, &head, &bytes));
  copy = arena_alloc(&w->arena, bytes);
  if (copy) memcpy(copy, head, bytes);
  free(head);
  if (!copy) return fail_oom();
  w->file[file].head = copy;
  w->file[file].head_bytes = bytes;
  w->file[file].bytes = bytes;
  for (int i = 0; i < f->n; i++) {
    WriteBox b = f->box[i];
    b.file = file;
    b.at = e[i].begin;
    b.bytes = e[i].end - e[i].begin;
    w->file[file].bytes += b.bytes;
    TRY(writing_add_box(w, &b));
  }
  return OK;
}

static WriteBox whole_box(const Writing *w, int tensor) {
  WriteBox b = {.tensor = tensor};
  memcpy(b.size, w->d->v[tensor].size, sizeof b.size);
  return b;
}

/* Tensors [first, end) of the derived checkpoint, whole. */
static Status plan_range(Writing *w, const char *name, int first, int end) {
  SafeFile f = {0};
  int file;
  TRY(writing_add_file(w, name, &file));
  TRY_NEW(f.box, arena_new_n(&w->arena, WriteBox, end - first + 1));
  TRY_NEW(f.key, arena_new_n(&w->arena, const char *, end - first + 1));
  for (int i = first; i < end; i++) {
    f.box[f.n] = whole_box(w, i);
    f.key[f.n++] = w->d->v[i].name;
  }
  return plan_safe_file(w, file, &f);
}

Status plan_safetensors(Writing *w) {
  const char *slash = strrchr(w->how->path, '/');
  return plan_range(w, slash ? slash + 1 : w->how->path, 0, w->d->n);
}

/* ---- Hugging Face
 * ------------------------------------------------------------------------------------------------ */

/* Where the next file begins, if one begins with `first`: tensors in the order of their names until it is full. */
static int end_of_file(const Writing *w, int first) {
  uint64_t bytes = 0;
  int i = first;
  for (; i < w->d->n; i++) {
    bytes += (uint64_t)derived_bytes(&w->d->v[i]);
    if (i > first && w->how->shard_bytes && bytes > w->how->shard_bytes) break;
  }
  return i;
}

Status plan_hf(Writing *w) {
  int files = 0, n = 0;
  for (int i = 0; i < w->d->n; i = end_of_file(w, i)) files++;
  if (files <= 1) return plan_range(w, "model.safetensors", 0, w->d->n);
  for (int i = 0, end; i < w->d->n; i = end) {
    char *name;
    end = end_of_file(w, i);
    TRY_NEW(name, arena_printf(&w->arena, "model-%05d-of-%05d.safetensors", ++n, files));
    TRY(plan_range(w, name, i, end));
  }
  return OK;
}

Status finish_hf(Writing *w) {
  TextBuf b = {0};
  if (w->files <= 1) return OK; /* readers find the one by its name */
  text_printf(&b, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {", (long long)w->d->bytes);
  for (int i = 0; i < w->boxes; i++) {
    text_puts(&b, i ? ",\n    " : "\n    ");
    text_json(&b, w->d->v[w->box[i].tensor].name);
    text_puts(&b, ": ");
    text_json(&b, w->file[w->box[i].file].name);
  }
  text_puts(&b, "\n  }\n}\n");
  Status s = b.failed ? fail_oom() : writing_add_text(w, "model.safetensors.index.json", b.text, b.len);
  text_free(&b);
  return s;
}
