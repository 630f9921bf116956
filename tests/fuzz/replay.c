/* replay -- runs a fuzz target without a fuzzer, on files and on damage done to them.
 *
 *     fuzz_NAME_replay FILE_OR_FOLDER...
 *
 * Each file is given whole, cut off at many places, and with bits turned: what CI checks
 * under the sanitizers when there is no libFuzzer. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CUTS = 300, FLIPS = 3000 };

/* A small generator of our own: the same damage on every machine. */
static uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static void replay_bytes(unsigned char *data, size_t size) {
  uint64_t state = size;
  LLVMFuzzerTestOneInput(data, size);
  for (size_t i = 0; i < CUTS && i < size; i++) LLVMFuzzerTestOneInput(data, size <= CUTS ? i : size * i / CUTS);
  for (int i = 0; size && i < FLIPS; i++) {
    size_t at = next_random(&state) % size;
    unsigned char old = data[at],
                  turned = (unsigned char)(next_random(&state) % 3 ? old ^ (1u << i % 8) : next_random(&state));
    data[at] = turned;
    LLVMFuzzerTestOneInput(data, size);
    data[at] = old;
  }
}

static int replay(const char *path) {
  if (file_is_folder(path)) {
    DIR *d = opendir(path);
    int files = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
      char inner[4096];
      snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
      if (e->d_name[0] != '.') files += replay(inner);
    }
    if (d) closedir(d);
    return files;
  }
  FileMap *f;
  Status s = file_map(path, &f);
  if (s) {
    fprintf(stderr, "replay: %s\n", status_message(s));
    exit(1);
  }
  replay_bytes(f->data, f->size);
  file_map_unref(f);
  return 1;
}

int main(int argc, char **argv) {
  int files = 0;
  for (int i = 1; i < argc; i++) files += replay(argv[i]);
  printf("%d files\n", files);
  return files == 0;
}
