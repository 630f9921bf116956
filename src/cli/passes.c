/* passes.c -- `tessera passes`: the passes that `tessera opt` and every run can use. */
#include "base/json.h"
#include "cli/cli.h"
#include "passes/pass.h"
#include "runtime/session.h"

static const char examples[] =
    "  tessera passes\n"
    "  tessera opt model.pt2 --passes inline,functionalize,dce,cse --print\n";

static Status print_as_json(void) {
  yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
  if (!d) return fail_oom();
  yyjson_mut_val *list = yyjson_mut_arr(d);
  yyjson_mut_doc_set_root(d, list);
  for (int i = 0; i < pass_count; i++) {
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(d, list);
    yyjson_mut_obj_add_str(d, o, "name", pass_table[i].name);
    yyjson_mut_obj_add_str(d, o, "summary", pass_table[i].summary);
    yyjson_mut_obj_add_str(d, o, "options", pass_table[i].options);
  }
  return json_print(stdout, d);
}

Status command_passes(int argc, char **argv) {
  bool json = false, help;
  const Option table[] = {{"--json", 0, OPT_FLAG, &json, NULL, "names, summaries and options as JSON"}};
  TextList words;
  TRY(options_parse("passes", "[--json]", examples, OPTIONS(table), argc, argv, &words, &help));
  if (help) return OK;
  if (words.n) return fail(ERR_USAGE, "passes takes no argument, '%s' was given", words.v[0]);
  if (json) return print_as_json();
  for (int i = 0; i < pass_count; i++) {
    printf("%-16s %s\n", pass_table[i].name, pass_table[i].summary);
    if (*pass_table[i].options) printf("%-16s options: %s\n", "", pass_table[i].options);
  }
  printf("%-16s %s\n", "specialize", "not a pass, but stands in the list of one: gives the symbols numbers, those of the export unless told");
  printf("%-16s options: %s\n", "", "symbol=number, ...");
  printf("\nevery run uses %s on the program,\nthen %s for given sizes\n", session_passes_once, session_passes_specialized);
  return OK;
}
