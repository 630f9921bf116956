/* pickle_values.c -- names that pickles may have, and looking at values; see pickle.h. */
#include <stdio.h>
#include <string.h>

#include "ckpt/pickle_inside.h"
#include "tensor/tensor.h"

/* clang-format off */
static const PickleOpcode opcodes[] = {
#define UNDERSTOOD(byte, name) {byte, OP_##name, #name},
#define REFUSED(byte, name) {byte, OP_REFUSED, #name},
  PICKLE_OPCODES(UNDERSTOOD, REFUSED)
#undef UNDERSTOOD
#undef REFUSED
};

static const struct {
  const char *module, *name;
} globals[] = {
#define GLOBAL(id, module, name) {module, name},
#include "ckpt/pickle_globals.def"
#undef GLOBAL
};
/* clang-format on */
enum { OPCODES = sizeof opcodes / sizeof *opcodes, GLOBALS = sizeof globals / sizeof *globals };

/* Typed storages, by the names that torch.save gives them. */
static const struct {
  const char *name;
  Dtype dtype;
} storages[] = {
    {"FloatStorage", DT_F32},     {"DoubleStorage", DT_F64},       {"HalfStorage", DT_F16},
    {"BFloat16Storage", DT_BF16}, {"LongStorage", DT_I64},         {"IntStorage", DT_I32},
    {"ShortStorage", DT_I16},     {"CharStorage", DT_I8},          {"ByteStorage", DT_U8},
    {"BoolStorage", DT_BOOL},     {"ComplexFloatStorage", DT_C64}, {"ComplexDoubleStorage", DT_C128},
    {"UntypedStorage", DT_NONE},
};
enum { STORAGES = sizeof storages / sizeof *storages };

const char *pickle_storage_name(Dtype d) {
  for (int i = 0; i < STORAGES; i++)
    if (storages[i].dtype == d && d != DT_NONE) return storages[i].name;
  return NULL;
}

const PickleOpcode *pickle_find_opcode(unsigned char byte) {
  for (int i = 0; i < OPCODES; i++)
    if (opcodes[i].byte == byte) return &opcodes[i];
  return NULL;
}

static bool find_torch(const char *name, PickleValue *v) {
  for (int i = 0; i < STORAGES; i++) {
    if (strcmp(name, storages[i].name)) continue;
    v->global = PG_STORAGE;
    v->dtype = storages[i].dtype;
    return true;
  }
  for (int d = 0; d < DT_COUNT; d++) {
    if (strcmp(name, dtype_info[d].torch)) continue;
    v->global = PG_DTYPE;
    v->dtype = (Dtype)d;
    return true;
  }
  return false;
}

bool pickle_find_global(const char *module, const char *name, PickleValue *v) {
  v->dtype = DT_NONE;
  for (int i = 0; i < GLOBALS; i++) {
    if (strcmp(module, globals[i].module) || strcmp(name, globals[i].name)) continue;
    v->global = (PickleGlobal)i;
    return true;
  }
  return (!strcmp(module, "torch") || !strcmp(module, "torch.storage")) && find_torch(name, v);
}

/* "torch._utils._rebuild_tensor_v2" */
static const char *global_name(const PickleValue *v, char *buf, size_t cap) {
  const char *typed = pickle_storage_name(v->dtype), *storage = typed ? typed : "UntypedStorage";
  if (v->global < (PickleGlobal)GLOBALS)
    snprintf(buf, cap, "%s.%s", globals[v->global].module, globals[v->global].name);
  else snprintf(buf, cap, "torch.%s", v->global == PG_DTYPE ? dtype_info[v->dtype].torch : storage);
  return buf;
}

/* ---- looking -------------------------------------------------------------------------------------- */

bool pickle_is(const PickleValue *v, PickleKind kind) { return v && v->kind == kind; }

bool pickle_is_object(const PickleValue *v, PickleGlobal global) {
  return v && v->kind == PICKLE_OBJECT && v->global == global;
}

const PickleValue *pickle_member(const PickleValue *v, const char *name) {
  if (pickle_is(v, PICKLE_OBJECT)) v = v->state;
  if (!pickle_is(v, PICKLE_DICT)) return NULL;
  for (int i = 0; i + 1 < v->n; i += 2)
    if (pickle_is(v->items[i], PICKLE_TEXT) && !strcmp(v->items[i]->text, name)) return v->items[i + 1];
  return NULL;
}

bool pickle_sizes(const PickleValue *v, int *n, int64_t *size) {
  if (!pickle_is(v, PICKLE_TUPLE) && !pickle_is(v, PICKLE_LIST)) return false;
  if (v->n > MAX_DIMS) return false;
  for (int i = 0; i < v->n; i++) {
    if (!pickle_is(v->items[i], PICKLE_INT) || v->items[i]->i < 0) return false;
    size[i] = v->items[i]->i;
  }
  *n = v->n;
  return true;
}

/* ---- printing ------------------------------------------------------------------------------------- */

enum { DEEPEST = 20, LONGEST = 4000 };

static void print_text(TextBuf *b, const PickleValue *v) {
  char quote = strchr(v->text, '\'') && !strchr(v->text, '"') ? '"' : '\'';
  text_printf(b, "%s%c", v->kind == PICKLE_BYTES ? "b" : "", quote);
  for (size_t i = 0; i < v->len && i < LONGEST; i++) {
    unsigned char c = (unsigned char)v->text[i];
    if (c == (unsigned char)quote || c == '\\') text_printf(b, "\\%c", c);
    else if (c == '\n') text_puts(b, "\\n");
    else if (c < 0x20 || c == 0x7f || (c > 0x7f && v->kind == PICKLE_BYTES)) text_printf(b, "\\x%02x", c);
    else text_printf(b, "%c", c);
  }
  text_printf(b, "%c", quote);
}

static void print_value(TextBuf *b, const PickleValue *v, int depth);

static void print_items(TextBuf *b, const PickleValue *v, int depth, char open, char close) {
  text_printf(b, "%c", open);
  for (int i = 0; i < v->n && b->len < LONGEST; i++) {
    if (i) text_puts(b, v->kind == PICKLE_DICT && i % 2 ? ": " : ", ");
    print_value(b, v->items[i], depth + 1);
  }
  if (v->kind == PICKLE_TUPLE && v->n == 1) text_puts(b, ",");
  text_printf(b, "%c", close);
}

static void print_value(TextBuf *b, const PickleValue *v, int depth) {
  char name[200];
  if (depth > DEEPEST || b->len >= LONGEST) {
    text_puts(b, "...");
    return;
  }
  switch (v->kind) {
    case PICKLE_NONE: text_puts(b, "None"); break;
    case PICKLE_BOOL: text_puts(b, v->i ? "True" : "False"); break;
    case PICKLE_INT: text_int(b, v->i); break;
    case PICKLE_FLOAT: text_float(b, v->f); break;
    case PICKLE_TEXT:
    case PICKLE_BYTES: print_text(b, v); break;
    case PICKLE_LIST: print_items(b, v, depth, '[', ']'); break;
    case PICKLE_TUPLE: print_items(b, v, depth, '(', ')'); break;
    case PICKLE_SET:
    case PICKLE_DICT: print_items(b, v, depth, '{', '}'); break;
    case PICKLE_GLOBAL: text_puts(b, global_name(v, name, sizeof name)); break;
    case PICKLE_OBJECT:
      text_puts(b, global_name(v, name, sizeof name));
      if (v->args) print_value(b, v->args, depth + 1);
      break;
    case PICKLE_STORED:
    case PICKLE_MARK: text_puts(b, "..."); break;
  }
}

void pickle_print(TextBuf *b, const PickleValue *v) { print_value(b, v, 0); }
