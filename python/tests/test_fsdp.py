"""fully_shard: against the same training on one rank; policies, settings, failures.  PyTorch's recorded runs are in
build/tests/golden_fsdp."""
import copy
import os
import tempfile
import unittest

import numpy as np

import tessera as ts
from tessera import nn

X = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
SEEDS = int(os.environ.get("FSDP_SEEDS", 8))  # of test_drawn
Y = np.random.default_rng(1).integers(0, 3, 12)


class Block(ts.Module):
    def __init__(self):
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(ts.Module):
    def __init__(self):
        self.blocks, self.head = [Block() for _ in range(2)], nn.Linear(6, 3)

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        return nn.cross_entropy(self.head(x), y)


def new_net():
    ts.manual_seed(1)
    return Net()


def rows(place=None, places=None):
    place, places = ts.rank() if place is None else place, ts.world_size() if places is None else places
    part = slice(place * 12 // places, (place + 1) * 12 // places)
    return X[part], Y[part]


def shard(net, **options):
    for block in net.blocks:
        ts.fully_shard(block, **options)
    return ts.fully_shard(net, **options)


def whole(t):
    t = t.detach()
    return np.array(t.full_tensor() if isinstance(t, ts.DTensor) else t)


def train(net, steps=3, batch=None, clip=None, step=None):
    """Losses, norms and parameters of some steps of SGD."""
    optimizer, losses, norms = ts.optim.SGD(list(net.parameters()), lr=0.2, momentum=0.9), [], []
    for _ in range(steps):
        loss = (step or (lambda: net(*(batch or rows()))))()
        loss.backward()
        if clip is not None:
            norms.append(float(ts.clip_grad_norm_(net.parameters(), clip)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses, norms, {name: whole(p) for name, p in net.state_dict().items()}


def one_rank(**how):
    return ts.run_ranks(1, lambda: train(new_net(), batch=(X, Y), **how))[0]


class FullyShard(unittest.TestCase):
    def same(self, ranks, work, tolerance=1e-5, places=None, **how):
        """work() on ranks is as one rank on the whole batch: the mean of the losses, norms, parameters."""
        want, got = one_rank(**how), ts.run_ranks(ranks, work)
        np.testing.assert_allclose(np.mean([g[0] for g in got], 0), want[0], rtol=tolerance)
        for losses, norms, state in got:
            np.testing.assert_allclose(norms, want[1], rtol=tolerance)
            for name, value in want[2].items():
                np.testing.assert_allclose(state[name], value, rtol=tolerance, atol=tolerance)

    def test_policies(self):
        policies = [dict(), dict(reshard_after_forward=True), dict(reshard_after_forward=False), dict(shard_placement_fn=lambda p: ts.Shard(p.ndim - 1))]
        for ranks, options in zip((2, 3, 4, 3), policies):
            with self.subTest(options):
                self.same(ranks, lambda options=options: train(shard(new_net(), **options)))
        self.same(4, lambda: train(shard(new_net(), reshard_after_forward=2)))

    def test_replicas_and_tensor_parallel(self):
        self.same(4, lambda: train(shard(new_net(), mesh=ts.init_device_mesh("replicas=2,shards=2")), clip=0.1), clip=0.1)

        def with_tp():
            mesh, net = ts.init_device_mesh("dp=2,tp=2"), new_net()
            for block in net.blocks:
                ts.parallelize_module(block, mesh["tp"], {"up": ts.ColwiseParallel(), "down": ts.RowwiseParallel()})
            shard(net, mesh=mesh["dp"])
            self.assertEqual([str(p) for p in net.blocks[0].up.weight.placements], ["_S(0, 2)", "S(0)"])
            return train(net, batch=rows(mesh.get_local_rank("dp"), 2), clip=0.1)
        self.same(4, with_tp, clip=0.1)  # the norm is over parameters on two meshes

    def test_accumulation(self):
        def work():
            net = shard(new_net())

            def step():
                x, y = rows()
                for i, last in enumerate((False, True)):
                    net.set_requires_gradient_sync(last)
                    net.set_is_last_backward(last)
                    net.set_reshard_after_backward(last)
                    half = slice(i * len(x) // 2, (i + 1) * len(x) // 2)
                    loss = net(x[half], y[half]) * 0.5
                    if not last:
                        loss.backward()
                return loss
            return train(net, step=step)
        want, got = one_rank(), ts.run_ranks(2, work)
        for _, _, state in got:
            for name, value in want[2].items():
                np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-5)

    def test_drawn(self):
        """Any modules wrapped, any policy, any ranks: the same as one rank."""
        for seed in range(SEEDS):
            draw = np.random.default_rng(seed)
            ranks = int(draw.integers(1, 5))
            mesh = "r=2,s=2" if ranks == 4 and draw.integers(2) else None
            paths = [p for p in ("blocks.0.up", "blocks.0.down", "blocks.0", "blocks.1.down", "blocks.1", "head") if draw.integers(2)]
            policies = [(None, True, False, 2 if ranks == 4 else None)[draw.integers(4)] for _ in range(len(paths) + 1)]
            dims = [int(draw.integers(2)) for _ in policies]
            settings = [bool(draw.integers(2)) for _ in range(3)]
            batches = int(draw.integers(1, 3)) if ranks != 4 else 3  # of equal rows

            def work():
                net, where = new_net(), ts.init_device_mesh(mesh) if mesh else None
                for path, policy, dim in zip([*paths, ""], policies, dims):
                    ts.fully_shard(net.get_submodule(path) if path else net, mesh=where, reshard_after_forward=policy,
                                   shard_placement_fn=lambda p, dim=dim: ts.Shard(min(dim, p.ndim - 1)))
                net.set_reduce_scatter_max_input_buffers(1 + settings[0])
                if settings[1]:
                    net.set_modules_to_backward_prefetch([net.get_submodule(p) for p in paths[::-1]])

                def step():
                    x, y = rows()
                    for i in range(batches):
                        if mesh and settings[2]:
                            net.set_requires_all_reduce(i + 1 == batches)
                        elif settings[2]:
                            net.set_requires_gradient_sync(i + 1 == batches)
                        half = slice(i * len(x) // batches, (i + 1) * len(x) // batches)
                        loss = net(x[half], y[half]) * (1 / batches)
                        if i + 1 < batches:
                            loss.backward()
                    return loss
                return train(net, step=step)
            with self.subTest(seed=seed, ranks=ranks, mesh=mesh, paths=paths, policies=policies, dims=dims, batches=batches):
                want, got = one_rank(), ts.run_ranks(ranks, work)
                for _, _, state in got:
                    for name, value in want[2].items():
                        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-5)

    def test_module(self):
        def work():
            net = shard(new_net())
            self.assertIsInstance(net, Net)
            self.assertIsInstance(net, ts.FSDPModule)
            self.assertEqual(type(net).__name__, "FSDPNet")
            self.assertNotIsInstance(net.head, ts.FSDPModule)
            self.assertTrue(all(isinstance(p, ts.DTensor) for p in net.parameters()))
            with self.assertRaisesRegex(TypeError, "state_dict"):
                copy.deepcopy(net)
            with self.assertRaisesRegex(ts.Error, "fully sharded already"):
                ts.fully_shard(net)
            with self.assertRaisesRegex(ts.Error, "ModuleList has no forward"):
                ts.fully_shard(new_net().blocks)
            handle = net.blocks[0].unshard(async_op=True)
            handle.wait()
            weight = net.blocks[0].up.weight
            self.assertNotIsInstance(weight, ts.DTensor)
            self.assertEqual(np.asarray(weight.detach()).shape, (10, 6))
            net.blocks[0].reshard()
            self.assertIsInstance(net.blocks[0].up.weight, ts.DTensor)
            with self.assertRaisesRegex(ts.Error, "has no memory"):
                weight * 2
            group, = net.blocks[1].groups()
            self.assertEqual([p["name"] for p in group["params"]], ["blocks.1.up.weight", "blocks.1.up.bias", "blocks.1.down.weight", "blocks.1.down.bias"])
            self.assertEqual((group["kind"], group["state"], group["gathered_bytes"]), ("FSDP", "SHARDED", 4 * 136))
            return group["shard_bytes"]
        self.assertEqual(sum(ts.run_ranks(3, work)), 4 * 136)

    def test_events_and_prefetch(self):
        def work():
            net, seen = shard(new_net()), []
            net.set_modules_to_forward_prefetch([net.blocks[0], net.blocks[1]])
            net.set_modules_to_backward_prefetch([net.blocks[1]])
            net.watch(lambda event, group, size, op, ranks: seen.append((event, group)))
            net(*rows()).backward()
            net.watch(None)
            with self.assertRaisesRegex(ts.Error, "fully_shard"):
                net.set_modules_to_forward_prefetch([net.head])
            return [e for e in seen if e[0] in ("all_gather", "reduce_scatter")]
        want = [("all_gather", g) for g in ("<root>", "blocks.0", "blocks.1", "blocks.1", "blocks.0")]
        want[5:] = [("reduce_scatter", g) for g in ("blocks.1", "<root>", "blocks.0")]  # what has no inputs with gradients waits for the end
        for seen in ts.run_ranks(2, work):
            self.assertEqual(seen, want)

    def test_mixed_precision(self):
        policy = ts.MixedPrecisionPolicy(param_dtype="bf16", reduce_dtype="float32")
        root = ts.MixedPrecisionPolicy(param_dtype="bf16", reduce_dtype="float32", output_dtype="float32")

        def work():
            net, dtypes = new_net(), []
            for block in net.blocks:
                ts.fully_shard(block, mp_policy=policy)
            ts.fully_shard(net, mp_policy=root)
            net.blocks[0].up.register_forward_pre_hook(lambda m, inputs: dtypes.append((str(inputs[0].dtype), str(m.weight.dtype))))
            result = train(net)
            self.assertEqual(dtypes[0], ("bf16", "bf16"))
            return result
        self.same(2, work, tolerance=3e-2)

    def test_nested_values(self):
        class Inner(ts.Module):
            def __init__(self):
                self.linear = nn.Linear(6, 6)

            def forward(self, x, *, more):
                return {"y": self.linear(x["a"]) + more[0], "pair": (x["b"], 3)}

        class Outer(ts.Module):
            def __init__(self):
                self.first, self.inner = nn.Linear(6, 6), Inner()

            def forward(self, x):
                x = self.first(x)
                out = self.inner({"a": x, "b": x * 2}, more=[x * 3])
                return (out["y"] * out["y"]).mean() + out["pair"][0].mean() * out["pair"][1]

        def work(sharded):
            ts.manual_seed(5)
            net, seen = Outer(), []
            if sharded:
                ts.fully_shard(net.inner, mp_policy=ts.MixedPrecisionPolicy(output_dtype="float64"))
                ts.fully_shard(net)
                net.watch(lambda event, group, *_: seen.append((event, group)))
            net(X).backward()
            return {name: whole(p.grad) for name, p in net.named_parameters()}, seen
        want = ts.run_ranks(1, work, False)[0][0]
        for got, seen in ts.run_ranks(2, work, True):
            self.assertLess(seen.index(("post_backward", "inner")), seen.index(("post_backward", "<root>")))
            for name, value in want.items():
                np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)

    def test_hooks_and_ignored(self):
        def work():
            net = new_net()
            head = net.head.weight
            ts.fully_shard(net, ignored_params={"head.bias", head}, offload_policy=ts.OffloadPolicy(tempfile.gettempdir()))
            self.assertNotIsInstance(net.head.weight, ts.DTensor)
            self.assertNotIsInstance(net.head.bias, ts.DTensor)
            sizes = []
            net.set_all_reduce_hook(lambda flat: sizes.append(flat.shape[0]))
            net(*rows()).backward()
            self.assertEqual(len(sizes), 1)
            return sizes[0]
        self.assertEqual(sum(ts.run_ranks(3, work)), 2 * 136)

    def test_failures(self):
        def work():
            net, fails = shard(new_net()), [True]

            def stumble(module, inputs):
                if fails.pop() if fails else False:
                    raise ValueError("stumbled")
            net.blocks[1].register_forward_pre_hook(stumble)
            with self.assertRaisesRegex(ValueError, "stumbled"):
                net(*rows())
            with self.assertRaisesRegex(ts.Error, r"group '<root>' \(in forward"):
                net(*rows())
            net.reset_iter_state()
            with self.assertRaisesRegex(ZeroDivisionError, "division"):
                ts.fully_shard(nn.Linear(3, 3), shard_placement_fn=lambda p: 1 / 0)
            return train(net)
        self.same(2, work)

    def test_states(self):
        def work():
            net, other = shard(new_net()), new_net()
            for p in other.parameters():
                p.requires_grad_(False)
                p *= 0
            shard(other)
            other.load_state_dict(net.state_dict())
            whole_net = {name: whole(p) for name, p in net.state_dict().items()}
            again = shard(new_net())
            again.load_state_dict(whole_net)
            empty = new_net()
            for name, p in list(empty.named_parameters()):
                owner, _, last = name.rpartition(".")
                setattr(empty.get_submodule(owner), last, ts.meta(*p.shape))
            shard(empty)
            with self.assertRaisesRegex(ts.Error, "no values"):
                empty(*rows())
            empty.to_empty().load_state_dict(net.state_dict())
            losses = [float(n(*rows()).detach()) for n in (net, other, again, empty)]
            self.assertEqual(losses, losses[:1] * 4)
            return losses
        ts.run_ranks(2, work)

    def test_part_of_a_larger_mesh(self):
        def work():
            mesh, net = ts.init_device_mesh("r=2,s=2,t=1"), new_net()
            ts.distribute_module(net, mesh)
            shard(net, mesh=mesh, dp_mesh_dims=ts.DataParallelMeshDims(shard="s", replicate="r"))
            self.assertEqual([str(p) for p in net.head.weight.placements], ["R", "S(0)", "R"])
            with self.assertRaisesRegex(ts.Error, "no axis 'q'"):
                ts.fully_shard(nn.Linear(3, 3), mesh=mesh, dp_mesh_dims=ts.DataParallelMeshDims(shard="q"))
            return net.blocks[0].groups()[0]["kind"]
        self.assertEqual(ts.run_ranks(4, work), ["HSDP"] * 4)


if __name__ == "__main__":
    unittest.main()
