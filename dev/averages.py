#!/usr/bin/env python3
"""What averages of the weights buy at the end of a run: --ema, and the mean of the last checkpoints (dev/average.py).

    pip install numpy && make train_gpt2_cpu tokenize && python3 dev/averages.py [--write]

Trains a small model on the bytes of Shakespeare with several seeds, at a learning rate that stays as it is and at one
that falls, and validates the last weights and their averages. A run that is there, in build/averages, is not run again;
remove the folder if the trainer's results have changed. --write puts the table into dev/course/18-optimizers.md.
"""
import children
import argparse
import pathlib
import re
import statistics
import sys

import readme
import shakespeare_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "dev/course/18-optimizers.md"
MODEL, B, T, VAL_BATCHES, SEEDS = "L6C64H2T64", 8, 64, 100, (42, 1, 2)
RATES = {"constant": ["-k", "constant"], "falling to 0.1": ["-k", "cosine", "-q", 0.1]}
DECAYS, CHECKPOINTS = (0.9, 0.98), 5
WEIGHTS, MEAN = "the last weights", f"mean of the last {CHECKPOINTS} checkpoints"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/averages")
    parser.add_argument("--write", action="store_true", help="into the chapter")
    return parser.parse_args()


def common(args):
    data = shakespeare_tokens.made(args.folder.resolve() / "bytes")
    return ["./train_gpt2_cpu", "-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "--tokenizer",
            f"{data}_tokenizer.bin", "-b", B, "-t", T, "-m", VAL_BATCHES, "-s", 0, "--threads", args.threads]


def last_losses(text):
    return {what: float(re.findall(rf"^{what} (\d\S+)", text, re.M)[-1])
            for what in ("val loss", "val loss of the average") if f"\n{what} " in text}


def losses_of(args, rate, seed):
    """Validation losses at the end: {kind: loss}. Checkpoints are a fiftieth of the run apart."""
    every = args.steps // 50
    command = [str(part) for part in (
        *common(args), "-e", args.model, "-d", B * T, "-x", args.steps, "-l", 2e-3, "-u", args.steps // 10, "-c", 0.1,
        "-v", args.steps, "-n", every, "-nk", CHECKPOINTS, "--overwrite", 1, "--seed", seed, *RATES[rate])]
    return readme.kept(args.folder / f"{rate.split()[0]}_{seed}.json", command,
                       lambda: measured(args, command, every))


def measured(args, command, every):
    losses = {}
    for decay in DECAYS:
        out = args.folder / f"run_{decay}"
        text, _ = children.run([*command, "--ema", decay, "-o", out], cwd=ROOT)
        ended = last_losses(text)
        assert losses.get(WEIGHTS, ended["val loss"]) == ended["val loss"], "--ema changes the weights"
        losses[WEIGHTS], losses[f"`--ema {decay}`"] = ended["val loss"], ended["val loss of the average"]
    models = [out / f"model_{step:08}.bin" for step in range(args.steps, 0, -every)[:CHECKPOINTS]]
    mean = args.folder / "mean.bin"
    children.run([sys.executable, "dev/average.py", mean, *models], cwd=ROOT)
    text, _ = children.run([*common(args), "-e", mean, "-x", 0, "-v", 1], cwd=ROOT)
    losses[MEAN] = last_losses(text)["val loss"]
    return losses


def table(args):
    lines = [f"{args.model}, {args.steps} steps of {B * T} bytes of Shakespeare, {len(args.seeds)} seeds: the mean of "
             f"the validation losses, and how far the lowest and the highest are apart; below the last weights, by how "
             "much an average is better, in the mean and for the seed for which it is least so. Checkpoints are "
             f"{args.steps // 50} steps apart.", "", f"| | {' | '.join(f'rate {rate}' for rate in RATES)} |",
             f"|---|{'---|' * len(RATES)}"]
    losses = {rate: [losses_of(args, rate, seed) for seed in args.seeds] for rate in RATES}
    for kind in WEIGHTS, *(f"`--ema {decay}`" for decay in DECAYS), MEAN:
        cells = []
        for of_seeds in losses.values():
            values = [one[kind] for one in of_seeds]
            gains = [one[WEIGHTS] - one[kind] for one in of_seeds]
            cells.append(f"{statistics.mean(values):.4f}, spread {max(values) - min(values):.4f}" if kind == WEIGHTS
                         else f"{statistics.mean(gains):+.4f}, least {min(gains):+.4f}")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    args = arguments()
    if args.steps % 50:
        sys.exit("--steps: a multiple of 50 is accepted")
    args.folder.mkdir(parents=True, exist_ok=True)
    text = table(args)
    print(text)
    if args.write:
        readme.write_between(CHAPTER, "averages", text)


if __name__ == "__main__":
    main()
