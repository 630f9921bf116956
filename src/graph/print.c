/* print.c -- the text form of a program.  parse.c reads it back; its head has the grammar.
 *
 * I1  print(parse(print(p))) == print(p).
 * I2  Names and targets that are not plain words are quoted, so any program prints.
 */
#include <ctype.h>
#include <string.h>

#include "base/textbuf.h"
#include "graph/graph.h"
#include "graph/text.h"
#include "shard/layout.h"

typedef struct {
  TextBuf *b;
  const Exported *e;
  PrintOptions o;
  int indent; /* levels of two spaces */
} Printer;

const char *const text_memory_format[4] = {
    [MEMORY_CONTIGUOUS] = "contiguous",
    [MEMORY_PRESERVE] = "preserve",
    [MEMORY_CHANNELS_LAST] = "channels_last",
    [MEMORY_CHANNELS_LAST_3D] = "channels_last_3d",
};

const char *const text_val_type[5] = {
    [TY_TENSOR] = "tensor", [TY_INT] = "int", [TY_FLOAT] = "float", [TY_BOOL] = "bool", [TY_NONE] = "none",
};

/* Words begin with a letter or '_' and need no quotes. */
static bool text_is_word(const char *s) {
  if (!isalpha((unsigned char)*s) && *s != '_') return false;
  for (; *s; s++) {
    if (!text_in_word(*s)) return false;
  }
  return true;
}

static void print_word(Printer *p, const char *s) {
  if (text_is_word(s) && strcmp(s, "return")) text_puts(p->b, s);
  else text_json(p->b, s);
}

static void print_name(Printer *p, const char *s) {
  text_puts(p->b, "%");
  bool plain = *s != 0;
  for (const char *c = s; *c; c++) plain &= text_in_word(*c);
  if (plain) text_puts(p->b, s);
  else text_json(p->b, s);
}

static void new_line(Printer *p) {
  text_puts(p->b, "\n");
  for (int i = 0; i < p->indent; i++) text_puts(p->b, "  ");
}

/* ---- types --------------------------------------------------------------------------- */

static void print_syms(Printer *p, const Sym *const *s, int n) {
  for (int i = 0; i < n; i++) {
    if (i) text_puts(p->b, ",");
    sym_print(p->b, s[i]);
  }
}

static void print_numbers(Printer *p, const int64_t *v, int n) {
  for (int i = 0; i < n; i++) text_printf(p->b, "%s%lld", i ? "," : "", (long long)v[i]);
}

/* f32[2,s77] or, when not row-major, f32[2,3]{1,2}. */
static void print_tensor_type(Printer *p, const Val *v) {
  const Tensor *t = v->tensor;
  if (v->ndim >= 0 && v->dtype != DT_NONE) {
    text_printf(p->b, "%s[", dtype_name(v->dtype));
    print_syms(p, v->size, v->ndim);
    text_puts(p->b, "]");
    if (!v->stride) return;
    text_puts(p->b, "{");
    print_syms(p, v->stride, v->ndim);
    text_puts(p->b, "}");
  } else if (t) {
    text_printf(p->b, "%s[", dtype_name(t->dtype));
    print_numbers(p, t->size, t->ndim);
    text_puts(p->b, "]");
    if (tensor_is_contiguous(t)) return;
    text_puts(p->b, "{");
    print_numbers(p, t->stride, t->ndim);
    text_puts(p->b, "}");
  } else {
    text_puts(p->b, text_val_type[TY_TENSOR]);
  }
}

void val_describe(TextBuf *b, const Val *v) {
  text_printf(b, "'%s'", v->name);
  if (v->type != TY_TENSOR) return;
  text_printf(b, " %s[", dtype_name(v->dtype));
  print_syms(&(Printer){.b = b}, v->size, v->ndim);
  text_puts(b, "]");
}

static void print_value(Printer *p, const Val *v) {
  print_name(p, v->name);
  text_puts(p->b, ": ");
  if (v->type == TY_TENSOR) {
    print_tensor_type(p, v);
  } else {
    text_puts(p->b, text_val_type[v->type]);
    if (v->sym) {
      text_puts(p->b, "(");
      sym_print(p->b, v->sym);
      text_puts(p->b, ")");
    }
  }
  if (p->o.memory && v->tensor && v->tensor->storage && v->tensor->storage->slab_offset >= 0) {
    text_printf(p->b, " @%lld", (long long)v->tensor->storage->slab_offset);
  }
}

/* ---- arguments ------------------------------------------------------------------------ */

static void print_graph(Printer *p, const Graph *g);

static void print_complex(Printer *p, const double c[2]) {
  text_puts(p->b, "(");
  text_float(p->b, c[0]);
  bool minus = c[1] < 0 || (c[1] == 0 && 1 / c[1] < 0);
  if (!minus) text_puts(p->b, "+");
  text_float(p->b, c[1]);
  text_puts(p->b, "j)");
}

static void print_arg(Printer *p, const Arg *a) {
  switch (a->kind) {
    case ARG_UNSET: text_puts(p->b, "_"); break;
    case ARG_NONE: text_puts(p->b, "None"); break;
    case ARG_VAL: print_name(p, a->val->name); break;
    case ARG_BOOL: text_puts(p->b, a->b ? "true" : "false"); break;
    case ARG_INT: text_printf(p->b, "%lld", (long long)a->i); break;
    case ARG_FLOAT: text_float(p->b, a->f); break;
    case ARG_COMPLEX: print_complex(p, a->complex_); break;
    case ARG_STR: text_json(p->b, a->str); break;
    case ARG_DTYPE: text_puts(p->b, dtype_name(a->dtype)); break;
    case ARG_LAYOUT: text_puts(p->b, "strided"); break;
    case ARG_MEMORY_FORMAT: text_puts(p->b, text_memory_format[a->memory_format]); break;
    case ARG_DEVICE:
      text_puts(p->b, "device(");
      text_json(p->b, a->str);
      text_puts(p->b, ")");
      break;
    case ARG_LIST:
      text_puts(p->b, "[");
      for (int i = 0; i < a->n; i++) {
        if (i) text_puts(p->b, ", ");
        print_arg(p, &a->list[i]);
      }
      text_puts(p->b, "]");
      break;
    case ARG_GRAPH: print_graph(p, a->graph); break;
  }
}

/* By position as far as that goes, then by name. */
static void print_args(Printer *p, const Node *n) {
  bool first = true, positional = true;
  for (int i = 0; i < n->nargs; i++) {
    const char *name = n->op ? n->op->schema.params[i].name : n->arg_names[i];
    if (n->args[i].kind == ARG_UNSET) {
      positional = false;
      continue;
    }
    if (n->op && n->op->schema.params[i].keyword) positional = false;
    if (!first) text_puts(p->b, ", ");
    first = false;
    if (n->op ? !positional : name != NULL) {
      print_word(p, name);
      text_puts(p->b, "=");
    }
    print_arg(p, &n->args[i]);
  }
}

/* ---- nodes ---------------------------------------------------------------------------- */

/* part([4,8], "S(0)", [2], [1], 8): of a tensor of these sizes, so placed on a mesh of these axes, what the rank of
 * this coordinate holds; the whole takes 8 blocks of random numbers. */
static void print_part(Printer *p, const Node *n) {
  const ShardOf *s = n->shard;
  char text[512];
  text_puts(p->b, " part([");
  for (int d = 0; d < s->layout.ndim; d++) text_printf(p->b, "%s%lld", d ? "," : "", (long long)s->layout.shape[d]);
  text_puts(p->b, "], ");
  text_json(p->b, placements_print(s->layout.place, s->layout.naxes, text, sizeof text));
  for (int which = 0; which < 2; which++) {
    const int *v = which ? s->coord : s->layout.axis;
    text_puts(p->b, ", [");
    for (int a = 0; a < s->layout.naxes; a++) text_printf(p->b, "%s%d", a ? "," : "", v[a]);
    text_puts(p->b, "]");
  }
  text_printf(p->b, ", %lld)", (long long)n->draws);
}

static void print_node(Printer *p, const Node *n) {
  bool list = n->outs_list && !n->op;
  new_line(p);
  if (list) text_puts(p->b, "[");
  for (int i = 0; i < n->nouts; i++) {
    if (i) text_puts(p->b, ", ");
    print_value(p, n->outs[i]);
  }
  if (list) text_puts(p->b, "]");
  if (n->nouts || list) text_puts(p->b, " = ");
  print_word(p, n->target);
  text_puts(p->b, "(");
  print_args(p, n);
  text_puts(p->b, ")");
  if (n->shard) print_part(p, n);
  if (!p->o.meta || n->nmeta == 0) return;
  text_puts(p->b, " !{");
  for (int i = 0; i < n->nmeta; i++) {
    if (i) text_puts(p->b, ", ");
    text_json(p->b, n->meta[i].key);
    text_puts(p->b, ": ");
    text_json(p->b, n->meta[i].value);
  }
  text_puts(p->b, "}");
}

/* The output of a program says what it is: buffer_mutation "counter" %add_1 */
static void print_outputs(Printer *p, const Graph *g, bool root) {
  new_line(p);
  text_puts(p->b, "return");
  for (int i = 0; i < g->noutputs; i++) {
    text_puts(p->b, i ? ", " : " ");
    if (root) {
      const OutputSpec *out = &p->e->outputs[i];
      text_printf(p->b, "%s ", output_kind_name(out->kind));
      if (out->target) {
        text_json(p->b, out->target);
        text_puts(p->b, " ");
      }
    }
    print_arg(p, &g->outputs[i]);
  }
}

static void print_body(Printer *p, const Graph *g, bool root) {
  text_puts(p->b, " {");
  p->indent++;
  for (const Node *n = g->first; n; n = n->next) print_node(p, n);
  print_outputs(p, g, root);
  p->indent--;
  new_line(p);
  text_puts(p->b, "}");
}

/* A sub-graph, as an argument. */
static void print_graph(Printer *p, const Graph *g) {
  text_puts(p->b, "graph(");
  for (int i = 0; i < g->ninputs; i++) {
    if (i) text_puts(p->b, ", ");
    print_value(p, g->inputs[i]);
  }
  text_puts(p->b, ")");
  print_body(p, g, false);
}

/* ---- programs --------------------------------------------------------------------------- */

static void print_input(Printer *p, int i) {
  const InputSpec *in = &p->e->inputs[i];
  const StateEntry *state = in->target ? exported_state(p->e, in->target) : NULL;
  print_value(p, p->e->graph->inputs[i]);
  text_printf(p->b, " = %s", input_kind_name(in->kind));
  if (in->target) {
    text_puts(p->b, " ");
    text_json(p->b, in->target);
  }
  if (in->kind == IN_BUFFER && !in->persistent) text_puts(p->b, " non_persistent");
  if (in->kind == IN_PARAMETER && state && !state->requires_grad) text_puts(p->b, " frozen");
  if (in->kind == IN_CONSTANT) {
    text_puts(p->b, " ");
    print_arg(p, &in->constant);
  }
}

static void print_bound(Printer *p, int64_t bound) {
  if (bound == INT64_MIN || bound == INT64_MAX) text_puts(p->b, bound < 0 ? "-inf" : "inf");
  else text_printf(p->b, "%lld", (long long)bound);
}

/* folder/gpt2.pt2 -> "gpt2"; a name without folder and extension stays as it is (I1). */
static void print_program_name(Printer *p, const char *path) {
  char base[256];
  const char *slash = strrchr(path, '/'), *from = slash && slash[1] ? slash + 1 : path;
  size_t n = strlen(from);
  if (n >= sizeof base) n = sizeof base - 1;
  while (n > 4 && !strncmp(from + n - 4, ".pt2", 4)) n -= 4;
  memcpy(base, from, n);
  base[n] = 0;
  text_json(p->b, base);
}

static void print_header(Printer *p) {
  const Exported *e = p->e;
  text_puts(p->b, "program ");
  print_program_name(p, e->name);
  if (*e->torch_version) {
    text_puts(p->b, " torch ");
    text_json(p->b, e->torch_version);
  }
  if (*e->dialect) {
    text_puts(p->b, " dialect ");
    print_word(p, e->dialect);
  }
  for (int i = 0; i < e->nranges; i++) {
    text_puts(p->b, "\nsymbol ");
    print_word(p, e->ranges[i].symbol);
    text_puts(p->b, " in [");
    print_bound(p, e->ranges[i].min);
    text_puts(p->b, ", ");
    print_bound(p, e->ranges[i].max);
    text_puts(p->b, "]");
    if (e->ranges[i].hint >= 0) text_printf(p->b, " hint %lld", (long long)e->ranges[i].hint);
  }
  if (!p->o.meta) return;
  if (e->in_spec) text_puts(p->b, "\nin_spec "), text_json(p->b, e->in_spec);
  if (e->out_spec) text_puts(p->b, "\nout_spec "), text_json(p->b, e->out_spec);
  if (e->namedtuples) text_puts(p->b, "\nnamedtuples "), text_json(p->b, e->namedtuples);
  if (e->arg_names) text_puts(p->b, "\narg_names [");
  for (int i = 0; i < e->narg_names; i++) {
    if (i) text_puts(p->b, ", ");
    text_json(p->b, e->arg_names[i]);
  }
  if (e->arg_names) text_puts(p->b, "]");
}

void graph_print(TextBuf *b, const Exported *e, PrintOptions o) {
  Printer p = {.b = b, .e = e, .o = o};
  print_header(&p);
  text_puts(b, "\ngraph(");
  p.indent = 1;
  for (int i = 0; i < e->graph->ninputs; i++) {
    if (i) text_puts(b, ",");
    new_line(&p);
    print_input(&p, i);
  }
  p.indent = 0;
  if (e->graph->ninputs) new_line(&p);
  text_puts(b, ")");
  print_body(&p, e->graph, true);
  text_puts(b, "\n");
}
