/* rule.c -- the list of strategies that a rule makes; see rule.h. */
#include "ops/rule.h"

#include <string.h>

static Status list_add(Rules *r, StrategyList *list, const Placement *p, int n, bool exact, double extra) {
  TRY_NEW(list->v, arena_more(r->arena, list->v, list->n, &list->cap));
  Strategy *s = &list->v[list->n];
  TRY_NEW(s->place, arena_new_n(r->arena, Placement, n ? n : 1));
  if (n) memcpy(s->place, p, (size_t)n * sizeof *p);
  s->exact = exact;
  s->extra = extra;
  list->n++;
  return OK;
}

Status rule_axis(Rules *r, const Placement *p) { return list_add(r, &r->one, p, r->nout + r->nin, false, 0); }

Status rule_axis_exact(Rules *r, const Placement *p) { return list_add(r, &r->one, p, r->nout + r->nin, true, 0); }

Status rule_mesh(Rules *r, const Placement *p, double extra) {
  return list_add(r, &r->all, p, (r->nout + r->nin) * r->naxes, true, extra);
}

void rule_why(Rules *r, const char *why) { r->why = why; }

int rule_input(const Rules *r, int arg, int item) {
  for (TensorWalk w = call_inputs(r->call); tensor_next(&w);)
    if (w.arg == arg && w.item == item) return w.flat;
  return -1;
}

bool sharded_along(const Sharded *how, const Call *c, int arg, const bool *dims) {
  for (TensorWalk w = call_inputs(c); how->keep && tensor_next(&w);) {
    if (w.arg != arg) continue;
    for (int d = 0; d < w.tensor->ndim; d++)
      if (dims[d] && how->dims[w.flat] >> d & 1) return true;
  }
  return false;
}

/* ---- words ------------------------------------------------------------------------------ */

static void rule_letter(char letter, Placement *out) {
  switch (letter) {
    case 's': *out = place_p(REDUCE_SUM); return;
    case 'a': *out = place_p(REDUCE_AVG); return;
    case 'x': *out = place_p(REDUCE_MAX); return;
    case 'n': *out = place_p(REDUCE_MIN); return;
    case 'p': *out = place_p(REDUCE_PRODUCT); return;
    case 'r': *out = place_r(); return;
    default: *out = place_s(letter - '0'); return;
  }
}

/* The letter of position i in a word. */
static char letter_at(const char *word, int length, int i) { return word[i < length ? i : length - 1]; }

/* False if the word cuts a dimension that a tensor does not have. */
static bool read_placements(const Rules *r, const char *word, int length, Placement *p) {
  const Call *c = r->call;
  int at = 0, flat = 0;
  for (int i = 0; i < c->nout; i++, at++)
    if (c->out[i].kind == VAL_TENSOR) rule_letter(letter_at(word, length, at), &p[flat++]);
  for (int i = 0; i < c->op->schema.nparams; i++) {
    if (c->op->schema.params[i].type != TYPE_TENSOR) continue;
    const Value *v = &c->arg[i];
    char letter = letter_at(word, length, at++);
    for (TensorWalk w = tensors_of(v, 1); tensor_next(&w);) rule_letter(letter, &p[flat++]);
  }
  for (int i = 0; i < flat; i++) {
    const Tensor *t = i < r->nout ? r->out[i] : r->in[i - r->nout];
    if (is_s(&p[i]) && p[i].dim >= t->ndim) return false;
  }
  return flat == r->nout + r->nin;
}

Status rule_words(Rules *r, const char *text) {
  Placement *p;
  TRY_NEW(p, arena_new_n(r->arena, Placement, r->nout + r->nin + 1));
  for (const char *w = text; *w;) {
    bool offers = *w == '+';
    w += offers;
    int length = (int)strcspn(w, " ");
    bool fits = length && read_placements(r, w, length, p);
    if (fits && offers) TRY(rule_axis_exact(r, p));
    if (fits) TRY(rule_axis(r, p));
    w += length;
    w += strspn(w, " ");
  }
  return OK;
}

Status rule_grouped(Rules *r, const char *word, int64_t groups) {
  Placement *p;
  int64_t ranks = 1;
  TRY_NEW(p, arena_new_n(r->arena, Placement, r->nout + r->nin + 1));
  if (groups < 1 || !read_placements(r, word, (int)strlen(word), p)) return OK;
  for (int a = 0; a < r->naxes; a++) ranks *= r->axis[a];
  bool plain = true;
  for (int i = 0; i < r->nout + r->nin; i++) {
    const Tensor *t = i < r->nout ? r->out[i] : r->in[i - r->nout];
    if (!is_s(&p[i])) continue;
    if (t->size[p[i].dim] % groups || !t->size[p[i].dim]) return OK;
    p[i].unit = t->size[p[i].dim] / groups;
    plain &= p[i].unit == 1;
  }
  r->filled = true; /* no rank can do with no group */
  if (!plain && groups % ranks) return rule_axis_exact(r, p);
  for (int i = 0; i < r->nout + r->nin; i++)
    if (is_s(&p[i])) p[i].unit = 1;
  return plain ? rule_axis(r, p) : rule_axis_exact(r, p); /* a strided shard would cut groups */
}

/* ---- pointwise ------------------------------------------------------------------------ */

/* The dimension of a tensor with n dimensions that meets dimension d of one with ndim
 * under broadcasting; -1 if it has none there or spreads a single element. */
static int meets(const Tensor *t, int d, int ndim, int64_t size) {
  int at = d - (ndim - t->ndim);
  return at >= 0 && (t->size[at] == size && size != 1) ? at : at >= 0 && size == 1 ? at : -1;
}

/* One P strategy: outputs and the inputs in `mask` are P(op), the others R. */
static Status add_partial(Rules *r, ReduceOp op, unsigned mask) {
  Placement p[64];
  if (r->nout + r->nin > 64) return OK;
  for (int i = 0; i < r->nout; i++) p[i] = place_p(op);
  for (int i = 0; i < r->nin; i++) p[r->nout + i] = i < 32 && mask >> i & 1 ? place_p(op) : place_r();
  return rule_axis(r, p);
}

/* What passes, in words of rule_words(); here each fits calls of as many tensors. */
static const char *const partials[LINEAR_COUNT] = {
    [LINEAR_NO] = "",
    [LINEAR_UNARY] = "ss aa",
    [LINEAR_JOINT] = "sss aaa aar xxr nnr ara",
    [LINEAR_MULTI] = "ss aa ssr aar srs ara",
    [LINEAR_FIRST] = "ss aa ssr aar",
    [LINEAR_SHIFT] = "aa xx nn",
    [LINEAR_ALL] = "ss aa xx nn pp sss aaa xxx nnn",
    [LINEAR_NEG] = "ss aa nx xn",
    [LINEAR_CHOOSE] = "srss araa xrxx nrnn",
    [RISING] = "xx nn",
    [FALLING] = "nx xn",
    [RISING_BOTH] = "xxr xrx nnr nrn",
    [RISING_MAX] = "xxr xrx nnr nrn xxx",
    [RISING_MIN] = "xxr xrx nnr nrn nnn",
};

/* Do partial values stay what they are in another dtype?  A sum of bools is their `or`,
 * an average of integers is rounded, and ranks add complex numbers only. */
static bool owes_exactly(const Tensor *in, const Tensor *out, const Placement *p) {
  if (!is_p(p)) return true;
  if (in->dtype == DT_BOOL || out->dtype == DT_BOOL) return in->dtype == out->dtype && p->op != REDUCE_AVG;
  if (dtype_kind(out->dtype) == KIND_COMPLEX && p->op != REDUCE_SUM && p->op != REDUCE_AVG) return false;
  if (p->op == REDUCE_MAX || p->op == REDUCE_MIN) return true;
  if (dtype_is_integral(out->dtype) && !dtype_is_integral(in->dtype)) return false;
  return p->op != REDUCE_AVG || !dtype_is_integral(in->dtype);
}

Status rule_pointwise(Rules *r, Linear linear) {
  if (r->nout + r->nin > 64) return OK;
  const Tensor *o = r->nout ? r->out[0] : r->in[0];
  int n = r->nout + r->nin;
  Placement p[64];
  r->uneven = true;
  for (int d = 0; d < o->ndim; d++) {
    for (int i = 0; i < r->nout; i++) p[i] = place_s(d);
    for (int i = 0; i < r->nin; i++) {
      int at = meets(r->in[i], d, o->ndim, o->size[d]);
      p[r->nout + i] = at < 0 ? place_r() : place_s(at);
    }
    TRY(rule_axis(r, p));
  }
  if (!in_tensor(r->call, 0)) return OK; /* a number first: not the operand that the words mean */
  for (const char *w = partials[linear]; *w;) {
    int length = (int)strcspn(w, " ");
    bool exact = length == n;
    for (int i = 0; exact && i < n; i++) {
      rule_letter(w[i], &p[i]);
      exact = i < r->nout || owes_exactly(r->in[i - r->nout], r->out[0], &p[i]);
    }
    if (exact) TRY(rule_axis(r, p));
    w += length;
    w += strspn(w, " ");
  }
  return OK;
}

Status place_pointwise(Rules *r) { return rule_pointwise(r, r->call->op->def->shard.linear); }

/* ---- letters --------------------------------------------------------------------------- */

enum { MAX_WORDS = 16, MAX_LETTERS = 26 };

typedef struct {
  char letter[MAX_DIMS];
  bool whole[MAX_DIMS]; /* [k] */
  int n;
  bool broadcasts, joins;
} Word;

/* One word up to ',' or '-' or the end; text moves behind it. */
static Word read_word(const char **text) {
  Word w = {.n = 0};
  const char *t = *text;
  bool whole = false;
  for (; *t && *t != ',' && *t != '-'; t++) {
    if (*t == '*') w.broadcasts = true;
    else if (*t == '~') w.joins = true;
    else if (*t == '[') whole = true;
    else if (*t == ']') whole = false;
    else if (w.n < MAX_DIMS) {
      w.letter[w.n] = *t;
      w.whole[w.n++] = whole;
    }
  }
  if (*t == ',') t++;
  *text = t;
  return w;
}

/* Where a letter stands in a word, -1 if nowhere.  A broadcasting operand has fewer
 * dimensions, or single elements, at the front of the letters. */
static int find_letter(const Word *w, const Tensor *t, char letter) {
  int shift = w->n - t->ndim;
  for (int i = 0; i < w->n; i++) {
    int at = i - shift;
    if (w->letter[i] != letter || w->whole[i] || at < 0) continue;
    return w->broadcasts && t->size[at] == 1 ? -1 : at;
  }
  return -1;
}

static Status add_letter(Rules *r, const Word *in, const Word *out, char letter) {
  Placement p[2 * MAX_WORDS];
  bool kept = false, given = false;
  for (int i = 0; i < r->nout; i++) kept |= find_letter(&out[i], r->out[i], letter) >= 0;
  for (int i = 0; i < r->nin; i++) given |= find_letter(&in[i], r->in[i], letter) >= 0;
  if (!given) return OK; /* whole wherever it comes from */
  for (int i = 0; i < r->nout; i++) {
    int at = find_letter(&out[i], r->out[i], letter);
    p[i] = at >= 0 ? place_s(at) : kept ? place_r() : place_p(REDUCE_SUM);
  }
  for (int i = 0; i < r->nin; i++) {
    int at = find_letter(&in[i], r->in[i], letter);
    p[r->nout + i] = at >= 0 ? place_s(at) : !kept && in[i].joins ? place_p(REDUCE_SUM) : place_r();
  }
  return rule_axis(r, p);
}

/* No factor of a product, but what says how to make it. */
static bool is_whole(const Word *w) {
  for (int i = 0; i < w->n; i++)
    if (!w->whole[i]) return false;
  return w->n > 0;
}

Status rule_letters(Rules *r, const char *text, bool multilinear) {
  Word in[MAX_WORDS] = {{.n = 0}}, out[MAX_WORDS] = {{.n = 0}};
  char letters[MAX_LETTERS + 1] = {0};
  int nletters = 0, nin = 0, nout = 0;
  for (const char *t = text; *t;) {
    if (*t == '-') {
      for (t += 2; *t && nout < MAX_WORDS;) out[nout++] = read_word(&t);
      break;
    }
    if (nin == MAX_WORDS) break;
    in[nin++] = read_word(&t);
  }
  if (nin < r->nin || nout < r->nout)
    return op_fail(r->call, "the sharding rule '%s' does not fit %d inputs and %d outputs", text, r->nin, r->nout);
  for (int w = 0; w < nin + nout; w++) {
    const Word *word = w < nout ? &out[w] : &in[w - nout]; /* outputs first: PyTorch's order of strategies */
    for (int i = 0; i < word->n; i++)
      if (!word->whole[i] && !strchr(letters, word->letter[i]) && nletters < MAX_LETTERS)
        letters[nletters++] = word->letter[i];
  }
  for (int i = 0; i < nletters; i++) TRY(add_letter(r, in, out, letters[i]));
  unsigned joins = 0;
  for (int i = 0; i < r->nin; i++) joins |= in[i].joins ? 1u << i : 0;
  for (int i = 0; multilinear && i < r->nin; i++)
    TRY(in[i].joins || is_whole(&in[i]) ? OK : add_partial(r, REDUCE_SUM, 1u << i | joins));
  return OK;
}
