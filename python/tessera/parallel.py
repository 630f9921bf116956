"""Tensor parallel: parallelize_module() and its styles, loss_parallel().  Names and meaning are those of
torch.distributed.tensor.parallel.

Styles that shard are the library's (tess_parallelize_module); PrepareModule* are here, because inputs that are no
tensors, and those that are given by name, are known to Python alone.
"""
import contextlib
import ctypes
import warnings

from ._context import Error, current, scope
from ._library import I, P, S, VisitFn, lib, quick
from ._module_call import Call, is_tensor, kept
from .dtensor import DTensor
from .factories import from_local
from .mesh import current_mesh
from .module import Module, module_at
from .placements import text_of

COLWISE, ROWWISE, SEQUENCE = 0, 1, 2
AS_STYLE, PLAIN, SPREAD = 0, 1, 2


class _Entry(ctypes.Structure):
    _fields_ = [("path", S), ("style", I), ("inputs", P), ("want_inputs", P), ("ninputs", I), ("outputs", P), ("want_outputs", P), ("noutputs", I),
                ("seen_inputs", I), ("seen_outputs", I)]


def _text(layout):
    """One placement: Shard(0), "S(0)", one of torch."""
    if layout is None:
        return None
    if isinstance(layout, (tuple, list)):
        if len(layout) != 1:
            raise Error(f"a layout is one placement, not {len(layout)}: {layout!r}")
        layout, = layout
    return text_of([layout])


class ParallelStyle:
    """What is done to a module.  One's own: a class with _apply(module, device_mesh), which returns the module."""

    src_data_rank = 0

    def _apply(self, module, device_mesh):
        raise NotImplementedError(f"{type(self).__name__} has no _apply()")

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items() if not k.startswith('_'))})"


class _Library(ParallelStyle):
    """A style that the library applies."""

    _style = None

    def _apply(self, module, device_mesh):
        ctx = current()
        given, wanted = _text(self._input()), _text(self._output())
        one = (S * 1)(given), (S * 1)(wanted)
        entry = _Entry(b"", self._style, ctypes.cast(one[0], P), None, int(given is not None), ctypes.cast(one[1], P), None, int(wanted is not None),
                       AS_STYLE, PLAIN if self.use_local_output else SPREAD)
        source = -1 if self.src_data_rank is None else self.src_data_rank
        for inner in module.modules():
            vars(inner)["_home"] = ctx
        with scope(ctx):
            if lib.tess_parallelize_module(ctx.ptr, module._ptr, device_mesh._pointer(ctx), ctypes.byref(entry), 1, source) < 0:
                ctx.check()
        return module


class ColwiseParallel(_Library):
    """Of a linear the rows of the weight (the columns of its transpose) and the bias, of an embedding the features, are
    spread.  The input is as input_layouts says (None: replicated) and is made whole; the result is brought to
    output_layouts (None: sharded along its last dimension)."""

    _style = COLWISE

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=True):
        self.input_layouts, self.output_layouts, self.use_local_output = input_layouts, output_layouts, use_local_output

    def _input(self):
        return self.input_layouts

    def _output(self):
        return self.output_layouts


class RowwiseParallel(ColwiseParallel):
    """Of a linear the columns of the weight, of an embedding the rows, are spread.  The input is as input_layouts says
    (None: sharded along its last dimension), and is brought there for a linear, made whole for an embedding; the result
    is brought to output_layouts (None: replicated)."""

    _style = ROWWISE


class SequenceParallel(_Library):
    """Parameters are replicated as each rank has them; input and result are sharded along the sequence."""

    _style = SEQUENCE

    def __init__(self, *, sequence_dim=1, use_local_output=False):
        self.sequence_dim, self.use_local_output = sequence_dim, use_local_output

    def _input(self):
        return f"S({self.sequence_dim})"

    def _output(self):
        return None


def _layouts(x):
    """A placement is that of the only tensor; else one for each."""
    return x if x is None or isinstance(x, (tuple, list)) and not isinstance(x, str) else (x,)


def _prepare(value, mesh, layout, desired, local):
    if layout is None:
        return value
    if not is_tensor(value):
        raise Error(f"a tensor is expected where the plan has the layout {layout}, not {type(value).__name__}")
    if not isinstance(value, DTensor):
        value = from_local(value, mesh, [layout], run_check=False)
    if desired is not None and _text(layout) != _text(desired):
        value = value.redistribute(placements=[desired])
    return value.to_local() if local else value


def _check_pairs(what, layouts, desired):
    if layouts is None:
        return
    if desired is None:
        raise Error(f"{what} are told, but not desired_{what}")
    if len(layouts) != len(desired):
        raise Error(f"{len(layouts)} {what}, but {len(desired)} desired_{what}")


class PrepareModuleInput(ParallelStyle):
    """Inputs that are plain become DTensors as input_layouts says, and all are brought to desired_input_layouts; None for
    one that is left alone.  The same for inputs by name (input_kwarg_layouts).  use_local_output: forward() gets
    plain tensors."""

    def __init__(self, *, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None, desired_input_kwarg_layouts=None,
                 use_local_output=False):
        self.input_layouts, self.desired_input_layouts = _layouts(input_layouts), _layouts(desired_input_layouts)
        self.input_kwarg_layouts, self.desired_input_kwarg_layouts = input_kwarg_layouts or {}, desired_input_kwarg_layouts or {}
        self.use_local_output = use_local_output
        _check_pairs("input_layouts", self.input_layouts, self.desired_input_layouts)
        if len(self.input_kwarg_layouts) != len(self.desired_input_kwarg_layouts):
            raise Error(f"{len(self.input_kwarg_layouts)} input_kwarg_layouts, but {len(self.desired_input_kwarg_layouts)} desired_input_kwarg_layouts")

    def _inputs(self, inputs, mesh):
        if self.input_layouts is None:
            return inputs
        if len(inputs) != len(self.input_layouts):
            raise Error(f"the module got {len(inputs)} inputs, the plan has {len(self.input_layouts)} input_layouts")
        return tuple(_prepare(x, mesh, *how, self.use_local_output) for x, *how in zip(inputs, self.input_layouts, self.desired_input_layouts))

    def _kwargs(self, kwargs, mesh):
        return {name: _prepare(x, mesh, self.input_kwarg_layouts.get(name), self.desired_input_kwarg_layouts.get(name), self.use_local_output)
                for name, x in kwargs.items()}

    def _apply(self, module, device_mesh):
        module.register_forward_pre_hook(lambda _, inputs, kwargs: (self._inputs(inputs, device_mesh), self._kwargs(kwargs, device_mesh)),
                                         with_kwargs=True)
        return module


class PrepareModuleOutput(ParallelStyle):
    """Results that are plain become DTensors as output_layouts says, and all are brought to desired_output_layouts; None
    for one that is left alone.  use_local_output: plain tensors are given on."""

    def __init__(self, *, output_layouts, desired_output_layouts, use_local_output=True):
        self.output_layouts, self.desired_output_layouts = _layouts(output_layouts), _layouts(desired_output_layouts)
        self.use_local_output = use_local_output
        _check_pairs("output_layouts", self.output_layouts, self.desired_output_layouts)

    def _outputs(self, outputs, mesh):
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        if len(several) != len(self.output_layouts):
            raise Error(f"the module gave {len(several)} results, the plan has {len(self.output_layouts)} output_layouts")
        made = tuple(_prepare(x, mesh, *how, self.use_local_output) for x, *how in zip(several, self.output_layouts, self.desired_output_layouts))
        return made if len(made) > 1 else made[0]

    def _apply(self, module, device_mesh):
        module.register_forward_hook(lambda _, inputs, outputs: self._outputs(outputs, device_mesh))
        return module


class PrepareModuleInputOutput(ParallelStyle):
    """PrepareModuleInput (with use_local_input) and PrepareModuleOutput in one."""

    def __init__(self, *, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None, desired_input_kwarg_layouts=None,
                 use_local_input=False, output_layouts, desired_output_layouts, use_local_output=True):
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts, desired_input_layouts=desired_input_layouts, input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts, use_local_output=use_local_input)
        self.prepare_module_output = PrepareModuleOutput(output_layouts=output_layouts, desired_output_layouts=desired_output_layouts,
                                                         use_local_output=use_local_output)

    def _apply(self, module, device_mesh):
        return self.prepare_module_output._apply(self.prepare_module_input._apply(module, device_mesh), device_mesh)


# ---- plans ------------------------------------------------------------------------------------------


def _matching(module, path):
    """The modules that a path of a plan names: "layers.*.w1"."""
    call, found = Call(current()), []

    @VisitFn
    @kept(-1)
    def note(_, __, m, ___):
        found.append(module_at(m))
        return 0

    call.run(lib.tess_module_match, call.ctx.ptr, module._ptr, path.encode(), note, None)
    return found


def parallelize_module(module, device_mesh=None, parallelize_plan=None, *, src_data_rank=0):
    """Applies a style to the module, or the styles of a plan {path: style} to modules inside it; a path may have "*" and
    "?" in its names.  device_mesh: one axis, mesh["tp"].  src_data_rank: the coordinate whose parameters count; None:
    each rank's own.  Returns the module, changed in place.  A path that matches nothing is warned of.  (collective)"""
    if not isinstance(module, Module):
        raise TypeError(f"parallelize_module() takes a tessera.Module, not {type(module).__name__}")
    mesh = device_mesh if device_mesh is not None else current_mesh()
    if mesh is None:
        raise Error("no mesh is given and none is current")
    if mesh.ndim != 1:
        raise Error(f"a module is parallelized on a mesh of one axis, not on {mesh!r}: take the axis, mesh[\"tp\"]")
    if parallelize_plan is None:
        warnings.warn("there is no parallelize_plan: parallelize_module() does nothing", stacklevel=2)
        return module
    plan = {"": parallelize_plan} if isinstance(parallelize_plan, ParallelStyle) else parallelize_plan
    if not isinstance(plan, dict):
        raise TypeError(f"a plan is a ParallelStyle or a dict of them, not {type(plan).__name__}")
    for path, style in plan.items():
        if not isinstance(style, ParallelStyle):
            raise TypeError(f"plan entry {path!r} is a {type(style).__name__}, no ParallelStyle")
    for path, style in plan.items():
        found = _matching(module, path)
        if not found:
            names = ", ".join(name for name, _ in module.named_children()) or "nothing"
            warnings.warn(f"plan entry {path!r} matches no module and is left out; inside of {type(module).__name__} are {names}", stacklevel=2)
        style.src_data_rank = src_data_rank
        for inner in found:
            style._apply(inner, mesh)
    return module


@contextlib.contextmanager
def loss_parallel():
    """Inside, cross entropy over classes that are sharded exchanges its sums instead of gathering logits: 3 all-reduces
    of a number per row, and none in its backward, which is to be called inside, too.  Targets may be plain."""
    ctx = current()
    former = quick.tess_loss_parallel(ctx.ptr, 1)
    ctx.check()
    try:
        yield
    finally:
        if ctx.ptr:
            quick.tess_loss_parallel(ctx.ptr, former)
