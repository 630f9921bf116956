"""Checkpoints: state_dicts in and out, in all formats, on one rank and on several."""
import os
import tempfile
import unittest

import numpy as np

import tessera as ts

GOLDEN = os.path.join(os.path.dirname(__file__), "../../tests/golden/ckpt")


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.state = {"w": np.arange(24, dtype=np.float32).reshape(4, 6), "b": np.array([1, 2, 3]), "t": np.arange(6.0).reshape(2, 3).T}

    def path(self, name):
        return os.path.join(self._folder.name, name)

    def same(self, got, want):
        self.assertEqual(set(got), set(want))
        for k in want:
            self.assertEqual(got[k].dtype, want[k].dtype)
            np.testing.assert_array_equal(got[k], want[k])

    def test_formats(self):
        for name, format in (("a.safetensors", None), ("hf", "hf"), ("dcp", "dcp"), ("ours", None)):
            ts.checkpoint.save(self.state, self.path(name), format)
            names = {f"model.{k}": v for k, v in self.state.items()} if name == "ours" else self.state
            self.same(ts.checkpoint.load(self.path(name)), names)
            ts.checkpoint.Checkpoint(self.path(name)).verify()
            with self.assertRaises(ts.Error):
                ts.checkpoint.save(self.state, self.path(name), format)
            ts.checkpoint.save(self.state, self.path(name), format, force=True)

    def test_nested_and_into(self):
        ts.checkpoint.save({"model": {"w": self.state["w"]}}, self.path("n.safetensors"))
        into = {"model": {"w": np.zeros((4, 6), np.float64)}}
        ts.checkpoint.load(self.path("n.safetensors"), into=into)
        np.testing.assert_array_equal(into["model"]["w"], self.state["w"])
        with self.assertRaisesRegex(ts.Error, "no tensor but int"):
            ts.checkpoint.save({"a": 1}, self.path("x"))
        with self.assertRaisesRegex(ts.Error, "holds no tensor 'v'"):
            ts.checkpoint.load(self.path("n.safetensors"), names=["v"])

    def test_convert_and_reshard(self):
        full = ts.checkpoint.load(f"{GOLDEN}/tp_2x2/full.safetensors")
        done = ts.checkpoint.convert(f"{GOLDEN}/tp_2x2/dcp", self.path("hf"), to="hf")
        self.assertEqual((done["format"], done["tensors"]), ("hf", len(full)))
        self.same(ts.checkpoint.load(self.path("hf")), full)
        done = ts.checkpoint.reshard(self.path("hf"), self.path("sharded"), mesh={"dp": 2, "tp": 2})
        self.assertEqual([f["rank"] for f in done["files"]], [0, 1, 2, 3])
        ts.checkpoint.convert([self.path("sharded"), self.path("sharded")], self.path("back.safetensors"), select=["model.blocks.*"], rename={"blocks.*": "layers.*"})
        got = ts.checkpoint.load(self.path("back.safetensors"))
        np.testing.assert_array_equal(got["layers.0.attn.wq.weight"], full["blocks.0.attn.wq.weight"])
        with self.assertRaises(ts.Error) as caught:
            ts.checkpoint.convert(self.path("nowhere"), self.path("y"))
        self.assertEqual(caught.exception.code, 2)

    def test_ranks(self):
        whole, path = self.state["w"], self.path("together")

        def save():
            mesh = ts.init_device_mesh("dp=2,tp=2")
            ts.checkpoint.save({"model.w": ts.distribute_tensor(whole, mesh, "S(0)S(1)"), "model.r": ts.distribute_tensor(whole, mesh, "RR")}, path)

        def load():
            mesh = ts.init_device_mesh("tp=3")
            w = ts.distribute_tensor(np.zeros_like(whole), mesh, "S(1)")
            ts.checkpoint.load(path, into={"model.w": w})
            return w.full_tensor()

        ts.run_ranks(4, save)
        self.same(ts.checkpoint.load(path), {"model.w": whole, "model.r": whole})
        self.assertEqual(len([f for f in os.listdir(path) if f.endswith(".safetensors")]), 4)
        for got in ts.run_ranks(3, load):
            np.testing.assert_array_equal(np.asarray(got), whole)


if __name__ == "__main__":
    unittest.main()
