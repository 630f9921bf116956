/* tensor.h -- storage, tensors and the scopes that own them.
 *
 * I1  Storage is refcounted bytes.  A Tensor holds one reference to its storage, or
 *     none: then it is a *meta* tensor (sizes and dtype known, no bytes yet).
 * I2  Every element of a tensor with storage lies inside it: whoever makes a view of
 *     foreign data checks with tensor_check_bounds().
 * I3  Tensor handles belong to a Scope and die with it; nobody frees a handle.
 *     To keep a tensor longer, make another handle in an outer scope (tensor_alias).
 * I4  A storage's data pointer may change between runs (planned or bound storage), so
 *     nobody keeps a raw pointer over calls: ask tensor_view() each time.
 * I5  Strides are in elements and never negative; a size-1 or empty dimension may have
 *     any stride.
 */
#ifndef TESS_TENSOR_TENSOR_H
#define TESS_TENSOR_TENSOR_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/status.h"
#include "tensor/dtype.h"

enum { MAX_DIMS = 16 };

typedef struct Storage Storage;
struct Storage {
  atomic_int refs;
  void *data;                 /* NULL: not there yet (planned or bound at run time) */
  size_t size;                /* bytes */
  void (*release)(Storage *); /* frees data; NULL: data is borrowed */
  void *owner;                /* for release: a mapping, an array of another library ... */
  int64_t slab_offset;        /* assign_memory: byte offset in the slab, -1 = not in it */
  uint64_t version;           /* how often an op has written to it in place */
  atomic_bool frozen;         /* the bytes never change: packed copies of them may be kept */
};

/* 64-byte aligned, not zeroed.  Fails with the number of bytes when there is no memory. */
Status storage_new(size_t bytes, Storage **out);
/* Someone else's bytes; release may be NULL. */
Status storage_borrow(void *data, size_t bytes, void (*release)(Storage *), void *owner, Storage **out);
Storage *storage_ref(Storage *s);
void storage_unref(Storage *s); /* NULL is fine */
/* Do its bytes belong to a program alone, so that assign_memory gives them a place: no caller, input,
 * weight or buffer has them?  NULL: no. */
bool storage_is_internal(const Storage *s);

typedef struct Spec Spec; /* dist/: how a DTensor lies on its mesh */

/* The call that a tensor is a result of, if its gradient may be asked for (grad/tape.h): refcounted, and
 * freed when no handle and no later call refers to it. */
typedef struct GradNode GradNode;
struct GradNode {
  atomic_int refs;
  void (*release)(GradNode *);
};
GradNode *grad_ref(GradNode *n); /* NULL is fine */
void grad_unref(GradNode *n);    /* NULL is fine */

typedef struct TessTensor Tensor;
struct TessTensor {
  Storage *storage; /* NULL: meta */
  const Spec *spec; /* NULL: a plain tensor */
  Tensor *local;    /* DTensor: this rank's shard, a plain tensor in the same scope; size and
                     * stride here are then those of the whole, and storage is NULL */
  void *tag;        /* whoever records calls: the graph value that this handle stands for */
  GradNode *grad;   /* NULL: no gradient goes through it; else it is result number grad_out of this call */
  int grad_out;
  uint32_t seen; /* of family: how many writes grad knows of */
  GradNode
      *family;    /* what handles on the same elements share (grad/family.h); NULL: it is alone, or nobody writes */
  int64_t offset; /* elements from the start of the storage */
  Dtype dtype;
  int ndim;
  int64_t size[MAX_DIMS];
  int64_t stride[MAX_DIMS];
};

/* A handle of what was kept for a gradient and has been written to since: it may be asked for its size, not be an
 * argument of a call. */
#define TENSOR_SPOILED UINT32_MAX
static inline bool tensor_is_spoiled(const Tensor *t) { return t->seen == TENSOR_SPOILED && !t->family; }

/* What kernels get: borrowed for one call. */
typedef struct {
  void *data;
  const int64_t *size, *stride; /* ndim each; stride in elements */
  int ndim;
  Dtype dtype;
} View;

static inline void *tensor_data(const Tensor *t) {
  return t->storage && t->storage->data ? (char *)t->storage->data + (size_t)t->offset * dtype_size(t->dtype)
                                        : NULL;
}
static inline View tensor_view(const Tensor *t) {
  return (View){tensor_data(t), t->size, t->stride, t->ndim, t->dtype};
}

/* ---- scopes ---------------------------------------------------------------- */

typedef struct Scope {
  struct ScopeBlock *blocks;
  int used; /* handles taken from the newest block */
} Scope;

Tensor *scope_tensor(Scope *s); /* a zeroed handle; NULL = out of memory */
void scope_clear(Scope *s);     /* drops every handle; the scope stays usable */

/* A second handle on the same tensor that belongs to no scope, in one allocation with its shard: it may outlive any
 * scope and be dropped by any thread. */
Status tensor_hold(const Tensor *t, Tensor **out);
void tensor_release(Tensor *held); /* NULL is fine */

/* ---- making tensors -------------------------------------------------------- */

/* Meta tensor, contiguous.  Fails on ndim > MAX_DIMS, negative sizes, overflow. */
Status tensor_meta(Scope *s, Dtype d, int ndim, const int64_t *size, Tensor **out);
/* Gives a meta tensor uninitialised storage of the size its strides need. */
Status tensor_materialize(Tensor *t);
/* tensor_meta + tensor_materialize. */
Status tensor_new(Scope *s, Dtype d, int ndim, const int64_t *size, Tensor **out);
/* A second handle on the same storage, of which no gradient is known. */
Status tensor_alias(Scope *s, const Tensor *t, Tensor **out);
/* A second handle on the same tensor: its gradient is that of the first. */
Status tensor_handle(Scope *s, const Tensor *t, Tensor **out);
/* A view with its own geometry on t's storage (offset in elements, from the start of the storage). */
Status tensor_as_strided(Scope *s, const Tensor *t, int ndim, const int64_t *size, const int64_t *stride,
                         int64_t offset, Tensor **out);
/* Drops the storage early; the handle stays as a meta tensor. */
void tensor_drop(Tensor *t);

/* ---- asking ---------------------------------------------------------------- */

int64_t tensor_numel(const Tensor *t);
bool tensor_is_contiguous(const Tensor *t);
/* Number of elements from the first to one past the last that the view touches. */
int64_t tensor_extent(const Tensor *t);
Status tensor_check_bounds(const Tensor *t, const char *what);
bool tensor_same_size(const Tensor *a, const Tensor *b);
bool tensor_same_view(const Tensor *a, const Tensor *b); /* the same elements of one storage, in the same order */
bool tensor_overlaps_itself(const Tensor *t);            /* some element is reached twice */

/* Row-major strides of a size. */
void contiguous_strides(int ndim, const int64_t *size, int64_t *stride);
/* Product of sizes; false on overflow or a negative size. */
bool checked_numel(int ndim, const int64_t *size, int64_t *numel);
/* Sizes and strides that a tensor can have: none is negative, and no element lies further away than
 * numbers go. */
bool checked_extent(int ndim, const int64_t *size, const int64_t *stride);

/* Strides under which `size` views t without a copy (PyTorch's rule for view); false
 * if there are none. */
bool view_strides(const Tensor *t, int ndim, const int64_t *size, int64_t *stride);

/* "f32[2,3]"; buf is returned. */
const char *tensor_describe(const Tensor *t, char *buf, size_t cap);
const char *shape_describe(int ndim, const int64_t *size, char *buf, size_t cap);

#endif
