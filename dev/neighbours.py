#!/usr/bin/env python3
"""This trainer beside a loop in PyTorch in nanoGPT's manner: the same GPT-2 on the same tokens in the same order, from
weights drawn alike; loss curves on one picture, and the time of a step, memory and validation loss in one table.

    pip install torch numpy
    make train_gpt2_cpu tokenize && python3 dev/neighbours.py [--steps 1000] [--threads 2] [--write]

The model is that of scripts/shakespeare_char.sh, on bytes of Shakespeare. Runs are one after the other, in rounds; of
the times the median of the fastest round counts, of the losses the first round's. --write puts table and picture into
dev/MEASURED.md.
"""
import children
import argparse
import os
import pathlib
import re
import statistics
import sys
import time

import charts
import readme
import shakespeare_tokens
import svg

ROOT = pathlib.Path(__file__).resolve().parents[1]
B, T, SHAPE, TORCH_SHAPE = 12, 64, "L4C128H4T64V257", "4,128,4,257"
PICTURE = ROOT / "dev/plots/neighbours.svg"


def commands(args, data):
    common = ["-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "-b", B, "-t", T, "-x", args.steps, "-l", 1e-3, "-v",
              max(1, args.steps // 10), "-m", 40, "--threads", args.threads]
    ours = ["./train_gpt2_cpu", "-e", SHAPE, *common, "-k", "cosine", "-u", max(1, args.steps // 10), "-q", 0.1, "-c",
            0.1, "--shuffle", 0, "-s", 0, "-r", 0, "--precision"]
    theirs = [sys.executable, "dev/torch_train.py", "--shape", TORCH_SHAPE, *common, "--compile"]
    return {"this trainer, fp32": [*ours, "fp32"], "this trainer, bf16": [*ours, "bf16"],
            "PyTorch, fp32": [*theirs, 0], "PyTorch, fp32, compiled": [*theirs, 1]}


def measured(command):
    """Training losses by step, validation losses, the milliseconds of a step, and the peak of memory."""
    output, mib = children.run(command, cwd=ROOT)
    losses = [float(loss) for loss in re.findall(r"^step +\d+/\d+ \| (?:train )?loss ([\d.]+)", output, re.M)]
    times = [float(ms) for ms in re.findall(r"^step .*\| ([\d.]+) ms", output, re.M)]
    held_out = [float(loss) for loss in re.findall(r"^val loss ([\d.]+)", output, re.M)]
    return losses, held_out, statistics.median(times[len(times) // 5:]), mib


def picture(found):
    points = {who: charts.smooth(list(enumerate(losses, 1)), 1 + 2 * (len(losses) // 40))
              for who, (losses, *_) in found.items()}
    steps = max(len(line) for line in points.values())
    values = [y for line in points.values() for _, y in line[len(line) // 50:]]
    panel = charts.Panel(60, 72, 540, 260, (0, steps), charts.around(values))
    panel.frame("training loss, nats a byte", "step")
    for color, line in zip(svg.COLORS, points.values()):
        panel.curve(line, color, 1.4, 0.85)
    panel.parts += charts.legend(60, 18, 540, list(points), svg.COLORS)[0]
    return svg.picture(640, 382, charts.SIZE, panel.parts)


def text_of(args, found):
    name = readme.this_cpu()[1]
    lines = [f"Measured {time.strftime('%Y-%m-%d')} on {name} by `dev/neighbours.py`: {SHAPE}, {args.steps} steps of "
             f"{B} x {T} bytes, {args.threads} threads, {args.rounds} rounds.", "",
             "| | a step | peak memory | validation loss, nats a byte |", "|---|---|---|---|"]
    lines += [f"| {who} | {ms:.2f} ms | {mib:,.0f} MiB | {held_out[-1]:.4f} |"
              for who, (_, held_out, ms, mib) in found.items()]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    children.need("torch", "numpy")
    os.chdir(ROOT)
    found = {}
    data = shakespeare_tokens.made("dev/data/shakespeare_bytes")
    for _ in range(args.rounds):
        for who, command in commands(args, data).items():
            losses, held_out, ms, mib = measured(command)
            first = found.get(who, (losses, held_out, ms, mib))
            found[who] = (first[0], first[1], min(first[2], ms), max(first[3], mib))
            print(f"{who}: {ms:.2f} ms, validation loss {held_out[-1]:.4f}", flush=True)
    text = text_of(args, found)
    print(text)
    if args.write:
        readme.replace(PICTURE, picture(found))
        link = os.path.relpath(PICTURE, ROOT / "dev")
        readme.write_between(ROOT / readme.MEASURED, "neighbours", f"{text}\n\n![Loss curves of both]({link})")


if __name__ == "__main__":
    main()
