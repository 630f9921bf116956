/* fused_pointwise.c -- a chain of pointwise ops as one op.
 *
 *     tess.pointwise([%x, %y], "aten.mul.Tensor(x0,x1);aten.gelu.default(y0,'tanh')")
 *
 * The body is a list of calls.  xN is input N, yN the result of call N; the last call's
 * result is the op's.  Arguments stand in schema order, all of them: numbers, true,
 * false, none, 'text', and dtypes (f32).  So a fused node prints, parses and compares
 * like any other, and needs no sub-graph.
 *
 * The body is compiled to a tile program (kernels/pointwise.h) the first time a call
 * site runs, through the same emit functions as the single ops: bit for bit the same
 * result.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/scan.h"
#include "base/textbuf.h"
#include "ops/pointwise_ops.h"

typedef struct {
  const Op *op;
  Value arg[MAX_PARAMS];
  int tensor[MAX_PARAMS]; /* xN: N; yN: ninputs + N; -1: no tensor */
} Step;

enum { MAX_STEPS = PW_MAX_INSTRS };

typedef struct {
  const Call *call;
  const char *p;
  Step *steps;
  int nsteps, ninputs;
} Body;

static Status bad(const Body *b, const char *what) {
  return op_fail(b->call, "body '%s': %s at '%s'", in_str(b->call, 1), what, b->p);
}

static Status parse_text(Body *b, Value *v) {
  const char *end = strchr(b->p, '\'');
  if (!end) return bad(b, "text without its end");
  v->kind = VAL_STR;
  if (!(v->str = arena_strndup(b->call->arena, b->p, (size_t)(end - b->p)))) return fail_oom();
  b->p = end + 1;
  return OK;
}

static bool parse_number(Body *b, Value *v) {
  char *end_int;
  const char *end_float;
  long long i = strtoll(b->p, &end_int, 10);
  double f = text_to_float(b->p, &end_float);
  if (end_float == b->p) return false;
  *v = end_int == end_float ? val_int(i) : val_float(f);
  b->p = end_float;
  return true;
}

static Status parse_reference(Body *b, Step *s, int at) {
  bool input = *b->p == 'x';
  char *end;
  long n = strtol(b->p + 1, &end, 10);
  if (end == b->p + 1 || n < 0 || n >= (input ? b->ninputs : b->nsteps)) return bad(b, "a value that is not there");
  b->p = end;
  s->tensor[at] = (int)n + (input ? 0 : b->ninputs);
  return OK;
}

static Status parse_arg(Body *b, Step *s, int at) {
  Value *v = &s->arg[at];
  s->tensor[at] = -1;
  if (scan_take(&b->p, "'")) return parse_text(b, v);
  if ((*b->p == 'x' || *b->p == 'y') && isdigit((unsigned char)b->p[1])) return parse_reference(b, s, at);
  if (isalpha((unsigned char)*b->p) && strncmp(b->p, "inf", 3) && strncmp(b->p, "nan", 3)) {
    char word[16];
    size_t n = 0;
    while (n + 1 < sizeof word && isalnum((unsigned char)b->p[n])) word[n] = b->p[n], n++;
    word[n] = 0;
    Dtype d = dtype_parse(word);
    if (!strcmp(word, "none")) *v = val_none();
    else if (!strcmp(word, "true") || !strcmp(word, "false")) *v = val_bool(word[0] == 't');
    else if (d != DT_NONE) *v = val_dtype(d);
    else return bad(b, "an unknown word");
    b->p += n;
    return OK;
  }
  return parse_number(b, v) ? OK : bad(b, "no argument");
}

static Status parse_step(Body *b) {
  char name[128];
  size_t n = strcspn(b->p, "(");
  if (n >= sizeof name || !b->p[n]) return bad(b, "no call");
  memcpy(name, b->p, n);
  name[n] = 0;
  Step *s = &b->steps[b->nsteps];
  s->op = op_find(name);
  if (!s->op || !op_is_pointwise(s->op)) return bad(b, "not a pointwise op");
  b->p += n + 1;
  for (int i = 0; i < s->op->schema.nparams; i++) {
    if (i && !scan_take(&b->p, ",")) return bad(b, "too few arguments");
    while (*b->p == ' ') b->p++;
    TRY(parse_arg(b, s, i));
  }
  if (!scan_take(&b->p, ")")) return bad(b, "too many arguments");
  b->nsteps++;
  return OK;
}

static Status parse_body(const Call *c, Body *b) {
  *b = (Body){.call = c, .p = in_str(c, 1), .ninputs = in_count(c, 0)};
  int most = 1;
  for (const char *q = b->p; *q; q++) most += *q == ';';
  if (most > MAX_STEPS || b->ninputs > PW_MAX_INPUTS)
    return op_fail(c, "a body of %d calls on %d inputs is too long", most, b->ninputs);
  TRY_NEW(b->steps, arena_new_n(c->arena, Step, most));
  do {
    while (*b->p == ' ') b->p++;
    TRY(parse_step(b));
  } while (scan_take(&b->p, ";"));
  return *b->p ? bad(b, "more than calls") : OK;
}

/* Infers every step; values[ninputs + k] is step k's result, a meta tensor. */
static Status infer_steps(const Call *c, Body *b, Scope *scope, Tensor **values) {
  for (int i = 0; i < b->ninputs; i++) values[i] = in_item(c, 0, i);
  for (int k = 0; k < b->nsteps; k++) {
    Step *s = &b->steps[k];
    for (int a = 0; a < s->op->schema.nparams; a++) {
      if (s->tensor[a] >= 0) s->arg[a] = val_tensor(values[s->tensor[a]]);
    }
    Call sub = {.ctx = c->ctx, .op = s->op, .arg = s->arg, .scope = scope, .arena = c->arena};
    TRY(s->op->def->infer(&sub));
    if (sub.nout != 1 || !out_tensor(&sub, 0)) return op_fail(c, "'%s' has no single result", s->op->schema.name);
    values[b->ninputs + k] = out_tensor(&sub, 0);
  }
  return OK;
}

static Status pointwise_chain_infer(Call *c) {
  Body b;
  Scope scope = {0};
  Tensor *values[PW_MAX_INPUTS + MAX_STEPS];
  TRY(parse_body(c, &b));
  Status s = infer_steps(c, &b, &scope, values);
  if (!s) {
    const Tensor *t = values[b.ninputs + b.nsteps - 1];
    s = out_strided(c, t->dtype, t->ndim, t->size, t->stride);
  }
  scope_clear(&scope);
  return s;
}

static Status compile(const Call *c, PwProgram *p) {
  Body b;
  Scope scope = {0};
  Tensor *values[PW_MAX_INPUTS + MAX_STEPS];
  int regs[PW_MAX_INPUTS + MAX_STEPS];
  TRY(parse_body(c, &b));
  Status s = infer_steps(c, &b, &scope, values);
  pw_init(p);
  for (int i = 0; i < b.ninputs && !s; i++) regs[i] = pw_input(p, values[i]->dtype);
  PwValue value = {0};
  for (int k = 0; k < b.nsteps && !s; k++) {
    Step *step = &b.steps[k];
    int reg[MAX_PARAMS];
    for (int a = 0; a < step->op->schema.nparams; a++) reg[a] = step->tensor[a] >= 0 ? regs[step->tensor[a]] : -1;
    Call sub = {.ctx = c->ctx, .op = step->op, .arg = step->arg, .arena = c->arena};
    s = pointwise_emit(&sub, p, reg, &value);
    regs[b.ninputs + k] = value.reg;
  }
  if (!s) pw_output(p, value.reg);
  scope_clear(&scope);
  return s;
}

static Status pointwise_chain_run(Call *c) {
  PwProgram *p = c->state ? *c->state : NULL;
  if (!p) {
    TRY_NEW(p, malloc(sizeof *p));
    Status s = compile(c, p);
    if (s) return free(p), s;
    if (c->state) *c->state = p, *c->state_free = free;
  }
  View in[PW_MAX_INPUTS], out = out_view_of(c, 0);
  for (int i = 0; i < in_count(c, 0); i++) in[i] = tensor_view(in_item(c, 0, i));
  Status s = kernel_pointwise(&c->ctx->kern, p, &out, in);
  if (!c->state) free(p);
  return s;
}

const OpDef ops_fused_pointwise[] = {
    {.schema = "tess::pointwise(Tensor[] inputs, str body) -> Tensor",
     .infer = pointwise_chain_infer,
     .run = pointwise_chain_run},
    {0},
};
