/* pickle_out.c -- see pickle_out.h. */
#include "ckpt/pickle_out.h"

#include <string.h>

#include "ckpt/pickle.h"
#include "tensor/tensor.h"

void pickle_op(TextBuf *b, char opcode) { text_write(b, &opcode, 1); }

void pickle_begin(TextBuf *b) { text_write(b, "\x80\x02", 2); }

void pickle_end(TextBuf *b) { pickle_op(b, '.'); }

static void put_uint(TextBuf *b, uint64_t u, int bytes) {
  for (int i = 0; i < bytes; i++) pickle_op(b, (char)(u >> (8 * i)));
}

void pickle_int(TextBuf *b, int64_t i) {
  if (i >= 0 && i < 256) pickle_op(b, 'K'), put_uint(b, (uint64_t)i, 1);
  else if (i >= INT32_MIN && i <= INT32_MAX) pickle_op(b, 'J'), put_uint(b, (uint64_t)i, 4);
  else text_write(b, "\x8a\x08", 2), put_uint(b, (uint64_t)i, 8); /* LONG1 of 8 bytes */
}

void pickle_text(TextBuf *b, const char *s) {
  pickle_op(b, 'X');
  put_uint(b, strlen(s), 4);
  text_puts(b, s);
}

void pickle_global(TextBuf *b, const char *module, const char *name) { text_printf(b, "c%s\n%s\n", module, name); }

void pickle_tuple(TextBuf *b, const int64_t *v, int n) {
  pickle_op(b, '(');
  for (int i = 0; i < n; i++) pickle_int(b, v[i]);
  pickle_op(b, 't');
}

void pickle_dtype(TextBuf *b, Dtype d) { pickle_global(b, "torch", dtype_info[d].torch); }

void pickle_tensor(TextBuf *b, Dtype d, const int64_t *size, int ndim) {
  const char *storage = pickle_storage_name(d);
  int64_t stride[MAX_DIMS], numel = 1;
  contiguous_strides(ndim, size, stride);
  for (int i = 0; i < ndim; i++) numel *= size[i];
  pickle_global(b, "torch._utils", storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  text_puts(b, "((");
  pickle_text(b, "storage");
  if (storage) pickle_global(b, "torch", storage);
  else pickle_global(b, "torch.storage", "UntypedStorage");
  pickle_text(b, "0");
  pickle_text(b, "cpu");
  pickle_int(b, storage ? numel : numel * (int64_t)dtype_size(d));
  text_puts(b, "tQ");
  pickle_int(b, 0);
  pickle_tuple(b, size, ndim);
  pickle_tuple(b, stride, ndim);
  text_puts(b, "\x89"); /* requires_grad: False */
  pickle_global(b, "collections", "OrderedDict");
  text_puts(b, ")R");
  if (!storage) pickle_dtype(b, d);
  text_puts(b, "tR");
}
