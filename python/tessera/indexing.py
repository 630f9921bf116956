"""Parts of tensors: x[1, :, None], x[mask], x[1:3] = y.

An index is a row of steps, each an op on one dimension.  Getting runs them; putting runs them too,
then puts the new part back into the tensor that each step took it from, the last step first, and
copies the whole into x: no step needs to be a view, so it is right for any placements.
"""
import numpy as np

from ._buffers import is_array, is_torch
from ._call import call
from .dtensor import DTensor
from .factories import from_local
from .tensor import Tensor, tensor


def _is_number(i):
    return isinstance(i, (int, np.integer)) and not isinstance(i, (bool, np.bool_))


def _position(items, what):
    return next(k for k, i in enumerate(items) if i is what)


def _replicated(x, i):
    """An array that every rank has, as a DTensor on x's mesh; as a Tensor, if x is one."""
    if isinstance(i, type(x)):
        return i
    if not isinstance(x, DTensor):
        return tensor(i)
    return from_local(i if is_torch(i) else np.asarray(i), x.mesh, "R" * x.mesh.ndim)


def _steps(x, items):
    """(kind, dimension, what) of an index: "new", "slice" or "select"; and the array among them as
    (dimension, array), or None."""
    wanted = sum(i is not None and i is not Ellipsis for i in items)
    if wanted > x.ndim:
        raise IndexError(f"{wanted} indices for {x.ndim} dimensions")
    if Ellipsis not in [i for i in items if not is_array(i) and not isinstance(i, Tensor)]:
        items = (*items, Ellipsis)
    steps, arrays, dim, sizes = [], [], 0, list(x.shape)
    for i in items:
        if i is None:
            steps.append(("new", dim, None))
            sizes.insert(dim, 1)
            dim += 1
        elif i is Ellipsis:
            dim += len(sizes) - dim - sum(j is not None for j in items[_position(items, Ellipsis) + 1:])
        elif isinstance(i, slice):
            if (i.step or 1) < 1:
                raise IndexError("steps of slices must be positive")
            if i != slice(None):
                begin, end, step = i.indices(sizes[dim])
                steps.append(("slice", dim, (begin, max(begin, end), step)))
                sizes[dim] = len(range(begin, max(begin, end), step))
            dim += 1
        elif _is_number(i):
            if not -sizes[dim] <= i < sizes[dim]:
                raise IndexError(f"index {i} of a dimension of {sizes[dim]}")
            steps.append(("select", dim, int(i)))
            del sizes[dim]
        else:
            arrays.append((dim, i))
            dim += 1
    if len(arrays) > 1:
        raise IndexError("only one array of indices is understood; use call('aten.index.Tensor', ...) or call('aten.index_put_.default', ...)")
    return steps, arrays[0] if arrays else None


def _take(x, step):
    kind, dim, what = step
    if kind == "new":
        return call("aten.unsqueeze.default", x, dim)
    if kind == "slice":
        return call("aten.slice.Tensor", x, dim, *what)
    return call("aten.select.int", x, dim, what)


def _put_back(x, part, step):
    """x with the part that the step takes from it replaced."""
    kind, dim, what = step
    if kind == "new":
        return call("aten.squeeze.dim", part, dim)
    if kind == "slice":
        return call("aten.slice_scatter.default", x, part, dim, *what)
    return call("aten.select_scatter.default", x, part, dim, what)


def get(x, items):
    """Numbers, slices, None and ...; one array or DTensor of indices or bools may be among them."""
    steps, array = _steps(x, items)
    for step in steps:
        x = _take(x, step)
    if array is None:
        return x
    return call("aten.index.Tensor", x, [None] * array[0] + [_replicated(x, array[1])])


def _fitting(part, value):
    """The value as a DTensor of the part's shape and dtype."""
    if isinstance(value, (bool, int, float, np.generic)):
        return call("aten.full_like.default", part, value.item() if isinstance(value, np.generic) else value)
    if not isinstance(value, type(part)):
        value = _replicated(part, value)
    value = value.to(part.dtype)
    while value.ndim > part.ndim and value.shape[0] == 1:
        value = call("aten.squeeze.dim", value, 0)
    if value.ndim > part.ndim or any(v not in (1, p) for v, p in zip(reversed(value.shape), reversed(part.shape))):
        raise ValueError(f"a value of shape {value.shape} does not fit the part of shape {part.shape}")
    return value.expand(*part.shape) if value.shape != part.shape else value


def put(x, items, value):
    steps, array = _steps(x, items)
    before = [x]
    for step in steps:
        before.append(_take(before[-1], step))
    part = before[-1]
    if array is None:
        part = _fitting(part, value)
    else:
        dim, index = array
        index = _replicated(part, index)
        taken = call("aten.index.Tensor", part, [None] * dim + [index])
        part = call("aten.index_put.default", part, [None] * dim + [index], _fitting(taken, value))
    for whole, step in zip(reversed(before[:-1]), reversed(steps)):
        part = _put_back(whole, part, step)
    call("aten.copy_.default", x, part)
