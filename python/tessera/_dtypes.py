"""Names of dtypes.  NumPy has no bf16: such a tensor is raw bits (uint16) on the way in and
out, and float32 where numbers are wanted."""
import sys

import numpy as np

from ._context import Error

NAMES = ("bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c64")
CODES = {name: code for code, name in enumerate(NAMES)}
# As they lie in memory.
NUMPY = tuple(np.dtype(t) for t in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "uint16", "float32", "float64", "complex64"))
SIZES = tuple(t.itemsize for t in NUMPY)
BF16 = CODES["bf16"]

_SPELLINGS = dict(CODES)
for _names, _code in (
        ("uint8 byte", "u8"), ("int8 char", "i8"), ("int16 short", "i16"), ("int32 int", "i32"), ("int64 long", "i64"),
        ("float16 half", "f16"), ("bfloat16", "bf16"), ("float32 float", "f32"), ("float64 double", "f64"),
        ("complex64 cfloat", "c64")):
    for _name in _names.split():
        _SPELLINGS[_name] = CODES[_code]
_OF_PYTHON = {bool: CODES["bool"], int: CODES["i64"], float: CODES["f32"], complex: CODES["c64"]}
_OF_NUMPY = {t: code for code, t in enumerate(NUMPY) if code != BF16}


def is_torch_dtype(d):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(d, torch.dtype)


def looks_like_dtype(d):
    return isinstance(d, (np.dtype, type)) or is_torch_dtype(d) or (isinstance(d, str) and d in _SPELLINGS)


class Dtype(str):
    """The name of a dtype, equal to every spelling of it."""

    __slots__ = ()

    def __eq__(self, other):
        if looks_like_dtype(other):
            try:
                return CODES[str.__str__(self)] == code_of(other)
            except (Error, TypeError):
                return False
        return str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def code_of(d):
    """The number of a dtype: "f32", "float32", np.float32, float, torch.float32 ..."""
    if isinstance(d, str):
        code = _SPELLINGS.get(d.removeprefix("torch."))
    elif is_torch_dtype(d):
        code = _SPELLINGS.get(str(d).removeprefix("torch."))
    elif isinstance(d, type) and d in _OF_PYTHON:
        code = _OF_PYTHON[d]
    else:
        code = code_of_numpy(np.dtype(d), required=False)
    if code is None:
        raise Error(f"there is no dtype {d!r}; known are {', '.join(NAMES)}")
    return code


def code_of_numpy(d, required=True):
    code = _OF_NUMPY.get(d)
    if code is None and d.byteorder not in "=|":
        code = _OF_NUMPY.get(d.newbyteorder("="))
    if code is None and d.name == "bfloat16":  # of ml_dtypes, which need not be here
        code = BF16
    if code is None and required:
        hint = '; for the bits of bf16 say dtype="bf16"' if d == np.uint16 else ""
        raise Error(f"arrays of {d.name} are not supported{hint}")
    return code


def widen_bf16(raw):
    """uint16 bits to the same numbers in float32."""
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
