#!/bin/sh
# cli_grad.sh TESSERA GOLDEN -- gradients from outside: `run --grad`, `plan --grad` and `opt --passes grad`, what they
# say when something does not fit, and that no combination of options ends in a signal.
set -u
here=$(dirname "$0") tessera=$1 golden=$2
. "$here/trials.sh"

safetensors() { # FILE NAME DTYPE SHAPE BYTES < data
  header=$(printf '{"%s":{"dtype":"%s","shape":[%s],"data_offsets":[0,%s]}}' "$2" "$3" "$4" "$5")
  { printf "\\$(printf %03o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"; cat; } >"$1"
}
program() { # NAME < nodes: of a weight w and an input x
  { echo 'graph(%w: f32[4,4] = parameter "w", %x: f32[2,4] = user) {'; cat; echo '}'; } >"$temp/$1.txt"
}
head -c 64 /dev/zero | safetensors "$temp/w.safetensors" w F32 4,4 64
run() { # CODES PATTERN NAME ARGUMENTS...
  code=$1 pattern=$2 name=$3
  shift 3
  try "$code" "$pattern" run "$temp/$name.txt" --weights "$temp/w.safetensors" --random-inputs 0 "$@"
}
opt() { # CODES PATTERN NAME PASSES ARGUMENTS...
  code=$1 pattern=$2 name=$3 passes=$4
  shift 4
  try "$code" "$pattern" opt "$temp/$name.txt" --weights "$temp/w.safetensors" --passes "$passes" --print "$@"
}

program loss <<'END'
  %y: f32[2,4] = aten.linear.default(%x, %w)
  %l: f32[] = aten.mean.default(%y)
  return user %l
END
program vector <<'END'
  %y: f32[2,4] = aten.linear.default(%x, %w)
  return user %y
END
program several <<'END'
  %y: f32[2,4] = aten.linear.default(%x, %w)
  %l: f32[] = aten.mean.default(%y)
  %m: f32[] = aten.sum.default(%y)
  return user %l, user %m, user %y
END
program integers <<'END'
  %m: f32[] = aten.sum.default(%w)
  %l: i64[] = aten.to.dtype(%m, i64)
  return user %l
END
program rounded <<'END'
  %m: f32[] = aten.sum.default(%w)
  %i: i64[] = aten.to.dtype(%m, i64)
  %l: f32[] = aten.to.dtype(%i, f32)
  return user %l
END
program detached <<'END'
  %v: f32[4,4] = aten.detach.default(%w)
  %y: f32[2,4] = aten.linear.default(%x, %v)
  %l: f32[] = aten.sum.default(%y)
  return user %l
END
program none <<'END'
  %y: f32[2,4] = aten.linear.default(%x, %w)
  %i: i64[2,4] = aten.zeros_like.default(%y, dtype=i64)
  %z: f32[2,4] = aten.scatter.reduce(%y, 0, %i, %y, reduce="add") !{"stack_trace": "File \"model.py\", line 7, in forward\n    z = y"}
  %u: f32[2,4] = aten.scatter.value_reduce(%z, 0, %i, 2.0, reduce="multiply")
  %v: f32[2,4] = aten.scatter.reduce(%u, 0, %i, %y, reduce="add")
  %l: f32[] = aten.sum.default(%v)
  return user %l
END

# ---- what there is
llama=$golden/grads/llama
on_mesh="$llama/program.pt2 --mesh dp=2,tp=2 --plan $llama/plan.json"
run 0 '^grad/w: f32' loss --grad
run 0 '^grad/x: f32' loss --grad --grad-inputs
that grep -q '^grad/w' "$temp/out"
run 0 '^grad/w: f32' several --grad --loss m
run 0 '^grad/w: f32' several --grad --loss 0
try 0 '21 gradients of the loss' plan $on_mesh --grad --nodes
that grep -q 'all_reduce tp, backward  *5 ' "$temp/out"
that grep -q 'all_reduce dp, backward  *21 ' "$temp/out"
that grep -q "^  gradients  *[0-9]" "$temp/out"
that grep -q "2.0 KiB: cotangent of 'mul_13' in model.layers.1.input_layernorm" "$temp/out"
that grep -q "gradient of 'model.layers.0.mlp.up_proj.weight'" "$temp/out"
that grep -q 'all of them follow from the plan' "$temp/out"
try 0 '13 all_reduce \(26.2 KiB, 11 backward\)' plan $on_mesh --grad
try 0 '"cause": "cotangent"' plan $on_mesh --grad --json
that grep -q '"cause": "gradient"' "$temp/out"
try 0 '' plan $on_mesh --grad --report "$temp/plan.html"
that grep -q '"backward":true' "$temp/plan.html"
try 0 '1 gradient of' plan $on_mesh --grad=model.norm.weight
try 0 'check: 21 gradients match' run $on_mesh -i "$llama/inputs.safetensors" --grad --check=nodes
try 0 '"gradients": \[\{"output": "grad/model.embed_tokens.weight", "ok": true' run $on_mesh -i "$llama/inputs.safetensors" --grad --check=nodes --json
try 0 'grad/lm_head.weight f32.*matches' run $on_mesh -i "$llama/inputs.safetensors" --grad --check
try 0 'grad/lm_head.weight f32.*matches' run $on_mesh -i "$llama/inputs.safetensors" --grad --expect "$llama/grads.safetensors"

# Where the nodes agree and a gradient does not: 0 * x / 3 is 0 on any number of ranks, the sum of x / 3 is not the same bits.
cat >"$temp/thirds.txt" <<'END'
graph(%w: f32[4,4] = parameter "w", %x: f32[512,4] = user) {
  %y: f32[512,4] = aten.linear.default(%x, %w)
  %z: f32[512,4] = aten.div.Scalar(%y, 3.0)
  %l: f32[] = aten.sum.default(%z)
  return user %l
}
END
run 0 'check: 1 gradients match' thirds --grad --mesh dp=4 --check=nodes
run 4 'results of nodes match' thirds --grad --mesh dp=4 --check=nodes --rtol 0 --atol 0
that grep -q 'grad/w f32' "$temp/out"
that grep -q 'differ' "$temp/err"

# ---- the loss
for mesh in '' '--mesh tp=2' '--interpret'; do
  run 2 "no output can be the loss: the outputs are 0: 'y' f32.2,4." vector --grad $mesh
  run 2 "2 outputs can be the loss: .*1: 'm' f32.., 2: 'y' f32" several --grad $mesh
  that grep -q 'hint .*--loss' "$temp/err"
  run 2 "there is no output 'nothing'" several --grad --loss nothing $mesh
  run 2 "there is no output '3'" several --grad --loss 3 $mesh
  run 2 "output 'y' f32.2,4. cannot be the loss" several --grad --loss y $mesh
  run 2 "no output can be the loss: .*'l' i64" integers --grad $mesh
  run 2 "output 'l' i64.. cannot be the loss" integers --grad --loss l $mesh
  run 2 'does not depend on any parameter' rounded --grad $mesh
  run 2 'does not depend on any parameter' detached --grad $mesh
  run 2 "no floating-point parameter matches 'nothing.\*'" loss --grad='nothing.*' $mesh
  run '1 5' "no gradient is known for aten.scatter.reduce \(node 'z', model.py:7 in forward\), aten.scatter.value_reduce \(node 'u'\)" none --grad $mesh
done
try 2 'no output can be the loss' plan "$temp/vector.txt" --mesh tp=2 --grad
try 1 'no gradient is known for' plan "$temp/none.txt" --mesh tp=2 --grad
try 2 'does not depend on any parameter' plan "$temp/detached.txt" --mesh tp=2 --grad

# ---- limits of memory
gpt2=$golden/grads/gpt2.core
try 0 'grad/lm_head.weight f32.*matches' run "$llama/program.pt2" -i "$llama/inputs.safetensors" --grad --memory 50% --expect "$llama/grads.safetensors"
try 0 'grad/lm_head.weight f32.*matches' run $on_mesh -i "$llama/inputs.safetensors" --grad --memory 1M --check
try 2 'do not fit 1024 bytes: .* as they are' run "$gpt2/program.pt2" -i "$gpt2/inputs.safetensors" --grad --memory 1K
least=$(sed -n 's/.*the smallest limit is --memory \([0-9]*\),.*/\1/p' "$temp/err")
try 0 'grad/' run "$gpt2/program.pt2" -i "$gpt2/inputs.safetensors" --grad --memory "$least"
try 2 'do not fit' run "$gpt2/program.pt2" -i "$gpt2/inputs.safetensors" --grad --memory $((least - 1))
try 2 "'much' is no amount of memory" run "$gpt2/program.pt2" --random-inputs 0 --grad --memory much
try 2 'no output of the program is a loss' run "$gpt2/program.pt2" --random-inputs 0 --memory 1G
try 2 'its memory cannot be limited' run "$gpt2/program.pt2" --random-inputs 0 --grad --memory 1G --interpret
try 0 'with a limit of' plan "$gpt2/program.pt2" --grad --memory 70%
that grep -qE '^ +70%' "$temp/out"
try 0 '"curve": \[\{"memory": [0-9]+, "extra_flops": 0' plan "$gpt2/program.pt2" --grad --memory 70% --json
try 2 'give --grad' plan "$gpt2/program.pt2" --memory 70%
try 2 'on one rank' plan "$gpt2/program.pt2" --mesh tp=2 --grad --memory 70%
try 2 "'101%' is no amount of memory" plan "$gpt2/program.pt2" --grad --memory 101%

# ---- options
run 2 '^error: --loss speaks of gradients' loss --loss l
run 2 '^error: --grad-inputs speaks of gradients' loss --grad-inputs
try 2 '^error: --loss speaks of gradients' plan "$temp/loss.txt" --mesh tp=2 --loss l
printf 'graph(%%x: f32[4] = user) {\n  %%l: f32[] = aten.sum.default(%%x)\n  return user %%l\n}\n' >"$temp/bare.txt"
try 2 'no parameter of the program requires a gradient' run "$temp/bare.txt" --random-inputs 0 --grad
that grep -q 'hint .*--grad-inputs' "$temp/err"
try 0 '^grad/x' run "$temp/bare.txt" --random-inputs 0 --grad --grad-inputs
try 2 'takes one program, these are the programs of ranks' run "$golden/models/mlp_tp2_by_torch" --random-inputs 0 --grad
try 2 'not one with collectives' run "$temp/loss.txt" --weights "$temp/w.safetensors" --random-inputs 0 --grad -n 2
that grep -q 'hint .*--mesh' "$temp/err"

# ---- opt
opt 0 'gradient_to_parameter "w"' loss grad
opt 0 'gradient_to_user_input "x"' loss 'grad(inputs,loss=l,parameters=w)'
opt 0 'gradient_to_parameter "w"' loss 'specialize(grad)'
opt 0 'tess.redistribute' loss 'partition(grad)' --mesh dp=2
opt 2 'grad stands once in a list' loss grad,grad
opt 2 'grad stands once in a list, before specialize' loss specialize,grad
opt 2 "there is no option 'lost=l'" loss 'grad(lost=l)'
that grep -q 'hint .*parameters=PATTERN' "$temp/err"
opt 2 "there is no output ''" loss 'grad(loss=)'
opt 2 'does not end with a bracket' loss 'grad(inputs'
opt 2 'has gradients among its outputs already' loss 'grad,specialize(grad)'
opt 1 'no gradient is known' none grad
try 0 '' opt "$temp/loss.txt" --weights "$temp/w.safetensors" --passes grad -o "$temp/joint.pt2"
try 0 '^1: f32.4,4' run "$temp/joint.pt2" --random-inputs 0
try 2 'is a joint program' run "$temp/joint.pt2" --random-inputs 0 --grad
try 2 'is a joint program' plan "$temp/joint.pt2" --mesh dp=2 --grad
try 0 '^  gradients ' plan "$temp/joint.pt2" --mesh dp=2

# ---- branches and loops that depend on data: interpreted
cat >"$temp/cond.txt" <<'END'
graph(%w: f32[4,4] = parameter "w", %x: f32[2,4] = user) {
  %s: f32[] = aten.sum.default(%x)
  %p: bool[] = aten.gt.Scalar(%s, 0)
  %y: f32[2,4] = aten.linear.default(%x, %w)
  %z: f32[2,4] = higher_order.cond(%p, graph(%a: f32[2,4]) {
    %b: f32[2,4] = aten.sin.default(%a)
    return %b
  }, graph(%c: f32[2,4]) {
    %d: f32[2,4] = aten.mul.Tensor(%c, 2)
    return %d
  }, [%y])
  %l: f32[] = aten.mean.default(%z)
  return user %l
}
END
cat >"$temp/loop.txt" <<'END'
graph(%w: f32[4,4] = parameter "w", %x: f32[2,4] = user) {
  %y: f32[2,4] = aten.linear.default(%x, %w)
  %z: f32[2,4] = higher_order.while_loop(graph(%a: f32[2,4]) {
    %s: f32[] = aten.sum.default(%a)
    %p: bool[] = aten.lt.Scalar(%s, 1)
    return %p
  }, graph(%c: f32[2,4]) {
    %d: f32[2,4] = aten.add.Tensor(%c, 1)
    return %d
  }, [%y], [])
  %l: f32[] = aten.mean.default(%z)
  return user %l
}
END
for p in cond loop; do
  run 0 '^grad/w: f32' $p --grad
  run 0 'grad/w f32.*matches' $p --grad --mesh dp=2 --check
  opt 1 'not known before the program runs' $p grad
  that grep -q 'hint .*--grad' "$temp/err"
  try 0 'the rest is not known before it runs' plan "$temp/$p.txt" --mesh dp=2 --grad
done

# ---- failing on the way back: a gradient that no memory holds; on a mesh, an index that one rank's table has not
cat >"$temp/huge.txt" <<'END'
graph(%w: f32[4,4] = parameter "w") {
  %e: f32[1099511627776,4,4] = aten.expand.default(%w, [1099511627776, 4, 4])
  %s: f32[4,4] = aten.select.int(%e, 0, 0)
  %l: f32[] = aten.sum.default(%s)
  return user %l
}
END
run 1 'cannot allocate' huge --grad
run 1 'cannot allocate' huge --grad --interpret
that grep -q 'the gradient of aten.select.int' "$temp/err"
run 5 'cannot allocate' huge --grad --interpret --mesh tp=2
printf '\6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' | safetensors "$temp/high.safetensors" ids I64 2 16
cat >"$temp/table.txt" <<'END'
graph(%w: f32[4,4] = parameter "w", %ids: i64[2] = user) {
  %y: f32[2,4] = aten.embedding.default(%w, %ids)
  %l: f32[] = aten.sum.default(%y)
  return user %l
}
END
try '1 5' 'out of bounds' run "$temp/table.txt" --weights "$temp/w.safetensors" -i "$temp/high.safetensors" --grad
try '1 5' 'out of bounds' run "$temp/table.txt" --weights "$temp/w.safetensors" -i "$temp/high.safetensors" --grad --mesh dp=2
try 0 '^grad/w' run "$temp/table.txt" --weights "$temp/w.safetensors" --random-inputs 0 --grad --mesh dp=2

# ---- files
run 0 '' loss --grad -o "$temp/out.safetensors"
that grep -q 'grad/w' "$temp/out.safetensors"
run 2 'exists already' loss --grad -o "$temp/out.safetensors"
if [ -c /dev/full ]; then
  run 1 "cannot write '/dev/full' .*No space left" loss --grad -o /dev/full
  run 1 "cannot write '/dev/full' .*No space left" loss --grad --mesh dp=2 -o /dev/full
  try 1 "cannot write '/dev/full' .*No space left" opt "$temp/loss.txt" --weights "$temp/w.safetensors" --passes grad -o /dev/full
fi

# ---- options at random: any exit code of ours, never a signal
seed=1
pick() { # WORDS...: one of them, into $picked
  seed=$(((seed * 1103515245 + 12345) % 2147483648))
  shift $((seed / 65536 % $#))
  picked=$1
}
n=0
while [ $n -lt "${3:-300}" ]; do
  n=$((n + 1))
  pick loss several vector integers rounded detached none cond loop table bare thirds joint
  name=$picked file=$temp/$picked.txt
  [ "$name" != joint ] || file=$temp/joint.pt2
  pick run run run plan opt
  case $picked in
    run) words="run $file --weights $temp/w.safetensors --random-inputs 0 --timeout 60" ;;
    plan) words="plan $file" ;;
    opt) words="opt $file --weights $temp/w.safetensors --print" ;;
  esac
  command=$picked
  for turn in 1 2 3 4; do
    case $command in
      run) pick --grad --grad --grad=w --grad=* --loss=l --loss=0 --grad-inputs --interpret --mesh=dp=2 --mesh=tp=3 --mesh=dp=2,tp=2 --check --check=nodes --json --profile --print-outputs --repeat=2 --trace=/dev/null --ranks=2 --threads=2 --plan=auto --rtol=0 --memory=50% --memory=1G ;;
      plan) pick --grad --grad --grad=w --loss=m --grad-inputs --mesh=dp=2 --mesh=tp=2 --mesh=dp=2,tp=2 --json --nodes --weights-table --rank=1 --machine=cpu2 --plan=auto --memory=60% ;;
      opt) pick --passes=grad --passes=grad,dce --passes=grad,recompute --passes=specialize\(grad\) --passes=partition\(grad\) '--passes=grad(inputs)' --mesh=tp=2 --rank=1 --stats --verify ;;
    esac
    words="$words $picked"
  done
  set -f # patterns are meant as they are
  timeout 60 "$tessera" $words >"$temp/out" 2>"$temp/err"
  code=$?
  set +f
  if [ $code -le 5 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "exit code $code: tessera $words"; head -5 "$temp/err"; fi
done
sum_up
