/* graph.h -- the IR: what a .pt2 program is inside tessera.
 *
 * A Graph is a list of SSA nodes.  A node calls an op on arguments and defines values.
 * An Exported program is a graph with a signature (what each input and output is), its
 * state (weights, mapped) and the ranges of its symbols.
 *
 * I1  The node list is in topological order: a value is defined before it is used.
 * I2  Value names are unique within a graph; a sub-graph has names of its own and sees
 *     nothing of the outer graph: what it needs is passed as an argument.
 * I3  Arguments of a known op stand in schema order, one per parameter, ARG_UNSET where
 *     the program gave none.  Unknown and higher-order targets keep their arguments as
 *     given (arg_names[i] is NULL for positional ones).
 * I4  Everything lives in the graph's arena; removing a node only unlinks it.
 * I5  Sizes are Syms.  In a *specialised* graph every value also has a Tensor: sizes are
 *     numbers, views share a Storage, constants have data.
 */
#ifndef TESS_GRAPH_GRAPH_H
#define TESS_GRAPH_GRAPH_H

#include "base/strmap.h"
#include "graph/sym.h"
#include "ops/op.h"

typedef struct Graph Graph;
typedef struct Node Node;
typedef struct Val Val;
typedef struct Arg Arg;

typedef enum {
  ARG_UNSET, /* not given: the schema's default */
  ARG_NONE,
  ARG_VAL, /* a value of the graph */
  ARG_BOOL,
  ARG_INT,
  ARG_FLOAT,
  ARG_COMPLEX,
  ARG_STR,
  ARG_DTYPE,
  ARG_LAYOUT, /* strided is the only one: others are refused on reading */
  ARG_MEMORY_FORMAT,
  ARG_DEVICE, /* str */
  ARG_LIST,
  ARG_GRAPH,
} ArgKind;

struct Arg {
  ArgKind kind;
  int n; /* ARG_LIST */
  union {
    Val *val;
    bool b;
    int64_t i;
    double f;
    double complex_[2];
    const char *str;
    Dtype dtype;
    MemoryFormat memory_format;
    Arg *list;
    Graph *graph;
  };
};

typedef enum { TY_TENSOR, TY_INT, TY_FLOAT, TY_BOOL, TY_NONE } ValType;

struct Val {
  const char *name;
  ValType type;
  Node *node; /* NULL: an input of the graph */
  int index;  /* among the node's outputs, or the graph's inputs */
  int id;     /* 0 .. graph->nvals-1, for side tables */
  /* TY_TENSOR: as the file says.  ndim < 0: not known. */
  Dtype dtype;
  int ndim;
  const Sym **size, **stride; /* stride may be NULL: contiguous */
  const Sym *sym;             /* TY_INT ...: the expression, or NULL */
  Tensor *tensor;             /* specialised graphs (I5) */
  bool constant;              /* the tensor has data that never changes */
  Value number;               /* specialised graphs, TY_INT ...: what it is */
  /* For passes; meaning is theirs, reset by whoever uses them. */
  int mark;
  Val *forward; /* replaced by; see graph_forward() */
};

typedef struct {
  const char *key, *value;
} MetaEntry;

/* What a node of a training program is there for: the loss, its gradients, or the step that is made with them. */
typedef enum { STAGE_FORWARD, STAGE_BACKWARD, STAGE_UPDATE } Stage;

/* What walks look at stands together: a graph of many nodes does not fit the caches. */
struct Node {
  Node *prev, *next;
  Graph *graph;
  const Op *op; /* NULL: unknown or higher-order */
  Arg *args;
  Val **outs;
  int nargs, nouts;
  int mark;               /* for passes */
  bool outs_list;         /* the results are one Tensor[]; known ops: see the schema */
  Stage stage;            /* goes with the metadata */
  const char *target;     /* "aten.add.Tensor", "higher_order.cond" */
  const char **arg_names; /* NULL for known ops (I3) */
  MetaEntry *meta;        /* stack_trace, nn_module_stack ...; shared between nodes */
  int nmeta;
  const Node
      *again; /* the node that this one repeats on the same values: it draws the same random numbers; or NULL */
  const struct ShardOf *shard; /* output 0 is this part of a larger tensor (Call.shard); NULL: it is whole */
  int64_t draws;               /* with shard: Call.draws */
};

struct Graph {
  Arena *arena;
  SymTable *syms;
  Val **inputs;
  int ninputs, inputs_cap;
  Arg *outputs;
  int noutputs, outputs_cap;
  Node *first, *last;
  int nnodes;
  int nvals;             /* ids given out */
  struct NameSet *names; /* every value name ever used in this graph */
  bool gradients_apart;  /* the plan of memory gives gradients that wait for the update memory of their own */
  bool dtypes_differ;    /* casts were put in: dtypes that are noted are those that results had without */
};

/* ---- building --------------------------------------------------------------- */

Status graph_new(Arena *arena, SymTable *syms, Graph **out);
/* name may be NULL or taken: a free one is made from it (x, x_1, x_2 ...). */
Status graph_add_input(Graph *g, const char *name, ValType type, Val **out);
Status graph_add_output(Graph *g, Arg a);
/* A node without arguments or outputs, placed before `before` (NULL: at the end). */
Status graph_add_node(Graph *g, Node *before, const char *target, Node **out);
/* A call before `before` with positional arguments and the metadata of `like` (NULL: none); its results
 * are still to be added. */
Status graph_emit_like(Graph *g, Node *before, const Node *like, const char *target, const Arg *args, int nargs,
                       Node **out);
Status node_add_out(Node *n, const char *name, ValType type, Val **out);
/* A tensor of known size as a result; sizes are copied. */
Status node_add_tensor(Node *n, const char *name, Dtype dtype, int ndim, const Sym *const *size, Val **out);
/* A call in the place of `origin`, before `before`: one result with origin's name and like's sizes. */
Status graph_emit_value(Graph *g, Node *before, const Node *origin, const char *target, const Arg *args, int nargs,
                        const Val *like, Val **out);
/* A result with the type, dtype and sizes of another value. */
Status node_add_out_like(Node *n, const char *name, const Val *like, Val **out);
/* Binds positional and named arguments to the op's schema (I3); does not check kinds. */
Status node_set_args(Node *n, const Arg *args, const char *const *names, int nargs);
void node_remove(Node *n);
void node_move_before(Node *n, Node *before);   /* NULL: to the end */
Status val_copy_meta(Val *to, const Val *from); /* type, dtype, sizes */
/* A copy of n before `before`: same arguments, outputs with the same meta and new names. */
Status node_clone(const Node *n, Node *before, Node **out);
/* Moves the nodes of a sub-graph into g, before `before`; its inputs become args, and
 * outs (one per output of sub) gets what its outputs are now.  sub is empty afterwards. */
Status graph_splice(Graph *g, Node *before, Graph *sub, const Arg *args, int nargs, Arg *outs);

static inline Arg arg_val(Val *v) { return v ? (Arg){.kind = ARG_VAL, .val = v} : (Arg){.kind = ARG_NONE}; }
static inline Arg arg_int(int64_t i) { return (Arg){.kind = ARG_INT, .i = i}; }
static inline Arg arg_float(double f) { return (Arg){.kind = ARG_FLOAT, .f = f}; }
static inline Arg arg_bool(bool b) { return (Arg){.kind = ARG_BOOL, .b = b}; }
static inline Arg arg_str(const char *s) { return (Arg){.kind = ARG_STR, .str = s}; }
static inline Arg arg_dtype(Dtype d) { return (Arg){.kind = ARG_DTYPE, .dtype = d}; }
static inline Arg arg_list(Arg *list, int n) { return (Arg){.kind = ARG_LIST, .n = n, .list = list}; }

/* ---- walking ---------------------------------------------------------------- */

/* Calls fn on every value reference inside an argument (lists included, sub-graphs
 * not: they refer to their own inputs).  fn may change the reference. */
typedef void ValRefFn(void *ctx, Val **ref);
void arg_each_val(Arg *a, ValRefFn *fn, void *ctx);
void node_each_val(Node *n, ValRefFn *fn, void *ctx);
void graph_each_val(Graph *g, ValRefFn *fn, void *ctx); /* nodes, then outputs */

/* Sets every node's mark to its number, in order, those of sub-graphs behind the node that has them, from
 * `first` on; gives the next number. */
int graph_number_nodes(Graph *g, int first);
/* Sets every value's mark to its number of uses (outputs count). */
void graph_count_uses(Graph *g);
/* Replaces v by v->forward (followed to the end) in all arguments and outputs, then
 * clears forward.  Passes set forward and call this once. */
void graph_forward(Graph *g);
/* The same for one node's arguments or for one argument, for passes that look at nodes as they
 * go; forward is not cleared. */
void node_forward(Node *n);
void arg_forward(Arg *a);
/* No op of the graph writes to its arguments. */
bool graph_is_functional(const Graph *g);

bool arg_equal(const Arg *a, const Arg *b);
static inline bool node_is(const Node *n, const char *target) {
  return n && __builtin_strcmp(n->target, target) == 0;
}
const char *node_meta(const Node *n, const char *key); /* NULL if absent */
static inline void node_take_meta(Node *n, const Node *from) {
  n->meta = from->meta;
  n->nmeta = from->nmeta;
  n->stage = from->stage;
}
const char *stage_name(Stage p); /* "forward" */
/* "modeling_llama.py:176 in forward", "layers.0.mlp": from the metadata; "" if absent. */
const char *node_source(const Node *n, char *buf, size_t cap);
const char *node_module(const Node *n, char *buf, size_t cap);

/* ---- exported programs ------------------------------------------------------- */

typedef enum { IN_USER, IN_PARAMETER, IN_BUFFER, IN_TENSOR_CONSTANT, IN_CONSTANT, IN_TOKEN } InputKind;
typedef enum {
  OUT_USER,
  OUT_LOSS,
  OUT_BUFFER_MUTATION,
  OUT_PARAMETER_MUTATION,
  OUT_GRADIENT_TO_PARAMETER,
  OUT_GRADIENT_TO_USER_INPUT,
  OUT_USER_INPUT_MUTATION,
  OUT_TOKEN
} OutputKind;

/* An output that is written to a buffer, a parameter or an input. */
static inline bool output_is_mutation(OutputKind k) {
  return k == OUT_BUFFER_MUTATION || k == OUT_PARAMETER_MUTATION || k == OUT_USER_INPUT_MUTATION;
}
/* An output that the caller gets. */
static inline bool output_is_returned(OutputKind k) { return !output_is_mutation(k) && k != OUT_TOKEN; }

/* Parallel to the graph's inputs and outputs. */
typedef struct {
  InputKind kind;
  const char *target; /* fqn of a parameter, buffer or constant; NULL for the others */
  bool persistent;    /* buffers */
  Arg constant;       /* IN_CONSTANT: the value (the graph input is TY_NONE and unused) */
} InputSpec;

typedef struct {
  OutputKind kind;
  const char *target; /* what is written to; NULL for user outputs */
} OutputSpec;

typedef struct {
  const char *fqn;
  Tensor *tensor; /* mapped */
  bool is_parameter, is_constant;
  bool requires_grad;
  const char *record; /* the file's record; names that share it are tied */
  bool is_filled;     /* state of training: it has no data here, every element is `fill` at first, and it changes
                       * from run to run */
  double fill;
} StateEntry;

typedef struct {
  const char *symbol;
  int64_t min, max; /* INT64_MIN / INT64_MAX: none */
  int64_t hint;     /* its value when the program was exported; -1: not known */
} SymRange;

typedef struct Exported {
  Arena arena;
  Scope scope; /* handles of the state */
  SymTable syms;
  Graph *graph;
  InputSpec *inputs;
  OutputSpec *outputs;
  StateEntry *state;
  int nstate;
  StrMap state_at; /* fqn -> 1 + position, of the first `state_indexed`; see exported_index_state() */
  int state_indexed;
  SymRange *ranges;
  int nranges;
  const char *name;               /* of the file, for messages */
  const char *torch_version;      /* "" if unknown */
  const char *dialect;            /* TRAINING, ATEN */
  const char *in_spec, *out_spec; /* pytree of the root call, as in the file; NULL if absent */
  const char *namedtuples; /* field names of namedtuples in the specs, as in the file; NULL if there are none */
  const char *const *arg_names; /* forward's argument names; NULL if absent */
  int narg_names;
  void *file; /* what the strings and weights point into */
  void (*file_free)(void *file);
} Exported;

Status exported_new(const char *name, Exported **out);
void exported_free(Exported *e); /* NULL is fine */
/* The same program with nodes and values of its own, under the same names and value ids, to try changes on.  Its
 * signature, state and texts are those of the original, which must outlive it. */
Status exported_copy(const Exported *from, Exported **out);
const StateEntry *exported_state(const Exported *e, const char *fqn); /* NULL if absent */
/* Makes exported_state() fast for the entries that are there; whoever fills the state calls it. */
Status exported_index_state(Exported *e);
/* Are these two names of one tensor? */
bool state_is_tied(const StateEntry *a, const StateEntry *b);
/* Is this parameter, buffer or constant written by the program? */
bool exported_is_mutated(const Exported *e, const char *fqn);
/* Does it give gradients of its loss, or use them? */
bool exported_is_joint(const Exported *e);
/* Sets the stages of a joint program's nodes: what stands behind the loss and is not for other outputs of the
 * forward is the backward. */
Status exported_find_stages(Exported *e);
int exported_user_inputs(const Exported *e);
const char *input_kind_name(InputKind k);
const char *output_kind_name(OutputKind k);

/* ---- checks and text ----------------------------------------------------------- */

/* I1 to I3, signature in step with inputs and outputs, every name defined once. */
Status graph_verify(const Exported *e);

/* Lists every target that is not in the registry (and is no higher-order op we run),
 * with node, count and source line; OK if there is none.  Exit code 3. */
Status graph_check_ops(const Exported *e);
bool node_is_supported(const Node *n); /* its target, not what is in its sub-graphs */

struct TextBuf;
typedef struct {
  bool meta;   /* also the nodes' metadata */
  bool memory; /* also assign_memory's offsets, in specialised graphs */
} PrintOptions;
void graph_print(struct TextBuf *b, const Exported *e, PrintOptions o);
/* For messages: 'x' f32[2,s77]. */
void val_describe(struct TextBuf *b, const Val *v);
/* Reads what graph_print wrote.  State entries get no tensor: see exported_bind_state. */
Status graph_parse(const char *text, size_t len, const char *name, Exported **out);

#endif
