#!/bin/sh
# plan.sh TESSERA GOLDEN -- `tessera plan` and `tessera bench calibrate` from outside: the text
# of a small program word for word (tests/plan/blocks.expected; --update as third argument
# writes it anew), JSON that parses, pages, and errors.
set -u
tessera=$1 models=$2/models update=${3-}
. "$(dirname "$0")/trials.sh"
cd "$(dirname "$0")/plan" || exit 2

try() { # CODES PATTERN ARGUMENTS...: what fails prints nothing to standard output
  code=$1 pattern=$2
  shift 2
  check "$code" "$pattern" "$tessera" "$@"
  [ "$code" = 0 ] || that [ ! -s "$temp/out" ]
}
parses() { # a JSON file: read back by a command that reads JSON, or by Python where it is there
  if command -v python3 >/dev/null; then python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$1"; else grep -q '^{' "$1"; fi
}

# ---- the text, word for word
blocks="plan blocks.txt --mesh dp=2,tp=2 --plan blocks.json"
try 0 '' $blocks --machine machine.json --nodes --weights-table
[ "$update" != --update ] || cp "$temp/out" blocks.expected
that diff -u blocks.expected "$temp/out"

# ---- what layers cost: two all-reduces each, and nothing that nobody asked for
llama=$models/llama
try 0 'model.layers.0 to model.layers.1 +2 all_reduce \(' plan "$llama/program.pt2" --mesh tp=2 --plan "$llama/plan.json"
that grep -q 'all of them follow from the plan' "$temp/out"
try 0 'all_reduce tp +5 ' plan "$llama/program.pt2" --mesh dp=64,tp=16 --plan "$llama/plan.json" --machine a100
try 0 'machine h100' plan "$llama/program.pt2" --mesh tp=2 --plan "$llama/plan.json" --machine h100
try 0 'plan auto' plan "$llama/program.pt2" --mesh tp=2
try 0 'as rank 3' plan "$llama/program.pt2" --mesh tp=4 --plan "$llama/plan.json" --rank 3
try 0 'ranks differ' plan "$llama/program.pt2" --mesh tp=3 --plan "$llama/plan.json"
try 0 'at s[0-9]+=8, s[0-9]+=32' plan "$models/llama_dyn/program.pt2" --mesh dp=4,tp=2 --plan "$models/llama_dyn/plan.json" --size s43=8 --size s53=32
try 0 'x +f32\[32,8\] +S\(0\)R' $blocks --size s0=32

# ---- JSON, files, pages
try 0 '"program"' $blocks --machine machine.json --json
that parses "$temp/out"
try 0 '' $blocks --report "$temp/r.html"
that grep -q '<!doctype html>' "$temp/r.html"
that grep -q '"not_asked_for":\[{"count":1' "$temp/r.html"
that [ "$(grep -cE 'https?://' "$temp/r.html")" = "$(grep -c 'www.w3.org/2000/svg' "$temp/r.html")" ]
try 2 'exists already' $blocks --report "$temp/r.html"
try 0 '' $blocks --report "$temp/r.html" --force
try 0 '' $blocks --report "$temp/r.json"
that parses "$temp/r.json"
try 0 '' $blocks --report "$temp/report"
that grep -q 'nodes: placements' "$temp/report"
try 0 '' plan "$llama/program.pt2" --mesh tp=2 --plan auto --save-plan "$temp/saved.json"
try 0 'all of them follow' plan "$llama/program.pt2" --mesh tp=2 --plan "$temp/saved.json"
try 0 'all of them follow' plan "$llama/program.pt2" --plan "$temp/saved.json"

# ---- a training step: its collectives, with gradients joined, memory, time; one rank and many
gpt=$models/../train/gpt_tied/forward.pt2
step="plan $gpt --train --mesh dp=2,tp=2 --machine cpu2"
try 0 'a step of adamw on the loss' $step
for line in 'optimizer state  ' 'saved for the backward  ' 'reduce_scatter dp, backward  .* gradients, joined' 'all_reduce dp[+]tp, update  ' \
  'exposed communication  .* of the step' 'throughput of all ranks .* samples/s, .* tokens/s at a batch of'; do
  that grep -qE "$line" "$temp/out"
done
try 0 "gradients together: group 'gradients'" $step --nodes
try 0 '"tokens_per_second"' $step --json
that parses "$temp/out"
try 0 '' $step --report "$temp/step.html"
that grep -q '"spans":\[\[0,' "$temp/step.html"
try 0 '4096 ranks' plan "$gpt" --train=muon --mesh dp=64,tp=64 --batch 128
try 0 'note the batch has 12 rows for the 64 ranks' plan "$gpt" --train --mesh dp=64
try 0 'at a batch of 16' plan "$gpt" --train --machine a100 --batch 16
try 0 'on dp=1: 1 rank' plan "$gpt" --train --machine a100
try 0 'all_gather dp  .* parameters, joined' $step --fsdp --nodes
that grep -qE 'reduce_scatter dp, backward  .* gradients, joined' "$temp/out"
# shards in units, of two axes on one dimension, among those that are moved together
echo '{"params": {"tok.weight": "R,S(0; unit 9)"}}' >"$temp/units.json"
try 0 'all_gather dp, update  .* parameters, joined' plan "$gpt" --train --mesh dp=2,tp=2 --machine a100 --plan "$temp/units.json" --nodes
try 2 'are for parameters that are sharded' $step --prefetch 2
try 2 'speak of a training' plan "$gpt" --mesh dp=2 --batch 16
try 2 '--optim' plan "$gpt" --train=adamv --mesh dp=2
try 2 'do not fit|smallest limit' plan "$gpt" --train --mesh dp=2 --memory 1K

# ---- errors
try 2 'one program, 0' plan --mesh tp=2
try 2 'which mesh' plan blocks.txt
try 2 'which mesh' plan blocks.txt --plan blocks.json
try 2 '0 is no number of ranks; 1 to' plan blocks.txt --mesh tp=0
try 2 'number of ranks is expected at its end' plan blocks.txt --mesh tp=
try 2 "number of ranks is expected at 'tp'" plan blocks.txt --mesh tp
try 2 'is no number of ranks' plan blocks.txt --mesh tp=99999999999999999999
try 2 "called 'tp'" plan blocks.txt --mesh tp=2,tp=2
that grep -q 'hint give each axis a name of its own' "$temp/err"
try 2 "ends with 'x'" plan blocks.txt --mesh 2x
try 2 "a comma is expected between axes, not ';dp=2'" plan blocks.txt --mesh 'tp=2;dp=2'
try 2 'an empty mesh' plan blocks.txt --mesh ''
try 2 'ranks: they are 0 to 3' $blocks --rank 4
echo '{"parallelize": {"blocks.*.upp": "colwise"}}' >"$temp/none.json"
try 2 "did you mean 'blocks.0.up'" plan blocks.txt --mesh tp=2 --plan "$temp/none.json"
echo '{"parallelize": {"blocks.*.up": "colwize"}}' >"$temp/style.json"
try 2 "did you mean 'colwise'" plan blocks.txt --mesh tp=2 --plan "$temp/style.json"
try 3 'No such file' plan blocks.txt --mesh tp=2 --plan "$temp/absent.json"
bad_plan() { # CODE PATTERN JSON
  printf '%s' "$3" >"$temp/bad.json"
  try "$1" "$2" plan blocks.txt --mesh tp=2 --plan "$temp/bad.json"
}
# a file that is no plan
bad_plan 3 'not valid JSON' '{"parallelize": '
bad_plan 3 'it is empty' ''
bad_plan 3 'a plan is a JSON object' '[1]'
that grep -q 'hint a plan is JSON: {"parallelize"' "$temp/err"
bad_plan 3 '"parallelize" is no object' '{"parallelize": [1]}'
bad_plan 3 'a style such as "colwise"' '{"parallelize": {"blocks.*.up": 3}}'
bad_plan 3 'did you mean "parallelize"' '{"paralelize": {}}'
bad_plan 3 'unknown key "stile"' '{"parallelize": {"blocks.*.up": {"stile": "colwise"}}}'
bad_plan 3 'occurs twice' '{"parallelize": {"blocks.0.up": "colwise", "blocks.0.up": "rowwise"}}'
bad_plan 3 'axes and sizes' '{"mesh": 3}'
bad_plan 3 "\"mesh\" is 'tp=q', no mesh" '{"mesh": "tp=q"}'
bad_plan 3 'no count' '{"packed": {"blocks.*.up": 0}}'
# a plan whose words do not fit the program or the mesh
bad_plan 2 "names the axis 'tq'" '{"parallelize": {"blocks.*.up": {"style": "colwise", "axis": "tq"}}}'
that grep -q 'hint the mesh is tp=2' "$temp/err"
bad_plan 2 '2 placements for a mesh of 1 axis' '{"params": {"blocks.0.up.weight": "S(0),R"}}'
bad_plan 2 'there is no dimension 5' '{"params": {"blocks.0.up.weight": "S(5)"}}'
bad_plan 2 'S.0. by colwise .blocks.0.up. and S.1. by rowwise' '{"parallelize": {"blocks.0.up": "colwise", "blocks.*.up": "rowwise"}}'
printf '%s' '{"parallelize": {"model.layers.*": "colwise"}}' >"$temp/bad.json"
try 2 "'model.layers.\*' is to be colwise, but has no weights of its own" plan "$llama/program.pt2" --mesh tp=2 --plan "$temp/bad.json"
that grep -q "hint name the modules inside that have them, such as that of 'model.layers.0" "$temp/err"
printf '%s' '{"parallelize": {"transformer.wte": "embedding_rowwise", "lm_head": "rowwise"}}' >"$temp/bad.json"
try 2 'two names of tied weights' plan "$models/gpt2/program.pt2" --mesh tp=2 --plan "$temp/bad.json"
try 3 'No such file' plan "$temp/absent.pt2" --mesh tp=2
try 2 "did you mean 'a100'" $blocks --machine a10
try 3 'No such file' $blocks --machine "$temp/absent.json"
bad() { # PATTERN CODE JSON
  printf '%s' "$3" >"$temp/bad.json"
  try "$2" "$1" $blocks --machine "$temp/bad.json"
}
bad 'did you mean "flops"' 3 '{"flop": 1e9}'
bad '"flops" is missing' 3 '{"memory_bandwidth": 1e9}'
bad '"flops" is no number' 3 '{"flops": "many", "memory_bandwidth": 1e9}'
bad 'no dtype' 3 '{"flops": {"f33": 1e9}, "memory_bandwidth": 1e9}'
bad 'above 0' 3 '{"flops": 0, "memory_bandwidth": 1e9}'
bad '"memory_bandwidth" is missing' 3 '{"flops": 1e9}'
bad "no link for the mesh axis 'dp'" 2 '{"flops": 1e9, "memory_bandwidth": 1e9, "links": {"tp": {"bandwidth": 1e9}}}'
bad 'bytes/s and seconds' 3 '{"flops": 1e9, "memory_bandwidth": 1e9, "links": {"tp": 3}}'
bad 'a JSON object' 3 '[1]'
bad 'JSON' 3 '{"flops": 1e9'
try 2 'SYMBOL=NUMBER' $blocks --size s0
try 2 "no symbol 's7'" $blocks --size s7=3
try 2 'takes 1 to 64' $blocks --size s0=100
try 2 'plans that are derived' $blocks --save-plan "$temp/given.json"
that [ ! -e "$temp/given.json" ]
try 1 'cannot write' $blocks --report "$temp/no/such/folder/r.html"
that [ ! -e "$temp/no" ]
mkdir "$temp/folder.html"
try 1 'it is a folder' $blocks --report "$temp/folder.html"

# ---- machines that are measured
try 0 'memory' bench calibrate --seconds 0.01 -o "$temp/m.json"
that parses "$temp/m.json"
try 0 'machine calibrated' plan blocks.txt --mesh tp=2 --plan blocks.json --machine "$temp/m.json"
try 2 'exists already' bench calibrate --seconds 0.01 -o "$temp/m.json"
try 0 '"flops"' bench calibrate --seconds 0.01 --ranks 1 --name here
try 2 'above 0' bench calibrate --seconds 0
try 2 'options only' bench calibrate now

sum_up
