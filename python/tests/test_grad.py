"""Gradients: leaves, backward, grad, no_grad, hooks, writes in place, DTensors."""
import copy
import gc
import random
import unittest
import weakref

import numpy as np

import tessera as ts

try:
    import torch
except ImportError:
    torch = None


def leaf(*values):
    return ts.tensor(np.array(values, np.float32), requires_grad=True)


def close(a, b):
    np.testing.assert_allclose(a.detach().full_tensor() if isinstance(a, ts.Tensor) else a, b, rtol=1e-5, atol=1e-6)


class Plain(unittest.TestCase):
    def test_backward(self):
        x = leaf(1, 2, 3)
        self.assertTrue(x.requires_grad and x.is_leaf and x.grad is None)
        y = (x * x).sum()
        self.assertTrue(isinstance(y, ts.Tensor) and y.requires_grad and not y.is_leaf)
        y.backward()
        close(x.grad, [2, 4, 6])
        (x * np.array([1, 0, 1], np.float32)).sum().backward()  # arrays mix
        close(x.grad, [3, 4, 7])
        x.grad = None
        self.assertIsNone(x.grad)
        (x * 2).backward(np.array([1, 10, 100], np.float32))
        close(x.grad, [2, 20, 200])
        self.assertFalse(x.grad.requires_grad)
        with self.assertRaisesRegex(ts.Error, "cotangent"):
            (x * 2).backward()
        with self.assertRaisesRegex(ts.Error, "has been here before"):
            y.backward()
        with self.assertRaisesRegex(ts.Error, "detach"):
            x.numpy()
        with self.assertRaisesRegex(ts.Error, "floating-point"):
            ts.tensor([1, 2], requires_grad=True)

    def test_grad(self):
        x, w = leaf(1, 2), leaf(3, 4)
        h = x * w
        loss = (h * h).sum()
        dx, dh = ts.grad(loss, [x, h], retain_graph=True)
        close(dx, [18, 64])
        close(dh, [6, 16])
        self.assertIsNone(x.grad)
        with self.assertRaisesRegex(ts.Error, "do not depend"):
            ts.grad(loss, [leaf(1)], retain_graph=True)
        self.assertEqual(ts.grad(loss, leaf(1), retain_graph=True, allow_unused=True), (None,))
        g, = ts.grad((x ** 3).sum(), x, create_graph=True)
        gg, = ts.grad(g.sum(), x, create_graph=True)
        ggg, = ts.grad(gg.sum(), x)
        close(g, [3, 12]), close(gg, [6, 12]), close(ggg, [6, 6])

    def test_modes(self):
        x = leaf(1, 2)
        with ts.no_grad():
            self.assertFalse((x * 2).requires_grad or ts.is_grad_enabled())
            with ts.enable_grad():
                self.assertTrue((x * 2).requires_grad)
            self.assertFalse((x * 2).requires_grad)
            x -= 0.5  # a step
        self.assertTrue(x.is_leaf and x.requires_grad and (x * 2).requires_grad)
        close(x, [0.5, 1.5])

        @ts.no_grad()
        def f():
            return x * 2
        self.assertFalse(f().requires_grad)
        with ts.set_grad_enabled(False):
            self.assertFalse((x * 2).requires_grad)
        self.assertTrue(ts.is_grad_enabled())
        with self.assertRaisesRegex(ts.Error, "a leaf that requires a gradient"):
            x.mul_(2)
        self.assertFalse(x.detach().requires_grad)
        again = copy.deepcopy(x)
        self.assertTrue(again.requires_grad and again.is_leaf)

    def test_hooks(self):
        x, seen = leaf(1, 2), []
        h = x * 3
        handle = h.register_hook(lambda g: seen.append(g.tolist()))
        h.register_hook(lambda g: g * 2)
        h.retain_grad()
        (h * h).sum().backward(retain_graph=True)
        self.assertEqual(seen, [[6, 12]])
        close(h.grad, [12, 24])
        close(x.grad, [36, 72])
        handle.remove()
        handle.remove()
        x.grad = None
        h.sum().backward()
        self.assertEqual(len(seen), 1)

        def wrong(g):
            raise KeyError("from a hook")
        y = x * 1
        y.register_hook(wrong)
        with self.assertRaisesRegex(KeyError, "from a hook"):
            y.sum().backward()
        (x * 1).sum().backward()  # and nothing is left of it
        y = x * 1
        y.register_hook(lambda g: ts.tensor([1.0]))
        with self.assertRaisesRegex(ts.Error, "a hook replaced"):
            y.sum().backward()

    def test_hooks_are_freed(self):
        class Counts:
            def __call__(self, g):
                pass
        fn = Counts()
        dead = weakref.ref(fn)
        y = leaf(1) * 2
        y.register_hook(fn)
        del fn
        gc.collect()
        self.assertIsNotNone(dead())
        del y
        gc.collect()
        self.assertIsNone(dead())

    def test_in_place(self):
        w = leaf(1, 2, 3)
        x = w * 2
        first, tail = x[0], x[1:]
        first.mul_(10)
        x.sum().backward(retain_graph=True)
        close(w.grad, [20, 2, 2])
        w.grad = None
        tail.sum().backward(retain_graph=True)
        close(w.grad, [0, 2, 2])
        out = ts.tensor(np.zeros(3, np.float32))
        out[1] = w[0] * w[1]
        self.assertTrue(out.requires_grad)
        w.grad = None
        (out * out).sum().backward()
        close(w.grad, [2 * 1 * 4, 2 * 2 * 1, 0])
        h = w * 1
        y = h.exp()
        h.exp_()
        z = y * y
        y.add_(1)
        with self.assertRaisesRegex(ts.Error, r"(?s)aten.mul.Tensor.*written to in place"):
            z.sum().backward()


@unittest.skipIf(torch is None, "torch is not there")
class AsTorch(unittest.TestCase):
    """Random programs of views, writes in place and ops: the same gradients as PyTorch's, or both refuse."""

    @staticmethod
    def steps(rng):
        def view(x):
            kind = rng.randrange(5)
            if x.ndim == 0:
                return lambda t: t.reshape(1)
            if kind == 0:
                i = rng.randrange(x.shape[0])
                return lambda t: t[i]
            if kind == 1 and x.shape[0] > 1:
                i = rng.randrange(x.shape[0] - 1)
                return lambda t: t[i:i + 2]
            if kind == 2 and x.ndim > 1:
                return lambda t: t.transpose(0, 1)
            if kind == 3:
                return lambda t: t.unsqueeze(0)
            return lambda t: t.detach() if rng_detach else t.expand(*t.shape)
        rng_detach = rng.random() < 0.2
        return view

    def run_one(self, seed):
        rng = random.Random(seed)
        data = np.random.default_rng(seed).uniform(0.5, 1.5, (3, 4)).astype(np.float32)
        a, b = torch.tensor(data, requires_grad=True), ts.tensor(data, requires_grad=True)
        pool = [(a * 2, b * 2), (a.exp(), b.exp()), (torch.zeros(3, 4), ts.tensor(np.zeros((3, 4), np.float32)))]
        choose = self.steps(rng)
        for _ in range(8):
            x, y = rng.choice(pool)
            kind = rng.randrange(4)
            if kind <= 1:
                f = choose(x)
                pool.append((f(x), f(y)))
            elif kind == 2:
                op = rng.randrange(3)
                if op == 0:
                    x.mul_(1.5), y.mul_(1.5)
                elif op == 1:
                    x.sin_(), y.sin_()
                else:
                    u, v = rng.choice(pool)
                    if u.shape != x.shape:
                        continue
                    u, v = u * 3, v * 3
                    x.copy_(u), y.copy_(v)
            else:
                pool.append((x * x, y * y))
        total, ours = 0, None
        for x, y in pool:
            total = total + x.sum()
            ours = y.sum() if ours is None else ours + y.sum()
        self.assertEqual(total.requires_grad, ours.requires_grad)
        np.testing.assert_allclose(ours.item(), total.item(), rtol=1e-4)
        try:
            total.backward()
        except RuntimeError:
            return "refused"
        ours.backward()
        np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy(), rtol=2e-4, atol=1e-5, err_msg=f"seed {seed}")
        return "same"

    def test_random(self):
        found = []
        for seed in range(300):
            try:
                found.append(self.run_one(seed))
            except (RuntimeError, ts.Error) as e:  # torch refuses writes to views of several kinds
                if isinstance(e, ts.Error):
                    raise AssertionError(f"seed {seed}: {e}") from e
                found.append("torch refuses")
        self.assertGreater(found.count("same"), 150, found)


class Spread(unittest.TestCase):
    def test_leaves(self):
        def work():
            mesh = ts.init_device_mesh(2)
            whole = np.arange(12, dtype=np.float32).reshape(4, 3)
            w = ts.distribute_tensor(ts.tensor(whole, requires_grad=True), mesh, "S(0)")
            self.assertTrue(w.requires_grad and w.is_leaf)
            x = ts.distribute_tensor(np.ones((3, 5), np.float32), mesh, "R")
            ((w @ x) * (w @ x)).sum().backward()
            self.assertIsInstance(w.grad, ts.DTensor)
            close(w.grad, 10 * whole.sum(1, keepdims=True) * np.ones((1, 3), np.float32))
            self.assertEqual(w.grad.placements, w.placements)
            first = w.grad
            (w * w).sum().backward()
            close(w.grad, 10 * whole.sum(1, keepdims=True) + 2 * whole)
            close(first, 10 * whole.sum(1, keepdims=True) + 2 * whole)
            with ts.no_grad():
                w -= 0.1 * w.grad
            self.assertTrue(w.is_leaf and w.requires_grad)
            g, = ts.grad((w ** 3).sum(), w, create_graph=True)
            gg, = ts.grad(g.sum(), w)
            close(gg, 6 * w.detach().full_tensor())
            r = ts.rand(4, device_mesh=mesh, placements="S(0)", requires_grad=True)
            self.assertTrue(r.requires_grad)

        ts.run_ranks(2, work)

    def test_moves(self):
        def work():
            mesh, me = ts.init_device_mesh(2), ts.rank()
            local = ts.tensor(np.full((2, 2), me + 1, np.float32), requires_grad=True)
            d = ts.from_local(local, mesh, "S(0)")
            self.assertTrue(d.requires_grad)
            full = (d * d).redistribute(placements="R").full_tensor()
            self.assertIsInstance(full, ts.Tensor)
            full.sum().backward()
            close(local.grad, np.full((2, 2), 2 * (me + 1)))
            local.grad = None
            full = d.full_tensor(grad_placements="P(sum)")  # each rank's loss counts
            full.sum().backward()
            close(local.grad, np.full((2, 2), 2))
            local.grad = None
            p = ts.from_local(local, mesh, "P(sum)")
            p.redistribute(placements="R").sum().backward()
            close(local.grad, np.ones((2, 2)))
            local.grad = None
            half = ts.from_local(local, mesh, "S(0)").redistribute(placements="R", forward_dtype="bf16", backward_dtype="bf16")
            self.assertEqual(half.dtype, "bf16")
            half.sum().backward()
            self.assertEqual(local.grad.dtype, "f32")
            close(local.grad, np.ones((2, 2)))
            x = ts.tensor(np.ones((4, 2), np.float32), requires_grad=True)
            (ts.distribute_tensor(x * 3, mesh, "S(0)") * 2).sum().backward()  # not a leaf: the gradient flows
            close(x.grad, np.full((4, 2), 6))
            y = ts.distribute_tensor(np.ones((4, 2), np.float32), mesh, "S(0)").requires_grad_()
            part = y.to_local()
            self.assertIsInstance(part, ts.Tensor)
            (part * (me + 1)).sum().backward()
            close(y.grad.to_local(), np.full((2, 2), me + 1))
            q = ts.from_local(local, mesh, "S(0)", grad_placements="R")
            with self.assertRaisesRegex(ts.Error, "grad_placements"):
                q.sum().backward()
            self.assertEqual(y.detach().redistribute(placements="R").requires_grad, False)

        ts.run_ranks(2, work)

    def test_one_rank_fails(self):
        def work():
            mesh = ts.init_device_mesh(2)
            w = ts.ones(4, 4, device_mesh=mesh, placements="S(0)", requires_grad=True)
            y = w.redistribute(placements="R") * 2

            def wrong(g):
                if ts.rank() == 1:
                    raise ValueError("rank 1 gives up")
            y.register_hook(wrong)
            (y @ y).redistribute(placements="S(1)").sum().backward()

        with self.assertRaisesRegex(ts.RankError, "rank 1 gives up"):
            ts.run_ranks(2, work)


if __name__ == "__main__":
    unittest.main()
