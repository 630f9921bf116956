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


class Trees(unittest.TestCase):
    """Modules are the library's; Python sees what is there."""

    def test_names(self):
        m = Mlp()
        self.assertEqual([n for n, _ in m.named_parameters()], ["up.weight", "up.bias", "down.weight", "down.bias", "scales.0.scale"])
        self.assertEqual([n for n, _ in m.named_children()], ["up", "down", "scales"])
        self.assertIs(m.get_submodule("up"), m.up)
        self.assertIs(m.get_parameter("up.bias"), m.up.bias)
        with self.assertRaisesRegex(AttributeError, "no module 'side'"):
            m.get_submodule("side")
        with self.assertRaisesRegex(AttributeError, "no attribute 'side'"):
            m.side
        with self.assertRaisesRegex(ts.Error, "inside itself"):
            m.up.outer = m
        self.assertEqual(len(list(m.parameters())), 5)

    def test_attributes(self):
        m = Linear(2, 3)
        given = m.weight
        self.assertIs(m.weight, given)  # the very array
        given[0, 0] = 9
        state = m.state_dict()
        self.assertEqual(list(state), ["weight", "bias"])
        m.bias = None  # no parameter any more
        self.assertIsNone(m.bias)
        self.assertEqual(list(m.state_dict()), ["weight"])
        m.bias = np.ones(2, np.float32)
        m.weight = other = Linear(2, 3)  # a module where a tensor was
        self.assertEqual(([n for n, _ in m.named_children()], [n for n, _ in m.named_parameters()]), (["weight"], ["bias", "weight.weight", "weight.bias"]))
        self.assertIs(m.weight, other)
        del m.weight
        with self.assertRaises(AttributeError):
            m.weight
        m.names, m.sizes, m.odd = np.array(["a"]), [1, 2], {"eps": 1e-5}  # nothing for the tree
        self.assertEqual((m.names.tolist(), m.sizes, m.odd), (["a"], [1, 2], {"eps": 1e-5}))
        self.assertEqual([n for n, _ in m.named_parameters()], ["bias"])

    def test_buffers_and_flags(self):
        m = Mlp()
        m.up.register_buffer("mean", np.zeros(3, np.float32))
        m.up.register_buffer("mask", np.ones(3, bool), persistent=False)
        m.up.steps = np.zeros((), np.int64)
        self.assertEqual([n for n, _ in m.named_buffers()], ["up.mean", "up.mask"])
        self.assertIn("up.mean", m.state_dict())
        self.assertNotIn("up.mask", m.state_dict())
        self.assertEqual([m.requires_grad(n) for n in ("up.weight", "up.mean", "up.steps")], [True, False, False])
        del m.up.steps
        m.requires_grad_(False)
        self.assertFalse(m.requires_grad("down.weight"))
        with self.assertRaisesRegex(ts.Error, "no tensor 'up.none'"):
            m.requires_grad("up.none")
        m.load_state_dict({**m.state_dict(), "up.mean": np.ones(3, np.float32)})
        self.assertEqual((m.up.mean.tolist(), [n for n, _ in m.named_buffers()]), ([1, 1, 1], ["up.mean", "up.mask"]))
        with self.assertRaisesRegex(ts.Error, "missing .*up.mean.*unexpected .*nope"):
            m.load_state_dict({"nope": np.ones(1)})

    def test_lists_and_dicts(self):
        m = ts.Module()
        m.layers = [Linear(2, 2), Linear(2, 2)]
        m.heads = {"a": Linear(1, 1), 3: np.ones(2, np.float32), "eps": 0.1, "values": np.zeros(1, np.float32)}
        m.layers.append(Linear(3, 3))
        del m.layers[0]
        m.layers.insert(0, Linear(4, 4))
        self.assertEqual([layer.bias.size for layer in m.layers], [4, 2, 3])
        self.assertEqual(m.layers[-1].bias.size, 3)
        self.assertEqual((m.heads["eps"], m.heads[3].tolist(), m.heads["values"].tolist(), set(m.heads)), (0.1, [1, 1], [0], {"a", 3, "eps", "values"}))
        self.assertEqual([n for n, _ in m.named_modules()], ["", "layers.0", "layers.1", "layers.2", "heads", "heads.a"])
        del m.heads["a"]
        self.assertEqual([n for n, _ in m.heads.named_parameters()], ["3", "values"])
        m.again = m.layers[0]  # in two places: told of once
        self.assertEqual(len([n for n, _ in m.named_modules()]), 5)

    def test_hooks(self):
        class Add(ts.Module):
            def forward(self, x, n=1, *, more=None):
                return (x + n, more)

        m, seen = Add(), []
        x = np.zeros(2, np.float32)
        first = m.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1, *inputs[1:]))
        m.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].tolist()))
        m.register_forward_hook(lambda module, inputs, outputs: (outputs[0] * 2, outputs[1]))
        m.register_forward_hook(lambda module, inputs, outputs: seen.append((type(outputs), outputs[1])))
        y, more = m(x, 10, more="text")
        self.assertEqual((y.tolist(), more, seen), ([22, 22], "text", [[1, 1], (tuple, "text")]))
        first.remove()
        first.remove()
        self.assertEqual(m(x)[0].tolist(), [2, 2])
        m.register_forward_hook(lambda module, inputs, outputs: outputs[0].sum())  # other outputs altogether
        self.assertEqual(m(x), 4)
        m.register_forward_pre_hook(lambda module, inputs: 1 / 0)
        with self.assertRaises(ZeroDivisionError):
            m(x)
        self.assertEqual(ts.call("aten.relu", x).tolist(), [0, 0])  # no error is left

    def test_copies(self):
        import copy
        import pickle
        m = Mlp()
        m.up.register_buffer("mask", np.ones(3, bool), persistent=False)
        m.tied = m.up
        m.up.register_forward_hook(lambda module, inputs, outputs: outputs * 0)
        c = copy.deepcopy(m)
        self.assertIs(c.tied, c.up)
        self.assertIsNot(c.up.weight, m.up.weight)
        c.up.weight[:] = 0
        self.assertEqual(m.up.weight[0, 1], np.float32(0.1))
        self.assertEqual(c.up(np.ones((1, 6), np.float32)).sum(), 0)  # hooks are copied
        p = pickle.loads(pickle.dumps(m.down))
        np.testing.assert_array_equal(p.weight, m.down.weight)
        self.assertEqual([n for n, _ in c.named_buffers()], ["up.mask"])

        def work():
            mesh = ts.init_device_mesh(2)
            spread = ts.distribute_module(Mlp(), mesh, partition)
            other = copy.deepcopy(spread)
            self.assertEqual(other.up.weight.placements, ("S(0)",))
            self.assertTrue(other.up.weight.equal(spread.up.weight))
            with self.assertRaisesRegex(TypeError, "cannot be pickled"):
                pickle.dumps(spread)
            return spread
        for spread in ts.run_ranks(2, work):  # its rank is gone
            self.assertEqual(({n: str(p.placements[0]) for n, p in spread.named_parameters()}["up.weight"], spread.up.weight.to_local().shape), ("S(0)", (4, 6)))
            with self.assertRaisesRegex(ts.Error, "another context|has ended"):
                spread(np.ones((1, 6), np.float32))

    def test_changes_by_the_library(self):
        """What C code does to the tree and to tensors on their way is seen."""
        from tessera._buffers import tensor_of
        from tessera._call import call_raw
        from tessera._context import current, scope
        from tessera._library import ModuleHookFn, quick
        m, ctx = Linear(2, 2), current()
        first, child = m.weight, ts.Module()
        m.inner = child
        with scope(ctx):
            quick.tess_module_set(ctx.ptr, m._ptr, b"weight", tensor_of(ctx, np.eye(2, dtype=np.float32)))
            quick.tess_module_set(ctx.ptr, m._ptr, b"extra", tensor_of(ctx, np.arange(3)))
            quick.tess_module_add(ctx.ptr, m._ptr, b"made", quick.tess_module_hold(quick.tess_module_child(m._ptr, b"inner")))
        self.assertIsNot(m.weight, first)
        self.assertEqual((m.weight.tolist(), m.extra.tolist()), ([[1, 0], [0, 1]], [0, 1, 2]))
        self.assertIs(m.made, child)
        self.assertIs(m.inner, child)

        @ModuleHookFn
        def negate(_, __, tensors, n, mesh, arg):
            for i in range(n):
                tensors[i] = call_raw(ctx, "aten.neg.default", [("tensor", tensors[i])])
            return 0

        m.bias = np.zeros(2, np.float32)
        x = np.array([[1, 2]], np.float32)
        quick.tess_module_hook(ctx.ptr, m._ptr, 0, negate, None)
        self.assertEqual(m(x).tolist(), [[-1, -2]])
        quick.tess_module_hook(ctx.ptr, m._ptr, 1, negate, None)
        self.assertEqual(m(x).tolist(), [[1, 2]])

        def fails(*_):
            return 1
        fails = ModuleHookFn(fails)
        quick.tess_module_hook(ctx.ptr, m._ptr, 0, fails, None)
        with self.assertRaisesRegex(ts.Error, "a hook before the forward function"):
            m(x)

    def test_made_before_its_rank(self):
        models = [Mlp(), Mlp()]

        def work(rank):
            model = ts.distribute_module(models[rank], ts.init_device_mesh(2), partition, lambda m, inputs, at: (ts.distribute_tensor(inputs[0], at, "R"),),
                                         lambda m, out, at: out.full_tensor())
            return model(np.ones((2, 6), np.float32)).shape
        self.assertEqual(ts.run_ranks(2, work), [(2, 6)] * 2)

    def test_ranks_that_share_one(self):
        model, x = Mlp(), np.ones((2, 6), np.float32)
        model.up.forward = lambda x: np.maximum(x @ model.up.weight.T + model.up.bias, 0)
        model.forward = lambda x: model.down(model.up(x))
        want = model(x)

        def work():
            for _ in range(300):
                np.testing.assert_array_equal(model(x), want)
            return len(list(model.named_parameters()))
        self.assertEqual(ts.run_ranks(4, work), [5] * 4)

    def test_memory(self):
        import gc
        import weakref
        mine = np.ones(8, np.float32)
        ref, m = weakref.ref(mine), ts.Module()
        m.inner = ts.Module()
        m.inner.w = mine
        del mine
        gc.collect()
        self.assertIsNotNone(ref())
        m.inner.w = np.zeros(2, np.float32)
        gc.collect()
        self.assertIsNone(ref())
        other = weakref.ref(m.inner)
        del m
        gc.collect()
        self.assertIsNone(other())


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
            with self.assertRaisesRegex(ts.Error, "still partial"):
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
        for tensors, word in (({"w": ((4,), "P(sum)")}, "partial"), ({"w": ((4,), "S(1)")}, "no dimension 1"), ({"w": ((4,), "RR")}, "mesh of 1 axes")):
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
