/* step_json.c -- steps as JSON, a line each:
 *
 *   {"step":12,"loss":3.2104,"grad_norm":1.23,"lr":0.0003,"tokens_per_s":12300.0, ...}
 *
 * Numbers have as many digits as it takes to read the same double back.  What is not known is left out.  A number
 * that JSON has no word for is null, and a second member says it: "loss":null,"loss_is":"nan" (inf, -inf). */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/append.h"
#include "base/file.h"
#include "base/json.h"
#include "base/textbuf.h"
#include "train/step_sink.h"

typedef struct {
  StepSink sink;
  AppendFile file;
} JsonSink;

/* ---- writing --------------------------------------------------------------------------------------- */

static void put_real(TextBuf *b, const char *key, double x) {
  text_printf(b, ",\"%s\":", key);
  if (isfinite(x)) return text_float(b, x);
  text_printf(b, "null,\"%s_is\":\"%s\"", key, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
}

static void put_known(TextBuf *b, const char *key, double x) {
  if (x != 0) put_real(b, key, x);
}

static void put_record(TextBuf *b, const StepRecord *r) {
  text_puts(b, "{\"step\":");
  text_int(b, r->step);
  put_real(b, "loss", r->loss);
  if (!(r->grad_norm < 0)) put_real(b, "grad_norm", r->grad_norm);
  put_real(b, "lr", r->lr);
  if (r->has_eval) put_real(b, "eval_loss", r->eval_loss);
  put_known(b, "seconds", r->seconds);
  put_known(b, "samples_per_s", r->samples_per_s);
  put_known(b, "tokens_per_s", r->tokens_per_s);
  put_known(b, "tflops", r->tflops);
  put_known(b, "share_of_peak", r->share_of_peak);
  if (r->memory) text_puts(b, ",\"memory\":"), text_int(b, r->memory);
  put_known(b, "loss_scale", r->loss_scale);
  if (r->skipped) text_puts(b, ",\"skipped\":true");
  text_puts(b, "}\n");
}

static Status write_json(StepSink *sink, const StepRecord *r) {
  JsonSink *j = (JsonSink *)sink;
  TextBuf line = {0};
  put_record(&line, r);
  Status s = line.failed ? fail_oom() : append_write(&j->file, line.text, line.len);
  text_free(&line);
  return s;
}

static void close_json(StepSink *sink) {
  JsonSink *j = (JsonSink *)sink;
  append_close(&j->file);
  free(j);
}

/* ---- what is there already ------------------------------------------------------------------------------ */

static bool is_regular(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static Status step_of(const char *path, int number, const char *line, size_t size, int64_t *out) {
  yyjson_doc *doc = yyjson_read(line, size, 0);
  bool known = json_as_int64(yyjson_obj_get(yyjson_doc_get_root(doc), "step"), out);
  yyjson_doc_free(doc);
  if (known) return OK;
  return status_hint(fail(ERR_FILE, "line %d of '%s' does not tell of a step", number, path),
                     "it is no log of a training, or damaged: name another file, or remove it");
}

/* Lines of steps before `first`.  What stands behind the last newline is what a killed process left. */
static Status keep_lines(const char *path, const FileMap *f, int64_t first, TextBuf *kept) {
  const char *at = (const char *)f->data, *end = at + f->size;
  for (int number = 1; at < end; number++) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    int64_t step;
    if (!newline) break;
    TRY(step_of(path, number, at, (size_t)(newline - at), &step));
    if (step < first) text_write(kept, at, (size_t)(newline + 1 - at));
    at = newline + 1;
  }
  return kept->failed ? fail_oom() : OK;
}

static Status drop_steps_from(const char *path, int64_t first) {
  FileMap *f;
  TextBuf kept = {0};
  TRY(file_map(path, &f));
  Status s = f->size ? keep_lines(path, f, first, &kept) : OK;
  bool same = kept.len == f->size;
  file_map_unref(f);
  if (!s && !same) s = file_write_all(path, kept.len ? kept.text : "", kept.len, FILE_OVERWRITE);
  text_free(&kept);
  return s;
}

/* A new run begins with an empty file. */
static Status make_room(const char *path, bool resumed, int64_t first, bool force) {
  if (!is_regular(path)) return OK; /* not there, or a device or a pipe; append_open() tells of a folder */
  if (resumed) return drop_steps_from(path, first);
  if (force) return file_write_all(path, "", 0, FILE_OVERWRITE);
  return status_hint(fail(ERR_USAGE, "'%s' is there already", path),
                     "--force replaces it, --resume goes on with it");
}

Status step_sink_json(const char *path, bool resumed, int64_t first, bool force, StepSink **out) {
  JsonSink *j;
  TRY(make_room(path, resumed, first, force));
  TRY_NEW(j, calloc(1, sizeof *j));
  j->sink = (StepSink){.write = write_json, .close = close_json};
  Status s = append_open(&j->file, path);
  if (s) close_json(&j->sink);
  else *out = &j->sink;
  return s;
}
