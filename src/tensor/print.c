/* print.c -- see print.h. */
#include "tensor/print.h"

enum { EDGE = 3 };

static void print_element(TextBuf *b, Dtype d, const void *e) {
  switch (d) {
    case DT_BOOL: text_puts(b, *(const uint8_t *)e ? "true" : "false"); break;
    case DT_U8: text_printf(b, "%u", *(const uint8_t *)e); break;
    case DT_I8: text_printf(b, "%d", *(const int8_t *)e); break;
    case DT_I16: text_printf(b, "%d", *(const int16_t *)e); break;
    case DT_I32: text_printf(b, "%d", *(const int32_t *)e); break;
    case DT_I64: text_printf(b, "%lld", (long long)*(const int64_t *)e); break;
    case DT_F16: text_printf(b, "%.4g", (double)f16_to_f32(*(const uint16_t *)e)); break;
    case DT_BF16: text_printf(b, "%.4g", (double)bf16_to_f32(*(const uint16_t *)e)); break;
    case DT_F32: text_printf(b, "%.6g", (double)*(const float *)e); break;
    case DT_F64: text_printf(b, "%.9g", *(const double *)e); break;
    case DT_C64: text_printf(b, "%.6g%+.6gj", (double)((const float *)e)[0], (double)((const float *)e)[1]); break;
    default: text_puts(b, "?");
  }
}

static void print_dim(TextBuf *b, const Tensor *t, int dim, const char *data, bool edges) {
  if (dim == t->ndim) {
    print_element(b, t->dtype, data);
    return;
  }
  text_puts(b, "[");
  for (int64_t i = 0; i < t->size[dim]; i++) {
    if (i) text_puts(b, ", ");
    if (edges && i == EDGE && t->size[dim] > 2 * EDGE) {
      text_puts(b, "..., ");
      i = t->size[dim] - EDGE;
    }
    print_dim(b, t, dim + 1, data + (size_t)(i * t->stride[dim]) * dtype_size(t->dtype), edges);
  }
  text_puts(b, "]");
}

void tensor_print(TextBuf *b, const Tensor *t, int64_t limit) {
  char buf[256];
  text_printf(b, "%s ", tensor_describe(t, buf, sizeof buf));
  if (!tensor_data(t) && tensor_numel(t)) text_puts(b, "(no data)");
  else print_dim(b, t, 0, tensor_data(t), tensor_numel(t) > limit);
}
