/* manifest.h -- what a save says about itself: manifest.json.
 *
 *     {"format": "tessera run", "version": 2, "tessera": "0.1.0", "step": 100, "seed": 1, ...
 *      "files": [{"name": "model.safetensors", "prefix": "model.", "bytes": 1234}, ...],
 *      "tensors": [{"name": "model.wte.weight", "dtype": "f32", "shape": [8,4], "placements": "S(0)R",
 *                   "chunks": [{"file": 0, "offset": [0,0], "shape": [4,4], "xxh3": "..."}, ...]}, ...],
 *      "xxh3": "..."}
 *
 * I1  The last member is the XXH3 of all bytes before it: a manifest that was edited or cut off is refused.
 * I2  A tensor is chunks, boxes of the whole, each in one file under the tensor's name without that file's
 *     prefix.  In version 1 a tensor is one chunk, the whole, and the mesh is "1": what one rank saves is written
 * so, and everybody reads it.  Saves of several ranks are version 2. I3  What manifest_parse() has accepted is
 * sound: files are plain names, indices are in range, sizes have a product, chunks lie in their tensors, no name
 * occurs twice.
 */
#ifndef TESS_CKPT_MANIFEST_H
#define TESS_CKPT_MANIFEST_H

#include "base/folder.h"
#include "base/textbuf.h"
#include "tensor/safetensors.h"

#define MANIFEST_NAME "manifest.json"
enum { MANIFEST_VERSION = 2, MAX_SAVED_FILES = 1 << 20 };

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
  const char *mesh; /* "dp=2,tp=2"; NULL: "1", as it is read back */
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
  int file;
  int64_t offset[MAX_DIMS], size[MAX_DIMS]; /* the box */
  uint64_t hash;                            /* safetensors_hash */
} ManifestChunk;

typedef struct {
  const char *name; /* "model.wte.weight", and in its file "wte.weight" */
  Dtype dtype;
  int ndim;
  int64_t size[MAX_DIMS];
  const char *placements; /* how it lay on the mesh: "S(0)R"; NULL: not told */
  ManifestChunk *chunk;
  int chunks;
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
/* Is the tensor one chunk? */
bool manifest_is_whole(const ManifestTensor *t);
/* The name of a chunk in its file. */
const char *manifest_key(const Manifest *m, const ManifestTensor *t, const ManifestChunk *c);
bool manifest_is_like(const ManifestTensor *t, Dtype dtype, int ndim, const int64_t *size);

/* ---- writing a save ------------------------------------------------------------------------------------ */

/* The files of a save, <stem>.safetensors or <stem>-rank00000.safetensors and so on.  A tensor goes to the first
 * whose prefix its name has. */
typedef struct {
  const char *stem, *prefix;
} SaveKind;
enum { SAVE_KINDS = 2 };
extern const SaveKind save_kinds[SAVE_KINDS];
int save_kind_of(const char *name);

/* Of a line "name dtype[sizes]" per tensor of the model, in the order of their names. */
Status manifest_sign(const Manifest *m, Arena *arena, uint64_t *out);
/* Into the folder of the save.  It is read back at once: a save that could not be read again is not made. */
Status manifest_write(const Manifest *m, FolderOut *folder, Arena *arena);

#endif
