/* near.c -- see near.h. */
#include "base/near.h"

#include <string.h>

int near_distance(const char *a, const char *b, int limit) {
  int n = (int)strlen(b), row[128];
  if (n >= 127) return limit + 1;
  for (int j = 0; j <= n; j++) row[j] = j;
  for (int i = 1; *a; a++, i++) {
    int diagonal = row[0], best = row[0] = i;
    for (int j = 1; j <= n; j++) {
      int edit = diagonal + (*a != b[j - 1]);
      diagonal = row[j];
      if (row[j] + 1 < edit) edit = row[j] + 1;
      if (row[j - 1] + 1 < edit) edit = row[j - 1] + 1;
      row[j] = edit;
      if (edit < best) best = edit;
    }
    if (best > limit) return limit + 1;
  }
  return row[n] > limit ? limit + 1 : row[n];
}

int near_limit(const char *word) { return ((int)strlen(word) + 2) / 3; }
