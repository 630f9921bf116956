/* generalize.h -- from several programs of fixed sizes back to one whose sizes are symbols.
 *
 * The programs are the same but for numbers: sizes of values, and integers in arguments.  A
 * number that differs is an expression in the symbols, found among the sizes that the
 * original program speaks of:
 *
 *     number = factor * (size // divisor) + offset
 *
 * and checked against every program.  In arguments it becomes a value that is computed from
 * the sizes of the inputs: sym_size, and _operator.* on it.
 *
 * I1  A number that no expression explains is an error that names the node.
 * I2  Linear in the program; expressions are looked for once per set of numbers.
 */
#ifndef TESS_PASSES_GENERALIZE_H
#define TESS_PASSES_GENERALIZE_H

#include "base/strmap.h"
#include "graph/graph.h"

enum { MAX_VARIANTS = 8 };

typedef struct {
  Exported *program[MAX_VARIANTS]; /* the first is changed, the others are compared with it */
  SymBindings at[MAX_VARIANTS];    /* its symbols, as program i has them */
  int n;
  const Sym *const *size; /* sizes that numbers may be made of, simple ones first; of program[0]'s table */
  int nsizes;
  const int64_t *divisor; /* 1 first */
  int ndivisors;
} Generalize;

/* User inputs of program[0] have their symbolic sizes already, and it has its ranges.  ERR_DYNAMIC if the programs
 * differ in more than numbers, ERR_FAIL (I1) if a number is not explained. */
Status generalize(const Generalize *g);

/* A copy of s in another table; a symbol becomes what the map says (its name -> const Sym *),
 * or stays. */
Status sym_rebuild(SymTable *t, const Sym *s, const StrMap *map, const Sym **out);

#endif
