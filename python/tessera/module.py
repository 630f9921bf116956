"""Modules: named arrays in a tree, and distribute_module() over them."""
import inspect

from ._buffers import is_array
from ._context import Error
from .dtensor import DTensor, distribute_tensor
from .mesh import current_mesh


class Module:
    """Attributes that are arrays or DTensors are its parameters, attributes that are Modules (or
    lists and dicts of them) its children; forward() is what a call does.

        class Linear(ts.Module):
            def __init__(self, weight):
                self.weight = weight
            def forward(self, x):
                return x @ self.weight.T
    """

    _hooks = None

    def forward(self, *inputs, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *inputs, **kwargs):
        if self._hooks is None:
            return self.forward(*inputs, **kwargs)
        input_fn, output_fn, mesh = self._hooks
        if input_fn:
            changed = input_fn(self, inputs, mesh)
            inputs = inputs if changed is None else changed if isinstance(changed, tuple) else (changed,)
        outputs = self.forward(*inputs, **kwargs)
        changed = output_fn(self, outputs, mesh) if output_fn else None
        return outputs if changed is None else changed

    def named_modules(self):
        """(path, module) of this and all inside, this first: ("", self), ("mlp", ...), ("mlp.up", ...)."""
        yield from _modules("", self, set())

    def named_parameters(self):
        for path, module in self.named_modules():
            for name, value in _arrays(module):
                yield f"{path}.{name}" if path else name, value


def _items(module):
    return list((module if isinstance(module, dict) else vars(module)).items())


def _arrays(module):
    return [(str(k), v) for k, v in _items(module) if is_array(v) or isinstance(v, DTensor)]


def _children(value, path):
    if isinstance(value, (Module, dict)):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _children(inner, f"{path}.{i}")


def _modules(path, module, seen):
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, value in _items(module):
        if name != "_hooks":
            for inner_path, inner in _children(value, f"{path}.{name}" if path else str(name)):
                yield from _modules(inner_path, inner, seen)


def _put(module, name, value):
    if isinstance(module, dict):
        module[name] = value
    else:
        setattr(module, name, value)


def _with_module(hook, what):
    """hook(module, values, mesh); hook(values, mesh) is understood too, others are refused."""
    if hook is None:
        return None
    try:
        taken = [p for p in inspect.signature(hook).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):
        return hook
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in taken) or len(taken) == 3:
        return hook
    if len(taken) == 2:
        return lambda module, values, mesh: hook(values, mesh)
    raise Error(f"{what} takes 3 arguments (module, {what.split('_')[0]}s, mesh), not {len(taken)}")


class _Hooked(Module):
    """A function with the hooks of a module."""

    def __init__(self, fn):
        self.forward = fn


def distribute_module(module, mesh=None, partition_fn=None, input_fn=None, output_fn=None):
    """Spreads the parameters of a module: a Module, a (nested) dict of arrays, or any function.

    partition_fn(path, module, mesh) is called on every module, root first (path ""), and may replace
    its arrays by DTensors; arrays that are left are replicated from coordinate 0.  input_fn(module,
    inputs, mesh) may return other inputs before forward(), output_fn(module, outputs, mesh) other
    outputs after it.  Returns the module, changed in place (a function: one around it).  Once per
    module.  (collective)"""
    mesh = mesh if mesh is not None else current_mesh()
    if mesh is None:
        raise Error("no mesh is given and none is current")
    if not isinstance(module, (Module, dict)):
        if not callable(module):
            raise Error(f"{type(module).__name__} is no Module, dict of arrays or function")
        module = _Hooked(module)
    input_fn, output_fn = _with_module(input_fn, "input_fn"), _with_module(output_fn, "output_fn")
    if isinstance(module, dict) and (input_fn or output_fn):
        raise Error("a dict has no forward(): input_fn and output_fn need a Module or a function")
    if getattr(module, "_hooks", None) is not None:
        raise Error("this module is distributed already")
    for path, inner in list(_modules("", module, set())):
        if partition_fn:
            partition_fn(path, inner, mesh)
        for name, value in _arrays(inner):
            if not isinstance(value, DTensor):
                _put(inner, name, distribute_tensor(value, mesh, None))
    if isinstance(module, Module):
        module._hooks = (input_fn, output_fn, mesh)
    return module
