"""run_ranks, meshes and what watches them."""
import json
import os
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import tessera as ts


GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"


class Collectives(unittest.TestCase):
    """Programs whose nodes talk to other ranks."""

    PROGRAM = GOLDEN / "ddp" / "fusion" / "one.before.pt2"  # all_reduce(x / 2)

    def work(self, rank):
        with ts.open(self.PROGRAM) as program:
            shape = program.inputs[0][2]
            return float(program(np.full(shape, 2.0 * (rank + 1), dtype=np.float32))[0, 0])

    def test_all_ranks(self):
        self.assertEqual(ts.run_ranks(3, self.work), [6.0] * 3)

    def test_groups(self):
        def work(rank):
            ts.define_group("0", [0, 2], [3, 1])
            return self.work(rank)

        self.assertEqual(ts.run_ranks(4, work), [4.0, 6.0, 4.0, 6.0])

    def test_alone(self):
        with ThreadPoolExecutor(1) as fresh:  # a thread whose context nobody has used for meshes
            with self.assertRaisesRegex(ts.Error, "no ranks to talk to"):
                fresh.submit(self.work, 0).result()
            with self.assertRaisesRegex(ts.Error, "no rank of a world"):
                fresh.submit(ts.define_group, "tp", [0]).result()

    def test_outside(self):
        def work(rank):
            ts.define_group("0", [0])
            return self.work(rank)

        with self.assertRaisesRegex(ts.RankError, "rank 1 is in no group called '0'"):
            ts.run_ranks(2, work)

    def test_eager(self):
        def work(rank):
            mine = np.full((2,), rank + 1, dtype=np.float32)
            return ts.call("_c10d_functional.wait_tensor", ts.call("_c10d_functional.all_reduce", mine, "max", "0"))

        for result in ts.run_ranks(2, work):
            self.assertEqual(np.asarray(result).tolist(), [2.0, 2.0])


class Ranks(unittest.TestCase):
    def test_results_in_order(self):
        self.assertEqual(ts.run_ranks(3, lambda: (ts.rank(), ts.world_size())), [(0, 3), (1, 3), (2, 3)])
        self.assertEqual(ts.run_ranks(2, lambda rank, add, times=1: (rank + add) * times, 10, times=2), [20, 22])
        self.assertEqual((ts.rank(), ts.world_size()), (0, 1))

    def test_timeout_and_flight(self):
        def work(rank):
            mesh = ts.init_device_mesh(3)
            x = ts.ones(4, mesh=mesh, placements="P(sum)")
            x.full_tensor()
            if rank == 1:
                time.sleep(0.6)
            return x.full_tensor()

        with tempfile.TemporaryDirectory() as temp:
            path = os.path.join(temp, "flight.json")
            with self.assertRaisesRegex(ts.RankError, "after 0.1 s .* missing: rank 1 .last seen after all_reduce #1") as caught:
                ts.run_ranks(3, work, timeout=0.1, flight=path)
            self.assertIn(path, str(caught.exception))
            with open(path, encoding="utf-8") as f:
                told = json.load(f)
        self.assertIn("missing: rank 1", told["error"])
        self.assertEqual([r["rank"] for r in told["ranks"]], [0, 1, 2])
        self.assertIsNone(told["ranks"][0]["collectives"][1]["done_us"])

    def test_ranks_that_use_different_meshes(self):
        def different(rank):
            mesh = ts.init_device_mesh((2, 2), ranks=[0, 1, 2, 3] if rank else [3, 1, 2, 0])
            return ts.ones(4, mesh=mesh, placements=["P(sum)", "R"]).full_tensor()

        def same_group(rank):
            mesh = ts.init_device_mesh((2, 2)) if rank else ts.init_device_mesh((2, 2, 1))
            return ts.ones(4, mesh=mesh, placements=["R", "P(sum)", "R"][:mesh.ndim]).full_tensor()

        with self.assertRaises(ts.RankError):
            ts.run_ranks(4, different)
        with self.assertRaisesRegex(ts.RankError, "the tensors lie on different meshes"):
            ts.run_ranks(4, same_group)

    def test_the_first_failure_counts(self):
        def work(rank):
            mesh = ts.init_device_mesh(4)
            return ts.ones(4 + (rank == 3), mesh=mesh, placements="P(sum)").full_tensor()
        for _ in range(20):
            with self.assertRaisesRegex(ts.RankError, r"^rank (\d) of 4: all_reduce #1 .*, but rank \d called all_reduce") as caught:
                ts.run_ranks(4, work)
            self.assertEqual(str(caught.exception)[5], str(caught.exception.rank))

    def test_ranks_outside(self):
        def work():
            x = ts.distribute_tensor(np.arange(4.0), ts.init_device_mesh(2), "S(0)")
            return x.sum().item(), x.to_local().size, x.full_tensor().size
        self.assertEqual(ts.run_ranks(3, work), [(6.0, 2, 4), (6.0, 2, 4), (None, 0, 0)])

    def test_exception_releases_the_others(self):
        def work(rank):
            mesh = ts.init_device_mesh(3)
            if rank == 1:
                raise ValueError("no such thing")
            return ts.ones(4, mesh=mesh, placements="P(sum)").full_tensor()

        with self.assertRaisesRegex(ts.RankError, "rank 1 of 3: ValueError: no such thing") as caught:
            ts.run_ranks(3, work)
        error = caught.exception
        self.assertEqual((error.rank, error.code, error.results), (1, 5, [None] * 3))
        self.assertIsInstance(error.__cause__, ValueError)
        self.assertIn("ValueError: no such thing", str(error.errors[0]))  # what rank 0 was told
        self.assertEqual(ts.run_ranks(2, ts.rank), [0, 1])  # and the next world is fresh

    def test_results_of_good_ranks_survive(self):
        def work(rank):
            if rank == 0:
                raise KeyError("x")
            return rank

        with self.assertRaises(ts.RankError) as caught:
            ts.run_ranks(3, work)
        self.assertEqual(caught.exception.results, [None, 1, 2])

    def test_error_of_an_op_is_cleared(self):
        def work():
            x = ts.ones(4, 4, mesh=ts.init_device_mesh(2), placements="S(0)")
            with self.assertRaises(ts.Error) as caught:
                x.view(3, 5)
            self.assertEqual(caught.exception.code, 1)
            return float(x.sum())

        self.assertEqual(ts.run_ranks(2, work), [16.0, 16.0])

    def test_many_worlds(self):
        before = threading.active_count()
        for i in range(50):
            ts.run_ranks(3, ts.barrier)
        self.assertEqual(threading.active_count(), before)

    def test_results_outlive_their_rank(self):
        parts = ts.run_ranks(2, lambda: ts.ones(5, 2, mesh=ts.init_device_mesh("tp=2"), placements="S(0)"))
        self.assertEqual([p.to_local().shape for p in parts], [(3, 2), (2, 2)])
        self.assertEqual((parts[0].shape, parts[0].placements, parts[0].mesh.shape), ((5, 2), ("S(0)",), (2,)))
        with self.assertRaisesRegex(ts.Error, "has ended"):
            parts[0] + 1

    def test_shards_outlive_their_rank_too(self):
        kept = []
        ts.run_ranks(1, lambda: kept.append(ts.ones(3, mesh=ts.init_device_mesh(1))))
        self.assertEqual((kept[0].to_local().tolist(), kept[0].shape, kept[0].dtype), ([1, 1, 1], (3,), "f32"))
        self.assertIn("has ended", repr(kept[0]))
        with self.assertRaisesRegex(ts.Error, "has ended"):
            kept[0].placements

    def test_disagreement(self):
        def work(rank):
            mesh = ts.init_device_mesh(2)
            return ts.ones(4 + rank, mesh=mesh, placements="P(sum)").full_tensor()

        with self.assertRaisesRegex(ts.RankError, r"^rank \d of 2: all_reduce.*but rank \d called all_reduce f32"):
            ts.run_ranks(2, work)

        with self.assertRaisesRegex(ts.RankError, "rank 0 of 2: .*rank 1 has left"):
            ts.run_ranks(2, lambda rank: rank or ts.ones(4, mesh=ts.init_device_mesh(2), placements="P(sum)").full_tensor())

    def test_tensors_stay_with_their_rank(self):
        shared = {}

        def work(rank):
            shared[rank] = ts.ones(2, mesh=ts.init_device_mesh(2))
            ts.barrier()
            return shared[1 - rank] + 1

        with self.assertRaisesRegex(ts.RankError, "another rank"):
            ts.run_ranks(2, work)

    def test_nested(self):
        self.assertEqual(ts.run_ranks(2, lambda: ts.run_ranks(2, ts.rank)), [[0, 1]] * 2)

    def test_no_ranks(self):
        with self.assertRaises(ts.Error):
            ts.run_ranks(0, ts.rank)


class Meshes(unittest.TestCase):
    def test_axes(self):
        def work(rank):
            mesh = ts.init_device_mesh((2, 3), ("dp", "tp"))
            self.assertIs(mesh, ts.init_device_mesh("dp=2,tp=3"))
            self.assertEqual((mesh.shape, mesh.names, mesh.size, mesh.ndim), ((2, 3), ("dp", "tp"), 6, 2))
            self.assertEqual(mesh.coordinate, (rank // 3, rank % 3))
            self.assertEqual(repr(mesh), "Mesh(dp=2, tp=3)")
            np.testing.assert_array_equal(mesh.ranks, [[0, 1, 2], [3, 4, 5]])
            self.assertEqual((mesh["tp"].shape, mesh["tp"].ranks[0]), ((3,), rank // 3 * 3))
            self.assertEqual(mesh["dp", "tp"], mesh)
            self.assertEqual(mesh.flatten().names, ("dp_tp",))
            self.assertEqual(mesh.flatten("dp", "tp", name="all").names, ("all",))
            self.assertEqual(mesh.local_rank("tp"), rank % 3)
            with self.assertRaisesRegex(ts.Error, "pp"):
                mesh["pp"]

        ts.run_ranks(6, work)

    def test_ranks_outside(self):
        def work(rank):
            mesh = ts.init_device_mesh(2, ranks=[2, 0])
            x = ts.distribute_tensor(np.arange(5, dtype=np.float32), mesh, ["S(0)"], src_data_rank=None)
            return mesh.coordinate, x.to_local().tolist()

        self.assertEqual(ts.run_ranks(3, work), [((1,), [3, 4]), (None, []), ((0,), [0, 1, 2])])

    def test_current(self):
        mesh = ts.init_device_mesh(1)
        self.assertIsNone(ts.current_mesh())
        with mesh:
            self.assertIs(ts.current_mesh(), mesh)
            self.assertEqual(ts.ones(3, placements="S(0)").mesh, mesh)
        self.assertIsNone(ts.current_mesh())
        with self.assertRaisesRegex(ts.Error, "no mesh"):
            ts.ones(3)

    def test_spellings(self):
        for shape in ("1", (1,), 1, [1]):
            self.assertEqual(ts.init_device_mesh(shape).shape, (1,))
        self.assertEqual(ts.init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b")).names, ("a", "b"))
        for wrong in ("dp=x", "dp=1,2", ""):
            with self.assertRaises(ts.Error):
                ts.init_device_mesh(wrong)
        with self.assertRaisesRegex(ts.Error, "7 ranks"):
            ts.init_device_mesh(7)


class Watching(unittest.TestCase):
    def test_counts(self):
        def work():
            mesh = ts.init_device_mesh(2)
            x = ts.ones(4, 4, mesh=mesh, placements="P(sum)")
            with ts.comm_debug() as log:
                self.assertEqual(log.total(), 0)
                with ts.comm_debug() as inner:
                    x.redistribute(placements="R")
                    self.assertEqual((log.total(), inner.total()), (1, 1))
                x.relu()
            self.assertEqual((log.total(), log.counts), (2, {"all_reduce": 2}))
            self.assertEqual((inner.total(), inner.counts), (1, {"all_reduce": 1}))
            self.assertIn("aten.relu.default", log.events[1]["why"])
            self.assertTrue(ts.flight())

        ts.run_ranks(2, work)

    def test_insisting(self):
        def work():
            mesh = ts.init_device_mesh(2)
            x = ts.ones(4, mesh=mesh, placements="P(sum)")
            with ts.explicit_redistribution():
                with self.assertRaisesRegex(ts.Error, "implicit redistribution"):
                    x.relu()
            x.relu()
            with self.assertRaisesRegex(ts.Error, "plain tensor"):
                x + np.ones(4, np.float32)
            with ts.implicit_replication():
                self.assertEqual((np.ones(4, np.float32) + x).full_tensor().tolist(), [3] * 4)

        ts.run_ranks(2, work)


if __name__ == "__main__":
    unittest.main()
