/* Data of a training run: which samples a batch has, from files of every kind. */
#include <errno.h>
#include <pthread.h>

#include "data_files.h"
#include "train/data_convert.h"
#include "train/shuffle.h"

/* ---- inputs by name ------------------------------------------------------------------------- */

static void test_fixed(void **state) {
  (void)state;
  Opened o;
  assert_ok(try_open(&o, FIXED, (DataOptions){0}, FILES(write_samples("a.safetensors", 0, 10, 0, NULL))));
  assert_int_equal(data_samples(o.data), 10);
  assert_int_equal(data_batches(o.data), 2); /* what is left of a batch is dropped: the program's is fixed */
  assert_int_equal(data_batch_tokens(o.data, 0), 0);
  expect_samples(o.data, 0, INTS(0, 1, 2, 3));
  expect_samples(o.data, 1, INTS(4, 5, 6, 7));
  expect_samples(o.data, 2, INTS(0, 1, 2, 3)); /* the next epoch */
  expect_samples(o.data, 2, INTS(0, 1, 2, 3)); /* asked again */
  expect_samples(o.data, 1, INTS(4, 5, 6, 7)); /* and back */
  expect_samples(o.data, 2000001, INTS(4, 5, 6, 7));
  close_data(&o);
}

/* In order and of the right dtype, batches are the file's own bytes. */
static void test_not_copied(void **state) {
  (void)state;
  Opened o;
  assert_ok(try_open(&o, FIXED, (DataOptions){0}, FILES(write_samples("a.safetensors", 0, 12, 0, NULL))));
  const char *first = tensor_data(input_of(o.data, 0, 0));
  assert_ptr_equal((const char *)tensor_data(input_of(o.data, 1, 0)), first + 48);
  assert_ptr_equal((const char *)tensor_data(input_of(o.data, 2, 0)), first + 96);
  assert_ptr_equal((const char *)tensor_data(input_of(o.data, 3, 0)), first);
  close_data(&o);
  /* A program that writes to its input gets a copy: the next epoch sees the file. */
  const char *writes = "graph(%x: f32[4,3] = user, %y: i64[4] = user) { %z: f32[4,3] = aten.neg.default(%x)\n"
                       "return user_input_mutation \"x\" %z, user %z }";
  assert_ok(try_open(&o, writes, (DataOptions){0}, FILES(path_of("a.safetensors"))));
  memset(tensor_data(input_of(o.data, 0, 0)), 1, 48);
  expect_samples(o.data, 3, INTS(0, 1, 2, 3));
  close_data(&o);
}

static void test_joined(void **state) {
  (void)state;
  Opened o;
  write_samples("part-2.safetensors", 3, 2, 0, NULL);
  write_samples("part-10.safetensors", 0, 3, 0, NULL);
  char *more = write_samples("more.safetensors", 5, 4, 0, NULL);
  write_samples("part-3.safetensors", 0, 0, 0, NULL); /* without samples */
  assert_ok(try_open(&o, FIXED, (DataOptions){0}, FILES(path_of("part-*.safetensors"), more)));
  assert_int_equal(data_samples(o.data), 9);
  expect_samples(o.data, 0, INTS(0, 1, 2, 3));
  expect_samples(o.data, 1, INTS(4, 5, 6, 7));
  close_data(&o);
  /* A name with the signs of a pattern that is there is that file. */
  assert_ok(try_open(&o, FIXED, (DataOptions){0}, FILES(write_samples("[ab].safetensors", 7, 4, 0, NULL))));
  expect_samples(o.data, 0, INTS(7, 8, 9, 10));
  close_data(&o);
}

static void test_free_batch(void **state) {
  (void)state;
  Opened o;
  char *path = write_samples("a.safetensors", 0, 10, 0, NULL);
  assert_ok(try_open(&o, FREE, (DataOptions){0}, FILES(path))); /* as exported: 4 */
  assert_int_equal(data_batches(o.data), 3);
  expect_samples(o.data, 2, INTS(8, 9));
  expect_samples(o.data, 3, INTS(0, 1, 2, 3));
  expect_samples(o.data, 5, INTS(8, 9));
  close_data(&o);
  assert_ok(try_open(&o, FREE, (DataOptions){.batch = 4, .drop_last = true}, FILES(path)));
  assert_int_equal(data_batches(o.data), 2);
  expect_samples(o.data, 2, INTS(0, 1, 2, 3));
  close_data(&o);
  assert_ok(try_open(&o, FREE, (DataOptions){.batch = 32}, FILES(path)));
  assert_int_equal(data_batches(o.data), 1);
  expect_samples(o.data, 7, INTS(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  close_data(&o);
  assert_error(try_open(&o, FREE, (DataOptions){.batch = 3}, FILES(path)), "symbol s0 is 1");
  assert_error(try_open(&o, FREE, (DataOptions){.batch = 3}, FILES(path)), "--drop-last");
  assert_ok(try_open(&o, FREE, (DataOptions){.batch = 3, .drop_last = true}, FILES(path)));
  close_data(&o);
  assert_error(
      try_open(&o, FREE, (DataOptions){.batch = 100}, FILES(write_samples("b.safetensors", 0, 100, 0, NULL))),
      "outside its range");
}

static void test_batched(void **state) {
  (void)state;
  Opened o;
  char *path = write_samples("a.safetensors", 0, 3, 4, NULL);
  assert_ok(try_open(&o, FIXED, (DataOptions){.batched = true, .shuffle = true}, FILES(path)));
  assert_int_equal(data_batches(o.data), 3);
  assert_int_equal(data_samples(o.data), 12);
  expect_samples(o.data, 1, INTS(4, 5, 6, 7));
  expect_samples(o.data, 2, INTS(8, 9, 10, 11));
  expect_samples(o.data, 3, INTS(0, 1, 2, 3));
  close_data(&o);
  assert_ok(try_open(&o, FREE, (DataOptions){.batched = true}, FILES(path)));
  expect_samples(o.data, 1, INTS(4, 5, 6, 7));
  close_data(&o);
  /* Numbers, one for each batch. */
  const int64_t k[] = {5, 6, 7};
  const double f[] = {.5, 1.5, 2.5};
  write_npy("k.npy", 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }", k, sizeof k);
  write_npy("f.npy", 1, "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", f, sizeof f);
  assert_ok(try_open(&o, "graph(%k: int = user, %f: float = user, %s: f64[] = user) { return user %s }",
                     (DataOptions){.batched = true},
                     FILES(named_path("k", "k.npy"), named_path("f", "f.npy"), named_path("s", "f.npy"))));
  const Value *inputs;
  int n;
  assert_ok(data_batch(o.data, 4, &inputs, &n));
  assert_int_equal(n, 3);
  assert_true(inputs[0].kind == VAL_INT && inputs[0].i == 6);
  assert_true(inputs[1].kind == VAL_FLOAT && inputs[1].f == 1.5);
  assert_true(inputs[2].kind == VAL_TENSOR && *(double *)tensor_data(inputs[2].tensor) == 1.5);
  close_data(&o);
}

/* forward's names for inputs that the graph calls otherwise. */
static void test_arguments(void **state) {
  (void)state;
  const char *leaf = "{\\\"type\\\": null, \\\"context\\\": null, \\\"children_spec\\\": []}";
  char text[2000];
  Opened o;
  snprintf(
      text, sizeof text,
      "in_spec \"[1, {\\\"children_spec\\\": [{\\\"children_spec\\\": [%s]}, {\\\"children_spec\\\": [%s]}]}]\"\n"
      "arg_names [\"x\", \"y\"]\n"
      "graph(%%arg_1: f32[4,3] = user, %%arg_2: i64[4] = user) { return user %%arg_1 }",
      leaf, leaf);
  assert_ok(try_open(&o, text, (DataOptions){0}, FILES(write_samples("a.safetensors", 3, 4, 0, NULL))));
  expect_samples(o.data, 0, INTS(3, 4, 5, 6));
  close_data(&o);
  assert_ok(try_open(&o, text, (DataOptions){0}, FILES(write_samples("a.safetensors", 3, 4, 0, "arg_2"))));
  close_data(&o);
  /* Arguments that are not the inputs one by one have no names. */
  char *nested = strstr(text, "null");
  memcpy(nested, "true", 4);
  assert_error(try_open(&o, text, (DataOptions){0}, FILES(write_samples("a.safetensors", 3, 4, 0, NULL))),
               "has no input 'arg_1'");
}

/* ---- .npy ------------------------------------------------------------------------------------- */

static void test_npy(void **state) {
  (void)state;
  float x[12];
  int64_t y[4] = {0, 1, 2, 3};
  for (int i = 0; i < 12; i++) x[i] = (float)(i / 3) + .25f * (float)(i % 3);
  for (int version = 1; version <= 3; version++) {
    Opened o;
    write_npy("x.npy", version, "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), }", x, sizeof x);
    write_npy("y.npy", version, "{\"shape\":(4L,),'fortran_order':False,'descr':\"<i8\"}", y, sizeof y);
    assert_ok(try_open(&o, FIXED, (DataOptions){0}, FILES(named_path("y", "y.npy"), named_path("x", "x.npy"))));
    expect_samples(o.data, 0, INTS(0, 1, 2, 3));
    close_data(&o);
  }
  /* Several for one input, and one input in a .safetensors. */
  Opened o;
  write_npy("y.1.npy", 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", y, 8);
  write_npy("y.2.npy", 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }", y + 1, 24);
  write_samples("x.safetensors", 0, 4, 0, "other");
  assert_ok(try_open(&o, FIXED, (DataOptions){0}, FILES(path_of("x.safetensors"), named_path("y", "y.[12].npy"))));
  expect_samples(o.data, 0, INTS(0, 1, 2, 3));
  close_data(&o);
}

/* ---- dtypes -------------------------------------------------------------------------------------- */

static void test_dtypes(void **state) {
  (void)state;
  static const struct {
    const char *descr, *dtype;
    unsigned char bytes[16]; /* two elements */
    int64_t want[2];
    const char *error;
  } cases[] = {
      {"|u1", "i64", {1, 255}, {1, 255}, NULL},
      {"|i1", "i32", {1, 255}, {1, -1}, NULL},
      {"<u2", "i64", {1, 0, 255, 255}, {1, 65535}, NULL},
      {"<u2", "i32", {1, 0, 255, 255}, {1, 65535}, NULL},
      {"<u2", "i16", {1, 0, 255, 255}, {0, 0}, "element 0 is 65535"},
      {"<u4", "i64", {1, 0, 0, 0, 255, 255, 255, 255}, {1, 4294967295}, NULL},
      {"<u8", "i64", {1, 0, 0, 0, 0, 0, 0, 0, 2}, {1, 2}, NULL},
      {"<u8", "i64", {1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 128}, {0, 0}, "does not fit i64"},
      {"<i8", "i32", {1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}, {1, -1}, NULL},
      {"<i8", "i32", {1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1}, {0, 0}, "sample 1: a value does not fit i32"},
      {"<i4", "u8", {1, 0, 0, 0, 255, 255, 255, 255}, {0, 0}, "element 0 is -1"},
      {"<i8", "bool", {1, 0, 0, 0, 0, 0, 0, 0, 0}, {1, 0}, NULL},
      {"<i8", "bool", {1, 0, 0, 0, 0, 0, 0, 0, 2}, {0, 0}, "does not fit bool"},
      {"|b1", "bool", {1, 0}, {1, 0}, NULL},
      {"|b1", "bool", {1, 3}, {0, 0}, "element 0 is 3"},
      {"|b1", "i64", {1, 0}, {1, 0}, NULL},
      {"<f2", "f32", {0, 0x3c, 0, 0xc0}, {1, -2}, NULL},
      {"<f4", "f64", {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}, {1, -2}, NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char header[100], text[200];
    Opened o;
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2,), }", cases[i].descr);
    snprintf(text, sizeof text, "graph(%%x: %s[2] = user) { return user %%x }", cases[i].dtype);
    write_npy("x.npy", 1, header, cases[i].bytes, 2 * (size_t)(cases[i].descr[2] - '0'));
    assert_ok(try_open(&o, text, (DataOptions){0}, FILES(named_path("x", "x.npy"))));
    if (cases[i].error) {
      const Value *inputs;
      int n;
      for (int again = 0; again < 2; again++) assert_error(data_batch(o.data, again, &inputs, &n), cases[i].error);
      assert_error(data_batch(o.data, 0, &inputs, &n), "x.npy: input 'x', sample 1");
    } else {
      expect_ints(o.data, 0, 0, 2, cases[i].want);
    }
    close_data(&o);
  }
}

/* Long runs, at odd addresses. */
static void test_convert(void **state) {
  (void)state;
  static unsigned char raw[2 * 1000 + 1];
  static int64_t out[1000];
  for (int i = 0; i < 1000; i++) raw[1 + 2 * i] = (unsigned char)i, raw[2 + 2 * i] = (unsigned char)(i >> 8);
  assert_int_equal(data_convert(out, DT_I64, raw + 1, DT_U16, 1000), -1);
  for (int i = 0; i < 1000; i++) assert_int_equal(out[i], i);
  assert_int_equal(data_convert(raw, DT_U8, out, DT_I64, 1000), 256);
  assert_int_equal(data_convert(raw, DT_I8, out, DT_I64, 1000), 128);
  assert_int_equal(data_convert(out, DT_BOOL, raw, DT_U8, 0), -1);
}

/* ---- tokens ------------------------------------------------------------------------------------------ */

static void expect_windows(const char *path, DataOptions options, int64_t first, int64_t windows) {
  Opened o;
  options.tokens = "ids,labels";
  assert_ok(try_open(&o, TOKENS, options, FILES(path)));
  assert_int_equal(data_samples(o.data), windows);
  assert_int_equal(data_batch_tokens(o.data, 0), 16);
  for (int64_t b = 0; b < 2 * data_batches(o.data); b++) {
    int64_t ids[16], labels[16];
    for (int k = 0; k < 16; k++) {
      ids[k] = first + b % data_batches(o.data) * 16 + k;
      labels[k] = ids[k] + !options.unshifted;
    }
    expect_ints(o.data, b, 0, 16, ids);
    expect_ints(o.data, b, 1, 16, labels);
  }
  close_data(&o);
}

static void test_tokens(void **state) {
  (void)state;
  expect_windows(write_raw("a.bin", 40000, 33, 2), (DataOptions){0}, 40000, 4);
  expect_windows(write_raw("a.bin", 40000, 32, 2), (DataOptions){.unshifted = true}, 40000, 4);
  expect_windows(write_raw("a.bin", 40000, 32, 2), (DataOptions){.window = 8}, 40000, 3);
  expect_windows(write_raw("a.bin", 70000, 40, 4), (DataOptions){.token_dtype = "uint32"}, 70000, 4);
  expect_windows(write_raw("a.txt", 0, 41, 1), (DataOptions){.token_dtype = "uint8"}, 0, 5);
  expect_windows(write_llmc("a.bin", 20240520, 1, 33, 33, 2), (DataOptions){0}, 100, 4);
  expect_windows(write_llmc("a.bin", 20240801, 7, 33, 33, 4), (DataOptions){.token_dtype = "int64"}, 100, 4);
  uint16_t narrow[33];
  int64_t wide[33];
  for (int i = 0; i < 33; i++) narrow[i] = (uint16_t)(60000 + i), wide[i] = 60000 + i;
  char *path = write_npy("a.npy", 1, "{'descr': '<u2', 'fortran_order': False, 'shape': (33,), }", narrow, 66);
  expect_windows(path, (DataOptions){0}, 60000, 4);
  path = write_npy("a.npy", 2, "{'descr': '<i8', 'fortran_order': False, 'shape': (33,), }", wide, sizeof wide);
  expect_windows(path, (DataOptions){0}, 60000, 4);
  expect_windows(path, (DataOptions){.unshifted = true}, 60000, 4);
}

static void test_token_files(void **state) {
  (void)state;
  Opened o;
  /* Windows do not reach from file to file; what is left of each is not used. */
  write_raw("t-1.bin", 0, 12, 2);
  write_llmc("t-2.bin", 20240801, 7, 17, 17, 4);
  assert_ok(try_open(&o, TOKENS, (DataOptions){.tokens = "ids,labels"}, FILES(path_of("t-*.bin"))));
  assert_int_equal(data_samples(o.data), 3);
  expect_ints(o.data, 0, 0, INTS(0, 1, 2, 3, 4, 5, 6, 7, 100, 101, 102, 103, 104, 105, 106, 107));
  expect_ints(o.data, 0, 1, INTS(1, 2, 3, 4, 5, 6, 7, 8, 101, 102, 103, 104, 105, 106, 107, 108));
  close_data(&o);
  /* One input; names in another order than the inputs. */
  assert_ok(try_open(&o, "graph(%ids: i32[1,4] = user) { return user %ids }", (DataOptions){.tokens = "ids"},
                     FILES(write_raw("a.bin", 7, 8, 2))));
  expect_ints(o.data, 1, 0, INTS(11, 12, 13, 14));
  close_data(&o);
  assert_ok(try_open(&o, "graph(%y: i64[1,4] = user, %x: i64[1,4] = user) { return user %x }",
                     (DataOptions){.tokens = "x,y"}, FILES(write_raw("a.bin", 7, 9, 2))));
  expect_ints(o.data, 0, 0, INTS(8, 9, 10, 11));
  expect_ints(o.data, 0, 1, INTS(7, 8, 9, 10));
  close_data(&o);
  /* A length that is free. */
  const char *any = "symbol s0 in [1, 64] hint 2\nsymbol s1 in [2, 64] hint 3\n"
                    "graph(%x: i64[s0,s1] = user, %y: i64[s0,s1] = user) { return user %x }";
  assert_ok(try_open(&o, any, (DataOptions){.tokens = "x,y"}, FILES(write_raw("a.bin", 0, 10, 2))));
  expect_ints(o.data, 1, 0, INTS(6, 7, 8)); /* 3 windows of 3, in batches of 2 */
  close_data(&o);
  assert_ok(try_open(&o, any, (DataOptions){.tokens = "x,y", .window = 4, .batch = 1}, FILES(path_of("a.bin"))));
  expect_ints(o.data, 1, 1, INTS(5, 6, 7, 8));
  close_data(&o);
}

/* ---- order ----------------------------------------------------------------------------------------------- */

static void test_permutation(void **state) {
  (void)state;
  static unsigned char seen[100003];
  for (int64_t n = 1; n <= 100003; n += n < 300 ? 1 : n < 5000 ? 977 : 31247) {
    for (uint64_t seed = 0; seed < 3; seed++) {
      Shuffle s;
      memset(seen, 0, (size_t)n);
      shuffle_init(&s, seed, (int64_t)seed * n, n);
      for (int64_t k = 0; k < n; k++) {
        int64_t x = shuffle_at(&s, k);
        assert_true(x >= 0 && x < n && !seen[x]);
        seen[x] = 1;
      }
    }
  }
  Shuffle s; /* far away, too */
  int64_t n = ((int64_t)1 << 61) - 1;
  shuffle_init(&s, 1, INT64_MAX, n);
  for (int64_t k = 0; k < 1000; k++) assert_true(shuffle_at(&s, n - 1 - k) >= 0 && shuffle_at(&s, n - 1 - k) < n);
}

/* Every one of the 24 orders of four, and every place of every element of a hundred, about as often as any other.
 */
static void test_uniform(void **state) {
  (void)state;
  enum { DRAWS = 24000, N = 100, EPOCHS = 20000 };
  static int orders[256], places[N][N], together[N];
  Shuffle s;
  for (int i = 0; i < DRAWS; i++) {
    int code = 0;
    shuffle_init(&s, (uint64_t)(i / 100), i % 100, 4);
    for (int k = 0; k < 4; k++) code = code * 4 + (int)shuffle_at(&s, k);
    orders[code]++;
  }
  int found = 0;
  for (int i = 0; i < 256; i++) {
    found += orders[i] > 0;
    assert_true(!orders[i] || abs(orders[i] - DRAWS / 24) < 160); /* 5 standard deviations */
  }
  assert_int_equal(found, 24);
  for (int e = 0; e < EPOCHS; e++) {
    shuffle_init(&s, 42, e, N);
    for (int k = 0; k < N; k++) places[k][shuffle_at(&s, k)]++;
    together[(shuffle_at(&s, 1) - shuffle_at(&s, 0) + N) % N]++; /* neighbours do not stay neighbours */
  }
  for (int k = 0; k < N; k++) {
    for (int x = 0; x < N; x++) assert_true(abs(places[k][x] - EPOCHS / N) < 85); /* 6 */
    assert_true(k ? abs(together[k] - EPOCHS / (N - 1)) < 85 : !together[k]);
  }
}

static void first_values(Data *d, int64_t number, int64_t *out, int64_t *n) {
  const Tensor *y = input_of(d, number, 1);
  *n = tensor_numel(y);
  memcpy(out, tensor_data(y), (size_t)*n * sizeof *out);
}

static void test_shuffled(void **state) {
  (void)state;
  enum { N = 103, EPOCHS = 3 };
  Opened o, again;
  int64_t order[EPOCHS * N], at[100], n, total = 0;
  write_samples("a-1.safetensors", 0, 50, 0, NULL);
  write_samples("a-2.safetensors", 50, N - 50, 0, NULL);
  DataOptions options = {.shuffle = true, .seed = 7, .batch = 4};
  assert_ok(try_open(&o, FREE, options, FILES(path_of("a-*.safetensors"))));
  int64_t batches = data_batches(o.data);
  assert_int_equal(batches, 26);
  for (int64_t b = 0; b < EPOCHS * batches; b++) {
    at[b] = total;
    first_values(o.data, b, order + total, &n);
    expect_samples(o.data, b, n, order + total); /* x goes with y */
    total += n;
  }
  assert_int_equal(total, EPOCHS * N);
  for (int e = 0; e < EPOCHS; e++) {
    int seen[N] = {0}, same = 0, other = e ? e - 1 : EPOCHS - 1;
    for (int k = 0; k < N; k++) seen[order[e * N + k]]++, same += order[e * N + k] == order[other * N + k];
    for (int k = 0; k < N; k++) assert_int_equal(seen[k], 1);
    assert_true(same < 12);
  }
  /* Any batch at any time, also by someone who begins there; the files may be cut otherwise. */
  write_samples("b.safetensors", 0, N, 0, NULL);
  assert_ok(try_open(&again, FREE, options, FILES(path_of("b.safetensors"))));
  uint64_t next = 1;
  for (int i = 0; i < 400; i++) {
    next = next * 6364136223846793005u + 1442695040888963407u;
    int64_t b = i % 3 ? (int64_t)(next >> 33) % (EPOCHS * batches) : (i / 3) % (EPOCHS * batches), want[4];
    first_values(again.data, b, want, &n);
    assert_memory_equal(want, order + at[b], (size_t)n * sizeof *want);
  }
  close_data(&again);
  options.seed = 8;
  assert_ok(try_open(&again, FREE, options, FILES(path_of("b.safetensors"))));
  int64_t want[4];
  first_values(again.data, 0, want, &n);
  assert_memory_not_equal(want, order, sizeof want);
  close_data(&again);
  close_data(&o);
}

/* The batch in hand stays as it is while those behind it are read, whatever the caller does meanwhile. */
static void test_ahead(void **state) {
  (void)state;
  Opened o;
  assert_ok(
      try_open(&o, FIXED, (DataOptions){.shuffle = true}, FILES(write_samples("a.safetensors", 0, 400, 0, NULL))));
  for (int64_t b = 0; b < 500; b++) {
    int64_t before[4], n, sum = 0;
    const Tensor *y = input_of(o.data, b, 1);
    n = tensor_numel(y);
    memcpy(before, tensor_data(y), sizeof before);
    for (volatile int i = 0; i < 3000; i = i + 1) sum += i;
    assert_true(n == 4 && sum);
    assert_memory_equal(before, tensor_data(y), sizeof before);
    memset(tensor_data(y), 0, sizeof before); /* it is the caller's */
  }
  close_data(&o);
  for (int i = 0; i < 20; i++) { /* closed while it reads */
    assert_ok(try_open(&o, FIXED, (DataOptions){.shuffle = true}, FILES(path_of("a.safetensors"))));
    if (i % 4) input_of(o.data, i, 0);
    close_data(&o);
  }
}

/* ---- where the system starts no thread -------------------------------------------------------------------- */

static bool no_threads;

/* The names are the linker's (tests/CMakeLists.txt). */
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg);

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg) {
  return no_threads ? EAGAIN : __real_pthread_create(t, a, fn, arg);
}

static void test_alone(void **state) {
  no_threads = true;
  test_fixed(state);
  test_dtypes(state);
  test_token_files(state);
  test_shuffled(state);
  no_threads = false;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fixed),      cmocka_unit_test(test_not_copied),  cmocka_unit_test(test_joined),
      cmocka_unit_test(test_free_batch), cmocka_unit_test(test_batched),     cmocka_unit_test(test_arguments),
      cmocka_unit_test(test_npy),        cmocka_unit_test(test_dtypes),      cmocka_unit_test(test_convert),
      cmocka_unit_test(test_tokens),     cmocka_unit_test(test_token_files), cmocka_unit_test(test_permutation),
      cmocka_unit_test(test_uniform),    cmocka_unit_test(test_shuffled),    cmocka_unit_test(test_ahead),
      cmocka_unit_test(test_alone),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
