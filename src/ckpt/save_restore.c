/* save_restore.c -- a save and the tensors that it is to fill; see save.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/human.h"
#include "base/parallel.h"
#include "base/strmap.h"
#include "ckpt/save.h"

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
  const char *from;
  size_t bytes; /* at most PIECE */
} Copy;

typedef struct {
  Copy *v;
  int n, cap;
} Copies;

static void copy_some(void *arg, int64_t begin, int64_t end, int worker) {
  const Copies *c = arg;
  (void)worker;
  for (int64_t i = begin; i < end; i++) memcpy(c->v[i].to, c->v[i].from, c->v[i].bytes);
}

static Status add_copies(const Save *s, const SafeItem *item, Scope *scope, Arena *arena, Copies *c) {
  Tensor *saved;
  TRY(save_tensor(s, item->name, scope, &saved));
  size_t bytes = (size_t)tensor_numel(saved) * dtype_size(saved->dtype);
  char *to = tensor_data(item->tensor);
  const char *from = tensor_data(saved);
  for (size_t at = 0; at < bytes; at += PIECE) {
    TRY_NEW(c->v, arena_more(arena, c->v, c->n, &c->cap));
    c->v[c->n++] = (Copy){to + at, from + at, bytes - at < PIECE ? bytes - at : PIECE};
  }
  return OK;
}

/* All are found before the first is copied. */
static Status copy_all(const Save *s, const SafeItem *items, int n, int threads, Scope *scope, Arena *arena) {
  Copies c = {0};
  for (int i = 0; i < n; i++) TRY(add_copies(s, &items[i], scope, arena, &c));
  if (c.n) parallel_for(threads, c.n, 1, copy_some, &c);
  return OK;
}

Status save_restore(const Save *s, const SafeItem *items, int n, int threads) {
  Scope scope = {0};
  Arena arena = {0};
  for (int i = 0; i < n; i++) {
    if (!tensor_is_contiguous(items[i].tensor) || (!tensor_data(items[i].tensor) && tensor_numel(items[i].tensor)))
      return fail(ERR_FAIL, "'%s' cannot be restored into a tensor that is not contiguous or has no data",
                  items[i].name);
  }
  TRY(save_check_match(s, items, n));
  TRY(save_verify(s, threads));
  Status r = copy_all(s, items, n, threads, &scope, &arena);
  arena_free(&arena);
  scope_clear(&scope);
  return r;
}
