/* pickle_inside.h -- what the parts of the reader of pickles share; see pickle.h. */
#ifndef TESS_CKPT_PICKLE_INSIDE_H
#define TESS_CKPT_PICKLE_INSIDE_H

#include "ckpt/pickle.h"

typedef struct {
  const char *what;
  Arena *arena;
  size_t before; /* what the arena had handed out when reading began */
  const unsigned char *begin, *at, *end;
  PickleValue **stack, **memo; /* memo: NULL where a number was left out */
  int depth, stack_cap, memos, memo_cap;
} PickleReader;

/* Every opcode of protocols 0 to 5: OPCODE(byte, name) is understood, REFUSED(byte, name) is not. */
#define PICKLE_OPCODES(OPCODE, REFUSED) \
  OPCODE(0x80, PROTO)                   \
  OPCODE(0x95, FRAME)                   \
  OPCODE('.', STOP)                     \
  OPCODE('(', MARK)                     \
  OPCODE('0', POP)                      \
  OPCODE('2', DUP)                      \
  OPCODE('N', NONE)                     \
  OPCODE(0x88, NEWTRUE)                 \
  OPCODE(0x89, NEWFALSE)                \
  OPCODE('J', BININT)                   \
  OPCODE('K', BININT1)                  \
  OPCODE('M', BININT2)                  \
  OPCODE(0x8a, LONG1)                   \
  OPCODE(0x8b, LONG4)                   \
  OPCODE('G', BINFLOAT)                 \
  OPCODE('X', BINUNICODE)               \
  OPCODE(0x8c, SHORT_BINUNICODE)        \
  OPCODE(0x8d, BINUNICODE8)             \
  OPCODE('B', BINBYTES)                 \
  OPCODE('C', SHORT_BINBYTES)           \
  OPCODE(0x8e, BINBYTES8)               \
  OPCODE(']', EMPTY_LIST)               \
  OPCODE('l', LIST)                     \
  OPCODE('a', APPEND)                   \
  OPCODE('e', APPENDS)                  \
  OPCODE(')', EMPTY_TUPLE)              \
  OPCODE('t', TUPLE)                    \
  OPCODE(0x85, TUPLE1)                  \
  OPCODE(0x86, TUPLE2)                  \
  OPCODE(0x87, TUPLE3)                  \
  OPCODE('}', EMPTY_DICT)               \
  OPCODE('d', DICT)                     \
  OPCODE('s', SETITEM)                  \
  OPCODE('u', SETITEMS)                 \
  OPCODE(0x8f, EMPTY_SET)               \
  OPCODE(0x90, ADDITEMS)                \
  OPCODE(0x91, FROZENSET)               \
  OPCODE('c', GLOBAL)                   \
  OPCODE(0x93, STACK_GLOBAL)            \
  OPCODE('R', REDUCE)                   \
  OPCODE(0x81, NEWOBJ)                  \
  OPCODE('b', BUILD)                    \
  OPCODE('Q', BINPERSID)                \
  OPCODE('q', BINPUT)                   \
  OPCODE('r', LONG_BINPUT)              \
  OPCODE(0x94, MEMOIZE)                 \
  OPCODE('h', BINGET)                   \
  OPCODE('j', LONG_BINGET)              \
  REFUSED('1', POP_MARK)                \
  REFUSED('F', FLOAT)                   \
  REFUSED('I', INT)                     \
  REFUSED('L', LONG)                    \
  REFUSED('S', STRING)                  \
  REFUSED('T', BINSTRING)               \
  REFUSED('U', SHORT_BINSTRING)         \
  REFUSED('V', UNICODE)                 \
  REFUSED('P', PERSID)                  \
  REFUSED('i', INST)                    \
  REFUSED('o', OBJ)                     \
  REFUSED('p', PUT)                     \
  REFUSED('g', GET)                     \
  REFUSED(0x82, EXT1)                   \
  REFUSED(0x83, EXT2)                   \
  REFUSED(0x84, EXT4)                   \
  REFUSED(0x92, NEWOBJ_EX)              \
  REFUSED(0x96, BYTEARRAY8)             \
  REFUSED(0x97, NEXT_BUFFER)            \
  REFUSED(0x98, READONLY_BUFFER)

/* clang-format off */
typedef enum {
#define UNDERSTOOD(byte, name) OP_##name,
#define UNKNOWN(byte, name)
  PICKLE_OPCODES(UNDERSTOOD, UNKNOWN)
#undef UNDERSTOOD
#undef UNKNOWN
  OP_REFUSED
} PickleOp;
/* clang-format on */

typedef struct {
  unsigned char byte;
  PickleOp op;
  const char *name;
} PickleOpcode;

const PickleOpcode *pickle_find_opcode(unsigned char byte); /* NULL: there is none */
/* Fills in what v stands for; false: it may not be named. */
bool pickle_find_global(const char *module, const char *name, PickleValue *v);

#endif
