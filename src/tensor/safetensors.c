/* safetensors.c -- see safetensors.h. */
#include "tensor/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/blocks.h"
#include "base/direct.h"
#include "base/json.h"

enum {
  LENGTH = 8,
  PIECE = 4 << 20, /* bytes that are hashed and then written, from the cache */
  MAX_HEADER = 100 * 1000 * 1000,
  MAX_ENTRIES = 1 << 24
}; /* the format's own limit on the header */

/* ---- reading ---------------------------------------------------------------- */

static Status fail_entry(const SafeTensors *st, const char *name, const char *reason) {
  return fail(ERR_FILE, "%s: tensor '%s': %s", st->file->path, name, reason);
}

static Status read_shape(const SafeTensors *st, SafeEntry *e, yyjson_val *shape) {
  if (!yyjson_is_arr(shape)) return fail_entry(st, e->name, "'shape' must be an array");
  size_t n = yyjson_arr_size(shape), i, max;
  if (n > MAX_DIMS) {
    return fail(ERR_FILE, "%s: tensor '%s' has %zu dimensions: at most %d are supported", st->file->path, e->name,
                n, MAX_DIMS);
  }
  e->ndim = (int)n;
  yyjson_val *v;
  yyjson_arr_foreach(shape, i, max, v) {
    if (!json_as_int64(v, &e->size[i]) || e->size[i] < 0)
      return fail_entry(st, e->name, "'shape' must hold sizes of 0 or more");
  }
  return OK;
}

static Status read_offsets(const SafeTensors *st, SafeEntry *e, yyjson_val *offsets, uint64_t data_begin) {
  yyjson_val *a = yyjson_arr_get(offsets, 0), *b = yyjson_arr_get(offsets, 1);
  if (yyjson_arr_size(offsets) != 2 || !yyjson_is_uint(a) || !yyjson_is_uint(b)) {
    return fail_entry(st, e->name, "'data_offsets' must be two offsets");
  }
  uint64_t begin = yyjson_get_uint(a), end = yyjson_get_uint(b), have = st->file->size - data_begin;
  if (begin > end || end > have) {
    return fail(
        ERR_FILE, "%s: tensor '%s': data_offsets [%llu, %llu] are outside the file, which has %llu bytes of data",
        st->file->path, e->name, (unsigned long long)begin, (unsigned long long)end, (unsigned long long)have);
  }
  e->begin = data_begin + begin;
  e->end = data_begin + end;
  int64_t numel, bytes;
  char shape[256];
  if (!checked_numel(e->ndim, e->size, &numel) ||
      __builtin_mul_overflow(numel, (int64_t)dtype_size(e->dtype), &bytes) || (uint64_t)bytes != end - begin) {
    return fail(ERR_FILE, "%s: tensor '%s': %s%s does not fill its %llu bytes exactly", st->file->path, e->name,
                dtype_name(e->dtype), shape_describe(e->ndim, e->size, shape, sizeof shape),
                (unsigned long long)(end - begin));
  }
  return OK;
}

static Status read_entry(SafeTensors *st, yyjson_val *key, yyjson_val *value, uint64_t data_begin) {
  SafeEntry *e = &st->entries[st->count];
  TRY_NEW(e->name, arena_strdup(&st->arena, yyjson_get_str(key)));
  if (!yyjson_is_obj(value)) return fail_entry(st, e->name, "its entry must be an object");
  if (yyjson_obj_size(value) != 3)
    return fail_entry(st, e->name, "its entry must have 'dtype', 'shape' and 'data_offsets'");
  const char *dtype = json_as_string(yyjson_obj_get(value, "dtype"));
  if (!dtype) return fail_entry(st, e->name, "'dtype' must be a string");
  e->dtype = dtype_from_safetensors(dtype);
  if (e->dtype == DT_NONE)
    return fail(ERR_FILE, "%s: tensor '%s' has the dtype '%s', which is not supported", st->file->path, e->name,
                dtype);
  TRY(read_shape(st, e, yyjson_obj_get(value, "shape")));
  TRY(read_offsets(st, e, yyjson_obj_get(value, "data_offsets"), data_begin));
  st->count++;
  return OK;
}

static Status read_metadata(SafeTensors *st, yyjson_val *meta) {
  if (!yyjson_is_obj(meta)) return fail(ERR_FILE, "%s: '__metadata__' must be an object", st->file->path);
  TRY(json_check_keys(meta, st->file->path));
  size_t i, max;
  TRY_NEW(st->text, arena_new_n(&st->arena, SafeText, yyjson_obj_size(meta)));
  yyjson_val *key, *value;
  yyjson_obj_foreach(meta, i, max, key, value) {
    const char *text = json_as_string(value);
    if (!text)
      return fail(ERR_FILE, "%s: '%s' in '__metadata__' must be a string", st->file->path, yyjson_get_str(key));
    SafeText *t = &st->text[st->texts++];
    TRY_NEW(t->key, arena_strdup(&st->arena, yyjson_get_str(key)));
    TRY_NEW(t->value, arena_strdup(&st->arena, text));
  }
  return OK;
}

static int by_place(const void *a, const void *b) {
  const SafeEntry *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const SafeEntry *)a)->name, ((const SafeEntry *)b)->name);
}

/* In the order of the file, each entry begins where the one before ends (I1). */
static Status check_cover(SafeTensors *st, uint64_t data_begin) {
  uint64_t at = data_begin;
  if (st->count) qsort(st->entries, (size_t)st->count, sizeof *st->entries, by_place);
  for (int i = 0; i < st->count; i++) {
    const SafeEntry *e = &st->entries[i];
    if (e->begin != at)
      return fail_entry(st, e->name,
                        e->begin < at ? "its data overlaps another tensor's" : "there is a hole before its data");
    at = e->end;
  }
  if (at != st->file->size) {
    return fail(ERR_FILE, "%s: %llu bytes at the end belong to no tensor", st->file->path,
                (unsigned long long)(st->file->size - at));
  }
  if (st->count) qsort(st->entries, (size_t)st->count, sizeof *st->entries, by_name);
  return OK;
}

static Status read_header(SafeTensors *st, yyjson_val *root, uint64_t data_begin) {
  const char *path = st->file->path;
  if (!yyjson_is_obj(root)) return fail(ERR_FILE, "%s: the header must be a JSON object", path);
  if (yyjson_obj_size(root) > MAX_ENTRIES)
    return fail(ERR_FILE, "%s: %zu tensors are too many", path, yyjson_obj_size(root));
  TRY(json_check_keys(root, path));
  TRY_NEW(st->entries, arena_new_n(&st->arena, SafeEntry, yyjson_obj_size(root)));
  size_t i, max;
  yyjson_val *key, *value;
  yyjson_obj_foreach(root, i, max, key, value) {
    if (yyjson_equals_str(key, "__metadata__")) TRY(read_metadata(st, value));
    else TRY(read_entry(st, key, value, data_begin));
  }
  return check_cover(st, data_begin);
}

static Status read_file(SafeTensors *st) {
  const FileMap *f = st->file;
  if (f->size < LENGTH)
    return fail(ERR_FILE, "%s: %zu bytes are too few for a .safetensors file", f->path, f->size);
  uint64_t length = 0;
  for (int i = LENGTH - 1; i >= 0; i--) length = length << 8 | f->data[i];
  if (length > MAX_HEADER || length > f->size - LENGTH) {
    return fail(ERR_FILE, "%s: not a .safetensors file, or cut off: its header has %llu bytes, the file %zu",
                f->path, (unsigned long long)length, f->size);
  }
  if (length == 0 || f->data[LENGTH] != '{')
    return fail(ERR_FILE, "%s: not a .safetensors file: its header does not begin with '{'", f->path);
  yyjson_doc *doc;
  TRY(json_parse(f->path, f->data + LENGTH, (size_t)length, 0, &doc));
  Status s = read_header(st, yyjson_doc_get_root(doc), LENGTH + length);
  yyjson_doc_free(doc);
  return s;
}

Status safetensors_from_map(FileMap *f, SafeTensors **out) {
  SafeTensors *st;
  TRY_NEW(st, calloc(1, sizeof *st));
  st->file = file_map_ref(f);
  Status s = read_file(st);
  if (s) safetensors_close(st);
  else *out = st;
  return s;
}

Status safetensors_open(const char *path, SafeTensors **out) {
  FileMap *f;
  TRY(file_map(path, &f));
  Status s = safetensors_from_map(f, out);
  file_map_unref(f);
  return s;
}

void safetensors_close(SafeTensors *st) {
  if (!st) return;
  file_map_unref(st->file);
  arena_free(&st->arena);
  free(st);
}

const SafeEntry *safetensors_find(const SafeTensors *st, const char *name) {
  const SafeEntry key = {.name = name};
  return st->count ? bsearch(&key, st->entries, (size_t)st->count, sizeof key, by_name) : NULL;
}

const char *safetensors_text(const SafeTensors *st, const char *key) {
  for (int i = 0; i < st->texts; i++) {
    if (!strcmp(st->text[i].key, key)) return st->text[i].value;
  }
  return NULL;
}

static void release_map(Storage *s) { file_map_unref(s->owner); }

static Status entry_storage(const SafeTensors *st, const SafeEntry *e, Storage **out) {
  unsigned char *data = st->file->data + e->begin;
  size_t bytes = (size_t)(e->end - e->begin);
  size_t align = dtype_size(e->dtype) > 8 ? 8 : dtype_size(e->dtype);
  if (bytes && (uintptr_t)data % align) {
    TRY(storage_new(bytes, out));
    memcpy((*out)->data, data, bytes);
    return OK;
  }
  TRY(storage_borrow(bytes ? data : NULL, bytes, release_map, st->file, out));
  file_map_ref(st->file);
  return OK;
}

Status safetensors_tensor(const SafeTensors *st, const SafeEntry *e, Scope *scope, Tensor **out) {
  Tensor *t;
  if (e->dtype == DT_BOOL) { /* C's bool has two values; other bytes must not reach a kernel */
    for (uint64_t i = e->begin; i < e->end; i++) {
      if (st->file->data[i] > 1) return fail_entry(st, e->name, "a bool is neither 0 nor 1");
    }
  }
  TRY(tensor_meta(scope, e->dtype, e->ndim, e->size, &t));
  TRY(entry_storage(st, e, &t->storage));
  *out = t;
  return OK;
}

Status safetensors_get(const SafeTensors *st, const char *name, Scope *scope, Tensor **out) {
  const SafeEntry *e = safetensors_find(st, name);
  if (!e) return fail(ERR_FILE, "%s: there is no tensor '%s'", st->file->path, name);
  return safetensors_tensor(st, e, scope, out);
}

static void hash_pieces(const FileMap *f, uint64_t at, uint64_t end, void *buffer, XXH3_state_t *state) {
  for (size_t n; at < end; at += n) {
    n = end - at < PIECE ? (size_t)(end - at) : PIECE;
    file_map_copy(f, (size_t)at, buffer, n);
    XXH3_64bits_update(state, buffer, n);
  }
}

/* What is large is read, not mapped: most of it is not in memory. */
uint64_t safetensors_hash(const SafeTensors *st, const SafeEntry *entry) {
  const size_t bytes = (size_t)(entry->end - entry->begin);
  void *buffer = bytes < DIRECT_LEAST ? NULL : block_alloc(PIECE);
  XXH3_state_t *state = buffer ? XXH3_createState() : NULL;
  uint64_t hash;
  if (state) {
    XXH3_64bits_reset(state);
    hash_pieces(st->file, entry->begin, entry->end, buffer, state);
    hash = XXH3_64bits_digest(state);
  } else hash = XXH3_64bits(bytes ? st->file->data + entry->begin : NULL, bytes);
  XXH3_freeState(state);
  if (buffer) block_free(buffer, PIECE);
  return hash;
}

/* ---- writing ---------------------------------------------------------------- */

typedef struct {
  int at; /* position in the caller's list */
  uint64_t bytes;
  size_t align; /* a multiple of which the bytes are: a page, or an element */
} Placed;

static int by_alignment(const void *a, const void *b) {
  const Placed *x = a, *y = b;
  return x->align != y->align ? (x->align > y->align ? -1 : 1) : x->at - y->at;
}

static Placed placed(const SafeEntry *e, int at) {
  Placed p = {at, dtype_size(e->dtype), dtype_size(e->dtype)};
  for (int d = 0; d < e->ndim; d++) p.bytes *= (uint64_t)e->size[d];
  if (p.bytes && p.bytes % DIRECT_PAGE == 0) p.align = DIRECT_PAGE;
  return p;
}

/* Entries of whole pages stand first, so that what is large begins at a page; *bytes: of all.  begin and end count
 * from the start of the data. */
static Status place(SafeEntry *e, int n, uint64_t *bytes) {
  Placed *order;
  TRY_NEW(order, malloc(((size_t)n + 1) * sizeof *order));
  for (int i = 0; i < n; i++) order[i] = placed(&e[i], i);
  qsort(order, (size_t)n, sizeof *order, by_alignment);
  *bytes = 0;
  for (int i = 0; i < n; i++) {
    SafeEntry *p = &e[order[i].at];
    p->begin = *bytes;
    p->end = *bytes += order[i].bytes;
  }
  free(order);
  return OK;
}

static bool add_entry(yyjson_mut_doc *doc, yyjson_mut_val *root, const SafeEntry *e) {
  yyjson_mut_val *entry = yyjson_mut_obj(doc), *shape = yyjson_mut_arr(doc), *offsets = yyjson_mut_arr(doc);
  bool ok = yyjson_mut_obj_add_str(doc, entry, "dtype", dtype_info[e->dtype].safetensors);
  for (int i = 0; i < e->ndim; i++) ok &= yyjson_mut_arr_add_int(doc, shape, e->size[i]);
  ok &= yyjson_mut_arr_add_uint(doc, offsets, e->begin) && yyjson_mut_arr_add_uint(doc, offsets, e->end);
  ok &= yyjson_mut_obj_add_val(doc, entry, "shape", shape) &&
        yyjson_mut_obj_add_val(doc, entry, "data_offsets", offsets);
  return ok && yyjson_mut_obj_add_val(doc, root, e->name, entry);
}

/* text is freed with free(). */
static Status header_text(const SafeEntry *e, int n, const SafeText *text, int texts, char **out, size_t *length) {
  yyjson_mut_doc *doc;
  TRY_NEW(doc, yyjson_mut_doc_new(NULL));
  yyjson_mut_val *root = yyjson_mut_obj(doc), *meta = yyjson_mut_obj(doc);
  bool ok = root && meta;
  for (int i = 0; ok && i < texts; i++) ok = yyjson_mut_obj_add_str(doc, meta, text[i].key, text[i].value);
  if (texts) ok = ok && yyjson_mut_obj_add_val(doc, root, "__metadata__", meta);
  for (int i = 0; ok && i < n; i++) ok = add_entry(doc, root, &e[i]);
  yyjson_write_err err = {.code = YYJSON_WRITE_ERROR_MEMORY_ALLOCATION};
  *out = NULL;
  if (ok) {
    yyjson_mut_doc_set_root(doc, root);
    *out = yyjson_mut_write_opts(doc, YYJSON_WRITE_NOFLAG, NULL, length, &err);
  }
  yyjson_mut_doc_free(doc);
  if (*out) return OK;
  return err.code == YYJSON_WRITE_ERROR_MEMORY_ALLOCATION ? fail_oom()
                                                          : fail(ERR_FAIL, "a name cannot be written: %s", err.msg);
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static Status check_names(const SafeEntry *e, int n) {
  const char **names;
  TRY_NEW(names, malloc(((size_t)n + 1) * sizeof *names));
  for (int i = 0; i < n; i++) names[i] = e[i].name;
  qsort(names, (size_t)n, sizeof *names, by_text);
  Status s = OK;
  for (int i = 0; !s && i < n; i++) {
    if (!strcmp(names[i], "__metadata__") || (i && !strcmp(names[i], names[i - 1])))
      s = fail(ERR_FAIL, "two tensors cannot both be saved as '%s'", names[i]);
    if (!*dtype_info[e[i].dtype].safetensors && !s)
      s = fail(ERR_FAIL, "tensor '%s': a .safetensors file cannot hold the dtype %s", e[i].name,
               dtype_name(e[i].dtype));
  }
  free(names);
  return s;
}

/* Length, text, blanks up to a multiple of `align` bytes of the file. */
static Status make_head(const char *text, size_t length, size_t align, void **head, size_t *bytes) {
  uint64_t padded = (LENGTH + length + align - 1) / align * align - LENGTH;
  unsigned char *p;
  TRY_NEW(p, malloc(LENGTH + (size_t)padded));
  for (int i = 0; i < LENGTH; i++) p[i] = (unsigned char)(padded >> (8 * i));
  memset(p + LENGTH, ' ', (size_t)padded);
  memcpy(p + LENGTH, text, length);
  *head = p;
  *bytes = LENGTH + (size_t)padded;
  return OK;
}

Status safetensors_plan(SafeEntry *entries, int n, const SafeText *text, int texts, void **head, size_t *bytes) {
  char *json;
  size_t length;
  uint64_t data;
  TRY(check_names(entries, n));
  TRY(place(entries, n, &data));
  TRY(header_text(entries, n, text, texts, &json, &length));
  Status s = length > MAX_HEADER ? fail(ERR_FAIL, "the names of %d tensors do not fit the header of one file", n)
                                 : make_head(json, length, data < DIRECT_LEAST ? 8 : DIRECT_PAGE, head, bytes);
  free(json);
  for (int i = 0; !s && i < n; i++) entries[i].begin += *bytes, entries[i].end += *bytes;
  return s;
}

/* hash may be NULL. */
static Status write_run(FileOut *f, const char *data, size_t bytes, XXH3_state_t *hash) {
  if (!hash) return file_out_write(f, data, bytes);
  for (size_t n; bytes; data += n, bytes -= n) {
    n = bytes < PIECE ? bytes : PIECE;
    XXH3_64bits_update(hash, data, n);
    TRY(file_out_write(f, data, n));
  }
  return OK;
}

/* Row-major order whatever the strides: the innermost run that is contiguous goes out
 * whole, the dimensions outside it are counted up. */
static Status write_elements(FileOut *f, const Tensor *t, XXH3_state_t *hash) {
  size_t item = dtype_size(t->dtype);
  const char *data = tensor_data(t);
  int outer = t->ndim;
  int64_t run = 1, index[MAX_DIMS] = {0};
  if (tensor_numel(t) == 0) return OK;
  while (outer > 0 && (t->size[outer - 1] == 1 || t->stride[outer - 1] == run)) run *= t->size[--outer];
  for (;;) {
    int64_t at = 0;
    for (int i = 0; i < outer; i++) at += index[i] * t->stride[i];
    TRY(write_run(f, data + (size_t)at * item, (size_t)run * item, hash));
    int d = outer - 1;
    while (d >= 0 && ++index[d] == t->size[d]) index[d--] = 0;
    if (d < 0) return OK;
  }
}

static Status write_pieces(FileOut *f, const SafeReader *r, int item, uint64_t bytes, XXH3_state_t *hash) {
  Status s = OK;
  for (uint64_t at = 0; !s && at < bytes;) {
    const void *data;
    size_t size;
    TRY(r->take(r->arg, item, at, &data, &size));
    s = write_run(f, data, size, hash);
    r->give_back(r->arg, item, at);
    at += size;
  }
  return s;
}

typedef struct {
  uint64_t begin;
  int at;
} Turn;

static int by_begin(const void *a, const void *b) {
  const Turn *x = a, *y = b;
  return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : x->at - y->at; /* empty ones have no place */
}

static Status write_data(FileOut *f, const SafeItem *items, const SafeEntry *e, int n, SafeWritten *out) {
  XXH3_state_t *hash = NULL;
  Turn *turn;
  Status s = OK;
  TRY_NEW(turn, malloc(((size_t)n + 1) * sizeof *turn));
  for (int i = 0; i < n; i++) turn[i] = (Turn){e[i].begin, i};
  qsort(turn, (size_t)n, sizeof *turn, by_begin);
  if (out && !(hash = XXH3_createState())) s = fail_oom();
  for (int i = 0; !s && i < n; i++) {
    const int at = turn[i].at;
    if (hash) XXH3_64bits_reset(hash);
    s = out && out->reader ? write_pieces(f, out->reader, at, e[at].end - e[at].begin, hash)
                           : write_elements(f, items[at].tensor, hash);
    if (hash) out->hash[at] = XXH3_64bits_digest(hash);
  }
  if (out) out->bytes = f->written;
  XXH3_freeState(hash);
  free(turn);
  return s;
}

static Status make_entries(const SafeItem *items, int n, SafeEntry **out) {
  TRY_NEW(*out, calloc((size_t)n + 1, sizeof **out));
  for (int i = 0; i < n; i++) {
    const Tensor *t = items[i].tensor;
    if (!tensor_data(t) && tensor_numel(t))
      return fail(ERR_FAIL, "tensor '%s' has no data to be written", items[i].name);
    (*out)[i] = (SafeEntry){.name = items[i].name, .dtype = t->dtype, .ndim = t->ndim};
    memcpy((*out)[i].size, t->size, sizeof t->size);
  }
  return OK;
}

Status safetensors_save(const char *path, const SafeItem *items, int n, const SafeText *text, int texts,
                        unsigned flags) {
  return safetensors_save_hashed(path, items, n, text, texts, flags, NULL);
}

Status safetensors_save_hashed(const char *path, const SafeItem *items, int n, const SafeText *text, int texts,
                               unsigned flags, SafeWritten *out) {
  FileOut f = {0};
  void *head = NULL;
  size_t bytes = 0;
  SafeEntry *entries = NULL;
  Status s = OK;
  TRY_GOTO(done, make_entries(items, n, &entries));
  TRY_GOTO(done, safetensors_plan(entries, n, text, texts, &head, &bytes));
  TRY_GOTO(done, file_out_open(&f, path, flags));
  TRY_GOTO(done, file_out_write(&f, head, bytes));
  TRY_GOTO(done, write_data(&f, items, entries, n, out));
  s = file_out_commit(&f);
done:
  file_out_discard(&f);
  free(head);
  free(entries);
  return s;
}
