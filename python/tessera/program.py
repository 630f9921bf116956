"""Exported programs (.pt2)."""
import ctypes
import os

import numpy as np

from . import _dtypes
from ._buffers import array_of, is_array, is_torch, tensor_of, torch_of
from ._context import Error, current, scope
from ._library import lib


def program_path(program, folder):
    """The path of a program: its own, or of a file in the folder if it is an ExportedProgram."""
    if isinstance(program, (str, os.PathLike)):
        return os.fspath(program)
    if isinstance(program, Program):
        return program.path
    import torch
    path = os.path.join(folder, "program.pt2")
    torch.export.save(program, path)
    return path


class Program:
    """tessera.open("model.pt2"): call it with its inputs, by position or name.

    inputs: [(name, dtype, sizes)] with None for a size that may vary.  Buffers keep their state
    from call to call.  It belongs to the thread that opened it."""

    def __init__(self, path):
        ctx = current()
        ptr = lib.tess_open(ctx.ptr, os.fsencode(path))
        if not ptr:
            ctx.check()
        self._take(ctx, ptr, os.fspath(path))

    def _take(self, ctx, ptr, path):
        self._ctx, self._ptr, self.path = ctx, ptr, path
        self.inputs = [self._input(i) for i in range(lib.tess_input_count(self._ptr))]
        self.output_count = lib.tess_output_count(self._ptr)

    def _input(self, i):
        code, sizes = ctypes.c_int(), (ctypes.c_int64 * 16)()
        n = lib.tess_input_spec(self._ptr, i, ctypes.byref(code), sizes, 16)
        return lib.tess_input_name(self._ptr, i).decode(), _dtypes.NAMES[code.value], tuple(None if s < 0 else s for s in sizes[:n])

    def _tensor(self, x, dtype):
        """Lists and numbers take the input's dtype; arrays keep theirs, but bf16 is cast to."""
        if not is_array(x):
            x = np.asarray(x, dtype=None if dtype == "bf16" else _dtypes.NUMPY[_dtypes.CODES[dtype]])
        return tensor_of(self._ctx, x, "bf16" if dtype == "bf16" and not is_torch(x) else None)

    def _arrange(self, args, kwargs):
        names = [name for name, _, _ in self.inputs]
        given = dict(zip(names, args))
        twice = given.keys() & kwargs.keys()
        unknown = [k for k in kwargs if k not in names]
        given.update(kwargs)
        missing = [n for n in names if n not in given]
        if len(args) > len(names) or unknown or missing or twice:
            wrong = [f"no input '{k}'" for k in unknown] + [f"'{k}' is missing" for k in missing] + [f"'{k}' is given twice" for k in sorted(twice)]
            raise Error(f"{self.path} takes {', '.join(names) or 'no inputs'}: " + (", ".join(wrong) or f"{len(args)} were given"))
        return [given[n] for n in names]

    def _check_open(self):
        if not self._ptr:
            raise Error(f"{self.path} is closed")
        if self._ctx is not current():
            raise Error(f"{self.path} was opened by another thread", 5)

    def _tensors(self, values):
        """The inputs as a C array, in the open scope."""
        tensors = [self._tensor(v, dtype) for v, (_, dtype, _) in zip(values, self.inputs)]
        return (ctypes.c_void_p * max(1, len(tensors)))(*tensors), len(tensors)

    def run(self, *args, **kwargs):
        """All outputs, as a list of arrays (torch tensors if an input is one; None: no tensor)."""
        self._check_open()
        values, ctx = self._arrange(args, kwargs), self._ctx
        give = torch_of if any(is_torch(v) for v in values) else array_of
        with scope(ctx):
            out = (ctypes.c_void_p * max(1, self.output_count))()
            n = lib.tess_run(self._ptr, *self._tensors(values), out, len(out))
            if n < 0:
                ctx.check()
            return [give(ctx.hold(t)) if t else None for t in out[:n]]

    def __call__(self, *args, **kwargs):
        """Its outputs: one by itself, several as a tuple."""
        out = self.run(*args, **kwargs)
        return out[0] if len(out) == 1 else tuple(out)

    def close(self):
        ptr, self._ptr = self._ptr, None
        if ptr and self._ctx.ptr:
            lib.tess_close(ptr)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __del__(self):
        if getattr(self, "_ptr", None):
            self.close()

    def __repr__(self):
        inputs = ", ".join(f"{n}: {d}[{','.join('?' if s is None else str(s) for s in sizes)}]" for n, d, sizes in self.inputs)
        return f"Program({self.path!r}, {inputs})"
