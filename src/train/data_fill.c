/* data_fill.c -- one batch put together: samples copied and converted, or the file's own bytes. */
#include <string.h>

#include "train/data_convert.h"
#include "train/data_inside.h"

/* ---- where samples are --------------------------------------------------------------------------------- */

static const DataPiece *piece_of(const DataColumn *c, int64_t sample) {
  int low = 0, high = c->npieces - 1;
  while (low < high) { /* the last piece that begins at the sample or before it, and is not empty */
    int mid = low + (high - low + 1) / 2;
    if (c->pieces[mid].first <= sample) low = mid;
    else high = mid - 1;
  }
  return &c->pieces[low];
}

static const unsigned char *address(const DataPiece *p, int64_t sample) {
  return p->data + (sample - p->first) * p->step;
}

/* How many samples from order[r] on stand in one file one behind the other. */
static int64_t run_length(const DataPiece *p, const int64_t *order, int64_t rows) {
  int64_t run = 1, end = p->first + p->count;
  while (run < rows && order[run] == order[0] + run && order[run] < end) run++;
  return run;
}

/* Samples of batch `number`, in order; gives how many. */
static int64_t draw(Data *d, int64_t number) {
  int64_t epoch = number / d->batches, begin = number % d->batches * d->rows, rows = data_rows(d, number);
  bool shuffled = d->options.shuffle && !d->options.batched;
  if (shuffled && d->epoch != epoch) {
    shuffle_init(&d->shuffle, d->options.seed, epoch, d->samples);
    d->epoch = epoch;
  }
  for (int64_t i = 0; i < rows; i++) d->order[i] = shuffled ? shuffle_at(&d->shuffle, begin + i) : begin + i;
  return rows;
}

/* ---- a batch of one input --------------------------------------------------------------------------------- */

static Status does_not_fit(const DataColumn *c, const DataPiece *p, int64_t sample, int64_t element) {
  const unsigned char *at = address(p, sample) + (size_t)element * dtype_size(p->dtype);
  int64_t value;
  Status s = fail(ERR_FILE, "%s: input '%s', sample %lld: a value does not fit %s", p->file->path,
                  c->input->val->name, (long long)(sample - p->first), dtype_name(c->dtype));
  return data_convert(&value, DT_I64, at, p->dtype, 1) < 0
             ? status_at(s, "element %lld is %lld", (long long)element, (long long)value)
             : s;
}

static Status copy_samples(const DataColumn *c, const int64_t *order, int64_t rows, unsigned char *out) {
  for (int64_t r = 0, run; r < rows; r += run) {
    const DataPiece *p = piece_of(c, order[r]);
    run = run_length(p, order + r, rows - r);
    int64_t bad = data_convert(out, c->dtype, address(p, order[r]), p->dtype, run * c->numel);
    if (bad >= 0) return does_not_fit(c, p, order[r] + bad / c->numel, bad % c->numel);
    out += (size_t)(run * c->numel) * dtype_size(c->dtype);
  }
  return OK;
}

/* The batch as it lies in the file; NULL if it does not. */
static unsigned char *as_it_lies(const DataColumn *c, const int64_t *order, int64_t rows) {
  const DataPiece *p = piece_of(c, order[0]);
  size_t align = dtype_size(c->dtype) > 8 ? 8 : dtype_size(c->dtype);
  const unsigned char *at = address(p, order[0]);
  if (p->dtype != c->dtype || c->dtype == DT_BOOL || c->written || (uintptr_t)at % align) return NULL;
  if (!c->numel || c->input->val->type != TY_TENSOR || run_length(p, order, rows) < rows) return NULL;
  return (unsigned char *)(uintptr_t)at;
}

/* Pages come from the disk now and not when the batch is computed with. */
static void touch(const unsigned char *data, size_t bytes) {
  enum { PAGE = 4096 };
  for (size_t i = 0; i < bytes; i += PAGE) (void)*(const volatile unsigned char *)(data + i);
  if (bytes) (void)*(const volatile unsigned char *)(data + bytes - 1);
}

static Status fill_column(Data *d, DataSlot *slot, int i, int64_t rows) {
  const DataColumn *c = &d->columns[i];
  Tensor *t = slot->tensors[i];
  size_t bytes = (size_t)(rows * c->numel) * dtype_size(c->dtype);
  unsigned char *there = as_it_lies(c, d->order, rows);
  if (!d->options.batched) t->size[0] = rows;
  tensor_drop(t);
  if (there) {
    touch(there, bytes);
    slot->lent[i]->data = there;
    slot->lent[i]->size = bytes;
    t->storage = storage_ref(slot->lent[i]);
    return OK;
  }
  if (!slot->own[i]) TRY(storage_new((size_t)(d->rows * c->numel) * dtype_size(c->dtype), &slot->own[i]));
  TRY(copy_samples(c, d->order, rows, slot->own[i]->data));
  t->storage = storage_ref(slot->own[i]);
  if (c->input->val->type != TY_TENSOR) slot->values[c->input - d->inputs] = val_load(c->dtype, slot->own[i]->data);
  return OK;
}

Status data_fill(Data *d, DataSlot *slot, int64_t number) {
  int64_t rows = draw(d, number);
  for (int i = 0; i < d->ncolumns; i++) TRY(fill_column(d, slot, i, rows));
  return OK;
}

/* ---- room ---------------------------------------------------------------------------------------------------- */

Status data_slot_init(Data *d, DataSlot *slot) {
  TRY_NEW(slot->values, arena_new_n(&d->arena, Value, d->ninputs));
  TRY_NEW(slot->tensors, arena_new_n(&d->arena, Tensor *, d->ncolumns));
  TRY_NEW(slot->own, arena_new_n(&d->arena, Storage *, d->ncolumns));
  TRY_NEW(slot->lent, arena_new_n(&d->arena, Storage *, d->ncolumns));
  for (int i = 0; i < d->ncolumns; i++) {
    const DataColumn *c = &d->columns[i];
    int lead = d->options.batched ? 0 : 1;
    int64_t size[MAX_DIMS + 1] = {d->rows};
    memcpy(size + lead, c->size, (size_t)c->ndim * sizeof *size);
    TRY(tensor_meta(&slot->scope, c->dtype, c->ndim + lead, size, &slot->tensors[i]));
    TRY(storage_borrow(NULL, 0, NULL, NULL, &slot->lent[i]));
    slot->values[c->input - d->inputs] = val_tensor(slot->tensors[i]);
  }
  return OK;
}

void data_slot_free(Data *d, DataSlot *slot) {
  scope_clear(&slot->scope);
  for (int i = 0; i < d->ncolumns; i++) {
    if (slot->own) storage_unref(slot->own[i]);
    if (slot->lent) storage_unref(slot->lent[i]);
  }
  status_free(slot->error);
}
