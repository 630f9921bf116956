/* ckpt_inspect.c -- `tessera ckpt inspect`: the tensors of a checkpoint as a tree of modules. */
#include <ctype.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "ckpt/save.h"
#include "cli/ckpt.h"

typedef yyjson_mut_doc Doc;
typedef yyjson_mut_val Json;

/* A part of names between dots: a module, or (with a tensor) a leaf. */
typedef struct Branch Branch;
struct Branch {
  const char *name;
  const SourceTensor *tensor;
  Branch *first, *last, *next;
  int64_t elements, bytes;
  int tensors;
  uint64_t shape; /* of everything below, names included: layers that are alike have the same */
};

typedef struct {
  const Source *s;
  Arena arena;
  bool all; /* layers that are alike, too */
} Tree;

static Status find_child(Tree *t, Branch *parent, const char *name, size_t n, Branch **out) {
  for (Branch *b = parent->last; b; b = NULL) { /* names are sorted: it is the last, or new */
    if (strlen(b->name) != n || strncmp(b->name, name, n) || b->tensor) break;
    *out = b;
    return OK;
  }
  TRY_NEW(*out, arena_new(&t->arena, Branch));
  TRY_NEW((*out)->name, arena_strndup(&t->arena, name, n));
  if (parent->last) parent->last->next = *out;
  else parent->first = *out;
  parent->last = *out;
  return OK;
}

static Status add_tensor(Tree *t, Branch *root, const SourceTensor *tensor) {
  Branch *at = root;
  for (const char *p = tensor->name, *dot; *p || p == tensor->name; p = dot + 1) {
    dot = strchr(p, '.');
    size_t n = dot ? (size_t)(dot - p) : strlen(p);
    TRY(find_child(t, at, p, n, &at));
    if (!dot) break;
  }
  at->tensor = tensor;
  return OK;
}

static void add_up(Branch *b) {
  uint64_t h = 1;
  if (b->tensor) {
    const SourceTensor *t = b->tensor;
    b->bytes = source_bytes(t);
    b->elements = b->bytes / (int64_t)dtype_size(t->dtype);
    b->tensors = 1;
    h = hash_mix(h, (uint64_t)t->dtype);
    h = hash_bytes(h, t->size, (size_t)t->ndim * sizeof *t->size);
    if (t->placements) h = hash_mix(h, hash_text(t->placements));
  }
  for (Branch *c = b->first; c; c = c->next) {
    add_up(c);
    b->bytes += c->bytes;
    b->elements += c->elements;
    b->tensors += c->tensors;
    h = hash_mix(hash_mix(h, hash_text(c->name)), c->shape);
  }
  b->shape = h;
}

static bool is_number(const char *s) {
  for (; *s; s++)
    if (!isdigit((unsigned char)*s)) return false;
  return true;
}

/* ---- text
 * ---------------------------------------------------------------------------------------------------------- */

/* "in ranks 0, 1, 3", or the files where those tell no rank. */
static void print_holders(const Source *s, const SourceTensor *t) {
  int shown = 0, last = -2;
  if (t->chunks == 1 && s->files == 1) return;
  for (int i = 0; i < t->chunks && shown < 6; i++) {
    const SourceFile *f = &s->file[t->chunk[i].file];
    if (f->rank >= 0 && f->rank == last) continue;
    if (f->rank >= 0) printf("%s%d", shown ? ", " : "  rank ", f->rank);
    else printf("%s%s", shown ? ", " : "  ", f->name);
    last = f->rank;
    shown++;
  }
  if (t->chunks > 1) printf("  (%d parts)", t->chunks);
}

static void print_leaf(const Tree *t, const Branch *b, int depth) {
  char shape[240], bytes[32], left[300];
  snprintf(left, sizeof left, "%*s%.200s", 2 * depth, "", b->name);
  print_plain(stdout, left);
  printf("%*s %s%s  %s", (int)(strlen(left) < 40 ? 40 - strlen(left) : 1), "", dtype_name(b->tensor->dtype),
         shape_describe(b->tensor->ndim, b->tensor->size, shape, sizeof shape),
         human_bytes((double)b->bytes, bytes, sizeof bytes));
  if (b->tensor->placements) printf("  %s", b->tensor->placements);
  print_holders(t->s, b->tensor);
  printf("\n");
}

static void print_branch(const Tree *t, const Branch *b, int depth, const Branch *until) {
  char elements[32], bytes[32], left[300];
  if (b->tensor) print_leaf(t, b, depth);
  if (!b->first) return;
  snprintf(left, sizeof left, "%*s%.200s", 2 * depth, "", b->name);
  if (until) snprintf(left + strlen(left), sizeof left - strlen(left), " ... %.60s", until->name);
  print_plain(stdout, left);
  printf("%*s %d tensor%s, %s elements, %s%s\n", (int)(strlen(left) < 40 ? 40 - strlen(left) : 1), "", b->tensors,
         PLURAL(b->tensors), human_count((double)b->elements, elements, sizeof elements),
         human_bytes((double)b->bytes, bytes, sizeof bytes), until ? " each" : "");
  for (const Branch *c = b->first; c; c = c->next) {
    const Branch *alike = NULL;
    for (const Branch *n = c->next;
         !t->all && is_number(c->name) && n && is_number(n->name) && n->shape == c->shape; n = n->next)
      alike = n;
    print_branch(t, c, depth + 1, alike);
    if (alike) c = alike;
  }
}

static void print_head(const Source *s, const Branch *root) {
  char elements[32], bytes[32];
  print_plain(stdout, s->path);
  printf(": %s, %d file%s\n%d tensor%s, %s elements, %s\n", s->format->what, s->files, PLURAL(s->files),
         root->tensors, PLURAL(root->tensors), human_count((double)root->elements, elements, sizeof elements),
         human_bytes((double)root->bytes, bytes, sizeof bytes));
  if (s->save) {
    const SaveFacts *f = &s->save->m.facts;
    printf("step %lld, %lld samples, seed %llu, mesh %s, by tessera %s%s%s\n", (long long)f->step,
           (long long)f->samples, (unsigned long long)f->seed, f->mesh, f->version, *f->program ? ", program " : "",
           f->program);
  }
}

/* ---- JSON
 * ---------------------------------------------------------------------------------------------------------- */

static void add_sizes(Doc *d, Json *o, const char *key, const int64_t *v, int n) {
  Json *list = yyjson_mut_obj_add_arr(d, o, key);
  for (int i = 0; i < n; i++) yyjson_mut_arr_add_int(d, list, v[i]);
}

static void add_chunks(Doc *d, Json *o, const Source *s, const SourceTensor *t) {
  Json *list = yyjson_mut_obj_add_arr(d, o, "chunks");
  for (int i = 0; i < t->chunks; i++) {
    const SourceChunk *c = &t->chunk[i];
    Json *one = yyjson_mut_arr_add_obj(d, list);
    yyjson_mut_obj_add_strcpy(d, one, "file", s->file[c->file].name);
    if (s->file[c->file].rank >= 0) yyjson_mut_obj_add_int(d, one, "rank", s->file[c->file].rank);
    add_sizes(d, one, "offset", c->offset, t->ndim);
    add_sizes(d, one, "size", c->size, t->ndim);
  }
}

static Status print_json(const Source *s) {
  Doc *d;
  TRY_NEW(d, yyjson_mut_doc_new(NULL));
  Json *root = yyjson_mut_obj(d);
  yyjson_mut_doc_set_root(d, root);
  yyjson_mut_obj_add_strcpy(d, root, "path", s->path);
  yyjson_mut_obj_add_str(d, root, "format", s->format->name);
  if (s->mesh) yyjson_mut_obj_add_strcpy(d, root, "mesh", s->mesh);
  if (s->save) yyjson_mut_obj_add_int(d, root, "step", s->save->m.facts.step);
  Json *list = yyjson_mut_obj_add_arr(d, root, "tensors");
  for (int i = 0; i < s->tensors; i++) {
    const SourceTensor *t = &s->tensor[i];
    Json *o = yyjson_mut_arr_add_obj(d, list);
    yyjson_mut_obj_add_strcpy(d, o, "name", t->name);
    yyjson_mut_obj_add_str(d, o, "dtype", dtype_name(t->dtype));
    add_sizes(d, o, "size", t->size, t->ndim);
    yyjson_mut_obj_add_int(d, o, "bytes", source_bytes(t));
    if (t->placements) yyjson_mut_obj_add_strcpy(d, o, "placements", t->placements);
    add_chunks(d, o, s, t);
  }
  Json *values = yyjson_mut_obj_add_obj(d, root, "values");
  for (int i = 0; i < s->values; i++) yyjson_mut_obj_add_strcpy(d, values, s->value[i].name, s->value[i].text);
  return json_print(stdout, d);
}

/* ---- the command
 * ------------------------------------------------------------------------------------------------------ */

typedef struct {
  bool json, all;
} InspectOptions;

static const Option options[] = {
    {"--all", 'a', OPT_FLAG, offsetof(InspectOptions, all), NULL, "layers that are alike one by one"},
    {"--json", 0, OPT_FLAG, offsetof(InspectOptions, json), NULL, "every tensor with its parts, as JSON"},
};
const CommandSpec spec_ckpt_inspect = {.usage = "CHECKPOINT [options]",
                                       .examples = "  tessera COMMAND run/\n  tessera COMMAND model/ --json\n",
                                       .words = TAKES_FILE,
                                       OPTIONS(options)};

static Status print_tree(const Source *s, bool all) {
  Tree t = {.s = s, .all = all};
  Branch root = {.name = "(all)"};
  Status r = OK;
  for (int i = 0; !r && i < s->tensors; i++) r = add_tensor(&t, &root, &s->tensor[i]);
  if (!r) {
    add_up(&root);
    print_head(s, &root);
    for (const Branch *b = root.first; b; b = b->next) print_branch(&t, b, 0, NULL);
    for (int i = 0; i < s->values; i++) {
      print_plain(stdout, s->value[i].name);
      printf(" = ");
      print_plain(stdout, s->value[i].text);
      printf("\n");
    }
  }
  arena_free(&t.arena);
  return r;
}

Status ckpt_inspect(const char *name, int argc, char **argv) {
  InspectOptions o = {0};
  TextList words;
  bool help;
  Source *s;
  (void)name;
  TRY(options_parse("ckpt inspect", &spec_ckpt_inspect, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n != 1)
    return status_hint(fail(ERR_USAGE, "inspect takes one checkpoint"), "tessera ckpt inspect run/");
  TRY(source_open(words.v[0], &s));
  Status r = o.json ? print_json(s) : print_tree(s, o.all);
  source_close(s);
  return r;
}
