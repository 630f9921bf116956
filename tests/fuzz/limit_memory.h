/* limit_memory.h -- sizes may be anything: memory that is not there is an error of the call, not of the machine.
 * Sanitized builds have limits of their own (__asan_default_options). */
#ifndef TESS_TESTS_FUZZ_LIMIT_MEMORY_H
#define TESS_TESTS_FUZZ_LIMIT_MEMORY_H

#include <sys/resource.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Large: oneDNN, which keeps what it has made, does not survive without memory. */
static inline void limit_memory(void) {
#ifndef SANITIZED
  const rlim_t most = (rlim_t)2 << 30;
  setrlimit(RLIMIT_DATA, &(struct rlimit){most, most});
#endif
}

#endif
