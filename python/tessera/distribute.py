"""distribute_module(): the tensors of a tree of modules, spread."""
import inspect

from ._context import Error, current
from ._library import PartitionFn, lib
from ._module_call import Call, kept
from .mesh import current_mesh, one_mesh
from .module import Module, ModuleDict, ModuleList, module_at


class _Function(Module):
    """A function with the hooks of a module."""

    def __init__(self, fn):
        self.forward = fn


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


def _tree_of(module):
    """The Module that a module, dict or function is."""
    if isinstance(module, Module):
        return module
    if type(module).__module__.startswith("torch.") or any(c.__module__ == "torch.nn.modules.module" for c in type(module).__mro__):
        raise TypeError(f"{type(module).__name__} is a module of torch, whose forward() takes tensors of torch only: write it as a tessera.Module, give its "
                        "parameters as a dict (dict(module.named_parameters())), or cut its exported program with tessera.shard()")
    if isinstance(module, dict):
        return ModuleDict(module)
    if not callable(module):
        raise Error(f"{type(module).__name__} is no Module, dict of arrays or function")
    return _Function(module)


def _write_back(given, tree):
    """The dict that was given gets what became of its arrays."""
    for key, value in (given.items() if isinstance(given, dict) else enumerate(given)):
        became = tree[key]
        if isinstance(became, (ModuleDict, ModuleList)) and isinstance(value, (dict, list, tuple)):
            _write_back(value, became)
        elif became is not value:
            given[key] = became


def _partition(tree, mesh, fn):
    call = Call(current())

    @PartitionFn
    @kept(1)
    def each(_, path, m, __, ___):
        module = module_at(m)
        vars(module)["_home"] = call.ctx
        if fn and not isinstance(module, ModuleList):
            fn(path.decode(), module, mesh)
        return 0

    call.run(lib.tess_distribute_module, call.ctx.ptr, tree._ptr, mesh._pointer(call.ctx), each, None, None, None)


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None, *, mesh=None):
    """Spreads the parameters of a module: a Module, a (nested) dict of arrays, or any function.

    partition_fn(path, module, mesh) is called on every module, root first (path ""), and may replace
    its arrays by DTensors; arrays that are left are replicated from coordinate 0.  input_fn(module,
    inputs, mesh) may return other inputs before forward(), output_fn(module, outputs, mesh) other
    outputs after it.  Returns the module, changed in place (a function: one around it).  Once per
    module.  Modules of torch are refused.  (collective)"""
    mesh = one_mesh(device_mesh, mesh) or current_mesh()
    if mesh is None:
        raise Error("no mesh is given and none is current")
    tree = _tree_of(module)
    input_fn, output_fn = _with_module(input_fn, "input_fn"), _with_module(output_fn, "output_fn")
    if isinstance(module, dict) and (input_fn or output_fn):
        raise Error("a dict has no forward(): input_fn and output_fn need a Module or a function")
    _partition(tree, mesh, partition_fn)
    if input_fn:
        tree.register_forward_pre_hook(lambda m, inputs: input_fn(m, inputs, mesh))
    if output_fn:
        tree.register_forward_hook(lambda m, inputs, outputs: output_fn(m, outputs, mesh))
    if isinstance(module, dict):
        _write_back(module, tree)
        return module
    return tree
