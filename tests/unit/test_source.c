/* Checkpoints that lie: names of files that lead elsewhere, shards that overlap, offsets that do not fit, files of
 * torch.save that nest without end.  Refused, with the file and the tensor. */
#define _GNU_SOURCE /* memmem */
#include <sys/stat.h>

#include "base/zip.h"
#include "ckpt/pickle_out.h"
#include "ckpt/source.h"
#include "unit.h"

static char folder[256];
static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

static const char *path_of(const char *name) {
  static char path[2][600];
  static int turn;
  turn = 1 - turn;
  snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
  return path[turn];
}

static void write_bytes(const char *name, const void *data, size_t size) {
  assert_ok(file_write_all(path_of(name), data, size, FILE_OVERWRITE));
}

/* A file of one f32 tensor w, with sharding information, or without if offsets is NULL. */
static void write_shard(const char *name, const char *offsets, int64_t rows, int64_t columns) {
  Scope scope = {0};
  Tensor *t;
  char info[200];
  SafeText text = {"DCP_SHARDING_INFO", info};
  assert_ok(tensor_new(&scope, DT_F32, 2, (int64_t[]){rows, columns}, &t));
  memset(tensor_data(t), 0, t->storage->size);
  snprintf(info, sizeof info, "%s", offsets ? offsets : "");
  assert_ok(safetensors_save(path_of(name), &(SafeItem){"w", t}, 1, &text, offsets ? 1 : 0, FILE_OVERWRITE));
  scope_clear(&scope);
}

static Status open_and_verify(const char *path) {
  Source *s;
  TRY(source_open(path, &s));
  Status r = source_verify(s, &(SourceVerify){.threads = 1});
  source_close(s);
  return r;
}

static const struct {
  const char *first, *second, *error; /* what the two files say of w, each of 2 x 4; NULL: it is right */
} shards[] = {
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"w\": {\"saved_offsets\": [2, 0]}}", NULL},
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"w\": {\"saved_offsets\": [0, 0]}}", NULL}, /* twice the same */
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"w\": {\"saved_offsets\": [1, 0]}}", "overlap"},
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"w\": {\"saved_offsets\": [3, 0]}}", "4 of 20 elements"},
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"w\": {\"saved_offsets\": [2, 1]}}", "elements of the tensor 'w'"},
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"w\": {\"saved_offsets\": [-1, 0]}}", "must be 0 or more"},
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"w\": {\"saved_offsets\": [9223372036854775807, 0]}}",
     "impossible sizes"},
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"w\": {\"saved_offsets\": [4611686018427387904, 4]}}",
     "impossible sizes"},
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"w\": {\"saved_offsets\": [2]}}", "2 dimensions and 1 offsets"},
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "{\"v\": {}}", "does not name the tensor 'w'"},
    {"{\"w\": {\"saved_offsets\": [0, 0]}}", "[]", "must be an object"},
    {NULL, NULL, "do not say that they are shards"},
};

static void lying_shards(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
    write_shard("a.safetensors", shards[i].first, 2, 4);
    write_shard("b.safetensors", shards[i].second, 2, 4);
    Status s = open_and_verify(folder);
    if (s) assert_int_equal(status_code(s), ERR_CKPT);
    if (shards[i].error) assert_error(s, shards[i].error);
    else assert_ok(s);
  }
}

static void lying_indexes(void **state) {
  (void)state;
  static const struct {
    const char *map, *error;
  } cases[] = {
      {"{\"weight_map\": {\"w\": \"a.safetensors\"}}", NULL},
      {"{\"weight_map\": {\"w\": \"../a.safetensors\"}}", "in no file of this folder"},
      {"{\"weight_map\": {\"w\": \"/etc/passwd\"}}", "in no file of this folder"},
      {"{\"weight_map\": {\"w\": \"c.safetensors\"}}", "c.safetensors"},
      {"{\"weight_map\": {\"w\": \"a.safetensors\", \"v\": \"a.safetensors\"}}",
       "has the tensor 'v', which it has not"},
      {"{\"weight_map\": {\"w\": 1}}", "in no file of this folder"},
      {"{\"weight_map\": []}", "weight_map"},
  };
  write_shard("a.safetensors", NULL, 2, 4);
  write_shard("b.safetensors", NULL, 2, 4); /* the index leaves it out */
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_bytes("model.safetensors.index.json", cases[i].map, strlen(cases[i].map));
    Status s = open_and_verify(folder);
    if (cases[i].error) assert_error(s, cases[i].error);
    else assert_ok(s);
  }
  remove(path_of("model.safetensors.index.json"));
}

/* The metadata of a checkpoint that is right, with some bytes replaced by as many. */
static Status open_patched(const char *old, const char *new, size_t n) {
  FileMap *f;
  assert_ok(file_map(GOLDEN_FOLDER "/ckpt/files/dcp/.metadata", &f));
  unsigned char *at = memmem(f->data, f->size, old, n);
  assert_non_null(at);
  memcpy(at, new, n);
  write_bytes("dcp/.metadata", f->data, f->size);
  file_map_unref(f);
  return open_and_verify(path_of("dcp"));
}

static void lying_metadata(void **state) {
  (void)state;
  FileMap *f;
  assert_int_equal(mkdir(path_of("dcp"), 0777), 0);
  assert_ok(file_map(GOLDEN_FOLDER "/ckpt/files/dcp/__0_0.distcp", &f));
  write_bytes("dcp/__0_0.distcp", f->data, f->size);
  file_map_unref(f);
  assert_ok(open_patched("__0_0.distcp", "__0_0.distcp", 12));
  assert_error(open_patched("__0_0.distcp", "../../passwd", 12), "no name of a file");
  assert_error(open_patched("__0_0.distcp", "__7_0.distcp", 12), "lacks the file of a rank");
  assert_error(open_patched("pathlib", "osystem", 7), "names 'osystem.PosixPath'");
  assert_error(open_patched("relative_path", "relative_math", 13), "not told where it is");
  assert_error(open_patched("float32", "float99", 7), "names 'torch.float99'");
}

/* A file of torch.save whose lists are each in the one before. */
static void nested_state(void **state) {
  (void)state;
  TextBuf b = {0};
  ZipOut *z;
  pickle_begin(&b);
  for (int i = 0; i < 5000; i++) pickle_op(&b, ']');
  for (int i = 1; i < 5000; i++) pickle_op(&b, 'a');
  pickle_end(&b);
  assert_ok(zip_out_open(path_of("deep.pt"), FILE_OVERWRITE, &z));
  assert_ok(zip_out_add(z, "archive/data.pkl", b.text, b.len));
  assert_ok(zip_out_commit(z));
  text_free(&b);
  assert_error(open_and_verify(path_of("deep.pt")), "nested too deep");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(lying_shards), cmocka_unit_test(lying_indexes),
                                     cmocka_unit_test(lying_metadata), cmocka_unit_test(nested_state)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
