/* rnn.c -- gradients of recurrent layers: one op each (ops/aten/rnn.c). */
#include <stdio.h>
#include <string.h>

#include "ops/vjp.h"

/* X(arguments): X_backward(arguments, result, cotangents of y, h and c) gives the gradients of the tensors of
 * floats, in order.  A cell has no y: its result is h. */
static void vjp_rnn(Vjp *v) {
  const Call *c = v->forward;
  const Schema *s = &c->op->schema;
  Value arg[MAX_PARAMS];
  Tensor **grad, *cot[3] = {NULL};
  char name[96];
  const char *base = strchr(s->name, '.') + 1, *overload = strchr(base, '.');
  bool cell = strstr(base, "_cell") != NULL;
  int n = s->nparams, next = 0, got;
  snprintf(name, sizeof name, "tess.%.*s_backward%s", (int)(overload - base), base, overload);
  for (int i = 0; i < v->nout; i++) cot[i + cell] = v->cotangent[i];
  memcpy(arg, c->arg, (size_t)n * sizeof *arg);
  arg[n++] = F_T(v->out[0]);
  for (int i = 0; i < 3; i++) arg[n++] = cot[i] ? F_T(cot[i]) : val_none();
  if (!v->f.status) v->f.status = op_call_list(v->f.c, name, &grad, &got, arg, n);
  if (v->f.status) return;
  for (TensorWalk w = call_inputs(c); tensor_next(&w);)
    if (dtype_is_float(w.tensor->dtype) && next < got) vjp_give_item(v, w.arg, w.item, grad[next++]);
}

const GradDef grads_rnn[] = {
    GRAD("lstm.input gru.input rnn_tanh.input rnn_relu.input", vjp_rnn, "input hx params result"),
    GRAD("lstm.data gru.data rnn_tanh.data rnn_relu.data", vjp_rnn, "data batch_sizes hx params result"),
    GRAD("lstm_cell.default gru_cell.default rnn_tanh_cell.default rnn_relu_cell.default", vjp_rnn,
         "input hx w_ih w_hh b_ih b_hh result"),
    {0},
};
