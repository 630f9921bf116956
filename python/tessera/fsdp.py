"""Fully sharded data parallel: PyTorch's fully_shard (FSDP2), on modules of this library.

    for block in model.blocks:
        tessera.fully_shard(block, mesh=mesh)
    tessera.fully_shard(model, mesh=mesh)
    optimizer = tessera.optim.AdamW(model.parameters())
    ... loss = model(x); loss.backward(); optimizer.step() ...

Parameters, gradients and the optimizer's states are shards; a group is whole only while its module runs.
"""
import ctypes
import json
from dataclasses import dataclass
from typing import Any, Optional

from . import _dtypes
from ._context import Error, current, scope
from ._library import (AllReduceHookFn, D, FsdpEvent, FsdpWatchFn, I, P, S, ShardPlacementFn, lib, quick)
from ._module_call import value_of
from .dtensor import wrap_any
from .module import Module, ModuleDict, ModuleList, module_at
from .placements import Shard

(_GRADIENT_SYNC, _ALL_REDUCE, _LAST_BACKWARD, _RESHARD_AFTER_FORWARD, _RESHARD_AFTER_BACKWARD, _UNSHARD_IN_BACKWARD, _DIVIDE_FACTOR, _FORCE_SUM,
 _REDUCE_UNUSED, _MOST_REDUCTIONS) = range(10)  # TessFsdpSetting
_DEFAULT, _ALWAYS, _NEVER, _TO = range(4)  # TessReshard


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """What parameters are gathered as, gradients are reduced as, outputs are given as; None: as they are."""
    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True


@dataclass(frozen=True)
class OffloadPolicy:
    """folder: shards of parameters lie in a file without a name there, which the system may take out of memory."""
    folder: Optional[str] = None


@dataclass(frozen=True)
class DataParallelMeshDims:
    """Which axes of a larger mesh shard and replicate; a tuple of names is taken as one axis."""
    shard: Any = None
    replicate: Any = None


class _Options(ctypes.Structure):
    _fields_ = [("reshard", I), ("reshard_ranks", I), ("param_dtype", I), ("reduce_dtype", I), ("output_dtype", I), ("keep_inputs", I), ("offload", S),
                ("shard_axes", S), ("replicate_axes", S), ("replicate", I), ("ignored", ctypes.POINTER(S)), ("nignored", I),
                ("placement", ShardPlacementFn), ("placement_arg", P)]


def _names(axes):
    return None if axes is None else axes.encode() if isinstance(axes, str) else ",".join(axes).encode()


def _reshard(how):
    if how is None:
        return _DEFAULT, 0
    if isinstance(how, bool):
        return (_ALWAYS if how else _NEVER), 0
    if isinstance(how, int):
        return _TO, how
    raise Error(f"reshard_after_forward is a bool, an int or None, not {how!r}")


def _ignored_names(modules, ignored):
    """Names, as each of the modules has them, of parameters that are given by name or as they are."""
    names = [p.encode() for p in ignored if isinstance(p, str)]
    objects = [p for p in ignored if not isinstance(p, str)]
    for module in modules if objects else ():
        names += [name.encode() for name, p in module.named_parameters() if any(p is o for o in objects)]
    return names


def _placement_function(fn, mesh, raised):
    """shard_placement_fn as the library calls it: with a parameter, where its dimension and mesh go."""
    def place(ctx, name, param, dim, where, _):
        try:
            found = fn(value_of(current(), param, False))
            if isinstance(found, tuple):
                found, other = found
                where[0] = other._pointer(current())
            if found is not None:
                dim[0] = found.dim if isinstance(found, Shard) else int(found)
            return 0
        except BaseException as e:  # told by fully_shard()
            raised.append(e)
            return 1
    return ShardPlacementFn(place) if fn else ShardPlacementFn()


class FSDPModule:
    """What fully_shard() makes of a module's class: the module is one of these, too."""

    def _set(self, what, value, recurse):
        ctx = current()
        if quick.tess_fsdp_set(ctx.ptr, self._ptr, what, float(value), bool(recurse)) < 0:
            ctx.check()

    def _do(self, function, *more):
        ctx = current()
        with scope(ctx):
            if function(ctx.ptr, self._ptr, *more) < 0:
                ctx.check()

    def unshard(self, async_op=False):
        """Gathers the parameters of this module's group; async_op: returns at once, with a handle to wait()."""
        self._do(lib.tess_fsdp_unshard, not async_op)
        return UnshardHandle(self) if async_op else None

    def reshard(self):
        """Frees gathered parameters; the module has shards again."""
        self._do(lib.tess_fsdp_reshard)

    def reset_iter_state(self):
        """After a forward or backward that raised: as before it; gradients under way are lost.  Of the root."""
        self._do(lib.tess_fsdp_reset)

    def to_empty(self, device=None, recurse=True):
        """Shards of meta parameters get memory, cleared."""
        for module in self.modules() if recurse else [self]:
            if isinstance(module, FSDPModule):
                module._do(lib.tess_fsdp_materialize)
        return self

    def set_is_last_backward(self, is_last_backward):
        self._set(_LAST_BACKWARD, is_last_backward, False)

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        """False: backwards communicate no gradients; they are added up whole until the next that does."""
        self._set(_GRADIENT_SYNC, requires_gradient_sync, recurse)

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        """False: gradients are reduced to shards, not over replicas."""
        self._set(_ALL_REDUCE, requires_all_reduce, recurse)

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        if not isinstance(reshard_after_forward, bool):
            raise Error(f"reshard_after_forward is a bool here, not {reshard_after_forward!r}")
        self._set(_RESHARD_AFTER_FORWARD, reshard_after_forward, recurse)

    def set_reshard_after_backward(self, reshard_after_backward, *, recurse=True):
        self._set(_RESHARD_AFTER_BACKWARD, reshard_after_backward, recurse)

    def set_unshard_in_backward(self, unshard_in_backward):
        self._set(_UNSHARD_IN_BACKWARD, unshard_in_backward, False)

    def set_gradient_divide_factor(self, factor):
        self._set(_DIVIDE_FACTOR, factor, False)

    def set_force_sum_reduction_for_comms(self, enable):
        self._set(_FORCE_SUM, enable, False)

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params, *, recurse=True):
        self._set(_REDUCE_UNUSED, reduce_scatter_unused_params, recurse)

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers, *, recurse=True):
        self._set(_MOST_REDUCTIONS, max_input_buffers, recurse)

    def _prefetch(self, modules, backward):
        ctx, modules = current(), list(modules)
        if any(not isinstance(m, FSDPModule) for m in modules):
            raise Error("only modules that fully_shard() was called with can be gathered ahead")
        if quick.tess_fsdp_prefetch(ctx.ptr, self._ptr, backward, _pointers(modules), len(modules)) < 0:
            ctx.check()

    def set_modules_to_forward_prefetch(self, modules):
        """These start to be gathered when this module has been, in forward."""
        self._prefetch(modules, 0)

    def set_modules_to_backward_prefetch(self, modules):
        """The same in backward, instead of the module that went forward before this one."""
        self._prefetch(modules, 1)

    def set_all_reduce_hook(self, hook, *, stream=None):
        """hook(flat gradients) after they are reduced, before they are divided and cast; it may write to them."""
        ctx = current()

        def call(_, flat, __):
            try:
                hook(wrap_any(ctx, ctx.hold(flat), False))
                return 0
            except BaseException:
                return 1
        vars(self)["_all_reduce_hook"] = kept = AllReduceHookFn(call) if hook else AllReduceHookFn()
        if quick.tess_fsdp_all_reduce_hook(ctx.ptr, self._ptr, kept, None) < 0:
            ctx.check()

    def watch(self, fn):
        """fn(event, group, bytes, op, ranks) at everything that happens to groups in this tree; None: nobody watches."""
        ctx = current()

        def call(event, _):
            e = event.contents
            fn(e.event.decode(), e.group.decode(), e.bytes, e.op.decode(), tuple(e.ranks[:e.nranks]))
        vars(self)["_watch"] = kept = FsdpWatchFn(call) if fn else FsdpWatchFn()
        if quick.tess_fsdp_watch(ctx.ptr, self._ptr, kept, None) < 0:
            ctx.check()

    def groups(self):
        """What this module's groups are: names, states, bytes, and where each parameter stands."""
        ctx = current()
        text = quick.tess_fsdp_json(ctx.ptr, self._ptr)
        if not text:
            ctx.check()
        try:
            return json.loads(ctypes.string_at(text))
        finally:
            quick.tess_free(text)

    def state_dict(self):
        """{name: DTensor}: groups that are gathered are freed before."""
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return super().state_dict()

    def __deepcopy__(self, memo):
        raise TypeError("a fully sharded module cannot be copied: take its state_dict()")

    def __reduce_ex__(self, protocol):
        raise TypeError("a fully sharded module cannot be copied or pickled: take its state_dict()")


class UnshardHandle:
    """What unshard(async_op=True) returns; a forward waits by itself."""

    def __init__(self, module):
        self._module = module

    def wait(self):
        module, self._module = self._module, None
        if module is not None:
            module._do(lib.tess_fsdp_wait)


def _pointers(modules):
    return (ctypes.c_void_p * max(1, len(modules)))(*[m._ptr for m in modules])


_classes = {}  # a module's class: the one that it has when it is fully sharded


def _sharded_class(cls):
    if cls not in _classes:
        _classes[cls] = type("FSDP" + cls.__name__, (FSDPModule, cls), {})
    return _classes[cls]


def fully_shard(module, *, mesh=None, reshard_after_forward=None, shard_placement_fn=None, mp_policy=MixedPrecisionPolicy(), offload_policy=OffloadPolicy(),
                ignored_params=None, dp_mesh_dims=None):
    """Makes a group of the parameters below module (or a list of modules) that no earlier call has taken, and shards
    them over mesh: one axis, or two, [replicas, shards]; None: the current mesh, or all ranks.  Call it from the inside
    out.  Returns module, which is an FSDPModule, too.  (collective)

    reshard_after_forward: True frees parameters after forward and gathers them again for the backward, False keeps them,
    an int keeps shards of groups of so many ranks, None is True but for the root.
    shard_placement_fn(param) gives None, Shard(dim), or (Shard(dim), mesh).
    ignored_params: parameters, or names of them, that are left alone.
    dp_mesh_dims: mesh is larger than data parallelism, and parameters are DTensors on it."""
    modules = [module] if isinstance(module, Module) else list(module)
    for m in modules:
        if isinstance(m, (ModuleList, ModuleDict)) and type(m).forward is Module.forward:
            raise Error(f"{type(m).__name__} has no forward(): shard the modules inside it, or the one around it")
    ctx, raised = current(), []
    how, ranks = _reshard(reshard_after_forward)
    dtypes = [0 if d is None else _dtypes.code_of(d) for d in (mp_policy.param_dtype, mp_policy.reduce_dtype, mp_policy.output_dtype)]
    ignored = _ignored_names(modules, ignored_params or ())
    names = (S * max(1, len(ignored)))(*ignored)
    dims = dp_mesh_dims or DataParallelMeshDims()
    folder = offload_policy.folder if offload_policy else None
    options = _Options(how, ranks, *dtypes, not mp_policy.cast_forward_inputs, None if folder is None else str(folder).encode(), _names(dims.shard),
                       _names(dims.replicate), 0, names, len(ignored), _placement_function(shard_placement_fn, mesh, raised), None)
    with scope(ctx):
        failed = lib.tess_fully_shard(ctx.ptr, _pointers(modules), len(modules), mesh._pointer(ctx) if mesh is not None else None, ctypes.byref(options))
    if raised:
        quick.tess_error_clear(ctx.ptr)
        raise raised[0]
    if failed < 0:
        ctx.check()
    for m in modules:
        if not quick.tess_is_fully_sharded(m._ptr):
            continue  # inside another of the list
        object.__setattr__(m, "__class__", _sharded_class(type(m)))
        for inner in m.modules():
            vars(inner)["_gathers"] = True  # memory of its parameters comes and goes: no arrays on it
    return module


def meta(*size, dtype=None):
    """Sizes without memory, for parameters that are filled when they are shards."""
    ctx = current()
    size = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    code = _dtypes.code_of("float32" if dtype is None else dtype)
    with scope(ctx):
        t = lib.tess_tensor_meta(ctx.ptr, code, len(size), (ctypes.c_int64 * max(1, len(size)))(*size))
        if not t:
            ctx.check()
        return wrap_any(ctx, ctx.hold(t), False)
