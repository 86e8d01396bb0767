#!/usr/bin/env python3
"""Draws the schedules of pipelines as they ran: every action of every stage, from the times that the stages have
measured, into dev/course/pictures/pipeline.svg; and their bubbles, memory and bytes into the table of chapter 21.

    make parallel && dev/parallel/draw.py [--write]

--write keeps what was measured in dev/course/pipeline.json, and draws; --page draws what is there.
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
import readme  # noqa: E402
import svg  # noqa: E402

FIGURES, PICTURE = ROOT / "dev/course/pipeline.json", ROOT / "dev/course/pictures/pipeline.svg"
CHAPTER = ROOT / "dev/course/21-pipelines.md"
STAGES, MICRO, SLOW_MS = 4, 8, 500
KINDS = {"F": (svg.COLORS[0], "F, forward"), "B": (svg.COLORS[2], "B, backward"),
         "I": (svg.COLORS[6], "I, its gradients of inputs"), "W": (svg.COLORS[1], "W, its gradients of weights")}
LEFT, WIDTH, ROW, TITLE = 70, 760, 17, 26


def measure(schedule, flags):
    said = check.run(check.by_tcp(STAGES), "--schedule", schedule, *flags, "--micro", MICRO, "--slow-ms", SLOW_MS,
                     "--steps", 1, "--trace", 1)
    check.check_counts(said, STAGES)
    trace = [[int(stage), kind, int(micro), int(chunk), float(begin), float(end)] for stage, kind, micro, chunk, begin,
             end in re.findall(r"^trace (\d+) (\w) (\d+) (\d+) (\S+) (\S+)$", said, re.M)]
    stages = [[int(kept), int(sent)] for kept, _, sent, _ in check.STAGE.findall(said)]
    found = re.search(r"^bubble (\S+), by the formula (\S+)$", said, re.M)
    return {"trace": trace, "stages": stages, "bubble": float(found[1]), "formula": float(found[2])}


def panel(name, found, top, second):
    """One schedule: a row for each stage, a box for each action; `second`: its width."""
    parts = [svg.text(LEFT, top + TITLE - 9, name + (", which goes on like this" if name == "naive" else ""))]
    for stage in range(STAGES):
        y = top + TITLE + ROW * stage
        parts.append(svg.text(LEFT - 8, y + 12, f"stage {stage}", "end"))
        for _, kind, micro, chunk, begin, end in (event for event in found["trace"] if event[0] == stage):
            x, width = LEFT + begin * second, (end - begin) * second
            if x + width > LEFT + WIDTH + 1:
                continue
            parts.append(svg.box(x + 0.4, y + 0.5, width - 0.8, ROW - 2, KINDS[kind][0], 0.85 if chunk == 0 else 0.5))
            if width > 9:
                parts.append(f'<text x="{x + width / 2:.1f}" y="{y + 11.5:.1f}" text-anchor="middle" font-size="9" '
                             f'fill="#ffffff">{micro}</text>')
    return parts


def picture(figures):
    latest = max(event[5] for name, found in figures.items() if name != "naive" for event in found["trace"])
    parts, top = [], 4
    for name, found in figures.items():
        parts += panel(name, found, top, WIDTH / latest)
        top += TITLE + ROW * STAGES + 4
    x = LEFT
    for color, label in KINDS.values():
        parts += [svg.box(x, top + 8, 11, 11, color, 0.85), svg.text(x + 16, top + 18, label)]
        x += 30 + svg.text_width(label, 12)
    return svg.picture(LEFT + WIDTH + 20, top + 30, 12, parts)


def table(figures):
    lines = ["| schedule | bubble, measured | by the formula | kept by stage 0 | by stage 3 | sent by all in a step |",
             "|---|---|---|---|---|---|"]
    for name, found in figures.items():
        kept, sent = [kept for kept, _ in found["stages"]], sum(sent for _, sent in found["stages"])
        lines.append(f"| {name} | {found['bubble']:.3f} | {found['formula']:.3f} | {kept[0]:,} | {kept[-1]:,} "
                     f"| {sent:,} |")
    lines += ["", f"{STAGES} stages of two layers, {MICRO} micro-batches; in interleaved each stage has two chunks of "
              "one layer (pale: the",
              f"second). Bytes of activations and messages. Stages sleep {SLOW_MS} ms in place of a forward pass of a",
              "micro-batch, so the times are known, and what is left over is the schedule."]
    return "\n".join(lines)


def main():
    if "--help" in sys.argv:
        return print(__doc__)
    if "--page" not in sys.argv:
        with concurrent.futures.ThreadPoolExecutor() as threads:  # sleeping, they are in nobody's way
            figures = dict(zip(check.SCHEDULES, threads.map(measure, *zip(*check.SCHEDULES.items()))))
        print(table(figures))
        if "--write" not in sys.argv:
            return
        FIGURES.write_text(json.dumps(figures) + "\n")
    figures = json.loads(FIGURES.read_text())
    PICTURE.write_text(picture(figures))
    readme.write_between(CHAPTER, "pipeline", table(figures) + "\n\n![Schedules as they ran](pictures/pipeline.svg)")


if __name__ == "__main__":
    main()
