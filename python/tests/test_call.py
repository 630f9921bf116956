"""Any op on plain arrays, and exported programs."""
import importlib.util
import unittest
from pathlib import Path

import numpy as np

import tessera as ts

MODELS = Path(__file__).resolve().parents[2] / "tests" / "golden" / "models"
HAS_TORCH = importlib.util.find_spec("torch") is not None


class Calls(unittest.TestCase):
    def setUp(self):
        self.a = np.arange(6, dtype=np.float32).reshape(2, 3)

    def test_arrays(self):
        b = np.ones(2, np.float32)
        np.testing.assert_array_equal(ts.call("aten.addmm.default", b, self.a, self.a.T, beta=2), self.a @ self.a.T + 2)
        values, indices = ts.call("aten.max.dim", self.a, 1)
        self.assertEqual((values.tolist(), indices.tolist()), ([2, 5], [2, 2]))
        self.assertEqual([p.shape for p in ts.call("aten.split.Tensor", self.a, 1)], [(1, 3), (1, 3)])
        self.assertIsInstance(ts.call("aten.split.Tensor", self.a, 2), list)
        self.assertEqual(ts.call("aten.cat.default", [self.a, self.a], 1).shape, (2, 6))
        self.assertEqual(ts.call("aten.sym_size.int", self.a, 1), 3)
        self.assertEqual(ts.call("aten.index.Tensor", self.a, [None, np.array([2, 0])]).tolist(), [[2, 0], [5, 3]])

    def test_numbers_that_do_not_fit(self):
        """ctypes takes integers modulo 2**64: [2**64 + 6] would be [6]."""
        mesh = ts.init_device_mesh(1)
        for call in (lambda: ts.call("aten.view.default", self.a, [2**64 + 6]), lambda: ts.call("aten.add.Tensor", self.a, 2**70),
                     lambda: ts.zeros(-(2**64) + 3, mesh=mesh, placements="R"), lambda: ts.init_device_mesh([2**32 + 1])):
            with self.assertRaisesRegex(ts.Error, "does not fit into an integer"):
                call()
        for call in (lambda: ts.full((2,), "1", mesh, "R"), lambda: ts.set_timeout("1"), lambda: ts.set_timeout(-1)):
            with self.assertRaisesRegex(ts.Error, "number"):
                call()

    def test_overloads(self):
        """The one that PyTorch would take: numbers are no bools, bools no numbers."""
        a, want = self.a, self.a.var(1, ddof=1)
        np.testing.assert_allclose(ts.call("aten.var", a, 1), want)
        np.testing.assert_allclose(ts.call("aten.var", a, 1, False), a.var(1))
        self.assertEqual(ts.call("aten.norm", a, 2, 1).shape, (2,))
        self.assertEqual(ts.call("aten.repeat_interleave", a, 2, 0).shape, (4, 3))
        with self.assertRaisesRegex(ts.Error, "no overload"):
            ts.call("aten.var", a, "x")

        def work():
            x = ts.distribute_tensor(a, ts.init_device_mesh(2), "S(1)")
            return [t.full_tensor().shape for t in (x.repeat(2, 3), x.flip(0, 1), x.std(0, False), x.where(x > 2, x * 2), x.double())]
        self.assertEqual(ts.run_ranks(2, work)[0], [(4, 9), (2, 3), (3,), (2, 3), (2, 3)])

    def test_dtypes(self):
        for dtype in ("f64", "float64", np.float64, np.dtype("f8"), "double"):
            self.assertEqual(ts.call("aten._to_copy.default", self.a, dtype=dtype).dtype, np.float64)
        self.assertEqual(ts.call("aten.arange.default", 4, dtype="i32").dtype, np.int32)
        self.assertEqual(ts.call("aten.sum.dim_IntList", self.a, [0], dtype=np.float64).tolist(), [3, 5, 7])
        self.assertEqual(ts.call("aten._to_copy.default", np.array([3.14159], np.float32), dtype="bf16").tolist(), [3.140625])
        with self.assertRaisesRegex(ts.Error, "no dtype"):
            ts.call("aten._to_copy.default", self.a, dtype="f99")

    def test_views_share(self):
        view = ts.call("aten.transpose.int", self.a, 0, 1)
        self.assertTrue(np.shares_memory(view, self.a))
        self.assertIs(ts.call("aten.mul_.Scalar", self.a, 2), self.a)
        self.assertEqual(view[2, 1], 10)
        frozen = self.a.copy()
        frozen.flags.writeable = False
        with self.assertRaisesRegex(ts.Error, "read-only"):
            ts.call("aten.mul_.Scalar", frozen, 2)
        ts.call("aten.mul.Scalar", frozen, 2)

    def test_overloads(self):
        self.assertEqual(ts.call("sum", self.a).item(), 15)
        self.assertEqual(ts.call("aten.sum", self.a, 1).tolist(), [3, 12])
        self.assertEqual(ts.call("aten::add", self.a, 1)[0, 0], 1)
        self.assertEqual(ts.call("aten.pow", 2, self.a)[0, 2], 4)
        self.assertEqual(ts.call("torch.ops.aten.mm.default", self.a, self.a.T).shape, (2, 2))
        with self.assertRaisesRegex(ts.Error, "no overload"):
            ts.call("aten.add", "x", self.a)

    def test_other_arguments(self):
        self.assertTrue(ts.call("aten.clone.default", self.a, memory_format="contiguous_format").flags.c_contiguous)
        x = np.ones((1, 2, 4, 4), np.float32)
        self.assertEqual(ts.call("aten.avg_pool2d.default", x, [2, 2]).shape, (1, 2, 2, 2))
        self.assertEqual(ts.call("aten.upsample_nearest2d.vec", x, None, [2.0, 2.0]).shape, (1, 2, 8, 8))
        self.assertEqual(ts.call("aten.div.Tensor_mode", self.a, 2, rounding_mode="floor").tolist(), [[0, 0, 1], [1, 2, 2]])
        self.assertEqual(ts.call("aten.full.default", [2], np.float32(1.5)).tolist(), [1.5, 1.5])

    def test_mistakes(self):
        with self.assertRaisesRegex(ts.Error, "did you mean 'aten.relu.default'") as caught:
            ts.call("aten.reluu.default", self.a)
        self.assertEqual(caught.exception.code, 2)
        for args, kwargs, words in (((self.a, self.a), {}, "aten.mm"), ((self.a,), {}, "missing"), ((self.a, self.a.T, 1), {}, "2 arguments"),
                                    ((self.a,), {"mat3": self.a}, "no argument 'mat3'")):
            with self.assertRaisesRegex(ts.Error, words):
                ts.call("aten.mm.default", *args, **kwargs)
        self.assertEqual(ts.call("aten.relu.default", self.a).shape, (2, 3))

    def test_random(self):
        ts.manual_seed(3)
        a = ts.call("aten.rand.default", [4])
        b = ts.call("aten.rand.default", [4])
        ts.manual_seed(3)
        np.testing.assert_array_equal(ts.call("aten.rand.default", [4]), a)
        self.assertNotEqual(a.tolist(), b.tolist())


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Torch(unittest.TestCase):
    def test_same_buffers(self):
        import torch
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool):
            a = (torch.arange(6).reshape(2, 3) % 2).to(dtype)
            b = ts.call("aten.transpose.int", a, 0, 1)
            self.assertEqual((b.dtype, b.data_ptr()), (dtype, a.data_ptr()))
            self.assertTrue(torch.equal(b, a.T))
            self.assertTrue(torch.equal(ts.call("aten.mul.Tensor", a, a), a * a))
            x = ts.from_local(a.T, ts.init_device_mesh(1), "S(0)")
            self.assertEqual(x.to_torch().data_ptr(), a.data_ptr())
            self.assertTrue(torch.equal(x.to_torch(), a.T))
        w = torch.ones(3, requires_grad=True)
        self.assertEqual(ts.call("aten.sum.default", w, dtype=torch.float64).dtype, torch.float64)


class Programs(unittest.TestCase):
    def test_run(self):
        program = ts.open(MODELS / "mlp" / "program.pt2")
        (name, dtype, sizes), = program.inputs
        x = np.ones([s or 2 for s in sizes], np.float32)
        y = program(x)
        np.testing.assert_allclose(program(**{name: x}), y, rtol=1e-5)
        np.testing.assert_allclose(program.run(x)[0], y, rtol=1e-5)
        self.assertIn(name, repr(program))
        with self.assertRaisesRegex(ts.Error, "missing"):
            program()
        with self.assertRaisesRegex(ts.Error, "no input 'nope'"):
            program(nope=x)
        program.close()
        with self.assertRaisesRegex(ts.Error, "closed"):
            program(x)
        with self.assertRaises(ts.Error) as caught:
            ts.load("/nonexistent.pt2")
        self.assertEqual(caught.exception.code, 3)


if __name__ == "__main__":
    unittest.main()
