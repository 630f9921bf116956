#!/bin/sh
# cli_train.sh TESSERA GOLDEN -- training from outside: every option of `tessera train`, what it leaves behind, runs that
# are stopped and resumed, and what it says when something does not fit.
set -u
here=$(dirname "$0") tessera=$1 golden=$(cd "$2" && pwd)
. "$here/trials.sh"
source=$(cd "$here/.." && pwd)
mlp=$golden/train/mlp_ce cnn=$golden/train/cnn_bn gpt=$source/examples/gpt.pt2

train() { # CODES PATTERN OPTIONS...: of the small perceptron, on recorded batches
  code=$1 pattern=$2
  shift 2
  check "$code" "$pattern" "$tessera" train "$mlp/forward.pt2" --threads 1 --data "$mlp/batches.safetensors" --batched "$@"
}
hint() { that grep -qE "hint.*$1" "$temp/err"; } # of the last command
tensor() { # FILE NAME: the bytes of a tensor in a .safetensors file
  size=$(od -An -tu8 -N8 "$1" | tr -d ' ')
  range=$(head -c $((8 + size)) "$1" | tail -c +9 | sed -n "s/.*\"$2\":{[^}]*\"data_offsets\":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/p")
  [ -n "$range" ] || { echo "$1 has no $2"; return; }
  begin=${range% *} end=${range#* }
  tail -c +$((9 + size + begin)) "$1" | head -c $((end - begin)) | od -An -v -tx1
}
same_tensor() { [ "$(tensor "$1" "$3")" = "$(tensor "$2" "$3")" ]; } # FILE FILE NAME
other_tensor() { ! same_tensor "$@"; }
member() { sed -n "s/.*\"step\":$2,.*\"$3\":\([^,}]*\).*/\1/p" "$1"; } # LOG STEP NAME
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && (a - b) ^ 2 <= (1e-5 * b) ^ 2) }'; }
samples() { # FILE BYTES-OF-X...: two batches of the perceptron, x beginning with these bytes in the second one
  header='{"x":{"dtype":"F32","shape":[24,8],"data_offsets":[0,768]},"y":{"dtype":"I64","shape":[24],"data_offsets":[768,960]}}'
  {
    printf "\\$(printf %03o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"
    head -c 384 /dev/zero
    printf "$2"
    head -c 572 /dev/zero
  } >"$1"
}

# ---- what it leaves behind: lines, a log, weights, a program, a page, events
train 0 '^step 10  loss 1\.[0-9]+  norm [0-9.]+  lr 1.0e-03 ' --steps 10 --log "$temp/log" -o "$temp/w.safetensors" --report "$temp/page.html" --tensorboard "$temp/events"
that [ "$(grep -c '^step' "$temp/out")" = 10 ]
that [ "$(wc -l <"$temp/log")" = 10 ]
for name in step loss grad_norm lr seconds samples_per_s tflops share_of_peak memory; do that grep -q "\"$name\":" "$temp/log"; done
that near "$(member "$temp/log" 1 loss)" 1.4013957977294922
that grep -q 'layers.2.weight' "$temp/w.safetensors"
that grep -q 'id="report"' "$temp/page.html"
that [ "$(ls "$temp/events" | grep -c tfevents)" = 1 ]
train 0 'aten.linear' --steps 2 -q --profile --trace "$temp/trace.json"
that grep -q '"ph":"X"\|"ph": "X"' "$temp/trace.json"
train 0 'exposed communication: [0-9.]+ % of the last step' --mesh dp=2 --steps 2 --trace "$temp/ranks.json"
that grep -q '"cat":"communication","args":.*"started":true' "$temp/ranks.json"
that grep -q '"ph":"f","bp":"e","name":"waits for"' "$temp/ranks.json"
train 0 '' --steps 10 -q -o "$temp/trained.pt2"
that [ ! -s "$temp/out" ]
try 0 '^loss\.|^0: f32' run "$temp/trained.pt2" --random-inputs 0
train 0 '' --steps 1 -q --log "$temp/again.log" --init "$temp/w.safetensors"
train 0 '' --steps 11 -q --log "$temp/whole.log"
try 0 '' train "$temp/trained.pt2" --threads 1 --data "$mlp/batches.safetensors" --batched --steps 1 -q --log "$temp/program.log"
that [ "$(member "$temp/again.log" 1 loss)" = "$(member "$temp/whole.log" 11 loss)" ]
that [ "$(member "$temp/program.log" 1 loss)" = "$(member "$temp/whole.log" 11 loss)" ]

# ---- weights to begin with: any format, other names and dtypes, what is missing
ckpt() { check 0 '' "$tessera" ckpt "$@"; }
ckpt convert "$temp/w.safetensors" --to hf --max-shard-size 1K -o "$temp/w.hf"
ckpt convert "$temp/w.safetensors" --to dcp --mesh 2 -o "$temp/w.dcp"
ckpt cast "$temp/w.safetensors" --dtype f64 -o "$temp/w.f64"
ckpt rename "$temp/w.safetensors" '*=net.*' -o "$temp/renamed.safetensors"
ckpt select "$temp/w.safetensors" '*weight' -o "$temp/less.safetensors"
for init in w.hf w.hf/model.safetensors.index.json w.dcp w.f64 'renamed.safetensors --init-rename net.*=*'; do
  train 0 '' --steps 1 -q -f --log "$temp/init.log" --init "$temp/"$init
  that [ "$(member "$temp/init.log" 1 loss)" = "$(member "$temp/whole.log" 11 loss)" ]
done
train 3 "does not fit the program: 6 tensors do not" --steps 1 --init "$temp/renamed.safetensors"
hint "it has 'net.layers.0.(weight|bias)'; --init-rename"
train 3 "has no 'layers.0.bias', which the program has" --steps 1 --init "$temp/less.safetensors"
train 3 "'layers.0.weight' is f32.*, in the program it is" --steps 1 --init "$cnn/init.safetensors" --init-rename 'conv1.weight=layers.0.weight'
train 2 "no tensor of .* matches 'x=y'" --steps 1 --init "$temp/w.safetensors" --init-rename x=y
train 2 'needs --init' --steps 1 --init-rename x=y
if python3 -c 'import safetensors.numpy' 2>/dev/null; then
  check 0 '^6 684$' python3 -c 'import safetensors.numpy, sys
w = safetensors.numpy.load_file(sys.argv[1])
print(len(w), sum(x.size for x in w.values()))' "$temp/w.safetensors"
fi
# Batch norms: buffers change and are written.
try 0 '' train "$cnn/forward.pt2" --threads 1 --data "$cnn/batches.safetensors" --batched --steps 10 -q --optim sgd,lr=0.1 -o "$temp/cnn.safetensors"
that other_tensor "$temp/cnn.safetensors" "$cnn/init.safetensors" norm1.running_mean
that other_tensor "$temp/cnn.safetensors" "$cnn/init.safetensors" norm1.num_batches_tracked

# An evaluation changes nothing.
try 0 '' train "$cnn/forward.pt2" --threads 1 --data "$cnn/batches.safetensors" --batched --steps 10 -q --optim sgd,lr=0.1 -o "$temp/looked.safetensors" --eval "$cnn/batches.safetensors" --eval-every 3
that cmp -s "$temp/cnn.safetensors" "$temp/looked.safetensors"

# ---- which parameters, and how
train 0 '' --steps 2 -q --freeze 'layers.0.*,*.bias' -o "$temp/frozen.safetensors"
for name in layers.0.weight layers.0.bias layers.2.bias; do that same_tensor "$temp/frozen.safetensors" "$mlp/init.safetensors" $name; done
for name in layers.1.weight layers.2.weight; do that other_tensor "$temp/frozen.safetensors" "$mlp/init.safetensors" $name; done
train 0 '' --steps 1 -q --freeze 'layers.0.*' --init "$temp/w.safetensors" --log "$temp/frozen.log" -o "$temp/frozen_init.safetensors"
that same_tensor "$temp/frozen_init.safetensors" "$temp/w.safetensors" layers.0.weight
that [ "$(member "$temp/frozen.log" 1 loss)" = "$(member "$temp/whole.log" 11 loss)" ]
train 0 '' --steps 2 -q --group 'still=*.bias:lr=0' --group 'other=layers.1.*:optim=sgd,lr=0.1,momentum=0.9' -o "$temp/groups.safetensors"
that same_tensor "$temp/groups.safetensors" "$mlp/init.safetensors" layers.1.bias
that other_tensor "$temp/groups.safetensors" "$mlp/init.safetensors" layers.1.weight
for optim in sgd sgd,lr=0.05,momentum=0.9,nesterov adam,amsgrad adamw,lr=1e-3,betas=0.9:0.95,amsgrad adagrad,lr=0.01 muon,lr=0.02,adjust_lr_fn=match_rms_adamw; do
  train 0 '^step 2 ' --steps 2 --optim $optim
done
train 0 '' --steps 3 -q --log "$temp/still.log" --optim sgd,lr=0
train 0 '' --steps 3 -q --log "$temp/clip.log" --optim sgd,lr=1 --clip 1e-9 -o "$temp/clip.safetensors"
that near "$(member "$temp/clip.log" 3 loss)" "$(member "$temp/still.log" 3 loss)"
train 0 '^step 2 ' --steps 2 --clip 0.05,norm=inf
train 0 '^step 2 ' --steps 2 --clip value=0.01

# ---- schedules: the learning rate of each step
schedule() { # TEXT STEP=RATE...
  train 0 '' --steps 10 -q -f --log "$temp/lr.log" --optim adamw,lr=1e-3 --schedule "$1"
  shift
  for pair; do that near "$(member "$temp/lr.log" ${pair%=*} lr)" ${pair#*=}; done
}
schedule constant 1=1e-3 10=1e-3
schedule constant,warmup=4 1=2.5e-4 4=1e-3 10=1e-3
schedule linear,min=0.1 1=1e-3 6=5.5e-4 10=1.9e-4
schedule cosine,warmup=2 1=5e-4 3=1e-3 7=5e-4
schedule cosine,steps=5,min=0.5 6=5e-4 10=5e-4
schedule wsd,decay=5 5=1e-3 6=1e-3 8=6e-4
schedule step,every=3,gamma=0.5 3=1e-3 4=5e-4 10=1.25e-4

# ---- batches: accumulation, order, epochs, sizes
train 0 '' --steps 2 -q --accumulate 2 --log "$temp/two.log"
that near "$(member "$temp/two.log" 1 loss)" "$(echo "$(member "$temp/still.log" 1 loss) $(member "$temp/still.log" 2 loss)" | awk '{ printf "%.9f", ($1 + $2) / 2 }')"
samples "$temp/plain.safetensors" '\0\0\0\0'
mlp_on() { # CODES PATTERN FILE OPTIONS...
  code=$1 pattern=$2 file=$3
  shift 3
  check "$code" "$pattern" "$tessera" train "$mlp/forward.pt2" --threads 1 --data "$file" "$@"
}
mlp_on 0 '^step 6 ' "$temp/plain.safetensors" --epochs 3
mlp_on 0 '^step 3 ' "$temp/plain.safetensors" --epochs 3 --accumulate 2 --no-shuffle --drop-last --seed 7

# Numbers of rows that were traced as constants: they are those of the batch at hand.
cat >"$temp/pick.txt" <<'END'
graph(%p: f32[8] = parameter "x", %x: f32[4,8] = user) {
  %rows: i64[4] = aten.arange.default(4)
  %r: i64[4,1] = aten.unsqueeze.default(%rows, 1)
  %c: i64[3] = aten.arange.start(2, 5)
  %e: f32[4,8] = aten.exp.default(%x)
  %y: f32[4,8] = aten.add.Tensor(%e, %p)
  %z: f32[4,3] = aten.index.Tensor(%y, [%r, %c])
  %l: f32[] = aten.mean.default(%z)
  return user %l
}
END
try 3 "parameter 'x' has no data" train "$temp/pick.txt" --data "$temp/plain.safetensors" --steps 1
hint 'with its weights'
zeros() { # FILE SIZE BYTES: a tensor x
  header='{"x":{"dtype":"F32","shape":'$2',"data_offsets":[0,'$3']}}'
  { printf "\\$(printf %03o ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"; head -c "$3" /dev/zero; } >"$1"
}
zeros "$temp/p.safetensors" '[8]' 32
zeros "$temp/x.safetensors" '[24,8]' 768
try 0 '' opt "$temp/pick.txt" --weights "$temp/p.safetensors" -o "$temp/pick.pt2"
for batch in 2 3 6; do
  try 0 '^step 1  loss 1.0000 ' train "$temp/pick.pt2" --data "$temp/x.safetensors" --batch $batch --steps 1
done
# Tokens that were shifted into zeros of the program's size: more of them are had where they are all alike.
cat >"$temp/shift.txt" <<'END'
graph(%p: f32[8] = parameter "x", %x: f32[4,8] = user) {
  %e: f32[4,8] = aten.exp.default(%x)
  %z: f32[4,8] = aten.zeros.default([4, 8], dtype=f32)
  %s: f32[4,7]{8,1} = aten.slice.Tensor(%z, 1, 1, 8)
  %t: f32[4,7]{8,1} = aten.slice.Tensor(%e, 1, 0, 7)
  %c: f32[4,7] = aten.copy.default(%s, %t)
  %y: f32[4,8] = aten.slice_scatter.default(%z, %c, 1, 1, 8)
  %a: f32[4,8] = aten.add.Tensor(%y, %p)
  %l: f32[] = aten.mean.default(%a)
  return user %l
}
END
try 0 '' opt "$temp/shift.txt" --weights "$temp/p.safetensors" -o "$temp/shift.pt2"
for batch in 2 3 6; do
  try 0 '^step 1  loss 0.8750 ' train "$temp/shift.pt2" --data "$temp/x.safetensors" --batch $batch --steps 1
done
# A mask that was computed for each row, all alike; and a constant whose rows differ.
cat >"$temp/masked.txt" <<'END'
graph(%p: f32[8] = parameter "x", %x: f32[4,8] = user) {
  %r: i64[4] = aten.arange.default(4)
  %i: i64[4,1] = aten.unsqueeze.default(%r, 1)
  %j: i64[1,8] = aten.full.default([1, 8], 1, dtype=i64)
  %n: i64[4,8] = aten.mul.Tensor(%i, %j)
  %m: bool[4,8] = aten.lt.Scalar(%n, 9)
  %e: f32[4,8] = aten.exp.default(%x)
  %k: f32[4,8] = aten.where.ScalarOther(%m, %e, 0.0)
  %y: f32[4,8] = aten.add.Tensor(%k, %p)
  %l: f32[] = aten.mean.default(%y)
  return user %l
}
END
sed 's/Scalar(%n, 9)/Scalar(%n, 2)/' "$temp/masked.txt" >"$temp/counted.txt"
try 0 '' opt "$temp/masked.txt" --weights "$temp/p.safetensors" -o "$temp/masked.pt2"
try 0 '' opt "$temp/counted.txt" --weights "$temp/p.safetensors" -o "$temp/counted.pt2"
for batch in 2 3 6; do
  try 0 '^step 1  loss 1.0000 ' train "$temp/masked.pt2" --data "$temp/x.safetensors" --batch $batch --steps 1
  try 0 '^check: 1 step' train "$temp/masked.pt2" --data "$temp/x.safetensors" --batch $batch --steps 1 --mesh dp=2 --check
done
try 0 '^step 1  loss 0.6667 ' train "$temp/counted.pt2" --data "$temp/x.safetensors" --batch 3 --steps 1
try 3 'program is for 4 rows and cannot be run with 6' train "$temp/counted.pt2" --data "$temp/x.safetensors" --batch 6 --steps 1
hint 'dynamic batch'
# Values of a branch are not those of the program that have the same number.
cat >"$temp/branch.txt" <<'END'
graph(%p: f32[8] = parameter "x", %x: f32[4,8] = user) {
  %e: f32[4,8] = aten.exp.default(%x)
  %m: f32[] = aten.sum.default(%e)
  %q: bool[] = aten.gt.Scalar(%m, 0.0)
  %r: f32[4] = higher_order.cond(%q, graph(%a: f32[4,8], %w: f32[8]) {
    %z: f32[4,8] = aten.neg.default(%a)
    %o: f32[8] = aten.ones.default([8], dtype=f32)
    %u: f32[8] = aten.mul.Tensor(%w, %o)
    %b: f32[4,8] = aten.sub.Tensor(%u, %z)
    %c: f32[4] = aten.mean.dim(%b, [1])
    return %c
  }, graph(%a: f32[4,8], %w: f32[8]) {
    %b: f32[4,8] = aten.sub.Tensor(%a, %w)
    %c: f32[4] = aten.sum.dim_IntList(%b, [1])
    return %c
  }, [%e, %p])
  %l: f32[] = aten.mean.default(%r)
  return user %l
}
END
try 0 '' opt "$temp/branch.txt" --weights "$temp/p.safetensors" -o "$temp/branch.pt2"
for batch in 2 4 6; do
  try 0 '^step 1  loss 1.0000 ' train "$temp/branch.pt2" --data "$temp/x.safetensors" --batch $batch --steps 1
done
# A sum over a mask of four rows, which meets the batch elsewhere, would be that of four rows.
cat >"$temp/summed.txt" <<'END'
graph(%p: f32[8] = parameter "x", %x: f32[4,8] = user) {
  %o: bool[4,8] = aten.ones.default([4, 8], dtype=bool)
  %m: f32[4,8] = aten._to_copy.default(%o, dtype=f32)
  %e: f32[4,8] = aten.exp.default(%x)
  %k: f32[4,8] = aten.mul.Tensor(%e, %m)
  %y: f32[4,8] = aten.add.Tensor(%k, %p)
  %s: f32[] = aten.sum.default(%y)
  %n: i64[] = aten.sum.default(%o)
  %l: f32[] = aten.div.Tensor(%s, %n)
  return user %l
}
END
try 0 '' opt "$temp/summed.txt" --weights "$temp/p.safetensors" -o "$temp/summed.pt2"
try 0 '^step 1  loss 1.0000 ' train "$temp/summed.pt2" --data "$temp/x.safetensors" --batch 4 --steps 1
for batch in 2 6; do
  try 3 "cannot be run with $batch: .o. has rows of its own.* and .n. .aten.sum" train "$temp/summed.pt2" --data "$temp/x.safetensors" --batch $batch --steps 1
  hint 'dynamic batch'
done
try 3 "cannot be run with 2: 'o' has rows of its own" train "$temp/summed.pt2" --data "$temp/x.safetensors" --batch 4 --steps 1 --mesh dp=2 --data-parallel local

# What the program has for its own four rows, and meets others: the loss does not depend on their number.
other_rows() { # NAME LOSS < nodes; %e is exp(x) + p, 1 everywhere, and %i 0
  { echo 'graph(%p: f32[8] = parameter "x", %x: f32[4,8] = user) {'
    echo '  %f: f32[4,8] = aten.exp.default(%x)'
    echo '  %e: f32[4,8] = aten.add.Tensor(%f, %p)'
    echo '  %i: i64[4,8] = aten.to.dtype(%x, i64)'
    cat; printf '  return user %%l\n}\n'; } >"$temp/$1.txt"
  try 0 '' opt "$temp/$1.txt" --weights "$temp/p.safetensors" -o "$temp/$1.pt2"
  for batch in 2 3 6; do
    try 0 "^step 1  loss $2 " train "$temp/$1.pt2" --data "$temp/x.safetensors" --batch $batch --steps 1
    try 0 "^step 1  loss $2 " train "$temp/$1.pt2" --data "$temp/x.safetensors" --batch $((2 * batch)) --steps 1 --mesh dp=2 --data-parallel local
  done
}
other_rows state 1.2500 <<'END'
  %w: f32[6,8] = aten.full.default([6, 8], 0.0)
  %u: f32[6,2] = aten.full.default([6, 2], 0.0)
  %h: f32[4,2] = aten.full.default([4, 2], 0.5)
  %y: f32[4,2] = aten.gru_cell.default(%e, %h, %w, %u)
  %m: f32[] = aten.mean.default(%y)
  %k: f32[] = aten.mean.default(%e)
  %l: f32[] = aten.add.Tensor(%m, %k)
END
other_rows states 2.0000 <<'END'
  %t: f32[4,1,8] = aten.unsqueeze.default(%e, 1)
  %r: f32[4,3,8] = aten.repeat.default(%t, [1, 3, 1])
  %w: f32[2,8] = aten.full.default([2, 8], 0.0)
  %u: f32[2,2] = aten.full.default([2, 2], 0.0)
  %h: f32[1,4,2] = aten.full.default([1, 4, 2], 9.0)
  %y: f32[4,3,2], %z: f32[1,4,2] = aten.rnn_tanh.input(%r, %h, [%w, %u], false, 1, 0.0, true, false, true)
  %a: f32[4,3,2] = aten.cos.default(%y)
  %m: f32[] = aten.mean.default(%a)
  %k: f32[] = aten.mean.default(%e)
  %l: f32[] = aten.add.Tensor(%m, %k)
END
other_rows scattered 1.1429 <<'END'
  %z: f32[4,7] = aten.zeros.default([4, 7], dtype=f32)
  %y: f32[4,7] = aten.scatter_add.default(%z, 1, %i, %e)
  %l: f32[] = aten.mean.default(%y)
END
other_rows selected 0.5000 <<'END'
  %z: f32[4,2,8] = aten.zeros.default([4, 2, 8], dtype=f32)
  %y: f32[4,2,8] = aten.select_scatter.default(%z, %e, 1, 1)
  %l: f32[] = aten.mean.default(%y)
END
other_rows put 0.1250 <<'END'
  %z: f32[4,8] = aten.zeros.default([4, 8], dtype=f32)
  %r: i64[4] = aten.arange.default(4)
  %c: i64[4] = aten.select.int(%i, 1, 0)
  %v: f32[4] = aten.select.int(%e, 1, 0)
  %y: f32[4,8] = aten.index_put.default(%z, [%r, %c], %v)
  %l: f32[] = aten.mean.default(%y)
END
other_rows gathered 1.0000 <<'END'
  %j: i64[4,3] = aten.full.default([4, 3], 2, dtype=i64)
  %y: f32[4,3] = aten.gather.default(%e, 1, %j)
  %l: f32[] = aten.mean.default(%y)
END
other_rows twice 2.0000 <<'END'
  %y: f32[8,8] = aten.cat.default([%e, %e])
  %o: f32[4,1] = aten.full.default([4, 1], 1.0)
  %t: f32[4,1] = aten.full.default([4, 1], 3.0)
  %k: f32[8,1] = aten.cat.default([%o, %t])
  %z: f32[8,8] = aten.mul.Tensor(%y, %k)
  %l: f32[] = aten.mean.default(%z)
END
other_rows parts 3.0000 <<'END'
  %d: f32[4,8] = aten.mul.Tensor(%e, 3.0)
  %y: f32[8,8] = aten.cat.default([%e, %d])
  %a: f32[4,8], %b: f32[4,8] = aten.split.Tensor(%y, 4)
  %l: f32[] = aten.mean.default(%b)
END
other_rows classes 1.3863 <<'END'
  %z: f32[4,4] = aten.slice.Tensor(%e, 1, 0, 4)
  %c: i64[4] = aten.select.int(%i, 1, 0)
  %o: f32[2] = aten.full.default([2], 1.0)
  %t: f32[2] = aten.full.default([2], 3.0)
  %w: f32[4] = aten.cat.default([%o, %t])
  %l: f32[] = aten.cross_entropy_loss.default(%z, %c, %w)
END
other_rows bags 8.0000 <<'END'
  %q: f32[8] = aten.select.int(%e, 0, 0)
  %t: f32[3,8] = aten.expand.default(%q, [3, 8])
  %j: i64[32] = aten.view.default(%i, [32])
  %o: i64[4] = aten.arange.start_step(0, 32, 8)
  %y: f32[4,8], %a: i64[0], %b: i64[4], %c: i64[4] = aten.embedding_bag.padding_idx(%t, %j, %o, false, 0, false, None, false, None)
  %l: f32[] = aten.mean.default(%y)
END
sed 's/Tensor(%y, 4)/Tensor(%y, 2)/; s/%a: f32\[4,8\], %b: f32\[4,8\]/%a: f32[2,8], %b: f32[2,8], %c: f32[2,8], %d2: f32[2,8]/' "$temp/parts.txt" >"$temp/halves.txt"
try 0 '' opt "$temp/halves.txt" --weights "$temp/p.safetensors" -o "$temp/halves.pt2"
try 3 'program is for 4 rows and cannot be run with 6: parts of 2 rows' train "$temp/halves.pt2" --data "$temp/x.safetensors" --batch 6 --steps 1

# ---- tokens, evaluation, dtypes, memory: a GPT on bytes
cd "$source" || exit 1
on_bytes="train examples/gpt.pt2 --threads 1 --data README.md --data docs/*.md --tokens input_ids,labels --token-dtype uint8 --batch 2"
bytes() { # CODES PATTERN OPTIONS...
  code=$1 pattern=$2
  shift 2
  set -f
  check "$code" "$pattern" "$tessera" $on_bytes "$@"
  set +f
}
bytes 0 '^step 4 .* eval [0-9.]+' --steps 4 --eval CONTRIBUTING.md --eval-every 2 --eval-batches 2 --log "$temp/bytes.log" --seed 3
that [ -n "$(member "$temp/bytes.log" 2 eval_loss)" ]
that [ -z "$(member "$temp/bytes.log" 3 eval_loss)" ]
that [ -n "$(member "$temp/bytes.log" 4 tokens_per_s)" ]
bytes 0 '' --steps 4 -q --seed 3 --memory 45% --eval CONTRIBUTING.md --eval-batches 2 --log "$temp/tight.log"
that [ "$(member "$temp/bytes.log" 4 loss)" = "$(member "$temp/tight.log" 4 loss)" ]
that [ -n "$(member "$temp/tight.log" 4 eval_loss)" ]
bytes 0 '^step 2 ' --steps 2 --dtype bf16
bytes 0 '^step 2 ' --steps 2 --dtype f16 --log "$temp/f16.log"
that [ -n "$(member "$temp/f16.log" 2 loss_scale)" ]
bytes 0 '^step 2 ' --steps 2 --param-dtype bf16 --state-dtype f32
bytes 0 '^step 2 ' --steps 2 --unshifted --window 128 --loss 0
bytes 2 "'wide' is no type of tokens" --token-dtype wide --steps 1
bytes 2 "the program's 'input_ids' has 128 tokens, not 64" --window 64 --steps 1
bytes 2 'the intermediate results do not fit 1024 bytes' --memory 1K --steps 1

# ---- saves: every N steps, the last K, resumed to the same bits
train 0 '' --steps 12 -q --optim adamw,lr=1e-2 --schedule cosine --accumulate 2 --save "$temp/run" --save-every 4 --keep 0 -o "$temp/never_stopped.safetensors" --log "$temp/run.log"
that [ "$(ls "$temp/run" | tr '\n' ' ')" = 'step-00000004 step-00000008 step-00000012 ' ]
cp "$temp/run.log" "$temp/never_stopped.log"
rm -r "$temp/run/step-00000012"
try 0 '^step 12 ' train --resume "$temp/run" -o "$temp/resumed.safetensors"
that [ "$(grep -c '^step' "$temp/out")" = 4 ]
that cmp -s "$temp/never_stopped.safetensors" "$temp/resumed.safetensors"
that [ "$(sed 's/,"seconds.*//' "$temp/run.log")" = "$(sed 's/,"seconds.*//' "$temp/never_stopped.log")" ]
try 2 'has made 12 steps, which is all that was asked for' train --resume "$temp/run"
hint '--steps N'
try 0 '^step 13 ' train --resume "$temp/run" --steps 13 --save "$temp/run"
try 0 '^step 14 ' train --resume "$temp/run" --steps 14 --optim adagrad,lr=1e-2 --save "$temp/changed"
that grep -q "note: .*step-00000013' is of another optimizer: the state of this one begins anew, the save lacks" "$temp/err"
try 0 '^step 14 ' train --resume "$temp/run" --steps 14 --optim sgd,lr=1e-2 --save "$temp/fewer"
that grep -q 'note: .* has more state of optimizers than this run keeps' "$temp/err"
try 0 '^step 14 ' train --resume "$temp/run" --steps 14 --group 'biases=*.bias:lr=1e-3' --save "$temp/grouped"
that [ "$(grep -c '^note' "$temp/err")" = 0 ]
train 0 '' --steps 9 -q --save "$temp/kept" --save-every 1 --keep 2
train 0 'saves held up steps for' --steps 9 -q --save "$temp/waited" --save-every 1 --keep 2 --save-sync --profile
train 0 '' --steps 9 -q --save "$temp/every" --save-every 1 --keep 1 --keep-every 4
that [ "$(echo "$temp"/every/step-*)" = "$temp/every/step-00000004 $temp/every/step-00000008 $temp/every/step-00000009" ]
train 0 '' --steps 9 -q --save "$temp/little" --save-every 1 --keep 2 --save-memory 1K
for step in 8 9; do
  for file in model optimizer; do
    that cmp -s "$temp/kept/step-0000000$step/$file.safetensors" "$temp/waited/step-0000000$step/$file.safetensors"
    that cmp -s "$temp/kept/step-0000000$step/$file.safetensors" "$temp/little/step-0000000$step/$file.safetensors"
  done
done
train 2 'exclude each other' --steps 1 --save "$temp/both" --save-sync --save-async
train 2 '--save-memory takes bytes' --steps 1 --save "$temp/both" --save-memory 70%
that [ "$(ls "$temp/kept" | tr '\n' ' ')" = 'step-00000008 step-00000009 ' ]

# SIGTERM and SIGINT: the step is finished and saved.
for signal in TERM INT; do
  folder=$temp/stopped_$signal
  "$tessera" train "$mlp/forward.pt2" --threads 1 --data "$mlp/batches.safetensors" --batched --steps 4000 -q \
    --log "$folder.log" --save "$folder" -o "$folder.safetensors" >"$temp/out" 2>"$temp/err" &
  process=$!
  while kill -0 $process 2>/dev/null && [ "$(cat "$folder.log" 2>/dev/null | wc -l)" -lt 50 ]; do :; done
  kill -$signal $process
  wait $process
  that [ $? = 0 ]
  that grep -qE "stopped after step [0-9]+ of 4000 by SIG$signal; go on with --resume $folder" "$temp/err"
  that [ "$(ls "$folder" | wc -l)" = 1 ]
  try 0 '' train --resume "$folder" -q
  that [ "$(ls "$folder" | tail -1)" = step-00004000 ]
done
train 0 '' --steps 4000 -q -o "$temp/long.safetensors"
for signal in TERM INT; do that cmp -s "$temp/long.safetensors" "$temp/stopped_$signal.safetensors"; done

# ---- what is not finite
samples "$temp/nan.safetensors" '\0\0\300\177'
samples "$temp/huge.safetensors" '\377\377\177\177'
on_nan() { # CODES PATTERN OPTIONS...: the second batch has a nan
  code=$1 pattern=$2
  shift 2
  mlp_on "$code" "$pattern" "$temp/nan.safetensors" --no-shuffle --steps 3 "$@"
}
on_nan 1 'step 2: the loss is -?nan and the norm of the gradients -?nan; the parameters are those before the step'
hint '--check-finite'
on_nan 1 "input 'x' .*1 nan" --check-finite
on_nan 0 '^step 3 ' --nonfinite skip --log "$temp/skip.log" -o "$temp/skip.safetensors"
that grep -q '"step":2,"loss":null,"loss_is":"nan".*"skipped":true' "$temp/skip.log"
that [ -n "$(member "$temp/skip.log" 3 grad_norm)" ]
on_nan 0 "step 2: input 'x'" --nonfinite skip --check-finite --accumulate 1
on_nan 0 '^step 3  loss -?nan' --nonfinite go
mlp_on 1 "node 'linear[_0-9]*' .*is the first to give such values: .*" "$temp/huge.safetensors" --no-shuffle --steps 3 --check-finite --optim sgd,lr=1e30
# A loss that was scaled too much: the step is left out, and the next has half the scale.
samples "$temp/large.safetensors" '\0\0\310\105'
mlp_on 0 'skipped' "$temp/large.safetensors" --no-shuffle --steps 5 --dtype f16 --log "$temp/scaled.log"
that near "$(member "$temp/scaled.log" 2 loss_scale)" 65536
that near "$(member "$temp/scaled.log" 3 loss_scale)" 32768
on_nan 2 '--nonfinite is stop, skip or go' --nonfinite maybe
on_nan 2 '--check-finite' --nonfinite go --check-finite
# In a micro-batch that is not the last one.
try 1 "input 'x' .*1 nan" train "$mlp/forward.pt2" --threads 1 --data "$temp/nan.safetensors" --data "$temp/plain.safetensors" --no-shuffle --steps 1 --accumulate 4 --check-finite

# ---- words that are off
try 2 'which program is to be trained' train
try 2 'there is no data to train on' train "$mlp/forward.pt2" --steps 1
hint '--data FILE'
mlp_on 2 'how long' "$mlp/batches.safetensors"
hint '--steps N or --epochs N'
train 2 '--steps and --epochs exclude each other' --steps 1 --epochs 1
train 2 '--steps' --steps 0
train 2 "there is no optimizer 'adamx'" --steps 1 --optim adamx
hint 'there are sgd, adam, adamw, adagrad, muon'
train 2 "adamw has no setting 'momentum'" --steps 1 --optim adamw,momentum=0.9
hint 'it has lr, betas, eps, weight_decay, amsgrad, maximize'
train 2 'betas is two numbers' --steps 1 --optim adamw,betas=0.9
train 2 'nesterov needs a momentum' --steps 1 --optim sgd,nesterov
train 2 "there is no schedule 'cosin'" --steps 1 --schedule cosin
hint 'constant, linear, cosine, wsd'
train 2 "there is no option 'warm'" --steps 1 --schedule cosine,warm=1
train 2 'after how many steps is not told' --steps 1 --schedule step
train 2 "no parameter that is trained belongs to the group 'none' \(nothing.\*\)" --steps 1 --group 'none=nothing.*:lr=0'
train 2 'a group is NAME=PATTERNS:SETTINGS' --steps 1 --group no_decay
train 2 'two groups' --steps 1 --group 'a=*.bias:lr=0' --group 'a=*.weight:lr=0'
train 2 '--clip' --steps 1 --clip none
train 2 "no parameter is left to train" --steps 1 --freeze '*'
train 2 "no .*parameter matches 'nothing.\*'" --steps 1 --freeze 'nothing.*'
train 2 '--dtype is one of' --steps 1 --dtype f8
train 2 "there is no output 'x'" --steps 1 --loss x
train 2 'keeps the dtype of its parameters' --steps 1 --param-dtype bf16 -o "$temp/bf16.pt2"
train 2 'are for streams of tokens' --steps 1 --unshifted
train 2 'need --eval' --steps 1 --eval-every 2
train 2 'need --save' --steps 1 --save-every 2
train 2 "not also 'second.pt2'" second.pt2 --steps 1

# ---- files that do not fit
mlp_on 3 "init.safetensors has no input 'x'" "$mlp/init.safetensors" --steps 1
mlp_on 3 "nowhere.safetensors" "$temp/nowhere.safetensors" --steps 1
train 3 "has no 'layers.0.weight'" --steps 1 --init "$cnn/init.safetensors"
try 3 '' train "$mlp/init.safetensors" --data "$mlp/batches.safetensors" --batched --steps 1
train 2 'exists already' --steps 1 -o "$temp/w.safetensors"
train 2 'is there already' --steps 1 --log "$temp/log"
train 2 'exists already' --steps 1 --report "$temp/page.html"
train 0 '' --steps 1 -q -f -o "$temp/w.safetensors" --log "$temp/log" --report "$temp/page.html"
train 2 'step-00000013|step 13' --steps 1 --save "$temp/run"
try 2 "is a save of another program .*tensors differ" train "$cnn/forward.pt2" --data "$cnn/batches.safetensors" --resume "$temp/run" --steps 20
hint 'the run was started as: train'
try 2 "there is no run folder" train --resume "$temp/nowhere"
try 2 '--init gives weights to begin with' train --resume "$temp/run" --init "$mlp/init.safetensors" --steps 20
printf damaged | dd of="$temp/kept/step-00000009/model.safetensors" bs=1 seek=900 conv=notrunc 2>"$temp/dd"
try 6 "'layers.0.weight' do not match their checksum" train --resume "$temp/kept" --steps 20
: >"$temp/file"
train 2 'it is a file, not a folder' --steps 1 --save "$temp/file"
if [ "$(id -u)" != 0 ]; then
  mkdir "$temp/readonly"
  chmod a-w "$temp/readonly"
  train 1 'readonly' --steps 1 --save "$temp/readonly/run"
fi
train 1 "cannot make the folder '/proc/nowhere'" --steps 1 --save /proc/nowhere
if [ -c /dev/full ]; then train 1 'No space left' --steps 1 --log /dev/full -f; fi
sum_up
