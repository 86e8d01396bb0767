#!/usr/bin/env python3
"""Draws the schedules of pipelines as they ran: every action of every stage, from the times that the stages have
measured, into dev/course/pictures/pipeline.svg; and their bubbles, memory and bytes into the table of chapter 21.

    make parallel && dev/parallel/draw_pipeline.py [--write]
"""
import re

import drawn
from check_pipeline import PIPELINE, SCHEDULES
from drawn import svg
from programs import at_once, by_tcp, counts, measured

STAGES, MICRO, SLOW_MS = 4, 8, 500
KINDS = {"F": (svg.COLORS[0], "F, forward"), "B": (svg.COLORS[2], "B, backward"),
         "I": (svg.COLORS[6], "I, its gradients of inputs"), "W": (svg.COLORS[1], "W, its gradients of weights")}


def measure(schedule):
    said = PIPELINE.run(by_tcp(STAGES), "--schedule", schedule, *SCHEDULES[schedule], "--micro", MICRO, "--slow-ms",
                        SLOW_MS, "--steps", 1, "--trace", 1)
    trace = [[int(stage), kind, int(micro), int(chunk), float(begin), float(end)] for stage, kind, micro, chunk, begin,
             end in re.findall(r"^trace (\d+) (\w) (\d+) (\d+) (\S+) (\S+)$", said, re.M)]
    bubble, formula = measured("bubble", said)
    stages = [[stage["keeps"], stage["sends"]] for stage in counts(said, STAGES)]
    return {"trace": trace, "stages": stages, "bubble": bubble, "formula": formula}


def picture(figures):
    latest = max(event[5] for name, found in figures.items() if name != "naive" for event in found["trace"])
    panels = {name + (", which goes on like this" if name == "naive" else ""):
              [(stage, KINDS[kind][0], 0.85 if chunk == 0 else 0.5, micro, begin, end)
               for stage, kind, micro, chunk, begin, end in found["trace"]] for name, found in figures.items()}
    return drawn.time_lines(panels, [f"stage {stage}" for stage in range(STAGES)], latest,
                            {name: color for color, name in KINDS.values()})


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


if __name__ == "__main__":
    drawn.run(__doc__, "pipeline", "21-pipelines.md", "Schedules as they ran", lambda: at_once(measure, SCHEDULES),
              table, picture)
