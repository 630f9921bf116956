/* family.h -- handles on the same elements: a tensor, its views, and further handles of them; inside grad/.
 *
 * When an op writes in place, the gradient of every handle that sees the elements changes, not only of the one that
 * was written through.  The family knows the call that made the elements as they are now, and how often they were
 * written to; a handle that has seen fewer writes asks the family before its gradient is used (family_refresh).
 *
 * While every write went to all of the family's elements, that call is the last one.  A write to a part makes it a
 * call on the whole storage, as one dimension, of which each handle is a view by strides:
 *
 *     x = f(w); y = x[0]; y.mul_(2)
 *     storage = as_strided_scatter(zeros, x, where x lies)       recorded, never run
 *     storage = as_strided_scatter(storage, 2 * y, where y lies)
 *     x       = as_strided(storage, where x lies)                when x is used again
 *
 * I1  A handle without a family is the only one on its elements that a gradient is known of, or was cut off
 * (detach).
 */
#ifndef TESS_GRAD_FAMILY_H
#define TESS_GRAD_FAMILY_H

#include "grad/node.h"

/* Handle b is on elements of a. */
Status family_join(Tensor *a, Tensor *b);
/* t has a family that later handles can join. */
Status family_of(Tensor *t);
/* t's gradient, after writes through other handles. */
Status family_renew(Tape *tape, Tensor *t);
static inline Status family_refresh(Tape *tape, Tensor *t) { return t->family ? family_renew(tape, t) : OK; }

/* May a result that has a gradient be written to t?  Not to leaves that require a gradient, nor to views of them.
 */
Status family_check_write(const Call *c, Tensor *t);
/* t has been given the elements, and the gradient, of `from`. */
Status family_wrote(Tape *tape, Tensor *t, const Tensor *from);
/* Does some gradient flow through elements of t's family, though maybe not through t? */
bool family_has_gradient(const Tensor *t);
/* A leaf is made of t. */
void family_is_leaf(Tensor *t);

#endif
