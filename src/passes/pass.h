/* pass.h -- a pass is a function from a program to a program: a file, a row in
 * passes.def, and texts in tests/passes/.
 *
 * I1  A pass leaves the program in an order and form that graph_verify accepts.
 * I2  A pass that finds nothing to do changes nothing.
 * I3  Passes work on programs with symbolic sizes and on specialised ones alike; they
 *     read Val.dtype and Val.size, never Val.tensor (constants excepted).
 * I4  What a pass adds takes the metadata of what it replaces.
 */
#ifndef TESS_PASSES_PASS_H
#define TESS_PASSES_PASS_H

#include "base/textbuf.h"
#include "graph/graph.h"

typedef struct {
  const char *name, *value; /* value "" for a bare word */
} PassOption;

typedef struct {
  Ctx *ctx; /* for passes that run ops (constant_fold) */
  const PassOption *options;
  int noptions;
  TextBuf *stats; /* one line per fact worth telling; NULL: nobody asks */
} PassArgs;

typedef Status PassFn(Exported *e, const PassArgs *args);

typedef struct {
  const char *name;
  PassFn *run;
  const char *options; /* "bucket_size_mb=25 (int): ...", "" if it takes none */
  const char *summary;
} PassDef;

extern const PassDef pass_table[];
extern const int pass_count;

const PassDef *pass_find(const char *name); /* NULL if unknown */

/* Runs "a,b(x=1,y),c" in order, verifying after each.  Unknown names are an error with
 * the nearest name. */
Status pass_run_list(Exported *e, const char *list, Ctx *ctx, TextBuf *stats);

#define PASS(name, options, summary) PassFn pass_##name;
#include "passes/passes.def"
#undef PASS

#endif
