"""Schemas of ops as the library prints them, and which overload a call means.

    aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
"""
import functools
import re

import numpy as np

from . import _dtypes
from ._buffers import is_array
from ._context import Error
from ._library import quick

# What a name without an overload may mean; the first that fits the arguments is taken.
OVERLOADS = ("default", "Tensor", "Scalar", "dim", "dim_IntList", "int", "Tensor_Scalar", "Tensor_Tensor", "Scalar_Tensor", "correction",
             "dims", "input", "other", "Tensor_mode", "Scalar_mode", "value", "dtype", "start", "start_step", "intlist", "array", "padding",
             "vec", "self", "ScalarList", "List", "decimals", "stable", "src", "reduce", "Tensor_Tensor_mode", "sizes", "indices", "to")


class Param:
    __slots__ = ("name", "type", "list", "optional", "keyword", "default", "mutated")

    def __init__(self, text, keyword):
        text, _, default = text.partition("=")
        kind, _, self.name = text.strip().rpartition(" ")
        self.mutated = "!" in kind
        kind = re.sub(r"\([^)]*\)", "", kind)
        self.keyword, self.default = keyword, bool(default)
        self.list = "[" in kind
        self.optional = kind.endswith("?")
        self.type = re.match(r"\w+", kind).group().replace("SymInt", "int")

    def fits(self, value):
        """Could this be the argument?"""
        if value is None:
            return self.optional or self.default or self.type == "Generator"
        if self.list:
            if isinstance(value, (list, tuple)):
                return all(v is None or self.fits_one(v) for v in value)
            return self.type in ("int", "float", "bool") and self.fits_one(value)
        return self.fits_one(value)

    def fits_one(self, value):
        number = isinstance(value, (bool, int, float, np.generic))
        if self.type == "Tensor":
            return not isinstance(value, (list, tuple, str))
        if self.type in ("Scalar", "float"):
            return number or value in ("inf", "-inf", "nan")
        if self.type in ("int", "bool"):
            return isinstance(value, (int, np.integer, np.bool_))
        if self.type == "str":
            return isinstance(value, str)
        if self.type == "ScalarType":
            return _dtypes.looks_like_dtype(value)
        return not is_array(value) and not number


def _split(text):
    """At commas that are in no bracket."""
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        if c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "," and not depth:
            parts.append(text[begin:i])
            begin = i + 1
    return [p.strip() for p in [*parts, text[begin:]] if p.strip()]


class Schema:
    __slots__ = ("op", "encoded", "text", "params", "by_name", "positional", "returns_list", "nreturns", "mutated")

    def __init__(self, op, text):
        self.op, self.encoded, self.text = op, op.encode(), text
        inputs, _, outputs = text.rpartition("->")
        self.params, keyword = [], False
        for part in _split(inputs[inputs.index("(") + 1:inputs.rindex(")")]):
            if part == "*":
                keyword = True
            else:
                self.params.append(Param(part, keyword))
        self.by_name = {p.name: p for p in self.params}
        self.positional = sum(not p.keyword for p in self.params)
        outputs = outputs.strip()
        returns = _split(outputs[1:-1]) if outputs.startswith("(") else [outputs]
        self.returns_list = len(returns) == 1 and returns[0].endswith("[]")
        self.nreturns = len(returns)
        # One written argument that is the one result: that argument is what the call returns.
        written = [i for i, p in enumerate(self.params) if p.mutated]
        self.mutated = written[0] if len(written) == 1 and self.nreturns == 1 and "!" in outputs else None

    def fits(self, args, kwargs):
        if len(args) > self.positional:
            return False
        given = dict(zip((p.name for p in self.params), args))
        if given.keys() & kwargs.keys() or not kwargs.keys() <= self.by_name.keys():
            return False
        given.update(kwargs)
        return all(p.fits(given[p.name]) if p.name in given else p.default or p.optional for p in self.params)


@functools.lru_cache(maxsize=None)
def find(op):
    """The schema of an op by its whole name; None if there is none."""
    text = quick.tess_op_schema(op.encode())
    return Schema(op, text.decode()) if text else None


@functools.lru_cache(maxsize=None)
def _overloads(op):
    op = op.removeprefix("torch.ops.").replace("::", ".")
    for name in (op, "aten." + op):
        exact = find(name)
        if exact:
            return (exact,)
        several = tuple(s for s in (find(f"{name}.{o}") for o in OVERLOADS) if s)
        if several:
            return several
    return ()


def has(op):
    return bool(_overloads(op))


def resolve(op, args, kwargs):
    """The schema of "aten.add.Tensor"; for "aten.add", "aten::add" or "add" the overload that
    fits the arguments.  None: there is no op like that."""
    known = _overloads(op)
    if len(known) <= 1:
        return known[0] if known else None
    for s in known:
        if s.fits(args, kwargs):
            return s
    raise Error(f"no overload of {op} fits these arguments; there are:\n" + "\n".join("  " + s.text for s in known))
