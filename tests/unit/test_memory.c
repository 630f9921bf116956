/* test_memory.c -- giving pages back never changes a byte. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "unit.h"

enum { BYTES = 1 << 20 };

static unsigned char pattern(size_t i) { return (unsigned char)(i * 7 + i / 4096); }

static void pages_of_a_file_come_back(void **state) {
  (void)state;
  char path[] = "test_memory_XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  unsigned char *bytes = malloc(BYTES);
  assert_non_null(bytes);
  for (size_t i = 0; i < BYTES; i++) bytes[i] = pattern(i);
  assert_ok(file_write_all(path, bytes, BYTES, FILE_OVERWRITE));
  FileMap *f;
  assert_ok(file_map(path, &f));
  assert_memory_equal(f->data, bytes, BYTES); /* all pages are here */
  f->data[200000] ^= 255;                     /* one of them is our own now */
  bytes[200000] ^= 255;
  assert_true(memory_may_give_back(f->data + 100, BYTES - 200));
  assert_false(memory_may_give_back(f->data + 1, 4000)); /* no whole page inside */
  size_t given = memory_give_back(f->data + 100, BYTES - 200);
  assert_true(given < BYTES);
  assert_memory_equal(f->data, bytes, BYTES);
  assert_true(memory_give_back(f->data + 1, 4000) == 0); /* no whole page inside */
  file_map_unref(f);
  unlink(path);
  free(bytes);
}

static void other_memory_stays(void **state) {
  (void)state;
  unsigned char *bytes = malloc(BYTES);
  assert_non_null(bytes);
  for (size_t i = 0; i < BYTES; i++) bytes[i] = pattern(i);
  assert_true(memory_give_back(bytes, BYTES) == 0);
  for (size_t i = 0; i < BYTES; i++) assert_true(bytes[i] == pattern(i));
  assert_true(memory_give_back(NULL, BYTES) == 0);
  assert_false(memory_may_give_back(bytes, BYTES));
  assert_false(memory_may_give_back(NULL, BYTES));
  free(bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pages_of_a_file_come_back),
      cmocka_unit_test(other_memory_stays),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
