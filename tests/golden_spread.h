/* golden_spread.h -- a golden case on several ranks: same result, wherever its tensors lie. */
#ifndef TESS_TESTS_GOLDEN_SPREAD_H
#define TESS_TESTS_GOLDEN_SPREAD_H

#include "comm/comm.h"
#include "golden_compare.h"

/* Runs the case on a mesh of `ranks` thread ranks (of 1 to 3 axes, any that divide them), its
 * tensors placed at random (by seed: R, shards of all kinds, P of all ops), and compares with
 * one rank.  The error names the
 * mesh and the placements.  *refused: the op declined (in place on what it would have to
 * move, an error on one rank too): nothing was compared.  grad: the gradients of the recorded cotangents,
 * which are placed at random too, instead of the results. */
Status golden_spread(const char *family, yyjson_val *json, const SafeTensors *data, int ranks, uint64_t seed,
                     bool grad, bool *refused);

/* The same as one rank of a world that is there; all of its ranks call it. */
Status golden_spread_on(World *w, const char *family, yyjson_val *json, const SafeTensors *data, uint64_t seed,
                        bool *refused);

#endif
