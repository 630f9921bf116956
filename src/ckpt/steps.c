/* steps.c -- see steps.h. */
#include "ckpt/steps.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *step_path(Arena *arena, const char *folder, int64_t step) {
  return arena_printf(arena, "%s/step-%08lld", folder, (long long)step);
}

/* Only names as step_path() makes them, so that a step has one name. */
static bool parse_name(const char *name, int64_t *step) {
  char again[40];
  if (strncmp(name, "step-", 5) || strspn(name + 5, "0123456789") != strlen(name + 5)) return false;
  errno = 0;
  *step = strtoll(name + 5, NULL, 10);
  snprintf(again, sizeof again, "step-%08lld", (long long)*step);
  return !errno && !strcmp(again, name);
}

bool step_of_path(Arena *arena, const char *path, int64_t *step, char **folder) {
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  char *plain = arena_strndup(arena, path, n);
  if (!plain) return false;
  char *slash = strrchr(plain, '/');
  if (!parse_name(slash ? slash + 1 : plain, step)) return false;
  *folder = slash == plain ? arena_strdup(arena, "/")
            : slash        ? arena_strndup(arena, plain, (size_t)(slash - plain))
                           : arena_strdup(arena, ".");
  return *folder != NULL;
}

static int by_step(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static Status collect(DIR *d, const char *folder, Arena *arena, Steps *out) {
  for (;;) {
    int64_t step;
    errno = 0;
    struct dirent *e = readdir(d);
    if (!e && errno) return fail(ERR_FILE, "cannot read '%s': %s", folder, strerror(errno));
    if (!e) break;
    if (!parse_name(e->d_name, &step)) continue;
    TRY_NEW(out->step, arena_more(arena, out->step, out->n, &out->cap));
    out->step[out->n++] = step;
  }
  if (out->n) qsort(out->step, (size_t)out->n, sizeof *out->step, by_step);
  return OK;
}

Status steps_list(const char *folder, Arena *arena, Steps *out) {
  *out = (Steps){0};
  DIR *d = opendir(folder);
  if (!d) return fail(ERR_FILE, "cannot read '%s': %s", folder, strerror(errno));
  Status s = collect(d, folder, arena, out);
  closedir(d);
  return s;
}

int64_t steps_before(const Steps *s, int64_t limit) {
  int64_t found = -1;
  for (int i = 0; i < s->n && s->step[i] < limit; i++) found = s->step[i];
  return found;
}
