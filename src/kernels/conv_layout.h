/* conv_layout.h -- operands of a convolution in layouts that oneDNN takes.  Shared by the
 * conv_*.c files, nobody else's. */
#ifndef TESS_KERNELS_CONV_LAYOUT_H
#define TESS_KERNELS_CONV_LAYOUT_H

#include "kernels/conv.h"
#include "kernels/onednn.h"

enum { CONV_DIMS = 6 }; /* groups, two of channels, three spatial ones */

/* An operand as f32, contiguous or channels last. */
typedef struct {
  View v;                    /* as given */
  bool direct;               /* v can be used as it is */
  int64_t stride[CONV_DIMS]; /* of v, or of the contiguous copy to be made */
} Operand;

Operand operand_of(View v);
View operand_view(const Operand *o, void *data);
/* v's data, or a copy in scratch memory. */
Status operand_read(Kern *k, const Operand *o, void **data);
/* Where to write the result: v's data, or scratch memory for operand_store. */
Status operand_room(Kern *k, const Operand *o, void **data);
void operand_store(Kern *k, const Operand *o, void *data);
bool operand_is_contiguous(const Operand *o);

/* any: oneDNN chooses the layout. */
Status operand_desc(const Operand *o, bool any, OnednnDesc *out);
/* (oc, ic/g, k...) or, transposed, (ic, oc/g, k...) as oneDNN wants it: ([g,] oc/g, ic/g, k...). */
Status weights_desc(const ConvGeometry *g, const Operand *w, bool any, OnednnDesc *out);

/* Padding on the right that makes the sizes come out; surplus input needs none. */
void right_padding(const ConvGeometry *g, const int64_t *x, const int64_t *w, const int64_t *y, int64_t *right);

/* The reorder from our layout of a primitive's argument to the one it wants, or back;
 * *out stays NULL if they are the same.  bytes: size of the argument as it wants it. */
Status reorder_for(const OnednnPrim *prim, int arg, const OnednnDesc *ours, bool back, size_t *bytes,
                   OnednnPrim **out);
/* Runs it into scratch memory; *data moves there.  NULL: does nothing. */
Status reorder_run(Kern *k, OnednnPrim *reorder, size_t bytes, void **data);

int64_t view_numel(View v);

#endif
