/* steps.h -- the saves of a run folder, by their names: run/step-00000100 is the one of step 100.
 *
 * A name of that form is a whole save: it gets its name when all of it is on the disk (folder.h, I6), and loses
 * it before anything of it is removed.  Listing them is therefore all that it takes to know the newest.
 */
#ifndef TESS_CKPT_STEPS_H
#define TESS_CKPT_STEPS_H

#include "base/arena.h"

typedef struct {
  int64_t *step; /* ascending */
  int n, cap;
} Steps;

/* run/step-00000100; NULL: out of memory. */
char *step_path(Arena *arena, const char *folder, int64_t step);
/* Of a path of that form: the step, and the run folder it is in. */
bool step_of_path(Arena *arena, const char *path, int64_t *step, char **folder);
/* Fails if the folder cannot be read. */
Status steps_list(const char *folder, Arena *arena, Steps *out);
/* The largest step below `limit`; -1: none. */
int64_t steps_before(const Steps *s, int64_t limit);

#endif
