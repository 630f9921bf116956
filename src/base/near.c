/* near.c -- see near.h. */
#include "base/near.h"

#include <stdbool.h>
#include <string.h>

int near_distance(const char *a, const char *b, int limit) {
  int n = (int)strlen(b), rows[3][128] = {{0}}, *row = rows[0], *last = rows[1], *before = rows[2];
  if (n >= 127) return limit + 1;
  for (int j = 0; j <= n; j++) row[j] = j;
  for (int i = 1; a[i - 1]; i++) {
    int *spare = before;
    before = last, last = row, row = spare;
    int best = row[0] = i;
    for (int j = 1; j <= n; j++) {
      int edit = last[j - 1] + (a[i - 1] != b[j - 1]);
      if (last[j] + 1 < edit) edit = last[j] + 1;
      if (row[j - 1] + 1 < edit) edit = row[j - 1] + 1;
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped && before[j - 2] + 1 < edit) edit = before[j - 2] + 1;
      row[j] = edit;
      if (edit < best) best = edit;
    }
    if (best > limit) return limit + 1;
  }
  return row[n] > limit ? limit + 1 : row[n];
}

int near_limit(const char *word) { return ((int)strlen(word) + 2) / 3; }

const char *nearer_name(const char *word, const char *best, const char *candidate) {
  int limit = best ? near_distance(word, best, near_limit(word)) - 1 : near_limit(word);
  return limit >= 0 && near_distance(word, candidate, limit) <= limit ? candidate : best;
}
