/* golden_fsdp_run.c -- see golden_fsdp_run.h. */
#include "golden_fsdp_run.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 12 }; /* of a batch of train/encoder */

static const char only_reduced[] = "{'reduce_dtype': torch.float16}"; /* of the policies the one without others */

static bool is_for_steps(yyjson_val *record, yyjson_val *what) {
  const char *policy = yyjson_get_str(yyjson_obj_get(what, "mp"));
  return what && yyjson_is_null(yyjson_obj_get(record, "error")) && (!policy || !strcmp(policy, only_reduced));
}

static void add_mesh(yyjson_mut_doc *doc, yyjson_mut_val *run, yyjson_val *what) {
  yyjson_val *mesh = yyjson_obj_get(what, "mesh");
  int first = yyjson_get_int(yyjson_arr_get(mesh, 0)), second = yyjson_get_int(yyjson_arr_get(mesh, 1));
  bool tp = yyjson_get_bool(yyjson_obj_get(what, "tp"));
  int ranks = second && !tp ? first * second : first; /* that have rows of their own */
  char text[64];
  snprintf(text, sizeof text, second ? tp ? "dp=%d,tp=%d" : "replica=%d,dp=%d" : "dp=%d", first, second);
  yyjson_mut_obj_add_strcpy(doc, run, "mesh", text);
  yyjson_mut_val *rows = yyjson_mut_obj_add_arr(doc, run, "rows_per_rank");
  for (int r = 0; r < ranks; r++) yyjson_mut_arr_add_int(doc, rows, ROWS / ranks);
}

/* Groups are the blocks and the rest; others as patterns of modules. */
static void add_groups(yyjson_mut_doc *doc, yyjson_mut_val *run, yyjson_val *what) {
  static const char *const wraps[][2] = {{"root", "none"},
                                         {"layers", "blocks.?.attn|blocks.?.ffn|blocks.?"},
                                         {"tail", "blocks.?|norm|head"},
                                         {"embed", "tok|blocks.?"}};
  const char *wrap = yyjson_get_str(yyjson_obj_get(what, "wrap"));
  for (size_t i = 0; wrap && i < sizeof wraps / sizeof *wraps; i++)
    if (!strcmp(wrap, wraps[i][0])) yyjson_mut_obj_add_str(doc, run, "wrap", wraps[i][1]);
  if (yyjson_is_false(yyjson_obj_get(what, "reshard"))) yyjson_mut_obj_add_bool(doc, run, "keep", true);
  if (yyjson_is_true(yyjson_obj_get(what, "prefetch"))) yyjson_mut_obj_add_int(doc, run, "prefetch", 2);
}

static void add_frozen(yyjson_mut_doc *doc, yyjson_mut_val *run, yyjson_val *what) {
  char text[512] = "";
  size_t i, n, at = 0;
  yyjson_val *v;
  yyjson_arr_foreach(yyjson_obj_get(what, "frozen"), i, n, v) {
    if (at < sizeof text)
      at += (size_t)snprintf(text + at, sizeof text - at, "%s%s*", i ? "," : "", yyjson_get_str(v));
  }
  if (at) yyjson_mut_obj_add_strcpy(doc, run, "freeze", text);
}

static void add_update(yyjson_mut_doc *doc, yyjson_mut_val *run, yyjson_val *record, yyjson_val *what) {
  yyjson_val *optimizer = yyjson_obj_get(record, "optimizer"), *clip = yyjson_obj_get(what, "clip");
  int accumulate = yyjson_get_int(yyjson_obj_get(what, "accumulate"));
  yyjson_mut_obj_add_val(doc, run, "optimizer", yyjson_val_mut_copy(doc, yyjson_arr_get(optimizer, 0)));
  yyjson_mut_obj_add_val(doc, run, "args", yyjson_val_mut_copy(doc, yyjson_arr_get(optimizer, 1)));
  yyjson_mut_obj_add_int(doc, run, "accumulate", accumulate ? accumulate : 1);
  if (!clip) return;
  yyjson_mut_val *to = yyjson_mut_obj_add_obj(doc, run, "clip");
  yyjson_mut_obj_add_val(doc, to, "max_norm", yyjson_val_mut_copy(doc, yyjson_arr_get(clip, 0)));
  yyjson_mut_obj_add_val(doc, to, "norm_type", yyjson_val_mut_copy(doc, yyjson_arr_get(clip, 1)));
}

yyjson_mut_doc *golden_fsdp_run(yyjson_val *record) {
  yyjson_val *what = yyjson_obj_get(record, "case");
  yyjson_mut_doc *doc = is_for_steps(record, what) ? yyjson_mut_doc_new(NULL) : NULL;
  if (!doc) return NULL;
  yyjson_mut_val *run = yyjson_mut_obj(doc);
  yyjson_mut_doc_set_root(doc, run);
  yyjson_mut_obj_add_bool(doc, run, "fsdp", true);
  add_mesh(doc, run, what);
  add_groups(doc, run, what);
  add_frozen(doc, run, what);
  add_update(doc, run, record, what);
  if (yyjson_obj_get(what, "mp")) yyjson_mut_obj_add_bool(doc, run, "reduce_f16", true);
  const char *const kept[] = {"losses_per_rank", "grad_norms"};
  for (int i = 0; i < 2; i++)
    yyjson_mut_obj_add_val(doc, run, kept[i], yyjson_val_mut_copy(doc, yyjson_obj_get(record, kept[i])));
  return doc;
}
