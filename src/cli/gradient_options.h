/* gradient_options.h -- --grad, --loss and --grad-inputs, which several commands take. */
#ifndef TESS_CLI_GRADIENT_OPTIONS_H
#define TESS_CLI_GRADIENT_OPTIONS_H

#include "cli/cli.h"
#include "runtime/gradients.h"

typedef struct {
  const char *names; /* --grad: "" for all; NULL: no gradients */
  const char *loss;
  bool inputs;
} GradientWords;

/* Rows of a table of options; `words` is the GradientWords in the command's struct. */
#define GRADIENT_OPTIONS(Struct, words)                                                                             \
  {"--grad",  0,                                                                                                    \
   OPT_MAYBE, offsetof(Struct, words.names),                                                                        \
   "NAMES",   "the gradients of the loss, too, as grad/NAME: of all parameters, or of those that match, w.*,b"},    \
      {"--loss", 0,                                                                                                 \
       OPT_TEXT, offsetof(Struct, words.loss),                                                                      \
       "OUTPUT", "with --grad: which output is the loss, by name or position (default: the only one that can be)"}, \
  {                                                                                                                 \
    "--grad-inputs", 0, OPT_FLAG, offsetof(Struct, words.inputs), NULL,                                             \
        "with --grad: of floating-point inputs as well"                                                             \
  }

/* The other two need --grad. */
Status gradient_words_check(const GradientWords *w);
/* What they ask for; w->names is not NULL. */
GradOptions gradient_words_ask(const GradientWords *w);

#endif
