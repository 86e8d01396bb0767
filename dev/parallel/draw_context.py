#!/usr/bin/env python3
"""Draws the rounds of attention over a divided sequence as they ran, from the times that the processes have measured,
into dev/course/pictures/context.svg; and idle time, memory and bytes into the table of chapter 23.

    make parallel && dev/parallel/draw_context.py [--write]

--write keeps what was measured in dev/course/context.json, and draws; --page draws what is there.
"""
import concurrent.futures
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
sys.path.insert(0, str(ROOT / "dev/parallel"))
import check  # noqa: E402
import check_context  # noqa: E402
import readme  # noqa: E402
import svg  # noqa: E402

FIGURES, PICTURE = ROOT / "dev/course/context.json", ROOT / "dev/course/pictures/context.svg"
CHAPTER = ROOT / "dev/course/23-long-sequences.md"
PROCESSES, SLOW_US = 4, 1000
PASSES = [(svg.COLORS[0], "forward pass, with the number of the round"), (svg.COLORS[2], "backward pass")]
LEFT, WIDTH, ROW, TITLE = 80, 740, 17, 26


def measure(way):
    said = check.run(check.by_tcp(PROCESSES), "--way", way, "--slow-us", SLOW_US, "--layers", 1, "--steps", 1,
                     "--trace", 1)
    check_context.check_counts(said, PROCESSES)
    trace = [[int(process), int(number), float(begin), float(end)] for process, number, begin, end in
             re.findall(r"^trace (\d+) (\d+) \d+ (\S+) (\S+)$", said, re.M)]
    rounds = 2 * (1 if way == "ulysses" else PROCESSES)  # of the first sequence; the others go on alike
    first = [event for process in range(PROCESSES)
             for event in [event for event in trace if event[0] == process][:rounds]]
    counts = [[int(pairs), int(kept), int(sent)] for pairs, _, kept, _, sent, _ in check_context.COUNTS.findall(said)]
    found = re.search(r"^idle (\S+), by the formula (\S+)$", said, re.M)
    return {"trace": first, "counts": counts, "idle": float(found[1]), "formula": float(found[2])}


def panel(way, found, top, second):
    """A row for each process, a box for each round; `second`: its width."""
    parts = [svg.text(LEFT, top + TITLE - 9, way)]
    for process in range(PROCESSES):
        y, rounds = top + TITLE + ROW * process, [event for event in found["trace"] if event[0] == process]
        parts.append(svg.text(LEFT - 8, y + 12, f"process {process}", "end"))
        for i, (_, number, begin, end) in enumerate(rounds):
            x, width = LEFT + begin * second, (end - begin) * second
            color = PASSES[i >= len(rounds) // 2][0]
            parts.append(svg.box(x + 0.4, y + 0.5, max(width - 0.8, 0.6), ROW - 2, color, 0.85))
            if width > 9:
                parts.append(f'<text x="{x + width / 2:.1f}" y="{y + 11.5:.1f}" text-anchor="middle" font-size="9" '
                             f'fill="#ffffff">{number}</text>')
    return parts


def picture(figures):
    latest = max(event[3] for found in figures.values() for event in found["trace"])
    parts, top = [], 4
    for way, found in figures.items():
        parts += panel(way, found, top, WIDTH / latest)
        top += TITLE + ROW * PROCESSES + 4
    x = LEFT
    for color, label in PASSES:
        parts += [svg.box(x, top + 8, 11, 11, color, 0.85), svg.text(x + 16, top + 18, label)]
        x += 30 + svg.text_width(label, 12)
    return svg.picture(LEFT + WIDTH + 20, top + 30, 12, parts)


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


def main():
    if "--help" in sys.argv:
        return print(__doc__)
    if "--page" not in sys.argv:
        with concurrent.futures.ThreadPoolExecutor() as threads:  # sleeping, they are in nobody's way
            figures = dict(zip(check_context.WAYS, threads.map(measure, check_context.WAYS)))
        print(table(figures))
        if "--write" not in sys.argv:
            return
        FIGURES.write_text(json.dumps(figures) + "\n")
    figures = json.loads(FIGURES.read_text())
    PICTURE.write_text(picture(figures))
    readme.write_between(CHAPTER, "context", table(figures) + "\n\n![Rounds as they ran](pictures/context.svg)")


if __name__ == "__main__":
    main()
