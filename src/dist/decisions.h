/* decisions.h -- sharding decisions, made once per kind of call.
 *
 * A call is looked up by op, specs (interned, so a pointer compare) and plain arguments; only a call
 * of a new kind is decided (propagate.h).
 */
#ifndef TESS_DIST_DECISIONS_H
#define TESS_DIST_DECISIONS_H

#include "dist/propagate.h"

typedef struct Decisions Decisions;

/* The decision for a call with a DTensor among its arguments; lives as long as the Dist, or until
 * decisions_forget().  ERR_DYNAMIC: the sizes of the results depend on elements. */
Status decision_find(Call *c, const Decision **out);

void decisions_forget(Dist *d);

#endif
