"""Gradients: what tensors know of theirs, grad(), no_grad(), hooks.  Names and meaning are PyTorch's."""
import ctypes
import functools
import itertools

from ._buffers import tensor_of
from ._call import spread
from ._context import Error, current, scope
from ._library import GradHookFn, ReleaseFn, lib, quick

RETAIN_GRAPH, CREATE_GRAPH, ALLOW_UNUSED = 1, 2, 4


# ---- with and without ---------------------------------------------------------------------------


def is_grad_enabled():
    return bool(quick.tess_grad_enabled(current().ptr))


class set_grad_enabled:
    """At once, until told otherwise; with set_grad_enabled(False): until the end of the block."""

    def __init__(self, mode):
        self._mode, self._ctx = bool(mode), current()
        self._before = [bool(quick.tess_set_grad_enabled(self._ctx.ptr, self._mode))]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        quick.tess_set_grad_enabled(self._ctx.ptr, self._before.pop())


class _Mode:
    mode = None

    def __init__(self):
        self._before = []

    def __enter__(self):
        ctx = current()
        self._before.append((ctx, quick.tess_set_grad_enabled(ctx.ptr, self.mode)))
        return self

    def __exit__(self, *exc):
        ctx, before = self._before.pop()
        if ctx.ptr:
            quick.tess_set_grad_enabled(ctx.ptr, before)

    def __call__(self, fn):
        kind = type(self)

        @functools.wraps(fn)
        def inside(*args, **kwargs):
            with kind():
                return fn(*args, **kwargs)
        return inside


class no_grad(_Mode):
    """with no_grad(): results require no gradient.  Also a decorator, @no_grad()."""

    mode = False


class enable_grad(_Mode):
    """with enable_grad(): inside of no_grad(), results require gradients again."""

    mode = True


# ---- going back -----------------------------------------------------------------------------------


def _list(x):
    return list(x) if isinstance(x, (list, tuple)) else [x]


def _pointers(ctx, tensors):
    return (ctypes.c_void_p * max(1, len(tensors)))(*[None if t is None else t._pointer(ctx) if isinstance(t, spread.kind) else tensor_of(ctx, t)
                                                      for t in tensors])


def _cotangents(ctx, given, outputs):
    if given is None:
        return None
    given = _list(given)
    if len(given) != len(outputs):
        raise Error(f"{len(given)} gradients for {len(outputs)} outputs")
    return _pointers(ctx, given)


def _check(ctx, code):
    """Raises what a hook raised, or else the error of the library."""
    raised, ctx.raised = ctx.raised, None
    if code < 0:
        if raised is not None:
            quick.tess_error_clear(ctx.ptr)
            raise raised
        ctx.check()


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False):
    """Adds the gradients of the tensors to .grad of all leaves they depend on: all or none.  grad_tensors: a
    cotangent of each; None: 1, of a tensor of one element.  (collective, if there are DTensors)"""
    ctx, tensors = current(), _list(tensors)
    flags = (RETAIN_GRAPH if retain_graph else 0) | (CREATE_GRAPH if create_graph else 0)
    with scope(ctx):
        _check(ctx, lib.tess_backward(ctx.ptr, _pointers(ctx, tensors), _cotangents(ctx, grad_tensors, tensors), len(tensors), flags))


def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, allow_unused=False):
    """The gradients of the outputs by the inputs, as a tuple; .grad of leaves stays as it is.  allow_unused: None
    for an input that no output depends on, which is else an error.  (collective, if there are DTensors)"""
    ctx, outputs, inputs = current(), _list(outputs), _list(inputs)
    flags = (RETAIN_GRAPH if retain_graph else 0) | (CREATE_GRAPH if create_graph else 0) | (ALLOW_UNUSED if allow_unused else 0)
    found = (ctypes.c_void_p * max(1, len(inputs)))()
    with scope(ctx):
        _check(ctx, lib.tess_grad(ctx.ptr, _pointers(ctx, outputs), _cotangents(ctx, grad_outputs, outputs), len(outputs),
                                  _pointers(ctx, inputs), len(inputs), found, flags))
        return tuple(None if not found[i] else spread.wrap(ctx, ctx.hold(found[i]), x._torch) for i, x in enumerate(inputs))


# ---- hooks ------------------------------------------------------------------------------------------

_hooks = {}  # number: (context, function, of torch)
_numbers = itertools.count(1)


@ReleaseFn
def _forget(number):
    _hooks.pop(number, None)


@GradHookFn
def _called(_, gradient, replacement, number):
    ctx, fn, torch = _hooks[number]
    try:
        given = fn(spread.wrap(ctx, ctx.hold(gradient), torch))
        if given is not None:
            replacement[0] = given._pointer(ctx)
            ctx.replacement = given  # lives until the library has a handle of its own
        return 0
    except BaseException as e:  # through the library, and on from there
        ctx.raised = e
        return 1


class RemovableHandle:
    """remove() ends a hook; as a context manager, so does the end of the block."""

    def __init__(self, hook):
        self._hook = hook

    def remove(self):
        hook, self._hook = self._hook, None
        quick.tess_remove_hook(hook)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.remove()

    def __del__(self, forget=quick.tess_forget_hook):
        forget(self._hook)


# ---- of tensors ---------------------------------------------------------------------------------------


class Differentiable:
    """What a tensor has to do with gradients."""

    __slots__ = ()

    @property
    def requires_grad(self):
        return bool(quick.tess_requires_grad(self._handle.ptr))

    @requires_grad.setter
    def requires_grad(self, on):
        self.requires_grad_(on)

    def requires_grad_(self, requires_grad=True):
        """Makes it a leaf whose gradient backward() will find; returns it."""
        ctx = current()
        if quick.tess_set_requires_grad(ctx.ptr, self._pointer(ctx), bool(requires_grad)) < 0:
            ctx.check()
        return self

    @property
    def is_leaf(self):
        return bool(quick.tess_is_leaf(self._handle.ptr))

    @property
    def grad(self):
        """What backward() has added up, or None.  Of leaves, and of tensors after retain_grad()."""
        ctx = current()
        if ctx is not self._ctx or not ctx.ptr:
            return None
        with scope(ctx):
            found = quick.tess_grad_of(ctx.ptr, self._handle.ptr)
            return spread.wrap(ctx, ctx.hold(found), self._torch) if found else None

    @grad.setter
    def grad(self, gradient):
        ctx = current()
        with scope(ctx):
            t = None if gradient is None else gradient._pointer(ctx) if isinstance(gradient, spread.kind) else tensor_of(ctx, gradient)
            if quick.tess_set_grad(ctx.ptr, self._pointer(ctx), t) < 0:
                ctx.check()

    def backward(self, gradient=None, retain_graph=None, create_graph=False):
        """tessera.backward() of this tensor.  (collective, if it is a DTensor)"""
        backward(self, None if gradient is None else [gradient], retain_graph, create_graph)

    def retain_grad(self):
        """It keeps its gradient, as leaves do."""
        ctx = current()
        if quick.tess_retain_grad(ctx.ptr, self._pointer(ctx)) < 0:
            ctx.check()

    def register_hook(self, hook):
        """hook(gradient) is called when the gradient of this tensor is complete and may return another one.
        remove() of what is returned ends it."""
        ctx, number = current(), next(_numbers)
        _hooks[number] = (ctx, hook, self._torch)
        made = quick.tess_register_hook(ctx.ptr, self._pointer(ctx), _called, number, _forget)
        if not made:
            _hooks.pop(number, None)
            ctx.check()
        return RemovableHandle(made)

    def detach(self):
        """The same elements, through which no gradient flows."""
        ctx = current()
        with scope(ctx):
            return spread.wrap(ctx, ctx.hold(quick.tess_detach(ctx.ptr, self._pointer(ctx))), self._torch)

    data = property(detach)

    def _flows(self):
        """Will what is made of it require a gradient?"""
        return self.requires_grad and self._ctx is current() and is_grad_enabled()
