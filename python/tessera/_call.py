"""call(): any op by name, on arrays or DTensors."""
import ctypes
import struct

import numpy as np

from . import _dtypes, _schema
from ._buffers import array_of, ints, is_array, is_torch, tensor_of, torch_of
from ._context import Error, current, scope
from ._library import lib, quick

NONE, TENSOR, INT, FLOAT, BOOL, STR, DTYPE, INTS, FLOATS, TENSORS = range(10)
_WITH_INT, _WITH_FLOAT = struct.Struct("=iiQq"), struct.Struct("=iiQd")  # TessArg
_SIZE = _WITH_INT.size
_RESULTS = 1024
_Results = ctypes.c_char * (_RESULTS * _SIZE)

class spread:
    """Tensor, and how to make one of a handle, told by the modules that have them."""

    kind = wrap = None


_texts = {}


def _text(s):
    """The address of a C string that stays."""
    held = _texts.get(s)
    if held is None:
        buffer = ctypes.create_string_buffer(s.encode())
        held = _texts[s] = (buffer, ctypes.addressof(buffer))
    return held[1]


class Args:
    """TessArgs in the making.  tensor(x, param) makes a tensor of an array or DTensor."""

    def __init__(self, tensor):
        self.packed, self.kept, self.tensor = [], [], tensor

    def put(self, name, kind, value=0, n=0):
        where = _text(name) if name else 0
        self.packed.append(_WITH_FLOAT.pack(kind, n, where, value) if kind == FLOAT else _WITH_INT.pack(kind, n, where, value))

    def put_list(self, name, kind, values, ctype):
        vector = ints(values, ctype)
        self.kept.append(vector)
        self.put(name, kind, ctypes.addressof(vector), len(values))

    def put_text(self, name, text):
        buffer = ctypes.create_string_buffer(text.encode())
        self.kept.append(buffer)
        self.put(name, STR, ctypes.addressof(buffer))

    def put_number(self, name, x):
        if isinstance(x, np.generic):
            x = x.item()
        if isinstance(x, bool):
            self.put(name, BOOL, int(x))
        elif isinstance(x, int):
            if not -1 << 63 <= x < 1 << 63:
                raise Error(f"{x} does not fit into an integer of 64 bits")
            self.put(name, INT, x)
        elif isinstance(x, float):
            self.put(name, FLOAT, x)
        else:
            raise Error(f"{x!r} is no number that ops take")

    def put_items(self, name, param, items):
        if param.type == "Tensor":
            self.put_list(name, TENSORS, [0 if t is None else self.tensor(t, param) for t in items], ctypes.c_void_p)
        elif param.type == "float" or any(isinstance(i, (float, np.floating)) for i in items):
            self.put_list(name, FLOATS, [float(i) for i in items], ctypes.c_double)
        else:
            self.put_list(name, INTS, [int(i) for i in items], ctypes.c_int64)

    def add(self, name, param, x):
        kind = param.type
        if isinstance(x, spread.kind) and not param.list:
            self.put(name, TENSOR, self.tensor(x, param))
            return
        if x is None or kind in ("Layout", "Generator"):
            self.put(name, NONE)
        elif param.list and isinstance(x, (list, tuple)):
            self.put_items(name, param, x)
        elif kind == "ScalarType":
            self.put(name, DTYPE, _dtypes.code_of(x))
        elif kind in ("Scalar", "float") and isinstance(x, str) and x in ("inf", "-inf", "nan"):
            self.put(name, FLOAT, float(x))
        elif kind in ("str", "Device", "MemoryFormat"):
            self.put_text(name, str(x).removeprefix("torch."))
        elif isinstance(x, (bool, int, float, np.generic)):
            self.put_number(name, x)
        elif param.list and kind != "Tensor" and isinstance(x, np.ndarray):
            self.put_items(name, param, x.tolist())
        elif kind == "Tensor" or is_array(x):
            self.put(name, TENSOR, self.tensor(x, param))
        else:
            raise Error(f"argument '{param.name}' ({kind}) cannot be {x!r}")

    def pack(self, schema, args, kwargs):
        if len(args) > len(schema.params):
            raise Error(f"{schema.op} takes {len(schema.params)} arguments, {len(args)} were given")
        for param, x in zip(schema.params, args):
            self.add(None, param, x)
        for name, x in kwargs.items():
            if name not in schema.by_name:
                raise Error(f"{schema.op} has no argument '{name}': {schema.text}")
            self.add(name, schema.by_name[name], x)
        return b"".join(self.packed), len(self.packed)


def call_raw(ctx, op, args):
    """The first result of an op on tensors of the library, in the open scope.  args: (kind,
    value) or (kind, value, name) with kind "tensor" or "dtype"."""
    kinds = {"tensor": TENSOR, "dtype": DTYPE}
    packed = b"".join(_WITH_INT.pack(kinds[a[0]], 0, _text(a[2]) if len(a) > 2 else 0, a[1]) for a in args)
    out = (ctypes.c_char * _SIZE)()
    if lib.tess_call_values(ctx.ptr, op.encode(), packed, len(args), out, 1) < 1:
        ctx.check()
    return _WITH_INT.unpack(out)[3]


def _call_values(ctx, schema, packed, n):
    """[(kind, value)] of the results."""
    out = ctx.results  # of this thread's context: nobody else writes there
    if out is None:
        out = ctx.results = _Results()
    count = lib.tess_call_values(ctx.ptr, schema.encoded, packed, n, out, _RESULTS)
    if count < 0:
        ctx.check()
    if count > _RESULTS:
        raise Error(f"{schema.op} has {count} results; at most {_RESULTS} are taken", 1)
    bits = out[:count * _SIZE]
    results = []
    for i in range(count):
        kind, _, _, value = _WITH_INT.unpack_from(bits, i * _SIZE)
        results.append((kind, _WITH_FLOAT.unpack_from(bits, i * _SIZE)[3] if kind == FLOAT else value))
    return results


def call(op, *args, **kwargs):
    """Calls an op: call("aten.addmm.default", b, x, w, beta=0.5).

    Tensors are NumPy arrays, torch tensors, Tensors or DTensors; keywords are the schema's names; a name
    without an overload ("aten.sum", "sum") takes the overload that fits.  Results are DTensors
    if there are any among the arguments (then the call is collective), torch tensors if there
    are torch tensors, Tensors if there are Tensors, else arrays; several come as a tuple, a Tensor[] as a list, numbers as
    numbers.  bf16 comes back as float32 in NumPy arrays.  In-place ops return the argument."""
    ctx = current()
    schema = _schema.resolve(op, args, kwargs) or _schema.Schema(op, "f() -> ()")
    with_torch = with_tensors = False

    def tensor(x, param):
        nonlocal with_torch, with_tensors
        if isinstance(x, spread.kind):
            with_torch |= x._torch
            with_tensors |= type(x) is spread.kind
            return x._pointer(ctx)
        with_torch |= is_torch(x)
        return tensor_of(ctx, x, may_copy=not param.mutated)

    def result(kind, value):
        if kind == TENSOR:
            handle = ctx.hold(value)
            if with_tensors or quick.tess_is_dtensor(value) or quick.tess_requires_grad(value):
                return spread.wrap(ctx, handle, with_torch)
            return torch_of(handle) if with_torch else array_of(handle)
        return None if kind == NONE else bool(value) if kind == BOOL else _dtypes.NAMES[value] if kind == DTYPE else value

    with scope(ctx):
        values = Args(tensor)  # stays: the packed ones point to its lists
        packed, n = values.pack(schema, args, kwargs) if schema.params else (b"", 0)
        results = _call_values(ctx, schema, packed, n)
        if schema.op.startswith("_c10d_functional."):  # an array cannot wait when it is used: wait now
            for kind, value in results:
                if kind == TENSOR:
                    call_raw(ctx, "_c10d_functional.wait_tensor.default", [("tensor", value)])
        if schema.mutated is not None:
            param = schema.params[schema.mutated]
            return kwargs[param.name] if param.name in kwargs else args[schema.mutated]
        results = [result(*r) for r in results]
    if schema.returns_list:
        return results
    return tuple(results) if len(results) > 1 else results[0] if results else None
