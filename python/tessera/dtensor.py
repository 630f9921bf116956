"""DTensors: tensors spread over a mesh.  factories.py makes them, indexing.py takes parts of them."""
import ctypes
import weakref

import numpy as np

from . import _dtypes, _schema
from ._buffers import array_of, ints, is_array, tensor_of, torch_of
from ._call import call, spread
from ._context import Error, current, scope
from ._library import lib, quick
from ._torch import torch_function
from .mesh import Mesh, Size, check_device, mesh_at, one_mesh
from .placements import parse, text_of


def no_gradients(**asked):
    """Refuses what only makes sense with gradients, by name."""
    for name, value in asked.items():
        if value:
            raise Error(f"{name}={value!r}: DTensors of tessera have no gradients")


def sizes_of(sizes):
    """view(2, 3) and view((2, 3)) are the same."""
    return list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)) else list(sizes)


class DTensor:
    """A tensor of which this rank has a shard.  Operators and methods are ops on the whole and
    collective: every rank of the mesh must call them, in the same order.  A method that is not
    written here is the ATen op of that name: x.relu(), x.softmax(-1), x.add_(y).

    What is made of torch tensors gives torch tensors, what is made of arrays gives arrays."""

    __slots__ = ("_ctx", "_handle", "_local", "_shape", "_placements", "_mesh", "_torch", "__weakref__")
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
        """Its name: "f32"; equal to any spelling of it, also torch.float32 and np.float32."""
        return _dtypes.Dtype(_dtypes.NAMES[quick.tess_dtype(self._handle.ptr)])

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
        """Number of elements of the whole, as in NumPy; size() and size(dim) as in PyTorch."""
        shape = self.shape
        return Size(np.prod(shape, dtype=np.int64), (shape, shape.__getitem__))

    def numel(self):
        return int(self.size)

    nelement = numel

    def dim(self):
        return len(self.shape)

    def stride(self, dim=None):
        """Strides of the whole, in elements."""
        t = self._handle.ptr
        strides = tuple(quick.tess_stride(t)[:quick.tess_ndim(t)])
        return strides if dim is None else strides[dim]

    def element_size(self):
        return _dtypes.SIZES[_dtypes.code_of(self.dtype)]

    itemsize = property(element_size)
    nbytes = property(lambda self: int(self.size) * self.element_size())
    grad = property(lambda self: None)
    requires_grad = property(lambda self: False)
    is_leaf = property(lambda self: True)
    _local_tensor = property(lambda self: self.to_local())

    @property
    def device(self):
        if not self._torch:
            return "cpu"
        import torch
        return torch.device("cpu")

    def backward(self, *args, **kwargs):
        no_gradients(backward=True)

    def requires_grad_(self, requires_grad=True):
        no_gradients(requires_grad=requires_grad)
        return self

    def detach(self):
        return self

    def is_floating_point(self):
        return self.dtype in ("f16", "bf16", "f32", "f64")

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

    def _given(self, handle, raw=False):
        """A plain tensor as the user has his: of torch, or an array."""
        return torch_of(handle) if self._torch and not raw else array_of(handle, raw)

    @staticmethod
    def from_local(local_tensor, device_mesh=None, placements=None, **how):
        """tessera.from_local()."""
        from .factories import from_local  # which imports this module
        return from_local(local_tensor, device_mesh, placements, **how)

    def to_local(self, raw=False, *, grad_placements=None):
        """This rank's shard, sharing memory.  In arrays bf16 comes as a float32 copy; raw: its bits,
        shared, as uint16."""
        no_gradients(grad_placements=grad_placements)
        return self._given(self._shard(), raw)

    def to_torch(self):
        """This rank's shard as a torch tensor, sharing memory, in any dtype."""
        return torch_of(self._shard())

    def full_tensor(self, raw=False, *, grad_placements=None):
        """The whole, on every rank.  (collective)"""
        no_gradients(grad_placements=grad_placements)
        ctx = current()
        with scope(ctx):
            handle = ctx.hold(lib.tess_full_tensor(ctx.ptr, self._pointer(ctx)))
        return self._given(handle, raw)

    def redistribute(self, device_mesh=None, placements=None, dtype=None, *, async_op=False, forward_dtype=None, backward_dtype=None, mesh=None):
        """The same tensor placed otherwise.  dtype, or forward_dtype: values are cast before they are
        sent.  Another mesh: all ranks of the world take part.  async_op: values travel until the result
        is used.  (collective)"""
        if placements is None and device_mesh is not None and not isinstance(device_mesh, Mesh):
            device_mesh, placements = None, device_mesh
        no_gradients(backward_dtype=backward_dtype)
        mesh, dtype = one_mesh(device_mesh, mesh), forward_dtype if dtype is None else dtype
        ctx = current()
        t = self._pointer(ctx)
        text = text_of(self.placements if placements is None else placements)
        if async_op and dtype is None and (mesh is None or mesh is self.mesh):
            return self._start(ctx, text)
        target = mesh._pointer(ctx) if mesh is not None else None
        with scope(ctx):
            return wrap_new(ctx, lib.tess_redistribute(ctx.ptr, t, target, text, -1 if dtype is None else _dtypes.code_of(dtype)), self._torch)

    def _start(self, ctx, text):
        """A DTensor that has no handle yet: see _arrive."""
        with scope(ctx):
            work = lib.tess_redistribute_start(ctx.ptr, self._pointer(ctx), text)
        if not work:
            ctx.check()
        coming = wrap(ctx, None, self._torch)
        del coming._handle
        ctx.moving.append((work, weakref.ref(coming)))
        return coming

    def _arrive(self):
        """Works are waited for in the order in which they were started, until this one is there."""
        ctx = current()
        if ctx is not self._ctx or not ctx.ptr:
            raise Error("this DTensor was still under way when its run ended, or belongs to another rank", 5)
        while ctx.moving:
            work, target = ctx.moving.pop(0)
            with scope(ctx):
                handle = ctx.hold(lib.tess_redistribute_wait(work))
            target = target()
            if target is not None:
                target._handle = handle
            if target is self:
                return handle
        raise Error("this DTensor did not arrive: waiting for it failed before", 5)

    def redistribute_start(self, placements):
        """The same in two halves: values travel while the rank computes.  wait() of what is returned
        gives the tensor, once; those that were started before it arrive before it.  (collective)"""
        return Moving(self._start(current(), text_of(placements)))

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
        several.  Not of a partial tensor (P)."""
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
        return self._given(handle)

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

    # ---- copies ---------------------------------------------------------------------------

    def __copy__(self):
        return wrap(self._ctx, self._handle, self._torch)

    def __deepcopy__(self, memo):
        """Another DTensor of the same placements, with memory of its own.  Nothing is sent."""
        from .factories import unflatten  # which imports this module
        self._pointer(current())
        raw = self.to_local(raw=True)
        made = memo[id(self)] = unflatten(raw.copy(order="K"), self.mesh, self.spec, dtype=self.dtype)
        made._torch = self._torch
        return made

    def __reduce_ex__(self, protocol):
        raise TypeError("a DTensor cannot be pickled, it belongs to a rank of a run: pickle full_tensor(); or to_local(), spec and mesh, of which "
                        "tessera.unflatten(local, mesh, spec) makes it again on the same rank")

    # ---- numbers --------------------------------------------------------------------------

    def item(self):
        """The one element; None on a rank outside the mesh.  (collective)"""
        if self.size != 1:
            raise Error(f"item() of a tensor of {self.size} elements")
        whole = self.full_tensor()
        return whole.reshape(()).item() if 0 not in whole.shape else None

    def tolist(self):
        """The whole as lists of numbers.  (collective)"""
        return self.full_tensor().tolist()

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
        if name == "_handle":  # started, and not yet waited for
            return self._arrive()
        if name.startswith("__") or not _schema.has("aten." + name):
            raise AttributeError(f"DTensor has no attribute '{name}' and ATen no op of that name")

        def method(*args, **kwargs):
            return call("aten." + name, self, *_schema.gather_sizes("aten." + name, args), **kwargs)
        method.__name__ = name
        return method

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """torch.relu(x), torch.nn.functional.linear(x, w): the ATen op of that name, on a DTensor of ours."""
        return torch_function(func, args, kwargs or {})

    T = property(lambda self: self.permute(*reversed(range(self.ndim))))
    mT = property(lambda self: call("aten.transpose.int", self, -2, -1))

    def view(self, *sizes):
        return call("aten.view.default", self, sizes_of(sizes))

    def reshape(self, *sizes):
        return call("aten.reshape.default", self, sizes_of(sizes))

    def permute(self, *dims):
        return call("aten.permute.default", self, sizes_of(dims))

    def expand(self, *sizes):
        return call("aten.expand.default", self, sizes_of(sizes))

    def flatten(self, start_dim=0, end_dim=-1):
        return call("aten.flatten.using_ints", self, start_dim, end_dim)

    def sum(self, dim=None, keepdim=False, dtype=None):
        return call("aten.sum.dim_IntList", self, dim, keepdim, dtype=dtype)

    def mean(self, dim=None, keepdim=False, dtype=None):
        return call("aten.mean.dim", self, dim, keepdim, dtype=dtype)

    def astype(self, dtype):
        return call("aten._to_copy.default", self, dtype=dtype)

    def to(self, *what, dtype=None, device=None, copy=False, **ignored):
        """to(dtype), to("cpu"), to(other): there is one device, so only the dtype can change."""
        for w in what:
            if isinstance(w, DTensor) or is_array(w):
                dtype = w.dtype
            elif w is not None and _dtypes.looks_like_dtype(w):
                dtype = w
            elif not isinstance(w, bool) and w is not None:
                device = w
        if device is not None:
            check_device(device)
        if dtype is None or (_dtypes.code_of(dtype) == _dtypes.code_of(self.dtype) and not copy):
            return self.clone() if copy else self
        return self.astype(dtype)

    def cpu(self):
        return self

    def cuda(self, *args, **kwargs):
        check_device("cuda")

    def where(self, condition, other):
        """Its own elements where the condition holds, the other's elsewhere."""
        return call("aten.where", condition, self, other)

    def __getitem__(self, index):
        from .indexing import get  # which imports this module
        return get(self, index if isinstance(index, tuple) else (index,))

    def __setitem__(self, index, value):
        """x[1:3] = y.  (collective)"""
        from .indexing import put
        put(self, index if isinstance(index, tuple) else (index,), value)


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


# ---- making them ------------------------------------------------------------------------------


def wrap(ctx, handle, torch=False):
    self = object.__new__(DTensor)
    self._ctx, self._handle, self._torch = ctx, handle, torch
    self._local = self._shape = self._placements = self._mesh = None
    return self


def wrap_new(ctx, ptr, torch=False):
    return wrap(ctx, ctx.hold(ptr), torch)


spread.kind, spread.wrap = DTensor, wrap
_seen = {}


def _placements(text):
    found = _seen.get(text)
    if found is None:
        found = _seen[text] = parse(text.decode())
    return found


class Moving:
    """A redistribution that is under way."""

    def __init__(self, coming):
        self._coming = coming

    def wait(self):
        coming, self._coming = self._coming, None
        if coming is None:
            raise Error("waited for already", 5)
        coming._pointer(current())
        return coming
