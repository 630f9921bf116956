/* blocks_inside.h -- what blocks.c (following tracks) and blocks_place.c (what they found, as
 * placements) share. */
#ifndef TESS_PLAN_BLOCKS_INSIDE_H
#define TESS_PLAN_BLOCKS_INSIDE_H

#include "plan/blocks.h"
#include "plan/track.h"

int blocks_group(const Blocks *b, int member);
/* The member that keeps what is known of these features. */
Member *blocks_keeper(const Blocks *b, int member);
/* Features [begin, end) are used in `count` equal pieces. */
Status member_add_span(Blocks *b, Member *m, int64_t begin, int64_t end, int64_t count);

#endif
