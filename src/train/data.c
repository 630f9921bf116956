/* data.c -- see data.h.  Here: which samples make a batch, and whether the program takes them. */
#include "train/data.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/feed_sizes.h"
#include "runtime/rebatch.h"
#include "runtime/specialize.h"
#include "train/data_convert.h"
#include "train/data_inside.h"

/* ---- columns ------------------------------------------------------------------------------------------ */

static bool is_written(const Exported *e, const Val *v) {
  for (int i = 0; i < e->graph->noutputs; i++) {
    const OutputSpec *o = &e->outputs[i];
    if (o->kind == OUT_USER_INPUT_MUTATION && o->target && !strcmp(o->target, v->name)) return true;
  }
  return false;
}

static Status add_column(Data *d, const UserInput *input) {
  const Val *v = input->val;
  DataColumn *c = &d->columns[d->ncolumns];
  if (v->type == TY_NONE) return OK;
  *c = (DataColumn){.input = input, .written = is_written(d->program, v)};
  if (v->type == TY_TENSOR) {
    if (v->ndim < 0 || v->ndim > MAX_DIMS) return fail(ERR_FILE, "input '%s' has no known size", v->name);
    c->dtype = v->dtype;
    c->ndim = d->options.batched ? v->ndim : v->ndim - 1;
  } else {
    c->dtype = v->type == TY_INT ? DT_I64 : v->type == TY_FLOAT ? DT_F64 : DT_BOOL;
  }
  if (!d->options.batched && (v->type != TY_TENSOR || !v->ndim)) {
    Status s = fail(ERR_USAGE, "input '%s' is a single number, so samples cannot make up a batch of it", v->name);
    return user_inputs_hint(status_hint(s, "give whole batches, a number for each: --batched"), d->program);
  }
  d->ncolumns++;
  return OK;
}

static Status make_columns(Data *d) {
  d->ninputs = exported_user_inputs(d->program);
  TRY(user_inputs(d->program, &d->arena, &d->inputs));
  TRY_NEW(d->columns, arena_new_n(&d->arena, DataColumn, d->ninputs));
  for (int i = 0; i < d->ninputs; i++) TRY(add_column(d, &d->inputs[i]));
  return d->ncolumns ? OK : fail(ERR_USAGE, "the program takes no inputs, so there is no data for it");
}

/* ---- the size of a batch -------------------------------------------------------------------------------- */

Status data_size_of(const Data *d, const Sym *size, int64_t *out) {
  SymBindings b;
  TRY(feed_symbols(d->program, true, &b));
  Status s = sym_eval(size, &b, out);
  free(b.v);
  return s;
}

static Status choose_rows(Data *d) {
  const DataColumn *from = NULL;
  int64_t wanted = d->options.batch;
  d->rows = 1;
  d->fixed = true;
  if (d->options.batched) return OK;
  for (int i = 0; i < d->ncolumns; i++) {
    const Val *v = d->columns[i].input->val;
    if (!sym_is_int(v->size[0])) continue;
    if (from && v->size[0]->value != d->rows) {
      Status s = fail(ERR_USAGE,
                      "the first dimensions of the inputs '%s' and '%s' differ, so they do not count samples",
                      from->input->val->name, v->name);
      return user_inputs_hint(status_hint(s, "give whole batches: --batched"), d->program);
    }
    d->rows = v->size[0]->value;
    from = &d->columns[i];
  }
  d->fixed = from != NULL;
  if (!from && !wanted) TRY(data_size_of(d, d->columns[0].input->val->size[0], &d->rows));
  if (wanted) d->rows = wanted; /* of a fixed size, too (runtime/rebatch.h) */
  return d->rows > 0 ? OK : fail(ERR_USAGE, "the program takes batches of %lld samples", (long long)d->rows);
}

int64_t data_rows(const Data *d, int64_t number) {
  int64_t rest = d->samples - number % d->batches * d->rows;
  return rest < d->rows ? rest : d->rows;
}

/* ---- checks ------------------------------------------------------------------------------------------------ */

static const char *first_file(const DataColumn *c) { return c->npieces ? c->pieces[0].file->path : "?"; }

static Status count_batches(Data *d) {
  const DataColumn *first = &d->columns[0];
  bool drop = d->fixed || d->options.drop_last;
  d->samples = first->samples;
  for (int i = 1; i < d->ncolumns; i++) {
    const DataColumn *c = &d->columns[i];
    if (c->samples == d->samples) continue;
    return status_at(
        status_at(fail(ERR_FILE, "input '%s' has %lld %s, '%s' has %lld", first->input->val->name,
                       (long long)d->samples, data_counts(d), c->input->val->name, (long long)c->samples),
                  "%s", first_file(first)),
        "%s", first_file(c));
  }
  if (!d->samples) return fail(ERR_FILE, "%s: there are no %s", first_file(first), data_counts(d));
  if (!drop && d->rows > d->samples) d->rows = d->samples;
  d->batches = d->samples / d->rows + (!drop && d->samples % d->rows);
  if (d->batches) return OK;
  Status s = fail(ERR_FILE, "%s has %lld samples, fewer than one batch of %lld", first_file(first),
                  (long long)d->samples, (long long)d->rows);
  if (first->npieces > 1) s = status_at(s, "with %d more files", first->npieces - 1);
  return s;
}

static Status first_number(const DataColumn *c, Value *out) {
  const DataPiece *p = c->pieces;
  int64_t element;
  while (!p->count) p++;
  if (data_convert(&element, c->dtype, p->data, p->dtype, 1) >= 0)
    return fail(ERR_FILE, "%s: input '%s': its first value does not fit %s", p->file->path, c->input->val->name,
                dtype_name(c->dtype));
  *out = val_load(c->dtype, &element);
  return OK;
}

/* Would the program take a batch of so many samples?  Symbols, their ranges and what depends on them. */
static Status try_batch(const Data *d, int64_t rows, Scope *scope, Value *values) {
  for (int i = 0; i < d->ncolumns; i++) {
    const DataColumn *c = &d->columns[i];
    Value *out = &values[c->input - d->inputs];
    int64_t size[MAX_DIMS + 1];
    int lead = d->options.batched ? 0 : 1;
    Tensor *t;
    if (c->input->val->type != TY_TENSOR) {
      TRY(first_number(c, out));
      continue;
    }
    size[0] = rows;
    memcpy(size + lead, c->size, (size_t)c->ndim * sizeof *size);
    TRY(tensor_meta(scope, c->dtype, c->ndim + lead, size, &t));
    *out = val_tensor(t);
  }
  SymBindings b = {0};
  Arena arena = {0};
  Rebatch rebatch;
  const Value *checked;
  Status s = rebatch_find(d->program, values, d->ninputs, scope, &arena, &rebatch, &checked);
  if (!s) s = specialize_bind(d->program, checked, d->ninputs, &b);
  free(b.v);
  arena_free(&arena);
  return s;
}

static Status check_batch(Data *d, int64_t rows) {
  Scope scope = {0};
  Value *values;
  TRY_NEW(values, arena_new_n(&d->arena, Value, d->ninputs));
  Status s = try_batch(d, rows, &scope, values);
  scope_clear(&scope);
  return status_at(s, "%s", first_file(&d->columns[0]));
}

static Status check_batches(Data *d) {
  int64_t last = data_rows(d, d->batches - 1);
  TRY(check_batch(d, d->rows));
  if (last == d->rows) return OK;
  return status_hint(status_at(check_batch(d, last), "the last batch of an epoch: %lld of %lld samples",
                               (long long)last, (long long)d->samples),
                     "leave it out (--drop-last), or choose another size (--batch)");
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

static Status check_options(const DataOptions *o) {
  if (!o->nfiles) return fail(ERR_USAGE, "no file has the data");
  if (o->batch < 0 || o->window < 0) return fail(ERR_USAGE, "the sizes of batches and windows are not negative");
  if (o->batched && o->tokens) return fail(ERR_USAGE, "tokens are cut into samples: not with whole batches");
  if (o->batched && o->batch)
    return fail(ERR_USAGE, "the size of whole batches is that in the file: leave out --batch");
  return OK;
}

static Status open_data(Data *d) {
  TRY(check_options(&d->options));
  TRY(make_columns(d));
  TRY(choose_rows(d));
  TRY(d->options.tokens ? data_open_tokens(d) : data_open_inputs(d));
  TRY(count_batches(d));
  TRY(check_batches(d));
  TRY_NEW(d->order, arena_new_n(&d->arena, int64_t, d->rows));
  for (int i = 0; i < DATA_SLOTS; i++) TRY(data_slot_init(d, &d->slots[i]));
  return OK;
}

Status data_open(const Exported *program, const DataOptions *o, Data **out) {
  Data *d;
  TRY_NEW(d, calloc(1, sizeof *d));
  d->program = program;
  d->options = *o;
  d->epoch = d->asked = d->next = -1;
  for (int i = 0; i < DATA_SLOTS; i++) d->slots[i].number = -1;
  Status s = OK;
  d->locks = !pthread_mutex_init(&d->lock, NULL);
  if (d->locks && pthread_cond_init(&d->moved, NULL)) {
    pthread_mutex_destroy(&d->lock);
    d->locks = false;
  }
  s = d->locks ? open_data(d) : fail_oom();
  if (s) data_free(d);
  else *out = d;
  return s;
}

void data_free(Data *d) {
  if (!d) return;
  data_stop(d);
  for (int i = 0; i < DATA_SLOTS; i++) data_slot_free(d, &d->slots[i]);
  for (int i = 0; i < d->nfiles; i++) file_map_unref(d->files[i]);
  if (d->locks) {
    pthread_cond_destroy(&d->moved);
    pthread_mutex_destroy(&d->lock);
  }
  arena_free(&d->arena);
  free(d);
}

/* ---- asking ------------------------------------------------------------------------------------------------- */

static int64_t batch_dimension(const Data *d, const DataColumn *c, int64_t number) {
  return !d->options.batched ? data_rows(d, number) : c->ndim ? c->size[0] : 1;
}

int64_t data_samples(const Data *d) {
  return d->options.batched ? d->batches * batch_dimension(d, &d->columns[0], 0) : d->samples;
}

int64_t data_batches(const Data *d) { return d->batches; }

int64_t data_batch_samples(const Data *d, int64_t number) { return batch_dimension(d, &d->columns[0], number); }

int64_t data_batch_tokens(const Data *d, int64_t number) {
  for (int i = 0; i < d->ncolumns; i++) {
    const DataColumn *c = &d->columns[i];
    const Val *v = c->input->val;
    if (v->type == TY_TENSOR && v->ndim > 1 && dtype_is_int(c->dtype)) return data_rows(d, number) * c->numel;
  }
  return 0;
}
