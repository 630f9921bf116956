/* fuzz_ops.c -- any bytes as one call of any op, on plain tensors or on DTensors.
 *
 * The bytes are choices: which op, which kinds, dtypes, sizes, layouts, numbers.  Where they run
 * out, random numbers that they seed go on; so eight bytes are a whole call, and
 *
 *     fuzz_ops_replay --random 1000000 --seed 7
 *
 * makes a million calls.  Arguments are mostly right, so that calls get deep, and sometimes
 * wrong in any way that the public API lets through.  A call may fail; it may not crash, and
 * results must lie in their memory.  Most calls start from a golden case of the op, which is
 * altered here and there; the others from nothing.
 *
 * Some calls are made under a tape, with gradients of what they give, and some of these with
 * gradients of the gradients. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "grad/tape.h"
#include "kernels/copy.h"
#include "limit_memory.h"
#include "op_args.h"
#include "op_cases.h"
#include "ops/tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void fuzz_tell(void);  /* for replay.c: the call under way, to stderr */
void fuzz_count(void); /* and what became of all calls, to stdout */

enum { LARGEST = 1 << 20 /* elements of results that are looked at: views may have any number */ };

#ifdef SANITIZED
/* A size that cannot be had is an error like others, not the end.  The fuzzer itself needs more.  The sanitizer
 * neither maps shadows anew nor keeps more freed memory than calls of this size need: both are slow. */
int LLVMFuzzerRunDriver(int *argc, char ***argv, int (*one)(const uint8_t *, size_t)) __attribute__((weak));
const char *__asan_default_options(void);
#define OPTIONS                                                                                        \
  "allocator_may_return_null=1:detect_stack_use_after_return=0:clear_shadow_mmap_threshold=100000000:" \
  "quarantine_size_mb=16:max_allocation_size_mb="
const char *__asan_default_options(void) { return LLVMFuzzerRunDriver ? OPTIONS "64" : OPTIONS "4"; }
#endif

static char story[STORY];
static atomic_ullong calls, done, differentiated;

void fuzz_tell(void) { fprintf(stderr, "the call under way: %s\n", story); }

void fuzz_count(void) {
  printf("%llu calls, %llu gave results, %llu of these gradients too\n", calls, done, differentiated);
}

/* ---- the call --------------------------------------------------------------------------------------------- */

/* Every element that a result names is there. */
static void read_all(Made *m, const Tensor *t) {
  Tensor *copy;
  if (t->spec) t = t->local;
  if (!t || !tensor_data(t)) return;
  Status s = tensor_check_bounds(t, "a result");
  if (s) {
    fprintf(stderr, "%s\n", status_message(s));
    abort();
  }
  s = tensor_numel(t) > LARGEST ? OK : tensor_new(m->scope, t->dtype, t->ndim, t->size, &copy);
  if (!s && tensor_numel(t) <= LARGEST) kernel_copy(&m->ctx->kern, tensor_view(copy), tensor_view(t));
  status_free(s);
}

static Status dispatch(Made *m, Call *c) {
  calls++;
  TRY(op_dispatch(c));
  done++;
  for (TensorWalk w = call_outputs(c); tensor_next(&w);) read_all(m, w.tensor);
  return OK;
}

/* ---- its gradients ---------------------------------------------------------------------------------------- */

enum { MOST_TENSORS = 64 };

typedef struct {
  Tensor *t[MOST_TENSORS];
  int n;
} Some;

static bool has_gradient(const Tensor *t) {
  return dtype_kind(t->dtype) == KIND_FLOAT || dtype_kind(t->dtype) == KIND_COMPLEX;
}

/* Most floats become leaves; what is written to is a copy of one, or for once the leaf itself. */
static Status require(Made *m, Tape *tape, const Call *c, Value *arg, Some *leaves) {
  Tensor *with[MOST_TENSORS], *leaf;
  for (TensorWalk w = call_inputs(c); tensor_next(&w);) {
    if (w.flat >= MOST_TENSORS) return fail(ERR_USAGE, "too many tensors");
    with[w.flat] = w.tensor;
    if (!has_gradient(w.tensor) || chance(&m->pick, 15)) continue;
    TRY(tape_require(tape, m->scope, w.tensor, &leaf));
    leaves->t[leaves->n++] = leaf;
    TRY(tensor_handle(m->scope, leaf, &with[w.flat]));
    if (c->op->schema.mutates && !chance(&m->pick, 10))
      TRY(OP(c, "aten.clone.default", &with[w.flat], val_tensor(leaf)));
  }
  return replace_tensors(m->arena, arg, c->op->schema.nparams, with, arg);
}

/* What a backward can start from: results with a node, or what a call that returns nothing has written. */
static void add_results(const Call *c, Some *out) {
  bool written = c->op->schema.nreturns == 0;
  for (TensorWalk w = written ? call_inputs(c) : call_outputs(c); out->n < MOST_TENSORS && tensor_next(&w);)
    if (w.tensor->grad && has_gradient(w.tensor) && tensor_numel(w.tensor) <= LARGEST) out->t[out->n++] = w.tensor;
}

/* Gradients by the leaves of the results' sums, or of the results with any cotangents. */
static Status differentiate(Made *m, Tape *tape, const Call *c, Some from, const Some *leaves, bool again,
                            Some *gradients) {
  Tensor *cotangent[MOST_TENSORS] = {0};
  bool sums = chance(&m->pick, 60);
  for (int i = 0; i < from.n; i++) {
    const Tensor *x = from.t[i];
    if (sums) TRY(OP(c, "aten.sum.default", &from.t[i], val_tensor(from.t[i])));
    else TRY(tensor_of(m, x->dtype, x->ndim, x->size, false, &cotangent[i]));
  }
  Backward how = {.allow_unused = true, .create_graph = again, .keep = again};
  Tensor *got[MOST_TENSORS] = {0};
  TRY(tape_gradients(tape, from.t, cotangent, from.n, leaves->t, leaves->n, &how, m->scope, got));
  for (int i = 0; i < leaves->n; i++) {
    if (!got[i]) continue;
    read_all(m, got[i]);
    if (got[i]->grad) gradients->t[gradients->n++] = got[i];
    if (got[i]->dtype != leaves->t[i]->dtype || !tensor_same_size(got[i], leaves->t[i])) {
      fprintf(stderr, "a gradient of another size or dtype than its tensor\n");
      abort();
    }
  }
  return OK;
}

static Status dispatch_taped(Made *m, Tape *tape, Call *c, Value *bound) {
  Some leaves = {0}, results = {0}, first = {0}, second = {0};
  bool again = chance(&m->pick, 25);
  TRY(require(m, tape, c, bound, &leaves));
  TRY(dispatch(m, c));
  add_results(c, &results);
  if (!results.n) return OK;
  tell(m, " and its gradients");
  TRY(differentiate(m, tape, c, results, &leaves, again, &first));
  differentiated++;
  if (!again || !first.n) return OK;
  tell(m, ", twice");
  return differentiate(m, tape, c, first, &leaves, false, &second);
}

/* Binds and dispatches; results are read. */
static Status call_op(Made *m, const Op *op, const NamedValue *args, int n) {
  Value bound[MAX_PARAMS];
  Call c = {.ctx = m->ctx, .op = op, .arg = bound, .scope = m->scope, .arena = m->arena};
  TRY(op_bind(m->arena, op, args, n, bound));
  if (!chance(&m->pick, 40)) return dispatch(m, &c);
  Tape tape;
  tape_begin(&tape, m->ctx);
  Status s = dispatch_taped(m, &tape, &c, bound);
  tape_end(&tape);
  return s;
}

static Status call_from_nothing(Made *m) {
  const Op *op = op_at((int)below(&m->pick, op_count()));
  NamedValue args[MAX_PARAMS];
  int n;
  tell(m, op->schema.name);
  TRY(any_args(m, op, args, &n));
  return call_op(m, op, args, n);
}

/* ---- calls that are known to be right, altered ----------------------------------------------------------- */

static Status alter_tensor(Made *m, const char *name, Tensor **t) {
  int64_t r = below(&m->pick, 100), size[MAX_DIMS];
  Dtype d = (*t)->dtype;
  int ndim = (*t)->ndim;
  bool places = dtype_is_integral(d);
  memcpy(size, (*t)->size, sizeof size);
  if (r < 4) return any_tensor(m, name, t);
  if (r < 8) d = any_dtype(m);
  else if (r < 14 && ndim) size[below(&m->pick, ndim)] = m->sizes[below(&m->pick, 3)];
  else if (r < 16 && ndim) ndim--;
  else if (r < 18 && ndim < MAX_DIMS) size[ndim++] = m->sizes[below(&m->pick, 3)];
  else if (r < 22 && tensor_numel(*t) && dtype_is_compute(d)) { /* one element */ Value v = any_number(m);
    val_store(&v, d,
              (char *)tensor_data(*t) + below(&m->pick, 2) * (tensor_extent(*t) - 1) * (int64_t)dtype_size(d));
  }
  if (r >= 18 && r < 92) {
    char text[128];
    tell(m, tensor_describe(*t, text, sizeof text));
    return any_spread(m, t);
  }
  return tensor_of(m, d, ndim, size, places, t);
}

static Status alter_ints(Made *m, Value *v) {
  int64_t *list;
  char text[128];
  int n = v->n;
  TRY_NEW(list, arena_new_n(m->arena, int64_t, n + 1));
  memcpy(list, v->ints, (size_t)n * sizeof *list);
  int64_t r = below(&m->pick, 100);
  if (r < 25 && n) list[below(&m->pick, n)] = any_int(m);
  if (r >= 25 && r < 30 && n) n--;
  if (r >= 30 && r < 35) list[n++] = any_int(m);
  tell(m, shape_describe(n, list, text, sizeof text));
  *v = val_ints(list, n);
  return OK;
}

static Status alter_tensors(Made *m, const Param *p, Value *v) {
  Tensor **list;
  int n = v->n;
  TRY_NEW(list, arena_new_n(m->arena, Tensor *, n + 1));
  tell(m, "[");
  for (int i = 0; i < n; i++) {
    list[i] = v->tensors[i];
    if (list[i]) TRY(alter_tensor(m, p->name, &list[i]));
  }
  if (n && chance(&m->pick, 5)) n--;
  if (n && chance(&m->pick, 3)) list[below(&m->pick, n)] = NULL;
  tell(m, "]");
  *v = val_tensors(list, n);
  return OK;
}

static Status alter(Made *m, const Param *p, Value *v) {
  tell(m, p->name);
  tell(m, "=");
  if (chance(&m->pick, 5)) return any_arg(m, p, v);
  if (v->kind == VAL_TENSOR) return alter_tensor(m, p->name, &v->tensor);
  if (v->kind == VAL_TENSORS) return alter_tensors(m, p, v);
  if (v->kind == VAL_INTS) return alter_ints(m, v);
  if (v->kind != VAL_NONE && chance(&m->pick, 15)) return any_value(m, p, v);
  return OK;
}

static Status call_altered(Made *m, const OpCase *from) {
  GoldenCase c = {.family = "fuzz", .json = from->json, .data = from->data};
  Status s = golden_case_read(&c);
  const Op *op = s ? NULL : op_find(c.op);
  if (op) tell(m, c.op);
  for (int i = 0; op && !s && i < c.nargs; i++) {
    int at = c.args[i].name ? schema_find(&op->schema, c.args[i].name) : i;
    tell(m, i ? ", " : "(");
    if (at >= 0 && at < op->schema.nparams) s = alter(m, &op->schema.params[at], &c.args[i].value);
  }
  if (!s && op) s = call_op(m, op, c.args, c.nargs);
  scope_clear(m->scope);
  golden_case_free(&c);
  return s;
}

static Status make_call(Made *m) {
  static const int64_t sizes[] = {0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 8, 9, 17, 33};
  const OpCase *cases;
  int n = op_cases(&cases);
  if (m->story) m->story[0] = 0;
  bool altered = n && chance(&m->pick, 60);
  int64_t from = altered ? below(&m->pick, n) : 0;
  for (int i = 0; i < 3; i++) m->sizes[i] = sizes[below(&m->pick, 16)];
  m->dtype = any_dtype(m);
  m->ndim = fresh_sizes(m, m->size);
  return altered ? call_altered(m, &cases[from]) : call_from_nothing(m);
}

/* On a rank of a world, on one of a mesh without ranks (w NULL, spread), or by itself. */
static Status on_rank(World *w, const Choices *pick, bool spread_too) {
  Ctx ctx;
  Scope scope = {0};
  Arena arena = {0};
  Dist *d = NULL;
  Made m = {.pick = *pick, .ctx = &ctx, .scope = &scope, .arena = &arena};
  if (!w || world_rank(w) == 0) m.story = story;
  int ranks = w ? world_size(w) : 4;
  Status s = OK;
  ctx_init(&ctx, 1);
  if (spread_too) {
    s = dist_new(w, &d);
    bool flat = chance(&m.pick, 50) || ranks != 4;
    if (!s) s = mesh_new(d, flat ? (int[]){ranks} : (int[]){2, 2}, flat ? 1 : 2, NULL, NULL, &m.mesh);
    if (!s) ctx_attach_dist(&ctx, d);
  }
  if (!s) s = make_call(&m);
  scope_clear(&scope);
  ctx_free(&ctx);
  dist_free(d);
  arena_free(&arena);
  return s;
}

static Status on_world(World *w, void *arg) { return on_rank(w, arg, true); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Choices pick = {.at = data, .left = size, .state = hash_bytes(0, data, size)};
  const OpCase *cases;
  op_cases(&cases); /* before there are threads */
  limit_memory();
  int64_t how = below(&pick, 32);
  status_free(how == 0  ? world_threads(2, on_world, &pick, NULL)
              : how < 4 ? on_rank(NULL, &pick, true)
                        : on_rank(NULL, &pick, false));
  return 0;
}
