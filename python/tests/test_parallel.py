"""Tensor parallel and data parallel modules, loss_parallel, optimizers: against one rank, and against torch where it is
there.  Collective counts are those of PyTorch's own tests."""
import unittest

import numpy as np

import tessera as ts
from tessera import Partial, Replicate, Shard, nn

from .transformer import Transformer, parallelize

TOKENS = np.random.default_rng(1).integers(0, 8, (8, 8))
LABELS = np.random.default_rng(2).integers(0, 8, (8, 8))


def normal(*size, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def seeded(make, seed=3):
    ts.manual_seed(seed)
    return make()


def whole(t):
    return np.asarray(t.detach().full_tensor())


def same(a, b, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


class Mlp(ts.Module):
    def __init__(self, bias=True):
        self.net1, self.net2 = nn.Linear(10, 16, bias=bias), nn.Linear(16, 10, bias=bias)

    def forward(self, x):
        return self.net2(self.net1(x).relu())


def counted(fn):
    with ts.comm_debug() as log:
        result = fn()
    return result, dict(log.counts)


def loss_of(model, tokens=TOKENS, labels=LABELS):
    return nn.cross_entropy(model(tokens).view(-1, 8), labels.reshape(-1))


class Styles(unittest.TestCase):
    """test_tp_style.py and the MLP of test_tp_examples.py."""

    def style(self, make, style, x, forward, backward, shape, ranks=4):
        def work():
            mesh = ts.init_device_mesh(ranks)
            module = ts.parallelize_module(seeded(make), mesh, style)
            given = x if x.dtype == np.int64 else ts.tensor(x, requires_grad=True)
            y, fwd = counted(lambda: module(given))
            self.assertEqual(y.shape, shape)
            y = y if not isinstance(y, ts.DTensor) else y.to_local()
            _, bwd = counted(lambda: y.sum().backward())
            return fwd, bwd
        self.assertEqual(ts.run_ranks(ranks, work)[0], (forward, backward))

    def test_colwise(self):
        make = lambda: nn.Linear(16, 8)
        self.style(make, ts.ColwiseParallel(), normal(8, 16), {}, {"all_reduce": 1}, (8, 2))
        self.style(make, ts.ColwiseParallel(input_layouts=Shard(0)), normal(2, 16), {"all_gather": 1}, {"reduce_scatter": 1}, (8, 2))
        self.style(lambda: nn.Embedding(16, 8), ts.ColwiseParallel(output_layouts=Replicate()), TOKENS, {"all_gather": 1}, {}, (8, 8, 8))

    def test_rowwise(self):
        make = lambda: nn.Linear(16, 8)
        self.style(make, ts.RowwiseParallel(), normal(8, 4), {"all_reduce": 1}, {}, (8, 8))
        self.style(make, ts.RowwiseParallel(output_layouts=Shard(0)), normal(8, 4), {"reduce_scatter": 1}, {"all_gather": 1}, (2, 8))
        self.style(lambda: nn.Embedding(16, 8), ts.RowwiseParallel(input_layouts=Replicate()), TOKENS, {"all_reduce": 1}, {}, (8, 8, 8))

    def test_sequence(self):
        for make in (lambda: nn.LayerNorm(8), lambda: nn.RMSNorm(8)):
            self.style(make, ts.SequenceParallel(), normal(2, 4, 8), {}, {}, (2, 16, 8))
            self.style(make, ts.SequenceParallel(sequence_dim=0, use_local_output=True), normal(2, 4, 8), {}, {}, (2, 4, 8))

    def test_mlp(self):
        def work(sequence):
            mesh = ts.init_device_mesh("tp=2")
            out = []
            for bias in (True, False):
                plain, module = seeded(lambda: Mlp(bias)), seeded(lambda: Mlp(bias))
                seq = Shard(0) if sequence else Replicate()
                plan = {"net1": ts.ColwiseParallel(input_layouts=seq), "net2": ts.RowwiseParallel(output_layouts=seq)}
                ts.parallelize_module(module, mesh, plan)
                x = normal(20, 10)
                optims = ts.optim.SGD(plain.parameters(), lr=0.25), ts.optim.SGD(module.parameters(), lr=0.25)
                mine = ts.tensor(x[ts.rank() * 10:][:10] if sequence else x, requires_grad=True)
                y, fwd = counted(lambda: module(mine))
                _, bwd = counted(lambda: y.sum().backward())
                expected = plain(x)
                expected.sum().backward()
                for o in optims:
                    o.step()
                same(np.asarray(y.detach()), np.asarray(expected.detach())[ts.rank() * 10:][:10] if sequence else expected.detach())
                for (_, p), (_, q) in zip(plain.named_parameters(), module.named_parameters()):
                    same(p.detach(), whole(q))
                out.append((fwd, bwd))
            return out
        self.assertEqual(ts.run_ranks(2, lambda: work(False))[0], [({"all_reduce": 1}, {"all_reduce": 1})] * 2)
        self.assertEqual(ts.run_ranks(2, lambda: work(True))[0], [({"all_gather": 1, "reduce_scatter": 1}, {"all_gather": 1, "reduce_scatter": 1})] * 2)

    def test_prepare(self):
        class Takes(ts.Module):
            def forward(self, x, scale, *, other=None):
                self.seen = [str(p) for p in x.placements], scale, type(other).__name__
                return x * scale, other

        def work():
            mesh = ts.init_device_mesh("tp=2")
            module = Takes()
            style = ts.PrepareModuleInputOutput(
                input_layouts=(Shard(0), None), desired_input_layouts=(Replicate(), None), input_kwarg_layouts={"other": Shard(0)},
                desired_input_kwarg_layouts={"other": Replicate()}, output_layouts=(Replicate(), None), desired_output_layouts=(Shard(0), None))
            ts.parallelize_module(module, mesh, style)
            x = np.full((2, 3), ts.rank(), np.float32)
            (y, other), counts = counted(lambda: module(x, 2.0, other=x))
            with self.assertRaisesRegex(ts.Error, "2 input_layouts"):
                module(x)
            return module.seen, np.asarray(y).tolist(), other.shape, counts
        for rank, (seen, y, other, counts) in enumerate(ts.run_ranks(2, work)):
            self.assertEqual(seen, (["R"], 2.0, "DTensor"))
            self.assertEqual((y, other, counts), ([[2.0 * rank] * 3] * 2, (4, 3), {"all_gather": 2}))

    def test_uneven(self):
        """5 hidden features on 2 ranks: plain shards of 3 and 2 are found to be parts of 5."""
        def work():
            mesh = ts.init_device_mesh("tp=2")
            make = lambda: (nn.Linear(4, 5), nn.Linear(5, 4))
            (a, b), (c, d) = seeded(make), seeded(make)
            ts.parallelize_module(c, mesh, ts.ColwiseParallel())
            ts.parallelize_module(d, mesh, ts.RowwiseParallel())
            x = normal(3, 4)
            same(np.asarray(d(c(x)).detach()), np.asarray(b(a(x)).detach()))
        ts.run_ranks(2, work)


class Plans(unittest.TestCase):
    def test_mistakes(self):
        def work():
            tp, both = ts.init_device_mesh("tp=1"), ts.init_device_mesh("dp=1,tp=1")
            module = Mlp()
            with self.assertWarnsRegex(UserWarning, "'net3' matches no module.*net1, net2"):
                ts.parallelize_module(module, tp, {"net3": ts.ColwiseParallel()})
            with self.assertWarnsRegex(UserWarning, "does nothing"):
                ts.parallelize_module(module, tp)
            for plan, error, message in ((ts.ColwiseParallel(), ts.Error, "has no kind: the style colwise is for kinds linear and embedding"),
                                         ({"net1": "colwise"}, TypeError, "'net1' is a str"),
                                         ({"net1": ts.ColwiseParallel(output_layouts="X(0)")}, ts.Error, "X"),
                                         ({"net1": ts.ColwiseParallel(input_layouts=(Shard(0), Shard(1)))}, ts.Error, "one placement")):
                with self.assertRaisesRegex(error, message):
                    ts.parallelize_module(module, tp, plan)
            with self.assertRaisesRegex(ts.Error, 'one axis.*mesh\\["tp"\\]'):
                ts.parallelize_module(module, both, {"net1": ts.ColwiseParallel()})
            with self.assertRaisesRegex(ts.Error, "desired_input_layouts"):
                ts.PrepareModuleInput(input_layouts=Shard(0))
            self.assertNotIsInstance(module.net1.weight, ts.DTensor)
            ts.parallelize_module(module, tp, {"net1": ts.ColwiseParallel()})
            with self.assertRaisesRegex(ts.Error, "distributed already"):
                ts.parallelize_module(module, tp, {"net?": ts.RowwiseParallel()})
        work()

    def test_styles_of_ones_own(self):
        class Doubled(ts.ParallelStyle):
            def _apply(self, module, device_mesh):
                module.register_forward_hook(lambda m, inputs, outputs: outputs * 2)
                return module

        module, x = seeded(Mlp), normal(3, 10)
        before = module(x).detach().numpy().copy()
        ts.parallelize_module(module, ts.init_device_mesh("tp=1"), Doubled())
        same(module(x).detach(), before * 2)


class Losses(unittest.TestCase):
    def test_loss_parallel(self):
        """3 all-reduces forward, none back, and the gradient stays sharded."""
        target = np.array([[1, 2, 7], [-100, 0, 4]])

        def work():
            mesh = ts.init_device_mesh("tp=2")
            for size, labels in (((6, 8), target.reshape(-1)), ((2, 8, 3), target)):
                for reduction in ("mean", "sum", "none"):
                    for weight in (None, np.linspace(0.5, 2, 8).astype(np.float32)):
                        x = ts.tensor(normal(*size), requires_grad=True)
                        spread = ts.distribute_tensor(ts.tensor(normal(*size), requires_grad=True), mesh, "S(1)")
                        expected = nn.cross_entropy(x, labels, weight, reduction=reduction)
                        (expected * expected).sum().backward()
                        with ts.loss_parallel():
                            loss, fwd = counted(lambda: nn.cross_entropy(spread, labels, weight, reduction=reduction))
                            _, bwd = counted(lambda: (loss * loss).sum().backward())
                        same(whole(loss), expected.detach())
                        self.assertEqual((fwd, bwd), ({"all_reduce": 3}, {}))
                        self.assertEqual([str(p) for p in spread.grad.placements], ["S(1)"])
                        same(whole(spread.grad), x.grad)
        ts.run_ranks(2, work)

    def test_several_axes(self):
        """What PyTorch refuses: a mean over a sharded batch, label smoothing, soft targets."""
        target, soft = np.array([1, 2, 7, -100]), np.abs(normal(4, 8)) / 5

        def work():
            mesh = ts.init_device_mesh("dp=2,tp=2")
            for labels, place, smoothing in ((target, "S(0)R", 0.0), (target, "S(0)R", 0.1), (soft, "S(0)S(1)", 0.0)):
                x = ts.tensor(normal(4, 8), requires_grad=True)
                spread = ts.distribute_tensor(ts.tensor(normal(4, 8), requires_grad=True), mesh, "S(0)S(1)")
                expected = nn.cross_entropy(x, labels, label_smoothing=smoothing)
                expected.backward()
                with ts.loss_parallel():
                    loss = nn.cross_entropy(spread, ts.distribute_tensor(labels, mesh, place), label_smoothing=smoothing)
                    loss.backward()
                same(whole(loss), expected.detach())
                same(whole(spread.grad), x.grad)
        ts.run_ranks(4, work)

    def test_transformer(self):
        def work():
            mesh = ts.init_device_mesh("tp=2")
            plain = seeded(lambda: Transformer(tied=False))
            model = parallelize(seeded(lambda: Transformer(tied=False)), mesh, output=Shard(-1), local_output=False)
            loss_of(plain).backward()
            with ts.loss_parallel():
                y = model(TOKENS)
                loss, fwd = counted(lambda: nn.cross_entropy(y.transpose(1, 2), LABELS))
                loss.backward()
            for (_, p), (_, q) in zip(plain.named_parameters(), model.named_parameters()):
                same(p.grad, whole(q.grad))
            return fwd
        self.assertEqual(ts.run_ranks(2, work)[0], {"all_reduce": 3})


class Transformers(unittest.TestCase):
    """test_tp_examples.py: two layers, 4 ranks."""

    COUNTS = {False: ({"all_reduce": 6, "all_gather": 1}, {"all_reduce": 9}),
              True: ({"reduce_scatter": 6, "all_gather": 6}, {"reduce_scatter": 5, "all_gather": 6})}

    def train(self, sequence, tied):
        def work():
            mesh = ts.init_device_mesh("tp=4")
            plain = seeded(lambda: Transformer(tied=tied))
            model = parallelize(seeded(lambda: Transformer(tied=tied)), mesh, sequence)
            optims = [ts.optim.Adam(m.parameters(), lr=1e-2) for m in (plain, model)]
            for step in range(4):
                expected = loss_of(plain)
                y, fwd = counted(lambda: model(TOKENS))
                loss = nn.cross_entropy(y.view(-1, 8), LABELS.reshape(-1))
                _, bwd = counted(loss.backward)
                expected.backward()
                same(float(loss), float(expected))
                norms = [ts.clip_grad_norm_(m.parameters(), 0.5) for m in (plain, model)]
                same(*norms)
                for o in optims:
                    o.step()
                    o.zero_grad()
            for (name, p), (_, q) in zip(plain.named_parameters(), model.named_parameters()):
                same(p.detach(), whole(q), 1e-4)
            return fwd, bwd
        return ts.run_ranks(4, work)[0]

    def test_tensor_parallel(self):
        self.assertEqual(self.train(False, True), self.COUNTS[False])

    def test_sequence_parallel(self):
        self.assertEqual(self.train(True, False), self.COUNTS[True])


class DataParallel(unittest.TestCase):
    def replicas(self, n, work):
        return ts.run_ranks(n, lambda: work(ts.init_device_mesh(f"dp={n}")))

    def test_gradients_are_averages(self):
        x = normal(12, 10)

        def work(mesh):
            plain, inner = seeded(Mlp), seeded(Mlp, seed=3 + ts.rank())  # rank 0's parameters count
            model = ts.DistributedDataParallel(inner, mesh, bucket_cap_mb=0.0005)
            (plain(x) ** 2).mean().backward()
            mine, seen = x[ts.rank() * 4:][:4], []
            with ts.comm_debug() as log:
                inner.net1.weight.register_hook(lambda g: seen.append(log.total()))  # the last gradient: others are under way
                (model(mine) ** 2).mean().backward()
            counts = dict(log.counts)
            self.assertGreater(seen[0], 0)
            for (_, p), (_, q) in zip(plain.named_parameters(), inner.named_parameters()):
                same(p.grad, q.grad)
            self.assertEqual([n for n, _ in model.named_parameters()][0], "module.net1.weight")
            return model.bucket_count, counts
        buckets, counts = self.replicas(3, work)[0]
        self.assertGreater(buckets, 1)
        self.assertEqual(counts, {"all_reduce": buckets})

    def test_no_sync(self):
        x = normal(8, 10)

        def work(mesh):
            plain, model = seeded(Mlp), ts.DistributedDataParallel(seeded(Mlp), mesh)
            (plain(x) ** 2).mean().backward()
            parts = x[ts.rank() * 4:][:4].reshape(2, 2, 10)
            with model.no_sync():
                _, quiet = counted(lambda: ((model(parts[0]) ** 2).mean() / 2).backward())
            ((model(parts[1]) ** 2).mean() / 2).backward()
            for (_, p), (_, q) in zip(plain.named_parameters(), model.module.named_parameters()):
                same(p.grad, q.grad)
            return quiet
        self.assertEqual(self.replicas(2, work)[0], {})

    def test_unused_parameters(self):
        class Either(ts.Module):
            def __init__(self):
                self.a, self.b, self.never = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x, which):
                return (self.a if which else self.b)(x)

        def work(mesh, find):
            plain, model = seeded(Either), ts.DistributedDataParallel(seeded(Either), mesh, find_unused_parameters=find)
            x = normal(3, 4)
            model(x, ts.rank() == 0).sum().backward()
            (plain(x, True).sum() / 2).backward()
            (plain(x, False).sum() / 2).backward()
            for name, p in plain.named_parameters():
                grad = model.module.get_parameter(name).grad
                self.assertEqual(grad is None, name.startswith("never"))
                if grad is not None:
                    same(p.grad, grad)
        self.replicas(2, lambda mesh: work(mesh, True))
        with self.assertRaisesRegex(ts.RankError, "got no gradient in this backward: .*never.weight.*\n?.*find_unused"):
            self.replicas(2, lambda mesh: work(mesh, False))

    def test_join(self):
        """Rank 0 has 2 batches, rank 1 has 4: all end with the parameters of the longest."""
        def work(mesh, initial):
            batches = [normal(2, 10, seed=7 * ts.rank() + i) for i in range(2 + 2 * ts.rank())]
            model = ts.DistributedDataParallel(seeded(Mlp), mesh, bucket_cap_mb=0.0005)
            optim = ts.optim.SGD(model.parameters(), lr=0.1)
            with model.join(divide_by_initial_world_size=initial):
                for x in batches:
                    (model(x) ** 2).mean().backward()
                    optim.step()
                    optim.zero_grad()
            return {n: p.detach().numpy().copy() for n, p in model.module.named_parameters()}

        def expected(initial):
            plain = seeded(Mlp)
            optim = ts.optim.SGD(plain.parameters(), lr=0.1)
            for i in range(4):
                ranks = [r for r in range(2) if i < 2 + 2 * r]
                for r in ranks:
                    ((plain(normal(2, 10, seed=7 * r + i)) ** 2).mean() / (2 if initial else len(ranks))).backward()
                optim.step()
                optim.zero_grad()
            return {n: p.detach().numpy() for n, p in plain.named_parameters()}
        for initial in (True, False):
            want = expected(initial)
            for got in self.replicas(2, lambda mesh: work(mesh, initial)):
                for name, p in want.items():
                    same(p, got[name])

    def test_buffers_and_compression(self):
        class Shifted(ts.Module):
            def __init__(self):
                self.linear = nn.Linear(4, 4)
                self.register_buffer("shift", np.full(4, float(ts.rank()), np.float32))

            def forward(self, x):
                return self.linear(x) + self.shift

        def work(mesh):
            plain, model = seeded(Shifted), ts.DistributedDataParallel(seeded(Shifted), mesh, compress="bf16")
            x = normal(4, 4)
            same(model.module.shift, np.zeros(4))
            model.module.shift[:] = 5 + ts.rank()
            (model(x) ** 2).mean().backward()
            same(model.module.shift, np.full(4, 5))
            plain.shift = np.full(4, 5, np.float32)
            (plain(x) ** 2).mean().backward()
            same(plain.linear.weight.grad, model.module.linear.weight.grad, 1e-2)
        self.replicas(2, work)

    def test_with_tensor_parallel(self):
        def work():
            mesh = ts.init_device_mesh("dp=2,tp=2")
            plain = seeded(lambda: Transformer(tied=True))
            inner = parallelize(seeded(lambda: Transformer(tied=True)), mesh["tp"], sequence=True)
            model = ts.DistributedDataParallel(inner, mesh["dp"], bucket_cap_mb=0.01)
            optims = [ts.optim.AdamW(m.parameters(), lr=1e-2) for m in (plain, inner)]
            row = mesh.get_coordinate()[0] * 4
            for step in range(3):
                expected, loss = loss_of(plain), loss_of(model, TOKENS[row:row + 4], LABELS[row:row + 4])
                expected.backward()
                loss.backward()
                same(*[ts.clip_grad_norm_(m.parameters(), 0.5) for m in (plain, inner)])
                for o in optims:
                    o.step()
                    o.zero_grad()
            for (name, p), (_, q) in zip(plain.named_parameters(), inner.named_parameters()):
                same(p.detach(), whole(q), 1e-4)
        ts.run_ranks(4, work)

    def test_mistakes(self):
        mesh = ts.init_device_mesh("dp=1,tp=1")
        with self.assertRaisesRegex(ts.Error, "one axis"):
            ts.DistributedDataParallel(Mlp(), mesh)
        frozen = ts.Module()
        frozen.weight = np.ones(3, np.float32)
        with self.assertRaisesRegex(ts.Error, "no parameter that requires a gradient"):
            ts.DistributedDataParallel(frozen, mesh["dp"])


OPTIMS = [("SGD", dict(lr=0.1)), ("SGD", dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)), ("Adam", dict(lr=0.01, weight_decay=0.1)),
          ("AdamW", dict(lr=0.01, betas=(0.8, 0.95), amsgrad=True)), ("Adagrad", dict(lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2)),
          ("Muon", dict(lr=0.02, weight_decay=0.01))]


class Optimizers(unittest.TestCase):
    def steps(self, make, w, n=4):
        optim = make([w])
        for i in range(n):
            (w @ normal(6, 3, seed=i)).tanh().sum().backward()
            optim.step()
            optim.zero_grad()
        return w.detach(), optim

    def test_dtensors(self):
        """Every optimizer on a sharded parameter, as on a plain one."""
        def work():
            mesh = ts.init_device_mesh("tp=2")
            for name, how in OPTIMS:
                make = lambda p: getattr(ts.optim, name)(p, **how)
                plain, _ = self.steps(make, ts.tensor(normal(5, 6), requires_grad=True))
                for place in ("S(0)", "S(1)", "R"):
                    spread = ts.distribute_tensor(ts.tensor(normal(5, 6), requires_grad=True), mesh, place)
                    with ts.implicit_replication():
                        got, optim = self.steps(make, spread)
                    same(plain, whole(got), 2e-2 if name == "Muon" else 1e-5)  # Muon works in bf16
                    for state in list(optim.state[spread].values())[1:]:
                        self.assertEqual(str(state.placements), str(spread.placements))
        ts.run_ranks(2, work)

    def test_groups_and_states(self):
        a, b = (ts.tensor(normal(3, 3, seed=i), requires_grad=True) for i in range(2))
        optim = ts.optim.AdamW([{"params": [a]}, {"params": [b], "lr": 0.5, "weight_decay": 0.0}], lr=0.1)

        def step(o):
            (a * b).sum().backward()
            o.step()
            o.zero_grad()
        step(optim)
        saved = optim.state_dict()
        self.assertEqual(saved["param_groups"][1]["lr"], 0.5)
        self.assertEqual(saved["state"][0]["step"], 1)
        self.assertEqual(sorted(saved["state"][1]), ["exp_avg", "exp_avg_sq", "step"])
        x, y = a.detach().numpy().copy(), b.detach().numpy().copy()
        step(optim)
        expected = a.detach().numpy().copy(), b.detach().numpy().copy()
        a.detach().numpy()[:], b.detach().numpy()[:] = x, y
        again = ts.optim.AdamW([{"params": [a]}, {"params": [b]}], lr=0.3)
        again.load_state_dict(saved)
        step(again)
        for p, want in zip((a, b), expected):
            np.testing.assert_array_equal(p.detach().numpy(), want)
        before = a.detach().numpy().copy()
        for group in again.param_groups:
            group["lr"] = 0.0
        step(again)
        np.testing.assert_array_equal(a.detach().numpy(), before)

    def test_mistakes(self):
        w = ts.tensor(normal(3), requires_grad=True)
        with self.assertRaises(ValueError):
            ts.optim.SGD([])
        with self.assertRaisesRegex(ts.Error, "twice"):
            ts.optim.SGD([w, w])
        with self.assertRaisesRegex(ts.Error, "no leaf"):
            ts.optim.SGD([ts.tensor(normal(3))])
        with self.assertRaisesRegex(ts.Error, "no setting 'momentum'"):
            ts.optim.Adam([{"params": [w], "momentum": 1}])
        with self.assertRaisesRegex(ts.Error, "nesterov needs a momentum"):
            ts.optim.SGD([w], nesterov=True)
        with self.assertRaises(TypeError):
            ts.optim.SGD([w], learning_rate=1)

    def test_clipping(self):
        """One vector of plain gradients and of DTensors, partial ones and of two meshes."""
        def work():
            mesh = ts.init_device_mesh("dp=2,tp=2")
            params = []
            for i, (axis, place) in enumerate(((None, None), ("tp", "S(0)"), ("dp", "S(1)"), ("tp", "R"), (None, "S(0)S(1)"))):
                t = ts.tensor(normal(3, 5, seed=i), requires_grad=True)
                params.append(ts.distribute_tensor(t, mesh[axis] if axis else mesh, place) if place else t)
            for i, p in enumerate(params):
                (p * normal(3, 5, seed=10 + i) if i == 0 else p * ts.distribute_tensor(normal(3, 5, seed=10 + i), p.mesh, ["R"] * p.mesh.ndim)).sum().backward()
            part = ts.from_local(normal(3, 5, seed=13) / 2, mesh["tp"], [Partial()])
            params[3].grad = part
            for kind in (1.0, 2.0, 3.0, np.inf):
                want = np.linalg.norm(np.concatenate([normal(3, 5, seed=10 + i).reshape(-1) for i in range(5)]), kind)
                same(ts.clip_grad_norm_(params, 1e9, kind), want)
            norm = ts.clip_grad_norm_(params, 1.0)
            same(whole(params[3].grad), normal(3, 5, seed=13) / norm)
            same(ts.clip_grad_norm_(params, 1.0), 1.0)
            ts.clip_grad_value_(params, 0.01)
            for p in params:
                self.assertLessEqual(np.abs(whole(p.grad)).max(), 0.01 + 1e-7)
        ts.run_ranks(4, work)

    def test_against_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not there")
        for name, how in OPTIMS:
            w = torch.tensor(normal(5, 6), requires_grad=True)
            optim = getattr(torch.optim, name)([w], **how)
            for i in range(4):
                torch.tanh(w @ torch.from_numpy(normal(6, 3, seed=i))).sum().backward()
                optim.step()
                optim.zero_grad()
            mine, _ = self.steps(lambda p: getattr(ts.optim, name)(p, **how), ts.tensor(normal(5, 6), requires_grad=True))
            same(mine, w.detach().numpy(), 2e-2 if name == "Muon" else 1e-5)


def torch_loss(torch, p, heads=4, layers=2):
    """The loss of Transformer with these parameters, by torch on one rank."""
    fn = torch.nn.functional
    tokens, labels = torch.from_numpy(TOKENS), torch.from_numpy(LABELS)
    norm = lambda h, name: fn.layer_norm(h, h.shape[-1:], p[name + ".weight"], p[name + ".bias"])
    h = p["tok_embeddings.weight"][tokens] + p["pos_embeddings.weight"][:tokens.shape[1]]
    for i in range(layers):
        at = f"layers.{i}."
        x = norm(h, at + "attention_norm")
        q, k, v = ((x @ p[f"{at}attention.{w}.weight"].T).unflatten(-1, (heads, -1)).transpose(1, 2) for w in ("wq", "wk", "wv"))
        out = fn.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        h = h + out @ p[at + "attention.wo.weight"].T
        w1, w2 = at + "feed_forward.w1", at + "feed_forward.w2"
        inner = fn.gelu(fn.linear(norm(h, at + "ffn_norm"), p[w1 + ".weight"], p[w1 + ".bias"]))
        h = h + fn.linear(inner, p[w2 + ".weight"], p[w2 + ".bias"])
    return fn.cross_entropy((norm(h, "norm") @ p["output.weight"].T).view(-1, 8), labels.view(-1))


class AgainstTorch(unittest.TestCase):
    def test_transformer(self):
        """Losses of a training on 2 x 2 ranks are those of torch on one."""
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not there")
        first = seeded(lambda: Transformer(tied=False))
        params = {n: torch.from_numpy(p.detach().numpy().copy()).requires_grad_() for n, p in first.named_parameters()}
        optim, losses = torch.optim.AdamW(params.values(), lr=1e-2), []
        for _ in range(4):
            loss = torch_loss(torch, params)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params.values(), 0.5)
            optim.step()
            optim.zero_grad()
            losses.append(loss.item())

        def work():
            mesh = ts.init_device_mesh("dp=2,tp=2")
            inner = parallelize(seeded(lambda: Transformer(tied=False)), mesh["tp"], sequence=True)
            model, row, mine = ts.DistributedDataParallel(inner, mesh["dp"]), mesh.get_coordinate()[0] * 4, []
            adam = ts.optim.AdamW(inner.parameters(), lr=1e-2)
            for _ in range(4):
                loss = loss_of(model, TOKENS[row:row + 4], LABELS[row:row + 4])
                loss.backward()
                ts.clip_grad_norm_(inner.parameters(), 0.5)
                adam.step()
                adam.zero_grad()
                mine.append(float(loss))
            return mine
        ranks = ts.run_ranks(4, work)
        same((np.array(ranks[0]) + np.array(ranks[2])) / 2, losses, 1e-4)


if __name__ == "__main__":
    unittest.main()
