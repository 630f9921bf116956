"""Contexts, errors and thread ranks.

A Context is what a rank knows; every thread has a current one.  Outside of run_ranks() it is
a rank by itself that is made when first needed.  Handles (of tensors) are counted by Python:
each is released when its last user is gone, by whatever thread; everything that a call makes
on the way lives in a scope of that call.
"""
import atexit
import ctypes
import inspect
import os
import pickle
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
        message = message or (str(cause) if isinstance(cause, Error) and where.match(str(cause)) else f"rank {rank} of {n}: {_told(cause)}")
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
        self.logs = []    # open comm_debug()s, innermost last
        self.results = None  # room for results of calls
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


_local = _Local()


def current():
    ctx = _local.current
    if ctx is None:
        ctx = _local.current = Context(lib.tess_ctx_new(0))
        if threading.current_thread() is threading.main_thread():
            atexit.register(ctx.leave)
    return ctx


def planner():
    """The thread's context that plans."""
    ctx = _local.planner
    if ctx is None:
        ctx = _local.planner = Context(lib.tess_ctx_plan())
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


def _settings(timeout, flight):
    if timeout is not None:
        set_timeout(timeout)
    if flight is not None:
        set_flight(flight)


# ---- ranks of an MPI launch -------------------------------------------------------------------

_launch = None  # the context of this process's rank: one in its life


def mpi_launched():
    """Was this process started by an MPI launcher?"""
    return bool(quick.tess_mpi_launched())


def _told(e):
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
                lib.tess_fail(_launch.ptr, _told(e).encode(errors="replace"))
            before(kind, e, trace)
        sys.excepthook = tell_others
    if _launch is not None:
        _local.current = _launch
    _settings(timeout, flight)


def _gather(ctx, result):
    """Results of all ranks; None for those that cannot be pickled."""
    import numpy as np
    from .dtensor import from_local
    from .mesh import init_device_mesh
    try:
        data = pickle.dumps(result)
    except Exception:
        data = b""
    mesh = init_device_mesh(ctx.world_size)
    sizes = from_local(np.array([len(data)]), mesh, "S(0)").full_tensor()
    row = np.zeros((1, max(1, sizes.max())), np.uint8)
    row[0, :len(data)] = np.frombuffer(data, np.uint8)
    rows = from_local(row, mesh, "S(0)").full_tensor()
    results = [pickle.loads(r[:n].tobytes()) if n else None for r, n in zip(rows, sizes)]
    results[ctx.rank] = result
    return results


def _run_launched(n, fn, args, kwargs, threads, timeout, flight):
    """run_ranks() of a process that is a rank already."""
    init(threads, timeout, flight)
    ctx = _launch
    if n is not None and n != ctx.world_size:
        raise Error(f"{ctx.world_size} processes were launched, {n} ranks are wanted; comm='threads' makes thread ranks of this process")
    try:
        return _gather(ctx, fn(ctx.rank, *args, **kwargs) if _takes_rank(fn, args, kwargs) else fn(*args, **kwargs))
    except BaseException as e:
        lib.tess_fail(ctx.ptr, _told(e).encode(errors="replace"))
        raise RankError.of(ctx.world_size, ctx.rank, e) from e


# ---- run_ranks ------------------------------------------------------------------------------


def _takes_rank(fn, args, kwargs):
    """Does fn want its rank as one more argument, in front?"""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(*args, **kwargs)
        return False
    except TypeError:
        pass
    try:
        signature.bind(0, *args, **kwargs)
        return True
    except TypeError:
        return False  # the call itself will tell what is wrong


class _Run:
    """One run_ranks(): the hub and what came of the ranks."""

    def __init__(self, n, fn, args, kwargs, threads, settings):
        self.n, self.fn, self.args, self.kwargs, self.threads, self.settings = n, fn, args, kwargs, threads, settings
        self.message = ""
        self.takes_rank = _takes_rank(fn, args, kwargs)
        self.results = [None] * n
        self.errors = {}  # in the order in which they came
        self.hub = lib.tess_hub_new(n)
        if not self.hub:
            raise MemoryError(f"no memory for {n} ranks")

    def rank(self, r):
        ctx = failure = None
        try:
            ctx = Context(lib.tess_hub_join(self.hub, r, self.threads), joined=True)
            _local.current = ctx
            _settings(*self.settings)
            args = (r, *self.args) if self.takes_rank else self.args
            self.results[r] = settle(self.fn(*args, **self.kwargs))
        except BaseException as e:  # also KeyboardInterrupt: the others must be released
            self.errors[r] = e
            failure = _told(e)
        finally:
            _local.current = _local.planner = None
            if ctx:
                ctx.leave(failure)

    def wait(self, threads):
        try:
            for t in threads:
                t.join()
        except BaseException as e:  # Ctrl-C: every rank gets it, between two calls of the library
            for t in threads:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(t.ident), ctypes.py_object(type(e)))
            for t in threads:
                t.join()
            raise

    def outcome(self):
        if not self.errors:
            return self.results
        rank, cause = next(iter(self.errors.items()))
        told = RankError.of(self.n, rank, cause, self.message, self.results, self.errors)
        raise told from self.errors.get(told.rank, cause)


def run_ranks(n, fn, *args, threads=None, timeout=None, flight=None, comm=None, **kwargs):
    """Calls fn(*args, **kwargs) on n thread ranks and returns the list of their results.  If fn
    takes one argument more, it gets the rank in front: fn(rank, *args).

    threads: of each rank for its own work; None: the cores divided among the ranks.
    timeout: seconds after which a waiting rank names the missing and all end (1800; 0: never).
    flight: a file for the last collectives of all ranks, as JSON, if the run fails.
    A rank that raises releases the others from whatever they wait for; then RankError is
    raised from the first exception.  DTensors among the results keep their shard (to_local,
    shape, placements) but can take part in no more ops: their ranks are gone.

    Under mpirun -n N (comm=None, or "mpi") this process is one of the ranks: fn is called once,
    n must be N or None, and every process returns the results of all (None for those of other
    processes that cannot be pickled).  comm="threads": thread ranks, also there."""
    if comm not in (None, "threads", "mpi"):
        raise Error(f"comm is 'threads' or 'mpi', not {comm!r}")
    if comm == "mpi" and not mpi_launched():
        raise Error("this process was not started by an MPI launcher: mpirun -n 4 python3 ...")
    if comm != "threads" and mpi_launched():
        return _run_launched(n, fn, args, kwargs, threads, timeout, flight)
    if n < 1:
        raise Error(f"{n} ranks; at least 1 is wanted")
    run = _Run(n, fn, args, kwargs, threads or 0, (timeout, flight))
    ranks = [threading.Thread(target=run.rank, args=(r,), name=f"tessera rank {r}") for r in range(n)]
    try:
        for t in ranks:
            t.start()
        run.wait(ranks)
        run.message = lib.tess_hub_error(run.hub).decode(errors="replace")
    finally:
        lib.tess_hub_free(run.hub)
    return run.outcome()


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
