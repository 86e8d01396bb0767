#!/usr/bin/env python3
"""How much of the communication of traced steps is hidden behind computation, from the file that --trace writes: the
share of the time in which something travels while the same process runs a kernel. What is not hidden, the step is
longer by. Standard library only.

    mpirun -np 2 ./train_gpt2_cpu ... --shared-memory 0 --trace trace.json && dev/overlap.py trace.json

A collective travels from its start until it is complete, so also while it waits for a process that is late. Those of
GPUs have a stream of their own, those by MPI and TCP the track "communication"; by shared memory they are what the
program does, and hide nothing."""
import argparse
import json
import pathlib
import sys


def union(spans):
    """Intervals (begin, end) in order, those that touch joined."""
    joined = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return joined


def common(a, b):
    """The time that two lists of disjoint intervals have in common."""
    total, i, j = 0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def overlap(events):
    """By rank: steps, and the microseconds that something travels, and that of these are hidden."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {}
    for rank in sorted({pid for pid, _ in names}):
        tracks = [key for key in names if key[0] == rank]
        spans = {key: [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == key] for key in tracks}
        program = next(key for key in tracks if names[key] == "program")
        sending = [key for key in tracks if any("sent bytes" in e.get("args", {}) for e in spans[key])]
        # the program only starts those that have a track of their own
        travels = [key for key in sending if key != program] or sending
        # streams of a GPU, where there are any; else the program, since its threads do the same at the same time
        computes = [key for key in tracks if key not in travels and not names[key].startswith("thread ")]
        on_gpu = [key for key in computes if key != program]

        def intervals(keys, wanted):
            return union((e["ts"], e["ts"] + e["dur"]) for key in keys for e in spans[key] if wanted(e.get("args", {})))
        moved = intervals(travels, lambda args: "sent bytes" in args)
        kernels = intervals(on_gpu or [program], lambda args: "bytes" in args)
        found[rank] = (sum(e["name"].startswith("step ") for e in spans[program]),
                       sum(end - begin for begin, end in moved), common(moved, kernels))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path, help="what --trace has written")
    args = parser.parse_args()
    try:
        found = overlap(json.loads(args.trace.read_text())["traceEvents"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as e:
        sys.exit(f"error: {args.trace} is no file of --trace: {e!r}")
    print("| rank | communication, ms a step | hidden | not hidden, ms a step |\n|---|---|---|---|")
    for rank, (steps, moved, hidden) in found.items():
        share = f"{100 * hidden / moved:.0f}%" if moved else "nothing was sent"
        ms = [1e-3 * time / max(1, steps) for time in (moved, moved - hidden)]
        print(f"| {rank} | {ms[0]:.2f} | {share} | {ms[1]:.2f} |")


if __name__ == "__main__":
    main()
