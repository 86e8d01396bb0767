#!/usr/bin/env python3
"""How many steps does a model need to reach a loss, for each batch size? Trains a small one on the bytes of Shakespeare
with several batch sizes, and compares the result with the gradient noise scale. The learning rate is searched for each
batch size by factors of two, until neither half the best rate nor twice the best rate needs fewer steps.

    make train_gpt2_cpu tokenize && python3 dev/batch_size.py [--write]

Under 10 minutes on two idle cores. It goes on where it was interrupted. --write keeps the figures in
dev/course/batch-size.json, and puts table and picture into dev/course/19-batch-size.md; --page does so from the
figures that are there.
"""
import children
import argparse
import math
import os
import pathlib
import statistics
import sys

import charts
import readme
import shakespeare_tokens
import svg
import sweep
from run_data import Run

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL, T, TARGET = "L2C64H2T64", 64, 2.4
TOKENS = {128: 700_000, 512: 900_000, 2048: 1_200_000, 8192: 2_500_000, 32768: 4_500_000}  # of a run, by batch
USUAL = 2e-3  # where the search begins with batches of 2048 tokens; it rises with the square root of the batch
VALIDATE_EVERY = 32768  # tokens, or each step


def rate_of(batch, power):
    return f"{USUAL * math.sqrt(batch / 2048) * 2 ** power:.2g}"


def flags_of(batch, rate, tokens, scale):
    """A run on so many tokens. Micro-batches are half of a step or less, as the noise scale needs two."""
    micro, steps = min(16, batch // T // 2), max(4, int(tokens * scale) // batch)
    windows = max(32, int(512 * min(1, scale)))
    return [("-d", str(batch)), ("-b", str(micro)), ("-l", rate), ("-x", str(steps)),
            ("-v", str(max(1, int(VALIDATE_EVERY * min(1, scale)) // batch))), ("-m", str(windows // 4))]


def steps_to(target, losses):
    """Where the validation losses [(step, loss)] first reach the target, between two of them; None if they do not."""
    for (before, above), (step, loss) in zip(losses, losses[1:]):
        if loss <= target < above:
            return before + (step - before) * (above - target) / (above - loss)
    return None


def noise_scale(values, steps):
    """The median in the second half of a run; None if most of its steps have none, as no estimate is positive."""
    late = [value for step, value in values if step >= steps / 2 and math.isfinite(value)]
    return statistics.median(late) if len(late) > steps / 4 else None


def measure(folder, batch, rate, trial, target, tokens):
    series = Run(folder / sweep.folder_of(trial)).series
    steps = steps_to(target, series.get("val_loss", []))
    return {"batch": batch, "rate": float(rate), "steps": steps,
            "noise_scale": noise_scale(series.get("noise_scale", []), tokens // batch)}


def fit(points):
    """S = S_min + E_min / B by least squares of the relative errors; (batch, steps) of each point."""
    rows = [((1 / s, 1 / (b * s)), 1) for b, s in points]
    aa, ab, bb = (sum(r[i] * r[j] for r, _ in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    ya, yb = (sum(r[i] * y for r, y in rows) for i in (0, 1))
    det = aa * bb - ab * ab
    return ((ya * bb - yb * ab) / det, (yb * aa - ya * ab) / det) if det > 1e-9 * aa * bb else (math.nan, math.nan)


def run_all(args):
    folder = args.folder.resolve()
    os.chdir(ROOT)
    folder.mkdir(parents=True, exist_ok=True)
    data = shakespeare_tokens.made(folder / "bytes")
    command = ["./train_gpt2_cpu", "-e", MODEL, "-t", T, "-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "-s", 0,
               "-k", "constant", "-u", 20, "--noise-scale", 1]
    runs = sweep.Sweep(folder / "runs", command)
    steps, measured = {batch: {} for batch in args.batches}, []  # steps by power of 2

    def to_try():
        return [(batch, power) for batch in steps for power in sweep.next_to_try(steps[batch], 0, args.most)]

    while places := to_try():
        trials = [flags_of(batch, rate_of(batch, power), TOKENS[batch], args.scale) for batch, power in places]
        runs.run_all(trials[::-1])  # the longest first
        for (batch, power), trial in zip(places, trials):
            run = measure(folder / "runs", batch, rate_of(batch, power), trial, args.target,
                          int(TOKENS[batch] * args.scale))
            measured.append(run)
            steps[batch][power] = math.inf if run["steps"] is None else run["steps"]
    return {"model": MODEL, "T": T, "target": args.target, "cpu": readme.this_cpu()[1],
            "runs": sorted(measured, key=lambda run: (run["batch"], run["rate"]))}


def best_of(figures):
    """Of each batch size the run that reached the target in the fewest steps."""
    best = {}
    for run in figures["runs"]:
        if run["steps"] is not None and run["steps"] < best.get(run["batch"], {"steps": math.inf})["steps"]:
            best[run["batch"]] = run
    return [best[batch] for batch in sorted(best)]


def text_of(figures):
    best = best_of(figures)
    lines = ["| tokens per step | best learning rate | steps to the loss | tokens to the loss | gradient noise scale |",
             "|---|---|---|---|---|"]
    for run in best:
        noise = "" if run["noise_scale"] is None else f"{run['noise_scale']:,.0f}"
        lines.append(f"| {run['batch']:,} | {run['rate']:g} | {run['steps']:,.0f} | {run['steps'] * run['batch']:,.0f} "
                     f"| {noise} |")
    missed = sorted({r["batch"] for r in figures["runs"]} - {r["batch"] for r in best})
    if missed:
        lines += ["", f"Not reached with batches of {', '.join(f'{b:,}' for b in missed)} tokens."]
    lines += ["", f"Model {figures['model']}, a validation loss of {figures['target']} per byte, on {figures['cpu']}."]
    least, tokens = fit([(r["batch"], r["steps"]) for r in best]) if len(best) > 2 else (math.nan, math.nan)
    if least > 0 and tokens > 0:
        lines += [f"The curve in the picture is S = {least:,.0f} + {tokens:,.0f} / B: at least {least:,.0f} steps,",
                  f"at least {tokens:,.0f} tokens, and a critical batch size of {tokens / least:,.0f} tokens."]
    return "\n".join(lines)


def picture(figures):
    """Steps to the loss against tokens per step, both logarithmic: each run, the best ones, and the fitted curve."""
    runs, best = [r for r in figures["runs"] if r["steps"] is not None], best_of(figures)
    xs, ys = [math.log10(r["batch"]) for r in runs], [r["steps"] for r in runs]
    panel = charts.Panel(80, 40, 480, 260, charts.around(xs), charts.around(ys, log=True), log=True)
    panel.frame(f"steps to a loss of {figures['target']}", "tokens per step", x_text=None)
    sweep.mark_x(panel, [(math.log10(batch), f"{batch:,}") for batch in sorted({r["batch"] for r in runs})])
    panel.marks(list(zip(xs, ys)), svg.LINES)
    panel.marks([(math.log10(r["batch"]), r["steps"]) for r in best], svg.COLORS[0])
    least, tokens = fit([(r["batch"], r["steps"]) for r in best]) if len(best) > 2 else (math.nan, math.nan)
    if least > 0 and tokens > 0:
        places = [min(xs) + (max(xs) - min(xs)) * i / 60 for i in range(61)]
        panel.curve([(x, least + tokens / 10 ** x) for x in places], svg.COLORS[1])
    noise = sorted(r["noise_scale"] for r in best if r["noise_scale"] is not None)
    if noise and min(xs) <= math.log10(noise[len(noise) // 2]) <= max(xs):
        x = panel.x(math.log10(noise[len(noise) // 2]))
        panel.parts += [svg.line([(x, 40), (x, 300)], svg.COLORS[2], 1.2, dash="4 3"),
                        svg.text(x + 6, 56, "gradient noise scale", color=svg.COLORS[2])]
    return svg.picture(640, 350, charts.SIZE, panel.parts)


COURSE = ROOT / "dev/course"
SHOWN = readme.Shown(COURSE / "batch-size.json", COURSE / "19-batch-size.md", "batch size",
                     COURSE / "pictures/batch-size.svg", "Steps to a loss, by batch size", text_of, picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/batch_size")
    parser.add_argument("--batches", type=int, nargs="+", default=list(TOKENS), choices=list(TOKENS))
    parser.add_argument("--scale", type=float, default=1, help="of the tokens of all runs: below 1 to try the script")
    parser.add_argument("--most", type=int, default=9, help="learning rates tried for each batch size")
    parser.add_argument("--target", type=float, default=TARGET, help="the validation loss to reach")
    SHOWN.add_flags(parser)
    args = parser.parse_args()
    if args.page:
        return SHOWN.make_page()
    figures = run_all(args)
    if not best_of(figures):
        sys.exit(f"no run reached a loss of {args.target}; a higher --target is accepted")
    SHOWN.show(figures, args.write)


if __name__ == "__main__":
    main()
