#!/usr/bin/env python3
"""Two CPU processes of one thread (stage 1, MPI) beside one process of two threads, the same global batch; interleaved rounds, tokens a second.

    make train_gpt2_cpu && python3 dev/bench_processes.py [--write]
"""
import argparse
import pathlib
import re
import subprocess
import time

from readme import this_cpu, write_of_machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--write", action="store_true", help="put the table into README.md")
args = parser.parse_args()
CASES = [("L6C384H6", 4, 128, 6), ("d12", 2, 256, 3)]  # model, sequences in all, T, steps
mpirun = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-np", "2"]
lines = ["| model, tokens a step | 1 process, 2 threads | 2 processes, 1 thread each | ratio |", "|---|---|---|---|"]
for model, B, T, steps in CASES:
    best = {1: 1e9, 2: 1e9}
    for _ in range(args.rounds):
        for processes in best:
            flags = ["./train_gpt2_cpu", "-e", model, "-b", B // processes, "-t", T, "-x", steps + 1, "-v", 0, "-s", 0, "-z", 1, "--threads", 2 // processes]
            output = subprocess.run((mpirun if processes == 2 else []) + [str(f) for f in flags], cwd=ROOT, capture_output=True, text=True, check=True).stdout
            best[processes] = min(best[processes], *(float(m) for m in re.findall(r"\| ([\d.]+) ms \|", output)[1:]))
    one, two = (B * T / best[p] * 1e3 for p in (1, 2))
    lines.append(f"| {model}, {B * T} | {one:,.0f} tokens/s | {two:,.0f} tokens/s | {two / one:.2f} |")
kind, machine = this_cpu()
measured = f"Measured {time.strftime('%Y-%m-%d')} on {machine}, minima of {args.rounds} interleaved rounds, by `dev/bench_processes.py`."
table = "\n".join([measured, "", *lines])
print(table)
if args.write:
    write_of_machine(ROOT / "README.md", "processes", kind, table)
