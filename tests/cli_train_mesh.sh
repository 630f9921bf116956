#!/bin/sh
# cli_train_mesh.sh TESSERA GOLDEN [MPIRUN] -- training on several ranks from outside: the trajectory of one rank, the
# same bits in every run, runs that are stopped and resumed, what goes wrong on one rank, and what does not fit.
# With MPIRUN, ranks are processes as well.
set -u
here=$(dirname "$0") tessera=$1 golden=$(cd "$2" && pwd) mpirun=${3:-}
. "$here/trials.sh"
mlp=$golden/train/mlp_ce gpt=$golden/train/gpt_tied

of() { # MODEL CODES PATTERN OPTIONS...
  model=$1 code=$2 pattern=$3
  shift 3
  check "$code" "$pattern" "$tessera" train "$model/forward.pt2" --threads 1 --data "$model/batches.safetensors" --batched -q -f "$@"
}
hint() { that grep -qE "hint.*$1" "$temp/err"; } # of the last command
course() { sed 's/"lr".*//' "$1"; }              # LOG: what does not depend on the clock
same() { [ -s "$1" ] && [ "$(course "$1")" = "$(course "$2")" ] && cmp -s "$1.safetensors" "$2.safetensors"; }
records() { set -- "$1"; echo --log "$1" -o "$1.safetensors"; } # NAME: options
near() { # LOG LOG [TOLERANCE]: losses and norms within 1e-4
  sed 's/[^0-9.e-]/ /g' "$1" | awk '{print $2, $3, $4}' >"$temp/a" && sed 's/[^0-9.e-]/ /g' "$2" | awk '{print $2, $3, $4}' >"$temp/b"
  paste "$temp/a" "$temp/b" | awk -v most="${3:-1e-4}" '{for (i = 1; i < 4; i++) if (($i - $(i + 3)) ^ 2 > (most * $i) ^ 2) far = 1} END {exit far || NR == 0}'
}

# ---- as one rank, and the same bits whatever the buckets, in every run, interrupted or not
options="--steps 6 --clip 0.5 --optim adamw,lr=1e-2"
mesh="--mesh dp=2,tp=2"
of "$gpt" 0 '' $options $(records "$temp/alone")
of "$gpt" 0 '' $options $mesh $(records "$temp/mesh")
that near "$temp/alone" "$temp/mesh"
of "$gpt" 0 '' $options $mesh $(records "$temp/again")
that same "$temp/mesh" "$temp/again"
of "$gpt" 0 '' $options $mesh --bucket-mb 0 $(records "$temp/single")
that same "$temp/mesh" "$temp/single"
of "$gpt" 0 '' $options $mesh --bucket-mb 0.003 $(records "$temp/small")
that same "$temp/mesh" "$temp/small"
of "$gpt" 0 '' $options $mesh --bucket-mb auto $(records "$temp/auto")
that same "$temp/mesh" "$temp/auto"
of "$gpt" 0 '' $options $mesh --steps 4 --save "$temp/run" $(records "$temp/resumed")
check 0 '' "$tessera" train --resume "$temp/run" --steps 6 -q
that same "$temp/mesh" "$temp/resumed"

# ---- gradients so large that replicas share the work of their norm
large() { # LOG OPTIONS...
  log=$1
  shift
  check 0 '' "$tessera" train "$here/../examples/gpt.pt2" --data "$here/../README.md" --tokens input_ids,labels \
    --token-dtype uint8 --steps 2 --clip 0.5 --optim sgd,lr=0.5 --threads 1 -q -f --log "$log" "$@"
}
large "$temp/gpt_alone"
for where in dp=2 dp=3 'dp=2 --whole-updates' 'dp=3 --whole-updates' 'dp=2,tp=2 --whole-updates'; do
  large "$temp/gpt_mesh" --mesh $where
  that near "$temp/gpt_alone" "$temp/gpt_mesh"
done

# ---- replicas that update a part each have the bits of those that update all, in one memory, with buckets of any size
losses() { sed 's/,"grad_norm".*//' "$1"; }
for where in 'dp=2' 'dp=3' 'dp=2,tp=2' 'tp=2,dp=2' 'replica=2,dp=2' 'dp=2 --data-parallel local' 'dp=2 --accumulate 2'; do
  of "$gpt" 0 '' --steps 4 --optim adamw,lr=1e-2 --mesh $where --whole-updates $(records "$temp/full")
  for how in '' '--bucket-mb 0' '--bucket-mb 0.003 --no-overlap'; do
    of "$gpt" 0 '' --steps 4 --optim adamw,lr=1e-2 --mesh $where $how $(records "$temp/parts")
    that [ "$(losses "$temp/full")" = "$(losses "$temp/parts")" ]
    that cmp -s "$temp/full.safetensors" "$temp/parts.safetensors"
  done
done
for where in 'dp=2' 'dp=2 --data-parallel local'; do # what `plan --train` tells below is what is done
  of "$gpt" 0 '' --steps 1 --mesh $where --trace "$temp/parts"
  that grep -q gather_each "$temp/parts"
  of "$gpt" 0 '' --steps 1 --mesh $where --whole-updates --trace "$temp/full"
  that [ "$(grep -c gather_each "$temp/full")" = 0 ]
done
of "$gpt" 2 '--whole-updates is about several ranks' $options --whole-updates
check 0 'optimizer state +10.8 KiB +of +21.6 KiB' "$tessera" plan "$gpt/forward.pt2" --train --mesh dp=2
check 0 'optimizer state +10.8 KiB +of +21.6 KiB' "$tessera" plan "$gpt/forward.pt2" --train --mesh dp=2 --data-parallel local
check 0 'optimizer state +21.6 KiB +of +21.6 KiB' "$tessera" plan "$gpt/forward.pt2" --train --mesh dp=2 --whole-updates
check 0 'all_gather dp, update +1 .*20 parameters, joined' "$tessera" plan "$gpt/forward.pt2" --train --mesh dp=2

# ---- the last batch has other rows for one rank alone: nothing is asked of ranks that have their program already
head -c 897 "$here/../README.md" >"$temp/seven" # samples of 128 bytes: batches of 2 and 2 rows, of 2 and 1
for how in '--bucket-mb auto' '--memory 100%' '--fsdp --memory 100%'; do
  check 0 '' "$tessera" train "$here/../examples/gpt.pt2" --data "$temp/seven" --tokens input_ids,labels --token-dtype uint8 \
    --batch 4 --epochs 2 --threads 1 -q --mesh dp=2 --data-parallel local --timeout 20 $how
done

# ---- a limit of memory changes no bits, on any rank; what cannot be met tells what can
of "$gpt" 0 '' $options --mesh dp=3 --fsdp $(records "$temp/sharded")
for limit in 100% 90% 80%; do
  of "$gpt" 0 '' $options --mesh dp=3 --fsdp --memory $limit $(records "$temp/limited")
  that same "$temp/sharded" "$temp/limited"
  check 0 'parameters are gathered' "$tessera" plan "$gpt/forward.pt2" --train --mesh dp=3 --fsdp --memory $limit
done
of "$gpt" 2 'do not fit' $options --mesh dp=3 --fsdp --memory 1K
hint 'smallest limit is --memory'
of "$gpt" 0 '' $options --mesh dp=2 $(records "$temp/replicated")
of "$gpt" 0 '' $options --mesh dp=2 --memory 80% $(records "$temp/limited")
that same "$temp/replicated" "$temp/limited"

# ---- parameters sharded over the data axis, too
of "$gpt" 0 '' $options --mesh dp=2 --fsdp --wrap 'blocks.*' --prefetch 2 --keep-gathered $(records "$temp/fsdp")
that near "$temp/alone" "$temp/fsdp"
of "$gpt" 2 "no module with parameters matches 'x'" $options --mesh dp=2 --fsdp --wrap 'blocks.*,x'
check 2 "no module with parameters matches 'x'" "$tessera" plan "$gpt/forward.pt2" --train --mesh dp=2 --fsdp --wrap x
of "$gpt" 2 'patterns of modules are wanted' $options --mesh dp=2 --fsdp --wrap ''
of "$gpt" 2 'patterns of modules are wanted' $options --mesh dp=2 --fsdp --wrap 'a"b'
of "$gpt" 2 'bucket-mb 1e12: the MiB of gradients' $options --mesh dp=2 --bucket-mb 1e12

# ---- fully sharded parameters: the bits of replicas, whatever the groups, with overlap or without, interrupted or not
for ranks in 2 3 4; do
  for model in "$gpt" "$mlp"; do
    of "$model" 0 '' --steps 5 --optim adamw,lr=1e-2 --mesh dp=$ranks $(records "$temp/ddp")
    of "$model" 0 '' --steps 5 --optim adamw,lr=1e-2 --mesh dp=$ranks --fsdp $(records "$temp/fsdp")
    that [ "$(losses "$temp/ddp")" = "$(losses "$temp/fsdp")" ]
    that cmp -s "$temp/ddp.safetensors" "$temp/fsdp.safetensors"
  done
done
of "$gpt" 0 '' $options --mesh replica=2,dp=2 --fsdp $(records "$temp/hsdp")
that near "$temp/alone" "$temp/hsdp"
for how in '--wrap none' '--prefetch 3 --keep-gathered' '--no-overlap --bucket-mb 0'; do
  of "$gpt" 0 '' $options --mesh replica=2,dp=2 --fsdp $how $(records "$temp/again")
  that same "$temp/hsdp" "$temp/again"
done
of "$gpt" 0 '' $options $mesh --no-overlap $(records "$temp/again")
that same "$temp/mesh" "$temp/again"
rm -rf "$temp/run"
of "$gpt" 0 '' $options --mesh replica=2,dp=2 --fsdp --steps 4 --save "$temp/run" $(records "$temp/again")
check 0 '' "$tessera" train --resume "$temp/run" --steps 6 -q
that same "$temp/hsdp" "$temp/again"

echo '{"params": {"blocks.0.bn1.bias": "R,S(0)", "stem.1.weight": "R,S(0)", "blocks.0.conv2.weight": "R,S(2)", "blocks.0.bn2.bias": "R,S(0)"}}' >"$temp/chain.json"
check 0 '' "$tessera" train "$golden/grads/resnet/program.pt2" --data "$golden/grads/resnet/inputs.safetensors" --steps 1 -q --threads 1 \
  --mesh dp=2,tp=4 --fsdp --plan "$temp/chain.json" # gradients that are redistributed before and behind the reduction of their group

# ---- a program that computes in bf16 by itself, as under autocast: --check knows how exact that is
"$tessera" opt "$mlp/forward.pt2" --print | awk '/%linear_1:/ {
  print "  %hx: bf16[12,24] = aten.to.dtype(%gelu, bf16)\n  %hw: bf16[16,24] = aten.to.dtype(%p_layers_1_weight, bf16)"
  print "  %hy: bf16[12,16] = aten.linear.default(%hx, %hw)\n  %linear_1: f32[12,16] = aten.to.dtype(%hy, f32)"; next } 1' >"$temp/halves.txt"
check 0 '' "$tessera" opt "$temp/halves.txt" --weights "$mlp/forward.pt2" -o "$temp/halves.pt2"
check 0 'check: 4 steps match' "$tessera" train "$temp/halves.pt2" --threads 1 --data "$mlp/batches.safetensors" --batched -q --steps 4 --mesh dp=2,tp=2 --check

# ---- gradients that are rounded on their way
for where in 'dp=2' 'dp=3 --data-parallel local' 'dp=2 --fsdp' 'replica=2,dp=2 --fsdp --accumulate 1' 'dp=2,tp=2 --fsdp --data-parallel local'; do
  of "$gpt" 0 '' $options --mesh $where --reduce-dtype bf16 --log "$temp/bf16"
  that near "$temp/alone" "$temp/bf16" 2e-2
  that [ "$(losses "$temp/alone" | tail -1)" != "$(losses "$temp/bf16" | tail -1)" ]
done
for how in '' --fsdp; do
  of "$gpt" 0 '' --steps 3 --mesh dp=3 $how $(records "$temp/plain")
  of "$gpt" 0 '' --steps 3 --mesh dp=3 $how --reduce-dtype bf16 $(records "$temp/bf16$how")
  that [ "$(cksum <"$temp/plain.safetensors")" != "$(cksum <"$temp/bf16$how.safetensors")" ]
done
that cmp -s "$temp/bf16.safetensors" "$temp/bf16--fsdp.safetensors"
of "$mlp" 2 'reduced in bf16, f16 or f32' --steps 1 --mesh dp=2 --reduce-dtype f8

# ---- resumed on other meshes, on one rank and back
rm -rf "$temp/run"
of "$gpt" 0 '' $options $mesh --steps 2 --save "$temp/run" --log "$temp/moved"
check 0 '' "$tessera" train --resume "$temp/run" --mesh dp=1 --steps 3 -q
check 0 '' "$tessera" train --resume "$temp/run" --mesh dp=3 --steps 4 -q
check 0 '' "$tessera" train --resume "$temp/run" --mesh tp=2,dp=2 --steps 6 -q
that near "$temp/alone" "$temp/moved"

# ---- shards: HSDP to FSDP to TP to one rank, waited for or not; a file that is too large on one rank, a bit that fell
rm -rf "$temp/run"
of "$gpt" 0 '' $options --mesh replica=2,dp=2 --fsdp --steps 2 --save "$temp/run" --save-every 1 --log "$temp/moved"
that [ "$(ls "$temp/run/step-00000002" | grep -c rank0000)" = 8 ]
check 0 '' "$tessera" ckpt verify "$temp/run"
of "$gpt" 0 '' $options --mesh replica=2,dp=2 --fsdp --steps 2 --save "$temp/waited" --save-sync --log "$temp/sync"
check 0 '^the same' "$tessera" ckpt diff "$temp/run" "$temp/waited"
check 0 '' "$tessera" train --resume "$temp/run" --mesh dp=3 --fsdp --steps 3 -q
check 0 '' "$tessera" train --resume "$temp/run" --mesh tp=2 --fsdp=none --steps 4 -q
check 0 '' "$tessera" train --resume "$temp/run" --mesh dp=1 --steps 6 -q
that near "$temp/alone" "$temp/moved" 1e-5
check 1 'rank [0-3] of 4: cannot write .*optimizer-rank0000[0-3].*File too large' sh -c 'trap "" XFSZ; ulimit -f 16; exec "$@"' sh "$tessera" train "$gpt/forward.pt2" \
  --threads 1 --data "$gpt/batches.safetensors" --batched -q $options $mesh --save "$temp/large" --save-every 1
that [ -z "$(ls "$temp/large")" ]
printf damaged | dd of="$temp/waited/step-00000002/optimizer-rank00001.safetensors" bs=1 seek=4000 conv=notrunc 2>"$temp/dd"
check 6 "optimizer-rank00001.safetensors': the bytes of the tensor '.*' do not match their checksum" "$tessera" train --resume "$temp/waited" --mesh dp=2 --steps 4 -q
check 6 "optimizer-rank00001.safetensors': the bytes of the tensor '.*' do not match their checksum" "$tessera" train --resume "$temp/waited" --mesh dp=1 --steps 4 -q
rm "$temp/waited/step-00000002/model-rank00001.safetensors"
check 6 "model-rank00001.safetensors" "$tessera" train --resume "$temp/waited" --mesh tp=2 --steps 4 -q
of "$gpt" 0 '' $options --steps 4 --save "$temp/whole" $(records "$temp/init")
of "$gpt" 0 '' --steps 1 --optim sgd,lr=0 --init "$temp/whole" --mesh dp=2,tp=2 --fsdp -o "$temp/same.safetensors"
that cmp -s "$temp/same.safetensors" "$temp/init.safetensors"

# ---- Muon's products of a matrix with itself, which is sharded both ways
echo '{"params": {"layers.1.weight": "S(1),S(0)"}}' >"$temp/both.json"
of "$mlp" 0 '' --steps 3 --optim muon,lr=1e-2 --log "$temp/muon"
of "$mlp" 0 '' --steps 3 --optim muon,lr=1e-2 --mesh x=2,tp=2 --plan "$temp/both.json" --log "$temp/muon.mesh"
that near "$temp/muon" "$temp/muon.mesh" 2e-2

# ---- what a step would do, where ranks have rows of their own, and of several micro-batches
planned() { # CODES PATTERN OPTIONS...
  code=$1 pattern=$2
  shift 2
  try "$code" "$pattern" plan "$gpt/forward.pt2" --train "$@"
}
planned 0 '^  all_reduce dp, backward +1 .*gradients, joined' --mesh dp=2 --data-parallel local --whole-updates
that grep -q '^collectives' "$temp/out"
that [ "$(grep -c '^  all_reduce' "$temp/out")" = 1 ] # no means of the whole batch
planned 0 '^  reduce_scatter dp, backward +1 .*gradients, joined' --mesh dp=2 --data-parallel local
that [ "$(grep -c '^  all_reduce' "$temp/out")" = 1 ] # of the norm
planned 0 '^  reduce_scatter dp, backward +1 ' --mesh dp=2,tp=2 --data-parallel local --accumulate 3
calls() { sed -n 's/^  all_reduce tp  *\([0-9]*\) .*/\1/p' "$temp/out"; }
three=$(calls)
planned 0 '21 parameters' --mesh dp=2,tp=2 --data-parallel local
that [ "$((3 * $(calls)))" = "$three" ]
planned 0 ', 3 micro-batches' --mesh dp=2 --accumulate 3
that grep -q '20 gradients, joined' "$temp/out" # once, with the last
planned 0 'at 3 batches of [0-9]+; all but the last take' --accumulate 3 --machine cpu2
planned 0 '"micro_batches": 3' --accumulate 3 --mesh dp=2 --json
planned 2 'there is global and local' --mesh dp=2 --data-parallel none
planned 2 'accumulate must be between' --mesh dp=2 --accumulate -1
try 2 'speak of a training' plan "$gpt/forward.pt2" --mesh dp=2 --accumulate 2

# ---- --check
of "$gpt" 0 '^check: 2 steps match one rank.s: losses, norms and 20 gradients$' --steps 2 --mesh dp=2,tp=2 --check
of "$gpt" 0 '^check: 1 step matches .* and 20 gradients, 29 results of nodes$' --steps 1 --mesh tp=3 --check=nodes
of "$mlp" 0 '^check: 2 steps match' --steps 2 --mesh dp=3 --check --accumulate 2 --param-dtype f64
of "$mlp" 2 'check compares a mesh.s ranks with one rank' --steps 1 --check
of "$mlp" 2 'check=all: there is --check and --check=nodes' --steps 1 --mesh dp=2 --check=all
of "$mlp" 2 'which --data-parallel local is not' --steps 1 --mesh dp=2 --data-parallel local --check

grads() { # MODEL CODES PATTERN OPTIONS...: a program with a plan
  model=$golden/grads/$1 code=$2 pattern=$3
  shift 3
  check "$code" "$pattern" "$tessera" train "$model/program.pt2" --threads 1 --data "$model/inputs.safetensors" --plan "$model/plan.json" -q --steps 1 "$@"
}
grads llama 0 '^check: 1 step' --mesh tp=2 --param-dtype f64 --check # styles find their weights in another dtype, too
grads vit 0 '^check: 1 step' --mesh dp=3 --memory 80% --check        # ranks have other sizes, and make the same collectives
grads vit 0 '^check: 1 step' --mesh dp=2 --batch 1 --check           # a class token that was repeated for two rows

# ---- rows of ranks
of "$mlp" 0 '' --steps 3 --mesh dp=2 --data-parallel local --log "$temp/equal"
of "$mlp" 0 '' --steps 3 --mesh dp=2 --data-parallel local --rank-rows 6,6 --log "$temp/rows"
that [ "$(course "$temp/equal")" = "$(course "$temp/rows")" ]
of "$mlp" 0 '' --steps 3 --mesh dp=2 --data-parallel local --rank-rows 5,7 --log "$temp/rows"
that [ "$(course "$temp/equal")" != "$(course "$temp/rows")" ]
of "$gpt" 0 '' --steps 3 --mesh dp=2 --data-parallel local --accumulate 2 --clip 0.5 --log "$temp/local"
for where in 'dp=2,tp=2' 'dp=2 --fsdp' 'dp=2,tp=2 --fsdp' 'replica=1,dp=2 --fsdp'; do
  of "$gpt" 0 '' --steps 3 --mesh $where --data-parallel local --accumulate 2 --clip 0.5 --log "$temp/rows"
  that near "$temp/local" "$temp/rows"
done
of "$mlp" 2 'rows of 3 ranks are told, and 2 share' --steps 1 --mesh dp=2 --data-parallel local --rank-rows 5,6,1
of "$mlp" 2 '11 rows in all, and a batch has 12' --steps 1 --mesh dp=2 --data-parallel local --rank-rows 5,6
of "$mlp" 2 'rank-rows 5,-1: rows of each rank are wanted' --steps 1 --mesh dp=2 --data-parallel local --rank-rows 5,-1
of "$mlp" 2 'every rank works on the whole one' --steps 1 --mesh dp=2 --rank-rows 5,7
hint 'data-parallel local'

# ---- what does not fit
for option in '--data-axis dp' '--data-parallel local' '--rank-rows 1,2' '--bucket-mb 4' '--reduce-dtype bf16' --no-overlap; do
  of "$mlp" 2 'is about several ranks, and there is one' --steps 1 $option
  hint '--mesh dp=2'
done
of "$mlp" 2 'bucket-mb -1: the MiB' --steps 1 --mesh dp=2 --bucket-mb -1
of "$mlp" 2 'bucket-mb much: the MiB' --steps 1 --mesh dp=2 --bucket-mb much
of "$mlp" 2 "the axis 'x', which the mesh does not have" --steps 1 --mesh dp=2 --data-axis x
hint 'the mesh is dp=2'
of "$mlp" 2 'no axis of the mesh tp=2 shards batches' --steps 1 --mesh tp=2 --data-parallel local
of "$mlp" 2 'leaves rank [0-9]* of the 16 that share it without any' --steps 1 --mesh dp=16 --data-parallel local
echo '{"parallelize": {"nothing.*": "colwise"}}' >"$temp/plan.json"
of "$mlp" 2 "'nothing.\*' matches no module" --steps 1 --mesh tp=2 --plan "$temp/plan.json"
of "$mlp" 1 "cannot make the folder '/proc/run'" --steps 1 --mesh dp=2 --save /proc/run
of "$mlp" 1 'cannot write .*/nowhere/log' --steps 1 --mesh dp=2 --log "$temp/nowhere/log"
of "$mlp" 2 'leave|holds a save' --steps 1 --mesh dp=2 --save "$temp/run"

# ---- a step that is not finite: all ranks find it, and it is told once
header='{"x":{"dtype":"F32","shape":[24,8],"data_offsets":[0,768]},"y":{"dtype":"I64","shape":[24],"data_offsets":[768,960]}}'
{
  printf "\\$(printf %03o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"
  head -c 764 /dev/zero
  printf '\000\000\300\177' # the last row: of one rank alone
  head -c 192 /dev/zero
} >"$temp/nan.safetensors"
nan() { # CODES PATTERN OPTIONS...
  code=$1 pattern=$2
  shift 2
  check "$code" "$pattern" "$tessera" train "$mlp/forward.pt2" --threads 1 --data "$temp/nan.safetensors" --no-shuffle -q -f "$@"
}
for local in '' '--data-parallel local'; do
  nan 1 '^error: step 2: the loss is -?nan' --steps 4 --mesh dp=4 $local
  nan 1 "input 'x' has 1 nan" --steps 4 --mesh dp=4 $local --check-finite
  that [ "$(grep -c 'step 2' "$temp/err")" = 1 ]
  nan 0 "^step 2: input 'x' has 1 nan" --steps 3 --mesh dp=4 $local --check-finite --nonfinite skip --log "$temp/log"
  that [ "$(wc -l <"$temp/log")" = 3 ]
done

# ---- signals: all ranks stop after the same step, and save
for signal in INT TERM; do
  "$tessera" train "$gpt/forward.pt2" --threads 1 --data "$gpt/batches.safetensors" --batched --steps 1000000 --mesh dp=2,tp=2 \
    --save "$temp/$signal" --log "$temp/$signal.log" >"$temp/lines" 2>"$temp/said" &
  pid=$!
  for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do [ -s "$temp/$signal.log" ] && break || sleep 1; done
  kill -$signal $pid
  that wait $pid
  that grep -q "^stopped after step [0-9]* of 1000000 by SIG$signal; go on with --resume $temp/$signal" "$temp/said"
  step=$(sed -n 's/.*after step \([0-9]*\) .*/\1/p' "$temp/said")
  that [ -d "$(printf '%s/step-%08d' "$temp/$signal" "$step")" ]
done

# ---- processes: the bits of threads; a wrong number of them; a signal that one of them gets
if [ -n "$mpirun" ]; then
  launch() { # CODES PATTERN RANKS OPTIONS...
    code=$1 pattern=$2 ranks=$3
    shift 3
    check "$code" "$pattern" "$here/mpirun.sh" "$mpirun" "$ranks" "$tessera" train "$gpt/forward.pt2" --threads 1 --data "$gpt/batches.safetensors" --batched -q -f "$@"
  }
  launch 0 '' 4 $options $mesh $(records "$temp/processes")
  that same "$temp/mesh" "$temp/processes"
  launch 0 '' 4 $options --mesh replica=2,dp=2 --fsdp $(records "$temp/processes")
  that same "$temp/hsdp" "$temp/processes"
  launch 0 '' 4 $options $mesh --steps 4 --save "$temp/shards" --save-every 1 $(records "$temp/launched")
  check 0 '' "$tessera" train --resume "$temp/shards" --steps 6 -q
  that same "$temp/mesh" "$temp/launched"
  launch 2 '2 ranks were launched, 4 are wanted' 2 $options $mesh
  launch 0 '^check: 2 steps match' 2 --steps 2 --mesh dp=2 --check
  launch '1 5' "cannot make the folder '/proc/run'" 2 --steps 1 --mesh dp=2 --save /proc/run
  cat >"$temp/stop.sh" <<'END'
if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 1 ]; then (while [ ! -s "$LOG" ]; do sleep 1; done; kill -TERM $$) & fi
exec "$@"
END
  LOG=$temp/stopped.log
  export LOG
  check 0 'by SIGTERM; go on with' "$here/mpirun.sh" "$mpirun" 2 sh "$temp/stop.sh" "$tessera" train "$gpt/forward.pt2" --threads 1 \
    --data "$gpt/batches.safetensors" --batched -q --steps 1000000 --mesh dp=2 --save "$temp/stopped" --log "$LOG"

  # A rank that dies or hangs after the first save: the others say which, in which collective and step, and what was
  # saved is gone on with on other numbers of ranks.
  cat >"$temp/stop.sh" <<'END'
if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 1 ]; then (until ls "$RUN" 2>/dev/null | grep -qx 'step-[0-9]*'; do sleep 1; done; kill -$SIGNAL $$) & fi
exec "$@"
END
  # Open MPI ends a rank by itself, before it can say anything, if the rank reads the memory of one that is gone: again,
  # then.
  cat >"$temp/told.sh" <<'END'
for again in 1 2 3; do
  rm -rf "$RUN"
  "$@" 2>"$RUN.err"
  code=$?
  grep -q 'at   step' "$RUN.err" && break
done
cat "$RUN.err" >&2
exit $code
END
  for SIGNAL in KILL STOP; do
    RUN=$temp/$SIGNAL.run
    export RUN SIGNAL
    check '1 5 137' 'rank [02] of 3: .*[a-z_]+ #[0-9]+ .*rank 1' sh "$temp/told.sh" "$here/mpirun.sh" "$mpirun" 3 sh "$temp/stop.sh" "$tessera" train "$gpt/forward.pt2" \
      --threads 1 --data "$gpt/batches.safetensors" --batched -q --steps 1000000 --mesh dp=3 --save "$RUN" --save-every 5 --timeout 5
    that grep -q 'at   step [0-9]' "$temp/err"
    step=$(ls "$RUN" | sed -n 's/^step-0*\([0-9]*\)$/\1/p' | tail -1)
    check 0 'every element is there once' "$tessera" ckpt verify "$RUN"
    check 0 '' "$tessera" train --resume "$RUN" --mesh dp=1 --steps $((step + 1)) -q
    check 0 '' "$tessera" train --resume "$RUN" --mesh tp=2,dp=2 --steps $((step + 2)) -q
  done
  # A rank that reads other batches; the mean over all rows would be of no batch at all.
  echo 'if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 1 ]; then set -- "$@" --batch 6; fi; exec "$@"' >"$temp/other.sh"
  for local in '' '--data-parallel local'; do
    check '1 5' 'rank 1 has read 6 samples, rank 0 12' "$here/mpirun.sh" "$mpirun" 3 sh "$temp/other.sh" "$tessera" train "$mlp/forward.pt2" \
      --threads 1 --data "$temp/nan.safetensors" --no-shuffle -q --steps 1 --mesh dp=3 $local
    that [ "$(grep -c 'has read' "$temp/err")" = 1 ]
  done
  check '1 5' 'all_reduce .*, but rank [012] called all_reduce' "$here/mpirun.sh" "$mpirun" 3 sh "$temp/other.sh" "$tessera" train "$mlp/forward.pt2" \
    --threads 1 --data "$temp/nan.safetensors" --no-shuffle -q --steps 1 --mesh tp=3
  check 1 '^error: step 2: the loss is -?nan' "$here/mpirun.sh" "$mpirun" 3 "$tessera" train "$mlp/forward.pt2" --threads 1 \
    --data "$temp/nan.safetensors" --no-shuffle -q --steps 4 --mesh dp=3
  that [ "$(grep -c 'step 2' "$temp/err")" = 1 ]
fi

# ---- batches of the perceptron whose targets are these bytes, in the second one
targets() { # FILE BYTES
  header='{"x":{"dtype":"F32","shape":[24,8],"data_offsets":[0,768]},"y":{"dtype":"I64","shape":[24],"data_offsets":[768,960]}}'
  {
    printf "\\$(printf %03o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"
    head -c 864 /dev/zero
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do printf "$2"; done
  } >"$1"
}
on() { # FILE CODES PATTERN OPTIONS...
  file=$1 code=$2 pattern=$3
  shift 3
  check "$code" "$pattern" "$tessera" train "$mlp/forward.pt2" --threads 1 --data "$file" --no-shuffle "$@"
}
# None at all: the loss is nan, gradients are zeros, and the step counts as not finite all the same, whoever has them.
targets "$temp/none.safetensors" '\234\377\377\377\377\377\377\377'
for mesh in dp=3 'dp=2 --fsdp' 'dp=2 --data-parallel local' 'dp=2 --data-parallel local --fsdp' dp=2,tp=2; do
  on "$temp/none.safetensors" 0 '^step 2  loss nan  norm nan .*skipped' --mesh $mesh --steps 2 --nonfinite skip
  on "$temp/none.safetensors" 0 '^step 1  loss nan  norm nan .*skipped' --mesh $mesh --steps 1 --accumulate 2 --nonfinite skip
done
on "$temp/none.safetensors" 1 'step 2: the loss is nan and the norm of the gradients nan; the parameters are those before' --mesh dp=2 --steps 2
# A class that there is not: of which node, and in which step.
targets "$temp/class.safetensors" '\067\0\0\0\0\0\0\0'
for mesh in dp=1 dp=2; do
  on "$temp/class.safetensors" 1 'target 55 is not one of' --mesh $mesh --steps 2
  that grep -qE "at +node 'cross_entropy_loss" "$temp/err"
  that grep -qE 'at +step 2' "$temp/err"
done
sed 's/"shape":\[24\],"data_offsets":\[768,960\]/"shape":[23],"data_offsets":[768,952]/' "$temp/class.safetensors" | head -c -8 >"$temp/fewer.safetensors"
on "$temp/fewer.safetensors" 3 "input 'x' has 24 samples, 'y' has 23" --mesh dp=2 --steps 2
sum_up
