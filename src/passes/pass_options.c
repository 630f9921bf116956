/* pass_options.c -- see pass_options.h, and pass.h for the types. */
#include "passes/pass_options.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"

const PassOption pass_option_table[] = {
#define PASS(name, summary)
#define OPTION(pass, name, type, value, least, most, what) {#pass, #name, OPTION_##type, value, least, most, what},
#include "passes/passes.def"
#undef PASS
#undef OPTION
    {0}};
const int pass_option_count = (int)(sizeof pass_option_table / sizeof *pass_option_table) - 1;

void pass_option_range(TextBuf *b, const PassOption *o) {
  switch (o->type) {
    case OPTION_INT: text_printf(b, "a whole number from %.0f to %.0f", o->least, o->most); break;
    case OPTION_NUMBER: text_printf(b, "a number above %g, at most %g", o->least, o->most); break;
    case OPTION_AUTO: text_printf(b, "a number above %g, at most %g, or auto", o->least, o->most); break;
    case OPTION_TEXT: text_puts(b, "text"); break;
    case OPTION_FLAG: text_puts(b, "true or false"); break;
  }
}

/* ---- values ----------------------------------------------------------------------------- */

static bool read_int(const char *text, const PassOption *o, int64_t *out) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  *out = value;
  return end != text && !*end && !errno && (double)value >= o->least && (double)value <= o->most;
}

static bool read_number(const char *text, const PassOption *o, double *out) {
  const char *end;
  *out = text_to_float(text, &end);
  return end != text && !*end && *out > o->least && *out <= o->most; /* not for nan */
}

static bool read_flag(const char *text, bool *out) {
  *out = !*text || !strcmp(text, "true") || !strcmp(text, "1");
  return *out || !strcmp(text, "false") || !strcmp(text, "0");
}

static bool read_text(const char *text, const char **out) {
  *out = text;
  return *text != 0;
}

static bool read_value(const char *text, PassValue *v) {
  switch (v->option->type) {
    case OPTION_INT: return read_int(text, v->option, &v->i);
    case OPTION_NUMBER: return read_number(text, v->option, &v->f);
    case OPTION_AUTO:
      if (strcmp(text, "auto") != 0) return read_number(text, v->option, &v->f);
      return v->f = -1, true;
    case OPTION_TEXT: return read_text(text, &v->text);
    case OPTION_FLAG: return read_flag(text, &v->flag);
  }
  return false;
}

static Status set_value(const char *pass, const char *text, PassValue *v) {
  if (read_value(text, v)) return OK;
  TextBuf range = {0};
  pass_option_range(&range, v->option);
  Status s = fail(ERR_USAGE, "pass '%s': %s=%s: it takes %s", pass, v->option->name, text,
                  range.text ? range.text : "another value");
  text_free(&range);
  return status_hint(s, "%s: %s", v->option->name, v->option->what);
}

/* ---- names ------------------------------------------------------------------------------ */

static Status unknown_option(const char *pass, const char *name, const PassValue *values) {
  const char *nearest = NULL;
  int distance = near_limit(name) + 1;
  if (!values->option) return fail(ERR_USAGE, "pass '%s' takes no options, '%s' was given", pass, name);
  Status s = fail(ERR_USAGE, "pass '%s' has no option '%s'", pass, name);
  TextBuf known = {0};
  for (const PassValue *v = values; v->option; v++) {
    int d = near_distance(name, v->option->name, near_limit(name));
    /* bucket_size for bucket_size_mb */
    if (!strncmp(v->option->name, name, strlen(name))) d = 0;
    if (d < distance) nearest = v->option->name, distance = d;
    text_printf(&known, "%s%s", v > values ? ", " : "", v->option->name);
  }
  if (nearest) s = status_hint(s, "did you mean '%s'?", nearest);
  else if (known.text) s = status_hint(s, "its options are: %s", known.text);
  text_free(&known);
  return s;
}

/* "name", "name=value", "name = \"value\"": cut in place, spaces and quotes dropped. */
static char *trim(char *text) {
  text += strspn(text, " ");
  size_t n = strlen(text);
  while (n && text[n - 1] == ' ') text[--n] = 0;
  if (n < 2 || text[0] != '"' || text[n - 1] != '"') return text;
  text[n - 1] = 0;
  return text + 1;
}

static Status parse_option(const char *pass, char *item, PassValue *values) {
  char *equals = strchr(item, '='), *value = equals ? trim(equals + 1) : item + strlen(item);
  if (equals) *equals = 0;
  char *name = trim(item);
  for (PassValue *v = values; v->option; v++) {
    if (strcmp(v->option->name, name)) continue;
    if (v->given) return fail(ERR_USAGE, "pass '%s': %s is given twice", pass, name);
    v->given = true;
    return set_value(pass, value, v);
  }
  return unknown_option(pass, name, values);
}

static Status missing(const char *pass, const PassOption *o) {
  TextBuf range = {0};
  pass_option_range(&range, o);
  Status s = fail(ERR_USAGE, "pass '%s' needs %s: %s", pass, o->name, o->what);
  s = status_hint(s, "%s(%s=...): %s", pass, o->name, range.text ? range.text : "");
  text_free(&range);
  return s;
}

Status pass_options_parse(Arena *arena, const char *pass, char *text, PassValue **out) {
  PassValue *values;
  int n = 0;
  TRY_NEW(values, arena_new_n(arena, PassValue, pass_option_count + 1));
  for (int i = 0; i < pass_option_count; i++) {
    if (!strcmp(pass_option_table[i].pass, pass)) values[n++].option = &pass_option_table[i];
  }
  TRY(status_at(pass_list_check(text), "the options of pass '%s'", pass));
  for (char *item; (item = pass_list_next(&text));) TRY(parse_option(pass, item, values));
  for (PassValue *v = values; v->option; v++) {
    if (v->given) continue;
    if (!v->option->value) return missing(pass, v->option);
    TRY(set_value(pass, v->option->value, v));
  }
  *out = values;
  return OK;
}

/* ---- for the passes ----------------------------------------------------------------------- */

static const PassValue *find(const PassArgs *args, const char *name, OptionType type) {
  static const PassValue none = {0};
  for (const PassValue *v = args->values; v && v->option; v++) {
    if (!strcmp(v->option->name, name) && v->option->type == type) return v;
  }
  assert(false && "passes.def has no such option");
  return &none;
}

int64_t pass_int(const PassArgs *args, const char *option) { return find(args, option, OPTION_INT)->i; }
double pass_number(const PassArgs *args, const char *option) { return find(args, option, OPTION_NUMBER)->f; }
double pass_auto(const PassArgs *args, const char *option) { return find(args, option, OPTION_AUTO)->f; }
const char *pass_text(const PassArgs *args, const char *option) { return find(args, option, OPTION_TEXT)->text; }
bool pass_flag(const PassArgs *args, const char *option) { return find(args, option, OPTION_FLAG)->flag; }
