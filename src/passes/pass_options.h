/* pass_options.h -- the options of a pass from text to checked values. */
#ifndef TESS_PASSES_PASS_OPTIONS_H
#define TESS_PASSES_PASS_OPTIONS_H

#include "passes/pass.h"

/* "x=1, y" -> one value per option of the pass, defaults filled in.  Cuts `text` up in
 * place; the values point into it. */
Status pass_options_parse(Arena *arena, const char *pass, char *text, PassValue **out);

#endif
