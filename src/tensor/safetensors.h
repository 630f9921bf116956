/* safetensors.h -- the .safetensors container: named tensors in one mapped file.
 *
 *     u64 n | n bytes of JSON {name: {dtype, shape, data_offsets: [begin, end]}, ...} | data
 *
 * I1  An opened file is right as a whole: every entry's dtype is known, its bytes lie
 *     in the file and are as many as its shape needs, entries neither overlap nor leave
 *     holes, no name occurs twice.  Anything else is refused with the entry's name.
 * I2  Tensors borrow the mapping (each has a storage of its own that keeps it alive),
 *     so they outlive the SafeTensors.  Only data that is not aligned to its dtype is copied.
 */
#ifndef TESS_TENSOR_SAFETENSORS_H
#define TESS_TENSOR_SAFETENSORS_H

#include "base/file.h"
#include "tensor/tensor.h"

typedef struct {
  const char *name;
  Dtype dtype;
  int ndim;
  int64_t size[MAX_DIMS];
  uint64_t begin, end; /* bytes, from the start of the file */
} SafeEntry;

typedef struct {
  const char *key, *value;
} SafeText;

typedef struct {
  FileMap *file;
  Arena arena;
  int count;
  SafeEntry *entries; /* sorted by name */
  int texts;
  SafeText *text; /* __metadata__ */
} SafeTensors;

Status safetensors_open(const char *path, SafeTensors **out);
/* Keeps its own reference to f. */
Status safetensors_from_map(FileMap *f, SafeTensors **out);
void safetensors_close(SafeTensors *st); /* NULL is fine */

/* NULL if there is none. */
const SafeEntry *safetensors_find(const SafeTensors *st, const char *name);
const char *safetensors_text(const SafeTensors *st, const char *key);
/* A handle in `scope`; `entry` is one of st's. */
Status safetensors_tensor(const SafeTensors *st, const SafeEntry *entry, Scope *scope, Tensor **out);
/* find + tensor; fails if there is no such name. */
Status safetensors_get(const SafeTensors *st, const char *name, Scope *scope, Tensor **out);

/* Where entries (name, dtype, ndim, size) of a file that is to be written lie in it: begin and end.  Tensors
 * of whole pages stand first, and begin at pages in a file that is large enough for base/direct.h; the others are
 * ordered by element size, so that every tensor is aligned.  Names keep the given order in the header, which *head
 * is: the first bytes of the file, to be freed with free(). */
Status safetensors_plan(SafeEntry *entries, int n, const SafeText *text, int texts, void **head, size_t *bytes);

typedef struct {
  const char *name;
  const Tensor *tensor; /* any strides; written contiguous */
} SafeItem;

/* As safetensors_plan() places them.  flags: FileFlags.  The file appears whole or not at all. */
Status safetensors_save(const char *path, const SafeItem *items, int n, const SafeText *text, int texts,
                        unsigned flags);

/* Where the bytes of items come from, if their tensors may not be read as they are: piece by piece in row-major
 * order, each given back whatever happens to it. */
typedef struct {
  Status (*take)(void *arg, int item, uint64_t at, const void **data, size_t *size);
  void (*give_back)(void *arg, int item, uint64_t at);
  void *arg;
} SafeReader;

/* What was written. */
typedef struct {
  const SafeReader *reader; /* set by the caller; NULL: the tensors */
  uint64_t bytes;           /* of the file */
  uint64_t *hash;           /* set by the caller: room for the hash of each item's bytes (safetensors_hash) */
} SafeWritten;

/* The same, and what was written.  Hashes are taken of the bytes on their way out. */
Status safetensors_save_hashed(const char *path, const SafeItem *items, int n, const SafeText *text, int texts,
                               unsigned flags, SafeWritten *out);
/* XXH3 (64 bits) of the bytes of an entry, as they are in the file. */
uint64_t safetensors_hash(const SafeTensors *st, const SafeEntry *entry);

#endif
