/* collective.c -- collectives as exported programs call them (torch.ops._c10d_functional).
 *
 * Each call starts its collective and returns; the result is there after wait_tensor(),
 * which returns its argument, or at the end of the program.  What goes on in between is
 * kept by ctx->groups (comm/groups.h).  Sizes of results follow from arguments alone, so
 * programs are read, planned and written without any rank being there.
 *
 * I1  Ranks must make the same collectives in the same order: all of these are OP_EFFECT,
 *     never merged, folded, dropped or moved past each other.
 * I2  Results are contiguous.  Operands may lie anyhow: what is not contiguous is copied
 *     first, into the result where it may stand there.
 * I3  all_reduce and broadcast may be made in the memory of their argument (OP_UPDATE).
 */
#include <stdlib.h>

#include "comm/groups.h"
#include "kernels/copy.h"
#include "ops/geometry.h"

enum { NO = -1 };

/* Where an op has its arguments; argument 0 is the operand, or the list of them. */
typedef struct {
  CollKind kind;
  int op, root, size, group; /* reduce_op, src, group_size, group_name */
} Row;

static int count_operands(const Call *c) { return c->arg[0].kind == VAL_TENSORS ? c->arg[0].n : 1; }
static Tensor *operand(const Call *c, int j) {
  return c->arg[0].kind == VAL_TENSORS ? in_item(c, 0, j) : in_tensor(c, 0);
}

/* ---- sizes ---------------------------------------------------------------------------- */

static Status check_group_size(const Call *c, int64_t n) {
  return n >= 1 ? OK : op_fail(c, "a group of %lld ranks", (long long)n);
}

static Status sum_splits(const Call *c, const char *name, Ints splits, int64_t *sum) {
  *sum = 0;
  for (int i = 0; i < splits.n; i++) {
    if (splits.v[i] < 0 || __builtin_add_overflow(*sum, splits.v[i], sum))
      return op_fail(c, "%s[%d] is %lld", name, i, (long long)splits.v[i]);
  }
  return OK;
}

/* Rows of the result where all_to_all is given arguments 1, what comes, and 2, what goes. */
static Status all_to_all_rows(const Call *c, const Tensor *in, int64_t *rows) {
  Ints come = in_ints(c, 1), go = in_ints(c, 2);
  int64_t sent;
  if (come.n != go.n)
    return op_fail(c, "output_split_sizes are of %d ranks, input_split_sizes of %d", come.n, go.n);
  if (!go.n) return *rows = in->size[0], OK; /* equal parts */
  TRY(sum_splits(c, "output_split_sizes", come, rows));
  TRY(sum_splits(c, "input_split_sizes", go, &sent));
  if (sent != in->size[0])
    return op_fail(c, "input_split_sizes add up to %lld, the operand has %lld rows", (long long)sent,
                   (long long)in->size[0]);
  return OK;
}

static Status infer_one(Call *c, const Row *row, const Tensor *in) {
  int64_t size[MAX_DIMS];
  char shape[128];
  for (int d = 0; d < in->ndim; d++) size[d] = in->size[d];
  if (row->kind == COLL_ALL_REDUCE || row->kind == COLL_BROADCAST) return out_new(c, in->dtype, in->ndim, size);
  if (in->ndim == 0)
    return op_fail(c, "%s has no dimension to spread over ranks", tensor_describe(in, shape, sizeof shape));
  int64_t n = row->size == NO ? 1 : in_int(c, row->size);
  TRY(check_group_size(c, n));
  if (row->kind == COLL_ALL_GATHER) {
    if (__builtin_mul_overflow(size[0], n, &size[0]))
      return op_fail(c, "%lld times %s is too large", (long long)n, tensor_describe(in, shape, sizeof shape));
  } else if (row->kind == COLL_REDUCE_SCATTER) {
    if (size[0] % n)
      return op_fail(c, "the %lld rows of %s do not divide by %lld ranks", (long long)size[0],
                     tensor_describe(in, shape, sizeof shape), (long long)n);
    size[0] /= n;
  } else {
    TRY(all_to_all_rows(c, in, &size[0]));
  }
  return out_new(c, in->dtype, in->ndim, size);
}

static Status collective_infer(Call *c) {
  for (int j = 0; j < count_operands(c); j++) {
    if (!operand(c, j)) return op_fail(c, "operand %d is no tensor", j);
    TRY(infer_one(c, c->op->def->row, operand(c, j)));
  }
  return OK;
}

/* ---- starting ------------------------------------------------------------------------- */

/* Splits count rows; a record counts elements. */
static void rows_to_elements(Ints rows, int64_t row_elements, int64_t *out) {
  for (int i = 0; i < rows.n; i++) out[i] = rows.v[i] * row_elements;
}

static int64_t elements_per_row(const Tensor *t) {
  int64_t n = 1;
  for (int d = 1; d < t->ndim; d++) n *= t->size[d];
  return n;
}

/* counts: room for two numbers per member. */
static Status describe_all_to_all(const Call *c, const Comm *comm, const Tensor *in, int64_t *counts, Coll *what) {
  Ints come = in_ints(c, 1), go = in_ints(c, 2);
  int n = comm_size(comm);
  if (!go.n) {
    if (in->size[0] % n) return op_fail(c, "%lld rows do not divide by %d ranks", (long long)in->size[0], n);
    what->count /= n;
    return OK;
  }
  if (go.n != n) return op_fail(c, "split sizes of %d ranks, the group '%s' has %d", go.n, in_str(c, 3), n);
  rows_to_elements(go, elements_per_row(in), counts);
  rows_to_elements(come, elements_per_row(in), counts + n);
  what->counts = counts;
  what->recv_counts = counts + n;
  return OK;
}

static Status describe(const Call *c, const Row *row, const Comm *comm, const Tensor *in, const Tensor *out,
                       Coll *what) {
  *what = (Coll){.kind = row->kind, .dtype = in->dtype, .why = c->op->schema.name};
  if (row->op != NO && !reduce_op_parse(in_str(c, row->op), &what->op))
    return op_fail(c, "'%s' is no reduction that ranks know", in_str(c, row->op));
  if (row->root != NO) {
    int64_t root = in_int(c, row->root);
    if (root < 0 || root >= comm_size(comm))
      return op_fail(c, "src is %lld, the group '%s' has %d ranks", (long long)root, in_str(c, row->group),
                     comm_size(comm));
    what->root = (int)root;
  }
  if (row->size != NO && in_int(c, row->size) != comm_size(comm)) {
    return op_fail(c, "the group '%s' has %d rank%s, the program was made for %lld", in_str(c, row->group),
                   comm_size(comm), comm_size(comm) == 1 ? "" : "s", (long long)in_int(c, row->size));
  }
  what->count = tensor_numel(row->kind == COLL_REDUCE_SCATTER ? out : in);
  return OK;
}

/* I2.  Where a copy of the operand may stand in the result: elements from its beginning, or NO. */
static int64_t place_in_result(const Comm *comm, const Coll *what) {
  if (what->kind == COLL_ALL_REDUCE || what->kind == COLL_BROADCAST) return 0;
  return what->kind == COLL_ALL_GATHER ? what->count * comm_rank(comm) : NO;
}

/* The operand made contiguous, where it may stand; a tensor of its own goes to scope. */
static Status pack_operand(Call *c, const Comm *comm, const Coll *what, const Tensor *in, const Tensor *out,
                           Scope *scope, Tensor **packed) {
  int64_t at = place_in_result(comm, what), stride[MAX_DIMS];
  contiguous_strides(in->ndim, in->size, stride);
  if (at == NO) TRY(tensor_new(scope, in->dtype, in->ndim, in->size, packed));
  else TRY(tensor_as_strided(scope, out, in->ndim, in->size, stride, out->offset + at, packed));
  kernel_copy(&c->ctx->kern, tensor_view(*packed), tensor_view(in));
  return OK;
}

static Status start_one(Call *c, const Row *row, Comm *comm, Tensor *in, const Tensor *out) {
  Scope scope = {0};
  Coll what;
  int64_t *counts;
  TRY_NEW(counts, malloc(2 * (size_t)comm_size(comm) * sizeof *counts));
  Status s = describe(c, row, comm, in, out, &what);
  if (!s && row->kind == COLL_ALL_TO_ALL) s = describe_all_to_all(c, comm, in, counts, &what);
  if (!s && !tensor_is_contiguous(in)) s = pack_operand(c, comm, &what, in, out, &scope, &in);
  what.send = tensor_data(in);
  what.recv = tensor_data(out);
  if (!s) s = groups_start(c->ctx->groups, comm, &what, in->storage, out->storage);
  scope_clear(&scope); /* the work holds the storage */
  free(counts);
  return s;
}

/* A result that must stay where it is, with gaps between its elements (all_reduce_ of a
 * column): done at once on a copy. */
static Status run_with_gaps(Call *c, const Row *row, Comm *comm, Tensor *in, Tensor *out) {
  Scope scope = {0};
  Tensor *t;
  TRY(tensor_new(&scope, out->dtype, out->ndim, out->size, &t));
  Status s = start_one(c, row, comm, in, t);
  if (!s) s = groups_wait(c->ctx->groups, t->storage);
  if (!s) kernel_copy(&c->ctx->kern, tensor_view(out), tensor_view(t));
  scope_clear(&scope);
  return s;
}

static Status no_ranks(const Call *c) {
  return status_hint(
      fail(ERR_USAGE, "%s: there are no ranks to talk to, the program was made for several", c->op->schema.name),
      "tessera run -n N runs it on N ranks; of a folder with a program for each, tessera run FOLDER");
}

static Status collective_run(Call *c) {
  const Row *row = c->op->def->row;
  Comm *comm;
  if (!c->ctx->groups) return no_ranks(c);
  Status s = groups_find(c->ctx->groups, in_str(c, row->group), &comm);
  if (s) return status_at(s, "%s", c->op->schema.name);
  for (int j = 0; j < count_operands(c); j++) {
    Tensor *out = out_tensor(c, j);
    TRY(tensor_is_contiguous(out) ? start_one(c, row, comm, operand(c, j), out)
                                  : run_with_gaps(c, row, comm, operand(c, j), out));
  }
  return OK;
}

/* ---- waiting -------------------------------------------------------------------------- */

static Status same_infer(Call *c) {
  Tensor *t;
  TRY(need_tensor(c, 0, &t));
  return out_alias(c, t);
}

static Status wait_run(Call *c) {
  const Tensor *t = in_tensor(c, 0);
  return c->ctx->groups && t->storage ? groups_wait(c->ctx->groups, t->storage) : OK;
}

/* ---- rows ----------------------------------------------------------------------------- */

/* clang-format off */
/*                                             reduce_op src group_size group_name */
static const Row all_reduce = {COLL_ALL_REDUCE,        1, NO, NO, 2};
static const Row broadcast = {COLL_BROADCAST,         NO,  1, NO, 2};
static const Row all_gather = {COLL_ALL_GATHER,       NO, NO,  1, 2};
static const Row reduce_scatter = {COLL_REDUCE_SCATTER, 1, NO,  2, 3};
static const Row all_to_all = {COLL_ALL_TO_ALL,       NO, NO, NO, 3};
/* clang-format on */

/* clang-format off */
#define START(text, of, more) \
  {.schema = text, .infer = collective_infer, .run = collective_run, .row = &(of), \
    .flags = OP_EFFECT | OP_STARTS | (more)}
#define IN_PLACE(text, functional) \
  {.schema = text, .inplace = "_c10d_functional." functional ".default", .flags = OP_EFFECT}
/* clang-format on */

/* clang-format off */
const OpDef ops_collective[] = {
    START("_c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor", all_reduce,
        OP_UPDATE),
    START("_c10d_functional::all_reduce_coalesced(Tensor[] inputs, str reduce_op, str group_name) -> Tensor[]",
        all_reduce, 0),
    START("_c10d_functional::broadcast(Tensor input, int src, str group_name) -> Tensor", broadcast, OP_UPDATE),
    START("_c10d_functional::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> Tensor",
        all_gather, 0),
    START("_c10d_functional::all_gather_into_tensor_coalesced(Tensor[] inputs, int group_size, str group_name) -> "
          "Tensor[]", all_gather, 0),
    START("_c10d_functional::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group_name) "
          "-> Tensor", reduce_scatter, 0),
    START("_c10d_functional::reduce_scatter_tensor_coalesced(Tensor[] inputs, str reduce_op, int group_size, str "
          "group_name) -> Tensor[]", reduce_scatter, 0),
    START("_c10d_functional::all_to_all_single(Tensor input, SymInt[] output_split_sizes, SymInt[] "
          "input_split_sizes, str group_name) -> Tensor", all_to_all, 0),
    START("_c10d_functional_autograd::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> "
          "Tensor", all_gather, 0),
    START("_c10d_functional_autograd::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str "
          "group_name) -> Tensor", reduce_scatter, 0),
    START("_c10d_functional_autograd::all_to_all_single(Tensor input, SymInt[] output_split_sizes, SymInt[] "
          "input_split_sizes, str group_name) -> Tensor", all_to_all, 0),
    IN_PLACE("_c10d_functional::all_reduce_(Tensor(a!) input, str reduce_op, str group_name) -> Tensor(a!)", "all_reduce"),
    IN_PLACE("_c10d_functional::all_reduce_coalesced_(Tensor[](a!) inputs, str reduce_op, str group_name) -> "
             "Tensor[](a!)", "all_reduce_coalesced"),
    IN_PLACE("_c10d_functional::broadcast_(Tensor(a!) input, int src, str group_name) -> Tensor(a!)", "broadcast"),
    IN_PLACE("_c10d_functional::all_gather_into_tensor_out(Tensor input, int group_size, str group_name, *, "
             "Tensor(a!) out) -> Tensor(a!)", "all_gather_into_tensor"),
    IN_PLACE("_c10d_functional::reduce_scatter_tensor_out(Tensor input, str reduce_op, int group_size, str "
             "group_name, *, Tensor(a!) out) -> Tensor(a!)", "reduce_scatter_tensor"),
    {.schema = "_c10d_functional::wait_tensor(Tensor tensor) -> Tensor", .infer = same_infer, .run = wait_run,
     .flags = OP_EFFECT},
    {.schema = "_c10d_functional::_wrap_tensor_autograd(Tensor input) -> Tensor", .infer = same_infer},
    {0},
};
