/* JSON: errors that say where, no nesting that could exhaust the stack of a reader. */
#include "base/json.h"
#include "unit.h"

static Status parse(const char *text, unsigned flags) {
  yyjson_doc *doc;
  TRY(json_parse("x.json", text, strlen(text), flags, &doc));
  yyjson_doc_free(doc);
  return OK;
}

static void errors_say_where(void **state) {
  (void)state;
  assert_ok(parse("{\"a\": [1, 2.5, \"x\"]}", 0));
  assert_error(parse("", 0), "it is empty");
  assert_error(parse("{\n \"a\": ]}", 0), "x.json: not valid JSON");
  assert_error(parse("{\n \"a\": ]}", 0), "line 2, column 7");
  assert_error(parse("{} {}", 0), "x.json");
  assert_error(parse("[NaN]", 0), "x.json");
  assert_ok(parse("[NaN, -Infinity]", JSON_NAN));
  assert_error(parse("[\"\xff\"]", 0), "x.json");
}

static void depth(void **state) {
  (void)state;
  char deep[100001];
  memset(deep, '[', sizeof deep - 1);
  deep[sizeof deep - 1] = 0;
  assert_error(parse(deep, 0), "nests too deeply");
  for (int i = 0; i < JSON_MAX_DEPTH; i++) deep[i] = '[', deep[JSON_MAX_DEPTH + i] = ']';
  deep[2 * JSON_MAX_DEPTH] = 0;
  assert_ok(parse(deep, 0));
  assert_ok(parse("[\"[[[[{{{{\\\"[[[[\"]", 0));
}

static void members(void **state) {
  (void)state;
  static const char text[] = "{\"i\": -3, \"big\": 18446744073709551615, \"s\": \"t\", \"nul\": \"a\\u0000b\", "
                             "\"b\": true, \"a\": [], \"o\": {\"k\": 1, \"k\": 2}}";
  yyjson_doc *doc;
  assert_ok(json_parse("f", text, sizeof text - 1, 0, &doc));
  yyjson_val *root = yyjson_doc_get_root(doc), *v;
  int64_t i;
  bool b;
  const char *s;
  assert_ok(json_int64(root, "i", "f", &i));
  assert_int_equal(i, -3);
  assert_error(json_int64(root, "big", "f", &i), "'big' must be an integer of 64 bits");
  assert_ok(json_string(root, "s", "f", &s));
  assert_string_equal(s, "t");
  assert_error(json_string(root, "nul", "f", &s), "without NUL");
  assert_ok(json_bool(root, "b", "f", &b));
  assert_error(json_bool(root, "s", "f", &b), "true or false");
  assert_ok(json_array(root, "a", "f", &v));
  assert_error(json_object(root, "a", "f", &v), "must be an object");
  assert_error(json_member(root, "zz", "f", &v), "'zz' is missing");
  assert_ok(json_check_keys(root, "f"));
  assert_ok(json_object(root, "o", "f", &v));
  assert_error(json_check_keys(v, "f"), "the key 'k' occurs twice");
  yyjson_doc_free(doc);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(errors_say_where), cmocka_unit_test(depth),
                                     cmocka_unit_test(members)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
