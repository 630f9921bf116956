/* rank_results.c -- see rank_results.h. */
#include "harness/rank_results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* Elements in order of their places, however they lie. */
static uint64_t hash_tensor(uint64_t h, const Tensor *t) {
  int64_t at[MAX_DIMS] = {0}, n = tensor_numel(t);
  size_t width = dtype_size(t->dtype);
  h = hash_mix(hash_mix(h, (uint64_t)t->dtype), (uint64_t)t->ndim);
  for (int d = 0; d < t->ndim; d++) h = hash_mix(h, (uint64_t)t->size[d]);
  if (!n) return h;
  if (tensor_is_contiguous(t)) return hash_bytes(h, tensor_data(t), (size_t)n * width);
  for (int64_t i = 0; i < n; i++) {
    int64_t offset = 0;
    for (int d = 0; d < t->ndim; d++) offset += at[d] * t->stride[d];
    h = hash_bytes(h, (const char *)tensor_data(t) + (size_t)offset * width, width);
    for (int d = t->ndim - 1; d >= 0 && ++at[d] == t->size[d]; d--) at[d] = 0;
  }
  return h;
}

static uint64_t hash_value(uint64_t h, const Value *v) {
  h = hash_mix(h, (uint64_t)v->kind);
  switch (v->kind) {
    case VAL_TENSOR: return hash_tensor(h, v->tensor);
    case VAL_BOOL: return hash_mix(h, v->b);
    case VAL_INT: return hash_mix(h, (uint64_t)v->i);
    case VAL_FLOAT: return hash_bytes(h, (const char *)&v->f, sizeof v->f);
    case VAL_COMPLEX: return hash_bytes(h, (const char *)v->complex_, sizeof v->complex_);
    case VAL_STR: return hash_bytes(h, v->str, strlen(v->str));
    default: return h;
  }
}

uint64_t value_hash(const Value *v) { return hash_value(0x243f6a8885a308d3u, v); }

Status rank_results_agree(World *w, const Value *v, int n, bool *agree) {
  int ranks = world_size(w);
  int64_t *all, mine;
  uint64_t h = 0x243f6a8885a308d3u;
  for (int i = 0; i < n; i++) h = hash_value(h, &v[i]);
  memcpy(&mine, &h, sizeof mine);
  TRY_NEW(all, malloc((size_t)ranks * sizeof *all));
  Status s = comm_run(world_comm(w), &(Coll){.kind = COLL_ALL_GATHER,
                                             .dtype = DT_I64,
                                             .send = &mine,
                                             .recv = all,
                                             .count = 1,
                                             .why = "comparing results"});
  *agree = true;
  for (int i = 1; i < ranks && !s; i++) *agree &= all[i] == all[0];
  free(all);
  return s;
}

Status rank_results_slowest(World *w, double *seconds, int64_t n) {
  return comm_run(world_comm(w), &(Coll){.kind = COLL_REDUCE,
                                         .dtype = DT_F64,
                                         .op = REDUCE_MAX,
                                         .send = seconds,
                                         .recv = seconds,
                                         .count = n,
                                         .why = "times"});
}

static Status gather(World *w, Dtype dtype, const void *mine, int64_t n, const int64_t *counts, void *all) {
  return comm_run(world_comm(w), &(Coll){.kind = COLL_ALL_GATHER,
                                         .dtype = dtype,
                                         .send = mine,
                                         .recv = all,
                                         .count = n,
                                         .counts = counts,
                                         .why = "what ranks say"});
}

Status rank_results_texts(World *w, const char *mine, size_t size, TextBuf *all) {
  int64_t *sizes, n = (int64_t)size, total = 0;
  char *text = NULL;
  TRY_NEW(sizes, calloc((size_t)world_size(w), sizeof *sizes));
  Status s = gather(w, DT_I64, &n, 1, NULL, sizes);
  for (int i = 0; i < world_size(w); i++) total += sizes[i];
  if (!s && !(text = malloc((size_t)total + 1))) s = fail_oom();
  if (!s) s = gather(w, DT_U8, mine, 0, sizes, text);
  if (!s) text_write(all, text, (size_t)total);
  free(text);
  free(sizes);
  return s;
}
