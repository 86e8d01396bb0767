#!/usr/bin/env python3
"""Compares two CPU processes of one thread each (ZeRO stage 1), by MPI and in shared memory, with one process of two
threads on the same global batch, in tokens per second; and two separate runs at once, each on all cores, with one run
alone. Rounds are interleaved.

    make train_gpt2_cpu data && python3 dev/bench_processes.py [--write]
"""
import children
import argparse
import pathlib
import re
import statistics
import time

from readme import MEASURED, this_cpu, write_of_machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASES = [("L6C384H6", 4, 128, 6), ("d12", 2, 256, 3)]  # model, sequences in all, T, steps
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-np", "2"]
SHARED_CASES = [("L4C64H4T64", 2, 64, 30), ("L4C192H6T128", 8, 128, 10), ("d12", 4, 64, 4)]  # loops short and long
HEADER = "|" + "---|" * 4


def step_times(command):
    """Milliseconds of all steps but the first."""
    return [float(ms) for ms in re.findall(r"step +(?!1/)\d+/.*\| ([\d.]+) ms \|", children.run(command, cwd=ROOT)[0])]


def trainer(model, B, T, steps):
    return ["./train_gpt2_cpu", "-e", model, "-b", B, "-t", T, "-x", steps + 1, "-v", 0, "-s", 0]


def processes_table(rounds):
    lines = ["| model, tokens a step | 1 process, 2 threads | 2 of 1 thread, by MPI | in shared memory |", HEADER]
    for model, B, T, steps in CASES:
        best = {(1, 0): 1e9, (2, 0): 1e9, (2, 1): 1e9}
        for _ in range(rounds):
            for processes, shared in best:
                flags = [*trainer(model, B // processes, T, steps), "-z", 1, "--threads", 2 // processes,
                         "--shared-memory", shared]
                times = step_times((MPIRUN if processes == 2 else []) + flags)
                best[processes, shared] = min(best[processes, shared], *times)
        one, by_mpi, in_memory = (B * T / ms * 1e3 for ms in best.values())
        ratios = [f"{speed:,.0f} tokens/s, {speed / one:.2f}" for speed in (by_mpi, in_memory)]
        lines.append(f"| {model}, {B * T} | {one:,.0f} tokens/s | {' | '.join(ratios)} |")
        print(lines[-1], flush=True)
    return lines


def sharing_table(rounds):
    lines = ["| model, tokens a step | a run alone | each of two at once | times as long |", HEADER]
    for model, B, T, steps in SHARED_CASES:
        alone, shared = [], []
        for _ in range(rounds):
            command = trainer(model, B, T, steps)
            alone += step_times(command)
            shared += step_times(["sh", "-c", '"$0" "$@" & "$0" "$@"; wait', *command])
        one, two = statistics.median(alone), statistics.median(shared)
        lines.append(f"| {model}, {B * T} | {one:,.1f} ms | {two:,.1f} ms | {two / one:.2f} |")
        print(lines[-1], flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the tables into dev/MEASURED.md")
    parser.add_argument("--only", choices=["processes", "sharing"], help="one of the two tables")
    args = parser.parse_args()
    kind, machine = this_cpu()
    for name, what, make in (("processes", "minima", processes_table), ("sharing", "medians", sharing_table)):
        if args.only not in (None, name):
            continue
        print(f"{name}: a few short trainings, about {max(1, args.rounds // 3)} minutes or less", flush=True)
        measured = (f"Measured {time.strftime('%Y-%m-%d')} on {machine}, {what} of {args.rounds} interleaved rounds, "
                    "by `dev/bench_processes.py`.")
        table = "\n".join([measured, "", *make(args.rounds)])
        if args.write:
            write_of_machine(ROOT / MEASURED, name, kind, table)


main()
