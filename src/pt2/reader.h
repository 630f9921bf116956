/* reader.h -- what the files that read a .pt2 share; not for others.
 *
 *   read.c            the archive as a whole: versions, layout, what is refused
 *   read_payload.c    weights and constants: config JSON and mapped records
 *   read_graph.c      nodes and values
 *   read_args.c       arguments: the tagged unions of the format
 *   read_types.c      sizes, dtypes, tensor metadata
 *   read_signature.c  what the inputs and outputs are; ranges; the root call
 */
#ifndef TESS_PT2_READER_H
#define TESS_PT2_READER_H

#include "base/json.h"
#include "base/strmap.h"
#include "graph/graph.h"
#include "pt2/archive.h"

enum { MAX_GRAPH_DEPTH = 16 };

/* What Exported.file points to. */
typedef struct {
  Archive archive;
  yyjson_doc *model, *weights, *constants;
} Pt2File;

typedef struct {
  Exported *e;
  Pt2File *file;
  yyjson_val *program; /* the ExportedProgram object */
  const char *name;    /* of the file */
  StrMap state;        /* fqn -> StateEntry */
  SymBindings hints;   /* what symbols were when the program was exported */
} Reader;

/* ---- names of one graph (read_graph.c) --------------------------------------------- */

/* What a name stands for. */
typedef struct {
  const char *name;
  ValType type;
  yyjson_val *meta; /* TensorMeta or SymInt ...; NULL if the file does not tell */
  Val *val;         /* NULL until it is defined */
} Named;

typedef struct GraphReader GraphReader;
struct GraphReader {
  Reader *r;
  Graph *g;
  StrMap names; /* of Named */
  int depth;    /* of sub-graphs */
};

/* A value that is defined already; the error names it. */
Status graph_find_val(GraphReader *g, const char *name, Val **out);
/* Reads inputs, nodes and outputs.  specs (root graph only) names inputs without a name. */
Status read_graph(Reader *r, yyjson_val *json, yyjson_val *input_specs, int depth, Graph *g);

/* ---- arguments (read_args.c) ---------------------------------------------------------- */

/* The one member of a tagged union. */
Status read_union(yyjson_val *v, const char **tag, yyjson_val **value);
Status read_arg(GraphReader *g, yyjson_val *v, Arg *out);
/* An argument that is a plain constant: None, int, float, bool, string. */
Status read_constant(Reader *r, yyjson_val *v, Arg *out);
/* {"name": "x"} */
Status read_name(yyjson_val *v, const char **out);

/* ---- types (read_types.c) ------------------------------------------------------------- */

Status read_dtype(yyjson_val *v, Dtype *out);
Status read_sym(Reader *r, yyjson_val *v, const Sym **out); /* SymInt, SymFloat, SymBool */
Status read_float(yyjson_val *v, double *out);              /* numbers and "NaN", "Infinity", "-Infinity" */
/* dtype, sizes and strides of a value. */
Status read_tensor_meta(Reader *r, yyjson_val *meta, Val *out);
/* A tensor of the payload: sizes are numbers. */
typedef struct {
  Dtype dtype;
  int ndim;
  int64_t size[MAX_DIMS], stride[MAX_DIMS], offset;
  bool requires_grad;
} PayloadMeta;
Status read_payload_meta(yyjson_val *meta, PayloadMeta *out);

/* ---- the rest ---------------------------------------------------------------------------- */

Status read_state(Reader *r);     /* read_payload.c */
Status read_signature(Reader *r); /* read_signature.c */
Status read_ranges(Reader *r);
Status read_root_call(Reader *r);

#endif
