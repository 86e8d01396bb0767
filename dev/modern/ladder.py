#!/usr/bin/env python3
"""From the GPT-2 of quickstart to the block of today, one change a rung: each rung's loss at equal time and at equal
tokens, over several seeds.

    make train_gpt2_cpu build/modern tokenize && dev/modern/ladder.py [--minutes 2] [--seeds 3] [--threads 2] [--write]

Every rung is trained on the Shakespeare of the repository with a vocabulary of 4,096 tokens, for so many minutes, with
the same batches, rate and warmup. What it has reached at the end is its loss at equal time; what it had reached after
as many tokens as the slowest run has seen at its end, its loss at equal tokens. Validations count as time, alike for
all. A change that does not help stays in the table. Losses are bits per byte of the validation text: mean of the seeds,
and half the distance between the best and the worst. The rate does not fall, so that a run may end anywhere; a run of
quickstart, whose rate falls, gets further. --write puts the table into dev/MEASURED.md.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import argparse  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import struct  # noqa: E402
import time  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "build/modern_ladder/shakespeare4096"
B, T, VALIDATE, BATCHES = 4, 128, 25, 20
SHAPE = "L4C192H6T128V4096"
WITHOUT = ["--mlp", "gelu", "--norm", "layer", "--positions", "learned"]
RUNGS = [  # the change, the sizes, the flags of all switches; each keeps what the rung above has
    ("GPT-2", SHAPE, None),
    ("no biases", SHAPE, WITHOUT),
    ("rotary positions", SHAPE, WITHOUT[:4]),
    ("RMSNorm", SHAPE, WITHOUT[:2]),
    ("ReLU squared for GELU", SHAPE, ["--mlp", "relu2"]),
    ("SwiGLU for ReLU squared", SHAPE, []),
    ("QK norm", SHAPE, ["--qk-norm", 1]),
    ("2 heads of keys for 6", SHAPE + "K2", ["--qk-norm", 1]),
    ("an untied head", SHAPE + "K2", ["--qk-norm", 1, "--tied", 0]),
    ("a soft cap of 15", SHAPE + "K2", ["--qk-norm", 1, "--tied", 0, "--softcap", 15]),
]


def tokens_per_byte():
    """Of the validation text: its tokens, and the bytes that they stand for."""
    text = pathlib.Path(f"{DATA}_tokenizer.bin").read_bytes()
    lengths, at = [], 1024
    while at < len(text):
        lengths.append(text[at])
        at += 1 + text[at]
    end_of_text = struct.unpack_from("<I", text, 12)[0]
    data = pathlib.Path(f"{DATA}_val.bin").read_bytes()[1024:]
    tokens = struct.unpack(f"<{len(data) // 2}H", data)[1:BATCHES * B * T + 1]
    return len(tokens) / sum(0 if token == end_of_text else lengths[token] for token in tokens)


def run_of(rung, seed, args):
    """[(step, seconds of the run, validation loss)] of one run."""
    _, shape, flags = rung
    program = ROOT / ("train_gpt2_cpu" if flags is None else "build/modern")
    common = ["-e", shape, "-b", B, "-t", T, "-x", 10**6, "--max-minutes", args.minutes, "-k", "constant", "-l", 1e-3,
              "-u", 50, "-v", VALIDATE, "-m", BATCHES, "--seed", seed, "--threads", args.threads,
              "-i", f"{DATA}_train.bin", "-j", f"{DATA}_val.bin"]
    common += ["-s", 0, "--tokenizer", f"{DATA}_tokenizer.bin"] if flags is None else flags
    output, _ = children.run([program, *common], cwd=ROOT)
    found, step = [], 0
    for line in output.splitlines():
        if match := re.match(r"step +(\d+)/", line):
            step = int(match[1])
        if match := re.match(r"val loss ([\d.]+)", line):
            found.append((step, float(match[1])))
    return found


def spread(values):
    return f"{sum(values) / len(values):.4f} ± {(max(values) - min(values)) / 2:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if not pathlib.Path(f"{DATA}_val.bin").exists():
        DATA.parent.mkdir(parents=True, exist_ok=True)
        children.run([ROOT / "tokenize", "--train-vocab", 4096, ROOT / "dev/data/shakespeare", "--val-split", "tail",
                      "-o", DATA], cwd=ROOT)
    bits = tokens_per_byte() / math.log(2)
    runs = {}
    for seed in range(1, args.seeds + 1):  # seeds outside, so that what disturbs the machine disturbs all rungs
        for rung in RUNGS:
            runs[rung[0], seed] = run_of(rung, seed, args)
            step, loss = runs[rung[0], seed][-1]
            print(f"{rung[0]}, seed {seed}: {loss * bits:.4f} bits per byte after {step} steps", flush=True)
    common = min(run[-1][0] for run in runs.values()) // VALIDATE * VALIDATE
    rows = ["| the change | steps | bits per byte at equal time | at equal tokens |", "|---|---|---|---|"]
    for name, *_ in RUNGS:
        own = [runs[name, seed] for seed in range(1, args.seeds + 1)]
        at_end = [run[-1][1] * bits for run in own]
        at_step = [dict(run)[common] * bits for run in own]
        steps = sum(run[-1][0] for run in own) / len(own)
        rows.append(f"| {name} | {steps:.0f} | {spread(at_end)} | {spread(at_step)} |")
    print("\n".join(rows))
    if args.write:
        from readme import MEASURED, this_cpu, write_of_machine
        kind, machine = this_cpu()
        above = (f"Measured {time.strftime('%Y-%m-%d')} on {machine} by `dev/modern/ladder.py`: {args.minutes:g} "
                 f"minutes a run, {args.seeds} seeds, {args.threads} threads, {SHAPE}, -b {B} -t {T}; equal tokens are "
                 f"those of {common} steps.")
        write_of_machine(ROOT / MEASURED, "ladder of changes", kind, "\n".join([above, "", *rows]))


if __name__ == "__main__":
    main()
