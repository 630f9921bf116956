/* onednn.c -- see onednn.h. */
#include "kernels/onednn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define V3 (DNNL_VERSION_MAJOR >= 3)

/* ---- engine and errors ------------------------------------------------------ */

static struct {
  pthread_once_t once;
  dnnl_engine_t engine;
  dnnl_status_t status;
} shared = {.once = PTHREAD_ONCE_INIT};

/* oneDNN follows TESSERA_ISA, and version 2 is kept from AMX (I4), unless the user
 * speaks to it directly.  Must come before any other call to oneDNN. */
static void cap_isa(void) {
#ifdef TESS_X86
  if (getenv("ONEDNN_MAX_CPU_ISA") || getenv("DNNL_MAX_CPU_ISA")) return;
  static const dnnl_cpu_isa_t caps[] = {[ISA_BASE] = dnnl_cpu_isa_sse41,
                                        [ISA_AVX2] = dnnl_cpu_isa_avx2,
                                        [ISA_AVX512] = dnnl_cpu_isa_avx512_core_bf16};
  if (getenv("TESSERA_ISA")) {
    dnnl_set_max_cpu_isa(caps[isa_detect()]);
  } else if (!V3) {
    dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
  }
#endif
}

static void make_engine(void) {
  cap_isa();
  shared.status = dnnl_engine_create(&shared.engine, dnnl_cpu, 0);
}

static const char *reason(dnnl_status_t s) {
  switch (s) {
    case dnnl_out_of_memory: return "out of memory";
    case dnnl_invalid_arguments: return "invalid arguments";
    case dnnl_unimplemented: return "not implemented";
    case dnnl_runtime_error: return "runtime error";
    default: return "unexpected status";
  }
}

/* OK, or "oneDNN could not <what>: <why>". */
static Status onednn_check(dnnl_status_t status, const char *what) {
  if (status == dnnl_success) return OK;
  if (status == dnnl_out_of_memory) return fail_oom();
  return fail(ERR_FAIL, "oneDNN could not %s: %s", what, reason(status));
}

static Status onednn_engine(dnnl_engine_t *out) {
  pthread_once(&shared.once, make_engine);
  *out = shared.engine;
  return onednn_check(shared.status, "make its engine");
}

const char *onednn_version(char *buf, size_t cap) {
  const dnnl_version_t *v = dnnl_version();
  snprintf(buf, cap, "%d.%d.%d", v->major, v->minor, v->patch);
  return buf;
}

const char *onednn_isa(void) {
#ifdef TESS_X86
  static const struct {
    dnnl_cpu_isa_t isa;
    const char *name;
  } names[] = {
      {dnnl_cpu_isa_sse41, "sse41"},
      {dnnl_cpu_isa_avx, "avx"},
      {dnnl_cpu_isa_avx2, "avx2"},
      {dnnl_cpu_isa_avx2_vnni, "avx2_vnni"},
      {dnnl_cpu_isa_avx512_core, "avx512_core"},
      {dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni"},
      {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
  };
  dnnl_engine_t engine;
  Status s = onednn_engine(&engine); /* caps the ISA first */
  status_free(s);
  dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (names[i].isa == isa) return names[i].name;
  }
  return "beyond avx512_core_bf16";
#else
  return "its default";
#endif
}

/* ---- memory layouts --------------------------------------------------------- */

#if V3
typedef const_dnnl_memory_desc_t Ref;
static Ref ref(const OnednnDesc *d) { return d ? d->md : NULL; }
#else
typedef const dnnl_memory_desc_t *Ref;
static Ref ref(const OnednnDesc *d) { return d ? &d->md : NULL; }
#endif

static dnnl_data_type_t data_type(Dtype d) {
  switch (d) {
    case DT_F32: return dnnl_f32;
    case DT_I32: return dnnl_s32;
    case DT_I8: return dnnl_s8;
    case DT_U8: return dnnl_u8;
    default: return dnnl_data_type_undef;
  }
}

Status onednn_desc(OnednnDesc *d, Dtype dtype, int ndim, const int64_t *size, const int64_t *stride) {
  dnnl_dims_t dims = {0}, strides = {0};
  *d = (OnednnDesc){0};
  if (ndim < 1 || ndim > DNNL_MAX_NDIMS)
    return fail(ERR_FAIL, "oneDNN cannot describe a tensor of %d dimensions", ndim);
  for (int i = 0; i < ndim; i++) {
    dims[i] = size[i];
    if (stride) strides[i] = stride[i];
  }
  dnnl_status_t s;
#if V3
  s = stride ? dnnl_memory_desc_create_with_strides(&d->md, ndim, dims, data_type(dtype), strides)
             : dnnl_memory_desc_create_with_tag(&d->md, ndim, dims, data_type(dtype), dnnl_format_tag_any);
#else
  s = stride ? dnnl_memory_desc_init_by_strides(&d->md, ndim, dims, data_type(dtype), strides)
             : dnnl_memory_desc_init_by_tag(&d->md, ndim, dims, data_type(dtype), dnnl_format_tag_any);
#endif
  d->made = s == dnnl_success;
  return onednn_check(s, "describe a tensor");
}

void onednn_desc_free(OnednnDesc *d) {
#if V3
  if (d->made) dnnl_memory_desc_destroy(d->md);
#endif
  d->made = false;
}

size_t onednn_desc_bytes(const OnednnDesc *d) { return dnnl_memory_desc_get_size(ref(d)); }
bool onednn_desc_equal(const OnednnDesc *a, const OnednnDesc *b) {
  return dnnl_memory_desc_equal(ref(a), ref(b)) != 0;
}

/* ---- primitives ------------------------------------------------------------- */

/* Attributes with the scratchpad left to us (I2); post-ops may be added before use. */
static Status onednn_attr_new(dnnl_primitive_attr_t *out) {
  TRY(onednn_check(dnnl_primitive_attr_create(out), "make attributes"));
  dnnl_status_t s = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
  if (s != dnnl_success) dnnl_primitive_attr_destroy(*out);
  return onednn_check(s, "set the scratchpad mode");
}

static dnnl_status_t add_memory(OnednnPrim *p, dnnl_engine_t engine, int arg, dnnl_query_t what, int index,
                                size_t *bytes) {
  Ref md = dnnl_primitive_desc_query_md(p->pd, what, index);
  if (!md) return dnnl_invalid_arguments;
  if (bytes) *bytes = dnnl_memory_desc_get_size(md);
  dnnl_exec_arg_t *slot = &p->arg[p->nargs];
  slot->arg = arg;
  dnnl_status_t s = dnnl_memory_create(&slot->memory, md, engine, DNNL_MEMORY_NONE);
  if (s == dnnl_success) p->nargs++;
  return s;
}

/* Takes pd over, also when it fails.  args: DNNL_ARG_* in the order in which run gets
 * their data. */
static Status onednn_prim_new(dnnl_primitive_desc_t pd, const int *args, int nargs, OnednnPrim **out) {
  *out = NULL;
  OnednnPrim *p = calloc(1, sizeof *p);
  if (!p) {
    dnnl_primitive_desc_destroy(pd);
    return fail_oom();
  }
  p->pd = pd;
  dnnl_engine_t engine;
  Status s;
  TRY_GOTO(failed, onednn_engine(&engine));
  TRY_GOTO(failed, onednn_check(dnnl_primitive_create(&p->prim, pd), "make a primitive"));
  TRY_GOTO(failed,
           onednn_check(dnnl_stream_create(&p->stream, engine, dnnl_stream_default_flags), "make a stream"));
  for (int i = 0; i < nargs; i++) {
    TRY_GOTO(failed, onednn_check(add_memory(p, engine, args[i], dnnl_query_exec_arg_md, args[i], NULL),
                                  "make a memory object"));
  }
  TRY_GOTO(failed,
           onednn_check(add_memory(p, engine, DNNL_ARG_SCRATCHPAD, dnnl_query_scratchpad_md, 0, &p->scratch),
                        "size a scratchpad"));
  *out = p;
  return OK;
failed:
  onednn_prim_free(p);
  return s;
}

void onednn_prim_free(OnednnPrim *p) {
  if (!p) return;
  for (int i = 0; i < p->nargs; i++) dnnl_memory_destroy(p->arg[i].memory);
  if (p->stream) dnnl_stream_destroy(p->stream);
  if (p->prim) dnnl_primitive_destroy(p->prim);
  if (p->pd) dnnl_primitive_desc_destroy(p->pd);
  free(p);
}

Status onednn_prim_run(Kern *k, OnednnPrim *p, void *const *data) {
  size_t mark = kern_mark(k);
  void *scratch = NULL;
  if (p->scratch) TRY_NEW(scratch, kern_scratch(k, p->scratch));
  dnnl_status_t s = dnnl_success;
  for (int i = 0; i < p->nargs && s == dnnl_success; i++) {
    s = dnnl_memory_set_data_handle(p->arg[i].memory, i + 1 < p->nargs ? data[i] : scratch);
  }
  if (s == dnnl_success) s = dnnl_primitive_execute(p->prim, p->stream, p->nargs, p->arg);
  if (s == dnnl_success) s = dnnl_stream_wait(p->stream);
  kern_release(k, mark);
  return onednn_check(s, "run a primitive");
}

Status onednn_prim_desc(const OnednnPrim *p, int arg, OnednnDesc *out) {
  *out = (OnednnDesc){0};
  Ref md = dnnl_primitive_desc_query_md(p->pd, dnnl_query_exec_arg_md, arg);
  if (!md) return fail(ERR_FAIL, "oneDNN has no layout for argument %d", arg);
#if V3
  TRY(onednn_check(dnnl_memory_desc_clone(&out->md, md), "copy a layout"));
#else
  out->md = *md;
#endif
  out->made = true;
  return OK;
}

Status onednn_reorder_new(const OnednnDesc *from, const OnednnDesc *to, OnednnPrim **out) {
  static const int args[] = {DNNL_ARG_FROM, DNNL_ARG_TO};
  dnnl_engine_t engine;
  dnnl_primitive_attr_t attr;
  dnnl_primitive_desc_t pd;
  *out = NULL;
  TRY(onednn_engine(&engine));
  TRY(onednn_attr_new(&attr));
  dnnl_status_t s = dnnl_reorder_primitive_desc_create(&pd, ref(from), engine, ref(to), engine, attr);
  dnnl_primitive_attr_destroy(attr);
  TRY(onednn_check(s, "reorder a tensor"));
  return onednn_prim_new(pd, args, 2, out);
}

/* ---- convolutions ----------------------------------------------------------- */

typedef struct {
  dnnl_dims_t stride, dilate, left, right; /* oneDNN counts the holes: dilation - 1 */
} Window;

static Window window(const OnednnConv *c) {
  Window w = {0};
  for (int i = 0; i < c->nd; i++) {
    w.stride[i] = c->stride[i];
    w.dilate[i] = c->dilation[i] - 1;
    w.left[i] = c->pad_left[i];
    w.right[i] = c->pad_right[i];
  }
  return w;
}

#if V3
static dnnl_status_t conv_pd(const OnednnConv *c, const Window *w, dnnl_engine_t e, dnnl_primitive_attr_t attr,
                             dnnl_primitive_desc_t *pd) {
  Ref src = ref(c->src), wei = ref(c->weights), bias = ref(c->bias), dst = ref(c->dst);
  switch (c->kind) {
    case ONEDNN_CONV:
      return dnnl_convolution_forward_primitive_desc_create(pd, e, dnnl_forward_inference, dnnl_convolution_direct,
                                                            src, wei, bias, dst, w->stride, w->dilate, w->left,
                                                            w->right, attr);
    case ONEDNN_DECONV:
      return dnnl_deconvolution_forward_primitive_desc_create(pd, e, dnnl_forward_inference,
                                                              dnnl_deconvolution_direct, src, wei, bias, dst,
                                                              w->stride, w->dilate, w->left, w->right, attr);
    case ONEDNN_CONV_WEIGHTS:
      return dnnl_convolution_backward_weights_primitive_desc_create(
          pd, e, dnnl_convolution_direct, src, wei, bias, dst, w->stride, w->dilate, w->left, w->right, NULL, attr);
  }
  return dnnl_unimplemented;
}
#else
static dnnl_status_t conv_pd(const OnednnConv *c, const Window *w, dnnl_engine_t e, dnnl_primitive_attr_t attr,
                             dnnl_primitive_desc_t *pd) {
  Ref src = ref(c->src), wei = ref(c->weights), bias = ref(c->bias), dst = ref(c->dst);
  dnnl_convolution_desc_t d; /* deconvolutions use the same structure */
  dnnl_status_t s = dnnl_unimplemented;
  switch (c->kind) {
    case ONEDNN_CONV:
      s = dnnl_dilated_convolution_forward_desc_init(&d, dnnl_forward_inference, dnnl_convolution_direct, src, wei,
                                                     bias, dst, w->stride, w->dilate, w->left, w->right);
      break;
    case ONEDNN_DECONV:
      s = dnnl_dilated_deconvolution_forward_desc_init(&d, dnnl_forward_inference, dnnl_deconvolution_direct, src,
                                                       wei, bias, dst, w->stride, w->dilate, w->left, w->right);
      break;
    case ONEDNN_CONV_WEIGHTS:
      s = dnnl_dilated_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct, src, wei, bias, dst,
                                                              w->stride, w->dilate, w->left, w->right);
      break;
  }
  return s == dnnl_success ? dnnl_primitive_desc_create(pd, &d, attr, e, NULL) : s;
}
#endif

Status onednn_conv_new(const OnednnConv *c, OnednnPrim **out) {
  static const int args[3][4] = {
      [ONEDNN_CONV] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
      [ONEDNN_DECONV] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
      [ONEDNN_CONV_WEIGHTS] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS},
  };
  dnnl_engine_t engine;
  dnnl_primitive_attr_t attr;
  dnnl_primitive_desc_t pd;
  *out = NULL;
  TRY(onednn_engine(&engine));
  TRY(onednn_attr_new(&attr));
  Window w = window(c);
  dnnl_status_t s = conv_pd(c, &w, engine, attr, &pd);
  dnnl_primitive_attr_destroy(attr);
  if (s == dnnl_unimplemented || s == dnnl_invalid_arguments) return OK; /* negative padding and the like */
  TRY(onednn_check(s, "plan a convolution"));
  return onednn_prim_new(pd, args[c->kind], c->bias ? 4 : 3, out);
}

/* ---- matrix products -------------------------------------------------------- */

Status onednn_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  dnnl_engine_t engine;
  TRY(onednn_engine(&engine)); /* the instruction set is capped before the first use */
  return onednn_check(dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc),
                      "multiply matrices");
}
