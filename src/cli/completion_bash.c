/* completion_bash.c -- `tessera completion bash`; see completion.h.
 *
 * The script is a function for `complete -F`.  Readline takes what follows '=' for a word of its
 * own; the function puts such words together, and replies with what follows the last '='.
 */
#include "cli/completion.h"

static const char head[] =
    "# bash completion for tessera, written by `tessera completion bash`.\n"
    "\n"
    "# VALUE WORDS FILES LIST: what VALUE may become.  FILES: - for none, an ending, / for folders.\n"
    "_tessera_offer() {\n"
    "  local value=$1 before='' i\n"
    "  if [[ $4 == list ]]; then\n"
    "    compopt -o nospace 2>/dev/null\n"
    "    [[ $value == *,* ]] && before=${value%,*}, value=${value##*,}\n"
    "  fi\n"
    "  local -a found=()\n"
    "  mapfile -t COMPREPLY < <(compgen -W \"$2\" -- \"$value\")\n"
    "  if [[ $3 != - ]]; then\n"
    "    compopt -o filenames 2>/dev/null\n"
    "    if [[ $3 == / ]]; then mapfile -t found < <(compgen -d -- \"$value\")\n"
    "    elif [[ -z $3 ]]; then mapfile -t found < <(compgen -f -- \"$value\")\n"
    "    else mapfile -t found < <(compgen -d -- \"$value\"; compgen -f -X \"!*.$3\" -- \"$value\")\n"
    "    fi\n"
    "    COMPREPLY+=(\"${found[@]}\")\n"
    "  fi\n"
    "  for i in \"${!COMPREPLY[@]}\"; do COMPREPLY[i]=$before${COMPREPLY[i]}; done\n"
    "}\n"
    "\n"
    "# KIND VALUE\n"
    "_tessera_value() {\n"
    "  case $1 in\n";

static const char middle[] = "  esac\n"
                             "  local cut=${2%\"${2##*=}\"} i\n"
                             "  for i in \"${!COMPREPLY[@]}\"; do COMPREPLY[i]=${COMPREPLY[i]#\"$cut\"}; done\n"
                             "}\n"
                             "\n"
                             "# COMMAND OPTION: what its value is, in takes; fails if it has none.\n"
                             "_tessera_takes() {\n"
                             "  case \"$1 $2\" in\n";

static const char body[] =
    "    *) return 1 ;;\n"
    "  esac\n"
    "}\n"
    "\n"
    "_tessera() {\n"
    "  local word i at command cur prev takes=''\n"
    "  local -a words=()\n"
    "  COMPREPLY=()\n"
    "  for ((i = 0; i <= COMP_CWORD; i++)); do\n"
    "    word=${COMP_WORDS[i]}\n"
    "    if ((i > 1)) && [[ $word == = || ${COMP_WORDS[i - 1]} == = ]]; then words[${#words[@]} - 1]+=$word\n"
    "    else words+=(\"$word\")\n"
    "    fi\n"
    "  done\n"
    "  at=$((${#words[@]} - 1)) cur=${words[at]} prev=${words[at - 1]} command=${words[1]}\n";

static const char tail[] =
    "  esac\n"
    "  # --option=value, or --option value\n"
    "  if [[ $cur == --*=* ]]; then _tessera_takes \"$command\" \"${cur%%=*}\" && _tessera_value \"$takes\" "
    "\"${cur#*=}\"\n"
    "  elif _tessera_takes \"$command\" \"$prev\"; then _tessera_value \"$takes\" \"$cur\"\n"
    "  elif [[ $cur == -* ]]; then mapfile -t COMPREPLY < <(compgen -W \"$options --help\" -- \"$cur\")\n"
    "  else _tessera_value \"$arguments\" \"$cur\"\n"
    "  fi\n"
    "}\n"
    "complete -F _tessera tessera\n";

static void print_values(const Completion *c, const char *words) {
  printf("    %s) _tessera_offer \"$2\" ", c->name);
  if (c->asked) printf("\"$(\"${COMP_WORDS[0]}\" completion %s 2>/dev/null)\"", c->asked);
  else printf("'%s'", words ? words : "");
  printf(" '%s' %s ;;\n", c->files ? c->files : "-", c->list ? "list" : "one");
}

static bool has_value(const Option *o) { return option_kind(o) != OPT_FLAG; }

/* The options that take a value, by command: a kind, or '' if nothing can be said. */
static void print_takes(const char *name, const char *summary, const CommandSpec *spec) {
  (void)summary;
  for (int i = 0; i < spec->noptions; i++) {
    const Option *o = &spec->options[i];
    if (!has_value(o)) continue;
    const Completion *c = completion_of(option_takes(o));
    printf("    '%s %s'", name, o->name);
    if (o->letter) printf(" | '%s -%c'", name, o->letter);
    /* Of --check, the next word is no value. */
    if (option_kind(o) == OPT_MAYBE) printf(") [[ $cur == --*=* ]] || return 1; takes=%s ;;\n", o->value);
    else printf(") takes=%s ;;\n", c ? c->name : "''");
  }
}

static void print_options(const char *name, const char *summary, const CommandSpec *spec) {
  (void)summary;
  const Completion *c = completion_of(spec->words);
  printf("    '%s') options='", name);
  for (int i = 0; i < spec->noptions; i++) {
    const Option *o = &spec->options[i];
    printf("%s%s", i ? " " : "", o->name);
    if (o->letter) printf(" -%c", o->letter);
  }
  printf("' arguments=%s ;;\n", c ? c->name : "''");
}

/* Values of options that may be left out (--check=nodes) are their own kind. */
static void print_maybe(const char *name, const char *summary, const CommandSpec *spec) {
  (void)name, (void)summary;
  for (int i = 0; i < spec->noptions; i++) {
    const Option *o = &spec->options[i];
    if (option_kind(o) == OPT_MAYBE) printf("    %s) _tessera_offer \"$2\" '%s' '-' one ;;\n", o->value, o->value);
  }
}

Status completion_bash(void) {
  fputs(head, stdout);
  TRY(each_completion(print_values));
  each_command(print_maybe);
  fputs(middle, stdout);
  each_command(print_takes);
  fputs(body, stdout);
  printf("  if ((at == 1)); then\n    mapfile -t COMPREPLY < <(compgen -W '");
  for (int i = 0; i < command_count; i++) printf("%s ", command_table[i].name);
  printf("help --help --version' -- \"$cur\")\n    return\n  fi\n");
  for (int i = 0; i < command_count; i++) {
    const CommandSpec *spec = command_table[i].spec;
    if (!spec->nsub) continue;
    printf("  if [[ $command == %s ]]; then\n    if ((at == 2)); then\n      mapfile -t COMPREPLY < <(compgen -W '",
           command_table[i].name);
    for (int k = 0; k < spec->nsub; k++) printf("%s ", spec->sub[k].name);
    printf("--help' -- \"$cur\")\n      return\n    fi\n    command+=\" ${words[2]}\"\n  fi\n");
  }
  printf("  local options='' arguments=''\n  case $command in\n");
  each_command(print_options);
  fputs(tail, stdout);
  return OK;
}
