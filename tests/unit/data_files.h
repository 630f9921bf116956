/* data_files.h -- files of samples and tokens, written by the tests of data. */
#ifndef TESS_TESTS_DATA_FILES_H
#define TESS_TESTS_DATA_FILES_H

#include "graph/graph.h"
#include "tensor/safetensors.h"
#include "train/data.h"
#include "unit.h"

static char folder[256];

static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

/* A path in the folder; the last sixteen live. */
static inline char *path_of(const char *name) {
  static char paths[16][512];
  static int next;
  char *path = paths[next++ % 16];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

/* "x=NAME" */
static inline char *named_path(const char *input, const char *name) {
  static char paths[16][600];
  static int next;
  char *path = paths[next++ % 16];
  snprintf(path, sizeof paths[0], "%s=%s/%s", input, folder, name);
  return path;
}

/* A new file each time: replacing one would wait for the disk. */
static inline void write_file(const char *path, const void *data, size_t size) {
  remove(path);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_true(fwrite(data, 1, size, f) == size);
  assert_int_equal(fclose(f), 0);
}

static inline char *write_bytes(const char *name, const void *data, size_t size) {
  char *path = path_of(name);
  write_file(path, data, size);
  return path;
}

/* Any header, then the data. */
static inline char *write_npy(const char *name, int version, const char *header, const void *data, size_t size) {
  static unsigned char buf[1 << 20];
  size_t width = version == 1 ? 2 : 4, text = strlen(header), begin = 8 + width;
  size_t padded = (begin + text + 1 + 63) / 64 * 64 - begin;
  assert_true(begin + padded + size <= sizeof buf);
  memcpy(buf, "\x93NUMPY", 6);
  buf[6] = (unsigned char)version;
  buf[7] = 0;
  for (size_t i = 0; i < width; i++) buf[8 + i] = (unsigned char)(padded >> (8 * i));
  memset(buf + begin, ' ', padded);
  memcpy(buf + begin, header, text);
  buf[begin + padded - 1] = '\n';
  if (size) memcpy(buf + begin + padded, data, size);
  return write_bytes(name, buf, begin + padded + size);
}

/* n tokens base, base + 1 ... of `bytes` bytes, behind `begin` bytes; gives how many bytes that is. */
static inline size_t put_tokens(unsigned char *buf, size_t begin, int64_t base, int64_t n, size_t bytes) {
  for (int64_t i = 0; i < n; i++) {
    for (size_t k = 0; k < bytes; k++) buf[begin + (size_t)i * bytes + k] = (unsigned char)((base + i) >> (8 * k));
  }
  return begin + (size_t)n * bytes;
}

static inline char *write_raw(const char *name, int64_t base, int64_t n, size_t bytes) {
  static unsigned char buf[1 << 16];
  return write_bytes(name, buf, put_tokens(buf, 0, base, n, bytes));
}

static inline char *write_llmc(const char *name, int32_t magic, int32_t version, int64_t count, int64_t n,
                               size_t bytes) {
  static unsigned char buf[1 << 16];
  memset(buf, 0, 1024);
  put_tokens(buf, 0, magic, 1, 4);
  put_tokens(buf, 4, version, 1, 4);
  put_tokens(buf, 8, count, 1, 4);
  return write_bytes(name, buf, put_tokens(buf, 1024, 100, n, bytes));
}

/* x f32[n,3]: sample i is i + base, i + base + .25, i + base + .5; y i64[n]: i + base.  wide: x also has a
 * dimension in front, and so has y: n batches of `wide` samples.  rename: y is called so. */
static inline char *write_samples(const char *name, int64_t base, int64_t n, int64_t wide, const char *rename) {
  char *path = path_of(name);
  Scope scope = {0};
  Tensor *x, *y;
  int64_t size[] = {n, wide, 3}, flat[] = {n * (wide ? wide : 1), 3};
  assert_ok(tensor_new(&scope, DT_F32, wide ? 3 : 2, wide ? size : flat, &x));
  assert_ok(tensor_new(&scope, DT_I64, wide ? 2 : 1, wide ? size : flat, &y));
  for (int64_t i = 0; i < flat[0]; i++) {
    for (int k = 0; k < 3; k++) ((float *)tensor_data(x))[3 * i + k] = (float)(i + base) + .25f * (float)k;
    ((int64_t *)tensor_data(y))[i] = i + base;
  }
  SafeItem items[] = {{"x", x}, {rename ? rename : "y", y}};
  assert_ok(safetensors_save(path, items, 2, NULL, 0, FILE_OVERWRITE));
  scope_clear(&scope);
  return path;
}

static inline Exported *parse(const char *text) {
  Exported *e = NULL;
  assert_ok(graph_parse(text, strlen(text), "loss", &e));
  return e;
}

#define FIXED "graph(%x: f32[4,3] = user, %y: i64[4] = user) { return user %x }"
#define FREE "symbol s0 in [2, 64] hint 4\ngraph(%x: f32[s0,3] = user, %y: i64[s0] = user) { return user %x }"
#define TOKENS "graph(%ids: i64[2,8] = user, %labels: i64[2,8] = user) { return user %ids }"

/* Opens with these files (up to four, NULL ends them); the program is freed when that fails, else by close_data. */
typedef struct {
  Exported *program;
  Data *data;
} Opened;

static inline Status try_open(Opened *o, const char *text, DataOptions options, const char *const *files) {
  options.files = files;
  while (files[options.nfiles]) options.nfiles++;
  o->program = parse(text);
  Status s = data_open(o->program, &options, &o->data);
  if (s) exported_free(o->program);
  return s;
}

static inline void close_data(Opened *o) {
  data_free(o->data);
  exported_free(o->program);
}

#define FILES(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline const Tensor *input_of(Data *d, int64_t number, int i) {
  const Value *inputs;
  int n;
  assert_ok(data_batch(d, number, &inputs, &n));
  assert_true(i < n && inputs[i].kind == VAL_TENSOR);
  assert_ok(tensor_check_bounds(inputs[i].tensor, "batch"));
  return inputs[i].tensor;
}

/* Input i of a batch, as integers. */
static inline void expect_ints(Data *d, int64_t number, int i, int64_t n, const int64_t *want) {
  const Tensor *t = input_of(d, number, i);
  assert_int_equal(tensor_numel(t), n);
  for (int64_t k = 0; k < n; k++) {
    Value v = val_load(t->dtype, (char *)tensor_data(t) + (size_t)k * dtype_size(t->dtype));
    assert_int_equal(val_as_int(&v), want[k]);
  }
}

/* A batch of write_samples()'s: these samples. */
static inline void expect_samples(Data *d, int64_t number, int64_t n, const int64_t *want) {
  const Value *inputs;
  int count;
  assert_ok(data_batch(d, number, &inputs, &count));
  assert_int_equal(count, 2);
  const Tensor *x = inputs[0].tensor, *y = inputs[1].tensor;
  assert_int_equal(tensor_numel(x), 3 * n);
  assert_int_equal(tensor_numel(y), n);
  assert_int_equal(data_batch_samples(d, number), n);
  for (int64_t i = 0; i < n; i++) {
    assert_int_equal(((int64_t *)tensor_data(y))[i], want[i]);
    for (int k = 0; k < 3; k++)
      assert_true(((float *)tensor_data(x))[3 * i + k] == (float)want[i] + .25f * (float)k);
  }
}

#define INTS(...) \
  (int64_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

#endif
