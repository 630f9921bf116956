/* completion_zsh.c -- `tessera completion zsh`; see completion.h.  A file _tessera for fpath. */
#include "cli/completion.h"

#include <string.h>

/* Inside of '...': what _arguments takes for its own is escaped. */
static void print_text(const char *text, const char *special) {
  for (; *text; text++) {
    if (*text == '\'') {
      fputs("'\\''", stdout);
    } else {
      if (strchr(special, *text)) putchar('\\');
      putchar(*text);
    }
  }
}

static void print_action(Takes takes) {
  const Completion *c = completion_of(takes);
  if (c) printf(":_tessera_%s", c->name);
  else printf(": ");
}

static void print_option(const char *name, const Option *o) {
  const bool is_long = name[1] == '-', value = option_kind(o) != OPT_FLAG;
  printf(" \\\n      '");
  if (option_kind(o) == OPT_LIST) printf("*");
  else if (o->letter) printf("(%s -%c)", o->name, o->letter);
  printf("%s%s[", name, option_kind(o) == OPT_MAYBE ? "=-" : is_long && value ? "=" : "");
  print_text(o->help, "[]:\\");
  printf("]");
  if (option_kind(o) == OPT_MAYBE) {
    printf("::%s:(%s)", o->value, o->value);
  } else if (value) {
    printf(":");
    print_text(o->value, ":\\");
    print_action(option_takes(o));
  }
  printf("'");
}

static void print_command(const char *name, const char *summary, const CommandSpec *spec) {
  (void)summary;
  printf("    '%s')\n      _arguments -S", name);
  for (int i = 0; i < spec->noptions; i++) {
    char letter[3] = {'-', spec->options[i].letter, 0};
    print_option(spec->options[i].name, &spec->options[i]);
    if (letter[1]) print_option(letter, &spec->options[i]);
  }
  printf(" \\\n      '(-h --help)'{-h,--help}'[this page]'");
  if (spec->words != TAKES_ANYTHING) {
    printf(" \\\n      '*:argument");
    print_action(spec->words);
    printf("'");
  }
  printf("\n      ;;\n");
}

static void print_values(const Completion *c, const char *words) {
  printf("_tessera_%s() {\n", c->name);
  if (c->list) printf("  compset -P '*,'\n");
  if (c->asked) printf("  compadd -- ${(f)\"$(_call_program names $service completion %s)\"}\n", c->asked);
  else if (words) printf("  compadd%s -- %s\n", c->list ? " -S ''" : "", words);
  if (c->files && !strcmp(c->files, "/")) printf("  _files -/\n");
  else if (c->files && *c->files) printf("  _files -g '*.%s'\n", c->files);
  else if (c->files) printf("  _files\n");
  printf("}\n");
}

static void print_name(const char *name, const char *summary) {
  printf("    '%s:", name);
  print_text(summary, ":\\");
  printf("'\n");
}

Status completion_zsh(void) {
  printf("#compdef tessera\n# zsh completion for tessera, written by `tessera completion zsh`.\n\n");
  TRY(each_completion(print_values));
  printf("\n_tessera() {\n  local command=$words[2]\n  local -a names\n  if ((CURRENT == 2)); then\n    names=(\n");
  for (int i = 0; i < command_count; i++) print_name(command_table[i].name, command_table[i].summary);
  printf("    )\n    _describe command names\n    return\n  fi\n");
  for (int i = 0; i < command_count; i++) {
    const CommandSpec *spec = command_table[i].spec;
    if (!spec->nsub) continue;
    printf("  if [[ $command == %s ]]; then\n    names=(\n", command_table[i].name);
    for (int k = 0; k < spec->nsub; k++) print_name(spec->sub[k].name, spec->sub[k].summary);
    printf("    )\n    if ((CURRENT == 3)); then\n      _describe command names\n      return\n    fi\n"
           "    command+=\" $words[3]\"\n    shift words\n    ((CURRENT--))\n  fi\n");
  }
  printf("  shift words\n  ((CURRENT--))\n  case $command in\n");
  each_command(print_command);
  printf(
      "  esac\n}\n\nif [[ $funcstack[1] == _tessera ]]; then _tessera \"$@\"; else compdef _tessera tessera; fi\n");
  return OK;
}
