/* derived.h -- a checkpoint that is made of others: which tensors, under which names, of which dtype, averaged or
 * not.
 *
 * Nothing is read when it is made.  Whoever writes it asks for boxes, window by window.
 */
#ifndef TESS_CKPT_DERIVED_H
#define TESS_CKPT_DERIVED_H

#include "ckpt/source.h"

/* Whose names they are: of a run (model.<name>, optim.state.<name>...), or of a model alone. */
typedef enum { NAMES_AS_THEY_ARE, NAMES_OF_RUN, NAMES_OF_MODEL } DerivedNames;

typedef struct {
  const char *const
      *select; /* patterns with commas between them: only tensors that one of them matches; n 0: all */
  int selects;
  const char *const *drop; /* tensors that are left out */
  int drops;
  const char *const
      *rename; /* "FROM=TO", the first that matches a whole name; '*' in TO is what it stood for in FROM */
  int renames;
  Dtype dtype; /* floats become this; DT_NONE: they stay */
  DerivedNames names;
} DeriveHow;

typedef struct {
  const char *name;
  const SourceTensor **part; /* one per source, of the same sizes */
  Dtype dtype;
  int ndim;
  int64_t size[MAX_DIMS];
} DerivedTensor;

typedef struct {
  Arena arena;
  const Source *const *source;
  int sources;
  DerivedTensor *v; /* sorted by name */
  int n;
  int left_out;       /* tensors of the first source that are not in it because of names */
  SourceValue *value; /* of the first source: what is no tensor */
  int values;
  int64_t bytes;
} Derived;

/* Of one source, or of the average of several with the same tensors.  Sources are borrowed.  ERR_USAGE if nothing
 * is left, a pattern matches nothing, two tensors get the same name, or sources differ. */
Status derive(const Source *const *source, int sources, const DeriveHow *how, Derived **out);
void derived_free(Derived *d); /* NULL is fine */

const DerivedTensor *derived_find(const Derived *d, const char *name); /* NULL: there is none */
int64_t derived_bytes(const DerivedTensor *t);
/* Bytes of a box that are in memory, without a copy; NULL: there are none, it is to be read. */
const void *derived_span(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size);
/* Would derived_read() read some of it past the page cache?  Then large boxes are better than small ones. */
bool derived_reads_directly(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size);
/* Fills contiguous memory with a box. */
Status derived_read(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size,
                    void *out);
void derived_ahead(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size);
void derived_forget(const Derived *d, const DerivedTensor *t, const int64_t *offset, const int64_t *size);

#endif
