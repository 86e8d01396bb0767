#!/usr/bin/env python3
"""Draws the rounds of attention over a divided sequence as they ran, from the times that the processes have measured,
into dev/course/pictures/context.svg; and idle time, memory and bytes into the table of chapter 23.

    make parallel && dev/parallel/draw_context.py [--write]
"""
import re

import drawn
from check_context import CONTEXT, WAYS
from drawn import svg
from programs import at_once, by_tcp, counts, measured

PROCESSES, SLOW_US = 4, 1000
PASSES = {"forward pass, with the number of the round": svg.COLORS[0], "backward pass": svg.COLORS[2]}


def of_process(trace, process):
    return [event for event in trace if event[0] == process]


def measure(way):
    said = CONTEXT.run(by_tcp(PROCESSES), "--way", way, "--slow-us", SLOW_US, "--layers", 1, "--steps", 1,
                       "--trace", 1)
    trace = [[int(process), int(number), float(begin), float(end)] for process, number, begin, end in
             re.findall(r"^trace (\d+) (\d+) \d+ (\S+) (\S+)$", said, re.M)]
    rounds = 2 * (1 if way == "ulysses" else PROCESSES)  # of the first sequence; the others go on alike
    first = [event for process in range(PROCESSES) for event in of_process(trace, process)[:rounds]]
    counted = [[found["pairs"], found["keeps"], found["sends"]] for found in counts(said, PROCESSES)]
    idle, formula = measured("idle", said)
    return {"trace": first, "counts": counted, "idle": idle, "formula": formula}


def picture(figures):
    latest = max(event[3] for found in figures.values() for event in found["trace"])
    forward, backward = PASSES.values()
    panels = {}
    for way, found in figures.items():
        rounds = len(of_process(found["trace"], 0))
        panels[way] = [(process, forward if i < rounds // 2 else backward, 0.85, number, begin, end)
                       for process in range(PROCESSES)
                       for i, (_, number, begin, end) in enumerate(of_process(found["trace"], process))]
    return drawn.time_lines(panels, [f"process {process}" for process in range(PROCESSES)], latest, PASSES)


def table(figures):
    lines = ["| way | idle, measured | by the formula | pairs of process 0, 3 | kept by each | sent by each |",
             "|" + "---|" * 6]
    for way, found in figures.items():
        (first, kept, sent), (last, _, _) = found["counts"][0], found["counts"][-1]
        idle = f"{found['idle']:.3f} | {found['formula']:.3f}"
        lines.append(f"| {way} | {idle} | {first}, {last} | {kept:,} | {sent:,} |")
    lines += ["", f"{PROCESSES} processes, one layer, 64 positions, 4 sequences a step. Attention sleeps "
              f"{SLOW_US / 1000:g} ms for each pair of a query",
              "and a key. Bytes sent in a step include the sums of all gradients."]
    return "\n".join(lines)


if __name__ == "__main__":
    drawn.run(__doc__, "context", "23-long-sequences.md", "Rounds as they ran", lambda: at_once(measure, WAYS), table,
              picture)
