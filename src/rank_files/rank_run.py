#!/usr/bin/env python3
"""Runs the programs of this folder in PyTorch, one process per rank:

    torchrun --nproc-per-node RANKS run.py -i in.safetensors -o out.safetensors

Written by tessera.  Needs torch alone.  The programs call groups of ranks by name (the mesh
axes); plan.json tells who is in them and how inputs and outputs are cut.
"""
import argparse
import importlib
import json
import math
import os
import re
import struct
import sys
import zipfile

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

FOLDER = os.path.dirname(os.path.abspath(__file__))
SCRIPT = "train.py" if os.path.basename(sys.argv[0]) == "train.py" else "run.py"  # which uses the functions here
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}
WORDS = {dtype: word for word, dtype in DTYPES.items()}


# ---- safetensors: the length of a JSON header (8 bytes), the header, the elements ----

def read_safetensors(path):
    """Tensors by name; they lie in the file, of which only what is looked at is read."""
    try:
        with open(path, "rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            if length > os.path.getsize(path):
                raise ValueError
            header = json.loads(f.read(length))
        data = torch.from_file(os.fspath(path), shared=False, size=os.path.getsize(path), dtype=torch.uint8)
    except OSError as error:
        raise SystemExit(f"{SCRIPT}: cannot read {path}: {error.strerror}")
    except (ValueError, struct.error):
        raise SystemExit(f"{SCRIPT}: {path} is no .safetensors file")
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + at for at in entry["data_offsets"])
        dtype = DTYPES[entry["dtype"]]
        if begin == end:
            flat = torch.empty(0, dtype=dtype)
        elif begin % dtype.itemsize:
            flat = data[begin:end].clone().view(dtype)
        else:
            flat = data[begin:end].view(dtype)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    header, parts, at = {}, [], 0
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        raw = bytes(t.reshape(-1).view(torch.uint8).numpy()) if t.numel() else b""
        header[name] = {"dtype": WORDS[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = path + ".part"
    try:
        with open(part, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
        os.replace(part, path)
    except OSError as error:
        if os.path.exists(part):
            os.remove(part)
        raise SystemExit(f"{SCRIPT}: cannot write {path}: {error.strerror}")


# ---- the mesh ----

def coordinate(mesh, rank):
    where = []
    for size in reversed(list(mesh.values())):
        where.insert(0, rank % size)
        rank //= size
    return where


def register_groups(groups, rank):
    """Names that the programs call, known to PyTorch.  Every process makes every group."""
    from torch._C._distributed_c10d import _register_process_group
    for name, lists in groups.items():
        for ranks in lists:
            group = dist.new_group(ranks, group_desc=name)
            if rank in ranks:
                _register_process_group(name, group)


def indices(size, placements, mesh, where):
    """The global indices of one dimension that this rank holds."""
    held = list(range(size))
    axes = [axis for axis in zip(placements, mesh.values(), where) if axis[0]]
    for cut, k, r in sorted(axes, key=lambda axis: axis[0].get("turn", 0)):
        lengths = cut.get("segments")
        if not lengths:
            factor = cut.get("factor", 1)
            lengths = [len(held) // factor] * factor
        unit, at, kept = cut.get("unit", 1), 0, []
        for n in lengths:
            chunk = math.ceil(math.ceil(n / unit) / k) * unit
            kept += held[at + min(n, r * chunk):at + min(n, (r + 1) * chunk)]
            at += n
        held = kept
    return held


def shard(tensor, placements, mesh, where):
    for dim in {p["dim"] for p in placements if p}:
        cuts = [p if p and p["dim"] == dim else None for p in placements]
        ranks = math.prod(k for p, k in zip(cuts, mesh.values()) if p)
        if tensor.shape[dim] % ranks and any(p and p.get("even") for p in cuts):
            raise SystemExit(f"{SCRIPT}: {ranks} ranks share dimension {dim} of an input: {tensor.shape[dim]} is no multiple")
        held = indices(tensor.shape[dim], cuts, mesh, where)
        tensor = tensor.index_select(dim, torch.tensor(held, dtype=torch.int64))
    return tensor.contiguous()


# ---- the program ----

def read_program(path):
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("models/model.json"))
        return json.loads(archive.read(name))


def try_imports(modules, is_known):
    """Imports one module after the other until it is_known(); what was tried: {module: why not}."""
    tried = {}
    for module in modules:
        if is_known():
            break
        if module in tried:
            continue
        try:
            importlib.import_module(module)
            tried[module] = "does not define it"
        except Exception as error:  # whatever a module of others may raise
            tried[module] = str(error) or type(error).__name__
    return tried


def missing(path, what, tried):
    """The error of a program that names something which no module defines."""
    text = f"{SCRIPT}: {os.path.basename(path)} {what}, which PyTorch does not know"
    for module, why in tried.items():
        text += f"\n  tried: import {module}: {why}"
    return SystemExit(text + "\n  hint: install the package that defines it, or name its module: --import MODULE")


def classes_of(spec):
    """Names of the classes in the spec of inputs or outputs, as PyTorch registers them."""
    if spec["type"]:
        yield spec["type"]
    for child in spec["children_spec"]:
        yield from classes_of(child)


def import_classes(path):
    """Classes in the specs of inputs and outputs (a library's output classes) must be known
    to PyTorch before it loads the program: importing their modules makes them so."""
    for entry in read_program(path)["graph_module"]["module_call_graph"]:
        signature = entry.get("signature") or {}
        for text in (signature.get("in_spec"), signature.get("out_spec")):
            for name in classes_of(json.loads(text)[1]) if text else ():
                known = lambda: name in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
                parts = name.split(".")
                tried = try_imports((".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)), known)
                if not known():
                    raise missing(path, f"has the class {name} in its inputs or outputs", tried)


# Where operators are defined whose namespace is not the name of a module.
NAMESPACES = {
    "fbgemm": ["fbgemm_gpu"],
    "quantized_decomposed": ["torch.ao.quantization.fx._decomposed"],
    "transformers": ["transformers.integrations.moe"],
}


def operator_calls(value):
    """Nodes that call an operator, those of inner graphs included: (namespace, name, overload, metadata)."""
    if isinstance(value, list):
        for item in value:
            yield from operator_calls(item)
    elif isinstance(value, dict):
        words = str(value.get("target")).split(".")
        if words[:2] == ["torch", "ops"] and len(words) == 5:
            yield (*words[2:], value.get("metadata") or {})
        for item in value.values():
            yield from operator_calls(item)


def modules_of_call(metadata):
    """Modules that torch.export recorded where an operator is called, the innermost first: of
    the classes that called it, and of installed files in the trace."""
    for level in reversed((metadata.get("nn_module_stack") or "").split(";")):
        module = level.rpartition(",")[2].rpartition(".")[0]
        if module.partition(".")[0] not in ("", "__main__", "builtins", "torch"):
            yield module
    for file in reversed(re.findall(r'(?:site|dist)-packages/([\w/]+)\.py"', metadata.get("stack_trace") or "")):
        if not file.startswith("torch/"):
            yield file.removesuffix("/__init__").replace("/", ".")


def import_operators(path):
    """Custom operators that the program calls must be known to PyTorch, too."""
    for namespace, name, overload, metadata in operator_calls(read_program(path)["graph_module"]["graph"]):
        known = lambda: hasattr(getattr(getattr(torch.ops, namespace), name, None), overload)
        if not known():
            modules = [*modules_of_call(metadata), *NAMESPACES.get(namespace, []), namespace]
            tried = try_imports(modules, known)
            if not known():
                raise missing(path, f"calls the custom operator {namespace}::{name}", tried)


def import_modules(path):
    """Imports the Python modules that define the classes and the custom operators which the
    program names; SystemExit says which are missing."""
    import_classes(path)
    import_operators(path)


def flat_inputs(program, given, files, mesh, where, device):
    values, position = [], 0
    for spec in program.graph_signature.input_specs:
        if spec.kind.name != "USER_INPUT":
            continue
        name = getattr(spec.arg, "name", None)
        if type(spec.arg).__name__ == "ConstantArgument":
            values.append(spec.arg.value)
            continue
        key = name if name in given else str(position)
        if key not in given:
            raise SystemExit(f"{SCRIPT}: the input file has no '{name}' (nor \"{position}\"); it has: {', '.join(given)}")
        value = given[key]
        if type(spec.arg).__name__ == "TensorArgument":
            if position < len(files["inputs"]) and files["inputs"][position]:
                value = shard(value, files["inputs"][position], mesh, where)
            value = value.to(device)
        else:
            value = value.item()
        values.append(value)
        position += 1
    return values


# ---- processes ----

def add_arguments(parser):
    """What says where programs run, for begin()."""
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda: each process takes the device of its local rank")
    parser.add_argument("--backend", help="of torch.distributed; default: gloo on the CPU, nccl on cuda")
    parser.add_argument("--import", dest="imports", action="append", default=[], help="a module to import first: one that defines custom operators or classes and is not found by itself")


def begin(args, trains=False):
    """This process becomes a rank of the mesh: (plan, rank, device)."""
    with open(os.path.join(FOLDER, "plan.json")) as f:
        plan = json.load(f)
    if ("train" in plan) != trains:
        raise SystemExit(f"{SCRIPT}: these programs are there to be " + ("run: run.py does that" if trains else "trained: train.py does that"))
    ranks = math.prod(plan["mesh"].values())
    if "RANK" not in os.environ:
        raise SystemExit(f"{SCRIPT}: start it with torchrun --nproc-per-node {ranks} {sys.argv[0]} ...")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != ranks:
        raise SystemExit(f"{SCRIPT}: these programs are for {ranks} ranks, there are {size}")
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    path = program_path(rank)
    if not os.path.exists(path):
        raise SystemExit(f"{SCRIPT}: {path} is missing: `tessera shard` without --ranks writes the files of all ranks")
    for module in args.imports:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise SystemExit(f"{SCRIPT}: --import {module}: {error}")
    import_modules(path)
    dist.init_process_group(args.backend or ("nccl" if device.type == "cuda" else "gloo"))
    register_groups(plan["groups"], rank)
    return plan, rank, device


def program_path(rank):
    return os.path.join(FOLDER, f"rank{rank}.pt2")


def load_program(rank, device):
    program = torch.export.load(program_path(rank))
    if device.type != "cpu":
        from torch.export.passes import move_to_device_pass
        program = move_to_device_pass(program, device)
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-i", "--input", action="append", default=[], help="inputs, .safetensors; several: successive calls")
    parser.add_argument("-o", "--output", action="append", default=[], help="outputs, .safetensors, one per call")
    add_arguments(parser)
    args = parser.parse_args()

    plan, rank, device = begin(args)
    mesh, files = plan["mesh"], plan["files"]
    where = coordinate(mesh, rank)
    program = load_program(rank, device)
    module = program.module()
    for i, name in enumerate(args.input or [None]):
        given = read_safetensors(name) if name else {}
        values = flat_inputs(program, given, files, mesh, where, device)
        positional, keywords = pytree.tree_unflatten(values, program.call_spec.in_spec)
        with torch.no_grad():
            results = module(*positional, **keywords)
        leaves = pytree.tree_flatten(results)[0]
        if i >= len(args.output):
            continue
        tensors = {str(k): t for k, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
        if any(files["outputs"]):  # left cut: every rank has its own
            stem, dot, end = args.output[i].rpartition(".")
            write_safetensors(f"{stem or end}.rank{rank}{dot}{end if stem else ''}", tensors)
        elif rank == 0:
            write_safetensors(args.output[i], tensors)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
