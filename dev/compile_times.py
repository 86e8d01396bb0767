#!/usr/bin/env python3
"""How long make compiles: all from nothing, and again after a change of one file.

    dev/compile_times.py [TARGET...]    prints the table, of these targets or of all
    dev/compile_times.py --write        all of it into dev/MEASURED.md

Times are user and system seconds of make and all that it starts, one program after the other (-j1), the least of two
rounds, without what make takes to find that nothing is to do; memory is that of the largest process. How long one waits
for all of it is measured once, as make does it, on all cores. What is built goes to
build/compile_times, and no file is touched: make -W takes one as changed. What the programs of the tests take, `make
test` says itself.
"""
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

from readme import MEASURED, this_cpu, write_of_machine

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {"train_gpt2_cpu": ["train_gpt2_cpu.cpp", "llmc/cpu/gelu.h"],  # its own file, and a kernel of it
           "train_gpt2sim": ["train_gpt2.cu", "llmc/cuda/gelu.cuh"]}
SHARED = ["llmc/base/check.h", "llmc/run/evaluate.h"]
BUILD = "build/compile_times"


def made(target, changed=None, jobs=("-j1",)):
    """Seconds and bytes of memory that make takes for a target, with one file changed since the last time."""
    command = ["make", "-s", *jobs, f"B={BUILD}", *(["-W", changed] if changed else []), target]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(target):
    """Seconds and memory from nothing, and after a change of each file, by the file's name: the least of two rounds."""
    changes = [TARGETS[target][0], *SHARED[:1], TARGETS[target][1], *SHARED[1:]]
    rounds = []
    for _ in range(2):
        shutil.rmtree(ROOT / BUILD, ignore_errors=True)
        from_nothing = made(target)
        idle, _ = made(target)
        rounds.append([from_nothing, *(made(target, file) for file in changes)])
    shutil.rmtree(ROOT / BUILD)
    begin = time.time()
    made(target, jobs=())
    waited = time.time() - begin
    measured = [min(pair) for pair in zip(*rounds)]
    return waited, {name: (max(0, seconds - idle) if seconds > 1.5 * idle else 0, memory)
                    for name, (seconds, memory) in zip(["", *(Path(file).name for file in changes)], measured)}


def row(target, waited, measured):
    cells = [(f"`{name}`: " if name else "") + (f"{seconds:.1f} s, {memory / 1e9:.1f} GB" if seconds else "nothing")
             for name, (seconds, memory) in measured.items()]
    return f"| {target} | {waited:.1f} s | {' | '.join(cells)} |"


def main():
    targets = [name for name in sys.argv[1:] if name != "--write"] or list(TARGETS)
    write = "--write" in sys.argv[1:]
    if set(targets) - set(TARGETS) or write and targets != list(TARGETS):
        sys.exit(__doc__)
    measured = {target: measure(target) for target in targets}
    compiler = subprocess.run([os.environ.get("CXX", "g++"), "--version"], capture_output=True, text=True, check=True)
    kind, cpu = this_cpu()
    where = f"{cpu} with {compiler.stdout.splitlines()[0]}"
    text = "\n".join([f"Measured {time.strftime('%Y-%m-%d')} on {where} by `dev/compile_times.py --write`.", "",
                      f"| target | one waits, on {os.cpu_count()} cores | from nothing | its file | a header of base "
                      "| a kernel | a service |", "|---|---|---|---|---|---|---|",
                      *(row(target, *of) for target, of in measured.items())])
    if not write:
        return print(text)
    write_of_machine(ROOT / MEASURED, "compile times", kind, text)


if __name__ == "__main__":
    main()
