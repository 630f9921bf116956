"""run_ranks(): a thread per rank, joined before anything that they use is freed.

Ctrl-C.  A signal's handler runs in the main thread between any two of its steps, and an exception
thrown at another thread comes as unexpectedly.  Both are kept out of the code of this file: signals
that come while ranks run are noted (_Signals), and exceptions are thrown at a rank only while it is
in the caller's function (_Run.open and shut).  Whoever waits for other ranks at that time is
released by the hub.  What was noted is raised after all ranks are joined.
"""
import ctypes
import inspect
import pickle
import signal
import threading

from ._context import Context, Error, RankError, current, init, local, mpi_launched, settings, settle, told
from ._library import lib, quick


def _gather(ctx, result):
    """Results of all ranks; None for those that cannot be pickled."""
    import numpy as np
    from .factories import from_local
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
    ctx = current()
    if n is not None and n != ctx.world_size:
        raise Error(f"{ctx.world_size} processes were launched, {n} ranks are wanted; comm='threads' makes thread ranks of this process")
    try:
        return _gather(ctx, fn(ctx.rank, *args, **kwargs) if _takes_rank(fn, args, kwargs) else fn(*args, **kwargs))
    except BaseException as e:
        lib.tess_fail(ctx.ptr, told(e).encode(errors="replace"))
        raise RankError.of(ctx.world_size, ctx.rank, e) from e


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


# ---- interrupting ---------------------------------------------------------------------------


def _throw(thread, kind):
    """Makes a thread raise an exception of this kind at its next step; None: not any more."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))


class _Signals:
    """with _Signals(run): handlers of signals do not raise here; run is told what they raised.
    Only the main thread has handlers."""

    def __init__(self, run):
        self.run, self.former = run, {}

    def __enter__(self):
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self.former[number] = handler
                    signal.signal(number, self.note)
        except ValueError:  # of an interpreter that has no signals
            self.former = {}
        except BaseException:  # of a signal that was not ours yet
            self.__exit__()
            raise

    def __exit__(self, *exc):
        try:
            for number, handler in list(self.former.items()):
                signal.signal(number, handler)
                del self.former[number]
        finally:  # a handler that is back may raise: the others must come back too
            if self.former:
                self.__exit__()

    def note(self, number, frame):
        try:
            self.former[number](number, frame)
        except BaseException as e:
            self.run.give_up(e)


class _Run:
    """One run_ranks(): the hub and what came of the ranks."""

    def __init__(self, n, fn, args, kwargs, threads, how):
        self.n, self.fn, self.args, self.kwargs, self.threads, self.settings = n, fn, args, kwargs, threads, how
        self.takes_rank = _takes_rank(fn, args, kwargs)
        self.results = [None] * n
        self.errors = {}  # in the order in which they came
        self.lock = threading.RLock()  # guards what follows; a handler may interrupt a handler
        self.stop = None  # what was raised around the ranks: they give up
        self.inside = {}  # rank: its thread, while it is in fn, or the _Run that it waits for
        self.hub = lib.tess_hub_new(n)
        if not self.hub:
            raise MemoryError(f"no memory for {n} ranks")

    def give_up(self, e):
        """By any thread: all ranks stop, with an exception of e's kind."""
        with self.lock:
            if self.stop is None:
                self.stop = e
            for inner in self.inside.values():
                if isinstance(inner, _Run):
                    inner.give_up(e)
                else:
                    _throw(inner, type(e))
        quick.tess_hub_fail(self.hub, told(e).encode(errors="replace"))

    def open(self, r):
        """The rank enters the caller's function: from here on exceptions can be thrown at it."""
        with self.lock:
            self.inside.pop(r, None)
            if self.stop is not None:
                raise self.stop
            self.inside[r] = threading.get_ident()

    def shut(self, r, inner=None):
        """The rank comes out, or waits for a run of its own.  Returns what was thrown at it at the last
        moment: an exception that had not reached it yet is called back here, and self.stop tells of it."""
        thrown = None
        while True:
            try:
                with self.lock:
                    self.inside.pop(r, None)
                    if inner is not None:
                        self.inside[r] = inner
                    _throw(threading.get_ident(), None)
                    return self.stop if thrown is None else thrown
            except BaseException as e:
                thrown = e

    def rank(self, r):
        ctx = failure = None
        try:
            ctx = Context(lib.tess_hub_join(self.hub, r, self.threads), joined=True)
            local.current, local.place = ctx, (self, r)
            settings(*self.settings)
            args = (r, *self.args) if self.takes_rank else self.args
            try:
                self.open(r)
                self.results[r] = settle(self.fn(*args, **self.kwargs))
            finally:
                thrown = self.shut(r)
            if thrown is not None:
                raise thrown
        except BaseException as e:  # also KeyboardInterrupt: the others must be released
            self.shut(r)  # if it was thrown at the first try
            self.results[r], self.errors[r] = None, e
            failure = told(e)
        local.current = local.planner = local.place = None
        if ctx:
            ctx.leave(failure)

    def go(self):
        """Starts the ranks and waits until all have ended, whatever happens."""
        ranks = [threading.Thread(target=self.rank, args=(r,), name=f"tessera rank {r}") for r in range(self.n)]
        started = []
        try:
            for t in ranks:
                t.start()
                started.append(t)
        except BaseException as e:  # no more threads: those that are there would wait for ever
            self.give_up(e)
        for t in started:
            while t.is_alive():  # not for ever: a signal that comes just before the wait does not end it
                t.join(0.1)

    def outcome(self):
        message = lib.tess_hub_error(self.hub).decode(errors="replace")
        if self.stop is not None:
            raise self.stop
        if not self.errors:
            return self.results
        rank, cause = next(iter(self.errors.items()))
        error = RankError.of(self.n, rank, cause, message, self.results, self.errors)
        raise error from self.errors.get(error.rank, cause)


def _run_threads(run):
    outer = local.place  # this thread is a rank itself
    try:
        thrown = outer[0].shut(outer[1], run) if outer else None
        if thrown is not None:
            run.stop = thrown
        else:
            with _Signals(run):
                run.go()
        if outer:
            outer[0].open(outer[1])
        return run.outcome()
    finally:
        lib.tess_hub_free(run.hub)


def run_ranks(n, fn, *args, threads=None, timeout=None, flight=None, comm=None, **kwargs):
    """Calls fn(*args, **kwargs) on n thread ranks and returns the list of their results.  If fn
    takes one argument more, it gets the rank in front: fn(rank, *args).

    threads: of each rank for its own work; None: the cores divided among the ranks.
    timeout: seconds after which a waiting rank names the missing and all end (1800; 0: never).
    flight: a file for the last collectives of all ranks, as JSON, if the run fails.
    A rank that raises releases the others from whatever they wait for; then RankError is
    raised from the first exception.  Ctrl-C ends all ranks and is raised when they have ended; one
    that is in a long call of another library ends after it.  DTensors among the results keep their
    shard (to_local, shape, placements) but can take part in no more ops: their ranks are gone.

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
    return _run_threads(_Run(n, fn, args, kwargs, threads or 0, (timeout, flight)))
