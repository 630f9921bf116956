#!/bin/sh
# control.sh TESSERA GOLDEN -- assertions on data, branches and loops from outside: programs with them are compiled
# and cut into ranks where they can be, assertions fail everywhere with their message, malformed loops are refused.
set -u
tessera=$1 control=$2/control
. "$(dirname "$0")/trials.sh"

# ---- compiled, or interpreted where branches depend on data
for name in check_item check_item.core check_all check_all.core check_branch map_check scan_rnn scan_rnn.core loop_counted; do
  try 0 'FLOP in [0-9]+ steps' inspect "$control/$name/program.pt2"
done
for name in loop map_cond.core cond_state; do
  try 0 'sizes or branches depend on data' inspect "$control/$name/program.pt2"
  try 1 'the predicate is not known' shard "$control/$name/program.pt2" --mesh tp=2 -o "$temp/$name"
done
try 0 'higher_order.while_loop' opt "$control/loop/program.pt2" --print
try 0 'match' run "$control/loop/program.pt2" --mesh tp=2 -i "$control/loop/inputs_0.safetensors" --check=nodes
try 0 'well formed' opt "$control/map_cond.core/program.pt2" --passes inline,functionalize,dce,cse -o "$temp/map.pt2" --verify
try 0 'matches' run "$temp/map.pt2" -i "$control/map_cond.core/inputs.safetensors" --expect "$control/map_cond.core/outputs.safetensors"

# ---- assertions that hold, and that fail: a number, in a branch, in a loop
assertion() { # NAME LIMIT
  cat >"$temp/$1.txt" <<END
graph(%x: f32[6,4] = user, %p: bool[] = user) {
  %s: f32[] = aten.sum.default(%x)
  %n: float = aten.item.default(%s)
  %t: float = _operator.mul(%n, 2)
  %ok: bool = _operator.lt(%t, $2)
  aten._assert_scalar.default(%ok, "the sum is too large")
  %c: f32[6,4] = higher_order.cond(%p, graph(%a: f32[6,4]) {
    %l: bool[6,4] = aten.lt.Scalar(%a, $2)
    %all: bool[] = aten._is_all_true.default(%l)
    aten._assert_async.msg(%all, "true: too large")
    return %a
  }, graph(%a: f32[6,4]) {
    %l: bool[6,4] = aten.lt.Scalar(%a, $2)
    %all: bool[] = aten._is_all_true.default(%l)
    aten._assert_async.msg(%all, "false: too large")
    return %a
  }, [%x])
  %y: f32[6,4] = higher_order.map_impl(graph(%a: f32[4]) {
    %m: f32[] = aten.max.default(%a)
    %k: float = aten.item.default(%m)
    %fits: bool = _operator.lt(%k, $2)
    aten._assert_scalar.default(%fits, "a row is too large")
    %b: f32[4] = aten.neg.default(%a)
    return %b
  }, [%x], [])
  return user %y
}
END
}
assertion holds 1e9
assertion fails -1e9
for where in "" "--mesh tp=2" "--mesh dp=2,tp=2" "--interpret"; do
  try 0 '^0: f32\[6,4\]' run "$temp/holds.txt" --random-inputs 1 $where
  try '1 5' 'assertion failed: the sum is too large' run "$temp/fails.txt" --random-inputs 1 $where
done
sed '/the sum is/d' "$temp/fails.txt" >"$temp/branch.txt" # the branch is the first to fail
sed '/too large"/{/a row/!d}' "$temp/fails.txt" >"$temp/row.txt"
for where in "" "--mesh dp=2"; do
  try '1 5' 'assertion failed: (true|false): too large' run "$temp/branch.txt" --random-inputs 1 $where
  try '1 5' 'assertion failed: a row is too large' run "$temp/row.txt" --random-inputs 1 $where
done
for name in holds fails; do try 0 'rank 1' shard "$temp/$name.txt" --mesh dp=2 -o "$temp/$name"; done
try 0 '^0: f32\[6,4\]' run "$temp/holds" --random-inputs 1
try '1 5' 'assertion failed: the sum is too large' run "$temp/fails" --random-inputs 1

# ---- sub-graphs that do not fit
malformed() { # PATTERN CALL
  printf 'graph(%%x: f32[3,2] = user, %%e: f32[0,2] = user) {\n  %s\n  return user %%x\n}\n' "$2" >"$temp/bad.txt"
  try 3 "$1" run "$temp/bad.txt" --random-inputs 0
}
keep='%y: f32[3,2] ='
malformed 'should have 2 sub-graphs and 2 lists' "$keep higher_order.while_loop(graph(%a: f32[3,2]) { return %a }, [%x], []) aten._assert_async.default(%y)"
malformed 'passes 2 arguments to a sub-graph of 1' "$keep higher_order.map_impl(graph(%a: f32[2]) { return %a }, [%x], [%x]) aten._assert_async.default(%y)"
malformed 'takes 1 results of a sub-graph of 0' "$keep higher_order.scan(graph(%a: f32[3,2], %b: f32[2]) { return }, [%x], [%x], []) aten._assert_async.default(%y)"
malformed 'goes over 3 and 0 elements' "$keep higher_order.map_impl(graph(%a: f32[2], %b: f32[2]) { return %a }, [%x, %e], []) aten._assert_async.default(%y)"
malformed 'there is nothing to go over' "$keep higher_order.map_impl(graph(%a: f32[2]) { return %a }, [%e], []) aten._assert_async.default(%y)"
sum_up
