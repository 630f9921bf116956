#!/usr/bin/env python3
"""Trains the programs of this folder in PyTorch, one process per rank:

    torchrun --nproc-per-node RANKS train.py --data train.safetensors --optim adamw,lr=3e-4 --steps 100

Written by tessera.  Needs torch alone.  A rank's program takes the rank's shards of parameters and
of a batch, and gives the loss of the whole batch and the gradients of its shards, reduced over all
ranks; torch.optim does the rest, shard by shard.  So a step is that of one process on the whole
batch.
"""
import argparse
import inspect
import itertools
import json
import math
import os
import re
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import run  # beside this file

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "muon": "Muon"}  # in torch.optim
NO_SETTINGS = {"self", "params", "foreach", "fused", "capturable", "differentiable"}


def fail(text, hint=None):
    raise SystemExit(f"train.py: {text}" + (f"\n  hint: {hint}" if hint else ""))


# ---- a rank's part of a step ----

class Step:
    """The program of one rank with its shards of parameters and buffers.

    parameters   name -> Parameter, of those that have a gradient; what is tied has one name here
    tensors      name -> tensor, of everything that the program keeps, under all its names
    """

    def __init__(self, plan, rank, device, compiled=False):
        self.mesh, self.rank, self.device = plan["mesh"], rank, device
        self.where = run.coordinate(self.mesh, rank)
        self.files, self.state, self.inputs = plan["files"], plan["train"]["state"], plan["train"]["inputs"]
        self.program = run.load_program(rank, device)
        self.call = torch.compile(self.program.graph_module) if compiled else self.program.graph_module
        signature = self.program.graph_signature
        self.tensors = {**self.program.constants, **self.program.state_dict}
        trained = {spec.target for spec in signature.output_specs if spec.kind.name == "GRADIENT_TO_PARAMETER"}
        self.parameters = {name: torch.nn.Parameter(self.tensors[name].detach().clone()) for name in self.state if name in trained}
        self.tensors.update(self.parameters)
        for name, entry in self.state.items():
            if "tied" in entry:
                self.tensors[name] = self.tensors[entry["tied"]]
        self.saved = [spec.target for spec in signature.input_specs if spec.target in self.state and spec.persistent is not False]

    def __call__(self, batch):
        """batch: the whole one, a value per input of the program.  The loss, and gradients by name."""
        arguments, values = [], iter(self.shards_of(batch))
        for spec in self.program.graph_signature.input_specs:
            arguments.append(next(values) if spec.kind.name == "USER_INPUT" else self.tensors[spec.target])
        with torch.no_grad():
            results = self.call(*arguments)
        gradients, loss = {}, None
        for spec, result in zip(self.program.graph_signature.output_specs, results):
            if spec.kind.name == "LOSS_OUTPUT":
                loss = result
            elif spec.kind.name == "GRADIENT_TO_PARAMETER":
                gradients[spec.target] = result
            elif spec.kind.name == "BUFFER_MUTATION":
                self.tensors[spec.target] = result
        return loss, gradients

    def shards_of(self, batch):
        given = zip(batch, self.files["inputs"])
        for node, spec in zip(self.program.graph.nodes, self.program.graph_signature.input_specs):
            if spec.kind.name != "USER_INPUT":
                continue
            if type(spec.arg).__name__ == "ConstantArgument":
                yield spec.arg.value
                continue
            value, cuts = next(given)
            if cuts:
                value = run.shard(value, cuts, self.mesh, self.where)
            yield value.to(self.device, node.meta["val"].dtype)

    # Parameters lie in shards, or on several ranks alike.

    def is_sharded(self, name):
        return self.state[name]["shards"] is not None

    def holds_first(self, name, where):
        """Is this place of the mesh the first one that has these elements?"""
        shards = self.state[name]["shards"] or [None] * len(where)
        return all(cut or at == 0 for cut, at in zip(shards, where))

    def norm(self, kind):
        """Of all gradients, on all ranks: each element counts once, wherever it lies."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for name, p in self.parameters.items():
            if p.grad is None or p.grad.numel() == 0 or not self.holds_first(name, self.where):
                continue
            own = torch.linalg.vector_norm(p.grad.detach(), kind, dtype=torch.promote_types(p.grad.dtype, torch.float32)).double()
            total = torch.maximum(total, own) if math.isinf(kind) else total + own**kind
            if not torch.isfinite(own):
                total = own  # a maximum may hide it
                break
        if math.isinf(kind):  # a sum tells whether somebody has no number
            bad = (~torch.isfinite(total)).double()
            dist.all_reduce(bad)
            dist.all_reduce(total, dist.ReduceOp.MAX)
            return float("nan") if bad.item() else total.item()
        dist.all_reduce(total)
        return total.item() ** (1 / kind)

    # Whole tensors, on rank 0 and in files.

    def cuts(self, name, where):
        """(dimension, indices) of each dimension that is sharded."""
        entry = self.state[name]
        shards = entry["shards"] or []
        for dim in sorted({cut["dim"] for cut in shards if cut}):
            own = [cut if cut and cut["dim"] == dim else None for cut in shards]
            yield dim, torch.tensor(run.indices(entry["shape"][dim], own, self.mesh, where), dtype=torch.int64)

    def gather(self, name):
        """All elements, on rank 0; None on others."""
        if "tied" in self.state[name]:
            return self.gather(self.state[name]["tied"])
        own, whole = self.tensors[name].detach(), None
        if self.rank == 0:
            whole = torch.empty(self.state[name]["shape"], dtype=own.dtype)
        for rank in range(math.prod(self.mesh.values())):
            where = run.coordinate(self.mesh, rank)
            if not self.holds_first(name, where):
                continue
            cuts = list(self.cuts(name, where))
            if rank == 0 and self.rank == 0:
                put(whole, cuts, own.cpu())
            elif rank == self.rank and own.numel():
                dist.send(own.contiguous().reshape(-1).view(torch.uint8), 0)
            elif self.rank == 0:
                shape = list(whole.shape)
                for dim, held in cuts:
                    shape[dim] = len(held)
                part = torch.empty(math.prod(shape) * own.element_size(), dtype=torch.uint8, device=self.device)
                if part.numel():
                    dist.recv(part, rank)
                    put(whole, cuts, part.view(own.dtype).reshape(shape).cpu())
        return whole

    def parts(self):
        """What is saved, each tensor once, as torch.distributed.checkpoint takes it."""
        names = {name: self.state[name].get("tied", name) for name in self.saved}
        return {name: Part(self.state[of]["shape"], self.tensors[of].detach(), dict(self.cuts(of, self.where))) for name, of in names.items() if 0 not in self.state[of]["shape"]}

    def save(self, path):
        if not path.endswith(".safetensors"):
            return dcp.save(self.parts(), checkpoint_id=path)
        tensors = {}
        for name in self.saved:
            whole = self.gather(name)
            if self.rank == 0:
                tensors[name] = whole
        if self.rank == 0:
            run.write_safetensors(path, tensors)

    def load(self, path):
        if os.path.isdir(path):
            return dcp.load(self.parts(), checkpoint_id=path)
        given = run.read_safetensors(path)
        for name in self.saved:
            entry = self.state[self.state[name].get("tied", name)]
            if name not in given:
                fail(f"{path} has no '{name}'")
            if list(given[name].shape) != entry["shape"]:
                fail(f"{path}: '{name}' is {list(given[name].shape)}, the program has {entry['shape']}")
            part = run.shard(given[name], entry["shards"], self.mesh, self.where) if entry["shards"] else given[name]
            with torch.no_grad():
                self.tensors[name].copy_(part)


class Part(torch.Tensor):
    """A rank's part of a tensor: boxes of the whole, in the words of torch.distributed.checkpoint.

    cuts: dimension -> global indices that the rank has."""

    def __new__(cls, whole, own, cuts):
        return own.as_subclass(cls)

    def __init__(self, whole, own, cuts):
        self.whole, self.own, self.boxes = torch.Size(whole), own, {}
        for runs in itertools.product(*(runs_of(cuts[d].tolist() if d in cuts else range(n)) for d, n in enumerate(whole))):
            self.boxes[torch.Size(first for first, _, _ in runs)] = runs  # (first index of the whole, of the part, length)

    def size(self):
        return self.whole

    def __create_chunk_list__(self):
        return [dcp.metadata.ChunkStorageMetadata(at, torch.Size(n for _, _, n in runs)) for at, runs in self.boxes.items()]

    def __create_write_items__(self, name, _):
        properties = dcp.metadata.TensorProperties.create_from_tensor(self.own)
        return [dcp.planner.WriteItem(index=dcp.metadata.MetadataIndex(name, chunk.offsets), type=dcp.planner.WriteItemType.SHARD,
                                      tensor_data=dcp.planner.TensorWriteData(chunk=chunk, properties=properties, size=self.whole))
                for chunk in self.__create_chunk_list__()]

    def __get_tensor_shard__(self, index):
        part = self.own
        for dim, (_, first, length) in enumerate(self.boxes[torch.Size(index.offset)]):
            part = part.narrow(dim, first, length)
        return part


def runs_of(indices):
    """(first index, its place among them, length) of each run of neighbours."""
    runs = []
    for place, i in enumerate(indices):
        if runs and i == runs[-1][0] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([i, place, 1])
    return runs


def put(whole, cuts, part):
    if not cuts:
        return whole.copy_(part)
    (dim, held), *inner = cuts
    if inner:
        some = whole.index_select(dim, held)
        put(some, inner, part)
        part = some
    return whole.index_copy_(dim, held, part)


# ---- data ----

MASK = (1 << 64) - 1


def random_bits(state):
    """The next state and its number (splitmix64)."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return state, z ^ z >> 31


class Shuffle:
    """The order of the samples of an epoch, position by position: that of `tessera train`.

    A "swap or not" shuffle: in each round an element and its mirror image about a random centre
    change places or not, as a bit of both decides."""

    def __init__(self, seed, epoch, n):
        _, bits = random_bits(seed)
        state = bits ^ (epoch * 0xD1342543DE82EF95 & MASK)
        self.n, self.rounds = n, []
        for _ in range(16 + 4 * n.bit_length()):
            state, centre = random_bits(state)
            state, key = random_bits(state)
            self.rounds.append((centre % n, key))

    def at(self, x):
        for centre, key in self.rounds:
            mirror = (centre - x) % self.n
            if random_bits(key ^ max(x, mirror))[1] & 1:
                x = mirror
        return x


class Data:
    """Batches of the whole mesh, by number; epochs follow one another."""

    def __init__(self, paths, step, args):
        files = [run.read_safetensors(path) for path in paths]
        self.inputs = step.inputs
        if None in self.inputs:
            fail("the program takes a number besides tensors, which data cannot give", "export it with a tensor instead")
        self.paths, self.batched, self.seed = paths, args.batched, args.seed
        self.shuffled = not args.batched and not args.no_shuffle
        self.columns = [self.column(files, i, entry) for i, entry in enumerate(self.inputs)]
        if not self.columns:
            fail("the program takes no inputs that data could be for")
        self.samples = len(self.columns[0])
        for entry, column in zip(self.inputs, self.columns):
            if len(column) != self.samples:
                fail(f"{paths[0]}: '{self.inputs[0]['name']}' has {self.samples} samples, '{entry['name']}' has {len(column)}")
        self.count(args, step)

    def column(self, files, position, entry):
        name = entry["name"]
        parts = []
        for path, file in zip(self.paths, files):
            key = name if name in file else str(position)
            if key not in file:
                fail(f"{path} has no '{name}' (nor \"{position}\"); it has: {', '.join(file)}")
            t, first = file[key], 0 if self.batched else 1  # of the program's dimensions, what a sample has
            wanted, given = entry["shape"][first:], list(t.shape[1:])
            fits = (w == g or first + d in entry["open"] for d, (w, g) in enumerate(zip(wanted, given)))
            if t.ndim == 0 or len(wanted) != len(given) or not all(fits):
                what = "batches" if self.batched else "samples"
                fail(f"{path}: '{name}' is {list(t.shape)}: the program takes {what} of {wanted}",
                     None if self.batched else "if the first dimension counts batches: --batched")
            parts.append(t)
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def count(self, args, step):
        """How many samples make a batch, and how many batches an epoch."""
        self.rows = 1
        if self.batched:
            self.batches = self.samples
            return
        fixed = {entry["shape"][0]: entry["name"] for entry in self.inputs if 0 not in entry["open"]}
        if len(fixed) > 1:
            fail("the first dimensions of the inputs differ, so they do not count samples: " + ", ".join(fixed.values()), "give whole batches: --batched")
        self.rows = args.batch or next(iter(fixed), self.inputs[0]["shape"][0])
        if fixed and self.rows not in fixed:
            fail(f"--batch {self.rows}: these programs take batches of {next(iter(fixed))}",
                 f"make others: tessera shard ... --train --batch {self.rows}")
        whole, rest = divmod(self.samples, self.rows)
        self.batches = whole + (rest > 0 and not fixed and not args.drop_last)
        if not self.batches:
            fail(f"{self.paths[0]} has {self.samples} samples, fewer than one batch of {self.rows}")
        for size in ([self.rows] if whole else []) + ([rest] if self.batches > whole else []):
            self.check_even(size, step)

    def check_even(self, rows, step):
        for entry, cuts in zip(step.inputs, step.files["inputs"]):
            ranks = math.prod(k for cut, k in zip(cuts or [], step.mesh.values()) if cut and cut["dim"] == 0 and cut.get("even"))
            if rows % ranks:
                fail(f"{ranks} ranks share a batch: {rows} samples are no multiple",
                     "--drop-last leaves out a last batch that is not full" if rows != self.rows else f"--batch {rows // ranks * ranks or ranks}")

    def batch(self, number):
        epoch, at = divmod(number, self.batches)
        if self.batched:
            return [column[at] for column in self.columns]
        places = range(at * self.rows, min(self.samples, (at + 1) * self.rows))
        if not self.shuffled:
            return [column[places.start:places.stop] for column in self.columns]
        order = Shuffle(self.seed, epoch, self.samples)
        rows = torch.tensor([order.at(place) for place in places])
        return [column[rows] for column in self.columns]


# ---- optimizers ----

def number(text):
    words = {"true": True, "True": True, "false": False, "False": False}
    if text in words:
        return words[text]
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        return text


def settings_of(text, name):
    """"lr=3e-4,betas=0.9:0.95,amsgrad", as arguments of the class in torch.optim."""
    known = set(inspect.signature(optimizer_class(name)).parameters) - NO_SETTINGS
    settings = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if key not in known:
            fail(f"{name} has no setting '{key}'", f"it has {', '.join(sorted(known))}")
        values = tuple(number(v) for v in value.split(":"))
        settings[key] = True if not equals else values if len(values) > 1 else values[0]
    return settings


def optimizer_class(name):
    if name not in OPTIMIZERS:
        fail(f"there is no optimizer '{name}'", f"there are {', '.join(OPTIMIZERS)}")
    found = getattr(torch.optim, OPTIMIZERS[name], None)
    return found or fail(f"torch {torch.__version__} has no {OPTIMIZERS[name]}")


def matches(patterns, name):
    """Patterns with commas between them: * stands for any characters, ? for one."""
    texts = (re.escape(p).replace(r"\*", ".*").replace(r"\?", ".") for p in patterns.split(",") if p)
    return any(re.fullmatch(text, name) for text in texts)


def converted(settings, name):
    """For another optimizer: what both mean alike."""
    return {key: value for key, value in settings.items() if key in ("lr", "weight_decay")}, name


def read_groups(args):
    """[name, patterns, optimizer, settings], the one of all parameters last."""
    name, _, text = args.optim.partition(",")
    settings = settings_of(text, name)
    groups = []
    for item in args.group:
        called, equals, rest = item.partition("=")
        patterns, colon, text = rest.partition(":")
        if not equals or not patterns:
            fail(f"--group {item}: write NAME=PATTERNS:SETTINGS", "for example 'no_decay=*.bias,*norm*:weight_decay=0'")
        own, optimizer = dict(settings), name
        if text.startswith("optim="):
            optimizer, _, text = text[len("optim="):].partition(",")
            own, optimizer = converted(settings, optimizer)
        groups.append((called, patterns, optimizer, {**own, **settings_of(text, optimizer)}))
    return groups + [("all", "*", name, settings)]


def make_optimizers(step, args):
    """torch.optim's objects, on the shards of this rank."""
    groups = read_groups(args)
    members = [[] for _ in groups]
    for name in step.parameters:
        members[next(i for i, group in enumerate(groups) if matches(group[1], name))].append(name)
    made = []
    for (called, patterns, optimizer, settings), names in zip(groups, members):
        if not names and called != "all":
            fail(f"no parameter that is trained belongs to the group '{called}' ({patterns})")
        rest = []
        if optimizer == "muon":  # of matrices, which it takes as a whole
            rest = [name for name in names if len(step.state[name]["shape"]) != 2]
            names = [name for name in names if name not in rest]
            sharded = next((name for name in names if step.is_sharded(name)), None)
            if sharded:
                fail(f"muon takes whole matrices, and '{sharded}' is sharded", "take adamw, or shard over a mesh of data axes alone: --mesh dp=4")
        if names:
            made.append(optimizer_class(optimizer)([step.parameters[name] for name in names], **settings))
        if rest:
            settings, optimizer = converted({"lr": 1e-3, "weight_decay": 0.1, **settings}, "adamw")
            made.append(optimizer_class(optimizer)([step.parameters[name] for name in rest], **settings))
    for o in made:
        for group in o.param_groups:
            group["rate"] = group["lr"]  # before the schedule
    return made


def read_clip(text):
    """"1.0", "0.05,norm=inf", "value=0.5" """
    clip = {"max": 0.0, "norm": 2.0, "value": 0.0}
    for item in filter(None, (text or "").split(",")):
        key, equals, value = item.rpartition("=")
        try:
            clip[key or "max"] = float(value)
            if key not in ("", "max", "norm", "value") or not float(value) > 0:
                raise ValueError
        except ValueError:
            fail(f"--clip {text}: there is the largest norm, norm=P and value=MAX, all above 0", "for example --clip 1.0,norm=inf")
    return clip


def read_schedule(text, steps):
    """What learning rates are multiplied by in step n = 1, 2 ..."""
    kind, *options = (text or "constant").split(",")
    s = {"warmup": 0, "min": 0.0, "steps": steps, "decay": 0, "every": 0, "gamma": 0.1}
    for item in filter(None, options):
        key, _, value = item.partition("=")
        if key not in s or not isinstance(number(value), (int, float)):
            fail(f"--schedule: '{item}' is none of its options", "warmup=N, min=F, steps=N; wsd: decay=N; step: every=N, gamma=F")
        s[key] = number(value)
    s["decay"] = s["decay"] or max(1, s["steps"] // 10)
    if kind == "step" and not s["every"]:
        fail("--schedule step: after how many steps is not told", "for example --schedule step,every=1000,gamma=0.1")

    def part(at, length):
        return 1.0 if length <= 0 or at >= length else max(0.0, at / length)

    shapes = {
        "constant": lambda done, t: 1.0,
        "linear": lambda done, t: s["min"] + (1 - s["min"]) * (1 - t),
        "cosine": lambda done, t: s["min"] + (1 - s["min"]) * 0.5 * (1 + math.cos(math.pi * t)),
        "wsd": lambda done, t: s["min"] + (1 - s["min"]) * (1 - part(done - (s["steps"] - s["decay"]), s["decay"])),
        "step": lambda done, t: max(s["min"], s["gamma"] ** ((done - s["warmup"]) // s["every"])),
    }
    if kind not in shapes:
        fail(f"there is no schedule '{kind}'", f"there are {', '.join(shapes)}")

    def factor(n):
        done = n - 1
        if done < s["warmup"]:
            return n / s["warmup"]
        return shapes[kind](done, part(done - s["warmup"], s["steps"] - s["warmup"]))

    return factor


# ---- the training ----

def make_step(step, data, first, args, clip, optimizers):
    """One update of the parameters: (loss, norm of the gradients)."""
    total = 0.0
    for p in step.parameters.values():
        p.grad = None
    for i in range(args.accumulate):
        loss, gradients = step(data.batch(first + i))
        total += loss.item() / args.accumulate
        for name, gradient in gradients.items():
            p, part = step.parameters[name], gradient / args.accumulate if args.accumulate > 1 else gradient
            p.grad = part if p.grad is None else p.grad + part
    parameters = [p for p in step.parameters.values() if p.grad is not None]
    if clip["value"]:
        torch.nn.utils.clip_grad_value_(parameters, clip["value"])
    norm = step.norm(clip["norm"])
    if not (math.isfinite(total) and math.isfinite(norm)):
        return total, norm
    if clip["max"] and clip["max"] / (norm + 1e-6) < 1:
        for p in parameters:
            p.grad.mul_(clip["max"] / (norm + 1e-6))
    for o in optimizers:
        o.step()
    return total, norm


def record(n, loss, norm, rate, seconds, samples):
    line = {"step": n}
    for key, value in ("loss", loss), ("grad_norm", norm), ("lr", rate), ("seconds", seconds), ("samples_per_s", samples / seconds):
        line[key] = value if math.isfinite(value) else None
        if line[key] is None:
            line[f"{key}_is"] = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return json.dumps(line, separators=(",", ":")) + "\n"


def train(step, data, args):
    clip, factor = read_clip(args.clip), read_schedule(args.schedule, args.steps)
    optimizers = make_optimizers(step, args)
    log = open(args.log, "w") if args.log and step.rank == 0 else None
    for n in range(1, args.steps + 1):
        begun = time.perf_counter()
        for o in optimizers:
            for group in o.param_groups:
                group["lr"] = group["rate"] * factor(n)
        loss, norm = make_step(step, data, (n - 1) * args.accumulate, args, clip, optimizers)
        seconds = time.perf_counter() - begun
        rate = optimizers[-1].param_groups[0]["lr"]
        samples = args.accumulate * (data.columns[0].shape[1] if data.batched else data.rows)
        if log:
            log.write(record(n, loss, norm, rate, seconds, samples))
            log.flush()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            fail(f"step {n}: the loss is {loss}, the norm of the gradients {norm}; the parameters are as before the step")
        if step.rank == 0 and not args.quiet:
            print(f"step {n:{len(str(args.steps))}}  loss {loss:.4f}  norm {norm:.2f}  lr {rate:.1e}  {samples / seconds:.1f} samples/s", flush=True)
    if log:
        log.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", action="append", required=True, help="a tensor per input, samples along the first dimension (.safetensors); several are joined")
    parser.add_argument("--batch", type=int, help="samples of a batch of all ranks, where the programs leave it open (default: as the program was exported)")
    parser.add_argument("--batched", action="store_true", help="the files hold batches: the first dimension counts them, they are taken in order")
    parser.add_argument("--no-shuffle", action="store_true", help="samples in the order of the files")
    parser.add_argument("--drop-last", action="store_true", help="leave out a last batch that is not full")
    parser.add_argument("--seed", type=int, default=0, help="of the order of samples and of random numbers (default 0)")
    parser.add_argument("--optim", default="adamw", help="sgd, adam, adamw (default), adagrad, muon, with torch.optim's arguments: adamw,lr=3e-4,betas=0.9:0.95,amsgrad")
    parser.add_argument("--group", action="append", default=[], help="other settings for some parameters: 'no_decay=*.bias,*norm*:weight_decay=0'")
    parser.add_argument("--schedule", help="of the learning rate: constant, linear, cosine, wsd, step; with warmup=N, min=F, decay=N, every=N, gamma=F")
    parser.add_argument("--clip", help="clip the norm of the gradients of all ranks: 1.0, 0.05,norm=inf; or value=0.5")
    parser.add_argument("--accumulate", type=int, default=1, help="a step is made with the mean gradient of N batches")
    parser.add_argument("--steps", type=int, required=True, help="updates of the parameters")
    parser.add_argument("--init", help="weights to begin with, by name: .safetensors, or a folder of torch.distributed.checkpoint")
    parser.add_argument("--save", help="the trained weights under the names of the state_dict: whole (.safetensors), or in a folder of torch.distributed.checkpoint")
    parser.add_argument("--log-file", "--log", dest="log", help="a line of JSON per step (torchrun takes --log for an option of its own)")
    parser.add_argument("--compile", action="store_true", help="the rank's program goes through torch.compile")
    parser.add_argument("--quiet", action="store_true", help="no line per step")
    run.add_arguments(parser)
    args = parser.parse_args()
    for name in "batch", "steps", "accumulate":
        if getattr(args, name) is not None and getattr(args, name) < 1:
            fail(f"--{name} must be at least 1")
    plan, rank, device = run.begin(args, trains=True)
    torch.manual_seed(args.seed)  # on all ranks alike: random ops see whole tensors
    step = Step(plan, rank, device, args.compile)
    if args.init:
        step.load(args.init)
    train(step, Data(args.data, step, args), args)
    if args.save:
        step.save(args.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
