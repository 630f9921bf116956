/* source.h -- a checkpoint that is there, in any format: tensors by name, each a list of chunks, and boxes of them
 * read.
 *
 *     Source *s;
 *     source_open("run/step-00000100", &s);               ours, .safetensors, Hugging Face, DCP, torch.save, .pt2
 *     const SourceTensor *t = source_find(s, "wte.weight");
 *     source_read(t, offset, size, view);                 any box, into memory of any strides and another dtype
 *     source_close(s);
 *
 * I1  A chunk is a box of its tensor: a strided view of bytes of a file, which is mapped.  Everything is checked on
 *     opening: chunks lie in their tensors and in their files.  Whether they cover a tensor, source_check() says.
 * I2  Names, dtypes and sizes cost memory; data does not: source_forget() gives pages back that were read.
 * I3  A Source does not change after opening: threads may share it.
 * I4  A checkpoint that is damaged is ERR_CKPT, with the file and the tensor; what is no checkpoint is ERR_FILE.
 */
#ifndef TESS_CKPT_SOURCE_H
#define TESS_CKPT_SOURCE_H

#include "base/progress.h"
#include "ckpt/manifest.h"
#include "dist/checkpoint.h"

typedef struct {
  int64_t offset[MAX_DIMS], size[MAX_DIMS]; /* the box */
  int64_t stride[MAX_DIMS];                 /* of its elements in the file, in elements */
  int file;                                 /* of the source */
  uint64_t at;                              /* bytes from the start of the file to the first element */
  bool hashed;
  uint64_t hash; /* XXH3 of the bytes; such a chunk is contiguous */
} SourceChunk;

typedef struct {
  const char *name;
  Dtype dtype;
  int ndim;
  int64_t size[MAX_DIMS];
  SourceChunk *chunk;
  int chunks, cap;
  const char *placements; /* as it was saved: "S(0)R"; NULL: not told */
} SourceTensor;

typedef struct {
  const char *name; /* in the folder; of a single file its own */
  FileMap *map;
  int rank; /* who wrote it, where names tell; -1 */
} SourceFile;

/* What is in a checkpoint and is no tensor: a Python value of DCP, as the bytes of its record. */
typedef struct {
  const char *name;
  int file;
  uint64_t at, bytes;
  const char *text; /* as Python prints it */
} SourceValue;

typedef struct Source Source;
typedef struct SourceFormat SourceFormat;
struct SourceFormat {
  const char *name; /* "dcp" */
  const char *what; /* "PyTorch distributed checkpoint" */
  /* May the path, a folder or a file, be one?  A look at names and first bytes. */
  bool (*is)(const char *path, bool folder);
  Status (*open)(Source *s);
};

struct Source {
  Arena arena;
  const char *path;
  const SourceFormat *format;
  SourceFile *file;
  int files, files_cap;
  SourceTensor *tensor; /* sorted by name */
  int tensors, tensors_cap;
  SourceValue *value;
  int values, values_cap;
  struct Save *save; /* ours: what it says about itself; NULL: another format */
  const char *mesh;  /* "dp=2,tp=2"; NULL: not told */
};

/* A folder or file; of a run folder the newest save.  ERR_USAGE if nothing is there. */
Status source_open(const char *path, Source **out);
/* Plain tensors in memory, which outlive it. */
Status source_of_tensors(const SafeItem *items, int n, Source **out);
void source_close(Source *s); /* NULL is fine */
extern const SourceFormat source_formats[];
extern const int source_format_count;

const SourceTensor *source_find(const Source *s, const char *name); /* NULL: there is none */
int64_t source_bytes(const SourceTensor *t);                        /* of the whole tensor */
/* Is the box one piece of a file, and in memory?  Then its bytes; NULL otherwise: it is to be read. */
const void *source_span(const Source *s, const SourceTensor *t, const int64_t *offset, const int64_t *size);

/* Fills `to`, of the box's sizes and any compute dtype (or the tensor's own), from the chunks.  ERR_CKPT if
 * some element was not saved. */
Status source_read(const Source *s, const SourceTensor *t, const int64_t *offset, View to);
/* Would it read some of it past the page cache?  That is worth it in large pieces only. */
bool source_reads_directly(const Source *s, const SourceTensor *t, const int64_t *offset, const int64_t *size);
/* Fills a rank's shard: wanted are chunks of the tensor that lie in `to` from chunk.local on.  Not collective. */
Status source_read_chunks(const Source *s, const SourceTensor *t, const ChunkList *wanted, const Tensor *to,
                          int threads);
/* The box will be read soon: the first 64 MB of it begin to come from the disk. */
void source_ahead(const Source *s, const SourceTensor *t, const int64_t *offset, const int64_t *size);
/* Pages of the box go back to the system; a reader of many gigabytes says so now and then. */
void source_forget(const Source *s, const SourceTensor *t, const int64_t *offset, const int64_t *size);

/* Do the chunks cover every element of the tensor once?  The same box twice is fine.  ERR_CKPT names what is
 * missing or covered twice. */
Status source_check(const Source *s, const SourceTensor *t);
/* What is not right is told to `say` (NULL: nobody), all of it, and the first is the error. */
typedef void SourceSay(void *arg, const char *text);
typedef struct {
  int threads;
  int part, parts;    /* of the bytes: ranks share the work; parts 0: all of them */
  Progress *progress; /* NULL: none */
  SourceSay *say;
  void *arg;
} SourceVerify;
/* All tensors are covered, and bytes are those that were saved where there are hashes. */
Status source_verify(const Source *s, const SourceVerify *how);

/* ---- for formats ------------------------------------------------------------------------------------- */

/* A file of the folder (or the path itself, name NULL), mapped.  *out: its number. */
Status source_add_file(Source *s, const char *name, int *out);
/* What is wrong with a file of a checkpoint is wrong with the checkpoint: ERR_FILE becomes ERR_CKPT.  OK stays OK.
 */
Status source_damage(Status s);
/* Bytes that are there already; the map becomes the source's, also on failure. */
Status source_add_map(Source *s, const char *name, FileMap *map, int *out);
Status source_add_tensor(Source *s, const char *name, Dtype dtype, int ndim, const int64_t *size,
                         SourceTensor **out);
/* stride NULL: contiguous.  Checks that the box is in the tensor and its elements in the file; the tensor's sizes
 * may grow to hold the box if `grow`. */
Status source_add_chunk(Source *s, SourceTensor *t, const SourceChunk *c, bool grow);

#endif
