/* rank_files.c -- see rank_files.h. */
#include "cli/rank_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static const char here_rank[] = "{rank}";

/* A file may have a comma in its name. */
static bool is_list(const char *word) { return strchr(word, ',') && !file_exists(word); }

static int count_items(const char *word) {
  int n = 1;
  for (const char *p = word; (p = strchr(p, ',')); p++) n++;
  return n;
}

static Status list_item(Arena *arena, const char *word, int i, const char **out) {
  for (; i > 0; i--) word = strchr(word, ',') + 1;
  TRY_NEW(*out, arena_strndup(arena, word, strcspn(word, ",")));
  return **out ? OK : fail(ERR_USAGE, "a name between the commas is empty");
}

static Status put_rank(Arena *arena, const char *word, int rank, const char **out) {
  const char *at = strstr(word, here_rank);
  TRY_NEW(*out, arena_printf(arena, "%.*s%d%s", (int)(at - word), word, rank, at + strlen(here_rank)));
  return OK;
}

Status rank_input(Arena *arena, const char *word, int rank, int n, const char **out) {
  if (strstr(word, here_rank)) return put_rank(arena, word, rank, out);
  if (!is_list(word)) return *out = word, OK;
  int count = count_items(word);
  if (count != n) return fail(ERR_USAGE, "'%s' lists %d files for %d rank%s", word, count, n, PLURAL(n));
  return list_item(arena, word, rank, out);
}

bool rank_input_is_common(const char *word) { return !strstr(word, here_rank) && !is_list(word); }

/* ---- outputs ---------------------------------------------------------------------------- */

static bool ends_with_slash(const char *word) { return *word && word[strlen(word) - 1] == '/'; }
static bool is_folder(const char *word) { return ends_with_slash(word) || file_is_folder(word); }

bool rank_output_is_own(const char *word) { return strstr(word, here_rank) || is_folder(word); }

Status rank_output(Arena *arena, const char *word, int rank, const char **out) {
  if (strstr(word, here_rank)) return put_rank(arena, word, rank, out);
  if (is_folder(word)) {
    TRY_NEW(*out, arena_printf(arena, "%s%srank%d.safetensors", word, ends_with_slash(word) ? "" : "/", rank));
    return OK;
  }
  const char *slash = strrchr(word, '/'), *dot = strrchr(word, '.'), *name = slash ? slash + 1 : word;
  int stem = (int)(dot && dot > name ? dot - word : (ptrdiff_t)strlen(word));
  TRY_NEW(*out, arena_printf(arena, "%.*s.rank%d%s", stem, word, rank, word + stem));
  return OK;
}

/* ---- programs ---------------------------------------------------------------------------- */

/* "out/rank12.pt2" -> 12; -1 if it is not called so. */
static int rank_of_name(const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  char *end;
  if (strncmp(name, "rank", 4) || name[4] < '0' || name[4] > '9') return -1;
  long k = strtol(name + 4, &end, 10);
  return !strcmp(end, ".pt2") && k < MAX_LIST ? (int)k : -1;
}

static Status find_plan(Arena *arena, const char *folder, RankPrograms *out) {
  char *plan;
  TRY_NEW(plan, arena_printf(arena, "%splan.json", folder));
  if (file_exists(plan)) out->plan = plan;
  return OK;
}

static Status read_folder(Arena *arena, const char *folder, RankPrograms *out) {
  const char *slash = ends_with_slash(folder) ? "" : "/";
  TRY_NEW(out->path, arena_new_n(arena, const char *, MAX_LIST));
  for (out->n = 0; out->n < MAX_LIST; out->n++) {
    char *path;
    TRY_NEW(path, arena_printf(arena, "%s%srank%d.pt2", folder, slash, out->n));
    if (!file_exists(path)) break;
    out->path[out->n] = path;
  }
  if (!out->n) return fail(ERR_FILE, "'%s' is a folder without rank0.pt2", folder);
  out->per_rank = true;
  char *prefix;
  TRY_NEW(prefix, arena_printf(arena, "%s%s", folder, slash));
  return find_plan(arena, prefix, out);
}

/* Names as a shell lists them, rank10 before rank2: by number. */
static Status sort_by_rank(Arena *arena, RankPrograms *p) {
  const char **sorted;
  TRY_NEW(sorted, arena_new_n(arena, const char *, p->n));
  for (int i = 0; i < p->n; i++) {
    int k = rank_of_name(p->path[i]);
    if (k < 0 || k >= p->n || sorted[k]) return OK; /* other names: as they were given */
    sorted[k] = p->path[i];
  }
  p->path = sorted;
  const char *slash = strrchr(sorted[0], '/');
  char *folder;
  TRY_NEW(folder,
          slash ? arena_strndup(arena, sorted[0], (size_t)(slash - sorted[0]) + 1) : arena_strdup(arena, ""));
  return find_plan(arena, folder, p);
}

Status rank_programs(Arena *arena, const TextList *words, RankPrograms *out) {
  *out = (RankPrograms){0};
  if (words->n == 1 && file_is_folder(words->v[0])) return read_folder(arena, words->v[0], out);
  bool list = words->n == 1 && is_list(words->v[0]);
  out->n = list ? count_items(words->v[0]) : words->n;
  out->per_rank = out->n > 1;
  TRY_NEW(out->path, arena_new_n(arena, const char *, out->n));
  for (int i = 0; i < out->n; i++) {
    out->path[i] = words->v[list ? 0 : i];
    if (list) TRY(list_item(arena, words->v[0], i, &out->path[i]));
  }
  return out->per_rank ? sort_by_rank(arena, out) : OK;
}
