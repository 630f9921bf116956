#!/usr/bin/env python3
"""Makes golden cases of operators with live PyTorch: calls, and what PyTorch answers.

    scripts/make_op_cases.py aten.sinc.default aten.quantile ... [--out FOLDER] [--file NAME]
                             [--per-op N] [--grad] [--seed N] [--leave-out DTYPES] [--library FILE.so]
    build/tests/golden_ops [--grad] FOLDER

An op without an overload stands for all of its overloads.  Arguments follow from the
schema: tensors of all dtypes in shapes that broadcast, are empty, 0-d or strided; numbers
and words from VALUES by their names.  Ops whose arguments belong together have a recipe.
Calls that PyTorch refuses are left out; of the rest those are kept that show something
new, and an op of which nothing rests is tried on larger shapes.  With --grad calls on finite
numbers also have PyTorch's gradients, where it can differentiate them; gradients that need
chosen arguments are written out in make_*grad_cases.py.  FOLDER/NAME keeps its cases of other
ops.  The format is told in tests/golden/ops/README.md.  Needs PyTorch; the same seed
gives the same cases.
"""
import argparse
import collections
import json
import math
import os
import random
import re
import warnings

import torch

from select_golden import read_safetensors, tensors, write_safetensors

f16, bf16, f32, f64, i64 = torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64
DTYPES = {f32: ("f32", "F32"), f64: ("f64", "F64"), f16: ("f16", "F16"), bf16: ("bf16", "BF16"), i64: ("i64", "I64"),
          torch.int32: ("i32", "I32"), torch.int16: ("i16", "I16"), torch.int8: ("i8", "I8"),
          torch.uint8: ("u8", "U8"), torch.bool: ("bool", "BOOL"), torch.complex64: ("c64", "F32")}
MIXED = [(f32, f64), (i64, f32), (bf16, f16), (torch.int32, torch.bool), (f32, bf16), (torch.uint8, i64)]
SHAPES = [((3, 4), (3, 4)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), ()), ((0, 3), (0, 3)), ((5,), ()), ((), (4,))]
DEEP_SHAPES = [(s, s) for s in [(2, 4, 3), (2, 4, 3, 2), (1, 6, 2, 1, 3), (0, 4, 3, 2)]]  # for ops that refuse all of SHAPES
EDGES = [0., -0., 1., -1., .5, -.5, 2., -2.5, .03, 10., -10., 30., math.inf, -math.inf, math.nan, .999]
VALUES = {  # of numbers and words, by type and by name; "" is for all other names
    "int": {"n": [0, 1, 2, 3, 5], "p": [1, 2, 3], "decimals": [0, 2, -1], "reduction": [0, 1, 2], "dim": [0, -1],
            "window_length": [0, 1, 2, 5, 8, 33], "": [0, 1, 2]},
    "float": {"eps": [1e-6, .3], "q": [0., .25, .5, .9, 1.], "alpha": [.54, .3], "beta": [12., .46, 2.5], "": [.5, 1., 2.]},
    "number": {"p": [1, 2], "margin": [1, .5], "n": [0, 1, 2, 7, 3.9], "x": [.3, 1, -2], "": [2, 1.5, -1, 0, .5, -2.5]},
    "bool": {"": [False, True]},
    "str": {"interpolation": ["linear", "lower", "higher", "midpoint", "nearest"]},
    "dtype": {"": [None, f64, f16, bf16]},
}


# ---- arguments -----------------------------------------------------------------------


def tensor(rng, shape, dtype, edges=False):
    n = math.prod(shape)
    if dtype.is_floating_point or dtype.is_complex:
        v = [rng.choice(EDGES) if edges else rng.gauss(0, 1.5) for _ in range(n * 2)]
        flat = torch.tensor(v, dtype=f64)
        flat = torch.complex(flat[:n], flat[n:]) if dtype.is_complex else flat[:n]
    else:
        flat = torch.tensor([rng.randint(0 if dtype in (torch.uint8, torch.bool) else -3, 6) for _ in range(n)], dtype=i64)
    return flat.to(dtype).reshape(shape)


def restride(rng, t):
    """The same values behind an offset, with steps between them, or transposed."""
    if t.dim() == 0 or t.numel() == 0:
        return t
    kind = rng.choice(["offset", "step", "transposed"])
    if kind == "offset":
        room = torch.zeros(t.numel() + 3, dtype=t.dtype)[3:].view(t.shape)
    elif kind == "step":
        room = torch.zeros(*t.shape[:-1], 2 * t.shape[-1], dtype=t.dtype)[..., ::2]
    else:
        room = torch.zeros(*reversed(t.shape), dtype=t.dtype).permute(*reversed(range(t.dim())))
    return room.copy_(t)


def number_for(rng, arg):
    kind = str(arg.type)
    optional = kind.startswith("Optional[")
    kind = kind[9:-1] if optional else kind
    if arg.name in ("layout", "device", "pin_memory", "memory_format"):
        return None
    if arg.name == "dtype":
        kind, optional = "dtype", False
    if kind.startswith("List["):
        return [rng.choice(VALUES["int"].get(arg.name, [0, 1]))]
    choices = VALUES.get(kind, {})
    choices = choices.get(arg.name, choices.get("", [None]))
    return None if optional and rng.random() < .3 else rng.choice(choices)


def from_schema(rng, schema, dtypes, shapes, edges, strided):
    """One call: positional arguments, keyword-only arguments."""
    args, kwargs, k = [], {}, 0
    for a in schema.arguments:
        if "Tensor" in str(a.type) and str(a.type).startswith("Optional") and rng.random() < .4:
            value = None
        elif "Tensor" in str(a.type):
            value = tensor(rng, shapes[k % 2], dtypes[k % 2], edges and not dtypes[k % 2].is_complex)
            if "polynomial" in schema.name and value.is_floating_point():  # of nan PyTorch's are what was in memory,
                value = value.nan_to_num(.25, 3., -3.).clamp(-12, 7)      # and high degrees overflow on the way
            value = restride(rng, value) if strided else value
            k += 1
        else:
            value = number_for(rng, a)
        if a.kwarg_only:
            if value is not None:
                kwargs[a.name] = value
        else:
            args.append(value)
    return args, kwargs


def sweep(rng, func, shapes=SHAPES):
    pairs = [(d, d) for d in DTYPES] + MIXED
    tensors = sum("Tensor" in str(a.type) for a in func._schema.arguments)
    for _ in range(4):
        for d in pairs if tensors else [None]:
            yield from_schema(rng, func._schema, d, ((16,), (16,)), True, False)
            yield from_schema(rng, func._schema, d, rng.choice(shapes), False, False)
            yield from_schema(rng, func._schema, d, rng.choice(shapes), False, True)


# ---- recipes: ops whose arguments belong together ----------------------------------------


def floats(rng):
    return rng.choice([f32, f32, f64, f16, bf16])


def quantile(rng, func):
    for i in range(80):
        d = rng.choice([f32, f64])
        x = tensor(rng, rng.choice([(7,), (3, 5), (2, 4, 3), (), (1,)]), d)
        x = restride(rng, x) if i % 3 == 0 else x
        if i % 4 == 0 and x.dim():
            x[..., 0] = math.nan
        q = rng.choice([0., .1, .5, .75, 1.])
        if "scalar" not in func._schema.overload_name:
            q = torch.rand(rng.choice([(), (1,), (3,)]), dtype=d)
        dim = rng.choice([None, *range(-x.dim(), x.dim())])
        yield [x, q, dim, rng.random() < .5], {"interpolation": rng.choice(VALUES["str"]["interpolation"])}


def margin(rng, func):
    name, backward = func._schema.name, "backward" in func._schema.name
    for _ in range(60):
        d, n, c = floats(rng) if "multi_" in name else rng.choice([f32, f64]), rng.choice([1, 4]), rng.choice([1, 3, 6])
        shape = (c,) if rng.random() < .3 else (n, c)
        x = tensor(rng, shape, d)
        reduction = rng.randrange(3)
        if "multilabel" in name:
            target = torch.full(shape, -1)
            for row in target.view(-1, c):
                k = rng.randint(0, c)
                row[:k] = torch.tensor(rng.sample(range(c), k), dtype=i64)
                if k + 1 < c:
                    row[k + 1] = rng.randrange(c)  # what stands behind the first -1 does not count
            numbers = [reduction]
        else:
            target = torch.tensor([rng.randrange(c) for _ in range(1 if len(shape) == 1 else n)])
            target = target[0] if len(shape) == 1 and rng.random() < .5 else target
            weight = tensor(rng, (c,), d).abs() if rng.random() < .5 else None
            numbers = [rng.choice([1, 2]), rng.choice([1, .5, 2.]), weight, reduction]
        if not backward:
            yield [x, target, *numbers], {}
            continue
        g = tensor(rng, shape[:-1] if reduction == 0 else (), d)
        if "multilabel" in name:
            is_target = torch.ops.aten.multilabel_margin_loss_forward(x, target, reduction)[1]
            numbers.append(is_target)
        yield [g, x, target, *numbers], {}


def renorm(rng, func):
    for _ in range(30):
        table = tensor(rng, (6, 4), floats(rng))
        shape = rng.choice([(5,), (2, 3), (0,)])
        indices = torch.randint(0, 6, shape, dtype=rng.choice([i64, torch.int32]))
        yield [restride(rng, table) if rng.random() < .3 else table, indices, rng.choice([.5, 1., 3.]), rng.choice([1., 2., 3., math.inf])], {}


def bag_samples(rng, func):
    for i in range(30):
        d, n, bags = rng.choice([f32, f64]), rng.choice([0, 1, 7]), rng.randint(1, 4)
        grad, table = (restride(rng, t) if i % 3 == 0 else t for t in (tensor(rng, (bags, 3), d), tensor(rng, (6, 3), d)))
        offsets = torch.cat([torch.zeros(1, dtype=i64), torch.randint(0, n + 1, (bags - 1,)).sort().values])
        of_index = torch.bucketize(torch.arange(n), offsets, right=True) - 1
        yield [grad, table, torch.randint(0, 6, (n,)), offsets, of_index, 0, rng.choice([-1, 2])], {}


def cross(rng, func):
    for i in range(60):
        d, dim = rng.choice(list(DTYPES)), rng.randrange(3)
        size = [rng.choice([1, 2, 4]) for _ in range(3)]
        size[dim] = 3
        other = [n if k == dim or rng.random() < .7 else 1 for k, n in enumerate(size)]
        if i % 4 == 0:
            size, other, dim = (3,), (3,), 0
        x, y = tensor(rng, size, d), tensor(rng, other, d)
        where = {"dim": rng.choice([dim, dim - len(size)])} if rng.random() < .8 else {}
        yield [restride(rng, x) if i % 3 == 0 else x, restride(rng, y) if i % 5 == 0 else y], where


def pools(rng, func):
    """Windows far larger than the input."""
    nd = int(re.search(r"(\d)d", func._schema.name)[1])
    backward = "backward" in func._schema.name
    for _ in range(40):
        x = tensor(rng, (1, 2, *[rng.randint(1, 6) for _ in range(nd)]), rng.choice([f32, f64]))
        k = [rng.choice([2, 3, 40, 30000]) for _ in range(nd)]
        stride, pad = [rng.choice([1, 2, 7, 300]) for _ in range(nd)], [n // 2 - rng.randint(0, 1) if n > 3 else 0 for n in k]
        ceil = rng.random() < .5
        last = [[1] * nd, ceil] if "max" in func._schema.name else [ceil, rng.random() < .5]
        if "max" not in func._schema.name and nd > 1:
            last.append(rng.choice([None, 5]))
        if not backward:
            yield [x, k, stride, pad, *last], {}
            continue
        try:
            forward = torch.ops.aten.__getattr__(func._schema.name[6:].replace("_backward", ""))(x, k, stride, pad, *last)
        except RuntimeError:
            continue
        y, indices = (forward[0], [forward[1]]) if isinstance(forward, tuple) else (forward, [])
        yield [tensor(rng, y.shape, x.dtype), x, k, stride, pad, *last, *indices], {}


def boxes(rng, n, extent, d):
    corner = torch.tensor([[rng.uniform(-1, extent), rng.uniform(-1, extent)] for _ in range(n)], dtype=f64).reshape(n, 2)
    size = torch.tensor([[rng.uniform(0, extent), rng.uniform(0, extent)] for _ in range(n)], dtype=f64).reshape(n, 2)
    return torch.cat([corner, corner + size], 1).to(d)


def nms(rng, func):
    for _ in range(30):
        n, d = rng.choice([0, 1, 5, 20]), rng.choice([f32, f64])
        scores = torch.tensor(rng.sample(range(100), n), dtype=d) / 100
        yield [boxes(rng, n, 4, d), scores, rng.choice([0., .3, .5, .9])], {}


def roi_align(rng, func):
    for _ in range(30):
        d, n = rng.choice([f32, f64]), rng.choice([0, 1, 4])
        x = tensor(rng, (2, 3, rng.randint(4, 9), rng.randint(4, 9)), d)
        rois = torch.cat([torch.randint(0, 2, (n, 1)).to(d), boxes(rng, n, 8, d)], 1)
        yield [x, rois, rng.choice([1., .5]), rng.randint(1, 3), rng.randint(1, 4), rng.choice([-1, 0, 1, 2]), rng.random() < .5], {}


def deform_conv2d(rng, func):
    for _ in range(30):
        d, groups, parts = rng.choice([f32, f64]), rng.choice([1, 2]), rng.choice([1, 2])
        n, cin, cout, kh, kw = rng.choice([1, 2]), 4, 2 * rng.randint(1, 2), rng.randint(1, 3), rng.randint(1, 3)
        (sh, sw), (ph, pw), (dh, dw) = [[rng.randint(a, 2) for _ in range(2)] for a in (1, 0, 1)]
        x = tensor(rng, (n, cin, rng.randint(5, 7), rng.randint(5, 7)), d)
        ho, wo = (x.shape[2] + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (x.shape[3] + 2 * pw - dw * (kw - 1) - 1) // sw + 1
        offset = tensor(rng, (n, parts * 2 * kh * kw, ho, wo), d)
        masked = rng.random() < .5
        mask = torch.rand(n, parts * kh * kw, ho, wo, dtype=d) if masked else torch.zeros(n, 1, dtype=d)
        weight = tensor(rng, (cout, cin // groups, kh, kw), d)
        yield [x, weight, offset, mask, tensor(rng, (cout,), d), sh, sw, ph, pw, dh, dw, groups, parts, masked], {}


RECIPES = [  # the first whose pattern matches the op's name
    (r"aten::(nan)?quantile", quantile), (r"aten::multi(label)?_margin_loss", margin), (r"aten::embedding_renorm", renorm),
    (r"aten::_embedding_bag_per_sample", bag_samples), (r"aten::(linalg_)?cross", cross), (r"aten::(avg|max)_pool\dd", pools), (r"torchvision::nms", nms), (r"torchvision::roi_align", roi_align),
    (r"torchvision::deform_conv2d", deform_conv2d), (r"", sweep)]


# ---- recording ---------------------------------------------------------------------------


def span(t):
    return 0 if t.numel() == 0 else t.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))


def own(t):
    """The same sizes, strides and offset on a storage of its own."""
    flat = torch.as_strided(t, (span(t),), (1,), 0).clone()
    return torch.as_strided(flat, t.shape, t.stride(), t.storage_offset() if t.numel() else 0)


def each(tree, fn):
    if isinstance(tree, torch.Tensor):
        return fn(tree)
    if isinstance(tree, (list, tuple)):
        return [each(x, fn) for x in tree]
    return {k: each(x, fn) for k, x in tree.items()} if isinstance(tree, dict) else tree


def tensors_of(tree):
    found = []
    each(tree, found.append)
    return found


def is_differentiable(t):
    return t.is_floating_point() or t.is_complex()


def is_regular(call):
    """Gradients can be compared there: in full precision, and nothing is nan or infinite."""
    given = [t for t in tensors_of(call) if is_differentiable(t)]
    return bool(given) and all(t.dtype in (f32, f64, torch.complex64) and bool(t.isfinite().all()) for t in given)


class File:
    """Cases and their arrays; equal arrays are stored once."""

    def __init__(self):
        self.arrays, self.keys, self.lines = {}, {}, []

    def tensor(self, t, alias=None):
        t = t.resolve_conj()
        flat = torch.as_strided(t, (span(t),), (1,), 0).contiguous()
        flat = torch.view_as_real(flat).reshape(-1) if t.is_complex() else flat
        name, stored = DTYPES[t.dtype]
        array = (stored, [flat.numel()], bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b"")
        key = self.keys.setdefault((stored, array[2]), str(len(self.keys)))
        self.arrays[key] = array
        out = {"t": key, "size": list(t.shape), "stride": list(t.stride()), "offset": t.storage_offset() if t.numel() else 0, "dtype": name}
        return out if alias is None else {**out, "alias": alias}

    def value(self, v):
        if isinstance(v, torch.Tensor):
            return self.tensor(v)
        if isinstance(v, float) and not math.isfinite(v):
            return str(v)
        if isinstance(v, torch.dtype):
            return {"dtype": str(v)[6:]}
        if isinstance(v, (list, tuple)):
            return [self.value(x) for x in v]
        return {k: self.value(x) for k, x in v.items()} if isinstance(v, dict) else v

    def add(self, func, args, kwargs):
        before, (args, kwargs) = each([args, kwargs], own), each([args, kwargs], own)
        given = tensors_of([args, kwargs])
        outs = func(*args, **kwargs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        where = {t.untyped_storage().data_ptr(): i for i, t in enumerate(given) if t.numel()}

        def result(t):
            return self.tensor(t, where.get(t.untyped_storage().data_ptr()) if t.numel() else None)

        case = {"op": str(func), "args": self.value(before[0]), "kwargs": self.value(before[1]), "out": each(outs, result)}
        if func._schema.is_mutable:
            case["mutated"] = {"0": self.tensor(given[0])}
        if any(t.is_complex() for t in tensors_of([given, outs])):
            case["complex"] = True
        if case in self.lines:
            return None
        self.lines.append(case)
        return case

    def add_gradients(self, case, func, args, kwargs, constant=(), unused=()):
        """Cotangents of the results and PyTorch's gradients; False where it has none.  constant: tensors by number
        whose gradient PyTorch does not give; unused: results that get no cotangent."""
        leaves = []

        def leaf(t):
            t = own(t)
            leaves.append(t.requires_grad_() if is_differentiable(t) and len(leaves) not in constant else t)
            return leaves[-1]

        call_args, call_kwargs = each([list(args), kwargs], leaf)
        if isinstance(func, torch._ops.OpOverload) and func._schema.is_mutable:
            call_args[0] = call_args[0].clone(memory_format=torch.preserve_format)
        outs = tensors_of(func(*call_args, **call_kwargs))
        given = [o.requires_grad and i not in unused for i, o in enumerate(outs)]
        if not any(given):
            return False
        cotangents = [torch.randn(o.shape, dtype=o.dtype) if g else None for o, g in zip(outs, given)]
        wanted = [t for t in leaves if t.requires_grad]
        found = iter(torch.autograd.grad([o for o, g in zip(outs, given) if g], wanted,
                                         [c for c in cotangents if c is not None], allow_unused=True))
        gradients = [next(found) if t.requires_grad else None for t in leaves]
        zeros = [torch.zeros_like(t) if t.requires_grad else None for t in leaves]
        case["cot"] = [self.value(c) for c in cotangents]
        case["grad"] = [self.value(z if g is None or g._is_zerotensor() else g.resolve_conj().contiguous())
                        for g, z in zip(gradients, zeros)]
        return True

    def keep(self, folder, name, ops):
        """Takes over the cases that a file has of other ops."""
        path = os.path.join(folder, name)
        if not os.path.exists(path + ".jsonl"):
            return
        arrays = read_safetensors(path + ".safetensors")
        for line in open(path + ".jsonl"):
            case = json.loads(line)
            case.pop("id")
            if case["op"] in ops:
                continue
            for t in tensors(case):
                if "t" in t:
                    array = arrays[t["t"]]
                    t["t"] = self.keys.setdefault((array[0], array[2]), str(len(self.keys)))
                    self.arrays[t["t"]] = array
            self.lines.append(case)

    def save(self, folder, name):
        used = set(re.findall(r'"t": "(\d+)"', json.dumps(self.lines)))
        os.makedirs(folder, exist_ok=True)
        write_safetensors(os.path.join(folder, name + ".safetensors"), {k: v for k, v in self.arrays.items() if k in used})
        with open(os.path.join(folder, name + ".jsonl"), "w") as f:
            for i, case in enumerate(self.lines):
                f.write(json.dumps({"id": f"{name}/{i}", **case}) + "\n")


# ---- choosing ----------------------------------------------------------------------------


def features(args, kwargs):
    """What a call shows: dtypes, ranks, empty and strided tensors, and every option."""
    for i, t in enumerate(tensors_of([args, kwargs])):
        yield from ((i, t.dtype), (i, "rank", t.dim()), (i, t.numel() == 0), (i, t.is_contiguous()), (i, "edges", bool((t != t).any())))
    yield tuple(str(t.dtype) for t in tensors_of([args, kwargs]))
    for i, v in [*enumerate(args), *kwargs.items()]:
        if not isinstance(v, torch.Tensor):
            yield (i, str(v))


def choose(calls, n):
    """Greedy: always the call that shows most of what was seen least; small ones first among equals."""
    rest = [(list(dict.fromkeys(features(*c))), sum(map(span, tensors_of(c))), c) for c in calls]
    seen = collections.Counter()
    while rest and n > 0:
        best = max(range(len(rest)), key=lambda i: (sum(1 / (1 + 4 * seen[f]) for f in rest[i][0]), -rest[i][1]))
        shows, _, call = rest.pop(best)
        seen.update(shows)
        n -= 1
        yield call


def at_pole(args):
    """The first derivative of digamma where it is infinite: PyTorch gives a rounding error's reciprocal."""
    x = tensors_of(args)[0].double()
    return any(type(n) is int and n == 1 for n in args) and bool(((x <= 0) & (x % 1 == 0)).any())


UNSOUND = {"polygamma": at_pole, "airy_ai": lambda args: args[0].dtype == f64}  # that is good to 1e-6 only


def accepted(func, calls, refusals):
    unsound = next((test for name, test in UNSOUND.items() if name in func._schema.name), lambda args: False)
    for args, kwargs in calls:
        try:
            copy = each([args, kwargs], own)
            out = func(*copy[0], **copy[1])
        except Exception as e:  # of many kinds: PyTorch refuses this call
            refusals.append(str(e).split("\n")[0])
            continue
        if all(t.dtype in DTYPES for t in tensors_of([args, kwargs, out])) and not unsound(args):
            yield args, kwargs


def overloads(name):
    parts = name.split(".")
    packet = getattr(getattr(torch.ops, parts[0]), parts[1])
    names = parts[2:] or packet.overloads()
    found = [getattr(packet, o) for o in names]
    return [f for f in found if not any(a.is_out for a in f._schema.arguments) and any("Tensor" in str(r.type) for r in f._schema.returns)]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("op", nargs="+")
    ap.add_argument("--out", default="cases")
    ap.add_argument("--file", default="cases", help="the files' name")
    ap.add_argument("--per-op", type=int, default=8)
    ap.add_argument("--grad", action="store_true", help="also PyTorch's gradients, where it has them")
    ap.add_argument("--leave-out", default="", metavar="DTYPES", help="such as c64,bf16: no cases with these")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--library", help="a library of operators to load first")
    a = ap.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if a.library:
        torch.ops.load_library(a.library)
    for name in filter(None, a.leave_out.split(",")):
        del DTYPES[next(d for d, names in DTYPES.items() if names[0] == name)]
    file, missing = File(), []
    funcs = [f for name in a.op for f in overloads(name)]
    file.keep(a.out, a.file, {str(f) for f in funcs})
    for func in funcs:
        rng = random.Random(f"{a.seed} {func}")
        torch.manual_seed(a.seed)
        recipe = next(r for pattern, r in RECIPES if re.match(pattern, func._schema.name))
        count, refusals = len(file.lines), []
        calls = list(accepted(func, list(recipe(rng, func)), refusals))
        if not calls and recipe is sweep:
            calls = list(accepted(func, list(sweep(rng, func, DEEP_SHAPES)), refusals))
        differentiated, chosen = 0, list(choose(calls, a.per_op))
        if a.grad:
            chosen += choose([c for c in calls if is_regular(c)], (a.per_op + 1) // 2)
        for args, kwargs in chosen:
            case = file.add(func, args, kwargs)
            if case and a.grad and is_regular([args, kwargs]):
                try:
                    differentiated += file.add_gradients(case, func, args, kwargs)
                except RuntimeError as e:
                    print(f"  PyTorch gives no gradient: {str(e).splitlines()[0]}")
        print(f"{func}: {len(file.lines) - count} cases" + (f", {differentiated} with gradients" if a.grad else ""))
        if len(file.lines) == count:
            missing.append(func)
            print(f"  PyTorch refused every call, the last because: {refusals[-1]}" if refusals else "  there was no call to make")
    file.save(a.out, a.file)
    if missing:
        raise SystemExit("Ops whose arguments belong together need a recipe: a function that yields calls, in RECIPES of this script.")


if __name__ == "__main__":
    main()
