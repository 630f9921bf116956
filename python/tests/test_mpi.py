"""Ranks as processes of an MPI launch."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tessera as ts

SCRIPT = """
import sys
import numpy as np
import tessera as ts

def work(rank, what):
    mesh = ts.init_device_mesh("dp=2,tp=2")
    x = ts.distribute_tensor(np.arange(42.0).reshape(7, 6), mesh, "S(0)S(1)")
    if what == "raises" and rank == 2:
        raise ValueError("no data")
    return rank, (x + rank * 0).sum().item()

if sys.argv[1] == "init":
    ts.init(timeout=60)
    sys.stdout.write(f"value {ts.rank()} {ts.world_size()} {work(ts.rank(), '')[1]}" + chr(10))  # in one piece: the ranks' lines mix
elif sys.argv[1] == "uncaught":
    ts.init(flight=sys.argv[2])
    if ts.rank() == 1:
        raise KeyError("lost")
    ts.barrier()
elif sys.argv[1] == "threads":
    sys.stdout.write(f"value {ts.run_ranks(4, work, '', comm='threads')}" + chr(10))
else:
    sys.stdout.write(f"value {ts.run_ranks(4, work, sys.argv[1], timeout=60)}" + chr(10))
"""
MPIRUN = shutil.which("mpirun")
PLUGIN = Path(ts.library_path).parent / "libtessera_mpi.so"


def launch(*words, ranks=4):
    version = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout
    options = ["--oversubscribe"] if "Open" in version else []
    env = dict(os.environ, TESSERA_LIBRARY=ts.library_path, PYTHONPATH=str(Path(ts.__file__).resolve().parents[1]),
               OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as temp:
        script = Path(temp) / "script.py"
        script.write_text(SCRIPT)
        done = subprocess.run([MPIRUN, *options, "-n", str(ranks), sys.executable, str(script), *words], env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@unittest.skipUnless(MPIRUN and PLUGIN.exists() and not ts.mpi_launched(), "no MPI here")
class Launch(unittest.TestCase):
    def test_run_ranks(self):
        code, out = launch("ok")
        self.assertEqual((code, out.count("value [(0, 861.0), (1, 861.0), (2, 861.0), (3, 861.0)]")), (0, 4), out)

    def test_init(self):
        code, out = launch("init")
        self.assertEqual(code, 0, out)
        for rank in range(4):
            self.assertIn(f"value {rank} 4 861.0", out)

    def test_thread_ranks_of_a_process(self):
        code, out = launch("threads", ranks=2)
        self.assertEqual((code, out.count("value [(0, 861.0), (1, 861.0), (2, 861.0), (3, 861.0)]")), (0, 2), out)

    def test_failures_reach_all(self):
        code, out = launch("raises")
        self.assertTrue(code and out.count("RankError: rank 2 of 4: ValueError: no data") >= 3, out)
        code, out = launch("ok", ranks=2)
        self.assertTrue(code and "2 processes were launched, 4 ranks are wanted" in out, out)
        with tempfile.TemporaryDirectory() as temp:
            code, out = launch("uncaught", str(Path(temp) / "flight"))
            self.assertTrue(code and "Error: rank 1 of 4: KeyError: 'lost'" in out, out)
            told = json.loads((Path(temp) / "flight.0").read_text())
            self.assertEqual(told["error"], "rank 1 of 4: KeyError: 'lost'")


class NoLaunch(unittest.TestCase):
    def test_by_itself(self):
        with self.assertRaisesRegex(ts.Error, "not started by an MPI launcher"):
            ts.run_ranks(2, ts.rank, comm="mpi")
        with self.assertRaisesRegex(ts.Error, "'threads' or 'mpi'"):
            ts.run_ranks(2, ts.rank, comm="smoke")
        if not ts.mpi_launched():
            ts.init()
            self.assertEqual((ts.rank(), ts.world_size()), (0, 1))


if __name__ == "__main__":
    unittest.main()
