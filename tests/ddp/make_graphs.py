#!/usr/bin/env python3
"""Random graphs with gradient all-reduces, and what PyTorch's passes make of them.

    tests/ddp/make_graphs.py FOLDER [--count N] [--seed S]
    build/tests/golden_ddp FOLDER

Needs PyTorch.  Writes FOLDER/gSEED_I.json in the form of tests/golden/ddp.  Gradients come from
inputs or are computed; they are divided, reduced and waited for near to each other or far apart,
go to outputs or buffers, and everything that the passes must leave alone or must not mix occurs
now and then: other groups, ops, dtypes and divisors, several users, dead nodes, collectives in
place and of lists, buffers that are read or written again.
"""
import argparse
import json
import operator
import os
import random

import torch
import torch.distributed as dist
import torch.fx as fx
from torch._dynamo.utils import counters
from torch._inductor.fx_passes import ddp_fusion
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.utils._pytree import tree_map

aten = torch.ops.aten
c10d = torch.ops._c10d_functional

PASS_LISTS = [
    ["fuse_ddp_with_concat_op"],
    ["fuse_ddp_with_coalesced_op"],
    ["schedule_comm_wait"],
    ["fuse_ddp_with_concat_op", "schedule_comm_wait"],
    ["fuse_ddp_with_coalesced_op", "schedule_comm_wait"],
]


# ---- building ----------------------------------------------------------------------


class Builder:
    def __init__(self, mode, rng):
        self.mode, self.rng = mode, rng
        self.graph = fx.Graph()
        self.results = []  # what the graph returns

    def set_meta(self, node, val):
        node.meta["val"] = val
        if isinstance(val, (list, tuple)):
            node.meta["tensor_meta"] = [_extract_tensor_metadata(v) for v in val]
        elif isinstance(val, torch.Tensor):
            node.meta["tensor_meta"] = _extract_tensor_metadata(val)

    def input(self, name, shape, dtype=torch.float32):
        node = self.graph.placeholder(name)
        with self.mode:
            self.set_meta(node, torch.empty(shape, dtype=dtype))
        return node

    def call(self, target, *args, name=None, **kwargs):
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        real = lambda a: a.meta["val"] if isinstance(a, fx.Node) else a  # noqa: E731
        with self.mode:
            self.set_meta(node, target(*fx.map_arg(args, real), **fx.map_arg(kwargs, real)))
        return node


def random_shape(rng):
    kind = rng.random()
    if kind < 0.1:
        return []
    if kind < 0.14:
        return [0, 3]
    if kind < 0.34:
        return [rng.choice([262144, 262143, 300000, 131072])]  # about a MiB: bucket limits
    return [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]


class Gradient:
    """One gradient on its way: each step() adds a node of it."""

    def __init__(self, b, index, style, buffers):
        self.b, self.index, self.style, self.buffers = b, index, style, buffers
        self.steps = ["compute", "div", "comm", "wait", "use"]
        self.node = None

    def odd(self, p):
        return self.b.rng.random() < p * self.style["odd"]

    def step(self):
        getattr(self, self.steps.pop(0))()
        return bool(self.steps)

    def compute(self):
        b, rng = self.b, self.b.rng
        self.grad = self.source
        for _ in range(rng.choice([0, 0, 1, 2])):
            self.grad = b.call(rng.choice([aten.neg.default, aten.sin.default, aten.relu.default]), self.grad)
        if self.buffers and self.odd(0.05):  # depends on a buffer that may have been written
            other = rng.choice(self.buffers)
            if other.meta["val"].dim() == 0 and self.grad.meta["val"].dtype == other.meta["val"].dtype:
                self.grad = b.call(aten.mul.Tensor, self.grad, other)
        if self.odd(0.04) and self.style["done"]:  # depends on what was reduced
            other = rng.choice(self.style["done"])
            if other.meta["val"].dim() == 0:
                self.grad = b.call(aten.mul.Tensor, self.grad, other)

    def div(self):
        b, rng = self.b, self.b.rng
        divisor = self.style["divisor"]
        if self.odd(0.06):
            divisor = rng.choice([2.0, 4, 3])
        if self.odd(0.04):
            self.node = b.call(aten.mul.Tensor, self.grad, 0.5)
        elif self.odd(0.04):
            self.node = b.call(aten.div.Scalar, self.grad, 2)
        else:
            self.node = b.call(aten.div.Tensor, self.grad, divisor)
        self.quotient = self.node
        if self.odd(0.05):
            b.results.append(b.call(aten.cos.default, self.node))
        if self.odd(0.03):
            b.call(aten.mul_.Tensor, self.grad, 3.0)
        if self.odd(0.02):
            b.call(aten.mul_.Tensor, self.node, 3.0)

    def comm(self):
        b, rng = self.b, self.b.rng
        op = rng.choice(["avg", "max"]) if self.odd(0.04) else "sum"
        group = "1" if self.odd(0.05) else "0"
        target = c10d.all_reduce_.default if self.style["inplace"] and rng.random() < 0.7 else c10d.all_reduce.default
        if self.odd(0.04):
            self.steps = ["use"]
            node = b.call(c10d.all_reduce_coalesced.default, [self.node, self.grad], op, group)
            items = [b.call(operator.getitem, node, i) for i in range(2)]
            waits = [b.call(c10d.wait_tensor.default, i) for i in items]
            b.results.append(waits[1])
            self.node = waits[0]
            return
        if self.odd(0.03):
            self.steps = ["use"]
            node = b.call(c10d.all_reduce_coalesced.default, [self.node], op, group)
            self.node = b.call(c10d.wait_tensor.default, b.call(operator.getitem, node, 0))
            return
        self.node = b.call(target, self.node, op, group)
        if self.odd(0.02):
            self.steps = []  # nobody waits

    def wait(self):
        b = self.b
        if self.odd(0.03):
            b.results.append(b.call(c10d.wait_tensor.default, self.node))
        self.node = b.call(c10d.wait_tensor.default, self.node)
        if self.odd(0.02):
            self.steps = []  # nobody uses it

    def use(self):
        b, rng = self.b, self.b.rng
        if self.odd(0.1):  # an ordinary user, or a follower
            self.node = self.follow(self.node) if rng.random() < 0.6 else b.call(aten.exp.default, self.node)
        if self.odd(0.04):
            b.results.append(self.node)
        val = self.node.meta["val"]
        if self.style["copy"] and rng.random() < 0.8:
            buffer = next((x for x in self.buffers if x.meta["val"].shape == val.shape and x.meta["val"].dtype == val.dtype and not x.meta.get("taken")), None)
            if buffer is not None:
                buffer.meta["taken"] = not self.odd(0.2)
                self.node = b.call(aten.copy_.default, buffer, self.node)
                if self.odd(0.1):
                    b.results.append(b.call(aten.neg.default, buffer))
                if rng.random() < 0.2:
                    self.node = b.call(aten.add.Tensor, self.node, 1.0)
                if rng.random() < 0.1:
                    return  # only the buffer remembers
        self.style["done"].append(self.node)
        b.results.append(self.node)

    def follow(self, node):
        b, rng = self.b, self.b.rng
        kind = rng.choice(["reshape", "split", "detach", "alias", "named", "view"])
        numel = node.meta["val"].numel()
        if kind == "reshape":
            return b.call(aten.reshape.default, node, [numel])
        if kind == "view":
            return b.call(aten.view.default, node, [numel])
        if kind == "named":
            return b.call(aten.mul.Tensor, node, 3.0, name=rng.choice(["reshape_me", "getitem_like", "aliased", "splitter"]))
        if kind == "split" and node.meta["val"].dim() > 0 and node.meta["val"].shape[0] > 1:
            half = b.call(aten.split.Tensor, node, (node.meta["val"].shape[0] + 1) // 2)
            parts = [b.call(operator.getitem, half, i) for i in range(len(half.meta["val"]))]
            b.results.extend(parts[1:])
            return parts[0]
        return b.call(aten.alias.default if kind == "alias" else aten.detach.default, node)


def build(mode, seed):
    rng = random.Random(seed)
    b = Builder(mode, rng)
    style = {
        "odd": rng.choice([0, 0, 0.5, 1, 2]),
        "copy": rng.random() < 0.5,
        "inplace": rng.random() < 0.2,
        "divisor": 2,
        "done": [],
        "spread": rng.choice([1, 2, 5, 20]),
    }
    count = rng.randint(1, 9)
    dtypes = [torch.bfloat16 if rng.random() < 0.06 * style["odd"] else torch.float32 for _ in range(count)]
    shapes = [random_shape(rng) for _ in range(count)]
    sources = [b.input(f"g{i}", shapes[i], dtypes[i]) for i in range(count)]
    buffers = [b.input(f"buf{i}", shapes[i], dtypes[i]) for i in range(count)] if style["copy"] else []
    extra = b.input("x", [4, 4])
    if rng.random() < 0.1:
        style["divisor"] = b.input("d", [])
    gradients = []
    for i in range(count):
        gradients.append(Gradient(b, i, style, buffers))
        gradients[-1].source = sources[i]
    waiting, active, chain = gradients, [], extra
    while waiting or active:
        if waiting and len(active) < style["spread"] and (not active or rng.random() < 0.7):
            active.append(waiting.pop(0))
        g = active[0] if rng.random() < 0.5 else rng.choice(active)
        if not g.step():
            active.remove(g)
        if rng.random() < 0.3:
            chain = b.call(aten.sin.default, chain)
            if rng.random() < 0.2 * style["odd"]:
                b.call(aten.cos.default, chain)  # dead
    rng.shuffle(b.results)
    b.graph.output(tuple(b.results + [chain]))
    return b.graph


# ---- as JSON -------------------------------------------------------------------------


def argument(a):
    if isinstance(a, fx.Node):
        return "%" + a.name
    if isinstance(a, (list, tuple)):
        return [argument(x) for x in a]
    if isinstance(a, torch.dtype):
        return {"dtype": str(a).removeprefix("torch.")}
    return a


def target_name(node):
    if node.op != "call_function":
        return str(node.target)
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target)


def as_json(node):
    val = node.meta.get("val")
    several = isinstance(val, (list, tuple))
    tensor = isinstance(val, torch.Tensor)
    word = lambda t: str(t.dtype).removeprefix("torch.")  # noqa: E731
    return {
        "name": node.name,
        "op": node.op,
        "target": target_name(node),
        "args": [argument(a) for a in node.args],
        "kwargs": {k: argument(v) for k, v in node.kwargs.items()},
        "shape": [list(v.shape) for v in val] if several else list(val.shape) if tensor else None,
        "dtype": [word(v) for v in val] if several else word(val) if tensor else None,
    }


# ---- PyTorch's passes -----------------------------------------------------------------


def run_passes(mode, seed, passes, bucket_mb):
    graph = build(mode, seed)
    module = fx.GraphModule(torch.nn.Module(), graph)
    graph = module.graph
    before = [as_json(n) for n in graph.nodes]
    buckets = []
    original = ddp_fusion._bucket_size_fusion

    def record(*args, **kwargs):
        for blocks in original(*args, **kwargs):
            size = sum(b.shape.numel() * b.comm_node.meta["tensor_meta"].dtype.itemsize for b in blocks)
            buckets.append({"comms": [b.comm_node.name for b in blocks], "bytes": size})
            yield blocks

    counters["inductor"]["ddp_buckets"] = 0
    run = {"passes": passes, "bucket_mb": bucket_mb, "error": None}
    ddp_fusion._bucket_size_fusion = record
    try:
        with V.set_fake_mode(mode):
            ddp_fusion.fuse_ddp_communication(graph, passes, bucket_mb)
    except Exception as e:  # noqa: BLE001 - part of the record
        run["error"] = f"{type(e).__name__}: {e}"[:200]
    ddp_fusion._bucket_size_fusion = original
    run["ddp_buckets"] = counters["inductor"]["ddp_buckets"]
    run["buckets"] = buckets
    run["order"] = [n.name for n in graph.nodes]
    old = {n["name"]: n for n in before}
    nodes = [as_json(n) for n in graph.nodes]
    run["nodes"] = [n for n in nodes if old.get(n["name"]) != n]
    if not run["error"]:
        try:
            stable_topological_sort(graph)
            order = [n.name for n in graph.nodes]
            if order != run["order"]:
                run["sorted"] = order
        except AssertionError:
            run["error"] = "cannot be sorted"
    return before, run


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--count", type=int, default=100)
    p.add_argument("--seed", type=int, default=0)
    o = p.parse_args()
    os.makedirs(o.folder, exist_ok=True)
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    dist.new_group([0, 1])
    mode = FakeTensorMode()
    for i in range(o.count):
        seed = o.seed * 1000003 + i
        bucket = random.Random(seed).choice([25, 25, 1, 0.5, 2, 1e-5, 3e-5])
        case = {"runs": []}
        for passes in PASS_LISTS:
            case["before"], run = run_passes(mode, seed, passes, bucket)
            case["runs"].append(run)
        with open(f"{o.folder}/g{o.seed}_{i}.json", "w") as f:
            json.dump(case, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
