/* load.c -- see load.h. */
#include "harness/load.h"

#include <string.h>

#include "base/file.h"
#include "graph/text.h"
#include "pt2/read.h"
#include "tensor/safetensors.h"

/* A zip archive starts with "PK"; the text form is text. */
static bool looks_like_text(const FileMap *f) {
  size_t n = f->size < 512 ? f->size : 512;
  for (size_t i = 0; i < n; i++) {
    unsigned char c = f->data[i];
    if (c == 0 || (c < 0x20 && c != '\n' && c != '\t' && c != '\r')) return false;
  }
  return n > 0 && !(f->data[0] == 'P' && n > 1 && f->data[1] == 'K') && f->data[0] != '{';
}

static Status weights_from_safetensors(Exported *e, const char *path) {
  SafeTensors *st;
  TRY(safetensors_open(path, &st));
  Status s = OK;
  for (int i = 0; i < e->nstate && !s; i++) {
    if (safetensors_find(st, e->state[i].fqn))
      s = safetensors_get(st, e->state[i].fqn, &e->scope, &e->state[i].tensor);
  }
  safetensors_close(st);
  return s;
}

static Status weights_from_pt2(Exported *e, const char *path) {
  Exported *other;
  TRY(pt2_read(path, &other));
  Status s = OK;
  for (int i = 0; i < e->nstate && !s; i++) {
    const StateEntry *from = exported_state(other, e->state[i].fqn);
    if (from && from->tensor) s = tensor_alias(&e->scope, from->tensor, &e->state[i].tensor);
  }
  exported_free(other);
  return s;
}

/* Every weight that the program takes is there, and is what the program says. */
static Status check_weights(const Exported *e, const char *path) {
  for (int i = 0; i < e->graph->ninputs; i++) {
    const Val *v = e->graph->inputs[i];
    const StateEntry *s = e->inputs[i].kind != IN_USER && e->inputs[i].target
                              ? exported_state(e, e->inputs[i].target)
                              : NULL;
    char buf[256];
    if (!s || v->type != TY_TENSOR) continue;
    if (!s->tensor) return fail(ERR_FILE, "'%s' has no %s '%s'", path, input_kind_name(e->inputs[i].kind), s->fqn);
    bool same = s->tensor->dtype == v->dtype && s->tensor->ndim == v->ndim;
    for (int d = 0; same && d < v->ndim; d++)
      same = !sym_is_int(v->size[d]) || v->size[d]->value == s->tensor->size[d];
    if (!same)
      return fail(ERR_FILE, "'%s': '%s' is %s, but the program says otherwise", path, s->fqn,
                  tensor_describe(s->tensor, buf, sizeof buf));
  }
  return OK;
}

static Status load_text(const FileMap *f, const char *path, const char *weights, Exported **out) {
  Status s = graph_parse((const char *)f->data, f->size, path, out);
  if (s)
    return status_hint(
        s, "a program is a .pt2 file that torch.export.save() wrote, or text as `tessera opt --print` prints it");
  if (!weights) return OK;
  size_t n = strlen(weights);
  bool safe = n > 12 && !strcmp(weights + n - 12, ".safetensors");
  s = safe ? weights_from_safetensors(*out, weights) : weights_from_pt2(*out, weights);
  if (!s) s = check_weights(*out, weights);
  if (s) exported_free(*out);
  return s;
}

Status program_load(const char *path, const char *weights, Exported **out) {
  FileMap *f;
  Status s = file_map(path, &f);
  if (s) return s;
  bool text = looks_like_text(f);
  if (text) s = load_text(f, path, weights, out);
  else if (weights) s = fail(ERR_USAGE, "--weights is for programs in text form: '%s' holds its own", path);
  file_map_unref(f);
  return text || s ? s : pt2_read(path, out);
}
