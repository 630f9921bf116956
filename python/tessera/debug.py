"""Watching collectives, and insisting on saying them."""
import contextlib
import json

from . import _context
from ._library import lib, quick


# PyTorch's names of collectives, of which CommDebugMode's counts are asked, and ours.
_KINDS = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter", "all_to_all_single": "all_to_all"}


class Counts(dict):
    """{kind: number}.  PyTorch's keys, torch.ops.c10d_functional.all_reduce, are understood; 0 for a kind that
    did not happen."""

    def __missing__(self, key):
        name = str(key).removesuffix(".default").rpartition(".")[2]
        return self.get(_KINDS.get(name, name), 0)


class comm_debug:
    """with comm_debug() as log: counts the collectives of DTensors that this rank makes inside.

    log.total(), log.counts {"all_reduce": 2}, log.events [{"kind", "bytes", "why"}] with the op
    that caused each; readable inside and afterwards.  They nest."""

    def __init__(self):
        self._counts, self._events, self._ctx = {}, [], None

    def __enter__(self):
        ctx = _context.current()
        self._counts, self._events, self._ctx = {}, [], ctx
        self._begin()
        ctx.logs.append(self)
        return self

    def __exit__(self, *exc):
        logs = self._ctx.logs
        while logs:
            last = logs.pop()
            last._end()
            if last is self:
                break
        self._ctx = None

    def _begin(self):
        if lib.tess_comm_debug_begin(self._ctx.ptr) < 0:
            self._ctx.check()

    def _end(self):
        noted = json.loads(self._ctx.text(lib.tess_comm_debug_end(self._ctx.ptr)))
        for kind, n in noted["counts"].items():
            self._counts[kind] = self._counts.get(kind, 0) + n
        self._events += noted["events"]

    def _look(self):
        """The library tells at the end only: end this one and those inside it, and go on."""
        if self._ctx is None or not self._ctx.ptr or self not in self._ctx.logs:
            return
        inner = self._ctx.logs[self._ctx.logs.index(self):]
        for log in reversed(inner):
            log._end()
        for log in inner:
            log._begin()

    @property
    def counts(self):
        self._look()
        return Counts(self._counts)

    @property
    def events(self):
        self._look()
        return list(self._events)

    def total(self):
        return sum(self.counts.values())

    get_total_counts = total

    def get_comm_counts(self):
        return self.counts

    def __repr__(self):
        return f"{type(self).__name__}({self.counts})"


class CommDebugMode(comm_debug):
    """PyTorch's name of comm_debug: get_comm_counts(), get_total_counts()."""


@contextlib.contextmanager
def explicit_redistribution(strict=False):
    """Inside, an op that would have to communicate to move its inputs is an error; strict: also
    one that would move them without communication."""
    ctx = _context.current()
    former = quick.tess_explicit_redistribution(ctx.ptr, 2 if strict else 1)
    try:
        yield
    finally:
        if ctx.ptr:
            quick.tess_explicit_redistribution(ctx.ptr, former)


@contextlib.contextmanager
def implicit_replication():
    """Inside, plain arrays meet DTensors as replicated."""
    ctx = _context.current()
    former = quick.tess_implicit_replication(ctx.ptr, 1)
    try:
        yield
    finally:
        if ctx.ptr:
            quick.tess_implicit_replication(ctx.ptr, former)


def flight():
    """The last collectives of this rank, as the library noted them."""
    ctx = _context.current()
    return json.loads(ctx.text(lib.tess_flight_json(ctx.ptr)))
