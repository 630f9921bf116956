#!/bin/sh
# cli_ckpt.sh TESSERA GOLDEN -- checkpoints from outside: every command of `tessera ckpt`, there and back between all
# formats, and what it says of checkpoints that are damaged.
set -u
here=$(dirname "$0") tessera=$1 golden=$(cd "$2" && pwd)
. "$here/trials.sh"
tp=$golden/ckpt/tp_2x2 files=$golden/ckpt/files

try() { # CODES PATTERN ARGUMENTS...
  code=$1 pattern=$2
  shift 2
  check "$code" "$pattern" "$tessera" ckpt "$@"
}
hint() { that grep -qE "hint.*$1" "$temp/err"; } # of the last command
flip() { # FILE OFFSET: another byte there
  printf '\377' | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# ---- looking
try 0 '/dcp  dcp, 24 tensors' ls "$files/dcp"
try 0 '"format": "torch"' ls "$files/state.pt" --json
try 0 '^  0 \.\.\. 1  .*each$' inspect "$tp/dcp"
that grep -q 'rank 0, 1, 2, 3  (4 parts)' "$temp/out"
try 0 '^    weight  .*S\(0\)|rank' inspect "$tp/dcp" --all
try 0 '"saved_offsets"|"chunks"' inspect "$tp/hf_sharded" --json
try 0 '^optim.param_groups.0.lr = 0.01' inspect "$files/dcp"
try 0 'every element is there once' verify "$tp/dcp" "$tp/hf_sharded" "$tp/hf_full" "$files/state.pt"
try 0 'the same: 38 tensors' diff "$tp/dcp" "$tp/full.safetensors"
try 0 'the same: 24 tensors' diff "$files/dcp" "$files/state.pt"

# ---- there and back
try 0 '^wrote .*/hf: ' convert "$tp/dcp" --to hf --max-shard-size 4K -o "$temp/hf"
that [ -e "$temp/hf/model.safetensors.index.json" ]
that [ "$(ls "$temp/hf" | grep -c 'model-0000.-of-0000.')" -gt 3 ]
try 0 'the same: 38' diff "$temp/hf" "$tp/full.safetensors"
try 0 '' convert "$temp/hf" --to dcp -o "$temp/dcp"
try 0 '' convert "$temp/dcp" --to tessera -o "$temp/ours"
try 0 '' convert "$temp/ours" -o "$temp/one.safetensors"
try 0 'the same: 38' diff "$temp/one.safetensors" "$tp/full.safetensors"
try 0 '' convert "$temp/one.safetensors" -o "$temp/two.safetensors"
that cmp -s "$temp/one.safetensors" "$temp/two.safetensors"
try 0 '"left_out": 0' convert "$files/dcp" --to dcp -o "$temp/values" --json
try 0 '^epoch = 3' inspect "$temp/values"
try 0 'note: 20 tensors of the optimizer are left out' convert "$files/dcp" --to hf -o "$temp/model_only"
mlp=$golden/train/mlp_ce
try 0 '' convert "$mlp/forward.pt2" -o "$temp/mlp.safetensors"
try 0 '' convert "$temp/mlp.safetensors" --program "$mlp/forward.pt2" -o "$temp/mlp.pt2"
try 0 'the same' diff "$temp/mlp.pt2" "$mlp/forward.pt2"
check 0 'loss|0: f32' "$tessera" run "$temp/mlp.pt2" --random-inputs 0

# ---- meshes
printf '{"mesh": {"dp": 2, "tp": 2}, "parallelize": {"blocks.*.attn.wq": "colwise", "blocks.*.attn.wo": "rowwise"}, "params": {"tok.weight": "S(0),R"}}' >"$temp/plan.json"
try 0 'model-rank00003.safetensors' reshard "$tp/dcp" --plan "$temp/plan.json" -o "$temp/sharded"
try 0 'blocks|weight  .*RS\(1\)' inspect "$temp/sharded"
that grep -qE 'weight +f32\[16,16\]  1.0 KiB  RS\(0\)' "$temp/out"
try 0 'all bytes are those that were saved' verify "$temp/sharded"
try 0 '' reshard "$temp/sharded" --mesh 3 -o "$temp/three"
try 0 '' reshard "$temp/three" --mesh dp=5 --to dcp -o "$temp/five"
try 0 '' consolidate "$temp/five" -o "$temp/again.safetensors"
that cmp -s "$temp/one.safetensors" "$temp/again.safetensors"

# ---- changing
try 0 '' cast "$tp/full.safetensors" --dtype bf16 -o "$temp/half"
try 4 'bf16\[16\] in the second' diff "$tp/full.safetensors" "$temp/half"
try 0 'the same: 38' diff "$tp/full.safetensors" "$temp/half" --tolerance 0.01
try 0 '16 tensors' select "$tp/dcp" 'blocks.0.*' -o "$temp/part.safetensors"
try 0 '' rename "$tp/dcp" 'blocks.*.attn.*=layers.*.self_attn.*' 'blocks.*=layers.*' -o "$temp/named.safetensors"
try 0 'the same: 38' diff "$tp/dcp" "$temp/named.safetensors" --rename 'blocks.*.attn.*=layers.*.self_attn.*' --rename 'blocks.*=layers.*'
try 0 '' merge "$tp/dcp" "$tp/hf_full" -o "$temp/mean.safetensors"
try 0 'the same: 38' diff "$temp/mean.safetensors" "$tp/full.safetensors"
try 0 '^would write' cast "$tp/dcp" --dtype f64 -o "$temp/nothing" --dry-run
that [ ! -e "$temp/nothing" ]

# ---- what does not fit
try 2 "there is no checkpoint" verify "$temp/nowhere"
try 2 "no tensor of .* matches 'nothing\.\*'" select "$tp/dcp" 'nothing.*' -o "$temp/x"
try 2 "it is not touched" convert "$temp/hf" --to hf -o "$temp/hf" --force
try 2 "there already|is not empty|exists" convert "$tp/dcp" --to hf -o "$temp/hf"
try 2 "is no format" convert "$tp/dcp" --to hff -o "$temp/x"
hint "did you mean 'hf'"
try 2 "holds whole tensors" reshard "$tp/dcp" --mesh tp=2 --to hf -o "$temp/x"
try 2 "two tensors would be called" rename "$tp/dcp" '*.bias=b' -o "$temp/x"
try 2 "which program" convert "$tp/dcp" --to pt2 -o "$temp/x.pt2"
try 2 "has no command 'ispect'" ispect "$tp/dcp"
hint "did you mean 'tessera ckpt inspect'"
try 3 "is no checkpoint that tessera knows" verify "$here"
that [ ! -e "$temp/x" ]

# ---- damage: exit code 6, with file and tensor
cp -r "$temp/sharded" "$temp/bad"
flip "$temp/bad/model-rank00002.safetensors" "$(($(wc -c <"$temp/bad/model-rank00002.safetensors") - 5))"
try 6 "model-rank00002.safetensors.*do not match their checksum" verify "$temp/bad"
head -c 3000 "$temp/sharded/model-rank00001.safetensors" >"$temp/bad/model-rank00001.safetensors"
try 6 "model-rank00001.safetensors' has 3000 bytes" convert "$temp/bad" --to hf -o "$temp/x"
rm -rf "$temp/bad" && cp -r "$tp/hf_sharded" "$temp/bad" && rm "$temp/bad/shard-00002-model-00001-of-00001.safetensors"
try 6 "are missing: the file of a rank is not there" verify "$temp/bad"
try 6 "are missing" convert "$temp/bad" --to dcp -o "$temp/x"
rm -rf "$temp/bad" && cp -r "$tp/dcp" "$temp/bad" && rm "$temp/bad/__1_0.distcp"
try 6 "__1_0.distcp" verify "$temp/bad"
head -c 9000 "$tp/dcp/__1_0.distcp" >"$temp/bad/__1_0.distcp"
try 6 "__1_0.distcp.*cut off" verify "$temp/bad"
that [ ! -e "$temp/x" ]

# ---- saves of a run
mkdir "$temp/run"
for step in 1 2 3 4; do try 0 '' convert "$tp/dcp" --to tessera -o "$temp/run/step-0000000$step"; done
try 0 'would remove .*step-00000001' prune "$temp/run" --keep 2 --every 2 --dry-run
try 0 '^3 of 4 saves stay' prune "$temp/run" --keep 2 --every 2
that [ "$(ls "$temp/run" | grep -c step)" = 3 ]
try 0 'step-00000004' ls "$temp/run"
sum_up
