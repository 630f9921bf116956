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
#include "base/grow.h"
#include "base/json.h"
#include "base/textbuf.h"
#include "train/step_log.h"

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

/* Calls fn on every line; what stands behind the last newline is what a killed process left. */
typedef Status LineFn(void *arg, yyjson_val *record, int64_t step, const char *line, size_t size);

static Status one_line(const char *path, int number, const char *line, size_t size, LineFn *fn, void *arg) {
  yyjson_doc *doc = yyjson_read(line, size, 0);
  yyjson_val *record = yyjson_doc_get_root(doc);
  int64_t step;
  Status s = OK;
  if (!json_as_int64(yyjson_obj_get(record, "step"), &step))
    s = status_hint(fail(ERR_FILE, "line %d of '%s' does not tell of a step", number, path),
                    "it is no log of a training, or damaged: name another file, or remove it");
  if (!s) s = fn(arg, record, step, line, size);
  yyjson_doc_free(doc);
  return s;
}

static Status each_line(const char *path, const FileMap *f, LineFn *fn, void *arg) {
  const char *at = (const char *)f->data, *end = f->size ? at + f->size : at;
  for (int number = 1; at < end; number++) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    if (!newline) break;
    TRY(one_line(path, number, at, (size_t)(newline + 1 - at), fn, arg));
    at = newline + 1;
  }
  return OK;
}

typedef struct {
  int64_t first;
  TextBuf text;
} Kept;

/* Lines of steps before `first`. */
static Status keep_line(void *arg, yyjson_val *record, int64_t step, const char *line, size_t size) {
  Kept *k = arg;
  (void)record;
  if (step < k->first) text_write(&k->text, line, size);
  return k->text.failed ? fail_oom() : OK;
}

static Status drop_steps_from(const char *path, int64_t first) {
  FileMap *f;
  Kept kept = {.first = first};
  TRY(file_map(path, &f));
  Status s = each_line(path, f, keep_line, &kept);
  bool same = kept.text.len == f->size;
  file_map_unref(f);
  if (!s && !same) s = file_write_all(path, kept.text.len ? kept.text.text : "", kept.text.len, FILE_OVERWRITE);
  text_free(&kept.text);
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

/* ---- reading --------------------------------------------------------------------------------------------- */

typedef struct {
  StepRecord *record;
  int64_t n, cap;
} Records;

/* As put_real() writes it; absent: the number that says so. */
static double get_real(yyjson_val *o, const char *key, double absent) {
  char is[64];
  yyjson_val *v = yyjson_obj_get(o, key);
  if (!v) return absent;
  if (yyjson_is_num(v)) return yyjson_get_num(v);
  snprintf(is, sizeof is, "%s_is", key);
  const char *word = json_as_string(yyjson_obj_get(o, is));
  return word && !strcmp(word, "inf") ? INFINITY : word && !strcmp(word, "-inf") ? -INFINITY : NAN;
}

static Status add_record(void *arg, yyjson_val *o, int64_t step, const char *line, size_t size) {
  Records *r = arg;
  (void)line, (void)size;
  TRY_ROOM(r->record, r->n, r->cap);
  r->record[r->n++] = (StepRecord){.step = step,
                                   .loss = get_real(o, "loss", NAN),
                                   .grad_norm = get_real(o, "grad_norm", -1),
                                   .lr = get_real(o, "lr", 0),
                                   .seconds = get_real(o, "seconds", 0),
                                   .samples_per_s = get_real(o, "samples_per_s", 0),
                                   .tokens_per_s = get_real(o, "tokens_per_s", 0),
                                   .tflops = get_real(o, "tflops", 0),
                                   .share_of_peak = get_real(o, "share_of_peak", 0),
                                   .memory = (int64_t)get_real(o, "memory", 0),
                                   .loss_scale = get_real(o, "loss_scale", 0),
                                   .skipped = yyjson_get_bool(yyjson_obj_get(o, "skipped")),
                                   .has_eval = yyjson_obj_get(o, "eval_loss") != NULL,
                                   .eval_loss = get_real(o, "eval_loss", 0)};
  return OK;
}

Status step_log_read(const char *path, StepRecord **out, int64_t *n) {
  FileMap *f;
  Records r = {0};
  TRY(file_map(path, &f));
  Status s = each_line(path, f, add_record, &r);
  file_map_unref(f);
  if (s) free(r.record);
  else *out = r.record, *n = r.n;
  return s;
}
