/* write_state.c -- weights and constants of .pt2 files; see writer.h.
 *
 * Entries on one storage, of one dtype, make a group, and a group one record:
 *   several views   the span of the storage that they reach, so that they stay aliases
 *   one view        (tied weights are one view) its own span if it fills that, else a
 *                   packed copy: of a column shard only the columns are written
 */
#include <string.h>

#include "kernels/copy.h"
#include "pt2/writer.h"

typedef struct {
  const Tensor *first;
  int64_t begin, end; /* elements of the storage; end is one past the last */
  bool same;          /* all members are the same view */
  int number;         /* in the name of the record */
} Group;

typedef struct {
  Writer *w;
  ZipOut *z;
  const char *root, *folder, *prefix, *config; /* "data/weights/", "weight_", "model_weights_config.json" */
  bool constants;
  Group *groups;
  int ngroups;
  int *group_of; /* by position in the state */
  int *slot;     /* hash table: storage and dtype -> 1 + group */
  size_t mask;
} Saver;

/* Where the group of a storage and dtype is, or is to be. */
static int *group_slot(Saver *s, const Tensor *t) {
  size_t h = (size_t)(((uint64_t)(uintptr_t)t->storage >> 4) * 0x9e3779b97f4a7c15u >> 20) + (size_t)t->dtype;
  for (;; h++) {
    int *slot = &s->slot[h & s->mask];
    const Tensor *first = *slot ? s->groups[*slot - 1].first : NULL;
    if (!first || (first->storage == t->storage && first->dtype == t->dtype)) return slot;
  }
}

static Status add_entry(Saver *s, int at) {
  const StateEntry *entry = &s->w->e->state[at];
  const Tensor *t = entry->tensor;
  if (!t || (tensor_numel(t) && !tensor_data(t))) {
    return status_hint(fail(ERR_FAIL, "the program cannot be written: '%s' has no data", entry->fqn),
                       "give its weights (--weights)");
  }
  int64_t begin = tensor_numel(t) ? t->offset : 0, end = begin + tensor_extent(t);
  int *slot = tensor_numel(t) && t->storage ? group_slot(s, t) : NULL;
  Group *g = slot && *slot ? &s->groups[*slot - 1] : NULL;
  if (!g) {
    g = &s->groups[s->ngroups];
    *g = (Group){t, begin, end, true, s->ngroups++};
    if (slot) *slot = s->ngroups;
  }
  g->same &= tensor_same_view(g->first, t);
  if (begin < g->begin) g->begin = begin;
  if (end > g->end) g->end = end;
  s->group_of[at] = g->number;
  return OK;
}

static bool is_packed(const Group *g) { return g->same && tensor_numel(g->first) != g->end - g->begin; }

static Status write_packed(Saver *s, const Tensor *t) {
  Scope scope = {0};
  Kern kern;
  Tensor *copy;
  Status status = tensor_new(&scope, t->dtype, t->ndim, t->size, &copy);
  if (!status) {
    kern_init(&kern, 1);
    kernel_copy(&kern, tensor_view(copy), tensor_view(t));
    kern_free(&kern);
    status = zip_out_write(s->z, tensor_data(copy), copy->storage->size);
  }
  scope_clear(&scope);
  return status;
}

static int64_t record_elements(const Group *g) { return is_packed(g) ? tensor_numel(g->first) : g->end - g->begin; }

static Status write_record(Saver *s, const Group *g) {
  size_t item = dtype_size(g->first->dtype);
  int64_t count = record_elements(g);
  char *name;
  TRY_NEW(name, arena_printf(&s->w->arena, "%s%s%s%d", s->root, s->folder, s->prefix, g->number));
  TRY(zip_out_begin(s->z, name, (uint64_t)count * item));
  if (is_packed(g)) TRY(write_packed(s, g->first));
  else if (count)
    TRY(zip_out_write(s->z, (const char *)g->first->storage->data + (size_t)g->begin * item, (size_t)count * item));
  return zip_out_end(s->z);
}

static void write_entry(Saver *s, int at) {
  const StateEntry *entry = &s->w->e->state[at];
  const Tensor *t = entry->tensor;
  const Group *g = &s->groups[s->group_of[at]];
  TextBuf *b = &s->w->b;
  int64_t packed[MAX_DIMS];
  contiguous_strides(t->ndim, t->size, packed);
  text_json(b, entry->fqn);
  text_printf(b,
              ": {\"path_name\": \"%s%d\", \"is_param\": %s, \"use_pickle\": false, \"tensor_meta\": ", s->prefix,
              g->number, entry->is_parameter ? "true" : "false");
  bool whole = is_packed(g) || tensor_numel(t) == 0;
  write_tensor_meta(s->w, t, whole ? packed : t->stride, whole ? 0 : t->offset - g->begin, entry->requires_grad);
  text_puts(b, "}");
}

static Status write_part(Saver *s) {
  const Exported *e = s->w->e;
  TextBuf *b = &s->w->b;
  TRY_NEW(s->groups, arena_new_n(&s->w->arena, Group, e->nstate));
  TRY_NEW(s->group_of, arena_new_n(&s->w->arena, int, e->nstate));
  for (s->mask = 15; s->mask < 2 * (size_t)e->nstate; s->mask = 2 * s->mask + 1) continue;
  TRY_NEW(s->slot, arena_new_n(&s->w->arena, int, s->mask + 1));
  for (int i = 0; i < e->nstate; i++) {
    if (e->state[i].is_constant == s->constants) TRY(add_entry(s, i));
  }
  for (int i = 0; i < s->ngroups && s->w->progress; i++) {
    s->w->progress->total += record_elements(&s->groups[i]) * (int64_t)dtype_size(s->groups[i].first->dtype);
  }
  for (int i = 0; i < s->ngroups; i++) {
    if (s->w->interrupted && s->w->interrupted()) return fail(ERR_FAIL, "interrupted");
    TRY(write_record(s, &s->groups[i]));
  }
  bool first = true;
  b->len = 0;
  text_puts(b, "{\"config\": {");
  for (int i = 0; i < e->nstate; i++) {
    if (e->state[i].is_constant != s->constants) continue;
    if (!first) text_puts(b, ", ");
    first = false;
    write_entry(s, i);
  }
  text_puts(b, "}}");
  if (b->failed) return fail_oom();
  char *name;
  TRY_NEW(name, arena_printf(&s->w->arena, "%s%s%s", s->root, s->folder, s->config));
  return zip_out_add(s->z, name, b->text, b->len);
}

Status write_state(Writer *w, ZipOut *z, const char *root) {
  Saver weights = {.w = w,
                   .z = z,
                   .root = root,
                   .folder = "data/weights/",
                   .prefix = "weight_",
                   .config = "model_weights_config.json"};
  Saver constants = {.w = w,
                     .z = z,
                     .root = root,
                     .folder = "data/constants/",
                     .prefix = "tensor_",
                     .config = "model_constants_config.json",
                     .constants = true};
  TRY(write_part(&weights));
  return write_part(&constants);
}
