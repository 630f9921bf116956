/* gradient_options.c -- see gradient_options.h. */
#include "cli/gradient_options.h"

Status gradient_words_check(const GradientWords *w) {
  if (w->names || (!w->loss && !w->inputs)) return OK;
  return status_hint(fail(ERR_USAGE, "%s speaks of gradients", w->loss ? "--loss" : "--grad-inputs"),
                     "give --grad, too");
}

GradOptions gradient_words_ask(const GradientWords *w) {
  return (GradOptions){.loss = w->loss, .parameters = *w->names ? w->names : NULL, .inputs = w->inputs};
}
