#!/usr/bin/env python3
"""Compares two CPU processes of one thread each (ZeRO stage 1), by MPI and in shared memory, with one process of two
threads on the same global batch, in tokens per second; and two separate runs at once, each on all cores, with one run
alone. Rounds are interleaved.

With --only: tcp, how fast the collectives over TCP are beside a plain socket; overlap, how much of what travels by MPI
and by TCP is hidden behind computation (dev/overlap.py); bucket, the time of a step by both against --bucket-mb, also
as a picture, build/bucket_mb.svg; with --write, in dev/plots.

    make train_gpt2_cpu data build/bench/tcp && python3 dev/bench_processes.py [--write]
"""
import children
import argparse
import json
import pathlib
import re
import shutil
import statistics
import tempfile
import time

import charts
import overlap
import svg
import sweep
from readme import MEASURED, this_cpu, write_of_machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASES = [("L6C384H6", 4, 128, 6), ("d12", 2, 256, 3)]  # model, sequences in all, T, steps
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-np", "2"]
SHARED_CASES = [("L4C64H4T64", 2, 64, 30), ("L4C192H6T128", 8, 128, 10), ("d12", 4, 64, 4)]  # loops short and long
HEADER = "|" + "---|" * 4
BUCKET_MB = (0, 1, 4, 16, 64)
WAYS = {"MPI": MPIRUN, "TCP": ["scripts/processes.sh", "-np", "2"]}  # of messages between two processes


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


def tcp_table(rounds):
    return children.run([ROOT / "build/bench/tcp", 32, 4 * rounds], cwd=ROOT)[0].strip().splitlines()


def by_messages(name, *more):
    """A training of a model with 12 layers of 3 MB of gradients each, whose two processes share no memory."""
    return [*WAYS[name], *trainer("L12C256H4T128", 4, 128, 6), "-z", 1, "--threads", 1, "--shared-memory", 0, *more]


def overlap_table(rounds):
    lines = ["| 2 processes | a step communicates for | of it hidden behind computation |", "|" + "---|" * 3]
    moved, hidden = {name: [] for name in WAYS}, {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace.json"
        for _ in range(rounds):
            for name in WAYS:
                children.run(by_messages(name, "--trace", trace, "--trace-steps", "3:7"), cwd=ROOT)
                for steps, travels, behind in overlap.overlap(json.loads(trace.read_text())["traceEvents"]).values():
                    moved[name].append(1e-3 * travels / steps)
                    hidden[name].append(100 * behind / travels)
    for name in WAYS:
        ms, share = statistics.median(moved[name]), statistics.median(hidden[name])
        lines.append(f"| by {name} | {ms:,.1f} ms | {share:.0f}% |")
        print(lines[-1], flush=True)
    return lines


def bucket_table(rounds):
    best = {(name, mb): 1e9 for mb in BUCKET_MB for name in WAYS}
    for _ in range(rounds):
        for name, mb in best:
            best[name, mb] = min(best[name, mb], *step_times(by_messages(name, "--bucket-mb", mb)))
    panel = charts.Panel(80, 40, 480, 240, (-0.5, len(BUCKET_MB) - 0.5), charts.around(best.values()))
    panel.frame("milliseconds of a step", "--bucket-mb", x_text=None)
    sweep.mark_x(panel, [(i, str(mb)) for i, mb in enumerate(BUCKET_MB)])
    for name, color in zip(WAYS, svg.COLORS):
        panel.curve([(i, best[name, mb]) for i, mb in enumerate(BUCKET_MB)], color)
    panel.parts += charts.legend(80, 20, 480, list(WAYS), svg.COLORS)[0]
    (ROOT / "build/bucket_mb.svg").write_text(svg.picture(600, 330, charts.SIZE, panel.parts))
    rows = [f"| {mb} | " + " | ".join(f"{best[name, mb]:,.1f} ms" for name in WAYS) + " |" for mb in BUCKET_MB]
    print("\n".join(rows), flush=True)
    return ["| --bucket-mb | 2 processes, by MPI | by TCP |", "|" + "---|" * 3, *rows, "",
            "The last one measured as a picture:", "", "![Time of a step by the size of messages](plots/bucket_mb.svg)"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the tables into dev/MEASURED.md")
    parser.add_argument("--only", choices=["processes", "sharing", "tcp", "overlap", "bucket"],
                        help="one of the tables")
    args = parser.parse_args()
    kind, machine = this_cpu()
    for name, what, make in (("processes", "minima", processes_table), ("sharing", "medians", sharing_table),
                             ("tcp", "minima", tcp_table), ("overlap", "medians", overlap_table),
                             ("bucket", "minima", bucket_table)):
        if args.only not in (None, name):
            continue
        print(f"{name}: a few short trainings, about {max(1, args.rounds // 3)} minutes or less", flush=True)
        measured = (f"Measured {time.strftime('%Y-%m-%d')} on {machine}, {what} of {args.rounds} interleaved rounds, "
                    "by `dev/bench_processes.py`.")
        table = "\n".join([measured, "", *make(args.rounds)])
        if args.write:
            write_of_machine(ROOT / MEASURED, name, kind, table)
            if name == "bucket":
                shutil.copy(ROOT / "build/bucket_mb.svg", ROOT / "dev/plots")


main()
