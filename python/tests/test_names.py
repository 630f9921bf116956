"""What users of torch.distributed.tensor type, and what comes of it."""
import copy
import importlib.util
import inspect
import pickle
import unittest

import numpy as np

import tessera as ts

HAS_TORCH = importlib.util.find_spec("torch") is not None


class Meshes(unittest.TestCase):
    def test_sizes_and_ranks(self):
        def work(rank):
            mesh = ts.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            self.assertIs(mesh, ts.init_device_mesh(device_type="cpu", mesh_shape=(2, 2), mesh_dim_names=("dp", "tp")))
            self.assertEqual((mesh.size(), mesh.size(1), mesh.size, mesh.device_type), (4, 2, 4, "cpu"))
            self.assertEqual(mesh.mesh.tolist(), [[0, 1], [2, 3]])
            self.assertEqual((mesh.get_local_rank("tp"), mesh["tp"].get_local_rank(), mesh.get_rank()), (rank % 2, rank % 2, rank))
            with self.assertRaisesRegex(ts.Error, "2 axes"):
                mesh.get_local_rank()
            self.assertEqual(ts.DeviceMesh("cpu", [[3, 1], [2, 0]]).ranks.tolist(), [[3, 1], [2, 0]])
            for wrong in (lambda: ts.init_device_mesh("cuda", (4,)), lambda: ts.DeviceMesh("cuda", [0])):
                with self.assertRaisesRegex(ts.Error, "no device 'cuda'"):
                    wrong()
            self.assertEqual(mesh._flatten("all").names, ("all",))

        ts.run_ranks(4, work)

    def test_groups(self):
        def work(rank):
            mesh = ts.init_device_mesh("dp=2,tp=2")
            tp, dp = mesh.get_group("tp"), mesh.get_group(0)
            self.assertEqual((tp.size(), tp.ranks, dp.ranks), (2, ((0, 1), (2, 3))[rank // 2], ((0, 2), (1, 3))[rank % 2]))
            self.assertEqual(tp.rank(), rank % 2)
            self.assertEqual(mesh.get_all_groups(), [dp, tp])
            mine = np.full(1, 10.0 ** rank, np.float32)
            return [float(ts.call("_c10d_functional.wait_tensor", ts.call("_c10d_functional.all_reduce", mine, "sum", g))[0]) for g in (tp, dp)]

        self.assertEqual(ts.run_ranks(4, work), [[11, 101], [11, 1010], [1100, 101], [1100, 1010]])

    def test_copies(self):
        def work():
            mesh = ts.init_device_mesh("dp=1,tp=2")
            again = pickle.loads(pickle.dumps(mesh))
            return copy.copy(mesh) is mesh and copy.deepcopy(mesh) is mesh and again is mesh
        self.assertEqual(ts.run_ranks(2, work), [True, True])


class Tensors(unittest.TestCase):
    def test_asking(self):
        def work():
            mesh = ts.init_device_mesh(2)
            x = ts.DTensor.from_local(np.ones((2, 3), np.float32), device_mesh=mesh, placements=[ts.Shard(0)], run_check=False)
            self.assertEqual((x.size(), x.size(1), x.size(-2), x.size, x.numel(), x.nelement()), ((4, 3), 3, 4, 12, 12, 12))
            self.assertEqual((x.stride(), x.stride(0), x.T.stride()), ((3, 1), 3, (1, 3)))
            self.assertEqual((x.dtype, x.device, x.requires_grad, x.element_size(), x.nbytes), ("f32", "cpu", False, 4, 48))
            self.assertTrue(x.dtype == np.float32 == x.dtype and x.dtype != "f64" and x.dtype == "float32" and x.is_floating_point())
            self.assertEqual(x.tolist(), [[1, 1, 1]] * 4)
            self.assertEqual(x.device_mesh, mesh)
            self.assertIs(x.to("cpu"), x)
            self.assertEqual(x.to("cpu", np.float64).dtype, "f64")
            with self.assertRaisesRegex(ts.Error, "no device"):
                x.cuda()
            self.assertTrue(x.is_leaf and x.grad is None and ts.ones(2, device_mesh=mesh, requires_grad=True).requires_grad)
            with self.assertRaisesRegex(TypeError, "a mesh of tessera is wanted"):
                ts.ones(3, device_mesh=(2,))
            with self.assertRaisesRegex(TypeError, "give one"):
                ts.ones(3, device_mesh=mesh, mesh=ts.init_device_mesh((2, 1)))

        ts.run_ranks(2, work)

    def test_keywords(self):
        def work():
            mesh = ts.init_device_mesh(2)
            x = ts.distribute_tensor(tensor=np.arange(6.0, dtype=np.float32), device_mesh=mesh, placements=[ts.Shard(0)], src_data_rank=0)
            self.assertEqual(x.redistribute(device_mesh=mesh, placements=[ts.Replicate()], forward_dtype=np.float16).dtype, "f16")
            for make in (ts.zeros, ts.ones, ts.empty, ts.rand, ts.randn):
                self.assertEqual(make((4, 2), dtype=np.float64, device_mesh=mesh, placements=[ts.Shard(1)]).dtype, "f64")
            self.assertEqual(ts.full((3,), 2, device_mesh=mesh, placements=[ts.Shard(0)]).tolist(), [2, 2, 2])
            self.assertEqual((ts.Partial(reduce_op="max").reduce_op, ts.Partial().reduce_op), ("max", "sum"))
            self.assertTrue(ts.Partial("avg").is_partial("avg") and not ts.Partial().is_partial(reduce_op="max"))

        ts.run_ranks(2, work)

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_arguments_are_those_of_torch(self):
        import torch.distributed.tensor as there
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
        pairs = [(getattr(there, name), getattr(ts, name)) for name in ("distribute_tensor", "distribute_module", "full", "zeros", "ones", "empty", "rand", "randn")]
        pairs += [(getattr(there.DTensor, name), getattr(ts.DTensor, name)) for name in ("redistribute", "to_local", "full_tensor")]
        pairs += [(there.DTensor.from_local, ts.from_local), (init_device_mesh, ts.init_device_mesh)]
        pairs += [(getattr(DeviceMesh, name), getattr(ts.DeviceMesh, name)) for name in ("get_group", "get_local_rank", "get_all_groups", "get_coordinate", "get_rank")]
        for theirs, ours in pairs:
            theirs, ours = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
            for name, p in theirs.items():
                if name in ("backend_override", "self"):
                    continue
                self.assertIn(name, ours)
                if p.default is not p.empty and name != "layout":
                    self.assertEqual(ours[name].default, p.default, name)
        for name in there.__all__:
            self.assertTrue(hasattr(ts, name), name)
        for name in ("size", "ndim", "shape", "mesh", "mesh_dim_names", "device_type"):
            self.assertTrue(hasattr(ts.init_device_mesh(1), name), name)

    def test_setting_parts(self):
        rng = np.random.default_rng(0)
        whole, row = rng.standard_normal((6, 4, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
        indices = [0, -1, slice(1, 4), (slice(None), 2), (Ellipsis, 1), (slice(None, None, 2), slice(1, None), -1), (None, 2), (0, 1, 2), slice(None), Ellipsis, slice(4, 2)]

        def work():
            for places in ("S(0)", "S(2)", "R", "P(sum)"):
                for index in indices:
                    a, x = whole.copy(), ts.distribute_tensor(whole, ts.init_device_mesh(2), places)
                    a[index] = 7
                    x[index] = 7
                    np.testing.assert_allclose(x.full_tensor(), a, rtol=1e-6, err_msg=f"{index} {places}")
                    self.assertEqual(x.placements, (places,))
                a, x = whole.copy(), ts.distribute_tensor(whole, ts.init_device_mesh(2), places)
                a[1:3] = row
                x[1:3] = row
                a[:, 1] = a[:, 2] * 2
                x[:, 1] = x[:, 2] * 2
                a[[0, 5]] = -1
                x[np.array([0, 5])] = -1
                np.testing.assert_allclose(x.full_tensor(), a, rtol=1e-6, err_msg=places)
                mask = np.arange(6) % 2 == 0
                a[mask] = 3
                x[mask] = 3
                np.testing.assert_allclose(x.full_tensor(), a, rtol=1e-6, err_msg=places)
                with self.assertRaisesRegex(ValueError, "does not fit"):
                    x[0] = np.ones(5, np.float32)
            mine = np.zeros((2, 3), np.float32)
            ts.from_local(mine, ts.init_device_mesh(2), "S(0)")[1:3] = 5  # in the memory that is there
            return mine.sum()

        self.assertEqual(ts.run_ranks(2, work), [15, 15])

    def test_async(self):
        def work():
            mesh = ts.init_device_mesh("a=2,b=2")
            whole = np.arange(63, dtype=np.float32).reshape(7, 9)
            x = ts.distribute_tensor(whole, mesh, "S(0)S(1)")
            first, second = x.redistribute(placements="RR", async_op=True), x.redistribute(placements="RS(0)", async_op=True)
            y = x @ x.T  # something else meanwhile
            np.testing.assert_array_equal((second + 1).full_tensor(), whole + 1)  # the one before it arrives too
            np.testing.assert_array_equal(first.to_local(), whole)
            self.assertEqual((first.shape, first.placements, y.shape), ((7, 9), ("R", "R"), (7, 7)))
            x.redistribute(placements="RR", async_op=True)  # nobody wants it
            return x.redistribute(placements="S(1)R", async_op=True)

        for d in ts.run_ranks(4, work):
            self.assertEqual(d.placements, ("S(1)", "R"))
            self.assertEqual(d.to_local().shape[0], 7)

    def test_async_that_fails(self):
        def work(rank):
            x = ts.ones(4, device_mesh=ts.init_device_mesh(2), placements="P(sum)")
            if rank == 0:
                x.redistribute(placements="R", async_op=True)
                raise ValueError("no data")
            ts.barrier()

        with self.assertRaisesRegex(ts.RankError, "^rank 0 of 2: ValueError: no data$"):
            ts.run_ranks(2, work, timeout=20)

    def test_counts(self):
        def work():
            x = ts.ones(4, device_mesh=ts.init_device_mesh(2), placements="P(sum)")
            mode = ts.CommDebugMode()
            for _ in range(2):  # each time anew
                with mode:
                    x.redistribute(placements="R")
            counts = mode.get_comm_counts()
            self.assertEqual((mode.get_total_counts(), counts, counts["all_gather"]), (1, {"all_reduce": 1}, 0))
            if HAS_TORCH:
                import torch
                self.assertEqual((counts[torch.ops.c10d_functional.all_reduce], counts[torch.ops.c10d_functional.all_gather_into_tensor]), (1, 0))

        ts.run_ranks(2, work)


class Copies(unittest.TestCase):
    def test_deepcopy(self):
        def work(rank):
            mesh = ts.init_device_mesh(2)
            x = ts.distribute_tensor(np.arange(15, dtype=np.float32).reshape(5, 3), mesh, "S(0)")
            for d in (x, x.T, x.redistribute("P(sum)"), x.to("bf16"), x[:, 1]):
                c = copy.deepcopy(d)
                self.assertEqual((c.placements, c.shape, c.stride(), c.dtype), (d.placements, d.shape, d.stride(), d.dtype))
                self.assertTrue(c.equal(d))
                self.assertFalse(np.shares_memory(c.to_local(raw=True), d.to_local(raw=True)))
            with ts.comm_debug() as log:
                both = copy.deepcopy({"a": x, "b": x, "mesh": mesh})
            self.assertIs(both["a"], both["b"])
            self.assertEqual(log.total(), 0)
            both["a"].add_(1)
            self.assertEqual(float(x[0, 0]), 0)
            self.assertTrue(np.shares_memory(copy.copy(x).to_local(), x.to_local()))
            with self.assertRaisesRegex(TypeError, "full_tensor"):
                pickle.dumps(x)
            return ts.unflatten(pickle.loads(pickle.dumps(x.to_local())), pickle.loads(pickle.dumps(x.mesh)), x.spec).equal(x)

        self.assertEqual(ts.run_ranks(2, work), [True, True])

    def test_placements(self):
        for p in (ts.Shard(1), ts.Shard(0, segments=(64, 16, 16), unit=16), ts.Replicate(), ts.Partial("max")):
            for q in (copy.copy(p), copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
                self.assertEqual((q, type(q), repr(q), getattr(q, "__dict__", None)), (p, type(p), repr(p), getattr(p, "__dict__", None)))

    def test_plain(self):
        y = ts.call("aten.add.Scalar", np.ones((2, 3), np.float32), 1)
        for z in (copy.deepcopy(y), pickle.loads(pickle.dumps(y))):
            self.assertEqual(z.tolist(), [[2] * 3] * 2)


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Torch(unittest.TestCase):
    def test_torch_in_torch_out(self):
        import torch

        def work(rank):
            mesh = ts.init_device_mesh(2)
            w = torch.arange(12.0).reshape(4, 3)
            x = ts.distribute_tensor(w, mesh, [ts.Shard(0)])
            mine = ts.from_local(torch.ones(2, 3), mesh, [ts.Shard(0)])
            made = [x, mine, x + 1, 1 - x, x @ x.T, x.redistribute(placements="R"), x[1:], x[torch.tensor([0, 3])], copy.deepcopy(x), ts.unflatten(x.to_local(), mesh, x.spec),
                    x.redistribute(placements="R", async_op=True), x.redistribute_start("R").wait(), ts.ones(2, dtype=torch.float32, device_mesh=mesh), x.max(0)[0], x.split(2)[0]]
            for i, d in enumerate(made):
                self.assertIsInstance(d.to_local(), torch.Tensor, i)
                self.assertIsInstance(d.full_tensor(), torch.Tensor, i)
            self.assertIsInstance(x.get_chunk(x.chunks()[0][0]), torch.Tensor)
            self.assertTrue(torch.equal((x * 2).full_tensor(), w * 2))
            self.assertTrue(x.dtype == torch.float32 and torch.float32 == x.dtype and x.dtype != torch.float64)
            self.assertEqual(x.to(torch.bfloat16).to_local().dtype, torch.bfloat16)
            self.assertEqual((x.sum().item(), x.tolist()[1]), (66, [3, 4, 5]))
            x[0] = torch.zeros(3)
            self.assertEqual(float(x.sum()), 63)
            self.assertIsInstance(ts.distribute_tensor(np.ones(4), mesh, "S(0)").full_tensor(), np.ndarray)
            tree = ts.distribute_module({"w": w}, mesh)
            self.assertIsInstance(tree["w"].full_tensor(), torch.Tensor)

        ts.run_ranks(2, work)

    def test_functions_of_torch(self):
        import torch
        import torch.nn.functional as F
        w = torch.arange(12.0).reshape(4, 3) - 5

        def work():
            mesh = ts.init_device_mesh(2)
            x, v = ts.distribute_tensor(w, mesh, "S(0)"), ts.distribute_tensor(w, mesh, "S(1)")
            ids = ts.distribute_tensor(torch.tensor([3, 0, 1]), mesh, "R")
            for f in (lambda x, v, i: torch.relu(x), lambda x, v, i: F.relu(x), lambda x, v, i: F.linear(x, v), lambda x, v, i: torch.cat([x, v], dim=1),
                      lambda x, v, i: F.softmax(x, dim=-1), lambda x, v, i: F.layer_norm(x, (3,)), lambda x, v, i: F.mse_loss(x, v + 1), lambda x, v, i: F.embedding(i, x),
                      lambda x, v, i: F.dropout(x, 0.5, training=False), lambda x, v, i: torch.sum(x, dim=0, keepdim=True), lambda x, v, i: torch.matmul(x, v.T)):
                got, want = f(x, v, ids), f(w, w, torch.tensor([3, 0, 1]))
                self.assertIsInstance(got, ts.DTensor)
                torch.testing.assert_close(got.full_tensor(), want)
            with ts.implicit_replication():
                for f in (lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a @ b.T, lambda a, b: a / (b + 0.5), lambda a, b: a > b):
                    torch.testing.assert_close(f(w, x).full_tensor(), f(w, w))
            for wrong, word in ((lambda: torch.svd(x), "no op that DTensors"), (lambda: F.embedding(ids, x, max_norm=1.0), "'max_norm'")):
                with self.assertRaisesRegex(TypeError, word):
                    wrong()

        ts.run_ranks(2, work)

    def test_modules_of_torch_are_refused(self):
        import torch

        class Own(torch.nn.Linear):
            pass

        def work():
            mesh = ts.init_device_mesh(2)
            for module in (torch.nn.Linear(4, 2), Own(4, 2)):
                with self.assertRaisesRegex(TypeError, "tessera.Module"):
                    ts.distribute_module(module, mesh)
            model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
            spread = ts.distribute_module(dict(model.named_parameters()), mesh)  # as the error advises
            self.assertEqual({name: d.placements for name, d in spread.items()}, {"0.weight": ("R",), "0.bias": ("R",)})

        ts.run_ranks(2, work)


if __name__ == "__main__":
    unittest.main()
