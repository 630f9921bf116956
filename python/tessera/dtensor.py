"""DTensors: tensors spread over a mesh, and the ways to make them."""
import ctypes

import numpy as np

from . import _dtypes, _schema
from ._buffers import array_of, ints, is_array, tensor_of, torch_of
from ._call import call, spread
from ._context import Error, current, scope
from ._library import lib, quick
from .mesh import Mesh, mesh_at
from .placements import parse, text_of


def _sizes(sizes):
    """view(2, 3) and view((2, 3)) are the same."""
    return list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)) else list(sizes)


class DTensor:
    """A tensor of which this rank has a shard.  Operators and methods are ops on the whole and
    collective: every rank of the mesh must call them, in the same order.  A method that is not
    written here is the ATen op of that name: x.relu(), x.softmax(-1), x.add_(y)."""

    __slots__ = ("_ctx", "_handle", "_local", "_shape", "_placements", "_mesh", "__weakref__")
    __array_ufunc__ = None  # NumPy leaves array + DTensor to us

    def __init__(self, *args, **kwargs):
        raise Error("DTensors are made by distribute_tensor(), from_local(), ones() ...")

    def _pointer(self, ctx):
        if ctx is not self._ctx or not ctx.ptr:
            raise Error("this DTensor belongs to another rank or to a run that has ended; to_local() still works", 5)
        return self._handle.ptr

    def _settle(self):
        """Its rank ends: these two are asked for now, the rest is in the handle."""
        if self._ctx.ptr:
            self.placements, self.mesh

    # ---- asking ---------------------------------------------------------------------------

    @property
    def shape(self):
        """Sizes of the whole."""
        if self._shape is None:
            t = self._handle.ptr
            self._shape = tuple(quick.tess_size(t)[:quick.tess_ndim(t)])
        return self._shape

    @property
    def dtype(self):
        """Its name: "f32"."""
        return _dtypes.NAMES[quick.tess_dtype(self._handle.ptr)]

    @property
    def placements(self):
        """One Placement per mesh axis."""
        if self._placements is None:
            text = ctypes.create_string_buffer(1024)
            self._placements = _placements(quick.tess_placements(self._pointer(self._ctx), text, len(text)))
        return self._placements

    @property
    def mesh(self):
        if self._mesh is None:
            self._mesh = mesh_at(self._ctx, quick.tess_mesh_of(self._pointer(self._ctx)))
        return self._mesh

    ndim = property(lambda self: len(self.shape))
    device_mesh = property(lambda self: self.mesh)

    @property
    def size(self):
        """Number of elements of the whole."""
        return int(np.prod(self.shape, dtype=np.int64))

    def numel(self):
        return self.size

    def dim(self):
        return len(self.shape)

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __repr__(self):
        what = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        if not self._ctx.ptr and (self._mesh is None or self._placements is None):
            return f"DTensor({what}, of a run that has ended)"
        return f"DTensor({what}, {self.mesh!r}, [{', '.join(map(str, self.placements))}], rank {self._ctx.rank})"

    __hash__ = object.__hash__

    # ---- moving ---------------------------------------------------------------------------

    def _shard(self):
        if self._local is None:
            ctx = current()  # whichever: the shard needs nothing of its own rank
            with scope(ctx):
                self._local = ctx.hold(quick.tess_to_local(ctx.ptr, self._handle.ptr))
        return self._local

    def to_local(self, raw=False):
        """This rank's shard, sharing memory.  bf16 comes as a float32 copy; raw: its bits,
        shared, as uint16."""
        return array_of(self._shard(), raw)

    def to_torch(self):
        """This rank's shard as a torch tensor, sharing memory, in any dtype."""
        return torch_of(self._shard())

    def full_tensor(self, raw=False):
        """The whole, on every rank, as an array.  (collective)"""
        ctx = current()
        with scope(ctx):
            handle = ctx.hold(lib.tess_full_tensor(ctx.ptr, self._pointer(ctx)))
        return array_of(handle, raw)

    def redistribute(self, mesh=None, placements=None, dtype=None):
        """The same tensor placed otherwise.  dtype: values are cast before they are sent.
        Another mesh: all ranks of the world take part.  (collective)"""
        if placements is None and not isinstance(mesh, (Mesh, type(None))):
            mesh, placements = None, mesh
        ctx = current()
        t = self._pointer(ctx)
        target = mesh._pointer(ctx) if mesh is not None else None
        text = text_of(self.placements if placements is None else placements)
        with scope(ctx):
            return _wrap_new(ctx, lib.tess_redistribute(ctx.ptr, t, target, text, -1 if dtype is None else _dtypes.code_of(dtype)))

    def redistribute_start(self, placements):
        """The same in two halves: values travel while the rank computes.  wait() of what is returned
        gives the tensor; every start is waited for once, in order.  (collective)"""
        ctx = current()
        with scope(ctx):
            work = lib.tess_redistribute_start(ctx.ptr, self._pointer(ctx), text_of(placements))
        if not work:
            ctx.check()
        return Moving(ctx, work)

    # ---- in parts -------------------------------------------------------------------------

    @property
    def spec(self):
        """Its shape, strides and placements as text: with to_local() all that unflatten() needs."""
        ctx, text = current(), ctypes.create_string_buffer(4096)
        with scope(ctx):
            if not quick.tess_dtensor_flatten(ctx.ptr, self._pointer(ctx), text, len(text)):
                ctx.check()
        return text.value.decode()

    def chunks(self):
        """The boxes of the whole that this rank's shard is: [(offset, size), ...], one or (strided)
        several.  Not of what is owed (P)."""
        ctx, n = current(), self.ndim
        most = lib.tess_chunk_list(ctx.ptr, self._pointer(ctx), None, None, 0)
        offsets, sizes = (ctypes.c_int64 * max(1, most * n))(), (ctypes.c_int64 * max(1, most * n))()
        if most < 0 or lib.tess_chunk_list(ctx.ptr, self._pointer(ctx), offsets, sizes, most) < 0:
            ctx.check()
        return [(tuple(offsets[i * n:i * n + n]), tuple(sizes[i * n:i * n + n])) for i in range(most)]

    def get_chunk(self, offset):
        """The part of the shard that is the box at this offset, sharing memory."""
        ctx = current()
        with scope(ctx):
            handle = ctx.hold(lib.tess_get_chunk(ctx.ptr, self._pointer(ctx), ints(offset)))
        return array_of(handle)

    def equal(self, other):
        """Same sizes, dtype and elements?  (collective)"""
        ctx = current()
        with scope(ctx):
            t = other._pointer(ctx) if isinstance(other, DTensor) else tensor_of(ctx, other)
            same = lib.tess_equal(ctx.ptr, self._pointer(ctx), t)
        if same < 0:
            ctx.check()
        return same == 1

    def __array__(self, *args, **kwargs):
        raise TypeError("a DTensor is no array: take to_local() or full_tensor() of it")

    # ---- numbers --------------------------------------------------------------------------

    def item(self):
        """The one element; None on a rank outside the mesh.  (collective)"""
        if self.size != 1:
            raise Error(f"item() of a tensor of {self.size} elements")
        whole = self.full_tensor()
        return whole.reshape(()).item() if whole.size else None

    def _number(self):
        value = self.item()
        if value is None:
            raise Error("a rank outside the mesh does not know the number", 5)
        return value

    def __float__(self):
        return float(self._number())

    def __int__(self):
        return int(self._number())

    def __bool__(self):
        return bool(self._number())

    # ---- ops ------------------------------------------------------------------------------

    def __getattr__(self, name):
        if name.startswith("__") or not _schema.has("aten." + name):
            raise AttributeError(f"DTensor has no attribute '{name}' and ATen no op of that name")

        def method(*args, **kwargs):
            return call("aten." + name, self, *_schema.gather_sizes("aten." + name, args), **kwargs)
        method.__name__ = name
        return method

    T = property(lambda self: self.permute(*reversed(range(self.ndim))))
    mT = property(lambda self: call("aten.transpose.int", self, -2, -1))

    def view(self, *sizes):
        return call("aten.view.default", self, _sizes(sizes))

    def reshape(self, *sizes):
        return call("aten.reshape.default", self, _sizes(sizes))

    def permute(self, *dims):
        return call("aten.permute.default", self, _sizes(dims))

    def expand(self, *sizes):
        return call("aten.expand.default", self, _sizes(sizes))

    def flatten(self, start_dim=0, end_dim=-1):
        return call("aten.flatten.using_ints", self, start_dim, end_dim)

    def sum(self, dim=None, keepdim=False, dtype=None):
        return call("aten.sum.dim_IntList", self, dim, keepdim, dtype=dtype)

    def mean(self, dim=None, keepdim=False, dtype=None):
        return call("aten.mean.dim", self, dim, keepdim, dtype=dtype)

    def astype(self, dtype):
        return call("aten._to_copy.default", self, dtype=dtype)

    to = astype

    def where(self, condition, other):
        """Its own elements where the condition holds, the other's elsewhere."""
        return call("aten.where", condition, self, other)

    def __getitem__(self, index):
        return _index(self, index if isinstance(index, tuple) else (index,))


def _index(x, items):
    """Numbers, slices, None and ...; one array or DTensor of indices or bools may be among them."""
    wanted = sum(i is not None and i is not Ellipsis for i in items)
    if wanted > x.ndim:
        raise IndexError(f"{wanted} indices for {x.ndim} dimensions")
    if Ellipsis not in [i for i in items if not is_array(i) and not isinstance(i, DTensor)]:
        items = (*items, Ellipsis)
    dim, arrays = 0, []
    for i in items:
        if i is None:
            x, dim = call("aten.unsqueeze.default", x, dim), dim + 1
        elif i is Ellipsis:
            dim += x.ndim - dim - sum(j is not None for j in items[_position(items, Ellipsis) + 1:])
        elif isinstance(i, slice):
            if (i.step or 1) < 1:
                raise IndexError("steps of slices must be positive")
            if i != slice(None):
                begin, end, step = i.indices(x.shape[dim])
                x = call("aten.slice.Tensor", x, dim, begin, max(begin, end), step)
            dim += 1
        elif isinstance(i, (int, np.integer)) and not isinstance(i, (bool, np.bool_)):
            if not -x.shape[dim] <= i < x.shape[dim]:
                raise IndexError(f"index {i} of a dimension of {x.shape[dim]}")
            x = call("aten.select.int", x, dim, int(i))
        else:
            arrays.append((dim, i))
            dim += 1
    if not arrays:
        return x
    if len(arrays) > 1:
        raise IndexError("only one array of indices is understood; use call('aten.index.Tensor', ...)")
    (dim, i), = arrays
    if not isinstance(i, DTensor):
        i = from_local(np.asarray(i), x.mesh, "R" * x.mesh.ndim)
    return call("aten.index.Tensor", x, [None] * dim + [i])


def _position(items, what):
    return next(k for k, i in enumerate(items) if i is what)


# ---- operators --------------------------------------------------------------------------------


def _operator(op, swapped=False):
    def method(self, other):
        if other is None or isinstance(other, (str, list, tuple, dict)):
            return NotImplemented
        return call(op, other, self) if swapped else call(op, self, other)
    return method


for _name, _op in (("add", "aten.add.Tensor"), ("sub", "aten.sub.Tensor"), ("mul", "aten.mul.Tensor"), ("truediv", "aten.div.Tensor"),
                   ("floordiv", "aten.floor_divide"), ("mod", "aten.remainder"), ("pow", "aten.pow"), ("matmul", "aten.matmul.default"),
                   ("and", "aten.bitwise_and"), ("or", "aten.bitwise_or"), ("xor", "aten.bitwise_xor"),
                   ("eq", "aten.eq"), ("ne", "aten.ne"), ("lt", "aten.lt"), ("le", "aten.le"), ("gt", "aten.gt"), ("ge", "aten.ge")):
    setattr(DTensor, f"__{_name}__", _operator(_op))
for _name, _op in (("add", "aten.add.Tensor"), ("mul", "aten.mul.Tensor"), ("and", "aten.bitwise_and"), ("or", "aten.bitwise_or"), ("xor", "aten.bitwise_xor")):
    setattr(DTensor, f"__r{_name}__", _operator(_op))
setattr(DTensor, "__rmatmul__", _operator("aten.matmul.default", swapped=True))
setattr(DTensor, "__rpow__", _operator("aten.pow", swapped=True))
setattr(DTensor, "__rsub__", _operator("aten.rsub"))
setattr(DTensor, "__rtruediv__", lambda self, other: call("aten.mul.Tensor", call("aten.reciprocal.default", self), other))
for _name, _op in (("add", "aten.add_"), ("sub", "aten.sub_"), ("mul", "aten.mul_"), ("truediv", "aten.div_"), ("pow", "aten.pow_")):
    setattr(DTensor, f"__i{_name}__", _operator(_op))
for _name, _op in (("neg", "aten.neg.default"), ("abs", "aten.abs.default"), ("invert", "aten.bitwise_not.default")):
    setattr(DTensor, f"__{_name}__", lambda self, _op=_op: call(_op, self))
setattr(DTensor, "__pos__", lambda self: self)


for _name, _dtype in (("bool", "bool"), ("int", "i32"), ("long", "i64"), ("half", "f16"), ("bfloat16", "bf16"), ("float", "f32"), ("double", "f64")):
    setattr(DTensor, _name, lambda self, _dtype=_dtype: self.astype(_dtype))


# ---- making them ----------------------------------------------------------------------------


def wrap(ctx, handle):
    self = object.__new__(DTensor)
    self._ctx, self._handle = ctx, handle
    self._local = self._shape = self._placements = self._mesh = None
    return self


spread.kind, spread.wrap = DTensor, wrap
_seen = {}


def _placements(text):
    found = _seen.get(text)
    if found is None:
        found = _seen[text] = parse(text.decode())
    return found


def _wrap_new(ctx, ptr):
    return wrap(ctx, ctx.hold(ptr))


def _where(ctx, mesh, placements):
    return (mesh._pointer(ctx) if mesh is not None else None), (None if placements is None else text_of(placements))


def distribute_tensor(array, mesh=None, placements=None, src_data_rank=0, dtype=None):
    """An array that all ranks have, spread; placements None: replicated.  src_data_rank: the
    coordinate whose values count (collective); None: each rank cuts its part out of its own
    and nothing is sent."""
    ctx = current()
    where, text = _where(ctx, mesh, placements)
    with scope(ctx):
        t = array._pointer(ctx) if isinstance(array, DTensor) else tensor_of(ctx, array, dtype)
        return _wrap_new(ctx, lib.tess_distribute_tensor(ctx.ptr, t, where, text, -1 if src_data_rank is None else src_data_rank))


def from_local(array, mesh=None, placements=None, shape=None, run_check=False, stride=None, dtype=None):
    """A DTensor of which this array is this rank's shard; they share memory.  shape: of the
    whole; None: every shard is as large as this one.  run_check (collective): dtypes and sizes
    are compared, an uneven shape is found out, replicas are made equal to coordinate 0's."""
    ctx = current()
    where, text = _where(ctx, mesh, placements)
    with scope(ctx):
        return _wrap_new(ctx, lib.tess_from_local(
            ctx.ptr, tensor_of(ctx, array, dtype), where, text, bool(run_check), 0 if shape is None else len(shape),
            None if shape is None else ints(shape), None if stride is None else ints(stride)))


class Moving:
    """A redistribution that is under way."""

    def __init__(self, ctx, work):
        self._ctx, self._work = ctx, work

    def wait(self):
        ctx, work, self._work = current(), self._work, None
        if ctx is not self._ctx or not ctx.ptr or not work:
            raise Error("waited for already, or by another rank", 5)
        with scope(ctx):
            return _wrap_new(ctx, lib.tess_redistribute_wait(work))


def unflatten(array, mesh, spec):
    """The DTensor of which to_local() and spec were the parts."""
    ctx = current()
    where, _ = _where(ctx, mesh, None)
    with scope(ctx):
        return _wrap_new(ctx, lib.tess_dtensor_unflatten(ctx.ptr, tensor_of(ctx, array), where, spec.encode()))


def full(size, fill_value, mesh=None, placements=None, dtype="f32"):
    """Every element fill_value."""
    ctx = current()
    where, text = _where(ctx, mesh, placements)
    size = (size,) if isinstance(size, int) else tuple(size)
    with scope(ctx):
        return _wrap_new(ctx, lib.tess_dtensor_full(ctx.ptr, where, text, _dtypes.code_of(dtype), len(size), ints(size), fill_value))


def _sized(make, what):
    """A factory that takes its sizes like PyTorch's: ones(8, 4) or ones((8, 4))."""
    def factory(*size, mesh=None, placements=None, dtype="f32"):
        return make(_sizes(size), mesh, placements, dtype)
    factory.__name__ = factory.__qualname__ = what.split("(")[0]
    factory.__doc__ = what
    return factory


def _random(normal):
    def make(size, mesh, placements, dtype):
        ctx = current()
        where, text = _where(ctx, mesh, placements)
        with scope(ctx):
            return _wrap_new(ctx, lib.tess_dtensor_rand(ctx.ptr, where, text, _dtypes.code_of(dtype), len(size), ints(size), normal))
    return make


ones = _sized(lambda size, *how: full(size, 1, *how), "ones(8, 4, mesh=mesh, placements='S(0)', dtype='f32')")
zeros = _sized(lambda size, *how: full(size, 0, *how), "zeros(8, 4, mesh=mesh, placements='S(0)', dtype='f32')")
empty = _sized(lambda size, *how: full(size, 0, *how), "empty(8, 4, mesh=mesh, placements='S(0)', dtype='f32'): zeros")
rand = _sized(_random(0), "rand(8, 4, mesh=mesh, placements='S(0)'): uniform in [0, 1), the same on every mesh after the same manual_seed()")
randn = _sized(_random(1), "randn(8, 4, mesh=mesh, placements='S(0)'): normal, the same on every mesh after the same manual_seed()")
