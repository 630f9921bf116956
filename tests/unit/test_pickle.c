/* Pickles: what checkpoints have is read, everything else is refused by name, and nothing that a text says makes
 * the reader call, recurse or take memory without end. */
#include "ckpt/pickle.h"
#include "ckpt/pickle_out.h"
#include "unit.h"

static Status read_bytes(const void *data, size_t size, Arena *arena, PickleValue **out) {
  return pickle_read("test", data, size, arena, out);
}

#define REFUSED(text, error)                                               \
  do {                                                                     \
    Arena arena_ = {0};                                                    \
    PickleValue *v_;                                                       \
    assert_error(read_bytes(text, sizeof(text) - 1, &arena_, &v_), error); \
    arena_free(&arena_);                                                   \
  } while (0)

static void prints(const void *data, size_t size, const char *want) {
  Arena arena = {0};
  PickleValue *v;
  TextBuf b = {0};
  assert_ok(read_bytes(data, size, &arena, &v));
  pickle_print(&b, v);
  assert_string_equal(b.text, want);
  text_free(&b);
  arena_free(&arena);
}
#define PRINTS(text, want) prints(text, sizeof(text) - 1, want)

static void values(void **state) {
  (void)state;
  PRINTS("\x80\x02K\x05.", "5");
  PRINTS("\x80\x02J\xfb\xff\xff\xff.", "-5");
  PRINTS("\x80\x02\x8a\x05\x00\x00\x00\x00\x01.", "4294967296");
  PRINTS("\x80\x02\x8a\x01\xff.", "-1");
  PRINTS("\x80\x02\x8a\x00.", "0");
  PRINTS("\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00.", "1.5");
  PRINTS("\x80\x02]q\x00(K\x01N\x88\x89"
         "e.",
         "[1, None, True, False]");
  PRINTS("\x80\x02}X\x01\x00\x00\x00"
         "aK\x01\x85s.",
         "{'a': (1,)}");
  PRINTS("\x80\x02X\x04\x00\x00\x00it's.", "\"it's\"");
  PRINTS("\x80\x02"
         "ctorch\nfloat32\n.",
         "torch.float32");
  PRINTS("\x80\x02"
         "ctorch\nSize\nK\x02K\x03\x86\x85R.",
         "(2, 3)");
  PRINTS("\x80\x02"
         "ccollections\nOrderedDict\n)RX\x01\x00\x00\x00xK\x01s.",
         "{'x': 1}");
  PRINTS("\x80\x02]q\x00h\x00"
         "a.",
         "[[[[[[[[[[[[[[[[[[[[[...]]]]]]]]]]]]]]]]]]]]]"); /* a list in itself */
}

static void written_ones(void **state) {
  (void)state;
  Arena arena = {0};
  TextBuf b = {0};
  PickleValue *v;
  pickle_begin(&b);
  pickle_op(&b, '(');
  static const int64_t numbers[] = {0,         255,      256, -1, INT32_MIN, INT32_MAX, (int64_t)INT32_MAX + 1,
                                    INT64_MIN, INT64_MAX};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) pickle_int(&b, numbers[i]);
  pickle_op(&b, 't');
  pickle_end(&b);
  assert_ok(read_bytes(b.text, b.len, &arena, &v));
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) assert_int_equal(v->items[i]->i, numbers[i]);
  text_free(&b);
  arena_free(&arena);
}

static void calls_are_refused(void **state) {
  (void)state;
  REFUSED("\x80\x02"
          "cos\nsystem\n(X\x04\x00\x00\x00"
          "echotR.",
          "names 'os.system'");
  REFUSED("\x80\x02"
          "cposix\nsystem\n.",
          "names 'posix.system'");
  REFUSED("\x80\x04\x8c\x08"
          "builtins\x8c\x04"
          "eval\x93.",
          "names 'builtins.eval'");
  REFUSED("\x80\x04\x8c\x08"
          "builtins\x8c\x07getattr\x93.",
          "names 'builtins.getattr'");
  REFUSED("\x80\x02"
          "ctorch\nload\n.",
          "names 'torch.load'");
  REFUSED("\x80\x02"
          "ctorch\nfloat33\n.",
          "names 'torch.float33'");
  REFUSED("\x80\x02"
          "cnumpy\nndarray\n.",
          "names 'numpy.ndarray'");
  REFUSED("\x80\x02"
          "ctorch.storage\n_load_from_bytes\n.",
          "names 'torch.storage._load_from_bytes'");
  REFUSED("\x80\x02K\x01)R.", "no known function is called");
  REFUSED("\x80\x02"
          "ctorch\nSize\nK\x01R.",
          "no known function is called");
  REFUSED("(S'echo'\nios\nsystem\n.", "opcode STRING");
  REFUSED("(ios\nsystem\n.", "opcode INST");
  REFUSED("(o.", "opcode OBJ");
  REFUSED("\x82\x01.", "opcode EXT1");
  REFUSED("P1\n.", "opcode PERSID");
  REFUSED("\x97.", "opcode NEXT_BUFFER");
}

static void bombs(void **state) {
  (void)state;
  REFUSED("", "cut off");
  REFUSED(".", "stack is empty");
  REFUSED("\x80\x06N.", "protocol is newer");
  REFUSED("\x80\x02X\xff\xff\xff\xff"
          "a.",
          "cut off");
  REFUSED("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
          "a.",
          "cut off");
  REFUSED("\x80\x02\x8b\xff\xff\xff\xff.", "cut off");
  REFUSED("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", "cut off");
  REFUSED("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", "more than 64 bits");
  REFUSED("\x80\x02Nr\xff\xff\xff\xff.", "memo is out of range");
  REFUSED("\x80\x02h\x07.", "memo lacks");
  REFUSED("\x80\x02(.", "stack is empty");
  REFUSED("\x80\x02t.", "no mark");
  REFUSED("\x80\x02}(K\x01u.", "lacks its value");
  REFUSED("\x80\x02K\x01K\x02"
          "a.",
          "cannot hold");
  REFUSED("\x80\x02](a.", "stack is empty");
  REFUSED("\x80\x02NN.", "left over");
  REFUSED("\x80\x02N.N", "left over");
}

/* Each opcode by itself, and with values before it. */
static void every_opcode(void **state) {
  (void)state;
  for (int op = 0; op < 256; op++)
    for (int before = 0; before < 4; before++) {
      static const char *const starts[] = {"\x80\x02", "\x80\x02N", "\x80\x02](", "\x80\x02}(NN"};
      Arena arena = {0};
      PickleValue *v;
      TextBuf b = {0};
      text_puts(&b, starts[before]);
      pickle_op(&b, (char)op);
      text_write(&b, "\x01\x00\x00\x00\n\n\x00\x00\x00.", 10);
      status_free(read_bytes(b.text, b.len, &arena, &v));
      text_free(&b);
      arena_free(&arena);
    }
}

/* A million lists, each in the one before; each list twice in the next. */
static void deep_and_wide(void **state) {
  (void)state;
  enum { DEPTH = 1000000, DOUBLED = 60 };
  Arena arena = {0};
  PickleValue *v;
  TextBuf b = {0}, text = {0};
  pickle_begin(&b);
  for (int i = 0; i < DEPTH; i++) pickle_op(&b, ']');
  for (int i = 1; i < DEPTH; i++) pickle_op(&b, 'a');
  pickle_end(&b);
  assert_ok(read_bytes(b.text, b.len, &arena, &v));
  pickle_print(&text, v);
  assert_true(text.len < 200);
  arena_free(&arena);
  text_free(&b);
  text_free(&text);
  pickle_begin(&b);
  pickle_op(&b, 'N');
  for (int i = 0; i < DOUBLED; i++) text_puts(&b, "2\x86"); /* DUP, TUPLE2 */
  pickle_end(&b);
  assert_ok(read_bytes(b.text, b.len, &arena, &v));
  pickle_print(&text, v);
  assert_true(text.len < 10000);
  arena_free(&arena);
  text_free(&b);
  text_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values), cmocka_unit_test(written_ones), cmocka_unit_test(calls_are_refused),
      cmocka_unit_test(bombs),  cmocka_unit_test(every_opcode), cmocka_unit_test(deep_and_wide)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
