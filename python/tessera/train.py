"""Training of exported programs that return their loss."""
import ctypes
import os
import tempfile
import warnings
from collections.abc import Mapping
from typing import NamedTuple, Optional

from . import _settings
from ._buffers import array_of, is_torch, tensor_of, torch_of
from ._context import Error, current, manual_seed, scope
from ._library import lib, quick
from .program import Program, program_path


class Step(NamedTuple):
    """What is known of a step once it is done."""

    step: int                # of the optimizer, from 1 on
    loss: float              # the mean over its batches
    grad_norm: float         # before clipping
    lr: float                # of parameters that are in no group
    skipped: bool = False    # it was not finite, and parameters are as before
    loss_scale: float = 0.0  # that the loss was multiplied by for f16; 0: it was not
    eval_loss: Optional[float] = None  # of the evaluation that followed it in train()


def _step(s):
    return Step(s.step, s.loss, s.grad_norm, s.lr, bool(s.skipped), s.loss_scale)


class Trainer:
    """A program that returns its loss (a path, or a torch ExportedProgram), being trained.

        trainer = tessera.Trainer("loss.pt2", optim="adamw,lr=3e-4", clip=1.0)
        for x, y in batches:
            print(trainer.step(x, y).loss)

    Settings are those of `tessera train`, in its words or as Python values:
    optim       "adamw,lr=3e-4,betas=0.9:0.95", or {"name": "adamw", "lr": 3e-4, "betas": (0.9, 0.95)}
    groups      {"no_decay": {"params": "*.bias,*norm*", "weight_decay": 0}}, or ["no_decay=*.bias,*norm*:weight_decay=0"]
    freeze      patterns of parameters that stay as they are
    clip        1.0, {"max_norm": 1.0, "norm_type": 2.0}, {"value": 0.5}, or text
    schedule    "cosine,warmup=100", or a dict with "name"; steps: that it is for
    accumulate  batches that make one step
    dtype, param_dtype, state_dtype    of products (bf16, f16), of parameters, of what the optimizer keeps
    memory      "2G", "70%", or bytes: limit of the memory of a step
    loss        which output, by name or position
    nonfinite   "stop": an error (None), "skip", "go"; check_finite: the error names the first node
    seed        manual_seed() of the thread's random numbers, and of the order of data

    On several ranks (run_ranks(), or mpirun with init()), which all make the same calls with the same whole batches:
    mesh        "dp=2,tp=2", or {"dp": 2, "tp": 2}: they train together, as one rank would on the whole batch
    plan        a path, "auto" (None), or a dict: which weights are sharded how
    data_axis   of the mesh, over which batches are sharded, if it is not called dp, data, fsdp ...
    data_parallel    "global" (None), or "local": the mean of what ranks get on their own rows, as PyTorch's DDP has it
    fsdp        True, or an axis: parameters, gradients and states are sharded over the data axis, too; wrap, keep_gathered,
                prefetch: how they are gathered
    rank_rows   with "local": [5, 7] rows of each batch for the ranks along the data axes
    bucket_mb   MiB of gradients that are reduced at once (4); 0: each by itself; "auto"
    reduce_dtype  "bf16", "f16": gradients are rounded to it before they are added up over the ranks
    whole_updates    ranks that have a parameter each update all of it and keep all of the optimizer's state, not a part each

    It has weights of its own; those of the ExportedProgram stay as they are.  It belongs to the thread that made it."""

    def __init__(self, program, optim=None, *, groups=None, freeze=None, clip=None, schedule=None, steps=None, accumulate=1, dtype=None,
                 param_dtype=None, state_dtype=None, memory=None, loss=None, nonfinite=None, check_finite=False, seed=None, mesh=None, plan=None,
                 data_axis=None, data_parallel=None, fsdp=None, wrap=None, keep_gathered=False, prefetch=None, rank_rows=None, bucket_mb=None,
                 reduce_dtype=None, whole_updates=False):
        spread = {"mesh": mesh, "plan": plan, "data_axis": data_axis, "data_parallel": data_parallel, "fsdp": fsdp, "wrap": wrap,
                  "keep_gathered": keep_gathered, "prefetch": prefetch, "rank_rows": rank_rows, "bucket_mb": bucket_mb,
                  "reduce_dtype": reduce_dtype, "whole_updates": whole_updates}
        how = _settings.training(optim, groups, freeze, clip, schedule, steps, accumulate, dtype, param_dtype, state_dtype, memory, loss, nonfinite,
                                 check_finite, spread)
        self._ptr, self._ctx, self._seed, self._written = None, current(), seed or 0, 0
        self._folder = tempfile.TemporaryDirectory(prefix="tessera-")
        self._torch = not isinstance(program, (str, os.PathLike, Program))
        self.path = program_path(program, self._folder.name)
        if seed is not None:
            manual_seed(seed)
        self._ptr = lib.tess_trainer_open(self._ctx.ptr, os.fsencode(self.path), ctypes.byref(how))
        if not self._ptr:
            self._ctx.check()
        self.program = Program.__new__(Program)  # with the weights as they are now; running it makes no step
        self.program._take(self._ctx, quick.tess_trainer_program(self._ptr), self.path)

    @property
    def inputs(self):
        """[(name, dtype, sizes)], as of a Program."""
        return self.program.inputs

    @property
    def steps(self):
        """Made so far, those before resume() too."""
        return quick.tess_trainer_steps(self._open())

    def _open(self):
        self.program._check_open()
        return self._ptr

    def _ok(self, code):
        if code < 0:
            self._ctx.check()
        return code

    def _call(self, function, args, kwargs, out):
        ptr, values = self._open(), self.program._arrange(args, kwargs)
        self._torch = self._torch or any(is_torch(v) for v in values)
        with scope(self._ctx):
            return self._ok(function(ptr, *self.program._tensors(values), ctypes.byref(out)))

    # ---- steps ------------------------------------------------------------------------------

    def step(self, *args, **kwargs):
        """One batch, by position or name: a Step, or None if more batches are to come (accumulate)."""
        out = _settings.StepStruct()
        return _step(out) if self._call(lib.tess_trainer_step, args, kwargs, out) else None

    def evaluate(self, *args, **kwargs):
        """The loss of one batch.  Nothing changes, neither buffers nor random numbers."""
        out = ctypes.c_double()
        self._call(lib.tess_trainer_evaluate, args, kwargs, out)
        return out.value

    def set_rate(self, factor):
        """Learning rates from now on: so much of what the settings say, instead of the schedule."""
        self._ok(quick.tess_trainer_set_rate(self._open(), factor))

    # ---- data -------------------------------------------------------------------------------

    def _files(self, data):
        if isinstance(data, (str, os.PathLike)):
            return [os.fspath(data)]
        if not isinstance(data, Mapping):
            return [os.fspath(d) for d in data]
        self._torch = self._torch or any(map(is_torch, data.values()))
        path = os.path.join(self._folder.name, f"data{self._written}.safetensors")
        self._written += 1
        with scope(self._ctx):
            tensors = [tensor_of(self._ctx, x) for x in data.values()]
            self._ok(lib.tess_save(self._ctx.ptr, os.fsencode(path), _settings.text_array(list(data)), (ctypes.c_void_p * max(1, len(tensors)))(*tensors),
                                   len(tensors)))
        return [path]

    def _data(self, data, options):
        self._open()
        return _settings.data(self._files(data), **{"seed": self._seed, **options})

    def set_data(self, data, **options):
        """Batches for next(): a path, a list of paths, or {input: array} with samples along the first dimension.  As of
        `tessera train`: batch, shuffle (True), drop_last, batched, tokens, unshifted, window, token_dtype, seed."""
        told = self._data(data, options)
        self._ok(lib.tess_trainer_set_data(self._ptr, ctypes.byref(told)))

    def next(self):
        """A whole step with the next batches of set_data()."""
        out = _settings.StepStruct()
        self._ok(lib.tess_trainer_next(self._open(), ctypes.byref(out)))
        return _step(out)

    def evaluate_data(self, data, batches=None, **options):
        """The mean loss over data as set_data() takes it, or over its first batches."""
        return self._evaluate_told(self._data(data, options), batches)

    def _evaluate_told(self, told, batches):
        out = ctypes.c_double()
        self._ok(lib.tess_trainer_evaluate_data(self._open(), ctypes.byref(told), batches or 0, ctypes.byref(out)))
        return out.value

    # ---- states -----------------------------------------------------------------------------

    def _names(self, kinds):
        names = [quick.tess_trainer_state_name(self._ptr, i) for i in range(quick.tess_trainer_state_count(self._open()))]
        return [n.decode() for n in names if quick.tess_trainer_state_kind(self._ptr, n) in kinds]

    def state(self, name):
        """A copy of a parameter, a buffer, or what the optimizer keeps ("optim.state.<parameter>.exp_avg"): a torch
        tensor if such went in, else an array (float32 for bf16)."""
        with scope(self._ctx):
            t = lib.tess_trainer_state(self._open(), name.encode())
            if not t:
                self._ctx.check()
            held = self._ctx.hold(t)
        return torch_of(held).clone() if self._torch else array_of(held).copy()

    def state_dict(self, optimizer=False):
        """Parameters and buffers by name, as torch's state_dict has them; optimizer: also what it keeps.  Copies."""
        return {name: self.state(name) for name in self._names((0, 1, 3) if optimizer else (0, 1))}

    def load_state_dict(self, states, strict=True):
        """Copies arrays or tensors of the same sizes by name.  strict: all parameters and buffers are there, and
        nothing that the trainer does not have."""
        known = set(self._names((0, 1, 2, 3)))
        missing, unknown = [n for n in self._names((0, 1)) if n not in states], [n for n in states if n not in known]
        if strict and (missing or unknown):
            wrong = [f"{n!r} is missing" for n in missing[:3]] + [f"there is no {n!r}" for n in unknown[:3]]
            raise Error(f"{self.path}: " + ", ".join(wrong))
        for name, value in states.items():
            if name in known:
                with scope(self._ctx):
                    self._ok(quick.tess_trainer_set_state(self._ptr, name.encode(), tensor_of(self._ctx, value)))

    def load(self, path):
        """All parameters and buffers from a checkpoint of any format: .safetensors, Hugging Face, DCP, .pt2, a run."""
        self._ok(lib.tess_trainer_load(self._open(), os.fsencode(path)))

    def save(self, folder, keep=0):
        """Everything into a run folder, as the save of this step; the last `keep` saves stay (0: all)."""
        self._ok(lib.tess_trainer_save(self._open(), os.fsencode(folder), keep))

    def resume(self, folder):
        """Goes on from the newest save of a run folder, the thread's random numbers too.

        State of another optimizer is left out, with a warning; what this one keeps begins anew."""
        if self._ok(lib.tess_trainer_resume(self._open(), os.fsencode(folder))):
            warnings.warn(f"{folder} has the state of another optimizer, which is left out", stacklevel=2)

    def export(self, path):
        """The weights (.safetensors), or the program with them (.pt2), which torch.export.load() reads."""
        self._ok(lib.tess_trainer_write(self._open(), os.fsencode(path)))

    # ---- the end ----------------------------------------------------------------------------

    def close(self):
        ptr, self._ptr = self._ptr, None
        if ptr:
            self.program._ptr = None
            if self._ctx.ptr:
                lib.tess_trainer_free(ptr)
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __del__(self):
        if getattr(self, "_folder", None):
            self.close()

    def __repr__(self):
        return f"Trainer({self.path!r}, {self.steps} steps)" if self._ptr else f"Trainer({self.path!r}, closed)"


_DATA = ("tokens", "unshifted", "window", "token_dtype", "batch", "batched", "shuffle", "drop_last")


def _is_files(data):
    return isinstance(data, (str, os.PathLike, Mapping)) or (isinstance(data, (list, tuple)) and data and all(isinstance(d, (str, os.PathLike)) for d in data))


def _pass(function, batch):
    if isinstance(batch, Mapping):
        return function(**batch)
    return function(*batch) if isinstance(batch, (tuple, list)) else function(batch)


def _samples(batch):
    values = list(batch.values()) if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else [batch]
    shape = getattr(values[0], "shape", ()) if values else ()
    return shape[0] if len(shape) else 1


class Training:
    """What train() returns: an iterator of Steps.  trainer: the Trainer."""

    def __init__(self, trainer, data, options, steps, eval, eval_every, eval_batches, save, save_every, keep):
        self.trainer = trainer
        self._batches, self._steps = None, steps
        self._eval, self._eval_every, self._eval_batches = eval, eval_every, eval_batches
        self._save, self._save_every, self._keep = save, save_every, keep
        self._evaluated = trainer._data(eval, options) if eval is not None and _is_files(eval) else None
        if not _is_files(data):
            self._batches = iter(data)
        elif steps is None:
            raise Error("how many steps?  Files have no end: give steps")
        else:
            trainer.set_data(data, **options)
        self._saved = trainer.steps

    def __iter__(self):
        return self

    def _one(self):
        """A Step, or None at the end of the batches."""
        if self._batches is None:
            return self.trainer.next()
        for batch in self._batches:
            record = _pass(self.trainer.step, batch)
            if record is not None:
                return record
        return None

    def _evaluate(self):
        if self._evaluated is not None:
            return self.trainer._evaluate_told(self._evaluated, self._eval_batches)
        total = samples = 0
        for i, batch in enumerate(self._eval):
            if self._eval_batches and i >= self._eval_batches:
                break
            n = _samples(batch)
            total, samples = total + n * _pass(self.trainer.evaluate, batch), samples + n
        return total / samples if samples else float("nan")

    def save(self):
        """As of this step, into the folder of train(save=...), if it is not saved yet.  Done at the end, every save_every
        steps, and when Ctrl-C interrupts a step; to be called by who leaves the loop early."""
        if self._save is not None and self._saved != self.trainer.steps:
            self.trainer.save(self._save, self._keep)
            self._saved = self.trainer.steps

    def __next__(self):
        try:
            record = None if self._steps is not None and self.trainer.steps >= self._steps else self._one()
            if record is None:
                self.save()
                raise StopIteration
            last = record.step == self._steps
            if self._eval is not None and (last or (self._eval_every and record.step % self._eval_every == 0)):
                record = record._replace(eval_loss=self._evaluate())
            if last or (self._save_every and record.step % self._save_every == 0):
                self.save()
            return record
        except KeyboardInterrupt:
            self.save()
            raise


def train(program, data, *, steps=None, eval=None, eval_every=None, eval_batches=None, save=None, save_every=None, keep=3, resume=None, init=None,
          **settings):
    """Trains a program that returns its loss; an iterator of Steps:

        for step in tessera.train("loss.pt2", "train.safetensors", optim="adamw,lr=3e-4", schedule="cosine", steps=1000):
            print(step.step, step.loss)

    program   a path, a torch ExportedProgram, or a Trainer
    data      a path, a list of paths, {input: array} with samples along the first dimension: batches as `tessera train`
              makes them (batch, shuffle, drop_last, batched, tokens, unshifted, window, token_dtype); or any iterable of
              batches: tuples, dicts by input, or single arrays
    steps     that it ends with; None: with the iterable
    eval      the same as data, for evaluation at the end and every eval_every steps (an iterable is gone through each
              time); eval_batches: the first ones only
    save      a run folder, for saves at the end, every save_every steps, and at Ctrl-C; the last `keep` stay
    resume    a run folder to go on from; of an iterable, go on with the right batch yourself
    init      a .safetensors file of weights to begin with
    The others are the settings of Trainer."""
    options = {k: settings.pop(k) for k in _DATA if k in settings}
    if isinstance(program, Trainer):
        if settings:
            raise Error(f"{', '.join(settings)}: settings of a Trainer are given when it is made")
        trainer = program
    else:
        trainer = Trainer(program, steps=steps, **settings)
    if init is not None and resume is None:
        trainer.load(init)
    if resume is not None:
        trainer.resume(resume)
    return Training(trainer, data, options, steps, eval, eval_every, eval_batches, save, save_every, keep)
