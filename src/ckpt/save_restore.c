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
  TextBuf text; /* a line each, of the first ones */
  int count;
} Differences;

/* Tensors that the save and the items do not both have alike. */
typedef struct {
  const Save *save;
  Differences model;
  Differences lacking; /* states of the optimizer that are asked for and are not in the save */
  Differences extra;   /* those of the save that nobody asks for */
} Comparison;

static bool begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

static void add_difference(Differences *d, const char *name, const char *there, const char *here) {
  if (d->count++ >= SHOWN) return;
  text_printf(&d->text, "%s'%s'", d->text.len ? "\n       " : "", name);
  if (there) text_printf(&d->text, ": %s", there);
  if (here) text_printf(&d->text, " there, %s here", here);
}

/* What the optimizer keeps beside its states, such as learning rates, is as good as new where the save lacks it. */
static bool compare_item(Comparison *c, const SafeItem *item) {
  const ManifestTensor *t = manifest_find(&c->save->m, item->name);
  bool model = begins(item->name, "model.");
  Differences *d = model ? &c->model : &c->lacking;
  char there[256], here[256], shape[240];
  if (t && manifest_is_like(t, item->tensor->dtype, item->tensor->ndim, item->tensor->size)) return true;
  if (!model && !begins(item->name, "optim.state.")) return false;
  if (t)
    snprintf(there, sizeof there, "%s%s", dtype_name(t->dtype),
             shape_describe(t->ndim, t->size, shape, sizeof shape));
  add_difference(d, item->name, t ? there : "not in the save",
                 t ? tensor_describe(item->tensor, here, sizeof here) : NULL);
  return false;
}

static Status compare(Comparison *c, const SafeItem *items, int n, Arena *arena, bool *fits) {
  StrMap wanted = {0};
  TRY(strmap_reserve(&wanted, arena, (size_t)n));
  for (int i = 0; i < n; i++) {
    StrSlot *slot;
    TRY(strmap_slot(&wanted, arena, items[i].name, &slot));
    slot->value = (void *)(uintptr_t)items[i].tensor;
    fits[i] = compare_item(c, &items[i]);
  }
  for (int i = 0; i < c->save->m.tensors; i++) {
    const char *name = c->save->m.tensor[i].name;
    if (strmap_get(&wanted, name)) continue;
    if (begins(name, "model.")) add_difference(&c->model, name, "only in the save", NULL);
    else if (begins(name, "optim.state.")) add_difference(&c->extra, name, NULL, NULL);
  }
  return c->model.text.failed || c->lacking.text.failed || c->extra.text.failed ? fail_oom() : OK;
}

static Status hint_command(const Save *s, Status r) {
  TextBuf line = {0};
  for (int i = 0; i < s->m.facts.argc; i++) text_printf(&line, "%s%s", i ? " " : "", s->m.facts.argv[i]);
  if (line.len && !line.failed) r = status_hint(r, "the run was started as: %s", line.text);
  text_free(&line);
  return r;
}

static Status another_program(const Comparison *c) {
  const Differences *d = &c->model;
  const char *program = c->save->m.facts.program;
  Status r = fail(ERR_USAGE, "'%s' is a save of another program%s%s%s: %d tensor%s differ%s", c->save->path,
                  *program ? " ('" : "", program, *program ? "')" : "", d->count, PLURAL(d->count),
                  d->count == 1 ? "s" : "");
  if (d->count <= SHOWN) r = status_at(r, "%s", d->text.text);
  else r = status_at(r, "%s\n       and %d more", d->text.text, d->count - SHOWN);
  return hint_command(c->save, r);
}

static Status tell_optimizer(const Comparison *c, Arena *arena, const char **note) {
  const Differences *d = c->lacking.count ? &c->lacking : &c->extra;
  const char *how = c->lacking.count ? "is of another optimizer: the state of this one begins anew, the save lacks"
                                     : "has more state of optimizers than this run keeps, which is left out:";
  char more[48] = "";
  if (!d->count) return OK;
  if (d->count > SHOWN) snprintf(more, sizeof more, "\n       and %d more", d->count - SHOWN);
  TRY_NEW(*note, arena_printf(arena, "'%s' %s\n       %s%s", c->save->path, how, d->text.text, more));
  return OK;
}

static Status match(Comparison *c, const SafeItem *items, int n, Arena *arena, SaveMatch *out) {
  *out = (SaveMatch){0};
  TRY_NEW(out->fits, arena_new_n(arena, bool, n + 1));
  TRY(compare(c, items, n, arena, out->fits));
  if (c->model.count) return another_program(c);
  for (int i = 0; i < n && c->lacking.count; i++) out->fits[i] = begins(items[i].name, "model.");
  return tell_optimizer(c, arena, &out->note);
}

Status save_match(const Save *s, const SafeItem *items, int n, Arena *arena, SaveMatch *out) {
  Comparison c = {.save = s};
  Status r = match(&c, items, n, arena, out);
  text_free(&c.model.text);
  text_free(&c.lacking.text);
  text_free(&c.extra.text);
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
    const ManifestTensor *t = manifest_find(&s->m, items[i].name);
    if (!t || !manifest_is_like(t, items[i].tensor->dtype, items[i].tensor->ndim, items[i].tensor->size))
      return fail(ERR_USAGE, "'%s' has no tensor like '%s'", s->path, items[i].name);
  }
  TRY(save_verify(s, threads));
  Status r = copy_all(s, items, n, threads, &scope, &arena);
  arena_free(&arena);
  scope_clear(&scope);
  return r;
}
