/* Data of a training run that is not right: an error that names file and input, before the first batch. */
#include <sys/stat.h>

#include "base/hash.h"
#include "data_files.h"
#include "tensor/npy.h"

/* Opens, and expects an error that says all of `parts` (NULL ends them). */
static void expect_error(const char *text, DataOptions options, const char *const *files,
                         const char *const *parts) {
  Opened o;
  Status s = try_open(&o, text, options, files);
  if (!s) test_failed("no error, expected '%s'", parts[0]);
  for (; *parts; parts++) {
    if (!strstr(status_message(s), *parts)) test_failed("'%s' does not say '%s'", status_message(s), *parts);
  }
  status_free(s);
}

#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static const DataOptions none, tokens = {.tokens = "ids,labels"};

static void test_options(void **state) {
  (void)state;
  char *path = write_samples("a.safetensors", 0, 8, 0, NULL);
  expect_error(FIXED, none, (const char *const[]){NULL}, SAYS("no file has the data"));
  expect_error("graph() { return user 1 }", none, FILES(path), SAYS("takes no inputs"));
  expect_error(FIXED, (DataOptions){.batch = -1}, FILES(path), SAYS("not negative"));
  expect_error(FIXED, (DataOptions){.batch = 4, .batched = true}, FILES(path), SAYS("leave out --batch"));
  expect_error(FIXED, (DataOptions){.tokens = "x", .batched = true}, FILES(path), SAYS("not with whole batches"));
  expect_error("graph(%x: f32[4,3] = user, %m: f32[3,3] = user) { return user %x }", none, FILES(path),
               SAYS("'x' and 'm' differ", "--batched"));
  expect_error("graph(%x: f32[4,3] = user, %k: int = user) { return user %x }", none, FILES(path),
               SAYS("'k' is a single number", "--batched"));
  expect_error("graph(%x: f32[0,3] = user) { return user %x }", none, FILES(path), SAYS("batches of 0 samples"));
  Opened o;
  const Value *inputs;
  int n;
  assert_ok(try_open(&o, FIXED, none, FILES(path)));
  assert_error(data_batch(o.data, -1, &inputs, &n), "no batch -1");
  close_data(&o);
}

static void test_names(void **state) {
  (void)state;
  char *path = write_samples("a.safetensors", 0, 8, 0, "yy");
  expect_error(FIXED, none, FILES(path),
               SAYS("a.safetensors has no input 'y'", "it has 'x' f32[8,3], 'yy' i64[8]",
                    "the program takes 'x' f32[4,3], 'y' i64[4]", "did you mean 'yy'"));
  expect_error(FIXED, none, FILES(named_path("xx", "x.npy")), SAYS("no input 'xx'", "did you mean 'x'?"));
  expect_error(FIXED, none, FILES(named_path("x", "none.npy")), SAYS("cannot open", "none.npy"));
  const float x[12] = {0};
  write_npy("x.npy", 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), }", x, sizeof x);
  expect_error(FIXED, none, FILES(named_path("x", "x.npy")), SAYS("no file gives the input 'y'", "y=path.npy"));
  expect_error(FIXED, none, FILES(path_of("x.npy")), SAYS("x.npy': which input", "INPUT="));
  path = write_samples("a.safetensors", 0, 8, 0, NULL);
  expect_error(FIXED, none, FILES(path, named_path("x", "x.npy")),
               SAYS("input 'x' is given twice", "x.npy", "a.safetensors"));
  expect_error("graph(%x: f32[4,3] = user) { return user %x }", none,
               FILES(named_path("x", "x.npy"), write_samples("b.safetensors", 0, 8, 0, "x2")), SAYS("given twice"));
}

static void test_files(void **state) {
  (void)state;
  unsigned char buf[8192];
  FileMap *f;
  char *whole = write_samples("a.safetensors", 0, 8, 0, NULL), *bad = path_of("bad.safetensors");
  expect_error(FIXED, none, FILES(path_of("none.safetensors")), SAYS("cannot open", "none.safetensors"));
  expect_error(FIXED, none, FILES(path_of("none-*.safetensors")), SAYS("no file matches", "none-*.safetensors"));
  assert_int_equal(mkdir(path_of("folder.safetensors"), 0777), 0);
  expect_error(FIXED, none, FILES(path_of("folder*")), SAYS("it is a folder"));
  write_bytes("bad.safetensors", "", 0);
  expect_error(FIXED, none, FILES(bad), SAYS("bad.safetensors: 0 bytes are too few"));
  assert_ok(file_map(whole, &f));
  memcpy(buf, f->data, f->size);
  for (size_t n = 0; n < f->size; n += n < 64 ? 1 : 7) { /* it ends early, wherever */
    write_bytes("bad.safetensors", buf, n);
    expect_error(FIXED, none, FILES(whole, bad), SAYS("bad.safetensors"));
  }
  file_map_unref(f);
  expect_error(FIXED, none, FILES(write_samples("b.safetensors", 0, 3, 0, NULL)),
               SAYS("b.safetensors has 3 samples, fewer than one batch of 4"));
  expect_error(FREE, (DataOptions){.drop_last = true}, FILES(path_of("b.safetensors")),
               SAYS("fewer than one batch"));
  expect_error(FIXED, none, FILES(write_samples("b.safetensors", 0, 0, 0, NULL)), SAYS("there are no samples"));
  expect_error(FREE, none, FILES(path_of("b.safetensors")), SAYS("b.safetensors: there are no samples"));
}

static void test_sizes(void **state) {
  (void)state;
  char *path = write_samples("a.safetensors", 0, 8, 0, NULL), *wide = write_samples("w.safetensors", 0, 2, 4, NULL);
  const char *inner = "graph(%x: f32[4,5] = user, %y: i64[4] = user) { return user %x }";
  expect_error(inner, none, FILES(path),
               SAYS("a.safetensors: input 'x' has samples of [3], the program wants [5]"));
  expect_error("graph(%x: f32[4,5,3] = user, %y: i64[4] = user) { return user %x }", none, FILES(path),
               SAYS("samples of [3], the program wants [5,3]"));
  expect_error(FIXED, none, FILES(wide), SAYS("samples of [4,3], the program wants [3]", "--batched"));
  expect_error(FIXED, (DataOptions){.batched = true}, FILES(path), SAYS("leave out --batched"));
  expect_error("graph(%x: f32[5,3] = user, %y: i64[5] = user) { return user %x }", (DataOptions){.batched = true},
               FILES(wide), SAYS("input 'x' has batches of [4,3], the program wants [5,3]"));
  /* Free inside: all files the same, all inputs the same, inside the range. */
  const char
      *free_inside = "symbol s1 in [2, 9]\ngraph(%x: f32[2,s1] = user, %y: f32[2,s1] = user) { return user %x }";
  const float x[80] = {0};
  write_npy("3.npy", 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), }", x, 48);
  write_npy("5.npy", 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 5), }", x, 80);
  write_npy("20.npy", 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 20), }", x, 320);
  expect_error(free_inside, none,
               FILES(named_path("x", "3.npy"), named_path("x", "5.npy"), named_path("y", "3.npy")),
               SAYS("5.npy: input 'x' has samples of [5], in '", "3.npy' they are [3]"));
  expect_error(free_inside, none, FILES(named_path("x", "3.npy"), named_path("y", "5.npy")),
               SAYS("input 'y' is f32[2,5]: dimension 1 must be s1 = 3"));
  expect_error(free_inside, none, FILES(named_path("x", "20.npy"), named_path("y", "20.npy")),
               SAYS("symbol s1 is 20, outside its range", "20.npy"));
  /* As many samples of each. */
  write_npy("2.npy", 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", x, 24);
  expect_error(free_inside, none, FILES(named_path("x", "3.npy"), named_path("y", "2.npy")),
               SAYS("input 'x' has 4 samples, 'y' has 2", "3.npy", "2.npy"));
  Scope scope = {0};
  Tensor *a, *b;
  assert_ok(tensor_new(&scope, DT_F32, 2, (int64_t[]){4, 3}, &a));
  assert_ok(tensor_new(&scope, DT_F32, 2, (int64_t[]){5, 3}, &b));
  memset(tensor_data(a), 0, 48);
  memset(tensor_data(b), 0, 60);
  assert_ok(safetensors_save(path, (SafeItem[]){{"x", a}, {"y", b}}, 2, NULL, 0, FILE_OVERWRITE));
  expect_error(free_inside, none, FILES(path), SAYS("a.safetensors: input 'x' has 4 samples, 'y' has 5"));
  assert_ok(tensor_new(&scope, DT_F32, 0, NULL, &a));
  memset(tensor_data(a), 0, 4);
  assert_ok(safetensors_save(path, (SafeItem[]){{"x", a}, {"y", b}}, 2, NULL, 0, FILE_OVERWRITE));
  expect_error(free_inside, none, FILES(path), SAYS("a.safetensors: input 'x' is a single number there"));
  scope_clear(&scope);
}

static void test_dtypes(void **state) {
  (void)state;
  const double x[2] = {0};
  write_npy("x.npy", 1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", x, sizeof x);
  expect_error("graph(%x: f32[2] = user) { return user %x }", none, FILES(named_path("x", "x.npy")),
               SAYS("x.npy: input 'x' is f64, the program wants f32, which would round it", "x.to(torch.float32)"));
  expect_error("graph(%x: i64[2] = user) { return user %x }", none, FILES(named_path("x", "x.npy")),
               SAYS("x.npy: input 'x' is f64, the program wants i64", "x.to(torch.int64)"));
  write_npy("x.npy", 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", x, sizeof x);
  expect_error("graph(%x: f64[2] = user) { return user %x }", none, FILES(named_path("x", "x.npy")),
               SAYS("is i64, the program wants f64"));
}

static void test_tokens(void **state) {
  (void)state;
  char *path = write_raw("a.bin", 0, 40, 2);
  expect_error(TOKENS, (DataOptions){.tokens = "id,labels"}, FILES(path),
               SAYS("the input 'id'", "did you mean 'ids'?", "the program takes"));
  expect_error(TOKENS, (DataOptions){.tokens = "ids,ids"}, FILES(path), SAYS("two different ones"));
  expect_error(TOKENS, (DataOptions){.tokens = ""}, FILES(path), SAYS("the input ''"));
  expect_error(TOKENS, (DataOptions){.tokens = "ids"}, FILES(path), SAYS("another input, 'labels'"));
  expect_error("graph(%a: i64[2,8] = user, %b: i64[2,8] = user, %c: i64[2,8] = user) { return user %a }",
               (DataOptions){.tokens = "a,b,c"}, FILES(path), SAYS("for two different ones"));
  expect_error("graph(%a: i64[2] = user) { return user %a }", (DataOptions){.tokens = "a"}, FILES(path),
               SAYS("'a' is not of the size [batch, length]"));
  expect_error("graph(%a: f32[2,8] = user) { return user %a }", (DataOptions){.tokens = "a"}, FILES(path),
               SAYS("a.bin: input 'a' is u16, the program wants f32"));
  expect_error("graph(%a: i64[2,8] = user, %b: i64[2,7] = user) { return user %a }", (DataOptions){.tokens = "a,b"},
               FILES(path), SAYS("'b' has 7 tokens, not 8"));
  expect_error("graph(%a: i64[2,0] = user) { return user %a }", (DataOptions){.tokens = "a"}, FILES(path),
               SAYS("windows have no tokens"));
  expect_error(TOKENS, (DataOptions){.tokens = "ids,labels", .window = 9}, FILES(path),
               SAYS("'ids' has 8 tokens, not 9"));
  expect_error(TOKENS, (DataOptions){.tokens = "ids,labels", .token_dtype = "f32"}, FILES(path),
               SAYS("'f32' is no type of tokens", "uint16"));
  expect_error(TOKENS, (DataOptions){.tokens = "ids,labels", .token_dtype = "words"}, FILES(path),
               SAYS("'words' is no type of tokens"));
}

static void test_token_files(void **state) {
  (void)state;
  const double x[40] = {0};
  expect_error(TOKENS, tokens, FILES(path_of("none.bin")), SAYS("cannot open", "none.bin"));
  expect_error(TOKENS, tokens, FILES(path_of("no*.bin")), SAYS("no file matches"));
  expect_error(TOKENS, tokens, FILES(write_bytes("a.bin", "", 0)), SAYS("a.bin is empty"));
  expect_error(TOKENS, tokens, FILES(write_bytes("a.bin", x, 41)),
               SAYS("a.bin ends in the middle of a token: 41 bytes, tokens of 2 (uint16)"));
  expect_error(TOKENS, tokens, FILES(write_raw("a.bin", 0, 8, 2)),
               SAYS("a.bin has 8 tokens, fewer than one window of 8"));
  expect_error(TOKENS, tokens, FILES(write_raw("a.bin", 0, 9, 2)), SAYS("1 samples, fewer than one batch of 2"));
  expect_error(TOKENS, tokens, FILES(write_llmc("a.bin", 20240520, 2, 33, 33, 2)), SAYS("a.bin: version 2"));
  expect_error(TOKENS, tokens, FILES(write_llmc("a.bin", 20240520, 1, 34, 33, 2)),
               SAYS("a.bin ends early", "34 tokens"));
  expect_error(TOKENS, tokens, FILES(write_llmc("a.bin", 20240801, 7, 32, 33, 4)),
               SAYS("a.bin: its header counts 32"));
  expect_error(TOKENS, tokens, FILES(write_llmc("a.bin", 20240801, 7, -1, 33, 4)), SAYS("counts -1 tokens"));
  char *path = write_npy("a.npy", 1, "{'descr': '<f8', 'fortran_order': False, 'shape': (40,), }", x, sizeof x);
  expect_error(TOKENS, tokens, FILES(path), SAYS("a.npy: input 'ids' is f64, the program wants i64"));
  path = write_npy("a.npy", 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (4, 10), }", x, sizeof x);
  expect_error(TOKENS, tokens, FILES(path), SAYS("a.npy: a stream of tokens has one dimension, it has [4,10]"));
}

/* Headers of .npy, and what is said of them with 24 bytes behind them. */
static const struct {
  const char *header, *error;
} npy_headers[] = {
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }", NULL},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", NULL},
    {"{'descr': '<f8', 'fortran_order': False, 'shape': (3, 1, 1,)}", NULL},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", "Fortran order"},
    {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }", "big endian"},
    {"{'descr': '<U3', 'fortran_order': False, 'shape': (2,), }", "'<U3' are not supported"},
    {"{'descr': 'f4', 'fortran_order': False, 'shape': (6,), }", "'f4' are not supported"},
    {"{'descr': '<V2', 'fortran_order': False, 'shape': (12,), }", "'<V2' are not supported"},
    {"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", "'|O' are not supported"},
    {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }", "records"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }", "ends early: f32[7] are 28 bytes, it has 24"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", "f32[5] are 20 bytes, it has 24"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "f32[] are 4 bytes, it has 24"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (-6,), }", "not a number of 0 or more"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': 6, }", "no shape"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6 6), }", "broken shape"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,", "not a number"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "too large"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 2), }", "larger than any file"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }", "larger than any file"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1), }", "more than 16"},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (6,), }", "neither True nor False"},
    {"{'descr': '<f4', 'shape': (6,), }", "must have"},
    {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,), }", "'descr', which does not belong"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'x': 1}", "'x', which does not belong"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), } x", "behind the dictionary"},
    {"{'descr': '<f4' 'fortran_order': False, 'shape': (6,), }", "not a dictionary"},
    {"{'descr: '<f4', 'fortran_order': False, 'shape': (6,), }", "not a dictionary"},
    {"{descr: 1}", "not a dictionary"},
    {"{'descr': '", "records"},
    {"{", "not a dictionary"},
    {"", "not a dictionary"},
};

static void test_npy(void **state) {
  (void)state;
  const char data[24] = {0};
  for (size_t i = 0; i < sizeof npy_headers / sizeof *npy_headers; i++) {
    FileMap *f;
    Npy a;
    assert_ok(file_map(write_npy("x.npy", 1 + (int)(i % 3), npy_headers[i].header, data, sizeof data), &f));
    Status s = npy_read(f, &a);
    if (!npy_headers[i].error) assert_ok(s);
    else {
      assert_non_null(strstr(s ? status_message(s) : "", "x.npy"));
      assert_error(s, npy_headers[i].error);
    }
    file_map_unref(f);
  }
  expect_error("graph(%x: f32[2] = user) { return user %x }", none,
               FILES((write_bytes("x.npy", "\x93NUMPY\x04\0\0\0\0\0", 12), named_path("x", "x.npy"))),
               SAYS("x.npy: version 4"));
  expect_error("graph(%x: f32[2] = user) { return user %x }", none,
               FILES((write_bytes("x.npy", "\x93NUMPY\x01\0\xff\xff", 10), named_path("x", "x.npy"))),
               SAYS("x.npy ends early: in its header"));
  expect_error("graph(%x: f32[2] = user) { return user %x }", none,
               FILES((write_bytes("x.npy", "nothing of that", 15), named_path("x", "x.npy"))),
               SAYS("not a .npy file"));
}

/* ---- damage ------------------------------------------------------------------------------------------------ */

/* Opens what there is and reads all of it; whatever comes out, nothing else happens. */
static void read_all(const char *text, DataOptions options, const char *file) {
  Opened o;
  Status s = try_open(&o, text, options, FILES(file));
  if (s) {
    status_free(s);
    return;
  }
  for (int64_t b = 0; b < data_batches(o.data) && b < 20; b++) {
    const Value *inputs;
    int n;
    s = data_batch(o.data, b, &inputs, &n);
    for (int i = 0; !s && i < n; i++) {
      const Tensor *t = inputs[i].tensor;
      uint64_t h = hash_bytes(0, tensor_data(t), (size_t)tensor_numel(t) * dtype_size(t->dtype));
      assert_true(h | 1);
    }
    status_free(s);
  }
  close_data(&o);
}

static void damage(const char *text, DataOptions options, const char *path, const char *file) {
  unsigned char whole[4096], bytes[4096];
  FileMap *f;
  uint64_t state = 1;
  assert_ok(file_map(path, &f));
  size_t size = f->size;
  assert_true(size <= sizeof whole);
  memcpy(whole, f->data, size);
  file_map_unref(f);
  for (size_t n = 0; n < size; n += n < 200 ? 1 : 13) {
    write_file(path, whole, n);
    read_all(text, options, file);
  }
  for (int i = 0; i < 300; i++) {
    memcpy(bytes, whole, size);
    for (int k = 0; k <= i % 3; k++)
      bytes[random_bits(&state) % (i % 2 ? 140 : size)] = (unsigned char)random_bits(&state);
    write_file(path, bytes, size);
    read_all(text, options, file);
  }
}

static void test_damage(void **state) {
  (void)state;
  int64_t x[40] = {0};
  char *path = write_npy("x.npy", 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (20, 2), }", x, sizeof x);
  damage("graph(%x: i32[4,2] = user) { return user %x }", none, path, named_path("x", "x.npy"));
  path = write_npy("t.npy", 3, "{'descr': '<i8', 'fortran_order': False, 'shape': (40,), }", x, sizeof x);
  damage(TOKENS, tokens, path, path);
  path = write_llmc("t.bin", 20240520, 1, 33, 33, 2);
  damage(TOKENS, tokens, path, path);
  path = write_llmc("u.bin", 20240801, 7, 33, 33, 4);
  damage(TOKENS, tokens, path, path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_options),     cmocka_unit_test(test_names),  cmocka_unit_test(test_files),
      cmocka_unit_test(test_sizes),       cmocka_unit_test(test_dtypes), cmocka_unit_test(test_tokens),
      cmocka_unit_test(test_token_files), cmocka_unit_test(test_npy),    cmocka_unit_test(test_damage),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
