/* save_restore.c -- a save and the tensors that it is to fill; see save.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/human.h"
#include "base/parallel.h"
#include "base/strmap.h"
#include "ckpt/save.h"
#include "kernels/copy.h"

/* ---- comparing ---------------------------------------------------------------------------------- */

enum { SHOWN = 5 }; /* differences that are named */

typedef struct {
  const Save *save;
  TextBuf text; /* a line each */
  int count;
  bool model; /* is one of them a tensor of the model? */
} Differences;

static void add_difference(Differences *d, const char *name, const char *there, const char *here) {
  if (d->count++ < SHOWN) {
    text_printf(&d->text, "%s'%s': %s", d->text.len ? "\n       " : "", name, there);
    if (here) text_printf(&d->text, " there, %s here", here);
  }
  d->model |= !strncmp(name, "model.", 6);
}

static void compare_item(Differences *d, const SafeItem *item) {
  const ManifestTensor *t = manifest_find(&d->save->m, item->name);
  char there[256], here[256], shape[240];
  if (!t) {
    add_difference(d, item->name, "not in the save", NULL);
    return;
  }
  if (manifest_is_like(t, item->tensor->dtype, item->tensor->ndim, item->tensor->size)) return;
  snprintf(there, sizeof there, "%s%s", dtype_name(t->dtype),
           shape_describe(t->ndim, t->size, shape, sizeof shape));
  add_difference(d, item->name, there, tensor_describe(item->tensor, here, sizeof here));
}

static Status compare(Differences *d, const SafeItem *items, int n, Arena *arena) {
  StrMap wanted = {0};
  TRY(strmap_reserve(&wanted, arena, (size_t)n));
  for (int i = 0; i < n; i++) {
    StrSlot *slot;
    TRY(strmap_slot(&wanted, arena, items[i].name, &slot));
    slot->value = (void *)(uintptr_t)items[i].tensor;
    compare_item(d, &items[i]);
  }
  for (int i = 0; i < d->save->m.tensors; i++) {
    const char *name = d->save->m.tensor[i].name;
    if (!strmap_get(&wanted, name)) add_difference(d, name, "only in the save", NULL);
  }
  return d->text.failed ? fail_oom() : OK;
}

static Status hint_command(const Save *s, Status r) {
  TextBuf line = {0};
  for (int i = 0; i < s->m.facts.argc; i++) text_printf(&line, "%s%s", i ? " " : "", s->m.facts.argv[i]);
  if (line.len && !line.failed) r = status_hint(r, "the run was started as: %s", line.text);
  text_free(&line);
  return r;
}

static Status report(const Differences *d) {
  const char *program = d->save->m.facts.program;
  if (!d->count) return OK;
  Status r = fail(ERR_USAGE, "'%s' is a save of %s%s%s%s: %d tensor%s differ%s", d->save->path,
                  d->model ? "another program" : "another optimizer", d->model && *program ? " ('" : "",
                  d->model ? program : "", d->model && *program ? "')" : "", d->count, PLURAL(d->count),
                  d->count == 1 ? "s" : "");
  if (d->count <= SHOWN) r = status_at(r, "%s", d->text.text);
  else r = status_at(r, "%s\n       and %d more", d->text.text, d->count - SHOWN);
  return hint_command(d->save, r);
}

Status save_check_match(const Save *s, const SafeItem *items, int n) {
  Arena arena = {0};
  Differences d = {.save = s};
  Status r = compare(&d, items, n, &arena);
  if (!r) r = report(&d);
  text_free(&d.text);
  arena_free(&arena);
  return r;
}

/* ---- copying ------------------------------------------------------------------------------------ */

enum { PIECE = 4 << 20 }; /* bytes that a worker takes at a time */

typedef struct {
  char *to;
  const FileMap *from;
  size_t at, bytes; /* at most PIECE */
} Copy;

typedef struct {
  Copy *v;
  int n, cap;
} Copies;

static void copy_some(void *arg, int64_t begin, int64_t end, int worker) {
  const Copies *c = arg;
  (void)worker;
  for (int64_t i = begin; i < end; i++) file_map_copy(c->v[i].from, c->v[i].at, c->v[i].to, c->v[i].bytes);
}

/* A chunk and the part of an item that it is. */
typedef struct {
  const FileMap *file;
  const SafeEntry *entry;
  Tensor *from, *to;
} Pair;

typedef struct {
  Pair *v;
  int n, cap;
} Pairs;

static Status add_copies(const Pair *p, Arena *arena, Copies *c) {
  size_t bytes = (size_t)tensor_numel(p->to) * dtype_size(p->to->dtype);
  for (size_t at = 0; at < bytes; at += PIECE) {
    TRY_NEW(c->v, arena_more(arena, c->v, c->n, &c->cap));
    c->v[c->n++] = (Copy){(char *)tensor_data(p->to) + at, p->file, (size_t)p->entry->begin + at,
                          bytes - at < PIECE ? bytes - at : PIECE};
  }
  return OK;
}

/* To a tensor of any strides, row by row. */
static void copy_rows(const Tensor *to, const Tensor *from) {
  int64_t index[MAX_DIMS] = {0}, item = (int64_t)dtype_size(to->dtype);
  const char *row = tensor_data(from);
  int inner = to->ndim - 1;
  if (!tensor_numel(to)) return;
  for (int d = inner; d >= 0;) {
    char *data = tensor_data(to);
    for (int i = 0; i < inner; i++) data += index[i] * to->stride[i] * item;
    copy_strided(data, to->stride[inner] * item, row, item, (size_t)item, to->size[inner]);
    row += to->size[inner] * item;
    for (d = inner - 1; d >= 0 && ++index[d] == to->size[d]; d--) index[d] = 0;
  }
}

static Status add_pairs(const Save *s, const SafeItem *item, Scope *scope, Arena *arena, Pairs *out) {
  const ManifestTensor *t = manifest_find(&s->m, item->name);
  const Tensor *whole = item->tensor;
  for (int i = 0; i < t->chunks; i++) {
    const ManifestChunk *c = &t->chunk[i];
    int64_t at = whole->offset;
    Pair p = {.file = s->file[c->file]->file, .entry = save_entry(s, t, c)};
    for (int d = 0; d < t->ndim; d++) at += c->offset[d] * whole->stride[d];
    TRY(save_chunk(s, t, c, scope, &p.from));
    if (!tensor_numel(p.from)) continue;
    TRY(tensor_as_strided(scope, whole, t->ndim, c->size, whole->stride, at, &p.to));
    TRY_NEW(out->v, arena_more(arena, out->v, out->n, &out->cap));
    out->v[out->n++] = p;
  }
  return OK;
}

/* All are found before the first is copied. */
static Status copy_all(const Save *s, const SafeItem *items, int n, int threads, Scope *scope, Arena *arena) {
  Copies c = {0};
  Pairs pairs = {0};
  for (int i = 0; i < n; i++) TRY(add_pairs(s, &items[i], scope, arena, &pairs));
  for (int i = 0; i < pairs.n; i++)
    if (tensor_is_contiguous(pairs.v[i].to)) TRY(add_copies(&pairs.v[i], arena, &c));
  if (c.n) parallel_for(threads, c.n, 1, copy_some, &c);
  for (int i = 0; i < pairs.n; i++)
    if (!tensor_is_contiguous(pairs.v[i].to)) copy_rows(pairs.v[i].to, pairs.v[i].from);
  return OK;
}

Status save_restore(const Save *s, const SafeItem *items, int n, int threads) {
  Scope scope = {0};
  Arena arena = {0};
  for (int i = 0; i < n; i++) {
    if (!tensor_data(items[i].tensor) && tensor_numel(items[i].tensor))
      return fail(ERR_FAIL, "'%s' cannot be restored: the tensor has no memory", items[i].name);
  }
  TRY(save_check_match(s, items, n));
  TRY(save_verify(s, threads));
  Status r = copy_all(s, items, n, threads, &scope, &arena);
  arena_free(&arena);
  scope_clear(&scope);
  return r;
}
