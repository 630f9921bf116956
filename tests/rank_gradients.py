#!/usr/bin/env python3
"""What `tessera shard --train` writes, run by tessera: the shards of all ranks make up the gradients of the joint program.

    tests/rank_gradients.py TESSERA MESHES FOLDER...    # MESHES: "dp=2,tp=2 --fsdp;dp=3", with options of shard

A FOLDER has program.pt2, which returns its loss, and inputs.safetensors.
"""
import itertools
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from mesh_draws import load


def run(*command, fails=None):
    """What it says; None: it fails as it may."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if fails and fails in done.stderr:
        return None
    if done.returncode:
        sys.exit(f"FAILED {' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def held(size, cuts):
    """Indices of one dimension that a rank has; cuts: (how an axis cuts it, ranks, its coordinate)."""
    have = np.arange(size)
    for cut, ranks, at in sorted(cuts, key=lambda c: c[0].get("turn", 0)):
        unit, factor, kept, begin = cut.get("unit", 1), cut.get("factor", 1), [], 0
        for n in cut.get("segments") or [len(have) // factor] * factor:
            chunk = math.ceil(math.ceil(n / unit) / ranks) * unit
            kept.append(have[begin + min(n, at * chunk):begin + min(n, (at + 1) * chunk)])
            begin += n
        have = np.concatenate(kept)
    return have


def joined(parts, plan):
    """The whole of what the ranks have, and nan where nobody has anything."""
    entry, mesh = plan
    whole = np.full(entry["shape"], np.nan, parts[0].dtype)
    shards = entry["shards"] or [None] * len(mesh)
    for part, where in zip(parts, itertools.product(*(range(k) for k in mesh.values()))):
        axes = list(zip(shards, mesh.values(), where))
        index = [held(size, [a for a in axes if a[0] and a[0]["dim"] == d]) for d, size in enumerate(entry["shape"])]
        if list(part.shape) != [len(i) for i in index]:
            return None
        whole[np.ix_(*index)] = part
    return whole


def gradients(tessera, program):
    """Numbers of the outputs that are gradients, by the name of the parameter."""
    facts = json.loads(run(tessera, "inspect", program, "--json"))
    return {o["target"]: str(i) for i, o in enumerate(facts["outputs"]) if o["kind"] == "gradient_to_parameter"}


def check(tessera, folder, mesh, temp):
    mesh, *options = mesh.split()
    ranks = math.prod(int(axis.split("=")[1]) for axis in mesh.split(","))
    files, one = temp / f"{folder.name}-{mesh}", temp / f"{folder.name}.pt2"
    run(tessera, "opt", folder / "program.pt2", "--passes", "grad", "-o", one, "--force")
    run(tessera, "run", one, "-i", folder / "inputs.safetensors", "-o", temp / "one.safetensors", "--force")
    said = run(tessera, "shard", folder / "program.pt2", "--train", "--mesh", mesh, *options, "-o", files, "--force", fails="gets no part")
    if said is None:
        return True
    run(tessera, "run", files, "-i", folder / "inputs.safetensors", "-o", temp / "part.safetensors", "--force")
    plan = json.loads((files / "plan.json").read_text())
    wanted, numbers = load(temp / "one.safetensors"), gradients(tessera, one)
    each = [load(temp / f"part.rank{r}.safetensors") for r in range(ranks)]
    for name, number in gradients(tessera, files / "rank0.pt2").items():
        got, want = joined([part[number] for part in each], (plan["train"]["state"][name], plan["mesh"])), wanted[numbers[name]]
        if got is None or not np.allclose(got, want, rtol=1e-4, atol=1e-6 * max(1.0, np.abs(want).max(initial=0))):
            print(f"FAILED {folder.name} on {mesh} {' '.join(options)}: the gradient of '{name}'")
            return False
    return True


def main():
    tessera, meshes, *folders = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temp:
        done = [check(tessera, Path(folder), mesh, Path(temp)) for folder in folders for mesh in meshes.split(";")]
    print(f"{sum(done)} passed, {len(done) - sum(done)} failed")
    return 0 if done and all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
