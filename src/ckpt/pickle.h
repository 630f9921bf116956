/* pickle.h -- pickles in, as data: what torch.save and torch.distributed.checkpoint write of plain tensors.
 *
 * A pickle is a program for a stack machine that can import and call anything.  This reader calls nothing: it
 * builds a tree of values in which a call is a note (this global, these arguments) for whoever reads the tree.
 *
 * I1  Globals are those of pickle_globals.def, torch's dtypes and its storages.  Any other is refused by name, and
 * so is every opcode that these writers have no use for. I2  Memory is bounded by the size of the text and by
 * PICKLE_MEMORY, whatever the text says: lengths are held against what is left, numbers of the memo against how
 * many there can be. I3  Values may refer to each other in any way, also in circles: whoever walks the tree counts
 * how deep.
 */
#ifndef TESS_CKPT_PICKLE_H
#define TESS_CKPT_PICKLE_H

#include "base/arena.h"
#include "base/textbuf.h"
#include "tensor/dtype.h"

#define PICKLE_MEMORY ((size_t)1 << 31)

typedef enum {
  PICKLE_NONE,
  PICKLE_BOOL,
  PICKLE_INT,
  PICKLE_FLOAT,
  PICKLE_TEXT,
  PICKLE_BYTES,
  PICKLE_LIST,
  PICKLE_TUPLE, /* also torch.Size */
  PICKLE_SET,
  PICKLE_DICT, /* also collections.OrderedDict */
  PICKLE_GLOBAL,
  PICKLE_OBJECT, /* what a call of a global would give */
  PICKLE_STORED, /* a persistent id: items[0] */
  PICKLE_MARK,   /* of the machine; in no tree */
} PickleKind;

/* clang-format off */
typedef enum {
#define GLOBAL(id, module, name) PG_##id,
#include "ckpt/pickle_globals.def"
#undef GLOBAL
  PG_DTYPE,  /* torch.float32 ... */
  PG_STORAGE /* torch.FloatStorage ...; without a dtype: UntypedStorage */
} PickleGlobal;
/* clang-format on */

typedef struct PickleValue PickleValue;
struct PickleValue {
  PickleKind kind;
  PickleGlobal global; /* GLOBAL, OBJECT */
  Dtype dtype;         /* of PG_DTYPE and PG_STORAGE */
  int n, cap;          /* of items */
  union {
    int64_t i; /* BOOL, INT */
    double f;  /* FLOAT */
    struct {
      const char *text; /* TEXT, BYTES: in the arena, with a NUL behind */
      size_t len;
    };
    PickleValue **items; /* LIST ... DICT, STORED; of a dict: key, value, key, value ... */
    struct {
      PickleValue *args;  /* OBJECT: a tuple */
      PickleValue *state; /* what it was built with; NULL: nothing */
    };
  };
};

/* `what` names the source in errors, which are ERR_FILE. */
Status pickle_read(const char *what, const void *data, size_t size, Arena *arena, PickleValue **out);

/* A value of a dict, or of the state of an object, by name; NULL: there is none. */
const PickleValue *pickle_member(const PickleValue *v, const char *name);
bool pickle_is(const PickleValue *v, PickleKind kind);            /* NULL: no */
bool pickle_is_object(const PickleValue *v, PickleGlobal global); /* NULL: no */
/* A tuple or list of sizes; false if it is none, or has negative or more than MAX_DIMS. */
bool pickle_sizes(const PickleValue *v, int *n, int64_t *size);
/* As Python would print it; what is deep or long is cut off. */
void pickle_print(TextBuf *b, const PickleValue *v);
/* "FloatStorage"; NULL: storages of the dtype have no name of their own. */
const char *pickle_storage_name(Dtype d);

#endif
