"""Ctrl-C, in a process of its own: what is wrong there would end this one."""
import subprocess
import sys
import unittest
from pathlib import Path

SCRIPT = """
import os, random, signal, sys, threading, time
import tessera as ts

def talks(rank):
    x = ts.ones(64, 64, mesh=ts.init_device_mesh(ts.world_size()), placements="P(sum)")
    while True:
        x.full_tensor()

def waits(rank):  # for a rank that does not come
    mesh = ts.init_device_mesh(ts.world_size())
    if rank:
        ts.ones(4, mesh=mesh, placements="P(sum)").full_tensor()
    while True:
        time.sleep(0.001)

def starts_ranks(rank):
    return ts.run_ranks(2, talks, threads=1)

def goes_on(rank):
    while True:
        try:
            talks(rank)
        except KeyboardInterrupt:
            pass

random.seed(int(sys.argv[1]))
begin, over = threading.Event(), False

def press():
    while True:
        begin.wait()
        begin.clear()
        if over:
            return
        for _ in range(random.choice((1, 1, 2, 5))):
            time.sleep(random.random() * 0.02)
            os.kill(os.getpid(), signal.SIGINT)

thread = threading.Thread(target=press)
thread.start()
interrupted = 0
for i in range(20):
    try:
        begin.set()
        ts.run_ranks(3, (talks, waits, starts_ranks, goes_on)[i % 4], threads=1)
    except KeyboardInterrupt:
        interrupted += 1
        assert not [t for t in threading.enumerate() if t.name.startswith("tessera rank")]
    end = time.monotonic() + 0.15
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            pass
over = True
begin.set()
thread.join()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(interrupted, ts.run_ranks(2, ts.rank))
"""


class Interrupts(unittest.TestCase):
    def test_ctrl_c_at_any_moment(self):
        folder = Path(__file__).resolve().parents[1]
        for seed in "12":
            done = subprocess.run([sys.executable, "-c", SCRIPT, seed], cwd=folder, capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (0, "20 [0, 1]\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
