/* plan_file.c -- see plan_file.h. */
#include "plan/plan_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/near.h"
#include "base/textbuf.h"
#include "dist/mesh.h"

/* ---- styles ---------------------------------------------------------------------------------- */

static const char *const style_words[STYLE_COUNT] = {
#define X(id, word) [id] = word,
    STYLES(X)
#undef X
};

/* Words of Hugging Face plans, older and newer, that mean one of ours.  Those that end in
 * _rep gather; local_ ones differ only in what module hooks do.  Those that `ship` only
 * occur in plans that come with a model: such a plan serves all layers that a
 * configuration may have, dense ones and experts, and leaves out leading names. */
static const struct {
  const char *word;
  Style style;
  bool ships;
} other_words[] = {
    {"colwise_rep", STYLE_COLWISE_GATHER_OUTPUT, false},
    {"rowwise_rep", STYLE_ROWWISE_SPLIT_INPUT, false},
    {"local_colwise", STYLE_COLWISE, false},
    {"local_rowwise", STYLE_ROWWISE, false},
    {"local_packed_rowwise", STYLE_PACKED_ROWWISE, false},
    {"local_packed_colwise", STYLE_PACKED_COLWISE, false},
    {"local", STYLE_REPLICATE, false},
    {"replicated", STYLE_REPLICATE, false},
    {"replicated_with_grad_allreduce", STYLE_REPLICATE, true},
    {"mla_kv_a_proj", STYLE_REPLICATE, true},
    {"moe_tp_experts", STYLE_GATHER, true},
    {"grouped_gemm", STYLE_GATHER, true},
    {"ep_router", STYLE_REPLICATE, true},
    {"moe_identity_expert", STYLE_REPLICATE, true},
    {"ep_dispatch_experts", STYLE_GATHER, true},
    {"all_reduce", STYLE_GATHER, true},
    {"embedding_colwise", STYLE_COLWISE_GATHER_OUTPUT, false},
    {"megamoe_router", STYLE_REPLICATE, true},
    {"megamoe_experts", STYLE_GATHER, true},
    {"ColwiseParallel", STYLE_COLWISE, false},
    {"RowwiseParallel", STYLE_ROWWISE, false},
    {"SequenceParallel", STYLE_SEQUENCE_PARALLEL, false},
};
enum { OTHER_WORDS = sizeof other_words / sizeof *other_words };

const char *style_name(Style s) { return style_words[s]; }

Status style_parse(const char *word, Style *out) {
  for (int i = 0; i < STYLE_PLACEMENTS; i++)
    if (!strcmp(word, style_words[i])) return *out = (Style)i, OK;
  for (int i = 0; i < OTHER_WORDS; i++)
    if (!strcmp(word, other_words[i].word)) return *out = other_words[i].style, OK;
  const char *near = NULL;
  for (int i = 0; i < STYLE_PLACEMENTS; i++) near = nearer_name(word, near, style_words[i]);
  for (int i = 0; i < OTHER_WORDS; i++) near = nearer_name(word, near, other_words[i].word);
  Status s = fail(ERR_USAGE, "'%s' is no style", word);
  if (near) s = status_hint(s, "did you mean '%s'?", near);
  return status_hint(
      s, "styles: colwise, rowwise, packed_colwise, packed_rowwise, colwise_gather_output, rowwise_split_input, "
         "embedding_rowwise, sequence_parallel, gather, replicate, or placements such as S(0)");
}

/* ---- reading ----------------------------------------------------------------------------------- */

static const char example[] = "a plan is JSON: {\"parallelize\": {\"layers.*.up_proj\": \"colwise\"}}";

static Status keep(PlanFile *p, const char *text, const char **out) {
  TRY_NEW(*out, arena_strdup(&p->arena, text));
  return OK;
}

/* Placements as one text: "S(0)", ["S(0)", "R"]. */
static Status read_placements(PlanFile *p, yyjson_val *v, const char *what, const char **out) {
  if (yyjson_is_str(v)) return keep(p, yyjson_get_str(v), out);
  if (!yyjson_is_arr(v))
    return fail(ERR_FILE, "%s: '%s' needs placements: a text such as \"S(0),R\" or a list of them", p->path, what);
  TextBuf b = {0};
  size_t i, n;
  yyjson_val *item;
  bool texts = yyjson_arr_size(v) > 0;
  yyjson_arr_foreach(v, i, n, item) {
    texts &= json_as_string(item) != NULL;
    if (texts) text_printf(&b, "%s%s", i ? "," : "", json_as_string(item));
  }
  Status s = !texts ? fail(ERR_FILE, "%s: the list of '%s' is to hold placements: [\"S(0)\", \"R\"]", p->path, what)
             : b.text ? keep(p, b.text, out)
                      : fail_oom();
  text_free(&b);
  return s;
}

static bool looks_like_placements(const char *word) {
  size_t n = strlen(word);
  return strpbrk(word, "(,[") || (n == 1 && (*word == 'R' || *word == 'P'));
}

static Status check_style_keys(PlanFile *p, const char *pattern, yyjson_val *object) {
  size_t i, n;
  yyjson_val *key, *value;
  yyjson_obj_foreach(object, i, n, key, value) {
    const char *word = yyjson_get_str(key);
    if (strcmp(word, "axis") && strcmp(word, "style") && strcmp(word, "placements"))
      return status_hint(fail(ERR_FILE, "%s: the entry of '%s' has an unknown key \"%s\"", p->path, pattern, word),
                         "write {\"style\": \"colwise\", \"axis\": \"tp\"}");
  }
  return OK;
}

/* "colwise", "S(0)", ["S(0)", "R"], {"style": "colwise", "axis": "tp"} */
static Status read_style(PlanFile *p, const char *pattern, yyjson_val *v, bool raw, PlanEntry *e) {
  *e = (PlanEntry){.style = STYLE_PLACEMENTS};
  TRY(keep(p, pattern, &e->pattern));
  if (strlen(pattern) > PATTERN_MAX)
    return fail(ERR_FILE, "%s: a pattern of %zu characters, '%.40s...'; at most %d are taken", p->path,
                strlen(pattern), pattern, PATTERN_MAX);
  if (yyjson_is_obj(v)) {
    yyjson_val *axis = yyjson_obj_get(v, "axis"), *style = yyjson_obj_get(v, "style");
    TRY(check_style_keys(p, pattern, v));
    if (!style) style = yyjson_obj_get(v, "placements");
    if (!style) return fail(ERR_FILE, "%s: the entry of '%s' has no \"style\"", p->path, pattern);
    const char *axis_name = NULL;
    if (axis && !json_as_string(axis))
      return fail(ERR_FILE, "%s: the \"axis\" of '%s' is no name", p->path, pattern);
    if (axis) TRY(keep(p, json_as_string(axis), &axis_name));
    TRY(read_style(p, pattern, style, raw, e));
    e->axis = axis_name;
    return OK;
  }
  const char *word = json_as_string(v);
  if (word && !raw && !looks_like_placements(word))
    return status_at(style_parse(word, &e->style), "%s: the entry of '%s'", p->path, pattern);
  if (!word && !yyjson_is_arr(v))
    return fail(ERR_FILE, "%s: the entry of '%s' is to be %s", p->path, pattern,
                raw ? "placements: \"S(0)\"" : "a style such as \"colwise\", or placements: \"S(0)\"");
  return read_placements(p, v, pattern, &e->placements);
}

static bool ships_with_a_model(yyjson_val *entries) {
  size_t i, n;
  yyjson_val *key, *value;
  yyjson_obj_foreach(entries, i, n, key, value) {
    const char *word = json_as_string(value);
    for (int k = 0; word && k < OTHER_WORDS; k++)
      if (other_words[k].ships && !strcmp(word, other_words[k].word)) return true;
  }
  return false;
}

static Status read_entries(PlanFile *p, yyjson_val *object, const char *what, bool raw, bool anywhere) {
  size_t i, n;
  yyjson_val *key, *value;
  PlanEntry *more;
  if (!object) return OK;
  if (!yyjson_is_obj(object))
    return fail(ERR_FILE, "%s: \"%s\" is no object of patterns and styles", p->path, what);
  TRY(status_at(json_check_keys(object, p->path), "\"%s\"", what));
  TRY_NEW(more, arena_new_n(&p->arena, PlanEntry, (size_t)p->nentries + yyjson_obj_size(object) + 1));
  if (p->nentries) memcpy(more, p->entry, (size_t)p->nentries * sizeof *more);
  p->entry = more;
  anywhere |= ships_with_a_model(object);
  yyjson_obj_foreach(object, i, n, key, value) {
    TRY(read_style(p, yyjson_get_str(key), value, raw, &more[p->nentries]));
    more[p->nentries++].anywhere = anywhere;
  }
  return OK;
}

static Status read_pairs(PlanFile *p, yyjson_val *object, const char *what, PlanPair **out, int *count) {
  size_t i, n;
  yyjson_val *key, *value;
  if (!object) return OK;
  bool packed = !strcmp(what, "packed"), list = yyjson_is_arr(object) && !packed;
  if (!list && !yyjson_is_obj(object))
    return fail(ERR_FILE, "%s: \"%s\" is no object of %s", p->path, what,
                packed ? "patterns and counts" : "names and placements");
  if (!list) TRY(status_at(json_check_keys(object, p->path), "\"%s\"", what));
  TRY_NEW(*out, arena_new_n(&p->arena, PlanPair, (list ? yyjson_arr_size(object) : yyjson_obj_size(object)) + 1));
  if (list) { /* by position */
    yyjson_arr_foreach(object, i, n, value) {
      char name[24];
      snprintf(name, sizeof name, "%zu", i);
      TRY(keep(p, name, &(*out)[*count].name));
      TRY(read_placements(p, value, name, &(*out)[*count].text));
      ++*count;
    }
    return OK;
  }
  yyjson_obj_foreach(object, i, n, key, value) {
    PlanPair *pair = &(*out)[*count];
    TRY(keep(p, yyjson_get_str(key), &pair->name));
    if (packed) {
      if (!json_as_int64(value, &pair->count) || pair->count < 1)
        return fail(ERR_FILE, "%s: \"packed\" of '%s' is no count", p->path, pair->name);
    } else TRY(read_placements(p, value, pair->name, &pair->text));
    ++*count;
  }
  return OK;
}

/* "" tells none. */
static Status read_mesh_text(PlanFile *p, const char *text) {
  int ranks;
  if (!*text) return OK;
  Status s = mesh_text_ranks(text, &ranks);
  if (!s) return keep(p, text, &p->mesh);
  status_free(s);
  return status_hint(fail(ERR_FILE, "%s: \"mesh\" is '%s', no mesh", p->path, text),
                     "write \"dp=2,tp=4\" or {\"dp\": 2, \"tp\": 4}");
}

static Status read_mesh(PlanFile *p, yyjson_val *v) {
  if (!v) return OK;
  if (yyjson_is_str(v)) return read_mesh_text(p, yyjson_get_str(v));
  TextBuf b = {0};
  size_t i, n;
  yyjson_val *key, *value;
  int64_t ranks = 0;
  bool numbers = true;
  if (yyjson_is_obj(v)) {
    yyjson_obj_foreach(v, i, n, key, value) {
      numbers &= json_as_int64(value, &ranks) && ranks > 0;
      text_printf(&b, "%s%s=%lld", i ? "," : "", yyjson_get_str(key), (long long)ranks);
    }
  } else if (yyjson_is_arr(v)) {
    yyjson_arr_foreach(v, i, n, value) {
      numbers &= json_as_int64(value, &ranks) && ranks > 0;
      text_printf(&b, "%s%lld", i ? "x" : "", (long long)ranks);
    }
  }
  Status s = b.text && numbers
                 ? keep(p, b.text, &p->mesh)
                 : fail(ERR_FILE, "%s: \"mesh\" is an object of axes and sizes: {\"dp\": 2, \"tp\": 4}", p->path);
  text_free(&b);
  return s;
}

static const char *const known[] = {"mesh",   "parallelize", "params", "packed", "inputs",  "outputs",
                                    "groups", "files",       "train",  "name",   "comment", "about"};

/* Patterns and styles with nothing around them, as models carry them in Python. */
static bool is_bare(yyjson_val *root) {
  size_t i, n;
  yyjson_val *key, *value;
  yyjson_obj_foreach(root, i, n, key, value) {
    if (!yyjson_is_str(value)) return false;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
      if (!strcmp(known[k], yyjson_get_str(key))) return false;
  }
  return yyjson_obj_size(root) > 0;
}

/* What we understand; a key beside them is a slip of the pen. */
static Status check_keys(PlanFile *p, yyjson_val *root) {
  size_t i, n;
  yyjson_val *key, *value;
  yyjson_obj_foreach(root, i, n, key, value) {
    bool found = false;
    const char *near = NULL, *word = yyjson_get_str(key);
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
      found |= !strcmp(known[k], word);
      near = nearer_name(word, near, known[k]);
    }
    if (found) continue;
    Status s = fail(ERR_FILE, "%s: unknown key \"%s\"", p->path, word);
    return near ? status_hint(s, "did you mean \"%s\"?", near)
                : status_hint(s, "keys of a plan: mesh, parallelize, params, packed, inputs, outputs");
  }
  return OK;
}

static Status read_plan(PlanFile *p, yyjson_val *root) {
  if (!yyjson_is_obj(root))
    return status_hint(fail(ERR_FILE, "%s: a plan is a JSON object", p->path), "%s", example);
  yyjson_val *hf = yyjson_obj_get(root, "base_model_tp_plan");
  if (!hf && yyjson_obj_get(root, "text_config"))
    hf = yyjson_obj_get(yyjson_obj_get(root, "text_config"), "base_model_tp_plan");
  if (hf && !yyjson_is_null(hf)) return read_entries(p, hf, "base_model_tp_plan", false, true);
  if (hf || yyjson_obj_get(root, "model_type") || yyjson_obj_get(root, "architectures"))
    return status_hint(fail(ERR_FILE, "%s: this config.json has no base_model_tp_plan", p->path),
                       "transformers keeps it in the class, not in the file: json.dump(model.tp_plan, file) makes "
                       "a plan; or use --plan auto");
  TRY(json_check_keys(root, p->path));
  if (is_bare(root)) return read_entries(p, root, "parallelize", false, false);
  TRY(check_keys(p, root));
  TRY(read_mesh(p, yyjson_obj_get(root, "mesh")));
  TRY(read_entries(p, yyjson_obj_get(root, "parallelize"), "parallelize", false, false));
  TRY(read_entries(p, yyjson_obj_get(root, "params"), "params", true, false));
  TRY(read_pairs(p, yyjson_obj_get(root, "packed"), "packed", &p->packed, &p->npacked));
  TRY(read_pairs(p, yyjson_obj_get(root, "inputs"), "inputs", &p->inputs, &p->ninputs));
  return read_pairs(p, yyjson_obj_get(root, "outputs"), "outputs", &p->outputs, &p->noutputs);
}

Status plan_file_parse(const char *path, const char *text, size_t size, PlanFile **out) {
  yyjson_doc *doc;
  PlanFile *p;
  Status s = json_parse(path, text, size, 0, &doc);
  if (s && status_code(s) == ERR_FILE) s = status_hint(s, "%s", example);
  TRY(s);
  p = calloc(1, sizeof *p);
  s = p ? keep(p, path, &p->path) : fail_oom();
  if (!s) s = read_plan(p, yyjson_doc_get_root(doc));
  yyjson_doc_free(doc);
  if (s) plan_file_free(p);
  else *out = p;
  return s;
}

Status plan_file_read(const char *path, PlanFile **out) {
  FileMap *map;
  if (!strcmp(path, "auto")) {
    TRY(plan_file_new("auto", out));
    (*out)->automatic = true;
    return OK;
  }
  TRY(file_map(path, &map));
  Status s = plan_file_parse(path, (const char *)map->data, map->size, out);
  file_map_unref(map);
  return s;
}

/* ---- making and printing ------------------------------------------------------------------------- */

Status plan_file_new(const char *path, PlanFile **out) {
  PlanFile *p;
  TRY_NEW(p, calloc(1, sizeof *p));
  Status s = keep(p, path, &p->path);
  if (s) plan_file_free(p);
  else *out = p;
  return s;
}

Status plan_file_add(PlanFile *p, const char *pattern, Style style) {
  PlanEntry *more;
  TRY_NEW(more, arena_new_n(&p->arena, PlanEntry, p->nentries + 1));
  if (p->nentries) memcpy(more, p->entry, (size_t)p->nentries * sizeof *more);
  p->entry = more;
  more[p->nentries] = (PlanEntry){.style = style};
  TRY(keep(p, pattern, &more[p->nentries].pattern));
  p->nentries++;
  return OK;
}

static void print_entries(TextBuf *b, const PlanFile *p, const char *key, bool raw) {
  int n = 0;
  for (int i = 0; i < p->nentries; i++) {
    const PlanEntry *e = &p->entry[i];
    if ((e->style == STYLE_PLACEMENTS) != raw) continue;
    text_printf(b, n++ ? ",\n  " : ",\n \"%s\": {\n  ", key);
    if (e->anywhere) { /* a pattern that may begin at any dot */
      char any[PATTERN_MAX + 8];
      snprintf(any, sizeof any, "**%s", e->pattern);
      text_json(b, any);
    } else text_json(b, e->pattern);
    text_puts(b, ": ");
    if (e->axis) text_puts(b, "{\"style\": ");
    text_json(b, raw ? e->placements : style_name(e->style));
    if (e->axis) text_puts(b, ", \"axis\": "), text_json(b, e->axis), text_puts(b, "}");
  }
  if (n) text_puts(b, "\n }");
}

static void print_pairs(TextBuf *b, const char *key, const PlanPair *pair, int n, bool counts) {
  for (int i = 0; i < n; i++) {
    text_printf(b, i ? ",\n  " : ",\n \"%s\": {\n  ", key);
    text_json(b, pair[i].name);
    text_puts(b, ": ");
    if (counts) text_printf(b, "%lld", (long long)pair[i].count);
    else text_json(b, pair[i].text);
  }
  if (n) text_puts(b, "\n }");
}

void plan_print_members(TextBuf *b, const PlanFile *p) {
  print_entries(b, p, "parallelize", false);
  print_entries(b, p, "params", true);
  print_pairs(b, "packed", p->packed, p->npacked, true);
  print_pairs(b, "inputs", p->inputs, p->ninputs, false);
  print_pairs(b, "outputs", p->outputs, p->noutputs, false);
}

void plan_file_print(TextBuf *b, const PlanFile *p, const char *mesh) {
  text_puts(b, "{\n \"mesh\": ");
  if (mesh || p->mesh) text_json(b, mesh ? mesh : p->mesh);
  else text_puts(b, "\"\"");
  plan_print_members(b, p);
  text_puts(b, "\n}\n");
}

void plan_file_free(PlanFile *p) {
  if (!p) return;
  arena_free(&p->arena);
  free(p);
}

/* ---- patterns ----------------------------------------------------------------------------------- */

/* Stars that take no dot, and no '?': part by part between dots, and in each the last star takes no more than it
 * must. */
static bool match_parts(const char *p, const char *name) {
  const char *star = NULL, *from = NULL; /* what follows the star, and where in the name it was tried last */
  for (;;) {
    if (*p == '*') {
      star = ++p;
      from = name;
    } else if (*p == *name) {
      if (!*p) return true;
      if (*p == '.') star = NULL;
      p++;
      name++;
    } else {
      if (!star || !*from || *from == '.') return false;
      name = ++from;
      p = star;
    }
  }
}

/* What follows the last star is how the name must end. */
static bool ends_differ(const char *p, const char *name) {
  const char *tail = strrchr(p, '*');
  size_t n = tail ? strlen(++tail) : 0, length = strlen(name);
  if (!tail || length < n) return tail != NULL;
  for (name += length - n; *tail; tail++, name++)
    if (*tail != *name && *tail != '?') return true;
  return false;
}

/* The whole of name; '*' takes no dot, '**' takes all.  After the first star every place of
 * the pattern that what was read of the name can have led to is kept: the time is linear in
 * both, whatever the stars. */
static bool glob(const char *p, const char *name) {
  for (; *p && *p != '*'; p++, name++)
    if (!*name || (*p != *name && *p != '?')) return false;
  if (!*p) return !*name;
  if (!strchr(p, '?') && !strstr(p, "**")) return match_parts(p, name);
  size_t n = strlen(p);
  if (n > PATTERN_MAX) return !strcmp(p, name);
  if (ends_differ(p, name)) return false;
  bool here[PATTERN_MAX + 1];
  memset(here, 0, n + 1);
  here[0] = true;
  for (;; name++) {
    for (size_t i = 0; i < n; i++) /* stars that take nothing */
      if (here[i] && p[i] == '*') here[i + 1] = true;
    if (!*name) return here[n];
    bool alive = false;
    for (size_t i = n + 1; i-- > 0;) {
      bool star = i < n && p[i] == '*', all = star && (p[i + 1] == '*' || (i && p[i - 1] == '*'));
      bool stays = here[i] && star && (all || *name != '.');
      bool comes = i && here[i - 1] && p[i - 1] != '*' && (p[i - 1] == *name || p[i - 1] == '?');
      alive |= here[i] = stays || comes;
    }
    if (!alive) return false;
  }
}

bool pattern_matches(const PlanEntry *e, const char *name) {
  if (glob(e->pattern, name)) return true;
  for (const char *dot = strchr(name, '.'); e->anywhere && dot; dot = strchr(dot + 1, '.'))
    if (glob(e->pattern, dot + 1)) return true;
  return false;
}
