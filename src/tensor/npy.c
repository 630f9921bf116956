/* npy.c -- see npy.h. */
#include "tensor/npy.h"

#include <stdlib.h>
#include <string.h>

#include "base/scan.h"

enum { MAGIC = 6, LONGEST_WORD = 15, MAX_TEXT = 1 << 16 };

static Status fail_npy(const FileMap *f, const char *why) { return fail(ERR_FILE, "%s: %s", f->path, why); }

/* descr, without its byte order */
static const struct {
  const char *descr;
  Dtype dtype;
} kinds[] = {{"b1", DT_BOOL}, {"u1", DT_U8},  {"i1", DT_I8},  {"i2", DT_I16},  {"i4", DT_I32},
             {"i8", DT_I64},  {"u2", DT_U16}, {"u4", DT_U32}, {"u8", DT_U64},  {"f2", DT_F16},
             {"f4", DT_F32},  {"f8", DT_F64}, {"c8", DT_C64}, {"c16", DT_C128}};

static Status find_dtype(const FileMap *f, const char *descr, Dtype *out) {
  if (*descr == '>') {
    return status_hint(fail(ERR_FILE, "%s: its elements ('%s') are big endian", f->path, descr),
                       "save x.astype(x.dtype.newbyteorder('<'))");
  }
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if ((*descr != '<' && *descr != '|') || strcmp(descr + 1, kinds[i].descr)) continue;
    *out = kinds[i].dtype;
    return OK;
  }
  return fail(ERR_FILE, "%s: elements of the type '%s' are not supported", f->path, descr);
}

/* A text in quotes, without escapes. */
static bool read_word(const char **p, char *out) {
  scan_skip(p);
  char quote = **p;
  if (quote != '\'' && quote != '"') return false;
  const char *end = strchr(++*p, quote);
  if (!end || end - *p > LONGEST_WORD) return false;
  memcpy(out, *p, (size_t)(end - *p));
  out[end - *p] = 0;
  *p = end + 1;
  return true;
}

/* (), (3,), (3, 4): sizes as Python writes a tuple; 3L is from Python 2. */
static Status read_shape(const FileMap *f, const char **p, Npy *out) {
  out->ndim = 0;
  if (!scan_take(p, "(")) return fail_npy(f, "its header has no shape");
  while (!scan_take(p, ")")) {
    int64_t n = 0;
    scan_skip(p);
    if (!isdigit((unsigned char)**p)) return fail_npy(f, "a size in its header is not a number of 0 or more");
    for (; isdigit((unsigned char)**p); (*p)++) {
      if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, **p - '0', &n))
        return fail_npy(f, "a size in its header is too large");
    }
    if (**p == 'L') (*p)++;
    if (out->ndim == MAX_DIMS)
      return fail(ERR_FILE, "%s: its array has more than %d dimensions", f->path, (int)MAX_DIMS);
    out->size[out->ndim++] = n;
    if (!scan_take(p, ",") && (scan_skip(p), **p != ')')) return fail_npy(f, "its header has a broken shape");
  }
  return OK;
}

static Status read_text(const FileMap *f, const char *p, Npy *out) {
  bool descr = false, order = false, shape = false;
  char key[LONGEST_WORD + 1], word[LONGEST_WORD + 1];
  if (!scan_take(&p, "{")) return fail_npy(f, "its header is not a dictionary");
  while (!scan_take(&p, "}")) {
    if (!read_word(&p, key) || !scan_take(&p, ":")) return fail_npy(f, "its header is not a dictionary");
    if (!strcmp(key, "descr") && !descr) {
      if (!read_word(&p, word)) return fail_npy(f, "its elements are records; only plain numbers are supported");
      TRY(find_dtype(f, word, &out->dtype));
      descr = true;
    } else if (!strcmp(key, "fortran_order") && !order) {
      if (scan_take(&p, "True")) {
        return status_hint(fail_npy(f, "its array is in Fortran order (columns first)"),
                           "save numpy.ascontiguousarray(x)");
      }
      if (!scan_take(&p, "False")) return fail_npy(f, "'fortran_order' in its header is neither True nor False");
      order = true;
    } else if (!strcmp(key, "shape") && !shape) {
      TRY(read_shape(f, &p, out));
      shape = true;
    } else {
      return fail(ERR_FILE, "%s: its header has '%s', which does not belong there", f->path, key);
    }
    if (!scan_take(&p, ",") && (scan_skip(&p), *p != '}')) return fail_npy(f, "its header is not a dictionary");
  }
  scan_skip(&p);
  if (*p) return fail_npy(f, "its header goes on behind the dictionary");
  if (!descr || !order || !shape) return fail_npy(f, "its header must have 'descr', 'fortran_order' and 'shape'");
  return OK;
}

static Status check_bytes(const FileMap *f, const Npy *a) {
  int64_t n, bytes;
  if (!checked_numel(a->ndim, a->size, &n) || __builtin_mul_overflow(n, (int64_t)dtype_size(a->dtype), &bytes))
    return fail_npy(f, "its shape is larger than any file");
  char shape[128];
  uint64_t want = (uint64_t)bytes, have = f->size - a->begin;
  if (want == have) return OK;
  shape_describe(a->ndim, a->size, shape, sizeof shape);
  return fail(ERR_FILE,
              have < want ? "%s ends early: %s%s are %llu bytes, it has %llu behind its header"
                          : "%s: %s%s are %llu bytes, it has %llu behind its header",
              f->path, dtype_name(a->dtype), shape, (unsigned long long)want, (unsigned long long)have);
}

Status npy_read(const FileMap *f, Npy *out) {
  if (f->size < MAGIC + 4 || memcmp(f->data, "\x93NUMPY", MAGIC))
    return fail(ERR_FILE, "%s: not a .npy file: it does not begin as one", f->path);
  int version = f->data[MAGIC];
  size_t width = version == 1 ? 2 : 4, length = 0;
  if (version < 1 || version > 3)
    return fail(ERR_FILE, "%s: version %d of .npy is not supported (1 to 3 are)", f->path, version);
  out->begin = MAGIC + 2 + width;
  if (f->size < out->begin) return fail(ERR_FILE, "%s ends early: in its header", f->path);
  for (size_t i = width; i-- > 0;) length = length << 8 | f->data[MAGIC + 2 + i];
  if (length > f->size - out->begin) return fail(ERR_FILE, "%s ends early: in its header", f->path);
  if (length > MAX_TEXT) return fail_npy(f, "its header is too long for plain numbers");
  if (memchr(f->data + out->begin, 0, length)) return fail_npy(f, "its header has a zero byte");
  char *text;
  TRY_NEW(text, malloc(length + 1));
  memcpy(text, f->data + out->begin, length);
  text[length] = 0;
  out->begin += length;
  Status s = read_text(f, text, out);
  free(text);
  return s ? s : check_bytes(f, out);
}
