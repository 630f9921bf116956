/* op.h -- one definition per operator, and the one dispatcher.
 *
 * An op is a const OpDef: a row in its family's table (src/ops/aten/FAMILY.c), found by
 * name.  What a slot means:
 *
 *   infer    looks at sizes and dtypes only and appends the outputs: fresh ones (meta
 *            tensors that the caller gives memory) or views of an argument.
 *   run      fills the fresh outputs.  Not called when all outputs are views
 *            (except of OP_EFFECT).
 *   compose  instead of both: the op written with other ops, through op_call().  It
 *            runs eagerly, is recorded into a graph, or differentiated, as the caller
 *            likes; it may read sizes and dtypes but never elements.
 *            With infer and a sharding rule beside it, DTensors are placed by these, and
 *            each rank composes on its shards.
 *   inplace  instead of all: the functional op whose result is written to argument 0.
 *
 * I1  infer never reads elements; run never looks at anything but its Call.
 * I2  An op whose output sizes depend on data says OP_DYNAMIC and appends its outputs
 *     in run, with memory.  If only some arguments make it so (a bool mask as index),
 *     infer gives ERR_DYNAMIC for these; run then finds no outputs and appends them.
 * I3  run does not keep pointers; a cache for the next run of the same call site goes
 *     into *c->state (freed with c->state_free).
 */
#ifndef TESS_OPS_OP_H
#define TESS_OPS_OP_H

#include "kernels/kernel.h"
#include "ops/schema.h"

typedef struct Call Call;
typedef struct Op Op;
typedef struct TessCtx Ctx;

typedef Status OpFn(Call *c);

/* Every call goes down one line of handlers, each of which takes it or passes it on with
 * op_dispatch_from(c, its level + 1):
 *
 *   tape    keeps what a gradient will need                           grad/tape.c
 *   shard   a call on DTensors becomes a call on this rank's shards    dist/dispatch.c
 *   emit    a call becomes a node of a graph                           graph/builder.c
 *   run     here and now                                               op_run()
 *
 * Whoever takes a call and makes others for it sets Call.level, so that these enter the line where
 * they belong: a call on shards has nothing to do with DTensors any more. */
typedef enum { LEVEL_TAPE, LEVEL_SHARD, LEVEL_EMIT, LEVEL_RUN } Level;
typedef struct Handler Handler;
struct Handler {
  Status (*call)(Handler *self, Call *c); /* c->arg is bound; appends to c->out */
};

typedef struct Rules Rules; /* rule.h: which placements go together */
typedef Status PlaceFn(Rules *r);
typedef struct Local Local; /* rule.h: a call as one rank makes it */
typedef struct Vjp Vjp;     /* vjp.h: the gradient of one call */
typedef void VjpFn(Vjp *v);
typedef struct Sharded Sharded; /* rule.h: which dimensions of its inputs are sharded */
typedef Status LocalizeFn(Local *l);

/* What an op does to partial values (P), see rule.h. */
typedef enum {
  LINEAR_NO,     /* they must be reduced first */
  LINEAR_UNARY,  /* f(a + b) = f(a) + f(b) */
  LINEAR_JOINT,  /* f(a1 + a2, b1 + b2) = f(a1, b1) + f(a2, b2): add, cat */
  LINEAR_MULTI,  /* in one operand at a time: mul */
  LINEAR_FIRST,  /* in the first operand only: div */
  LINEAR_SHIFT,  /* x + c: averages and extremes pass, sums do not */
  LINEAR_ALL,    /* moves values only: everything passes */
  LINEAR_NEG,    /* linear, and the largest becomes the smallest */
  LINEAR_CHOOSE, /* where(condition, a, b): both are partial alike */
  RISING,        /* f(max(a, b)) = max(f(a), f(b)) */
  FALLING,       /* f(max(a, b)) = min(f(a), f(b)) */
  RISING_BOTH,   /* rising in each of two operands */
  RISING_MAX,    /* ... and of both together, for the larger: maximum */
  RISING_MIN,    /* ... and of both together, for the smaller: minimum */
  LINEAR_COUNT
} Linear;

typedef enum {
  OP_DYNAMIC = 1,        /* output sizes depend on elements */
  OP_RANDOM = 2,         /* not a function of its arguments: never folded, merged or dropped twice */
  OP_SCALAR = 4,         /* works on numbers and sizes, results are numbers: done when a program is specialised */
  OP_EFFECT = 8,         /* must stay, once, and in order with others of its kind (asserts, collectives); run
                          * is called even if all outputs are views */
  OP_POINTWISE = 16,     /* one output, broadcast of its operands, element by element: can be fused */
  OP_UPDATE = 32,        /* output 0 is of argument 0's size (it with some elements replaced, or row by row): run is
                          * right, and copies nothing, when both are the same memory */
  OP_STARTS = 64,        /* returns before it is done: its results are there after wait_tensor, and what it
                          * reads must stay until then; results and operands (argument 0) go by pairs */
  OP_DTENSOR = 128,      /* makes, moves or opens DTensors: gets them as they are, not their shards */
  OP_SHARES = 256,       /* a head of one argument may serve several neighbouring ones of the result (attention) */
  OP_UPDATE_EACH = 1024, /* result k is argument k, changed element by element: run is right when both are the same
                          * memory.  None among these arguments stands behind the others */
  OP_NUMBERS = 512,      /* numbers may stand where the schema says Tensor, and promote as numbers */
  OP_NUMBERED = 2048, /* goes by the numbers of its elements in the whole: a call for the shard of a larger tensor
                       * is told which one it is (Call.shard), recorded or not */
  OP_EMPTY = 4096,    /* its result has whatever elements were in the memory: no two calls need agree */
} OpFlag;

/* What an op does with the elements of argument 0, if it only hands them on. */
typedef enum {
  MOVES_NOT,     /* it computes */
  MOVES_COPY,    /* the same ones in the same places: copies, aliases, casts, dropout */
  MOVES_DIMS,    /* dimensions are exchanged, added, dropped or repeated */
  MOVES_RESHAPE, /* in row-major order, with other sizes */
  MOVES_CUT,     /* each result is a part of the dimension `dim`: from `start` or `index` on, or behind the
                  * result before */
} Moves;

typedef struct {
  const char *schema;
  OpFn *infer, *run, *compose;
  const char *inplace;
  unsigned flags;
  Moves moves;
  const void *row;                 /* the family's own table row */
  double (*flops)(const Call *c);  /* floating point operations; NULL: one per output element */
  int64_t (*draws)(const Call *c); /* OP_RANDOM: blocks of random numbers that a call takes, outputs inferred */
  /* How it shards, rule.h; NULL and 0: the defaults told there. */
  struct {
    const char *rule;
    PlaceFn *place;
    LocalizeFn *localize;
    Linear linear;
    /* The op written with other ops where a DTensor is sharded in a way that no placement of a
     * single call can serve: asked before the rule, done = false declines. */
    Status (*compose_sharded)(Call *c, const Sharded *how, bool *done);
    /* The op written with other ops, taken instead of the single call where the rule's cheapest
     * strategy would have to move its inputs: PyTorch decides these part by part. */
    OpFn *compose_unmoved;
    /* The op that gives a product of halves in f32: parts that are added up over ranks are rounded once. */
    const char *wide;
  } shard;
} OpDef;

/* The gradient of some ops: a row in a table of src/ops/grads/, joined to their records by name.  An op without
 * one is differentiated part by part if it is composed, as its functional form if it writes in place; another one
 * has no gradient, which is an error where a gradient would have to pass it. */
typedef struct {
  const char *ops; /* "mul.Tensor multiply.Tensor": overloads, with spaces between; `aten.` may be left out */
  VjpFn *vjp;      /* vjp.h */
  /* What vjp reads the elements of: names of arguments, `result`, `result1` ..., with spaces between.  NULL:
   * nothing.  Only these are kept until the backward. */
  const char *reads;
  /* The op as it is called when a gradient will be wanted, written with others: those that also give what the
   * gradient needs.  vjp is NULL then. */
  OpFn *training;
  /* The same of DTensors while losses are parallel (Dist.loss_parallel), or where classes are sharded in a program;
   * NULL: no other form. */
  OpFn *parallel;
  /* The gradient is one call, linear in the cotangent, whose rule takes partial sums. */
  bool passes_partial;
} GradDef;

struct Op {
  Schema schema;
  const OpDef *def;
  const GradDef *grad; /* NULL: none of its own */
  uint32_t reads;      /* grad->reads as bits: of arguments */
  uint32_t reads_out;  /* and of results */
  bool aliases;        /* a result may share memory with an argument */
  int id;              /* position in the registry */
};

/* One call.  Arguments are bound: one Value per parameter, defaults filled in, lists
 * of fixed length spread, numbers of the kind the schema says. */
struct Call {
  Ctx *ctx;
  const Op *op;
  const Value *arg;
  Value *out; /* outputs, appended with out_*(); a Tensor[] result is flat */
  int nout, out_cap;
  Scope *scope; /* owns the handles of the outputs */
  Arena *arena; /* memory that lives as long as the outputs' handles */
  void **state; /* NULL in eager calls: see I3 */
  void (**state_free)(void *);
  Level level;                 /* where calls that this one makes enter the line of handlers */
  const struct ShardOf *shard; /* output 0 of a random op is this part of a larger tensor and takes the numbers
                                * of its elements there (shard/layout.h); NULL: it is whole */
  int64_t draws;               /* with shard: blocks of random numbers that the whole takes */
  const struct Spec *wanted; /* result 0, of this call and those that it makes, best lies like this: a rule may make
                              * it so at once (Rules.wanted); NULL: anywhere */
  uint32_t fixed;            /* bit i: argument i has the same elements in every run of this call site (a
                              * parameter that nobody writes to), so *state may keep what is made of it */
};

/* Blocks of random numbers that the call takes; its outputs are inferred. */
static inline uint64_t call_draws(const Call *c) { return (uint64_t)(c->shard ? c->draws : c->op->def->draws(c)); }

/* ---- registry (registry.c) -------------------------------------------------- */

const Op *op_find(const char *name); /* "aten.add.Tensor"; NULL if unknown */
int op_count(void);
const Op *op_at(int i); /* sorted by name */
/* The known op whose name is nearest, for "did you mean"; NULL if none is near. */
const Op *op_nearest(const char *name);
/* First use of the registry fails with this if a schema is wrong. */
Status op_registry_status(void);

/* ---- arguments (inside infer and run) --------------------------------------- */

typedef struct {
  const int64_t *v;
  int n;
} Ints;

static inline Tensor *in_tensor(const Call *c, int i) {
  return c->arg[i].kind == VAL_TENSOR ? c->arg[i].tensor : NULL;
}
static inline View in_view(const Call *c, int i) { return tensor_view(c->arg[i].tensor); }
static inline bool in_none(const Call *c, int i) { return c->arg[i].kind == VAL_NONE; }
static inline int64_t in_int(const Call *c, int i) { return val_as_int(&c->arg[i]); }
static inline double in_float(const Call *c, int i) { return val_as_float(&c->arg[i]); }
static inline bool in_bool(const Call *c, int i) {
  return c->arg[i].kind == VAL_BOOL ? c->arg[i].b : c->arg[i].kind != VAL_NONE && val_as_float(&c->arg[i]) != 0;
}
static inline const char *in_str(const Call *c, int i) { return c->arg[i].kind == VAL_STR ? c->arg[i].str : NULL; }
static inline Dtype in_dtype(const Call *c, int i, Dtype otherwise) {
  return c->arg[i].kind == VAL_DTYPE ? c->arg[i].dtype : otherwise;
}
static inline Ints in_ints(const Call *c, int i) {
  return c->arg[i].kind == VAL_INTS ? (Ints){c->arg[i].ints, c->arg[i].n} : (Ints){NULL, 0};
}
static inline bool in_fixed(const Call *c, int i) { return c->fixed >> i & 1; }
/* Tensor[]: element j, NULL for None. */
static inline int in_count(const Call *c, int i) { return c->arg[i].kind == VAL_TENSORS ? c->arg[i].n : 0; }
static inline Tensor *in_item(const Call *c, int i, int j) { return c->arg[i].tensors[j]; }

/* Wraps a negative dimension; fails with the op's name when out of range.  A 0-d
 * tensor has dimension 0 and -1. */
Status wrap_dim(const Call *c, int64_t dim, int ndim, int *out);
/* A set of dimensions: wrapped, no repeats.  mask[d] = true for each. */
Status wrap_dims(const Call *c, Ints dims, int ndim, bool *mask);

/* Error with the op's name in front: "aten.mm.default: ...". */
Status op_fail(const Call *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Runs body, an op's run, and releases the memory that it took (kern_scratch). */
Status with_scratch(Call *c, OpFn *body);

/* ---- outputs ---------------------------------------------------------------- */

Status out_new(Call *c, Dtype d, int ndim, const int64_t *size); /* fresh, contiguous */
Status out_strided(Call *c, Dtype d, int ndim, const int64_t *size, const int64_t *stride);
Status out_like(Call *c, Dtype d,
                const Tensor *t); /* fresh, t's size, t's dimension order if t is dense (preserve_format) */
Status out_view(Call *c, const Tensor *t, int ndim, const int64_t *size, const int64_t *stride, int64_t offset);
Status out_alias(Call *c, const Tensor *t);
Status out_value(Call *c, Value v); /* a number, None, or a handle that op_call gave */
static inline Tensor *out_tensor(const Call *c, int i) {
  return c->out[i].kind == VAL_TENSOR ? c->out[i].tensor : NULL;
}
static inline View out_view_of(const Call *c, int i) { return tensor_view(c->out[i].tensor); }

/* ---- calling ops ------------------------------------------------------------ */

/* Binds args (positional, then named; names may be NULL) to the schema. */
typedef struct {
  const char *name; /* NULL: positional */
  Value value;
} NamedValue;
Status op_bind(Arena *arena, const Op *op, const NamedValue *args, int nargs, Value *bound);

/* The dispatcher: c->arg is bound.  The call enters the line of handlers at c->level. */
Status op_dispatch(Call *c);
/* Hands the call to the first handler from this level on; behind the last it is run. */
Status op_dispatch_from(Call *c, Level level);
/* The end of the line: runs it here and now, on plain tensors. */
Status op_run(Call *c);

/* The functional form of an op that writes to its arguments: f calls it on the same arguments, on the
 * same terms.  bound has room for MAX_PARAMS. */
Status op_functional(const Call *c, Value *bound, Call *f);
/* The results of f, in order, for the arguments of c that are written to: write(arg, to, from) each. */
typedef Status WriteFn(Call *c, Tensor *to, Tensor *from);
Status op_write_results(Call *c, const Call *f, WriteFn *write);

/* From inside compose (and gradients): call another op on the same terms as c.  The
 * first n results go to out (Tensor handles; NULL where the op returned None).
 *     TRY(OP(c, "aten.mul.Tensor", &y, val_tensor(x), val_float(2)));                */
Status op_call(const Call *c, const char *name, Tensor **out, int n, const Value *args, int nargs);
#define OP_ARGS(...) (const Value[]){__VA_ARGS__}, (int)(sizeof((const Value[]){__VA_ARGS__}) / sizeof(Value))
#define OP(c, name, outp, ...) op_call((c), (name), (outp), 1, OP_ARGS(__VA_ARGS__))
#define OP_N(c, name, outp, n, ...) op_call((c), (name), (outp), (n), OP_ARGS(__VA_ARGS__))
/* All results of an op that returns Tensor[]; the array lives in c->arena. */
Status op_call_list(const Call *c, const char *name, Tensor ***out, int *n, const Value *args, int nargs);
#define OP_LIST(c, name, outp, np, ...) op_call_list((c), (name), (outp), (np), OP_ARGS(__VA_ARGS__))

/* Waits for started collectives that still write to an argument: a program that reads a
 * result without wait_tensor is slow then, not wrong. */
Status call_ready(const Call *c);

double op_flops(const Call *c);
/* Bytes that the op reads and writes: of an expanded tensor those that are there, of a table what is looked up. */
double op_bytes(const Call *c);

/* ---- the context: everything a rank knows ----------------------------------- */

struct TessCtx {
  Kern kern;
  Handler *handler[LEVEL_RUN]; /* by level; NULL: nobody stands there */
  uint64_t seed, offset;       /* random numbers: Philox key and next counter */
  Scope scope;                 /* handles given out by the public API */
  Arena arena;
  Status error;          /* the first error sticks (public API) */
  struct Dist *dist;     /* dist/: meshes, specs, decisions; NULL: a rank by itself */
  struct Groups *groups; /* comm/groups.h: whom collectives of a program reach; NULL: nobody */
};

/* Puts a handler in its place; gives the one that stood there, to be put back. */
static inline Handler *ctx_set_handler(Ctx *ctx, Level level, Handler *h) {
  Handler *former = ctx->handler[level];
  ctx->handler[level] = h;
  return former;
}
/* Are calls recorded instead of run? */
static inline bool ctx_is_recording(const Ctx *ctx) { return ctx->handler[LEVEL_EMIT] != NULL; }

void ctx_init(Ctx *ctx, int threads);
void ctx_free(Ctx *ctx);

/* Where the stream of random numbers stands: seed and offset, 8 bytes each, the lowest
 * first (PyTorch's form). */
enum { RANDOM_STATE_BYTES = 16 };
void ctx_random_state(const Ctx *ctx, unsigned char *state);
void ctx_set_random_state(Ctx *ctx, const unsigned char *state);

#endif
