#!/usr/bin/env python3
"""`tessera train` against PyTorch: the same programs, data and recipes; losses, norms of gradients, learning rates and
what the parameters become.

    tests/torch_train.py TESSERA                     # models and recipes that are made here
    tests/torch_train.py TESSERA FOLDER...           # .../NAME/loss.pt2 and data.safetensors, with some recipes
    tests/torch_train.py TESSERA --all               # ... every recipe also with core ATen programs
    tests/torch_train.py TESSERA --only WORD         # cases whose name has the word in it
    tests/torch_train.py TESSERA --part 1/3          # every third case, from the first on

Skipped (exit code 77) where torch is missing.
"""
import fnmatch
import json
import math
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError:
    print("torch is not there")
    sys.exit(77)
from torch import nn
import torch.nn.functional as F

try:
    import transformers.integrations.moe  # registers the grouped products of mixtures of experts
except ImportError:
    pass
warnings.filterwarnings("ignore")
torch.set_num_threads(1)
STEPS = 6

# ---- models: a module whose forward gives the loss, and its inputs ----------------------------------------


class Mlp(nn.Module):
    """Embedding, LayerNorm, dropout that drops nothing, a parameter that is not used and one that is a number."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(11, 8)
        self.fc1 = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(24)
        self.drop = nn.Dropout(0.0)
        self.fc2 = nn.Linear(24, 5)
        self.scale = nn.Parameter(torch.tensor(1.3))
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, ids, y):
        h = self.drop(self.norm(F.gelu(self.fc1(self.emb(ids).mean(1)))))
        return F.cross_entropy(self.fc2(h) * self.scale, y)

    @staticmethod
    def inputs():
        return {"ids": torch.randint(0, 11, (6, 4)), "y": torch.randint(0, 5, (6,))}


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(6)
        self.c2 = nn.Conv2d(6, 8, 3, stride=2, groups=2)
        self.fc = nn.Linear(8 * 9, 4)

    def forward(self, x, y):
        h = F.relu(self.bn(self.c1(x)))
        return F.cross_entropy(self.fc(F.relu(self.c2(h)).flatten(1)), y)

    @staticmethod
    def inputs():
        return {"x": torch.randn(4, 3, 8, 8), "y": torch.randint(0, 4, (4,))}


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p.view(b, t, 2, d // 2).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d).to(x.dtype))  # the export checks the dtype that it saw
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(19, 16), nn.Embedding(8, 16)
        self.h = nn.ModuleList([Block(16), Block(16)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 19, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())

    @staticmethod
    def inputs():
        return {"ids": torch.randint(0, 19, (3, 8)), "labels": torch.randint(0, 19, (3, 8))}


class Strided(nn.Module):
    """Weights that lie across memory."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(6, 9).t())
        self.b = nn.Parameter(torch.randn(9, 2, 4)[:, 1])

    def forward(self, x, y):
        return F.mse_loss(torch.tanh(x @ self.a.t()) @ self.b, y)

    @staticmethod
    def inputs():
        return {"x": torch.randn(5, 6), "y": torch.randn(5, 4)}


class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(7, 9).double(), nn.Linear(9, 3).double()

    def forward(self, x, y):
        return F.mse_loss(self.fc2(torch.sigmoid(self.fc1(x))), y)

    @staticmethod
    def inputs():
        return {"x": torch.randn(5, 7, dtype=torch.float64), "y": torch.randn(5, 3, dtype=torch.float64)}


class Mixed(nn.Module):
    """Weights of two dtypes in one program; inputs that are bool and integer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(7, 9), nn.Linear(9, 3).double()

    def forward(self, x, keep, n):
        h = torch.where(keep, torch.tanh(self.a(x)), 0.1)
        return (self.b(h.double()) * n.unsqueeze(1)).square().mean()

    @staticmethod
    def inputs():
        return {"x": torch.randn(5, 7), "keep": torch.rand(5, 9) > 0.4, "n": torch.randint(1, 4, (5,), dtype=torch.int32)}


MODELS = {"mlp": Mlp, "conv": Conv, "gpt": Gpt, "strided": Strided, "double": Double, "mixed": Mixed}

# ---- recipes ------------------------------------------------------------------------------------------------


def recipe(name, optim, models=tuple(MODELS), **more):
    return {"name": name, "optim": optim, "models": models, **more}


def cosine(warmup, least, steps=STEPS):
    def factor(done):
        if done < warmup:
            return (done + 1) / warmup
        t = (done - warmup) / (steps - warmup)
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * t))
    return factor


def linear(least, steps=STEPS):
    return lambda done: least + (1 - least) * (1 - done / steps)


def stable(warmup, decay, least, steps=STEPS):
    def factor(done):
        if done < warmup:
            return (done + 1) / warmup
        late = max(0, done - (steps - decay)) / decay
        return least + (1 - least) * (1 - late)
    return factor


FLOATS = ("mlp", "gpt")
ADAMW = ("adamw", {"lr": 3e-3})
RECIPES = [
    recipe("sgd", ("sgd", {"lr": 0.05})),
    recipe("sgd_momentum", ("sgd", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02})),
    recipe("sgd_nesterov", ("sgd", {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01})),
    recipe("sgd_maximize", ("sgd", {"lr": 0.01, "momentum": 0.5, "maximize": True, "weight_decay": 0.1})),
    recipe("adam", ("adam", {"lr": 2e-3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.03})),
    recipe("adam_amsgrad", ("adam", {"lr": 2e-3, "amsgrad": True})),
    recipe("adam_maximize", ("adam", {"lr": 2e-3, "maximize": True, "weight_decay": 0.1, "amsgrad": True})),
    recipe("adam_decoupled", ("adam", {"lr": 2e-3, "decoupled_weight_decay": True, "weight_decay": 0.3})),
    recipe("adamw", ADAMW),
    recipe("adamw_all", ("adamw", {"lr": 1e-3, "betas": (0.5, 0.6), "eps": 1e-5, "weight_decay": 0.2, "amsgrad": True, "maximize": True})),
    recipe("adagrad", ("adagrad", {"lr": 0.02})),
    recipe("adagrad_all", ("adagrad", {"lr": 0.05, "lr_decay": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.02, "eps": 1e-4, "maximize": True})),
    recipe("muon", ("muon", {"lr": 2e-3}), halves=True),
    recipe("muon_rms", ("muon", {"lr": 2e-3, "weight_decay": 0.05, "momentum": 0.8, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}), halves=True),
    recipe("muon_ns", ("muon", {"lr": 2e-3, "ns_steps": 2, "ns_coefficients": (3.0, -3.2, 1.2), "eps": 1e-3}), ("mlp", "strided"), halves=True),
    recipe("muon_clipped", ("muon", {"lr": 2e-3}), ("gpt", "conv", "mixed"), halves=True, clip=(0.1, 2), accumulate=2),
    recipe("groups", ADAMW, FLOATS, groups=[("no_decay", "*.bias,*norm*", None, {"weight_decay": 0.0}), ("slow", "wte.*,emb.*,head.*", None, {"lr": 1e-4, "betas": (0.7, 0.8)})]),
    recipe("groups_optim", ADAMW, FLOATS, groups=[("s", "*bias", "sgd", {"momentum": 0.9, "lr": 0.02}), ("g", "*norm*", "adagrad", {"lr": 0.03}), ("m", "fc*,h.*", "muon", {"adjust_lr_fn": "match_rms_adamw"})], halves=True),
    recipe("freeze", ADAMW, ("mlp",), freeze="emb.*,fc1.bias"),
    recipe("freeze_gpt", ADAMW, ("gpt",), freeze="h.0.*,wpe.weight"),
    recipe("clip2", ADAMW, clip=(0.05, 2)),
    recipe("clip1", ("sgd", {"lr": 0.5}), clip=(0.3, 1)),
    recipe("clipinf", ("sgd", {"lr": 0.5}), clip=(0.01, math.inf)),
    recipe("clip3", ("sgd", {"lr": 0.5, "momentum": 0.9}), clip=(0.02, 3)),
    recipe("clip_loose", ADAMW, FLOATS, clip=(1e6, 2)),
    recipe("clip_value", ("sgd", {"lr": 0.5}), clip=("value", 0.01)),
    recipe("accumulate", ADAMW, accumulate=3),
    recipe("accumulate_sgd", ("sgd", {"lr": 0.1, "momentum": 0.9}), accumulate=3, clip=(0.2, 2)),
    recipe("accumulate_value", ("sgd", {"lr": 0.5}), FLOATS, accumulate=3, clip=("value", 0.01)),
    recipe("cosine", ADAMW, FLOATS, schedule=("cosine", "annealing")),
    recipe("cosine_warmup", ADAMW, FLOATS, schedule=("cosine,warmup=2,min=0.1", cosine(2, 0.1))),
    recipe("linear", ADAMW, FLOATS, schedule=("linear,min=0.2", linear(0.2))),
    recipe("wsd", ADAMW, FLOATS, schedule=("wsd,warmup=2,decay=2,min=0.1", stable(2, 2, 0.1))),
    recipe("steps", ("sgd", {"lr": 0.1}), FLOATS, schedule=("step,every=2,gamma=0.5", "step")),
    recipe("schedule_groups", ADAMW, ("mlp",), schedule=("cosine", "annealing"), groups=[("fast", "fc2.*", None, {"lr": 1e-2})]),
    recipe("bf16", ("adamw", {"lr": 3e-3, "eps": 1e-2}), ("mlp", "conv", "gpt"), dtype="bf16"),
    recipe("bf16_clip", ("sgd", {"lr": 0.05, "momentum": 0.9}), ("mlp", "conv", "gpt"), dtype="bf16", clip=(0.5, 2), accumulate=2),
    recipe("f16", ("sgd", {"lr": 0.05, "momentum": 0.9}), ("mlp", "gpt"), dtype="f16"),
    recipe("f16_clip", ("adamw", {"lr": 3e-3, "eps": 1e-2}), ("mlp", "gpt"), dtype="f16", clip=(0.5, 2), accumulate=2),
    recipe("f16_value", ("sgd", {"lr": 0.1}), ("mlp", "gpt"), dtype="f16", clip=("value", 0.01)),
    recipe("param_bf16", ("sgd", {"lr": 0.05, "momentum": 0.9}), ("mlp", "gpt"), param_dtype="bf16"),
    recipe("state_bf16", ADAMW, ("mlp", "conv", "gpt"), state_dtype="bf16", halves=True),
    recipe("state_bf16_sgd", ("sgd", {"lr": 0.05, "momentum": 0.9}), ("mlp", "gpt"), state_dtype="bf16", halves=True),
    recipe("state_bf16_muon", ("muon", {"lr": 2e-3}), ("mlp", "gpt"), state_dtype="bf16", halves=True),
]
NEAR_RECIPES = [  # PyTorch runs the program as it is: checks of dtypes in it forbid autocast
    recipe("near_bf16", ("sgd", {"lr": 0.01}), dtype="bf16"),
    recipe("near_param_bf16", ("sgd", {"lr": 0.01}), param_dtype="bf16"),
    recipe("near_state_bf16", ("adamw", {"lr": 1e-4}), state_dtype="bf16"),
]
FOLDER_RECIPES = ("sgd_momentum", "adamw", "clip2", "accumulate_sgd", "cosine_warmup", "muon")
CORE_RECIPES = ("adamw", "accumulate_sgd", "muon")
TORCH = {"bf16": torch.bfloat16, "f16": torch.float16}
CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad,
           "muon": torch.optim.Muon}

# ---- as a command line -----------------------------------------------------------------------------------------


def setting_text(name, value):
    if value is True:
        return name
    if isinstance(value, (tuple, list)):
        return name + "=" + ":".join(map(repr, value))
    return f"{name}={value}"


def optim_text(name, settings):
    return ",".join(([name] if name else []) + [setting_text(*s) for s in settings.items()])


def options(r):
    words = ["--optim", optim_text(*r["optim"])]
    for name, patterns, optim, settings in r.get("groups", []):
        words += ["--group", f"{name}={patterns}:" + optim_text(optim and "optim=" + optim, settings)]
    if "freeze" in r:
        words += ["--freeze", r["freeze"]]
    if "clip" in r:
        a, b = r["clip"]
        words += ["--clip", f"value={b}" if a == "value" else f"{a},norm={b}"]
    if "schedule" in r:
        words += ["--schedule", r["schedule"][0]]
    for key in ("accumulate", "dtype", "param_dtype", "state_dtype"):
        if key in r:
            words += ["--" + key.replace("_", "-"), str(r[key])]
    return words


# ---- as PyTorch ------------------------------------------------------------------------------------------------


def matches(patterns, name):
    return any(fnmatch.fnmatchcase(name, p) for p in patterns.split(","))


def make_optimizers(r, named):
    """[(optimizer, base rates)] of one recipe; a parameter belongs to the first group that matches."""
    base_name, base = r["optim"]
    wanted = {}
    for name, p in named:
        optim, settings = base_name, dict(base)
        for _, patterns, other, more in r.get("groups", []):
            if matches(patterns, name):
                if other:
                    settings = {k: v for k, v in settings.items() if k in ("lr", "weight_decay")}
                    if "weight_decay" not in settings:  # the base's own
                        settings["weight_decay"] = {"adamw": 0.01, "muon": 0.1}.get(base_name, 0.0)
                    optim = other
                settings.update(more)
                break
        if optim == "muon" and p.ndim != 2:
            optim, settings = "adamw", {"lr": settings["lr"], "weight_decay": settings.get("weight_decay", 0.1)}
        wanted.setdefault((optim, json.dumps(settings)), (optim, settings, []))[2].append(p)
    return [CLASSES[optim](params, **settings) for optim, settings, params in wanted.values()]


def make_schedules(r, optimizers):
    kind = r.get("schedule", (None, None))[1]
    if kind is None:
        return []
    schedulers = torch.optim.lr_scheduler
    if kind == "annealing":
        return [schedulers.CosineAnnealingLR(o, STEPS) for o in optimizers]
    if kind == "step":
        return [schedulers.StepLR(o, 2, 0.5) for o in optimizers]
    return [schedulers.LambdaLR(o, kind) for o in optimizers]


def loss_of(outputs):
    """The only number among the results."""
    return next(t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.ndim == 0 and t.requires_grad)


def torch_train(module, batches, r, scaler_scale=65536.0):
    """Losses, norms, scales, and the state dict of the end."""
    accumulate = r.get("accumulate", 1)
    if "param_dtype" in r:
        module = module.to(TORCH[r["param_dtype"]])
    named = list(module.named_parameters())
    frozen = r.get("freeze")
    for name, p in named:
        p.requires_grad_(not (frozen and matches(frozen, name)))
    trained = [(n, p) for n, p in named if p.requires_grad]
    params = [p for _, p in trained]
    optimizers = make_optimizers(r, trained)
    schedules = make_schedules(r, optimizers)
    scaler = torch.amp.GradScaler("cpu", init_scale=scaler_scale) if r.get("dtype") == "f16" else None
    losses, norms, scales = [], [], []
    for step in range(len(batches) // accumulate):
        total = 0.0
        for batch in batches[step * accumulate:(step + 1) * accumulate]:
            if "param_dtype" in r:
                batch = {k: v.to(TORCH[r["param_dtype"]]) if v.is_floating_point() else v for k, v in batch.items()}
            with torch.autocast("cpu", TORCH.get(r.get("dtype"), torch.bfloat16), enabled="dtype" in r):
                loss = loss_of(module(**batch))
            total += loss.item()
            (scaler.scale(loss / accumulate) if scaler else loss / accumulate).backward()
        scales.append(scaler.get_scale() if scaler else 0)
        if scaler:
            for o in optimizers:
                scaler.unscale_(o)
        limit, kind = r.get("clip", (math.inf, 2))
        if limit == "value":
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in params if p.grad is not None]).item())
            torch.nn.utils.clip_grad_value_(params, kind)
        else:
            norms.append(torch.nn.utils.clip_grad_norm_(params, limit if limit != math.inf else 1e30, kind).item())
        for o in optimizers:
            scaler.step(o) if scaler else o.step()
        if scaler:
            scaler.update()
        for o in optimizers:
            o.zero_grad(set_to_none=True)
        for s in schedules:
            s.step()
        losses.append(total / accumulate)
    return losses, norms, scales, {k: v.detach() for k, v in module.state_dict().items()}


# ---- one case ----------------------------------------------------------------------------------------------------


def near(got, want, most, what):
    got = math.nan if got is None else got  # JSON has no infinities
    want = want if math.isfinite(want) else math.nan
    off = abs(got - want)
    assert (math.isnan(got) and math.isnan(want)) or got == want or off <= most * max(abs(want), 1e-3), f"{what} is {got}, should be {want}"


def tolerance(r):
    return 3e-2 if "dtype" in r or "param_dtype" in r else 1e-2 if "state_dtype" in r else 2e-3 if r.get("halves") else 1e-4


def compare(r, lines, weights, wanted, quiet, noise=1):
    """noise: how much more the weights may be off, where Adam makes steps of gradients that are hardly more than
    rounding errors."""
    losses, norms, scales, state = wanted
    most = tolerance(r)
    assert len(lines) == len(losses), f"{len(lines)} steps, should be {len(losses)}"
    for i, line in enumerate(lines):
        near(line["loss"], losses[i], most, f"step {i + 1}: loss")
        near(line["grad_norm"], norms[i], most * 3, f"step {i + 1}: norm")
        if scales[i]:
            assert line["loss_scale"] == scales[i], f"step {i + 1}: scale {line['loss_scale']}, should be {scales[i]}"
    for name, want in state.items():
        if name not in weights:
            assert name in quiet, f"{name} is missing"
            continue
        got = weights[name]
        assert got.shape == want.shape, f"{name} is {list(got.shape)}"
        assert got.dtype == want.dtype or "param_dtype" in r, f"{name} is {got.dtype}"
        if not want.numel() or name in quiet:
            continue
        off, largest = (got.double() - want.double()).abs().max().item(), want.double().abs().max().item()
        assert off <= noise * most * max(largest, 1e-2), f"{name} is off by {off:.3g}, its largest element is {largest:.3g}"


def run(tessera, words):
    done = subprocess.run([tessera, "train", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr.strip()[:600]}"


def run_case(tessera, program, data, words, work):
    log, out = Path(work) / "log.jsonl", Path(work) / "final.safetensors"
    run(tessera, [program, *data, *words, "--steps", STEPS, "--log", log, "-o", out, "-f", "-q", "-t", 1])
    return [json.loads(line) for line in log.read_text().splitlines()], load_file(out)


def schedule_rates(r, lines):
    """The learning rate that is told is the scheduler's."""
    if "schedule" not in r:
        return
    o = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=r["optim"][1]["lr"])
    s = make_schedules(r, [o])[0]
    for i, line in enumerate(lines):
        near(line["lr"], o.param_groups[0]["lr"], 1e-6, f"step {i + 1}: lr")
        o.step()
        s.step()


def built_in_cases(work, everything):
    for name, make in MODELS.items():
        torch.manual_seed(7)
        module = make().train()
        batches = [make.inputs() for _ in range(STEPS * 3)]
        init = {k: v.detach().clone() for k, v in module.state_dict().items()}
        data = Path(work) / f"{name}.safetensors"
        save_file({k: torch.stack([b[k] for b in batches]) for k in batches[0]}, data)
        exported = torch.export.export(module, tuple(batches[0].values()), strict=False)
        for dialect, program in (("", exported), ("_core", exported.run_decompositions())):
            path = Path(work) / f"{name}{dialect}.pt2"
            torch.export.save(program, path)
            for r in RECIPES:
                if name in r["models"]:
                    if dialect and ("dtype" in r or "param_dtype" in r):
                        continue  # PyTorch's autocast knows the ops that a module calls
                    if dialect and not everything and r["name"] not in CORE_RECIPES:
                        continue
                    yield f"{name}{dialect} {r['name']}", r, path, data, (make, init, batches)


def check_built_in(tessera, r, path, data, made, work):
    make, init, batches = made
    module = make().train()
    for name, p in module.state_dict(keep_vars=True).items():  # as they lie
        with torch.no_grad():
            p.copy_(init[name])
    wanted = torch_train(module, [dict(b) for b in batches[:STEPS * r.get("accumulate", 1)]], r)
    lines, weights = run_case(tessera, path, ["--data", data, "--batched"], options(r), work)
    schedule_rates(r, lines)
    compare(r, lines, weights, wanted, set())


def check_folder(tessera, folder, r, work):
    program = torch.export.load(folder / "loss.pt2")
    data = load_file(folder / "data.safetensors")
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT" and s.arg.name in data]
    sizes = {n.name: n.meta["val"].shape for n in program.graph.nodes if n.op == "placeholder" and n.name in names}
    batch, count = sizes[names[0]][0], len(data[names[0]])
    accumulate = r.get("accumulate", 1)
    per_epoch = count // batch
    assert per_epoch * batch == count, "the last batch is not full"
    batches = [{n: data[n][(i % per_epoch) * batch:(i % per_epoch + 1) * batch] for n in names} for i in range(STEPS * accumulate)]
    module = program.module()
    loss_of(module(**batches[0])).backward()
    largest = max(p.grad.abs().max().item() for p in module.parameters() if p.grad is not None)
    # parameters with gradients that are rounding errors: Adam makes steps of them
    quiet = {n for n, p in module.named_parameters() if p.grad is None or p.grad.abs().flatten().kthvalue(max(1, p.numel() // 20)).values.item() < 1e-5 * largest}
    exact = {k: v for k, v in r.items() if k not in ("dtype", "param_dtype")}
    for p in module.parameters():  # which all modules of the program share
        p.grad = None
    wanted = torch_train(program.module(), batches, exact)
    lines, weights = run_case(tessera, folder / "loss.pt2", ["--data", folder / "data.safetensors", "--no-shuffle", "--batch", batch], options(r), work)
    compare(r, lines, weights, wanted, quiet if r["optim"][0] != "sgd" else {n for n in wanted[3] if n not in weights},
            noise=1 if r["optim"][0] == "sgd" else 5)


def folder_cases(tessera, folders, work):
    for folder in sorted(m for f in folders for m in ([f] if (f / "loss.pt2").exists() else f.iterdir()) if (m / "loss.pt2").exists()):
        for r in RECIPES + NEAR_RECIPES:
            if r["name"] in FOLDER_RECIPES or r in NEAR_RECIPES:
                yield f"{folder.name} {r['name']}", lambda folder=folder, r=r: check_folder(tessera, folder, r, work)


def main():
    words = sys.argv[2:]
    only = words.pop(words.index("--only") + 1) if "--only" in words else ""
    part, parts = map(int, words.pop(words.index("--part") + 1).split("/")) if "--part" in words else (1, 1)
    tessera, folders = sys.argv[1], [Path(w) for w in words if not w.startswith("--")]
    passed, failed = 0, 0
    with tempfile.TemporaryDirectory() as work:
        cases = folder_cases(tessera, folders, work) if folders else (
            (name, lambda case=case: check_built_in(tessera, *case, work)) for name, *case in built_in_cases(work, "--all" in words))
        for number, (name, check) in enumerate(cases):
            if only not in name or number % parts != part - 1:
                continue
            try:
                check()
                passed += 1
            except Exception as error:
                failed += 1
                text = str(error).strip().splitlines()
                print(f"FAIL {name}: {type(error).__name__}: {' '.join(text)[:500]}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or passed == 0


sys.exit(main())
