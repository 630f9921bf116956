/* near.h -- for "did you mean": how far one word is from another. */
#ifndef TESS_BASE_NEAR_H
#define TESS_BASE_NEAR_H

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b; limit + 1 if it takes more. */
int near_distance(const char *a, const char *b, int limit);

/* How many edits still look like a slip of the finger: a third of the word. */
int near_limit(const char *word);

/* Of two candidates the one nearer to word; NULL while none is near enough. */
const char *nearer_name(const char *word, const char *best, const char *candidate);

#endif
