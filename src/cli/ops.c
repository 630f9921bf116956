/* ops.c -- `tessera ops`: the operators this build knows. */
#include <string.h>

#include "base/json.h"
#include "base/near.h"
#include "cli/cli.h"

static const char examples[] = "  tessera ops\n"
                               "  tessera ops softmax\n"
                               "  tessera ops --json\n";

static const struct {
  unsigned flag;
  const char *word;
} flag_words[] = {
    {OP_POINTWISE, "pointwise"}, {OP_DYNAMIC, "dynamic"}, {OP_RANDOM, "random"}, {OP_SCALAR, "scalar"},
    {OP_EFFECT, "effect"},       {OP_UPDATE, "update"},   {OP_STARTS, "starts"},
};
enum { FLAG_WORDS = sizeof flag_words / sizeof *flag_words };

/* "pointwise", "dynamic update", "composite", "in place" */
static const char *describe_flags(const OpDef *def, char *buf, size_t cap) {
  size_t n = 0;
  buf[0] = 0;
  for (int i = 0; i < FLAG_WORDS && n < cap; i++) {
    if (def->flags & flag_words[i].flag)
      n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? " " : "", flag_words[i].word);
  }
  if (def->compose && n < cap) n += (size_t)snprintf(buf + n, cap - n, "%scomposite", n ? " " : "");
  if (def->inplace && n < cap) snprintf(buf + n, cap - n, "%sin place", n ? " " : "");
  return buf;
}

static Status print_as_json(const char *filter) {
  yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
  if (!d) return fail_oom();
  yyjson_mut_val *list = yyjson_mut_arr(d);
  yyjson_mut_doc_set_root(d, list);
  for (int i = 0; i < op_count(); i++) {
    const Op *op = op_at(i);
    if (filter && !strstr(op->schema.name, filter)) continue;
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(d, list), *flags = yyjson_mut_arr(d);
    yyjson_mut_obj_add_str(d, o, "name", op->schema.name);
    yyjson_mut_obj_add_str(d, o, "schema", op->def->schema);
    yyjson_mut_obj_add_val(d, o, "flags", flags);
    for (int k = 0; k < FLAG_WORDS; k++) {
      if (op->def->flags & flag_words[k].flag) yyjson_mut_arr_add_str(d, flags, flag_words[k].word);
    }
    if (op->def->compose) yyjson_mut_obj_add_bool(d, o, "composite", true);
    if (op->def->inplace) yyjson_mut_obj_add_str(d, o, "functional", op->def->inplace);
  }
  return json_print(stdout, d);
}

static Status print_as_text(const char *filter) {
  char flags[96];
  int shown = 0;
  for (int i = 0; i < op_count(); i++) {
    const Op *op = op_at(i);
    if (filter && !strstr(op->schema.name, filter)) continue;
    const char *signature = strchr(op->def->schema, '(');
    printf("%-48s %-16s %s\n", op->schema.name, describe_flags(op->def, flags, sizeof flags),
           signature ? signature : "");
    shown++;
  }
  fprintf(stderr, "%d of %d ops\n", shown, op_count());
  return OK;
}

static bool any_matches(const char *filter) {
  for (int i = 0; i < op_count(); i++) {
    if (strstr(op_at(i)->schema.name, filter)) return true;
  }
  return false;
}

/* Of the part between the dots: aten.softmax.int is near to sotfmax. */
static const Op *nearest(const char *filter) {
  const Op *best = NULL;
  for (int i = 0, limit = near_limit(filter); i < op_count(); i++) {
    char bare[128];
    const char *dot = strchr(op_at(i)->schema.name, '.'), *name = dot ? dot + 1 : op_at(i)->schema.name;
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(name, "."), name);
    int d = near_distance(filter, bare, limit);
    if (d <= limit) best = op_at(i), limit = d - 1;
  }
  return best ? best : op_nearest(filter);
}

static const Option options[] = {
    {"--json", 0, OPT_FLAG, offsetof(JsonOption, json), NULL, "names, schemas and flags as JSON"}};
const CommandSpec spec_ops = {
    .usage = "[PART OF A NAME] [--json]", .examples = examples, .words = TAKES_OP, OPTIONS(options)};

Status command_ops(int argc, char **argv) {
  JsonOption o = {0};
  bool help;
  TextList words;
  TRY(options_parse("ops", &spec_ops, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n > 1) return fail(ERR_USAGE, "ops takes one part of a name, %d were given", words.n);
  const char *filter = words.n ? words.v[0] : NULL;
  if (filter && !any_matches(filter)) {
    const Op *near = nearest(filter);
    Status s = fail(ERR_FAIL, "no op has '%s' in its name", filter);
    return near ? status_hint(s, "did you mean '%s'?", near->schema.name)
                : status_hint(s, "`tessera ops` lists all %d", op_count());
  }
  return o.json ? print_as_json(filter) : print_as_text(filter);
}
