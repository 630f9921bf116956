/* case.c -- see case.h. */
#include "case.h"

#include <stdio.h>
#include <string.h>

#define SAY(verdict)                               \
  do {                                             \
    va_list args;                                  \
    va_start(args, fmt);                           \
    vsnprintf(c->text, sizeof c->text, fmt, args); \
    va_end(args);                                  \
    return verdict;                                \
  } while (0)

Verdict wrong(Case *c, const char *fmt, ...) { SAY(WRONG); }
Verdict better(Case *c, const char *fmt, ...) { SAY(BETTER); }
Verdict skipped(Case *c, const char *fmt, ...) { SAY(SKIPPED); }

Verdict wrong_status(Case *c, Status s) {
  wrong(c, "%s", status_message(s));
  status_free(s);
  return WRONG;
}

yyjson_val *field(const Case *c, const char *key) { return yyjson_obj_get(c->json, key); }

int read_ints(yyjson_val *list, int64_t *out, int cap) {
  int n = (int)yyjson_arr_size(list);
  for (int i = 0; i < n && i < cap; i++) out[i] = yyjson_get_sint(yyjson_arr_get(list, (size_t)i));
  return n;
}

int read_sizes(yyjson_val *list, int *out, int cap) {
  int n = (int)yyjson_arr_size(list);
  for (int i = 0; i < n && i < cap; i++) out[i] = yyjson_get_int(yyjson_arr_get(list, (size_t)i));
  return n;
}

bool same_ints(yyjson_val *list, const int64_t *v, int n) {
  if ((int)yyjson_arr_size(list) != n) return false;
  for (int i = 0; i < n; i++)
    if (yyjson_get_sint(yyjson_arr_get(list, (size_t)i)) != v[i]) return false;
  return true;
}

/* PyTorch's _MaskPartial is a sum here; its _NormPartial(p) is P(norm p). */
static bool read_placement(const char *text, int ndim, Placement *out) {
  if (!strncmp(text, "MaskP", 5)) {
    *out = place_p(REDUCE_SUM);
    return true;
  }
  if (!strncmp(text, "NormP(", 6)) {
    *out = place_p(REDUCE_SUM);
    return sscanf(text + 6, "%lf", &out->norm) == 1;
  }
  Status s = placement_parse(text, ndim, out);
  status_free(s);
  return !s;
}

bool read_placements(yyjson_val *list, int ndim, Placement *out, int *n) {
  *n = (int)yyjson_arr_size(list);
  for (int i = 0; i < *n; i++)
    if (!read_placement(yyjson_get_str(yyjson_arr_get(list, (size_t)i)), ndim, &out[i])) return false;
  return true;
}

Dtype read_dtype(yyjson_val *v) {
  if (!v) return DT_F32;
  return strcmp(yyjson_get_str(v), "torch.complex64") ? dtype_parse(yyjson_get_str(v)) : DT_C64;
}

void read_turns(yyjson_val *order, Placement *p) {
  yyjson_val *entry, *axis;
  size_t i, n, j, m;
  if (!order) return;
  yyjson_arr_foreach(order, i, n, entry) {
    yyjson_val *axes = yyjson_arr_get(entry, 1);
    bool ascending = true;
    for (j = 1; j < yyjson_arr_size(axes); j++)
      ascending &= yyjson_get_int(yyjson_arr_get(axes, j - 1)) < yyjson_get_int(yyjson_arr_get(axes, j));
    yyjson_arr_foreach(axes, j, m, axis) p[yyjson_get_int(axis)].turn = ascending ? 0 : (int)j + 1;
  }
}
