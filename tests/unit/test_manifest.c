/* Manifests of saves: a refusal with a reason for everything that is not right. */
#include <xxhash.h>

#include "ckpt/manifest.h"
#include "unit.h"

static const char good[] =
    "{\n\"format\": \"tessera run\",\n\"version\": 1,\n\"tessera\": \"0.1.0\",\n\"step\": 100,\n\"seed\": 7,\n"
    "\"random\": \"00ff\",\n\"data\": {\"batches\": 400, \"samples\": 1600},\n\"mesh\": \"1\",\n"
    "\"program\": {\"name\": \"loss.pt2\", \"signature\": \"0123456789abcdef\"},\n"
    "\"command\": [\"tessera\", {\"hex\": \"e9\"}],\n\"texts\": {\"k\": \"v\"},\n\"files\": [\n"
    "{\"name\": \"model.safetensors\", \"prefix\": \"model.\", \"bytes\": 144},\n"
    "{\"name\": \"optimizer.safetensors\", \"prefix\": \"\", \"bytes\": 96}],\n\"tensors\": [\n"
    "{\"name\": \"model.w\", \"dtype\": \"f32\", \"shape\": [4,4], \"chunks\": [{\"file\": 0, \"offset\": [0,0], "
    "\"shape\": [4,4], \"xxh3\": \"00000000000000ff\"}]},\n"
    "{\"name\": \"optim.step\", \"dtype\": \"i64\", \"shape\": [], \"chunks\": [{\"file\": 1, \"offset\": [], "
    "\"shape\": [], \"xxh3\": \"0000000000000001\"}]}],\n";

/* The good one with a part replaced, once, and its own checksum. */
static Status parse_with(const char *old, const char *new) {
  Arena arena = {0};
  Manifest m;
  TextBuf text = {0};
  const char *at = strstr(good, old);
  assert_non_null(at);
  text_write(&text, good, (size_t)(at - good));
  text_puts(&text, new);
  text_puts(&text, at + strlen(old));
  text_printf(&text, "\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)XXH3_64bits(text.text, text.len));
  Status s = manifest_parse("manifest.json", text.text, text.len, &arena, &m);
  text_free(&text);
  arena_free(&arena);
  return s;
}

static const struct {
  const char *old, *new, *error; /* NULL: it is right */
} cases[] = {
    {"\"step\"", "\"step\"", NULL},
    {"\"seed\": 7", "\"seed\": 18446744073709551615", NULL},
    {"\"texts\"", "\"more\": 1, \"texts\"", NULL}, /* what later versions may add */
    {"\"mesh\": \"1\"", "\"mesh\": \"dp=2\"", "saves of several ranks"},
    {"tessera run", "other", "no manifest of a save"},
    {"\"version\": 1", "\"version\": 2", NULL},
    {"\"version\": 1", "\"version\": 3", "version 3 of the format, this tessera reads up to version 2"},
    {"\"version\": 1", "\"version\": \"1\"", "'version' must be"},
    {"\"step\": 100", "\"step\": -1", "'step': it must not be negative"},
    {"\"step\": 100", "\"step\": 1.5", "'step' must be"},
    {"\"step\": 100,\n", "", "'step' is missing"},
    {"\"step\": 100", "\"step\": 1, \"step\": 2", "occurs twice"},
    {"\"seed\": 7", "\"seed\": -7", "'seed': it must be"},
    {"00ff", "00f", "bytes in hex"},
    {"00ff", "00fg", "bytes in hex"},
    {"\"batches\": 400", "\"batches\": null", "'batches'"},
    {"0123456789abcdef", "123", "16 digits in hex"},
    {"0123456789abcdef", "0123456789abcdeg", "16 digits in hex"},
    {"{\"hex\": \"e9\"}", "7", "'command': it must be a text"},
    {"{\"hex\": \"e9\"}", "{}", "'hex' is missing"},
    {"\"k\": \"v\"", "\"k\": \"v\", \"k\": \"w\"", "occurs twice"},
    {"\"k\": \"v\"", "\"k\": 1", "'k': it must be a text"},
    {"model.safetensors", "../model.safetensors", "no name of a file"},
    {"model.safetensors", ".hidden", "no name of a file"},
    {"model.safetensors", "", "no name of a file"},
    {"\"bytes\": 144", "\"bytes\": -1", "must not be negative"},
    {"\"f32\"", "\"f33\"", "there is no dtype 'f33'"},
    {"\"shape\": [4,4], \"chunks\"", "\"shape\": [4,-4], \"chunks\"", "sizes of 0 or more"},
    {"\"shape\": [4,4], \"chunks\"", "\"shape\": [4,5], \"chunks\"", "not the whole tensor"},
    {"\"shape\": [4,4], \"chunks\"", "\"shape\": [4], \"chunks\"", "not the whole tensor"},
    {"\"shape\": [4,4], \"chunks\"", "\"shape\": [4294967296,4294967296], \"chunks\"", "impossible sizes"},
    {"\"shape\": [4,4], \"chunks\"", "\"shape\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1], \"chunks\"",
     "too many dimensions"},
    {"\"offset\": [0,0]", "\"offset\": [0,1]", "not the whole tensor"},
    {"\"file\": 0", "\"file\": 2", "not among the files"},
    {"\"file\": 0", "\"file\": -1", "not among the files"},
    {"\"file\": 1", "\"file\": 0", "lacks the prefix"},
    {"\"chunks\": [{", "\"chunks\": [{}, {", "several chunks"},
    {"\"chunks\": [{", "\"chunks\": [], \"x\": [{", "several chunks"},
    {"\"name\": \"optim.step\"", "\"name\": \"model.w\"", "occurs twice"},
    {"\"name\": \"optim.step\"", "\"name\": 1", "'name' must be"},
};

static void wrong_ones(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Status s = parse_with(cases[i].old, cases[i].new);
    if (cases[i].error) assert_error(s, cases[i].error);
    else assert_ok(s);
  }
}

static void not_intact(void **state) {
  (void)state;
  Arena arena = {0};
  Manifest m;
  TextBuf text = {0};
  text_puts(&text, good);
  text_puts(&text, "\"xxh3\": \"0000000000000000\"\n}\n");
  assert_error(manifest_parse("m", text.text, text.len, &arena, &m), "does not match its checksum");
  assert_error(manifest_parse("m", text.text, 30, &arena, &m), "not valid JSON");
  assert_error(manifest_parse("m", "", 0, &arena, &m), "empty");
  assert_error(manifest_parse("m", "[]", 2, &arena, &m), "no manifest of a save");
  /* A later version is recognised whatever its end looks like. */
  static const char later[] = "{\"format\": \"tessera run\", \"version\": 3, \"tessera\": \"0.9.0\"}";
  assert_error(manifest_parse("m", later, strlen(later), &arena, &m), "use tessera 0.9.0 or a later one");
  text_free(&text);
  arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(wrong_ones), cmocka_unit_test(not_intact)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
