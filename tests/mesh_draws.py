#!/usr/bin/env python3
"""Draws trainings on meshes and compares each with the same training on one rank.

    tests/mesh_draws.py TESSERA DRAWS SEED FOLDER...       # a FOLDER: a model, or a folder of models

A model is a folder with a program that returns its loss (program.pt2, loss.pt2 or forward.pt2) and a batch for it
(inputs.safetensors, or data.safetensors); plan*.json in it are plans.  A draw takes a model, a mesh of one to three
axes and at most eight ranks, a plan (of the folder, auto, random placements or random styles), a size of batches that
need not divide, accumulation, clipping, an optimizer with groups and frozen parameters, on meshes with a data axis half
of the time FSDP with its options, at times a limit of memory.  Five steps are made in f64, where all that differs is a
mistake: losses and norms within 1e-8, parameters within 1e-6 of what they moved; or in f32, losses and norms within 1e-4
(with bf16, in which Muon iterates: 1e-2).

What differs by more is compared with what rounding does to this very training: one rank again, three times, from weights
that are off by a rounding of their dtype.  Within four times of that it is "noise", counted apart; else the draw fails and
prints the two commands.  DRAW=N in the environment makes that draw alone.  A plan, a limit or a size of batches that is
refused with exit code 2 is no draw; REFUSED=1 lists why.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

DTYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "I32": np.int32, "BOOL": np.bool_, "U8": np.uint8}
NAMES = {np.dtype(v): k for k, v in DTYPES.items()}
TIMEOUT = 300
# Trainings that one rank refuses, too; the last: the largest element of a parameter without elements, as in PyTorch.
NOT_TRAINED = ("dynamic batch", "the loss is", "the reduction no identity")


def load(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + o for o in t["data_offsets"])
        if t["dtype"] == "BF16":
            x = (np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(raw[begin:end], DTYPES[t["dtype"]])
        out[name] = x.reshape(t["shape"])
    return out


def save(path, tensors):
    header, parts, at = {}, [], 0
    for name, x in tensors.items():
        data = np.ascontiguousarray(x).tobytes()
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


class Model:
    def __init__(self, folder):
        self.name = folder.name
        self.program = next(folder / n for n in ("program.pt2", "loss.pt2", "forward.pt2") if (folder / n).exists())
        self.data = load(next(folder / n for n in ("inputs.safetensors", "data.safetensors") if (folder / n).exists()))
        self.plans = sorted(folder.glob("plan*.json"))
        self.state = {}  # of parameters and buffers: how they begin
        self.rough = "bf16" in self.name
        rows = {x.shape[0] if x.ndim else None for x in self.data.values()}
        self.rows = rows.pop() if len(rows) == 1 else None  # None: inputs are not rows of samples
        step = folder / "step.json"
        if step.exists():
            self.rows = json.loads(step.read_text())["batch"]  # the data are more than one

    @staticmethod
    def is_one(folder):
        return any((folder / n).exists() for n in ("program.pt2", "loss.pt2", "forward.pt2")) and \
            any((folder / n).exists() for n in ("inputs.safetensors", "data.safetensors"))

    def batches(self, rng, batches, rows):
        """Arrays of batches * rows samples (rows None: of whole batches), made of those that were recorded."""
        out = {}
        for name, x in self.data.items():
            if rows is None:
                kept = [x] * batches
                out[name] = np.stack([y + rng.normal(size=y.shape).astype(y.dtype) * 0.1 if y.dtype.kind == "f" and y.ndim > 1 else y for y in kept])
                continue
            pick = rng.integers(0, len(x), batches * rows)
            y = x[pick]
            if x.dtype.kind == "f" and x.ndim > 1 and not np.isin(x, (0, 1)).all():
                y = y + rng.normal(size=y.shape).astype(x.dtype) * np.asarray(0.3, x.dtype)
            out[name] = y
        return out


def draw_mesh(r):
    sizes = r.choice([[2], [3], [4], [5], [8], [2, 2], [2, 3], [3, 2], [2, 4], [4, 2], [2, 2, 2], [1, 3], [2, 1], [2, 1, 2]])
    names = {1: [["dp"], ["dp"], ["tp"], ["tp"]], 2: [["dp", "tp"], ["tp", "dp"], ["dp", "tp"], ["replica", "dp"], ["x", "tp"]],
             3: [["replica", "dp", "tp"], ["dp", "x", "tp"], ["dp", "tp", "x"]]}[len(sizes)]
    return list(zip(r.choice(names), sizes))


def placement(r, shape, axes):
    return ",".join(f"S({r.randrange(len(shape))})" if shape and n != "dp" and n != "replica" and r.random() < 0.6 else "R" for n, _ in axes)


def draw_plan(r, model, axes, path):
    """What stands behind --plan: a file, "auto", or None: nothing is said."""
    kind = r.choice(["file", "auto", "none", "params", "params", "styles", "styles", "styles"])
    tensors = {n: x for n, x in model.state.items() if x.dtype.kind == "f"}
    if kind == "file" and model.plans:
        return str(r.choice(model.plans))
    if kind == "params":
        chosen = r.sample(sorted(tensors), min(len(tensors), r.choice([1, 2, 4, 100])))
        path.write_text(json.dumps({"params": {n: placement(r, tensors[n].shape, axes) for n in chosen}}))
        return str(path)
    if kind == "styles":
        modules = sorted({n[:-len(".weight")] for n in tensors if n.endswith(".weight")})
        chosen = r.sample(modules, min(len(modules), r.choice([1, 2, 3, 6, 100])))
        plan = {}
        for m in chosen:
            ndim = tensors[m + ".weight"].ndim
            styles = ["sequence_parallel", "replicate"] if ndim == 1 else ["colwise", "rowwise", "colwise_gather_output", "embedding_rowwise"]
            plan[m] = r.choice(styles)
        if plan:
            path.write_text(json.dumps({"parallelize": plan}))
            return str(path)
    return "auto" if kind != "none" else None


def draw_training(r, model):
    """Options of the training itself, and whether it is in f64."""
    exact = "f64" if r.random() < 0.75 else "f32"
    words = ["--steps", "5", "--seed", str(r.randrange(100))]
    words += ["--param-dtype", "f64"] if exact == "f64" else []
    lr = r.choice(["1e-2", "3e-3"])
    optim = r.choice(["adamw", "adamw", "adamw,amsgrad", "adam,weight_decay=0.01", "sgd", "sgd,momentum=0.9,nesterov", "adagrad", "muon", "adamw,maximize"])
    name, _, rest = optim.partition(",")
    words += ["--optim", f"{name},lr={lr}" + ("," + rest if rest else "")]
    clip = r.choice([None, "0.1", "1", "0.5,norm=1", "0.2,norm=3", "0.05,norm=inf", "value=0.01"])
    words += ["--clip", clip] if clip else []
    params = sorted(n for n, x in model.state.items() if x.dtype.kind == "f" and "running" not in n and "num_batches" not in n and "count" not in n)
    if params and r.random() < 0.3:
        words += ["--group", f"other={r.choice(params)}:" + r.choice(["lr=1e-3", "weight_decay=0", "optim=sgd,lr=0.05,momentum=0.5", "optim=muon,lr=0.01"])]
    if len(params) > 3 and r.random() < 0.3:
        words += ["--freeze", ",".join(r.sample(params, r.choice([1, 2])))]
    accumulate = r.choice([1, 1, 1, 2, 3])
    bucket = r.choice([[], [], ["--bucket-mb", "0"], ["--bucket-mb", "0.002"]])
    words += ["--accumulate", str(accumulate)]
    if r.random() < 0.2:
        words += ["--schedule", "cosine,warmup=2"]
    bucket = bucket + ["--whole-updates"] if r.random() < 0.1 else bucket
    rough = model.rough or any("muon" in w for w in words)  # which iterates in bf16
    return words, bucket, accumulate, "bf16" if rough else exact


def draw_fsdp(r, model, axes):
    """Options of --fsdp, or none."""
    data = [n for n, k in axes if n == "dp"]
    if r.random() < 0.4 or not (data or len(axes) == 1):
        return []
    words = [r.choice(["--fsdp", f"--fsdp={data[0]}"]) if data else f"--fsdp={axes[0][0]}"]
    words += [] if data else ["--data-axis", axes[0][0]]
    if r.random() < 0.5:
        words += ["--prefetch", r.choice(["0", "1", "2", "5"])]
    if r.random() < 0.3:
        words += [r.choice(["--keep-gathered", "--keep-gathered", "--no-overlap"])]
    if r.random() < 0.4:
        modules = sorted({n.rsplit(".", k)[0] for n in model.state for k in (1, 2) if n.count(".") >= k})
        if modules:
            chosen = r.sample(modules, min(len(modules), r.choice([1, 2, 3, 50])))
            words += ["--wrap", ",".join(m if r.random() < 0.7 else m.rsplit(".", 1)[0] + ".*" for m in chosen)]
    return words


def run(tessera, words):
    try:
        p = subprocess.run([tessera, "train", *words], capture_output=True, text=True, timeout=TIMEOUT)
        return p.returncode, p.stderr.strip()
    except subprocess.TimeoutExpired:
        return "hang", f"nothing after {TIMEOUT} s"


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


NEAR = {"f64": 1e-8, "f32": 1e-4, "bf16": 1e-2}  # losses and norms
ROUNDING = {"f64": 2e-16, "f32": 6e-8, "bf16": 4e-3}  # what weights are off by to see what rounding does


def numbers(folder):
    """Losses and norms of all steps: {(step, what): number}."""
    return {(x["step"], w): float("nan") if x[w] is None else float(x[w]) for x in rows_of(folder / "log") for w in ("loss", "grad_norm")}


def apart(u, v):
    return 0.0 if u == v or (u != u and v != v) else float("inf") if u != u or v != v else abs(u - v)


def differs(model, alone, mesh, exact, noise=None):
    """What is not the same, or None.  noise: folders of one rank, begun a rounding apart."""
    a, b = numbers(alone), numbers(mesh)
    if a.keys() != b.keys():
        return f"{len(b) // 2} steps instead of {len(a) // 2}"
    others = [numbers(n) for n in noise or ()]
    for key, u in a.items():
        near = NEAR[exact] * max(abs(u), 1e-2) if u == u else 0.0
        near = max([near] + [4 * apart(u, o.get(key, u)) for o in others])
        if not apart(u, b[key]) <= near:
            return f"step {key[0]}: {key[1]} {b[key]!r} on the mesh, {u!r} on one rank" + (f", where rounding makes {near / 4:.3g}" if noise else "")
    if exact != "f64":
        return None
    p, q = load(alone / "w.safetensors"), load(mesh / "w.safetensors")
    others = [load(n / "w.safetensors") for n in noise or ()]
    if p.keys() != q.keys():
        return f"other states: {p.keys() ^ q.keys()}"
    for name, x in p.items():
        y = q[name]
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{name} is {y.dtype}{y.shape}, not {x.dtype}{x.shape}"
        far = lambda z: float(np.abs(x.astype(np.float64) - z).max(initial=0))
        begin = model.state.get(name, x)
        change = max(float(np.abs(x - begin).max(initial=0)), 1e-4) if x.dtype.kind == "f" else 1
        near = max([1e-6 * change + 1e-7] + [4 * far(o[name]) for o in others])  # 1e-7: of gradients that are noise
        if not far(y) <= near:
            return f"{name} moved by {change:.3g} and differs by {far(y):.3g}" + (f", where rounding makes {near / 4:.3g}" if noise else "")
    return None


class Draws:
    def __init__(self, tessera, folders, temp):
        self.tessera, self.temp = tessera, temp
        found = [f for top in map(Path, folders) for f in ([top] if Model.is_one(top) else sorted(top.iterdir())) if f.is_dir() and Model.is_one(f)]
        self.models = [Model(f) for f in found]
        self.refused, self.kinds = {}, {}

    def begin(self, model):
        """Names and first values of its states, from a training that moves nothing."""
        if model.state:
            return
        words = self.common(model, np.random.default_rng(0), 1, self.rows(model, None), self.temp / "first")
        code, error = run(self.tessera, [*words, "--steps", "1", "--optim", "sgd,lr=0", "--nonfinite", "go"])
        assert code == 0, f"{model.name}: {error}"
        model.state = load(self.temp / "first" / "w.safetensors")

    @staticmethod
    def rows(model, r):
        if r is None or model.rows is None or r.random() < 0.4:
            return model.rows
        return r.choice([2, 3, 5, 6, 7, model.rows + 1])

    def common(self, model, rng, batches, rows, folder):
        folder.mkdir(exist_ok=True)
        save(self.temp / "data.safetensors", model.batches(rng, batches, rows))
        how = ["--batched"] if rows is None else ["--batch", str(rows), "--no-shuffle"]
        return [str(model.program), "--data", str(self.temp / "data.safetensors"), *how, *self.results(folder)]

    @staticmethod
    def results(folder):
        return ["-q", "-f", "--threads", "1", "--log", str(folder / "log"), "-o", str(folder / "w.safetensors")]

    def one(self, seed):
        """None, "refused", or what is wrong."""
        r = random.Random(seed)
        model = r.choice(self.models)
        self.begin(model)
        axes = draw_mesh(r)
        training, bucket, accumulate, exact = draw_training(r, model)
        rows = self.rows(model, r)
        alone, mesh = self.temp / "alone", self.temp / "mesh"
        words = self.common(model, np.random.default_rng(seed), 5 * accumulate, rows, alone) + training
        code, error = run(self.tessera, words)
        if code == 2 or any(reason in error for reason in NOT_TRAINED):
            return self.refuse(model, error)
        if code:
            return f"one rank: exit code {code}: {error}\n  {' '.join([self.tessera, 'train', *words])}"
        plan = draw_plan(r, model, axes, self.temp / "plan.json")
        where = ["--mesh", ",".join(f"{n}={k}" for n, k in axes), *(["--plan", plan] if plan else [])]
        if not any(n in ("dp", "replica") for n, _ in axes) and len(axes) > 1 and r.random() < 0.7:
            where += ["--data-axis", r.choice([n for n, _ in axes])]
        mesh.mkdir(exist_ok=True)
        fsdp = draw_fsdp(r, model, axes) if "--data-axis" not in where else []
        where += bucket + fsdp
        limit = ["--memory", r.choice(["100%", "95%", "90%", "70%", "50%"])] if r.random() < 0.15 else []
        code, error = run(self.tessera, [*words, *self.results(mesh), *where, *limit])
        while code == 2 and "smallest limit" in error:  # which must do for the rank that told
            limit = ["--memory", error.split("--memory ")[1].split(",")[0].split()[0]]
            code, error = run(self.tessera, [*words, *self.results(mesh), *where, *limit])
        where += limit
        if code == 2:
            return self.refuse(model, error)
        self.kinds["fsdp" if fsdp else "no fsdp"] = self.kinds.get("fsdp" if fsdp else "no fsdp", 0) + 1
        wrong = f"exit code {code}: {error}" if code else differs(model, alone, mesh, exact)
        if not wrong:
            return None
        if not code:
            wrong = differs(model, alone, mesh, exact, self.noise(model, words, exact))
            if not wrong:
                return "noise"
        text = Path(plan).read_text() if plan and plan != "auto" else plan
        return f"{model.name}: {wrong}\n  {' '.join([self.tessera, 'train', *words])}\n  ... {' '.join(where)}\n  {text}"

    def noise(self, model, words, exact):
        """Folders of the same training on one rank, from weights that are off by a rounding."""
        folders = []
        for k in range(3):
            rng, folder = np.random.default_rng(k), self.temp / f"noise{k}"
            folder.mkdir(exist_ok=True)
            off = {n: x * (1 + ROUNDING[exact] * rng.choice([-1.0, 1.0], size=x.shape)) if x.dtype.kind == "f" else x for n, x in model.state.items()}
            save(folder / "init.safetensors", off)
            code, error = run(self.tessera, [*words, *self.results(folder), "--init", str(folder / "init.safetensors")])
            assert code == 0, f"{model.name}: {error}"
            folders.append(folder)
        return folders

    def refuse(self, model, error):
        line = error.splitlines()[0] if error else ""
        self.refused.setdefault(line[:160], model.name)
        return "refused"


def main():
    tessera, draws, seed, folders = str(Path(sys.argv[1]).resolve()), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    counts, failed = {"same": 0, "noise": 0, "refused": 0}, 0
    with tempfile.TemporaryDirectory() as temp:
        all_draws = Draws(tessera, folders, Path(temp))
        first = int(os.environ.get("DRAW", seed))
        made = 0
        at = first
        while made < (1 if "DRAW" in os.environ else draws):
            wrong = all_draws.one(at)
            made += wrong != "refused"
            if wrong in (None, "noise", "refused"):
                counts[wrong or "same"] += 1
            else:
                failed += 1
                print(f"draw {at}: {wrong}", flush=True)
            if wrong and "DRAW" in os.environ:
                break
            at += 1
        if os.environ.get("REFUSED"):
            for line, name in sorted(all_draws.refused.items()):
                print(f"refused ({name}): {line}")
    print(f"{counts['same']} draws like one rank, {counts['noise']} as near as rounding allows, {failed} failed, {counts['refused']} were refused {all_draws.kinds}")
    return 1 if failed or counts["refused"] > 4 * max(draws, 5) else 0


if __name__ == "__main__":
    sys.exit(main())
