"""Ways to make DTensors: of arrays, of shards, of one value, of random numbers.

Arguments have PyTorch's names; mesh is another name of device_mesh everywhere.
"""
import numbers

from . import _dtypes
from ._buffers import ints, is_torch, tensor_of
from ._context import Error, current, scope
from ._library import lib
from .dtensor import wrap_new
from .tensor import sizes_of
from .mesh import one_mesh
from .placements import text_of


def _where(ctx, device_mesh, mesh, placements):
    """Mesh and placements as the library takes them."""
    mesh = one_mesh(device_mesh, mesh)
    return (mesh._pointer(ctx) if mesh is not None else None), (None if placements is None else text_of(placements))


def of_torch(x):
    return is_torch(x) or getattr(x, "_torch", False)


def distribute_tensor(tensor, device_mesh=None, placements=None, *, src_data_rank=0, dtype=None, mesh=None):
    """An array that all ranks have, spread; placements None: replicated.  src_data_rank: the
    coordinate whose values count (collective); None: each rank cuts its part out of its own
    and nothing is sent.  Of a Tensor that requires a gradient and is a leaf a leaf is made, with a .grad of
    its own; through another Tensor the gradient flows."""
    ctx = current()
    where, text = _where(ctx, device_mesh, mesh, placements)
    with scope(ctx):
        t = tensor_of(ctx, tensor, dtype)
        made = lib.tess_distribute_tensor(ctx.ptr, t, where, text, -1 if src_data_rank is None else src_data_rank)
        return wrap_new(ctx, made, of_torch(tensor))


def from_local(local_tensor, device_mesh=None, placements=None, *, run_check=False, shape=None, stride=None, grad_placements=None, dtype=None, mesh=None):
    """A DTensor of which this array is this rank's shard; they share memory.  shape: of the
    whole; None: every shard is as large as this one.  run_check (collective): dtypes and sizes
    are compared, an uneven shape is found out, replicas are made equal to coordinate 0's.
    grad_placements: of the gradient whose shards become that of a Tensor; None: these, and replicated
    where they are partial."""
    ctx, grad = current(), None if grad_placements is None else text_of(grad_placements)
    where, text = _where(ctx, device_mesh, mesh, placements)
    with scope(ctx):
        return wrap_new(ctx, lib.tess_from_local_grad(
            ctx.ptr, tensor_of(ctx, local_tensor, dtype), where, text, bool(run_check), 0 if shape is None else len(shape),
            None if shape is None else ints(shape), None if stride is None else ints(stride), grad), of_torch(local_tensor))


def unflatten(local_tensor, mesh, spec, dtype=None):
    """The DTensor of which to_local() and spec were the parts."""
    ctx = current()
    where, _ = _where(ctx, mesh, None, None)
    with scope(ctx):
        return wrap_new(ctx, lib.tess_dtensor_unflatten(ctx.ptr, tensor_of(ctx, local_tensor, dtype), where, spec.encode()), is_torch(local_tensor))


def _check(layout):
    if layout is not None and str(layout) != "torch.strided":
        raise Error(f"layout {layout}: only torch.strided is possible")


def _leaf(made, requires_grad):
    return made.requires_grad_() if requires_grad else made


def full(size, fill_value, device_mesh=None, placements=None, dtype=None, *, layout=None, requires_grad=False, mesh=None):
    """Every element fill_value."""
    _check(layout)
    if not isinstance(fill_value, numbers.Real):
        raise Error(f"fill_value is a number, not {fill_value!r}")
    ctx = current()
    where, text = _where(ctx, device_mesh, mesh, placements)
    size = (size,) if isinstance(size, int) else tuple(size)
    code = _dtypes.code_of("f32" if dtype is None else dtype)
    with scope(ctx):
        return _leaf(wrap_new(ctx, lib.tess_dtensor_full(ctx.ptr, where, text, code, len(size), ints(size), fill_value), _dtypes.is_torch_dtype(dtype)), requires_grad)


def _random(size, normal, device_mesh, placements, dtype, layout, requires_grad, mesh):
    _check(layout)
    ctx = current()
    where, text = _where(ctx, device_mesh, mesh, placements)
    code = _dtypes.code_of("f32" if dtype is None else dtype)
    with scope(ctx):
        return _leaf(wrap_new(ctx, lib.tess_dtensor_rand(ctx.ptr, where, text, code, len(size), ints(size), normal), _dtypes.is_torch_dtype(dtype)), requires_grad)


def ones(*size, requires_grad=False, dtype=None, layout=None, device_mesh=None, placements=None, mesh=None):
    """ones(8, 4, device_mesh=mesh, placements="S(0)"), or ones((8, 4), ...)."""
    return full(sizes_of(size), 1, device_mesh, placements, dtype, layout=layout, requires_grad=requires_grad, mesh=mesh)


def zeros(*size, requires_grad=False, dtype=None, layout=None, device_mesh=None, placements=None, mesh=None):
    """zeros(8, 4, device_mesh=mesh, placements="S(0)"), or zeros((8, 4), ...)."""
    return full(sizes_of(size), 0, device_mesh, placements, dtype, layout=layout, requires_grad=requires_grad, mesh=mesh)


def empty(*size, requires_grad=False, dtype=None, layout=None, device_mesh=None, placements=None, mesh=None):
    """The same as zeros()."""
    return full(sizes_of(size), 0, device_mesh, placements, dtype, layout=layout, requires_grad=requires_grad, mesh=mesh)


def rand(*size, requires_grad=False, dtype=None, layout=None, device_mesh=None, placements=None, mesh=None):
    """Uniform in [0, 1): the same on every mesh after the same manual_seed()."""
    return _random(sizes_of(size), 0, device_mesh, placements, dtype, layout, requires_grad, mesh)


def randn(*size, requires_grad=False, dtype=None, layout=None, device_mesh=None, placements=None, mesh=None):
    """Normal: the same on every mesh after the same manual_seed()."""
    return _random(sizes_of(size), 1, device_mesh, placements, dtype, layout, requires_grad, mesh)
