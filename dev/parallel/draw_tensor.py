#!/usr/bin/env python3
"""Draws what a process of build/tensor keeps, kernel by kernel, and what it sends, through one micro-batch, into
dev/course/pictures/tensor.svg; and counts of weights, memory and bytes into the table of chapter 22.

    make parallel && dev/parallel/draw_tensor.py [--write]

--write keeps what was measured in dev/course/tensor.json, and draws; --page draws what is there.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
sys.path.insert(0, str(ROOT / "dev/parallel"))
import check  # noqa: E402
import check_tensor  # noqa: E402
import readme  # noqa: E402
import svg  # noqa: E402

FIGURES, PICTURE = ROOT / "dev/course/tensor.json", ROOT / "dev/course/pictures/tensor.svg"
CHAPTER = ROOT / "dev/course/22-tensors.md"
PROCESSES, LAYERS = 4, 2
WAYS = {"one process": None, "--sequence 0": 0, "--sequence 1": 1, "--sequence 2": 2}
MESSAGES = {"reduce_scatter": (svg.COLORS[1], "reduce-scatter"), "all_gather": (svg.COLORS[2], "all-gather")}
LEFT, WIDTH, HEIGHT, TITLE, TICKS = 96, 720, 64, 26, 10


def measure(sequence):
    launcher = check.by_tcp(PROCESSES if sequence is not None else 1)
    said = check.run(launcher, "--layers", LAYERS, "--micro", 1, "--steps", 1, "--trace", 1,
                     "--sequence", sequence or 0)
    trace = [[name, int(kept), int(sent)] for name, kept, sent in re.findall(r"^trace (.*) (\d+) (\d+)$", said, re.M)]
    return {"trace": trace, "counts": [int(n) for n in check_tensor.PROCESS.search(said).groups()[::2]]}


def panel(name, found, top, most):
    """What is kept as a curve over the kernels; below, a tick for each message."""
    kernels = sum(sent == 0 for _, _, sent in found["trace"])
    width, bottom, x, ticks = WIDTH / kernels, top + TITLE + HEIGHT, LEFT, 0
    parts = [svg.text(LEFT, top + TITLE - 8, name), svg.line([(LEFT, bottom), (LEFT + WIDTH, bottom)], svg.LINES, 0.6)]
    peak = max(kept for _, kept, _ in found["trace"])
    parts.append(svg.text(LEFT - 8, bottom - HEIGHT * peak / most + 4, f"{peak:,}", "end"))
    for kernel, kept, sent in found["trace"]:
        if sent == 0:
            parts.append(svg.box(x, bottom - HEIGHT * kept / most, width, HEIGHT * kept / most, svg.COLORS[0], 0.75))
            x, ticks = x + width, 0
        else:
            parts.append(svg.box(x - 3 + 5 * ticks, bottom + 2, 4, TICKS, MESSAGES[kernel][0]))
            ticks += 1
    return parts


def picture(figures):
    most = max(kept for found in figures.values() for _, kept, _ in found["trace"])
    parts, top = [], 0
    for name, found in figures.items():
        parts += panel(name, found, top, most)
        top += TITLE + HEIGHT + TICKS + 4
    x = LEFT
    for color, label in ((svg.COLORS[0], "kept after each kernel, bytes"), *MESSAGES.values()):
        parts += [svg.box(x, top + 8, 11, 11, color, 0.85), svg.text(x + 16, top + 18, label)]
        x += 30 + svg.text_width(label, 12)
    return svg.picture(LEFT + WIDTH + 20, top + 30, 12, parts)


def table(figures):
    lines = ["| | weights of a process | kept of a micro-batch, bytes | sent in a step, bytes |", "|---|---|---|---|"]
    for name, found in figures.items():
        lines.append(f"| {name} | " + " | ".join(f"{count:,}" for count in found["counts"]) + " |")
    lines += ["", f"{LAYERS} layers of 32 channels and 4 heads, 64 tokens, one micro-batch a step; {PROCESSES} "
              "processes where not said otherwise."]
    return "\n".join(lines)


def main():
    if "--help" in sys.argv:
        return print(__doc__)
    if "--page" not in sys.argv:
        figures = {name: measure(sequence) for name, sequence in WAYS.items()}
        print(table(figures))
        if "--write" not in sys.argv:
            return
        FIGURES.write_text(json.dumps(figures) + "\n")
    figures = json.loads(FIGURES.read_text())
    PICTURE.write_text(picture(figures))
    drawn = "![What a process keeps and sends](pictures/tensor.svg)"
    readme.write_between(CHAPTER, "tensor", table(figures) + "\n\n" + drawn)


if __name__ == "__main__":
    main()
