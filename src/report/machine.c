/* machine.c -- see machine.h. */
#include "report/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/near.h"

/* A core each of a small server, and what GPUs of these kinds reach in practice. */
static const Machine presets[] = {
    {.name = "cpu2",
     .flops = {[DT_F32] = 60e9, [DT_F64] = 30e9, [DT_BF16] = 40e9, [DT_F16] = 40e9},
     .memory_bandwidth = 10e9,
     .op_latency = 0.5e-6,
     .overlap = 0,
     .nlinks = 1,
     .link = {{"default", 5e9, 0.5e-6}}},
    {.name = "a100",
     .flops = {[DT_F32] = 17e12, [DT_F64] = 17e12, [DT_BF16] = 220e12, [DT_F16] = 220e12},
     .memory_bandwidth = 1.7e12,
     .memory = 80e9,
     .op_latency = 4e-6,
     .overlap = 1,
     .ranks_per_node = 8,
     .nlinks = 2,
     .link = {{"node", 230e9, 5e-6}, {"network", 22e9, 12e-6}}},
    {.name = "h100",
     .flops = {[DT_F32] = 45e12, [DT_F64] = 45e12, [DT_BF16] = 650e12, [DT_F16] = 650e12},
     .memory_bandwidth = 2.8e12,
     .memory = 80e9,
     .op_latency = 3e-6,
     .overlap = 1,
     .ranks_per_node = 8,
     .nlinks = 2,
     .link = {{"node", 360e9, 4e-6}, {"network", 45e9, 10e-6}}},
};
enum { PRESETS = sizeof presets / sizeof *presets };

const char *machine_presets(void) { return "cpu2, a100, h100"; }

/* ---- reading ------------------------------------------------------------------------------- */

/* A number above `least`, or not below it if it may be that. */
static Status read_number(yyjson_val *v, const char *path, const char *what, bool zero, double *out) {
  if (!yyjson_is_num(v)) return fail(ERR_FILE, "%s: \"%s\" is no number", path, what);
  *out = yyjson_get_num(v);
  bool good = isfinite(*out) && (zero ? *out >= 0 : *out > 0);
  return good ? OK
              : fail(ERR_FILE, "%s: \"%s\" is %g; a number %s is expected", path, what, *out,
                     zero ? "that is not negative" : "above 0");
}

static Status read_flops(yyjson_val *v, const char *path, Machine *m) {
  size_t i, n;
  yyjson_val *key, *value;
  if (!yyjson_is_obj(v)) return read_number(v, path, "flops", false, &m->flops[DT_F32]);
  yyjson_obj_foreach(v, i, n, key, value) {
    const char *word = yyjson_get_str(key);
    Dtype d = !strcmp(word, "default") ? DT_F32 : dtype_parse(word);
    if (d == DT_NONE)
      return status_hint(fail(ERR_FILE, "%s: \"flops\" names '%s', which is no dtype", path, word),
                         "dtypes: f32, f64, bf16, f16 ..., or one number for all");
    TRY(read_number(value, path, "flops", false, &m->flops[d]));
  }
  return n ? OK : fail(ERR_FILE, "%s: \"flops\" is empty", path);
}

static const char *nearest(const char *word, const char *const *known, size_t n, bool *found) {
  const char *near = NULL;
  *found = false;
  for (size_t k = 0; k < n; k++) {
    *found |= !strcmp(known[k], word);
    near = nearer_name(word, near, known[k]);
  }
  return near;
}

static Status check_keys(yyjson_val *object, const char *path, const char *const *known, size_t count) {
  size_t i, n;
  yyjson_val *key, *value;
  yyjson_obj_foreach(object, i, n, key, value) {
    bool found;
    const char *word = yyjson_get_str(key), *near = nearest(word, known, count, &found);
    if (found) continue;
    Status s = fail(ERR_FILE, "%s: unknown key \"%s\"", path, word);
    return near ? status_hint(s, "did you mean \"%s\"?", near)
                : status_hint(s, "a machine has flops, memory_bandwidth, links, and if you like name, memory, "
                                 "update_bandwidth, op_latency, ranks_per_node, overlap");
  }
  return OK;
}

static Status read_link(yyjson_val *v, const char *name, const char *path, MachineLink *out) {
  static const char *const known[] = {"bandwidth", "latency"};
  if (!yyjson_is_obj(v))
    return status_hint(fail(ERR_FILE, "%s: the link \"%s\" is no object", path, name),
                       "write {\"bandwidth\": 25e9, \"latency\": 5e-6}: bytes/s and seconds");
  if (strlen(name) >= LINK_NAME)
    return fail(ERR_FILE, "%s: a link has a name of more than %d letters", path, LINK_NAME - 1);
  snprintf(out->name, sizeof out->name, "%s", name);
  TRY(check_keys(v, path, known, 2));
  TRY(read_number(yyjson_obj_get(v, "bandwidth"), path, "bandwidth", false, &out->bandwidth));
  return yyjson_obj_get(v, "latency")
             ? read_number(yyjson_obj_get(v, "latency"), path, "latency", true, &out->latency)
             : OK;
}

static Status read_links(yyjson_val *v, const char *path, Machine *m) {
  size_t i, n;
  yyjson_val *key, *value;
  if (!v) return OK;
  if (!yyjson_is_obj(v)) return fail(ERR_FILE, "%s: \"links\" is no object of axes and their links", path);
  yyjson_obj_foreach(v, i, n, key, value) {
    if (m->nlinks == MAX_LINKS) return fail(ERR_FILE, "%s: more than %d links", path, MAX_LINKS);
    TRY(read_link(value, yyjson_get_str(key), path, &m->link[m->nlinks++]));
  }
  return OK;
}

static Status read_machine(yyjson_val *root, const char *path, Machine *m) {
  static const char *const known[] = {"name",   "flops",      "memory_bandwidth", "update_bandwidth",
                                      "memory", "op_latency", "ranks_per_node",   "overlap",
                                      "links",  "comment"};
  if (!yyjson_is_obj(root)) return fail(ERR_FILE, "%s: a machine is a JSON object", path);
  TRY(json_check_keys(root, path));
  TRY(check_keys(root, path, known, sizeof known / sizeof *known));
  const char *name = json_as_string(yyjson_obj_get(root, "name")), *slash = strrchr(path, '/');
  snprintf(m->name, sizeof m->name, "%s", name ? name : slash ? slash + 1 : path);
  if (!yyjson_obj_get(root, "flops")) return fail(ERR_FILE, "%s: \"flops\" is missing: FLOP/s of one rank", path);
  TRY(read_flops(yyjson_obj_get(root, "flops"), path, m));
  if (!yyjson_obj_get(root, "memory_bandwidth"))
    return fail(ERR_FILE, "%s: \"memory_bandwidth\" is missing: bytes/s of one rank", path);
  TRY(read_number(yyjson_obj_get(root, "memory_bandwidth"), path, "memory_bandwidth", false, &m->memory_bandwidth));
  if (yyjson_obj_get(root, "memory"))
    TRY(read_number(yyjson_obj_get(root, "memory"), path, "memory", false, &m->memory));
  if (yyjson_obj_get(root, "update_bandwidth"))
    TRY(read_number(yyjson_obj_get(root, "update_bandwidth"), path, "update_bandwidth", false,
                    &m->update_bandwidth));
  if (yyjson_obj_get(root, "op_latency"))
    TRY(read_number(yyjson_obj_get(root, "op_latency"), path, "op_latency", true, &m->op_latency));
  double ranks = 0;
  if (yyjson_obj_get(root, "ranks_per_node"))
    TRY(read_number(yyjson_obj_get(root, "ranks_per_node"), path, "ranks_per_node", false, &ranks));
  if (ranks != floor(ranks) || ranks > 1 << 24)
    return fail(ERR_FILE, "%s: \"ranks_per_node\" is %g, no number of ranks", path, ranks);
  m->ranks_per_node = (int)ranks;
  m->overlap = 1;
  if (yyjson_obj_get(root, "overlap"))
    TRY(read_number(yyjson_obj_get(root, "overlap"), path, "overlap", true, &m->overlap));
  if (m->overlap > 1) return fail(ERR_FILE, "%s: \"overlap\" is %g; a part is at most 1", path, m->overlap);
  return read_links(yyjson_obj_get(root, "links"), path, m);
}

Status machine_parse(const char *path, const char *text, size_t size, Machine *out) {
  yyjson_doc *doc;
  *out = (Machine){0};
  TRY(json_parse(path, text, size, 0, &doc));
  Status s = read_machine(yyjson_doc_get_root(doc), path, out);
  yyjson_doc_free(doc);
  return s;
}

Status machine_find(const char *word, Machine *out) {
  FileMap *map;
  const char *near = NULL;
  for (int i = 0; i < PRESETS; i++) {
    if (!strcmp(word, presets[i].name)) return *out = presets[i], OK;
    near = nearer_name(word, near, presets[i].name);
  }
  if (!strpbrk(word, "./") && !file_exists(word)) {
    Status s = fail(ERR_USAGE, "'%s' is no machine that is known here, and no file", word);
    if (near) s = status_hint(s, "did you mean '%s'?", near);
    return status_hint(s, "known: %s; `tessera bench calibrate -o machine.json` measures this one",
                       machine_presets());
  }
  TRY(file_map(word, &map));
  Status s = machine_parse(word, (const char *)map->data, map->size, out);
  file_map_unref(map);
  return s;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* 1.23e+10 as people write it in JSON: at most four digits that count. */
static void print_number(TextBuf *b, const char *key, double x) { text_printf(b, "\"%s\": %.4g", key, x); }

void machine_print(TextBuf *b, const Machine *m) {
  bool first = true;
  text_puts(b, "{\"name\": ");
  text_json(b, m->name);
  text_puts(b, ",\n \"flops\": {");
  for (int d = 0; d < DT_COUNT; d++) {
    if (m->flops[d] <= 0) continue;
    if (!first) text_puts(b, ", ");
    print_number(b, dtype_name((Dtype)d), m->flops[d]);
    first = false;
  }
  text_puts(b, "},\n ");
  print_number(b, "memory_bandwidth", m->memory_bandwidth);
  if (m->memory > 0) text_puts(b, ",\n "), print_number(b, "memory", m->memory);
  if (m->update_bandwidth > 0) text_puts(b, ",\n "), print_number(b, "update_bandwidth", m->update_bandwidth);
  if (m->op_latency > 0) text_puts(b, ",\n "), print_number(b, "op_latency", m->op_latency);
  if (m->ranks_per_node > 0) text_printf(b, ",\n \"ranks_per_node\": %d", m->ranks_per_node);
  text_puts(b, ",\n ");
  print_number(b, "overlap", m->overlap);
  text_puts(b, ",\n \"links\": {");
  for (int i = 0; i < m->nlinks; i++) {
    text_puts(b, i ? ", " : "");
    text_json(b, m->link[i].name);
    text_puts(b, ": {");
    print_number(b, "bandwidth", m->link[i].bandwidth);
    text_puts(b, ", ");
    print_number(b, "latency", m->link[i].latency);
    text_puts(b, "}");
  }
  text_puts(b, "}}\n");
}

/* ---- asking ---------------------------------------------------------------------------------- */

static const MachineLink *link_named(const Machine *m, const char *name) {
  for (int i = 0; name && i < m->nlinks; i++)
    if (!strcmp(m->link[i].name, name)) return &m->link[i];
  return NULL;
}

/* Ranks lie row-major: those along an axis span it and all axes behind it. */
static bool within_node(const Machine *m, const Mesh *mesh, int axis) {
  int64_t span = 1;
  for (int a = axis; a < mesh->naxes; a++) span *= mesh->axis[a];
  return span <= m->ranks_per_node;
}

const MachineLink *machine_link(const Machine *m, const Mesh *mesh, int axis) {
  const MachineLink *l = link_named(m, mesh->name[axis]);
  if (!l && within_node(m, mesh, axis)) l = link_named(m, "node");
  if (!l) l = link_named(m, "network");
  return l ? l : link_named(m, "default");
}

Status machine_check(const Machine *m, const Mesh *mesh) {
  for (int a = 0; a < mesh->naxes; a++) {
    if (mesh->axis[a] < 2 || machine_link(m, mesh, a)) continue;
    return status_hint(fail(ERR_USAGE, "the machine '%s' has no link for the mesh axis '%s'", m->name,
                            mesh->name[a] ? mesh->name[a] : ""),
                       "add \"links\": {\"%s\": {\"bandwidth\": 25e9, \"latency\": 5e-6}} to it, or \"default\"",
                       mesh->name[a] ? mesh->name[a] : "default");
  }
  return OK;
}

static double flops_of(const Machine *m, Dtype d) {
  double most = 0;
  if (d != DT_NONE && m->flops[d] > 0) return m->flops[d];
  if (m->flops[DT_F32] > 0) return m->flops[DT_F32];
  for (int i = 0; i < DT_COUNT; i++) most = fmax(most, m->flops[i]);
  return most;
}

double machine_op_seconds(const Machine *m, Dtype dtype, double flops, double bytes, bool updates) {
  double bandwidth = updates && m->update_bandwidth > 0 ? m->update_bandwidth : m->memory_bandwidth;
  return fmax(fmax(flops / flops_of(m, dtype), bytes / bandwidth), m->op_latency);
}

double machine_collective_seconds(const Machine *m, const Mesh *mesh, StepKind kind, unsigned axes, int64_t bytes) {
  double n = 1, latency = 0, bandwidth = INFINITY;
  for (int a = 0; a < mesh->naxes; a++) {
    const MachineLink *l = axes >> a & 1 && mesh->axis[a] > 1 ? machine_link(m, mesh, a) : NULL;
    if (!l) continue;
    n *= mesh->axis[a];
    latency = fmax(latency, l->latency);
    bandwidth = fmin(bandwidth, l->bandwidth);
  }
  if (n < 2) return 0;
  return (kind == STEP_ALL_REDUCE ? 2 : 1) * ceil(log2(n)) * latency + (double)bytes / bandwidth;
}
