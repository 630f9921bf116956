/* writing.h -- a derived checkpoint out: boxes of tensors to places of files, window by window.
 *
 * A format (write_formats.h) says which files there are, what stands at their beginnings, which box lies where, and
 * what is written when all boxes are.  The rest is here, once:
 *
 * I1  Memory is bounded: each thread has one window at a time, and pages of sources that were read are given back:
 * with the window, or with the tensor where that is small enough.
 * I2  Files and folders appear whole, by one rename, or not at all; what was there stays until then.
 * I3  Boxes are written by several threads at once, also to one file.  The result does not depend on that.
 * I4  A process that is killed leaves a folder beside the result, in which the same work goes on (journal.h);
 * errors leave nothing.
 */
#ifndef TESS_CKPT_WRITING_H
#define TESS_CKPT_WRITING_H

#include "base/folder.h"
#include "base/progress.h"
#include "ckpt/derived.h"

/* Bytes of a file that are a box of a tensor, or copied as they are. */
typedef struct {
  int file, tensor; /* tensor -1: raw */
  int64_t offset[MAX_DIMS], size[MAX_DIMS];
  uint64_t at, bytes; /* in the file */
  const void *raw;
  uint64_t hash; /* XXH3, when it is written */
  uint32_t crc;  /* CRC-32, if the format wants it */
  bool written;  /* by a process that was killed (journal.h) */
} WriteBox;

typedef struct {
  const char *name; /* in the folder */
  uint64_t bytes;
  const void *head; /* at its beginning */
  size_t head_bytes;
  int rank; /* whose it is, of a mesh; -1 */
} WriteFile;

typedef struct Writing Writing;
typedef struct {
  const char *name, *what;
  bool folder; /* the result is a folder, not a file */
  bool crc;
  DerivedNames names;
  /* Plans files and boxes. */
  Status (*plan)(Writing *w);
  /* Bytes around a box, once its hash and crc are known; NULL: none. */
  Status (*around)(Writing *w, const WriteBox *b);
  /* When all boxes are written: further files of the folder.  NULL: none. */
  Status (*finish)(Writing *w);
  /* Instead of all of these: writes the file itself. */
  Status (*write)(Writing *w, const char *path, unsigned flags);
} WriteFormat;

extern const WriteFormat write_formats[];
extern const int write_format_count;
const WriteFormat *write_format_find(const char *name); /* NULL: there is none */

/* How tensors lie on a mesh; the placements of a tensor are asked for by name. */
typedef struct {
  const char *text; /* "dp=2,tp=2" */
  int axis[MAX_AXES], naxes, ranks;
  Status (*place)(const void *arg, const DerivedTensor *t, Placement *out);
  const void *arg;
} WriteMesh;

typedef struct {
  const WriteFormat *format;
  const char *path;
  const WriteMesh *mesh; /* NULL: tensors are whole */
  uint64_t shard_bytes;  /* hf: of a file at most, where a tensor is not larger */
  const char *program;   /* pt2: whose weights are replaced */
  uint64_t memory;       /* bytes */
  int threads;
  bool force, sync;
  Progress *progress; /* of bytes; NULL: none */
} WriteHow;

struct Writing {
  Arena arena;
  const Derived *d;
  const WriteHow *how;
  WriteBox *box;
  int boxes, boxes_cap;
  WriteFile *file;
  int files, files_cap;
  FolderOut out;   /* where the result is made: a folder, or one that the file is moved out of */
  int64_t resumed; /* bytes that a process that was killed had written */
  void *inside;    /* the engine's */
  void *planned;   /* the format's */
};

/* What a plan comes to, before or instead of writing: calls see() with the files.  Everything that can be wrong
 * before data is read is found here. */
Status writing_plan(const Derived *d, const WriteHow *how, Writing **out);
Status writing_run(Writing *w);
void writing_free(Writing *w); /* NULL is fine */

/* ---- for formats --------------------------------------------------------------------------------------------- */

Status writing_add_file(Writing *w, const char *name, int *out);
Status writing_add_box(Writing *w, const WriteBox *b);
/* Bytes at a place of a file that is being written. */
Status writing_put(Writing *w, int file, uint64_t at, const void *data, size_t size);
/* A further file of the folder. */
Status writing_add_text(Writing *w, const char *name, const void *data, size_t size);
/* The boxes of tensor i that each rank of the mesh writes, replicas once; plan: w->how->mesh->ranks of them. */
Status writing_plan_mesh(Writing *w, SavePlan **plan);

#endif
