/* human.c -- see human.h. */
#include "base/human.h"

#include <stdio.h>

const char *human_bytes(double bytes, char *buf, size_t cap) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  while (bytes >= 1024 && u < 4) bytes /= 1024, u++;
  snprintf(buf, cap, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
  return buf;
}

const char *human_count(double n, char *buf, size_t cap) {
  static const char *const units[] = {"", " K", " M", " G", " T", " P"};
  int u = 0;
  while (n >= 1000 && u < 5) n /= 1000, u++;
  snprintf(buf, cap, u ? "%.2f%s" : "%.0f%s", n, units[u]);
  return buf;
}

const char *human_flops(double n, char *buf, size_t cap) {
  char count[32];
  snprintf(buf, cap, "%s%sFLOP", human_count(n, count, sizeof count), n < 1000 ? " " : "");
  return buf;
}

const char *human_seconds(double s, char *buf, size_t cap) {
  static const char *const units[] = {"s", "ms", "us", "ns"};
  int u = 0;
  while (s > 0 && s < 0.9995 && u < 3) s *= 1000, u++;
  snprintf(buf, cap, s >= 99.95 ? "%.0f %s" : s >= 9.995 ? "%.1f %s" : "%.2f %s", s, units[u]);
  return buf;
}
