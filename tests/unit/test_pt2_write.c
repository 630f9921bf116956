/* Writing .pt2 files: what is written of shared and partial weights, and what is refused. */
#include "base/textbuf.h"
#include "base/zip.h"
#include "pt2/read.h"
#include "pt2/write.h"
#include "unit.h"

#include <unistd.h>

static const char program[] =
    "program \"m\" torch \"2.13.0\" dialect TRAINING\n"
    "symbol s0 in [2, 64] hint 4\n"
    "graph(\n"
    "  %p_part: f32[4,2] = parameter \"part\",\n"
    "  %p_a: f32[3] = parameter \"a\" frozen,\n"
    "  %p_b: f32[3] = parameter \"b\",\n"
    "  %p_tied: f32[4,2] = parameter \"tied\",\n"
    "  %b_none: f32[0,3] = buffer \"none\",\n"
    "  %c: i64[] = tensor_constant \"c\",\n"
    "  %x: f32[s0,2] = user,\n"
    "  %power: none = constant 3\n"
    ") {\n"
    "  %n: int(s0) = aten.sym_size.int(%x, 0)\n"
    "  %ge: bool(s0 >= 2) = _operator.ge(%n, 2)\n"
    "  %half: float(float(s0)*0.5) = my.half(%n)\n"
    "  [%l0: f32[s0,1], %l1: f32[s0,1]] = my.list(%x, ints=[1, 2], mixed=[%n, 3], floats=[1.5, inf], none=[], "
    "tensors=[%x, None], nested=[[1], []], names=[\"a\"], flags=[true], where=device(\"cuda:1\"), z=(1.0-2.0j))\n"
    "  %y: f32[s0] = higher_order.cond(%ge, graph(%a: f32[s0,2]) {\n"
    "    %r: f32[s0] = my.first(%a)\n"
    "    return %r\n"
    "  }, graph(%a: f32[s0,2]) {\n"
    "    %r: f32[s0] = my.second(%a, memory_format=preserve, dtype=bf16, layout=strided)\n"
    "    return %r\n"
    "  }, [%x])\n"
    "  my.effect(%y, text=\"\\u00e9\\n\")\n"
    "  return buffer_mutation \"none\" %b_none, user %y, user 7, user None\n"
    "}\n";

typedef struct {
  char folder[256], path[300];
  Exported *e;
  Tensor *storage; /* 24 floats: 0, 1, 2 ... */
} Fixture;

static void set(Fixture *f, const char *fqn, int ndim, const int64_t *size, const int64_t *stride, int64_t offset) {
  for (int i = 0; i < f->e->nstate; i++) {
    if (strcmp(f->e->state[i].fqn, fqn)) continue;
    assert_ok(tensor_as_strided(&f->e->scope, f->storage, ndim, size, stride, offset, &f->e->state[i].tensor));
    return;
  }
  test_failed("no state '%s'", fqn);
}

static void begin(Fixture *f) {
  make_folder(f->folder, sizeof f->folder);
  snprintf(f->path, sizeof f->path, "%s/m.pt2", f->folder);
  assert_ok(graph_parse(program, strlen(program), "m.txt", &f->e));
  assert_ok(tensor_new(&f->e->scope, DT_F32, 1, (int64_t[]){24}, &f->storage));
  for (int i = 0; i < 24; i++) ((float *)tensor_data(f->storage))[i] = (float)i;
  /* Columns 2 and 3 of a [4,6] weight, twice; a and b overlap. */
  static const int64_t part[2] = {4, 2}, rows[2] = {6, 1}, three[1] = {3}, one[1] = {1};
  set(f, "part", 2, part, rows, 2);
  set(f, "tied", 2, part, rows, 2);
  Tensor *other;
  assert_ok(tensor_new(&f->e->scope, DT_F32, 1, (int64_t[]){8}, &other));
  memcpy(tensor_data(other), tensor_data(f->storage), 8 * sizeof(float));
  f->storage = other;
  set(f, "a", 1, three, one, 2);
  set(f, "b", 1, three, one, 4);
  assert_ok(tensor_new(&f->e->scope, DT_F32, 2, (int64_t[]){0, 3}, &f->storage));
  set(f, "none", 2, f->storage->size, f->storage->stride, 0);
  assert_ok(tensor_new(&f->e->scope, DT_I64, 0, NULL, &f->storage));
  *(int64_t *)tensor_data(f->storage) = 42;
  set(f, "c", 0, NULL, NULL, 0);
}

static void end(Fixture *f) {
  exported_free(f->e);
  remove_folder(f->folder);
}

static size_t entry_size(const char *path, const char *name) {
  Zip *z;
  assert_ok(zip_open(path, &z));
  const ZipEntry *e = zip_find(z, name);
  if (!e) test_failed("no entry '%s'", name);
  size_t size = (size_t)e->size;
  zip_close(z);
  return size;
}

static void reads_back(void **state) {
  (void)state;
  Fixture f;
  begin(&f);
  assert_ok(pt2_write(f.e, f.path, false));
  Exported *e;
  assert_ok(pt2_read(f.path, &e));
  assert_ok(graph_verify(e));
  TextBuf b = {0}, a = {0};
  graph_print(&a, f.e, (PrintOptions){0});
  graph_print(&b, e, (PrintOptions){0});
  assert_string_equal(a.text, b.text);
  text_free(&a);
  text_free(&b);

  /* Of the [4,6] weight only the two columns are in the file, once for both names. */
  assert_int_equal(entry_size(f.path, "m/data/weights/weight_0"), 8 * sizeof(float));
  const StateEntry *part = exported_state(e, "part"), *tied = exported_state(e, "tied");
  assert_ptr_equal(part->tensor->storage, tied->tensor->storage);
  assert_true(tensor_is_contiguous(part->tensor));
  static const float columns[8] = {2, 3, 8, 9, 14, 15, 20, 21};
  assert_memory_equal(tensor_data(part->tensor), columns, sizeof columns);

  /* Overlapping views still overlap; what neither reaches is left out. */
  const StateEntry *first = exported_state(e, "a"), *second = exported_state(e, "b");
  assert_int_equal(entry_size(f.path, "m/data/weights/weight_1"), 5 * sizeof(float));
  assert_ptr_equal((float *)tensor_data(first->tensor) + 2, tensor_data(second->tensor));
  assert_true(((float *)tensor_data(second->tensor))[0] == 4);
  assert_false(first->requires_grad);
  assert_true(second->requires_grad);
  assert_int_equal(*(int64_t *)tensor_data(exported_state(e, "c")->tensor), 42);
  exported_free(e);
  end(&f);
}

static void refuses(void **state) {
  (void)state;
  Fixture f;
  begin(&f);
  assert_ok(pt2_write(f.e, f.path, false));
  assert_error(pt2_write(f.e, f.path, false), "is there already");
  assert_ok(pt2_write(f.e, f.path, true));
  assert_error(pt2_write(f.e, "/nonexistent/m.pt2", false), "/nonexistent");

  Val *y = f.e->graph->outputs[1].val;
  int ndim = y->ndim;
  y->ndim = -1;
  assert_error(pt2_write(f.e, f.path, true), "the value y cannot be written");
  y->ndim = ndim;
  Tensor *kept = f.e->state[1].tensor;
  f.e->state[1].tensor = NULL;
  assert_error(pt2_write(f.e, f.path, true), "'a' has no data");
  f.e->state[1].tensor = kept;

  Exported *e; /* a failure leaves the file that was there */
  assert_ok(pt2_read(f.path, &e));
  exported_free(e);
  end(&f);
}

/* The pytree of the file is kept while it fits; else inputs and outputs become tuples. */
static void specs_follow_the_outputs(void **state) {
  (void)state;
  static const char spec[] =
      "[1, {\"type\": \"builtins.dict\", \"context\": \"[\\\"y\\\", \\\"k\\\", \\\"n\\\"]\", \"children_spec\": "
      "[{\"type\": null, \"context\": null, \"children_spec\": []}, {\"type\": null, \"context\": null, "
      "\"children_spec\": []}, {\"type\": null, \"context\": null, \"children_spec\": []}]}]";
  Fixture f;
  Exported *e;
  begin(&f);
  f.e->out_spec = spec;
  assert_ok(pt2_write(f.e, f.path, true));
  assert_ok(pt2_read(f.path, &e));
  assert_string_equal(e->out_spec, spec);
  assert_non_null(strstr(e->in_spec, "builtins.tuple"));
  exported_free(e);
  f.e->graph->noutputs--;
  assert_ok(pt2_write(f.e, f.path, true));
  assert_ok(pt2_read(f.path, &e));
  assert_null(strstr(e->out_spec, "dict"));
  exported_free(e);
  end(&f);
}

/* A call that gives a list of one tensor has a name of its own, also if the schema alone tells that it is a list:
 * PyTorch would find two nodes of one name. */
static void names_of_lists(void **state) {
  (void)state;
  static const char text[] =
      "program \"m\"\ngraph(%x: f32[2] = user) {\n"
      "  %g: f32[4] = _c10d_functional.all_gather_into_tensor_coalesced.default([%x], 2, \"dp\")\n"
      "  return user %g\n}\n";
  char folder[256], path[300];
  Exported *e;
  Zip *z;
  ZipData json;
  make_folder(folder, sizeof folder);
  snprintf(path, sizeof path, "%s/m.pt2", folder);
  assert_ok(graph_parse(text, strlen(text), "m.txt", &e));
  e->graph->first->outs_list = false;
  assert_ok(pt2_write(e, path, true));
  assert_ok(zip_open(path, &z));
  const ZipEntry *entry = NULL;
  for (int i = 0; i < z->count; i++)
    if (strstr(z->entries[i].name, "models/model.json")) entry = &z->entries[i];
  assert_non_null(entry);
  assert_ok(zip_read(z, entry, &json));
  char *copy = strndup((const char *)json.data, json.size);
  assert_non_null(strstr(copy, "\"all_gather_into_tensor_coalesced_call\""));
  free(copy);
  zip_data_free(&json);
  zip_close(z);
  exported_free(e);
  remove_folder(folder);
}

static bool always(void) { return true; }
static bool never(void) { return false; }

static void leaves_no_file_when_interrupted(void **state) {
  (void)state;
  Fixture f;
  begin(&f);
  assert_error(pt2_write_unless(f.e, f.path, false, always), "interrupted");
  assert_int_equal(access(f.path, F_OK), -1);
  assert_ok(pt2_write_unless(f.e, f.path, false, never));
  assert_int_equal(access(f.path, F_OK), 0);
  end(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_back),
      cmocka_unit_test(refuses),
      cmocka_unit_test(specs_follow_the_outputs),
      cmocka_unit_test(names_of_lists),
      cmocka_unit_test(leaves_no_file_when_interrupted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
