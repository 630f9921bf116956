/* data_inside.h -- what the files of data share.
 *
 * A *column* is all samples of one input: *pieces*, each in one file, joined in order.  Windows of tokens are
 * pieces, too: windows begin a fixed number of bytes apart.  With `batched` a sample is a whole batch.
 */
#ifndef TESS_TRAIN_DATA_INSIDE_H
#define TESS_TRAIN_DATA_INSIDE_H

#include <pthread.h>

#include "base/file.h"
#include "graph/user_inputs.h"
#include "train/data.h"
#include "train/shuffle.h"

typedef struct {
  const FileMap *file;
  const unsigned char *data; /* of its first sample; any alignment */
  Dtype dtype;
  int64_t first, count; /* samples of the column before it, and in it */
  int64_t step;         /* bytes from one sample to the next */
} DataPiece;

typedef struct {
  const UserInput *input;
  const char *by_name; /* the option that gives it by name: input=path.npy; NULL: none */
  Dtype dtype;         /* of the input; of a number, what it is read as */
  bool written;        /* the program writes to it: it gets memory of its own */
  int ndim;            /* of one sample */
  int64_t size[MAX_DIMS];
  int64_t numel;
  DataPiece *pieces;
  int npieces, cap;
  int64_t samples;
} DataColumn;

enum { DATA_SLOTS = 3 }; /* one in use, two ahead */

/* A batch, or room for one. */
typedef struct {
  int64_t number;        /* -1: none */
  Status error;          /* why there is none */
  Value *values;         /* per user input */
  Tensor **tensors;      /* per column */
  Storage **own, **lent; /* memory of its own, kept for the next batch; a part of a file */
  Scope scope;
} DataSlot;

struct Data {
  Arena arena;
  const Exported *program;
  DataOptions options; /* texts only while it is opened */
  UserInput *inputs;
  int ninputs;
  DataColumn *columns; /* of the inputs that get something: not of those that are None */
  int ncolumns;
  FileMap **files;
  int nfiles, files_cap;
  int64_t samples, batches;
  int64_t rows; /* samples of the columns that make a full batch; 1 with batched */
  bool fixed;   /* the program takes full batches only */
  /* Whoever fills slots: the thread, or data_batch where there is none. */
  Shuffle shuffle;
  int64_t epoch;  /* that shuffle is for; -1: none */
  int64_t *order; /* samples of the batch that is being filled */
  /* Between data_batch and the thread. */
  pthread_mutex_t lock;
  pthread_cond_t moved;
  pthread_t thread;
  bool locks, running, stop;
  int64_t asked, next; /* the batch that data_batch was last asked for; that the thread fills next */
  int64_t turn;        /* counts changes of `next` other than by one */
  DataSlot slots[DATA_SLOTS];
};

/* data_files.c: columns of inputs in .safetensors and .npy files. */
Status data_open_inputs(Data *d);
/* Maps the files that a path or a glob stands for and appends them to d->files. */
Status data_map_files(Data *d, const char *pattern);
/* Appends a piece of `count` samples, of this size each, after checking that it fits the column. */
Status data_add_piece(Data *d, DataColumn *c, const DataPiece *piece, int ndim, const int64_t *size);
DataColumn *data_column(Data *d, const char *name); /* by either name of the input; NULL if there is none */
/* What the first dimension of a file counts, for messages. */
static inline const char *data_counts(const Data *d) { return d->options.batched ? "batches" : "samples"; }
/* Adds to an error the name of an input that is like this one. */
Status data_hint_input(Status s, const Data *d, const char *name);

/* data_tokens.c: columns of windows. */
Status data_open_tokens(Data *d);

/* data.c: a size of the program when it was exported, as far as the file tells. */
Status data_size_of(const Data *d, const Sym *size, int64_t *out);
/* Samples of the columns in a batch. */
int64_t data_rows(const Data *d, int64_t number);

/* data_fill.c */
Status data_slot_init(Data *d, DataSlot *slot);
void data_slot_free(Data *d, DataSlot *slot);
Status data_fill(Data *d, DataSlot *slot, int64_t number);

/* data_ahead.c: ends the thread. */
void data_stop(Data *d);

#endif
