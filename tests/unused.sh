#!/bin/sh
# unused.sh BUILD SOURCE -- external functions of src/ that no other object file refers to, that
# tessera.h does not offer and that no test or benchmark names: they should be static, or go.
set -eu
build=$(cd "$1" && pwd) source=$(cd "$2" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$build"
# Objects whose source is gone may be left from before.
for folder in CMakeFiles/tess_objects.dir CMakeFiles/tess_simd_*.dir CMakeFiles/tessera.dir; do
  find "$folder" -name '*.o' | while read -r object; do
    file=${object#"$folder/"}
    [ ! -e "$source/${file%.o}" ] || echo "$object"
  done
done >"$scratch/objects"
[ -s "$scratch/objects" ] || { echo "unused: no object files in $build"; exit 1; }
xargs nm -A --defined-only <"$scratch/objects" | awk '$(NF - 1) == "T" { sub(/:.*/, "", $1); print $NF, $1 }' | sort >"$scratch/defined"
{
  xargs nm --undefined-only <"$scratch/objects" | awk 'NF > 1 { print $NF }'
  find "$source/tests" "$source/bench" -name '*.[ch]' -exec cat {} + | grep -oE '[a-zA-Z_][a-zA-Z0-9_]*'
  grep -o '\btess_[a-z0-9_]*' "$source/include/tessera.h"
} | sort -u >"$scratch/used"
awk -v used="$scratch/used" '
  BEGIN { while ((getline name < used) > 0) known[name] = 1 }
  !($1 in known) && $1 != "main" { print $1 " (" $2 "): no other file calls it; make it static, or remove it"; bad++ }
  END {
    if (bad) { print bad " of " NR " functions are not used elsewhere"; exit 1 }
    print NR " functions, all used"
  }
' "$scratch/defined"
