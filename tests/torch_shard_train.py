#!/usr/bin/env python3
"""torch_shard_train.py TESSERA GOLDEN -- what `tessera shard --train` writes, trained by PyTorch.

Each program is sharded over a mesh, train.py of the folder is run by gloo processes, and losses, norms of gradients
and weights must be those of `tessera train` on one rank.

    tests/torch_shard_train.py TESSERA GOLDEN                  # the cases below, on models of GOLDEN/train
    tests/torch_shard_train.py TESSERA GOLDEN --sweep MESHES   # all models there, on meshes with semicolons between
    tests/torch_shard_train.py TESSERA --sweep MESHES FOLDER.. # .../NAME/loss.pt2, data.safetensors and step.json

A mesh may be "dp=2 --fsdp --wrap head": with options of `tessera shard`.

Skipped (exit code 77) where torch is missing.
"""
import json
import math
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import traceback

try:
    import torch
    import torch.distributed  # before the processes are forked
    import torch.export
    import torch.multiprocessing as mp
except ImportError:
    print("torch is not there")
    sys.exit(77)

torch.set_num_threads(1)  # a process that has threads is not to be forked
TOLERANCE = 1e-4
# Gradients that are zero but for rounding, of which Adam makes whole steps; and the mean that follows such a bias.
NOISE = {"encoder": ["wk.bias"], "gpt": ["wk.bias"], "gpt_tied": ["wk.bias"], "gpt_shared": ["wk.bias"], "cnn_bn": ["conv1.bias", "norm1.running_mean"]}


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr if done.returncode else None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def on_rank(rank, folder, ranks, port, arguments):
    """As torchrun starts it; forked, because loading PyTorch takes seconds."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [f"{folder}/train.py", *arguments]
    sys.path.insert(0, folder)
    with open(f"{folder}/rank{rank}.err", "w") as errors:
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            if end.code:
                print(end.code, file=errors)
                errors.flush()
                os._exit(1)
        except BaseException:
            traceback.print_exc(file=errors)
            errors.flush()
            os._exit(1)


def train_in_torch(folder, ranks, arguments):
    """An error text, or None."""
    try:
        mp.start_processes(on_rank, (folder, ranks, free_port(), arguments), nprocs=ranks, start_method="fork")
    except Exception as error:
        texts = [open(f"{folder}/rank{rank}.err").read() for rank in range(ranks) if os.path.exists(f"{folder}/rank{rank}.err")]
        return "".join(sorted(set(texts), key=len)) or str(error)
    return None


def log(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def compare(model, adam, one, folder):
    ours, theirs = log(f"{one}.jsonl"), log(f"{folder}/log.jsonl")
    if len(ours) != len(theirs):
        return f"{len(theirs)} steps instead of {len(ours)}", None
    worst = 0.0
    for a, b in zip(ours, theirs):
        for key in "loss", "grad_norm", "lr":
            worst = max(worst, abs(a[key] - b[key]) / max(abs(a[key]), 1e-6))
            if not abs(a[key] - b[key]) <= TOLERANCE * max(abs(a[key]), 1e-6):
                return f"step {a['step']}: {key} {b[key]} instead of {a[key]}", None
    wanted, saved = FILES["read_safetensors"](f"{one}.safetensors"), FILES["read_safetensors"](f"{folder}/weights.safetensors")
    if set(wanted) != set(saved):
        return f"weights {sorted(set(wanted) ^ set(saved))} are on one side only", None
    for name, t in wanted.items():
        if t.shape != saved[name].shape or t.dtype != saved[name].dtype:
            return f"'{name}' is {saved[name].dtype} {list(saved[name].shape)} instead of {t.dtype} {list(t.shape)}", None
        if adam and any(name.endswith(noise) for noise in NOISE.get(model, ())):
            continue
        if not torch.allclose(t.double(), saved[name].double(), rtol=TOLERANCE, atol=TOLERANCE):
            return f"'{name}' differs by {(t.double() - saved[name].double()).abs().max():.1e}", None
    return None, worst


def case(tessera, temp, model, program, data, mesh, options):
    """Shards, trains on both sides, compares; prints a line.  True: it is right."""
    mesh, *shard_options = mesh.split()
    if "--batch" in shard_options:  # of both
        options = [*options, "--batch", shard_options[shard_options.index("--batch") + 1]]
    ranks = math.prod(int(axis.split("=")[1]) for axis in mesh.split(","))
    folder, one = f"{temp}/{model}-{len(os.listdir(temp))}", f"{temp}/{model}-one"
    error = run(tessera, "shard", program, "--train", "--mesh", mesh, *shard_options, "-o", folder, "--force")
    if not error:
        error = run(tessera, "train", program, "--data", data, *options, "--log", f"{one}.jsonl", "-o", f"{one}.safetensors", "--quiet", "--force")
    if not error:
        error = train_in_torch(folder, ranks, ["--data", data, *options, "--log", f"{folder}/log.jsonl", "--save", f"{folder}/weights.safetensors", "--quiet"])
    worst = None
    if not error:
        error, worst = compare(model, "adam" in "".join(options), one, folder)
    where = " ".join([mesh, *shard_options])
    print(f"FAILED {model} on {where}: {error}" if error else f"{model} on {where}: matches, largest difference {worst:.1e}", flush=True)
    return not error


def saved(tessera, temp, golden, mesh):
    """Weights in a folder of torch.distributed.checkpoint: what tessera reads of it, and what train.py begins with."""
    model = f"{golden}/train/gpt_tied"
    mesh, *shard_options = mesh.split()
    ranks = math.prod(int(axis.split("=")[1]) for axis in mesh.split(","))
    folder, options = f"{temp}/saved", ["--data", f"{model}/batches.safetensors", "--batched", "--quiet", "--optim"]
    error = run(tessera, "shard", f"{model}/forward.pt2", "--train", "--mesh", mesh, *shard_options, "-o", folder)
    for steps in ["adamw", "--steps", "2", "--save", f"{folder}/dcp"], ["sgd,lr=0", "--steps", "1", "--init", f"{folder}/dcp", "--save", f"{folder}/again.safetensors"]:
        error = error or train_in_torch(folder, ranks, [*options, *steps])
    error = error or run(tessera, "ckpt", "diff", f"{folder}/dcp", f"{folder}/again.safetensors")
    print(f"FAILED {mesh} saved: {error}" if error else f"{mesh} saved: matches", flush=True)
    return not error


def samples(path, source):
    """The batches of a file as samples."""
    tensors = {name: t.reshape(-1, *t.shape[2:]) for name, t in FILES["read_safetensors"](source).items()}
    FILES["write_safetensors"](path, tensors)
    return path


def short_cases(tessera, golden, temp):
    """What one mesh does not show another does: tied and uneven weights, groups of them, buffers, shuffling, accumulation, norms."""
    def files(model):
        return model, f"{golden}/train/{model}/forward.pt2", f"{golden}/train/{model}/batches.safetensors"

    model, program, data = files("gpt_tied")
    yield case(tessera, temp, model, program, data, "dp=2,tp=2", ["--batched", "--steps", "5", "--optim", "adamw,lr=1e-2", "--clip", "0.5", "--accumulate", "2"])
    model, program, data = files("gpt_tied")
    yield case(tessera, temp, model, program, data, "dp=2,tp=2 --fsdp", ["--batched", "--steps", "5", "--optim", "adamw,lr=1e-2", "--clip", "0.5"])
    yield saved(tessera, temp, golden, "dp=2,tp=2 --fsdp")
    model, program, data = files("mlp_ce")
    yield case(tessera, temp, model, program, data, "dp=3 --fsdp --prefetch 2", ["--batched", "--steps", "5", "--optim", "adamw,lr=1e-2", "--clip", "0.5"])
    model, program, data = files("cnn_bn")
    yield case(tessera, temp, model, program, samples(f"{temp}/samples.safetensors", data), "dp=2", [
        "--seed", "3", "--steps", "12", "--optim", "sgd,lr=0.1,momentum=0.9", "--clip", "0.5,norm=inf", "--schedule", "cosine,warmup=2"])


def sweep(tessera, golden, temp, meshes, folders):
    recorded = [(os.path.basename(f.rstrip("/")), f"{f}/loss.pt2", f"{f}/data.safetensors") for f in folders]
    for model, program, data in recorded:
        with open(f"{os.path.dirname(program)}/step.json") as f:
            step = json.load(f)
        options = ["--no-shuffle", "--optim", step["optimizer"], "--clip", str(step["clip"]), "--steps", str(len(step["losses"]))]
        for mesh in meshes:
            yield case(tessera, temp, model, program, data, mesh, options)
    for model in sorted(os.listdir(f"{golden}/train")) if golden else ():
        if os.path.exists(f"{golden}/train/{model}/forward.pt2"):
            for mesh in meshes:
                yield case(tessera, temp, model, f"{golden}/train/{model}/forward.pt2", f"{golden}/train/{model}/batches.safetensors", mesh,
                           ["--batched", "--steps", "10", "--optim", "adamw,lr=1e-2", "--clip", "0.5"])


def main():
    words = sys.argv[1:]
    meshes = None
    if "--sweep" in words:
        at = words.index("--sweep")
        meshes, words[at:at + 2] = words[at + 1].split(";"), []
    tessera, *rest = words
    golden = rest[0] if rest and os.path.isdir(f"{rest[0]}/train") else None
    with tempfile.TemporaryDirectory() as temp:
        done = list(sweep(tessera, golden, temp, meshes, rest[1 if golden else 0:]) if meshes else short_cases(tessera, golden, temp))
    print(f"{sum(done)} passed, {len(done) - sum(done)} failed")
    return 0 if all(done) and done else 1


FILES = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../src/rank_files/rank_run.py"))

if __name__ == "__main__":
    sys.exit(main())
