/* zip_record.h -- the bytes before and behind those of a tensor that make them a file of torch.save. */
#ifndef TESS_CKPT_ZIP_RECORD_H
#define TESS_CKPT_ZIP_RECORD_H

#include "base/textbuf.h"

/* The tensor's bytes begin at a multiple of 64 from the start of the record.  How long `before` and `after` are
 * does not depend on the crc. */
void zip_record(const TextBuf *pickle, uint64_t bytes, uint32_t crc, TextBuf *before, TextBuf *after);

#endif
