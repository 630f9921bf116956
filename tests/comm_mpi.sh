#!/bin/sh
# comm_mpi.sh MPIRUN COMM_MPI TESSERA -- collectives of processes: what works, and what ranks say when
# one calls something else, fails, leaves, is late, or is killed.  MPIRUN is any launcher of a transport
# whose ranks are processes that takes `-n RANKS PROGRAM ARGUMENTS...`.
set -u
here=$(dirname "$0") mpirun=$1 program=$2 tessera=$3
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
passed=0 failed=0

launch() { # RANKS, words
  n=$1
  shift
  timeout 120 "$here/mpirun.sh" "$mpirun" "$n" "$program" "$@" >"$temp/out" 2>&1
}
bad() {
  echo "$*:"
  sed 's/^/    /' "$temp/out"
  failed=$((failed + 1))
}
try() { # every rank sees what it should
  if launch "$@"; then passed=$((passed + 1)); else bad "ranks: $*"; fi
}

for n in 1 2 3 4; do try $n good; done
try 3 same_bits
for i in 0 1 2 3 4 5 6 7 8 9; do try 3 mistake $i; done
try 4 mistake 0 started
try 4 mistake 8 started
try 2 boxes
try 2 pair
try 3 group 0
try 3 group 1
for i in 0 1 2 3; do
  try 4 fails $i
  try 3 fails $i started
done
for i in 1 5 9 14 20; do try 3 some_time $i; done
try 3 late
try 3 late 0 started
try 2 forgotten

# A killed process ends the job in seconds; somebody names the rank and the collective, if the
# launcher gives the others time for that (MPICH's kills them at once).
case $("$mpirun" --version 2>&1) in
  *Open*) names='all_reduce #4 (step): f32\[10\] sum.*rank 1' ;;
  *) names= ;;
esac
begun=$(date +%s)
if launch 3 killed; then
  bad "killed: exit code 0"
elif [ $(($(date +%s) - begun)) -gt 20 ]; then
  bad "killed: took $(($(date +%s) - begun)) s"
elif ! grep -q "$names" "$temp/out"; then
  bad "killed: neither rank nor collective are named"
else
  passed=$((passed + 1))
fi

# The command: rank 0 prints.
if timeout 120 "$here/mpirun.sh" "$mpirun" 3 "$tessera" bench allreduce -b 8 -e 64K -f 8 --rounds 3 >"$temp/out" 2>&1 &&
  [ "$(grep -c 'wrong values: 0' "$temp/out")" = 1 ] && grep -q '3 ranks (' "$temp/out" && ! grep -q '(threads)' "$temp/out"; then
  passed=$((passed + 1))
else
  bad "bench"
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]
