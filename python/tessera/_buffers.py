"""Arrays in, arrays out: NumPy arrays and torch tensors as tensors of the library, and back.

Nothing is copied where memory can be shared.  The library keeps what it borrows alive through
a release function, and arrays that it gives out keep its memory alive through their base.
"""
import ctypes
import itertools
import sys

import numpy as np

from . import _dtypes
from ._context import Error
from ._library import ReleaseFn, quick

_kept = {}  # number: an array that the library uses
_numbers = itertools.count(1)


@ReleaseFn
def _forget(number):
    _kept.pop(number, None)


_vectors = {}
_beyond = {ctypes.c_int64: 1 << 63, ctypes.c_int: 1 << 31}


def ints(values, kind=ctypes.c_int64):
    """A C array.  ctypes would take numbers that do not fit modulo its range."""
    n = len(values)
    vector = _vectors.get((kind, n))
    if vector is None:
        vector = _vectors[kind, n] = kind * n
    vector = vector(*values)
    beyond = _beyond.get(kind)
    if n and beyond and (max(values) >= beyond or min(values) < -beyond):
        raise Error(f"{max(values, key=abs)} does not fit into an integer of {8 * ctypes.sizeof(kind)} bits")
    return vector


def is_torch(x):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_array(x):
    return isinstance(x, np.ndarray) or is_torch(x) or (hasattr(x, "__array_interface__") and not isinstance(x, (np.generic, type)))


def _adopt(ctx, code, shape, strides, data, owner):
    """strides in elements, None: contiguous; owner lives as long as a tensor on this memory.  In the open scope."""
    number = next(_numbers)
    _kept[number] = owner
    t = quick.tess_tensor_adopt(ctx.ptr, code, len(shape), ints(shape), None if strides is None else ints(strides), data or None, _forget, number)
    if not t:
        _kept.pop(number, None)
        ctx.check()
    return t


def _adopt_numpy(ctx, array, code, may_copy):
    size, flags = array.itemsize, array.flags
    if flags.c_contiguous and flags.aligned and (may_copy or flags.writeable) and array.dtype.isnative:
        return _adopt(ctx, code, array.shape, None, array.__array_interface__["data"][0], array)
    shared = flags.aligned and array.dtype.isnative and all(s >= 0 and s % size == 0 for s in array.strides)
    if not shared:
        if not may_copy:
            raise Error("an array that is written to must be aligned, of native byte order and without negative strides")
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    elif not may_copy and not flags.writeable:
        raise Error("the array is read-only")
    return _adopt(ctx, code, array.shape, [s // size for s in array.strides], array.ctypes.data, array)


def _adopt_torch(ctx, tensor):
    tensor = tensor.detach()
    if tensor.device.type != "cpu" or tensor.layout is not sys.modules["torch"].strided:
        raise Error(f"only dense torch tensors in main memory can be shared, not {tensor.layout} on {tensor.device}")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return _adopt(ctx, _dtypes.code_of(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.data_ptr(), tensor)


def tensor_of(ctx, x, dtype=None, may_copy=True):
    """A tensor of the library on x's memory, in the open scope.  dtype: cast to it; with
    "bf16", uint16 arrays are taken as its bits.  Lists and numbers become arrays, floats f32."""
    want = None if dtype is None else _dtypes.code_of(dtype)
    if hasattr(x, "_pointer"):
        t, have = x._pointer(ctx), _dtypes.code_of(x.dtype)
    elif is_torch(x):
        t, have = _adopt_torch(ctx, x), _dtypes.code_of(x.dtype)
    else:
        array = x if isinstance(x, np.ndarray) else np.asarray(x)
        if array is not x and not is_array(x) and not isinstance(x, np.generic) and array.dtype == np.float64:
            array = array.astype(np.float32)
        raw = want == _dtypes.BF16 and array.dtype == np.uint16
        have = _dtypes.BF16 if raw else _dtypes.code_of_numpy(array.dtype)
        t = _adopt_numpy(ctx, array, have, may_copy)
    return t if want is None or want == have else cast(ctx, t, want)


def cast(ctx, t, code):
    from ._call import call_raw  # which imports this module
    return call_raw(ctx, "aten._to_copy.default", [("tensor", t), ("dtype", code, "dtype")])


class _Shared:
    """What an array on the library's memory has as its base."""

    __slots__ = ("handle", "__array_interface__")

    def __init__(self, handle, interface):
        self.handle, self.__array_interface__ = handle, interface


def _raw_array(handle):
    """A plain tensor's memory as an array; bf16 as uint16."""
    t = handle.ptr
    ndim, code = quick.tess_ndim(t), quick.tess_dtype(t)
    shape, size = tuple(quick.tess_size(t)[:ndim]), _dtypes.SIZES[code]
    data = quick.tess_data(t)
    if not data or 0 in shape:
        return np.empty(shape, _dtypes.NUMPY[code]), code
    strides = tuple(s * size for s in quick.tess_stride(t)[:ndim])
    interface = {"shape": shape, "typestr": _dtypes.NUMPY[code].str, "data": (data, False), "strides": strides, "version": 3}
    return np.asarray(_Shared(handle, interface)), code


def array_of(handle, raw=False):
    array, code = _raw_array(handle)
    return _dtypes.widen_bf16(array) if code == _dtypes.BF16 and not raw else array


def torch_of(handle):
    import torch
    array, code = _raw_array(handle)
    if code == _dtypes.BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
