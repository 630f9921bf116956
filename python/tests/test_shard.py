"""Programs cut into ranks: the folder, PyTorch's function of the same name, and (with PyTorch) rank
files that run in gloo processes."""
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import tessera as ts

try:
    import torch
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    from torch.distributed.tensor import Replicate
except ImportError:
    torch = None

MODELS = Path(__file__).resolve().parents[2] / "tests" / "golden" / "models"
MLP = MODELS / "mlp" / "program.pt2"


class Folder(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.temp)
        self.out = os.path.join(self.temp, "ranks")

    def test_files(self):
        report = ts.shard(MLP, {"tp": 2}, {"blocks.*.0": "colwise", "blocks.*.2": "rowwise"}, out=self.out)
        self.assertEqual(report.count("all_reduce"), 4)  # two per rank
        self.assertEqual(sorted(os.listdir(self.out)), ["README.md", "plan.json", "rank0.pt2", "rank1.pt2", "report.txt", "run.py"])
        plan = json.loads(Path(self.out, "plan.json").read_text())
        self.assertEqual(plan["groups"], {"tp": [[0, 1]]})
        with self.assertRaisesRegex(ts.Error, "not empty"):
            ts.shard(MLP, 2, None, out=self.out)
        ts.shard(MLP, "tp=2", MODELS / "mlp" / "plan.json", out=self.out, force=True)

    def test_runs(self):
        ts.shard(MLP, 2, out=self.out)
        x = np.random.default_rng(0).standard_normal((10, 6)).astype(np.float32)
        want = ts.open(MLP)(x)

        def work(rank):
            ts.define_group("tp", [0, 1])
            return ts.open(f"{self.out}/rank{rank}.pt2")(x)
        for got in ts.run_ranks(2, work):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    def test_errors(self):
        for mesh, plan, words in ((2, {"blocks.*.9": "colwise"}, "matches no module"), ("tp=x", None, "number of ranks"), (None, {"blocks.*.0": "colwise"}, "no mesh"),
                                  (2, {"blocks.*.0": "sideways"}, "sideways"), (2, "/nowhere.json", "nowhere")):
            with self.assertRaisesRegex(ts.Error, words):
                ts.shard(MLP, mesh, plan, out=self.out)
        with self.assertRaisesRegex(ts.Error, "its symbols: s43, s53"):
            ts.shard(MODELS / "llama_dyn" / "program.pt2", 2, out=self.out, sizes={"s1": 2})
        self.assertEqual(os.listdir(self.temp), [])


@unittest.skipUnless(torch, "PyTorch is not installed")
class Transformation(unittest.TestCase):
    """What PyTorch's own tests ask of its function."""

    class MLP(torch.nn.Module if torch else object):
        def __init__(self, bias=True):
            super().__init__()
            self.net1, self.relu, self.net2 = torch.nn.Linear(10, 32, bias), torch.nn.ReLU(), torch.nn.Linear(32, 10, bias)

        def forward(self, x):
            return self.net2(self.relu(self.net1(x)))

    @staticmethod
    def collectives(program):
        counts = collections.Counter(n.target.name().split("::")[1] for n in program.graph.nodes if str(n.target).startswith("_c10d_functional."))
        counts.pop("wait_tensor", None)
        return dict(counts)

    def cut(self, module, x, styles, rank=1, world=4):
        program = torch.export.export(module.eval(), (x,))
        return program, ts.tensor_parallel_transformation(program, rank, world, "cpu", styles)

    def test_mlps(self):
        model = torch.nn.Sequential(self.MLP(), self.MLP())
        styles = {f"{i}.net1": ColwiseParallel for i in (0, 1)} | {f"{i}.net2": RowwiseParallel() for i in (0, 1)}
        program, cut = self.cut(model, torch.randn(8, 10), styles)
        self.assertIsInstance(cut, type(program))
        self.assertEqual(self.collectives(cut), {"all_reduce": 2})
        self.assertEqual(tuple(cut.state_dict["0.net1.weight"].shape), (8, 10))
        torch.testing.assert_close(cut.state_dict["0.net1.weight"], program.state_dict["0.net1.weight"][8:16])
        self.assertEqual([s.target for s in cut.graph_signature.input_specs], [s.target for s in program.graph_signature.input_specs])
        groups = {a for n in cut.graph.nodes if str(n.target).startswith("_c10d_functional.all_reduce") for a in n.args[2:]}
        self.assertEqual(groups, {"0"})

    def test_without_bias(self):
        _, cut = self.cut(self.MLP(bias=False), torch.randn(8, 10), {"net1": ColwiseParallel, "net2": RowwiseParallel})
        self.assertEqual(self.collectives(cut), {"all_reduce": 1})

    def test_linear_and_batch_norm(self):
        model = torch.nn.Sequential(collections.OrderedDict(fc=torch.nn.Linear(3, 5), bn=torch.nn.BatchNorm1d(5)))
        for style in (ColwiseParallel, ColwiseParallel(output_layouts=Replicate()), "colwise_rep"):
            _, cut = self.cut(model, torch.randn(4, 3), {"fc": style}, rank=2)
            self.assertEqual(self.collectives(cut), {"all_gather_into_tensor": 1})
        with self.assertRaisesRegex(ts.Error, "did you mean"):
            self.cut(model, torch.randn(4, 3), {"fcc": ColwiseParallel})
        with self.assertRaisesRegex(ts.Error, "style"):
            self.cut(model, torch.randn(4, 3), {"fc": object()})

    def test_all_ranks(self):
        x = torch.randn(8, 10)
        programs = ts.shard(torch.export.export(self.MLP().eval(), (x,)), 3, {"net1": "colwise", "net2": "rowwise"})
        self.assertEqual([tuple(p.state_dict["net1.weight"].shape) for p in programs], [(11, 10), (11, 10), (10, 10)])


@unittest.skipUnless(torch, "PyTorch is not installed")
class InPyTorch(unittest.TestCase):
    """Rank files under torchrun; a few, because starting takes long."""

    def run_folder(self, model, mesh, ranks):
        with tempfile.TemporaryDirectory() as temp:
            out = os.path.join(temp, "ranks")
            ts.shard(MODELS / model / "program.pt2", mesh, MODELS / model / "plan.json", out=out)
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), f"{out}/run.py",
                       "-i", str(MODELS / model / "inputs.safetensors"), "-o", f"{temp}/out.safetensors"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            sys.path.insert(0, out)
            try:
                import run
                got, want = run.read_safetensors(f"{temp}/out.safetensors"), run.read_safetensors(MODELS / model / "outputs.safetensors")
            finally:
                sys.path.remove(out)
                sys.modules.pop("run", None)
        self.assertEqual(got.keys(), want.keys())
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-4)

    def test_two_processes(self):
        self.run_folder("gpt2", "tp=2", 2)

    def test_four_processes(self):
        self.run_folder("llama_dyn", "dp=2,tp=2", 4)


@unittest.skipUnless(torch, "PyTorch is not installed")
class ImportsOfRunScript(unittest.TestCase):
    """run.py imports what defines the operators and classes of a program, or says what is missing."""

    LIBRARY = {
        "tripler/__init__.py": "",
        "tripler/ops.py": """import torch
@torch.library.custom_op("threefold::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return 3 * x
@triple.register_fake
def _(x):
    return torch.empty_like(x)
""",
        "tripler/model.py": """import collections, torch, tripler.ops
from torch.utils import _pytree as pytree
class Result:
    def __init__(self, y):
        self.y = y
pytree.register_pytree_node(Result, lambda r: ([r.y], None), lambda v, _: Result(*v), serialized_type_name="tripler.model.Result")
class Layer(torch.nn.Module):
    def forward(self, x):
        return torch.ops.threefold.triple(x)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
    def forward(self, x):
        return self.layer(x)
class WithResult(torch.nn.Module):
    def forward(self, x):
        return Result(x + 1)
""",
    }
    EXPORT = """import torch
from tripler.model import Model, WithResult
torch.export.save(torch.export.export(Model(), (torch.ones(2),)), "operator.pt2")
torch.export.save(torch.export.export(WithResult(), (torch.ones(2),)), "class.pt2")
"""

    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.temp)
        for name, text in cls.LIBRARY.items():
            Path(cls.temp, "library", name).parent.mkdir(parents=True, exist_ok=True)
            Path(cls.temp, "library", name).write_text(text)
        ts.shard(MLP, 2, out=f"{cls.temp}/ranks")
        done = cls.python(cls.EXPORT)
        assert done.returncode == 0, done.stderr[-2000:]

    @classmethod
    def python(cls, text, library=True):
        paths = [f"{cls.temp}/ranks", *([f"{cls.temp}/library"] if library else [])]
        return subprocess.run([sys.executable, "-c", f"import sys\nsys.path[:0] = {paths}\n{text}"], capture_output=True, text=True, timeout=300, cwd=cls.temp)

    def test_imports(self):
        for name, result in ("operator", "3 * torch.ones(2)"), ("class", "2 * torch.ones(2)"):
            done = self.python(f"""import run, torch
run.import_modules("{name}.pt2")
result = torch.export.load("{name}.pt2").module()(torch.ones(2))
assert torch.equal(getattr(result, "y", result), {result})
""")
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])

    def test_files(self):
        done = self.python("""import run, torch
open("bad.safetensors", "w").write("no")
for call in (lambda: run.read_safetensors("none"), lambda: run.read_safetensors("bad.safetensors"), lambda: run.write_safetensors("none/out", {"0": torch.ones(2)})):
    try:
        call()
    except SystemExit as error:
        print(error)
""")
        for words in ("cannot read none: No such file", "bad.safetensors is no .safetensors file", "cannot write none/out: No such file"):
            self.assertIn(words, done.stdout, done.stderr[-2000:])

    def test_missing(self):
        done = self.python("""import run
for name in "operator", "class":
    try:
        run.import_modules(name + ".pt2")
    except SystemExit as error:
        print(error)
""", library=False)
        for words in ("operator.pt2 calls the custom operator threefold::triple, which", "tried: import tripler.model: No module named 'tripler'", "tried: import threefold:",
                      "class.pt2 has the class tripler.model.Result in its inputs or outputs, which", "hint: install the package that defines it, or name its module: --import MODULE"):
            self.assertIn(words, done.stdout, done.stderr[-2000:])


if __name__ == "__main__":
    unittest.main()
