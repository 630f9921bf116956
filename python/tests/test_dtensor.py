"""DTensors: making, moving, operators and methods, memory."""
import gc
import pickle
import unittest

import numpy as np

import tessera as ts


def spread(*shape, places="S(0)", mesh=None, seed=0):
    """A random array and the DTensor of it."""
    whole = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return whole, ts.distribute_tensor(whole, mesh or ts.init_device_mesh(ts.world_size()), places)


def close(a, b):
    np.testing.assert_allclose(a.full_tensor() if isinstance(a, ts.DTensor) else a, b, rtol=1e-5, atol=1e-6)


class Placements(unittest.TestCase):
    def test_text(self):
        for placement, text, shown in ((ts.Shard(0), "S(0)", "Shard(0)"), (ts.Replicate(), "R", "Replicate()"), (ts.Partial(), "P(sum)", "Partial('sum')"),
                                       (ts.Shard(1, factor=2), "_S(1, 2)", "Shard(1, factor=2)"),
                                       (ts.Shard(0, segments=(64, 16, 16), unit=16), "S(0; segments 64,16,16; unit 16)", "Shard(0, segments=(64, 16, 16), unit=16)"),
                                       (ts.Shard(0, factor=3, unit=4), "S(0; factor 3; unit 4)", "Shard(0, factor=3, unit=4)")):
            self.assertEqual((str(placement), repr(placement)), (text, shown))
            self.assertEqual(placement, text)
            self.assertEqual(pickle.loads(pickle.dumps(placement)), placement)
        self.assertEqual(ts.Shard(0, segments=(8, 8)), ts.Shard(0, factor=2))
        self.assertEqual(ts.Shard(0), "Shard(dim=0)")
        self.assertEqual(ts.Shard(0, factor=2), "_S(0,2)")
        self.assertNotEqual(ts.Shard(0), "S(1)")
        self.assertTrue(ts.Shard(1).is_shard(1) and ts.Partial("max").is_partial() and not ts.Replicate().is_shard())

    def test_all_spellings_are_taken(self):
        def work():
            mesh = ts.init_device_mesh((2, 2))
            for places in ("S(0)R", "S(0),R", "[Shard(dim=0), Replicate()]", ["S(0)", "R"], (ts.Shard(0), ts.Replicate()), [ts.Shard(-2), "Replicate()"]):
                self.assertEqual(ts.ones(5, 3, mesh=mesh, placements=places).placements, (ts.Shard(0), ts.Replicate()))
            with self.assertRaisesRegex(ts.Error, "which has 2 axes"):
                ts.ones(5, 3, mesh=mesh, placements="S(0)")
            x = ts.ones(96, mesh=mesh, placements=[ts.Shard(0, segments=(64, 16, 16), unit=16), "R"])
            self.assertEqual(x.placements[0].segments, (64, 16, 16))
            self.assertEqual(ts.ones(8, mesh=mesh, placements="_S(0,2)S(0)").placements, ("_S(0, 2)", "S(0)"))

        ts.run_ranks(4, work)


class Making(unittest.TestCase):
    def test_distribute(self):
        def work(rank):
            whole = np.arange(14, dtype=np.float32).reshape(7, 2) + rank * 100
            mesh = ts.init_device_mesh(4)
            x = ts.distribute_tensor(whole, mesh, [ts.Shard(0)])
            self.assertEqual((x.shape, x.dtype, x.placements, x.mesh), ((7, 2), "f32", ("S(0)",), mesh))
            close(x, whole - rank * 100)  # the values of rank 0
            own = ts.distribute_tensor(whole, mesh, [ts.Shard(0)], src_data_rank=None)
            np.testing.assert_array_equal(own.to_local(), whole[rank * 2:rank * 2 + 2])

        ts.run_ranks(4, work)

    def test_from_local_shares_memory(self):
        def work(rank):
            mine = np.full((2, 3), rank, np.float32)
            x = ts.from_local(mine, ts.init_device_mesh(2), "S(0)")
            self.assertEqual(x.shape, (4, 3))
            self.assertTrue(np.shares_memory(x.to_local(), mine))
            x += 1
            self.assertEqual(mine[0, 0], rank + 1)
            uneven = ts.from_local(np.ones((3 - rank, 2), np.float32), x.mesh, "S(0)", run_check=True)
            self.assertEqual(uneven.shape, (5, 2))
            self.assertEqual(ts.from_local(np.ones((3 - rank, 2), np.float32), x.mesh, "S(0)", shape=(5, 2)).shape, (5, 2))
            with self.assertRaises(ts.Error):
                ts.from_local(mine, x.mesh, "S(0)", shape=(9, 3))

        ts.run_ranks(2, work)

    def test_factories(self):
        def work():
            mesh = ts.init_device_mesh(3)
            self.assertEqual(ts.zeros(4, mesh=mesh, placements="S(0)").full_tensor().tolist(), [0] * 4)
            self.assertEqual(ts.ones((2, 2), mesh=mesh, dtype="i64").full_tensor().tolist(), [[1, 1], [1, 1]])
            self.assertEqual(ts.full((2,), 7.5, mesh, dtype=np.float64).dtype, "f64")
            self.assertEqual(ts.empty(5, 0, mesh=mesh, placements="S(0)").shape, (5, 0))

        ts.run_ranks(3, work)

    def test_random_is_the_same_on_every_mesh(self):
        def work(mesh, places):
            ts.manual_seed(5)
            mesh = ts.init_device_mesh(mesh)
            made = [f(7, 5, mesh=mesh, placements=places).full_tensor() for f in (ts.rand, ts.randn)]
            with self.assertRaisesRegex(ts.Error, "placed P"):
                ts.rand(3, mesh=mesh, placements=["P(sum)"] + ["R"] * (mesh.ndim - 1))
            return made

        (u, n), = ts.run_ranks(1, work, (1,), "R")
        self.assertTrue(((0 <= u) & (u < 1)).all() and u.std() > 0.2 and abs(n).max() > 1)
        for mesh, places in (((3,), "S(0)"), ((2, 2), "S(1)S(0)"), ((2, 2), "_S(0,2)S(0)")):
            for v, m in ts.run_ranks(int(np.prod(mesh)), work, mesh, places):
                np.testing.assert_array_equal(u, v)
                np.testing.assert_array_equal(n, m)

    def test_dtypes_and_strides(self):
        mesh = ts.init_device_mesh(1)
        for dtype in (bool, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.complex64):
            a = np.array([[1, 0, 1], [0, 1, 1]], dtype)
            np.testing.assert_array_equal(ts.distribute_tensor(a, mesh, "S(0)").full_tensor(), a)
            self.assertEqual(ts.distribute_tensor(a, mesh).full_tensor().dtype, a.dtype)
        a = np.arange(24, dtype=np.float32).reshape(4, 6)
        for view in (a.T, a[::2, 1:], a[::-1], np.broadcast_to(a[:1], (3, 6)), a.astype(">f4"), a[:0], a[0, 0:1].reshape(())):
            np.testing.assert_array_equal(ts.from_local(view, mesh).to_local(), view)
        with self.assertRaisesRegex(ts.Error, "uint16"):
            ts.from_local(a.astype(np.uint16), mesh)
        with self.assertRaisesRegex(ts.Error, "complex128"):
            ts.from_local(a.astype(np.complex128), mesh)

    def test_bf16(self):
        mesh = ts.init_device_mesh(1)
        a = np.array([1, 2.5, 3.14159], np.float32)
        x = ts.distribute_tensor(a, mesh, dtype="bf16")
        self.assertEqual((x.dtype, x.to_local().dtype, x.to_local(raw=True).dtype), ("bf16", np.float32, np.uint16))
        self.assertEqual(x.to_local().tolist(), [1, 2.5, 3.140625])
        y = ts.from_local(x.to_local(raw=True), mesh, dtype="bf16")
        self.assertTrue(np.shares_memory(y.to_local(raw=True), x.to_local(raw=True)))
        self.assertEqual(((x + y) * 2).full_tensor().tolist(), [4, 10, 12.5625])
        self.assertEqual(x.redistribute(dtype="f32").dtype, "f32")


class Moving(unittest.TestCase):
    def test_redistribute(self):
        def work():
            mesh = ts.init_device_mesh("a=2,b=2")
            whole, x = spread(7, 5, places="S(0)S(1)", mesh=mesh)
            for places in ("RR", "S(1)S(0)", "S(0)S(0)", "_S(0,2)S(0)", "P(sum)R", "RS(1)"):
                y = x.redistribute(placements=places)
                self.assertEqual(y.placements, ts.ones(7, 5, mesh=mesh, placements=places).placements)
                close(y, whole)
            close(x.redistribute(["R", "R"]), whole)
            close(x.redistribute(mesh.flatten(), "S(1)"), whole)
            self.assertEqual(x.redistribute(placements="RR", dtype="f16").full_tensor().dtype, np.float16)
            self.assertTrue(x.equal(x.redistribute(placements="RR")))
            self.assertFalse(x.equal(x + 1))

        ts.run_ranks(4, work)


class Operators(unittest.TestCase):
    def test_arithmetic(self):
        def work():
            mesh = ts.init_device_mesh(3)
            a, x = spread(7, 4, mesh=mesh)
            b, y = spread(7, 4, mesh=mesh, places="S(1)", seed=1)
            close(x + y, a + b), close(x - y, a - b), close(x * y, a * b), close(x / y, a / b)
            close(x + 1, a + 1), close(2 - x, 2 - a), close(3 * x, 3 * a), close(1 / x, 1 / a), close(x / 2, a / 2)
            close(x ** 2, a ** 2), close(2 ** x, 2 ** a), close(abs(x) ** y, abs(a) ** b), close(-x, -a), close(+x, a)
            close(x @ y.T, a @ b.T), close(x.T @ y, a.T @ b), close(x // 0.5, a // 0.5), close(x % 0.5, a % 0.5)
            close(x < y, a < b), close(x >= 0, a >= 0), close(x == x, a == a), close(x != y, a != b)
            close((x > 0) & (y > 0), (a > 0) & (b > 0)), close(~(x > 0), ~(a > 0))
            z, c = x, a.copy()
            z += y
            c += b
            z *= 2
            c *= 2
            z -= 1
            c -= 1
            z /= 4
            c /= 4
            self.assertIs(z, x)
            close(x, c)

        ts.run_ranks(3, work)

    def test_methods(self):
        def work():
            a, x = spread(6, 4)
            close(x.sum(), a.sum()), close(x.sum(0), a.sum(0)), close(x.sum((0, 1)), a.sum()), close(x.mean(1, keepdim=True), a.mean(1, keepdims=True))
            close(x.max(), a.max()), close(x.max(1)[0], a.max(1)), close(x.min(0)[1], a.argmin(0)), close(x.amax(0), a.max(0)), close(x.argmax(), a.argmax())
            close(x.reshape(4, 6), a.reshape(4, 6)), close(x.view((2, 12)), a.reshape(2, 12)), close(x.view(-1), a.ravel()), close(x.flatten(), a.ravel())
            close(x.T, a.T), close(x.permute(1, 0), a.T), close(x.transpose(0, 1), a.T), close(x.unsqueeze(0), a[None]), close(x.mT, a.T)
            close(x.exp(), np.exp(a)), close(x.relu(), np.maximum(a, 0)), close(x.softmax(-1).sum(-1), np.ones(6)), close(x.clamp(min=0), np.maximum(a, 0))
            self.assertEqual(x.to("f64").dtype, "f64")
            self.assertEqual(x.astype(np.int32).full_tensor().dtype, np.int32)
            self.assertEqual([p.shape for p in x.split(4)], [(4, 4), (2, 4)])
            self.assertAlmostEqual(float(x.sum()), float(a.sum()), places=4)
            self.assertTrue(bool((x == x).all()))
            self.assertEqual((len(x), x.ndim, x.size), (6, 2, 24))
            x.add_(1)
            close(x, a + 1)
            with self.assertRaises(AttributeError):
                x.no_such_method
            with self.assertRaisesRegex(TypeError, "to_local"):
                np.asarray(x)

        ts.run_ranks(2, work)

    def test_slices(self):
        def work():
            a, x = spread(6, 4, 3)
            for index in (0, -1, slice(1, 4), (slice(None), 2), (Ellipsis, 1), (slice(None, None, 2), slice(1, None), -1), (None, 2), (0, Ellipsis, None), slice(4, 2)):
                close(x[index], a[index])
            close(x[np.array([0, 5, 2])], a[[0, 5, 2]])
            with self.assertRaises(IndexError):
                x[9]
            with self.assertRaises(IndexError):
                x[0, 0, 0, 0]

        ts.run_ranks(2, work)

    def test_repr(self):
        self.assertEqual(repr(ts.ones(2, 3, mesh=ts.init_device_mesh("tp=1"), placements="S(0)")), "DTensor(f32[2,3], Mesh(tp=1), [S(0)], rank 0)")


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


class Memory(unittest.TestCase):
    def test_loops_do_not_grow(self):
        def work():
            mesh = ts.init_device_mesh(2)
            x = ts.ones(64, 64, mesh=mesh, placements="S(0)")
            plain = np.ones((64, 64), np.float32)

            def loop(n):
                y = x
                for i in range(n):
                    y = (y + x) * 0.5
                    ts.call("aten.add.Tensor", plain, plain)
                    if i % 10 == 0:
                        y.full_tensor(), y.to_local()
                return y

            loop(500)
            before = resident()
            loop(4000)
            return resident() - before

        grown = max(ts.run_ranks(2, work))
        self.assertLess(grown, 8 << 20)

    def test_arrays_keep_their_memory(self):
        x = ts.ones(1000, mesh=ts.init_device_mesh(1))
        view = (x + 1).to_local()  # the DTensor is gone
        gc.collect()
        other = [ts.ones(1000, mesh=x.mesh) for _ in range(10)]
        self.assertEqual(view.sum(), 2000)
        part = ts.from_local(np.full(1000, 3, np.float32), x.mesh)[10:20]  # a view of an array that only the library knows
        gc.collect()
        other += [np.zeros(1000, np.float32) for _ in range(10)]
        self.assertEqual(part.full_tensor().sum(), 30)

    def test_arrays_are_let_go(self):
        import weakref
        mine = np.ones(8, np.float32)
        ref = weakref.ref(mine)
        x = ts.from_local(mine, ts.init_device_mesh(1))
        y = x[2:4]
        del mine, x
        gc.collect()
        self.assertIsNotNone(ref())
        del y
        gc.collect()
        self.assertIsNone(ref())


class Corners(unittest.TestCase):
    def test_ranks_without_elements_in_the_middle(self):
        """7 rows among 2 x 3 ranks: 2, 2, 0 and 1, 1, 1; extremes of nothing do not exist."""
        x = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)

        def work():
            d = ts.distribute_tensor(x, ts.init_device_mesh((2, 3)), "S(0)S(0)")
            return [t.full_tensor().tolist() for t in (d.amin(0), d.max(), ts.call("aten.norm.ScalarOpt_dim", d, float("-inf"), [0]))]
        low, high, norm = ts.run_ranks(6, work)[2]
        self.assertEqual((low, high), (x.min(0).tolist(), x.max().tolist()))
        np.testing.assert_allclose(norm, np.abs(x).min(0))

    def test_sums_of_windows(self):
        """Overlapping windows are added up: products cannot pass."""
        g = np.arange(1.0, 11.0, dtype=np.float32).reshape(1, 5, 2)

        def work():
            d = ts.distribute_tensor(g, ts.init_device_mesh(2), "P(product)")
            return ts.call("aten.unfold_backward.default", d, [1, 6], 1, 2, 1).full_tensor().tolist()
        self.assertEqual(ts.run_ranks(2, work)[0], ts.call("aten.unfold_backward.default", g, [1, 6], 1, 2, 1).tolist())


if __name__ == "__main__":
    unittest.main()
