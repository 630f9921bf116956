/* Any bytes as the manifest of a save, given the checksum that makes it worth reading; what is accepted prints, and
 * reads back as the same text. */
#include <string.h>
#include <xxhash.h>

#include "ckpt/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static Status print_again(const Manifest *m, TextBuf *out) {
  Arena arena = {0};
  Manifest again;
  TextBuf second = {0};
  Status s = manifest_print(m, out);
  if (!s) s = manifest_parse("printed", out->text, out->len, &arena, &again);
  if (!s) s = manifest_print(&again, &second);
  if (!s && strcmp(out->text, second.text)) __builtin_trap();
  if (s) __builtin_trap(); /* what was accepted can be printed */
  text_free(&second);
  arena_free(&arena);
  return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char end[] = "\"xxh3\": \"";
  Arena arena = {0};
  Manifest m;
  TextBuf text = {0}, printed = {0};
  size_t tail = sizeof end - 1 + 16 + 4; /* of a whole manifest: another one takes its place */
  if (size > tail && !memcmp(data + size - tail, end, sizeof end - 1)) size -= tail;
  text_write(&text, (const char *)data, size);
  text_printf(&text, "%s%016llx\"\n}\n", end, (unsigned long long)XXH3_64bits(data, size));
  Status s = text.failed ? fail_oom() : manifest_parse("fuzz", text.text, text.len, &arena, &m);
  if (!s) s = print_again(&m, &printed);
  status_free(s);
  text_free(&printed);
  text_free(&text);
  arena_free(&arena);
  return 0;
}
