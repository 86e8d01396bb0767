#!/usr/bin/env python3
"""Draws a step of a mesh of eight processes as it ran, where stages sleep in place of computing, into
dev/course/pictures/together.svg; and what each axis sends on several meshes into the table of chapter 26.

    make parallel && dev/parallel/draw_together.py [--write]
"""
import math
import re

import drawn
from check_together import TOGETHER, flags_of
from drawn import svg
from programs import by_tcp, counts

MESH, MICRO, SLOW_MS = (2, 2, 2), 8, 200
MESHES = [(8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 4, 1), (2, 2, 2), (2, 1, 4), (1, 4, 2), (1, 2, 4)]
KINDS = {"F": (svg.COLORS[0], "forward"), "B": (svg.COLORS[2], "backward"),
         "S": (svg.COLORS[1], "sums of gradients over the replicas")}


def text(mesh):
    return " x ".join(map(str, mesh))


def measure():
    said = TOGETHER.run(by_tcp(math.prod(MESH)), *flags_of(MESH), "--micro", MICRO, "--slow-ms", SLOW_MS, "--steps", 1,
                        "--trace", 1)
    trace = [[int(rank), kind, int(micro), float(begin), float(end)] for rank, kind, micro, begin, end in
             re.findall(r"^trace (\d+) (\w) (\d+) (\S+) (\S+)$", said, re.M)]
    most = {}
    for mesh in MESHES:
        found = counts(TOGETHER.run(by_tcp(math.prod(mesh)), *flags_of(mesh), "--micro", 32, "--steps", 1), 8)
        most[text(mesh)] = {what: max(one[what] for one in found) for what in found[0]}
    return {"trace": trace, "most": most}


def picture(figures):
    R, P, N = MESH
    rows = [f"{rank}: {rank // (R * N)}, {rank // N % R}, {rank % N}" for rank in range(R * P * N)]
    boxes = [(rank, KINDS[kind][0], 0.85, "" if kind == "S" else micro, begin, end)
             for rank, kind, micro, begin, end in figures["trace"]]
    return drawn.time_lines({"rank: stage, replica, part": boxes}, rows, max(box[5] for box in boxes),
                            {name: color for color, name in KINDS.values()})


def table(figures):
    lines = ["| data x pipeline x tensor | kept of micro-batches | sent to parts | to stages | to replicas | all |",
             "|" + "---|" * 6]
    for mesh, found in figures["most"].items():
        sent = [found["parts"], found["stages"], found["replicas"]]
        lines.append(f"| {mesh} | {found['keeps']:,} | " + " | ".join(f"{n:,}" for n in [*sent, sum(sent)]) + " |")
    lines += ["", "Bytes of the process that has most, for a step of 32 micro-batches of 64 tokens; four layers of 32 "
              "channels."]
    return "\n".join(lines)


if __name__ == "__main__":
    drawn.run(__doc__, "together", "26-together.md", "A step of eight processes as it ran", measure, table, picture)
