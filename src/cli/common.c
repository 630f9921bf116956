/* common.c -- checking options and output files, printing; see cli.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/parallel.h"
#include "cli/cli.h"
#include "runtime/fit_memory.h"

int threads_or_default(int64_t option) {
  int wanted = option <= 0 ? parallel_cores() : option > MOST_THREADS ? MOST_THREADS : (int)option;
  int had = parallel_reserve(wanted);
  if (had < wanted)
    fprintf(stderr, "note: %d of %d threads can be started (a limit on processes: ulimit -u, or the container's)\n",
            had, wanted);
  return had;
}

Status option_between(const char *name, int64_t value, int64_t least, int64_t most) {
  if (value == NOT_GIVEN || (value >= least && value <= most)) return OK;
  return fail(ERR_USAGE, "%s must be between %lld and %lld", name, (long long)least, (long long)most);
}

Status options_of_groups(const char *fsdp, const char *wrap, bool keep_gathered, int64_t prefetch) {
  enum { MOST_PREFETCH = 1000 };
  if (!fsdp && (wrap || keep_gathered || prefetch != NOT_GIVEN))
    return fail(ERR_USAGE, "--wrap, --keep-gathered and --prefetch are for parameters that are sharded: --fsdp");
  return option_between("--prefetch", prefetch, 0, MOST_PREFETCH);
}

static Status cannot_write(const char *path, const char *reason) {
  return fail(ERR_FAIL, "cannot write '%s': %s", path, reason);
}

Status output_check(const char *path, bool force) {
  struct stat st;
  if (!*path) return fail(ERR_USAGE, "the name of an output file is empty");
  if (stat(path, &st) == 0) {
    if (S_ISDIR(st.st_mode)) return cannot_write(path, "it is a folder");
    if (S_ISREG(st.st_mode) && !force)
      return status_hint(fail(ERR_USAGE, "'%s' exists already", path), "--force overwrites it");
    return OK;
  }
  if (errno != ENOENT) return cannot_write(path, strerror(errno));
  char *folder;
  const char *slash = strrchr(path, '/');
  TRY_NEW(folder, slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("."));
  Status s = access(folder, W_OK) ? cannot_write(path, strerror(errno)) : OK;
  free(folder);
  return s;
}

void print_plain(FILE *f, const char *text) {
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    fputc(c == 0x7f || (c < 0x20 && c != '\n' && c != '\t') ? '?' : c, f);
  }
}

bool terminal_colors(FILE *f) {
  const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
  return isatty(fileno(f)) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

/* The name of a file may be no UTF-8, which JSON must be: then '?' stands for its bytes. */
static char *json_write(const yyjson_mut_doc *doc) {
  const yyjson_write_flag flags = YYJSON_WRITE_PRETTY | YYJSON_WRITE_INF_AND_NAN_AS_NULL;
  char *text = yyjson_mut_write(doc, flags, NULL);
  if (text) return text;
  text = yyjson_mut_write(doc, flags | YYJSON_WRITE_ESCAPE_UNICODE | YYJSON_WRITE_ALLOW_INVALID_UNICODE, NULL);
  for (char *c = text; c && *c; c++) {
    if ((unsigned char)*c >= 0x80) *c = '?';
  }
  return text;
}

Status json_print(FILE *f, struct yyjson_mut_doc *doc) {
  char *text = doc ? json_write(doc) : NULL;
  yyjson_mut_doc_free(doc);
  if (!text) return fail_oom();
  fprintf(f, "%s\n", text);
  free(text);
  return OK;
}

Status option_bytes(const char *option, const char *text, uint64_t *out) {
  MemoryLimit limit = {0};
  *out = 0;
  if (!text) return OK;
  Status s = memory_limit_parse(text, &limit);
  if (!s && (limit.share || limit.amount < 1 || limit.amount > 1e18))
    s = fail(ERR_USAGE, "%s takes bytes, such as 256M, not '%s'", option, text);
  *out = s ? 0 : (uint64_t)limit.amount;
  return s;
}
