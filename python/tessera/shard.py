"""Exported programs cut into one program per rank."""
import ctypes
import json
import os
import tempfile
from collections.abc import Mapping

from ._context import Error, current
from ._library import lib
from .program import program_path


class _Cut(ctypes.Structure):
    _fields_ = [("program", ctypes.c_char_p), ("mesh", ctypes.c_char_p), ("plan", ctypes.c_char_p), ("sizes", ctypes.c_char_p), ("half_sums", ctypes.c_int)]


def _mesh_text(mesh):
    """4, (2, 4), {"dp": 2, "tp": 4} or text."""
    if mesh is None or isinstance(mesh, str):
        return mesh
    if isinstance(mesh, int):
        return f"tp={mesh}"
    if isinstance(mesh, Mapping):
        return ",".join(f"{axis}={size}" for axis, size in mesh.items())
    if hasattr(mesh, "shape") and hasattr(mesh, "names"):  # a Mesh
        return ",".join(f"{name}={size}" for name, size in zip(mesh.names, mesh.shape))
    return "x".join(str(size) for size in mesh)


def _is_replicated(layouts):
    return layouts is not None and all(type(p).__name__ == "Replicate" for p in (layouts if isinstance(layouts, (tuple, list)) else [layouts]))


def _style_word(fqn, style):
    """A word of a plan for a style of PyTorch, by class or instance, or for a word."""
    if isinstance(style, str) or isinstance(style, Mapping):
        return style
    name = style.__name__ if isinstance(style, type) else type(style).__name__
    if name == "ColwiseParallel":
        return "colwise_gather_output" if _is_replicated(getattr(style, "output_layouts", None)) else "colwise"
    if name == "RowwiseParallel":
        return "rowwise_split_input" if _is_replicated(getattr(style, "input_layouts", None)) else "rowwise"
    if name == "SequenceParallel":
        return "sequence_parallel"
    raise Error(f"{fqn}: the style {name} is not known; give ColwiseParallel, RowwiseParallel, SequenceParallel, or a word of a plan", 2)


def _plan_text(plan):
    """A path, "auto", None, or a dict: a plan, or {module: style}."""
    if plan is None or isinstance(plan, (str, os.PathLike)):
        return None if plan is None else os.fspath(plan)
    keys = {"mesh", "parallelize", "params", "packed", "inputs", "outputs"}
    if not (plan.keys() & keys):
        plan = {"parallelize": plan}
    plan = dict(plan)
    if "parallelize" in plan:
        plan["parallelize"] = {fqn: _style_word(fqn, style) for fqn, style in plan["parallelize"].items()}
    return json.dumps(plan)


def _bytes(text):
    return None if text is None else os.fsencode(text)


def _cut(path, mesh, plan, sizes, half_sums):
    sizes = ",".join(f"{name}={value}" for name, value in sizes.items()) if sizes else None
    return _Cut(_bytes(path), _bytes(_mesh_text(mesh)), _bytes(_plan_text(plan)), _bytes(sizes), bool(half_sums))


def shard(program, mesh, plan=None, out=None, *, sizes=None, half_sums=False, force=False):
    """Cuts an exported program (a path, or a torch ExportedProgram) into one program per rank of
    the mesh ("dp=2,tp=4", {"tp": 4}, 4).  plan: a path, a dict, or None: derived from the program.

    With out, a folder: writes rank0.pt2 ..., plan.json, report.txt, run.py and README.md into it
    and returns the report.  Without: returns the torch ExportedPrograms of all ranks, in a list,
    whose collectives name groups by the mesh axes ("tp", "dp_tp").

    sizes: {symbol: number} for symbolic sizes that are to be fixed.  half_sums: round parts of
    sums of f16 and bf16 before they are added up, as PyTorch does."""
    ctx = current()
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        cut = _cut(program_path(program, folder), mesh, plan, sizes, half_sums)
        target = out if out is not None else os.path.join(folder, "ranks")
        report = ctx.text(lib.tess_shard(ctx.ptr, ctypes.byref(cut), os.fsencode(target), bool(force)))
        if out is not None:
            return report
        import torch
        names = sorted((n for n in os.listdir(target) if n.endswith(".pt2")), key=lambda n: int(n[4:-4]))
        return [torch.export.load(os.path.join(target, n)) for n in names]


def _rename_group(program, name):
    for node in program.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "namespace", "").startswith("_c10d_functional"):
            node.args = tuple(name if a == "tp" else a for a in node.args)
            node.kwargs = {k: name if a == "tp" else a for k, a in node.kwargs.items()}
    return program


def _world_group():
    import torch.distributed as dist
    return dist.group.WORLD.group_name if dist.is_available() and dist.is_initialized() else "0"


def tensor_parallel_transformation(exported_program, rank, world_size, device_type, parallel_strategies):
    """The program of one rank, as torch.distributed.tensor.experimental's function of this name
    makes it: its collectives are of the default process group, which need not be there yet.

    parallel_strategies: {name of a module: style}; a style is ColwiseParallel, RowwiseParallel,
    SequenceParallel, an instance of one, or a word of a plan ("colwise_gather_output")."""
    import torch
    ctx = current()
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        cut = _cut(program_path(exported_program, folder), {"tp": world_size}, {"parallelize": parallel_strategies}, None, False)
        path = os.path.join(folder, f"rank{rank}.pt2")
        if lib.tess_shard_rank(ctx.ptr, ctypes.byref(cut), rank, os.fsencode(path)):
            ctx.check()
        program = torch.export.load(path)
    if device_type != "cpu":
        from torch.export.passes import move_to_device_pass
        program = move_to_device_pass(program, device_type)
    return _rename_group(program, _world_group())
