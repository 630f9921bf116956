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

missed = False

def interrupt(number, frame):
    global missed
    while frame is not None:  # between two runs nobody is there to catch it
        if frame.f_code is ts.run_ranks.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back
    missed = True

random.seed(int(sys.argv[1]))
signal.signal(signal.SIGINT, interrupt)
begin, ended, over = threading.Event(), threading.Event(), False

def press():
    while True:
        begin.wait()
        begin.clear()
        if over:
            return
        for _ in range(random.choice((1, 1, 2, 5))):
            time.sleep(random.random() * 0.02)
            os.kill(os.getpid(), signal.SIGINT)
        while not ended.wait(0.1):
            if missed:  # all may have come before the run had begun
                os.kill(os.getpid(), signal.SIGINT)

thread = threading.Thread(target=press)
thread.start()
interrupted = 0
for i in range(20):
    ended.clear()
    missed = False
    begin.set()
    try:
        ts.run_ranks(3, (talks, waits, starts_ranks, goes_on)[i % 4], threads=1)
    except KeyboardInterrupt:
        interrupted += 1
        assert not [t for t in threading.enumerate() if t.name.startswith("tessera rank")]
    ended.set()
    time.sleep(0.05)
over = True
begin.set()
thread.join()
assert signal.getsignal(signal.SIGINT) is interrupt
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
