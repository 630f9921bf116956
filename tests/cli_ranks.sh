#!/bin/sh
# cli_ranks.sh TESSERA GOLDEN [MPIRUN] -- `tessera run` on several ranks from outside: which
# files belong to whom, who writes what, and what is said when something does not fit.
set -u
here=$(dirname "$0") tessera=$1 golden=$2 mpirun=${3:-}
. "$here/trials.sh"

try() { # CODES PATTERN ARGUMENTS...
  code=$1 pattern=$2
  shift 2
  check "$code" "$pattern" "$tessera" run "$@"
}
mpi() { # CODES PATTERN RANKS ARGUMENTS...
  code=$1 pattern=$2 n=$3
  shift 3
  check "$code" "$pattern" "$here/mpirun.sh" "$mpirun" "$n" "$tessera" run "$@"
}

mlp=$golden/models/mlp_tp2_by_torch all=$golden/models/collectives_tp2 one=$golden/ddp/fusion/one.before.pt2
in=$mlp/inputs_rank0.safetensors want=$mlp/outputs_rank0.safetensors

# ---- programs of each rank
try 0 'matches' "$mlp" -i "$in" --expect "$want"
try 0 'matches' "$mlp/" -i "$in" --expect "$want" -n 2
try 0 'matches' "$mlp/rank0.pt2,$mlp/rank1.pt2" -i "$in" --expect "$want"
try 0 'matches' "$mlp/rank1.pt2" "$mlp/rank0.pt2" -i "$in" --expect "$want"
try 0 'matches' "$mlp" -i "$in" --expect "$want" --interpret
try 0 '2 runs on 2 ranks' "$mlp" -i "$in" --repeat 2
try 0 '"ranks": 2' "$mlp" -i "$in" --repeat 2 --json
try 0 '_c10d_functional.wait_tensor' "$mlp" -i "$in" --profile
try 0 '^rank 1:' "$all" -i "$all/inputs_rank{rank}.safetensors" --expect "$all/outputs_rank0.safetensors,$all/outputs_rank1.safetensors"
try 4 'rank 0 of 2: output 5 is f32.3,4., expected f32.5,4.' "$all" -i "$all/inputs_rank{rank}.safetensors" --expect "$all/outputs_rank1.safetensors,$all/outputs_rank1.safetensors"

# ---- one program for all
try 0 'f32' "$one" -n 3 --random-inputs 1
try 0 'f32' "$one" -n 1 --random-inputs 1
try 0 'f32' "$one" -n 4 --random-inputs 1 --group 0=0,1 --group 0=3,2
try 0 'f32' "$one" -n 2 --random-inputs 1 --group 0=all --group other=0

# ---- outputs: one file if all agree, else one each
try 0 '' "$mlp" -i "$in" -o "$temp/same.safetensors"
that test -e "$temp/same.safetensors" -a ! -e "$temp/same.rank0.safetensors"
try 2 'exists already' "$mlp" -i "$in" -o "$temp/same.safetensors"
try 0 '' "$all" -i "$all/inputs_rank{rank}.safetensors" -o "$temp/own.safetensors"
that test ! -e "$temp/own.safetensors" -a -e "$temp/own.rank0.safetensors" -a -e "$temp/own.rank1.safetensors"
try 2 'own.rank0.safetensors. exists already' "$all" -i "$all/inputs_rank{rank}.safetensors" -o "$temp/own.safetensors"
mkdir "$temp/folder"
try 0 '' "$mlp" -i "$in" -o "$temp/folder"
that test -e "$temp/folder/rank0.safetensors" -a -e "$temp/folder/rank1.safetensors"
try 0 '' "$mlp" -i "$in" -o "$temp/{rank}.safetensors"
that cmp -s "$temp/0.safetensors" "$temp/1.safetensors"
try 1 'cannot write' "$mlp" -i "$in" -o "$temp/no/such.safetensors"
if [ -c /dev/full ]; then
  try 1 "cannot write '/dev/full' .*No space left" "$mlp" -i "$in" -o /dev/full
  try 1 "cannot write '/dev/full' .*No space left" "$golden/models/mlp/program.pt2" --mesh tp=2 -i "$golden/models/mlp/inputs.safetensors" -o /dev/full
  ln -s /dev/full "$temp/full.1"
  try 1 "rank 1 of 2: cannot write .*No space left" "$mlp" -i "$in" -o "$temp/full.{rank}"
fi

# ---- groups of a plan
mkdir "$temp/plan"
cp "$mlp"/rank*.pt2 "$temp/plan"
plan() { printf '%s' "$1" >"$temp/plan/plan.json"; }
plan '{"groups": {"0": [[0, 1]], "x": [[0], [1]]}, "other": 1}'
try 0 'matches' "$temp/plan" -i "$in" --expect "$want"
plan '{}'
try 0 'matches' "$temp/plan" -i "$in" --expect "$want"
plan '{"groups": {"0": [[0]]}}'
try 2 "rank 1 is in no group called '0'" "$temp/plan" -i "$in"
plan '{"groups": {"0": [[0, 2]]}}'
try 2 "group '0' names rank 2" "$temp/plan" -i "$in"
plan '{"groups": [1]}'
try 3 "'groups' must be an object" "$temp/plan" -i "$in"
plan '{"groups": {"0": [[0, "a"]]}}'
try 3 'is no rank' "$temp/plan" -i "$in"
plan '{"groups": {"0": '
try 3 'plan.json' "$temp/plan" -i "$in"

# ---- what does not fit
try 2 'no ranks to talk to, the program was made for several' "$mlp/rank0.pt2" -i "$in"
that grep -q 'hint tessera run -n N' "$temp/err"
try 2 'programs for 2 ranks, but 3' "$mlp" -n 3 -i "$in"
try 5 "group '0' has 3 ranks, the program was made for 2" "$all/rank0.pt2" -n 3 -i "$all/inputs_rank0.safetensors"
try 5 'all_to_all' "$all/rank0.pt2" -n 2 -i "$all/inputs_rank0.safetensors"
try 5 'all_reduce' "$mlp/rank0.pt2" "$all/rank1.pt2" -i "$in,$all/inputs_rank1.safetensors"
try 3 'rank 1 of 2: .*No such file' "$mlp" -i "$in,$temp/none.safetensors"
try 2 'lists 3 files for 2 ranks' "$mlp" -i a,b,c
try 2 'between 1 and' "$mlp" -n 0
try 2 'NAME=0,1,2' "$mlp" -i "$in" --group 0
try 2 'ranks are numbers' "$mlp" -i "$in" --group 0=0,x
try 2 'names rank 1 twice' "$mlp" -i "$in" --group 0=1,1
try 2 'two groups' "$mlp" -i "$in" --group 0=0,1 --group 0=1
try 2 'say how many' "$one" --random-inputs 1 --group 0=0
try 2 'there are threads' "$mlp" -i "$in" --comm carrier-pigeon
try 2 'number of seconds' "$mlp" -i "$in" --timeout -1
try 5 'all_reduce' "$mlp/rank0.pt2" "$all/rank1.pt2" -i "$in,$all/inputs_rank1.safetensors" --timeout 60 --flight "$temp/flight.json"
that grep -q '"collectives"' "$temp/flight.json"
try 3 'without rank0.pt2' "$temp/folder" -i "$in"

# ---- errors of all ranks name none of them, errors of one name it
try 3 '^error: cannot open' "$mlp" -i "$temp/none.safetensors"
try 3 '^error: rank 1 of 2: cannot open' "$mlp" -i "$in,$temp/none.safetensors"
try 5 '^error: _c10d_functional.*made for 2' "$all/rank0.pt2" -n 3 -i "$all/inputs_rank0.safetensors"
try 0 '"ranks": \[\{"rank": 0, .*\{"rank": 1, ' "$all" -i "$all/inputs_rank{rank}.safetensors" --expect "$all/outputs_rank{rank}.safetensors" --json

# ---- an index that is no row of a table: refused in one rank, on a mesh and in rank files
safetensors() { # FILE NAME DTYPE SHAPE BYTES < data
  header=$(printf '{"%s":{"dtype":"%s","shape":[%s],"data_offsets":[0,%s]}}' "$2" "$3" "$4" "$5")
  { printf "\\$(printf %03o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"; cat; } >"$1"
}
head -c 96 /dev/zero | safetensors "$temp/table.safetensors" e.weight F32 6,4 96
printf '\5\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' | safetensors "$temp/good.safetensors" ids I64 2 16
printf '\6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' | safetensors "$temp/high.safetensors" ids I64 2 16
printf '\377\377\377\377\377\377\377\377\0\0\0\0\0\0\0\0' | safetensors "$temp/low.safetensors" ids I64 2 16
cat >"$temp/table.txt" <<'END'
graph(%w: f32[6,4] = parameter "e.weight", %ids: i64[2] = user) {
  %y: f32[2,4] = aten.embedding.default(%w, %ids)
  return user %y
}
END
echo '{"params": {"e.weight": "S(0)"}}' >"$temp/table.json"
for n in 2 3; do
  check 0 'rank 1' "$tessera" shard "$temp/table.txt" --weights "$temp/table.safetensors" --mesh tp=$n --plan "$temp/table.json" -o "$temp/table$n"
  try 0 'f32.2,4' "$temp/table$n" -i "$temp/good.safetensors"
  for ids in high low; do
    try '1 5' 'out of bounds' "$temp/table.txt" --weights "$temp/table.safetensors" -i "$temp/$ids.safetensors"
    try '1 5' 'out of bounds' "$temp/table.txt" --weights "$temp/table.safetensors" --mesh tp=$n --plan "$temp/table.json" -i "$temp/$ids.safetensors"
    try '1 5' 'out of bounds' "$temp/table$n" -i "$temp/$ids.safetensors"
  done
done

# ---- processes
if [ -n "$mpirun" ]; then
  mpi 0 'matches' 2 "$mlp" -i "$in" --expect "$want"
  mpi 0 '^rank 1:' 2 "$all" -i "$all/inputs_rank{rank}.safetensors" --expect "$all/outputs_rank{rank}.safetensors" -o "$temp/mpi.{rank}.safetensors"
  that cmp -s "$temp/mpi.1.safetensors" "$temp/own.rank1.safetensors"
  mpi 0 'f32' 3 "$one" --random-inputs 1
  mpi 2 '3 ranks were launched, 2 are wanted' 3 "$mlp" -i "$in"
  mpi 2 'error: 1 rank was launched, 2 are wanted' 1 "$mlp" -i "$in"
  that grep -q 'hint .*mpirun -n 2' "$temp/err"
  mpi 2 '3 ranks were launched, 4 are wanted' 3 "$golden/models/mlp/program.pt2" --mesh dp=2,tp=2 -i "$golden/models/mlp/inputs.safetensors"
  that test -z "$(grep 'error: .*error: ' "$temp/err")"
  [ ! -c /dev/full ] || mpi 1 "cannot write '/dev/full'" 2 "$mlp" -i "$in" -o /dev/full
  check 0 'rank 1: ' "$here/mpirun.sh" "$mpirun" 3 "$tessera" shard "$golden/models/mlp/program.pt2" --mesh tp=2 -o "$temp/cut" # once
  that test "$(grep -c '^rank 0: ' "$temp/out")" = 1 -a -s "$temp/cut/rank1.pt2"
  that test -z "$(find "$temp" -name 'cut.part-*')"
  mpi 3 'error: rank 1 of 2: .*No such file' 2 "$mlp" -i "$in,$temp/none.safetensors"
  that test "$(grep -c 'No such file' "$temp/err")" = 1
  mpi 3 'error: cannot open' 2 "$mlp" -i "$temp/none.safetensors"
  that test "$(grep -c 'cannot open' "$temp/err")" = 1
  # A rank that hears of another's error before it meets its own has none: then it is the other's, by name.
  mpi 5 'error: (rank [0-2] of 3: )?_c10d_functional.*the program was made for 2' 3 "$all/rank0.pt2" -i "$all/inputs_rank0.safetensors"
  that test "$(grep -c 'made for 2' "$temp/err")" = 1
  # One rank is interrupted, by hand.
  cat >"$temp/interrupt.sh" <<'END'
if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 1 ]; then (sleep 2; kill -INT $$) & fi
exec "$@"
END
  check '130 5' 'error: rank 1: interrupted' "$here/mpirun.sh" "$mpirun" 2 sh "$temp/interrupt.sh" "$tessera" run "$mlp" -i "$in" --repeat 100000000
fi

sum_up
