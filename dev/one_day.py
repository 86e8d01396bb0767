#!/usr/bin/env python3
"""One day, one GPU: which GPT-2 to train with so many hours of it, by what a step is modelled to take and by the form
of the scaling laws.

    make train_gpt2sim && python3 dev/one_day.py [--device "RTX 4090"] [--hours 24] [--price 0.4] [--write]

Steps are those of the step model in dev/MEASURED.md, short, expected and long; memory and flags are checked by --plan.
The loss is that of two published fits of L(N, D) = E + A / N^alpha + B / D^beta, of web text: the fit of dev/scaling.py
is of the bytes of Shakespeare and of runs a million times smaller, and is only asked what it would say of the size.
--write puts the section into dev/course/34-scaling.md.
"""
import children
import argparse
import json
import math
import pathlib
import re
import textwrap

import readme
import scaling

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "dev/course/34-scaling.md"
SHAPES = {"124M": "d12", "350M": "d24", "774M": "d36", "1558M": "d48"}
STEP_TOKENS, CONTEXT = 2 ** 19, 1024
# Hoffmann et al. 2022, and Besiroglu et al. 2024: the same points, fitted anew
FITS = [(1.69, 406.4, 0.34, 410.7, 0.28), (1.8172, 482.01, 0.3478, 2085.43, 0.3658)]


def modelled(device):
    """{size: (B, ms short, expected, long)} of the batch with the most tokens a second, of the step model."""
    rows = re.findall(rf"^\| {re.escape(device)} \| (\w+) \| (\d+) \| ([\d.,]+) \| ([\d.,]+) \| ([\d.,]+) \|",
                      (ROOT / readme.MEASURED).read_text(), re.M)
    best = {}
    for size, batch, *times in rows:
        found = (int(batch), *(float(ms.replace(",", "")) for ms in times))
        if size in SHAPES and (size not in best or found[2] / found[0] < best[size][2] / best[size][0]):
            best[size] = found
    if not best:
        raise SystemExit(f"--device {device}: {readme.MEASURED} has no step of it; the devices of its step model are "
                         "accepted")
    return best


def plan(args, size, batch, steps):
    """Parameters without positions, the GiB that a process needs, and whether that fits."""
    command = [args.program, "--plan", "-e", SHAPES[size], "-b", batch, "-t", CONTEXT, "-d", STEP_TOKENS, "-x", steps,
               "-r", args.recompute, "--device", args.device]
    text = children.run(command, cwd=ROOT)[0]
    parameters = int(re.search(r"(\d+) parameters$", text, re.M)[1])
    channels = int(re.search(r"^model: L \d+, C (\d+)", text, re.M)[1])
    gib = float(re.search(r"peak of a process: ([\d.]+) GiB", text)[1])
    return parameters - CONTEXT * channels, gib, f"fits {args.device}" in text


def candidates(args):
    found = []
    for size, (batch, *times) in modelled(args.device).items():
        steps = [int(args.hours * 3.6e6 / (ms * STEP_TOKENS / (batch * CONTEXT))) for ms in times]
        N, gib, fits = plan(args, size, batch, steps[1])
        losses = sorted(scaling.predicted(fit, N, count * STEP_TOKENS) for fit in FITS for count in steps)
        expected = sum(scaling.predicted(fit, N, steps[1] * STEP_TOKENS) for fit in FITS) / len(FITS)
        found.append({"size": size, "batch": batch, "ms": times, "steps": steps, "N": N, "gib": gib, "fits": fits,
                      "loss": expected, "low": losses[0], "high": losses[-1]})
    return found


def section(args):
    found = candidates(args)
    fitting = [one for one in found if one["fits"]]
    if not fitting:
        raise SystemExit(f"no modelled step fits {args.device}; a larger --recompute is accepted")
    best = min(fitting, key=lambda one: one["loss"])
    steps, warmup = best["steps"][1], max(1, round(best["steps"][1] * 700 / 19073))
    tokens, micro_steps = steps * STEP_TOKENS, STEP_TOKENS // (best["batch"] * CONTEXT)
    own = json.loads(scaling.SHOWN.figures.read_text())["fits"][0]
    own_N, own_D = scaling.optimum(own, 6 * best["N"] * tokens)
    rows = [f"By `dev/one_day.py --device \"{args.device}\" --hours {args.hours:g} --price {args.price:g}`. No run of "
            "it has been made: steps are modelled, losses are those of two published fits.", "",
            f"| size | -b | a step of {STEP_TOKENS:,} tokens | tokens in {args.hours:g} hours | GPU memory | "
            "loss, nats a token |", "|---|---|---|---|---|---|"]
    for one in found:
        seconds = [ms * STEP_TOKENS / (one["batch"] * CONTEXT) / 1e3 for ms in one["ms"]]
        memory = f"{one['gib']:.1f} GiB" + ("" if one["fits"] else ", too much")
        rows.append(f"| {one['size']} | {one['batch']} | {seconds[1]:.2f} s ({seconds[0]:.2f} to {seconds[2]:.2f}) | "
                    f"{one['steps'][1] * STEP_TOKENS / 1e9:.1f} billion | {memory} | {one['loss']:.2f} "
                    f"({one['low']:.2f} to {one['high']:.2f}) |")
    rows += ["", f"So {best['size']} for {steps:,} steps, {tokens / 1e9:.1f} billion tokens, {micro_steps} micro-steps "
             f"each; {args.hours:g} hours at {args.price:g} an hour cost {args.hours * args.price:.2f}:", "",
             "    python3 dev/data/get.py fineweb10B",
             f"    make train_gpt2cu && scripts/run_gpt2_{best['size']}.sh -b {best['batch']} -r {args.recompute} "
             f"-x {steps} -u {warmup} -o log_one_day", "",
             "The loss is of another text, in other tokens: what carries over is which size is best, and how little "
             "the next ones lose. Our own fit, of runs "
             f"{round(math.log10(6 * best['N'] * tokens / 1e13))} powers of ten smaller, would have said "
             f"{own_N / 1e6:,.0f} million parameters and {own_D / 1e9:,.1f} billion tokens for the same computation, "
             "which shows how far a fit carries."]
    return "\n".join(row if row.startswith(("|", " ")) else textwrap.fill(row, 120) for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="RTX 4090")
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--price", type=float, default=0.4, help="of an hour")
    parser.add_argument("--recompute", type=int, default=0, help="-r of the run")
    parser.add_argument("--program", default="./train_gpt2sim", help="whose --plan says what fits")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = section(args)
    print(text)
    if args.write:
        readme.write_between(PAGE, "one day", text)


if __name__ == "__main__":
    main()
