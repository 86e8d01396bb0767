#!/usr/bin/env python3
"""What loss does a model of N parameters reach after S tokens? Trains models of several sizes on the bytes of
Shakespeare, at each of several budgets of computation (iso-FLOP: a larger model sees fewer tokens), and fits

    L(N, S) = E + A / N^alpha + B / S^beta          (Hoffmann et al. 2022, arXiv:2203.15556, equations 2 and 3)

N counts parameters without positions, S the tokens trained on. The fit minimises Hoffmann's Huber loss of log L from
many starting points; its range is that of fits to runs drawn again with replacement (bootstrap).

    pip install numpy scipy
    make train_gpt2_cpu tokenize && python3 dev/scaling.py [--write]

Within two hours on two idle cores; it goes on where it was interrupted. --write keeps the figures in
dev/course/scaling.json, puts tables and picture into dev/course/34-scaling.md, and the fit into
llmc/plan/expected_loss.h, from which --plan says what loss to expect; --page does so from the figures that are there.
"""
import children
import argparse
import functools
import itertools
import json
import math
import os
import pathlib
import re
import sys
import textwrap
import time

import charts
import readme
import shakespeare_tokens
import svg
import sweep
from run_data import Run

ROOT = pathlib.Path(__file__).resolve().parents[1]
COURSE, HEADER = ROOT / "dev/course", ROOT / "llmc/plan/expected_loss.h"
T, WINDOWS = 128, 8  # a step has 1,024 tokens
SIZES = ["L2C32H2", "L2C48H3", "L3C64H4", "L3C80H5", "L3C96H3", "L4C128H4", "L5C192H6", "L6C256H8"]
BUDGETS = [1e12, 3e12, 1e13]  # FLOPs of a run
# In its first hundreds of steps a model learns little but pairs of bytes: runs that end there follow no power law. Up
# to about 4 epochs repeated data are nearly as good as new (Muennighoff et al. 2023).
FEWEST_STEPS, MOST_EPOCHS = 1200, 4.5
HUBER, REDRAWN, WITHIN = 1e-3, 16, 3  # delta of the Huber loss; bootstrap fits; how far beyond its runs a fit is used


def channels(size):
    return int(re.search(r"C(\d+)", size)[1])


def rate_of(size):
    """The best constant times 1 / C, by trying factors of two with 48 and 128 channels."""
    return f"{0.4 / channels(size):.3g}"


@functools.lru_cache(None)
def shape(size):
    """Parameters without positions, and FLOPs of a step, as --plan counts them."""
    plan = children.run(["./train_gpt2_cpu", "--plan", "-e", f"{size}T{T}V257", "-b", WINDOWS, "-t", T], cwd=ROOT)[0]
    parameters = int(re.search(r"(\d+) parameters$", plan, re.M)[1])
    return parameters - T * channels(size), float(re.search(r"FLOPs a step: (\S+)", plan)[1])


def trials(budgets, fewest_steps, train_tokens):
    """{flags: (size, N, tokens, budget)} of all runs."""
    wanted = []
    for budget in budgets:
        for size in SIZES:
            parameters, flops = shape(size)
            steps = round(budget / flops)
            if steps >= fewest_steps and steps * WINDOWS * T <= MOST_EPOCHS * train_tokens:
                flags = [("-e", f"{size}T{T}"), ("-l", rate_of(size)), ("-x", str(steps)), ("-v", str(steps)),
                         ("-u", str(steps // 10))]
                wanted.append((flags, {"size": size, "N": parameters, "S": steps * WINDOWS * T, "budget": budget}))
    return wanted


def run_all(args):
    os.chdir(ROOT)
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    data = shakespeare_tokens.made(folder / "bytes")
    train_tokens = (pathlib.Path(f"{data}_train.bin").stat().st_size - 1024) // 2
    command = ["./train_gpt2_cpu", "-b", WINDOWS, "-t", T, "-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "-s", 0,
               "-k", "cosine", "-q", 0.1, "-c", 0.1, "-m", args.val_batches]
    wanted = trials(args.budgets, args.fewest_steps, train_tokens)
    if len(wanted) < 3:
        sys.exit(f"{len(wanted)} runs fit the budgets; 3 or more are accepted: budgets, --fewest-steps")
    sweep.Sweep(folder / "runs", command).run_all([flags for flags, _ in wanted])
    runs = []
    for flags, run in wanted:
        losses = Run(folder / "runs" / sweep.folder_of(flags)).series["val_loss"]
        runs.append({**run, "loss": losses[-1][1]})
    return {"date": time.strftime("%Y-%m-%d"), "cpu": readme.this_cpu()[1], "T": T, "tokens": train_tokens,
            "runs": runs, "fits": fits(runs)}


def predicted(constants, N, S):
    E, A, alpha, B, beta = constants
    return E + A / N ** alpha + B / S ** beta


def minimum(runs, starts=None):
    """log A, log B, log E, alpha, beta: the Huber loss of Hoffmann et al. 2022, appendix D.2, from several points."""
    import numpy as np
    from scipy.optimize import least_squares
    from scipy.special import logsumexp
    log_N, log_S, log_L = (np.log([run[key] for run in runs]) for key in ("N", "S", "loss"))

    def apart(p):
        return logsumexp([p[0] - p[3] * log_N, p[1] - p[4] * log_S, np.full_like(log_N, p[2])], axis=0) - log_L

    starts = starts or list(itertools.product((2, 8), (2, 8), (-1, 0.3), (0.4,), (0.4,)))
    bounds = ([-5, -5, -3, 0, 0], [20, 20, 2, 2, 2])
    found = [least_squares(apart, start, bounds=bounds, loss="huber", f_scale=HUBER, x_scale="jac", max_nfev=500)
             for start in starts]
    return min(found, key=lambda r: r.cost).x.tolist()


def constants_of(p):
    return [math.exp(p[2]), math.exp(p[0]), p[3], math.exp(p[1]), p[4]]


def fits(runs):
    """E, A, alpha, B, beta of all runs, then of as many runs drawn with replacement: how far chance moves the fit."""
    import numpy as np
    random, best = np.random.default_rng(1), minimum(runs)
    drawn = [[runs[i] for i in random.integers(len(runs), size=len(runs))] for _ in range(REDRAWN)]
    return [constants_of(p) for p in [best, *(minimum(each, [best, [3, 5, 0.2, 0.4, 0.4]]) for each in drawn)]]


def spread(figures):
    """How far runs are from the fit, relative: the root of the mean square, with as many degrees fewer as constants."""
    first = figures["fits"][0]
    apart = [math.log(run["loss"] / predicted(first, run["N"], run["S"])) for run in figures["runs"]]
    return math.sqrt(sum(a * a for a in apart) / max(1, len(apart) - len(first)))


def best_size(runs):
    """N at the minimum of the parabola of the loss over log N, with the loss there; None if it has none between."""
    import numpy as np
    x, y = np.log([run["N"] for run in runs]), np.array([run["loss"] for run in runs])
    if len(runs) < 3:
        return None
    a, b, c = np.polyfit(x, y, 2)
    at = -b / (2 * a)
    return (math.exp(at), c - b * b / (4 * a)) if a > 0 and x.min() <= at <= x.max() else None


def by_budget(figures):
    groups = {}
    for run in figures["runs"]:
        groups.setdefault(run["budget"], []).append(run)
    return groups


def optimum(constants, budget):
    """N and S with 6 N S = budget at which the fitted loss is least (equation 4 there)."""
    _, A, alpha, B, beta = constants
    G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    return G * (budget / 6) ** (beta / (alpha + beta)), (budget / 6) ** (alpha / (alpha + beta)) / G


def ranges(fits):
    """What constants and losses the fits to runs drawn again have."""
    def text(values, digits):
        return f"{min(values):.{digits}f} to {max(values):.{digits}f}"
    E, alpha, beta = (text([constants[i] for constants in fits], 2) for i in (0, 2, 4))
    losses = text([predicted(constants, 4e5, 3e6) for constants in fits], 2)
    return (f"Fits to runs drawn again have E from {E}, alpha from {alpha}, beta from {beta}; but 400,000 parameters "
            f"after 3 million tokens have a loss from {losses} in all of them.")


def text_of(figures):
    E, A, alpha, B, beta = figures["fits"][0]
    lines = [f"Measured {figures['date']} on {figures['cpu']} by `dev/scaling.py`: {len(figures['runs'])} runs on the "
             f"{figures['tokens']:,} bytes of Shakespeare's plays that are for training.", "",
             "| FLOPs of a run | model | N | S | validation loss | of the fit |", "|---|---|---|---|---|---|"]
    lines += [f"| {run['budget']:.0e} | {run['size']} | {run['N']:,} | {run['S']:,} | {run['loss']:.4f} | "
              f"{predicted(figures['fits'][0], run['N'], run['S']):.4f} |" for run in figures["runs"]]
    lines += ["", f"The fit: L = {E:.3f} + {A:.3g} / N^{alpha:.3f} + {B:.3g} / S^{beta:.3f}; runs are "
              f"{100 * spread(figures):.1f}% from it. Hoffmann et al. found, in nats a token of web text, "
              "1.69 + 406.4 / N^0.34 + 410.7 / S^0.28.", "", ranges(figures["fits"]), "",
              "| FLOPs | best N of the runs | loss there | best N of the fit | its S / N |", "|---|---|---|---|---|"]
    for budget, runs in by_budget(figures).items():
        best, (N, S) = best_size(runs), optimum(figures["fits"][0], budget)
        lines.append(f"| {budget:.0e} | " + (f"{best[0]:,.0f} | {best[1]:.3f}" if best else "at an end | ") +
                     f" | {N:,.0f} | {S / N:,.0f} |")
    return "\n".join(line if line.startswith("|") else textwrap.fill(line, 120) for line in lines)


def picture(figures):
    """The losses of each budget over N, with the curves of the fit."""
    xs, ys = zip(*((math.log10(run["N"]), run["loss"]) for run in figures["runs"]))
    panel = charts.Panel(80, 40, 480, 280, charts.around(xs), charts.around(ys))
    panel.frame("validation loss, nats a byte", "parameters", x_text=None)
    sweep.mark_x(panel, sweep.log_marks(10 ** min(xs), 10 ** max(xs)))
    groups = by_budget(figures)
    for color, runs in zip(svg.COLORS, groups.values()):
        points = [(math.log10(run["N"]), run["loss"]) for run in runs]
        panel.marks(points, color)
        fitted = [(x, predicted(figures["fits"][0], run["N"], run["S"])) for (x, _), run in zip(points, runs)]
        panel.curve(fitted, color)
    panel.parts += charts.legend(80, 20, 480, [f"{budget:.0e} FLOPs" for budget in groups], svg.COLORS)[0]
    return svg.picture(640, 370, charts.SIZE, panel.parts)


def write_header(figures):
    """The fits as a table of C++, between the marks in llmc/plan/expected_loss.h."""
    def most(key):
        return max(run[key] for run in figures["runs"])
    rows = "\n".join("    {" + ", ".join(f"{value:.5g}" for value in constants) + "}," for constants in figures["fits"])
    text = (f"// {len(figures['runs'])} runs of {figures['date']} by dev/scaling.py, the first of all, the others of "
            f"runs drawn again.\nconstexpr LossFit LOSS_FITS[] = {{\n{rows}\n}};\n"
            f"constexpr double LOSS_FIT_SPREAD = {spread(figures):.4f};  // of runs around the fit, relative\n"
            f"constexpr int LOSS_FIT_RUNS = {len(figures['runs'])};\n"
            f"constexpr double LOSS_FIT_MOST_N = {WITHIN * most('N'):.3g};  // near the runs\n"
            f"constexpr double LOSS_FIT_MOST_S = {WITHIN * most('S'):.3g};\n"
            f"constexpr double LOSS_FIT_LEAST_S = {min(run['S'] for run in figures['runs']):.3g};\n"
            f'constexpr const char* LOSS_FIT_DATE = "{figures["date"]}";\n')
    source = HEADER.read_text()
    begin, end = "// fits begin\n", "// fits end\n"
    readme.replace(HEADER, source[:source.index(begin) + len(begin)] + text + source[source.index(end):])


SHOWN = readme.Shown(COURSE / "scaling.json", COURSE / "34-scaling.md", "scaling", COURSE / "pictures/scaling.svg",
                     "Loss by size, for several budgets", text_of, picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/scaling")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS, help="FLOPs of a run")
    parser.add_argument("--fewest-steps", type=int, default=FEWEST_STEPS, help="of a run")
    parser.add_argument("--val-batches", type=int, default=200)
    SHOWN.add_flags(parser)
    args = parser.parse_args()
    if not args.page:
        SHOWN.show(run_all(args), args.write)
    else:
        SHOWN.make_page()
    if args.write or args.page:
        write_header(json.loads(SHOWN.figures.read_text()))


if __name__ == "__main__":
    main()
