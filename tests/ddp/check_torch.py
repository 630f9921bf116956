#!/usr/bin/env python3
"""What tessera's passes write, loaded and run by PyTorch.

    tests/ddp/check_torch.py TESSERA FOLDER...

Every CASE.before.pt2 of the folders goes through `tessera opt` with each list of passes; the
file is loaded by torch.export.load and run on two gloo processes with random inputs.  Outputs
and inputs (buffers are written to) must be what the program before the passes gives, bit for bit,
and the signature must be the same.  Skipped (exit code 77) without PyTorch.
"""
import glob
import os
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError:
    sys.exit(77)

LISTS = [
    "fuse_ddp_with_concat_op,schedule_comm_wait",
    "fuse_ddp_with_coalesced_op,schedule_comm_wait",
    "fuse_ddp_with_concat_op(bucket_size_mb=0.00002,first_bucket_mb=0.00002),overlap",
    "overlap(memory_mb=0.0001),fuse_ddp_with_coalesced_op(bucket_size_mb=0.5)",
    "schedule_comm_wait,overlap",
]
TOO_LARGE = 4 << 20  # elements of an input: nothing new is learnt from these


def run(program, seed):
    """Outputs, and inputs as they are left behind."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        meta = node.meta["val"]
        if meta.numel() > TOO_LARGE:
            return None
        if meta.dtype.is_floating_point:
            values.append(torch.randn(meta.shape, generator=generator).to(meta.dtype) + 2)
        else:
            values.append(torch.randint(0, 2, meta.shape, generator=generator).to(meta.dtype))
    outputs = torch.fx.Interpreter(program.graph_module).run(*values, enable_io_processing=False)
    return [o for o in outputs if o is not None] + values


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def signature(program):
    return [(s.kind.name, s.target) for s in program.graph_signature.output_specs]


def work(rank, store, pairs):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
    dist.new_group([0, 1])  # "1"
    failures = checked = 0
    for before, after, what in pairs:
        old, new = torch.export.load(before), torch.export.load(after)
        with torch.no_grad():
            want = run(old, rank)
            got = run(new, rank) if want is not None else None
        right = signature(old) == signature(new) and (want is None or (len(want) == len(got) and all(map(same, want, got))))
        checked += want is not None
        if not right:
            failures += 1
            print(f"rank {rank}: {what}: PyTorch gets other results", flush=True)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{len(pairs)} programs loaded, {checked} run by PyTorch", flush=True)
    if failures:
        sys.exit(1)


def main():
    tessera, folders = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as temp:
        pairs = []
        for before in sorted(sum((glob.glob(f"{f}/*.before.pt2") for f in folders), [])):
            name = os.path.basename(before).removesuffix(".before.pt2")
            for i, passes in enumerate(LISTS):
                after = f"{temp}/{name}_{i}.pt2"
                subprocess.run([tessera, "opt", before, "--passes", passes, "-o", after], check=True)
                pairs.append((before, after, f"{name} [{passes}]"))
        mp.spawn(work, (f"{temp}/store", pairs), nprocs=2)


if __name__ == "__main__":
    main()
