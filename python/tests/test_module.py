"""distribute_module, checkpoint plans, DTensors in parts, random state."""
import unittest

import numpy as np

import tessera as ts


class Linear(ts.Module):
    def __init__(self, rows, cols):
        self.weight = np.arange(rows * cols, dtype=np.float32).reshape(rows, cols) / 10
        self.bias = np.ones(rows, np.float32)

    def forward(self, x):
        return x @ self.weight.T + self.bias


class Mlp(ts.Module):
    def __init__(self):
        self.up, self.down = Linear(8, 6), Linear(6, 8)
        self.scales = [{"scale": np.full(1, 2.0, np.float32)}]

    def forward(self, x):
        return self.down(self.up(x).relu()) * self.scales[0]["scale"]


def partition(path, module, mesh):
    place = {"up": ("S(0)", "S(0)"), "down": ("S(1)", "R")}.get(path)
    if place:
        module.weight = ts.distribute_tensor(module.weight, mesh, place[0])
        module.bias = ts.distribute_tensor(module.bias, mesh, place[1])


class Modules(unittest.TestCase):
    def test_distribute_module(self):
        x = np.arange(30, dtype=np.float32).reshape(5, 6)

        def work():
            mesh = ts.init_device_mesh(2)
            mlp, seen = Mlp(), []

            def note(path, module, _):
                seen.append(path)
                partition(path, module, mesh)
            mlp = ts.distribute_module(mlp, mesh, note, lambda m, inputs, at: (ts.distribute_tensor(inputs[0], at, "R"),),
                                       lambda m, out, at: out.full_tensor())
            placed = {name: str(p.placements[0]) for name, p in mlp.named_parameters()}
            with self.assertRaisesRegex(ts.Error, "distributed already"):
                ts.distribute_module(mlp, mesh)
            return seen, placed, mlp(x)

        up, down = Linear(8, 6), Linear(6, 8)
        want = (np.maximum(x @ up.weight.T + 1, 0) @ down.weight.T + 1) * 2
        for seen, placed, y in ts.run_ranks(2, work):
            self.assertEqual(seen, ["", "up", "down", "scales.0"])
            self.assertEqual(placed, {"up.weight": "S(0)", "up.bias": "S(0)", "down.weight": "S(1)", "down.bias": "R", "scales.0.scale": "R"})
            np.testing.assert_allclose(y, want, rtol=1e-5)

    def test_dicts_and_functions(self):
        def work():
            mesh = ts.init_device_mesh(2)
            with mesh:
                tree = ts.distribute_module({"a": np.ones(4), "inner": {"b": np.ones((2, 2))}}, None,
                                            lambda path, m, at: m.update(b=ts.distribute_tensor(m["b"], at, "S(0)")) if path == "inner" else None)
            self.assertEqual((tree["a"].placements, tree["inner"]["b"].placements), (("R",), ("S(0)",)))
            double = ts.distribute_module(lambda x: x * 2, mesh, output_fn=lambda out, at: out.full_tensor())
            for hooks in ({"input_fn": lambda x: x}, {"output_fn": lambda a, b, c, d: a}):
                with self.assertRaisesRegex(ts.Error, "takes 3 arguments"):
                    ts.distribute_module(lambda x: x, mesh, **hooks)
            with self.assertRaisesRegex(ts.Error, "plain tensor"):  # as in PyTorch: inputs are the caller's to place
                ts.distribute_module(Linear(8, 6), mesh)(np.ones((2, 6), np.float32))
            with self.assertRaises(ts.Error):
                ts.distribute_module({}, mesh, input_fn=print)
            with self.assertRaises(ts.Error):
                ts.distribute_module(3, mesh)
            return double(tree["inner"]["b"]).tolist()
        self.assertEqual(ts.run_ranks(2, work), [[[2, 2], [2, 2]]] * 2)


class Parts(unittest.TestCase):
    def test_in_parts(self):
        def work():
            mesh = ts.init_device_mesh(2)
            whole = np.arange(21.0).reshape(7, 3)
            x = ts.distribute_tensor(whole, mesh, "_S(0, 2)")
            self.assertTrue(ts.unflatten(x.to_local(), mesh, x.spec).equal(x))
            for offset, size in x.chunks():
                box = tuple(slice(o, o + s) for o, s in zip(offset, size))
                np.testing.assert_array_equal(x.get_chunk(offset), whole[box])
            with self.assertRaisesRegex(ts.Error, "still owed"):
                x.redistribute("P(sum)").chunks()
            moving = x.redistribute_start("S(1)")
            y = moving.wait()
            with self.assertRaises(ts.Error):
                moving.wait()
            self.assertEqual(y.placements, ("S(1)",))
            return len(x.chunks()), y.equal(x)
        self.assertEqual(ts.run_ranks(2, work), [(2, True)] * 2)

    def test_random_state(self):
        def work():
            mesh = ts.init_device_mesh(2)
            ts.manual_seed(3)
            ts.rand(5, mesh=mesh, placements="S(0)")
            state = ts.random_state()
            a = ts.randn(7, mesh=mesh, placements="S(0)").full_tensor()
            ts.set_random_state(state)
            b = ts.randn(7, mesh=mesh, placements="R").full_tensor()
            with self.assertRaises(ts.Error):
                ts.set_random_state(b"short")
            return np.array_equal(a, b), len(state)
        self.assertEqual(ts.run_ranks(2, work), [(True, 16)] * 2)


class Checkpoints(unittest.TestCase):
    def test_saved_on_one_mesh_read_on_another(self):
        shapes = {"w": (7, 6), "b": (5,), "scalar": ()}
        whole = {name: np.random.default_rng(1).standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

        def on(**places):
            return {name: ts.Spec(shapes[name], p) for name, p in places.items()}

        tensors = on(w="_S(0, 2)S(1)", b="RS(0)", scalar="RR")
        saved = ts.plan_save(tensors, (2, 2))
        files = {t["name"]: [] for t in saved["tensors"]}
        for t in saved["tensors"]:
            for c in t["chunks"]:
                files[t["name"]].append(whole[t["name"]][tuple(slice(o, o + s) for o, s in zip(c["offset"], c["size"]))].copy())
        want = on(w="S(1)", b="S(0)", scalar="R")
        for rank in range(3):
            for name, reads in ts.plan_load(saved, want, 3, rank).items():
                layout = ts.local_layout(shapes[name], 3, want[name].placements, rank)
                shard = np.full(layout["shape"], np.nan, np.float32)
                for r in reads:
                    into = tuple(slice(o, o + s) for o, s in zip(r["into"], r["size"]))
                    shard[into] = files[name][r["chunk"]][tuple(slice(o, o + s) for o, s in zip(r["from"], r["size"]))]
                np.testing.assert_array_equal(shard, whole[name][tuple(slice(o, o + s) for o, s in zip(layout["offset"], layout["shape"]))])

    def test_who_writes_replicas(self):
        tensors = {f"t{i}": ((4, 4), "R") for i in range(4)}
        writers = [[c["rank"] for c in t["chunks"]] for t in ts.plan_save(tensors, 2)["tensors"]]
        self.assertEqual(writers, [[0], [1], [0], [1]])
        writers = [[c["rank"] for c in t["chunks"]] for t in ts.plan_save(tensors, 2, how="lowest")["tensors"]]
        self.assertEqual(writers, [[0]] * 4)

    def test_refusals(self):
        for tensors, word in (({"w": ((4,), "P(sum)")}, "owed"), ({"w": ((4,), "S(1)")}, "no dimension 1"), ({"w": ((4,), "RR")}, "mesh of 1 axes")):
            with self.assertRaisesRegex(ts.Error, word):
                ts.plan_save(tensors, 2)
        saved = ts.plan_save({"w": ((4,), "S(0)")}, 2)
        for tensors, word in (({"v": ((4,), "R")}, "'v' was not saved"), ({"w": ((5,), "R")}, "was saved as f32\\[4\\], wanted is f32\\[5\\]")):
            with self.assertRaisesRegex(ts.Error, word):
                ts.plan_load(saved, tensors, 2, 0)
        saved["tensors"][0]["chunks"].pop()
        with self.assertRaisesRegex(ts.Error, "were saved"):
            ts.plan_load(saved, {"w": ((4,), "R")}, 2, 0)


if __name__ == "__main__":
    unittest.main()
