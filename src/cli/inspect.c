/* inspect.c -- `tessera inspect`: what a program is and what it costs, without running it.
 *
 * Reads the archive's directory and the program, never a weight: a file of many
 * gigabytes is inspected in the time its graph takes to parse.
 */
#include "cli/inspect.h"

#include <stdlib.h>
#include <string.h>

#include "base/strmap.h"
#include "runtime/estimate.h"
#include "runtime/feed_sizes.h"
#include "runtime/specialize.h"

enum { OPS_SHOWN = 20, NAME_WIDTH = 34 };

static const char examples[] = "  tessera inspect model.pt2\n"
                               "  tessera inspect model.pt2 --depth 6\n"
                               "  tessera inspect model.pt2 --json | jq .flops\n"
                               "  tessera inspect tensors.safetensors\n";

/* ---- finding out ---------------------------------------------------------------------- */

void describe_val(TextBuf *b, const Val *v) {
  static const char *const words[] = {"tensor", "int", "float", "bool", "none"};
  if (v->type != TY_TENSOR || v->ndim < 0) {
    text_puts(b, words[v->type]);
    if (!v->sym) return;
    text_puts(b, "(");
    sym_print(b, v->sym);
    text_puts(b, ")");
    return;
  }
  text_printf(b, "%s[", dtype_name(v->dtype));
  for (int d = 0; d < v->ndim; d++) {
    if (d) text_puts(b, ",");
    sym_print(b, v->size[d]);
  }
  text_puts(b, "]");
}

static Status count_ops(Facts *f, const Graph *g, StrMap *map) {
  for (const Node *n = g->first; n; n = n->next) {
    StrSlot *slot;
    TRY(strmap_slot(map, &f->arena, n->target, &slot));
    OpCount *c = slot->value;
    if (!c) {
      TRY_NEW(c, arena_new(&f->arena, OpCount));
      *c = (OpCount){.target = n->target, .known = node_is_supported(n)};
      slot->value = c;
      f->unknown += !c->known;
      f->nops++;
    }
    c->count++;
    f->nodes++;
    for (int i = 0; i < n->nargs; i++) {
      if (n->args[i].kind == ARG_GRAPH) TRY(count_ops(f, n->args[i].graph, map));
    }
  }
  return OK;
}

static int more_first(const void *a, const void *b) {
  const OpCount *x = a, *y = b;
  return x->count != y->count ? y->count - x->count : strcmp(x->target, y->target);
}

static Status find_ops(Facts *f) {
  StrMap map = {0};
  TRY(count_ops(f, f->e->graph, &map));
  TRY_NEW(f->ops, arena_new_n(&f->arena, OpCount, f->nops));
  int n = 0;
  for (size_t i = 0; i < map.cap; i++) {
    if (map.slots[i].key) f->ops[n++] = *(OpCount *)map.slots[i].value;
  }
  qsort(f->ops, (size_t)n, sizeof *f->ops, more_first);
  return OK;
}

static void find_state(Facts *f) {
  for (int i = 0; i < f->e->nstate; i++) {
    const StateEntry *s = &f->e->state[i];
    if (!s->tensor) continue;
    int64_t n = tensor_numel(s->tensor);
    if (s->is_parameter) f->parameters += n;
    else if (s->is_constant) f->constants += n;
    else f->buffers += n;
  }
}

static Status describe_sizes(Facts *f, const SymBindings *b) {
  TextBuf t = {0};
  for (int i = 0; i < b->n; i++)
    text_printf(&t, "%s%s=%lld", i ? ", " : "", b->v[i].name, (long long)b->v[i].value);
  f->at = arena_strdup(&f->arena, t.text ? t.text : "");
  bool failed = t.failed || !f->at;
  text_free(&t);
  return failed ? fail_oom() : OK;
}

static Status add_cost(Facts *f, const Program *p) {
  f->has_cost = true;
  f->flops = program_flops(p);
  f->slab_bytes = p->slab_bytes;
  f->instructions = p->ninstrs;
  for (int i = 0; i < p->noutputs; i++) {
    const Tensor *t = p->outputs[i].kind == VAL_TENSOR ? p->outputs[i].tensor : NULL;
    if (t) f->output_bytes += tensor_numel(t) * (int64_t)dtype_size(t->dtype);
  }
  for (int i = 0; i < p->ninstrs; i++)
    TRY(modules_add_flops(&f->arena, f->root, p->instrs[i].node, op_flops(&p->instrs[i].call)));
  return OK;
}

/* A program that cannot be specialised (data-dependent sizes, unknown ops) still has
 * everything else. */
static Status find_cost(Facts *f, Ctx *ctx, Exported *e, Scope *scope) {
  SymBindings b;
  Value *inputs;
  int n;
  Program *p = NULL;
  f->at = "";
  if (f->unknown) {
    f->no_cost = "some of its ops are not supported";
    return OK;
  }
  TRY(feed_symbols(e, true, &b));
  Status s = describe_sizes(f, &b);
  if (!s) s = feed_sizes(e, &b, scope, &f->arena, &inputs, &n);
  free(b.v);
  TRY(s);
  s = estimate_program(ctx, e, inputs, n, &p);
  if (!s) {
    s = add_cost(f, p);
    program_free(p);
    return s;
  }
  const char *message = status_message(s);
  f->no_cost = status_code(s) == ERR_DYNAMIC ? "sizes or branches depend on data"
                                             : arena_strndup(&f->arena, message, strcspn(message, "\n"));
  status_free(s);
  return f->no_cost ? OK : fail_oom();
}

/* ---- text ----------------------------------------------------------------------------- */

static void print_values(FILE *out, const Facts *f) {
  const Exported *e = f->e;
  TextBuf b = {0};
  int n = 0;
  fprintf(out, "\ninputs\n");
  for (int i = 0; i < e->graph->ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    b.len = 0;
    describe_val(&b, e->graph->inputs[i]);
    fprintf(out, "  %-*s %s\n", NAME_WIDTH, e->graph->inputs[i]->name, b.text ? b.text : "");
    n++;
  }
  fprintf(out, "%soutputs\n", n ? "" : "  none\n");
  for (int i = 0, u = 0; i < e->graph->noutputs; i++) {
    const OutputSpec *spec = &e->outputs[i];
    const Arg *a = &e->graph->outputs[i];
    char name[160];
    if (spec->kind == OUT_TOKEN) continue;
    if (spec->target) snprintf(name, sizeof name, "%s %s", output_kind_name(spec->kind), spec->target);
    else snprintf(name, sizeof name, "%d", u++);
    b.len = 0;
    if (a->kind == ARG_VAL) describe_val(&b, a->val);
    else text_puts(&b, a->kind == ARG_NONE ? "None" : "a constant");
    fprintf(out, "  %-*s %s\n", NAME_WIDTH, name, b.text ? b.text : "");
  }
  text_free(&b);
}

static void print_symbols(FILE *out, const Exported *e) {
  if (e->nranges) fprintf(out, "symbols\n");
  for (int i = 0; i < e->nranges; i++) {
    const SymRange *r = &e->ranges[i];
    char low[32] = "-inf", high[32] = "inf";
    if (r->min != INT64_MIN) snprintf(low, sizeof low, "%lld", (long long)r->min);
    if (r->max != INT64_MAX) snprintf(high, sizeof high, "%lld", (long long)r->max);
    fprintf(out, "  %-*s %s to %s", NAME_WIDTH, r->symbol, low, high);
    if (r->hint >= 0) fprintf(out, ", %lld when exported", (long long)r->hint);
    fprintf(out, "\n");
  }
}

typedef struct {
  FILE *out;
  int depth; /* levels to show */
  bool flops;
} TreePrinter;

static void print_module(const TreePrinter *t, const Module *m, int level);

/* Children, rows of equal ones as one line: [0-11] 12 x. */
static void print_children(const TreePrinter *t, const Module *m, int level) {
  for (const Module *c = m->children; c;) {
    const Module *last = c;
    int count = 1;
    while (last->next && modules_alike(c, last->next)) last = last->next, count++;
    Module shown = *c;
    char name[96], type[96];
    if (count > 1) {
      snprintf(name, sizeof name, "%s ... %s", c->name, last->name);
      snprintf(type, sizeof type, "%d x %s", count, c->type);
      shown.name = name;
      shown.type = type;
    }
    if (c->nodes || c->bytes) print_module(t, &shown, level);
    c = last->next;
  }
}

static void print_module(const TreePrinter *t, const Module *m, int level) {
  char count[32], bytes[32], flops[32], name[128];
  snprintf(name, sizeof name, "%*s%s", 2 * level, "", *m->name ? m->name : "(program)");
  fprintf(t->out, "  %-*s %-26s %10s %11s", NAME_WIDTH, name, m->type,
          m->parameters ? human_count((double)m->parameters, count, sizeof count) : "",
          m->bytes ? human_bytes((double)m->bytes, bytes, sizeof bytes) : "");
  if (t->flops) fprintf(t->out, " %10s", m->flops > 0 ? human_count(m->flops, flops, sizeof flops) : "");
  fprintf(t->out, "\n");
  if (level < t->depth) print_children(t, m, level + 1);
}

static void print_ops(FILE *out, const Facts *f) {
  int shown = f->nops > OPS_SHOWN + 3 ? OPS_SHOWN : f->nops, rest = 0;
  fprintf(out, "\n%d node%s, %d different op%s\n", f->nodes, PLURAL(f->nodes), f->nops, PLURAL(f->nops));
  for (int i = 0; i < f->nops; i++) {
    if (i < shown || !f->ops[i].known)
      fprintf(out, "  %6d %s%s\n", f->ops[i].count, f->ops[i].target, f->ops[i].known ? "" : "   not supported");
    else rest += f->ops[i].count;
  }
  if (rest) fprintf(out, "  %6d others (--json lists them)\n", rest);
}

static void write_text(FILE *out, const Facts *f, int depth) {
  char a[32], b[32], c[32];
  const char *version = *f->e->torch_version ? f->e->torch_version : "?";
  fprintf(out, "%s: exported by PyTorch %s%s%s\n", f->path, version, *f->e->dialect ? ", dialect " : "",
          f->e->dialect);
  print_values(out, f);
  print_symbols(out, f->e);
  fprintf(out, "\nmodules%*s%-26s %10s %11s%s\n", NAME_WIDTH - 4, "", "class", "parameters", "bytes",
          f->has_cost ? "      FLOPs" : "");
  print_module(&(TreePrinter){out, depth, f->has_cost}, f->root, 0);
  print_ops(out, f);
  fprintf(out, "\n%s parameter%s, %s of weights", human_count((double)f->root->parameters, a, sizeof a),
          PLURAL(f->root->parameters), human_bytes((double)f->root->bytes, b, sizeof b));
  if (f->buffers)
    fprintf(out, ", of these %s element%s in buffers", human_count((double)f->buffers, c, sizeof c),
            PLURAL(f->buffers));
  fprintf(out, "\n");
  if (!f->has_cost) {
    fprintf(out, "cost of a call: not known before it runs (%s)\n", f->no_cost);
    return;
  }
  fprintf(out, "a call%s%s: %s in %d step%s", *f->at ? " at " : "", f->at, human_flops(f->flops, a, sizeof a),
          f->instructions, PLURAL(f->instructions));
  fprintf(out, ", %s of memory for intermediate results, %s for outputs\n",
          human_bytes((double)f->slab_bytes, b, sizeof b), human_bytes((double)f->output_bytes, c, sizeof c));
}

static Status print_text(const Facts *f, int depth) {
  char *text = NULL;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  if (!out) return fail_oom();
  write_text(out, f, depth);
  Status s = fclose(out) ? fail_oom() : OK;
  if (!s) print_plain(stdout, text);
  free(text);
  return s;
}

/* ---- .safetensors ------------------------------------------------------------------------ */

static Status inspect_tensors(const char *path, bool json) {
  SafeTensors *st;
  double total = 0;
  char buf[256];
  TextBuf name = {0};
  TRY(safetensors_open(path, &st));
  if (json) printf("{\"tensors\": [");
  for (int i = 0; i < st->count; i++) {
    const SafeEntry *e = &st->entries[i];
    double bytes = (double)(e->end - e->begin);
    total += bytes;
    shape_describe(e->ndim, e->size, buf, sizeof buf);
    name.len = 0;
    text_json(&name, e->name);
    if (json)
      printf("%s{\"name\": %s, \"dtype\": \"%s\", \"size\": %s, \"bytes\": %.0f}", i ? ", " : "",
             name.text ? name.text : "\"\"", dtype_name(e->dtype), buf, bytes);
    if (json) continue;
    print_plain(stdout, e->name);
    int gap = NAME_WIDTH - (int)strlen(e->name);
    printf("%*s %s%s\n", gap > 0 ? gap : 0, "", dtype_name(e->dtype), buf);
  }
  if (json) printf("], \"bytes\": %.0f}\n", total);
  else printf("%d tensor%s, %s\n", st->count, PLURAL(st->count), human_bytes(total, buf, sizeof buf));
  text_free(&name);
  safetensors_close(st);
  return OK;
}

static bool ends_with(const char *s, const char *end) {
  size_t n = strlen(s), k = strlen(end);
  return n > k && !strcmp(s + n - k, end);
}

/* ---- the command ---------------------------------------------------------------------------- */

static Status inspect(Facts *f, int64_t depth, bool json) {
  Exported *copy; /* estimating changes the graph */
  Ctx ctx;
  Scope scope = {0};
  TRY(modules_build(&f->arena, f->e, &f->root));
  TRY(find_ops(f));
  find_state(f);
  TRY(program_load(f->path, NULL, &copy));
  ctx_init(&ctx, 1);
  Status s = find_cost(f, &ctx, copy, &scope);
  if (!s && json) s = inspect_print_json(stdout, f);
  else if (!s) s = print_text(f, (int)depth);
  scope_clear(&scope);
  ctx_free(&ctx);
  exported_free(copy);
  return s;
}

typedef struct {
  int64_t depth;
  bool json;
} InspectOptions;

static const Option options[] = {
    {"--depth", 'd', OPT_INT, offsetof(InspectOptions, depth), "N",
     "levels of the module tree to show (default 4)"},
    {"--json", 0, OPT_FLAG, offsetof(InspectOptions, json), NULL, "everything as JSON"},
};
const CommandSpec spec_inspect = {
    .usage = "FILE [options]", .examples = examples, .words = TAKES_FILE, OPTIONS(options)};

Status command_inspect(int argc, char **argv) {
  InspectOptions o = {.depth = 4};
  bool help;
  TextList words;
  TRY(options_parse("inspect", &spec_inspect, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n != 1)
    return status_hint(fail(ERR_USAGE, "inspect takes one file, %d were given", words.n),
                       "tessera inspect model.pt2");
  if (o.depth < 0 || o.depth > 100) return fail(ERR_USAGE, "--depth must be between 0 and 100");
  if (ends_with(words.v[0], ".safetensors")) return inspect_tensors(words.v[0], o.json);
  Exported *e;
  TRY(program_load(words.v[0], NULL, &e));
  Facts f = {.path = words.v[0], .e = e};
  Status s = inspect(&f, o.depth, o.json);
  exported_free(e);
  arena_free(&f.arena);
  return s;
}
