#!/bin/sh
# exports.sh LIBTESSERA.SO HEADER -- the library gives its users every function of the
# header and nothing else.
set -eu
lib=$1 header=$2
nm -D --defined-only "$lib" | awk '{print $NF}' | sed 's/@.*//' | sort -u >"$lib.exported"
grep -o '\btess_[a-z0-9_]*(' "$header" | tr -d '(' | sort -u >"$lib.named"
# Macros and inline functions of the header are no symbols.
grep -oE '(static inline [A-Za-z]+ |#define )tess_[a-z0-9_]+' "$header" | grep -o 'tess_.*' | sort -u >"$lib.inline"
sort "$lib.named" | grep -vxFf "$lib.inline" >"$lib.expected"
if ! diff "$lib.expected" "$lib.exported"; then
  echo "exports: < is in the header but not exported, > is exported but not in the header"
  exit 1
fi
echo "$(wc -l <"$lib.exported") functions exported"
