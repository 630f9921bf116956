/* torch_zip.h -- what torch.save writes: a zip with a pickle (data.pkl) and the bytes of storages (data/0 ...).
 *
 * I1  The pickle is read as data (pickle.h).  A tensor of it is a view of a storage, which is an entry of the zip.
 * I2  A record of a distributed checkpoint is such a zip inside a file: stored entries are parts of that file.
 */
#ifndef TESS_CKPT_TORCH_ZIP_H
#define TESS_CKPT_TORCH_ZIP_H

#include "base/strmap.h"
#include "ckpt/pickle.h"
#include "ckpt/source.h"
#include "pt2/archive.h"

typedef struct {
  Source *s;
  const char *what; /* for messages */
  Archive archive;
  FileMap *map;    /* the zip */
  int file;        /* of the source that it is in */
  uint64_t at;     /* ... and where it begins there */
  StrMap storages; /* key -> where a storage is (torch_zip.c) */
  PickleValue *root;
} TorchZip;

/* Bytes [at, at + size) of a file of the source.  Zeroed z is a valid argument of torch_zip_close(). */
Status torch_zip_open(Source *s, int file, uint64_t at, uint64_t size, const char *what, TorchZip *z);
void torch_zip_close(TorchZip *z);
/* Is it a tensor, or a parameter? */
bool torch_zip_is_tensor(const PickleValue *v);
/* Its dtype and sizes, and where it is: file, at, size and stride of c. */
Status torch_zip_tensor(TorchZip *z, const PickleValue *v, Dtype *dtype, int *ndim, SourceChunk *c);

#endif
