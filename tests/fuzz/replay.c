/* replay -- runs a fuzz target without a fuzzer, on files and on damage done to them.
 *
 *     fuzz_NAME_replay FILE_OR_FOLDER...
 *     fuzz_NAME_replay --random COUNT [--seed SEED] [--from FIRST]
 *     fuzz_NAME_replay --damage COUNT [--seed SEED] [--from FIRST] FILE_OR_FOLDER...
 *
 * Each file is given whole, cut off at many places, and with bits turned: what CI checks
 * under the sanitizers when there is no libFuzzer.  With --random the target gets COUNT inputs
 * of eight random bytes, with --damage COUNT times one of the files with up to eight places overwritten, copied or
 * cut off; what fails names its number, and --from goes on there. */
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Tells what the target is about, if it can. */
void fuzz_tell(void) __attribute__((weak));
/* What became of all inputs, likewise. */
void fuzz_count(void) __attribute__((weak));
void __sanitizer_set_death_callback(void (*fn)(void)) __attribute__((weak));

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

/* ---- files ------------------------------------------------------------------------------------ */

typedef void FileFn(unsigned char *data, size_t size);

/* Calls fn on the file, or on every file below the folder; how many there were. */
static int each_file(const char *path, FileFn *fn) {
  if (file_is_folder(path)) {
    DIR *d = opendir(path);
    int files = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
      char inner[4096];
      snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
      if (e->d_name[0] != '.') files += each_file(inner, fn);
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
  fn(f->data, f->size);
  file_map_unref(f);
  return 1;
}

/* ---- random inputs ------------------------------------------------------------------------ */

/* Of its processor time, and by the clock, for one that waits for ever: a machine may have other work to do. */
enum { SECONDS_EACH = 60, WAIT_EACH = 600 };

static unsigned long long input; /* its number */

static void tell_input(void) {
  fprintf(stderr, "replay: input %llu\n", input);
  if (fuzz_tell) fuzz_tell();
}

static void died(int number) {
  tell_input();
  signal(number, SIG_DFL);
  raise(number);
}

static void too_slow(int signal) {
  (void)signal;
  fprintf(stderr, "replay: an input takes more than %d seconds, or waits for %d\n", SECONDS_EACH, WAIT_EACH);
  tell_input();
  abort();
}

typedef struct {
  unsigned long long count, seed, from;
} Numbers;

/* Makes input number `input` of its own random bits and hands it over. */
typedef void InputFn(uint64_t bits);

static int replay_numbered(const Numbers *n, InputFn *fn) {
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(tell_input);
  else
    for (int i = 0; i < 4; i++) signal((const int[]){SIGSEGV, SIGBUS, SIGFPE, SIGABRT}[i], died);
  signal(SIGALRM, too_slow);
  signal(SIGPROF, too_slow);
  for (input = n->from; input < n->count; input++) {
    uint64_t state = hash_mix(hash_mix(1, n->seed), input);
    alarm(WAIT_EACH);
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = SECONDS_EACH}, NULL);
    fn(random_bits(&state));
  }
  alarm(0);
  setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL);
  printf("%llu inputs\n", n->count - n->from);
  if (fuzz_count) fuzz_count();
  return 0;
}

static void random_bytes(uint64_t bits) { LLVMFuzzerTestOneInput((const uint8_t *)&bits, sizeof bits); }

/* ---- damage --------------------------------------------------------------------------------------- */

enum { MOST_FILES = 1000 };

static struct {
  unsigned char *data[MOST_FILES];
  size_t size[MOST_FILES];
  int n;
} files;

static void keep_file(unsigned char *data, size_t size) {
  if (files.n == MOST_FILES || !size) return;
  unsigned char *copy = malloc(size);
  if (!copy) abort();
  memcpy(copy, data, size);
  files.data[files.n] = copy;
  files.size[files.n++] = size;
}

/* One place: a bit, a byte, a number that is often a limit, bytes from elsewhere, or the end. */
static void damage(unsigned char *data, size_t *size, uint64_t *state) {
  static const int64_t limits[] = {0,      1,      -1,        0x7f,      0x80,      0xff,
                                   0x7fff, 0xffff, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
  size_t at = random_bits(state) % *size, left = *size - at, from = random_bits(state) % *size, n;
  switch (random_bits(state) % 8) {
    case 0:
    case 1: data[at] ^= (unsigned char)(1u << random_bits(state) % 8); return;
    case 2:
    case 3: data[at] = (unsigned char)random_bits(state); return;
    case 4:
    case 5:
      n = (size_t)1 << random_bits(state) % 4;
      memcpy(data + at, &limits[random_bits(state) % (sizeof limits / sizeof *limits)], n < left ? n : left);
      return;
    case 6:
      n = 1 + random_bits(state) % 32;
      if (n > left) n = left;
      memmove(data + at, data + from, n < *size - from ? n : *size - from);
      return;
    default:
      if (at && random_bits(state) % 4 == 0) *size = at;
  }
}

static void damaged_file(uint64_t bits) {
  size_t i = bits % (size_t)files.n, size = files.size[i];
  unsigned char *data = malloc(size);
  if (!data) abort();
  memcpy(data, files.data[i], size);
  for (uint64_t k = 1 + random_bits(&bits) % 8; k; k--) damage(data, &size, &bits);
  LLVMFuzzerTestOneInput(data, size);
  free(data);
}

int main(int argc, char **argv) {
  bool random = argc > 2 && !strcmp(argv[1], "--random"), damages = argc > 2 && !strcmp(argv[1], "--damage");
  Numbers n = {.count = random || damages ? strtoull(argv[2], NULL, 10) : 0};
  int count = 0, i = random || damages ? 3 : 1;
  for (; (random || damages) && i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2)
    *(strcmp(argv[i], "--from") ? &n.seed : &n.from) = strtoull(argv[i + 1], NULL, 10);
  for (; i < argc; i++) count += each_file(argv[i], damages ? keep_file : replay_bytes);
  if (random) return replay_numbered(&n, random_bytes);
  if (damages && files.n) return replay_numbered(&n, damaged_file);
  printf("%d files\n", count);
  return count == 0;
}
