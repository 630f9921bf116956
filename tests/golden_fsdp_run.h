/* golden_fsdp_run.h -- PyTorch's recorded runs of fully_shard (fsdp/<case>.json), as golden_ddp_run has its cases.
 */
#ifndef TESS_TESTS_GOLDEN_FSDP_RUN_H
#define TESS_TESTS_GOLDEN_FSDP_RUN_H

#include "base/json.h"

/* {"mesh": "replica=2,dp=2", "fsdp": true, "optimizer": "SGD", "args": .., "accumulate": 1, "clip": ..,
 * "freeze": "blocks.0.*", "wrap": "..", "keep": true, "prefetch": 2, "reduce_f16": true,
 * "rows_per_rank": [..], "losses_per_rank": ..,
 * "grad_norms": ..}; NULL: it is none of a compiled step (other dtypes, an error, options of modules).  The caller
 * frees it. */
yyjson_mut_doc *golden_fsdp_run(yyjson_val *record);

#endif
