#!/usr/bin/env python3
"""Two CPU processes of one thread (stage 1, MPI) beside one process of two threads, the same global batch; interleaved
rounds, tokens a second.

    make train_gpt2_cpu && python3 dev/bench_processes.py [--write]
"""
import children
import argparse
import pathlib
import re
import time

from readme import this_cpu, write_of_machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASES = [("L6C384H6", 4, 128, 6), ("d12", 2, 256, 3)]  # model, sequences in all, T, steps
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-np", "2"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    args = parser.parse_args()
    runs = 2 * args.rounds * len(CASES)
    print(f"{runs} short trainings, one after the other: about {runs * 10 / 60:.0f} minutes", flush=True)
    lines = ["| model, tokens a step | 1 process, 2 threads | 2 processes, 1 thread each | ratio |", "|" + "---|" * 4]
    for model, B, T, steps in CASES:
        best = {1: 1e9, 2: 1e9}
        for _ in range(args.rounds):
            for processes in best:
                flags = ["./train_gpt2_cpu", "-e", model, "-b", B // processes, "-t", T, "-x", steps + 1, "-v", 0,
                         "-s", 0, "-z", 1, "--threads", 2 // processes]
                output, _ = children.run((MPIRUN if processes == 2 else []) + flags, cwd=ROOT)
                times = [float(ms) for ms in re.findall(r"\| ([\d.]+) ms \|", output)]
                best[processes] = min(best[processes], *times[1:])
        one, two = (B * T / best[p] * 1e3 for p in (1, 2))
        lines.append(f"| {model}, {B * T} | {one:,.0f} tokens/s | {two:,.0f} tokens/s | {two / one:.2f} |")
        print(lines[-1], flush=True)
    kind, machine = this_cpu()
    measured = (f"Measured {time.strftime('%Y-%m-%d')} on {machine}, minima of {args.rounds} interleaved rounds, "
                "by `dev/bench_processes.py`.")
    table = "\n".join([measured, "", *lines])
    print(table)
    if args.write:
        write_of_machine(ROOT / "README.md", "processes", kind, table)


main()
