#!/bin/sh
# cli.sh TESSERA GOLDEN -- the command line from outside: what it prints where, and its
# exit codes (0 ok, 1 failure, 2 usage, 3 bad file, 4 difference).
set -u
tessera=$1 models=$2/models
. "$(dirname "$0")/trials.sh"

mlp=$models/mlp/program.pt2 in=$models/mlp/inputs.safetensors want=$models/mlp/outputs.safetensors

# ---- the front door
try 2 'usage|commands'
try 0 'commands' help
try 0 '^tessera [0-9]+\.[0-9]+' --version
try 2 "did you mean 'tessera inspect'" inspct
try 2 "did you mean 'tessera run'" rnu
for command in run inspect plan shard opt ops passes bench doctor; do
  try 0 'usage: tessera' $command --help
  try 0 'usage: tessera' help $command
  try 2 'has no option' $command --no-such-option
done
try 2 "did you mean '--threads'" run --thread 2

# ---- run
try 0 'matches' run "$mlp" -i "$in" --expect "$want"
try 0 '' run "$mlp" -i "$in" -o "$temp/out.safetensors"
try 2 'exists already' run "$mlp" -i "$in" -o "$temp/out.safetensors"
try 0 '' run "$mlp" -i "$in" -o "$temp/out.safetensors" --force
try 0 'matches' run "$mlp" -i "$in" --expect "$temp/out.safetensors" --rtol 0 --atol 0
try 0 'min .* ms, median' run "$mlp" --random-inputs 1 --repeat 3
for seconds in -1 nan; do try 2 'number of seconds' run "$mlp" --random-inputs 1 --timeout $seconds; done # also on one rank
try 0 '"min_ms"' run "$mlp" --random-inputs 1 --repeat 3 --json
try 0 'aten.linear|tess.linear' run "$mlp" -i "$in" --profile
try 0 'aten.linear.default' run "$mlp" -i "$in" --profile --interpret
try 0 '"ops": .*"nodes": ' run "$mlp" -i "$in" --profile --json
try 0 '"ops": .*"runs": 3,' run "$mlp" -i "$in" --profile --json --warmup 4 --repeat 3 # without those to warm up
try 0 '"ops": .*"runs": 3,' run "$mlp" -i "$in" --profile --json --warmup 4 --repeat 3 --interpret
try 0 '"ops": .*"runs": 2,' run "$mlp" -i "$in" --profile --json --warmup 4 --repeat 2 --mesh tp=2
trace() { # PATTERN ARGUMENTS...: the trace of the last run
  shown=$1
  shift
  try 0 '' run "$@" --trace "$temp/trace.json" --force
  that grep -qE -e "$shown" "$temp/trace.json"
  ! command -v python3 >/dev/null || that python3 -m json.tool "$temp/trace.json" /dev/null
}
trace '"ph":"X","name":"linear[a-z_0-9]*","cat":"forward","args":.*"op":".*"in":"f32.*"ts":[0-9.]*,"dur":[0-9.]*,"pid":1' "$mlp" -i "$in"
trace '"name":"linear' "$mlp" -i "$in" --interpret --repeat 2
trace '"name":"rank 1"' "$mlp" -i "$in" --mesh tp=2
trace '"cat":"backward"' "${models%/*}/grads/mlp/program.pt2" -i "${models%/*}/grads/mlp/inputs.safetensors" --grad
trace '"cat":"backward"' "${models%/*}/grads/mlp/program.pt2" -i "${models%/*}/grads/mlp/inputs.safetensors" --grad --interpret
try 2 'exists already' run "$mlp" -i "$in" --trace "$temp/trace.json"
try 2 'exists already' run "$mlp" -i "$in" --trace "$temp/trace.json" --mesh tp=2
try 1 '' run "$mlp" -i "$in" --trace "$temp/no/such/folder/trace.json"
for ranks in '' '--mesh=tp=2'; do try 1 'No space left' run "$mlp" -i "$in" --trace /dev/full $ranks; done
trained=${models%/*}/train/mlp_ce
try 0 'ms/run' train "$trained/forward.pt2" --data "$trained/batches.safetensors" --batched --steps 2 --profile --trace "$temp/trace.json" --force
that grep -q '"cat":"update","args":{"op":"tess.adam' "$temp/trace.json"
try 2 'exists already' train "$trained/forward.pt2" --data "$trained/batches.safetensors" --batched --steps 2 --trace "$temp/trace.json"
try 0 'step 2' train "$trained/forward.pt2" --data "$trained/batches.safetensors" --batched --steps 2 --save "$temp/run" --log "$temp/l.jsonl" --report "$temp/t.html"
try 0 'step 4' train --resume "$temp/run" --steps 4 # the page and the log tell of all steps
that grep -q '"steps":4' "$temp/t.html"
that [ "$(wc -l <"$temp/l.jsonl")" -eq 4 ]
try 0 '^0: f32' run "$mlp" -i "$in" --print-outputs
try 3 'No such file' run "$temp/none.pt2"
try 2 'needs inputs' run "$mlp"
try 2 'number' run "$mlp" --random-inputs x
try 2 'exclude each other' run "$mlp" --random-inputs 1 -i "$in"
try 2 'output files for' run "$mlp" -i "$in" -o "$temp/a" -o "$temp/b"
try 3 "wants 2 dimensions" run "$mlp" -i "$models/gpt2/outputs.safetensors"
try 3 "has no input" run "$models/bert/program.pt2" -i "$in"
try 1 '' run "$mlp" -i "$in" -o "$temp/no/such/folder/out.safetensors"
that [ ! -e "$temp/no" ]
printf 'PK\003\004 cut off' >"$temp/cut.pt2"
try 3 '' run "$temp/cut.pt2" --random-inputs 0
head -c 3000 "$mlp" >"$temp/cut2.pt2"
try 3 '' run "$temp/cut2.pt2" --random-inputs 0
try 3 '' run "$temp" --random-inputs 0
: >"$temp/empty.pt2"
try 3 '' run "$temp/empty.pt2" --random-inputs 0
cache=$models/llama_cache
trace '"name":"' "$cache/program.pt2" -i "$cache/inputs_0.safetensors" -i "$cache/inputs_1.safetensors"
try 0 'matches' run "$cache/program.pt2" -i "$cache/inputs_0.safetensors" -i "$cache/inputs_1.safetensors" \
  --expect "$cache/outputs_0.safetensors" --expect "$cache/outputs_1.safetensors"
try 4 'call 1 of 2|differ' run "$cache/program.pt2" -i "$cache/inputs_1.safetensors" -i "$cache/inputs_0.safetensors" --expect "$cache/outputs_1.safetensors"

try 0 '^0: f32\[' run "$mlp" -i "$in"
try 0 '"outputs": \[\{"output": 0, "dtype": "f32", "size": \[10,6\], "data": \[' run "$mlp" -i "$in" --print-outputs --json
try 0 '' run "$mlp" -i "$in" -o /dev/null
try 0 '^0: f32' run -i "$in" -- "$mlp"
try 2 'between 1 and' run "$mlp" -i "$in" --repeat 0
try 2 'between 0 and' run "$mlp" -i "$in" --warmup -1
try 2 'between 1 and 1024' run "$mlp" -i "$in" --threads 2000
try 2 'negative' run "$mlp" -i "$in" --expect "$want" --rtol=-1
try 2 'output of two calls' run "$mlp" -i "$in" -i "$in" -o "$temp/twice" -o "$temp/twice"
that [ ! -e "$temp/twice" ]
try 2 'text form' run "$mlp" --weights "$mlp" -i "$in"

# ---- inspect
try 0 '[0-9.]+ [KMG]FLOP in' inspect "$mlp"
try 0 's[0-9]+ +1 to 64' inspect "$models/llama_dyn/program.pt2"
try 0 '"flops"' inspect "$mlp" --json
try 0 '1 tensor,' inspect "$in"
try 3 '' inspect "$temp/cut2.pt2"
odd=$(printf '%s/\377.pt2' "$temp")
cp "$mlp" "$odd"
try 0 '"file": ".*\.pt2"' inspect "$odd" --json
try 0 'exported by' inspect "$odd"
printf '\100\000\000\000\000\000\000\000{"\\u001b[2Jx":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}  z' >"$temp/escape.safetensors"
try 0 '^\?\[2Jx ' inspect "$temp/escape.safetensors"
try 2 'one file' inspect

# ---- opt: what is printed is a program again, and computes the same
try 0 '^program' opt "$mlp" --print
try 0 '' opt "$mlp" -o "$temp/mlp.txt"
try 2 'exists already' opt "$mlp" -o "$temp/mlp.txt"
try 0 'matches' run "$temp/mlp.txt" --weights "$mlp" -i "$in" --expect "$want"
try 3 'hint give the weights' run "$temp/mlp.txt" -i "$in"
try 3 "has no parameter" run "$temp/mlp.txt" --weights "$models/vit/program.pt2" -i "$in"
sed 's/weight: f32/weight: f64/' "$temp/mlp.txt" >"$temp/f64.txt"
try 3 "but the program says otherwise" run "$temp/f64.txt" --weights "$mlp" -i "$in"
try 3 'hint a program is' run "$0" -i "$in"
try 0 '' opt "$temp/mlp.txt" -o "$temp/again.txt"
that cmp -s "$temp/mlp.txt" "$temp/again.txt"
for model in llama gpt2 resnet vit mixtral; do
  try 0 'every op is known' opt "$models/$model/program.pt2" --passes inline,functionalize,dce,cse -o "$temp/$model.txt" --verify
  try 0 'matches' run "$temp/$model.txt" --weights "$models/$model/program.pt2" -i "$models/$model/inputs.safetensors" --expect "$models/$model/outputs.safetensors"
done
try 0 '' opt "$models/llama/program.pt2" --passes inline,functionalize,dce,cse -o "$temp/llama.pt2"
try 0 'checksums match' opt "$temp/llama.pt2" --verify
try 0 'PyTorch will not load' opt "$mlp" --as-run -o "$temp/as_run.pt2"
try 0 'matches' run "$temp/as_run.pt2" -i "$in" --expect "$want"
try 2 'there already|exists' opt "$models/llama/program.pt2" -o "$temp/llama.pt2"
try 0 'matches' run "$temp/llama.pt2" -i "$models/llama/inputs.safetensors" --expect "$models/llama/outputs.safetensors"
try 0 'tess.linear_act' opt "$mlp" --as-run --print
try 0 '^# after dce' opt "$mlp" --passes dce,cse --print-after dce
try 2 'assign_memory: .* sizes are not known' opt "$(dirname "$models")/train/gpt_tied/forward.pt2" --passes assign_memory --print
try 0 '"pass": "dce"' opt "$mlp" --passes dce --json
try 0 'i64\[3,5\]' opt "$models/llama_dyn/program.pt2" --passes 'inline,functionalize,specialize(s43=3,s53=5)' --print
try 0 'aten.rms_norm' opt "$models/llama/program.pt2" --as-run --print
that sh -c "! grep -qE 'aten.pow|_assert_tensor_metadata' '$temp/out'" # a check of metadata is done and keeps nothing alive
try 2 "no symbol 's1000'" opt "$models/llama_dyn/program.pt2" --passes 'inline,functionalize,specialize(s1000=3)' --print
# PyTorch writes the directory in its 64-bit form too: what is cut off shows at the very end.
for bytes in 1 10 22 23 1000; do
  head -c -$bytes "$mlp" >"$temp/cut_off.pt2"
  try 3 'cut off' inspect "$temp/cut_off.pt2"
done
# One rank's program.
llama=$models/llama
try 0 'f32\[16,32\] = parameter "model.layers.0.self_attn.q_proj.weight"' opt "$llama/program.pt2" --mesh tp=2 --plan "$llama/plan.json" --rank 1 --print
that grep -q 'tess.redistribute' "$temp/out"
try 0 'tess.redistribute' opt "$llama/program.pt2" --mesh tp=2 --plan "$llama/plan.json" --as-run --print
try 0 '_c10d_functional.all_reduce' opt "$llama/program.pt2" --mesh tp=2 --passes 'partition,lower_torch(rank=0),dce' --plan "$llama/plan.json" --print
that sh -c "! grep -q 'tess\.' '$temp/out'"
try 0 'i64\[2,5\] = user' opt "$models/llama_dyn/program.pt2" --mesh dp=2,tp=2 --passes 'partition(s43=4,s53=5)' --plan "$models/llama_dyn/plan.json" --print
try 2 'give --mesh' opt "$llama/program.pt2" --passes partition --print
try 2 "step 'partition'" opt "$llama/program.pt2" --mesh tp=2 --passes dce --print
try 2 'ranks 0 to 1' opt "$llama/program.pt2" --mesh tp=2 --rank 2 --print
try 2 'goes with --mesh' opt "$llama/program.pt2" --rank 1 --print
try 2 'may stand in the list, once' opt "$models/llama_dyn/program.pt2" --mesh tp=2 --passes 'inline,functionalize,specialize,partition' --print
try 2 'no pass' opt "$mlp" --passes nothing --print
try 2 "'dce,,cse': there is nothing before a comma" opt "$mlp" --passes dce,,cse --print
try 2 'nothing before a comma' opt "$mlp" --passes ,dce --print
try 2 'nothing behind the last comma' opt "$mlp" --passes 'dce, ' --print
try 2 "the options of pass 'ddp'" opt "$mlp" --passes 'ddp(world_size=2,)' --print
try 0 '' opt "$mlp" --passes 'dce, cse' --print
try 2 'takes no options' opt "$mlp" --passes 'dce(x=1)' --print
ddp=$2/ddp/fusion
try 0 '8 all-reduces -> 3, 3 buckets' opt "$ddp/linear4_2000.before.pt2" --passes fuse_ddp_with_concat_op,schedule_comm_wait -o "$temp/fused.pt2" --stats
try 0 'every op is known' opt "$temp/fused.pt2" --verify
try 0 '6, reduced already' opt "$ddp/mlp_ce.before.pt2" --passes "dce,ddp(world_size=2)" --stats
try 0 'nothing to fuse' opt "$mlp" --passes fuse_ddp_with_coalesced_op --stats
try 0 '"notes"' opt "$ddp/copy_form.before.pt2" --passes overlap --json
try 0 '^# after fuse_ddp_with_concat_op' opt "$ddp/copy_form.before.pt2" --passes "fuse_ddp_with_concat_op(bucket_size_mb=1),overlap" --print-after=fuse_ddp_with_concat_op
try 2 'above 0' opt "$ddp/copy_form.before.pt2" --passes 'dce,fuse_ddp_with_concat_op(bucket_size_mb=0)' --print
try 2 "mean 'bucket_size_mb'" opt "$ddp/copy_form.before.pt2" --passes 'fuse_ddp_with_concat_op(bucket_sise_mb=1)' --print
try 2 "mean 'schedule_comm_wait'" opt "$ddp/copy_form.before.pt2" --passes 'schedule_com_wait' --print
try 2 'needs world_size' opt "$mlp" --passes ddp --print
try 0 'bucket_size_mb=25 .a number above 0' passes
try 2 'not in the list' opt "$mlp" --passes dce --print-after cse
printf 'graph(' >"$temp/bad.txt"
try 3 'bad.txt:1' opt "$temp/bad.txt" --print
cat >"$temp/unknown.txt" <<'END'
program "unknown"
graph(%x: f32[2] = user) {
  %y: f32[2] = my.own.op(%x)
  return user %y
}
END
try 3 'my.own.op' run "$temp/unknown.txt" --random-inputs 0
try 3 'my.own.op' opt "$temp/unknown.txt" --verify
try 0 'not supported' inspect "$temp/unknown.txt"
try 3 'export the model without it; run_decompositions.. is not known to help' run "$temp/unknown.txt" --random-inputs 0
sed 's/my.own.op/aten.linalg_vander.default/' "$temp/unknown.txt" >"$temp/decomposes.txt"
try 3 'save program.run_decompositions.., which does without it' run "$temp/decomposes.txt" --random-inputs 0
sed 's/ return.*/ %z: f32[2] = aten.linalg_vander.default(%y)\n&/' "$temp/unknown.txt" >"$temp/both.txt"
try 3 'does without aten.linalg_vander.default; export the model without the others' run "$temp/both.txt" --random-inputs 0

# ---- ops, passes, bench, doctor
try 0 'aten.softmax.int ' ops softmax
try 0 '"schema"' ops softmax --json
try 1 "did you mean 'aten.softmax" ops softmaxx
try 0 '^dce ' passes
try 0 '"summary"' passes --json
try 0 'GFLOP/s' bench run "$mlp" --repeat 3 --threads 1
try 0 '"gflops_per_s"' bench run "$mlp" --repeat 3 --threads 1 --json
try 2 'which benchmark' bench
try 0 'allreduce +ranks reduce' bench --help
try 2 '--ranks must be between 1 and 256' bench allreduce -n 0
try 2 "did you mean 'tessera bench allreduce'" bench alreduce
try 0 '^ +65536 +16384 +f32 +sum +[0-9.]+ +[0-9.]+ +[0-9.]+ +0$' bench allreduce -b 8 -e 64K -f 2 -n 2 --rounds 3
for collective in allgather reducescatter alltoall broadcast; do
  try 0 'wrong values: 0' bench $collective -b 8 -e 64K -f 8 -n 3 --rounds 2
done
try 0 'bf16 +max' bench allreduce -b 1K -e 16K -f 4 -n 4 --rounds 2 --dtype bf16 --op max --in-place
try 0 '"wrong": 0' bench alltoall -b 64 -e 4K -f 4 -n 2 --rounds 2 --json
try 2 'band is not defined for f32' bench allreduce --op band
try 2 'bytes' bench allreduce -e 12X
try 2 'not done in place' bench alltoall --in-place
try 0 'oneDNN' doctor
try 0 '"findings"' doctor --json

# ---- --json: one document, whatever is asked for
if command -v python3 >/dev/null; then
  json() { # CODES PATTERN ARGUMENTS...
    try "$@"
    that python3 -m json.tool "$temp/out" /dev/null
  }
  json 0 '"outputs": \[\{"output": 0, "dtype": "f32", "size": \[10,6\]\}\]' run "$mlp" -i "$in" --json
  json 0 '"data": \[' run "$mlp" -i "$in" --print-outputs --json
  json 0 '"expect": \[\{"output": "0", "ok": true' run "$mlp" -i "$in" --expect "$want" --json
  json 0 '"times".*"profile".*"outputs".*"expect"' run "$mlp" -i "$in" --repeat 2 --profile --expect "$want" --print-outputs --json
  json 4 '"ok": false' run "$mlp" --random-inputs 5 --expect "$want" --json
  json 0 '"check": \{"outputs": \[.*"ok": true' run "$mlp" -i "$in" --mesh tp=2 --check --json
  json 0 '"check": \{"nodes": 6, "ok": true\}' run "$mlp" -i "$in" --mesh tp=2 --check=nodes --json
  json 4 '"check": \{"nodes": [0-9]+, "ok": false, "difference": "' run "$mlp" -i "$in" --mesh tp=2 --check=nodes --rtol 0 --atol 0 --json
  json 0 '"calls": \[' run "$cache/program.pt2" -i "$cache/inputs_0.safetensors" -i "$cache/inputs_1.safetensors" --json
  json 4 '"expect": \[' run "$cache/program.pt2" -i "$cache/inputs_1.safetensors" -i "$cache/inputs_0.safetensors" --expect "$cache/outputs_1.safetensors" --json
  json 0 '"program"' run "$odd" -i "$in" --json
  json 0 '"flops"' inspect "$mlp" --json
  json 0 '"tensors"' inspect "$in" --json
  json 0 '"mesh"' plan "$mlp" --mesh tp=2 --json
  json 0 '"ranks": \[' shard "$mlp" --mesh tp=2 -o "$temp/json_ranks" --json
  json 0 '"passes": \[\]' opt "$mlp" --json
  json 0 '"verified": true' opt "$mlp" --verify --json
  json 0 '"text": "program' opt "$mlp" --print --json
  json 0 '"pass": "dce".*"text": "program' opt "$mlp" --passes dce,cse --print-after dce --json
  json 0 '"schema"' ops softmax --json
  json 0 '"schema"' ops --json
  json 0 '"summary"' passes --json
  json 0 '"min_ms"' bench run "$mlp" --repeat 2 --json
  json 0 '"rows"' bench allreduce -n 2 -b 8 -e 64 --rounds 2 --json
  json 0 '"memory_bandwidth"' bench calibrate --seconds 0.01 --json
  json 0 '"memory_bandwidth"' bench calibrate --seconds 0.01 --json -o "$temp/machine.json"
  json 0 '"findings"' doctor --json
fi

# ---- threads that the system does not start: fewer are used, and that is said
# The search for leaks needs a process of its own, which the limit denies it.
no_leaks="env ASAN_OPTIONS=detect_leaks=0"
if command -v prlimit >/dev/null && { [ "$(id -u)" != 0 ] || command -v setpriv >/dev/null; }; then
  few() { # CODES PATTERN ARGUMENTS...: with one process at most, as somebody who may not have more
    code=$1 pattern=$2
    shift 2
    if [ "$(id -u)" = 0 ]; then set -- setpriv --reuid=65534 --regid=65534 --clear-groups prlimit --nproc=1 $no_leaks "$tessera" "$@"
    else set -- prlimit --nproc=1 $no_leaks "$tessera" "$@"; fi
    check "$code" "$pattern" "$@"
  }
  chmod a+x "$temp" && mkdir "$temp/few" && chmod a+w "$temp/few"
  if [ "$(id -u)" != 0 ] || setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$tessera" -a -r "$mlp" -a -w "$temp/few" 2>/dev/null; then
    few 0 'note: 1 of 4 threads can be started' run "$mlp" -i "$in" --expect "$want" --threads 4
    that grep -q matches "$temp/out"
    few 0 'rank 1: ' shard "$mlp" --mesh tp=2 -o "$temp/few/ranks" --threads 4
    few '1 5' 'no thread for it' run "$mlp" -i "$in" --mesh tp=2
    that test -z "$(find "$temp/few" -name '*.part-*')" -a -s "$temp/few/ranks/plan.json"
  fi
fi

# ---- a stdout that takes nothing is a failure, and closed it is no output file
for arguments in help --version "ops softmax" "passes --json" "inspect $mlp --json" "opt $mlp --print" "run $mlp --random-inputs 0 --print-outputs"; do
  # shellcheck disable=SC2086  # a list of words
  if [ -e /dev/full ]; then "$tessera" $arguments >/dev/full 2>"$temp/err"; that [ $? = 1 ]; fi
  # shellcheck disable=SC2086
  "$tessera" $arguments >&- 2>"$temp/err"
  that [ $? = 1 ]
  that grep -q 'standard output' "$temp/err"
done

# ---- interrupted: exit code 130, and nothing under the name or beside it
mkdir "$temp/stop"
"$tessera" run "$models/llama/program.pt2" --random-inputs 0 --repeat 1000000 -o "$temp/stop/out.safetensors" >/dev/null 2>&1 &
sleep 0.5
kill -INT $!
wait $!
that [ $? = 130 ]
that [ -z "$(ls -A "$temp/stop")" ]

"$tessera" shard "$models/llama/program.pt2" --mesh tp=4096 --plan "$models/llama/plan.json" -o "$temp/stop/ranks" >/dev/null 2>&1 &
sleep 0.5
kill -INT $!
wait $!
that [ $? = 130 ]
that [ -z "$(ls -A "$temp/stop")" ]

# Killed: what is there has not the name of a folder that is whole.
"$tessera" shard "$models/llama/program.pt2" --mesh tp=4096 --plan "$models/llama/plan.json" -o "$temp/stop/ranks" >/dev/null 2>&1 &
sleep 0.5
kill -KILL $!
wait $! 2>/dev/null
that test ! -e "$temp/stop/ranks"
that test -z "$(find "$temp/stop" -name plan.json)"
# The next one tidies up, but not after those that still work (here: that hold the lock).
mkdir "$temp/stop/ranks.part-Ab12Xy" "$temp/stop/other.part-Ab12Xy"
if command -v flock >/dev/null; then
  flock "$temp/stop/ranks.part-Ab12Xy" "$tessera" shard "$models/mlp/program.pt2" --mesh tp=2 -o "$temp/stop/ranks" >/dev/null 2>&1
  that test "$(find "$temp/stop" -name 'ranks.part-*' | wc -l)" = 1
fi
"$tessera" shard "$models/mlp/program.pt2" --mesh tp=2 -o "$temp/stop/ranks" --force >/dev/null 2>&1
that test -z "$(find "$temp/stop" -name 'ranks.part-*')"
that test -d "$temp/stop/other.part-Ab12Xy" -a -s "$temp/stop/ranks/rank1.pt2"
# Two at the same time into one folder: what is there is of one of them.
for turn in 1 2 3 4; do
  rm -rf "$temp/stop/both"
  "$tessera" shard "$models/mlp/program.pt2" --mesh tp=2 -o "$temp/stop/both" --force >/dev/null 2>&1 &
  first=$!
  "$tessera" shard "$models/llama/program.pt2" --mesh tp=3 -o "$temp/stop/both" --force >/dev/null 2>&1 &
  that wait $!
  that wait $first
  if grep -q '"tp": 2' "$temp/stop/both/plan.json"; then that test ! -e "$temp/stop/both/rank2.pt2"; else that test -s "$temp/stop/both/rank2.pt2"; fi
  that sh -c "'$tessera' inspect '$temp/stop/both/rank0.pt2' --json >'$temp/a' && '$tessera' inspect '$temp/stop/both/rank1.pt2' --json >'$temp/b'"
  that test "$(grep -c '"name"' "$temp/a")" = "$(grep -c '"name"' "$temp/b")" # programs of one model
  that test -z "$(find "$temp/stop" -name 'both.part-*')"
done
rm -rf "$temp/stop"

# ---- a bar for whoever waits at a terminal, and never in a pipe
if command -v script >/dev/null && script -qec true /dev/null >/dev/null 2>&1; then
  TERM=xterm script -qec "$tessera bench run $mlp --seconds 1.5" /dev/null >"$temp/out" 2>&1 </dev/null
  that grep -q 'running  #.*%.*left' "$temp/out"
  TERM=xterm script -qec "$tessera bench run $mlp --seconds 1.5 2>&1 | cat" /dev/null >"$temp/out" 2>&1 </dev/null
  that [ -z "$(grep 'running  #' "$temp/out")" ]
fi

# ---- results on stdout, messages on stderr
"$tessera" run "$temp/none.pt2" >"$temp/out" 2>"$temp/err"
that [ ! -s "$temp/out" ]
that grep -q '^error: ' "$temp/err"
that [ -z "$(find "$temp" -name '*.tmp*')" ]

# ---- shard
plan=$models/mlp/plan.json
cat >"$temp/picked.txt" <<'END'
graph(%x: f32[5,4] = user) {
  %n: i64[u0,2] = aten.nonzero.default(%x)
  return user %n
}
END
try 1 'hint .*run --mesh' shard "$temp/picked.txt" --mesh tp=2 --plan auto -o "$temp/picked" # sizes depend on data
try 0 'all_reduce +tp' shard "$mlp" --mesh tp=2 --plan "$plan" -o "$temp/ranks"
for file in rank0.pt2 rank1.pt2 plan.json report.txt run.py README.md; do that test -s "$temp/ranks/$file"; done
that test ! -e "$temp/ranks/rank2.pt2"
try 0 'matches' run "$temp/ranks" -i "$in" --expect "$want"
try 0 'checksums match' opt "$temp/ranks/rank1.pt2" --verify
try 2 'exists already and is not empty' shard "$mlp" --mesh tp=2 --plan "$plan" -o "$temp/ranks"
try 2 'exists already and is not empty' shard "$temp/none.pt2" --mesh tp=2 --plan "$plan" -o "$temp/ranks" # before any work
try 0 '' shard "$mlp" --mesh tp=3 --plan "$plan" -o "$temp/ranks" --force
that test -s "$temp/ranks/rank2.pt2"
echo mine >"$temp/ranks/rank9.txt"
try 0 '' shard "$mlp" --mesh tp=2 --plan "$plan" -o "$temp/ranks" --force
that test ! -e "$temp/ranks/rank2.pt2" -a -s "$temp/ranks/rank9.txt" # of the larger mesh; of somebody else
try 0 'matches' run "$temp/ranks" -i "$in" --expect "$want"
ln -s nothing "$temp/dangling"
try 2 'link to something that is not there' shard "$mlp" --mesh tp=2 --plan "$plan" -o "$temp/dangling"
try 0 'rank 1' shard "$mlp" --mesh tp=4 --plan "$plan" -o "$temp/some" --ranks 1,3
that test ! -e "$temp/some/rank0.pt2"
that test -s "$temp/some/rank3.pt2"
try 0 '' shard "$mlp" --mesh tp=2 --plan "$plan" -o "$temp/one" --ranks 0
try 3 'programs of 1 rank, but .*plan.json is for the 2 of the mesh tp=2' run "$temp/one" -i "$in"
try 0 '' shard "$mlp" --mesh tp=2 -o "$temp/derived"
try 0 'matches' run "$temp/derived" -i "$in" --expect "$want"
try 0 '' shard "$models/llama_dyn/program.pt2" --mesh dp=2,tp=2 --plan "$models/llama_dyn/plan.json" -o "$temp/dyn"
try 0 'matches' run "$temp/dyn" -i "$models/llama_dyn/inputs.safetensors" --expect "$models/llama_dyn/outputs.safetensors"
try 3 'must be a multiple' run "$temp/dyn" -i "$models/llama_dyn/inputs_b.safetensors"
sed '1s/{/{"inputs": {"input_ids": "S(1)"}, "outputs": {"0": "S(1)"},/' "$models/llama_dyn/plan.json" >"$temp/sequence.json"
try 0 's53 must be a multiple' shard "$models/llama_dyn/program.pt2" --mesh tp=2 --plan "$temp/sequence.json" -o "$temp/sequence"
try 0 'f32.2,8,128.' run "$temp/sequence" -i "$models/llama_dyn/inputs.safetensors"
try 0 'attention_mask: i64.s43,2.s53. = user' opt "$temp/sequence/rank0.pt2" --print # not a division, which PyTorch cannot solve
try 0 's43 is 2' shard "$models/llama_dyn/program.pt2" --mesh tp=2 --plan "$models/llama_dyn/plan.json" -o "$temp/fixed" --size s43=2
try 2 'its symbols: s43, s53' shard "$models/llama_dyn/program.pt2" --mesh tp=2 -o "$temp/no" --size s9=2
try 2 'outside of its range' shard "$models/llama_dyn/program.pt2" --mesh tp=2 -o "$temp/no" --size s43=1000
try 2 'NAME=NUMBER' shard "$models/llama_dyn/program.pt2" --mesh tp=2 -o "$temp/no" --size s43
try 2 'which mesh' shard "$mlp" --plan "$plan" -o "$temp/no"
try 2 'where to' shard "$mlp" --mesh tp=2 --plan "$plan"
try 2 'one program' shard --mesh tp=2 -o "$temp/no"
try 2 'number of ranks' shard "$mlp" --mesh tp=0 --plan "$plan" -o "$temp/no"
try 2 '' shard "$mlp" --mesh 'tp=x' --plan "$plan" -o "$temp/no"
try 2 'rank 7 of a mesh of 2' shard "$mlp" --mesh tp=2 --plan "$plan" -o "$temp/no" --ranks 7
try 3 'No such file' shard "$mlp" --mesh tp=2 --plan "$temp/none.json" -o "$temp/no"
try 3 'No such file' shard "$temp/none.pt2" --mesh tp=2 --plan "$plan" -o "$temp/no"
echo '{"parallelize": {"blocks.*.9": "colwise"}}' >"$temp/bad.json"
try 2 'matches no module' shard "$mlp" --mesh tp=2 --plan "$temp/bad.json" -o "$temp/no"
try 1 'cannot write' shard "$mlp" --mesh tp=2 --plan "$plan" -o "$temp/nowhere/ranks"
try 2 'is no folder' shard "$mlp" --mesh tp=2 --plan "$plan" -o "$mlp"
that test ! -e "$temp/no"
that test -z "$(find "$temp" -name '*.part-*')"

# ---- shard --train
loss=$models/../grads/mlp/program.pt2 batch=$models/../grads/mlp/inputs.safetensors
try 0 '' opt "$loss" --passes grad -o "$temp/joint.pt2"
try 0 '' run "$temp/joint.pt2" -i "$batch" -o "$temp/joint.safetensors"
try 0 'all_reduce +dp .*gradient of' shard "$loss" --train --mesh dp=2 -o "$temp/steps"
for file in rank1.pt2 plan.json run.py train.py README.md; do that test -s "$temp/steps/$file"; done
try 0 'gradient_to_parameter' opt "$temp/steps/rank1.pt2" --print
try 0 'matches' run "$temp/steps" -i "$batch" --expect "$temp/joint.safetensors" # the ranks agree, on those of the whole batch
try 0 '' shard "$loss" --train --mesh dp=3,tp=2 -o "$temp/steps" --force # a batch that does not divide
try 0 'rank 5:' run "$temp/steps" -i "$batch"
that grep -q '"train": {' "$temp/steps/plan.json"
try 0 '' shard "$loss" --train --mesh dp=2 --batch 6 -o "$temp/six"
that grep -q '"shape": .6, ' "$temp/six/plan.json"
try 0 '' shard "$loss" --mesh dp=2 -o "$temp/steps" --force
that test ! -e "$temp/steps/train.py"
try 2 'no output can be the loss' shard "$mlp" --train --mesh dp=2 -o "$temp/no"
try 2 'no parameter matches .nothing.' shard "$loss" --train --freeze nothing --mesh dp=2 -o "$temp/no"
try 2 'give --train' shard "$loss" --freeze 'w*' --mesh dp=2 -o "$temp/no"
try 0 "reduce_scatter +dp .*group 'blocks.0'" shard "$loss" --train --fsdp --mesh dp=2 -o "$temp/fsdp"
try 0 'rank 1:' run "$temp/fsdp" -i "$batch"
try 2 'give --train' shard "$loss" --fsdp --mesh dp=2 -o "$temp/no"
try 2 'sharded: --fsdp' shard "$loss" --train --wrap head --mesh dp=2 -o "$temp/no"
try 2 "no module with parameters matches .nothing." shard "$loss" --train --fsdp --wrap nothing --mesh dp=2 -o "$temp/no"
try 2 "no axis of the mesh tp=2 is one to shard" shard "$loss" --train --fsdp --mesh tp=2 -o "$temp/no"
try 2 "axis 'sp', which the mesh" shard "$loss" --train --fsdp=sp --mesh dp=2 -o "$temp/no"
that test ! -e "$temp/no"
if [ "$(id -u)" != 0 ]; then
  mkdir "$temp/locked" && chmod a-w "$temp/locked"
  try 1 'cannot write' shard "$mlp" --mesh tp=2 --plan "$plan" -o "$temp/locked/ranks"
fi

sum_up
