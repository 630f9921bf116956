/* train_output.h -- what `tessera train` leaves behind: weights, a program, a page. */
#ifndef TESS_CLI_TRAIN_OUTPUT_H
#define TESS_CLI_TRAIN_OUTPUT_H

#include "cli/train_options.h"

/* -o: the trained weights, or the program with them.  writes: this rank does; on a mesh the others help to gather
 * them.  (collective) */
Status train_write_output(Trainer *t, const TrainCommand *c, bool writes);
/* --report.  ended: why it is not going on, if that is news; NULL: it came to its end. */
Status train_write_report(Trainer *t, const TrainCommand *c, const LoopOptions *o, const LoopResult *r,
                          const char *ended);

#endif
