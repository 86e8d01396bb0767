#!/usr/bin/env python3
"""Pictures of training runs: loss, validation loss, gradient norm, learning rate, throughput, HellaSwag, tensor norms.

    dev/plot.py RUN...                  RUN: the out dir (-o) of a run, or a main.log, of llm.c too. Writes plot.svg
                                        beside the first; -o picture.png (needs cairosvg) or another .svg
    dev/plot.py RUN --watch             draws again until the run ends, or Ctrl-C
    dev/plot.py --memory RUN            what is in memory during one step: needs the trainer, which says it with --plan.
                                        RUN may also be a file with what --plan printed
    dev/plot.py RUN --tensorboard DIR   writes event files (pip install tensorboard), and says where
    dev/plot.py RUN --wandb             sends the numbers to Weights & Biases (pip install wandb)

Several runs are drawn into the same panels. Where the data is FineWeb, dashed lines show OpenAI's checkpoints.
"""
import children  # first: Ctrl-C ends what follows without a traceback
import argparse
import math
import pathlib
import signal
import sys
import time

import charts
import plot_export
import plot_memory
import plot_tensors
import run_data
import svg

WIDTH, LEFT, GAP, HEIGHT, ABOVE, BELOW, RIGHT = 1000, 62, 84, 170, 34, 42, 16
WATCH_S = 2

# OpenAI's checkpoints: validation loss on FineWeb, accuracy on HellaSwag. All figures:
# https://github.com/karpathy/llm.c/blob/4090ca8fa177d6810f4a622b13cf00bb6f28735f/dev/vislog.ipynb
GPT2 = {"124M": (3.424958, 0.294463), "350M": (3.083089, 0.375224), "774M": (3.000580, 0.431986),
        "1558M": (2.831273, 0.488946)}
SIZE_OF_MODEL = {"d12": "124M", "d24": "350M", "d36": "774M", "d48": "1558M"}

# Panels: column, title, logarithmic, whether its line is smoothed. A run that lacks a column is left out of its panel.
PANELS = [("loss", "training loss", True, True), ("val_loss", "validation loss", True, False),
          ("grad_norm", "gradient norm", True, True), ("learning_rate", "learning rate", False, False),
          ("tokens_per_s", "tokens per second", False, True),
          ("bits_per_byte", "validation, bits per byte", False, False),
          ("hellaswag", "HellaSwag, accuracy", False, False),
          ("noise_scale", "noise scale, tokens", True, True)]
X_AXES = {"step": "step", "tokens": "tokens", "hours": "hours of training"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("-o", "--out", type=pathlib.Path,
                        help="plot.svg (memory.svg) in the folder of the first run unless given")
    parser.add_argument("--x", choices=X_AXES, default="step")
    parser.add_argument("--smooth", type=int, default=0, metavar="N",
                        help="mean over N steps around each; 1: none; unless given a fiftieth of the longest run, at "
                             "most a tenth of the shortest")
    parser.add_argument("--reference", nargs="*", choices=[*GPT2, "none"], default=None,
                        help="draw the lines of these checkpoints, whatever the data is; none: no lines")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--program", help="for --memory: the trainer; that of the run unless given")
    parser.add_argument("--tensorboard", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--wandb", action="store_true")
    args = parser.parse_args()
    if args.smooth < 0:
        parser.error("--smooth: a number of steps, 1 or more, is accepted")
    if args.out and args.out.suffix not in (".svg", ".png"):
        parser.error(f"-o {args.out}: a name ending in .svg or .png is accepted")
    if args.memory and (len(args.runs) > 1 or args.watch or args.tensorboard or args.wandb):
        parser.error("--memory takes one RUN, and draws it once")
    return args


def save(text, path):
    """Writes beside, then renames: who looks at the picture while it is drawn again sees a whole one."""
    beside = path.with_name(path.name + ".tmp")
    if path.suffix == ".png":
        children.need("cairosvg")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            import cairosvg
            beside.write_bytes(cairosvg.svg2png(bytestring=text.encode(), scale=2, background_color="white"))
        else:
            beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        sys.exit(f"cannot write {path}: {error.strerror}")


def run_names(runs):
    """Names by which the runs can be told apart: the folders', or the paths if those are equal."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.place) for run in runs]


def reference_sizes(runs, wanted, column):
    """The checkpoints to compare with: those as large as the runs' models, or all if no run has the size of one. Their
    losses are not those on FineWeb-Edu; HellaSwag is the same."""
    if wanted is not None:
        return [size for size in wanted if size != "none"]
    data = [str(run.flags.get("--val-data", "")) for run in runs]
    if not any("fineweb" in path.lower() and (column == "hellaswag" or "edu" not in path.lower()) for path in data):
        return []
    sizes = [SIZE_OF_MODEL.get(str(run.flags.get("--model", "")).split(":")[-1]) for run in runs]
    return [size for size in GPT2 if size in sizes] or list(GPT2)


def along(run, points, axis):
    """The points, given by step, by the unit of the axis. Steps without it, such as an evaluation after the last step
    of training, are at the nearest one before."""
    if axis == "step":
        return points
    known = run.series.get("tokens" if axis == "tokens" else "seconds", [])
    moved, at = [], 0
    for step, value in points:
        while at + 1 < len(known) and known[at + 1][0] <= step:
            at += 1
        if known:
            moved.append((known[at][1] / (3600 if axis == "hours" else 1), value))
    return moved


def smooth_window(lines, wanted):
    """The steps over which all lines of a panel are smoothed, so that they can be compared."""
    lengths = [len(points) for points in lines if points] or [0]
    return (wanted or min(max(lengths) // 50, min(lengths) // 10)) | 1  # as many before a point as after it


def draw_run(panel, points, color, window, smoothed, column):
    if window > 1:
        panel.curve(points, color, 1, 0.35)
        panel.curve(charts.smooth(points, window), color)
    else:
        panel.curve(points, color)
    if not smoothed and column != "learning_rate" and len(points) <= 40:
        panel.marks(points, color)


def most_of(values):
    """The range that is drawn: without the largest thousandth if that is far off, as norms at the start are."""
    ranked = sorted(values)
    high = ranked[int(0.999 * (len(ranked) - 1))]
    return [ranked[0], ranked[-1] if ranked[-1] < 3 * high else high]


def panel_of(runs, colors, place, spec, args, x_range):
    """One panel; None if no run has the column."""
    column, title, log, smoothed = spec
    lines = [(along(run, run.series.get(column, []), args.x), color) for run, color in zip(runs, colors)]
    values = [y for points, _ in lines for _, y in charts.finite(points)]
    bad = [x for points, _ in lines for x, y in points if not math.isfinite(y)]
    if not values and not bad:
        return None
    sizes = reference_sizes(runs, args.reference, column) if column in ("val_loss", "hellaswag") else []
    references = {f"GPT-2 {size}": GPT2[size][column == "hellaswag"] for size in sizes}
    values = most_of(values) + list(references.values()) if values else [0, 1]
    log = log and min(values) > 0
    window = smooth_window([points for points, _ in lines], args.smooth) if smoothed else 1
    smooth_text = f", mean of {window} steps" if window > 1 else ""
    panel = charts.Panel(*place, x_range, charts.around(values, log), log)
    panel.frame(title + smooth_text + (", log scale" if log else ""), X_AXES[args.x])
    for points, color in lines:
        draw_run(panel, points, color, window, smoothed, column)
    panel.references({f"{label}: {value:.4g}": value for label, value in references.items()})
    panel.bad(bad)
    return panel.parts


def grid(heading, panels):
    """Panels in two columns. panels: functions that draw themselves at (left, top, width, height)."""
    width = (WIDTH - 2 * LEFT - (GAP - LEFT) - RIGHT) / 2
    parts, count = list(heading[0]), 0
    for draw in panels:
        left = LEFT + (count % 2) * (width + GAP)
        top = 14 + heading[1] + ABOVE + count // 2 * (ABOVE + HEIGHT + BELOW)
        drawn = draw((left, top, width, HEIGHT))
        if drawn:
            parts += drawn
            count += 1
    rows = -(-count // 2)
    return svg.picture(WIDTH, 14 + heading[1] + rows * (ABOVE + HEIGHT + BELOW), charts.SIZE, parts), count


def draw(runs, args):
    """The picture of all runs, as text."""
    colors = svg.colors(len(runs))
    ends = [x for run in runs for points in run.series.values() for x, _ in along(run, points, args.x)[-1:]]
    if not ends:
        missing = "no steps yet" if not any(run.series for run in runs) else f"no column for --x {args.x}"
        sys.exit(f"{', '.join(str(run.place) for run in runs)}: {missing}")
    x_range = (0, max(ends) or 1)
    legend = charts.legend(LEFT, 22, WIDTH - LEFT - RIGHT, run_names(runs), colors)
    panels = [lambda place, spec=spec: panel_of(runs, colors, place, spec, args, x_range) for spec in PANELS]
    for title, lines in plot_tensors.panels(runs, colors):
        moved = [(name, color, along(run, points, args.x)) for name, color, run, points in lines]
        panels.append(lambda place, title=title, moved=moved:
                      plot_tensors.draw(place, title, moved, X_AXES[args.x], x_range))
    return grid(legend, panels)[0]


def say(runs, path):
    for run in runs:
        if run.skipped:
            print(f"{run.place}: {run.skipped} lines cannot be read and are left out", file=sys.stderr)
    print(f"{path}: {', '.join(f'{name} to step {run.last_step()}' for name, run in zip(run_names(runs), runs))}",
          flush=True)


def watch(runs, redraw):
    """Draws again when a file has changed, until all runs have ended, or Ctrl-C. A run that has no steps yet is waited
    for."""
    interrupted = []
    signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
    drawn, over = None, False
    while not interrupted:
        seen = [run.version() for run in runs]
        if seen != drawn:
            for run in runs:
                run.read()
            if any(run.series for run in runs):
                redraw()
            drawn = seen
        if over:
            break
        over = all(run.is_over() for run in runs)  # once more: the last lines may have come since they were read
        until = time.monotonic() + (0 if over else WATCH_S)
        while time.monotonic() < until and not interrupted:
            time.sleep(0.1)


def main():
    args = arguments()
    if args.memory:
        text, beside = plot_memory.draw(args.runs[0], args.program)
        path = args.out or beside / "memory.svg"
        save(text, path)
        print(path)
        return
    runs = [run_data.Run(place) for place in args.runs]
    path, names = args.out or runs[0].folder / "plot.svg", run_names(runs)
    receivers = []
    if args.tensorboard:
        receivers.append(plot_export.TensorBoard(args.tensorboard))
    if args.wandb:
        receivers.append(plot_export.Wandb())

    def redraw():
        save(draw(runs, args), path)
        say(runs, path)
        for receiver in receivers:
            for name, run in zip(names, runs):
                receiver.write(name, run)

    if args.watch:
        watch(runs, redraw)
    else:
        redraw()
    for receiver in receivers:
        print(receiver.where(), flush=True)


if __name__ == "__main__":
    main()
