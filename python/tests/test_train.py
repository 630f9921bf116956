"""Training: runs that PyTorch recorded, live torch.optim, data, saves, and what is wrong."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import tessera as ts

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "train"
HAS_TORCH = importlib.util.find_spec("torch") is not None


def recorded(model):
    """Batches by input, and the trajectories."""
    return tensors(GOLDEN / model / "batches.safetensors"), json.loads((GOLDEN / model / "meta.json").read_text())["trajectories"]


def tensors(path):
    """A .safetensors file as arrays."""
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    kinds = {"F32": np.float32, "I64": np.int64, "F64": np.float64, "BOOL": bool}
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__" and t["dtype"] in kinds:
            begin, end = t["data_offsets"]
            out[name] = np.frombuffer(raw[8 + n + begin:8 + n + end], kinds[t["dtype"]]).reshape(t["shape"])
    return out


def settings_of(run):
    """A trajectory's settings as those of Trainer."""
    clip, dtype = run["clip"], run["dtype"]
    return {"optim": {"name": run["optimizer"].lower(), **run["args"]}, "accumulate": run["accumulate"],
            "clip": clip and {k: float(v) for k, v in clip.items()}, "param_dtype": None if dtype == "float32" else dtype}


class Golden(unittest.TestCase):
    def follow(self, model, name):
        batches, runs = recorded(model)
        run = runs[name]
        tolerance = 1e-4 if run["dtype"] == "float32" else 3e-2
        losses = np.array(run["losses"]).reshape(-1, run["accumulate"]).mean(1)
        with ts.Trainer(GOLDEN / model / "forward.pt2", **settings_of(run)) as trainer:
            trainer.load(GOLDEN / model / "init.safetensors")
            steps = list(ts.train(trainer, ({k: v[i] for k, v in batches.items()} for i in range(len(run["losses"])))))
            np.testing.assert_allclose([s.loss for s in steps], losses, rtol=tolerance)
            self.assertEqual([s.step for s in steps], list(range(1, len(losses) + 1)))
            if run.get("grad_norms"):
                np.testing.assert_allclose([s.grad_norm for s in steps], run["grad_norms"], rtol=tolerance)
            if tolerance < 1e-3 and name.startswith("sgd"):
                final, states, compared = tensors(GOLDEN / model / "final.safetensors"), trainer.state_dict(), 0
                for key, value in states.items():
                    want = final.get(f"{name}/{key}")
                    if want is not None:
                        self.assertLessEqual(np.abs(value - want).max(), 1e-4 * max(np.abs(want).max(), 1e-12), key)
                        compared += 1
                self.assertGreater(compared, 3)

    def test_recorded_runs(self):
        for model in ("mlp_ce", "gpt_tied", "cnn_bn"):
            for name in recorded(model)[1]:
                with self.subTest(model=model, run=name):
                    self.follow(model, name)


class Data(unittest.TestCase):
    program, file = GOLDEN / "gpt_tied" / "forward.pt2", GOLDEN / "gpt_tied" / "batches.safetensors"

    def losses(self, data, **settings):
        settings = {"optim": "adamw,lr=0.01", "steps": 4, **settings}
        return [s.loss for s in ts.train(self.program, data, **settings)]

    def test_every_form_gives_the_same(self):
        batches = recorded("gpt_tied")[0]
        items = [{k: v[i] for k, v in batches.items()} for i in range(4)]
        names = [name for name, _, _ in ts.Trainer(self.program).inputs]
        want = self.losses(self.file, batched=True)
        self.assertEqual(self.losses([self.file], batched=True), want)
        self.assertEqual(self.losses(batches, batched=True), want)
        self.assertEqual(self.losses(items), want)
        self.assertEqual(self.losses((tuple(b[n] for n in names) for b in items), steps=None), want)
        self.assertEqual(len(self.losses(items, steps=10)), 4)
        flat = {k: v.reshape(-1, *v.shape[2:]) for k, v in batches.items()}
        self.assertEqual(self.losses(flat, shuffle=False), want)
        shuffled = self.losses(flat, seed=3)
        self.assertNotEqual(shuffled, want)
        self.assertEqual(self.losses(flat, seed=3), shuffled)
        backwards = {k: np.asfortranarray(v) for k, v in flat.items()}  # other strides
        self.assertEqual(self.losses(backwards, shuffle=False), want)

    def test_the_command_line_gives_the_same(self):
        tessera = Path(ts.library_path).parent / "tessera"
        if not tessera.exists():
            self.skipTest("no command beside the library")
        with tempfile.TemporaryDirectory() as temp:
            log, weights = Path(temp) / "log.jsonl", Path(temp) / "w.safetensors"
            subprocess.run([tessera, "train", self.program, "--data", self.file, "--batched", "--optim", "adamw,lr=0.01", "--schedule", "cosine,warmup=2",
                            "--clip", "0.5", "--accumulate", "2", "--steps", "5", "--log", log, "-o", weights, "--quiet"], check=True)
            training = ts.train(self.program, self.file, batched=True, optim="adamw,lr=0.01", schedule="cosine,warmup=2", clip=0.5, accumulate=2, steps=5)
            told = [json.loads(line) for line in log.read_text().splitlines()]
            for step, line in zip(training, told):
                for key in ("step", "loss", "grad_norm", "lr"):
                    self.assertAlmostEqual(getattr(step, key), line[key], delta=1e-6 * abs(line[key]), msg=key)
            self.assertEqual((training.trainer.steps, len(told)), (5, 5))
            want = tensors(weights)
            for name, value in training.trainer.state_dict().items():
                np.testing.assert_array_equal(value, want[name])

    def test_evaluation(self):
        batches = recorded("gpt_tied")[0]
        items = [{k: v[i] for k, v in batches.items()} for i in range(10)]
        a = list(ts.train(self.program, items, steps=4, eval=items, eval_every=2))
        b = list(ts.train(self.program, items, steps=4, eval=batches, eval_every=2, batched=True))
        c = list(ts.train(self.program, items, steps=4))
        self.assertEqual([s.loss for s in a], [s.loss for s in c])
        self.assertEqual([s.eval_loss is None for s in a], [True, False, True, False])
        np.testing.assert_allclose([s.eval_loss for s in a if s.eval_loss], [s.eval_loss for s in b if s.eval_loss], rtol=1e-12)

    def test_running_the_program(self):
        batches = recorded("gpt_tied")[0]
        item = {k: v[0] for k, v in batches.items()}
        with ts.Trainer(self.program, "sgd,lr=0.5") as trainer:
            first = trainer.step(**item).loss
            now = trainer.evaluate(**item)
            self.assertLess(now, first)
            self.assertAlmostEqual(float(trainer.program(**item)), now, places=6)
            self.assertEqual(trainer.steps, 1)
            program = trainer.program
        with self.assertRaisesRegex(ts.Error, "closed"):
            program(**item)
        with self.assertRaisesRegex(ts.Error, "closed"):
            trainer.step(**item)


class Saves(unittest.TestCase):
    program, file = GOLDEN / "cnn_bn" / "forward.pt2", GOLDEN / "cnn_bn" / "batches.safetensors"
    settings = {"batched": True, "optim": {"name": "adamw", "lr": 0.01}, "schedule": {"name": "cosine", "warmup": 3}, "steps": 9}

    def test_resume(self):
        whole = ts.train(self.program, self.file, **self.settings)
        want = [s.loss for s in whole]
        with tempfile.TemporaryDirectory() as temp:
            run = Path(temp) / "run"
            first = ts.train(self.program, self.file, save=run, save_every=2, keep=1, **self.settings)
            for step in first:
                if step.step == 5:
                    break
            self.assertEqual([p.name for p in run.glob("step-*")], ["step-00000004"])
            first.trainer.close()
            second = ts.train(self.program, self.file, resume=run, save=run, keep=1, **self.settings)
            self.assertEqual([s.loss for s in second], want[4:])
            self.assertEqual([p.name for p in run.glob("step-*")], ["step-00000009"])
            states = whole.trainer.state_dict(optimizer=True)
            for name, value in second.trainer.state_dict(optimizer=True).items():
                np.testing.assert_array_equal(value, states[name])
            second.trainer.close()
            with self.assertRaisesRegex(ts.Error, "step") as told:
                list(ts.train(self.program, self.file, save=run, **{**self.settings, "steps": 1}))
            self.assertEqual(told.exception.code, 2)

    def test_interrupt(self):
        script = """
import os, signal, sys, threading
import tessera as ts

def press():
    os.kill(os.getpid(), signal.SIGINT)

def interrupt(number, frame):
    while frame is not None:
        if frame.f_code is ts.Trainer.next.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back
    threading.Timer(0.01, press).start()  # not in a step: again

training = ts.train(sys.argv[1], sys.argv[2], save=sys.argv[3], batched=True, steps=10**9)
next(training)
signal.signal(signal.SIGINT, interrupt)
threading.Timer(0.3, press).start()
try:
    for step in training:
        pass
except KeyboardInterrupt:
    print(training.trainer.steps)
"""
        with tempfile.TemporaryDirectory() as temp:
            done = subprocess.run([sys.executable, "-c", script, self.program, self.file, temp], capture_output=True, text=True, timeout=60,
                                  cwd=Path(__file__).resolve().parents[1])
            self.assertEqual(done.returncode, 0, done.stderr)
            with ts.Trainer(self.program) as trainer:
                trainer.resume(temp)
                self.assertEqual(trainer.steps, int(done.stdout))

    def test_resume_with_another_optimizer(self):
        batch = {k: v[0] for k, v in recorded("cnn_bn")[0].items()}
        with tempfile.TemporaryDirectory() as temp:
            with ts.Trainer(self.program, "sgd,lr=0.1,momentum=0.9") as trainer:
                trainer.step(**batch)
                trainer.save(temp)
            with ts.Trainer(self.program, "adamw,lr=0.01") as fresh, ts.Trainer(self.program, "adamw,lr=0.01") as resumed:
                fresh.load(temp)
                with self.assertWarnsRegex(UserWarning, "another optimizer"):
                    resumed.resume(temp)
                self.assertEqual(resumed.steps, 1)
                self.assertEqual(resumed.step(**batch).loss, fresh.step(**batch).loss)
                for name, value in fresh.state_dict().items():
                    np.testing.assert_array_equal(value, resumed.state_dict()[name], name)
            with ts.Trainer(self.program, "sgd,lr=0.1") as fewer, self.assertWarns(UserWarning):
                fewer.resume(temp)

    def test_states(self):
        with ts.Trainer(self.program, "sgd,lr=0.1,momentum=0.9") as a, ts.Trainer(self.program, "sgd,lr=0.1,momentum=0.9") as b:
            batch = {k: v[0] for k, v in recorded("cnn_bn")[0].items()}
            a.step(**batch)
            a.step(**batch)
            states = a.state_dict(optimizer=True)
            self.assertIn("norm1.running_mean", states)
            self.assertIn("optim.state.conv1.weight.momentum_buffer", states)
            kept = states["conv1.weight"].copy()
            b.load_state_dict(states)
            self.assertEqual(a.step(**batch)[1:4], b.step(**batch)[1:4])
            np.testing.assert_array_equal(states["conv1.weight"], kept)  # a copy
            del states["conv1.weight"]
            with self.assertRaisesRegex(ts.Error, "'conv1.weight' is missing"):
                b.load_state_dict(states)
            b.load_state_dict(states, strict=False)
            with self.assertRaisesRegex(ts.Error, "there is no 'conv9.weight'"):
                b.load_state_dict({**a.state_dict(), "conv9.weight": kept})
            with self.assertRaisesRegex(ts.Error, "'conv1.weight' is"):
                b.load_state_dict({"conv1.weight": kept[0]}, strict=False)
            with self.assertRaisesRegex(ts.Error, "did you mean 'conv1.weight'"):
                b.state("conv1.wieght")

    def test_export(self):
        with tempfile.TemporaryDirectory() as temp, ts.Trainer(self.program, "sgd,lr=0.1") as a:
            batch = {k: v[0] for k, v in recorded("cnn_bn")[0].items()}
            a.step(**batch)
            a.export(Path(temp) / "w.safetensors")
            a.export(Path(temp) / "w.pt2")
            np.testing.assert_array_equal(tensors(Path(temp) / "w.safetensors")["head.weight"], a.state("head.weight"))
            self.assertAlmostEqual(float(ts.open(Path(temp) / "w.pt2")(**batch)), a.evaluate(**batch), places=6)


class Wrong(unittest.TestCase):
    program = GOLDEN / "mlp_ce" / "forward.pt2"

    def test_settings(self):
        for settings, says in (({"optim": "adamv"}, "adamw"), ({"optim": {"lr": 1}}, "name"), ({"optim": {"name": "sgd", "betas": (1, 2)}}, "betas"),
                               ({"schedule": "cosine"}, "how many steps"), ({"groups": {"x": {"lr": 1}}}, "params"), ({"dtype": "f32"}, "dtype"),
                               ({"groups": {"x": {"params": "nothing", "lr": 1}}}, "group 'x'"), ({"memory": "much"}, "memory"), ({"dtype": "f33"}, "f33"),
                               ({"accumulate": -1}, "accumulate"), ({"clip": {"norm": 1}}, "max_norm"), ({"nonfinite": "hope"}, "skip")):
            with self.subTest(settings=settings), self.assertRaisesRegex(ts.Error, says):
                ts.Trainer(self.program, **settings)
        with self.assertRaisesRegex(ts.Error, "nowhere.pt2"):
            ts.Trainer("nowhere.pt2")
        with self.assertRaisesRegex(ts.Error, "give steps"):
            ts.train(self.program, "x.safetensors")
        with self.assertRaises(TypeError):
            ts.train(self.program, "x.safetensors", steps=1, optimizer="adamw")

    def test_inputs(self):
        batch = {k: v[0] for k, v in recorded("mlp_ce")[0].items()}
        with ts.Trainer(self.program) as trainer:
            for wrong, says in (({"x": batch["x"]}, "'y' is missing"), ({**batch, "z": 1}, "no input 'z'"), ({**batch, "x": batch["x"][:, :3]}, "x"),
                                ({**batch, "x": batch["x"].astype(np.float64)}, "x")):
                with self.assertRaisesRegex(ts.Error, says):
                    trainer.step(**wrong)
            self.assertEqual(trainer.steps, 0)
            with self.assertRaisesRegex(ts.Error, "the loss is nan"):
                trainer.step(batch["x"] * np.nan, batch["y"])
            self.assertEqual(trainer.step(**batch).step, 1)
            with self.assertRaisesRegex(ts.Error, "no data"):
                trainer.next()


@unittest.skipUnless(HAS_TORCH, "no torch")
class Torch(unittest.TestCase):
    """Against torch.optim, step by step."""

    @classmethod
    def setUpClass(cls):
        import torch
        torch.manual_seed(0)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.norm, self.down = torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

            def forward(self, x, y):
                return torch.nn.functional.cross_entropy(self.down(self.norm(torch.relu(self.up(x)))), y)

        cls.batches = [(torch.randn(8, 6), torch.randint(0, 4, (8,))) for _ in range(6)]
        cls.model = Model()
        cls.exported = torch.export.export(cls.model, cls.batches[0])

    def compare(self, make, settings, clip=None):
        import copy
        import torch
        model = copy.deepcopy(self.model)
        optimizer = make(model)
        with ts.Trainer(self.exported, **settings, clip=clip) as trainer:
            for x, y in self.batches:
                loss = model(x, y)
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
                optimizer.step()
                step = trainer.step(x, y)
                self.assertAlmostEqual(step.loss, loss.item(), delta=1e-4)
                self.assertAlmostEqual(step.grad_norm, norm.item(), delta=1e-4 * norm.item())
            states = trainer.state_dict()
            self.assertEqual(list(states), list(model.state_dict()))
            for name, value in model.state_dict().items():
                torch.testing.assert_close(states[name], value, rtol=1e-4, atol=1e-5)
            model.load_state_dict(states)
            with tempfile.TemporaryDirectory() as temp:
                trainer.export(os.path.join(temp, "trained.pt2"))
                again = torch.export.load(os.path.join(temp, "trained.pt2")).module()
                self.assertAlmostEqual(again(x, y).item(), trainer.evaluate(x, y), places=5)

    def test_adamw_with_groups(self):
        import torch

        def make(model):
            plain = [p for n, p in model.named_parameters() if n.endswith("bias") or n.startswith("norm")]
            return torch.optim.AdamW([{"params": [model.up.weight, model.down.weight]}, {"params": plain, "weight_decay": 0.0, "lr": 3e-3}],
                                     lr=1e-2, weight_decay=0.1, betas=(0.8, 0.95))
        self.compare(make, {"optim": {"name": "adamw", "lr": 1e-2, "weight_decay": 0.1, "betas": (0.8, 0.95)},
                            "groups": {"plain": {"params": ["*bias", "norm.*"], "weight_decay": 0.0, "lr": 3e-3}}}, clip=0.5)

    def test_sgd_nesterov(self):
        import torch
        self.compare(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
                     {"optim": "sgd,lr=0.1,momentum=0.9,nesterov,weight_decay=0.01"})

    def test_adagrad(self):
        import torch
        self.compare(lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05, lr_decay=0.01), {"optim": {"name": "adagrad", "lr": 0.05, "lr_decay": 0.01}})

    def test_muon(self):
        import torch
        if not hasattr(torch.optim, "Muon"):
            self.skipTest("this torch has no Muon")

        class Both:
            def __init__(self, model):
                matrices = [p for p in model.parameters() if p.ndim == 2]
                self.parts = [torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1),
                              torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=1e-2, weight_decay=0.1)]

            def zero_grad(self):
                for part in self.parts:
                    part.zero_grad()

            def step(self):
                for part in self.parts:
                    part.step()
        self.compare(Both, {"optim": "muon,lr=1e-2,weight_decay=0.1"})

    def test_frozen(self):
        import torch
        with ts.Trainer(self.exported, "sgd,lr=0.1", freeze=["up.*"]) as trainer:
            trainer.step(*self.batches[0])
            states = trainer.state_dict()
            self.assertTrue(torch.equal(states["up.weight"], self.model.up.weight))
            self.assertFalse(torch.equal(states["down.weight"], self.model.down.weight))

    def test_loader(self):
        import torch
        x, y = (torch.cat(t) for t in zip(*self.batches))
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
        a = [s.loss for s in ts.train(self.exported, loader, optim="sgd,lr=0.1")]
        b = [s.loss for s in ts.train(self.exported, {"x": x, "y": y}, optim="sgd,lr=0.1", steps=6, shuffle=False)]
        self.assertEqual((len(a), a), (6, b))


class Meshes(unittest.TestCase):
    """Ranks that train together, as one does."""

    @staticmethod
    def follow(folder=None, **spread):
        batches, _ = recorded("gpt_tied")
        with ts.Trainer(GOLDEN / "gpt_tied" / "forward.pt2", optim="sgd,lr=0.1,momentum=0.9", clip=0.5, seed=3, **spread) as trainer:
            steps = [trainer.step(**{k: v[i] for k, v in batches.items()}) for i in range(3)]
            if folder:
                trainer.save(folder)
            evaluated = trainer.evaluate(**{k: v[3] for k, v in batches.items()})
            return [(s.loss, s.grad_norm) for s in steps], evaluated, trainer.state_dict(optimizer=True)

    def test_like_one_rank(self):
        want, evaluated, states = self.follow()
        plan = {"parallelize": {"tok": "embedding_rowwise"}}
        with tempfile.TemporaryDirectory() as temp:
            for ranks, spread in ((4, {"mesh": {"dp": 2, "tp": 2}, "bucket_mb": 0}), (3, {"mesh": "dp=3"}), (2, {"mesh": "tp=2", "plan": plan})):
                for got, loss, whole in ts.run_ranks(ranks, self.follow, f"{temp}/{ranks}", **spread):
                    np.testing.assert_allclose(got, want, rtol=1e-4)
                    self.assertAlmostEqual(loss, evaluated, places=4)
                    self.assertEqual(whole.keys(), states.keys())
                    for name, value in whole.items():
                        np.testing.assert_allclose(value, states[name], atol=2e-5, err_msg=name)
            with ts.Trainer(GOLDEN / "gpt_tied" / "forward.pt2", optim="sgd,lr=0.1,momentum=0.9") as trainer:
                trainer.resume(f"{temp}/4")
                self.assertEqual(trainer.steps, 3)

    def test_local(self):
        equal = ts.run_ranks(2, self.follow, mesh="dp=2", data_parallel="local", rank_rows=[6, 6])
        self.assertEqual(equal[0][0], ts.run_ranks(2, self.follow, mesh="dp=2", data_parallel="local")[1][0])

    def test_wrong(self):
        for spread, error in (({"mesh": "dp=2"}, "a mesh of 2 ranks in a world of 1"), ({"plan": "auto"}, "a plan needs a mesh"),
                              ({"rank_rows": [1, 2]}, "is about several ranks"), ({"mesh": "dp=1", "bucket_mb": -1}, "the MiB of gradients")):
            with self.assertRaisesRegex(ts.Error, error):
                ts.Trainer(GOLDEN / "gpt_tied" / "forward.pt2", **spread)


if __name__ == "__main__":
    unittest.main()
