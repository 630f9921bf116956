/* starting_weights.c -- see starting_weights.h. */
#include "train/starting_weights.h"

#include <string.h>

#include "base/human.h"
#include "base/near.h"
#include "ckpt/derived.h"
#include "ckpt/sharded_save.h"
#include "train/output.h"

enum { SHOWN = 5 }; /* tensors that are named in an error */

typedef struct {
  const Trainer *t;
  const Derived *from;
  TrainState *state;
  int nstates;
  Scope scope;
  Arena arena;
  ShardItem *item; /* under the names of the source */
  int n;
  TextBuf wrong; /* a line each */
  int nwrong;
  const char *near; /* what the first that is missing may be called there */
} Loading;

/* Is the same memory filled under another name? */
static bool is_tied_to_another(const Loading *l, const TrainState *s) {
  for (int i = 0; i < l->nstates; i++) {
    const TrainState *o = &l->state[i];
    if (o != s && o->is_model && tensor_same_view(o->tensor, s->tensor) && derived_find(l->from, o->name))
      return true;
  }
  return false;
}

static void say_missing(Loading *l, const TrainState *s) {
  char here[200];
  if (!l->near)
    for (int i = 0; i < l->from->n; i++) l->near = nearer_name(s->name, l->near, l->from->v[i].name);
  if (l->nwrong++ < SHOWN)
    text_printf(&l->wrong, "\n       has no '%s', which the program has (%s)", s->name,
                tensor_describe(s->whole, here, sizeof here));
}

static void say_other(Loading *l, const TrainState *s, const DerivedTensor *from) {
  char here[200], there[200];
  if (l->nwrong++ < SHOWN)
    text_printf(&l->wrong, "\n       '%s' is %s%s, in the program it is %s", s->name, dtype_name(from->dtype),
                shape_describe(from->ndim, from->size, there, sizeof there),
                tensor_describe(s->whole, here, sizeof here));
}

static Status add_state(Loading *l, const TrainState *s) {
  const DerivedTensor *from = derived_find(l->from, s->name);
  Tensor *to;
  if (!from) {
    if (trainer_is_saved(l->t, s) && !is_tied_to_another(l, s)) say_missing(l, s);
    return OK;
  }
  if (from->ndim != s->whole->ndim ||
      (from->ndim && memcmp(from->size, s->whole->size, (size_t)from->ndim * sizeof *from->size)) ||
      dtype_is_float(from->dtype) != dtype_is_float(s->whole->dtype)) {
    say_other(l, s, from);
    return OK;
  }
  if (!tensor_data(s->tensor)) return OK;
  TRY(trainer_state_tensor(l->t, s, &l->scope, &to));
  l->item[l->n++] = (ShardItem){from->part[0]->name, to, NULL};
  return OK;
}

static Status report(const Loading *l, const char *path) {
  if (!l->nwrong) return OK;
  if (l->wrong.failed) return fail_oom();
  Status s = l->nwrong > SHOWN
                 ? fail(ERR_FILE, "%s does not fit the program: %d tensors do not%s\n       and %d more", path,
                        l->nwrong, l->wrong.text, l->nwrong - SHOWN)
                 : fail(ERR_FILE, "%s does not fit the program:%s", path, l->wrong.text);
  if (l->near) return status_hint(s, "it has '%s'; --init-rename FROM=TO maps its names to the program's", l->near);
  return s;
}

static Status load(Loading *l, Trainer *t, const char *path) {
  Mesh *mesh = trainer_mesh(t);
  Comm *c = NULL;
  TRY_NEW(l->state, arena_new_n(&l->arena, TrainState, trainer_states(t, NULL) + 1));
  l->nstates = trainer_states(t, l->state);
  TRY_NEW(l->item, arena_new_n(&l->arena, ShardItem, l->nstates + 1));
  for (int i = 0; i < l->nstates; i++)
    if (l->state[i].is_model) TRY(add_state(l, &l->state[i]));
  TRY(report(l, path));
  if (mesh) TRY(mesh_group(mesh, (1u << mesh->naxes) - 1, &c));
  trainer_was_written(t);
  return sharded_load(c, l->from->source[0], l->item, l->n, session_ctx(trainer_session(t))->kern.threads);
}

Status trainer_load_weights(Trainer *t, const StartingWeights *from) {
  const DeriveHow how = {
      .rename = from->rename, .renames = from->renames, .dtype = DT_NONE, .names = NAMES_OF_MODEL};
  Source *source;
  Derived *d = NULL;
  Loading l = {.t = t};
  TRY(source_open(from->path, &source));
  const Source *const one[] = {source};
  Status s = derive(one, 1, &how, &d);
  l.from = d;
  if (!s) s = load(&l, t, from->path);
  text_free(&l.wrong);
  scope_clear(&l.scope);
  arena_free(&l.arena);
  derived_free(d);
  source_close(source);
  return s;
}
