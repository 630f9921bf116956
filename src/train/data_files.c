/* data_files.c -- files found and read: inputs by name in .safetensors, one input in .npy. */
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "base/textbuf.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"
#include "train/data_convert.h"
#include "train/data_inside.h"

enum { LONGEST_LIST = 20 }; /* names in a message */

/* ---- finding ------------------------------------------------------------------------------------ */

static Status map_file(Data *d, const char *path) {
  TRY_NEW(d->files, arena_more(&d->arena, d->files, d->nfiles, &d->files_cap));
  TRY(file_map(path, &d->files[d->nfiles]));
  d->nfiles++;
  return OK;
}

static int by_bytes(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_pattern(const char *path) { return strpbrk(path, "*?[") && !file_exists(path); }

Status data_map_files(Data *d, const char *pattern) {
  glob_t found = {0};
  if (!is_pattern(pattern)) return map_file(d, pattern);
  int failed = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found);
  Status s = failed == GLOB_NOSPACE   ? fail_oom()
             : failed == GLOB_NOMATCH ? fail(ERR_FILE, "no file matches '%s'", pattern)
             : failed                 ? fail(ERR_FILE, "'%s': a folder cannot be read", pattern)
                                      : OK;
  /* Whatever the locale: the same order on every machine. */
  if (!s) qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_bytes);
  for (size_t i = 0; !s && i < found.gl_pathc; i++) s = map_file(d, found.gl_pathv[i]);
  globfree(&found);
  return s;
}

/* ---- columns -------------------------------------------------------------------------------------- */

DataColumn *data_column(Data *d, const char *name) {
  const UserInput *input = user_input_find(d->inputs, d->ninputs, name);
  for (int i = 0; input && i < d->ncolumns; i++) {
    if (d->columns[i].input == input) return &d->columns[i];
  }
  return NULL;
}

Status data_hint_input(Status s, const Data *d, const char *name) {
  const char *near = NULL;
  for (int i = 0; i < d->ncolumns; i++) {
    const UserInput *input = d->columns[i].input;
    near = nearer_name(name, near, input->val->name);
    if (input->argument) near = nearer_name(name, near, input->argument);
  }
  return near ? status_hint(s, "did you mean '%s'?", near) : s;
}

/* What a sample must be, "f32[3,s1]". */
static Status differs(const Data *d, const DataColumn *c, const DataPiece *p, int ndim, const int64_t *size) {
  const Val *v = c->input->val;
  const char *what = data_counts(d);
  char have[128];
  TextBuf want = {0};
  text_puts(&want, "[");
  for (int i = 0; i < c->ndim; i++) {
    if (i) text_puts(&want, ",");
    sym_print(&want, v->size[i + v->ndim - c->ndim]);
  }
  text_puts(&want, "]");
  Status s = fail(ERR_FILE, "%s: input '%s' has %s of %s, the program wants %s", p->file->path, v->name, what,
                  shape_describe(ndim, size, have, sizeof have), want.text ? want.text : "others");
  text_free(&want);
  if (ndim == c->ndim + 1 && !d->options.batched)
    s = status_hint(s, "if the first dimension of the file counts batches, say so: --batched");
  if (ndim == c->ndim - 1 && d->options.batched)
    s = status_hint(s, "if the first dimension of the file counts samples, leave out --batched");
  return user_inputs_hint(s, d->program);
}

static Status check_size(const Data *d, const DataColumn *c, const DataPiece *p, int ndim, const int64_t *size) {
  const Val *v = c->input->val;
  char have[128], first[128];
  if (ndim != c->ndim) return differs(d, c, p, ndim, size);
  for (int i = 0; i < ndim; i++) {
    const Sym *want = v->size[i + v->ndim - ndim];
    if (sym_is_int(want) && want->value != size[i]) return differs(d, c, p, ndim, size);
  }
  if (!c->npieces || !ndim || !memcmp(size, c->size, (size_t)ndim * sizeof *size)) return OK;
  return fail(ERR_FILE, "%s: input '%s' has samples of %s, in '%s' they are %s", p->file->path, v->name,
              shape_describe(ndim, size, have, sizeof have), c->pieces[0].file->path,
              shape_describe(ndim, c->size, first, sizeof first));
}

static Status check_dtype(const DataColumn *c, const DataPiece *p) {
  if (data_converts(p->dtype, c->dtype, false)) return OK;
  const char *torch = dtype_info[c->dtype].torch;
  bool rounded = data_converts(p->dtype, c->dtype, true);
  Status s = fail(ERR_FILE, "%s: input '%s' is %s, the program wants %s%s", p->file->path, c->input->val->name,
                  dtype_name(p->dtype), dtype_name(c->dtype), rounded ? ", which would round it" : "");
  return status_hint(s, "convert it before saving: x.to(torch.%s)", torch);
}

Status data_add_piece(Data *d, DataColumn *c, const DataPiece *piece, int ndim, const int64_t *size) {
  int64_t numel, most = INT64_MAX / 16;
  TRY(check_size(d, c, piece, ndim, size));
  TRY(check_dtype(c, piece));
  if (!checked_numel(ndim, size, &numel) || numel > most || c->samples > most - piece->count)
    return fail(ERR_FILE, "%s: input '%s' has more elements than can be counted", piece->file->path,
                c->input->val->name);
  if (!c->npieces && ndim) memcpy(c->size, size, (size_t)ndim * sizeof *size);
  TRY_NEW(c->pieces, arena_more(&d->arena, c->pieces, c->npieces, &c->cap));
  DataPiece *p = &c->pieces[c->npieces++];
  *p = *piece;
  p->first = c->samples;
  p->step = numel * (int64_t)dtype_size(p->dtype);
  c->numel = numel;
  c->samples += p->count;
  return OK;
}

/* An array of a file, samples along its first dimension. */
static Status add_array(Data *d, DataColumn *c, const FileMap *f, uint64_t begin, Dtype dtype, int ndim,
                        const int64_t *size) {
  if (!ndim) {
    return fail(ERR_FILE, "%s: input '%s' is a single number there, without a dimension of samples", f->path,
                c->input->val->name);
  }
  DataPiece p = {.file = f, .data = f->data + begin, .dtype = dtype, .count = size[0]};
  return data_add_piece(d, c, &p, ndim - 1, size + 1);
}

/* ---- .safetensors --------------------------------------------------------------------------------- */

static const SafeEntry *find_entry(const SafeTensors *st, const UserInput *input) {
  const SafeEntry *e = safetensors_find(st, input->val->name);
  return e || !input->argument ? e : safetensors_find(st, input->argument);
}

static Status lacks(const Data *d, const SafeTensors *st, const UserInput *input) {
  const char *near = NULL;
  TextBuf b = {0};
  for (int i = 0; i < st->count; i++) {
    const SafeEntry *e = &st->entries[i];
    char shape[128];
    if (!user_input_find(d->inputs, d->ninputs, e->name)) near = nearer_name(input->val->name, near, e->name);
    if (i >= LONGEST_LIST) continue;
    text_printf(&b, "%s'%s' %s%s", i ? ", " : "", e->name, dtype_name(e->dtype),
                shape_describe(e->ndim, e->size, shape, sizeof shape));
  }
  if (st->count > LONGEST_LIST) text_printf(&b, " and %d more", st->count - LONGEST_LIST);
  Status s = fail(ERR_FILE, "%s has no input '%s'", st->file->path, input->val->name);
  s = status_hint(s, "it has %s", b.text ? b.text : "no tensors");
  text_free(&b);
  s = user_inputs_hint(s, d->program);
  return near ? status_hint(s, "did you mean '%s' to be called '%s'?", near, input->val->name) : s;
}

static Status add_tensors(Data *d, const SafeTensors *st) {
  const FileMap *f = st->file;
  const DataColumn *first = NULL;
  for (int i = 0; i < d->ncolumns; i++) {
    DataColumn *c = &d->columns[i];
    const SafeEntry *e = find_entry(st, c->input);
    if (c->by_name && e)
      return fail(ERR_USAGE, "input '%s' is given twice: by '%s' and in '%s'", c->input->val->name, c->by_name,
                  f->path);
    if (c->by_name) continue;
    if (!e) return lacks(d, st, c->input);
    TRY(add_array(d, c, f, e->begin, e->dtype, e->ndim, e->size));
    if (!first) first = c;
    int64_t here = c->pieces[c->npieces - 1].count, there = first->pieces[first->npieces - 1].count;
    if (here != there) {
      return fail(ERR_FILE, "%s: input '%s' has %lld %s, '%s' has %lld", f->path, first->input->val->name,
                  (long long)there, data_counts(d), c->input->val->name, (long long)here);
    }
  }
  if (first) return OK;
  return fail(ERR_USAGE, "'%s' is not needed: all inputs are given by name", f->path);
}

static Status read_tensors(Data *d, const char *pattern) {
  int from = d->nfiles;
  TRY(data_map_files(d, pattern));
  for (int i = from; i < d->nfiles; i++) {
    FileMap *f = d->files[i];
    size_t n = strlen(f->path);
    SafeTensors *st;
    if (n > 4 && !strcmp(f->path + n - 4, ".npy")) {
      return user_inputs_hint(status_hint(fail(ERR_USAGE, "'%s': which input does it hold?", f->path),
                                          "say INPUT=%s, or --tokens INPUT if it is a stream of tokens", f->path),
                              d->program);
    }
    TRY(safetensors_from_map(f, &st));
    Status s = add_tensors(d, st);
    safetensors_close(st);
    TRY(s);
  }
  return OK;
}

/* ---- input=path.npy ------------------------------------------------------------------------------- */

/* The column that input=path is for; NULL: it is a plain path. */
static Status named_column(Data *d, const char *option, DataColumn **out) {
  const char *equals = strchr(option, '=');
  *out = NULL;
  if (!equals) return OK;
  char *name;
  TRY_NEW(name, arena_strndup(&d->arena, option, (size_t)(equals - option)));
  *out = data_column(d, name);
  if (*out || file_exists(option) || strpbrk(name, "/*?[.")) return OK;
  Status s = fail(ERR_USAGE, "'%s': the program has no input '%s'", option, name);
  return data_hint_input(user_inputs_hint(s, d->program), d, name);
}

static Status read_arrays(Data *d, DataColumn *c, const char *option) {
  int from = d->nfiles;
  c->by_name = option;
  TRY(data_map_files(d, strchr(option, '=') + 1));
  for (int i = from; i < d->nfiles; i++) {
    const FileMap *f = d->files[i];
    Npy a;
    TRY(npy_read(f, &a));
    TRY(add_array(d, c, f, a.begin, a.dtype, a.ndim, a.size));
  }
  return OK;
}

Status data_open_inputs(Data *d) {
  const DataOptions *o = &d->options;
  bool plain = false;
  DataColumn *c;
  for (int i = 0; i < o->nfiles; i++) { /* first, so that .safetensors may lack what they give */
    TRY(named_column(d, o->files[i], &c));
    if (c) TRY(read_arrays(d, c, o->files[i]));
  }
  for (int i = 0; i < o->nfiles; i++) {
    TRY(named_column(d, o->files[i], &c));
    if (c) continue;
    TRY(read_tensors(d, o->files[i]));
    plain = true;
  }
  for (int i = 0; i < d->ncolumns && !plain; i++) {
    const UserInput *input = d->columns[i].input;
    if (d->columns[i].by_name) continue;
    Status s = fail(ERR_USAGE, "no file gives the input '%s'", input->val->name);
    return user_inputs_hint(status_hint(s, "say %s=path.npy", input->val->name), d->program);
  }
  return OK;
}
