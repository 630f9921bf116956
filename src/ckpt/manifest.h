/* manifest.h -- what a save says about itself: manifest.json.
 *
 *     {"format": "tessera run", "version": 1, "tessera": "0.1.0", "step": 100, "seed": 1, ...
 *      "files": [{"name": "model.safetensors", "prefix": "model.", "bytes": 1234}, ...],
 *      "tensors": [{"name": "model.wte.weight", "dtype": "f32", "shape": [8,4],
 *                   "chunks": [{"file": 0, "offset": [0,0], "shape": [8,4], "xxh3": "..."}]}, ...],
 *      "xxh3": "..."}
 *
 * I1  The last member is the XXH3 of all bytes before it: a manifest that was edited or cut off is refused.
 * I2  A tensor is chunks, boxes of the whole, each in one file under the tensor's name without that file's
 *     prefix.  In version 1 a tensor is one chunk, the whole; saves of several ranks, whose tensors have more
 *     of them and whose mesh is not "1", will be version 2.
 * I3  What manifest_parse() has accepted is sound: files are plain names, indices are in range, sizes have a
 *     product, no name occurs twice.
 */
#ifndef TESS_CKPT_MANIFEST_H
#define TESS_CKPT_MANIFEST_H

#include "base/textbuf.h"
#include "tensor/safetensors.h"

#define MANIFEST_NAME "manifest.json"
enum { MANIFEST_VERSION = 1, MAX_SAVED_FILES = 1 << 20 };

/* What a save knows besides tensors.  Everything is borrowed. */
typedef struct {
  int64_t step; /* updates of the parameters so far; names the save */
  uint64_t seed;
  const void *random; /* where random numbers stand: any bytes (ctx_random_state) */
  size_t random_bytes;
  int64_t batches, samples; /* of the data, consumed so far */
  const char *const *argv;  /* the command line */
  int argc;
  const char *program;  /* its name; NULL, and read back "": none */
  const SafeText *text; /* whatever else: keys and values */
  int texts;
  /* Filled in by who saves: */
  const char *version; /* of tessera */
  uint64_t signature;  /* names, dtypes and sizes of the tensors of the model */
} SaveFacts;

typedef struct {
  const char *name;   /* in the folder */
  const char *prefix; /* of the names of its tensors, left out in the file */
  uint64_t bytes;
} ManifestFile;

typedef struct {
  const char *name, *key; /* "model.wte.weight", and in its file "wte.weight" */
  Dtype dtype;
  int ndim;
  int64_t size[MAX_DIMS];
  int file;
  uint64_t hash; /* safetensors_hash */
} ManifestTensor;

typedef struct {
  SaveFacts facts;
  ManifestFile *file;
  int files;
  ManifestTensor *tensor; /* parsed: sorted by name */
  int tensors;
} Manifest;

/* Text of one that is as I3 says, or that manifest_parse() will refuse. */
Status manifest_print(const Manifest *m, TextBuf *out);
/* `what` names the source in errors.  Texts are copied into the arena. */
Status manifest_parse(const char *what, const void *text, size_t size, Arena *arena, Manifest *out);
/* NULL if there is none. */
const ManifestTensor *manifest_find(const Manifest *m, const char *name);
bool manifest_is_like(const ManifestTensor *t, Dtype dtype, int ndim, const int64_t *size);

#endif
