#!/usr/bin/env python3
"""Trainings that are killed again and again end in the bits of one that never was.

    tests/kill_resume.py TESSERA FOLDER [KILLS [SEED]]       # FOLDER/loss.pt2 and data.safetensors (golden/kill_resume)

A run with dropout, shuffling over epochs, accumulation, evaluations and a save every second step, written while it goes
on, is ended by SIGKILL (sometimes SIGTERM) at random moments and resumed until it is done, KILLS times altogether; then the
weights, the last save and the log must be those of the run that nobody disturbed.  Then the same on two ranks, which write
their shards.  The environment's KILL_FOLDER says where the runs are
saved: on a small file system (a tmpfs of 6 MB) some of the resumed runs meet a full disk first.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def read_log(path):
    """(step, loss, norm, lr, evaluation) of every line: what does not depend on the clock."""
    rows = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rows.append(tuple(row.get(k) for k in ("step", "loss", "grad_norm", "lr", "eval_loss")))
    return rows


def tensors_of(save):
    return {file.name: file.read_bytes() for file in sorted(save.glob("*.safetensors"))}


class Run:
    """One training in a folder of its own; started, or resumed from what is there."""

    def __init__(self, tessera, words, folder):
        self.idle = False
        self.tessera, self.words, self.folder = tessera, words, folder
        folder.mkdir(parents=True, exist_ok=True)

    def command(self):
        begun = (self.folder / "run").exists() and any(p.name.startswith("step-") and "part" not in p.name for p in (self.folder / "run").iterdir())
        words = ["--resume", "run"] if begun else [*self.words, "--save", "run", "--save-every", "2", "--keep", "2", "--log", "log.jsonl",
                                                   "-o", "final.safetensors", "-f"]
        return [self.tessera, "train", *words, "-q", "-t", "1" if "--mesh" in self.words else "2"]

    def start(self):
        return subprocess.Popen(self.command(), cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish(self):
        process = self.start()
        error = process.communicate()[1]
        assert process.returncode == 0, f"{' '.join(self.command())}: exit code {process.returncode}: {error.strip()}"

    def results(self):
        last = max(p for p in (self.folder / "run").iterdir() if p.name.startswith("step-"))
        leftover = [p.name for p in (self.folder / "run").iterdir() if "part" in p.name]
        assert not leftover or self.idle, f"{leftover} was left"  # a run that has nothing to save does not open the folder
        return (self.folder / "final.safetensors").read_bytes(), last.name, tensors_of(last), read_log(self.folder / "log.jsonl")


def full_disk(run):
    """What a resumed run says when there is no room for a save; False: the file system cannot be filled."""
    filler = run.folder / "filler"
    free = os.statvfs(run.folder)
    room = free.f_bavail * free.f_frsize
    if room > 64 << 20:
        return False
    with open(filler, "wb") as f:
        f.write(b"\0" * max(0, room - 4096))
    process = run.start()
    error = process.communicate()[1]
    filler.unlink()
    assert process.returncode not in (0, -signal.SIGSEGV, -signal.SIGABRT), f"with a full disk: exit code {process.returncode}"
    assert "No space left" in error, f"with a full disk: {error}"
    return True


def disturb(run, kills, seconds, rng):
    """Until the run is done; returns how often it was killed, how often in the middle of a save, how often the disk was full."""
    killed = saving = full = 0
    while True:
        process = run.start()
        hurry = killed < kills
        if hurry and rng.random() < 0.5:  # at any moment
            time.sleep(rng.random() * seconds)
        elif hurry:  # while a save is written
            end = time.time() + seconds
            while time.time() < end and process.poll() is None and not list((run.folder / "run").glob("*part*")):
                time.sleep(0.0005)
            time.sleep(rng.random() * 0.004)
        if not hurry:
            error = process.communicate()[1]
            run.idle = "all that was asked for" in error or "all of its steps" in error
            assert process.returncode == 0 or "all that was asked for" in error, f"exit code {process.returncode}: {error.strip()}"
            return killed, saving, full
        if process.poll() is None:
            how = signal.SIGTERM if rng.random() < 0.15 else signal.SIGKILL
            process.send_signal(how)
            killed += how == signal.SIGKILL
        error = process.communicate()[1]
        nothing_left = "all that was asked for" in error  # it had been killed when all was done
        run.idle = nothing_left or "all of its steps" in error
        assert nothing_left or process.returncode in (0, -signal.SIGKILL, -signal.SIGTERM), \
            f"exit code {process.returncode}: {error.strip()}"
        saving += bool(list((run.folder / "run").glob("*part*"))) if (run.folder / "run").exists() else 0
        if nothing_left or process.returncode == 0 and "stopped after" not in error:  # done before it was killed: begin again
            compare(run)
            shutil.rmtree(run.folder)
            run.folder.mkdir()
        elif rng.random() < 0.2:
            full += full_disk(run)


def compare(run):
    got, want = run.results(), run.wanted
    assert got[1] == want[1], f"the last save is {got[1]}, should be {want[1]}"
    assert want[2] and set(got[2]) == set(want[2]), f"the last save has {sorted(got[2])}"
    for name in want[2]:
        assert got[2][name] == want[2][name], f"{name} of the last save differs"
    assert got[0] == want[0], "the weights differ"
    assert got[3] == want[3], "the log differs"


def main():
    tessera, folder = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]).resolve()
    kills = int(sys.argv[3]) if len(sys.argv) > 3 else 6
    rng = random.Random(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
    data = folder / "data.safetensors"
    words = [str(folder / "loss.pt2"), "--data", str(data), "--eval", str(data), "--eval-every", "5", "--optim",
             "adamw,lr=1e-3", "--schedule", "cosine,warmup=3", "--clip", "1.0", "--accumulate", "2", "--steps", "24", "--seed", "3"]
    with tempfile.TemporaryDirectory(dir=os.environ.get("KILL_FOLDER")) as work:
        for mesh in [], ["--mesh", "dp=2"], ["--mesh", "dp=2", "--fsdp"]:
            folder = Path(work) / ("mesh" if mesh else "one")
            alone = Run(tessera, words + mesh, folder / "alone")
            begin = time.time()
            alone.finish()
            run = Run(tessera, words + mesh, folder / "killed")
            run.wanted = alone.results()
            killed, saving, full = disturb(run, kills, time.time() - begin, rng)
            compare(run)
            print(f"{' '.join(mesh) or 'one rank'}: {killed} kills ({saving} in the middle of a save), {full} full disks: the same bits")
            shutil.rmtree(folder)
    return 0


sys.exit(main())
