/* human.h -- numbers for people: into buf, which is returned. */
#ifndef TESS_BASE_HUMAN_H
#define TESS_BASE_HUMAN_H

#include <stddef.h>

const char *human_bytes(double bytes, char *buf, size_t cap); /* "1.5 MiB" */
const char *human_count(double n, char *buf, size_t cap);     /* "12.30 G" */
const char *human_flops(double n, char *buf, size_t cap);     /* "12.30 GFLOP" */
const char *human_seconds(double s, char *buf, size_t cap);   /* "1.23 ms" */

/* "1 node", "2 nodes": the letter that makes the difference. */
#define PLURAL(n) ((n) == 1 ? "" : "s")

#endif
