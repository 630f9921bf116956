/* ddp_buckets.c -- see ddp_buckets.h. */
#include "passes/ddp_buckets.h"

#include <ctype.h>
#include <string.h>

#include "base/strmap.h"
#include "passes/comm_block.h"

/* ---- which all-reduces ------------------------------------------------------------------------ */

/* Elements of a tensor whose sizes are numbers; false if they are not. */
static bool count_elements(const Val *v, int64_t *numel) {
  *numel = 1;
  if (v->type != TY_TENSOR || v->ndim < 0 || v->dtype < 0 || v->dtype >= DT_COUNT) return false;
  for (int i = 0; i < v->ndim; i++) {
    if (!sym_is_int(v->size[i]) || v->size[i]->value < 0 ||
        __builtin_mul_overflow(*numel, v->size[i]->value, numel))
      return false;
  }
  size_t bytes;
  return !__builtin_mul_overflow((size_t)*numel, dtype_size(v->dtype), &bytes);
}

/* One number for all elements, so that it divides the gradients joined as well as each. */
static bool divisor_is_number(const Val *grad, const Arg *divisor, bool by_list) {
  if (divisor->kind == ARG_INT || divisor->kind == ARG_FLOAT || divisor->kind == ARG_BOOL) return true;
  if (divisor->kind != ARG_VAL) return false;
  const Val *d = divisor->val;
  if (d->type != TY_TENSOR) return d->type == TY_INT || d->type == TY_FLOAT;
  if (d->ndim == 0) return grad->ndim > 0 || d->dtype == grad->dtype; /* two scalars promote like tensors */
  return !by_list && d->ndim == 1 && sym_is_int(d->size[0]) && d->size[0]->value == 1 && grad->ndim > 0;
}

/* A collective in place: whoever else reads the quotient behind it reads what was reduced. */
static bool quotient_is_shared(const Order *o, const Reduction *r) {
  const Val *quotient = o->node[r->div]->outs[0];
  for (int i = 0; i < order_nusers(o, quotient); i++) {
    int at = order_user(o, quotient, i);
    if (at == r->comm) continue;
    if (at > r->comm) return true;
    for (int k = 0; k < o->node[at]->nouts; k++) {
      if (order_share(o, o->node[at]->outs[k], quotient)) return true;
    }
  }
  return false;
}

/* The collective reads what somebody made of the quotient meanwhile. */
static bool quotient_is_written(const Order *o, const Reduction *r) {
  for (int i = o->behind_start[r->comm]; i < o->behind_start[r->comm + 1]; i++) {
    int at = o->behind[i];
    if (at > r->div && order_writes_to(o, at, o->node[r->div]->outs[0])) return true;
  }
  return false;
}

/* The file tells its sizes and dtype. */
static bool is_known(const Val *v) { return v->type == TY_TENSOR && v->ndim >= 0; }

/* A gradient of a training step: nothing but the update reads what was reduced. */
static bool is_of_step(const Order *o, const Node *comm, const Val *reduced) {
  if (comm->stage != STAGE_BACKWARD || o->memory) return false;
  for (int i = 0; i < order_nusers(o, reduced); i++) {
    int user = order_user(o, reduced, i);
    if (user == o->n || o->node[user]->stage != STAGE_UPDATE) return false;
  }
  return true;
}

/* Of a rank of a mesh: what was reduced is an output, and nothing else. */
static bool is_output_alone(const Order *o, const Val *reduced) {
  return !o->memory && order_nusers(o, reduced) == 1 && order_user(o, reduced, 0) == o->n;
}

/* Nothing is divided: the collective itself is where the gradient goes in. */
static LeftAlone examine_plain(const Node *comm, Reduction *r) {
  r->div = r->comm;
  r->grad = comm->args[0].val;
  r->divisor = (Arg){.kind = ARG_UNSET};
  if (!count_elements(comm->outs[0], &r->numel) || !is_known(r->grad)) return LEFT_SIZE;
  r->bytes = (size_t)r->numel * dtype_size(comm->outs[0]->dtype);
  return LEFT_COUNT;
}

static LeftAlone examine(const Order *o, const BucketRules *rules, int comm, Reduction *r) {
  const Node *n = o->node[comm];
  *r = (Reduction){.comm = comm, .alone = LEFT_COUNT, .kind = -1, .next = -1};
  CommBlockKind kind = comm_find_wait(o, comm, &r->wait);
  if (kind != COMM_BLOCK) return kind == COMM_UNUSED ? LEFT_UNUSED : LEFT_NO_WAIT;
  const Node *div = n->args[0].kind == ARG_VAL ? n->args[0].val->node : NULL;
  const Val *reduced = o->node[r->wait]->outs[0];
  bool step = is_of_step(o, n, reduced);
  bool plain = step || (rules->undivided && is_output_alone(o, reduced));
  if (!node_is(div, "aten.div.Tensor") || div->args[0].kind != ARG_VAL)
    return plain && n->args[0].kind == ARG_VAL ? examine_plain(n, r) : LEFT_NO_DIV;
  if (!step && order_nusers(o, reduced) != 1) return LEFT_USERS;
  int user = order_user(o, reduced, 0);
  if (!step && user != o->n && !node_is(o->node[user], "aten.copy_.default")) return LEFT_USERS;
  int64_t numel;
  r->div = div->mark;
  r->grad = div->args[0].val;
  r->divisor = div->args[1];
  if (!count_elements(div->outs[0], &r->numel) || !is_known(r->grad) || !is_known(n->outs[0])) return LEFT_SIZE;
  numel = r->numel;
  if (r->divisor.kind == ARG_VAL && !count_elements(r->grad, &numel)) return LEFT_SIZE; /* a tensor may spread it */
  if (numel != r->numel || !divisor_is_number(r->grad, &r->divisor, rules->by_list)) r->alone = LEFT_DIVISOR;
  else if (n->op && n->op->schema.mutates && quotient_is_shared(o, r)) r->alone = LEFT_SHARED;
  else if (quotient_is_written(o, r)) r->alone = LEFT_WRITTEN;
  r->bytes = (size_t)r->numel * dtype_size(n->outs[0]->dtype);
  return LEFT_COUNT;
}

static void leave(const Order *o, Buckets *all, LeftAlone why, int comm) {
  const Node *n = o->node[comm];
  if (!all->left[why]++) all->left_example[why] = n->nouts ? n->outs[0]->name : n->target;
}

/* Dividing happens later in a bucket, and a write to the gradient will wait for that.  A
 * gradient that is written to even before its collective is left alone; asked for only where
 * some other gradient needs that write, see pack(). */
static Status drop_written(Arena *arena, const Order *o, Buckets *all) {
  int *comm_of;  /* by position of a division: the last of its collectives, -1 */
  bool *written; /* by the same */
  TRY_NEW(comm_of, arena_new_n(arena, int, o->n + 1));
  TRY_NEW(written, arena_new_n(arena, bool, o->n + 1));
  for (int i = 0; i < o->n; i++) comm_of[i] = -1;
  for (int i = 0; i < all->n; i++) comm_of[all->reduction[i].div] = all->reduction[i].comm;
  for (int at = 0; at < o->n; at++) {
    for (int i = o->behind_start[at]; i < o->behind_start[at + 1]; i++)
      written[o->behind[i]] |= at < comm_of[o->behind[i]];
  }
  for (int i = 0; i < all->n; i++) {
    if (written[all->reduction[i].div]) all->reduction[i].alone = LEFT_WRITTEN;
  }
  return OK;
}

static Status find_reductions(Arena *arena, const Order *o, const BucketRules *rules, Buckets *all) {
  TRY_NEW(all->reduction, arena_new_n(arena, Reduction, o->neffects + 1));
  for (int i = 0; i < o->neffects; i++) {
    int at = o->effect[i];
    if (!comm_is_all_reduce(o->node[at])) continue;
    all->all_reduces++;
    LeftAlone why = examine(o, rules, at, &all->reduction[all->n]);
    if (why == LEFT_COUNT) all->n++;
    else leave(o, all, why, at);
  }
  return OK;
}

/* ---- kinds -------------------------------------------------------------------------------------- */

static void print_divisor(TextBuf *b, const Arg *a) {
  switch (a->kind) {
    case ARG_INT: text_printf(b, "%lld", (long long)a->i); break;
    case ARG_BOOL: text_puts(b, a->b ? "1" : "0"); break;
    case ARG_VAL: text_printf(b, "%%%s", a->val->name); break;
    case ARG_FLOAT:
      /* 2.0 divides like 2 */
      if (a->f > -9e15 && a->f < 9e15 && a->f != 0 && a->f == (double)(int64_t)a->f)
        text_printf(b, "%lld", (long long)a->f);
      else text_float(b, a->f);
      break;
    default: break;
  }
}

static const char *text_argument(const Node *n, int i) {
  return i < n->nargs && n->args[i].kind == ARG_STR ? n->args[i].str : "";
}

static void print_kind(TextBuf *b, const Order *o, const Reduction *r) {
  const Node *n = o->node[r->comm];
  text_puts(b, dtype_name(r->grad->dtype));
  if (n->outs[0]->dtype != r->grad->dtype) text_printf(b, "->%s", dtype_name(n->outs[0]->dtype));
  text_puts(b, ", ");
  for (const char *p = text_argument(n, 1); *p; p++) text_printf(b, "%c", tolower((unsigned char)*p));
  text_puts(b, r->divisor.kind == ARG_UNSET ? " of gradients" : " of gradients / ");
  print_divisor(b, &r->divisor);
  text_puts(b, ", group ");
  text_json(b, text_argument(n, 2));
}

static bool same_kind(const Order *o, const Reduction *a, const Reduction *b) {
  const Node *x = o->node[a->comm], *y = o->node[b->comm];
  return a->grad->dtype == b->grad->dtype && x->outs[0]->dtype == y->outs[0]->dtype &&
         arg_equal(&a->divisor, &b->divisor) && !strcmp(text_argument(x, 1), text_argument(y, 1)) &&
         !strcmp(text_argument(x, 2), text_argument(y, 2));
}

static Status find_kinds(Arena *arena, const Order *o, Buckets *all) {
  StrMap kinds = {0};
  for (int i = 0; i < all->n; i++) {
    TextBuf b = {0};
    StrSlot *slot;
    if (all->reduction[i].alone != LEFT_COUNT) continue;
    if (i && all->reduction[i - 1].kind >= 0 &&
        same_kind(o, &all->reduction[i - 1], &all->reduction[i])) { /* most are */
      all->reduction[i].kind = all->reduction[i - 1].kind;
      continue;
    }
    print_kind(&b, o, &all->reduction[i]);
    char *key = b.failed ? NULL : arena_strdup(arena, b.text);
    text_free(&b);
    if (!key) return fail_oom();
    TRY(strmap_slot(&kinds, arena, key, &slot));
    if (!slot->value) slot->value = (void *)(uintptr_t)++all->nkinds;
    all->reduction[i].kind = (int)(uintptr_t)slot->value - 1;
  }
  return OK;
}

/* ---- what needs what ------------------------------------------------------------------------------ */

/* needs[at] = 1 + the last reduction whose result the node at that position needs, be it as a
 * value or because it may only happen after it; 0: none.  Positions ascend, so one walk does. */
static Status find_needs(Arena *arena, const Order *o, const Buckets *all, int **out) {
  int *needs, *part; /* part, by position: 1 + the last reduction that it is a part of */
  bool inside = !order_is_free(o);
  TRY_NEW(needs, arena_new_n(arena, int, o->n + 1));
  TRY_NEW(part, arena_new_n(arena, int, o->n + 1));
  *out = needs;
  for (int i = 0; i < all->n; i++) {
    const Reduction *r = &all->reduction[i];
    if (r->alone != LEFT_COUNT) continue; /* it stays where it is */
    part[r->div] = part[r->comm] = part[r->wait] = needs[r->wait] = i + 1;
    inside |= order_user(o, o->node[r->wait]->outs[0], 0) < o->n;
  }
  if (!inside) return OK; /* all results go to the outputs: nobody needs any */
  for (int at = 0; at < o->n; at++) {
    int most = needs[at];
    for (int i = o->arg_start[at]; i < o->arg_start[at + 1]; i++) {
      int from = o->producer[o->arg[i]];
      if (from >= 0 && needs[from] > most) most = needs[from];
    }
    for (int i = o->behind_start[at]; i < o->behind_start[at + 1]; i++) {
      int before = o->behind[i];
      if (part[before] && part[before] == part[at]) continue;
      if (needs[before] > most) most = needs[before];
      if (part[before] > most) most = part[before];
    }
    needs[at] = most;
  }
  return OK;
}

/* ---- buckets -------------------------------------------------------------------------------------- */

typedef struct {
  Buckets *all;
  const BucketRules *rules;
  int *open;  /* by kind: its open bucket, -1 */
  int oldest; /* no bucket before this one is open */
} Packing;

static void add_to_bucket(Packing *p, int index) {
  Buckets *all = p->all;
  Reduction *r = &all->reduction[index];
  bool alone = r->alone != LEFT_COUNT;
  int at = alone ? -1 : p->open[r->kind];
  if (at < 0) {
    at = all->nbuckets++;
    all->bucket[at] = (Bucket){.first = index, .last = index};
  }
  Bucket *b = &all->bucket[at];
  if (b->count++) all->reduction[b->last].next = index;
  b->last = index;
  b->bytes += r->bytes;
  b->full = alone || (double)b->bytes >= (at ? p->rules->bucket_bytes : p->rules->first_bytes);
  if (!alone) p->open[r->kind] = b->full ? -1 : at;
}

/* I2: of the buckets that began at or before `needed`, none stays open.  Each is passed once. */
static void close_needed(Packing *p, int needed) {
  Buckets *all = p->all;
  for (; p->oldest < all->nbuckets && all->bucket[p->oldest].first <= needed; p->oldest++) {
    Bucket *b = &all->bucket[p->oldest];
    if (b->full) continue;
    b->early = true;
    p->open[all->reduction[b->first].kind] = -1;
  }
}

/* Does a reduction need one that comes later?  (That is: a write to the later one's gradient,
 * which stands between its division and its collective.)  Then nothing could be decided in
 * order. */
static bool needs_later(const Buckets *all, const int *needs) {
  for (int i = 0; i < all->n; i++) {
    if (needs[all->reduction[i].div] > i + 1 || needs[all->reduction[i].comm] > i + 1) return true;
  }
  return false;
}

static Status pack(Arena *arena, const Order *o, const BucketRules *rules, Buckets *all) {
  Packing p = {.all = all, .rules = rules};
  int *needs;
  TRY(find_needs(arena, o, all, &needs));
  if (needs_later(all, needs)) {
    TRY(drop_written(arena, o, all));
    TRY(find_needs(arena, o, all, &needs));
  }
  TRY_NEW(p.open, arena_new_n(arena, int, all->nkinds + 1));
  TRY_NEW(all->bucket, arena_new_n(arena, Bucket, all->n + 1));
  for (int i = 0; i < all->nkinds; i++) p.open[i] = -1;
  for (int i = 0; i < all->n; i++) {
    const Reduction *r = &all->reduction[i];
    int needed = needs[r->div] > needs[r->comm] ? needs[r->div] : needs[r->comm];
    if (needed) close_needed(&p, needed - 1);
    add_to_bucket(&p, i);
  }
  return OK;
}

Status ddp_buckets_find(Arena *arena, const Order *o, const BucketRules *rules, Buckets *out) {
  *out = (Buckets){0};
  TRY(find_reductions(arena, o, rules, out));
  TRY(find_kinds(arena, o, out));
  return pack(arena, o, rules, out);
}

/* ---- telling -------------------------------------------------------------------------------------- */

static const char *const left_reason[LEFT_COUNT] = {
    [LEFT_UNUSED] = "nobody uses the result",
    [LEFT_NO_WAIT] = "the result is not used by one wait alone",
    [LEFT_NO_DIV] = "what is reduced is no quotient",
    [LEFT_USERS] = "what was reduced does not go to an output or a copy_ alone",
    [LEFT_SIZE] = "sizes are not known: specialize first",
    [LEFT_DIVISOR] = "the divisor is not one number for all elements",
    [LEFT_WRITTEN] = "the gradient or its quotient is written to before the collective",
    [LEFT_SHARED] = "the quotient is reduced in place and read by others",
};

static void tell_bucket(TextBuf *b, const Order *o, const Buckets *all, int index) {
  const Bucket *bucket = &all->bucket[index];
  text_printf(b, "  bucket %d: %d gradient%s, %zu bytes", index, bucket->count, bucket->count == 1 ? "" : "s",
              bucket->bytes);
  if (bucket->bytes >= 1 << 20) text_printf(b, " (%.1f MiB)", (double)bucket->bytes / (1 << 20));
  text_puts(b, ", ");
  const Reduction *r = &all->reduction[bucket->first];
  print_kind(b, o, r);
  if (r->alone != LEFT_COUNT) text_printf(b, "; left alone: %s", left_reason[r->alone]);
  else if (bucket->count == 1) text_puts(b, "; nothing to join");
  if (bucket->early) text_puts(b, "; closed early: a later gradient needs its result");
  text_puts(b, "\n");
}

void ddp_buckets_tell(TextBuf *b, const char *pass, const Order *o, const Buckets *all) {
  if (!all->all_reduces) {
    text_printf(b, "%s: no all-reduce in the program: nothing to fuse\n", pass);
    return;
  }
  int after = all->all_reduces - all->n + all->nbuckets;
  text_printf(b, "%s: %d all-reduce%s -> %d, %d bucket%s%s\n", pass, all->all_reduces,
              all->all_reduces == 1 ? "" : "s", after, all->nbuckets, all->nbuckets == 1 ? "" : "s",
              after == all->all_reduces ? ": nothing to fuse" : "");
  if (all->nkinds > 1)
    text_printf(b, "  %d kinds of all-reduce (group, op, divisor, dtype), each in buckets of its own\n",
                all->nkinds);
  for (int i = 0; i < all->nbuckets; i++) tell_bucket(b, o, all, i);
  for (int i = 0; i < LEFT_COUNT; i++) {
    if (all->left[i])
      text_printf(b, "  left alone: %d (%s%s): %s\n", all->left[i], all->left_example[i],
                  all->left[i] > 1 ? ", ..." : "", left_reason[i]);
  }
}
