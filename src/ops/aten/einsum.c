/* einsum.c -- einsum, tensordot and their kin, written with permute, reshape and bmm.
 *
 *     einsum("bqhd,bkhd->bhqk", [q, k])
 *
 * Every dimension of an operand has a label: a letter, or a number of its own for a
 * dimension that an ellipsis covers (counted from the right, so that they broadcast).
 * Operands are contracted from left to right, two at a time:
 *
 *     left  (batch, kept, summed)  x  right (batch, summed, kept)  ->  (batch, kept, kept)
 *
 * batch: in both and needed later.  summed: in both and not needed later.  What only one
 * side has and nobody needs later is summed before.
 */
#include <ctype.h>
#include <string.h>

#include "ops/op.h"

enum { LETTERS = 52, LABELS = LETTERS + MAX_DIMS };

/* A tensor whose dimension i has the label label[i]; no label twice. */
typedef struct {
  Tensor *t;
  int label[MAX_DIMS];
} Term;

static int letter_label(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' : c - 'a' + 26; }

/* Sizes of labels over all operands; 1 gives way to any other size. */
typedef struct {
  int64_t size[LABELS];
  int last[LABELS]; /* the last operand that has the label; nops if the result has it */
} Table;

/* ---- the equation --------------------------------------------------------------------- */

/* Labels of one subscript; an ellipsis stands for `dots` dimensions.  -1 in *n on an error. */
static int read_subscript(const char *text, size_t len, int dots, int *label) {
  int n = 0;
  for (size_t i = 0; i < len; i++) {
    if (text[i] == ' ') continue;
    if (text[i] == '.') {
      if (i + 2 >= len || text[i + 1] != '.' || text[i + 2] != '.' || dots < 0) return -1;
      for (int d = 0; d < dots && n < MAX_DIMS; d++) label[n++] = LETTERS + dots - 1 - d;
      dots = -1; /* only one */
      i += 2;
    } else {
      if (!isalpha((unsigned char)text[i]) || n == MAX_DIMS) return -1;
      label[n++] = letter_label(text[i]);
    }
  }
  return n;
}

static int count_letters(const char *text, size_t len) {
  int n = 0;
  for (size_t i = 0; i < len; i++) n += isalpha((unsigned char)text[i]) != 0;
  return n;
}

static bool has_dots(const char *text, size_t len) { return memchr(text, '.', len) != NULL; }

/* "ii": the diagonal, at the place of the first i. */
static Status take_diagonals(const Call *c, Term *x) {
  for (int i = 0; i < x->t->ndim; i++) {
    for (int j = i + 1; j < x->t->ndim; j++) {
      if (x->label[i] != x->label[j]) continue;
      Tensor *d, *moved;
      int label = x->label[i], n = x->t->ndim;
      if (x->t->size[i] != x->t->size[j])
        return op_fail(c, "a repeated subscript has sizes %lld and %lld", (long long)x->t->size[i],
                       (long long)x->t->size[j]);
      TRY(OP(c, "aten.diagonal.default", &d, val_tensor(x->t), val_int(0), val_int(i), val_int(j)));
      TRY(OP(c, "aten.movedim.int", &moved, val_tensor(d), val_int(-1), val_int(i)));
      for (int k = j; k + 1 < n; k++) x->label[k] = x->label[k + 1];
      x->label[i] = label;
      x->t = moved;
      j--;
    }
  }
  return OK;
}

static Status read_operand(const Call *c, const char *text, size_t len, Tensor *t, int at, Table *table,
                           Term *out) {
  int dots = has_dots(text, len) ? t->ndim - count_letters(text, len) : 0;
  out->t = t;
  int n = dots < 0 ? -1 : read_subscript(text, len, dots, out->label);
  if (n != t->ndim)
    return op_fail(c, "subscript '%.*s' does not fit an operand of %d dimensions", (int)len, text, t->ndim);
  TRY(take_diagonals(c, out));
  for (int i = 0; i < out->t->ndim; i++) {
    int l = out->label[i];
    int64_t size = out->t->size[i], *known = &table->size[l];
    if (*known > 1 && size > 1 && *known != size)
      return op_fail(c, "operand %d has size %lld where another has %lld", at, (long long)size, (long long)*known);
    if (*known < 0 || *known == 1) *known = size;
    table->last[l] = at;
  }
  return OK;
}

/* Explicit after "->"; else the ellipsis, then every letter that occurs once, in order. */
static Status read_result(const Call *c, const char *arrow, const char *inputs, size_t len, const Table *table,
                          int *label, int *n) {
  int dots = 0;
  while (dots < MAX_DIMS && table->size[LETTERS + dots] >= 0) dots++;
  *n = 0;
  if (arrow) {
    *n = read_subscript(arrow + 2, strlen(arrow + 2), dots, label);
    for (int i = 0; i < *n; i++) {
      if (table->size[label[i]] < 0) return op_fail(c, "the result has a subscript that no operand has");
    }
    return *n < 0 ? op_fail(c, "the result '%s' is no subscript", arrow + 2) : OK;
  }
  for (int d = dots - 1; d >= 0; d--) label[(*n)++] = LETTERS + d;
  for (int l = 0; l < LETTERS && *n < MAX_DIMS; l++) {
    int times = 0;
    for (size_t i = 0; i < len; i++) times += isalpha((unsigned char)inputs[i]) && letter_label(inputs[i]) == l;
    if (times == 1) label[(*n)++] = l;
  }
  return OK;
}

/* ---- contraction ---------------------------------------------------------------------- */

static int find_label(const Term *x, int label) {
  for (int i = 0; i < x->t->ndim; i++) {
    if (x->label[i] == label) return i;
  }
  return -1;
}

/* Sums what nobody after operand `at` needs and the other side does not have. */
static Status sum_unneeded(const Call *c, const Table *table, int at, const Term *other, Term *x) {
  int64_t dims[MAX_DIMS];
  int n = 0, kept = 0, label[MAX_DIMS];
  for (int i = 0; i < x->t->ndim; i++) {
    bool needed = table->last[x->label[i]] > at || (other && find_label(other, x->label[i]) >= 0);
    if (needed) label[kept++] = x->label[i];
    else dims[n++] = i;
  }
  if (!n) return OK;
  Tensor *t;
  TRY(OP(c, "aten.sum.dim_IntList", &t, val_tensor(x->t), val_ints(dims, n), val_bool(false),
         val_dtype(x->t->dtype)));
  x->t = t;
  memcpy(x->label, label, (size_t)kept * sizeof *label);
  return OK;
}

/* x as (product of a, product of b, product of d), its dimensions taken by label. */
static Status fold_to_3d(const Call *c, const Table *table, const Term *x, const int *const *groups,
                         const int *counts, Tensor **out) {
  int64_t perm[MAX_DIMS], size[MAX_DIMS], three[3];
  int n = 0;
  Tensor *p, *e;
  for (int g = 0; g < 3; g++) {
    three[g] = 1;
    for (int i = 0; i < counts[g]; i++) {
      int d = find_label(x, groups[g][i]);
      perm[n] = d;
      size[n++] = table->size[groups[g][i]];
      three[g] *= table->size[groups[g][i]];
    }
  }
  TRY(OP(c, "aten.permute.default", &p, val_tensor(x->t), val_ints(perm, n)));
  TRY(OP(c, "aten.expand.default", &e, val_tensor(p), val_ints(size, n)));
  return OP(c, "aten.reshape.default", out, val_tensor(e), val_ints(three, 3));
}

static Status contract(const Call *c, const Table *table, int at, Term *left, Term *right) {
  int batch[MAX_DIMS], summed[MAX_DIMS], only_left[MAX_DIMS], only_right[MAX_DIMS], nb = 0, ns = 0, nl = 0, nr = 0;
  TRY(sum_unneeded(c, table, at, right, left));
  TRY(sum_unneeded(c, table, at, left, right));
  for (int i = 0; i < left->t->ndim; i++) {
    int l = left->label[i];
    if (find_label(right, l) < 0) only_left[nl++] = l;
    else if (table->last[l] > at) batch[nb++] = l;
    else summed[ns++] = l;
  }
  for (int i = 0; i < right->t->ndim; i++) {
    if (find_label(left, right->label[i]) < 0) only_right[nr++] = right->label[i];
  }
  if (nb + nl + nr > MAX_DIMS) return op_fail(c, "more than %d dimensions on the way", MAX_DIMS);
  Tensor *a, *b, *product;
  TRY(fold_to_3d(c, table, left, (const int *const[]){batch, only_left, summed}, (int[]){nb, nl, ns}, &a));
  TRY(fold_to_3d(c, table, right, (const int *const[]){batch, summed, only_right}, (int[]){nb, ns, nr}, &b));
  TRY(OP(c, "aten.bmm.default", &product, val_tensor(a), val_tensor(b)));
  int64_t size[MAX_DIMS];
  int n = 0;
  for (int i = 0; i < nb; i++) left->label[n] = batch[i], size[n++] = table->size[batch[i]];
  for (int i = 0; i < nl; i++) left->label[n] = only_left[i], size[n++] = table->size[only_left[i]];
  for (int i = 0; i < nr; i++) left->label[n] = only_right[i], size[n++] = table->size[only_right[i]];
  return OP(c, "aten.view.default", &left->t, val_tensor(product), val_ints(size, n));
}

/* einsum(equation, tensors, path) */
static Status einsum_compose(Call *c) {
  const char *text = in_str(c, 0), *arrow = strstr(text, "->");
  size_t len = arrow ? (size_t)(arrow - text) : strlen(text);
  int nops = in_count(c, 1), nlabels;
  Term *terms;
  Table table;
  if (nops == 0) return op_fail(c, "needs at least one operand");
  memset(table.size, -1, sizeof table.size);
  memset(table.last, -1, sizeof table.last);
  TRY_NEW(terms, arena_new_n(c->arena, Term, nops));
  const char *at = text, *end = text + len;
  for (int i = 0; i < nops; i++) {
    const char *comma = memchr(at, ',', (size_t)(end - at));
    if ((i + 1 < nops) != (comma != NULL))
      return op_fail(c, "'%s' has not one subscript for each of the %d operands", text, nops);
    TRY(read_operand(c, at, (size_t)((comma ? comma : end) - at), in_item(c, 1, i), i, &table, &terms[i]));
    at = comma ? comma + 1 : end;
  }
  int label[MAX_DIMS];
  TRY(read_result(c, arrow, text, len, &table, label, &nlabels));
  for (int i = 0; i < nlabels; i++) table.last[label[i]] = nops;
  Term x = terms[0];
  for (int i = 1; i < nops; i++) TRY(contract(c, &table, i, &x, &terms[i]));
  TRY(sum_unneeded(c, &table, nops - 1, NULL, &x));
  int64_t perm[MAX_DIMS];
  if (x.t->ndim != nlabels) return op_fail(c, "'%s': the result has a subscript twice", text);
  for (int i = 0; i < nlabels; i++) perm[i] = find_label(&x, label[i]);
  Tensor *y;
  TRY(OP(c, "aten.permute.default", &y, val_tensor(x.t), val_ints(perm, nlabels)));
  return out_value(c, val_tensor(y));
}

/* tensordot(self, other, dims_self, dims_other): kept of self, then kept of other. */
static Status tensordot_compose(Call *c) {
  Ints da = in_ints(c, 2), db = in_ints(c, 3);
  Table table;
  Term x = {.t = in_tensor(c, 0)}, y = {.t = in_tensor(c, 1)};
  bool ma[MAX_DIMS], mb[MAX_DIMS];
  if (da.n != db.n) return op_fail(c, "%d dimensions of one side against %d of the other", da.n, db.n);
  TRY(wrap_dims(c, da, x.t->ndim, ma));
  TRY(wrap_dims(c, db, y.t->ndim, mb));
  memset(&table, 0, sizeof table);
  for (int i = 0; i < x.t->ndim; i++) x.label[i] = i;
  for (int i = 0; i < y.t->ndim; i++) y.label[i] = MAX_DIMS + i;
  for (int i = 0; i < da.n; i++) {
    int64_t a = da.v[i] < 0 ? da.v[i] + x.t->ndim : da.v[i], b = db.v[i] < 0 ? db.v[i] + y.t->ndim : db.v[i];
    if (x.t->size[a] != y.t->size[b] && x.t->size[a] != 1 && y.t->size[b] != 1)
      return op_fail(c, "contracted sizes %lld and %lld differ", (long long)x.t->size[a], (long long)y.t->size[b]);
    y.label[b] = (int)a;
  }
  for (int i = 0; i < x.t->ndim; i++) table.size[i] = x.t->size[i], table.last[i] = ma[i] ? 1 : 2;
  for (int i = 0; i < y.t->ndim; i++) {
    int l = y.label[i];
    if (table.size[l] <= 1) table.size[l] = y.t->size[i];
    if (!mb[i]) table.last[l] = 2;
  }
  TRY(contract(c, &table, 1, &x, &y));
  return out_value(c, val_tensor(x.t));
}

/* inner(self, other): sum over the last dimension of both. */
static Status inner_compose(Call *c) {
  Tensor *a = in_tensor(c, 0), *b = in_tensor(c, 1), *y;
  if (a->ndim == 0 || b->ndim == 0) TRY(OP(c, "aten.mul.Tensor", &y, val_tensor(a), val_tensor(b)));
  else
    TRY(OP(c, "aten.tensordot.default", &y, val_tensor(a), val_tensor(b), val_ints((int64_t[]){-1}, 1),
           val_ints((int64_t[]){-1}, 1)));
  return out_value(c, val_tensor(y));
}

/* kron(self, other): every element of self times other. */
static Status kron_compose(Call *c) {
  Tensor *a = in_tensor(c, 0), *b = in_tensor(c, 1), *p, *q, *m, *y;
  int n = a->ndim > b->ndim ? a->ndim : b->ndim;
  int64_t as[2 * MAX_DIMS], bs[2 * MAX_DIMS], size[MAX_DIMS];
  if (2 * n > MAX_DIMS) return op_fail(c, "operands of %d dimensions", n);
  for (int i = 0; i < n; i++) {
    int64_t sa = i < n - a->ndim ? 1 : a->size[i - (n - a->ndim)],
            sb = i < n - b->ndim ? 1 : b->size[i - (n - b->ndim)];
    as[2 * i] = sa;
    as[2 * i + 1] = bs[2 * i] = 1;
    bs[2 * i + 1] = sb;
    size[i] = sa * sb;
  }
  TRY(OP(c, "aten.reshape.default", &p, val_tensor(a), val_ints(as, 2 * n)));
  TRY(OP(c, "aten.reshape.default", &q, val_tensor(b), val_ints(bs, 2 * n)));
  TRY(OP(c, "aten.mul.Tensor", &m, val_tensor(p), val_tensor(q)));
  TRY(OP(c, "aten.reshape.default", &y, val_tensor(m), val_ints(size, n)));
  return out_value(c, val_tensor(y));
}

/* bilinear(input1 (..., i), input2 (..., j), weight (o, i, j), bias): sum_ij x1_i w_oij x2_j */
static Status bilinear_compose(Call *c) {
  Tensor *y, *z;
  Tensor *const ops[] = {in_tensor(c, 0), in_tensor(c, 2), in_tensor(c, 1)};
  TRY(OP(c, "aten.einsum.default", &y, val_str("...i,oij,...j->...o"), val_tensors(ops, 3)));
  if (in_none(c, 3)) return out_value(c, val_tensor(y));
  TRY(OP(c, "aten.add.Tensor", &z, val_tensor(y), val_tensor(in_tensor(c, 3))));
  return out_value(c, val_tensor(z));
}

/* _trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim): the product of three that broadcast,
 * each along the dimensions that it is expanded in, summed over sumdim. */
static Status trilinear_compose(Call *c) {
  bool summed[MAX_DIMS] = {false};
  char words[4 * (MAX_DIMS + 2)], *w = words;
  int n = in_tensor(c, 0)->ndim + in_ints(c, 3).n;
  Tensor *const ops[] = {in_tensor(c, 0), in_tensor(c, 1), in_tensor(c, 2)}, *y;
  for (int i = 0; i < 3; i++) {
    bool missing[MAX_DIMS] = {false};
    if (ops[i]->ndim + in_ints(c, 3 + i).n != n || n > MAX_DIMS)
      return op_fail(c, "expects operands that have %d dimensions together with those they are expanded in", n);
    TRY(wrap_dims(c, in_ints(c, 3 + i), n, missing));
    for (int d = 0; d < n; d++)
      if (!missing[d]) *w++ = (char)('a' + d);
    *w++ = i < 2 ? ',' : '-';
  }
  *w++ = '>';
  TRY(wrap_dims(c, in_ints(c, 6), n, summed));
  for (int d = 0; d < n; d++)
    if (!summed[d]) *w++ = (char)('a' + d);
  *w = 0;
  TRY(OP(c, "aten.einsum.default", &y, val_str(words), val_tensors(ops, 3)));
  return out_value(c, val_tensor(y));
}

const OpDef ops_einsum[] = {
    {.schema = "aten::einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor",
     .compose = einsum_compose},
    {.schema = "aten::tensordot(Tensor self, Tensor other, int[] dims_self, int[] dims_other) -> Tensor",
     .compose = tensordot_compose},
    {.schema = "aten::inner(Tensor self, Tensor other) -> Tensor", .compose = inner_compose},
    {.schema = "aten::kron(Tensor self, Tensor other) -> Tensor", .compose = kron_compose},
    {.schema = "aten::bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor",
     .compose = bilinear_compose},
    {.schema = "aten::_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, "
               "int[] sumdim, int unroll_dim=1) -> Tensor",
     .compose = trilinear_compose},
    {0},
};
