"""Optimizers, with torch.optim's names and arguments, of tensors and DTensors; clipping of their gradients.

The steps are the library's, those of `tessera train`.  Parameters are written to in place; states lie as parameters do.
"""
import ctypes
import math
import sys

from ._call import spread
from ._context import Error, current, scope
from ._library import lib, quick
from ._settings import named
from .autograd import no_grad
from .tensor import Tensor

_OF_TORCH = ("foreach", "capturable", "differentiable", "fused")  # how torch computes; means nothing here


def _tensors(params):
    params = [params] if isinstance(params, Tensor) else list(params)
    for p in params:
        if not isinstance(p, Tensor):
            raise Error(f"an optimizer steps tensors that require gradients, not {type(p).__name__}: tessera.tensor(x, requires_grad=True)")
    return params


def _pointers(ctx, tensors):
    return (ctypes.c_void_p * max(1, len(tensors)))(*[t._pointer(ctx) for t in tensors])


class _States:
    """state[parameter]: what the optimizer keeps for it, by name."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def __getitem__(self, param):
        at = [i for i, p in enumerate(self._optimizer._all()) if p is param or quick.tess_data(p._handle.ptr) == quick.tess_data(param._handle.ptr)]
        if not at:
            raise KeyError("the optimizer does not have this parameter")
        return self._optimizer._state(at[0])


class Optimizer:
    """Steps parameters: tensors, or dicts {"params": [...], "lr": 0.1} with settings of their own.  param_groups may be
    changed between steps."""

    _name = None

    def __init__(self, params, settings):
        ignored = [k for k in settings if k in _OF_TORCH]
        for k in ignored:
            if settings.pop(k) and k in ("capturable", "differentiable"):
                raise Error(f"{k} is of torch alone")
        self.defaults = settings
        self._ctx, self._ptr, self._told, self.param_groups = current(), None, [], []
        params = [params] if isinstance(params, Tensor) else list(params)
        if not params:
            raise ValueError("optimizer got an empty parameter list")
        for group in params if isinstance(params[0], dict) else [{"params": params}]:
            self.add_param_group(group)

    def __del__(self, finalizing=sys.is_finalizing):
        if getattr(self, "_ptr", None) and not finalizing():
            quick.tess_optimizer_free(self._ptr)

    def _text(self, group):
        known = {k: v for k, v in group.items() if k in self.defaults and not isinstance(v, Tensor)}
        return (named("optim", {"name": self._name, **known}) or "").encode()

    def add_param_group(self, group):
        group = {**self.defaults, **group, "params": _tensors(group["params"])}
        unknown = [k for k in group if k not in self.defaults and k not in ("params", *_OF_TORCH)]
        if unknown:
            raise Error(f"{type(self).__name__} has no setting {unknown[0]!r}; it has {', '.join(self.defaults)}")
        ctx, text, params = self._ctx, self._text(group), group["params"]
        if self._ptr is None:
            self._ptr = lib.tess_optimizer_new(ctx.ptr, text, _pointers(ctx, params), len(params))
            failed = not self._ptr
        else:
            failed = quick.tess_optimizer_add(self._ptr, text.partition(b",")[2], _pointers(ctx, params), len(params)) < 0
        if failed:
            ctx.check()
        self.param_groups.append(group)
        self._told.append(text)

    def _all(self):
        return [p for group in self.param_groups for p in group["params"]]

    def _tell(self):
        """Settings that have changed in param_groups."""
        for i, group in enumerate(self.param_groups):
            text = self._text(group)
            if text != self._told[i]:
                if quick.tess_optimizer_set(self._ptr, i, text.partition(b",")[2]) < 0:
                    self._ctx.check()
                self._told[i] = text

    def step(self, closure=None):
        """One step of every parameter that has a gradient.  closure() computes the loss again, which is returned.
        (collective, if there are DTensors)"""
        loss = closure() if closure is not None else None
        self._here()
        self._tell()
        if lib.tess_optimizer_step(self._ptr) < 0:
            self._ctx.check()
        return loss

    def _here(self):
        if current() is not self._ctx or not self._ctx.ptr:
            raise Error("this optimizer belongs to another rank or to a run that has ended", 5)

    def zero_grad(self, set_to_none=True):
        self._here()
        if set_to_none:
            if quick.tess_optimizer_zero_grad(self._ptr) < 0:
                self._ctx.check()
            return
        with no_grad():
            for p in self._all():
                if p.grad is not None:
                    p.grad.zero_()

    # ---- what it keeps ------------------------------------------------------------------------

    @property
    def state(self):
        return _States(self)

    def _state(self, i):
        self._here()
        ctx, found, k = self._ctx, {}, 0
        with scope(ctx):
            while (name := quick.tess_optimizer_state_name(self._ptr, i, k)) is not None:
                t = quick.tess_optimizer_state(self._ptr, i, name)
                if t:
                    found[name.decode()] = spread.wrap(ctx, ctx.hold(t))
                k += 1
        ctx.check()
        steps = quick.tess_optimizer_steps(self._ptr, i)
        return {"step": steps, **found} if steps or found else {}

    def state_dict(self):
        """{"state": {number: {"step", ...}}, "param_groups": [...]} as torch.optim has it; states are tensors, or DTensors."""
        numbers = iter(range(len(self._all())))
        groups = [{**{k: v for k, v in g.items() if k != "params"}, "params": [next(numbers) for _ in g["params"]]} for g in self.param_groups]
        kept = {i: self._state(i) for i in range(len(self._all()))}
        return {"state": {i: s for i, s in kept.items() if s}, "param_groups": groups}

    def load_state_dict(self, state_dict):
        self._here()
        groups = state_dict["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("the state_dict has other groups of parameters than the optimizer")
        for mine, theirs in zip(self.param_groups, groups):
            mine.update({k: v for k, v in theirs.items() if k != "params"})
        self._tell()
        ctx = self._ctx
        for i, states in state_dict["state"].items():
            with scope(ctx):
                for name, value in states.items():
                    failed = (quick.tess_optimizer_set_steps(self._ptr, i, int(value)) if name == "step"
                              else lib.tess_optimizer_set_state(self._ptr, i, name.encode(), value._pointer(ctx)))
                    if failed < 0:
                        ctx.check()

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.defaults.items())})"


class SGD(Optimizer):
    _name = "sgd"

    def __init__(self, params, lr=1e-3, momentum=0, dampening=0, weight_decay=0, nesterov=False, *, maximize=False, **of_torch):
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov, maximize=maximize,
                                      **_checked(of_torch)))


class Adam(Optimizer):
    _name = "adam"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, amsgrad=False, *, maximize=False, decoupled_weight_decay=False,
                 **of_torch):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize,
                                      decoupled_weight_decay=decoupled_weight_decay, **_checked(of_torch)))


class AdamW(Optimizer):
    _name = "adamw"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, *, maximize=False, **of_torch):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize, **_checked(of_torch)))


class Adagrad(Optimizer):
    _name = "adagrad"

    def __init__(self, params, lr=1e-2, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10, *, maximize=False, **of_torch):
        super().__init__(params, dict(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, initial_accumulator_value=initial_accumulator_value, eps=eps,
                                      maximize=maximize, **_checked(of_torch)))


class Muon(Optimizer):
    """Of matrices; parameters that have not two dimensions are stepped by AdamW (torch.optim.Muon refuses them)."""

    _name = "muon"

    def __init__(self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, ns_coefficients=(3.4445, -4.775, 2.0315), eps=1e-7, ns_steps=5,
                 adjust_lr_fn=None):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov, ns_coefficients=ns_coefficients, eps=eps,
                                      ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn))


def _checked(of_torch):
    for name in of_torch:
        if name not in _OF_TORCH:
            raise TypeError(f"there is no argument '{name}'")
    return of_torch


# ---- clipping -----------------------------------------------------------------------------------------


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scales gradients so that their norm, as one vector, is at most max_norm; the norm before, a number.  Parameters may
    be tensors and DTensors of any meshes and placements.  (collective, if there are DTensors)"""
    ctx, params, norm = current(), _tensors(parameters), ctypes.c_double()
    limit = math.inf if error_if_nonfinite else max_norm
    if lib.tess_clip_grad_norm(ctx.ptr, _pointers(ctx, params), len(params), limit, norm_type, ctypes.byref(norm)) < 0:
        ctx.check()
    if error_if_nonfinite and not math.isfinite(norm.value):
        raise Error(f"the norm of the gradients is {norm.value}, so they cannot be clipped", 1)
    if error_if_nonfinite and lib.tess_clip_grad_norm(ctx.ptr, _pointers(ctx, params), len(params), max_norm, norm_type, None) < 0:
        ctx.check()
    return norm.value


def clip_grad_value_(parameters, clip_value):
    """Brings every element of the gradients to within -clip_value and clip_value."""
    ctx, params = current(), _tensors(parameters)
    if lib.tess_clip_grad_value(ctx.ptr, _pointers(ctx, params), len(params), clip_value) < 0:
        ctx.check()
