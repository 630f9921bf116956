/* The page of a training: its data, however many steps there were.
 *
 * test_train_report FOLDER writes pages of 10, 1000 and 100000 made-up steps there, to be looked at. */
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "train/train_report.h"
#include "unit.h"

static const TrainFact facts[] = {{"optimizer", "adamw, lr=3e-4, betas=0.9:0.95, weight_decay=0.1"},
                                  {"schedule", "cosine, warm-up of 100 steps"},
                                  {"data", "train.bin: 1 003 854 tokens, windows of 256"},
                                  {"threads", "2"}};
static const TrainMemory kinds[] = {{"weights", 498000000},
                                    {"gradients", 498000000},
                                    {"optimizer state", 996000000},
                                    {"saved values", 310000000},
                                    {"workspace", 92000000}};

static double noise(uint64_t *state) { return (double)(random_bits(state) >> 11) * 0x1p-53 - 0.5; }

/* A training as they go: a loss that falls, a spike now and then. */
static StepRecord made_up(int64_t i, int64_t n, uint64_t *state) {
  double part = (double)i / (double)n, warm = n > 20 ? 0.05 : 0.2;
  double lr = part < warm ? part / warm : 0.1 + 0.45 * (1 + cos(3.14159265 * (part - warm) / (1 - warm)));
  double loss = 2.9 + 8 * exp(-12 * part) - 0.9 * part + (0.25 + 0.3 * exp(-8 * part)) * noise(state);
  double seconds = (i == 1 ? 6.5 : 1.15) + 0.08 * fabs(noise(state)) + (random_bits(state) % 97 == 0 ? 0.4 : 0);
  StepRecord r = {.step = i,
                  .loss = loss,
                  .grad_norm = 0.6 + 3 * exp(-20 * part) + 0.4 * fabs(noise(state)),
                  .lr = 3e-4 * lr,
                  .seconds = seconds,
                  .samples_per_s = 16 / seconds,
                  .tokens_per_s = 16 * 1024 / seconds,
                  .tflops = 0.24 / seconds,
                  .share_of_peak = 0.8 / seconds,
                  .memory = 2400000000 + (i > 1 ? 60000000 : 0)};
  if (i % (n < 50 ? 5 : n / 20) == 0) r.has_eval = true, r.eval_loss = loss + 0.12 + 0.02 * noise(state);
  if (n >= 1000 && i == 7 * n / 10) r.grad_norm = 38, r.loss += 1.4;
  return r;
}

static StepRecord *make_steps(int64_t n) {
  uint64_t state = 5;
  StepRecord *step = calloc((size_t)n + 1, sizeof *step);
  assert_non_null(step);
  for (int64_t i = 0; i < n; i++) step[i] = made_up(i + 1, n, &state);
  return step;
}

static TrainReport report_of(const StepRecord *step, int64_t n) {
  return (TrainReport){.program = "models/gpt2_small/loss.pt2",
                       .command = "tessera train models/gpt2_small/loss.pt2 --data train.bin --optim "
                                  "adamw,lr=3e-4,betas=0.9:0.95,weight_decay=0.1 --schedule cosine,warmup=100 "
                                  "--clip 1.0 --steps 1000 --eval val.bin --save run/ --report train.html",
                       .fact = facts,
                       .nfacts = 4,
                       .memory = kinds,
                       .nmemory = 5,
                       .step = step,
                       .nsteps = n,
                       .planned = n,
                       .seconds = 1.2 * (double)n,
                       .samples = 16 * n,
                       .tokens = 16384 * n,
                       .parameters = 124439808};
}

static yyjson_doc *data_of(const TrainReport *r) {
  TextBuf b = {0};
  assert_ok(train_report_json(&b, r));
  yyjson_doc *doc;
  assert_ok(json_parse("report", b.text, b.len, 0, &doc));
  text_free(&b);
  return doc;
}

static yyjson_val *curve(yyjson_doc *doc, const char *name) {
  return yyjson_obj_get(yyjson_obj_get(yyjson_doc_get_root(doc), "curves"), name);
}

static double at(yyjson_val *c, const char *key, size_t i) {
  yyjson_val *v = yyjson_arr_get(yyjson_obj_get(c, key), i);
  assert_non_null(v);
  return yyjson_get_num(v);
}

static size_t size_of(yyjson_val *c, const char *key) { return yyjson_arr_size(yyjson_obj_get(c, key)); }

static void few_steps_are_all_there(void **state) {
  (void)state;
  StepRecord *step = make_steps(10);
  TrainReport r = report_of(step, 10);
  yyjson_doc *doc = data_of(&r);
  yyjson_val *loss = curve(doc, "loss"), *eval = curve(doc, "eval_loss");
  assert_int_equal(size_of(loss, "step"), 10);
  assert_int_equal(size_of(loss, "value"), 10);
  assert_null(yyjson_obj_get(loss, "mean"));
  for (size_t i = 0; i < 10; i++) {
    assert_true(at(loss, "step", i) == (double)i + 1);
    assert_true(fabs(at(loss, "value", i) - step[i].loss) < 1e-5);
  }
  assert_int_equal(size_of(eval, "step"), 2);
  assert_true(at(eval, "step", 0) == 5 && at(eval, "step", 1) == 10);
  assert_null(curve(doc, "loss_scale"));
  assert_int_equal(yyjson_arr_size(yyjson_obj_get(yyjson_doc_get_root(doc), "rows")), 10);
  yyjson_doc_free(doc);
  free(step);
}

/* The steps that stand out are kept, in order, with their numbers. */
static void many_steps_are_thinned_out(void **state) {
  (void)state;
  enum { N = 100000 };
  StepRecord *step = make_steps(N);
  step[12345].loss = 1000; /* between others */
  step[54321].loss = -3;
  step[777].loss = NAN;
  step[778].loss = INFINITY;
  TrainReport r = report_of(step, N);
  yyjson_doc *doc = data_of(&r);
  yyjson_val *loss = curve(doc, "loss");
  size_t n = size_of(loss, "step"), most = 0, least = 0;
  assert_true(n <= 2002 && n > 1500);
  assert_int_equal(size_of(loss, "value"), n);
  assert_int_equal(size_of(loss, "mean"), 1000);
  assert_int_equal(size_of(loss, "mean_step"), 1000);
  for (size_t i = 0; i < n; i++) {
    int64_t s = (int64_t)at(loss, "step", i);
    double v = at(loss, "value", i);
    if (i) assert_true(s > (int64_t)at(loss, "step", i - 1));
    assert_true(fabs(v - step[s - 1].loss) <= 1e-6 * fabs(v));
    if (v == 1000) most = i;
    if (v == -3) least = i;
  }
  assert_true(at(loss, "step", most) == 12346 && at(loss, "step", least) == 54322);
  assert_true(at(loss, "step", 0) == 1 && at(loss, "step", n - 1) == N);
  assert_int_equal(yyjson_get_int(yyjson_obj_get(loss, "not_finite")), 2);
  assert_true(at(loss, "not_finite_at", 0) == 778 && at(loss, "not_finite_at", 1) == 779);
  double mean = 0; /* of the first of a thousand stretches of 99998 numbers */
  for (int i = 0; i < 99; i++) mean += step[i].loss / 99;
  assert_true(fabs(at(loss, "mean", 0) - mean) < 1e-4);
  assert_int_equal(yyjson_arr_size(yyjson_obj_get(yyjson_doc_get_root(doc), "rows")), 200);
  yyjson_doc_free(doc);
  free(step);
}

static void nothing_yet(void **state) {
  (void)state;
  TrainReport r = {.program = "a.pt2"};
  yyjson_doc *doc = data_of(&r);
  assert_int_equal(yyjson_obj_size(yyjson_obj_get(yyjson_doc_get_root(doc), "curves")), 0);
  yyjson_doc_free(doc);
  StepRecord only = {.step = 1, .loss = NAN, .grad_norm = -1, .lr = 0.1};
  r.step = &only;
  r.nsteps = 1;
  doc = data_of(&r);
  assert_int_equal(size_of(curve(doc, "loss"), "step"), 0);
  assert_int_equal(size_of(curve(doc, "loss"), "not_finite_at"), 1);
  assert_null(curve(doc, "grad_norm"));
  assert_string_equal(
      yyjson_get_str(yyjson_arr_get(yyjson_arr_get(yyjson_obj_get(yyjson_doc_get_root(doc), "rows"), 0), 1)),
      "nan");
  yyjson_doc_free(doc);
}

static void page_is_whole(void **state) {
  (void)state;
  char folder[256], path[512];
  make_folder(folder, sizeof folder);
  snprintf(path, sizeof path, "%s/train.html", folder);
  StepRecord *step = make_steps(30);
  TrainReport r = report_of(step, 30);
  r.command = "</script><script>alert(1)</script>";
  assert_ok(train_report_html(&r, path));
  assert_ok(train_report_html(&r, path)); /* again, over the old one */
  FileMap *f;
  assert_ok(file_map(path, &f));
  char *text = calloc(1, f->size + 1);
  memcpy(text, f->data, f->size);
  assert_null(strstr(text, "<script>alert"));
  assert_null(strstr(text, "/*page_style.css*/"));
  assert_null(strstr(text, "http://www.w3.org/1999")); /* and nothing is fetched */
  assert_null(strstr(text, " src="));
  assert_null(strstr(text, "@import"));
  assert_non_null(strstr(text, "</html>"));
  free(text);
  file_map_unref(f);
  assert_error(train_report_html(&r, "/nowhere/train.html"), "/nowhere/train.html");
  assert_error(train_report_html(&r, folder), folder);
  free(step);
  remove_folder(folder);
}

static int write_pages(const char *folder) {
  for (int64_t n = 10; n <= 100000; n *= 100) {
    char path[512];
    StepRecord *step = make_steps(n);
    if (n == 1000) step[400].loss = step[401].loss = NAN, step[401].skipped = true;
    TrainReport r = report_of(step, n);
    snprintf(path, sizeof path, "%s/train_%lld.html", folder, (long long)n);
    Status s = train_report_html(&r, path);
    if (s) fprintf(stderr, "%s\n", status_message(s));
    free(step);
    if (s) return status_free(s), 1;
  }
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(few_steps_are_all_there),
                                     cmocka_unit_test(many_steps_are_thinned_out), cmocka_unit_test(nothing_yet),
                                     cmocka_unit_test(page_is_whole)};
  return argc > 1 ? write_pages(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
