#!/bin/sh
# docs.sh SOURCE TESSERA -- runs every command that README.md and docs/ show in a console
# block ("$ tessera ...", or what a shell does before it) and fails if one fails, or if the line of output shown below it
# does not come out.  Those that run Python are left out where it has no NumPy.  Files of the sources that pages name must be there.  Blocks of programs (```tessera) must parse and verify.
set -eu
source=$(cd "$1" && pwd)
tessera=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
scratch=$(mktemp -d) # commands may write: not into the sources
PATH=$(dirname "$tessera"):$PATH # `tessera` is the one of the build
[ ! -e "$(dirname "$tessera")/libtessera.so" ] || export TESSERA_LIBRARY="$(dirname "$tessera")/libtessera.so"
cd "$scratch"
ln -s "$source"/* .
files="README.md $(ls docs/*.md 2>/dev/null || true)"
commands=0
python3 -c 'import numpy' >/dev/null 2>&1 && python=yes || python=no
command='' output=$(mktemp) program=$(mktemp)
trap 'rm -rf "$output" "$program" "$scratch"' EXIT
check_line() { # a line of shown output: numbers may differ
  pattern=$(printf '%s' "$1" | sed 's/[0-9][0-9.e+-]*/@/g; s/[][\.*^$]/\\&/g; s/@/[0-9][0-9.e+-]*/g')
  grep -q -- "$pattern" "$output" || { echo "docs: '$command' does not print '$1'"; exit 1; }
}
for f in $files; do
  inside=no skips=no
  while IFS= read -r line; do
    case $line in
      '```console') inside=yes ;;
      '```tessera') inside=program && : >"$program" ;;
      '```'*)
        [ $inside != program ] || "$tessera" opt "$program" --verify >"$output" 2>&1 || { echo "docs: a program in $f:"; cat "$output"; exit 1; }
        inside=no
        ;;
      *) [ $inside != program ] || printf '%s\n' "$line" >>"$program" ;;
    esac
    case $line in
      '```'*) ;;
      '$ '*)
        [ $inside = yes ] || continue
        command=${line#'$ '}
        skips=no
        case $command in *python3*) [ $python = yes ] || skips=yes ;; esac
        [ $skips = no ] || continue
        commands=$((commands + 1))
        eval "$command" >"$output" 2>&1 || { echo "docs: '$command' in $f failed:"; cat "$output"; exit 1; }
        ;;
      ?*) [ $inside != yes ] || [ $skips = yes ] || check_line "$line" ;;
    esac
  done <"$f"
done
# Files of the sources that a page names are there ("dist/route.c", "src/ops/ops.def").
for f in $files ARCHITECTURE.md CONTRIBUTING.md; do
  grep -oE '`[a-z_0-9./]+/[a-z_0-9]+\.(c|h|def|sh|py|md)`' "$f" | tr -d '`' | sort -u | while read -r path; do
    [ -e "$path" ] || [ -e "src/$path" ] || echo "docs: $f names $path, which is not there"
  done
done >"$output"
grep -v 'drop_small_add' "$output" >"$program" || : # the example of passes.md
[ ! -s "$program" ] || { cat "$program"; exit 1; }
[ $commands -gt 0 ] || { echo "docs: no commands found"; exit 1; }
echo "$commands commands"
