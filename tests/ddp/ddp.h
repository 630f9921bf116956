/* ddp.h -- golden graphs of PyTorch's DDP fusion: read, compared, understood.  The format is
 * told in tests/golden/ddp/README.md. */
#ifndef TESS_TESTS_DDP_H
#define TESS_TESTS_DDP_H

#include "base/json.h"
#include "base/textbuf.h"
#include "passes/order.h"

/* A list of nodes as the golden files have it -> tessera's text form.  `order` (names) picks
 * and orders the nodes, later lists win over earlier ones of the same name; getitem nodes
 * become results of what they take apart. */
Status ddp_graph_text(yyjson_val *order, yyjson_val *const *lists, int nlists, TextBuf *out);

/* Equal up to names: the same nodes in the same order; says what differs.  With
 * `any_order` nodes may stand elsewhere. */
bool ddp_same_graph(const Exported *a, const Exported *b, bool any_order, TextBuf *why);

/* What the program computes and writes, as a number: equal for programs that do the same to
 * the same inputs, whether their gradients are reduced one by one or in buckets. */
Status ddp_meaning(Exported *e, uint64_t *out);

/* A program made at random, as text. */
Status ddp_random_text(uint64_t seed, TextBuf *out);

/* Some list of tensors that is reduced at once has several dtypes: gloo refuses it. */
bool ddp_mixes_dtypes(const Exported *e);

#endif
