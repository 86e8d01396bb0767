#!/usr/bin/env python3
"""What sharding costs and saves: ZeRO stages on 1 to 4 CPU processes, measured; and which model fits on how many GPUs
at which stage, by --plan of the simulator's trainer; and large models in little memory.

    make train_gpt2_cpu train_gpt2sim data && python3 dev/sharding.py [--write] [--only measured|planned|large]

Measured: milliseconds of a step, with its ratio to stage 1; the peak of the process that takes most, beside its plan;
and bytes sent by each process, which are those of the plan to the byte (dev/test/test_processes.cpp). Stages of one
number of processes are interleaved. Large models train two steps; where a machine has not the memory that all processes
need, swap space included, there is the plan alone. What is swapped out counts as what is resident:

    fallocate -l 16G swap && chmod 600 swap && mkswap swap && swapon swap      (as root)
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import children
from readme import MEASURED, this_cpu, write_between, write_of_machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "dev/course/16-many-processes.md"
MODEL, T, WINDOWS, STEPS = "L6C384H6", 64, 12, 6
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-np"]
STAGES = [0, 1, 2, 3]
MODELS = [("124M", "d12"), ("1.56B", "d48"), ("6.7B", "gpt3:c4096"), ("13B", "gpt3:c5120"), ("70B", "L80C8192H64T2048")]
GPUS, WITHIN, CHIP, FREE_GIB = [1, 8, 64, 512], 8, "H100", 78
LARGE = [("d24", 4, ["-z", 3]), ("d48", 1, ["--precision", "bf16", "--offload", "optimizer"]),
         ("d48", 4, ["--precision", "bf16", "-z", 3])]


def planned(flags, program="./train_gpt2_cpu"):
    """Bytes of a process, and bytes that it sends: in all, and between replicas."""
    text = children.run([program, "--plan", *flags], cwd=ROOT)[0]
    between = re.search(r"replicas of a slice: (\d+)", text)
    return (int(re.search(r"^total (\d+)", text, re.M)[1]), int(re.search(r"wire a step: (\d+)", text)[1]),
            int(between[1]) if between else 0)


def flags_of(processes, stage):
    return ["-e", MODEL, "-b", WINDOWS // processes, "-t", T, "-x", STEPS, "-v", 0, "-s", 0, "-z", stage,
            "--threads", 1, "-pg", processes]


def train(processes, flags, folder):
    """Milliseconds of the steps but the first, and the peak of the process that takes most."""
    out = pathlib.Path(folder) / "run"
    children.run([*MPIRUN, processes, "./train_gpt2_cpu", *flags, "-o", out, "--overwrite", 1], cwd=ROOT)
    rows = [line.split(",") for line in (out / "metrics.csv").read_text().splitlines()]
    columns = {name: i for i, name in enumerate(rows[0])}
    times = [float(row[columns["step_ms"]]) for row in rows[2:]]
    peak = max(float(row[columns["peak_bytes"]]) for row in rows[1:])
    return times, peak


def measured_table(rounds):
    lines = [f"| processes | stage | step, {MODEL}, {WINDOWS * T} tokens | of stage 1 | peak of a process | its plan |"
             " sends a step |", "|" + "---|" * 7]
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, 2, 3, 4):
            flags = {stage: flags_of(processes, stage) for stage in (STAGES[:1] if processes == 1 else STAGES)}
            runs = {stage: [] for stage in flags}
            for _ in range(rounds):
                for stage in flags:
                    runs[stage].append(train(processes, flags[stage], folder))
            fastest = {stage: min(min(times) for times, _ in of_stage) for stage, of_stage in runs.items()}
            for stage, of_stage in runs.items():
                plan, sent, _ = planned([*flags[stage], "-pn", processes])
                peak = max(peak for _, peak in of_stage)
                ratio = f"{fastest[stage] / fastest[1]:.2f}" if processes > 1 else ""
                lines.append(f"| {processes} | {stage} | {fastest[stage]:,.0f} ms | {ratio} | "
                             f"{peak / 2**20:,.0f} MiB | {plan / 2**20:,.0f} MiB | {sent / 2**20:,.0f} MiB |")
                print(lines[-1], flush=True)
    return lines


def plan_rows(text):
    """The bytes of a plan's rows, by category and name."""
    rows = re.findall(r"^(\w+) +(\S.*?) {2,}.*? (\d+)(?: {3}.*)?$", text, re.M)
    return {(category, name): int(size) for category, name, size in rows}


def least_bytes(text):
    """A process's share of weights, gradients and state, two layers, and activations."""
    rows = plan_rows(text)
    of = lambda *names: sum(size for row, size in rows.items() if row in names)  # noqa: E731
    weights, gradients = rows["parameters", "own slices"], rows["gradients", "own slices"]
    layers = rows["parameters", "whole buckets"]  # two of them
    return (weights + gradients + of(("optimizer", "= all"), ("activations", "= all")) +
            layers + layers * gradients // weights)


def large_table():
    """Two steps of one sequence of 64 tokens in each process."""
    lines = ["| model | processes | flags | peak of a process | its plan | share, two layers, activations | over it |",
             "|" + "---|" * 7]
    for model, processes, flags in LARGE:
        command = ["./train_gpt2_cpu", "-e", model, "-b", 1, "-t", T, "-r", 3, "-x", 2, "-v", 0, "-s", 0, "-g", 0,
                   "--threads", max(1, 2 // processes), "-pg", processes, *flags]
        text = children.run([*command, "--plan", "-pn", processes], cwd=ROOT)[0]
        plan = int(re.search(r"^total (\d+)", text, re.M)[1])
        needed, peak = processes * plan, "not run: the machine has too little"
        if needed < 0.9 * available_bytes():
            peak = f"{peak_of([*(MPIRUN + [processes] if processes > 1 else []), *command]) / 2**20:,.0f} MiB"
        share = least_bytes(text) if "--offload" not in flags else 0
        over = f"{share / 2**20:,.0f} MiB | {(plan - share) / 2**20:,.0f} MiB" if share else " | "
        lines.append(f"| {model} | {processes} | `{' '.join(map(str, flags))}` | {peak} | {plan / 2**20:,.0f} MiB | "
                     f"{over} |")
        print(lines[-1], flush=True)
    return lines


def kibibytes(path, *names):
    """The sum of lines of a file of /proc; 0 if its process is gone."""
    try:
        text = pathlib.Path(path).read_text()
    except OSError:
        return 0
    return sum(int(number) for name in names for number in re.findall(rf"^{name}:\s+(\d+) kB", text, re.M))


def available_bytes():
    return 1024 * kibibytes("/proc/meminfo", "MemAvailable", "SwapFree")


def peak_of(command):
    """Runs it. The most that one process of it had resident and in swap space together, looked at 50 times a second;
    of what several have in common, its part of it."""
    process, most = children.start([str(c) for c in command], cwd=ROOT, stdout=subprocess.DEVNULL), 0
    while process.poll() is None:
        time.sleep(0.02)
        family = [process.pid]
        for pid in family:  # which grows
            family += children_of(pid)
            most = max(most, kibibytes(f"/proc/{pid}/smaps_rollup", "Pss", "SwapPss"))
    if process.returncode:
        sys.exit(f"{command} failed")
    return 1024 * most


def children_of(pid):
    try:
        return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return []


def planned_table():
    """GiB of a GPU with one sequence of 1,024 tokens on each, -r 3; what fits is marked."""
    hybrid = f"`-z 3 --shard-within {WITHIN}`"
    stages = " | ".join(f"`-z {stage}`" for stage in STAGES)
    lines = [f"| parameters | GPUs | {stages} | {hybrid} | sends at `-z 1`, `-z 3`, {hybrid} |",
             "|" + "---|" * (len(STAGES) + 4)]
    for name, model in MODELS:
        for gpus in GPUS:
            layouts = [["-z", stage] for stage in STAGES]
            layouts.append(["-z", 3, "--shard-within", WITHIN] if gpus > WITHIN else None)
            cells, sent = [], []
            for layout in layouts:
                flags = ["-e", model, "--device", CHIP, "-pn", gpus, "-b", 1, "-t", 1024, "-r", 3, "-g", 0,
                         "-d", 1024 * gpus]
                if not layout:
                    cells.append("")
                    continue
                bytes_taken, bytes_sent, between = planned([*flags, *layout], "./train_gpt2sim")
                gib = bytes_taken / 2**30
                text = f"{gib:,.1f}" if gib < 100 else f"{gib:,.0f}"
                cells.append(f"**{text}**" if gib <= FREE_GIB else text)
                sent.append(f"{(between or bytes_sent) / 1e9:,.1f}")
            shown = [sent[1], sent[3], *sent[4:]]
            lines.append(f"| {name} | {gpus} | {' | '.join(cells)} | {', '.join(shown)} GB |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the tables into dev/MEASURED.md and chapter 16")
    parser.add_argument("--only", choices=["measured", "planned", "large"], help="one of the tables")
    args = parser.parse_args()
    kind, machine = this_cpu()
    if args.only in (None, "large"):
        where = f"Peaks measured {time.strftime('%Y-%m-%d')} on {machine}, by `dev/sharding.py`."
        table = "\n".join([where, "", *large_table()])
        if args.write:
            write_of_machine(ROOT / MEASURED, "large", kind, table)
    if args.only in (None, "measured"):
        measured = (f"Measured {time.strftime('%Y-%m-%d')} on {machine}, one thread a process, minima of {args.rounds} "
                    "interleaved rounds, by `dev/sharding.py`.")
        table = "\n".join([measured, "", *measured_table(args.rounds)])
        if args.write:
            write_of_machine(ROOT / MEASURED, "sharding", kind, table)
    if args.only in (None, "planned"):
        table = "\n".join(planned_table())
        print(table)
        if args.write:
            write_between(CHAPTER, "sharding", table)


main()
