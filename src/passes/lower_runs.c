/* lower_runs.c -- see lower_runs.h. */
#include "passes/lower_runs.h"

#include <string.h>

bool runs_equal(const Runs *a, const Runs *b) {
  if (a->n != b->n) return false;
  return !a->n || !memcmp(a->run, b->run, (size_t)a->n * sizeof *a->run);
}

bool runs_find(const Runs *r, int64_t i, int64_t *local, int64_t *left) {
  int64_t base = 0;
  for (int k = 0; k < r->n; k++) {
    const Run *run = &r->run[k];
    if (i >= run->begin && i < run->begin + run->size) {
      *local = base + i - run->begin;
      *left = run->begin + run->size - i;
      return true;
    }
    base += run->size;
  }
  return false;
}

void runs_add(Runs *r, Run run) {
  Run *last = r->n ? &r->run[r->n - 1] : NULL;
  if (last && last->begin + last->size == run.begin) last->size += run.size;
  else r->run[r->n++] = run;
  r->size += run.size;
}

Status runs_shared(const Runs *have, const Runs *want, bool local, Arena *arena, Runs *out) {
  *out = (Runs){0};
  TRY_NEW(out->run, arena_new_n(arena, Run, have->n + want->n + have->n * want->n + 1));
  for (int w = 0; w < want->n; w++) {
    int64_t at = want->run[w].begin, end = at + want->run[w].size, pos, left;
    while (at < end) {
      if (!runs_find(have, at, &pos, &left)) { /* to the next run that is here */
        int64_t next = end;
        for (int h = 0; h < have->n; h++)
          if (have->run[h].begin > at && have->run[h].begin < next) next = have->run[h].begin;
        at = next;
        continue;
      }
      int64_t n = left < end - at ? left : end - at;
      runs_add(out, (Run){local ? pos : at, n});
      at += n;
    }
  }
  return OK;
}

bool regions_in_rows(const Region *r, int k, const Region *whole, bool padded) {
  int64_t at = 0;
  int i = 0;
  bool gap = false;
  for (int d = 1; d < whole->ndim; d++)
    for (int q = 0; q < k; q++)
      if ((q == 0 || r[q].dim[0].size) && !runs_equal(&r[q].dim[d], &whole->dim[d])) return false;
  const Runs *w = &whole->dim[0];
  for (int q = 0; q < k; q++) {
    int64_t size = r[q].dim[0].size, most = r[0].dim[0].size;
    if (size > most || (gap && size)) return false;
    gap |= size < most;
    if (gap && !padded) return false;
    for (int n = 0; n < r[q].dim[0].n; n++) {
      Run run = r[q].dim[0].run[n];
      for (int64_t done = 0; done < run.size;) {
        if (i >= w->n || w->run[i].begin + at != run.begin + done) return false;
        int64_t step = w->run[i].size - at < run.size - done ? w->run[i].size - at : run.size - done;
        done += step;
        at += step;
        if (at == w->run[i].size) i++, at = 0;
      }
    }
  }
  return i == w->n;
}

void regions_largest(const Region *r, int k, int64_t *size) {
  for (int d = 0; d < r[0].ndim; d++) {
    size[d] = 0;
    for (int q = 0; q < k; q++)
      if (r[q].dim[d].size > size[d]) size[d] = r[q].dim[d].size;
  }
}
