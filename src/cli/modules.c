/* modules.c -- see modules.h. */
#include "cli/modules.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/strmap.h"

enum { MAX_PATH = 512 };

static Status child(Arena *arena, Module *m, const char *name, size_t len, Module **out) {
  for (Module *c = m->children; c; c = c->next) {
    if (strlen(c->name) == len && !memcmp(c->name, name, len)) return *out = c, OK;
  }
  Module *c;
  TRY_NEW(c, arena_new(arena, Module));
  TRY_NEW(c->name, arena_strndup(arena, name, len));
  c->type = "";
  if (m->last_child) m->last_child->next = c;
  else m->children = c;
  m->last_child = c;
  return *out = c, OK;
}

typedef struct {
  int64_t parameters, bytes;
  int nodes;
  double flops;
} Amounts;

/* Adds to every module on the way; *last is the one at the end. */
static Status add_along(Arena *arena, Module *root, const char *path, Amounts a, Module **last) {
  Module *m = root;
  for (;;) {
    m->parameters += a.parameters;
    m->bytes += a.bytes;
    m->nodes += a.nodes;
    m->flops += a.flops;
    if (!*path) break;
    size_t len = strcspn(path, ".");
    TRY(child(arena, m, path, len, &m));
    path += path[len] == '.' ? len + 1 : len;
  }
  if (last) *last = m;
  return OK;
}

/* ---- state ------------------------------------------------------------------------ */

/* Tied weights are the same elements of the same record. */
static Status is_first(Arena *arena, StrMap *seen, const StateEntry *s, bool *first) {
  char shape[256];
  StrSlot *slot;
  char *key;
  const char *record = s->record ? s->record : s->fqn;
  TRY_NEW(key, arena_printf(arena, "%s %lld %s", record, (long long)s->tensor->offset,
                            tensor_describe(s->tensor, shape, sizeof shape)));
  TRY(strmap_slot(seen, arena, key, &slot));
  *first = !slot->value;
  slot->value = slot;
  return OK;
}

static Status add_state(Arena *arena, Module *root, const Exported *e) {
  StrMap seen = {0};
  for (int i = 0; i < e->nstate; i++) {
    const StateEntry *s = &e->state[i];
    char path[MAX_PATH];
    bool first;
    if (!s->tensor) continue;
    TRY(is_first(arena, &seen, s, &first));
    const char *dot = strrchr(s->fqn, '.');
    snprintf(path, sizeof path, "%.*s", dot ? (int)(dot - s->fqn) : 0, s->fqn);
    int64_t n = tensor_numel(s->tensor);
    Amounts a = {0};
    if (first)
      a = (Amounts){.parameters = s->is_parameter ? n : 0, .bytes = n * (int64_t)dtype_size(s->tensor->dtype)};
    TRY(add_along(arena, root, path, a, NULL));
  }
  return OK;
}

/* ---- nodes ------------------------------------------------------------------------ */

/* nn_module_stack's last entry: "key,path,package.Class". */
static const char *class_of(Arena *arena, const Node *n) {
  const char *stack = node_meta(n, "nn_module_stack");
  if (!stack) return "";
  const char *last = strrchr(stack, ';');
  const char *type = strrchr(last ? last : stack, ',');
  if (!type || !strncmp(type + 1, "_empty_nn_module_stack", 22)) return "";
  const char *dot = strrchr(type, '.');
  return arena_strdup(arena, dot ? dot + 1 : type + 1);
}

/* Nodes of no module carry a placeholder of the exporter's: they are the program's own. */
static const char *module_of(const Node *n, char *buf, size_t cap) {
  node_module(n, buf, cap);
  return !strncmp(buf, "_empty_nn_module_stack", 22) ? "" : buf;
}

static Status add_node(Arena *arena, Module *root, const Node *n) {
  char path[MAX_PATH];
  Module *m;
  TRY(add_along(arena, root, module_of(n, path, sizeof path), (Amounts){.nodes = 1}, &m));
  if (!*m->type) TRY_NEW(m->type, class_of(arena, n));
  return OK;
}

static Status add_graph(Arena *arena, Module *root, const Graph *g) {
  for (const Node *n = g->first; n; n = n->next) {
    TRY(add_node(arena, root, n));
    for (int i = 0; i < n->nargs; i++) {
      if (n->args[i].kind == ARG_GRAPH) TRY(add_graph(arena, root, n->args[i].graph));
    }
  }
  return OK;
}

Status modules_build(Arena *arena, const Exported *e, Module **out) {
  TRY_NEW(*out, arena_new(arena, Module));
  (*out)->name = (*out)->type = "";
  TRY(add_state(arena, *out, e));
  return add_graph(arena, *out, e->graph);
}

Status modules_add_flops(Arena *arena, Module *root, const Node *n, double flops) {
  char path[MAX_PATH];
  return add_along(arena, root, module_of(n, path, sizeof path), (Amounts){.flops = flops}, NULL);
}

static bool is_number(const char *s) {
  for (const char *c = s; *c; c++) {
    if (!isdigit((unsigned char)*c)) return false;
  }
  return *s;
}

static bool children_alike(const Module *a, const Module *b) {
  const Module *x = a->children, *y = b->children;
  for (; x && y; x = x->next, y = y->next) {
    if (strcmp(x->name, y->name) || x->bytes != y->bytes || strcmp(x->type, y->type) || !children_alike(x, y))
      return false;
  }
  return !x && !y;
}

/* The last layer may do a little less (a residual that nobody needs): a percent is like. */
bool modules_alike(const Module *a, const Module *b) {
  return is_number(a->name) && is_number(b->name) && a->parameters == b->parameters && a->bytes == b->bytes &&
         fabs(a->flops - b->flops) <= 0.01 * a->flops && !strcmp(a->type, b->type) && children_alike(a, b);
}
