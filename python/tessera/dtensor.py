"""DTensors: tensors spread over a mesh.  factories.py makes them, indexing.py takes parts of them."""
import ctypes
import weakref

from . import _dtypes
from ._buffers import ints, tensor_of, torch_of
from ._call import spread
from ._context import Error, current, scope
from ._library import lib, quick
from .mesh import Mesh, mesh_at, one_mesh
from .placements import parse, text_of
from .tensor import Tensor, plain


def _code(dtype):
    return -1 if dtype is None else _dtypes.code_of(dtype)


class DTensor(Tensor):
    """A tensor of which this rank has a shard.  Operators and methods are ops on the whole and
    collective: every rank of the mesh must call them, in the same order.  A method that is not
    written here is the ATen op of that name: x.relu(), x.softmax(-1), x.add_(y).

    What is made of torch tensors gives torch tensors, what is made of arrays gives arrays."""

    __slots__ = ("_local", "_placements", "_mesh")

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

    device_mesh = property(lambda self: self.mesh)

    _local_tensor = property(lambda self: self.to_local())

    def __repr__(self):
        what = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        if not self._ctx.ptr and (self._mesh is None or self._placements is None):
            return f"DTensor({what}, of a run that has ended)"
        return f"DTensor({what}, {self.mesh!r}, [{', '.join(map(str, self.placements))}], rank {self._ctx.rank})"

    # ---- moving ---------------------------------------------------------------------------

    def _shard(self):
        if self._local is None:
            ctx = current()  # whichever: the shard needs nothing of its own rank
            with scope(ctx):
                self._local = ctx.hold(quick.tess_to_local(ctx.ptr, self._handle.ptr))
        return self._local

    @staticmethod
    def from_local(local_tensor, device_mesh=None, placements=None, **how):
        """tessera.from_local()."""
        from .factories import from_local  # which imports this module
        return from_local(local_tensor, device_mesh, placements, **how)

    def to_local(self, raw=False, *, grad_placements=None):
        """This rank's shard, sharing memory; a Tensor, if the DTensor requires a gradient, whose gradient's shards are
        then taken as placed by grad_placements (None: as here, and replicated where that is partial).  In arrays bf16 comes as a float32 copy; raw: its bits,
        shared, as uint16."""
        if self._flows():
            ctx = current()
            with scope(ctx):
                text = None if grad_placements is None else text_of(grad_placements)
                return plain(ctx, ctx.hold(quick.tess_to_local_grad(ctx.ptr, self._pointer(ctx), text)), self._torch)
        return self._given(self._shard(), raw)

    def to_torch(self):
        """This rank's shard as a torch tensor, sharing memory, in any dtype."""
        return torch_of(self._shard())

    def full_tensor(self, raw=False, *, grad_placements=None):
        """The whole, on every rank; a Tensor, if the DTensor requires a gradient: see to_local().  (collective)"""
        ctx, text = current(), None if grad_placements is None else text_of(grad_placements)
        with scope(ctx):
            handle = ctx.hold(lib.tess_full_tensor_grad(ctx.ptr, self._pointer(ctx), text))
        return plain(ctx, handle, self._torch) if self._flows() else self._given(handle, raw)

    def redistribute(self, device_mesh=None, placements=None, dtype=None, *, async_op=False, forward_dtype=None, backward_dtype=None, mesh=None):
        """The same tensor placed otherwise.  dtype, or forward_dtype: values are cast before they are
        sent.  backward_dtype: gradients are, on their way back; they arrive in this tensor's dtype.  Another mesh: all ranks of the world take part.  async_op: values travel until the result
        is used.  (collective)"""
        if placements is None and device_mesh is not None and not isinstance(device_mesh, Mesh):
            device_mesh, placements = None, device_mesh
        mesh, dtype = one_mesh(device_mesh, mesh), forward_dtype if dtype is None else dtype
        ctx = current()
        t = self._pointer(ctx)
        text = text_of(self.placements if placements is None else placements)
        if async_op and dtype is None and (mesh is None or mesh is self.mesh) and not self._flows():
            return self._start(ctx, text)
        target = mesh._pointer(ctx) if mesh is not None else None
        with scope(ctx):
            return wrap_new(ctx, lib.tess_redistribute_grad(ctx.ptr, t, target, text, _code(dtype), _code(backward_dtype)), self._torch)

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

    def __getattr__(self, name):
        if name == "_handle":  # started, and not yet waited for
            return self._arrive()
        return super().__getattr__(name)

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

# ---- making them ------------------------------------------------------------------------------


def wrap(ctx, handle, torch=False):
    self = object.__new__(DTensor)
    self._ctx, self._handle, self._torch = ctx, handle, torch
    self._local = self._shape = self._placements = self._mesh = None
    return self


def wrap_new(ctx, ptr, torch=False):
    return wrap(ctx, ctx.hold(ptr), torch)


def wrap_any(ctx, handle, torch=False):
    return (wrap if quick.tess_is_dtensor(handle.ptr) else plain)(ctx, handle, torch)


spread.wrap = wrap_any
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
