/* ckpt_diff.c -- `tessera ckpt diff`: names, dtypes, sizes and values of two checkpoints. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "ckpt/derived.h"
#include "ckpt/windows.h"
#include "cli/ckpt.h"

enum { WINDOW = 4 << 20, SHOWN = 20 };

typedef struct {
  double tolerance;
  TextList select, drop, rename;
  bool json;
} DiffOptions;

typedef struct {
  const DiffOptions *o;
  const Derived *a, *b;
  yyjson_mut_doc *doc; /* NULL: text */
  yyjson_mut_val *list;
  int differ, same;
  double largest;
} Diff;

static void told(Diff *d, const char *name, const char *what, double largest) {
  d->differ++;
  if (d->doc) {
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(d->doc, d->list);
    yyjson_mut_obj_add_strcpy(d->doc, o, "name", name);
    yyjson_mut_obj_add_strcpy(d->doc, o, "what", what);
    if (largest >= 0) yyjson_mut_obj_add_real(d->doc, o, "largest", largest);
  } else if (d->differ <= SHOWN) {
    print_plain(stdout, name);
    printf(": ");
    print_plain(stdout, what);
    printf("\n");
  }
}

/* ---- values
 * ---------------------------------------------------------------------------------------------------------- */

typedef struct {
  const Diff *d;
  const DerivedTensor *a, *b;
  double *x, *y;
  double largest;
  int64_t count;
} Values;

/* Bits that are the same are the same values; others are compared as numbers. */
static Status compare_window(void *arg, const int64_t *offset, const int64_t *size, size_t bytes) {
  Values *v = arg;
  const Derived *a = v->d->a, *b = v->d->b;
  size_t n = bytes / sizeof(double);
  DerivedTensor wide = *v->a, other = *v->b;
  if (v->a->dtype == v->b->dtype) {
    TRY(derived_read(a, v->a, offset, size, v->x));
    TRY(derived_read(b, v->b, offset, size, v->y));
    if (!memcmp(v->x, v->y, n * dtype_size(v->a->dtype))) return OK;
    if (!dtype_is_compute(v->a->dtype)) {
      v->count++;
      v->largest = INFINITY;
      return OK;
    }
  }
  wide.dtype = other.dtype = DT_F64;
  TRY(derived_read(a, &wide, offset, size, v->x));
  TRY(derived_read(b, &other, offset, size, v->y));
  for (size_t i = 0; i < n; i++) {
    double off = fabs(v->x[i] - v->y[i]);
    if (v->x[i] == v->y[i] || (isnan(v->x[i]) && isnan(v->y[i])) || off <= v->d->o->tolerance) continue;
    v->count++;
    if (!(off <= v->largest)) v->largest = isnan(off) ? INFINITY : off;
  }
  derived_forget(a, v->a, offset, size);
  derived_forget(b, v->b, offset, size);
  return OK;
}

static Status compare_values(Diff *d, const DerivedTensor *a, const DerivedTensor *b) {
  const int64_t nowhere[MAX_DIMS] = {0};
  Values v = {.d = d, .a = a, .b = b};
  char text[200];
  TRY_NEW(v.x, malloc(2 * WINDOW));
  v.y = v.x + WINDOW / sizeof *v.x;
  Status s = each_window(a->ndim, nowhere, a->size, sizeof(double), WINDOW, compare_window, &v);
  free(v.x);
  TRY(s);
  if (v.count) {
    snprintf(text, sizeof text, "%lld of %lld elements differ, by up to %.3g", (long long)v.count,
             (long long)(derived_bytes(a) / (int64_t)dtype_size(a->dtype)), v.largest);
    told(d, a->name, text, v.largest);
    if (v.largest > d->largest) d->largest = v.largest;
  } else d->same++;
  return OK;
}

static Status compare(Diff *d, const DerivedTensor *a, const DerivedTensor *b) {
  char x[200], y[200], text[500];
  bool sizes = a->ndim == b->ndim && !memcmp(a->size, b->size, (size_t)a->ndim * sizeof *a->size);
  if (!sizes ||
      (a->dtype != b->dtype && !(dtype_is_float(a->dtype) && dtype_is_float(b->dtype) && d->o->tolerance > 0))) {
    snprintf(text, sizeof text, "%s%s in the first, %s%s in the second", dtype_name(a->dtype),
             shape_describe(a->ndim, a->size, x, sizeof x), dtype_name(b->dtype),
             shape_describe(b->ndim, b->size, y, sizeof y));
    told(d, a->name, text, -1);
    return OK;
  }
  return compare_values(d, a, b);
}

/* Both lists are sorted by name. */
static Status compare_all(Diff *d) {
  for (int i = 0, k = 0; i < d->a->n || k < d->b->n;) {
    int order = i == d->a->n ? 1 : k == d->b->n ? -1 : strcmp(d->a->v[i].name, d->b->v[k].name);
    if (order < 0) told(d, d->a->v[i++].name, "only in the first", -1);
    else if (order > 0) told(d, d->b->v[k++].name, "only in the second", -1);
    else TRY(compare(d, &d->a->v[i++], &d->b->v[k++]));
  }
  return OK;
}

static Status report(Diff *d, const char *a, const char *b) {
  if (d->doc) {
    yyjson_mut_val *root = yyjson_mut_obj(d->doc);
    yyjson_mut_doc_set_root(d->doc, root);
    yyjson_mut_obj_add_int(d->doc, root, "same", d->same);
    yyjson_mut_obj_add_int(d->doc, root, "different", d->differ);
    yyjson_mut_obj_add_val(d->doc, root, "differences", d->list);
    TRY(json_print(stdout, d->doc));
    d->doc = NULL;
  } else {
    if (d->differ > SHOWN) printf("and %d more\n", d->differ - SHOWN);
    if (!d->differ) printf("the same: %d tensor%s\n", d->same, PLURAL(d->same));
  }
  if (!d->differ) return OK;
  return fail(ERR_DIFF, "'%s' and '%s' differ in %d of %d tensors", a, b, d->differ, d->differ + d->same);
}

/* ---- the command
 * -------------------------------------------------------------------------------------------------------- */

/* Names of a run beside names of a model have nothing in common: then the names of the model are compared. */
static DerivedNames names_of(const Source *a, const Source *b) {
  for (int i = 0; i < a->tensors; i++)
    if (source_find(b, a->tensor[i].name)) return NAMES_AS_THEY_ARE;
  return NAMES_OF_MODEL;
}

static Status diff(const DiffOptions *o, const Source *a, const Source *b) {
  DeriveHow how = {.select = o->select.v,
                   .selects = o->select.n,
                   .drop = o->drop.v,
                   .drops = o->drop.n,
                   .dtype = DT_NONE,
                   .names = o->rename.n ? NAMES_AS_THEY_ARE : names_of(a, b)};
  DeriveHow first = how;
  Derived *x = NULL, *y = NULL;
  Diff d = {.o = o};
  first.rename = o->rename.v, first.renames = o->rename.n;
  Status s = derive(&a, 1, &first, &x);
  if (!s) s = derive(&b, 1, &how, &y);
  if (!s && o->json) {
    d.doc = yyjson_mut_doc_new(NULL);
    if (d.doc) d.list = yyjson_mut_arr(d.doc);
  }
  d.a = x, d.b = y;
  if (!s) s = compare_all(&d);
  if (!s) s = report(&d, a->path, b->path);
  yyjson_mut_doc_free(d.doc);
  derived_free(x);
  derived_free(y);
  return s;
}

static const Option options[] = {
    {"--tolerance", 0, OPT_FLOAT, offsetof(DiffOptions, tolerance), "F",
     "values that differ by no more are the same; floats may have other dtypes"},
    {"--select", 0, OPT_LIST, offsetof(DiffOptions, select), "PATTERNS", "only tensors whose names match"},
    {"--drop", 0, OPT_LIST, offsetof(DiffOptions, drop), "PATTERNS", "not those whose names match"},
    {"--rename", 0, OPT_LIST, offsetof(DiffOptions, rename), "FROM=TO",
     "of the first checkpoint, as in `ckpt rename`"},
    {"--json", 0, OPT_FLAG, offsetof(DiffOptions, json), NULL, "as JSON"},
};
const CommandSpec spec_ckpt_diff = {.usage = "CHECKPOINT CHECKPOINT [options]",
                                    .examples = "  tessera COMMAND run/step-00000100 run/step-00000200\n"
                                                "  tessera COMMAND model/ model-bf16/ --tolerance 1e-2\n",
                                    .words = TAKES_FILE,
                                    OPTIONS(options)};

Status ckpt_diff(const char *name, int argc, char **argv) {
  DiffOptions o = {0};
  TextList words;
  bool help;
  Source *a = NULL, *b = NULL;
  (void)name;
  TRY(options_parse("ckpt diff", &spec_ckpt_diff, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n != 2) return status_hint(fail(ERR_USAGE, "diff takes two checkpoints"), "tessera ckpt diff a/ b/");
  Status s = source_open(words.v[0], &a);
  if (!s) s = source_open(words.v[1], &b);
  if (!s) s = diff(&o, a, b);
  source_close(a);
  source_close(b);
  return s;
}
