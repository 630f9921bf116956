/* mutate_json.c -- see mutate_json.h. */
#include "mutate_json.h"

#include <stdlib.h>
#include <string.h>

uint32_t choose(Choices *c, uint32_t n) {
  uint32_t v = 0;
  for (uint32_t reach = 1; reach < n && reach < 1u << 24; reach <<= 8)
    v = v << 8 | (c->at < c->size ? c->data[c->at++] : 0);
  return n ? v % n : 0;
}

bool choices_left(const Choices *c) { return c->at < c->size; }

/* A value of the document: what holds it, and the key that it stands behind. */
typedef struct {
  yyjson_mut_val *parent, *key, *value;
  uint32_t index;
} Place;

typedef struct {
  Place *place;
  uint32_t n, cap;
} Places;

static void add_place(Places *p, Place place) {
  if (p->n == p->cap) {
    p->cap = p->cap ? p->cap * 2 : 1024;
    p->place = realloc(p->place, p->cap * sizeof *p->place);
    if (!p->place) abort();
  }
  p->place[p->n++] = place;
}

/* Every value below v, in order.  Items of an array go by the key of the array. */
static void list_places(Places *p, yyjson_mut_val *v, yyjson_mut_val *under) {
  size_t i, max;
  yyjson_mut_val *key, *item;
  if (yyjson_mut_is_arr(v)) {
    yyjson_mut_arr_foreach(v, i, max, item) {
      add_place(p, (Place){v, under, item, (uint32_t)i});
      list_places(p, item, under);
    }
  } else if (yyjson_mut_is_obj(v)) {
    yyjson_mut_obj_foreach(v, i, max, key, item) {
      add_place(p, (Place){v, key, item, (uint32_t)i});
      list_places(p, item, key);
    }
  }
}

/* What v is becomes what `as` is; where v stands stays. */
static void become(yyjson_mut_doc *doc, yyjson_mut_val *v, yyjson_mut_val *as) {
  yyjson_mut_val *copy = yyjson_mut_val_mut_copy(doc, as);
  if (!copy) abort();
  v->tag = copy->tag;
  v->uni = copy->uni;
}

static bool same_key(const Place *a, const Place *b) {
  if (!a->key || !b->key) return a->key == b->key;
  size_t n = yyjson_mut_get_len(a->key);
  return n == yyjson_mut_get_len(b->key) && !memcmp(yyjson_mut_get_str(a->key), yyjson_mut_get_str(b->key), n);
}

/* Another place like this one: under the same key (how 1), of the same type (2), any (0). */
static const Place *another(const Places *p, const Place *like, int how, Choices *c) {
  uint32_t start = choose(c, p->n);
  for (uint32_t i = 0; how && i < p->n; i++) {
    const Place *at = &p->place[(start + i) % p->n];
    if (at == like) continue;
    if (how == 1 && same_key(at, like)) return at;
    if (how == 2 && yyjson_mut_get_type(at->value) == yyjson_mut_get_type(like->value)) return at;
  }
  return &p->place[start];
}

static int64_t odd_number(Choices *c, yyjson_mut_val *v) {
  static const int64_t odd[] = {0,
                                1,
                                -1,
                                2,
                                3,
                                4,
                                5,
                                7,
                                8,
                                9,
                                12,
                                16,
                                31,
                                64,
                                65,
                                100,
                                255,
                                1024,
                                4096,
                                65536,
                                INT32_MAX,
                                INT32_MIN,
                                1ll << 32,
                                1ll << 33,
                                -2,
                                -3,
                                1ll << 40,
                                1ll << 61,
                                -(1ll << 62),
                                INT64_MAX,
                                INT64_MIN,
                                INT64_MAX / 8};
  int64_t old = yyjson_mut_get_sint(v);
  switch (choose(c, 4)) {
    case 0: return (int64_t)((uint64_t)old + 1);
    case 1: return (int64_t)((uint64_t)old - 1);
    default: return odd[choose(c, sizeof odd / sizeof *odd)];
  }
}

static void set_plain(yyjson_mut_doc *doc, yyjson_mut_val *v, Choices *c) {
  static const char *const words[] = {
      "",        "x",   "../up",   "torch.ops.aten.add.Tensor", "s0 + 1", "Symbol('s0')", "\n%", "0", "u0",
      "as_none", "nan", "Infinity"};
  switch (choose(c, 8)) {
    case 0: yyjson_mut_set_null(v); break;
    case 1: yyjson_mut_set_bool(v, choose(c, 2)); break;
    case 2: yyjson_mut_set_real(v, (double)odd_number(c, v) + 0.5); break;
    case 3: yyjson_mut_set_str(v, words[choose(c, sizeof words / sizeof *words)]); break;
    case 4: become(doc, v, yyjson_mut_arr(doc)); break;
    case 5: become(doc, v, yyjson_mut_obj(doc)); break;
    default: yyjson_mut_set_sint(v, odd_number(c, v));
  }
}

static void take_out(const Place *p) {
  if (yyjson_mut_is_arr(p->parent)) yyjson_mut_arr_remove(p->parent, p->index);
  else yyjson_mut_obj_remove(p->parent, p->key);
}

/* Once more beside itself, where there is a list. */
static void twice(yyjson_mut_doc *doc, const Place *p) {
  yyjson_mut_val *copy = yyjson_mut_val_mut_copy(doc, p->value);
  if (!copy) abort();
  if (yyjson_mut_is_arr(p->parent)) yyjson_mut_arr_append(p->parent, copy);
  else yyjson_mut_obj_add(p->parent, yyjson_mut_val_mut_copy(doc, p->key), copy);
}

static void trade(yyjson_mut_val *a, yyjson_mut_val *b) {
  yyjson_mut_val old = *a;
  if (yyjson_mut_is_ctn(a) || yyjson_mut_is_ctn(b)) return; /* one might hold the other */
  a->tag = b->tag, a->uni = b->uni;
  b->tag = old.tag, b->uni = old.uni;
}

/* A value that is a number, near the chosen one. */
static const Place *a_number(const Places *p, const Place *from) {
  uint32_t start = (uint32_t)(from - p->place);
  for (uint32_t i = 0; i < p->n; i++) {
    const Place *at = &p->place[(start + i) % p->n];
    if (yyjson_mut_is_int(at->value)) return at;
  }
  return from;
}

static void change(yyjson_mut_doc *doc, const Places *all, const Place *p, Choices *c) {
  switch (choose(c, 20)) {
    case 0: set_plain(doc, p->value, c); break;
    case 1: take_out(p); break;
    case 2: twice(doc, p); break;
    case 3: become(doc, p->value, another(all, p, 0, c)->value); break;
    case 4: trade(p->value, another(all, p, 1, c)->value); break;
    case 5: trade(p->value, another(all, p, 2, c)->value); break;
    case 6: {
      const Place *q = another(all, p, 0, c);
      if (p->key && q->key) become(doc, p->key, q->key);
      break;
    }
    case 7:
    case 8:
    case 9:
    case 10: {
      const Place *q = a_number(all, p);
      yyjson_mut_set_sint(q->value, odd_number(c, q->value));
      break;
    }
    case 11: become(doc, p->value, another(all, p, 2, c)->value); break;
    default: /* most often what a reader takes */ become(doc, p->value, another(all, p, 1, c)->value);
  }
}

void mutate_json(yyjson_mut_doc *doc, Choices *c) {
  Places all = {0};
  list_places(&all, yyjson_mut_doc_get_root(doc), NULL);
  if (all.n) change(doc, &all, &all.place[choose(c, all.n)], c);
  free(all.place);
}
