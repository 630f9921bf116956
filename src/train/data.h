/* data.h -- samples for a program's user inputs, batch after batch, from files.
 *
 *     Data *d;
 *     TRY(data_open(program, &(DataOptions){.files = files, .nfiles = n, .shuffle = true, .seed = 1}, &d));
 *     for (int64_t i = 0; i < steps; i++) {
 *       TRY(data_batch(d, i, &inputs, &ninputs));    one Value per user input, in the program's order
 *       ...
 *     }
 *
 * Files hold inputs by name (.safetensors; or one .npy per input), with samples along the first dimension; or
 * tokens one after the other, which are cut into windows.  docs/data.md tells what users see.
 *
 * I1  All that can be wrong with the files and how they fit the program is an error of data_open, which names file
 *     and input: names, dtypes, sizes, number of samples, files that end early.  What remains for data_batch are
 *     single values that have no place in the input's dtype.
 * I2  Batch `number` is a function of the files, the options and `number` alone; batches are counted on over the
 *     epochs.  So whoever resumes needs nothing but the number.
 * I3  Files are mapped.  A thread puts the next two batches together while one is worked on; a batch that lies in
 *     a file as the program wants it is not copied.
 * I4  The program (and its inputs' sizes) must outlive the Data; the files must not be changed meanwhile.
 */
#ifndef TESS_TRAIN_DATA_H
#define TESS_TRAIN_DATA_H

#include "graph/graph.h"

typedef struct {
  const char *const *files; /* paths, globs, or input=path.npy (a path or a glob), joined in order */
  int nfiles;
  const char *tokens; /* "input_ids,labels": the inputs that windows of tokens are for; NULL: files hold inputs */
  bool unshifted;     /* the second input is the same window, not the one behind it by a token */
  int64_t window;     /* tokens; 0: the program's length (where that is free: its length when exported) */
  const char *token_dtype; /* of files of tokens without a header; NULL: uint16 */
  int64_t batch;           /* samples; 0: the program's number (where that is free: its number when exported) */
  bool batched;            /* the first dimension counts batches, which are taken as they are, in order */
  bool shuffle;            /* not with batched */
  bool drop_last; /* a last batch of an epoch that is not full; where the program's number is fixed, always */
  uint64_t seed;  /* of the shuffling */
} DataOptions;

typedef struct Data Data;

Status data_open(const Exported *program, const DataOptions *o, Data **out);
void data_free(Data *d); /* NULL is fine */

/* Of one epoch; samples that drop_last leaves out are counted. */
int64_t data_samples(const Data *d);
int64_t data_batches(const Data *d);
/* Of one batch. */
int64_t data_batch_samples(const Data *d, int64_t number);
/* Elements of the first input that has integers in two dimensions or more (ids of tokens); 0: there is none. */
int64_t data_batch_tokens(const Data *d, int64_t number);

/* number >= 0, most quickly one more than last time.  The values belong to d and are valid until the next call. */
Status data_batch(Data *d, int64_t number, const Value **inputs, int *n);

#endif
