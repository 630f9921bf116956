/* derived.c -- see derived.h. */
#include "ckpt/derived.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/copy.h"
#include "optim/recipe.h"

/* ---- names ------------------------------------------------------------------------------------------------- */

enum { MOST_STARS = 8 };

typedef struct {
  const char *at[MOST_STARS];
  size_t len[MOST_STARS];
  int n;
} Stars;

/* Stars take as little as they can. */
static bool match(const char *pattern, const char *name, Stars *s) {
  for (; *pattern && *pattern != '*'; pattern++, name++)
    if (*pattern != *name) return false;
  if (!*pattern) return !*name;
  if (s->n == MOST_STARS) return false;
  int me = s->n++;
  for (size_t len = 0; len <= strlen(name); len++) {
    s->at[me] = name;
    s->len[me] = len;
    s->n = me + 1;
    if (match(pattern + 1, name + len, s)) return true;
  }
  s->n = me;
  return false;
}

static Status rename_by(const char *rule, const char *name, Arena *arena, const char **out, bool *matched) {
  const char *equals = strchr(rule, '=');
  Stars stars = {0};
  char *from;
  TextBuf b = {0};
  int star = 0;
  if (!equals || equals == rule || !equals[1])
    return status_hint(fail(ERR_USAGE, "'%s' is no renaming", rule), "write FROM=TO: 'transformer.*=model.*'");
  TRY_NEW(from, arena_strndup(arena, rule, (size_t)(equals - rule)));
  *matched = match(from, name, &stars);
  if (!*matched) return OK;
  for (const char *p = equals + 1; *p; p++) {
    if (*p != '*') text_write(&b, p, 1);
    else if (star < stars.n) text_write(&b, stars.at[star], stars.len[star]), star++;
    else {
      text_free(&b);
      return fail(ERR_USAGE, "'%s': there are more stars behind '=' than before it", rule);
    }
  }
  *out = b.failed || !b.text ? NULL : arena_strdup(arena, b.text);
  text_free(&b);
  return *out ? OK : fail_oom();
}

typedef struct {
  Derived *d;
  const DeriveHow *how;
  bool *used;     /* by pattern of select, drop, rename in turn */
  bool run_names; /* the source has names of a run */
} Deriving;

static bool matches_one(Deriving *g, const char *const *list, int n, int first, const char *name) {
  bool found = false;
  for (int i = 0; i < n; i++) {
    if (!patterns_match(list[i], name)) continue;
    g->used[first + i] = found = true;
  }
  return found;
}

/* NULL: it is left out. */
static Status name_of(Deriving *g, const char *name, const char **out) {
  const DeriveHow *h = g->how;
  const bool model = !strncmp(name, "model.", 6);
  *out = NULL;
  if (h->selects && !matches_one(g, h->select, h->selects, 0, name)) return OK;
  if (h->drops && matches_one(g, h->drop, h->drops, h->selects, name)) return OK;
  if (h->names == NAMES_OF_MODEL && g->run_names && !model) {
    g->d->left_out++;
    return OK;
  }
  *out = name;
  if (h->names == NAMES_OF_MODEL && g->run_names) *out = name + 6;
  if (h->names == NAMES_OF_RUN && !g->run_names) TRY_NEW(*out, arena_printf(&g->d->arena, "model.%s", name));
  for (int i = 0; i < h->renames; i++) {
    bool matched = false;
    TRY(rename_by(h->rename[i], *out, &g->d->arena, out, &matched));
    if (!matched) continue;
    g->used[h->selects + h->drops + i] = true;
    break;
  }
  return OK;
}

static bool has_run_names(const Source *s) {
  if (s->save) return true;
  for (int i = 0; i < s->tensors; i++)
    if (!strncmp(s->tensor[i].name, "optim.state.", 12)) return !strcmp(s->format->name, "dcp");
  return false;
}

/* ---- tensors ------------------------------------------------------------------------------------------------ */

static Status add_tensor(Deriving *g, const SourceTensor *t, const char *name) {
  Derived *d = g->d;
  DerivedTensor *v = &d->v[d->n++];
  char a[200], b[200];
  *v = (DerivedTensor){.name = name, .dtype = t->dtype, .ndim = t->ndim};
  memcpy(v->size, t->size, sizeof v->size);
  if (g->how->dtype != DT_NONE && dtype_is_float(t->dtype)) v->dtype = g->how->dtype;
  TRY_NEW(v->part, arena_new_n(&d->arena, const SourceTensor *, d->sources));
  for (int i = 0; i < d->sources; i++) {
    const SourceTensor *p = v->part[i] = source_find(d->source[i], t->name);
    if (!p)
      return fail(ERR_USAGE, "'%s' has no tensor '%s', '%s' has", d->source[i]->path, t->name, d->source[0]->path);
    if (p->ndim != t->ndim || memcmp(p->size, t->size, (size_t)t->ndim * sizeof *t->size))
      return fail(ERR_USAGE, "'%s' is %s in '%s', %s in '%s'", t->name,
                  shape_describe(t->ndim, t->size, a, sizeof a), d->source[0]->path,
                  shape_describe(p->ndim, p->size, b, sizeof b), d->source[i]->path);
    if (d->sources > 1 && !dtype_is_compute(p->dtype))
      return fail(ERR_USAGE, "'%s': tensors of %s cannot be averaged", t->name, dtype_name(p->dtype));
  }
  d->bytes += derived_bytes(v);
  return OK;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const DerivedTensor *)a)->name, ((const DerivedTensor *)b)->name);
}

static Status check(const Deriving *g) {
  const DeriveHow *h = g->how;
  const Derived *d = g->d;
  for (int i = 0; i < h->selects + h->drops + h->renames; i++) {
    const char *text = i < h->selects              ? h->select[i]
                       : i < h->selects + h->drops ? h->drop[i - h->selects]
                                                   : h->rename[i - h->selects - h->drops];
    if (!g->used[i]) return fail(ERR_USAGE, "no tensor of '%s' matches '%s'", d->source[0]->path, text);
  }
  for (int i = 1; i < d->n; i++)
    if (!strcmp(d->v[i - 1].name, d->v[i].name))
      return fail(ERR_USAGE, "two tensors would be called '%s'", d->v[i].name);
  if (!d->n) return fail(ERR_USAGE, "'%s': no tensor is left", d->source[0]->path);
  return OK;
}

static Status add_values(Deriving *g) {
  const Source *s = g->d->source[0];
  const int tensors = g->d->left_out;
  TRY_NEW(g->d->value, arena_new_n(&g->d->arena, SourceValue, s->values + 1));
  for (int i = 0; i < s->values; i++) {
    SourceValue v = s->value[i];
    TRY(name_of(g, v.name, &v.name));
    if (v.name) g->d->value[g->d->values++] = v;
  }
  g->d->left_out = tensors; /* values are not counted */
  return OK;
}

static Status fill(Deriving *g) {
  Derived *d = g->d;
  const DeriveHow *h = g->how;
  const Source *first = d->source[0];
  g->run_names = has_run_names(first);
  TRY_NEW(g->used, arena_new_n(&d->arena, bool, h->selects + h->drops + h->renames + 1));
  TRY_NEW(d->v, arena_new_n(&d->arena, DerivedTensor, first->tensors + 1));
  for (int i = 0; i < first->tensors; i++) {
    const char *name;
    TRY(name_of(g, first->tensor[i].name, &name));
    if (name) TRY(add_tensor(g, &first->tensor[i], name));
  }
  for (int i = 1; i < d->sources; i++)
    if (d->source[i]->tensors != first->tensors && !h->selects && !h->drops)
      return fail(ERR_USAGE, "'%s' has %d tensors, '%s' has %d", first->path, first->tensors, d->source[i]->path,
                  d->source[i]->tensors);
  if (d->n) qsort(d->v, (size_t)d->n, sizeof *d->v, by_name);
  TRY(check(g));
  return add_values(g);
}

Status derive(const Source *const *source, int sources, const DeriveHow *how, Derived **out) {
  Derived *d;
  TRY_NEW(d, calloc(1, sizeof *d));
  d->source = source;
  d->sources = sources;
  Deriving g = {.d = d, .how = how};
  Status s = fill(&g);
  if (s) derived_free(d);
  else *out = d;
  return s;
}

void derived_free(Derived *d) {
  if (!d) return;
  arena_free(&d->arena);
  free(d);
}

const DerivedTensor *derived_find(const Derived *d, const char *name) {
  const DerivedTensor key = {.name = name};
  return d->n ? bsearch(&key, d->v, (size_t)d->n, sizeof key, by_name) : NULL;
}

int64_t derived_bytes(const DerivedTensor *t) {
  int64_t n = (int64_t)dtype_size(t->dtype);
  for (int d = 0; d < t->ndim; d++) n *= t->size[d];
  return n;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

const void *derived_span(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size) {
  if (d->sources > 1 || t->dtype != t->part[0]->dtype || t->dtype == DT_BOOL) return NULL;
  return source_span(d->source[0], t->part[0], offset, size);
}

bool derived_reads_directly(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size) {
  for (int i = 0; i < d->sources; i++)
    if (source_reads_directly(d->source[i], t->part[i], offset, size)) return true;
  return false;
}

static View contiguous_view(int ndim, const int64_t *size, int64_t *stride, void *data, Dtype dtype) {
  contiguous_strides(ndim, size, stride);
  return (View){data, size, stride, ndim, dtype};
}

/* The mean, in f64 whatever the dtype; integers are rounded to the nearest. */
static Status read_mean(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size,
                        void *out) {
  int64_t stride[MAX_DIMS], n = 1;
  double *sum, *one;
  Kern kern;
  for (int i = 0; i < t->ndim; i++) n *= size[i];
  TRY_NEW(sum, calloc((size_t)n + 1, 2 * sizeof *sum));
  one = sum + n;
  Status s = OK;
  for (int k = 0; !s && k < d->sources; k++) {
    s = source_read(d->source[k], t->part[k], offset, contiguous_view(t->ndim, size, stride, one, DT_F64));
    for (int64_t i = 0; !s && i < n; i++) sum[i] += one[i];
  }
  for (int64_t i = 0; !s && i < n; i++) {
    sum[i] /= d->sources;
    if (dtype_is_integral(t->dtype)) sum[i] = rint(sum[i]);
  }
  if (!s) {
    kern_init(&kern, 1);
    kernel_copy(&kern, contiguous_view(t->ndim, size, stride, out, t->dtype),
                contiguous_view(t->ndim, size, stride, sum, DT_F64));
    kern_free(&kern);
  }
  free(sum);
  return s;
}

Status derived_read(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size,
                    void *out) {
  int64_t stride[MAX_DIMS];
  if (d->sources > 1) return read_mean(d, t, offset, size, out);
  return source_read(d->source[0], t->part[0], offset, contiguous_view(t->ndim, size, stride, out, t->dtype));
}

void derived_ahead(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size) {
  for (int i = 0; i < d->sources; i++) source_ahead(d->source[i], t->part[i], offset, size);
}

void derived_forget(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size) {
  for (int i = 0; i < d->sources; i++) source_forget(d->source[i], t->part[i], offset, size);
}
