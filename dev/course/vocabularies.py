#!/usr/bin/env python3
"""Vocabularies of several sizes: what a model gains by a larger one, and what its steps cost. For chapter 2.

    make train_gpt2_cpu tokenize data && dev/course/vocabularies.py       # writes dev/course/vocabularies.json
    dev/course/pictures.py vocabularies                                   # draws it

    dev/course/vocabularies.py 1024 2048     these sizes only; 50257 is GPT-2's own vocabulary
    dev/course/vocabularies.py --times       only the times of steps, on a machine that does nothing else
    dev/course/vocabularies.py --losses      only the losses; how many steps fit a time is known from before

For each size the vocabulary is learned from dev/data/shakespeare. The model of `make quickstart` is trained with its
flags, once for --steps steps, once for as many as take --seconds; then the whole validation split is evaluated. Times
of steps are medians.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import children  # noqa: E402
import shakespeare_tokens  # noqa: E402
import argparse  # noqa: E402
import csv  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import re  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402

SIZES, GPT2 = [257, 512, 1024, 2048, 4096, 8192, 16384, 50257], 50257
BATCH, LENGTH = 8, 128
MODEL, RULE = "L4C192H6T128", ["-l", 3e-3, "-u", 50, "-q", 0.05, "-c", 0.1]
WARM = 3  # steps before those that are timed


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--timed-steps", type=int, default=20)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "dev/course/vocabularies.json")
    return parser.parse_args()


def data_of(size, folder):
    """The flags that name the token files of a size; they are made in the folder, GPT-2's by `make data`."""
    prefix = "dev/data/shakespeare" if size == GPT2 else f"{folder}/{size}"
    if size != GPT2:
        shakespeare_tokens.made(prefix, ("--train-vocab", size))
    return ["-i", f"{prefix}_train.bin", "-j", f"{prefix}_val.bin"]


def train(model, data, args, *flags):
    """What a run prints."""
    command = ["./train_gpt2_cpu", "-e", model, "-b", BATCH, "-t", LENGTH, "-r", 0, *data, "-s", 0, "--precision",
               args.precision]
    return children.run([*command, *flags], cwd=ROOT)[0]


def learned(data, args, folder, steps):
    output = train(MODEL, data, args, *RULE, "-x", steps, "-v", 0, "-o", folder)
    parameters = int(re.search(r"([\d,]+) parameters", output)[1].replace(",", ""))
    whole_split = train(folder, data, args, "-x", 0, "-m", -1)
    loss, bits = (float(re.search(rf"^{name} ([\d.]+)$", whole_split, re.M)[1])
                  for name in ("val loss", "bits per byte"))
    return {"parameters": parameters, "steps": steps, "val_loss": loss, "bits_per_byte": bits,
            "bytes_per_token": round(loss / math.log(2) / bits, 3)}


def timed(data, args, folder):
    output = train(MODEL, data, args, *RULE, "-x", WARM + args.timed_steps, "-v", 0, "-o", folder)
    with open(f"{folder}/metrics.csv") as file:
        times = [float(row["step_ms"]) for row in csv.DictReader(file)]
    return {"step_ms": round(statistics.median(times[WARM:]), 2),
            "device": re.search(r"^device: (.*?),? \d+ threads?$", output, re.M)[1]}


def main():
    args = arguments()
    rows = {}
    if args.json.exists():
        rows = {row["size"]: row for row in json.loads(args.json.read_text())}
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            data, row = data_of(size, folder), rows.setdefault(size, {"size": size, "step_tokens": BATCH * LENGTH})
            if not args.losses:
                row.update(timed(data, args, f"{folder}/timed"))
            if not args.times:
                steps = max(1, round(1e3 * args.seconds / row["step_ms"]))
                row.update(learned(data, args, f"{folder}/same_steps", args.steps))
                row["same_time"] = {"seconds": args.seconds, **learned(data, args, f"{folder}/same_time", steps)}
        print(json.dumps(row), flush=True)
        args.json.write_text("[\n" + ",\n".join(json.dumps(rows[size]) for size in sorted(rows)) + "\n]\n")


if __name__ == "__main__":
    main()
