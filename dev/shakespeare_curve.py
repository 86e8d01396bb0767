#!/usr/bin/env python3
"""A short run on the works of Shakespeare, one token per byte, whose losses a GPU must repeat.

    make train_gpt2_cpu tokenize && python3 dev/shakespeare_curve.py   # writes dev/test/fixtures/shakespeare_curve.json

The losses of every step are those of the CPU trainer in fp32 and in bf16. Another device rounds differently, and the
difference grows from step to step: two runs that round differently differ in a step about as much as these two do. So
the tolerance of step s is MARGIN times the largest difference between fp32 and bf16 in any step up to s + 20, and at
least LEAST. A run with a mistake differs by more: the loss falls by 2 in the first 30 steps, and one that lost ten
updates is told from a right one (dev/test/gpu_day.sh).
"""
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

import children
import csv
import json
import pathlib
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
CURVE = ROOT / "dev/test/fixtures/shakespeare_curve.json"
FLAGS = ["-e", "L4C128H4T64", "-b", 16, "-t", 64, "-d", 1024, "-x", 300, "-l", 1e-3, "-u", 20, "-q", 0.1, "-c", 0.1,
         "-v", 0, "-s", 0]
MARGIN, LEAST, AHEAD = 4, 0.005, 20


def make_data(tokenize, folder):
    """The shards of bytes, in the folder; returns the training shard."""
    texts = sorted((ROOT / "dev/data/shakespeare").glob("*.txt"))
    children.run([tokenize, "--bytes", 1, *texts, "--val-split", "tail", "-o", f"{folder}/bytes"], cwd=ROOT)
    return pathlib.Path(folder) / "bytes_train.bin"


def losses_of(folder):
    """The losses of all steps that a run's folder has."""
    with open(pathlib.Path(folder) / "metrics.csv") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def wrong_step(losses, precision):
    """The first step whose loss is not the recorded one, as a sentence; None if there is none."""
    curve = json.loads(CURVE.read_text())
    spread = [abs(a - b) for a, b in zip(curve["fp32"], curve["bf16"])]
    if not losses:
        return "there are no losses"
    for step, loss in enumerate(losses):
        tolerance = max(LEAST, MARGIN * max(spread[:step + AHEAD]))
        if not abs(loss - curve[precision][step]) <= tolerance:
            return (f"step {step + 1}: loss {loss:.4f}, on a CPU {curve[precision][step]:.4f}, tolerance "
                    f"{tolerance:.4f}")
    return None


def main():
    curve = {"flags": " ".join(map(str, FLAGS))}
    with tempfile.TemporaryDirectory() as folder:
        data = make_data("./tokenize", folder)
        for precision in ("fp32", "bf16"):
            print(f"recording {precision}", file=sys.stderr)
            children.run(["./train_gpt2_cpu", "-i", data, "-j", data, *FLAGS, "--precision", precision, "-o",
                          f"{folder}/{precision}"], cwd=ROOT)
            curve[precision] = [round(loss, 4) for loss in losses_of(f"{folder}/{precision}")]
    lines = [f' "{key}": {json.dumps(value)}' for key, value in curve.items()]
    CURVE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
