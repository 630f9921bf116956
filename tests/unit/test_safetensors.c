/* .safetensors: round trips, and a refusal for everything that is not right. */
#include "base/direct.h"
#include "tensor/safetensors.h"
#include "unit.h"

static char folder[256];

static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

static Status read_bytes(const void *data, size_t size) {
  FileMap *f;
  SafeTensors *st = NULL;
  TRY(file_map_bytes("x.safetensors", data, size, &f));
  Status s = safetensors_from_map(f, &st);
  file_map_unref(f);
  Scope scope = {0};
  for (int i = 0; !s && i < st->count; i++) {
    Tensor *t;
    s = safetensors_tensor(st, &st->entries[i], &scope, &t);
  }
  safetensors_close(st);
  scope_clear(&scope);
  return s;
}

static size_t make(unsigned char *buf, const char *header, size_t data) {
  size_t n = strlen(header);
  memset(buf, 0, 8 + n + data);
  for (int i = 0; i < 8; i++) buf[i] = (unsigned char)(n >> (8 * i));
  memcpy(buf + 8, header, n);
  return 8 + n + data;
}

static Status read_header(const char *header, size_t data) {
  unsigned char buf[4096];
  return read_bytes(buf, make(buf, header, data));
}

/* header, bytes of data, what the error says (NULL: it is right) */
static const struct {
  const char *header;
  size_t data;
  const char *error;
} cases[] = {
    {"{}", 0, NULL},
    {"{}   ", 0, NULL},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24, NULL},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, NULL},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0, NULL},
    {"{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, NULL},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_"
     "offsets\":[3,11]}}",
     11, NULL},
    {"", 0, "does not begin"},
    {" {}", 0, "does not begin"},
    {"[]", 0, "does not begin"},
    {"{", 0, "not valid JSON"},
    {"{}", 1, "belong to no tensor"},
    {"{\"a\":1}", 0, "must be an object"},
    {"{\"a\":{}}", 0, "must have"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "must have"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'F31', which is not supported"},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'dtype' must be"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "'shape' must be"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "sizes of 0 or more"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "sizes of 0 or more"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4,
     "sizes of 0 or more"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     "17 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4, "does not fill"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "does not fill"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", 0, "does not fill"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "does not fill"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "two offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{\"0\":1}}}", 4, "two offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "two offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 4, "outside the file"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "outside the file"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[18446744073709551615,18446744073709551615]}}", 4,
     "outside the file"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "a hole"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
     "\"data_offsets\":[2,6]}}",
     6, "overlaps"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
     "\"data_offsets\":[0,4]}}",
     4, "overlaps"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
     "\"data_offsets\":[4,8]}}",
     8, "occurs twice"},
    {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "NUL"},
    {"{\"__metadata__\":[]}", 0, "must be an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "must be a string"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "occurs twice"},
};

static void headers(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Status s = read_header(cases[i].header, cases[i].data);
    if (cases[i].error) assert_error(s, cases[i].error);
    else assert_ok(s);
  }
  assert_error(read_bytes("", 0), "too few");
  assert_error(read_bytes("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), "cut off");
  assert_error(read_bytes("\x02\0\0\0\0\0\0\x80{}", 10), "cut off");
}

static void bools(void **state) {
  (void)state;
  unsigned char buf[256];
  size_t n = make(buf, "{\"a\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
  buf[n - 1] = 1;
  assert_ok(read_bytes(buf, n));
  buf[n - 1] = 2;
  assert_error(read_bytes(buf, n), "neither 0 nor 1");
}

/* A file with several dtypes and strides, read back; then every way to cut it off and
 * every bit of its header turned: refused or read, never worse. */
static void round_trip_and_damage(void **state) {
  (void)state;
  Scope scope = {0};
  Tensor *f, *transposed, *u, *wide, *empty, *got;
  char path[300];
  assert_ok(tensor_new(&scope, DT_F32, 2, (int64_t[]){3, 5}, &f));
  for (int i = 0; i < 15; i++) ((float *)tensor_data(f))[i] = (float)i;
  assert_ok(tensor_as_strided(&scope, f, 3, (int64_t[]){2, 2, 3}, (int64_t[]){1, 0, 5}, 2, &transposed));
  assert_ok(tensor_new(&scope, DT_U8, 1, (int64_t[]){3}, &u));
  memcpy(tensor_data(u), "abc", 3);
  assert_ok(tensor_new(&scope, DT_I64, 0, NULL, &wide));
  *(int64_t *)tensor_data(wide) = INT64_MIN;
  assert_ok(tensor_new(&scope, DT_BF16, 2, (int64_t[]){4, 0}, &empty));
  SafeItem items[] = {{"u", u}, {"x \"quoted\"", f}, {"t", transposed}, {"", wide}, {"e", empty}};
  SafeText text[] = {{"format", "pt"}, {"note", "\xc3\xa4\n"}};
  snprintf(path, sizeof path, "%s/x.safetensors", folder);
  assert_ok(safetensors_save(path, items, 5, text, 2, 0));
  assert_error(safetensors_save(path, items, 5, NULL, 0, 0), "is there already");

  SafeTensors *st;
  assert_ok(safetensors_open(path, &st));
  assert_int_equal(st->count, 5);
  assert_string_equal(safetensors_text(st, "note"), "\xc3\xa4\n");
  assert_null(safetensors_text(st, "none"));
  for (int i = 0; i < st->count; i++) assert_int_equal(st->entries[i].begin % dtype_size(st->entries[i].dtype), 0);
  assert_ok(safetensors_get(st, "t", &scope, &got));
  Tensor *number;
  assert_ok(safetensors_get(st, "", &scope, &number));
  assert_error(safetensors_get(st, "none", &scope, &got), "no tensor 'none'");
  safetensors_close(st); /* the tensors live on */
  assert_int_equal(*(int64_t *)tensor_data(number), INT64_MIN);
  static const float want[12] = {2, 7, 12, 2, 7, 12, 3, 8, 13, 3, 8, 13};
  for (int i = 0; i < 12; i++) assert_true(((float *)tensor_data(got))[i] == want[i]);
  scope_clear(&scope);

  FileMap *map;
  assert_ok(file_map(path, &map));
  for (size_t n = 0; n < map->size; n++) {
    Status s = read_bytes(map->data, n);
    assert_non_null(s);
    status_free(s);
  }
  size_t header = 8 + map->data[0] + ((size_t)map->data[1] << 8);
  for (size_t bit = 0; bit < header * 8; bit++) {
    map->data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    status_free(read_bytes(map->data, map->size));
    map->data[bit / 8] ^= (unsigned char)(1u << bit % 8);
  }
  file_map_unref(map);
}

static void refuses_to_write(void **state) {
  (void)state;
  Scope scope = {0};
  Tensor *c, *meta;
  char path[300];
  snprintf(path, sizeof path, "%s/bad.safetensors", folder);
  assert_ok(tensor_new(&scope, DT_C128, 1, (int64_t[]){1}, &c));
  assert_ok(tensor_meta(&scope, DT_F32, 1, (int64_t[]){1}, &meta));
  assert_error(safetensors_save(path, &(SafeItem){"c", c}, 1, NULL, 0, 0), "cannot hold the dtype c128");
  assert_error(safetensors_save(path, &(SafeItem){"m", meta}, 1, NULL, 0, 0), "no data");
  SafeItem twice[] = {{"a", c}, {"a", c}};
  assert_error(safetensors_save(path, twice, 2, NULL, 0, 0), "'a'");
  Tensor *f;
  assert_ok(tensor_new(&scope, DT_F32, 0, NULL, &f));
  assert_error(safetensors_save(path, &(SafeItem){"\xff", f}, 1, NULL, 0, 0), "cannot be written");
  assert_false(file_exists(path));
  assert_ok(safetensors_save(path, NULL, 0, NULL, 0, 0));
  scope_clear(&scope);
}

/* What the disk may take page by page begins at a page, whatever stands before it in the list. */
static void large_ones_begin_at_pages(void **state) {
  (void)state;
  SafeEntry e[] = {{.name = "bias", .dtype = DT_F64, .ndim = 1, .size = {3}},
                   {.name = "bytes", .dtype = DT_U8, .ndim = 2, .size = {4096, 3}},
                   {.name = "none", .dtype = DT_F32, .ndim = 1, .size = {0}},
                   {.name = "weight", .dtype = DT_BF16, .ndim = 2, .size = {512, 1024}}};
  void *head;
  size_t bytes;
  assert_ok(safetensors_plan(e, 4, NULL, 0, &head, &bytes));
  assert_int_equal(bytes % DIRECT_PAGE, 0);
  assert_int_equal(e[1].begin % DIRECT_PAGE, 0);
  assert_int_equal(e[3].begin % DIRECT_PAGE, 0);
  assert_int_equal(e[0].begin, e[3].end);
  free(head);
  assert_ok(safetensors_plan(e, 3, NULL, 0, &head, &bytes)); /* a small file stays small */
  assert_true(bytes < DIRECT_PAGE && bytes % 8 == 0);
  free(head);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(headers), cmocka_unit_test(bools),
                                     cmocka_unit_test(round_trip_and_damage), cmocka_unit_test(refuses_to_write),
                                     cmocka_unit_test(large_ones_begin_at_pages)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
