/* pickle.c -- the stack machine; see pickle.h. */
#include "ckpt/pickle.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/pickle_inside.h"

/* ---- stack and memo ------------------------------------------------------------------------------ */

static Status bad(const PickleReader *r, const char *reason) {
  return fail(ERR_FILE, "%s: not a pickle of a checkpoint: at byte %zu: %s", r->what, (size_t)(r->at - r->begin),
              reason);
}

static Status push(PickleReader *r, PickleValue *v) {
  TRY_NEW(r->stack, arena_more(r->arena, r->stack, r->depth, &r->stack_cap));
  r->stack[r->depth++] = v;
  return OK;
}

static Status make(PickleReader *r, PickleKind kind, PickleValue **out) {
  if (r->arena->total - r->before > PICKLE_MEMORY) return bad(r, "it takes too much memory");
  TRY_NEW(*out, arena_new(r->arena, PickleValue));
  (*out)->kind = kind;
  return OK;
}

static Status push_new(PickleReader *r, PickleKind kind, PickleValue **out) {
  TRY(make(r, kind, out));
  return push(r, *out);
}

static Status pop(PickleReader *r, PickleValue **out) {
  if (!r->depth || r->stack[r->depth - 1]->kind == PICKLE_MARK) return bad(r, "the stack is empty");
  *out = r->stack[--r->depth];
  return OK;
}

static Status top(PickleReader *r, PickleValue **out) {
  if (!r->depth || r->stack[r->depth - 1]->kind == PICKLE_MARK) return bad(r, "the stack is empty");
  *out = r->stack[r->depth - 1];
  return OK;
}

static Status append(PickleReader *r, PickleValue *to, PickleValue *v) {
  TRY_NEW(to->items, arena_more(r->arena, to->items, to->n, &to->cap));
  to->items[to->n++] = v;
  return OK;
}

/* Where the values above the last mark begin; the mark goes with them. */
static Status pop_mark(PickleReader *r, int *first, int *n) {
  int at = r->depth;
  while (at && r->stack[at - 1]->kind != PICKLE_MARK) at--;
  if (!at) return bad(r, "there is no mark");
  *first = at;
  *n = r->depth - at;
  r->depth = at - 1;
  return OK;
}

/* I2: numbers go up by one from 0, so there are at most as many as bytes. */
static Status put(PickleReader *r, uint64_t number) {
  PickleValue *v;
  TRY(top(r, &v));
  if (number > (uint64_t)(r->at - r->begin)) return bad(r, "a number of the memo is out of range");
  while ((uint64_t)r->memos <= number) {
    TRY_NEW(r->memo, arena_more(r->arena, r->memo, r->memos, &r->memo_cap));
    r->memo[r->memos++] = NULL;
  }
  r->memo[number] = v;
  return OK;
}

static Status get(PickleReader *r, uint64_t number) {
  if (number >= (uint64_t)r->memos || !r->memo[number]) return bad(r, "the memo lacks a value that is asked for");
  return push(r, r->memo[number]);
}

/* ---- arguments ------------------------------------------------------------------------------------ */

static size_t left(const PickleReader *r) { return (size_t)(r->end - r->at); }

static Status take(PickleReader *r, uint64_t n, const unsigned char **out) {
  if (n > left(r)) return bad(r, "it is cut off");
  *out = r->at;
  r->at += n;
  return OK;
}

/* A little-endian number of n <= 8 bytes. */
static Status take_uint(PickleReader *r, int n, uint64_t *out) {
  const unsigned char *p;
  TRY(take(r, (uint64_t)n, &p));
  *out = 0;
  for (int i = n - 1; i >= 0; i--) *out = *out << 8 | p[i];
  return OK;
}

/* Up to a newline, which is taken too. */
static Status take_line(PickleReader *r, const char **out) {
  const unsigned char *end = memchr(r->at, '\n', left(r));
  if (!end) return bad(r, "it is cut off");
  TRY_NEW(*out, arena_strndup(r->arena, (const char *)r->at, (size_t)(end - r->at)));
  r->at = end + 1;
  return OK;
}

static Status push_text(PickleReader *r, PickleKind kind, int count_bytes) {
  uint64_t n;
  const unsigned char *p;
  PickleValue *v;
  char *text;
  TRY(take_uint(r, count_bytes, &n));
  TRY(take(r, n, &p));
  TRY(push_new(r, kind, &v));
  TRY_NEW(text, arena_alloc(r->arena, (size_t)n + 1));
  if (n) memcpy(text, p, (size_t)n);
  v->text = text;
  v->len = (size_t)n;
  return OK;
}

static Status push_int(PickleReader *r, int64_t i) {
  PickleValue *v;
  TRY(push_new(r, PICKLE_INT, &v));
  v->i = i;
  return OK;
}

/* Two's complement, little-endian, of any length; sizes and offsets fit 8 bytes. */
static Status push_long(PickleReader *r, int count_bytes) {
  uint64_t n, value = 0;
  const unsigned char *p;
  TRY(take_uint(r, count_bytes, &n));
  TRY(take(r, n, &p));
  if (n > 8) return bad(r, "an integer has more than 64 bits");
  if (n && p[n - 1] & 0x80) value = UINT64_MAX;
  for (uint64_t i = n; i-- > 0;) value = value << 8 | p[i];
  return push_int(r, (int64_t)value);
}

/* ---- containers ----------------------------------------------------------------------------------- */

static Status collect(PickleReader *r, PickleKind kind, int first, int n) {
  PickleValue *v;
  TRY(make(r, kind, &v));
  for (int i = 0; i < n; i++) TRY(append(r, v, r->stack[first + i]));
  return push(r, v);
}

/* The n topmost values, none of them a mark. */
static Status pop_some(PickleReader *r, int n) {
  for (int i = 1; i <= n; i++)
    if (i > r->depth || r->stack[r->depth - i]->kind == PICKLE_MARK) return bad(r, "the stack is empty");
  r->depth -= n;
  return OK;
}

static Status collect_top(PickleReader *r, PickleKind kind, int n) {
  TRY(pop_some(r, n));
  return collect(r, kind, r->depth, n);
}

static Status collect_marked(PickleReader *r, PickleKind kind) {
  int first, n;
  TRY(pop_mark(r, &first, &n));
  if (kind == PICKLE_DICT && n % 2) return bad(r, "a key lacks its value");
  return collect(r, kind, first, n);
}

/* Adds values to the container below them. */
static Status extend(PickleReader *r, PickleKind kind, int first, int n) {
  PickleValue *to;
  TRY(top(r, &to));
  if (to->kind != kind) return bad(r, "values are added to what cannot hold them");
  if (kind == PICKLE_DICT && n % 2) return bad(r, "a key lacks its value");
  for (int i = 0; i < n; i++) TRY(append(r, to, r->stack[first + i]));
  return OK;
}

static Status extend_marked(PickleReader *r, PickleKind kind) {
  int first, n;
  TRY(pop_mark(r, &first, &n));
  return extend(r, kind, first, n);
}

static Status extend_top(PickleReader *r, PickleKind kind, int n) {
  TRY(pop_some(r, n));
  return extend(r, kind, r->depth, n);
}

/* ---- globals and calls ------------------------------------------------------------------------------ */

static Status push_global(PickleReader *r, const char *module, const char *name) {
  PickleValue *v;
  TRY(push_new(r, PICKLE_GLOBAL, &v));
  if (pickle_find_global(module, name, v)) return OK;
  Status s = fail(ERR_FILE, "%s: the pickle names '%.100s.%.100s', which checkpoints of plain tensors do not have",
                  r->what, module, name);
  return status_hint(s, "nothing of it was executed; save plain tensors: torch.save(model.state_dict(), ...)");
}

static Status call(PickleReader *r) {
  PickleValue *function, *args, *v;
  TRY(pop(r, &args));
  TRY(pop(r, &function));
  if (function->kind != PICKLE_GLOBAL || args->kind != PICKLE_TUPLE)
    return bad(r, "something that is no known function is called");
  if (function->global == PG_SIZE && args->n == 1 &&
      (pickle_is(args->items[0], PICKLE_TUPLE) || pickle_is(args->items[0], PICKLE_LIST))) {
    TRY(push_new(r, PICKLE_TUPLE, &v));
    v->items = args->items[0]->items;
    v->n = args->items[0]->n;
    v->cap = v->n; /* the next item goes to memory of its own */
    return OK;
  }
  bool dict = function->global == PG_ORDERED_DICT || function->global == PG_DEFAULT_DICT ||
              function->global == PG_DICT;
  TRY(push_new(r, dict ? PICKLE_DICT : PICKLE_OBJECT, &v));
  v->global = function->global;
  v->dtype = function->dtype;
  if (!dict) v->args = args;
  return OK;
}

/* Attributes of a dict (the _metadata of a state_dict) are not looked at. */
static Status build(PickleReader *r) {
  PickleValue *state, *v;
  TRY(pop(r, &state));
  TRY(top(r, &v));
  if (v->kind == PICKLE_DICT) return OK;
  if (v->kind != PICKLE_OBJECT) return bad(r, "attributes of something that is no object");
  v->state = state;
  return OK;
}

static Status stack_global(PickleReader *r) {
  PickleValue *module, *name;
  TRY(pop(r, &name));
  TRY(pop(r, &module));
  if (name->kind != PICKLE_TEXT || module->kind != PICKLE_TEXT) return bad(r, "a global without a name");
  return push_global(r, module->text, name->text);
}

static Status named_global(PickleReader *r) {
  const char *module, *name;
  TRY(take_line(r, &module));
  TRY(take_line(r, &name));
  return push_global(r, module, name);
}

static Status stored(PickleReader *r) {
  PickleValue *id, *v;
  TRY(pop(r, &id));
  TRY(push_new(r, PICKLE_STORED, &v));
  return append(r, v, id);
}

/* ---- the machine ------------------------------------------------------------------------------------ */

static Status push_float(PickleReader *r) {
  const unsigned char *p;
  uint64_t bits = 0;
  PickleValue *v;
  TRY(take(r, 8, &p));
  for (int i = 0; i < 8; i++) bits = bits << 8 | p[i];
  TRY(push_new(r, PICKLE_FLOAT, &v));
  memcpy(&v->f, &bits, sizeof v->f);
  return OK;
}

static Status push_bool(PickleReader *r, bool b) {
  PickleValue *v;
  TRY(push_new(r, PICKLE_BOOL, &v));
  v->i = b;
  return OK;
}

static Status step_container(PickleReader *r, PickleOp op) {
  PickleValue *v;
  switch (op) {
    case OP_EMPTY_LIST: return push_new(r, PICKLE_LIST, &v);
    case OP_EMPTY_TUPLE: return push_new(r, PICKLE_TUPLE, &v);
    case OP_EMPTY_DICT: return push_new(r, PICKLE_DICT, &v);
    case OP_EMPTY_SET: return push_new(r, PICKLE_SET, &v);
    case OP_LIST: return collect_marked(r, PICKLE_LIST);
    case OP_TUPLE: return collect_marked(r, PICKLE_TUPLE);
    case OP_DICT: return collect_marked(r, PICKLE_DICT);
    case OP_FROZENSET: return collect_marked(r, PICKLE_SET);
    case OP_TUPLE1: return collect_top(r, PICKLE_TUPLE, 1);
    case OP_TUPLE2: return collect_top(r, PICKLE_TUPLE, 2);
    case OP_TUPLE3: return collect_top(r, PICKLE_TUPLE, 3);
    case OP_APPEND: return extend_top(r, PICKLE_LIST, 1);
    case OP_SETITEM: return extend_top(r, PICKLE_DICT, 2);
    case OP_APPENDS: return extend_marked(r, PICKLE_LIST);
    case OP_SETITEMS: return extend_marked(r, PICKLE_DICT);
    case OP_ADDITEMS: return extend_marked(r, PICKLE_SET);
    default: return bad(r, "an opcode without a meaning");
  }
}

static Status step_number(PickleReader *r, PickleOp op) {
  uint64_t n;
  switch (op) {
    case OP_BININT: TRY(take_uint(r, 4, &n)); return push_int(r, (int32_t)(uint32_t)n);
    case OP_BININT1: TRY(take_uint(r, 1, &n)); return push_int(r, (int64_t)n);
    case OP_BININT2: TRY(take_uint(r, 2, &n)); return push_int(r, (int64_t)n);
    case OP_LONG1: return push_long(r, 1);
    case OP_LONG4: return push_long(r, 4);
    case OP_BINFLOAT: return push_float(r);
    case OP_NEWTRUE: return push_bool(r, true);
    case OP_NEWFALSE: return push_bool(r, false);
    default: return step_container(r, op);
  }
}

static Status step_memo(PickleReader *r, PickleOp op) {
  uint64_t n;
  PickleValue *v;
  switch (op) {
    case OP_MEMOIZE: return put(r, (uint64_t)r->memos);
    case OP_BINPUT: TRY(take_uint(r, 1, &n)); return put(r, n);
    case OP_LONG_BINPUT: TRY(take_uint(r, 4, &n)); return put(r, n);
    case OP_BINGET: TRY(take_uint(r, 1, &n)); return get(r, n);
    case OP_LONG_BINGET: TRY(take_uint(r, 4, &n)); return get(r, n);
    case OP_POP: return r->depth ? (r->depth--, OK) : bad(r, "the stack is empty");
    case OP_DUP: TRY(top(r, &v)); return push(r, v);
    case OP_MARK: return push_new(r, PICKLE_MARK, &v);
    case OP_NONE: return push_new(r, PICKLE_NONE, &v);
    default: return step_number(r, op);
  }
}

static Status step(PickleReader *r, PickleOp op) {
  uint64_t n;
  switch (op) {
    case OP_PROTO: TRY(take_uint(r, 1, &n)); return n <= 5 ? OK : bad(r, "its protocol is newer than 5");
    case OP_FRAME: /* how many bytes to read ahead: all are here */
      TRY(take_uint(r, 8, &n));
      return n <= left(r) ? OK : bad(r, "it is cut off");
    case OP_BINUNICODE: return push_text(r, PICKLE_TEXT, 4);
    case OP_SHORT_BINUNICODE: return push_text(r, PICKLE_TEXT, 1);
    case OP_BINUNICODE8: return push_text(r, PICKLE_TEXT, 8);
    case OP_BINBYTES: return push_text(r, PICKLE_BYTES, 4);
    case OP_SHORT_BINBYTES: return push_text(r, PICKLE_BYTES, 1);
    case OP_BINBYTES8: return push_text(r, PICKLE_BYTES, 8);
    case OP_GLOBAL: return named_global(r);
    case OP_STACK_GLOBAL: return stack_global(r);
    case OP_NEWOBJ:
    case OP_REDUCE: return call(r);
    case OP_BUILD: return build(r);
    case OP_BINPERSID: return stored(r);
    default: return step_memo(r, op);
  }
}

static Status run(PickleReader *r, PickleValue **out) {
  for (;;) {
    const unsigned char *code;
    TRY(take(r, 1, &code));
    const PickleOpcode *op = pickle_find_opcode(*code);
    if (!op) return bad(r, "there is no such opcode");
    if (op->op == OP_REFUSED)
      return fail(ERR_FILE, "%s: the pickle has the opcode %s, which checkpoints of plain tensors do not have",
                  r->what, op->name);
    if (op->op == OP_STOP) break;
    TRY(step(r, op->op));
  }
  TRY(pop(r, out));
  if (r->depth) return bad(r, "values are left over");
  if (r->at != r->end) return bad(r, "bytes are left over");
  return OK;
}

Status pickle_read(const char *what, const void *data, size_t size, Arena *arena, PickleValue **out) {
  PickleReader r = {.what = what, .arena = arena, .begin = data, .before = arena->total};
  r.at = r.begin;
  r.end = r.begin + size;
  return run(&r, out);
}
