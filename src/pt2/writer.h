/* writer.h -- what the files that write a .pt2 share; not for others.
 *
 *   write.c            the archive as a whole
 *   write_state.c      weights and constants: records and their config
 *   write_graph.c      nodes and values
 *   write_args.c       arguments
 *   write_types.c      sizes and tensor metadata
 *   write_signature.c  inputs and outputs, specs of the root call
 *
 * JSON is appended to `b`, whose failure (out of memory) sticks and is looked at once.
 */
#ifndef TESS_PT2_WRITER_H
#define TESS_PT2_WRITER_H

#include "base/strmap.h"
#include "base/textbuf.h"
#include "base/zip.h"
#include "graph/graph.h"

typedef struct {
  const Exported *e;
  TextBuf b;
  Arena arena;       /* of what is made for writing */
  SymTable syms;     /* strides that had to be multiplied out */
  SymBindings hints; /* of the symbols that have one */
  StrMap names;      /* names of nodes and sub-graphs that are taken */
  int subgraphs;
  bool alone;                /* the next sub-graph's result is not in a tuple */
  Progress *progress;        /* or NULL */
  bool (*interrupted)(void); /* or NULL */
} Writer;

/* ---- write_types.c ---- */
enum { LAYOUT_STRIDED = 7 };
void write_float(Writer *w, double f); /* a number, or "Infinity" ... */
void write_sym(Writer *w, const Sym *s, ValType type);
/* {"name": TensorMeta}; fails if the sizes are not known. */
Status write_val_meta(Writer *w, const Val *v, bool requires_grad);
void write_tensor_meta(Writer *w, const Tensor *t, const int64_t *stride, int64_t offset, bool requires_grad);

/* ---- write_args.c ---- */
void write_val_ref(Writer *w, const Val *v); /* {"as_tensor": {"name": "x"}} */
/* param: the schema's, NULL if there is none. */
Status write_arg(Writer *w, const Arg *a, const Param *param);

/* ---- the rest ---- */
Status write_graph(Writer *w, const Graph *g, const Exported *root); /* root: NULL in sub-graphs */
void write_signature(Writer *w);
void write_root_call(Writer *w);
Status write_state(Writer *w, ZipOut *z, const char *root);

#endif
