#!/bin/sh
# layers.sh SOURCE -- each layer includes only itself and the layers above it.
set -eu
cd "$1/src"
awk '
  BEGIN {
    n = split("base tensor kernels shard comm ops dist grad fsdp optim parallel graph pt2 passes plan runtime rank_files report ckpt train api harness cli", layers, " ")
    for (i = 1; i <= n; i++) rank[layers[i]] = i
  }
  FNR == 1 { split(FILENAME, part, "/"); here = part[2] }
  FNR == 1 && !(here in rank) { print FILENAME ": no layer is called " here; bad++ }
  /^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    if (quoted[2] == "tessera.h") next # the public types
    k = split(quoted[2], path, "/")
    if (k < 2 || !(path[1] in rank)) { print FILENAME ":" FNR ": \"" quoted[2] "\" does not begin with a layer"; bad++ }
    else if (rank[path[1]] > rank[here]) { print FILENAME ":" FNR ": " here "/ must not include " quoted[2]; bad++ }
    count++
  }
  END { if (bad) exit 1; print count " includes in order" }
' $(find . -name '*.[ch]' -o -name '*.def')
