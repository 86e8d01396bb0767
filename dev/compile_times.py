#!/usr/bin/env python3
"""How long make compiles: all from nothing, and again after a change of one file.

    dev/compile_times.py [TARGET...]    prints the table, of these targets or of all
    dev/compile_times.py --write        all of it into dev/MEASURED.md

Times are user and system seconds of make and all that it starts, one program after the other, without what make takes
to find that nothing is to do; memory is that of the largest process. What is built goes to build/compile_times, and no
file is touched: make -W takes one as changed. The tests are compiled almost as a whole three times.
"""
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

from readme import this_cpu, write_between

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {"train_gpt2_cpu": ["train_gpt2_cpu.cpp", "llmc/cpu/gelu.h"],  # its own file, and a kernel of it
           "train_gpt2sim": ["train_gpt2.cu", "llmc/cuda/gelu.cuh"],
           "test-programs": ["train_gpt2_cpu.cpp", "llmc/cpu/gelu.h"]}
SHARED = ["llmc/base/check.h", "llmc/run/evaluate.h"]
BUILD = "build/compile_times"


def made(target, changed=None):
    """Seconds and bytes of memory that make takes for a target, with one file changed since the last time."""
    command = ["make", "-s", f"B={BUILD}", *(["-W", changed] if changed else []), target]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def row(target):
    """What it costs to compile a target from nothing, and after a change of each file."""
    shutil.rmtree(ROOT / BUILD, ignore_errors=True)
    changes = [TARGETS[target][0], *SHARED[:1], TARGETS[target][1], *SHARED[1:]]
    measured = [made(target)]
    idle, _ = made(target)
    measured += [made(target, file) for file in changes]
    cells = [f"{seconds - idle:.1f} s, {memory / 1e9:.1f} GB" if seconds > 1.5 * idle else "nothing"
             for seconds, memory in measured]
    named = [cells[0], *(f"`{Path(file).name}`: {cell}" for file, cell in zip(changes, cells[1:]))]
    return f"| {target} | {' | '.join(named)} |"


def main():
    targets = [name for name in sys.argv[1:] if name != "--write"] or list(TARGETS)
    write = "--write" in sys.argv[1:]
    if set(targets) - set(TARGETS) or write and targets != list(TARGETS):
        sys.exit(__doc__)
    rows = [row(target) for target in targets]
    compiler = subprocess.run([os.environ.get("CXX", "g++"), "--version"], capture_output=True, text=True, check=True)
    where = f"{this_cpu()[1]} with {compiler.stdout.splitlines()[0]}"
    text = "\n".join([f"Measured {time.strftime('%Y-%m-%d')} on {where} by `dev/compile_times.py --write`.", "",
                      "| target | from nothing | its file | a header of base | a kernel | a service |",
                      "|---|---|---|---|---|---|", *rows])
    write_between(ROOT / "dev/MEASURED.md", "compile times", text) if write else print(text)


if __name__ == "__main__":
    main()
