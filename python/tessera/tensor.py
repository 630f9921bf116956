"""Tensors of the library: what plain ones and DTensors (dtensor.py) have in common, and tensor()."""
import numpy as np

from . import _dtypes, _schema
from ._buffers import array_of, is_array, is_torch, tensor_of, torch_of
from ._call import call, call_raw, spread
from ._context import Error, current, scope
from ._library import quick
from ._torch import torch_function
from .autograd import Differentiable
from .mesh import Size, check_device


def sizes_of(sizes):
    """view(2, 3) and view((2, 3)) are the same."""
    return list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)) else list(sizes)


class Tensor(Differentiable):
    """A tensor of the library, in its memory: what gradients are known of.  Operators are ops, and a method that is
    not written here is the ATen op of that name: x.relu(), x.softmax(-1), x.add_(y).  Made by tensor(), and by ops
    on tensors.  numpy() is an array that shares its memory."""

    __slots__ = ("_ctx", "_handle", "_shape", "_torch", "__weakref__")
    __array_ufunc__ = None  # NumPy leaves array + Tensor to us

    def __init__(self, *args, **kwargs):
        raise Error("tensors are made by tensor()")

    def _pointer(self, ctx):
        if ctx is not self._ctx or not ctx.ptr:
            raise Error("this tensor belongs to another rank or to a run that has ended; detach().numpy() still works", 5)
        return self._handle.ptr

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

    ndim = property(lambda self: len(self.shape))

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

    @property
    def device(self):
        if not self._torch:
            return "cpu"
        import torch
        return torch.device("cpu")

    def is_floating_point(self):
        return self.dtype in ("f16", "bf16", "f32", "f64")

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __repr__(self):
        what = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        return f"Tensor({what}, {array_of(self._handle)!r}{', requires_grad=True' if self.requires_grad else ''})"

    __hash__ = object.__hash__

    # ---- plain data -----------------------------------------------------------------------

    def _given(self, handle, raw=False):
        """A plain tensor as the user has his: of torch, or an array."""
        return torch_of(handle) if self._torch and not raw else array_of(handle, raw)

    def numpy(self, raw=False):
        """An array that shares its memory; of a tensor that requires a gradient, take detach() first.  bf16 comes as
        a float32 copy; raw: its bits, shared, as uint16."""
        if self.requires_grad:
            raise Error("numpy() of a tensor that requires a gradient: take detach() of it first")
        return array_of(self._handle, raw)

    def to_torch(self):
        """A torch tensor that shares its memory, without its gradient."""
        return torch_of(self._handle)

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def full_tensor(self, raw=False):
        """Its elements, as the user has his."""
        return self._given(self._handle, raw)

    def __copy__(self):
        return spread.wrap(self._ctx, self._handle, self._torch)

    def __deepcopy__(self, memo):
        """A leaf with memory of its own."""
        if not self.is_leaf:
            raise Error("only leaves are copied deeply; take clone() or detach() of a tensor that was computed")
        made = memo[id(self)] = self.detach().clone()
        return made.requires_grad_() if self.requires_grad else made

    def __reduce_ex__(self, protocol):
        raise TypeError("a tensor of tessera cannot be pickled: pickle detach().numpy()")

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
        if name.startswith("__") or not _schema.has("aten." + name):
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}' and ATen no op of that name")

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
            if isinstance(w, Tensor) or is_array(w):
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
    setattr(Tensor, f"__{_name}__", _operator(_op))
for _name, _op in (("add", "aten.add.Tensor"), ("mul", "aten.mul.Tensor"), ("and", "aten.bitwise_and"), ("or", "aten.bitwise_or"), ("xor", "aten.bitwise_xor")):
    setattr(Tensor, f"__r{_name}__", _operator(_op))
setattr(Tensor, "__rmatmul__", _operator("aten.matmul.default", swapped=True))
setattr(Tensor, "__rpow__", _operator("aten.pow", swapped=True))
setattr(Tensor, "__rsub__", _operator("aten.rsub"))
setattr(Tensor, "__rtruediv__", lambda self, other: call("aten.mul.Tensor", call("aten.reciprocal.default", self), other))
for _name, _op in (("add", "aten.add_"), ("sub", "aten.sub_"), ("mul", "aten.mul_"), ("truediv", "aten.div_"), ("pow", "aten.pow_")):
    setattr(Tensor, f"__i{_name}__", _operator(_op))
for _name, _op in (("neg", "aten.neg.default"), ("abs", "aten.abs.default"), ("invert", "aten.bitwise_not.default")):
    setattr(Tensor, f"__{_name}__", lambda self, _op=_op: call(_op, self))
setattr(Tensor, "__pos__", lambda self: self)


for _name, _dtype in (("bool", "bool"), ("int", "i32"), ("long", "i64"), ("half", "f16"), ("bfloat16", "bf16"), ("float", "f32"), ("double", "f64")):
    setattr(Tensor, _name, lambda self, _dtype=_dtype: self.astype(_dtype))


# ---- making them ------------------------------------------------------------------------------


def plain(ctx, handle, torch=False):
    self = object.__new__(Tensor)
    self._ctx, self._handle, self._torch, self._shape = ctx, handle, torch, None
    return self


def tensor(data, dtype=None, requires_grad=False):
    """A tensor with a copy of an array, list or number.  requires_grad: a leaf whose .grad backward() will find."""
    ctx = current()
    if isinstance(data, Tensor):
        data = data.detach().numpy()
    with scope(ctx):
        of_torch = is_array(data) and not isinstance(data, np.ndarray)
        t = call_raw(ctx, "aten.clone.default", [("tensor", tensor_of(ctx, data, dtype))])
        made = plain(ctx, ctx.hold(t), of_torch and is_torch(data))
    return made.requires_grad_() if requires_grad else made


spread.kind = Tensor
