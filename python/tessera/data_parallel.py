"""Data parallel: DistributedDataParallel of PyTorch, on a module of this library."""
import contextlib
import ctypes
import sys

from ._context import Error, current, scope
from ._library import D, I, lib, quick
from .mesh import current_mesh
from .module import Module


class _Replicas(ctypes.Structure):
    _fields_ = [("bucket_mb", D), ("find_unused", I), ("own_buffers", I), ("own_parameters", I), ("bf16", I)]


class DistributedDataParallel(Module):
    """A module whose gradients are averaged over an axis of ranks, each of which has batches of its own.

        model = tessera.DistributedDataParallel(model, mesh["dp"])
        loss = f(model(x)); loss.backward()      # .grad of all parameters are averages

    Gradients go in buckets of bucket_cap_mb, while the backward goes on.  Parameters are those of coordinate 0 at the
    beginning (init_sync), buffers before every forward with gradients (broadcast_buffers).  Parameters may be DTensors of
    other axes, as parallelize_module() leaves them: do that first.  compress="bf16": gradients travel as bf16.
    (collective)"""

    def __init__(self, module, device_mesh=None, *, bucket_cap_mb=25, find_unused_parameters=False, broadcast_buffers=True, init_sync=True,
                 compress=None):
        mesh = device_mesh if device_mesh is not None else current_mesh()
        if mesh is None:
            raise Error("no mesh is given and none is current")
        if compress not in (None, "bf16"):
            raise Error(f"compress is None or 'bf16', not {compress!r}")
        ctx = current()
        vars(self)["_context"], vars(self)["_replicas"] = ctx, None
        self.module = module
        how = _Replicas(bucket_cap_mb, find_unused_parameters, not broadcast_buffers, not init_sync, compress == "bf16")
        with scope(ctx):
            vars(self)["_replicas"] = lib.tess_data_parallel(ctx.ptr, module._ptr, mesh._pointer(ctx), ctypes.byref(how))
        if not self._replicas:
            ctx.check()

    def __del__(self, finalizing=sys.is_finalizing):
        replicas = vars(self).pop("_replicas", None)
        if replicas and not finalizing():
            quick.tess_data_parallel_free(replicas)
        super().__del__()

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)

    @property
    def bucket_count(self):
        return quick.tess_data_parallel_buckets(self._replicas)

    @contextlib.contextmanager
    def no_sync(self):
        """Inside, gradients are added up on this rank alone; the next backward outside averages all of it."""
        former = quick.tess_data_parallel_sync(self._replicas, 0)
        try:
            yield
        finally:
            if self._context.ptr:
                quick.tess_data_parallel_sync(self._replicas, former)

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size=True, enable=True):
        """Inside, ranks may have different numbers of batches: one that is done takes part in the collectives of the
        others until all are, and then has their parameters.  divide_by_initial_world_size=False: sums of gradients are
        divided by the ranks that still have batches.  (collective)"""
        ctx = self._context
        if enable and lib.tess_data_parallel_join_begin(self._replicas, not divide_by_initial_world_size) < 0:
            ctx.check()
        yield self
        if enable and lib.tess_data_parallel_join_end(self._replicas) < 0:
            ctx.check()

    def __reduce_ex__(self, protocol):
        raise TypeError("a DistributedDataParallel module cannot be copied or pickled: take its .module")

    __deepcopy__ = None
