#!/usr/bin/env python3
"""`tessera train` in trouble: programs whose faults are known, exported by PyTorch.

    tests/torch_trouble.py TESSERA

--check-finite must name the node that is at fault; errors must say what is wrong; a skipped step, an evaluation and a
frozen parameter must stay without effect.  Skipped (exit code 77) where torch is missing.
"""
import shutil
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

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, loss, norm=False):
        super().__init__()
        self.a, self.b, self.loss = nn.Linear(4, 6), nn.Linear(6, 3), loss
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.register_buffer("shift", torch.randn(3, 6).t())  # lies across memory, and nothing writes to it

    def forward(self, x, y):
        return self.loss(self, x, y)


def log_of_negative(n, x, y):
    return F.mse_loss(n.b(torch.log(n.a(x) - 100) * 2 + 1), y)


def division_by_zero(n, x, y):
    h = n.a(x)
    return F.mse_loss(n.b(torch.tanh(h / (h - h))), y)


def overflow_beside_mask(n, x, y):
    h = n.a(x)
    p = torch.softmax(torch.cat([h.masked_fill(h > 0, float("-inf")), h], 1), 1)
    return torch.exp(n.b(p[:, :6]) + 1000).sum()


def masked_out(n, x, y):
    h = n.a(x)
    return F.mse_loss(n.b(torch.softmax(h.masked_fill(h < 1e9, float("-inf")), 1)), y)


def log_of_data(n, x, y):
    return F.mse_loss(n.b(torch.log(n.a(x).abs() * x[:, :1].abs())), y)


def backward_of_sqrt(n, x, y):
    h = n.a(x)
    return F.mse_loss(n.b(torch.sqrt(h - h)), y)


def data_dependent(n, x, y):
    i = torch.nonzero(x[:, 0] > -9).squeeze(1)
    return n.b(torch.log(torch.tanh(n.a(x)) - 5).index_select(0, i)).square().mean()


def fine(n, x, y):
    return F.mse_loss(n.b(torch.tanh(n.norm(n.a(x)))) + n.shift.sum(), y)


def fine_dependent(n, x, y):
    i = torch.nonzero(x[:, 0] > 0).squeeze(1)
    return fine(n, x, y) + n.a(x).index_select(0, i).sum() * 0.01


class Checks:
    def __init__(self, tessera, work):
        self.tessera, self.work, self.passed, self.failed = tessera, Path(work), 0, 0
        torch.manual_seed(0)
        self.x, self.y = torch.randn(6, 3, 4), torch.randn(6, 3, 3)

    def export(self, name, loss, x=None, core=False, norm=False):
        folder = self.work / name
        folder.mkdir()
        torch.manual_seed(1)
        program = torch.export.export(Net(loss, norm).train(), (self.x[0], self.y[0]), strict=False)
        torch.export.save(program.run_decompositions() if core else program, folder / "loss.pt2")
        save_file({"x": self.x if x is None else x, "y": self.y}, folder / "data.safetensors")
        return folder

    def train(self, folder, *words):
        return subprocess.run([self.tessera, "train", "loss.pt2", "--data", "data.safetensors", "--batched", "-f", "-t", "2", *words],
                              cwd=folder, capture_output=True, text=True)

    def check(self, name, good, what):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print(f"FAIL {name}: {what}", flush=True)

    def says(self, name, folder, words, *texts, fails=True):
        done = self.train(folder, *words)
        self.check(name, (done.returncode in (1, 2)) == fails and all(t in done.stderr for t in texts),
                   f"exit code {done.returncode}, should say {texts}: {done.stderr.strip()}")

    def nodes(self):
        zero = self.x.clone()
        zero[2, 1, 0] = 0
        bad = self.x.clone()
        bad[2, 1, 1] = float("nan")
        cases = [("log", log_of_negative, None, "node 'log' (aten.log.default)"),
                 ("div", division_by_zero, None, "node 'div' (aten.div.Tensor)"),
                 ("exp", overflow_beside_mask, None, "node 'exp' (aten.exp.default)"),
                 ("softmax", masked_out, None, "node 'softmax"),
                 ("log_of_data", log_of_data, zero, "node 'log' (aten.log.default)"),
                 ("dependent", data_dependent, None, "node 'log' (aten.log.default)"),
                 ("sqrt", backward_of_sqrt, None, "torch_trouble.py"),
                 ("nan", fine, bad, "input 'x' has 1 nan")]
        for name, loss, x, text in cases:
            for core in (False, True) if name not in ("softmax", "dependent") else (False,):
                folder = self.export(name + "_core" * core, loss, x, core)
                step = 3 if x is not None else 1
                for more in ((), ("--accumulate", "3")):
                    at = f"step {step if not more else 1}:"
                    self.says(f"{folder.name} {more}", folder, ["--steps", "2" if more else "5", "--check-finite", *more], text, at)

    def skipping(self):
        bad = self.x.clone()
        bad[2, 1, 1] = float("nan")
        folder, without = self.export("skips", fine, bad, norm=True), self.work / "without"
        shutil.copytree(folder, without)
        keep = [0, 1, 3, 4]
        save_file({"x": bad[keep].contiguous(), "y": self.y[keep].contiguous()}, without / "data.safetensors")
        self.says("skip", folder, ["--steps", "5", "--nonfinite", "skip", "--check-finite", "-o", "w.safetensors"], "input 'x'", fails=False)
        self.says("without", without, ["--steps", "4", "-o", "w.safetensors"], fails=False)
        a, b = load_file(folder / "w.safetensors"), load_file(without / "w.safetensors")
        self.check("skip", all(torch.equal(a[k], b[k]) for k in a), "a skipped step leaves a trace")
        self.says("stop", folder, ["--steps", "5"], "the parameters are those before the step", "--check-finite")

    def evaluating(self):
        for name, loss in (("eval", fine), ("eval_dependent", fine_dependent)):
            folder = self.export(name, loss, norm=True)
            self.says(name, folder, ["--steps", "5", "-o", "a.safetensors"], fails=False)
            self.says(name, folder, ["--steps", "5", "--eval", "data.safetensors", "--eval-every", "2", "-o", "b.safetensors"], fails=False)
            a, b = load_file(folder / "a.safetensors"), load_file(folder / "b.safetensors")
            self.check(name, all(torch.equal(a[k], b[k]) for k in a), "an evaluation leaves a trace")

    def freezing(self):
        folder = self.export("frozen", fine)
        self.says("all frozen", folder, ["--steps", "2", "--freeze", "*"], "all are frozen")
        self.says("none frozen", folder, ["--steps", "2", "--freeze", "zz*"], "no parameter matches 'zz*'")
        state = torch.export.load(folder / "loss.pt2").state_dict
        init = {k: (v * 0 + 0.25).contiguous() for k, v in state.items()}
        save_file(init, folder / "init.safetensors")
        words = ["--init", "init.safetensors", "--freeze", "a.*", "--steps", "4", "--save", "run", "--save-every", "2"]
        self.says("init", folder, [*words, "-o", "a.safetensors"], fails=False)
        got = load_file(folder / "a.safetensors")
        self.check("init", all(torch.equal(got[k], init[k]) for k in ("a.weight", "a.bias", "shift")), "--init does not reach what is frozen")
        shutil.rmtree(folder / "run" / "step-00000004")
        (folder / "run").rename(folder / "moved")
        done = subprocess.run([self.tessera, "train", "--resume", "moved", "-o", "b.safetensors"], cwd=folder, capture_output=True, text=True)
        self.check("resume", done.returncode == 0 and (folder / "moved" / "step-00000004").exists(), done.stderr)
        if done.returncode == 0:
            self.check("resume", (folder / "a.safetensors").read_bytes() == (folder / "b.safetensors").read_bytes(), "other weights")


def main():
    with tempfile.TemporaryDirectory() as work:
        checks = Checks(str(Path(sys.argv[1]).resolve()), work)
        checks.nodes()
        checks.skipping()
        checks.evaluating()
        checks.freezing()
    print(f"{checks.passed} passed, {checks.failed} failed")
    return checks.failed > 0 or checks.passed == 0


sys.exit(main())
