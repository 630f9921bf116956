/* change.h -- from checkpoints to a checkpoint: another format, mesh, dtype, other names, fewer tensors, an
 * average.
 *
 * Sources are never touched.  The result appears whole, by one rename, or not at all.
 */
#ifndef TESS_CKPT_CHANGE_H
#define TESS_CKPT_CHANGE_H

#include "ckpt/writing.h"

#define CHANGE_MEMORY ((uint64_t)256 << 20)
#define CHANGE_SHARD ((uint64_t)5 << 30)

typedef struct {
  const char *const *source; /* several are averaged */
  int sources;
  const Source *opened; /* instead: one that is open */
  const char *output;
  const char *to;       /* a format; NULL: by the name of the output, else `fallback` or that of the source */
  const char *fallback; /* NULL: none */
  DeriveHow how;        /* names are the format's */
  const char *mesh;     /* "dp=2,tp=2"; NULL: tensors are whole */
  const char *plan;     /* a file; NULL: dimension 0 is cut over all axes */
  const char *program;  /* to pt2: whose weights are replaced; NULL: the source, if it is one */
  uint64_t shard_bytes; /* hf: of a file; 0: CHANGE_SHARD */
  uint64_t memory;      /* 0: CHANGE_MEMORY */
  int threads;          /* 0: 1 */
  bool force, sync, plan_only;
  Progress *progress; /* NULL: none */
} Change;

/* Told of what is, or with plan_only would be, written. */
typedef Status ChangeSeen(void *arg, const Writing *w);
Status checkpoint_change(const Change *c, ChangeSeen *seen, void *arg);
/* {"path", "format", "tensors", "bytes", "left_out", "resumed_bytes", "files": [{"name", "bytes", "rank"}]} */
void change_json(const Writing *w, TextBuf *out);

#endif
