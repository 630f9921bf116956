/* compare.c -- what happened against what PyTorch recorded; see case.h.
 *
 * Bytes: PyTorch pads every parameter to equal chunks, so that a recorded collective of n ranks has n times the
 * elements of the first rank's shard; ours has the elements that there are, the sum of the shards.  Both are
 * computed here from the recorded shapes of the shards, and must be what was recorded and what happened.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/case.h"

double fsdp_tolerance(const FsdpCase *c) { return c->half ? 3e-2 : 1e-5; }

bool fsdp_close(double a, double b, double largest, double tolerance) {
  return fabs(a - b) <= tolerance * fmax(fabs(largest), 1e-30);
}

/* ---- shards ------------------------------------------------------------------------------------------------- */

/* PyTorch's text of placements: "(Shard(dim=0),)", "(_StridedShard(dim=0, sf=2), Shard(dim=0))". */
static void our_spelling(const char *text, char *out, size_t cap) {
  size_t n = 0;
  for (const char *t = text; *t && n + 24 < cap;) {
    int dim, factor, used = 0;
    if (sscanf(t, "_StridedShard(dim=%d, sf=%d)%n", &dim, &factor, &used) == 2 && used)
      n += (size_t)snprintf(out + n, cap - n, "_S(%d, %d)", dim, factor);
    else if (sscanf(t, "Shard(dim=%d)%n", &dim, &used) == 1 && used)
      n += (size_t)snprintf(out + n, cap - n, "S(%d)", dim);
    else if (!strncmp(t, "Replicate()", 11)) used = 11, n += (size_t)snprintf(out + n, cap - n, "R");
    t += used ? used : 1;
  }
  out[n] = 0;
}

static void compare_shard(TessCtx *ctx, FsdpCase *c, TessModule *m, const char *name, const char *placements) {
  int rank = tess_rank(ctx);
  char want[256], is[256];
  TessTensor *t = tess_module_get(m, name), *local = t ? tess_to_local(ctx, t) : NULL;
  if (!local) {
    note_trouble(c, rank, "there is no parameter %s", name);
    return;
  }
  our_spelling(placements, want, sizeof want);
  if (strcmp(tess_placements(t, is, sizeof is), want))
    note_trouble(c, rank, "%s is placed %s, not %s", name, is, want);
  yyjson_val *shapes = yyjson_obj_get(yyjson_obj_get(c->json, "local_shapes_per_rank"), name);
  yyjson_val *shape = yyjson_arr_get(shapes, (size_t)rank);
  bool same = (int)yyjson_arr_size(shape) == tess_ndim(local);
  for (int d = 0; same && d < tess_ndim(local); d++)
    same = yyjson_get_int(yyjson_arr_get(shape, (size_t)d)) == tess_size(local)[d];
  if (shape && !same) note_trouble(c, rank, "the shard of %s has another size than PyTorch's", name);
}

static int visit_unit(TessCtx *ctx, const char *path, TessModule *m, void *arg) {
  FsdpCase *c = arg;
  (void)path;
  if (!tess_is_fully_sharded(m)) return 0;
  char *json = tess_fsdp_json(ctx, m);
  text_printf(&c->groups, "%s%s", c->groups.len ? ", " : "[", json ? json : "[]");
  tess_free(json);
  return 0;
}

void fsdp_case_compare_shards(TessCtx *ctx, FsdpCase *c, TessModule *m) {
  yyjson_val *key, *value;
  size_t i, n;
  yyjson_val *placements = yyjson_obj_get(c->json, "placements");
  if (!yyjson_is_obj(placements)) return; /* of a run that PyTorch refuses */
  yyjson_obj_foreach(placements, i, n, key, value)
      compare_shard(ctx, c, m, yyjson_get_str(key), yyjson_get_str(value));
}

/* ---- final parameters
 * -------------------------------------------------------------------------------------------- */

/* Parameters whose true gradient is 0: Adam makes steps of its rounding. */
static bool is_noise(const FsdpCase *c, const char *name) {
  char path[1200];
  yyjson_val *o = yyjson_arr_get(yyjson_obj_get(c->json, "optimizer"), 0), *item;
  if (strncmp(yyjson_get_str(o), "Adam", 4)) return false;
  snprintf(path, sizeof path, "%s/meta.json", c->train);
  yyjson_doc *doc = yyjson_read_file(path, 0, NULL, NULL);
  bool found = false;
  size_t i, n;
  yyjson_arr_foreach(yyjson_obj_get(yyjson_doc_get_root(doc), "noise_gradient"), i, n, item)
      found |= !strcmp(yyjson_get_str(item), name);
  yyjson_doc_free(doc);
  return found;
}

static double *numbers(TessCtx *ctx, TessTensor *t) {
  t = tess_call(ctx, "aten.to.dtype", tess_t(t), tess_d(TESS_F64));
  double *v = t ? malloc(((size_t)tess_numel(t) + 1) * sizeof *v) : NULL;
  if (v) tess_read(ctx, t, v);
  return v;
}

static double distance(const double *a, const double *b, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(a[i] - b[i]));
  return most;
}

/* exact: the same without roundings to half precision, or NULL.  PyTorch adds up some gradients of 16 bits in 16
 * bits (those of a layer norm), so that its own result can be the one that is off: then ours must be nearer to
 * exact. */
static void compare_final(TessCtx *ctx, FsdpCase *c, const char *name, TessTensor *is, TessTensor *want,
                          TessTensor *exact) {
  double *a = numbers(ctx, is), *b = numbers(ctx, want), *e = exact ? numbers(ctx, exact) : NULL, largest = 0;
  int64_t n = is ? tess_numel(is) : 0;
  if (!a || !b || n != tess_numel(want)) note_trouble(c, tess_rank(ctx), "%s cannot be compared", name);
  else {
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(b[i]));
    double off = distance(a, b, n);
    bool nearer = e && distance(a, e, n) <= distance(b, e, n);
    if (!fsdp_close(off, 0, largest, fsdp_tolerance(c)) && !nearer)
      note_trouble(c, tess_rank(ctx), "%s is off by %.3g of at most %.3g after training", name, off, largest);
  }
  free(a);
  free(b);
  free(e);
}

typedef struct {
  FsdpCase *c;
  TessModule *reference;
} Finals;

static int compare_module(TessCtx *ctx, const char *path, TessModule *m, void *arg) {
  const Finals *f = arg;
  FsdpCase *c = f->c;
  const bool refused = !yyjson_is_null(yyjson_obj_get(c->json, "error"));
  char file[1200], name[256];
  snprintf(file, sizeof file, "%s/%s.safetensors", c->fsdp, c->name);
  for (int i = 0; i < tess_module_tensor_count(m); i++) {
    snprintf(name, sizeof name, "%s%s%s", path, *path ? "." : "", tess_module_tensor_name(m, i));
    TessScope *scope = tess_scope_begin(ctx);
    TessTensor *full = tess_full_tensor(ctx, tess_module_get(m, tess_module_tensor_name(m, i)));
    TessTensor *exact = f->reference ? tess_module_get(f->reference, name) : NULL;
    TessTensor *want = refused ? exact : tess_load(ctx, file, name);
    if (!is_noise(c, name)) compare_final(ctx, c, name, full, want, refused ? NULL : exact);
    tess_scope_end(ctx, scope);
  }
  return 0;
}

void fsdp_case_compare_final(TessCtx *ctx, FsdpCase *c, TessModule *m, TessModule *reference) {
  Finals f = {c, reference};
  if (!tess_rank(ctx)) {
    tess_module_walk(ctx, m, visit_unit, c);
    text_printf(&c->groups, "]");
  }
  tess_module_walk(ctx, m, compare_module, &f);
}

/* ---- losses and norms
 * ---------------------------------------------------------------------------------------------- */

static void compare_losses(FsdpCase *c, int only) {
  double tolerance = fsdp_tolerance(c);
  yyjson_val *all = yyjson_obj_get(c->json, "losses_per_rank"), *norms = yyjson_obj_get(c->json, "grad_norms");
  for (int r = 0; r < c->world; r++) {
    if (only >= 0 && r != only) continue;
    yyjson_val *want = yyjson_arr_get(all, (size_t)r), *item;
    size_t i, n;
    if (yyjson_is_arr(want) && (int)yyjson_arr_size(want) != c->rank[r].nlosses)
      note_trouble(c, r, "%d losses instead of %zu", c->rank[r].nlosses, yyjson_arr_size(want));
    yyjson_arr_foreach(want, i, n, item) if (!fsdp_close(c->rank[r].loss[i], yyjson_get_num(item),
                                                         yyjson_get_num(item), tolerance))
        note_trouble(c, r, "loss %zu is %.9g, not %.9g", i, c->rank[r].loss[i], yyjson_get_num(item));
    yyjson_arr_foreach(norms, i, n, item) if (!fsdp_close(c->rank[r].norm[i], yyjson_get_num(item),
                                                          yyjson_get_num(item), tolerance))
        note_trouble(c, r, "norm %zu is %.9g, not %.9g", i, c->rank[r].norm[i], yyjson_get_num(item));
  }
}

/* ---- events
 * ----------------------------------------------------------------------------------------------------------- */

static void compare_events(FsdpCase *c) {
  yyjson_val *want = yyjson_obj_get(c->json, "events_last_step"), *item;
  size_t i, n;
  if (!yyjson_is_arr(want)) return;
  yyjson_arr_foreach(want, i, n, item) {
    char is[128] = "nothing";
    const LoggedEvent *e = (int)i < c->nevents ? &c->event[i] : NULL;
    if (e) snprintf(is, sizeof is, "%s%s%s", e->event, *e->group ? " " : "", e->group);
    if (strcmp(is, yyjson_get_str(item))) {
      note_trouble(c, 0, "event %zu is '%s', not '%s'", i, is, yyjson_get_str(item));
      return;
    }
  }
  if (c->nevents != (int)n) note_trouble(c, 0, "%d events instead of %zu", c->nevents, n);
}

static yyjson_val *group_named(yyjson_val *units, const char *name) {
  yyjson_val *unit, *group;
  size_t i, n, k, m;
  yyjson_arr_foreach(units, i, n, unit) yyjson_arr_foreach(
      unit, k, m, group) if (!strcmp(yyjson_get_str(yyjson_obj_get(group, "name")), name)) return group;
  return NULL;
}

static int64_t shard_numel(const FsdpCase *c, const char *param, int rank) {
  yyjson_val *shapes = yyjson_obj_get(yyjson_obj_get(c->json, "local_shapes_per_rank"), param), *size;
  int64_t numel = 1;
  size_t i, n;
  yyjson_arr_foreach(yyjson_arr_get(shapes, (size_t)rank), i, n, size) numel *= yyjson_get_int(size);
  return numel;
}

static bool is_frozen(const FsdpCase *c, const char *param) {
  yyjson_val *prefix;
  size_t i, n;
  yyjson_arr_foreach(yyjson_obj_get(c->what, "frozen"), i, n,
                     prefix) if (!strncmp(param, yyjson_get_str(prefix), yyjson_get_len(prefix))) return true;
  return false;
}

/* Elements of a collective of the group, as they are and as PyTorch pads them. */
typedef struct {
  int64_t exact, padded;
} Elements;

static Elements elements_of(const FsdpCase *c, yyjson_val *group, const char *kind, const char *ranks) {
  yyjson_val *p;
  size_t i, n;
  Elements sum = {0, 0};
  yyjson_arr_foreach(yyjson_obj_get(group, "params"), i, n, p) {
    const char *name = yyjson_get_str(yyjson_obj_get(p, "name"));
    if (strcmp(kind, "all_gather") && is_frozen(c, name)) continue;
    if (!strcmp(kind, "all_reduce")) {
      sum.exact += shard_numel(c, name, 0);
      sum.padded += shard_numel(c, name, 0);
      continue;
    }
    int members = 0, first = -1;
    for (const char *r = ranks; *r; r += strcspn(r, ","), r += *r == ',') {
      int rank = atoi(r);
      if (first < 0) first = rank;
      sum.exact += shard_numel(c, name, rank);
      members++;
    }
    sum.padded += shard_numel(c, name, first) * members;
  }
  return sum;
}

/* The ranks of the group's shards: those of the first gather, also when fewer gather later. */
static const char *shard_ranks(const FsdpCase *c, const char *group) {
  for (int i = 0; i < c->nevents; i++)
    if (!strcmp(c->event[i].event, "all_gather") && !strcmp(c->event[i].group, group)) return c->event[i].ranks;
  return "";
}

static int64_t item_size(const char *dtype) { return strstr(dtype, "64") ? 8 : strstr(dtype, "32") ? 4 : 2; }

static void compare_collective(FsdpCase *c, yyjson_val *units, const LoggedEvent *e, const char *phase,
                               yyjson_val *want, size_t number) {
  static const struct {
    const char *torch, *ours;
  } names[] = {{"float32", "f32"}, {"bfloat16", "bf16"}, {"float16", "f16"},          {"float64", "f64"},
               {"AVG", "avg"},     {"SUM", "sum"},       {"PREMUL_SUM", "premul_sum"}};
  const char *field[7];
  for (size_t i = 0; i < 7; i++) {
    const char *t = yyjson_get_str(yyjson_arr_get(want, i));
    field[i] = t ? t : "";
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
      if (!strcmp(field[i], names[k].torch)) field[i] = names[k].ours;
  }
  if (strcmp(field[0], phase) || strcmp(field[1], e->event) || strcmp(field[2], e->group) ||
      strcmp(field[3], e->op) || strcmp(field[4], e->dtype) || strcmp(field[6], e->ranks)) {
    note_trouble(c, 0, "collective %zu is %s %s %s %s %s of %s, not %s %s %s %s %s of %s", number, phase, e->event,
                 e->group, e->op, e->dtype, e->ranks, field[0], field[1], field[2], field[3], field[4], field[6]);
    return;
  }
  Elements n = elements_of(c, group_named(units, e->group), e->event, shard_ranks(c, e->group));
  if (n.exact * item_size(e->dtype) != e->bytes)
    note_trouble(c, 0, "collective %zu, %s %s: %lld bytes instead of %lld", number, e->event, e->group,
                 (long long)e->bytes, (long long)(n.exact * item_size(e->dtype)));
  if (n.padded * item_size(e->dtype) != yyjson_get_sint(yyjson_arr_get(want, 5)))
    note_trouble(c, 0, "collective %zu, %s %s: with padding it would have %lld bytes; PyTorch's has %lld", number,
                 e->event, e->group, (long long)(n.padded * item_size(e->dtype)),
                 (long long)yyjson_get_sint(yyjson_arr_get(want, 5)));
}

static void compare_collectives(FsdpCase *c, yyjson_val *units) {
  yyjson_val *want = yyjson_obj_get(c->json, "collectives_last_step");
  const char *phase = "";
  size_t number = 0;
  if (!yyjson_is_arr(want)) return;
  for (int i = 0; i < c->nevents; i++) {
    const LoggedEvent *e = &c->event[i];
    if (!strncmp(e->event, "-- ", 3)) phase = e->event + 3;
    if (strcmp(e->event, "all_gather") && strcmp(e->event, "reduce_scatter") && strcmp(e->event, "all_reduce"))
      continue;
    compare_collective(c, units, e, phase, yyjson_arr_get(want, number), number);
    number++;
  }
  if (number != yyjson_arr_size(want))
    note_trouble(c, 0, "%zu collectives instead of %zu", number, yyjson_arr_size(want));
}

/* The most bytes of gathered parameters at once. */
static void compare_peak(FsdpCase *c, yyjson_val *units) {
  yyjson_val *want = yyjson_obj_get(c->json, "peak_unsharded_param_bytes");
  int64_t now = 0, peak = 0;
  if (!yyjson_is_int(want)) return;
  for (int i = 0; i < c->nevents; i++) {
    const LoggedEvent *e = &c->event[i];
    yyjson_val *group = group_named(units, e->group);
    int64_t bytes = yyjson_get_sint(yyjson_obj_get(group, "gathered_bytes"));
    if (!strcmp(e->event, "unsharded")) now += bytes;
    if (!strncmp(e->event, "reshard", 7)) now -= bytes;
    if (now > peak) peak = now;
  }
  if (peak != yyjson_get_sint(want))
    note_trouble(c, 0, "at most %lld bytes of parameters are gathered at once; PyTorch has %lld", (long long)peak,
                 (long long)yyjson_get_sint(want));
}

void fsdp_case_compare(FsdpCase *c, int only) {
  yyjson_doc *groups = c->groups.text ? yyjson_read(c->groups.text, strlen(c->groups.text), 0) : NULL;
  compare_losses(c, only);
  if (only <= 0 && yyjson_is_null(yyjson_obj_get(c->json, "error"))) {
    compare_events(c);
    compare_collectives(c, yyjson_doc_get_root(groups));
    compare_peak(c, yyjson_doc_get_root(groups));
  }
  yyjson_doc_free(groups);
}
