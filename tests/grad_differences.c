/* grad_differences -- the gradient of every op of the registry against finite differences.
 *
 *     grad_differences [--verbose] [--op NAME]...
 *
 * Walks the registry: calls of each op are made from its schema (fuzz/op_args.h) until some succeed and have a
 * slope other than zero, then from its golden cases, with f32 as f64.  At each, the slope along random directions
 * is compared with what the tape says (grad_points.h): for all tensors and results at once, and for some of them.
 * Where differences of two steps disagree there is a kink, and another point is taken.  What has no f64 (complex
 * numbers) is compared in single precision, with larger steps.
 *
 * An op that cannot be called like this, or shows no slope, fails, so that it gets a golden case or a recipe
 * (grad_recipes.h), where ops whose gradient is by PyTorch's conventions no derivative are told with the reason. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "grad_points.h"
#include "grad_recipes.h"
#include "kernels/copy.h"
#include "op_args.h"
#include "op_cases.h"
#include "ops/vjp.h"

enum { SLOPES = 4, ATTEMPTS = 600, COMPLEX_SLOPES = 2, COMPLEX_ATTEMPTS = 80, GOLDEN = 4, DIRECTIONS = 3 };

/* Does the list of words have the name?  A word with a dot at its end stands for all names that begin with it. */
static bool has_word(const char *list, const char *name) {
  for (const char *p = list; *p; p += strcspn(p, " "), p += strspn(p, " ")) {
    size_t length = strcspn(p, " ");
    if (!strncmp(p, name, length) && (p[length - 1] == '.' || name[length] == 0)) return true;
  }
  return false;
}

static const char *why_unchecked(const char *name) {
  for (const Unchecked *u = unchecked; u->ops; u++)
    if (has_word(u->ops, name)) return u->reason;
  return NULL;
}

static const Recipe *recipe_of(const char *name) {
  static const Recipe none = {0};
  for (const Recipe *r = recipes; r->ops; r++)
    if (has_word(r->ops, name)) return r;
  return &none;
}

/* ---- an op under test ------------------------------------------------------------------------------------- */

typedef struct {
  const Op *op;
  const Recipe *recipe;
  int called, floats; /* calls that succeeded, and those with results to differentiate */
  int zeros, slopes;  /* comparisons: of slope zero, and others */
  int kinks;
  bool failed, verbose;
} Test;

static void print_value(const Value *v) {
  char text[128];
  switch (v->kind) {
    case VAL_TENSOR: printf("%s", tensor_describe(v->tensor, text, sizeof text)); break;
    case VAL_TENSORS:
      printf("[");
      for (int i = 0; i < v->n; i++)
        printf("%s%s", i ? ", " : "", v->tensors[i] ? tensor_describe(v->tensors[i], text, sizeof text) : "None");
      printf("]");
      break;
    case VAL_INTS: printf("%s", shape_describe(v->n, v->ints, text, sizeof text)); break;
    case VAL_STR: printf("\"%s\"", v->str); break;
    case VAL_DTYPE: printf("%s", dtype_name(v->dtype)); break;
    default:
      if (val_is_number(v)) printf("%.9g", val_as_float(v));
      else printf("%s", val_kind_name(v->kind));
  }
}

static void print_call(const Point *p) {
  printf("%s(", p->op->schema.name);
  for (int i = 0; i < p->op->schema.nparams; i++) {
    printf("%s%s=", i ? ", " : "", p->op->schema.params[i].name);
    print_value(&p->arg[i]);
  }
  printf(") by tensors %#llx, of results %#llx", (unsigned long long)p->moved, (unsigned long long)p->heard);
}

/* ---- one comparison --------------------------------------------------------------------------------------- */

typedef struct {
  double step, near; /* how far steps go, and how near slopes must be */
} Care;
static const Care exact = {1e-4, 1e-6}, single = {2e-2, 1e-2};

static bool alike(double a, double b, double size, double near) { return fabs(a - b) <= near * (1 + size); }

/* Steps of h, h/2 and 0.7 h disagree, or lead to where there are no numbers: unfit. */
static Status differences(const Point *p, const Care *care, double *slope, bool *unfit) {
  static const double part[] = {1, 0.5, 0.7};
  Found up, down;
  double by[3], largest = 0;
  for (int i = 0; i < 3; i++) {
    double h = care->step * part[i];
    TRY(point_value(p, h, &up));
    TRY(point_value(p, -h, &down));
    by[i] = (up.value - down.value) / (2 * h);
    largest = fmax(largest, fabs(up.value));
  }
  *slope = (4 * by[1] - by[0]) / 3;
  *unfit = !isfinite(*slope) || largest > 1e4 || fabs(*slope) > 1e3 ||
           !alike(by[0], by[1], fabs(*slope), care->near) || !alike(by[0], by[2], fabs(*slope), care->near);
  return OK;
}

static void compare(Test *t, const Point *p, const Care *care) {
  double slope = 0;
  bool unfit = false;
  Found f = {0};
  Status s = differences(p, care, &slope, &unfit);
  if (unfit || s) {
    t->kinks++;
    status_free(s);
    return;
  }
  s = point_slope(p, &f);
  bool wrong = s || !alike(f.value, slope, fabs(slope) + (care == &exact ? 0 : f.size), care->near);
  if (t->verbose || wrong) {
    print_call(p);
    if (s) printf(": %s\n", status_message(s));
    else printf(": the slope is %.10g, by differences %.10g%s\n", f.value, slope, wrong ? "  WRONG" : "");
  }
  t->failed |= wrong;
  if (fabs(slope) > care->near) t->slopes++;
  else t->zeros++;
  status_free(s);
}

static bool may_move(const Test *t, int arg) {
  return !t->recipe->by || has_word(t->recipe->by, t->op->schema.params[arg].name);
}

/* Which tensors may be moved. */
static uint64_t movable(const Test *t, const Value *arg, Dtype d) {
  uint64_t bits = 0;
  Call c = {.op = t->op, .arg = arg};
  for (TensorWalk w = call_inputs(&c); tensor_next(&w);)
    if (w.flat < POINT_TENSORS && w.tensor->dtype == d && tensor_numel(w.tensor) && may_move(t, w.arg))
      bits |= (uint64_t)1 << w.flat;
  return bits;
}

/* A random part of a set that is not empty. */
static uint64_t some_of(uint64_t set, uint64_t *state) {
  uint64_t part = set & random_bits(state);
  return part ? part : set;
}

/* All tensors and results at once, then parts of them. */
static void try_call(Test *t, const Value *arg, Dtype d, uint64_t seed) {
  Point p = {.op = t->op, .arg = arg, .heard = ~(uint64_t)0};
  Found f;
  Status s = point_value(&p, 0, &f);
  if (s) {
    if (t->verbose && t->called == 0) print_call(&p), printf(": %s\n", status_message(s));
    return status_free(s);
  }
  uint64_t all = movable(t, arg, d);
  t->called++;
  if (t->recipe->of) f.floats &= t->recipe->of;
  if (!f.floats || !all || !isfinite(f.value) || f.halves) return;
  t->floats++;
  const Care *care = d == DT_F64 && !(f.floats & ~f.exact) ? &exact : &single;
  for (int i = 0; i < DIRECTIONS && !t->failed; i++) {
    p.seed = random_bits(&seed);
    p.moved = i ? some_of(all, &seed) : all;
    p.heard = i ? some_of(f.floats, &seed) : f.floats;
    compare(t, &p, care);
  }
}

/* ---- calls from the schema -------------------------------------------------------------------------------- */

/* x2,3 or i2,3: a tensor, elements as they are made or counted. */
static Status set_tensor(Made *m, const char *text, Value *out) {
  int64_t size[MAX_DIMS];
  int ndim = 0;
  Tensor *t;
  for (const char *p = text + 1; *p >= '0' && *p <= '9' && ndim < MAX_DIMS; p += *p == ',')
    size[ndim++] = strtoll(p, (char **)&p, 10);
  TRY(tensor_of(m, *text == 'i' ? DT_I64 : m->dtype, ndim, size, false, &t));
  if (*text == 'i') TRY(tensor_new(m->scope, DT_I64, ndim, size, &t));
  for (int64_t i = 0; *text == 'i' && i < tensor_numel(t); i++) ((int64_t *)tensor_data(t))[i] = i;
  *out = val_tensor(t);
  return OK;
}

static Status set_value(Made *m, const char *text, Value *out) {
  if (*text == 'x' || *text == 'i') return set_tensor(m, text, out);
  *out = *text == 'N' ? val_none() : val_int(strtoll(text, NULL, 10));
  if (*text != '[') return OK;
  int64_t *list;
  int n = 0;
  TRY_NEW(list, arena_new_n(m->arena, int64_t, MAX_DIMS));
  for (const char *p = text + 1; *p && *p != ']' && n < MAX_DIMS; p += *p == ',')
    list[n++] = strtoll(p, (char **)&p, 10);
  *out = val_ints(list, n);
  return OK;
}

/* Puts what the recipe says in place of what was made. */
static Status set_args(Made *m, const Test *t, Value *arg) {
  const Schema *s = &t->op->schema;
  for (const char *p = t->recipe->set; p && *p; p += strcspn(p, " "), p += strspn(p, " ")) {
    size_t length = strcspn(p, "=");
    for (int i = 0; i < s->nparams; i++) {
      if (strncmp(s->params[i].name, p, length) || s->params[i].name[length]) continue;
      TRY(set_value(m, p + length + 1, &arg[i]));
      if (s->params[i].type == TYPE_BOOL) arg[i] = val_bool(arg[i].i);
    }
  }
  return OK;
}

/* A recipe of numbers goes with any tensors. */
static bool only_numbers(const char *set) { return set && !strstr(set, "=x") && !strstr(set, "=i"); }

static void try_made(Test *t, Dtype d, int attempt) {
  static const double low[] = {0.2, -2, 1.1, 0.2}, high[] = {0.9, 2, 2.6, 2};
  static const int64_t sizes[] = {1, 2, 2, 3, 3, 4};
  Scope scope = {0};
  Arena arena = {0};
  Ctx ctx;
  NamedValue args[MAX_PARAMS];
  Value bound[MAX_PARAMS];
  int n;
  const char *name = t->op->schema.name;
  Made m = {.ctx = &ctx, .scope = &scope, .arena = &arena, .dtype = d, .tame = true};
  m.pick.state = hash_bytes((uint64_t)attempt * DT_COUNT + (uint64_t)d, name, strlen(name));
  m.low = low[attempt % 4], m.high = high[attempt % 4];
  for (int i = 0; i < 3; i++) m.sizes[i] = sizes[below(&m.pick, 6)];
  m.ndim = fresh_sizes(&m, m.size);
  ctx_init(&ctx, 1);
  Status s = any_args(&m, t->op, args, &n);
  if (!s) s = op_bind(&arena, t->op, args, n, bound);
  if (!s) s = set_args(&m, t, bound);
  if (!s) try_call(t, bound, d, m.pick.state);
  status_free(s);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
}

/* Is its derivative zero: by its row of the table, or because the op whose result it writes gives no floats
 * (else grad_conformance asks for its gradient)? */
static bool is_flat(const Op *op) {
  if (op->def->inplace && !op->grad) {
    op = op_find(op->def->inplace);
    if (op && !op->grad && !op->def->compose) return true;
  }
  return op && op->grad && (op->grad->vjp == vjp_zero || op->grad->vjp == vjp_none);
}

/* In f64; in complex numbers, if it takes them; what is left in f32 and in integers. */
static void try_schema(Test *t) {
  int attempts = is_flat(t->op) ? COMPLEX_ATTEMPTS : ATTEMPTS;
  for (int i = 0; i < attempts && t->slopes < SLOPES && !t->failed; i++) try_made(t, DT_F64, i);
  int enough = t->slopes + COMPLEX_SLOPES;
  for (int i = 0; i < COMPLEX_ATTEMPTS && t->slopes < enough && !t->failed && !t->recipe->real; i++)
    try_made(t, DT_C64, i);
  for (int i = 0; i < COMPLEX_ATTEMPTS && !t->floats; i++) try_made(t, DT_F32, i);
  for (int i = 0; i < COMPLEX_ATTEMPTS && !t->called; i++) try_made(t, DT_I64, i);
}

/* ---- golden cases ----------------------------------------------------------------------------------------- */

/* f32 becomes f64; what derivatives are taken by is moved a little, so that it stands on no kink. */
static Status widen(const Test *t, GoldenCase *c, Value *arg) {
  int nparams = t->op->schema.nparams;
  Tensor *with[GOLDEN_TENSORS];
  Kern k = {0};
  uint64_t state = 1;
  for (TensorWalk w = tensors_of(arg, nparams); tensor_next(&w);) {
    const Tensor *x = with[w.flat] = w.tensor;
    if (x->dtype != DT_F32) continue;
    TRY(tensor_new(&c->scope, DT_F64, x->ndim, x->size, &with[w.flat]));
    kernel_copy(&k, tensor_view(with[w.flat]), tensor_view(x));
    double *to = tensor_data(with[w.flat]);
    for (int64_t i = 0; may_move(t, w.arg) && i < tensor_numel(x); i++)
      to[i] += 0.01 * (double)(random_bits(&state) >> 11) / 0x1p53;
  }
  for (int i = 0; i < nparams; i++)
    if (arg[i].kind == VAL_DTYPE && arg[i].dtype == DT_F32) arg[i].dtype = DT_F64;
  return replace_tensors(&c->arena, arg, nparams, with, arg);
}

static void try_golden(Test *t) {
  const OpCase *cases;
  int n = op_cases(&cases), enough = t->slopes + GOLDEN;
  for (int i = 0; i < n && t->slopes < enough && !t->failed; i++) {
    const char *name = yyjson_get_str(yyjson_obj_get(cases[i].json, "op"));
    if (!name || strcmp(name, t->op->schema.name)) continue;
    GoldenCase c = {.family = "golden", .json = cases[i].json, .data = cases[i].data};
    Value bound[MAX_PARAMS];
    Status s = golden_case_read(&c);
    if (!s) s = op_bind(&c.arena, t->op, c.args, c.nargs, bound);
    Made m = {.scope = &c.scope, .arena = &c.arena};
    if (!s) s = widen(t, &c, bound);
    if (!s && only_numbers(t->recipe->set)) s = set_args(&m, t, bound);
    if (!s) try_call(t, bound, DT_F64, (uint64_t)i);
    status_free(s);
    golden_case_free(&c);
  }
}

/* ---- the walk --------------------------------------------------------------------------------------------- */

typedef struct {
  int made, golden, told, flat, without, unchecked, failed;
} Count;

static bool takes_tensors(const Op *op) {
  for (int i = 0; i < op->schema.nparams; i++)
    if (op->schema.params[i].type == TYPE_TENSOR) return true;
  return false;
}

static void test_op(const Op *op, bool verbose, Count *count) {
  const char *name = op->schema.name, *reason = why_unchecked(name);
  Test t = {.op = op, .recipe = recipe_of(name), .verbose = verbose};
  if (reason || !takes_tensors(op)) {
    if (verbose) printf("%s: %s\n", name, reason ? reason : "takes no tensors");
    *(reason ? &count->unchecked : &count->without) += 1;
    return;
  }
  try_schema(&t);
  int made = t.slopes;
  if (!t.failed) try_golden(&t);
  if (verbose)
    printf("%s: %d calls, %d with floats, %d slopes (%d made), %d zeros, %d kinks\n", name, t.called, t.floats,
           t.slopes, made, t.zeros, t.kinks);
  if (!t.called) printf("%s could not be called: give it a golden case or a recipe\n", name);
  else if (t.floats && !t.slopes && !is_flat(op) && !t.recipe->flat)
    printf("%s: no slope other than zero was found: give it a golden case or a recipe\n", name);
  else if (!t.failed) {
    *(!t.floats       ? &count->without
      : !t.slopes     ? &count->flat
      : t.recipe->ops ? &count->told
      : made          ? &count->made
                      : &count->golden) += 1;
    return;
  }
  count->failed++;
}

/* A name that stands for no op is left over from one. */
static int count_strangers(const char *list) {
  int strangers = 0;
  for (const char *p = list; *p; p += strcspn(p, " "), p += strspn(p, " ")) {
    char word[128];
    bool known = false;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(p, " "), p);
    for (int i = 0; i < op_count() && !known; i++) known = has_word(word, op_at(i)->schema.name);
    if (!known) printf("there is no op '%s' that is told of\n", word);
    strangers += !known;
  }
  return strangers;
}

static bool is_asked_for(const char *name, int argc, char **argv) {
  bool any = false;
  for (int i = 1; i + 1 < argc; i++) {
    if (strcmp(argv[i], "--op")) continue;
    any = true;
    if (!strcmp(argv[i + 1], name)) return true;
  }
  return !any;
}

int main(int argc, char **argv) {
  Status s = op_registry_status();
  Count count = {0};
  bool verbose = false;
  if (s) return fprintf(stderr, "grad_differences: %s\n", status_message(s)), 2;
  for (int i = 1; i < argc; i++) verbose |= !strcmp(argv[i], "--verbose");
  for (int i = 0; i < op_count(); i++) {
    const Op *op = op_at(i);
    bool has = op->grad || op->def->compose || op->def->inplace;
    if (has && is_asked_for(op->schema.name, argc, argv)) test_op(op, verbose, &count);
  }
  for (const Unchecked *u = unchecked; u->ops; u++) count.failed += count_strangers(u->ops);
  for (const Recipe *r = recipes; r->ops; r++) count.failed += count_strangers(r->ops);
  printf("%d ops by their schema alone, %d by golden cases, %d by a recipe, %d of derivative zero; "
         "%d without floats, %d unchecked\n",
         count.made, count.golden, count.told, count.flat, count.without, count.unchecked);
  printf("%d passed, %d failed\n", count.made + count.golden + count.told + count.flat, count.failed);
  return count.failed ? 1 : 0;
}
