/* What a training tells of its steps: JSON lines, event files, lines and a bar.
 *
 * test_step_log FOLDER writes what a run leaves there that was killed after step 30 and resumed at step 21, for
 * others to read. */
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/json.h"
#include "base/textbuf.h"
#include "terminal.h"
#include "train/step_log.h"
#include "unit.h"

typedef struct {
  char folder[256], path[512];
} Fixture;

static int set_up(void **state) {
  static Fixture f;
  make_folder(f.folder, sizeof f.folder);
  snprintf(f.path, sizeof f.path, "%s/train.jsonl", f.folder);
  *state = &f;
  return 0;
}

static int tear_down(void **state) {
  remove_folder(((Fixture *)*state)->folder);
  return 0;
}

static StepRecord record(int64_t step) {
  return (StepRecord){.step = step,
                      .loss = 3.2104 + 0.1 / (double)step,
                      .grad_norm = 1.0 / 3,
                      .lr = 3e-4,
                      .seconds = 0.25,
                      .tokens_per_s = 12345.678,
                      .tflops = 0.21,
                      .share_of_peak = 0.63,
                      .memory = 1288490189};
}

/* ---- JSON lines ------------------------------------------------------------------------------------- */

static Status write_steps(const StepLogOptions *o, int64_t from, int64_t to) {
  StepLog *log;
  TRY(step_log_open(o, &log));
  Status s = OK;
  for (int64_t i = from; i <= to && !s; i++) {
    StepRecord r = record(i);
    s = step_log_write(log, &r);
  }
  step_log_close(log);
  return s;
}

static char *text_of(const char *path) {
  FileMap *f;
  assert_ok(file_map(path, &f));
  char *text = calloc(1, f->size + 1);
  if (f->size) memcpy(text, f->data, f->size);
  file_map_unref(f);
  return text;
}

/* Steps in the file, in order: "1 2 3". */
static void assert_steps(const char *path, const char *want) {
  char *text = text_of(path), got[256] = "";
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
    yyjson_doc *doc = yyjson_read(line, strlen(line), 0);
    assert_non_null(doc);
    size_t n = strlen(got);
    snprintf(got + n, sizeof got - n, "%s%lld", n ? " " : "",
             (long long)yyjson_get_sint(yyjson_obj_get(yyjson_doc_get_root(doc), "step")));
    yyjson_doc_free(doc);
  }
  assert_string_equal(got, want);
  free(text);
}

static double number(yyjson_val *o, const char *key) {
  yyjson_val *v = yyjson_obj_get(o, key);
  assert_non_null(v);
  return yyjson_get_num(v);
}

static void reads_back(void **state) {
  const Fixture *f = *state;
  StepLog *log;
  StepRecord r = record(7);
  r.loss = 0.1f; /* a float, and a double that is none */
  r.lr = 1.0 / 3e4;
  r.has_eval = true;
  r.eval_loss = 2.5;
  r.skipped = true;
  r.loss_scale = 65536;
  assert_ok(step_log_open(&(StepLogOptions){.json = f->path, .first = 7}, &log));
  assert_ok(step_log_write(log, &r));
  char *text = text_of(f->path); /* there while the log is open */
  assert_int_equal(strchr(text, '\n') - text, (long)strlen(text) - 1);
  yyjson_doc *doc = yyjson_read(text, strlen(text), 0);
  yyjson_val *o = yyjson_doc_get_root(doc);
  assert_non_null(o);
  assert_true(number(o, "step") == 7 && number(o, "loss") == r.loss && number(o, "lr") == r.lr);
  assert_true(number(o, "grad_norm") == r.grad_norm && number(o, "tokens_per_s") == r.tokens_per_s);
  assert_true(number(o, "seconds") == 0.25 && number(o, "tflops") == 0.21 && number(o, "share_of_peak") == 0.63);
  assert_true(number(o, "eval_loss") == 2.5 && number(o, "memory") == 1288490189 &&
              number(o, "loss_scale") == 65536);
  assert_true(yyjson_get_bool(yyjson_obj_get(o, "skipped")));
  assert_null(yyjson_obj_get(o, "samples_per_s")); /* not known */
  yyjson_doc_free(doc);
  free(text);
  step_log_close(log);
}

static void not_finite(void **state) {
  const Fixture *f = *state;
  StepLog *log;
  StepRecord r = {.step = 1, .loss = NAN, .grad_norm = INFINITY, .lr = 0, .has_eval = true, .eval_loss = -INFINITY};
  assert_ok(step_log_open(&(StepLogOptions){.json = f->path, .first = 1}, &log));
  assert_ok(step_log_write(log, &r));
  r = (StepRecord){.step = 2, .grad_norm = -1};
  assert_ok(step_log_write(log, &r));
  step_log_close(log);
  char *text = text_of(f->path);
  assert_string_equal(text,
                      "{\"step\":1,\"loss\":null,\"loss_is\":\"nan\",\"grad_norm\":null,\"grad_norm_is\":\"inf\","
                      "\"lr\":0.0,\"eval_loss\":null,\"eval_loss_is\":\"-inf\"}\n"
                      "{\"step\":2,\"loss\":0.0,\"lr\":0.0}\n");
  free(text);
  assert_steps(f->path, "1 2");
}

static bool same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void records_come_back(void **state) {
  const Fixture *f = *state;
  StepRecord want[3] = {record(1), record(2), {.step = 3, .loss = NAN, .grad_norm = -1, .lr = 0.1}}, *got;
  StepLog *log;
  int64_t n;
  want[1] = (StepRecord){.step = 2,
                         .loss = INFINITY,
                         .grad_norm = INFINITY,
                         .has_eval = true,
                         .eval_loss = -INFINITY,
                         .samples_per_s = 1.5,
                         .loss_scale = 1024,
                         .skipped = true};
  assert_ok(step_log_open(&(StepLogOptions){.json = f->path, .first = 1}, &log));
  for (int i = 0; i < 3; i++) assert_ok(step_log_write(log, &want[i]));
  step_log_close(log);
  assert_ok(step_log_read(f->path, &got, &n));
  assert_int_equal(n, 3);
  for (int i = 0; i < 3; i++) {
    const StepRecord *a = &want[i], *b = &got[i];
    assert_true(a->step == b->step && same_number(a->loss, b->loss) && a->grad_norm == b->grad_norm &&
                a->lr == b->lr);
    assert_true(a->seconds == b->seconds && a->tokens_per_s == b->tokens_per_s && a->tflops == b->tflops);
    assert_true(a->samples_per_s == b->samples_per_s && a->share_of_peak == b->share_of_peak);
    assert_true(a->memory == b->memory && a->loss_scale == b->loss_scale && a->skipped == b->skipped);
    assert_true(a->has_eval == b->has_eval && a->eval_loss == b->eval_loss);
  }
  free(got);
  assert_error(step_log_read("/nowhere/x", &got, &n), "/nowhere/x");
}

static void append_text(const char *path, const char *text) {
  FILE *file = fopen(path, "a");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static void resumes(void **state) {
  const Fixture *f = *state;
  StepLogOptions o = {.json = f->path, .first = 1, .last = 10};
  assert_ok(write_steps(&o, 1, 6));
  append_text(f->path, "{\"step\":7,\"loss\":3."); /* killed while it wrote */
  o.resumed = true;
  o.first = 4; /* the last save was of step 3 */
  assert_ok(write_steps(&o, 4, 5));
  assert_steps(f->path, "1 2 3 4 5");
  o.first = 6;
  assert_ok(write_steps(&o, 6, 7));
  assert_steps(f->path, "1 2 3 4 5 6 7");
  o.first = 1; /* the very beginning */
  assert_ok(write_steps(&o, 1, 1));
  assert_steps(f->path, "1");
  unlink(f->path); /* the log was removed: it begins anew */
  o.first = 3;
  assert_ok(write_steps(&o, 3, 4));
  assert_steps(f->path, "3 4");
}

static void keeps_others(void **state) {
  const Fixture *f = *state;
  StepLogOptions o = {.json = f->path, .first = 1};
  StepLog *log;
  assert_ok(write_steps(&o, 1, 2));
  assert_error(step_log_open(&o, &log), "is there already");
  assert_steps(f->path, "1 2");
  o.force = true;
  assert_ok(write_steps(&o, 1, 1));
  assert_steps(f->path, "1");
  append_text(f->path, "these are my notes\n");
  o = (StepLogOptions){.json = f->path, .first = 2, .resumed = true};
  assert_error(step_log_open(&o, &log), "line 2 of '");
  char *text = text_of(f->path);
  assert_non_null(strstr(text, "my notes"));
  free(text);
  o.json = f->folder;
  assert_error(step_log_open(&o, &log), "cannot write");
  o.json = "/nowhere/x.jsonl";
  assert_error(step_log_open(&o, &log), "cannot write '/nowhere/x.jsonl': No such file");
  o.json = "/dev/full";
  assert_error(write_steps(&o, 2, 2), "cannot write '/dev/full': No space left");
  o.json = "/dev/null";
  assert_ok(write_steps(&o, 2, 2));
}

/* ---- event files -------------------------------------------------------------------------------------- */

static uint64_t little(const unsigned char *p, int bytes) {
  uint64_t x = 0;
  for (int i = 0; i < bytes; i++) x |= (uint64_t)p[i] << 8 * i;
  return x;
}

static uint32_t unmasked(uint32_t crc) {
  crc -= 0xa282ead8u;
  return crc >> 17 | crc << 15;
}

static uint64_t varint(const unsigned char **p) {
  uint64_t x = 0;
  for (int shift = 0;; shift += 7) {
    x |= (uint64_t)(**p & 0x7f) << shift;
    if (!(*(*p)++ & 0x80)) return x;
  }
}

typedef struct {
  int field;
  uint64_t number; /* or the bytes of a float or double */
  const unsigned char *data;
  size_t size;
} Field;

static bool next_field(const unsigned char **p, const unsigned char *end, Field *f) {
  if (*p >= end) return false;
  uint64_t key = varint(p);
  *f = (Field){.field = (int)(key >> 3)};
  int wire = (int)(key & 7), width = wire == 1 ? 8 : 4;
  if (wire == 0) f->number = varint(p);
  else if (wire == 2) f->size = varint(p), f->data = *p, *p += f->size;
  else f->number = little(*p, width), *p += width;
  return true;
}

typedef struct {
  int events, starts, values;
  int64_t step[16];
  char version[32], tags[512];
  float loss[16];
} Events;

static void read_summary(const Field *summary, Events *out) {
  const unsigned char *p = summary->data, *end = p + summary->size;
  for (Field value, part; next_field(&p, end, &value);) {
    const unsigned char *q = value.data, *stop = q + value.size;
    char tag[64] = "";
    float x = 0;
    while (next_field(&q, stop, &part)) {
      if (part.field == 1) snprintf(tag, sizeof tag, "%.*s", (int)part.size, (const char *)part.data);
      if (part.field == 2) memcpy(&x, &(uint32_t){(uint32_t)part.number}, sizeof x);
    }
    out->values++;
    if (!strcmp(tag, "train/loss")) out->loss[out->events] = x;
    if (out->events == 1) strcat(strcat(out->tags, tag), " ");
  }
}

static void read_event(const unsigned char *p, size_t size, Events *out) {
  const unsigned char *end = p + size;
  for (Field f; next_field(&p, end, &f);) {
    double wall;
    if (f.field == 1) memcpy(&wall, &f.number, sizeof wall), assert_true(wall > 1.7e9);
    if (f.field == 2) out->step[out->events] = (int64_t)f.number;
    if (f.field == 3) snprintf(out->version, sizeof out->version, "%.*s", (int)f.size, (const char *)f.data);
    if (f.field == 5) read_summary(&f, out);
    if (f.field == 7) out->starts += f.size == 2 && f.data[0] == 8 && f.data[1] == 1;
  }
  out->events++;
}

static void read_events(const char *path, Events *out) {
  FileMap *f;
  *out = (Events){0};
  assert_ok(file_map(path, &f));
  for (size_t at = 0; at < f->size;) {
    const unsigned char *p = f->data + at;
    assert_true(f->size - at > 16);
    uint64_t n = little(p, 8);
    assert_int_equal(unmasked((uint32_t)little(p + 8, 4)), crc32c(p, 8));
    assert_true(n <= f->size - at - 16);
    assert_int_equal(unmasked((uint32_t)little(p + 12 + n, 4)), crc32c(p + 12, n));
    read_event(p + 12, n, out);
    at += n + 16;
  }
  file_map_unref(f);
}

/* Of the files in a folder, the one that is last by name; how many there are. */
static int list_files(const char *folder, char *last, size_t cap) {
  int n = 0;
  DIR *d = opendir(folder);
  assert_non_null(d);
  *last = 0;
  for (struct dirent *e; (e = readdir(d));) {
    if (e->d_name[0] == '.') continue;
    char path[512];
    snprintf(path, sizeof path, "%s/%.200s", folder, e->d_name);
    assert_int_equal(strncmp(e->d_name, "events.out.tfevents.", 20), 0);
    if (strcmp(path, last) > 0) snprintf(last, cap, "%s", path);
    n++;
  }
  closedir(d);
  return n;
}

static void event_files(void **state) {
  const Fixture *f = *state;
  char folder[300], path[512];
  Events e;
  assert_int_equal(crc32c("123456789", 9), 0xe3069283u);
  assert_int_equal(crc32c("", 0), 0);
  snprintf(folder, sizeof folder, "%s/runs/a", f->folder);
  StepLogOptions o = {.tensorboard = folder, .first = 1};
  assert_ok(write_steps(&o, 1, 3));
  assert_int_equal(list_files(folder, path, sizeof path), 1);
  read_events(path, &e);
  assert_string_equal(e.version, "brain.Event:2");
  assert_int_equal(e.events, 4);
  assert_int_equal(e.step[3], 3);
  assert_int_equal(e.starts, 0);
  assert_true(e.loss[2] == (float)record(2).loss);
  assert_string_equal(e.tags, "train/loss train/grad_norm train/lr speed/seconds speed/tokens_per_s speed/tflops "
                              "speed/share_of_peak speed/memory ");
  o.resumed = true;
  o.first = 200;
  assert_ok(write_steps(&o, 200, 200)); /* in the same second, perhaps */
  assert_int_equal(list_files(folder, path, sizeof path), 2);
  read_events(path, &e);
  assert_int_equal(e.events, 3);
  assert_int_equal(e.starts, 1);
  assert_true(e.step[1] == 200 && e.step[2] == 200);
}

static void event_errors(void **state) {
  const Fixture *f = *state;
  StepLog *log;
  append_text(f->path, "a file\n");
  assert_error(step_log_open(&(StepLogOptions){.tensorboard = f->path, .first = 1}, &log), f->path);
  if (geteuid() == 0) return; /* who may write anywhere */
  chmod(f->folder, 0500);
  assert_error(step_log_open(&(StepLogOptions){.tensorboard = f->folder, .first = 1}, &log), "Permission denied");
  chmod(f->folder, 0700);
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static void lines_read_well(void **state) {
  (void)state;
  char line[512];
  StepRecord r = record(12);
  r.loss = 3.2104;
  r.grad_norm = 1.234;
  assert_string_equal(step_line(&r, 0, line, sizeof line),
                      "step 12  loss 3.2104  norm 1.23  lr 3.0e-04  12.3k tok/s  0.21 TFLOP/s (63 %)  1.2 GiB");
  r = (StepRecord){
      .step = 3, .loss = NAN, .grad_norm = -1, .samples_per_s = 7.25, .tflops = 0.0042, .skipped = true};
  assert_string_equal(step_line(&r, 1000, line, sizeof line),
                      "step    3  loss nan  lr 0.0e+00  7.25 samples/s  4.20 GFLOP/s  skipped: the gradient is not "
                      "finite");
  r = (StepRecord){.step = 3, .loss = 0.02, .grad_norm = -1, .tflops = 0.0342};
  assert_string_equal(step_line(&r, 0, line, sizeof line), "step 3  loss 0.0200  lr 0.0e+00  34.2 GFLOP/s");
  r = (StepRecord){
      .step = 4, .loss = 1.5e-6, .grad_norm = INFINITY, .lr = 1, .has_eval = true, .eval_loss = 123456};
  assert_string_equal(step_line(&r, 0, line, sizeof line),
                      "step 4  loss 1.50e-06  norm inf  lr 1.0e+00  eval 1.23e+05");
  assert_int_equal(strlen(step_line(&r, 0, line, 10)), 9);
}

static void one_line_per_step(void **state) {
  const Fixture *f = *state;
  FILE *file = fopen(f->path, "w");
  assert_ok(write_steps(&(StepLogOptions){.lines = file, .bar = file, .first = 1, .last = 20}, 1, 20));
  fclose(file);
  char *text = text_of(f->path);
  int lines = 0;
  for (const char *p = text; *p; p++) lines += *p == '\n';
  assert_int_equal(lines, 20);
  assert_null(strchr(text, '\r'));
  free(text);
  file = fopen("/dev/full", "w");
  assert_error(write_steps(&(StepLogOptions){.lines = file, .first = 1}, 1, 1), "cannot write the line of step 1");
  fclose(file);
}

static void bar_at_a_terminal(void **state) {
  (void)state;
  Terminal t;
  StepLog *log;
  terminal_open(&t);
  assert_ok(step_log_open(&(StepLogOptions){.lines = t.stream, .bar = t.stream, .first = 1, .last = 1000}, &log));
  for (int i = 1; i <= 100; i++) {
    StepRecord r = record(i);
    assert_ok(step_log_write(log, &r));
  }
  const char *text = terminal_text(&t);
  assert_non_null(strstr(text, "step    1  loss 3.3104"));
  assert_null(strstr(text, "step    2")); /* in the same second */
  usleep(1100000);                        /* the bar comes after a second, and then a line is due, too */
  StepRecord r = record(101);
  assert_ok(step_log_write(log, &r));
  text = terminal_text(&t);
  assert_non_null(strstr(text, "step  101  loss 3.2114"));
  assert_non_null(strstr(text, "step  #---------   10%  101 of 1000"));
  assert_non_null(strstr(text, "left  loss 3.2114  12.3k tok/s"));
  step_log_pause(log);
  assert_string_equal(terminal_text(&t), "\r\033[K");
  step_log_close(log);
  assert_string_equal(terminal_text(&t), "");
  terminal_close(&t);
}

static int write_files(const char *folder) {
  char path[512];
  snprintf(path, sizeof path, "%s/train.jsonl", folder);
  StepLogOptions o = {.json = path, .tensorboard = folder, .lines = stdout, .bar = stderr, .first = 1, .last = 40};
  Status s = write_steps(&o, 1, 30);
  o.resumed = true;
  o.first = 21;
  if (!s) s = write_steps(&o, 21, 40);
  if (s) fprintf(stderr, "%s\n", status_message(s));
  int code = s != NULL;
  status_free(s);
  return code;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(reads_back, set_up, tear_down),
                                     cmocka_unit_test_setup_teardown(not_finite, set_up, tear_down),
                                     cmocka_unit_test_setup_teardown(records_come_back, set_up, tear_down),
                                     cmocka_unit_test_setup_teardown(resumes, set_up, tear_down),
                                     cmocka_unit_test_setup_teardown(keeps_others, set_up, tear_down),
                                     cmocka_unit_test_setup_teardown(event_files, set_up, tear_down),
                                     cmocka_unit_test_setup_teardown(event_errors, set_up, tear_down),
                                     cmocka_unit_test(lines_read_well),
                                     cmocka_unit_test_setup_teardown(one_line_per_step, set_up, tear_down),
                                     cmocka_unit_test(bar_at_a_terminal)};
  setenv("NO_COLOR", "1", 1);
  setenv("TERM", "xterm", 1);
  return argc > 1 ? write_files(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
