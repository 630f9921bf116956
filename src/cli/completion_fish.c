/* completion_fish.c -- `tessera completion fish`; see completion.h. */
#include "cli/completion.h"

#include <string.h>

static const char head[] = "# fish completion for tessera, written by `tessera completion fish`.\n"
                           "\n"
                           "# Is this the command line of that command (and the one behind it)?\n"
                           "function __tessera_in\n"
                           "    set -l words (commandline -opc)\n"
                           "    test (count $words) -gt (count $argv); or return 1\n"
                           "    for i in (seq (count $argv))\n"
                           "        test $words[(math $i + 1)] = $argv[$i]; or return 1\n"
                           "    end\n"
                           "end\n"
                           "# Is the next word the Nth?\n"
                           "function __tessera_at\n"
                           "    test (count (commandline -opc)) -eq $argv[1]\n"
                           "end\n"
                           "# Of a list with commas: what is there, and each of the words.\n"
                           "function __tessera_list\n"
                           "    set -l token (commandline -ct | string replace -r '^--?[^=,]*=' '')\n"
                           "    set -l before (string replace -r '[^,]*$' '' -- $token)\n"
                           "    for word in $argv\n"
                           "        echo $before$word\n"
                           "    end\n"
                           "end\n"
                           "\n"
                           "complete -c tessera -f\n";

/* In '...': only the quote and the backslash are special. */
static void print_text(const char *text) {
  putchar('\'');
  for (; *text; text++) {
    if (*text == '\'' || *text == '\\') putchar('\\');
    putchar(*text);
  }
  putchar('\'');
}

/* The words of a kind behind -a; -F where files are wanted. */
static void print_values(Takes takes) {
  const Completion *c = completion_of(takes);
  TextBuf words = {0};
  if (!c) return;
  if (c->words) c->words(&words);
  if (c->files && !strcmp(c->files, "/")) printf(" -a '(__fish_complete_directories)'");
  else if (c->files && *c->files)
    printf(" -k -a '%s (__fish_complete_suffix .%s)'", words.text ? words.text : "", c->files);
  else if (c->files) printf(" -F");
  else if (c->asked) printf(" -a '(tessera completion %s)'", c->asked);
  else if (c->list) printf(" -a '(__tessera_list %s)'", words.text);
  else printf(" -a '%s'", words.text);
  text_free(&words);
}

static void print_command(const char *name, const char *summary, const CommandSpec *spec) {
  (void)summary;
  for (int i = 0; i < spec->noptions; i++) {
    const Option *o = &spec->options[i];
    printf("complete -c tessera -n '__tessera_in %s'", name);
    if (o->letter) printf(" -s %c", o->letter);
    printf(" -l %s", o->name + 2);
    if (option_kind(o) == OPT_MAYBE) {
      printf(" -a '%s'", o->value);
    } else if (option_kind(o) != OPT_FLAG) {
      printf(" -r");
      print_values(option_takes(o));
    }
    printf(" -d ");
    print_text(o->help);
    printf("\n");
  }
  printf("complete -c tessera -n '__tessera_in %s' -s h -l help -d 'this page'\n", name);
  if (spec->words == TAKES_ANYTHING) return;
  printf("complete -c tessera -n '__tessera_in %s'", name);
  print_values(spec->words);
  printf("\n");
}

Status completion_fish(void) {
  fputs(head, stdout);
  for (int i = 0; i < command_count; i++) {
    const Command *c = &command_table[i];
    printf("complete -c tessera -n '__tessera_at 1' -a %s -d ", c->name);
    print_text(c->summary);
    printf("\n");
    for (int k = 0; k < c->spec->nsub; k++) {
      printf("complete -c tessera -n '__tessera_at 2; and __tessera_in %s' -a %s -d ", c->name,
             c->spec->sub[k].name);
      print_text(c->spec->sub[k].summary);
      printf("\n");
    }
  }
  each_command(print_command);
  return OK;
}
