/* options.c -- the command line, by table; see cli.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "cli/cli.h"

static void print_help(const char *command, const char *usage, const char *examples, const Option *options, int n) {
  printf("%s\nusage: tessera %s %s\n\noptions\n", examples, command, usage);
  for (int i = 0; i < n; i++) {
    char left[64], letter[8] = "   ";
    if (options[i].letter) snprintf(letter, sizeof letter, "-%c,", options[i].letter);
    const char *value = options[i].value ? options[i].value : "";
    snprintf(left, sizeof left, options[i].kind == OPT_MAYBE ? "%s %s[=%s%s]" : "%s %s%s%s", letter,
             options[i].name, *value && options[i].kind != OPT_MAYBE ? " " : "", value);
    printf("  %-30s %s\n", left, options[i].help);
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

static Status set_number(const Option *o, const char *text) {
  char *end;
  errno = 0;
  if (o->kind == OPT_INT) *(int64_t *)o->target = strtoll(text, &end, 10);
  else *(double *)o->target = strtod(text, &end);
  if (errno || end == text || *end) return fail(ERR_USAGE, "%s takes a number, '%s' is none", o->name, text);
  return OK;
}

static Status set_value(const Option *o, const char *text) {
  if (o->kind == OPT_INT || o->kind == OPT_FLOAT) return set_number(o, text);
  if (o->kind == OPT_TEXT || o->kind == OPT_MAYBE) {
    *(const char **)o->target = text;
    return OK;
  }
  TextList *list = o->target;
  if (list->n == MAX_LIST) return fail(ERR_USAGE, "%s is given more than %d times", o->name, MAX_LIST);
  list->v[list->n++] = text;
  return OK;
}

Status options_parse(const char *command, const char *usage, const char *examples, const Option *options, int n,
                     int argc, char **argv, TextList *words, bool *help) {
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
      print_help(command, usage, examples, options, n);
      *help = true;
      return OK;
    }
    const char *equals = word[1] == '-' ? strchr(word, '=') : NULL;
    const Option *o = find(options, n, word, equals ? (size_t)(equals - word) : strlen(word));
    if (!o) return unknown(command, options, n, word);
    if (o->kind == OPT_FLAG) {
      if (equals) return fail(ERR_USAGE, "%s takes no value", o->name);
      *(bool *)o->target = true;
    } else if (o->kind == OPT_MAYBE) {
      TRY(set_value(o, equals ? equals + 1 : ""));
    } else {
      if (!equals && i + 1 == argc) return fail(ERR_USAGE, "%s needs a value (%s)", o->name, o->value);
      TRY(set_value(o, equals ? equals + 1 : argv[++i]));
    }
  }
  return OK;
}
