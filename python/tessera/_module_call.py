"""A call of a module: what passes through the library, and the functions that it calls back.

tess_module_call() runs hooks, forward() and hooks again, in its order.  Values that are tensors are
shown to it, so that hooks of C code may replace them; all others go round it.
"""
import itertools
import weakref

from . import _dtypes
from ._buffers import array_of, is_array, is_torch, tensor_of, torch_of
from ._context import Error, local
from ._library import ForwardFn, ModuleHookFn, quick
from .dtensor import wrap_any
from .tensor import Tensor

BEFORE_FORWARD, AFTER_FORWARD = 0, 1

objects = weakref.WeakValueDictionary()  # address of a module: its Python object
hooks = {}  # number: (when, function, with kwargs) of hooks that Python made
numbers = itertools.count(1)


def is_tensor(x):
    """A Tensor, or an array of a dtype that the library has."""
    if isinstance(x, Tensor):
        return True
    try:
        return is_array(x) and _dtypes.code_of(x.dtype) is not None
    except (Error, TypeError, AttributeError):
        return False


def pointer_of(ctx, x):
    return tensor_of(ctx, x)


def value_of(ctx, ptr, torch, home=None, wrapped=False):
    """What Python sees of a tensor of the library; home: the context of DTensors; wrapped: no array on its memory."""
    handle = ctx.hold(ptr)
    if wrapped or quick.tess_is_dtensor(ptr) or quick.tess_requires_grad(ptr):
        return wrap_any(home or ctx, handle, torch)
    return torch_of(handle) if torch else array_of(handle)


def calls():
    """Those that this thread is in, innermost last."""
    stack = getattr(local, "calls", None)
    if stack is None:
        stack = local.calls = []
    return stack


def _listed(outputs):
    """Outputs as a sequence, and which of them are shown to the library."""
    several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return several, [i for i, x in enumerate(several) if is_tensor(x)]


class Call:
    """A call under way: the values as Python has them."""

    def __init__(self, ctx, inputs=(), kwargs=None):
        self.ctx, self.inputs, self.kwargs, self.outputs, self.error = ctx, inputs, kwargs or {}, None, None
        self.shown, self.before = [i for i, x in enumerate(inputs) if is_tensor(x)], []
        self.out_shown, self.out_before = [], []
        self.torch = any(is_torch(x) or getattr(x, "_torch", False) for x in inputs)

    def _show(self, values, at, into):
        for k, i in enumerate(at):
            into[k] = pointer_of(self.ctx, values[i])
        return list(into[:len(at)])

    def _seen(self, values, at, pointers, before):
        """The values, with those replaced whose pointers are others now."""
        changed = [(i, pointers[k]) for k, i in enumerate(at) if pointers[k] != before[k]]
        if not changed:
            return values
        values = list(values)
        for i, ptr in changed:  # arrays have no bf16
            values[i] = value_of(self.ctx, ptr, self.torch, wrapped=isinstance(values[i], Tensor) or quick.tess_dtype(ptr) == _dtypes.BF16)
        return tuple(values)

    def show_inputs(self, into):
        self.before = self._show(self.inputs, self.shown, into)

    def see_inputs(self, pointers):
        self.inputs = self._seen(self.inputs, self.shown, pointers, self.before)

    def set_inputs(self, inputs, into, room):
        self.inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        self.shown = [i for i, x in enumerate(self.inputs) if is_tensor(x)][:room]
        self.show_inputs(into)

    def set_outputs(self, outputs, into, room):
        self.outputs = outputs
        several, shown = _listed(outputs)
        self.out_shown = shown[:room]
        self.out_before = self._show(several, self.out_shown, into)

    def see_outputs(self, pointers):
        several, _ = _listed(self.outputs)
        seen = self._seen(several, self.out_shown, pointers, self.out_before)
        if seen is not several:
            self.outputs = list(seen) if isinstance(self.outputs, list) else seen if isinstance(self.outputs, tuple) else seen[0]

    def run(self, function, *args):
        """Calls the library; raises what was raised in a call back, or the library's error."""
        stack = calls()
        stack.append(self)
        try:
            failed = function(*args) < 0
        finally:
            stack.pop()
        if self.error is not None:
            quick.tess_error_clear(self.ctx.ptr)
            raise self.error
        if failed:
            self.ctx.check()


def leaves(x):
    """The tensors in tuples, lists and dicts, in order."""
    if is_tensor(x):
        return [x]
    inside = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else ()
    return [leaf for item in inside for leaf in leaves(item)]


def rebuilt(x, new):
    """The same with the tensors of an iterator."""
    if is_tensor(x):
        return next(new)
    if isinstance(x, dict):
        return type(x)((k, rebuilt(v, new)) for k, v in x.items())
    if isinstance(x, (tuple, list)):
        items = [rebuilt(v, new) for v in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x


class DeepCall(Call):
    """A call of a module whose hooks must see every tensor: also in keyword arguments, and in lists and dicts."""

    def __init__(self, ctx, inputs=(), kwargs=None):
        super().__init__(ctx, inputs, kwargs)
        self.shown = leaves((self.inputs, self.kwargs))

    def _changed(self, shown, pointers, before):
        if list(pointers[:len(shown)]) == before:
            return None
        return iter(self._seen(shown, range(len(shown)), pointers, before))

    def show_inputs(self, into):
        self.before = self._show(self.shown, range(len(self.shown)), into)

    def see_inputs(self, pointers):
        new = self._changed(self.shown, pointers, self.before)
        if new is not None:
            self.inputs, self.kwargs = rebuilt((self.inputs, self.kwargs), new)
            self.shown, self.before = leaves((self.inputs, self.kwargs)), list(pointers[:len(self.shown)])

    def set_inputs(self, inputs, into, room):
        self.inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        self.shown = leaves((self.inputs, self.kwargs))[:room]
        self.show_inputs(into)

    def set_outputs(self, outputs, into, room):
        self.outputs, self.out_shown = outputs, leaves(outputs)
        if len(self.out_shown) > room:
            raise Error(f"a module gives {len(self.out_shown)} tensors; at most {room} are taken")
        self.out_before = self._show(self.out_shown, range(len(self.out_shown)), into)

    def see_outputs(self, pointers):
        new = self._changed(self.out_shown, pointers, self.out_before)
        if new is not None:
            self.outputs = rebuilt(self.outputs, new)
            self.out_shown, self.out_before = leaves(self.outputs), list(pointers[:len(self.out_shown)])


def kept(result):
    """Of a call back: exceptions are kept for Call.run(), the library gets this result."""
    def decorate(fn):
        def call_back(*args):
            try:
                return fn(*args)
            except BaseException as e:
                calls()[-1].error = e
                return result
        return call_back
    return decorate


@ForwardFn
@kept(-1)
def forward(_, m, inputs, n, out, cap, __):
    call = calls()[-1]
    call.see_inputs(inputs)
    call.set_outputs(objects[m].forward(*call.inputs, **call.kwargs), out, cap)
    return len(call.out_shown)


@ModuleHookFn
@kept(1)
def hook(_, m, tensors, n, __, number):
    call, (at, fn, with_kwargs) = calls()[-1], hooks[number]
    if at == BEFORE_FORWARD:
        call.see_inputs(tensors)
        changed = fn(objects[m], call.inputs, call.kwargs) if with_kwargs else fn(objects[m], call.inputs)
        if with_kwargs and changed is not None:
            changed, call.kwargs = changed
        if changed is not None:
            call.set_inputs(changed, tensors, n)
    else:
        call.see_outputs(tensors)
        changed = fn(objects[m], call.inputs, call.outputs)
        if changed is not None:
            call.set_outputs(changed, tensors, n)
    return 0
