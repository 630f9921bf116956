"""Planning, and the golden cases of PyTorch's layouts and redistributions."""
import json
import os
import unittest
from pathlib import Path

import numpy as np

import tessera as ts

GOLDEN = Path(os.environ.get("TESSERA_GOLDEN", Path(__file__).resolve().parents[2] / "tests" / "golden" / "dtensor"))
DTYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "f16": np.float16, "bool": bool, "u8": np.uint8, "i8": np.int8, "i16": np.int16}


def cases(file, kind, most):
    with open(GOLDEN / file) as lines:
        found = [c for c in map(json.loads, lines) if c["kind"] == kind]
    return found[::max(1, len(found) // most)]


def numbers(values, dtype=np.float64):
    return np.array([float(v) for v in values]).astype(dtype)


class Plans(unittest.TestCase):
    def test_layout(self):
        self.assertEqual(ts.local_layout((9, 4), (4,), "_S(0, 2)", (1,)), {"shape": [3, 4], "offset": [2, 0], "runs": [[[2, 2], [6, 1]], [[0, 4]]]})
        self.assertEqual(ts.local_layout((9,), "dp=2,tp=2", [ts.Shard(0), ts.Shard(0)], 3)["shape"], [2])
        self.assertEqual(ts.local_layout((96,), (2,), [ts.Shard(0, segments=(64, 16, 16), unit=16)], (0,))["runs"], [[[0, 32], [64, 32]]])
        with self.assertRaises(ts.Error):
            ts.local_layout((9,), (4,), "S(1)", (0,))
        with self.assertRaises(ts.Error):
            ts.local_layout((9,), (4,), "S(0)", (4,))

    def test_redistribute(self):
        plan = ts.plan_redistribute((1024, 1024), "f32", (2, 4), "S(0)S(1)", [ts.Shard(1), "S(0)"])
        self.assertEqual((len(plan), plan.collectives), (1, 1))
        self.assertGreater(plan.cost, 0)
        self.assertGreater(plan.bytes, 0)
        self.assertEqual((plan[0]["before"], plan[-1]["after"]), (("S(0)", "S(1)"), ("S(1)", "S(0)")))
        greedy = ts.plan_redistribute((1024, 1024), "f32", (2, 4), "S(0)S(1)", "S(1)S(0)", greedy=True)
        self.assertGreaterEqual(greedy.collectives, plan.collectives)
        self.assertEqual(ts.plan_redistribute((8,), np.float32, 4, "R", "R"), [])

    def test_propagate(self):
        told = ts.propagate("aten.relu.default", [ts.Spec((8, 4), ["S(0)"])], (4,))
        self.assertEqual((told["inputs"], told["outputs"][0]["placements"], told["outputs"][0]["shape"]), ([("S(0)",)], ("S(0)",), [8, 4]))
        told = ts.propagate("aten.relu.default", [((8, 4), "P(sum)")], (4,))
        self.assertNotEqual(told["inputs"], [("P(sum)",)])
        self.assertGreater(told["cost"], 0)
        told = ts.propagate("aten.cat.default", [[((8, 4), "S(0)"), ((8, 4), "S(0)")], 1], (4,))
        self.assertEqual(told["outputs"][0]["shape"], [8, 8])
        self.assertEqual(ts.propagate("aten.sum.dim_IntList", [{"t": [8, 4], "p": ["S(1)"], "dtype": "f64"}, [0]], (4,))["outputs"][0]["dtype"], "f64")
        told = ts.propagate("linalg_vector_norm", [((8, 4), "S(0)"), float("inf")], (4,))  # numbers that JSON lacks
        self.assertEqual(told["outputs"][0]["shape"], [])
        self.assertEqual(ts.propagate("_foreach_add_.Scalar", [[((8, 4), "S(0)"), ((3,), "R")], 1], (4,))["outputs"], [])  # taken apart
        told = ts.propagate("_foreach_add.Scalar", [[((8, 4), "S(0)"), ((3,), "R")], 1], (4,))
        self.assertEqual([o["placements"] for o in told["outputs"]], [("S(0)",), ("R",)])
        with self.assertRaises(ts.Error):
            ts.propagate("aten.mm.default", [((8, 4), "R"), ((8, 4), "R")], (4,))
        with self.assertRaisesRegex(ts.Error, "must be a Spec"):
            ts.propagate("aten.relu.default", [np.ones(3)], (4,))


class Golden(unittest.TestCase):
    def test_layouts(self):
        tried = 0
        for case in cases("layout.jsonl", "layout", 60):
            if "ranks" in case:
                continue
            for rank, (shape, held) in enumerate(zip(case["local"], case["held"])):
                told = ts.local_layout(case["shape"], case["mesh"], case["placements"], rank)
                self.assertEqual(told["shape"], shape, case["id"])
                self.assertEqual(told["offset"], case["offset"][rank], case["id"])
                for dim, indices in zip(case["dims"], held):
                    runs = [i for begin, size in told["runs"][dim] for i in range(begin, begin + size)]
                    self.assertEqual(sorted(runs), sorted(indices), case["id"])
                tried += 1
        self.assertGreater(tried, 50)

    def test_redistributions(self):
        tried = 0
        for case in cases("redistribute.jsonl", "exec", 80):
            given = "src_order" in case or "dst_order" in case or case.get("dtype", "f32") not in DTYPES
            if given or "error" in case or case.get("torch_wrong") or any(p.startswith(("Mask", "Norm")) for p in case["src"] + case["dst"]):
                continue
            dtype = DTYPES[case.get("dtype", "f32")]

            def work(rank, case=case, dtype=dtype):
                mesh = ts.init_device_mesh(case["mesh"])
                shape, values = case["in"][rank]
                x = ts.from_local(numbers(values, dtype).reshape(shape), mesh, case["src"], shape=case["shape"])
                with ts.comm_debug() as log:
                    y = x.redistribute(placements=case["dst"])
                if any(p.startswith("P") for p in case["dst"]):  # how it is owed is free
                    return None, log.total()
                return y.to_local(), log.total()

            for rank, (local, total) in enumerate(ts.run_ranks(int(np.prod(case["mesh"])), work)):
                if local is not None:
                    shape, values = case["out"][rank]
                    np.testing.assert_allclose(local, numbers(values, dtype).reshape(shape), rtol=1e-3 if dtype == np.float16 else 1e-6, err_msg=f"case {case['id']}")
                if rank == 0 and "greedy" in case and "flat" not in case:
                    self.assertLessEqual(total, len(case["greedy"]["steps"]), case["id"])
            tried += 1
        self.assertGreater(tried, 20)


class Parts(unittest.TestCase):
    def test_rms_norm_in_parts(self):
        """A cut normalised dimension: ranks exchange means, not elements; else it is one op."""
        told = ts.propagate("aten.rms_norm.default", [((8, 64), "S(1)"), [64], ((64,), "S(0)")], 4)
        self.assertEqual((told["inputs"], told["op"], told["outputs"][0]["placements"]), ([("S(1)",), ("S(0)",)], None, ("S(1)",)))
        told = ts.propagate("aten.rms_norm.default", [((8, 64), "S(0)"), [64], ((64,), "R")], 4)
        self.assertEqual((told["op"], told["cost"]), ("aten.rms_norm.default", 0))

        x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
        want = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)

        def work():
            mesh = ts.init_device_mesh((2, 2))
            for p in ("RS(1)", "S(0)S(1)", "_S(1, 2)S(1)", "P(sum)S(1)", "P(avg)R"):
                y = ts.call("aten.rms_norm.default", ts.distribute_tensor(x, mesh, p), [6], None, 1e-5)
                np.testing.assert_allclose(y.full_tensor(), want, rtol=1e-5, err_msg=p)
        ts.run_ranks(4, work)


if __name__ == "__main__":
    unittest.main()
