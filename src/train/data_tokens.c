/* data_tokens.c -- streams of tokens, cut into windows.
 *
 * A file is one stream: .npy (integers in one dimension), llm.c's .bin (256 numbers of 32 bits, then the tokens),
 * or nothing but tokens (as nanoGPT writes them).  Windows stand one behind the other and never reach over the end
 * of a file; what is left there is not used.  With two inputs the second window begins one token later, so the last
 * token of a file is only ever a label.
 */
#include <string.h>

#include "tensor/npy.h"
#include "train/data_inside.h"

enum { LLMC_HEADER = 256 * 4 };

/* llm.c's files: the first number, the second, and what the tokens are. */
static const struct {
  int32_t magic, version;
  Dtype dtype;
} llmc[] = {{20240520, 1, DT_U16}, {20240801, 7, DT_U32}};

typedef struct {
  const unsigned char *data;
  Dtype dtype;
  int64_t count;
} Stream;

static int32_t header_number(const FileMap *f, int i) {
  const unsigned char *p = f->data + 4 * (size_t)i;
  return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

static Status read_llmc(const FileMap *f, size_t kind, Stream *out) {
  int32_t version = header_number(f, 1);
  if (f->size < LLMC_HEADER) return fail(ERR_FILE, "%s ends early: in its header", f->path);
  if (version != llmc[kind].version) {
    return fail(ERR_FILE, "%s: version %d of llm.c's files with the number %d is not known (%d is)", f->path,
                (int)version, (int)llmc[kind].magic, (int)llmc[kind].version);
  }
  int64_t count = header_number(f, 2), have = (int64_t)(f->size - LLMC_HEADER);
  int64_t want = count * (int64_t)dtype_size(llmc[kind].dtype);
  if (count < 0) return fail(ERR_FILE, "%s: its header counts %lld tokens", f->path, (long long)count);
  if (want != have) {
    return fail(ERR_FILE,
                have < want ? "%s ends early: its header counts %lld tokens (%s), %lld bytes are there"
                            : "%s: its header counts %lld tokens (%s), %lld bytes are there",
                f->path, (long long)count, dtype_name(llmc[kind].dtype), (long long)have);
  }
  *out = (Stream){f->data + LLMC_HEADER, llmc[kind].dtype, count};
  return OK;
}

static Status read_array(const FileMap *f, Stream *out) {
  Npy a;
  TRY(npy_read(f, &a));
  if (a.ndim != 1) {
    char shape[128];
    return fail(ERR_FILE, "%s: a stream of tokens has one dimension, it has %s", f->path,
                shape_describe(a.ndim, a.size, shape, sizeof shape));
  }
  *out = (Stream){f->data + a.begin, a.dtype, a.size[0]};
  return OK;
}

static Status read_stream(const FileMap *f, Dtype raw, Stream *out) {
  size_t n = strlen(f->path), item = dtype_size(raw);
  if (!f->size) return fail(ERR_FILE, "%s is empty", f->path);
  if (n > 4 && !strcmp(f->path + n - 4, ".npy")) return read_array(f, out);
  for (size_t i = 0; f->size >= 8 && i < sizeof llmc / sizeof *llmc; i++) {
    if (header_number(f, 0) == llmc[i].magic) return read_llmc(f, i, out);
  }
  if (f->size % item) {
    return status_hint(fail(ERR_FILE, "%s ends in the middle of a token: %zu bytes, tokens of %zu (%s)", f->path,
                            f->size, item, dtype_info[raw].torch),
                       "say what its tokens are: --token-dtype uint8, uint16, uint32 ...");
  }
  *out = (Stream){f->data, raw, (int64_t)(f->size / item)};
  return OK;
}

/* ---- the inputs ------------------------------------------------------------------------------------- */

static Status token_dtype(const char *name, Dtype *out) {
  *out = name ? dtype_parse(name) : DT_U16;
  if (*out == DT_U16 || *out == DT_U32 || *out == DT_U64 || (*out != DT_NONE && dtype_is_int(*out))) return OK;
  return status_hint(fail(ERR_USAGE, "'%s' is no type of tokens", name), "uint8, uint16, uint32, int32 or int64");
}

/* Of "a,b". */
static Status token_columns(Data *d, DataColumn **columns, int *n) {
  const char *at = d->options.tokens;
  for (*n = 0;;) {
    size_t length = strcspn(at, ",");
    char *name;
    TRY_NEW(name, arena_strndup(&d->arena, at, length));
    DataColumn *c = data_column(d, name);
    if (!c) {
      Status s = fail(ERR_USAGE, "tokens are for the input '%s', which the program does not have", name);
      return data_hint_input(user_inputs_hint(s, d->program), d, name);
    }
    if (*n == 2 || (*n == 1 && columns[0] == c)) {
      return fail(ERR_USAGE, "'%s': tokens are for one input, or for two different ones: input_ids,labels",
                  d->options.tokens);
    }
    columns[(*n)++] = c;
    if (!at[length]) return OK;
    at += length + 1;
  }
}

static Status check_others(const Data *d, DataColumn *const *columns, int n) {
  for (int i = 0; i < d->ncolumns; i++) {
    const DataColumn *c = &d->columns[i];
    if (c == columns[0] || (n == 2 && c == columns[1])) continue;
    Status s = fail(ERR_USAGE, "the program has another input, '%s', which tokens do not give",
                    c->input->val->name);
    s = status_hint(s, "name it (--tokens input_ids,labels), or give all inputs in a .safetensors file");
    return user_inputs_hint(s, d->program);
  }
  return OK;
}

static Status choose_window(const Data *d, DataColumn *const *columns, int n, int64_t *out) {
  *out = d->options.window;
  for (int i = 0; i < n; i++) {
    const Val *v = columns[i]->input->val;
    if (v->type != TY_TENSOR || v->ndim != 2) {
      return user_inputs_hint(
          fail(ERR_USAGE, "the input '%s' is not of the size [batch, length], so it cannot hold windows of tokens",
               v->name),
          d->program);
    }
    if (!*out) TRY(data_size_of(d, v->size[1], out));
    if (sym_is_int(v->size[1]) && v->size[1]->value != *out) {
      return fail(ERR_USAGE, "the program's '%s' has %lld tokens, not %lld", v->name, (long long)v->size[1]->value,
                  (long long)*out);
    }
  }
  return *out > 0 ? OK : fail(ERR_USAGE, "windows have no tokens");
}

static Status add_windows(Data *d, const FileMap *f, Dtype raw, DataColumn **columns, int n, int64_t window) {
  int64_t shift = n == 2 && !d->options.unshifted;
  Stream s = {0};
  TRY(read_stream(f, raw, &s));
  int64_t windows = s.count > shift ? (s.count - shift) / window : 0;
  if (!windows) {
    return fail(ERR_FILE, "%s has %lld tokens, fewer than one window of %lld%s", f->path, (long long)s.count,
                (long long)window, shift ? " and the token behind it" : "");
  }
  for (int i = 0; i < n; i++) {
    const unsigned char *begin = s.data + (size_t)(i * shift) * dtype_size(s.dtype);
    DataPiece p = {.file = f, .data = begin, .dtype = s.dtype, .count = windows};
    TRY(data_add_piece(d, columns[i], &p, 1, &window));
  }
  return OK;
}

Status data_open_tokens(Data *d) {
  DataColumn *columns[2];
  int n;
  int64_t window;
  Dtype raw;
  TRY(token_dtype(d->options.token_dtype, &raw));
  TRY(token_columns(d, columns, &n));
  TRY(check_others(d, columns, n));
  TRY(choose_window(d, columns, n, &window));
  for (int i = 0; i < d->options.nfiles; i++) TRY(data_map_files(d, d->options.files[i]));
  for (int i = 0; i < d->nfiles; i++) TRY(add_windows(d, d->files[i], raw, columns, n, window));
  return OK;
}
