/* optimizer.c -- see optimizer.h. */
#include "optim/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "base/textbuf.h"

/* ---- steps --------------------------------------------------------------------------------------- */

static Value tensor_or_none(const Tensor *t) { return t ? val_tensor(t) : val_none(); }

static void take_results(const OptimSpec *o, OptimStep *s, Tensor **results) {
  s->param = *results++;
  for (int i = 0; i < OPTIM_MAX_STATES; i++)
    if (optim_keeps(o, i)) s->state[i] = *results++;
}

static Status adam(const OptimSpec *o, OptimStep *s) {
  Tensor **out;
  int n;
  bool decoupled = !strcmp(o->optimizer->name, "adamw") || optim_flag(o, "decoupled_weight_decay");
  TRY(OP_LIST(s->c, "tess.adam_step.default", &out, &n, val_tensor(s->param), val_tensor(s->state[0]),
              val_tensor(s->state[1]), tensor_or_none(s->state[2]), val_tensor(s->grad), val_tensor(s->step),
              val_tensor(s->lr), tensor_or_none(s->scale), tensor_or_none(s->skip),
              val_float(optim_number(o, "weight_decay", 0)), val_float(optim_number(o, "betas", 0)),
              val_float(optim_number(o, "betas", 1)), val_float(optim_number(o, "eps", 0)), val_bool(decoupled),
              val_bool(optim_flag(o, "maximize"))));
  take_results(o, s, out);
  return OK;
}

static Status sgd(const OptimSpec *o, OptimStep *s) {
  Tensor **out;
  int n;
  TRY(OP_LIST(s->c, "tess.sgd_step.default", &out, &n, val_tensor(s->param), tensor_or_none(s->state[0]),
              val_tensor(s->grad), val_tensor(s->step), val_tensor(s->lr), tensor_or_none(s->scale),
              tensor_or_none(s->skip), val_float(optim_number(o, "weight_decay", 0)),
              val_float(optim_number(o, "momentum", 0)), val_float(optim_number(o, "dampening", 0)),
              val_bool(optim_flag(o, "nesterov")), val_bool(optim_flag(o, "maximize"))));
  take_results(o, s, out);
  return OK;
}

static Status adagrad(const OptimSpec *o, OptimStep *s) {
  Tensor **out;
  int n;
  TRY(OP_LIST(s->c, "tess.adagrad_step.default", &out, &n, val_tensor(s->param), val_tensor(s->state[0]),
              val_tensor(s->grad), val_tensor(s->step), val_tensor(s->lr), tensor_or_none(s->scale),
              tensor_or_none(s->skip), val_float(optim_number(o, "weight_decay", 0)),
              val_float(optim_number(o, "lr_decay", 0)), val_float(optim_number(o, "eps", 0)),
              val_bool(optim_flag(o, "maximize"))));
  take_results(o, s, out);
  return OK;
}

static bool adam_keeps(const OptimSpec *o, int state) { return state < 2 || optim_flag(o, "amsgrad"); }
static bool sgd_keeps(const OptimSpec *o, int state) {
  (void)state;
  return optim_number(o, "momentum", 0) != 0;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

#define NUMBER(name, otherwise, least, below) \
  { name, SETTING_NUMBER, 1, {otherwise}, least, below, NULL }
#define FLAG(name, otherwise) \
  { name, SETTING_FLAG, 1, {otherwise}, 0, 2, NULL }
#define LR(otherwise) NUMBER("lr", otherwise, 0, INFINITY)
#define DECAY(otherwise) NUMBER("weight_decay", otherwise, 0, INFINITY)
#define BETAS \
  { "betas", SETTING_NUMBER, 2, {0.9, 0.999}, 0, 1, NULL }
#define EPS(otherwise) NUMBER("eps", otherwise, 0, INFINITY)

static const Optimizer table[] = {
    {.name = "sgd",
     .summary = "stochastic gradient descent, with momentum if asked",
     .settings = {LR(1e-3), NUMBER("momentum", 0, 0, INFINITY), NUMBER("dampening", 0, -INFINITY, INFINITY),
                  DECAY(0), FLAG("nesterov", 0), FLAG("maximize", 0)},
     .states = {"momentum_buffer"},
     .keeps = sgd_keeps,
     .step = sgd},
    {.name = "adam",
     .summary = "Adam; weight decay is part of the gradient",
     .settings = {LR(1e-3), BETAS, EPS(1e-8), DECAY(0), FLAG("amsgrad", 0), FLAG("maximize", 0),
                  FLAG("decoupled_weight_decay", 0)},
     .states = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
     .keeps = adam_keeps,
     .step = adam},
    {.name = "adamw",
     .summary = "Adam with decoupled weight decay",
     .settings = {LR(1e-3), BETAS, EPS(1e-8), DECAY(1e-2), FLAG("amsgrad", 0), FLAG("maximize", 0)},
     .states = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
     .keeps = adam_keeps,
     .step = adam},
    {.name = "adagrad",
     .summary = "Adagrad",
     .settings = {LR(1e-2), NUMBER("lr_decay", 0, 0, INFINITY), DECAY(0),
                  NUMBER("initial_accumulator_value", 0, 0, INFINITY), EPS(1e-10), FLAG("maximize", 0)},
     .states = {"sum"},
     .step = adagrad,
     .fill = "initial_accumulator_value"},
    {.name = "muon",
     .summary = "Muon on matrices (orthogonalised momentum), AdamW on the rest",
     .settings = {LR(1e-3),
                  DECAY(0.1),
                  NUMBER("momentum", 0.95, 0, INFINITY),
                  FLAG("nesterov", 1),
                  {"ns_coefficients", SETTING_NUMBER, 3, {3.4445, -4.775, 2.0315}, -INFINITY, INFINITY, NULL},
                  EPS(1e-7),
                  NUMBER("ns_steps", 5, 0, 100),
                  {"adjust_lr_fn", SETTING_WORD, 1, {0}, 0, 2, "original match_rms_adamw"}},
     .states = {"momentum_buffer"},
     .step = muon_step,
     .matrices = true}};

enum { NOPTIMIZERS = sizeof table / sizeof *table };

const Optimizer *optimizer_at(int i) { return i >= 0 && i < NOPTIMIZERS ? &table[i] : NULL; }

static const Optimizer *find(const char *name, size_t n) {
  for (int i = 0; i < NOPTIMIZERS; i++)
    if (strlen(table[i].name) == n && !strncmp(table[i].name, name, n)) return &table[i];
  return NULL;
}

/* The place of a setting; -1: the optimizer has none of this name. */
static int setting_at(const Optimizer *o, const char *name, size_t n) {
  for (int i = 0; o->settings[i].name; i++)
    if (strlen(o->settings[i].name) == n && !strncmp(o->settings[i].name, name, n)) return i;
  return -1;
}

double optim_number(const OptimSpec *o, const char *setting, int i) {
  int at = setting_at(o->optimizer, setting, strlen(setting));
  return at < 0 ? 0 : o->value[at][i];
}

bool optim_keeps(const OptimSpec *o, int i) {
  for (int j = 0; j <= i; j++)
    if (!o->optimizer->states[j]) return false;
  return !o->optimizer->keeps || o->optimizer->keeps(o, i);
}

double optim_fill(const OptimSpec *o) { return o->optimizer->fill ? optim_number(o, o->optimizer->fill, 0) : 0; }

static void set_defaults(OptimSpec *o) {
  memset(o->value, 0, sizeof o->value);
  for (int i = 0; o->optimizer->settings[i].name; i++)
    memcpy(o->value[i], o->optimizer->settings[i].otherwise, sizeof o->value[i]);
}

void optim_convert(const OptimSpec *from, const char *name, OptimSpec *out) {
  *out = (OptimSpec){.optimizer = find(name, strlen(name))};
  set_defaults(out);
  for (int i = 0; out->optimizer->settings[i].name; i++) {
    const Setting *s = &out->optimizer->settings[i];
    int at = setting_at(from->optimizer, s->name, strlen(s->name));
    if (at >= 0 && (!strcmp(s->name, "lr") || !strcmp(s->name, "weight_decay")))
      memcpy(out->value[i], from->value[at], sizeof out->value[i]);
  }
}

/* ---- text ------------------------------------------------------------------------------------------------ */

static Status no_optimizer(const char *name, size_t n) {
  TextBuf list = {0};
  for (int i = 0; i < NOPTIMIZERS; i++) text_printf(&list, "%s%s", i ? ", " : "", table[i].name);
  Status s = status_hint(fail(ERR_USAGE, "there is no optimizer '%.*s'", (int)n, name), "there are %s",
                         list.text ? list.text : "");
  text_free(&list);
  return s;
}

static Status no_setting(const Optimizer *o, const char *name, size_t n) {
  TextBuf list = {0};
  for (int i = 0; o->settings[i].name; i++) text_printf(&list, "%s%s", i ? ", " : "", o->settings[i].name);
  Status s = status_hint(fail(ERR_USAGE, "%s has no setting '%.*s'", o->name, (int)n, name), "it has %s",
                         list.text ? list.text : "");
  text_free(&list);
  return s;
}

static bool same_word(const char *text, size_t n, const char *word) {
  return strlen(word) == n && !strncmp(text, word, n);
}

static Status parse_flag(const Optimizer *o, const Setting *s, const char *text, size_t n, double *out) {
  static const char *const yes[] = {"true", "True", "1"}, *const no[] = {"false", "False", "0"};
  for (int i = 0; i < 3; i++) {
    if (same_word(text, n, yes[i])) return *out = 1, OK;
    if (same_word(text, n, no[i])) return *out = 0, OK;
  }
  return fail(ERR_USAGE, "%s: %s is true or false, not '%.*s'", o->name, s->name, (int)n, text);
}

static Status parse_word(const Optimizer *o, const Setting *s, const char *text, size_t n, double *out) {
  int at = 0;
  for (const char *w = s->words; *w; at++) {
    size_t len = strcspn(w, " ");
    if (len == n && !strncmp(w, text, n)) return *out = at, OK;
    w += len + (w[len] == ' ');
  }
  return fail(ERR_USAGE, "%s: %s is one of %s, not '%.*s'", o->name, s->name, s->words, (int)n, text);
}

static Status parse_numbers(const Optimizer *o, const Setting *s, const char *text, size_t n, double *out) {
  const char *p = text, *end = text + n;
  for (int i = 0; i < s->count; i++) {
    char *stop;
    double v = p < end ? strtod(p, &stop) : 0;
    bool last = i + 1 == s->count;
    if (p >= end || stop == p || stop > end || (last ? stop != end : *stop != ':' || stop == end))
      return fail(ERR_USAGE, "%s: %s is %s, not '%.*s'", o->name, s->name,
                  s->count == 1   ? "a number"
                  : s->count == 2 ? "two numbers with a colon between them"
                                  : "three numbers with colons between them",
                  (int)n, text);
    if (!(v >= s->least && v < s->below))
      return fail(ERR_USAGE, "%s: %s is %g, out of its range: it must be %g or more%s", o->name, s->name, v,
                  s->least,
                  s->below == 1     ? " and less than 1"
                  : s->below == 100 ? " and less than 100"
                                    : "");
    out[i] = v;
    p = stop + 1;
  }
  return OK;
}

static Status parse_setting(OptimSpec *o, const char *item, size_t n) {
  const char *equals = memchr(item, '=', n);
  size_t name = equals ? (size_t)(equals - item) : n;
  int at = setting_at(o->optimizer, item, name);
  if (at < 0) return no_setting(o->optimizer, item, name);
  const Setting *s = &o->optimizer->settings[at];
  const char *value = equals ? equals + 1 : NULL;
  size_t len = equals ? n - name - 1 : 0;
  if (!value && s->kind != SETTING_FLAG)
    return fail(ERR_USAGE, "%s: %s has no value; write %s=...", o->optimizer->name, s->name, s->name);
  switch (s->kind) {
    case SETTING_FLAG:
      return value ? parse_flag(o->optimizer, s, value, len, o->value[at]) : (o->value[at][0] = 1, OK);
    case SETTING_WORD: return parse_word(o->optimizer, s, value, len, o->value[at]);
    default: return parse_numbers(o->optimizer, s, value, len, o->value[at]);
  }
}

/* What torch.optim refuses. */
static Status check(const OptimSpec *o) {
  if (strcmp(o->optimizer->name, "sgd") || !optim_flag(o, "nesterov")) return OK;
  if (optim_number(o, "momentum", 0) > 0 && optim_number(o, "dampening", 0) == 0) return OK;
  return fail(ERR_USAGE, "sgd: nesterov needs a momentum and no dampening");
}

Status optim_set(OptimSpec *o, const char *settings) {
  for (const char *p = settings; *p; p += *p == ',') {
    size_t n = strcspn(p, ",");
    if (n) TRY(parse_setting(o, p, n));
    p += n;
  }
  return check(o);
}

Status optim_parse(const char *text, OptimSpec *out) {
  size_t n = strcspn(text, ",");
  *out = (OptimSpec){.optimizer = find(text, n)};
  if (!out->optimizer) return no_optimizer(text, n);
  set_defaults(out);
  return optim_set(out, text[n] ? text + n + 1 : "");
}
