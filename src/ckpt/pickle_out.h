/* pickle_out.h -- pickles out, opcode by opcode, as pickle.h reads them. */
#ifndef TESS_CKPT_PICKLE_OUT_H
#define TESS_CKPT_PICKLE_OUT_H

#include "base/textbuf.h"
#include "tensor/dtype.h"

void pickle_begin(TextBuf *b); /* protocol 2 */
void pickle_end(TextBuf *b);
void pickle_op(TextBuf *b, char opcode);
void pickle_int(TextBuf *b, int64_t i);
void pickle_text(TextBuf *b, const char *s);
void pickle_global(TextBuf *b, const char *module, const char *name);
void pickle_tuple(TextBuf *b, const int64_t *v, int n);
void pickle_dtype(TextBuf *b, Dtype d);
/* A contiguous tensor whose storage is data/0, as torch.save writes it. */
void pickle_tensor(TextBuf *b, Dtype d, const int64_t *size, int ndim);

#endif
