/* assert_tensors.c -- makes checks of numbers that were read out of tensors checks of tensors.
 *
 *   before:  %m = max(%i)  %n = item(%m)  %ok = _operator.le(%n, 9)  _assert_scalar(%ok, "too large")
 *   after:   %m = max(%i)  %nine = full([], 9)  %ok = le(%m, %nine)  _assert_async.msg(%ok, "too large")
 *
 * torch._check(x.max().item() < n) and torch_compilable_check leave such chains in programs.  A number that is
 * known only when the program runs would make the whole program data-dependent: interpreted, and no rank files.
 * As tensors without dimensions the chain is compiled like everything else, and the check is an effect that
 * fails when the program runs, with its message.
 *
 * A1  A number becomes a tensor of its class: bool, i64 or f64, which hold what item() gives exactly.
 * A2  Left alone: numbers that something else needs too (a size, an output), for then the program depends on
 *     data anyway; and ops that can fail by themselves (division by what is not a constant, float to int).
 * A3  Integers are of 64 bits: a sum beyond wraps around, where Python's grows.
 * A4  Checks of metadata go where the program itself says what they ask for: they would keep values alive that
 *     other passes find a better way to.
 */
#include <stdlib.h>

#include "passes/pass.h"

typedef enum { CLASS_NONE, CLASS_BOOL, CLASS_INT, CLASS_FLOAT } Class; /* in the order of promotion */

static const Dtype class_dtype[] = {[CLASS_BOOL] = DT_BOOL, [CLASS_INT] = DT_I64, [CLASS_FLOAT] = DT_F64};

/* What a number of the program is. */
typedef struct {
  Class is;
  bool data;   /* it comes out of a tensor */
  bool needed; /* by something that takes numbers only */
  bool stays;  /* one of the numbers it is made of is needed */
  bool wanted; /* by an assertion that is about to become one on tensors */
  Val *tensor; /* in its place */
} Number;

typedef struct {
  Graph *g;
  Number *number; /* by Val.id, of the values before the pass */
  int nnumbers;
  int count; /* assertions converted */
} State;

/* ---- ops on numbers, and what they are on tensors ------------------------------------------------ */

typedef enum {
  HOW_ARITHMETIC, /* bools count as ints */
  HOW_DIVISION,   /* the same, by a constant that is not 0 */
  HOW_QUOTIENT,   /* ... as floats */
  HOW_COMPARISON, /* gives a bool */
  HOW_BITS,       /* bools or ints */
  HOW_EXTREME,    /* ints: nan is another matter */
  HOW_NOT,
  HOW_FLOAT, /* a cast */
  HOW_SAME,
  HOW_CHOICE, /* condition, a, b */
} How;

typedef struct {
  const char *number, *tensor;
  How how;
  const char *mode; /* a third argument, as text */
} Row;

static const Row rows[] = {
    {"_operator.add", "aten.add.Tensor", HOW_ARITHMETIC, NULL},
    {"_operator.sub", "aten.sub.Tensor", HOW_ARITHMETIC, NULL},
    {"_operator.mul", "aten.mul.Tensor", HOW_ARITHMETIC, NULL},
    {"_operator.neg", "aten.neg.default", HOW_ARITHMETIC, NULL},
    {"_operator.floordiv", "aten.div.Tensor_mode", HOW_DIVISION, "floor"},
    {"_operator.mod", "aten.remainder.Tensor", HOW_DIVISION, NULL},
    {"_operator.truediv", "aten.div.Tensor", HOW_QUOTIENT, NULL},
    {"_operator.eq", "aten.eq.Tensor", HOW_COMPARISON, NULL},
    {"_operator.ne", "aten.ne.Tensor", HOW_COMPARISON, NULL},
    {"_operator.lt", "aten.lt.Tensor", HOW_COMPARISON, NULL},
    {"_operator.le", "aten.le.Tensor", HOW_COMPARISON, NULL},
    {"_operator.gt", "aten.gt.Tensor", HOW_COMPARISON, NULL},
    {"_operator.ge", "aten.ge.Tensor", HOW_COMPARISON, NULL},
    {"_operator.and_", "aten.bitwise_and.Tensor", HOW_BITS, NULL},
    {"_operator.or_", "aten.bitwise_or.Tensor", HOW_BITS, NULL},
    {"_operator.xor", "aten.bitwise_xor.Tensor", HOW_BITS, NULL},
    {"torch.sym_max", "aten.maximum.default", HOW_EXTREME, NULL},
    {"torch.sym_min", "aten.minimum.default", HOW_EXTREME, NULL},
    {"_operator.not_", "aten.logical_not.default", HOW_NOT, NULL},
    {"torch.sym_not", "aten.logical_not.default", HOW_NOT, NULL},
    {"torch.sym_float", NULL, HOW_FLOAT, NULL},
    {"_operator.pos", NULL, HOW_SAME, NULL},
    {"torch.sym_ite", "aten.where.self", HOW_CHOICE, NULL},
};

static const Row *row_of(const Node *n) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (node_is(n, rows[i].number)) return &rows[i];
  return NULL;
}

static bool is_item(const Node *n) {
  return node_is(n, "aten.item.default") || node_is(n, "aten._local_scalar_dense.default");
}

/* ---- classes ----------------------------------------------------------------------------------- */

static Class class_of_dtype(Dtype d) {
  if (d == DT_NONE) return CLASS_NONE;
  return d == DT_BOOL ? CLASS_BOOL : dtype_is_int(d) ? CLASS_INT : dtype_is_float(d) ? CLASS_FLOAT : CLASS_NONE;
}

static Class class_of_type(ValType t) {
  return t == TY_BOOL ? CLASS_BOOL : t == TY_INT ? CLASS_INT : t == TY_FLOAT ? CLASS_FLOAT : CLASS_NONE;
}

static Class class_of(const State *s, const Arg *a) {
  switch (a->kind) {
    case ARG_BOOL: return CLASS_BOOL;
    case ARG_INT: return CLASS_INT;
    case ARG_FLOAT: return CLASS_FLOAT;
    case ARG_VAL: return s->number[a->val->id].is;
    default: return CLASS_NONE;
  }
}

static bool is_data(const State *s, const Arg *a) { return a->kind == ARG_VAL && s->number[a->val->id].data; }

static bool is_not_zero(const Arg *a) {
  return (a->kind == ARG_INT && a->i != 0) || (a->kind == ARG_FLOAT && a->f != 0);
}

/* The class in which the operands meet; CLASS_NONE: they cannot be tensors. */
static Class meet(const State *s, const Node *n, const Row *row) {
  bool counts = row->how == HOW_ARITHMETIC || row->how == HOW_DIVISION || row->how == HOW_EXTREME;
  Class c = counts ? CLASS_INT : CLASS_BOOL;
  for (int i = 0; i < n->nargs; i++) {
    Class a = class_of(s, &n->args[i]);
    if (a == CLASS_NONE) return CLASS_NONE;
    if (a > c && !(row->how == HOW_CHOICE && i == 0)) c = a;
  }
  bool divides = row->how == HOW_DIVISION || row->how == HOW_QUOTIENT;
  if (divides && !is_not_zero(&n->args[1])) return CLASS_NONE;
  if ((row->how == HOW_BITS || row->how == HOW_EXTREME) && c == CLASS_FLOAT) return CLASS_NONE;
  return row->how == HOW_QUOTIENT || row->how == HOW_FLOAT ? CLASS_FLOAT : c;
}

/* What the row's result is if its operands meet in c. */
static Class result(const Row *row, Class c) {
  if (c == CLASS_NONE) return c;
  return row->how == HOW_COMPARISON || row->how == HOW_NOT ? CLASS_BOOL : c;
}

/* ---- assertions ---------------------------------------------------------------------------------- */

typedef struct {
  const char *target;
  bool range; /* (number, min, max) instead of (truth, message) */
  bool has_least;
  int64_t least; /* where the call gives no min */
  int token;     /* argument that the call passes on; 0: none */
} Assertion;

static const Assertion assertions[] = {
    {"aten._assert_scalar.default", .range = false},
    {"aten._functional_assert_scalar.default", .token = 2},
    {"aten.sym_constrain_range.default", .range = true},
    {"aten.sym_constrain_range_for_size.default", .range = true, .has_least = true},
    {"aten._functional_sym_constrain_range.default", .range = true, .token = 3},
    {"aten._functional_sym_constrain_range_for_size.default", .range = true, .has_least = true, .token = 3},
};

static bool is_bound(const Arg *a) { return a->kind == ARG_INT || a->kind == ARG_NONE || a->kind == ARG_UNSET; }

/* The assertion that n is, if it is on data and can be one on tensors. */
static const Assertion *assertion_of(const State *s, const Node *n) {
  for (size_t i = 0; i < sizeof assertions / sizeof *assertions; i++) {
    const Assertion *a = &assertions[i];
    if (!node_is(n, a->target) || !is_data(s, &n->args[0])) continue;
    Class c = class_of(s, &n->args[0]);
    bool fits = a->range ? (c == CLASS_BOOL || c == CLASS_INT) && is_bound(&n->args[1]) && is_bound(&n->args[2])
                         : c != CLASS_NONE && n->args[1].kind == ARG_STR;
    return fits ? a : NULL;
  }
  return NULL;
}

/* ---- who needs what ----------------------------------------------------------------------------------- */

/* Classes, and what comes out of tensors. */
static void classify(State *s) {
  for (int i = 0; i < s->g->ninputs; i++) s->number[s->g->inputs[i]->id].is = class_of_type(s->g->inputs[i]->type);
  for (Node *n = s->g->first; n; n = n->next) {
    for (int i = 0; i < n->nouts; i++) s->number[n->outs[i]->id].is = class_of_type(n->outs[i]->type);
    if (n->nouts != 1 || n->outs[0]->type == TY_TENSOR) continue;
    Number *out = &s->number[n->outs[0]->id];
    const Row *row = row_of(n);
    if (is_item(n)) {
      bool tensor = n->args[0].kind == ARG_VAL && n->args[0].val->type == TY_TENSOR;
      out->data = true;
      out->is = tensor ? class_of_dtype(n->args[0].val->dtype) : CLASS_NONE;
      continue;
    }
    for (int i = 0; i < n->nargs; i++) out->data |= is_data(s, &n->args[i]);
    if (out->data) out->is = row ? result(row, meet(s, n, row)) : CLASS_NONE;
  }
}

static void need(void *ctx, Val **ref) { ((State *)ctx)->number[(*ref)->id].needed = true; }
static void want(void *ctx, Val **ref) { ((State *)ctx)->number[(*ref)->id].wanted = true; }

/* A2 */
static void find_needed(State *s) {
  for (int i = 0; i < s->g->noutputs; i++) arg_each_val(&s->g->outputs[i], need, s);
  for (Node *n = s->g->last; n; n = n->prev) {
    const Number *out = n->nouts == 1 ? &s->number[n->outs[0]->id] : NULL;
    bool converts = assertion_of(s, n) || (out && out->data && out->is != CLASS_NONE && !out->needed);
    if (!converts) node_each_val(n, need, s);
  }
  for (Node *n = s->g->first; n; n = n->next) {
    Number *out = n->nouts == 1 ? &s->number[n->outs[0]->id] : NULL;
    if (!out || !out->data) continue;
    out->stays = out->needed;
    for (int i = 0; i < n->nargs; i++)
      if (is_data(s, &n->args[i])) out->stays |= s->number[n->args[i].val->id].stays;
  }
}

/* Values that an assertion on tensors will ask for. */
static bool find_wanted(State *s) {
  bool any = false;
  for (Node *n = s->g->last; n; n = n->prev) {
    bool asserts = assertion_of(s, n) && !s->number[n->args[0].val->id].stays;
    const Number *out = n->nouts == 1 ? &s->number[n->outs[0]->id] : NULL;
    if (asserts || (out && out->data && out->wanted)) node_each_val(n, want, s);
    any |= asserts;
  }
  return any;
}

/* ---- making tensors ------------------------------------------------------------------------------------- */

static Status emit(State *s, Node *at, const char *target, const Arg *args, int nargs, Class c, Val **out) {
  Node *n;
  TRY(graph_emit_like(s->g, at, at, target, args, nargs, &n));
  TRY(node_add_out(n, at->nouts ? at->outs[0]->name : "check", TY_TENSOR, out));
  (*out)->dtype = class_dtype[c];
  (*out)->ndim = 0;
  return OK;
}

static Status cast(State *s, Node *at, Val *v, Class c, Val **out) {
  *out = v;
  if (v->dtype == class_dtype[c]) return OK;
  return emit(s, at, "aten.to.dtype", (const Arg[]){arg_val(v), arg_dtype(class_dtype[c])}, 2, c, out);
}

/* An operand as a tensor of class c. */
static Status operand(State *s, Node *at, const Arg *a, Class c, Val **out) {
  if (is_data(s, a)) return cast(s, at, s->number[a->val->id].tensor, c, out);
  return emit(s, at, "aten.full.default", (const Arg[]){arg_list(NULL, 0), *a, arg_dtype(class_dtype[c])}, 3, c,
              out);
}

static Status convert_item(State *s, Node *n, Number *number) {
  Val *v = n->args[0].val;
  if (v->ndim != 0) {
    Dtype dtype = v->dtype;
    TRY(emit(s, n, "aten.reshape.default", (const Arg[]){arg_val(v), arg_list(NULL, 0)}, 2, number->is, &v));
    v->dtype = dtype;
  }
  return cast(s, n, v, number->is, &number->tensor);
}

static Status convert_number(State *s, Node *n, Number *number) {
  if (is_item(n)) return convert_item(s, n, number);
  const Row *row = row_of(n);
  Class c = meet(s, n, row);
  Arg args[4];
  int nargs = 0;
  for (; nargs < n->nargs && nargs < 3; nargs++) {
    Val *v;
    Class mine = row->how == HOW_CHOICE && nargs == 0 ? CLASS_BOOL : c;
    TRY(operand(s, n, &n->args[nargs], mine, &v));
    args[nargs] = arg_val(v);
  }
  if (!row->tensor) return number->tensor = args[0].val, OK;
  if (row->mode) args[nargs++] = arg_str(row->mode);
  return emit(s, n, row->tensor, args, nargs, number->is, &number->tensor);
}

static Status check(State *s, Node *n, Val *truth, const char *message) {
  Node *f;
  return graph_emit_like(s->g, n, n, "aten._assert_async.msg", (const Arg[]){arg_val(truth), arg_str(message)}, 2,
                         &f);
}

static Status check_bound(State *s, Node *n, Val *v, int64_t bound, const char *target, const char *word) {
  Val *limit, *truth;
  const char *message;
  TRY_NEW(message,
          arena_printf(s->g->arena, "%s: the number should be at %s %lld", n->target, word, (long long)bound));
  Arg number = arg_int(bound);
  TRY(operand(s, n, &number, CLASS_INT, &limit));
  TRY(emit(s, n, target, (const Arg[]){arg_val(v), arg_val(limit)}, 2, CLASS_BOOL, &truth));
  return check(s, n, truth, message);
}

static Status convert_assertion(State *s, Node *n, const Assertion *a) {
  Val *v;
  const Arg *min = &n->args[1], *max = &n->args[2];
  TRY(operand(s, n, &n->args[0], a->range ? CLASS_INT : class_of(s, &n->args[0]), &v));
  if (!a->range) TRY(check(s, n, v, n->args[1].str));
  bool low = a->range && (min->kind == ARG_INT || a->has_least), high = a->range && max->kind == ARG_INT;
  if (low) TRY(check_bound(s, n, v, min->kind == ARG_INT ? min->i : a->least, "aten.ge.Tensor", "least"));
  if (high) TRY(check_bound(s, n, v, max->i, "aten.le.Tensor", "most"));
  if (n->nouts) n->outs[0]->forward = n->args[a->token].val;
  node_remove(n);
  s->count++;
  return OK;
}

/* ---- the pass ----------------------------------------------------------------------------------------------- */

static void unuse(void *ctx, Val **ref) {
  (void)ctx;
  (*ref)->mark--;
}

/* Numbers that nobody asks for any more, and `item`: dce leaves sub-graphs alone. */
static void remove_numbers(State *s) {
  graph_count_uses(s->g);
  for (Node *n = s->g->last, *prev; n; n = prev) {
    prev = n->prev;
    const Val *out = n->nouts == 1 ? n->outs[0] : NULL;
    if (!out || out->mark || out->id >= s->nnumbers || !s->number[out->id].data) continue;
    node_each_val(n, unuse, NULL);
    node_remove(n);
  }
}

static Status convert(State *s) {
  classify(s);
  find_needed(s);
  if (!find_wanted(s)) return OK;
  for (Node *n = s->g->first, *next; n; n = next) {
    next = n->next;
    Number *out = n->nouts == 1 ? &s->number[n->outs[0]->id] : NULL;
    const Assertion *a = assertion_of(s, n);
    if (a && !s->number[n->args[0].val->id].stays) TRY(convert_assertion(s, n, a));
    else if (out && out->data && out->wanted && !out->stays) TRY(convert_number(s, n, out));
  }
  graph_forward(s->g);
  remove_numbers(s);
  return OK;
}

/* What _assert_tensor_metadata asks for (strides are not checked) is what is noted of the result of a node. */
static bool is_known(const Node *n) {
  if (!node_is(n, "aten._assert_tensor_metadata.default") || n->args[0].kind != ARG_VAL) return false;
  const Val *v = n->args[0].val;
  const Arg *size = &n->args[1], *dtype = &n->args[3];
  const bool any_size = size->kind == ARG_UNSET || size->kind == ARG_NONE,
             any_dtype = dtype->kind == ARG_UNSET || dtype->kind == ARG_NONE;
  return v->node && any_size && (any_dtype || (dtype->kind == ARG_DTYPE && dtype->dtype == v->dtype));
}

static void remove_known(Graph *g) {
  for (Node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (is_known(n)) node_remove(n);
  }
}

static Status convert_graph(Graph *g, int *count) {
  for (Node *n = g->first; n; n = n->next)
    for (int i = 0; i < n->nargs; i++)
      if (n->args[i].kind == ARG_GRAPH) TRY(convert_graph(n->args[i].graph, count));
  if (!graph_is_functional(g)) return OK;
  remove_known(g);
  State s = {.g = g, .nnumbers = g->nvals};
  TRY_NEW(s.number, calloc((size_t)g->nvals + 1, sizeof *s.number));
  Status status = convert(&s);
  free(s.number);
  *count += s.count;
  return status;
}

Status pass_assert_tensors(Exported *e, const PassArgs *args) {
  int count = 0;
  TRY(convert_graph(e->graph, &count));
  if (args->stats) text_printf(args->stats, "assert_tensors: %d assertions converted\n", count);
  return OK;
}
