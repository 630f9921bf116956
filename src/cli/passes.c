/* passes.c -- `tessera passes`: the passes that `tessera opt` and every run can use. */
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "passes/pass.h"
#include "runtime/session.h"

static const char examples[] = "  tessera passes\n"
                               "  tessera opt model.pt2 --passes inline,functionalize,dce,cse --print\n"
                               "  tessera opt joint.pt2 --passes "
                               "'ddp(world_size=4,group=dp),fuse_ddp_with_concat_op(bucket_size_mb=10)' --stats\n";

static const char *const type_names[] = {[OPTION_INT] = "int",
                                         [OPTION_NUMBER] = "number",
                                         [OPTION_AUTO] = "number",
                                         [OPTION_TEXT] = "text",
                                         [OPTION_FLAG] = "flag"};

static void add_option(yyjson_mut_doc *d, yyjson_mut_val *list, const PassOption *option) {
  yyjson_mut_val *o = yyjson_mut_arr_add_obj(d, list);
  yyjson_mut_obj_add_str(d, o, "name", option->name);
  yyjson_mut_obj_add_str(d, o, "type", type_names[option->type]);
  if (option->value) yyjson_mut_obj_add_str(d, o, "default", option->value);
  else yyjson_mut_obj_add_null(d, o, "default");
  if (option->type == OPTION_INT) yyjson_mut_obj_add_real(d, o, "least", option->least);
  if (option->type == OPTION_NUMBER) yyjson_mut_obj_add_real(d, o, "above", option->least);
  if (option->type == OPTION_INT || option->type == OPTION_NUMBER)
    yyjson_mut_obj_add_real(d, o, "most", option->most);
  yyjson_mut_obj_add_str(d, o, "what", option->what);
}

static Status print_as_json(void) {
  yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
  if (!d) return fail_oom();
  yyjson_mut_val *list = yyjson_mut_arr(d);
  yyjson_mut_doc_set_root(d, list);
  for (int i = 0; i < pass_count; i++) {
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(d, list);
    yyjson_mut_obj_add_str(d, o, "name", pass_table[i].name);
    yyjson_mut_obj_add_str(d, o, "summary", pass_table[i].summary);
    yyjson_mut_val *options = yyjson_mut_obj_add_arr(d, o, "options");
    for (int k = 0; k < pass_option_count; k++) {
      if (!strcmp(pass_option_table[k].pass, pass_table[i].name)) add_option(d, options, &pass_option_table[k]);
    }
  }
  return json_print(stdout, d);
}

/* bucket_size_mb=25 (a number above 0): how much ... */
static Status print_options(const char *pass) {
  for (int i = 0; i < pass_option_count; i++) {
    const PassOption *o = &pass_option_table[i];
    TextBuf range = {0};
    if (strcmp(o->pass, pass)) continue;
    pass_option_range(&range, o);
    if (!range.text) return fail_oom();
    printf("%-28s   %s=%s (%s%s): %s\n", "", o->name, o->value ? o->value : "...", range.text,
           o->value ? "" : ", must be given", o->what);
    text_free(&range);
  }
  return OK;
}

static const Option options[] = {
    {"--json", 0, OPT_FLAG, offsetof(JsonOption, json), NULL, "names, summaries and options as JSON"}};
const CommandSpec spec_passes = {
    .usage = "[--json]", .examples = examples, .words = TAKES_ANYTHING, OPTIONS(options)};

Status command_passes(int argc, char **argv) {
  JsonOption o = {0};
  bool help;
  TextList words;
  TRY(options_parse("passes", &spec_passes, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n) return fail(ERR_USAGE, "passes takes no argument, '%s' was given", words.v[0]);
  if (o.json) return print_as_json();
  for (int i = 0; i < pass_count; i++) {
    printf("%-28s %s\n", pass_table[i].name, pass_table[i].summary);
    TRY(print_options(pass_table[i].name));
  }
  printf("%-28s %s\n", "specialize",
         "not a pass, but stands in the list of one: gives the symbols numbers, those of the export unless told");
  printf("%-28s   %s\n", "", "symbol=number, ...");
  printf(
      "%-28s %s\n", "partition",
      "the same, for one rank of a mesh (opt --mesh, --plan, --rank): weights are sharded as the plan says, sizes "
      "are local, redistributions are nodes");
  printf("%-28s   %s\n", "", "symbol=number, ...");
  printf("%-28s %s\n", "grad",
         "the joint program: the gradients of its loss stand behind the outputs, in ops that PyTorch has; symbols "
         "stay "
         "(specialize(grad), partition(grad): as it is run)");
  printf("%-28s   %s\n", "", "loss=OUTPUT, parameters=PATTERN, inputs");
  printf("\nevery run uses %s on the program,\nthen %s for given sizes\n", passes_once, passes_specialized);
  return OK;
}
