#!/usr/bin/env python3
"""torch_ranks.py TESSERA GOLDEN -- programs with collectives that tessera writes, in PyTorch.

Each program goes through `tessera opt` (as it is, and through passes), is loaded by
torch.export.load and run by two gloo processes on inputs of their own; the results must be
those of `tessera run` on the same files.  Needs torch.
"""
import os
import shutil
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
PASSES = [
    "",
    "inline,functionalize,dce,cse",
    "fuse_ddp_with_concat_op,schedule_comm_wait",
    "fuse_ddp_with_coalesced_op,schedule_comm_wait",
]
NAMES = "inplace copy_form copy_chain coalesced_3 scalar_and_empty bf16 followers groups_differ skip_two_waits mlp_ce".split()
PAIRS = "collectives_tp2 mlp_tp2_by_torch".split()
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}


def save(path, tensors):
    """A minimal .safetensors writer: the package need not be there."""
    import json
    import struct

    names = {v: k for k, v in DTYPES.items()}
    header, blobs, at = {}, [], 0
    for name, t in tensors.items():
        data = bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist()) if t.numel() else b""
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(data)]}
        blobs.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    import json
    import struct

    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack_from("<Q", data)
    result = {}
    for name, e in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + o for o in e["data_offsets"])
        raw = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8) if end > begin else torch.empty(0, dtype=torch.uint8)
        result[name] = raw.view(DTYPES[e["dtype"]]).reshape(e["shape"])
    return result


def outputs_of(program, inputs):
    """What the graph returns, whatever the signature says of it: tessera gives all but mutations."""
    sig = program.graph_signature
    state = {**program.state_dict, **program.constants}
    args = []
    for spec in sig.input_specs:
        args.append(inputs[spec.arg.name] if spec.kind.name == "USER_INPUT" else state[spec.target])
    results = torch.fx.Interpreter(program.graph_module).run(*args)
    return [r for r, spec in zip(results, sig.output_specs) if "MUTATION" not in spec.kind.name]


def on_rank(rank, folder, cases, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    import torch.distributed._functional_collectives  # noqa: F401  registers the ops

    torch._C._distributed_c10d._register_process_group("1", dist.group.WORLD)
    for case in cases:
        own = f"{folder}/{case}.{rank}.pt2"
        program = torch.export.load(own if os.path.exists(own) else f"{folder}/{case}.pt2")
        results = outputs_of(program, load(f"{folder}/{case}.in{rank}"))
        save(f"{folder}/{case}.torch{rank}", {str(i): r.detach().clone() for i, r in enumerate(results)})
    dist.destroy_process_group()


def run(command):
    return subprocess.run(command, capture_output=True, text=True)


def make_case(tessera, source, passes, folder, case):
    """Writes the program, its inputs, and what tessera makes of them; an error text or None."""
    done = run([tessera, "opt", source, "--passes", passes, "-o", f"{folder}/{case}.pt2"] if passes else [tessera, "opt", source, "-o", f"{folder}/{case}.pt2"])
    if done.returncode:
        return done.stderr
    program = torch.export.load(f"{folder}/{case}.pt2")
    wanted = [n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.name in program.graph_signature.user_inputs]
    names = [n.name for n in program.graph.nodes if n.op == "placeholder" and n.name in program.graph_signature.user_inputs]
    for rank in range(RANKS):
        torch.manual_seed(rank)
        made = {n: torch.randn(v.shape).to(v.dtype) if v.dtype.is_floating_point else torch.randint(0, 4, v.shape) for n, v in zip(names, wanted)}
        save(f"{folder}/{case}.in{rank}", made)
    done = run([tessera, "run", f"{folder}/{case}.pt2", "-n", str(RANKS), "-i", f"{folder}/{case}.in{{rank}}", "-o", f"{folder}/{case}.ours{{rank}}"])
    return done.stderr if done.returncode else None


def make_pair(tessera, source, folder, case):
    """The same for a folder of one program per rank, which brings its inputs."""
    for rank in range(RANKS):
        done = run([tessera, "opt", f"{source}/rank{rank}.pt2", "-o", f"{folder}/{case}.{rank}.pt2"])
        if done.returncode:
            return done.stderr
        shutil.copyfile(f"{source}/inputs_rank{rank}.safetensors", f"{folder}/{case}.in{rank}")
    programs = [f"{folder}/{case}.{rank}.pt2" for rank in range(RANKS)]
    done = run([tessera, "run", *programs, "-i", f"{folder}/{case}.in{{rank}}", "-o", f"{folder}/{case}.ours{{rank}}"])
    return done.stderr if done.returncode else None


def compare(folder, case, rank):
    ours, theirs = load(f"{folder}/{case}.ours{rank}"), load(f"{folder}/{case}.torch{rank}")
    if set(ours) != set(theirs):
        return f"outputs {sorted(ours)} and {sorted(theirs)}"
    for name, t in theirs.items():
        tolerance = 2e-2 if t.dtype == torch.bfloat16 else 1e-5
        if t.dtype != ours[name].dtype or t.shape != ours[name].shape or not torch.allclose(ours[name].double(), t.double(), rtol=tolerance, atol=tolerance):
            return f"output {name} differs on rank {rank}"
    return None


def main():
    tessera, golden = sys.argv[1], sys.argv[2]
    failed = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for name in NAMES:
            for i, passes in enumerate(PASSES):
                case = f"{name}_{i}"  # the number of the list of passes
                error = make_case(tessera, f"{golden}/ddp/fusion/{name}.before.pt2", passes, folder, case)
                cases.append(case)
                if error:
                    failed[case] = error
        for name in PAIRS:
            error = make_pair(tessera, f"{golden}/models/{name}", folder, name)
            cases.append(name)
            if error:
                failed[name] = error
        ready = [c for c in cases if c not in failed]
        mp.spawn(on_rank, (folder, ready, 20000 + os.getpid() % 20000), nprocs=RANKS)
        for case in ready:
            for rank in range(RANKS):
                error = compare(folder, case, rank)
                if error:
                    failed[case] = error
    for case, error in failed.items():
        print(f"FAILED {case}: {error}")
    print(f"{len(cases) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
