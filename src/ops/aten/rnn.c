/* rnn.c -- lstm, gru, rnn_tanh, rnn_relu: whole sequences (.input), packed sequences
 * (.data) and single cells.
 *
 * params holds, for each layer and each direction: w_ih, w_hh, then b_ih, b_hh if there
 * are biases, then w_hr if an LSTM's states are projected.  Row l*directions + d of the
 * states belongs to direction d of layer l.
 *
 * Their gradients, tess.X_backward, take the arguments of X, then its result and the cotangents of its results, and
 * give those of its tensors of floats, in order.  They compute the layers below the last again, and all gates.
 */
#include "kernels/rnn.h"

#include <string.h>

#include "kernels/copy.h"
#include "ops/rule.h"

typedef enum { WHOLE, PACKED, CELL } Form;

typedef struct {
  RnnKind kind;
  Form form;
} Row;

/* A call, whatever its form. */
typedef struct {
  RnnKind kind;
  Form form;
  const Tensor *x, *h, *c; /* input and initial states; c for LSTM */
  bool biases, bidirectional, batch_first, projected;
  int64_t layers, directions;
  int nargs; /* of the forward call; more arguments belong to its gradient */
  int64_t steps, batch, in, hidden, out, rows;
} Problem;

static const char *shape(const Tensor *t, char *buf) { return tensor_describe(t, buf, 96); }

/* Weight `which` (0 w_ih, 1 w_hh, 2 b_ih, 3 b_hh, 4 w_hr) of a layer and direction; NULL
 * if there is none. */
static const Tensor *weight(const Call *c, const Problem *p, int64_t layer, int which) {
  if (p->form == CELL) return which < 4 ? in_tensor(c, 2 + which) : NULL;
  if ((which == 2 || which == 3) && !p->biases) return NULL;
  if (which == 4 && !p->projected) return NULL;
  int each = 2 + 2 * p->biases + p->projected, at = which == 4 && !p->biases ? 2 : which;
  return in_item(c, 2 + (p->form == PACKED), (int)layer * each + at);
}

static Status check_weight(const Call *c, const Tensor *w, const char *name, Dtype d, int ndim, int64_t rows,
                           int64_t columns) {
  char a[96];
  if (w && w->dtype == d && w->ndim == ndim && w->size[0] == rows && (ndim == 1 || w->size[1] == columns))
    return OK;
  return op_fail(c, "%s is %s, must be %s[%lld%s%.0lld]", name, w ? shape(w, a) : "missing", dtype_name(d),
                 (long long)rows, ndim == 2 ? "," : "", (long long)(ndim == 2 ? columns : 0));
}

static Status check_weights(const Call *c, const Problem *p) {
  int64_t width = rnn_gates(p->kind) * p->hidden;
  for (int64_t l = 0; l < p->layers * p->directions; l++) {
    int64_t in = l < p->directions ? p->in : p->out * p->directions;
    bool biases = p->form == CELL ? weight(c, p, l, 2) || weight(c, p, l, 3) : p->biases;
    TRY(check_weight(c, weight(c, p, l, 0), "w_ih", p->x->dtype, 2, width, in));
    TRY(check_weight(c, weight(c, p, l, 1), "w_hh", p->x->dtype, 2, width, p->out));
    if (biases) {
      TRY(check_weight(c, weight(c, p, l, 2), "b_ih", p->x->dtype, 1, width, 0));
      TRY(check_weight(c, weight(c, p, l, 3), "b_hh", p->x->dtype, 1, width, 0));
    }
    if (p->projected) TRY(check_weight(c, weight(c, p, l, 4), "w_hr", p->x->dtype, 2, p->out, p->hidden));
  }
  return OK;
}

static Status check_states(const Call *c, const Problem *p) {
  char a[96];
  for (int i = 0; i < (p->kind == RNN_LSTM ? 2 : 1); i++) {
    const Tensor *s = i ? p->c : p->h;
    int64_t width = i ? p->hidden : p->out;
    bool good = s && s->dtype == p->x->dtype && s->ndim == (p->form == CELL ? p->x->ndim : 3) &&
                s->size[s->ndim - 1] == width;
    if (good && p->form != CELL) good = s->size[0] == p->layers * p->directions && s->size[1] == p->batch;
    if (good && p->form == CELL && s->ndim == 2) good = s->size[0] == p->batch;
    if (!good) {
      return op_fail(c, "state %s is %s; layers %lld, directions %lld, batch %lld, width %lld, dtype %s are needed",
                     i ? "c" : "h", s ? shape(s, a) : "missing", (long long)p->layers, (long long)p->directions,
                     (long long)p->batch, (long long)width, dtype_name(p->x->dtype));
    }
  }
  return OK;
}

static void read_states(const Call *c, int arg, Problem *p) {
  if (c->arg[arg].kind == VAL_TENSORS) {
    p->h = in_count(c, arg) > 0 ? in_item(c, arg, 0) : NULL;
    p->c = in_count(c, arg) > 1 ? in_item(c, arg, 1) : NULL;
  } else {
    p->h = in_tensor(c, arg);
  }
}

static Status read_cell(const Call *c, Problem *p) {
  const Tensor *w = in_tensor(c, 2);
  char a[96];
  if (p->x->ndim < 1 || p->x->ndim > 2) return op_fail(c, "input %s needs one or two dimensions", shape(p->x, a));
  if (!w || w->ndim != 2) return op_fail(c, "w_ih must be a matrix");
  p->layers = p->directions = p->steps = 1;
  p->in = p->x->size[p->x->ndim - 1];
  p->batch = p->rows = p->x->ndim == 2 ? p->x->size[0] : 1;
  p->hidden = p->out = w->size[0] / rnn_gates(p->kind);
  return OK;
}

static Status read_sequence(const Call *c, Problem *p) {
  int packed = p->form == PACKED, first = 3 + packed; /* has_biases is there */
  char a[96];
  p->biases = in_bool(c, first);
  p->layers = in_int(c, first + 1);
  p->bidirectional = in_bool(c, first + 4);
  p->batch_first = !packed && in_bool(c, first + 5);
  p->directions = 1 + p->bidirectional;
  if (in_bool(c, first + 3) && in_float(c, first + 2) > 0 && p->layers > 1) {
    return status_hint(
        op_fail(c, "dropout between layers (p = %g) in training is not supported", in_float(c, first + 2)),
        "export the program in evaluation mode, or with dropout 0");
  }
  if (p->x->ndim != 3 - packed) return op_fail(c, "input %s needs %d dimensions", shape(p->x, a), 3 - packed);
  p->in = p->x->size[2 - packed];
  const Tensor *last = p->kind == RNN_LSTM ? p->c : p->h;
  if (!p->h || !last || p->h->ndim != 3 || last->ndim != 3)
    return op_fail(c, "initial states must have three dimensions");
  p->hidden = last->size[2];
  p->out = p->h->size[2];
  p->projected = p->out != p->hidden;
  p->batch = packed ? p->h->size[1] : p->x->size[p->batch_first ? 0 : 1];
  p->steps = packed ? in_tensor(c, 1)->size[0] : p->x->size[p->batch_first ? 1 : 0];
  p->rows = packed ? p->x->size[0] : p->steps * p->batch;
  if (p->layers < 1 || p->layers > in_count(c, 2 + packed))
    return op_fail(c, "params has %d tensors, which are not those of %lld layers", in_count(c, 2 + packed),
                   (long long)p->layers);
  int64_t each = 2 + 2 * p->biases + p->projected, want = p->layers * p->directions * each;
  if (in_count(c, 2 + packed) != want) {
    return op_fail(c, "params has %d tensors; %lld layers in %lld directions have %lld", in_count(c, 2 + packed),
                   (long long)p->layers, (long long)p->directions, (long long)want);
  }
  return OK;
}

static Status problem(const Call *c, Problem *p) {
  const Row *row = c->op->def->row;
  *p = (Problem){.kind = row->kind, .form = row->form, .x = in_tensor(c, 0), .nargs = row->form == CELL ? 6 : 9};
  if (!p->x || !dtype_is_float(p->x->dtype)) return op_fail(c, "input must be a tensor of floats");
  if (p->form == PACKED && (!in_tensor(c, 1) || in_tensor(c, 1)->dtype != DT_I64 || in_tensor(c, 1)->ndim != 1)) {
    return op_fail(c, "batch_sizes must be i64 with one dimension");
  }
  read_states(c, 1 + (p->form == PACKED), p);
  TRY(p->form == CELL ? read_cell(c, p) : read_sequence(c, p));
  TRY(check_states(c, p));
  return check_weights(c, p);
}

static Status rnn_infer(Call *c) {
  Problem p;
  TRY(problem(c, &p));
  Dtype d = p.x->dtype;
  int64_t width = p.out * p.directions;
  int64_t y[3] = {p.batch_first ? p.batch : p.steps, p.batch_first ? p.steps : p.batch, width},
          packed[2] = {p.rows, width};
  if (p.form == WHOLE) TRY(out_new(c, d, 3, y));
  if (p.form == PACKED) TRY(out_new(c, d, 2, packed));
  TRY(out_new(c, d, p.h->ndim, p.h->size));
  return p.kind == RNN_LSTM ? out_new(c, d, p.c->ndim, p.c->size) : OK;
}

/* ---- running ---------------------------------------------------------------- */

typedef struct {
  Kern *k;
  Dtype d;
} Env;

/* t's elements, contiguous and as e->d: its own memory or a copy. */
static Status elements(const Env *e, const Tensor *t, const void **out) {
  *out = NULL;
  if (!t) return OK;
  View v = tensor_view(t);
  *out = v.data;
  if (t->dtype == e->d && tensor_is_contiguous(t)) return OK;
  int64_t stride[MAX_DIMS];
  void *copy;
  contiguous_strides(t->ndim, t->size, stride);
  TRY_NEW(copy, kern_scratch(e->k, (size_t)tensor_numel(t) * dtype_size(e->d) + 8));
  kernel_copy(e->k, (View){copy, t->size, stride, t->ndim, e->d}, v);
  *out = copy;
  return OK;
}

/* Memory to make a result in: the (contiguous) output's own if it has the dtype. */
static Status room(const Env *e, const Tensor *t, View *out) {
  *out = tensor_view(t);
  if (t->dtype == e->d) return OK;
  out->dtype = e->d;
  TRY_NEW(out->data, kern_scratch(e->k, (size_t)tensor_numel(t) * dtype_size(e->d) + 8));
  return OK;
}

/* Which row is where: see rnn.h. */
static Status lay_rows(const Call *c, const Problem *p, int64_t *first, int64_t *alive, int64_t *row_step) {
  *row_step = p->form == WHOLE && p->batch_first ? p->steps : 1;
  if (p->form != PACKED) {
    for (int64_t t = 0; t < p->steps; t++) first[t] = p->batch_first ? t : t * p->batch, alive[t] = p->batch;
    return OK;
  }
  const Tensor *sizes = in_tensor(c, 1);
  int64_t row = 0;
  for (int64_t t = 0; t < p->steps; t++) {
    alive[t] = ((const int64_t *)tensor_data(sizes))[t * sizes->stride[0]];
    first[t] = row;
    row += alive[t];
    if (alive[t] < 0 || alive[t] > (t ? alive[t - 1] : p->batch))
      return op_fail(c, "batch_sizes must not grow, nor exceed the batch");
  }
  return row == p->rows
             ? OK
             : op_fail(c, "batch_sizes sum up to %lld, the data has %lld rows", (long long)row, (long long)p->rows);
}

static Status layer_weights(const Call *c, const Problem *p, const Env *e, int64_t at, RnnLayer *l) {
  TRY(elements(e, weight(c, p, at, 0), &l->w_ih));
  TRY(elements(e, weight(c, p, at, 1), &l->w_hh));
  TRY(elements(e, weight(c, p, at, 2), &l->b_ih));
  TRY(elements(e, weight(c, p, at, 3), &l->b_hh));
  return elements(e, weight(c, p, at, 4), &l->w_hr);
}

/* Layer after layer: l has what they share; h, c: all states; y[i + 1]: where the output of layer i goes. */
static Status run_layers(const Call *c, const Problem *p, const Env *e, RnnLayer l, char *h, char *cells,
                         const void **y) {
  size_t item = dtype_size(e->d);
  int64_t width = p->out * p->directions;
  l.y_width = width;
  for (int64_t layer = 0; layer < p->layers; layer++) {
    void *to = (void *)(uintptr_t)y[layer + 1];
    l.in = layer ? width : p->in;
    for (int64_t d = 0; d < p->directions; d++) {
      int64_t at = layer * p->directions + d;
      l.reverse = d == 1;
      TRY(layer_weights(c, p, e, at, &l));
      l.h = h + (size_t)(at * p->batch * p->out) * item;
      l.c = cells ? cells + (size_t)(at * p->batch * p->hidden) * item : NULL;
      l.y = (char *)to + (size_t)(d * p->out) * item;
      TRY(rnn_layer(e->k, e->d, &l));
    }
    l.x = to;
  }
  return OK;
}

/* y[1 .. layers]: memory for the outputs of layers, the last one's own if it has some. */
static Status output_rooms(const Problem *p, const Env *e, const void *last, const void ***out) {
  const void **y;
  void *to;
  TRY_NEW(y, kern_scratch(e->k, (size_t)(p->layers + 1) * sizeof *y));
  y[0] = NULL;
  for (int64_t layer = 1; layer <= p->layers; layer++) {
    y[layer] = last;
    if (layer == p->layers && last) break;
    TRY_NEW(to, kern_scratch(e->k, (size_t)(p->rows * p->out * p->directions) * dtype_size(e->d) + 8));
    y[layer] = to;
  }
  *out = y;
  return OK;
}

static Status run_problem(const Call *c, const Problem *p, const Env *e) {
  int states = p->form == CELL ? 0 : 1; /* the output before them */
  const Tensor *ht = out_tensor(c, states), *ct = p->kind == RNN_LSTM ? out_tensor(c, states + 1) : NULL;
  RnnLayer l = {.kind = p->kind, .steps = p->steps, .rows = p->rows, .hidden = p->hidden, .out = p->out};
  View h, cell = {0}, y = {0};
  int64_t *first, *alive;
  TRY_NEW(first, kern_scratch(e->k, (size_t)(2 * p->steps + 1) * sizeof *first));
  alive = first + p->steps;
  TRY(lay_rows(c, p, first, alive, &l.row_step));
  l.first = first;
  l.alive = alive;
  TRY(elements(e, p->x, &l.x));
  TRY(room(e, ht, &h));
  kernel_copy(e->k, h, tensor_view(p->h));
  if (ct) {
    TRY(room(e, ct, &cell));
    kernel_copy(e->k, cell, tensor_view(p->c));
  }
  const void **outputs;
  if (states) TRY(room(e, out_tensor(c, 0), &y)); /* a cell's output is its state */
  TRY(output_rooms(p, e, y.data, &outputs));
  TRY(run_layers(c, p, e, l, h.data, cell.data, outputs));
  if (e->d == ht->dtype) return OK;
  if (states) kernel_copy(e->k, out_view_of(c, 0), y);
  kernel_copy(e->k, tensor_view(ht), h);
  if (ct) kernel_copy(e->k, tensor_view(ct), cell);
  return OK;
}

typedef Status RunFn(const Call *c, const Problem *p, const Env *e);

static Status run_with(Call *c, RunFn *run) {
  Problem p;
  TRY(problem(c, &p));
  Env e = {&c->ctx->kern, p.x->dtype == DT_F64 ? DT_F64 : DT_F32};
  size_t mark = kern_mark(e.k);
  Status s = run(c, &p, &e);
  kern_release(e.k, mark);
  return s;
}

static Status rnn_run(Call *c) { return run_with(c, run_problem); }

/* ---- gradients ---------------------------------------------------------------- */

/* Arguments behind those of the forward call. */
enum { RESULT, GRAD_Y, GRAD_H, GRAD_C };

/* Where the gradient of a weight stands among the results; after those of the input and of the states. */
static int weight_result(const Problem *p, int64_t layer, int which) {
  int states = p->kind == RNN_LSTM ? 3 : 2, each = 2 + 2 * p->biases + p->projected;
  if (p->form == CELL) return states + which;
  return states + (int)layer * each + (which == 4 && !p->biases ? 2 : which);
}

static Status grad_infer(Call *c) {
  Problem p;
  char a[96];
  TRY(problem(c, &p));
  Dtype d = p.x->dtype;
  const Tensor *y = in_tensor(c, p.nargs + RESULT);
  int64_t want = p.rows * p.out * p.directions;
  const Tensor *cot[] = {y, in_tensor(c, p.nargs + GRAD_Y), in_tensor(c, p.nargs + GRAD_H),
                         in_tensor(c, p.nargs + GRAD_C)};
  for (int i = 0; i < 4; i++) {
    const Tensor *state = i == 2 || !p.c ? p.h : p.c;
    bool fits = !cot[i] ||
                (cot[i]->dtype == d && (i < 2 ? tensor_numel(cot[i]) == want : tensor_same_size(cot[i], state)));
    if (!fits)
      return op_fail(c, "'%s' is %s, which does not go with the input", c->op->schema.params[p.nargs + i].name,
                     shape(cot[i], a));
  }
  TRY(out_new(c, d, p.x->ndim, p.x->size));
  TRY(out_new(c, d, p.h->ndim, p.h->size));
  if (p.kind == RNN_LSTM) TRY(out_new(c, d, p.c->ndim, p.c->size));
  for (int64_t l = 0; l < p.layers * p.directions; l++)
    for (int which = 0; which < 5; which++) {
      const Tensor *w = weight(c, &p, l, which);
      if (w) TRY(out_new(c, d, w->ndim, w->size));
    }
  return OK;
}

/* The states as they begin, in memory that may be written to. */
static Status copy_of(const Env *e, const Tensor *t, int64_t *stride, char **out) {
  *out = NULL;
  if (!t) return OK;
  contiguous_strides(t->ndim, t->size, stride);
  TRY_NEW(*out, kern_scratch(e->k, (size_t)tensor_numel(t) * dtype_size(e->d) + 8));
  kernel_copy(e->k, (View){*out, t->size, stride, t->ndim, e->d}, tensor_view(t));
  return OK;
}

/* The outputs of all layers, computed again but for the last, whose output is known. */
static Status outputs_again(const Call *c, const Problem *p, const Env *e, RnnLayer l, const void ***y) {
  const void *last;
  char *h, *cell;
  int64_t stride[MAX_DIMS];
  TRY(elements(e, in_tensor(c, p->nargs + RESULT), &last));
  TRY(output_rooms(p, e, last, y));
  (*y)[0] = l.x;
  if (p->layers == 1) return OK;
  TRY(copy_of(e, p->h, stride, &h));
  TRY(copy_of(e, p->kind == RNN_LSTM ? p->c : NULL, stride, &cell));
  Problem below = *p;
  below.layers--;
  return run_layers(c, &below, e, l, h, cell, *y);
}

/* One layer and direction: states and gradients of the whole network, of which it has its part. */
typedef struct {
  const void *h, *c; /* initial states */
  char *dh, *dc, *dx;
  const char *dy; /* of the layer's output, both directions; NULL: zero */
  View *grad;     /* of all results */
} Back;

static Status direction_back(const Call *c, const Problem *p, const Env *e, RnnLayer *l, const void *y,
                             const Back *back, int64_t layer, int64_t direction) {
  size_t item = dtype_size(e->d);
  int64_t at = layer * p->directions + direction;
  size_t h = (size_t)(at * p->batch * p->out) * item, cell = (size_t)(at * p->batch * p->hidden) * item,
         column = (size_t)(direction * p->out) * item;
  void *w[5];
  l->reverse = direction == 1;
  TRY(layer_weights(c, p, e, at, l));
  l->h = (char *)(uintptr_t)back->h + h;
  l->c = back->c ? (char *)(uintptr_t)back->c + cell : NULL;
  l->y = (char *)(uintptr_t)y + column;
  for (int which = 0; which < 5; which++)
    w[which] = weight(c, p, at, which) ? back->grad[weight_result(p, at, which)].data : NULL;
  RnnGrad g = {.y = back->dy ? back->dy + column : NULL,
               .h = back->dh + h,
               .c = back->dc ? back->dc + cell : NULL,
               .x = back->dx,
               .w_ih = w[0],
               .w_hh = w[1],
               .b_ih = w[2],
               .b_hh = w[3],
               .w_hr = w[4]};
  return rnn_layer_grad(e->k, e->d, l, &g);
}

static Status layers_back(const Call *c, const Problem *p, const Env *e, RnnLayer l, const void *const *y,
                          Back *back) {
  size_t item = dtype_size(e->d);
  l.y_width = p->out * p->directions;
  for (int64_t layer = p->layers - 1; layer >= 0; layer--) {
    l.in = layer ? l.y_width : p->in;
    l.x = y[layer];
    back->dx = back->grad[0].data;
    if (layer) TRY_NEW(back->dx, kern_scratch(e->k, (size_t)(p->rows * l.in) * item + 8));
    memset(back->dx, 0, (size_t)(p->rows * l.in) * item);
    for (int64_t d = 0; d < p->directions; d++) TRY(direction_back(c, p, e, &l, y[layer + 1], back, layer, d));
    back->dy = back->dx;
  }
  return OK;
}

/* The cotangent of a state, or zeros. */
static void begin_state(const Env *e, View to, const Tensor *from) {
  const uint64_t zero = 0;
  if (from) kernel_copy(e->k, to, (View){tensor_view(from).data, to.size, from->stride, to.ndim, from->dtype});
  else kernel_fill(e->k, to, &zero);
}

static Status grad_problem(const Call *c, const Problem *p, const Env *e) {
  RnnLayer l = {.kind = p->kind, .steps = p->steps, .rows = p->rows, .hidden = p->hidden, .out = p->out};
  int64_t *first;
  const void **y, *dy;
  Back back = {0};
  TRY_NEW(first, kern_scratch(e->k, (size_t)(2 * p->steps + 1) * sizeof *first));
  TRY(lay_rows(c, p, first, first + p->steps, &l.row_step));
  l.first = first;
  l.alive = first + p->steps;
  TRY_NEW(back.grad, kern_scratch(e->k, (size_t)c->nout * sizeof *back.grad));
  for (int i = 0; i < c->nout; i++) TRY(room(e, out_tensor(c, i), &back.grad[i]));
  TRY(elements(e, p->x, &l.x));
  TRY(elements(e, p->h, &back.h));
  TRY(elements(e, p->kind == RNN_LSTM ? p->c : NULL, &back.c));
  TRY(elements(e, in_tensor(c, p->nargs + GRAD_Y), &dy));
  back.dy = dy;
  TRY(outputs_again(c, p, e, l, &y));
  begin_state(e, back.grad[1], in_tensor(c, p->nargs + GRAD_H));
  back.dh = back.grad[1].data;
  if (p->kind == RNN_LSTM) begin_state(e, back.grad[2], in_tensor(c, p->nargs + GRAD_C));
  if (p->kind == RNN_LSTM) back.dc = back.grad[2].data;
  TRY(layers_back(c, p, e, l, y, &back));
  for (int i = 0; i < c->nout; i++)
    if (out_tensor(c, i)->dtype != e->d) kernel_copy(e->k, out_view_of(c, i), back.grad[i]);
  return OK;
}

static Status grad_run(Call *c) { return run_with(c, grad_problem); }

static double rnn_flops(const Call *c) {
  Problem p;
  Status s = problem(c, &p);
  if (s) return status_free(s), 0;
  double weights = 0;
  for (int64_t l = 0; l < p.layers * p.directions; l++) {
    for (int which = 0; which < 5; which++) {
      const Tensor *w = weight(c, &p, l, which);
      if (w && w->ndim == 2) weights += (double)tensor_numel(w);
    }
  }
  return 2 * weights * (double)p.rows;
}

/* Gates again, then two products where forward has one. */
static double grad_flops(const Call *c) { return 3 * rnn_flops(c); }

/* ---- sharding: rows of the batch go by themselves ------------------------------------------- */

/* The dimension of the batch in what belongs to an argument of this name; -1: it has none. */
static int batch_dim(const Rules *r, const Row *row, const char *name) {
  const char *const rows[] = {"input", "result", "grad_y"}, *const states[] = {"hx", "grad_h", "grad_c"};
  int first = row->form == WHOLE && !in_bool(r->call, schema_find(&r->call->op->schema, "batch_first"));
  for (int i = 0; i < 3; i++) {
    if (!strcmp(name, rows[i])) return first;
    if (!strcmp(name, states[i])) return row->form == WHOLE;
  }
  return -1;
}

static Status rnn_place(Rules *r) {
  const Row *row = r->call->op->def->row;
  const Schema *s = &r->call->op->schema;
  bool backward = schema_find(s, "result") >= 0;
  Placement *p;
  int next = 0;
  if (row->form == PACKED || (row->form == CELL && r->in[0]->ndim != 2)) return OK;
  r->uneven = true;
  TRY_NEW(p, arena_new_n(r->arena, Placement, r->nout + r->nin));
  for (TensorWalk w = call_inputs(r->call); tensor_next(&w);) {
    int dim = batch_dim(r, row, s->params[w.arg].name);
    Placement *in = &p[r->nout + w.flat];
    *in = dim < 0 ? place_r() : place_s(dim);
    if (backward && next < r->nout) p[next++] = dim < 0 ? place_p(REDUCE_SUM) : *in;
  }
  for (int i = 0; !backward && i < r->nout; i++) p[i] = place_s(batch_dim(r, row, i ? "hx" : "input"));
  return rule_axis(r, p);
}

/* clang-format off */
#define BACK ", Tensor result, Tensor? grad_y=None, Tensor? grad_h=None, Tensor? grad_c=None) -> Tensor[]"
#define RNN(name, back, args, returns, kind_, form_) \
  {.schema = "aten::" name args ") -> " returns, .infer = rnn_infer, .run = rnn_run, .flops = rnn_flops, \
    .shard.place = rnn_place, .row = &(const Row){kind_, form_}}, \
  {.schema = "tess::" back args BACK, .infer = grad_infer, .run = grad_run, .flops = grad_flops, \
    .shard.place = rnn_place, .row = &(const Row){kind_, form_}}
#define SEQUENCE(name, kind_, state, returns) \
  RNN(name ".input", name "_backward.input", "(Tensor input, " state " hx, Tensor[] params, bool has_biases, int " \
    "num_layers, float dropout, bool train, bool bidirectional, bool batch_first", returns, kind_, WHOLE), \
  RNN(name ".data", name "_backward.data", "(Tensor data, Tensor batch_sizes, " state " hx, Tensor[] params, bool " \
    "has_biases, int num_layers, float dropout, bool train, bool bidirectional", returns, kind_, PACKED)
#define ONE_CELL(name, kind_, state, returns) \
  RNN(name "_cell", name "_cell_backward", "(Tensor input, " state " hx, Tensor w_ih, Tensor w_hh, Tensor? " \
    "b_ih=None, Tensor? b_hh=None", returns, kind_, CELL)
/* clang-format on */

const OpDef ops_rnn[] = {
    SEQUENCE("lstm", RNN_LSTM, "Tensor[]", "(Tensor, Tensor, Tensor)"),
    SEQUENCE("gru", RNN_GRU, "Tensor", "(Tensor, Tensor)"),
    SEQUENCE("rnn_tanh", RNN_TANH, "Tensor", "(Tensor, Tensor)"),
    SEQUENCE("rnn_relu", RNN_RELU, "Tensor", "(Tensor, Tensor)"),
    ONE_CELL("lstm", RNN_LSTM, "Tensor[]", "(Tensor, Tensor)"),
    ONE_CELL("gru", RNN_GRU, "Tensor", "Tensor"),
    ONE_CELL("rnn_tanh", RNN_TANH, "Tensor", "Tensor"),
    ONE_CELL("rnn_relu", RNN_RELU, "Tensor", "Tensor"),
    {0},
};
