"""Schemas of ops as the library prints them, and which overload a call means.

    aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
"""
import functools
import itertools
import re

import numpy as np

from . import _dtypes
from ._buffers import is_array
from ._context import Error
from ._library import quick

# What a name without an overload may mean: the first that fits the arguments is taken, of these
# before the others.
FIRST = ("default", "Tensor", "Scalar", "dim", "dim_IntList", "int", "Tensor_Scalar", "Tensor_Tensor", "Scalar_Tensor", "correction", "dims",
         "input", "other", "Tensor_mode", "Scalar_mode")


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

    def fits(self, value, strict=False):
        """Could this be the argument?  strict: numbers are no tensors."""
        if value is None:
            return self.optional or self.default or self.type == "Generator"
        if self.list:
            if isinstance(value, (list, tuple)):
                return all(v is None or self.fits_one(v, strict) for v in value)
            return self.type in ("int", "float", "bool") and self.fits_one(value, strict)
        return self.fits_one(value, strict)

    def fits_one(self, value, strict):
        number = isinstance(value, (bool, int, float, np.generic))
        if self.type == "Tensor":
            return not isinstance(value, (list, tuple, str)) and not (strict and number)
        if self.type in ("Scalar", "float"):
            return number or value in ("inf", "-inf", "nan")
        if self.type == "bool":
            return isinstance(value, (bool, np.bool_))
        if self.type == "int":
            return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
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

    def fits(self, args, kwargs, strict=False):
        if len(args) > self.positional:
            return False
        given = dict(zip((p.name for p in self.params), args))
        if given.keys() & kwargs.keys() or not kwargs.keys() <= self.by_name.keys():
            return False
        given.update(kwargs)
        return all(p.fits(given[p.name], strict) if p.name in given else p.default or p.optional for p in self.params)


@functools.lru_cache(maxsize=None)
def find(op):
    """The schema of an op by its whole name; None if there is none."""
    text = quick.tess_op_schema(op.encode())
    return Schema(op, text.decode()) if text else None


@functools.lru_cache(maxsize=None)
def _names():
    """Every op: {"aten.add": ["aten.add.Tensor", ...]}."""
    known = {}
    for name in iter(map(quick.tess_op_name, itertools.count()).__next__, None):
        name = name.decode()
        known.setdefault(name.rpartition(".")[0], []).append(name)
    for several in known.values():
        several.sort(key=lambda n: (FIRST.index(o) if (o := n.rpartition(".")[2]) in FIRST else len(FIRST), n))
    return known


@functools.lru_cache(maxsize=None)
def _overloads(op):
    op = op.removeprefix("torch.ops.").replace("::", ".")
    for name in (op, "aten." + op):
        exact = find(name)
        if exact:
            return (exact,)
        if name in _names():
            return tuple(find(n) for n in _names()[name])
    return ()


def has(op):
    return bool(_overloads(op))


def names(op):
    """Of the arguments of all overloads."""
    return {name for s in _overloads(op) for name in s.by_name}


def gather_sizes(op, args):
    """Arguments of a method after self: x.repeat(2, 3) is x.repeat([2, 3]), where an op takes a list
    of sizes and nothing else."""
    if len(args) < 2 or not all(isinstance(a, (int, np.integer)) and not isinstance(a, bool) for a in args):
        return args
    known = _overloads(op)
    takes_list = any(s.positional == 2 and s.params[1].list and s.params[1].type == "int" for s in known)
    return (list(args),) if takes_list and not any(s.fits((np.empty(0), *args), {}) for s in known) else args


def resolve(op, args, kwargs):
    """The schema of "aten.add.Tensor"; for "aten.add", "aten::add" or "add" the overload that
    fits the arguments.  None: there is no op like that."""
    known = _overloads(op)
    if len(known) <= 1:
        return known[0] if known else None
    for strict in (True, False):
        for s in known:
            if s.fits(args, kwargs, strict):
                return s
    raise Error(f"no overload of {op} fits these arguments; there are:\n" + "\n".join("  " + s.text for s in known))
