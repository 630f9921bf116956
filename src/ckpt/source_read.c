/* source_read.c -- boxes of tensors out of the chunks that they were saved in; see source.h. */
#define _GNU_SOURCE /* madvise */
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/direct.h"
#include "base/parallel.h"
#include "ckpt/source.h"
#include "ckpt/windows.h"
#include "kernels/copy.h"

/* What a chunk and a box have in common; false: nothing. */
static bool intersect(const SourceTensor *t, const SourceChunk *c, const int64_t *offset, const int64_t *size,
                      int64_t *begin, int64_t *common) {
  for (int d = 0; d < t->ndim; d++) {
    int64_t a = c->offset[d] > offset[d] ? c->offset[d] : offset[d];
    int64_t end = c->offset[d] + c->size[d], other = offset[d] + size[d];
    if (other < end) end = other;
    if (end <= a) return false;
    begin[d] = a;
    common[d] = end - a;
  }
  return true;
}

/* Where an element of a chunk is; the place is one of the whole tensor. */
static unsigned char *element(const Source *s, const SourceTensor *t, const SourceChunk *c, const int64_t *place) {
  int64_t at = 0;
  for (int d = 0; d < t->ndim; d++) at += (place[d] - c->offset[d]) * c->stride[d];
  return s->file[c->file].map->data + c->at + (uint64_t)at * dtype_size(t->dtype);
}

static int64_t volume(int ndim, const int64_t *size) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) n *= size[d];
  return n;
}

/* Are these sizes with these strides one run of elements? */
static bool is_run(int ndim, const int64_t *size, const int64_t *stride) {
  int64_t run = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    if (size[d] != 1 && stride[d] != run) return false;
    run *= size[d];
  }
  return true;
}

const void *source_span(const Source *s, const SourceTensor *t, const int64_t *offset, const int64_t *size) {
  int64_t begin[MAX_DIMS], common[MAX_DIMS];
  for (int i = 0; i < t->chunks; i++) {
    const SourceChunk *c = &t->chunk[i];
    if (!intersect(t, c, offset, size, begin, common)) continue;
    if (t->ndim && memcmp(common, size, (size_t)t->ndim * sizeof *size)) return NULL; /* a part of it */
    if (!is_run(t->ndim, size, c->stride)) return NULL;
    const FileMap *map = s->file[c->file].map;
    const unsigned char *data = element(s, t, c, offset);
    const size_t bytes = (size_t)volume(t->ndim, size) * dtype_size(t->dtype);
    return file_map_is_resident(map, (size_t)(data - map->data), bytes) ? data : NULL;
  }
  return NULL;
}

/* ---- copying ---------------------------------------------------------------------------------------- */

/* Elements of files lie at any byte: those of formats that do not align them are copied bit by bit. */
static bool is_aligned(const void *data, Dtype d) {
  size_t align = dtype_size(d) > 8 ? 8 : dtype_size(d);
  return (uintptr_t)data % align == 0;
}

/* Elements that lie one behind the other on both sides: those of the last dimensions, from *outer on. */
static int64_t common_run(const View *to, const int64_t *from_stride, int *outer) {
  int64_t run = 1;
  *outer = to->ndim;
  for (int d = to->ndim - 1; d >= 0; d--) {
    if (to->size[d] != 1 && (to->stride[d] != run || from_stride[d] != run)) break;
    run *= to->size[d];
    *outer = d;
  }
  return run;
}

/* Run by run.  Elements of files lie at any byte. */
static void copy_bytes(View to, const FileMap *map, const unsigned char *from, const int64_t *from_stride,
                       size_t item) {
  int64_t index[MAX_DIMS] = {0};
  int outer;
  const size_t run = (size_t)common_run(&to, from_stride, &outer) * item;
  for (;;) {
    char *row = to.data;
    const unsigned char *data = from;
    for (int d = 0; d < outer; d++) {
      row += index[d] * to.stride[d] * (int64_t)item;
      data += index[d] * from_stride[d] * (int64_t)item;
    }
    if (run == item) memcpy(row, data, item);
    else file_map_copy(map, (size_t)(data - map->data), row, run);
    int d = outer - 1;
    while (d >= 0 && ++index[d] == to.size[d]) index[d--] = 0;
    if (d < 0) return;
  }
}

static Status check_bools(const Source *s, const SourceTensor *t, View v) {
  int64_t index[MAX_DIMS] = {0};
  if (t->dtype != DT_BOOL || v.dtype != DT_BOOL) return OK;
  for (;;) {
    int64_t at = 0;
    for (int d = 0; d < v.ndim; d++) at += index[d] * v.stride[d];
    if (((const unsigned char *)v.data)[at] > 1)
      return fail(ERR_CKPT, "'%s': the tensor '%s': a bool is neither 0 nor 1", s->path, t->name);
    int d = v.ndim - 1;
    while (d >= 0 && ++index[d] == v.size[d]) index[d--] = 0;
    if (d < 0) return OK;
  }
}

/* One common part: as it is, or converted. */
static Status copy_part(const Source *s, const SourceTensor *t, const SourceChunk *c, const int64_t *begin,
                        View to) {
  unsigned char *from = element(s, t, c, begin);
  if (to.dtype == t->dtype) {
    copy_bytes(to, s->file[c->file].map, from, c->stride, dtype_size(t->dtype));
    return check_bools(s, t, to);
  }
  if (!dtype_is_compute(t->dtype) || !dtype_is_compute(to.dtype))
    return fail(ERR_USAGE, "'%s': the tensor '%s' cannot be converted from %s to %s", s->path, t->name,
                dtype_name(t->dtype), dtype_name(to.dtype));
  Kern kern;
  Scope scope = {0};
  View view = {from, to.size, c->stride, t->ndim, t->dtype};
  Tensor *copy;
  Status r = OK;
  if (!is_aligned(from, t->dtype) || t->dtype == DT_BOOL) {
    r = tensor_new(&scope, t->dtype, t->ndim, to.size, &copy);
    if (!r) {
      view = tensor_view(copy);
      copy_bytes(view, s->file[c->file].map, from, c->stride, dtype_size(t->dtype));
      r = check_bools(s, t, view);
    }
  }
  if (!r) {
    kern_init(&kern, 1);
    kernel_copy(&kern, to, view);
    kern_free(&kern);
  }
  scope_clear(&scope);
  return r;
}

static bool same_box(const SourceTensor *t, const SourceChunk *a, const SourceChunk *b) {
  size_t n = (size_t)t->ndim * sizeof *a->offset;
  return !n || (!memcmp(a->offset, b->offset, n) && !memcmp(a->size, b->size, n));
}

/* Was the same box there before? */
static bool is_again(const SourceTensor *t, int i) {
  for (int k = 0; k < i; k++)
    if (same_box(t, &t->chunk[k], &t->chunk[i])) return true;
  return false;
}

Status source_read(const Source *s, const SourceTensor *t, const int64_t *offset, View to) {
  int64_t want = volume(t->ndim, to.size), found = 0, begin[MAX_DIMS], common[MAX_DIMS];
  char a[200], b[200];
  for (int i = 0; i < t->chunks && want; i++) {
    const SourceChunk *c = &t->chunk[i];
    int64_t at = 0;
    if (!intersect(t, c, offset, to.size, begin, common)) continue;
    for (int d = 0; d < t->ndim; d++) at += (begin[d] - offset[d]) * to.stride[d];
    View part = {(char *)to.data + (size_t)at * dtype_size(to.dtype), common, to.stride, t->ndim, to.dtype};
    TRY(copy_part(s, t, c, begin, part));
    found += volume(t->ndim, common);
  }
  for (int i = 1; i < t->chunks && found > want; i++)
    if (is_again(t, i) && intersect(t, &t->chunk[i], offset, to.size, begin, common))
      found -= volume(t->ndim, common);
  if (found == want) return OK;
  return fail(ERR_CKPT, "'%s': of the part %s at %s of the tensor '%s' %lld of %lld elements are there", s->path,
              shape_describe(t->ndim, to.size, a, sizeof a), shape_describe(t->ndim, offset, b, sizeof b), t->name,
              (long long)found, (long long)want);
}

/* Bytes of it that lie one behind the other in the file, and in a result that is contiguous. */
static size_t run_of(const SourceTensor *t, const SourceChunk *c, const int64_t *size) {
  int64_t run = 1;
  for (int d = t->ndim - 1; d >= 0; d--) {
    if (size[d] != 1 && c->stride[d] != run) break;
    run *= size[d];
  }
  return (size_t)run * dtype_size(t->dtype);
}

bool source_reads_directly(const Source *s, const SourceTensor *t, const int64_t *offset, const int64_t *size) {
  for (int i = 0; i < t->chunks; i++) {
    const SourceChunk *c = &t->chunk[i];
    const FileMap *map = s->file[c->file].map;
    int64_t begin[MAX_DIMS], common[MAX_DIMS];
    if (!intersect(t, c, offset, size, begin, common)) continue;
    const size_t run = run_of(t, c, common);
    if (run < DIRECT_LEAST) continue;
    if (!file_map_is_resident(map, (size_t)(element(s, t, c, begin) - map->data), run)) return true;
  }
  return false;
}

/* ---- shards ------------------------------------------------------------------------------------------------ */

enum { WINDOW = 4 << 20 }; /* bytes that a thread reads at a time */

typedef struct {
  int64_t offset[MAX_DIMS], size[MAX_DIMS]; /* of the tensor */
  char *to;
} Window;

typedef struct {
  const Source *s;
  const SourceTensor *t;
  const Tensor *to;
  const Chunk *wanted; /* that is being cut */
  Window *v;
  int n, cap;
  Arena arena;
  atomic_int next;
  Status *status; /* by worker */
} Shard;

static Status add_window(void *arg, const int64_t *offset, const int64_t *size, size_t bytes) {
  Shard *h = arg;
  int64_t at = 0;
  (void)bytes;
  TRY_NEW(h->v, arena_more(&h->arena, h->v, h->n, &h->cap));
  Window *w = &h->v[h->n++];
  for (int d = 0; d < h->t->ndim; d++) {
    w->offset[d] = offset[d];
    w->size[d] = size[d];
    at += (h->wanted->local[d] + offset[d] - h->wanted->offset[d]) * h->to->stride[d];
  }
  w->to = (char *)tensor_data(h->to) + (size_t)at * dtype_size(h->to->dtype);
  return OK;
}

static void read_some(void *arg, int64_t begin, int64_t end, int worker) {
  Shard *h = arg;
  (void)begin, (void)end;
  for (int i; !h->status[worker] && (i = atomic_fetch_add(&h->next, 1)) < h->n;) {
    const Window *w = &h->v[i];
    View to = {w->to, w->size, h->to->stride, h->t->ndim, h->to->dtype};
    h->status[worker] = source_read(h->s, h->t, w->offset, to);
  }
}

static Status read_windows(Shard *h, const ChunkList *wanted, int threads) {
  const SourceTensor *t = h->t;
  for (int i = 0; i < wanted->n; i++) {
    const Chunk *w = h->wanted = &wanted->v[i];
    if (w->ndim != t->ndim || h->to->ndim != t->ndim)
      return fail(ERR_USAGE, "'%s': the tensor '%s' has %d dimensions, %d are asked for", h->s->path, t->name,
                  t->ndim, w->ndim);
    if (!volume(w->ndim, w->size)) continue;
    source_ahead(h->s, t, w->offset, w->size);
    TRY(each_window(t->ndim, w->offset, w->size, dtype_size(t->dtype), WINDOW, add_window, h));
  }
  if (threads > h->n) threads = h->n;
  if (threads < 1) return OK;
  TRY_NEW(h->status, arena_new_n(&h->arena, Status, threads));
  parallel_for(threads, threads, 1, read_some, h);
  Status first = OK;
  for (int i = 0; i < threads; i++) {
    if (first) status_free(h->status[i]);
    else first = h->status[i];
  }
  return first;
}

Status source_read_chunks(const Source *s, const SourceTensor *t, const ChunkList *wanted, const Tensor *to,
                          int threads) {
  Shard h = {.s = s, .t = t, .to = to};
  Status r = read_windows(&h, wanted, threads);
  arena_free(&h.arena);
  return r;
}

/* ---- pages ------------------------------------------------------------------------------------------------ */

enum { MOST_AHEAD = 64 << 20 };

/* Tells the system about the pages of a box: those that will be read come in large pieces and before they are
 * needed, those that were go.  Only whole pages go; those at the ends may be in use for something else.  What is
 * one run of bytes comes by itself (file_map_copy). */
static void advise(const Source *s, const SourceTensor *t, const int64_t *offset, const int64_t *size, int advice) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  for (int i = 0; i < t->chunks; i++) {
    const SourceChunk *c = &t->chunk[i];
    const FileMap *map = s->file[c->file].map;
    int64_t begin[MAX_DIMS], common[MAX_DIMS], last = 0;
    if (!file_map_is_mapped(map) || !intersect(t, c, offset, size, begin, common)) continue;
    if (advice == MADV_WILLNEED && is_run(t->ndim, common, c->stride)) continue;
    for (int d = 0; d < t->ndim; d++) last += (common[d] - 1) * c->stride[d];
    uintptr_t first = (uintptr_t)element(s, t, c, begin);
    uintptr_t end = first + ((size_t)last + 1) * dtype_size(t->dtype);
    if (advice == MADV_WILLNEED) {
      first = first / page * page;
      if (end - first > MOST_AHEAD) end = first + MOST_AHEAD;
    } else {
      first = (first + page - 1) / page * page;
      end = end / page * page;
    }
    if (first < end) madvise((void *)first, end - first, advice); /* the pages are as they are in the file */
  }
}

void source_ahead(const Source *s, const SourceTensor *t, const int64_t *offset, const int64_t *size) {
  advise(s, t, offset, size, MADV_WILLNEED);
}

void source_forget(const Source *s, const SourceTensor *t, const int64_t *offset, const int64_t *size) {
  advise(s, t, offset, size, MADV_DONTNEED);
}
