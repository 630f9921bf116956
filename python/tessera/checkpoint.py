"""Checkpoints of any format: state_dicts out of them and into them, and checkpoints made of others.

    import tessera as ts

    ts.checkpoint.save(model.state_dict(), "model/", format="hf")
    state = ts.checkpoint.load("checkpoint/", torch=True)      # of torch.distributed.checkpoint, for example
    ts.checkpoint.convert("checkpoint/", "model/", to="hf", dtype="bf16")
    ts.checkpoint.reshard("model/", "sharded/", mesh="dp=2,tp=4", plan="plan.json")
"""
import ctypes
import json
import os

from . import _buffers
from ._context import Error, current, scope
from ._library import lib, quick
from ._settings import text_array
from .shard import _mesh_text

__all__ = ["Checkpoint", "convert", "load", "reshard", "save"]


class _Change(ctypes.Structure):
    _fields_ = [("source", ctypes.POINTER(ctypes.c_char_p)), ("sources", ctypes.c_int)] + [
        (name, ctypes.c_char_p) for name in ("output", "to", "mesh", "plan", "dtype", "select", "drop")] + [
        ("rename", ctypes.POINTER(ctypes.c_char_p)), ("renames", ctypes.c_int), ("program", ctypes.c_char_p), ("memory", ctypes.c_uint64),
        ("shard_bytes", ctypes.c_uint64), ("threads", ctypes.c_int), ("force", ctypes.c_int), ("dry_run", ctypes.c_int)]


def _flatten(state, prefix=""):
    """Nested dicts with dots between their keys; what is no tensor is an error."""
    flat = {}
    for key, value in state.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat.update(_flatten(value, name + "."))
        elif hasattr(value, "_pointer") or _buffers.is_array(value):
            flat[name] = value
        else:
            raise Error(f"'{name}' is no tensor but {type(value).__name__}: checkpoints hold tensors")
    return flat


class Checkpoint:
    """One that is there, opened: a mapping from names to tensors, which are read when they are asked for."""

    def __init__(self, path):
        self._ctx = current()
        self._ptr = lib.tess_checkpoint_open(self._ctx.ptr, os.fsencode(path))
        if not self._ptr:
            self._ctx.check()
        self.names = [quick.tess_checkpoint_name(self._ptr, i).decode() for i in range(quick.tess_checkpoint_count(self._ptr))]

    def __del__(self):
        ptr, self._ptr = getattr(self, "_ptr", None), None
        if ptr:
            quick.tess_checkpoint_close(ptr)

    def keys(self):
        return list(self.names)

    def __len__(self):
        return len(self.names)

    def __iter__(self):
        return iter(self.names)

    def __contains__(self, name):
        return name in self.names

    def _handle(self, name):
        with scope(self._ctx):
            return self._ctx.hold(lib.tess_checkpoint_load(self._ctx.ptr, self._ptr, name.encode()))

    def __getitem__(self, name):
        """An array; bf16 is widened to float32."""
        return _buffers.array_of(self._handle(name))

    def torch(self, name):
        """A torch tensor."""
        return _buffers.torch_of(self._handle(name))

    def fill(self, name, into):
        """Into an array, a torch tensor or a DTensor, this rank's shard of it, whatever mesh and dtype was saved."""
        with scope(self._ctx):
            t = _buffers.tensor_of(self._ctx, into, may_copy=False)
            if lib.tess_checkpoint_fill(self._ctx.ptr, self._ptr, name.encode(), t):
                self._ctx.check()
        return into

    def verify(self):
        """Raises (code 6) unless all tensors are whole and, where there are checksums, their bytes those that were saved."""
        if lib.tess_checkpoint_verify(self._ctx.ptr, self._ptr):
            self._ctx.check()


def load(path, into=None, names=None, torch=False):
    """The tensors of a checkpoint by name, as arrays or torch tensors.  into: a state_dict, nested or flat, whose
    tensors are filled in place instead (DTensors: this rank's shard); it is returned."""
    c = Checkpoint(path)
    if into is not None:
        for name, value in _flatten(into).items():
            c.fill(name, value)
        return into
    return {name: c.torch(name) if torch else c[name] for name in (c.names if names is None else names)}


def save(state, path, format=None, force=False):
    """A state_dict of arrays, torch tensors or DTensors; nested dicts have dots in the names.  format: "tessera", "hf",
    "safetensors", "dcp"; None: by the name of the path.  On several ranks all call it, and each writes what it holds."""
    ctx, flat = current(), _flatten(state)
    with scope(ctx):
        tensors = [_buffers.tensor_of(ctx, value) for value in flat.values()]
        pointers = (ctypes.c_void_p * max(1, len(tensors)))(*tensors)
        if lib.tess_checkpoint_save(ctx.ptr, os.fsencode(path), None if format is None else format.encode(), text_array(list(flat)), pointers,
                                    len(tensors), bool(force)):
            ctx.check()


def _list(patterns):
    return None if patterns is None else (patterns if isinstance(patterns, str) else ",".join(patterns)).encode()


def convert(source, output, to=None, mesh=None, plan=None, dtype=None, select=None, drop=None, rename=None, program=None, memory=0, max_shard_size=0,
            threads=0, force=False, dry_run=False):
    """A checkpoint made of another, or of the average of a list of them, as `tessera ckpt convert` makes it.  rename:
    {"transformer.*": "model.*"}.  What was written: {"path", "format", "tensors", "bytes", "files"}."""
    ctx = current()
    sources = [os.fsencode(s) for s in ([source] if isinstance(source, (str, bytes, os.PathLike)) else source)]
    renames = [f"{a}={b}".encode() for a, b in (rename or {}).items()]
    text = lambda v: None if v is None else os.fsencode(v)
    change = _Change((ctypes.c_char_p * max(1, len(sources)))(*sources), len(sources), text(output), text(to), text(_mesh_text(mesh)), text(plan),
                     text(dtype), _list(select), _list(drop), (ctypes.c_char_p * max(1, len(renames)))(*renames), len(renames), text(program), memory,
                     max_shard_size, threads, bool(force), bool(dry_run))
    return json.loads(ctx.text(lib.tess_checkpoint_change(ctx.ptr, ctypes.byref(change))))


def reshard(source, output, mesh, plan=None, to="tessera", **options):
    """The same for another mesh: a file per rank, replicas once.  plan: a file; without one dimension 0 is cut."""
    return convert(source, output, to=to, mesh=mesh, plan=plan, **options)
