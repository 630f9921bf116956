/* ckpt_ls.c -- `tessera ckpt ls`, `verify` and `prune`: which checkpoints there are, and whether they are whole. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/folder.h"
#include "base/json.h"
#include "base/parallel.h"
#include "ckpt/run_folder.h"
#include "ckpt/save.h"
#include "ckpt/steps.h"
#include "cli/ckpt.h"

typedef yyjson_mut_doc Doc;
typedef yyjson_mut_val Json;

static int64_t all_bytes(const Source *s) {
  int64_t n = 0;
  for (int i = 0; i < s->tensors; i++) n += source_bytes(&s->tensor[i]);
  return n;
}

/* ---- ls
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct {
  bool json;
  Doc *doc;
  Json *list;
  int n;
} Listing;

static void list_source(Listing *l, const Source *s) {
  char bytes[32];
  l->n++;
  if (!l->json) {
    print_plain(stdout, s->path);
    printf("  %s, %d tensor%s, %s", s->format->name, s->tensors, PLURAL(s->tensors),
           human_bytes((double)all_bytes(s), bytes, sizeof bytes));
    if (s->save) printf(", step %lld", (long long)s->save->m.facts.step);
    if (s->mesh && strcmp(s->mesh, "1")) printf(", mesh %s", s->mesh);
    printf("\n");
    return;
  }
  Json *o = yyjson_mut_arr_add_obj(l->doc, l->list);
  yyjson_mut_obj_add_strcpy(l->doc, o, "path", s->path);
  yyjson_mut_obj_add_str(l->doc, o, "format", s->format->name);
  yyjson_mut_obj_add_int(l->doc, o, "tensors", s->tensors);
  yyjson_mut_obj_add_int(l->doc, o, "bytes", all_bytes(s));
  if (s->save) yyjson_mut_obj_add_int(l->doc, o, "step", s->save->m.facts.step);
  if (s->mesh) yyjson_mut_obj_add_strcpy(l->doc, o, "mesh", s->mesh);
}

/* One that cannot be read is listed as that. */
static void list_broken(Listing *l, const char *path, Status s) {
  l->n++;
  if (l->json) {
    Json *o = yyjson_mut_arr_add_obj(l->doc, l->list);
    yyjson_mut_obj_add_strcpy(l->doc, o, "path", path);
    yyjson_mut_obj_add_strcpy(l->doc, o, "error", status_message(s));
  } else {
    print_plain(stdout, path);
    printf("  damaged: ");
    print_plain(stdout, status_message(s));
    printf("\n");
  }
  status_free(s);
}

static void list_one(Listing *l, const char *path) {
  Source *s;
  Status r = source_open(path, &s);
  if (r) {
    list_broken(l, path, r);
    return;
  }
  list_source(l, s);
  source_close(s);
}

static bool is_checkpoint(const char *path) {
  bool folder = file_is_folder(path);
  for (int i = 0; i < source_format_count; i++)
    if (source_formats[i].is(path, folder)) return true;
  return false;
}

/* A run folder's saves, a checkpoint, or the checkpoints that stand in a folder. */
static Status list_path(Listing *l, const char *path, Arena *arena) {
  Steps steps = {0};
  struct dirent **entry;
  if (!file_exists(path)) return fail(ERR_USAGE, "there is no '%s'", path);
  if (file_is_folder(path)) TRY(steps_list(path, arena, &steps));
  for (int i = 0; i < steps.n; i++) {
    char *one;
    TRY_NEW(one, step_path(arena, path, steps.step[i]));
    list_one(l, one);
  }
  if (steps.n) return OK;
  if (!file_is_folder(path) || is_checkpoint(path)) {
    list_one(l, path);
    return OK;
  }
  int n = scandir(path, &entry, NULL, alphasort);
  for (int i = 0; i < n; i++) {
    char *one = arena_printf(arena, "%s%s%s", path, path[strlen(path) - 1] == '/' ? "" : "/", entry[i]->d_name);
    if (one && entry[i]->d_name[0] != '.' && is_checkpoint(one)) list_one(l, one);
    free(entry[i]);
  }
  if (n >= 0) free(entry);
  return OK;
}

static const Option ls_options[] = {
    {"--json", 0, OPT_FLAG, offsetof(JsonOption, json), NULL, "as JSON"},
};
const CommandSpec spec_ckpt_ls = {.usage = "[PATH...]",
                                  .examples = "  tessera COMMAND run/\n  tessera COMMAND checkpoints/ --json\n",
                                  .words = TAKES_FILE,
                                  OPTIONS(ls_options)};

Status ckpt_ls(const char *name, int argc, char **argv) {
  JsonOption o = {0};
  Listing l = {0};
  Arena arena = {0};
  TextList words;
  bool help;
  (void)name;
  TRY(options_parse("ckpt ls", &spec_ckpt_ls, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (!words.n) words.v[words.n++] = ".";
  l.json = o.json;
  if (o.json) {
    TRY_NEW(l.doc, yyjson_mut_doc_new(NULL));
    l.list = yyjson_mut_arr(l.doc);
    yyjson_mut_doc_set_root(l.doc, l.list);
  }
  Status s = OK;
  for (int i = 0; !s && i < words.n; i++) s = list_path(&l, words.v[i], &arena);
  arena_free(&arena);
  if (s || !o.json) {
    yyjson_mut_doc_free(l.doc);
    return s;
  }
  return json_print(stdout, l.doc);
}

/* ---- verify
 * ---------------------------------------------------------------------------------------------------------- */

typedef struct {
  bool json;
  int64_t threads;
} VerifyOptions;

typedef struct {
  Doc *doc;
  Json *list;
  int n;
} Findings;

static void tell(void *arg, const char *text) {
  Findings *f = arg;
  f->n++;
  if (f->doc) yyjson_mut_arr_add_strcpy(f->doc, f->list, text);
  else {
    print_plain(stdout, text);
    printf("\n");
  }
}

static Status verify_one(const VerifyOptions *o, const char *path, int threads) {
  Source *s;
  Findings f = {0};
  Progress bar;
  char bytes[32];
  int hashed = 0;
  TRY(source_open(path, &s));
  if (o->json && (f.doc = yyjson_mut_doc_new(NULL))) f.list = yyjson_mut_arr(f.doc);
  progress_begin(&bar, stderr, "verifying", 0, PROGRESS_BYTES);
  Status r = source_verify(s, &(SourceVerify){.threads = threads, .progress = &bar, .say = tell, .arg = &f});
  progress_end(&bar);
  for (int i = 0; i < s->tensors; i++) hashed += s->tensor[i].chunks && s->tensor[i].chunk->hashed;
  if (f.doc) {
    Json *root = yyjson_mut_obj(f.doc);
    yyjson_mut_doc_set_root(f.doc, root);
    yyjson_mut_obj_add_strcpy(f.doc, root, "path", s->path);
    yyjson_mut_obj_add_str(f.doc, root, "format", s->format->name);
    yyjson_mut_obj_add_int(f.doc, root, "tensors", s->tensors);
    yyjson_mut_obj_add_int(f.doc, root, "with_checksums", hashed);
    yyjson_mut_obj_add_bool(f.doc, root, "ok", !r);
    yyjson_mut_obj_add_val(f.doc, root, "findings", f.list);
    Status printed = json_print(stdout, f.doc);
    if (r) status_free(printed);
    else r = printed;
  } else if (!r) {
    print_plain(stdout, s->path);
    printf(": %d tensor%s, %s: every element is there once%s\n", s->tensors, PLURAL(s->tensors),
           human_bytes((double)all_bytes(s), bytes, sizeof bytes),
           hashed == s->tensors ? ", and all bytes are those that were saved" : " (the format has no checksums)");
  }
  source_close(s);
  return r;
}

static const Option verify_options[] = {
    {"--threads", 't', OPT_INT, offsetof(VerifyOptions, threads), "N", "threads (default: all cores)"},
    {"--json", 0, OPT_FLAG, offsetof(VerifyOptions, json), NULL, "what was found, as JSON"},
};
const CommandSpec spec_ckpt_verify = {.usage = "CHECKPOINT...",
                                      .examples = "  tessera COMMAND run/\n  tessera COMMAND run/step-*\n",
                                      .words = TAKES_FILE,
                                      OPTIONS(verify_options)};

Status ckpt_verify(const char *name, int argc, char **argv) {
  VerifyOptions o = {.threads = NOT_GIVEN};
  TextList words;
  bool help;
  (void)name;
  TRY(options_parse("ckpt verify", &spec_ckpt_verify, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (!words.n) return status_hint(fail(ERR_USAGE, "verify takes checkpoints"), "tessera ckpt verify run/");
  TRY(option_between("--threads", o.threads, 1, MOST_THREADS));
  int threads = threads_or_default(o.threads);
  Status first = OK;
  for (int i = 0; i < words.n; i++) { /* all are looked at */
    Status s = verify_one(&o, words.v[i], threads);
    if (first) status_free(s);
    else first = s;
  }
  return first;
}

/* ---- prune
 * ----------------------------------------------------------------------------------------------------------- */

typedef struct {
  int64_t keep, every;
  bool dry_run;
} PruneOptions;

static const Option prune_options[] = {
    {"--keep", 0, OPT_INT, offsetof(PruneOptions, keep), "K", "the last K saves stay"},
    {"--every", 0, OPT_INT, offsetof(PruneOptions, every), "M", "and those of every M-th step"},
    {"--dry-run", 0, OPT_FLAG, offsetof(PruneOptions, dry_run), NULL, "only tell what would be removed"},
};
const CommandSpec spec_ckpt_prune = {.usage = "RUN --keep K [--every M]",
                                     .examples = "  tessera COMMAND run/ --keep 3 --every 1000 --dry-run\n",
                                     .words = TAKES_FOLDER,
                                     OPTIONS(prune_options)};

static Status prune(const char *path, const PruneOptions *o, Arena *arena) {
  Steps steps;
  RunFolder *run = NULL;
  Status s = OK;
  TRY(steps_list(path, arena, &steps));
  if (!steps.n) return fail(ERR_USAGE, "the run folder '%s' holds no save", path);
  if (!o->dry_run) TRY(run_folder_open(path, &run)); /* no trainer is saving there */
  int removed = 0;
  for (int i = 0; !s && i < steps.n - o->keep; i++) {
    if (o->every > 0 && steps.step[i] % o->every == 0) continue;
    char *one = step_path(arena, path, steps.step[i]);
    s = !one ? fail_oom() : o->dry_run ? OK : folder_remove(one);
    if (s) break;
    printf("%s %s\n", o->dry_run ? "would remove" : "removed", one);
    removed++;
  }
  run_folder_close(run);
  if (!s) printf("%d of %d saves stay\n", steps.n - removed, steps.n);
  return s;
}

Status ckpt_prune(const char *name, int argc, char **argv) {
  PruneOptions o = {.keep = NOT_GIVEN, .every = NOT_GIVEN};
  Arena arena = {0};
  TextList words;
  bool help;
  (void)name;
  TRY(options_parse("ckpt prune", &spec_ckpt_prune, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n != 1 || o.keep == NOT_GIVEN)
    return status_hint(fail(ERR_USAGE, "prune takes one run folder, and how many saves stay"), "--keep 3");
  TRY(option_between("--keep", o.keep, 1, INT32_MAX));
  TRY(option_between("--every", o.every, 1, INT64_MAX));
  Status s = prune(words.v[0], &o, &arena);
  arena_free(&arena);
  return s;
}
