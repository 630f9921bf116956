/* .pt2 files: a small one made here, then the same with one thing changed at a time. */
#include "base/textbuf.h"
#include "base/zip.h"
#include "pt2/read.h"
#include "unit.h"

#define META(dtype, sizes, strides, offset)                                                                        \
  "{\"dtype\":" #dtype ",\"sizes\":" sizes ",\"requires_grad\":true,\"device\":{\"type\":\"cpu\",\"index\":null}," \
  "\"strides\":" strides ",\"storage_offset\":{\"as_int\":" #offset "},\"layout\":7}"
#define SYM "{\"as_expr\":{\"expr_str\":\"Symbol('s0', positive=True, integer=True)\",\"hint\":{\"as_int\":5}}}"
#define T(name) "{\"as_tensor\":{\"name\":\"" name "\"}}"
#define A(name, arg) "{\"name\":\"" name "\",\"arg\":" arg ",\"kind\":1}"

/* y = relu(x @ w + b); the buffer n counts; a constant input; a symbolic batch. */
static const char model_json[] =
    "{\"graph_module\":{\"graph\":{"
    "\"inputs\":[" T("p_w") "," T("p_b") "," T("b_n") "," T(
        "x") ",{\"as_int\":3}],"
             "\"outputs\":[" T("n_1") "," T("y") "," T(
                 "x") ",{\"as_none\":true},{\"as_int\":7}],"
                      "\"nodes\":["
                      "{\"target\":\"torch.ops.aten.sym_size.int\",\"inputs\":[" A("self", T("x")) "," A(
                          "dim",
                          "{\"as_int\":0}") "],"
                                            "\"outputs\":[{\"as_sym_int\":{\"as_name\":"
                                            "\"batch\"}}],\"metadata\":{}},"
                                            "{\"target\":\"torch.ops.my.addmm.default\","
                                            "\"inputs\":[" A("self", T("p_b")) "," A("mat1", T("x")) "," A(
                                                "mat2",
                                                T("p_w")) "],"
                                                          "\"outputs\":[" T(
                                                              "h") "],\"metadata\":{\"stack_trace\":\"File "
                                                                   "\\\"a.py\\\", line 3, in "
                                                                   "forward\",\"torch_fn\":\"f\"}},"
                                                                   "{\"target\":\"torch.ops.my.pair.default\","
                                                                   "\"inputs\":[" A(
                                                                       "self",
                                                                       T("h")) ","
                                                                               "{\"name\":\"k\",\"arg\":{\"as_sym_"
                                                                               "ints\":[{\"as_name\":\"batch\"},{"
                                                                               "\"as_int\":2}]},\"kind\":2},"
                                                                               "{\"name\":\"o\",\"arg\":{\"as_"
                                                                               "optional_tensors\":[{\"as_none\":"
                                                                               "true}," T(
                                                                                   "h") "]},\"kind\":2},"
                                                                                        "{\"name\":\"f\",\"arg\":{"
                                                                                        "\"as_float\":\"-"
                                                                                        "Infinity\"},\"kind\":2},"
                                                                                        "{\"name\":\"c\",\"arg\":{"
                                                                                        "\"as_complex\":{\"real\":"
                                                                                        "1.0,\"imag\":-2.0}},"
                                                                                        "\"kind\":2},"
                                                                                        "{\"name\":\"l\",\"arg\":{"
                                                                                        "\"as_int_lists\":[[1],[2,"
                                                                                        "3]]},\"kind\":2},"
                                                                                        "{\"name\":\"d\",\"arg\":{"
                                                                                        "\"as_device\":{\"type\":"
                                                                                        "\"cuda\",\"index\":1}},"
                                                                                        "\"kind\":2},"
                                                                                        "{\"name\":\"t\",\"arg\":{"
                                                                                        "\"as_scalar_type\":13},"
                                                                                        "\"kind\":2},"
                                                                                        "{\"name\":\"m\",\"arg\":{"
                                                                                        "\"as_memory_format\":2},"
                                                                                        "\"kind\":2}],"
                                                                                        "\"outputs\":[{\"as_"
                                                                                        "tensors\":[{\"name\":"
                                                                                        "\"y\"},{\"name\":\"n_1\"}]"
                                                                                        "}],\"metadata\":{}}"
                                                                                        "],"
                                                                                        "\"tensor_values\":{"
                                                                                        "\"p_w\":" META(
                                                                                            7,
                                                                                            "[{\"as_int\":2},{\"as_"
                                                                                            "int\":3}]",
                                                                                            "[{\"as_int\":1},{\"as_"
                                                                                            "int\":2}]",
                                                                                            9) ","
                                                                                               "\"p_b\":" META(
                                                                                                   7,
                                                                                                   "[{\"as_int\":3}"
                                                                                                   "]",
                                                                                                   "[{\"as_int\":1}"
                                                                                                   "]",
                                                                                                   0) ","
                                                                                                      "\"b_"
                                                                                                      "n\":" META(5, "[]", "[]", 0) ",\"n_1\":" META(
                                                                                                          5, "[]",
                                                                                                          "[]",
                                                                                                          0) ","
                                                                                                             "\"x\""
                                                                                                             ":" META(
                                                                                                                 7,
                                                                                                                 "[" SYM
                                                                                                                 ","
                                                                                                                 "{"
                                                                                                                 "\"as_int\":2}]",
                                                                                                                 "["
                                                                                                                 "{"
                                                                                                                 "\"as_int\":2},{\"as_int\":1}]",
                                                                                                                 0) ","
                                                                                                                    "\"h\":" META(
                                                                                                                        7,
                                                                                                                        "[" SYM
                                                                                                                        ",{\"as_int\":3}]",
                                                                                                                        "[{\"as_int\":3},{\"as_int\":1}]",
                                                                                                                        0) ","
                                                                                                                           "\"y\":" META(
                                                                                                                               7,
                                                                                                                               "[" SYM
                                                                                                                               ",{\"as_int\":3}]",
                                                                                                                               "[{\"as_int\":3},{\"as_int\":1}]",
                                                                                                                               0) ","
                                                                                                                                  "\"nobody\":" META(
                                                                                                                                      7,
                                                                                                                                      "[]",
                                                                                                                                      "[]",
                                                                                                                                      0) "},"
                                                                                                                                         "\"sym_int_values\":{\"batch\":" SYM
                                                                                                                                         "},\"sym_bool_values\":{},\"is_single_tensor_return\":false,"
                                                                                                                                         "\"custom_obj_values\":{},\"sym_float_values\":{}},"
                                                                                                                                         "\"signature\":{\"input_specs\":["
                                                                                                                                         "{\"parameter\":{\"arg\":{\"name\":\"p_w\"},\"parameter_name\":\"w\"}},"
                                                                                                                                         "{\"parameter\":{\"arg\":{\"name\":\"p_b\"},\"parameter_name\":\"b\"}},"
                                                                                                                                         "{\"buffer\":{\"arg\":{\"name\":\"b_n\"},\"buffer_name\":\"n\",\"persistent\":false}},"
                                                                                                                                         "{\"user_input\":{\"arg\":" T(
                                                                                                                                             "x") "}},"
                                                                                                                                                  "{\"constant_input\":{\"name\":\"power\",\"value\":{\"as_int\":3}}}],"
                                                                                                                                                  "\"output_specs\":["
                                                                                                                                                  "{\"buffer_mutation\":{\"arg\":{\"name\":\"n_1\"},\"buffer_name\":\"n\"}},"
                                                                                                                                                  "{\"user_output\":{\"arg\":" T("y") "}},{\"user_output\":{\"arg\":" T(
                                                                                                                                                      "x") "}},"
                                                                                                                                                           "{\"user_output\":{\"arg\":{\"as_none\":true}}},{\"user_output\":{\"arg\":{\"as_int\":7}}}]},"
                                                                                                                                                           "\"module_call_graph\":[{\"fqn\":\"\",\"signature\":{\"inputs\":[],\"outputs\":[],\"in_spec\":\"[1, 2]\","
                                                                                                                                                           "\"out_spec\":\"[1, 3]\",\"forward_arg_names\":[\"x\",\"power\"]}}],\"metadata\":{}},"
                                                                                                                                                           "\"opset_version\":{\"aten\":10},\"range_constraints\":{\"s0\":{\"min_val\":2,\"max_val\":null}},"
                                                                                                                                                           "\"schema_version\":{\"major\":8,\"minor\":20},\"verifiers\":[\"TRAINING\"],\"torch_version\":\"2.13.0\",\"guards_code\":[]}";

/* w and b lie in one record of 9 floats. */
static const char weights_json[] =
    "{\"config\":{\"w\":{\"path_name\":\"weight_0\",\"is_param\":true,\"use_pickle\":false,\"tensor_meta\":" META(
        7, "[{\"as_int\":2},{\"as_int\":3}]", "[{\"as_int\":1},{\"as_int\":2}]",
        3) "},"
           "\"b\":{\"path_name\":\"weight_0\",\"is_param\":true,\"use_pickle\":false,\"tensor_meta\":" META(
               7, "[{\"as_int\":3}]", "[{\"as_int\":1}]", 0) "}}}";

static const char constants_json[] =
    "{\"config\":{\"n\":{\"path_name\":\"tensor_0\",\"is_param\":false,\"use_pickle\":false,\"tensor_meta\":" META(
        5, "[]", "[]", 0) "}}}";

typedef struct {
  const char *name, *text;
  size_t size; /* 0: strlen */
} Entry;

enum { ENTRIES = 8 };
static const float weights[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
static const int64_t count[1] = {41};

static const Entry base[ENTRIES] = {
    {"m/data/weights/weight_0", (const char *)weights, sizeof weights},
    {"m/data/constants/tensor_0", (const char *)count, sizeof count},
    {"m/models/model.json", model_json, 0},
    {"m/data/weights/model_weights_config.json", weights_json, 0},
    {"m/data/constants/model_constants_config.json", constants_json, 0},
    {"m/archive_format", "pt2", 0},
    {"m/archive_version", "0", 0},
    {"m/byteorder", "little", 0},
};

static void write_archive(const char *path, const Entry *e, int n) {
  ZipOut *z;
  assert_ok(zip_out_open(path, FILE_OVERWRITE, &z));
  for (int i = 0; i < n; i++) {
    if (e[i].name) assert_ok(zip_out_add(z, e[i].name, e[i].text, e[i].size ? e[i].size : strlen(e[i].text)));
  }
  assert_ok(zip_out_commit(z));
}

/* ---- reading ------------------------------------------------------------------------------- */

static void reads_all(void **state) {
  (void)state;
  char folder[256], path[300];
  make_folder(folder, sizeof folder);
  snprintf(path, sizeof path, "%s/m.pt2", folder);
  write_archive(path, base, ENTRIES);
  Exported *e;
  assert_ok(pt2_read(path, &e));
  assert_ok(graph_verify(e));
  TextBuf b = {0};
  graph_print(&b, e, (PrintOptions){.meta = true});
  assert_string_equal(
      b.text, "program \"m\" torch \"2.13.0\" dialect TRAINING\n"
              "symbol s0 in [2, inf] hint 5\n"
              "in_spec \"[1, 2]\"\n"
              "out_spec \"[1, 3]\"\n"
              "arg_names [\"x\", \"power\"]\n"
              "graph(\n"
              "  %p_w: f32[2,3]{1,2} = parameter \"w\",\n"
              "  %p_b: f32[3] = parameter \"b\",\n"
              "  %b_n: i64[] = buffer \"n\" non_persistent,\n"
              "  %x: f32[s0,2] = user,\n"
              "  %power: none = constant 3\n"
              ") {\n"
              "  %batch: int(s0) = aten.sym_size.int(%x, 0)\n"
              "  %h: f32[s0,3] = my.addmm.default(self=%p_b, mat1=%x, mat2=%p_w) "
              "!{\"stack_trace\": \"File \\\"a.py\\\", line 3, in forward\", \"torch_fn\": \"f\"}\n"
              "  [%y: f32[s0,3], %n_1: i64[]] = my.pair.default(self=%h, k=[%batch, 2], o=[None, %h], f=-inf, "
              "c=(1.0-2.0j), l=[[1], [2, 3]], d=device(\"cuda:1\"), t=bf16, m=channels_last)\n"
              "  return buffer_mutation \"n\" %n_1, user %y, user %x, user None, user 7\n"
              "}\n");
  text_free(&b);

  const StateEntry *w = exported_state(e, "w"), *bias = exported_state(e, "b"), *n = exported_state(e, "n");
  assert_string_equal(w->record, bias->record); /* they share a record, and its bytes */
  assert_ptr_equal(w->tensor->storage, bias->tensor->storage);
  assert_true(w->is_parameter && w->requires_grad && !w->is_constant);
  assert_true(n->is_constant && !n->is_parameter);
  assert_true(((float *)tensor_data(w->tensor))[0] == 4);
  assert_int_equal(*(int64_t *)tensor_data(n->tensor), 41);

  /* A tensor outlives the program that it came from. */
  Scope scope = {0};
  Tensor *kept;
  assert_ok(tensor_alias(&scope, w->tensor, &kept));
  exported_free(e);
  assert_true(((float *)tensor_data(kept))[0] == 4);
  scope_clear(&scope);
  remove_folder(folder);
}

/* ---- errors -------------------------------------------------------------------------------- */

/* Replaces the n-th occurrence (from 0) of `from` in a copy of text. */
static char *replace(const char *text, const char *from, const char *to, int n) {
  const char *at = strstr(text, from);
  for (; at && n > 0; n--) at = strstr(at + 1, from);
  if (!at) test_failed("'%s' is not in the text", from);
  char *out = malloc(strlen(text) + strlen(to) + 1);
  sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  return out;
}

enum { MODEL = 2, WEIGHTS = 3, CONSTANTS = 4, FORMAT = 5, VERSION = 6, ORDER = 7 };

static const struct {
  int entry;
  const char *from, *to;
  int n;
  const char *message;
} changes[] = {
    {VERSION, "0", "1", 0, "the archive version is '1'"},
    {ORDER, "little", "big", 0, "big-endian"},
    {FORMAT, "pt2", "zip", 0, "not a .pt2 file"},
    {MODEL, "\"major\":8", "\"major\":9", 0, "the schema version is 9.20"},
    {MODEL, "\"major\":8", "\"major\":9", 0, "newer than this program"},
    {MODEL, "\"major\":8", "\"major\":7", 0, "export the model again with PyTorch 2.9"},
    {MODEL, "{\"graph_module\"", "{graph_module", 0, "not valid JSON"},
    {MODEL, "\"graph\":{", "\"grape\":{", 0, "'graph' is missing"},
    {MODEL, "\"dtype\":7", "\"dtype\":99", 0, "dtype number 99"},
    {MODEL, "\"layout\":7", "\"layout\":1", 0, "only dense"},
    {MODEL, "{\"as_int\":2}],\"requires_grad\"", "{\"as_int\":-2}],\"requires_grad\"", 0, "negative"},
    {MODEL, "Symbol('s0', positive=True, integer=True)", "Spam('s0')", 0, "the function Spam is not supported"},
    {MODEL, "\"mat1\",\"arg\":" T("x"), "\"mat1\",\"arg\":" T("y"), 0, "'y' is used before it is defined"},
    {MODEL, "\"mat1\",\"arg\":" T("x"), "\"mat1\",\"arg\":{\"as_spam\":1}", 0, "kind 'as_spam'"},
    {MODEL, "\"mat1\",\"arg\":" T("x"), "\"mat1\",\"arg\":{}", 0, "one member"},
    {MODEL, "\"mat1\",\"arg\":" T("x"), "\"mat1\",\"arg\":{\"as_custom_obj\":{\"name\":\"o\"}}", 0,
     "custom object"},
    {MODEL, "\"mat1\",\"arg\":" T("x"), "\"mat1\",\"arg\":{\"as_layout\":1}", 0, "not strided"},
    {MODEL, "\"mat1\",\"arg\":" T("x"), "\"mat1\",\"arg\":{\"as_int\":1.5}", 0, "integer"},
    {MODEL, "\"target\":\"torch.ops.my.addmm.default\"", "\"target\":\"torch.ops.\"", 0, "its target is empty"},
    {MODEL, "\"outputs\":[" T("h") "]", "\"outputs\":[" T("x") "]", 0, "'x' is defined twice"},
    {MODEL, "\"name\":\"p_w\"},\"parameter_name\"", "\"name\":\"p_q\"},\"parameter_name\"", 0,
     "the signature calls it 'p_q'"},
    {MODEL, "\"parameter_name\":\"w\"", "\"parameter_name\":\"q\"", 0, "'q' is not among the weights"},
    {MODEL, "{\"parameter\":{", "{\"custom_obj\":{", 0, "custom object"},
    {MODEL, "{\"parameter\":{", "{\"spam\":{", 0, "kind 'spam'"},
    {MODEL, "\"buffer_name\":\"n\"}}", "\"buffer_name\":\"q\"}}", 0, "it writes to 'q'"},
    {MODEL, "{\"user_output\":{\"arg\":{\"as_none\":true}}},", "", 0, "its signature 4"},
    {MODEL, "{\"user_input\":{\"arg\":" T("x") "}},", "", 0, "its signature 4"},
    {MODEL, "\"min_val\":2,\"max_val\":null", "\"min_val\":2,\"max_val\":1", 0, "empty range"},
    {MODEL, "\"p_b\":{\"dtype\":7", "\"p_b\":{\"dtype\":5", 0, "is stored as f32[3]"},
    {WEIGHTS, "\"as_int\":3},\"layout\"", "\"as_int\":3,\"layout\"", 0, "not valid JSON"},
    {WEIGHTS, "weight_0", "../x", 0, "is outside data/weights/"},
    {WEIGHTS, "weight_0", "weight_9", 0, "is missing from the archive"},
    {WEIGHTS, "\"use_pickle\":false", "\"use_pickle\":true", 0, "stored as a pickle"},
    {WEIGHTS, "\"storage_offset\":{\"as_int\":3}", "\"storage_offset\":{\"as_int\":4}", 0, "reaches outside"},
    {WEIGHTS, "\"storage_offset\":{\"as_int\":3}", "\"storage_offset\":{\"as_int\":-1}", 0, "0 or more"},
    {WEIGHTS, "\"sizes\":[{\"as_int\":2}", "\"sizes\":[{\"as_int\":9223372036854775807}", 0, "impossible"},
    {WEIGHTS, "\"strides\":[{\"as_int\":1}", "\"strides\":[{\"as_int\":4611686018427387904}", 0, "reaches outside"},
    {WEIGHTS, "\"b\":", "\"w\":", 0, "occurs twice"},
    {CONSTANTS, "tensor_0", "custom_obj_0", 0, "custom object"},
    {CONSTANTS, "\"n\":", "\"w\":", 0, "occurs twice"},
};

static void changed_files_are_refused(void **state) {
  (void)state;
  char folder[256], path[300];
  make_folder(folder, sizeof folder);
  snprintf(path, sizeof path, "%s/m.pt2", folder);
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    Entry e[ENTRIES];
    memcpy(e, base, sizeof e);
    char *text = replace(e[changes[i].entry].text, changes[i].from, changes[i].to, changes[i].n);
    e[changes[i].entry].text = text;
    write_archive(path, e, ENTRIES);
    Exported *out = NULL;
    Status s = pt2_read(path, &out);
    if (!s) test_failed("'%s' for '%s': no error", changes[i].to, changes[i].from);
    assert_int_equal(status_code(s), ERR_FILE);
    assert_non_null(strstr(status_message(s), path)); /* every error names the file */
    assert_error(s, changes[i].message);
    free(text);
  }
  remove_folder(folder);
}

/* What PyTorch 2.9 to 2.12 wrote otherwise, one by one: fields that came later are not
 * there, or null. */
static const struct {
  const char *from, *to;
} earlier[] = {
    {"\"minor\":20", "\"minor\":13"},
    {"\"minor\":20", "\"minor\":17"},
    {"\"torch_version\":\"2.13.0\"", "\"torch_version\":\"2.9.0\""},
    {",\"guards_code\":[]", ""},
    {"\"kind\":2", "\"kind\":null"},
    {",\"kind\":2", ""},
    {",\"sym_float_values\":{}", ""},
    {"\"custom_obj_values\":{},", ""},
    {"\"metadata\":{}},\"opset_version\"", "\"treespec_namedtuple_fields\":{}},\"opset_version\""},
    {",\"torch_fn\":\"f\"", ""},
};

static void earlier_files_are_read(void **state) {
  (void)state;
  char folder[256], path[300];
  make_folder(folder, sizeof folder);
  snprintf(path, sizeof path, "%s/m.pt2", folder);
  for (size_t i = 0; i < sizeof earlier / sizeof *earlier; i++) {
    Entry e[ENTRIES];
    memcpy(e, base, sizeof e);
    char *text = replace(e[MODEL].text, earlier[i].from, earlier[i].to, 0);
    e[MODEL].text = text;
    write_archive(path, e, ENTRIES);
    Exported *out = NULL;
    assert_ok(pt2_read(path, &out));
    assert_ok(graph_verify(out));
    exported_free(out);
    free(text);
  }
  remove_folder(folder);
}

/* Files of other kinds and other times say what they are. */
static void other_files(void **state) {
  (void)state;
  char folder[256], path[300];
  make_folder(folder, sizeof folder);
  snprintf(path, sizeof path, "%s/m.pt2", folder);
  static const Entry before_2_8[] = {{"serialized_exported_program.json", "{}", 0}, {"version", "1", 0}};
  static const Entry torch_2_8[] = {
      {"m/archive_format", "pt2", 0}, {"m/models/model.json", "{}", 0}, {"m/data/weights/model.pt", "x", 0}};
  static const Entry script[] = {{"s/data.pkl", "x", 0}, {"s/constants.pkl", "x", 0}, {"s/version", "3", 0}};
  static const Entry checkpoint[] = {{"archive/data.pkl", "x", 0}, {"archive/version", "3", 0}};
  static const Entry inductor[] = {
      {"m/archive_format", "pt2", 0}, {"m/archive_version", "0", 0}, {"m/data/aotinductor/model/x.so", "x", 0}};
  static const struct {
    const Entry *entries;
    int n;
    const char *message;
  } cases[] = {
      {before_2_8, 2, "a PyTorch before 2.8"},    {torch_2_8, 3, "PyTorch 2.8"},
      {checkpoint, 2, "a torch.save() file"},     {script, 3, "a TorchScript archive"},
      {inductor, 3, "holds no exported program"}, {NULL, 0, "not a ZIP archive"},
  };
  Exported *e;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_archive(path, cases[i].entries, cases[i].n);
    assert_error(pt2_read(path, &e), cases[i].message);
  }
  assert_error(pt2_read("/nonexistent.pt2", &e), "cannot open");
  assert_error(pt2_read_memory("hello", 5, "memory", &e), "memory");
  assert_error(pt2_read_memory(NULL, 0, "memory", &e), "memory");
  remove_folder(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_all),
      cmocka_unit_test(changed_files_are_refused),
      cmocka_unit_test(earlier_files_are_read),
      cmocka_unit_test(other_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
