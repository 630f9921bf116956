"""Contexts, errors, and the rank that a process is.

A Context is what a rank knows; every thread has a current one.  Outside of run_ranks() it is
a rank by itself that is made when first needed.  Handles (of tensors) are counted by Python:
each is released when its last user is gone, by whatever thread; everything that a call makes
on the way lives in a scope of that call.  run_ranks() is in _ranks.py.
"""
import atexit
import ctypes
import numbers
import os
import re
import sys
import threading

from ._library import lib, quick


class Error(RuntimeError):
    """Something that libtessera refused.  code: 1 failure, 2 usage, 3 bad file, 4 difference,
    5 a rank or collective, 6 checkpoint."""

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


class RankError(Error):
    """A rank raised: .rank, .errors {rank: exception} of all that failed, .results with None
    for these.  __cause__ is what the first one raised."""

    def __init__(self, message, rank, results, errors):
        super().__init__(message, 5)
        self.rank, self.results, self.errors = rank, results, errors

    @classmethod
    def of(cls, n, rank, cause, message=None, results=(), errors=None):
        """What `rank` raised, unless that, or the message, tells of a failure of another."""
        where = re.compile(rf"rank (\d+) of {n}: ")
        message = message or (str(cause) if isinstance(cause, Error) and where.match(str(cause)) else f"rank {rank} of {n}: {told(cause)}")
        first = where.match(message)
        return cls(message, int(first.group(1)) if first else rank, list(results), errors or {rank: cause})


Error.__module__ = RankError.__module__ = "tessera"  # where users find them


class Handle:
    """Owns one tensor of the library."""

    __slots__ = ("ptr", "__weakref__")

    def __init__(self, ptr):
        self.ptr = ptr

    def __del__(self, release=quick.tess_release, finalizing=sys.is_finalizing):
        if not finalizing():
            release(self.ptr)


class Context:
    def __init__(self, ptr, joined=False):
        if not ptr:
            raise MemoryError("no memory for a context")
        self.ptr = ptr
        self.joined = joined  # in a hub: leaves it instead of being freed
        self.thread = threading.get_ident()
        self.meshes = {}  # address: Mesh
        self.groups = set()  # names that Mesh.get_group() has defined
        self.moving = []  # redistributions that were started and not waited for, oldest first
        self.logs = []    # open comm_debug()s, innermost last
        self.results = None  # room for results of calls
        self.raised = self.replacement = None  # by a hook: an exception; a gradient, which stays until the next
        self.check()
        self.rank, self.world_size = quick.tess_rank(ptr), quick.tess_world_size(ptr)

    def check(self):
        """Raises the error that sticks to the context, if there is one, and clears it."""
        code = quick.tess_error(self.ptr)
        if code:
            message = quick.tess_error_message(self.ptr).decode(errors="replace")
            quick.tess_error_clear(self.ptr)
            raise Error(message, code)

    def hold(self, ptr):
        """A handle of one's own of a result; raises if there is none."""
        if ptr:
            held = quick.tess_hold(self.ptr, ptr)
            if held:
                return Handle(held)
        self.check()
        raise Error("no result", 1)

    def wait_all(self):
        """What nobody has waited for ends here."""
        with scope(self):
            for work, _ in self.moving:
                lib.tess_redistribute_wait(work)
        quick.tess_error_clear(self.ptr)
        self.moving = []

    def text(self, ptr):
        """A C string that is ours to free, as str."""
        if not ptr:
            self.check()
            raise Error("no result", 1)
        try:
            return ctypes.string_at(ptr).decode()
        finally:
            quick.tess_free(ptr)

    def leave(self, failure=None):
        if self.ptr and self.moving:
            if failure is not None:  # the others may never start theirs: they are told first
                lib.tess_fail(self.ptr, failure.encode(errors="replace"))
            self.wait_all()
        ptr, self.ptr = self.ptr, None
        if not ptr:
            return
        if self.joined:
            lib.tess_hub_leave(ptr, None if failure is None else failure.encode(errors="replace"))
        else:
            lib.tess_ctx_free(ptr)

    def __del__(self, finalizing=sys.is_finalizing):
        if getattr(self, "ptr", None) and not self.joined and not finalizing():
            self.leave()


class scope:
    """with scope(ctx): what the library makes inside is freed at the end."""

    __slots__ = ("ctx", "open")

    def __init__(self, ctx):
        self.ctx = ctx

    def __enter__(self):
        self.open = quick.tess_scope_begin(self.ctx.ptr)

    def __exit__(self, *exc):
        quick.tess_scope_end(self.ctx.ptr, self.open)


class _Local(threading.local):
    current = None
    planner = None
    place = None  # (run, rank) of a thread that run_ranks() made


local = _Local()


def current():
    ctx = local.current
    if ctx is None:
        ctx = local.current = Context(lib.tess_ctx_new(0))
        if threading.current_thread() is threading.main_thread():
            atexit.register(ctx.leave)
    return ctx


def planner():
    """The thread's context that plans."""
    ctx = local.planner
    if ctx is None:
        ctx = local.planner = Context(lib.tess_ctx_plan())
        if threading.current_thread() is threading.main_thread():
            atexit.register(ctx.leave)
    return ctx


def rank():
    return current().rank


def world_size():
    return current().world_size


def manual_seed(seed):
    """Random ops of this rank count from here.  Give all ranks the same seed."""
    lib.tess_manual_seed(current().ptr, seed & (2**64 - 1))


def barrier():
    """Waits for all ranks of the world."""
    ctx = current()
    if lib.tess_barrier(ctx.ptr) < 0:
        ctx.check()


def define_group(name, *lists):
    """Collectives of programs that name this group go to these ranks: define_group("tp", [0, 1], [2, 3]),
    where each rank is in one of the lists.  Every rank calls it.  Without any definition every name means
    all ranks."""
    ctx = current()
    for ranks in lists:
        if lib.tess_define_group(ctx.ptr, name.encode(), (ctypes.c_int * max(1, len(ranks)))(*ranks), len(ranks)) < 0:
            ctx.check()


def set_timeout(seconds):
    """Seconds that this rank waits for others before it names the missing and ends the run with
    that error; 0: for ever.  1800 unless set."""
    if not isinstance(seconds, numbers.Real) or not seconds >= 0:
        raise Error(f"a timeout is a number of seconds from 0 (never) on, not {seconds!r}")
    lib.tess_set_timeout(current().ptr, seconds)


def set_flight(path):
    """If the run fails, the last 2000 collectives of all ranks go to this file as JSON (under MPI
    to one each, with "." and the rank behind the name).  None: nowhere."""
    ctx = current()
    if lib.tess_set_flight(ctx.ptr, None if path is None else os.fsencode(path)) < 0:
        ctx.check()


def random_state():
    """Seed and place in the stream of random numbers, 16 bytes."""
    state = ctypes.create_string_buffer(16)
    quick.tess_random_state(current().ptr, state)
    return state.raw


def set_random_state(state):
    """Random ops go on from there.  Give all ranks the same."""
    state = bytes(state)
    if len(state) != 16:
        raise Error(f"a random state has 16 bytes, not {len(state)}")
    quick.tess_set_random_state(current().ptr, state)


def settings(timeout, flight):
    if timeout is not None:
        set_timeout(timeout)
    if flight is not None:
        set_flight(flight)


# ---- ranks of an MPI launch -------------------------------------------------------------------

_launch = None  # the context of this process's rank: one in its life


def mpi_launched():
    """Was this process started by an MPI launcher?"""
    return bool(quick.tess_mpi_launched())


def told(e):
    return f"{type(e).__name__}: {e}"


def init(threads=None, timeout=None, flight=None):
    """Under mpirun, makes this process the rank that it was started as: rank(), world_size(), and
    all that is collective, are those of the launch from here on.  Started otherwise, it is a rank
    by itself.  An exception that nobody catches releases the other ranks with its message.

    threads: of this rank; None: the cores divided among the ranks of a host.  timeout, flight:
    set_timeout(), set_flight()."""
    global _launch
    if _launch is None and mpi_launched():
        _launch = Context(lib.tess_ctx_mpi(threads or 0))
        atexit.register(_launch.leave)
        before = sys.excepthook

        def tell_others(kind, e, trace):
            if _launch.ptr:
                lib.tess_fail(_launch.ptr, told(e).encode(errors="replace"))
            before(kind, e, trace)
        sys.excepthook = tell_others
    if _launch is not None:
        local.current = _launch
    settings(timeout, flight)


def settle(result):
    """Results that leave their rank: DTensors among them fetch what they need of it."""
    if isinstance(result, (list, tuple)):
        for r in result:
            settle(r)
    elif isinstance(result, dict):
        for r in result.values():
            settle(r)
    elif hasattr(result, "_settle"):
        result._settle()
    return result
