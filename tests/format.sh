#!/bin/sh
# format.sh SOURCE -- every file of C is formatted as .clang-format says.  The answer depends on the
# version of clang-format, so only the one that the tree was formatted with is asked (Debian 12's).
set -eu
cd "$1"
want=14
tool=$(command -v clang-format-$want || command -v clang-format || true)
version=$([ -z "$tool" ] || "$tool" --version | sed 's/.*version \([0-9]*\).*/\1/')
if [ "$version" != $want ]; then
  echo "skipped: needs clang-format $want, found ${version:-none}"
  exit 0
fi
list=$(find src include tests bench examples -name '*.[ch]' | sort)
# shellcheck disable=SC2086  # a list of files
off=$("$tool" --dry-run -Werror $list 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:.*/\1/p' | sort -u)
[ -z "$off" ] || { printf '%s\n' "$off"; echo "run: clang-format -i FILE"; exit 1; }
echo "$(echo "$list" | wc -l) files formatted"
