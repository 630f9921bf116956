/* price_backward.h -- the backward of one call of a program that is priced (plan_price.h).
 *
 * The call is made once more under a tape, on the shards that its arguments are, and its gradient is recorded for
 * cotangents that lie as its results do.  So what the backward of a call costs follows from the same things as the
 * call itself, and is found once for all plans in which they are the same.
 *
 * I1  A cotangent that comes out partial is brought to where the argument lies, a gradient to where its parameter
 *     does.  For several uses of one value that is one redistribution: cotangents are added before they are
 * reduced.
 */
#ifndef TESS_RUNTIME_PRICE_BACKWARD_H
#define TESS_RUNTIME_PRICE_BACKWARD_H

#include "grad/tape.h"
#include "plan/mark.h"
#include "runtime/gradients.h"

typedef struct PriceBackward PriceBackward;

/* Lives in arena.  recorded: the program that calls are recorded in. */
Status price_backward_new(const Exported *e, const GradRequest *r, Exported *recorded, Arena *arena,
                          PriceBackward **out);
/* Is the gradient of this input of the graph wanted? */
bool price_backward_wants(const PriceBackward *b, int input);
/* Does the loss depend on a result of the node, and that on what has a gradient? */
bool price_backward_visits(const PriceBackward *b, const Node *n);

/* The call once more; nobody needs its results.  val[i]: which value the i-th tensor among the arguments is. */
Status price_backward_call(PriceBackward *b, Ctx *ctx, const Marks *marks, const Node *n, const Value *bound,
                           const Val *const *val, Arena *arena);
/* The way back through it.  An op that has no gradient costs nothing: whoever trains the program is told. */
Status price_backward_return(PriceBackward *b);
/* Lets go of the call, whether it succeeded or not. */
void price_backward_end(PriceBackward *b);

#endif
