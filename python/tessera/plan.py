"""Planning for any mesh, without ranks: layouts, redistributions, sharding decisions."""
import ctypes
import json

from . import _dtypes, _schema
from ._buffers import ints
from ._call import Args
from ._context import Error, planner, scope
from ._library import lib
from .mesh import mesh_from, parse_shape
from .placements import parse_one, text_of


def local_layout(shape, mesh_shape, placements, coordinate):
    """What the rank at a coordinate (or, of a number, that rank row-major) holds of a tensor:
    {"shape", "offset", "runs": per dimension [[begin, size], ...]}."""
    ctx, (sizes, _) = planner(), parse_shape(mesh_shape)
    if isinstance(coordinate, int):
        coordinate = _unravel(coordinate, sizes)
    if len(coordinate) != len(sizes):
        raise Error(f"coordinate {tuple(coordinate)} in a mesh of {len(sizes)} axes")
    text = ctx.text(lib.tess_plan_layout(ctx.ptr, len(shape), ints(shape), len(sizes), ints(sizes, ctypes.c_int), text_of(placements),
                                         ints(coordinate, ctypes.c_int)))
    return json.loads(text)


def _unravel(rank, sizes):
    coordinate = []
    for s in reversed(sizes):
        rank, c = divmod(rank, s)
        coordinate.append(c)
    return coordinate[::-1]


def _places(texts):
    return tuple(parse_one(t) for t in texts)


class Plan(list):
    """Steps, each {"kind", "axes", "before", "after", "bytes", "cost"}, with .cost in
    microseconds, .bytes that a rank sends, and the number of .collectives."""

    def __init__(self, told):
        super().__init__(told["steps"])
        for step in self:
            step["before"], step["after"] = _places(step["before"]), _places(step["after"])
        self.cost, self.bytes, self.collectives = float(told["cost"]), told["bytes"], told["collectives"]

    @property
    def steps(self):
        return list(self)

    def __repr__(self):
        kinds = " -> ".join(step["kind"] for step in self) or "nothing"
        return f"Plan({kinds}; {self.collectives} collectives, {self.bytes} bytes, {self.cost:.3g} us)"


def plan_redistribute(shape, dtype, mesh_shape, src, dst, greedy=False):
    """How a tensor gets from placements src to dst.  greedy: PyTorch's way instead of the
    cheapest."""
    ctx, (sizes, _) = planner(), parse_shape(mesh_shape)
    text = ctx.text(lib.tess_plan_redistribute(ctx.ptr, _dtypes.code_of(dtype), len(shape), ints(shape), len(sizes), ints(sizes, ctypes.c_int),
                                               text_of(src), text_of(dst), bool(greedy)))
    return Plan(json.loads(text))


class Spec:
    """A tensor that only plans know: its shape, placements and dtype."""

    def __init__(self, shape, placements, dtype="f32", stride=None):
        self.shape, self.dtype = tuple(shape), dtype
        self.placements = placements if isinstance(placements, str) else tuple(placements)
        self.stride = None if stride is None else tuple(stride)

    def __repr__(self):
        text = self.placements if isinstance(self.placements, str) else "".join(map(str, self.placements))
        return f"Spec({self.dtype}[{','.join(map(str, self.shape))}] {text})"


def _as_spec(x):
    """A Spec, or what can stand for one: (shape, placements[, dtype[, stride]]), or a dict with
    these names (or t, p)."""
    if isinstance(x, Spec):
        return x
    if isinstance(x, dict) and x.keys() == {"dtype"}:
        return x["dtype"]
    if isinstance(x, dict):
        return Spec(x["t"] if "t" in x else x["shape"], x["p"] if "p" in x else x["placements"], x.get("dtype", "f32"), x.get("stride"))
    if isinstance(x, tuple) and 2 <= len(x) <= 4 and isinstance(x[0], (list, tuple)) and isinstance(x[1], (str, list, tuple)):
        return Spec(*x)
    if isinstance(x, (list, tuple)):
        return type(x)(_as_spec(i) for i in x)
    return x


def propagate(op, args, mesh_shape, kwargs=None):
    """What an op on tensors with these placements would do: {"inputs": placements wanted of
    each tensor, "outputs": [{"shape", "placements", "dtype"}], "cost" in microseconds to get
    there, "op", "args" as rank 0 would call it (None for tensors), "why"}.  Tensors in args are
    Specs or tuples (shape, placements, dtype).  Of an op that is written with other ops, "inputs" is
    what the first part that takes each wants (None: none does), "cost" that of all parts, and "op"
    and "args" are None."""
    ctx, (sizes, names) = planner(), parse_shape(mesh_shape)
    args, kwargs = _as_spec(list(args)), {k: _as_spec(v) for k, v in (kwargs or {}).items()}
    mesh = mesh_from(ctx, sizes, names)
    schema = _schema.resolve(op, args, kwargs) or _schema.Schema(op, "f() -> ()")

    def tensor(x, param):
        if not isinstance(x, Spec):
            raise Error(f"{op}: argument '{param.name}' must be a Spec, not {x!r}")
        t = lib.tess_plan_tensor(ctx.ptr, mesh._ptr, text_of(x.placements), _dtypes.code_of(x.dtype), len(x.shape), ints(x.shape),
                                 None if x.stride is None else ints(x.stride))
        if not t:
            ctx.check()
        return t

    with scope(ctx):
        values = Args(tensor)  # stays: the packed ones point to its lists
        packed, n = values.pack(schema, args, kwargs) if schema.params else (b"", 0)
        told = json.loads(ctx.text(lib.tess_propagate(ctx.ptr, schema.encoded, packed, n)))
    if told["cost"] is not None:
        told["cost"] = float(told["cost"])  # "inf" too
    told["inputs"] = [None if p is None else _places(p) for p in told["inputs"]]
    for out in told["outputs"]:
        out["placements"] = _places(out["placements"])
    return told


# ---- checkpoints ------------------------------------------------------------------------------


class _Saved(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("ndim", ctypes.c_int), ("shape", ctypes.c_void_p), ("placements", ctypes.c_char_p)]


def _saved(tensors):
    """TessSaved[] of {name: Spec}, and what it points to."""
    kept, out = [], (_Saved * max(1, len(tensors)))()
    for at, (name, spec) in zip(out, tensors.items()):
        spec = _as_spec(spec)
        shape = ints(spec.shape)
        kept.append(shape)
        at.name, at.dtype, at.ndim, at.shape, at.placements = name.encode(), _dtypes.code_of(spec.dtype), len(spec.shape), ctypes.addressof(shape), text_of(spec.placements)
    return out, kept


HOW = {"balanced": 0, "pytorch": 1, "lowest": 2}


def plan_save(tensors, mesh_shape, how="balanced"):
    """Who writes which boxes of {name: Spec} tensors on a mesh: {"tensors": [{"name", "dtype", "shape",
    "chunks": [{"rank", "offset", "size"}, ...]}, ...]}.  Boxes that several ranks hold are written by
    the one with the fewest bytes so far; how="pytorch" counts as PyTorch does, "lowest" takes the
    lowest rank."""
    ctx, (sizes, _) = planner(), parse_shape(mesh_shape)
    if how not in HOW:
        raise Error(f"how is one of {', '.join(HOW)}, not {how!r}")
    packed, kept = _saved(tensors)
    return json.loads(ctx.text(lib.tess_plan_save(ctx.ptr, len(sizes), ints(sizes, ctypes.c_int), packed, len(tensors), HOW[how])))


def plan_load(saved, tensors, mesh_shape, coordinate):
    """What the rank at a coordinate of a mesh, which need not be the one that saved, copies to fill
    its shards of {name: Spec}: {name: [{"chunk" (its number), "from" (offset in the chunk), "into"
    (offset in the shard), "size"}, ...]}.  saved: of plan_save()."""
    ctx, (sizes, _) = planner(), parse_shape(mesh_shape)
    if isinstance(coordinate, int):
        coordinate = _unravel(coordinate, sizes)
    if len(coordinate) != len(sizes):
        raise Error(f"coordinate {tuple(coordinate)} in a mesh of {len(sizes)} axes")
    packed, kept = _saved(tensors)
    told = json.loads(ctx.text(lib.tess_plan_load(ctx.ptr, json.dumps(saved).encode(), len(sizes), ints(sizes, ctypes.c_int), packed, len(tensors),
                                                  ints(coordinate, ctypes.c_int))))
    return {t["name"]: t["reads"] for t in told["tensors"]}
