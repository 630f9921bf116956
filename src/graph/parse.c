/* parse.c -- reads the text form of programs, which print.c writes.
 *
 *   program  program "name" [torch "version"] [dialect WORD] {symbol} [specs]
 *            graph( {input,} ) { {node} return {output,} }
 *   symbol   symbol NAME in [MIN, MAX] [hint N]                  -inf and inf: no bound
 *   specs    [in_spec "..."] [out_spec "..."] [namedtuples "..."] [arg_names ["a", ...]]
 *   input    %x: TYPE = user | token | parameter "fqn" [frozen] | tensor_constant "fqn"
 *                     | buffer "fqn" [non_persistent] | constant ARG
 *   node     [results =] TARGET( {ARG,} {name=ARG,} ) [part] [!{"key": "value", ...}]
 *   part     part([SIZE,...], "PLACEMENTS", [AXIS,...], [COORDINATE,...], DRAWS)   of a larger tensor: Node.shard
 *   results  %x: TYPE {, %y: TYPE} | [ {%x: TYPE,} ]             [ ]: a list, of an op we do not know
 *   output   user ARG | loss ARG | token ARG | KIND "target" ARG
 *   TYPE     f32[2,s0] | f32[2,3]{1,2} | tensor | int | int(s0) | float | bool | none
 *            and, ignored, @N behind it: where assign_memory put it
 *   ARG      %x | 3 | 2.5 | inf | nan | true | false | None | "text" | f32 | strided
 *            | channels_last ... | (1.0+2.0j) | device("cpu") | [ {ARG,} ]
 *            | graph( {%a: TYPE,} ) { {node} return {ARG,} }
 *
 * # begins a comment.  Weights are not in the text: state entries have no tensor.
 */
#include <string.h>

#include "base/strmap.h"
#include "graph/lexer.h"
#include "graph/text.h"
#include "shard/layout.h"

enum { MAX_DEPTH = 32 }; /* of lists and sub-graphs */

typedef struct {
  Lexer l;
  Exported *e;
  StrMap state; /* fqn -> anything */
  int state_cap;
  int depth;
} Parser;

typedef struct {
  Arg *args;
  const char **names;
  int n, cap, names_cap;
} ArgList;

/* One graph: its values by name.  The lists of the node that is being read are kept for the
 * next one: what a node needs of them is copied, and nodes stay close together in memory. */
typedef struct {
  Parser *p;
  Graph *g;
  StrMap vals;
  ArgList args;
  Val *outs;
  int outs_cap;
} Body;

/* ---- types ----------------------------------------------------------------------------- */

/* [2,s0] or {1,2} */
static Status parse_syms(Parser *p, char close, int *n, const Sym ***out) {
  const Sym *syms[MAX_DIMS];
  *n = 0;
  while (!lex_take(&p->l, close)) {
    if (*n && !lex_take(&p->l, ',')) return lex_expected(&p->l, "',' between sizes");
    if (*n == MAX_DIMS) return lex_error(&p->l, p->l.p, "a tensor has too many dimensions");
    TRY(lex_sym(&p->l, &syms[(*n)++]));
  }
  TRY_NEW(*out, arena_new_n(&p->e->arena, const Sym *, *n));
  if (*n) memcpy(*out, syms, (size_t)*n * sizeof *syms);
  return OK;
}

static Status parse_tensor_type(Parser *p, const char *at, const char *word, Val *out) {
  int nstrides;
  out->type = TY_TENSOR;
  out->dtype = dtype_parse(word);
  if (out->dtype == DT_NONE) return lex_error(&p->l, at, "this dtype is not known");
  TRY(lex_expect(&p->l, '['));
  TRY(parse_syms(p, ']', &out->ndim, &out->size));
  if (!lex_take(&p->l, '{')) return OK;
  TRY(parse_syms(p, '}', &nstrides, &out->stride));
  return nstrides == out->ndim ? OK : lex_error(&p->l, at, "as many strides as sizes are needed");
}

static Status parse_type(Parser *p, Val *out) {
  const char *word, *at;
  lex_skip(&p->l);
  at = p->l.p;
  TRY(lex_word(&p->l, &word));
  if (!word) return lex_expected(&p->l, "a type");
  if (*p->l.p == '[') return parse_tensor_type(p, at, word, out);
  for (int i = 0; i < 5; i++) {
    if (strcmp(word, text_val_type[i])) continue;
    out->type = (ValType)i;
    if (out->type == TY_TENSOR || out->type == TY_NONE || *p->l.p != '(') return OK;
    p->l.p++;
    TRY(lex_sym(&p->l, &out->sym));
    return lex_expect(&p->l, ')');
  }
  return lex_error(&p->l, at, "this type is not known");
}

/* %x: f32[2,3] @4096.  A value that is not in a graph yet. */
static Status parse_value(Parser *p, Val *out) {
  int64_t offset;
  *out = (Val){.dtype = DT_NONE, .ndim = -1};
  TRY(lex_value_name(&p->l, &out->name));
  TRY(lex_expect(&p->l, ':'));
  TRY(parse_type(p, out));
  return lex_take(&p->l, '@') ? lex_int(&p->l, &offset) : OK;
}

static Status define(Body *b, const char *at, const Val *parsed, Val *v) {
  StrSlot *slot;
  TRY(val_copy_meta(v, parsed));
  TRY(strmap_slot(&b->vals, b->g->arena, v->name, &slot));
  if (slot->value) return lex_error(&b->p->l, at, "a value of this name is defined above");
  slot->value = v;
  return OK;
}

static Status add_input(Body *b, const char *at, const Val *parsed) {
  Val *v;
  /* A taken name would be changed by graph_add_input. */
  if (strmap_get(&b->vals, parsed->name)) return lex_error(&b->p->l, at, "an input of this name is defined above");
  TRY(graph_add_input(b->g, parsed->name, parsed->type, &v));
  return define(b, at, parsed, v);
}

/* ---- arguments --------------------------------------------------------------------------- */

static Status parse_arg(Body *b, Arg *out);
static Status parse_sub_graph(Body *b, Arg *out);

static Status parse_list(Body *b, Arg *out) {
  int cap = 0;
  *out = arg_list(NULL, 0);
  while (!lex_take(&b->p->l, ']')) {
    if (out->n && !lex_take(&b->p->l, ',')) return lex_expected(&b->p->l, "',' or ']'");
    TRY_NEW(out->list, arena_more(b->g->arena, out->list, out->n, &cap));
    TRY(parse_arg(b, &out->list[out->n]));
    out->n++;
  }
  return OK;
}

/* 1.0+2.0j) */
static Status parse_complex(Lexer *l, Arg *out) {
  out->kind = ARG_COMPLEX;
  TRY(lex_float(l, &out->complex_[0]));
  if (*l->p == '+') l->p++;
  else if (*l->p != '-') return lex_expected(l, "'+' or '-' of a complex number");
  TRY(lex_float(l, &out->complex_[1]));
  if (!lex_take(l, 'j')) return lex_expected(l, "'j'");
  return lex_expect(l, ')');
}

static Status parse_reference(Body *b, Arg *out) {
  const char *name, *at = b->p->l.p;
  TRY(lex_value_name(&b->p->l, &name));
  out->kind = ARG_VAL;
  out->val = strmap_get(&b->vals, name);
  return out->val ? OK : lex_error(&b->p->l, at, "this value is not defined above");
}

static Status parse_word_arg(Body *b, Arg *out) {
  Lexer *l = &b->p->l;
  const char *at = l->p, *word;
  TRY(lex_word(l, &word));
  if (!word) return lex_expected(l, "an argument");
  if (!strcmp(word, "None")) return out->kind = ARG_NONE, OK;
  if (!strcmp(word, "true") || !strcmp(word, "false")) return *out = arg_bool(*word == 't'), OK;
  if (!strcmp(word, "strided")) return out->kind = ARG_LAYOUT, OK;
  if (!strcmp(word, "graph")) return parse_sub_graph(b, out);
  if (!strcmp(word, "device")) {
    out->kind = ARG_DEVICE;
    TRY(lex_expect(l, '('));
    TRY(lex_string(l, &out->str));
    return lex_expect(l, ')');
  }
  for (int i = 0; i < 4; i++) {
    if (!strcmp(word, text_memory_format[i]))
      return *out = (Arg){.kind = ARG_MEMORY_FORMAT, .memory_format = (MemoryFormat)i}, OK;
  }
  *out = arg_dtype(dtype_parse(word));
  return out->dtype != DT_NONE ? OK : lex_error(l, at, "this argument is not known");
}

static Status parse_arg(Body *b, Arg *out) {
  Lexer *l = &b->p->l;
  char c = lex_peek(l);
  Status s;
  *out = (Arg){0};
  if (++b->p->depth > MAX_DEPTH) return lex_error(l, l->p, "arguments nest too deeply");
  if (c == '%') {
    s = parse_reference(b, out);
  } else if (c == '"') {
    out->kind = ARG_STR;
    s = lex_string(l, &out->str);
  } else if (lex_take(l, '[')) {
    s = parse_list(b, out);
  } else if (lex_take(l, '(')) {
    s = parse_complex(l, out);
  } else if (c == '-' || (c >= '0' && c <= '9') || lex_take_word(l, "inf") || lex_take_word(l, "nan")) {
    if (c == 'i' || c == 'n') l->p -= 3;
    s = lex_number(l, out);
  } else {
    s = parse_word_arg(b, out);
  }
  b->p->depth--;
  return s;
}

/* ---- nodes --------------------------------------------------------------------------------- */

/* "name" or name, followed by '='. */
static Status parse_arg_name(Lexer *l, const char **name) {
  const char *back = l->p;
  *name = NULL;
  char c = lex_peek(l);
  if (c == '%' || c == '[' || c == '(') return OK;
  if (c == '"') TRY(lex_string(l, name));
  else TRY(lex_word(l, name));
  if (*name && lex_take(l, '=')) return OK;
  l->p = back;
  *name = NULL;
  return OK;
}

static Status parse_args(Body *b, ArgList *a) {
  Lexer *l = &b->p->l;
  TRY(lex_expect(l, '('));
  while (!lex_take(l, ')')) {
    if (a->n && !lex_take(l, ',')) return lex_expected(l, "',' or ')'");
    TRY_NEW(a->args, arena_more(b->g->arena, a->args, a->n, &a->cap));
    TRY_NEW(a->names, arena_more(b->g->arena, a->names, a->n, &a->names_cap));
    TRY(parse_arg_name(l, &a->names[a->n]));
    TRY(parse_arg(b, &a->args[a->n]));
    a->n++;
  }
  return OK;
}

/* !{"key": "value", ...} */
static Status parse_meta(Body *b, Node *n) {
  Lexer *l = &b->p->l;
  int cap = 0;
  if (!lex_take(l, '!')) return OK;
  TRY(lex_expect(l, '{'));
  while (!lex_take(l, '}')) {
    if (n->nmeta) TRY(lex_expect(l, ','));
    TRY_NEW(n->meta, arena_more(b->g->arena, n->meta, n->nmeta, &cap));
    TRY(lex_string(l, &n->meta[n->nmeta].key));
    TRY(lex_expect(l, ':'));
    TRY(lex_string(l, &n->meta[n->nmeta].value));
    n->nmeta++;
  }
  return OK;
}

/* [1, 2]; as many as there are, at most `most`. */
static Status parse_ints(Lexer *l, int most, int64_t *v, int *n) {
  TRY(lex_expect(l, '['));
  for (*n = 0; !lex_take(l, ']');) {
    if (*n == most) return lex_error(l, l->p, "the list is too long");
    if (*n) TRY(lex_expect(l, ','));
    TRY(lex_int(l, &v[(*n)++]));
  }
  return lex_expect(l, ',');
}

/* part([4,8], "S(0)", [2], [1], 8) */
static Status parse_part(Body *b, Node *n) {
  Lexer *l = &b->p->l;
  int64_t shape[MAX_DIMS], axes[MAX_AXES], at[MAX_AXES];
  int axis[MAX_AXES], coord[MAX_AXES], ndim, naxes, ncoord, nplace;
  Placement place[MAX_AXES];
  const char *text, *begin = l->p;
  if (!lex_take_word(l, "part")) return OK;
  TRY(lex_expect(l, '('));
  TRY(parse_ints(l, MAX_DIMS, shape, &ndim));
  TRY(lex_string(l, &text));
  TRY(lex_locate(l, begin, placements_parse(text, ndim, place, &nplace)));
  TRY(lex_expect(l, ','));
  TRY(parse_ints(l, MAX_AXES, axes, &naxes));
  TRY(parse_ints(l, MAX_AXES, at, &ncoord));
  TRY(lex_int(l, &n->draws));
  TRY(lex_expect(l, ')'));
  bool fits = naxes == nplace && naxes == ncoord && n->draws >= 0;
  for (int d = 0; d < ndim; d++) fits &= shape[d] >= 0;
  for (int a = 0; fits && a < naxes; a++) {
    fits = axes[a] > 0 && axes[a] <= INT32_MAX && at[a] >= 0 && at[a] < axes[a] && !is_p(&place[a]);
    axis[a] = (int)axes[a], coord[a] = (int)at[a];
  }
  if (!fits) return lex_error(l, begin, "sizes, placements, axes and coordinates of this part do not go together");
  ShardOf of = {{ndim, shape, naxes, axis, place}, coord};
  TRY(lex_locate(l, begin, placements_check(place, naxes, ndim, "a part")));
  TRY(lex_locate(l, begin, layout_check(&of.layout)));
  return shard_of_copy(&of, b->g->arena, &n->shard);
}

static Status check_order(Lexer *l, const char *at, const Node *n, const ArgList *a) {
  for (int i = 1; n->op && i < a->n; i++) {
    if (a->names[i - 1] && !a->names[i]) return lex_error(l, at, "an argument by position follows one by name");
  }
  return OK;
}

/* Values that are defined once the arguments are read. */
static Status parse_results(Body *b, int *nouts, bool *list) {
  Lexer *l = &b->p->l;
  *list = lex_take(l, '[');
  if (!*list && lex_peek(l) != '%') return OK;
  while (*list ? !lex_take(l, ']') : lex_peek(l) != '=') {
    if (*nouts && !lex_take(l, ',')) return lex_expected(l, *list ? "',' or ']'" : "',' or '='");
    TRY_NEW(b->outs, arena_more(b->g->arena, b->outs, *nouts, &b->outs_cap));
    b->outs[*nouts] = (Val){0};
    TRY(parse_value(b->p, &b->outs[*nouts]));
    ++*nouts;
  }
  return lex_expect(l, '=');
}

static Status parse_node(Body *b) {
  Lexer *l = &b->p->l;
  int nouts = 0;
  bool list;
  lex_skip(l);
  const char *at = l->p, *target;
  TRY(parse_results(b, &nouts, &list));
  TRY(lex_word_or_string(l, "an operator", &target));
  if (!*target) return lex_error(l, at, "an operator without a name");
  Node *n;
  ArgList *args = &b->args;
  args->n = 0;
  TRY(graph_add_node(b->g, NULL, target, &n));
  n->outs_list = n->op ? n->op->schema.returns_list : list;
  TRY(parse_args(b, args));
  TRY(check_order(l, at, n, args));
  TRY(lex_locate(l, at, node_set_args(n, args->args, args->names, args->n)));
  for (int i = 0; i < nouts; i++) {
    Val *v;
    if (strmap_get(&b->vals, b->outs[i].name)) return lex_error(l, at, "a value of this name is defined above");
    TRY(node_add_out(n, b->outs[i].name, b->outs[i].type, &v));
    TRY(define(b, at, &b->outs[i], v));
  }
  TRY(parse_part(b, n));
  return parse_meta(b, n);
}

/* return ARG, ... without what they are */
static Status parse_returns(Body *b) {
  Arg a;
  if (lex_peek(&b->p->l) == '}') return OK;
  do {
    TRY(parse_arg(b, &a));
    TRY(graph_add_output(b->g, a));
  } while (lex_take(&b->p->l, ','));
  return OK;
}

/* { nodes return */
static Status parse_nodes(Body *b) {
  TRY(lex_expect(&b->p->l, '{'));
  while (!lex_take_word(&b->p->l, "return")) {
    if (lex_peek(&b->p->l) == '}') return lex_expected(&b->p->l, "return");
    TRY(parse_node(b));
  }
  return OK;
}

static Status parse_sub_graph(Body *outer, Arg *out) {
  Parser *p = outer->p;
  Body b = {.p = p};
  out->kind = ARG_GRAPH;
  TRY(graph_new(&p->e->arena, &p->e->syms, &out->graph));
  b.g = out->graph;
  TRY(lex_expect(&p->l, '('));
  while (!lex_take(&p->l, ')')) {
    Val v;
    if (b.g->ninputs && !lex_take(&p->l, ',')) return lex_expected(&p->l, "',' or ')'");
    lex_skip(&p->l);
    const char *at = p->l.p;
    TRY(parse_value(p, &v));
    TRY(add_input(&b, at, &v));
  }
  TRY(parse_nodes(&b));
  TRY(parse_returns(&b));
  return lex_expect(&p->l, '}');
}

/* ---- programs -------------------------------------------------------------------------------- */

static Status add_state(Parser *p, const InputSpec *in, bool frozen) {
  Exported *e = p->e;
  StrSlot *slot;
  TRY(strmap_slot(&p->state, &e->arena, in->target, &slot));
  if (slot->value) return OK;
  slot->value = e;
  TRY_NEW(e->state, arena_more(&e->arena, e->state, e->nstate, &p->state_cap));
  e->state[e->nstate++] = (StateEntry){.fqn = in->target,
                                       .is_parameter = in->kind == IN_PARAMETER,
                                       .is_constant = in->kind == IN_TENSOR_CONSTANT ||
                                                      (in->kind == IN_BUFFER && !in->persistent),
                                       .requires_grad = in->kind == IN_PARAMETER && !frozen,
                                       .record = in->target};
  return OK;
}

static Status parse_input_spec(Body *b, InputSpec *out) {
  Lexer *l = &b->p->l;
  bool found = false;
  for (int k = IN_USER; k <= IN_TOKEN && !found; k++) {
    if (!lex_take_word(l, input_kind_name((InputKind)k))) continue;
    out->kind = (InputKind)k;
    found = true;
  }
  if (!found) return lex_expected(l, "what the input is (user, parameter, buffer ...)");
  if (out->kind == IN_CONSTANT) {
    const char *at = l->p;
    TRY(parse_arg(b, &out->constant));
    bool plain = out->constant.kind >= ARG_NONE && out->constant.kind <= ARG_STR && out->constant.kind != ARG_VAL;
    return plain ? OK : lex_error(l, at, "a constant input must be a constant");
  }
  if (out->kind == IN_USER || out->kind == IN_TOKEN) return OK;
  TRY(lex_string(l, &out->target));
  out->persistent = out->kind == IN_BUFFER && !lex_take_word(l, "non_persistent");
  bool frozen = out->kind == IN_PARAMETER && lex_take_word(l, "frozen");
  return add_state(b->p, out, frozen);
}

static Status parse_inputs(Body *b) {
  Parser *p = b->p;
  int cap = 0;
  TRY(lex_expect_word(&p->l, "graph"));
  TRY(lex_expect(&p->l, '('));
  while (!lex_take(&p->l, ')')) {
    Val v;
    InputSpec in = {0};
    if (b->g->ninputs && !lex_take(&p->l, ',')) return lex_expected(&p->l, "',' or ')'");
    lex_skip(&p->l);
    const char *at = p->l.p;
    TRY(parse_value(p, &v));
    TRY(lex_expect(&p->l, '='));
    TRY(parse_input_spec(b, &in)); /* before the name is known: a constant refers to nothing */
    TRY_NEW(p->e->inputs, arena_more(&p->e->arena, p->e->inputs, b->g->ninputs, &cap));
    p->e->inputs[b->g->ninputs] = in;
    TRY(add_input(b, at, &v));
  }
  return OK;
}

static Status parse_output(Body *b, OutputSpec *out) {
  Lexer *l = &b->p->l;
  bool found = false;
  for (int k = OUT_USER; k <= OUT_TOKEN && !found; k++) {
    if (!lex_take_word(l, output_kind_name((OutputKind)k))) continue;
    out->kind = (OutputKind)k;
    found = true;
  }
  if (!found) return lex_expected(l, "what the output is (user, buffer_mutation ...)");
  if (out->kind != OUT_USER && out->kind != OUT_LOSS && out->kind != OUT_TOKEN) TRY(lex_string(l, &out->target));
  Arg a;
  TRY(parse_arg(b, &a));
  return graph_add_output(b->g, a);
}

static Status parse_outputs(Body *b) {
  Exported *e = b->p->e;
  int cap = 0;
  if (lex_peek(&b->p->l) == '}') return OK;
  do {
    OutputSpec out = {0};
    TRY(parse_output(b, &out));
    TRY_NEW(e->outputs, arena_more(&e->arena, e->outputs, b->g->noutputs - 1, &cap));
    e->outputs[b->g->noutputs - 1] = out;
  } while (lex_take(&b->p->l, ','));
  return OK;
}

static Status parse_bound(Lexer *l, int64_t none, int64_t *out) {
  *out = none;
  if (lex_peek(l) == '-' && !strncmp(l->p, "-inf", 4) && !text_in_word(l->p[4])) return l->p += 4, OK;
  return lex_take_word(l, "inf") ? OK : lex_int(l, out);
}

static Status parse_symbols(Parser *p) {
  Exported *e = p->e;
  int cap = 0;
  while (lex_take_word(&p->l, "symbol")) {
    SymRange range = {.hint = -1};
    TRY(lex_word_or_string(&p->l, "a symbol", &range.symbol));
    TRY(lex_expect_word(&p->l, "in"));
    TRY(lex_expect(&p->l, '['));
    TRY(parse_bound(&p->l, INT64_MIN, &range.min));
    TRY(lex_expect(&p->l, ','));
    TRY(parse_bound(&p->l, INT64_MAX, &range.max));
    TRY(lex_expect(&p->l, ']'));
    if (range.min > range.max) return lex_error(&p->l, p->l.p, "the range of this symbol is empty");
    if (lex_take_word(&p->l, "hint")) TRY(lex_int(&p->l, &range.hint));
    TRY_NEW(e->ranges, arena_more(&e->arena, e->ranges, e->nranges, &cap));
    e->ranges[e->nranges++] = range;
  }
  return OK;
}

static Status parse_specs(Parser *p) {
  Exported *e = p->e;
  const char **names = NULL;
  int cap = 0;
  if (lex_take_word(&p->l, "in_spec")) TRY(lex_string(&p->l, &e->in_spec));
  if (lex_take_word(&p->l, "out_spec")) TRY(lex_string(&p->l, &e->out_spec));
  if (lex_take_word(&p->l, "namedtuples")) TRY(lex_string(&p->l, &e->namedtuples));
  if (!lex_take_word(&p->l, "arg_names")) return OK;
  TRY(lex_expect(&p->l, '['));
  TRY_NEW(names, arena_more(&e->arena, names, 0, &cap));
  while (!lex_take(&p->l, ']')) {
    if (e->narg_names) TRY(lex_expect(&p->l, ','));
    TRY_NEW(names, arena_more(&e->arena, names, e->narg_names, &cap));
    TRY(lex_string(&p->l, &names[e->narg_names]));
    e->narg_names++;
  }
  e->arg_names = names;
  return OK;
}

static Status parse_program(Parser *p) {
  Exported *e = p->e;
  if (lex_take_word(&p->l, "program")) { /* a hand-written program may leave the head out */
    TRY(lex_string(&p->l, &e->name));
    if (lex_take_word(&p->l, "torch")) TRY(lex_string(&p->l, &e->torch_version));
    if (lex_take_word(&p->l, "dialect")) TRY(lex_word_or_string(&p->l, "a dialect", &e->dialect));
  }
  TRY(parse_symbols(p));
  TRY(parse_specs(p));
  Body b = {.p = p, .g = e->graph};
  TRY(parse_inputs(&b));
  TRY(parse_nodes(&b));
  TRY(parse_outputs(&b));
  TRY(lex_expect(&p->l, '}'));
  lex_skip(&p->l);
  return p->l.p == p->l.end ? OK : lex_expected(&p->l, "the end");
}

Status graph_parse(const char *text, size_t len, const char *name, Exported **out) {
  Parser p = {0};
  TRY(exported_new(name, &p.e));
  char *copy = arena_strndup(&p.e->arena, len ? text : "", len);
  Status s = copy ? OK : fail_oom();
  if (!s) {
    p.l = (Lexer){
        .name = name, .text = copy, .p = copy, .end = copy + len, .arena = &p.e->arena, .syms = &p.e->syms};
    s = parse_program(&p);
  }
  if (!s) s = exported_index_state(p.e);
  if (s) {
    exported_free(p.e);
    return s;
  }
  *out = p.e;
  return OK;
}
