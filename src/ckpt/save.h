/* save.h -- a save that is there: opened, verified, compared with what is to be filled, read.
 *
 *     Save *save;
 *     run_latest("run", &arena, &path);              the newest save of a run folder
 *     save_open(path, &save);
 *     save_restore(save, items, n, threads);         all of it, checked, into tensors that are there
 *     ... save->m.facts.step, .seed, .random, .batches ...
 *     save_close(save);
 *
 * I1  An opened save is whole: its manifest is sound, its files have their sizes, and hold the tensors that the
 *     manifest names and no others.  What the tensors' bytes are is known after save_verify().
 * I2  Files are mapped; nothing is copied, and a save that is removed meanwhile stays readable.
 * I3  A save that is damaged is ERR_CKPT; the message names file and tensor, and the save before it.  One that
 *     belongs to another program is ERR_USAGE and says what differs.
 */
#ifndef TESS_CKPT_SAVE_H
#define TESS_CKPT_SAVE_H

#include "ckpt/manifest.h"

typedef struct Save {
  Arena arena;
  const char *path;
  Manifest m;
  SafeTensors **file; /* m.files of them */
} Save;

/* The newest save of a run folder; or path itself, if it is a save. */
Status run_latest(const char *path, Arena *arena, const char **out);

Status save_open(const char *path, Save **out);
void save_close(Save *s); /* NULL is fine; tensors live on */

/* What to do about a save that cannot be used: the one before it can.  OK stays OK. */
Status save_hint_before(const char *path, Status s);

/* Are all bytes as they were saved? */
Status save_verify(const Save *s, int threads);
/* Which of these tensors the save can fill.  Names are as they were given to run_folder_save(); the tensors need no
 * data. */
typedef struct {
  bool *fits;       /* one per item */
  const char *note; /* what of the optimizer's state is left out or begins anew, as a sentence; NULL: nothing */
} SaveMatch;
/* The model must be the same, name by name, with the same dtypes and sizes: else ERR_USAGE.  State that another
 * optimizer has kept is no error.  If the save lacks a state that an item asks for (optim.state.*), no state of the
 * optimizer fits, its step number included: half of a state would be a wrong one.  A save that has more is used. */
Status save_match(const Save *s, const SafeItem *items, int n, Arena *arena, SaveMatch *out);
/* A handle in `scope` on the mapped bytes of a tensor that was saved in one part.  Writing to it does not change
 * the file. */
Status save_tensor(const Save *s, const char *name, Scope *scope, Tensor **out);
/* The same of one part, and where it is in its file. */
Status save_chunk(const Save *s, const ManifestTensor *t, const ManifestChunk *c, Scope *scope, Tensor **out);
const SafeEntry *save_entry(const Save *s, const ManifestTensor *t, const ManifestChunk *c);
/* Verifies, then copies every tensor to where items lie, whatever their strides.  They are written to only if all
 * of it is right, and the save has a tensor like each of them. */
Status save_restore(const Save *s, const SafeItem *items, int n, int threads);

#endif
