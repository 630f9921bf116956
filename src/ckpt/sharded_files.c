/* sharded_files.c -- see sharded_files.h. */
#include "ckpt/sharded_files.h"

#include "base/strmap.h"

enum { MOST_PARTS = 10000 };

static Status add_file(RankFiles *f, int rank, int kind, int part, Arena *arena, int *out) {
  char *name;
  TRY_NEW(name, part ? arena_printf(arena, "%s-rank%05d-%d.safetensors", save_kinds[kind].stem, rank, part)
                     : arena_printf(arena, "%s-rank%05d.safetensors", save_kinds[kind].stem, rank));
  TRY_NEW(f->v, arena_more(arena, f->v, f->n, &f->cap));
  f->v[f->n] = (RankFile){name, kind};
  *out = f->n++;
  return OK;
}

Status rank_files(const SavePlan *plan, int rank, Arena *arena, RankFiles *out) {
  StrMap parts = {0};
  int *file_of[SAVE_KINDS]; /* by part: 1 + the file */
  *out = (RankFiles){0};
  TRY_NEW(out->of, arena_new_n(arena, int, plan->n + 1));
  for (int k = 0; k < SAVE_KINDS; k++) TRY_NEW(file_of[k], arena_new_n(arena, int, MOST_PARTS));
  for (int i = 0; i < plan->n; i++) {
    StrSlot *slot;
    int kind = save_kind_of(plan->v[i].fqn);
    TRY(strmap_slot(&parts, arena, plan->v[i].fqn, &slot));
    uintptr_t part = (uintptr_t)slot->value;
    if (part >= MOST_PARTS)
      return fail(ERR_FAIL, "'%s' lies in more than %d pieces on rank %d", plan->v[i].fqn, MOST_PARTS, rank);
    slot->value = (void *)(part + 1);
    if (!file_of[kind][part]) {
      TRY(add_file(out, rank, kind, (int)part, arena, &out->of[i]));
      file_of[kind][part] = out->of[i] + 1;
    }
    out->of[i] = file_of[kind][part] - 1;
  }
  return OK;
}

Status sharding_info(const char *const *key, const int64_t *const *offset, const int *ndim, int n, Arena *arena,
                     const char **out) {
  TextBuf b = {0};
  text_puts(&b, "{");
  for (int i = 0; i < n; i++) {
    if (i) text_puts(&b, ", ");
    text_json(&b, key[i]);
    text_puts(&b, ": {\"saved_offsets\": [");
    for (int d = 0; d < ndim[i]; d++) text_printf(&b, "%s%lld", d ? ", " : "", (long long)offset[i][d]);
    text_puts(&b, "]}");
  }
  text_puts(&b, "}");
  *out = b.failed ? NULL : arena_strdup(arena, b.text);
  text_free(&b);
  return *out ? OK : fail_oom();
}
