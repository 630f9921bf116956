/* replay -- runs a fuzz target without a fuzzer, on files and on damage done to them.
 *
 *     fuzz_NAME_replay FILE_OR_FOLDER...
 *     fuzz_NAME_replay --random COUNT [--seed SEED] [--from FIRST]
 *
 * Each file is given whole, cut off at many places, and with bits turned: what CI checks
 * under the sanitizers when there is no libFuzzer.  With --random the target gets COUNT inputs
 * of eight random bytes; what fails names its number, and --from goes on there. */
#include <dirent.h>
#include <signal.h>
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

static int replay_random(unsigned long long count, uint64_t seed, unsigned long long from) {
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(tell_input);
  else
    for (int i = 0; i < 4; i++) signal((const int[]){SIGSEGV, SIGBUS, SIGFPE, SIGABRT}[i], died);
  signal(SIGALRM, too_slow);
  signal(SIGPROF, too_slow);
  for (input = from; input < count; input++) {
    uint64_t state = hash_mix(hash_mix(1, seed), input), bits = random_bits(&state);
    alarm(WAIT_EACH);
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = SECONDS_EACH}, NULL);
    LLVMFuzzerTestOneInput((const uint8_t *)&bits, sizeof bits);
  }
  alarm(0);
  setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL);
  printf("%llu inputs\n", count - from);
  if (fuzz_count) fuzz_count();
  return 0;
}

int main(int argc, char **argv) {
  int files = 0;
  if (argc > 2 && !strcmp(argv[1], "--random")) {
    unsigned long long seed = 0, from = 0;
    for (int i = 3; i + 1 < argc; i += 2)
      *(strcmp(argv[i], "--from") ? &seed : &from) = strtoull(argv[i + 1], NULL, 10);
    return replay_random(strtoull(argv[2], NULL, 10), seed, from);
  }
  for (int i = 1; i < argc; i++) files += replay(argv[i]);
  printf("%d files\n", files);
  return files == 0;
}
