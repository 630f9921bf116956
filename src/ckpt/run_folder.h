/* run_folder.h -- the folder of a run, in which a trainer saves itself.
 *
 *     run/.lock                          held by the trainer that writes here
 *     run/step-00000100/                 a save: it has this name only when it is whole and on the disk
 *         model.safetensors              parameters and buffers by their own names
 *         optimizer.safetensors          the optimizer's state, and every other tensor
 *         manifest.json                  everything else (manifest.h)
 *     run/step-00000200.part-Ab12Xy/     a save that is being written, or was given up
 *
 *     RunFolder *run;
 *     run_folder_open("run", &run);                   one trainer at a time
 *     run_folder_check_start(run, 0);                 nothing later is there
 *     run_folder_save(run, &facts, items, n, &keep);  any number of times
 *     run_folder_close(run);
 *
 * I1  A save appears whole, by one rename, or not at all.  Whenever the process ends, however, and whatever fails,
 *     the saves that were there before are there, but for those that were to be removed after a later one was
 *     complete.
 * I2  A save is on the disk, not only in the page cache, when run_folder_save() returns OK.
 * I3  What is left of a save whose process was killed is removed when the folder is opened again.
 * I4  Saves in a folder are those of one run: a step comes after all that are saved, or replaces the last.
 * I5  Tensors go straight from where they are to the file: no copy of the model is made.
 */
#ifndef TESS_CKPT_RUN_FOLDER_H
#define TESS_CKPT_RUN_FOLDER_H

#include "ckpt/manifest.h"
#include "ckpt/snapshot.h"

typedef struct RunFolder RunFolder;

/* Which saves stay when a new one is complete: the last ones (0: all), and those of every so manieth step
 * (0: none besides). */
typedef struct {
  int last;
  int64_t every;
} KeepSaves;

/* Makes the folder if it is not there.  ERR_USAGE if another trainer has it, or if it is a file; ERR_FAIL if it
 * cannot be written. */
Status run_folder_open(const char *folder, RunFolder **out);
void run_folder_close(RunFolder *r); /* NULL is fine */

/* May a run go on from this step (0: begin) here?  ERR_USAGE if later saves are there (I4). */
Status run_folder_check_start(const RunFolder *r, int64_t step);

/* Saves tensors named "model.<fqn>" (in model.safetensors as <fqn>), "optim.state.<fqn>.exp_avg" and so on.  Old
 * saves that cannot be removed are left: the new one is what was asked for.  keep NULL: all stay. */
Status run_folder_save(RunFolder *r, const SaveFacts *facts, const SafeItem *items, int n, const KeepSaves *keep);

/* The same of a snapshot of the items' tensors, in their order; on any thread.  It is closed in the end. */
Status run_folder_save_snapshot(RunFolder *r, const SaveFacts *facts, const SafeItem *items, int n, Snapshot *from,
                                const KeepSaves *keep);

/* What to add to an error of a save of so many bytes: which step it was, and which save is there. */
Status run_folder_explain(const RunFolder *r, int64_t step, uint64_t bytes, Status s);

/* The same in pieces, for saves that several ranks write (sharded_save.h): the folder of a step, which is the
 * caller's to fill and to commit, and then the old saves. */
Status run_folder_begin(const RunFolder *r, int64_t step, FolderOut *out);
void run_folder_remove_old(const RunFolder *r, const KeepSaves *keep);

#endif
