#!/usr/bin/env python3
"""Draws what a process of build/tensor keeps, kernel by kernel, and what it sends, through one micro-batch, into
dev/course/pictures/tensor.svg; and counts of weights, memory and bytes into the table of chapter 22.

    make parallel && dev/parallel/draw_tensor.py [--write]
"""
import re

import drawn
from check_tensor import TENSOR
from drawn import charts, svg
from programs import by_tcp, counts

PROCESSES, LAYERS = 4, 2
WAYS = {"one process": None, "--sequence 0": 0, "--sequence 1": 1, "--sequence 2": 2}
KEPT, MESSAGES = svg.COLORS[0], {"reduce_scatter": svg.COLORS[1], "all_gather": svg.COLORS[2]}
LEGEND = {"kept after each kernel, bytes": KEPT, "reduce-scatter": svg.COLORS[1], "all-gather": svg.COLORS[2]}
LEFT, WIDTH, HEIGHT, TITLE, TICKS = 96, 720, 64, 26, 10


def measure(sequence):
    processes = PROCESSES if sequence is not None else 1
    said = TENSOR.run(by_tcp(processes), "--layers", LAYERS, "--micro", 1, "--steps", 1, "--trace", 1, "--sequence",
                      sequence or 0)
    trace = [[name, int(kept), int(sent)] for name, kept, sent in re.findall(r"^trace (.*) (\d+) (\d+)$", said, re.M)]
    first = counts(said, processes)[0]
    return {"trace": trace, "counts": [first["has"], first["keeps"], first["sends"]]}


def panel(name, found, top, most):
    """What is kept as a curve over the kernels; below, a tick for each message."""
    kernels = sum(sent == 0 for _, _, sent in found["trace"])
    width, bottom, x, ticks = WIDTH / kernels, top + TITLE + HEIGHT, LEFT, 0
    parts = [svg.text(LEFT, top + TITLE - 8, name), svg.line([(LEFT, bottom), (LEFT + WIDTH, bottom)], svg.LINES, 0.6)]
    peak = max(kept for _, kept, _ in found["trace"])
    parts.append(svg.text(LEFT - 8, bottom - HEIGHT * peak / most + 4, f"{peak:,}", "end"))
    for kernel, kept, sent in found["trace"]:
        if sent == 0:
            parts.append(svg.box(x, bottom - HEIGHT * kept / most, width, HEIGHT * kept / most, KEPT, 0.75))
            x, ticks = x + width, 0
        else:
            parts.append(svg.box(x - 3 + 5 * ticks, bottom + 2, 4, TICKS, MESSAGES[kernel]))
            ticks += 1
    return parts


def picture(figures):
    most = max(kept for found in figures.values() for _, kept, _ in found["trace"])
    parts, top = [], 0
    for name, found in figures.items():
        parts += panel(name, found, top, most)
        top += TITLE + HEIGHT + TICKS + 4
    names, height = charts.legend(LEFT, top + 18, WIDTH, LEGEND.keys(), LEGEND.values())
    return svg.picture(LEFT + WIDTH + 20, top + 8 + height, charts.SIZE, parts + names)


def table(figures):
    lines = ["| | weights of a process | kept of a micro-batch, bytes | sent in a step, bytes |", "|---|---|---|---|"]
    for name, found in figures.items():
        lines.append(f"| {name} | " + " | ".join(f"{count:,}" for count in found["counts"]) + " |")
    lines += ["", f"{LAYERS} layers of 32 channels and 4 heads, 64 tokens, one micro-batch a step; {PROCESSES} "
              "processes where not said otherwise."]
    return "\n".join(lines)


if __name__ == "__main__":
    drawn.run(__doc__, "tensor", "22-tensors.md", "What a process keeps and sends",
              lambda: {name: measure(sequence) for name, sequence in WAYS.items()}, table, picture)
