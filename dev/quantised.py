#!/usr/bin/env python3
"""What weights in fewer bits cost and save: bytes, tokens a second, and the loss on a whole validation split.

    make train_gpt2_cpu tokenize data && python3 dev/quantised.py [--write]

Losses are those of a small model that is trained here on the bytes of Shakespeare, unless --model names another; bytes
and speed those of GPT-2 124M, whose weights need not be trained for that. Formats take turns, so that other programs
slow all of them down alike; the most tokens a second of all turns count. --write puts the table into
dev/course/28-fewer-bits.md.
"""
import children
import argparse
import math
import pathlib
import re

import readme
import shakespeare_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "dev/course/28-fewer-bits.md"
FORMATS = {"fp32": (), "bf16": ("--precision", "bf16"), "int8": ("--weights", "int8"), "int4": ("--weights", "int4"),
           "nf4": ("--weights", "nf4")}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", default="L4C128H4T64", help="the model that is trained")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--timed", default="d12", help="the model that is timed")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/quantised")
    parser.add_argument("--write", action="store_true", help="into the chapter")
    return parser.parse_args()


def trainer(*flags):
    return children.run([str(word) for word in ("./train_gpt2_cpu", *flags)], cwd=ROOT)[0]


def losses(args):
    """Bits per byte of the whole validation split, by format."""
    data = shakespeare_tokens.made(args.folder.resolve() / "bytes")
    model = args.folder / f"{args.trained}_{args.steps}"
    common = ["-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "--tokenizer", f"{data}_tokenizer.bin", "-b", 8, "-t",
              64, "-s", 0, "--threads", args.threads]
    if not (model / f"DONE_{args.steps:08}").exists():
        trainer(*common, "-e", args.trained, "-x", args.steps, "-l", 2e-3, "-u", args.steps // 10, "-q", 0.1, "-v", 0,
                "-o", model, "--overwrite", 1)
    found = {}
    for name, flags in FORMATS.items():
        text = trainer(*common, "-e", model, "-x", 0, "-v", 1, "-m", -1, *flags)
        found[name] = float(re.search(r"^bits per byte (\S+)", text, re.M)[1])
    return found


def sizes_and_speeds(args):
    """Bytes of the parameters, and tokens a second, by format."""
    sizes, speeds = {}, dict.fromkeys(FORMATS, 0.0)
    for name, flags in FORMATS.items():
        plan = trainer("-e", args.timed, "-x", 0, "-s", 0, "-v", 0, "--plan", *flags)
        sizes[name] = int(re.search(r"^parameters +(= all )? +(\d+) .*MiB", plan, re.M)[2])
    for _ in range(args.turns):
        for name, flags in FORMATS.items():
            text = trainer("-e", args.timed, "-x", 0, "--prompt", "The", "-g", args.tokens, "--temperature", 0,
                           "--threads", args.threads, *flags)
            speeds[name] = max(speeds[name], float(re.search(r"([\d.]+) tok/s", text)[1]))
    return sizes, speeds


def table(args):
    bits, (sizes, speeds) = losses(args), sizes_and_speeds(args)
    lines = [f"Bytes of the parameters and tokens a second of {args.timed}, {args.threads} threads, "
             f"{readme.this_cpu()[1]}; the loss of {args.trained} after {args.steps} steps, on the whole validation "
             "split. Perplexity: of a byte, against fp32's.", "",
             "| weights | bytes | tokens/s | times bf16's | bits per byte | perplexity |", "|---|---|---|---|---|---|"]
    for name in FORMATS:
        change = 2 ** (bits[name] - bits["fp32"]) - 1
        lines.append(f"| {name} | {sizes[name]:,} | {speeds[name]:.1f} | {speeds[name] / speeds['bf16']:.2f} | "
                     f"{bits[name]:.4f} | {100 * change:+.2f}% |")
    assert math.isfinite(sum(bits.values()))
    return "\n".join(lines)


def main():
    args = arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    text = table(args)
    print(text)
    if args.write:
        readme.write_between(CHAPTER, "quantised", text)


if __name__ == "__main__":
    main()
