/* text.c -- golden node lists as tessera's text form; see ddp.h. */
#include <stdlib.h>
#include <string.h>

#include "base/strmap.h"
#include "ddp.h"

typedef struct {
  Arena arena;
  StrMap nodes;  /* name -> yyjson_val * */
  StrMap pieces; /* name of a node with several results -> Piece * */
  TextBuf *out;
} Writer;

/* Names of a node's results. */
typedef struct {
  int n;
  const char **name;
} Pieces;

static const char *member(yyjson_val *node, const char *key) {
  const char *s = yyjson_get_str(yyjson_obj_get(node, key));
  return s ? s : "";
}

static bool has_several(yyjson_val *node) { return yyjson_is_arr(yyjson_obj_get(node, "dtype")); }

static const char *dtype_word(const char *torch) {
  static const char *const words[][2] = {
      {"float32", "f32"}, {"float64", "f64"}, {"float16", "f16"}, {"bfloat16", "bf16"}, {"int64", "i64"},
      {"int32", "i32"},   {"int16", "i16"},   {"int8", "i8"},     {"uint8", "u8"},      {"bool", "bool"}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (!strcmp(words[i][0], torch)) return words[i][1];
  }
  return "none";
}

static void write_type(TextBuf *b, yyjson_val *dtype, yyjson_val *shape) {
  yyjson_val *size;
  size_t i, n;
  if (!yyjson_is_str(dtype)) { /* a result that is None */
    text_puts(b, "none");
    return;
  }
  text_printf(b, "%s[", dtype_word(yyjson_get_str(dtype)));
  yyjson_arr_foreach(shape, i, n, size) text_printf(b, "%s%lld", i ? "," : "", (long long)yyjson_get_sint(size));
  text_puts(b, "]");
}

/* ---- results of nodes with several ---------------------------------------------------------- */

static Status name_pieces(Writer *w, yyjson_val *node) {
  Pieces *p;
  StrSlot *slot;
  TRY_NEW(p, arena_new(&w->arena, Pieces));
  p->n = (int)yyjson_arr_size(yyjson_obj_get(node, "dtype"));
  TRY_NEW(p->name, arena_new_n(&w->arena, const char *, p->n + 1));
  for (int i = 0; i < p->n; i++)
    TRY_NEW(p->name[i], arena_printf(&w->arena, "%s_unused_%d", member(node, "name"), i));
  TRY(strmap_slot(&w->pieces, &w->arena, member(node, "name"), &slot));
  slot->value = p;
  return OK;
}

static bool is_getitem(yyjson_val *node) { return !strcmp(member(node, "target"), "getitem"); }

/* Two getitems may take the same piece: the first one names it. */
static Status name_by_getitem(Writer *w, yyjson_val *node) {
  yyjson_val *args = yyjson_obj_get(node, "args");
  const char *of = yyjson_get_str(yyjson_arr_get(args, 0));
  int index = (int)yyjson_get_sint(yyjson_arr_get(args, 1));
  Pieces *p = of ? strmap_get(&w->pieces, of + 1) : NULL;
  StrSlot *slot;
  if (!p || index >= p->n) return fail(ERR_FILE, "%s takes a piece that is not there", member(node, "name"));
  if (strstr(p->name[index], "_unused_")) p->name[index] = member(node, "name");
  TRY(strmap_slot(&w->nodes, &w->arena, member(node, "name"), &slot));
  return OK;
}

/* ---- arguments ---------------------------------------------------------------------------------- */

static void write_reference(Writer *w, const char *name) {
  yyjson_val *node = strmap_get(&w->nodes, name);
  const Pieces *p = strmap_get(&w->pieces, name);
  if (p) { /* a list as a whole */
    text_puts(w->out, "[");
    for (int i = 0; i < p->n; i++) text_printf(w->out, "%s%%%s", i ? ", " : "", p->name[i]);
    text_puts(w->out, "]");
    return;
  }
  if (node && is_getitem(node)) {
    yyjson_val *args = yyjson_obj_get(node, "args");
    p = strmap_get(&w->pieces, yyjson_get_str(yyjson_arr_get(args, 0)) + 1);
    name = p->name[yyjson_get_sint(yyjson_arr_get(args, 1))];
  }
  text_printf(w->out, "%%%s", name);
}

/* {"dtype": "float32"}, {"float": "-inf"}, {"layout": "torch.strided"} ... */
static void write_object(Writer *w, yyjson_val *v) {
  const char *s;
  if ((s = yyjson_get_str(yyjson_obj_get(v, "dtype")))) text_puts(w->out, dtype_word(s));
  else if ((s = yyjson_get_str(yyjson_obj_get(v, "float")))) text_puts(w->out, s);
  else if (yyjson_obj_get(v, "layout")) text_puts(w->out, "strided");
  else if ((s = yyjson_get_str(yyjson_obj_get(v, "device")))) text_printf(w->out, "device(\"%s\")", s);
  else if ((s = yyjson_get_str(yyjson_obj_get(v, "memory_format")))) {
    const char *dot = strrchr(s, '.');
    s = dot ? dot + 1 : s;
    text_puts(w->out, !strcmp(s, "contiguous_format") ? "contiguous"
                      : !strcmp(s, "preserve_format") ? "preserve"
                                                      : s);
  } else text_puts(w->out, "None");
}

static void write_argument(Writer *w, yyjson_val *v) {
  const char *s = yyjson_get_str(v);
  if (yyjson_is_arr(v)) {
    yyjson_val *item;
    size_t i, n;
    text_puts(w->out, "[");
    yyjson_arr_foreach(v, i, n, item) {
      if (i) text_puts(w->out, ", ");
      write_argument(w, item);
    }
    text_puts(w->out, "]");
  } else if (s && *s == '%') write_reference(w, s + 1);
  else if (s) text_json(w->out, s);
  else if (yyjson_is_bool(v)) text_puts(w->out, yyjson_get_bool(v) ? "true" : "false");
  else if (yyjson_is_int(v)) text_printf(w->out, "%lld", (long long)yyjson_get_sint(v));
  else if (yyjson_is_num(v)) text_float(w->out, yyjson_get_num(v));
  else if (yyjson_is_obj(v)) write_object(w, v);
  else text_puts(w->out, "None");
}

/* ---- nodes ---------------------------------------------------------------------------------------- */

/* The overload that PyTorch takes for the packets that its pass writes. */
static const char *full_target(const char *target) {
  static const char *const packets[][2] = {{"aten.cat", "aten.cat.default"},
                                           {"aten.split", "aten.split.sizes"},
                                           {"aten.reshape", "aten.reshape.default"}};
  for (size_t i = 0; i < sizeof packets / sizeof *packets; i++) {
    if (!strcmp(target, packets[i][0])) return packets[i][1];
  }
  return target;
}

static void write_results(Writer *w, yyjson_val *node) {
  yyjson_val *dtype = yyjson_obj_get(node, "dtype"), *shape = yyjson_obj_get(node, "shape");
  const Pieces *p = strmap_get(&w->pieces, member(node, "name"));
  for (int i = 0; p && i < p->n; i++) {
    text_printf(w->out, "%s%%%s: ", i ? ", " : "", p->name[i]);
    write_type(w->out, yyjson_arr_get(dtype, (size_t)i), yyjson_arr_get(shape, (size_t)i));
  }
  if (!p && yyjson_is_str(dtype)) {
    text_printf(w->out, "%%%s: ", member(node, "name"));
    write_type(w->out, dtype, shape);
  }
  if (p || yyjson_is_str(dtype)) text_puts(w->out, " = ");
}

static void write_call(Writer *w, yyjson_val *node) {
  yyjson_val *item, *key, *args = yyjson_obj_get(node, "args");
  size_t i, n;
  bool first = true;
  text_puts(w->out, "  ");
  write_results(w, node);
  text_printf(w->out, "%s(", full_target(member(node, "target")));
  yyjson_arr_foreach(args, i, n, item) {
    if (!first) text_puts(w->out, ", ");
    write_argument(w, item);
    first = false;
  }
  yyjson_obj_foreach(yyjson_obj_get(node, "kwargs"), i, n, key, item) {
    if (!first) text_puts(w->out, ", ");
    text_printf(w->out, "%s=", yyjson_get_str(key));
    write_argument(w, item);
    first = false;
  }
  text_puts(w->out, ")\n");
}

static void write_outputs(Writer *w, yyjson_val *node) {
  yyjson_val *item, *list = yyjson_arr_get(yyjson_obj_get(node, "args"), 0);
  size_t i, n;
  text_puts(w->out, "  return");
  yyjson_arr_foreach(list, i, n, item) {
    text_puts(w->out, i ? ", user " : " user ");
    write_argument(w, item);
  }
  text_puts(w->out, "\n}\n");
}

static Status write_graph(Writer *w, yyjson_val *order) {
  yyjson_val *name;
  size_t i, n;
  bool body = false, first = true;
  text_puts(w->out, "graph(");
  yyjson_arr_foreach(order, i, n, name) {
    yyjson_val *node = strmap_get(&w->nodes, yyjson_get_str(name));
    if (!node) return fail(ERR_FILE, "the order names a node that is not there: %s", yyjson_get_str(name));
    const char *op = member(node, "op");
    if (!strcmp(op, "placeholder")) {
      text_printf(w->out, "%s\n  %%%s: ", first ? "" : ",", yyjson_get_str(name));
      write_type(w->out, yyjson_obj_get(node, "dtype"), yyjson_obj_get(node, "shape"));
      text_puts(w->out, " = user");
      first = false;
      continue;
    }
    if (!body) text_puts(w->out, ") {\n");
    body = true;
    if (!strcmp(op, "output")) write_outputs(w, node);
    else if (!is_getitem(node)) write_call(w, node);
  }
  return w->out->failed ? fail_oom() : OK;
}

static Status read_lists(Writer *w, yyjson_val *order, yyjson_val *const *lists, int nlists) {
  yyjson_val *node, *name;
  size_t i, n;
  StrSlot *slot;
  for (int k = 0; k < nlists; k++) {
    yyjson_arr_foreach(lists[k], i, n, node) {
      TRY(strmap_slot(&w->nodes, &w->arena, member(node, "name"), &slot));
      slot->value = node;
    }
  }
  yyjson_arr_foreach(order, i, n, name) {
    node = strmap_get(&w->nodes, yyjson_get_str(name));
    if (node && has_several(node)) TRY(name_pieces(w, node));
  }
  yyjson_arr_foreach(order, i, n, name) {
    node = strmap_get(&w->nodes, yyjson_get_str(name));
    if (node && is_getitem(node)) TRY(name_by_getitem(w, node));
  }
  return OK;
}

Status ddp_graph_text(yyjson_val *order, yyjson_val *const *lists, int nlists, TextBuf *out) {
  Writer w = {.out = out};
  Status s = read_lists(&w, order, lists, nlists);
  if (!s) s = write_graph(&w, order);
  arena_free(&w.arena);
  return s;
}
