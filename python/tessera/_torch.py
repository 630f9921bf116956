"""Functions of torch on DTensors of tessera: torch.relu(x), torch.nn.functional.linear(x, w).

torch gives a function that meets an argument of another library to __torch_function__ of that; here
it becomes the ATen op of the function's name.  Functions of torch that are C++ take the op's own
arguments; those that are Python have arguments of their own, which are matched by name.
"""
import inspect

from . import _schema
from ._call import call

_OTHER_NAMES = {"input": ("self", "indices"), "tensor": ("self",), "training": ("train",)}  # torch.nn.functional's: ATen's
_REDUCTIONS = ("none", "mean", "sum")  # numbers in ATen


def _by_name(func, op, args, kwargs):
    """Arguments of a Python function as those of the op; what the op lacks must be at its default."""
    signature, known = inspect.signature(func), _schema.names(op)
    taken = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        ours = next((n for n in (name, *_OTHER_NAMES.get(name, ())) if n in known), None)
        if ours is not None:
            taken[ours] = _REDUCTIONS.index(value) if name == "reduction" and value in _REDUCTIONS else value
        elif value is not signature.parameters[name].default:
            raise TypeError(f"{func.__name__}: argument '{name}' is none of {op}; tessera.call({op!r}, ...) takes {', '.join(sorted(known))}")
    return taken


def torch_function(func, args, kwargs):
    name = getattr(func, "__name__", str(func))
    if name.startswith("__"):
        return NotImplemented  # an operator: that of the DTensor is tried then
    op = "aten." + name
    if not _schema.has(op):
        raise TypeError(f"torch's {name} is no op that DTensors of tessera take; tessera.call() takes ATen's by name, to_local() is a tensor of torch")
    if inspect.isfunction(func):
        args, kwargs = (), _by_name(func, op, args, kwargs)
    return call(op, *args, **kwargs)
