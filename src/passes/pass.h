/* pass.h -- a pass is a function from a program to a program: a file, a row in
 * passes.def, and texts in tests/passes/.
 *
 * I1  A pass leaves the program in an order and form that graph_verify accepts.
 * I2  A pass that finds nothing to do changes nothing.
 * I3  Passes work on programs with symbolic sizes and on specialised ones alike; they
 *     read Val.dtype and Val.size, never Val.tensor (constants excepted).
 * I4  What a pass adds takes the metadata of what it replaces.
 * I5  A list of passes is checked as a whole, options included, before the first one runs.
 */
#ifndef TESS_PASSES_PASS_H
#define TESS_PASSES_PASS_H

#include "base/textbuf.h"
#include "graph/graph.h"

typedef enum {
  OPTION_INT,
  OPTION_NUMBER,
  OPTION_AUTO, /* a number, or `auto`, which is -1 */
  OPTION_TEXT, /* a word, or anything in double quotes */
  OPTION_FLAG, /* x, x=true, x=false */
} OptionType;

/* A row OPTION of passes.def. */
typedef struct {
  const char *pass, *name;
  OptionType type;
  const char *value; /* the default, as one would write it; NULL: it must be given */
  /* OPTION_INT: both are legal.  OPTION_NUMBER and OPTION_AUTO: must be above least. */
  double least, most;
  const char *what;
} PassOption;

typedef struct {
  const PassOption *option; /* NULL behind the last */
  bool given;               /* not the default */
  union {
    int64_t i;
    double f;
    const char *text;
    bool flag;
  };
} PassValue;

typedef struct {
  Ctx *ctx;                /* for passes that run ops (constant_fold) */
  const PassValue *values; /* one per option, checked, in the order of passes.def */
  TextBuf *stats;          /* one line per fact worth telling; NULL: nobody asks */
} PassArgs;

/* The value of an option of that type; every option of passes.def has one. */
int64_t pass_int(const PassArgs *args, const char *option);
double pass_number(const PassArgs *args, const char *option);
double pass_auto(const PassArgs *args, const char *option);
const char *pass_text(const PassArgs *args, const char *option);
bool pass_flag(const PassArgs *args, const char *option);

typedef Status PassFn(Exported *e, const PassArgs *args);

typedef struct {
  const char *name;
  PassFn *run;
  const char *summary;
} PassDef;

extern const PassDef pass_table[];
extern const int pass_count;
extern const PassOption pass_option_table[]; /* options of a pass stand together */
extern const int pass_option_count;

/* "a number above 0", "a whole number from 1 to 65536": what an option takes. */
void pass_option_range(TextBuf *b, const PassOption *o);

/* Cuts the next item, "name" or "name(options)", off a list of them, in place; commas in
 * parentheses and quotes do not count.  NULL at the end. */
char *pass_list_next(char **list);
/* No item of such a list is empty; an empty list is fine. */
Status pass_list_check(const char *list);

/* Every pass of "a,b(x=1,y),c" exists and takes its options; nothing is run.  ERR_USAGE
 * with the nearest name if not. */
Status pass_check_list(const char *list);

/* Runs the list in order, verifying after each. */
Status pass_run_list(Exported *e, const char *list, Ctx *ctx, TextBuf *stats);

#define PASS(name, summary) PassFn pass_##name;
#define OPTION(pass, name, type, value, least, most, what)
#include "passes/passes.def"
#undef PASS
#undef OPTION

#endif
