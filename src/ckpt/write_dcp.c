/* write_dcp.c -- checkpoints that torch.distributed.checkpoint loads; see source_dcp.c for the format, writing.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/strmap.h"
#include "ckpt/pickle_out.h"
#include "ckpt/write_formats.h"
#include "ckpt/zip_record.h"

/* A record of a file: the box with what is around it, or a value. */
typedef struct {
  uint64_t at, bytes;
  int value; /* of the derived checkpoint; -1: a box of a tensor */
} Record;

/* ---- records ------------------------------------------------------------------------------------------------ */

static Status make_around(const Writing *w, const WriteBox *b, TextBuf *before, TextBuf *after) {
  const DerivedTensor *t = &w->d->v[b->tensor];
  TextBuf pickle = {0};
  pickle_begin(&pickle);
  pickle_tensor(&pickle, t->dtype, b->size, t->ndim);
  pickle_end(&pickle);
  zip_record(&pickle, b->bytes, b->crc, before, after);
  bool failed = pickle.failed || before->failed || after->failed;
  text_free(&pickle);
  return failed ? fail_oom() : OK;
}

static Status add_record(Writing *w, const WriteBox *b, int value, uint64_t before, uint64_t after) {
  WriteFile *f = &w->file[b->file];
  WriteBox placed = *b;
  Record *records = w->planned;
  placed.at = f->bytes + before;
  records[w->boxes] = (Record){f->bytes, before + b->bytes + after, value};
  f->bytes += before + b->bytes + after;
  return writing_add_box(w, &placed);
}

static Status plan_box(Writing *w, WriteBox *b) {
  TextBuf before = {0}, after = {0};
  b->bytes = dtype_size(w->d->v[b->tensor].dtype);
  for (int d = 0; d < w->d->v[b->tensor].ndim; d++) b->bytes *= (uint64_t)b->size[d];
  Status s = make_around(w, b, &before, &after);
  if (!s) s = add_record(w, b, -1, before.len, after.len);
  text_free(&before);
  text_free(&after);
  return s;
}

Status around_dcp(Writing *w, const WriteBox *b) {
  const Record *r = (const Record *)w->planned + (b - w->box);
  TextBuf before = {0}, after = {0};
  if (b->tensor < 0) return OK;
  Status s = make_around(w, b, &before, &after);
  if (!s) s = writing_put(w, b->file, r->at, before.text, before.len);
  if (!s) s = writing_put(w, b->file, b->at + b->bytes, after.text, after.len);
  text_free(&before);
  text_free(&after);
  return s;
}

/* ---- the plan ----------------------------------------------------------------------------------------------- */

static Status plan_values(Writing *w, int file) {
  const Source *s = w->d->source[0];
  for (int i = 0; i < w->d->values; i++) {
    const SourceValue *v = &w->d->value[i];
    if (!v->bytes) continue; /* of torch.save: not a record */
    WriteBox b = {.file = file, .tensor = -1, .bytes = v->bytes, .raw = s->file[v->file].map->data + v->at};
    TRY(add_record(w, &b, i, 0, 0));
  }
  return OK;
}

static Status plan_rank(Writing *w, const SavePlan *plan, const StrMap *tensors, int file) {
  for (int i = 0; i < plan->n; i++) {
    WriteBox b = {.file = file, .tensor = (int)(uintptr_t)strmap_get(tensors, plan->v[i].fqn) - 1};
    memcpy(b.offset, plan->v[i].chunk.offset, sizeof b.offset);
    memcpy(b.size, plan->v[i].chunk.size, sizeof b.size);
    TRY(plan_box(w, &b));
  }
  return OK;
}

static Status plan_whole(Writing *w, int file) {
  for (int i = 0; i < w->d->n; i++) {
    WriteBox b = {.file = file, .tensor = i};
    memcpy(b.size, w->d->v[i].size, sizeof b.size);
    TRY(plan_box(w, &b));
  }
  return OK;
}

Status plan_dcp(Writing *w) {
  const WriteMesh *mesh = w->how->mesh;
  SavePlan *plan = NULL;
  StrMap tensors = {0};
  int ranks = mesh ? mesh->ranks : 1, most = w->d->n + w->d->values;
  if (mesh) TRY(writing_plan_mesh(w, &plan));
  for (int r = 0; mesh && r < ranks; r++) most += plan[r].n;
  TRY_NEW(w->planned, arena_new_n(&w->arena, Record, most + 1));
  for (int i = 0; i < w->d->n; i++) {
    StrSlot *slot;
    TRY(strmap_slot(&tensors, &w->arena, w->d->v[i].name, &slot));
    slot->value = (void *)(uintptr_t)(i + 1);
  }
  for (int r = 0; r < ranks; r++) {
    char *name;
    int file;
    TRY_NEW(name, arena_printf(&w->arena, "__%d_0.distcp", r));
    TRY(writing_add_file(w, name, &file));
    w->file[file].rank = r;
    TRY(mesh ? plan_rank(w, &plan[r], &tensors, file) : plan_whole(w, file));
    if (r == 0) TRY(plan_values(w, file));
  }
  return OK;
}

/* ---- .metadata
 * ---------------------------------------------------------------------------------------------------- */

/* Classes are named once, at the beginning, and then by their number in the memo. */
#define CLASSES(X)                                                                  \
  X(METADATA, "torch.distributed.checkpoint.metadata", "Metadata")                  \
  X(TENSOR, "torch.distributed.checkpoint.metadata", "TensorStorageMetadata")       \
  X(BYTES, "torch.distributed.checkpoint.metadata", "BytesStorageMetadata")         \
  X(CHUNK, "torch.distributed.checkpoint.metadata", "ChunkStorageMetadata")         \
  X(PROPERTIES, "torch.distributed.checkpoint.metadata", "TensorProperties")        \
  X(MEMORY_FORMAT, "torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING") \
  X(INDEX, "torch.distributed.checkpoint.metadata", "MetadataIndex")                \
  X(STORAGE_META, "torch.distributed.checkpoint.metadata", "StorageMeta")           \
  X(STORAGE_INFO, "torch.distributed.checkpoint.filesystem", "_StorageInfo")        \
  X(LAYOUT, "torch.serialization", "_get_layout")                                   \
  X(SIZE, "torch", "Size")

/* clang-format off */
typedef enum {
#define X(id, module, name) CLASS_##id,
  CLASSES(X)
#undef X
} Class;
/* clang-format on */

static void put_classes(TextBuf *b) {
#define X(id, module, name)       \
  pickle_global(b, module, name); \
  pickle_op(b, 'q');              \
  pickle_op(b, (char)CLASS_##id); \
  pickle_op(b, '0');
  CLASSES(X)
#undef X
}

static void put_class(TextBuf *b, Class c) {
  pickle_op(b, 'h');
  pickle_op(b, (char)c);
}

/* An object whose attributes follow, as keys and values, up to end_object(). */
static void begin_object(TextBuf *b, Class c) {
  put_class(b, c);
  text_puts(b, ")\x81}("); /* (), NEWOBJ, {}, MARK */
}

static void end_object(TextBuf *b) { text_puts(b, "ub"); } /* SETITEMS, BUILD */

static void put_size(TextBuf *b, const int64_t *v, int n) {
  put_class(b, CLASS_SIZE);
  pickle_tuple(b, v, n);
  text_puts(b, "\x85R");
}

static void put_properties(TextBuf *b, Dtype dtype) {
  put_class(b, CLASS_PROPERTIES);
  text_puts(b, ")\x81(");
  pickle_dtype(b, dtype);
  put_class(b, CLASS_LAYOUT);
  pickle_text(b, "torch.strided");
  text_puts(b, "\x85R\x89"); /* requires_grad False */
  put_class(b, CLASS_MEMORY_FORMAT);
  pickle_int(b, 0);
  text_puts(b, "\x85R\x89tb"); /* pin_memory False */
}

static void put_tensor(TextBuf *b, const Writing *w, int tensor, const int *boxes, int n) {
  const DerivedTensor *t = &w->d->v[tensor];
  begin_object(b, CLASS_TENSOR);
  pickle_text(b, "properties");
  put_properties(b, t->dtype);
  pickle_text(b, "size");
  put_size(b, t->size, t->ndim);
  pickle_text(b, "chunks");
  text_puts(b, "](");
  for (int i = 0; i < n; i++) {
    const WriteBox *box = &w->box[boxes[i]];
    begin_object(b, CLASS_CHUNK);
    pickle_text(b, "offsets");
    put_size(b, box->offset, t->ndim);
    pickle_text(b, "sizes");
    put_size(b, box->size, t->ndim);
    end_object(b);
  }
  text_puts(b, "e");
  end_object(b);
}

/* Boxes of each tensor one after another: order[first[i]] ... */
typedef struct {
  int *first, *order;
} ByTensor;

static Status group_boxes(Writing *w, ByTensor *g) {
  int *next;
  TRY_NEW(g->first, arena_new_n(&w->arena, int, w->d->n + 2));
  TRY_NEW(g->order, arena_new_n(&w->arena, int, w->boxes + 1));
  TRY_NEW(next, arena_new_n(&w->arena, int, w->d->n + 2));
  for (int i = 0; i < w->boxes; i++)
    if (w->box[i].tensor >= 0) g->first[w->box[i].tensor + 1]++;
  for (int i = 0; i < w->d->n; i++) g->first[i + 1] += g->first[i];
  memcpy(next, g->first, ((size_t)w->d->n + 1) * sizeof *next);
  for (int i = 0; i < w->boxes; i++)
    if (w->box[i].tensor >= 0) g->order[next[w->box[i].tensor]++] = i;
  return OK;
}

static void put_names(TextBuf *b, const Writing *w, const ByTensor *g) {
  const Record *records = w->planned;
  pickle_text(b, "state_dict_metadata");
  text_puts(b, "}(");
  for (int i = 0; i < w->d->n; i++) {
    pickle_text(b, w->d->v[i].name);
    put_tensor(b, w, i, g->order + g->first[i], g->first[i + 1] - g->first[i]);
  }
  for (int i = 0; i < w->boxes; i++) {
    if (w->box[i].tensor >= 0) continue;
    pickle_text(b, w->d->value[records[i].value].name);
    put_class(b, CLASS_BYTES);
    text_puts(b, ")\x81");
  }
  text_puts(b, "u");
}

/* The keys of nested dicts that a name is made of, as PyTorch's own planner has them. */
static void put_path(TextBuf *b, const char *name, bool nested) {
  const char *dot = strrchr(name, '.');
  char *rest;
  text_puts(b, "(");
  if (nested && !strncmp(name, "model.", 6)) {
    pickle_text(b, "model");
    pickle_text(b, name + 6);
  } else if (nested && !strncmp(name, "optim.state.", 12) && dot > name + 12 &&
             (rest = strndup(name + 12, (size_t)(dot - name - 12)))) {
    pickle_text(b, "optim");
    pickle_text(b, "state");
    pickle_text(b, rest);
    pickle_text(b, dot + 1);
    free(rest);
  } else if (nested && !strncmp(name, "optim.param_groups.", 19) && dot > name + 19) {
    pickle_text(b, "optim");
    pickle_text(b, "param_groups");
    pickle_int(b, strtoll(name + 19, NULL, 10));
    pickle_text(b, dot + 1);
  } else pickle_text(b, name);
  text_puts(b, "t");
}

static void put_paths(TextBuf *b, const Writing *w) {
  const Record *records = w->planned;
  bool nested = false;
  for (int i = 0; i < w->d->n; i++) nested |= !strncmp(w->d->v[i].name, "optim.", 6);
  pickle_text(b, "planner_data");
  text_puts(b, "}(");
  for (int i = 0; i < w->d->n; i++) {
    pickle_text(b, w->d->v[i].name);
    put_path(b, w->d->v[i].name, nested);
  }
  for (int i = 0; i < w->boxes; i++) {
    if (w->box[i].tensor >= 0) continue;
    pickle_text(b, w->d->value[records[i].value].name);
    put_path(b, w->d->value[records[i].value].name, nested);
  }
  text_puts(b, "u");
}

static void put_record(TextBuf *b, const Writing *w, int i, int index) {
  const Record *r = (const Record *)w->planned + i;
  const WriteBox *box = &w->box[i];
  const DerivedTensor *t = box->tensor >= 0 ? &w->d->v[box->tensor] : NULL;
  begin_object(b, CLASS_INDEX);
  pickle_text(b, "fqn");
  pickle_text(b, t ? t->name : w->d->value[r->value].name);
  pickle_text(b, "index");
  if (t) pickle_int(b, index);
  else pickle_op(b, 'N');
  pickle_text(b, "offset");
  if (t) put_size(b, box->offset, t->ndim);
  else pickle_op(b, 'N');
  end_object(b);
  begin_object(b, CLASS_STORAGE_INFO);
  pickle_text(b, "relative_path");
  pickle_text(b, w->file[box->file].name);
  pickle_text(b, "offset");
  pickle_int(b, (int64_t)r->at);
  pickle_text(b, "length");
  pickle_int(b, (int64_t)r->bytes);
  end_object(b);
}

static void put_records(TextBuf *b, const Writing *w, const ByTensor *g) {
  pickle_text(b, "storage_data");
  text_puts(b, "}(");
  for (int i = 0; i < w->d->n; i++)
    for (int k = g->first[i]; k < g->first[i + 1]; k++) put_record(b, w, g->order[k], k - g->first[i]);
  for (int i = 0; i < w->boxes; i++)
    if (w->box[i].tensor < 0) put_record(b, w, i, 0);
  text_puts(b, "u");
}

Status finish_dcp(Writing *w) {
  TextBuf b = {0};
  ByTensor g;
  TRY(group_boxes(w, &g));
  pickle_begin(&b);
  put_classes(&b);
  begin_object(&b, CLASS_METADATA);
  put_names(&b, w, &g);
  put_paths(&b, w);
  put_records(&b, w, &g);
  pickle_text(&b, "storage_meta");
  begin_object(&b, CLASS_STORAGE_META);
  pickle_text(&b, "modules");
  text_puts(&b, "]");
  end_object(&b);
  pickle_text(&b, "version");
  pickle_text(&b, "1.0.0");
  end_object(&b);
  pickle_end(&b);
  Status s = b.failed ? fail_oom() : writing_add_text(w, ".metadata", b.text, b.len);
  text_free(&b);
  return s;
}
