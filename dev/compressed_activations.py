#!/usr/bin/env python3
"""What --compress-activations 1 saves, and what it does to the loss.

    make train_gpt2_cpu tokenize && python3 dev/compressed_activations.py [--write]

Bytes are those of --plan for GPT-2 124M: what a token leaves for the backward pass, at each recompute level, without
codes and with them. Losses are those of a small model on the bytes of Shakespeare, with three seeds: the difference of
the validation loss after the same tokens from the run without codes. Beside it stands what bf16 does to the loss of the
same run, without codes. A run that is there, in build/compressed_activations, is not run again; remove the folder if
the trainer's results have changed. --write puts the table into dev/course/12-memory.md.
"""
import children
import argparse
import pathlib
import re
import statistics

import readme
import shakespeare_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "dev/course/12-memory.md"
MODEL, B, T, VAL_BATCHES, SEEDS, LEVELS = "L6C64H2T64", 8, 64, 40, (42, 1, 2), range(5)
PLANNED, PLANNED_B, PLANNED_T = "d12", 4, 1024
EXACT, HALF = "exact", "bf16"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/compressed_activations")
    parser.add_argument("--write", action="store_true", help="into the chapter")
    return parser.parse_args()


def kept_bytes(level, precision, compressed):
    """Bytes for each token in the activations that last from a layer's forward to its backward pass."""
    plan, _ = children.run(["./train_gpt2_cpu", "-e", PLANNED, "-b", PLANNED_B, "-t", PLANNED_T, "-r", level,
                            "--precision", precision, "--compress-activations", compressed, "--plan"], cwd=ROOT)
    rows = re.findall(r"^activations +\S+ +\d+ x .*? (\d+)   its layer$", plan, re.M)
    return sum(map(int, rows)) / (PLANNED_B * PLANNED_T)


def command_of(args, kind, seed):
    """kind: a recompute level with codes, or one of the runs without."""
    flags = ["-r", 0] if kind in (EXACT, HALF) else ["-r", kind, "--compress-activations", 1]
    data = shakespeare_tokens.made(args.folder.resolve() / "bytes")
    return ["./train_gpt2_cpu", "-e", args.model, "-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "--tokenizer",
            f"{data}_tokenizer.bin", "-b", B, "-t", T, "-d", B * T, "-x", args.steps, "-l", 1e-3, "-u",
            args.steps // 10, "-q", 0.1, "-c", 0.1, "-v", args.steps, "-m", min(VAL_BATCHES, args.steps), "-s", 0,
            "--precision", "bf16" if kind == HALF else "fp32", "--threads", args.threads, "--seed", seed, *flags]


def loss_of(args, kind, seed):
    """The validation loss at the end."""
    command = list(map(str, command_of(args, kind, seed)))

    def run():
        return float(re.findall(r"^val loss (\S+)", children.run(command, cwd=ROOT)[0], re.M)[-1])
    return readme.kept(args.folder / f"{kind}_{seed}.json", command, run)


def gaps_text(args, kind, exact):
    gaps = [loss_of(args, kind, seed) - exact[seed] for seed in args.seeds]
    return f"{statistics.mean(gaps):+.6f} | {max(gaps, key=abs):+.6f}"


def table(args):
    exact = {seed: loss_of(args, EXACT, seed) for seed in args.seeds}
    spread = max(exact.values()) - min(exact.values())
    lines = [f"{args.model}, {args.steps} steps of {B * T} tokens, fp32, {len(args.seeds)} seeds; without codes the "
             f"validation losses are {', '.join(f'{loss:.4f}' for loss in exact.values())}, a spread of {spread:.4f}.",
             "", "| | bytes kept per token, fp32 | bf16 | validation loss, mean difference | largest |",
             "|---|---|---|---|---|", f"| bf16 without codes | | | {gaps_text(args, HALF, exact)} |"]
    for level in LEVELS:
        cells = []
        for precision in ("fp32", "bf16"):
            without, having = kept_bytes(level, precision, 0), kept_bytes(level, precision, 1)
            cells.append(f"{without:,.0f} to {having:,.0f} ({having / without:.2f})")
        lines.append(f"| codes at `-r {level}` | {' | '.join(cells)} | {gaps_text(args, level, exact)} |")
    return "\n".join(lines)


def main():
    args = arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    text = table(args)
    print(text)
    if args.write:
        readme.write_between(CHAPTER, "codes", text)


if __name__ == "__main__":
    main()
