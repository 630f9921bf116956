#!/bin/sh
# batch_axis.sh TESSERA -- ops that could be thought to need all rows of a batch: on a data axis they keep their rows,
# forward and backward, and give what one rank gives: statistics of the whole batch, the same random numbers.
set -u
here=$(dirname "$0") tessera=$1
. "$here/trials.sh"

# Inputs whose name begins with p stand for parameters: they are whole on every rank.
program() { # NAME INPUTS < nodes
  { echo "graph($2) {"; cat; echo '}'; } >"$temp/$1.txt"
  whole=$(echo "$2" | grep -o '%p[a-z]*' | sed 's/%\(.*\)/"\1": "R"/' | paste -sd,)
  echo "{\"inputs\": {$whole}}" >"$temp/$1.json"
}
lacks() { ! grep -q "$1" "$temp/out"; } # of the last command
rows() { # NAME [LOSS]: on 2, 3 and 5 ranks, of which some have no rows
  for mesh in dp=2 dp=3 dp=5 dp=2,tp=2; do
    options="--mesh $mesh --plan $temp/$1.json --grad --grad-inputs --loss ${2:-l}"
    try 0 'gradients match' run "$temp/$1.txt" $options --random-inputs 0 --check=nodes
    try 0 '' plan "$temp/$1.txt" $options
    that lacks 'all_gather.* dp\|all_to_all'
  done
}

norm='%x: f32[4,6,3,2] = user, %p: f32[6] = user, %pb: f32[6] = user, %pm: f32[6] = user, %pv: f32[6] = user'
program batch_norm "$norm" <<'END'
  %y: f32[4,6,3,2], %m: f32[6], %r: f32[6], %rm: f32[6], %rv: f32[6] = aten._native_batch_norm_legit_functional.default(%x, %p, %pb, %pm, %pv, true, 0.3, 1e-05)
  %t: f32[4,6,3,2] = aten.tanh.default(%y)
  %l: f32[] = aten.mean.default(%t)
  return user %l, user %rm, user %rv
END
rows batch_norm
for dtype in f64 f16 bf16; do
  sed "s/f32/$dtype/g" "$temp/batch_norm.txt" >"$temp/batch_norm_$dtype.txt"
  tolerance=2e-2
  [ $dtype = f64 ] && tolerance=1e-12
  try 0 'grad/x .*matches' run "$temp/batch_norm_$dtype.txt" --mesh dp=3 --plan "$temp/batch_norm.json" --random-inputs 0 --grad --grad-inputs --loss l --check --rtol $tolerance --atol $tolerance
done
program no_stats '%x: f32[4,6] = user' <<'END'
  %y: f32[4,6], %m: f32[6], %r: f32[6] = aten._native_batch_norm_legit.no_stats(%x, None, None, true, 0.1, 1e-05)
  %t: f32[4,6] = aten.tanh.default(%y)
  %l: f32[] = aten.sum.default(%t)
  return user %l
END
rows no_stats
program instance_norm "$norm" <<'END'
  %y: f32[4,6,3,2], %rm: f32[6], %rv: f32[6] = tess.instance_norm_functional.default(%x, %p, %pb, %pm, %pv, true, 0.1, 1e-05)
  %t: f32[4,6,3,2] = aten.tanh.default(%y)
  %l: f32[] = aten.mean.default(%t)
  return user %l, user %rm, user %rv
END
rows instance_norm

program dropouts '%x: f32[4,6,8] = user' <<'END'
  %a: f32[4,6,8] = aten.dropout.default(%x, 0.3, true)
  %b: f32[4,6,8], %m: bool[4,6,8] = aten.native_dropout.default(%a, 0.2, true)
  %c: f32[4,6,8] = aten.feature_dropout.default(%b, 0.4, true)
  %d: f32[4,6,8] = aten.alpha_dropout.default(%c, 0.2, true)
  %e: f32[4,6,8] = aten.feature_alpha_dropout.default(%d, 0.2, true)
  %n: f32[4,6,8] = aten.randn_like.default(%e)
  %u: f32[4,6,8] = aten.rand_like.default(%n)
  %k: f32[4,6,8] = aten.bernoulli.default(%u)
  %f: f32[4,6,8] = aten.addcmul.default(%e, %n, %k)
  %l: f32[] = aten.sum.default(%f)
  return user %l
END
rows dropouts

program attention '%x: f32[4,2,5,8] = user, %k: f32[4,2,7,8] = user, %v: f32[4,2,7,8] = user' <<'END'
  %y: f32[4,2,5,8] = aten.scaled_dot_product_attention.default(%x, %k, %v, None, 0.4)
  %t: f32[4,2,5,8] = aten.tanh.default(%y)
  %l: f32[] = aten.sum.default(%t)
  return user %l
END
rows attention
# Dropout of weights that a mask with a gradient is added to.
program masked '%x: f32[4,2,5,8] = user, %k: f32[4,2,7,8] = user, %v: f32[4,2,7,8] = user, %p: f32[5,7] = user' <<'END'
  %y: f32[4,2,5,8] = aten.scaled_dot_product_attention.default(%x, %k, %v, %p, 0.4)
  %t: f32[4,2,5,8] = aten.tanh.default(%y)
  %l: f32[] = aten.sum.default(%t)
  return user %l
END
rows masked

program lstm '%x: f32[4,3,5] = user, %p: f32[8,5] = user, %ph: f32[8,2] = user' <<'END'
  %h: f32[1,4,2] = aten.full.default([1, 4, 2], 0.5)
  %y: f32[4,3,2], %hn: f32[1,4,2], %cn: f32[1,4,2] = aten.lstm.input(%x, [%h, %h], [%p, %ph], false, 1, 0.0, true, false, true)
  %l: f32[] = aten.sum.default(%y)
  %s: f32[] = aten.sum.default(%cn)
  %t: f32[] = aten.add.Tensor(%l, %s)
  return user %t
END
rows lstm t

program prelu '%x: f32[4,6,3] = user, %p: f32[6] = user' <<'END'
  %y: f32[4,6,3] = aten.prelu.default(%x, %p)
  %t: f32[4,6,3] = aten.tanh.default(%y)
  %l: f32[] = aten.sum.default(%t)
  return user %l
END
rows prelu

# Tables that are read at the rows of a batch: their gradients are partial sums.
program tables '%x: f32[4,3,5] = user, %p: f32[9,5] = user, %pb: f32[7,5] = user' <<'END'
  %s: f32[4,3] = aten.sum.dim_IntList(%x, [2])
  %a: f32[4,3] = aten.abs.default(%s)
  %c: f32[4,3] = aten.clamp.default(%a, 0, 6)
  %i: i64[4,3] = aten.to.dtype(%c, i64)
  %r: f32[4,3,5] = aten.index.Tensor(%p, [%i])
  %f: i64[4] = aten.select.int(%i, 1, 0)
  %q: f32[4,5] = aten.index_select.default(%pb, 0, %f)
  %u: f32[4,1,5] = aten.unsqueeze.default(%q, 1)
  %m: f32[4,3,5] = aten.mul.Tensor(%r, %u)
  %t: f32[4,3,5] = aten.mul.Tensor(%m, %x)
  %l: f32[] = aten.sum.default(%t)
  return user %l
END
rows tables

# Rows of a table in bags: every rank makes its own bags, of the indices of all, and adds what they had to the
# gradient of its rows or columns; integers (and the weights of samples) are all that is gathered.
bags() { # NAME MODE SAMPLES PADDING [EACH]: bags of EACH indices (3), one of them without any if it is 4
  offsets=4 each=${5:-3}
  program "$1" '%x: f32[4,5] = user, %i: i64[4,3] = user, %s: f32[4,3] = user, %p: f32[9,5] = user' <<END
  %m: i64[4,3] = aten.remainder.Scalar(%i, 9)
  %f: i64[12] = aten.reshape.default(%m, [12])
  %w: f32[12] = aten.reshape.default(%s, [12])
  %o: i64[$offsets] = aten.arange.start_step(0, $((offsets * each)), $each)
  %y: f32[4,5], %b: i64[12], %c: i64[4], %n: i64[4] = aten.embedding_bag.padding_idx(%p, %f, %o, false, $2, false, $3, false, $4)
  %t: f32[4,5] = aten.tanh.default(%y)
  %z: f32[4,5] = aten.mul.Tensor(%t, %x)
  %l: f32[] = aten.sum.default(%z)
  return user %l
END
  for mesh in dp=2 dp=3 dp=5 dp=2,tp=2; do
    for cut in R 'S(0)' 'S(1)'; do
      place=R batch='S(0)'
      [ $mesh = dp=2,tp=2 ] && place="R,$cut" batch='S(0),R'
      [ $place = R ] && [ $cut != R ] && continue
      echo "{\"inputs\": {\"x\": \"$batch\", \"i\": \"$batch\", \"s\": \"$batch\", \"p\": \"$place\"}}" >"$temp/$1.json"
      options="--mesh $mesh --plan $temp/$1.json --grad --grad-inputs --loss l"
      try 0 'gradients match' run "$temp/$1.txt" $options --random-inputs 0 --check=nodes
      try 0 'all_gather dp i64' plan "$temp/$1.txt" $options --nodes
      [ "$2$cut" = '2S(0)' ] || that lacks 'all_gather dp [a-z0-9]*f[0-9]*\[[0-9]*,\|all_to_all dp'
    done
  done
}
bags bag_sum 0 None None
bags bag_mean 1 None 3
bags bag_max 2 None None
bags bag_max_padded 2 None 3
bags bag_samples 0 %w 3
bags bag_empty 1 None None 4

# Memory that is written to later: what it holds until then is nobody's business, and is not compared.
program places '%x: f32[4,6] = user, %p: i64[6] = user' <<'END'
  %f: f32[4,6] = aten.exp.default(%x)
  %o: i64[6] = aten.mul.Tensor(%p, %p)
  %q: i64[6] = aten.add.Tensor(%o, 7)
  %s: i64[6], %i: i64[6] = aten.sort.default(%q)
  %e: i64[6] = aten.empty_like.default(%i)
  %v: i64[2,3] = aten.view.default(%e, [2, 3])
  %a: i64[6] = aten.arange.default(6)
  %n: i64[6] = aten.index_put.default(%e, [%i], %a)
  %y: f32[4,6] = aten.index_select.default(%f, 1, %n)
  %l: f32[] = aten.sum.default(%y)
  return user %l
END
rows places

# Variances: sums go over the ranks.
program variances '%x: f32[4,6] = user' <<'END'
  %v: f32[6] = aten.var.correction(%x, [0], correction=1)
  %s: f32[1,6] = aten.std.dim(%x, [0], true, true)
  %a: f32[6], %b: f32[6] = aten.var_mean.correction(%x, [0], correction=0)
  %q: f32[] = aten.std.default(%x)
  %t: f32[1,6] = aten.mul.Tensor(%v, %s)
  %w: f32[1,6] = aten.add.Tensor(%t, %a)
  %y: f32[1,6] = aten.mul.Tensor(%w, %b)
  %z: f32[1,6] = aten.mul.Tensor(%y, %q)
  %l: f32[] = aten.sum.default(%z)
  return user %l
END
rows variances
program logsumexp '%x: f32[10,6] = user' <<'END' # a rank without rows has no largest element
  %e: f32[6] = aten.logsumexp.default(%x, [0])
  %t: f32[6] = aten.tanh.default(%e)
  %l: f32[] = aten.sum.default(%t)
  return user %l
END
rows logsumexp

# Mixtures of experts: rows are sorted by expert and brought back, or added up where they come from.
experts() { # NAME: the end of the program
  program "$1" '%x: f32[10,6] = user, %p: f32[4,6] = user, %pw: f32[4,8,6] = user, %pd: f32[4,6,4] = user' <<END
  %r: f32[10,4] = aten.linear.default(%x, %p)
  %v: f32[10,2], %i: i64[10,2] = aten.topk.default(%r, 2)
  %g: f32[10,2] = aten.softmax.int(%v, -1)
  %ids: i64[20] = aten.reshape.default(%i, [20])
  %gf: f32[20] = aten.reshape.default(%g, [20])
  %s: i64[20], %o: i64[20] = aten.sort.default(%ids)
  %q: i64[20] = aten.floor_divide.default(%o, 2)
  %xs: f32[20,6] = aten.index.Tensor(%x, [%q])
  %gs: f32[20] = aten.index.Tensor(%gf, [%o])
  %f: f32[20] = aten.to.dtype(%s, f32)
  %h: f32[4] = aten.histc.default(%f, 4, 0, 3)
  %e: i32[4] = aten.cumsum.default(%h, 0, dtype=i32)
  %w: f32[4,6,8]{48,1,6} = aten.transpose.int(%pw, 1, 2)
  %y: f32[20,8] = transformers.grouped_mm_fallback.default(%xs, %w, %e)
  %y0: f32[20,4]{8,1}, %y1: f32[20,4]{8,1} = aten.chunk.default(%y, 2, -1)
  %t: f32[20,4] = aten.silu.default(%y0)
  %m: f32[20,4] = aten.mul.Tensor(%t, %y1)
  %d: f32[4,4,6]{24,1,4} = aten.transpose.int(%pd, 1, 2)
  %z: f32[20,6] = aten._grouped_mm.default(%m, %d, %e)
  %gu: f32[20,1] = aten.unsqueeze.default(%gs, -1)
  %zg: f32[20,6] = aten.mul.Tensor(%z, %gu)
$(cat)
  %n: f32[10,6] = aten.tanh.default(%a)
  %l: f32[] = aten.sum.default(%n)
  return user %l
END
}
experts brought_back <<'END'
  %k: i64[20] = aten.arange.default(20)
  %empty: i64[20] = aten.empty_like.default(%o)
  %b: i64[20] = aten.index_put.default(%empty, [%o], %k)
  %u: f32[20,6] = aten.index.Tensor(%zg, [%b])
  %c: f32[10,2,6] = aten.view.default(%u, [10, 2, 6])
  %a: f32[10,6] = aten.sum.dim_IntList(%c, [1])
END
rows brought_back
experts added_up <<'END'
  %a: f32[10,6] = aten.index_add.default(%x, 0, %q, %zg)
END
rows added_up

# ---- a loss over classes that are sharded: sums are exchanged, in the backward nothing
program vocabulary '%x: f32[6,5] = user, %y: i64[6] = user, %w: f32[13,5] = user' <<'END'
  %z: f32[6,13] = aten.linear.default(%x, %w)
  %l: f32[] = aten.cross_entropy_loss.default(%z, %y, None, 1, 2)
  return user %l
END
program z_loss '%x: f32[6,5] = user, %w: f32[13,5] = user' <<'END'
  %z: f32[6,13] = aten.linear.default(%x, %w)
  %e: f32[6] = aten.logsumexp.default(%z, [-1])
  %s: f32[6] = aten.mul.Tensor(%e, %e)
  %l: f32[] = aten.mean.default(%s)
  return user %l
END
for mesh in tp=2 tp=3 dp=2,tp=2; do
  place='S(0)'
  [ $mesh = dp=2,tp=2 ] && place='R,S(0)'
  echo "{\"inputs\": {\"w\": \"$place\"}}" >"$temp/vocabulary.json"
  options="--mesh $mesh --plan $temp/vocabulary.json --grad --grad-inputs"
  for loss in vocabulary z_loss; do
    try 0 'gradients match' run "$temp/$loss.txt" $options --random-inputs 0 --check=nodes
    try 0 '' plan "$temp/$loss.txt" $options
    that lacks 'all_gather\|all_to_all'
  done
done

# ---- the part of a larger tensor that a random op makes is in the text, and read again
try 0 'bernoulli.p\(.*\) part\(\[4,6,8\], "S\(0\)", \[2\], \[1\], 48\)' opt "$temp/dropouts.txt" --passes partition --mesh dp=2 --plan "$temp/dropouts.json" --rank 1 --print
cp "$temp/out" "$temp/part.txt"
try 0 'part\(\[4,6,8\], "S\(0\)", \[2\], \[1\], 48\)' opt "$temp/part.txt" --print
that cmp -s "$temp/out" "$temp/part.txt"
for bad in 's/\[2\], \[1\], 48/[2], [2], 48/' 's/"S(0)", \[2\]/"S(3)", [2]/' 's/"S(0)", \[2\]/"P(sum)", [2]/' 's/, 48)/, -1)/' 's/\[2\], \[1\]/[2,2], [1]/'; do
  sed "$bad" "$temp/part.txt" >"$temp/bad.txt"
  try 3 'bad.txt:6:[0-9]+: ' opt "$temp/bad.txt" --print
done
sum_up
