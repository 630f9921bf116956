/* options.c -- the command line, by table; see cli.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "cli/cli.h"

void print_examples(FILE *f, const char *text, const char *command) {
  static const char mark[] = "COMMAND";
  for (const char *next; (next = strstr(text, mark)); text = next + strlen(mark))
    fprintf(f, "%.*s%s", (int)(next - text), text, command);
  fputs(text, f);
}

static void print_help(const char *command, const CommandSpec *spec) {
  print_examples(stdout, spec->examples, command);
  printf("\nusage: tessera %s %s\n\noptions\n", command, spec->usage);
  for (int i = 0; i < spec->noptions; i++) {
    const Option *o = &spec->options[i];
    char left[64], letter[8] = "   ";
    if (o->letter) snprintf(letter, sizeof letter, "-%c,", o->letter);
    const char *value = o->value ? o->value : "";
    snprintf(left, sizeof left, option_kind(o) == OPT_MAYBE ? "%s %s[=%s%s]" : "%s %s%s%s", letter, o->name,
             *value && option_kind(o) != OPT_MAYBE ? " " : "", value);
    printf("  %-30s %s\n", left, o->help);
  }
  printf("  %-30s %s\n", "-h, --help", "this page");
}

static const Option *find(const Option *options, int n, const char *word, size_t len) {
  for (int i = 0; i < n; i++) {
    if (strlen(options[i].name) == len && !strncmp(options[i].name, word, len)) return &options[i];
    if (options[i].letter && len == 2 && word[0] == '-' && word[1] == options[i].letter) return &options[i];
  }
  return NULL;
}

static Status unknown(const char *command, const Option *options, int n, const char *word) {
  Status s = fail(ERR_USAGE, "`tessera %s` has no option '%s'", command, word);
  const char *near = NULL;
  char name[128]; /* without =value */
  snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
  for (int i = 0, limit = near_limit(name); i < n && name[1] == '-'; i++) {
    int d = near_distance(name, options[i].name, limit);
    if (d <= limit) near = options[i].name, limit = d - 1;
  }
  return near ? status_hint(s, "did you mean '%s'?", near)
              : status_hint(s, "`tessera %s --help` lists them", command);
}

static Status set_number(const Option *o, void *target, const char *text) {
  char *end;
  errno = 0;
  if (option_kind(o) == OPT_INT) *(int64_t *)target = strtoll(text, &end, 10);
  else *(double *)target = strtod(text, &end);
  if (errno || end == text || *end) return fail(ERR_USAGE, "%s takes a number, '%s' is none", o->name, text);
  return OK;
}

static Status set_value(const Option *o, void *target, const char *text) {
  if (option_kind(o) == OPT_INT || option_kind(o) == OPT_FLOAT) return set_number(o, target, text);
  if (option_kind(o) == OPT_TEXT || option_kind(o) == OPT_MAYBE) {
    *(const char **)target = text;
    return OK;
  }
  TextList *list = target;
  if (list->n == MAX_LIST) return fail(ERR_USAGE, "%s is given more than %d times", o->name, MAX_LIST);
  list->v[list->n++] = text;
  return OK;
}

Status options_parse(const char *command, const CommandSpec *spec, void *values, int argc, char **argv,
                     TextList *words, bool *help) {
  const Option *options = spec->options;
  const int n = spec->noptions;
  *help = false;
  *words = (TextList){0};
  bool only_words = false; /* after -- */
  for (int i = 0; i < argc; i++) {
    const char *word = argv[i];
    if (!only_words && !strcmp(word, "--")) {
      only_words = true;
      continue;
    }
    if (only_words || word[0] != '-' || !word[1]) {
      if (words->n == MAX_LIST) return fail(ERR_USAGE, "more than %d arguments", MAX_LIST);
      words->v[words->n++] = word;
      continue;
    }
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
      print_help(command, spec);
      *help = true;
      return OK;
    }
    const char *equals = word[1] == '-' ? strchr(word, '=') : NULL;
    const Option *o = find(options, n, word, equals ? (size_t)(equals - word) : strlen(word));
    if (!o) return unknown(command, options, n, word);
    void *target = (char *)values + o->target;
    if (option_kind(o) == OPT_FLAG) {
      if (equals) return fail(ERR_USAGE, "%s takes no value", o->name);
      *(bool *)target = true;
    } else if (option_kind(o) == OPT_MAYBE) {
      TRY(set_value(o, target, equals ? equals + 1 : ""));
    } else {
      if (!equals && i + 1 == argc) return fail(ERR_USAGE, "%s needs a value (%s)", o->name, o->value);
      TRY(set_value(o, target, equals ? equals + 1 : argv[++i]));
    }
  }
  return OK;
}
