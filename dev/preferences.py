#!/usr/bin/env python3
"""Preference tuning on what the repository has: a small model of Shakespeare's plays learns to answer with questions.

    make train_gpt2_cpu prefer tokenize && python3 dev/preferences.py [--write]

Trains a small model on the plays, and then on pairs of their lines (dev/preferences/questions.py), with several --beta.
Under a minute of processor time. A run that is there, in build/preferences, is not run again; remove the folder if the
trainer's results have changed. --write puts the table into dev/course/36-preferences.md.
"""
import children
import argparse
import pathlib
import re
import sys
import textwrap

import readme
import shakespeare_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "dev/preferences"))
import questions  # noqa: E402

CHAPTER = ROOT / "dev/course/36-preferences.md"
MODEL, T, STEPS, TUNED, PAIRS, EVERY, SAMPLES = "L2C64H4T64", 64, 1500, 40, 16, 10, 200
BETAS, PROMPT = (0.1, 1), "HAMLET.\n"


def run(*command):
    return children.run(command, cwd=ROOT)[0]


def bits_of(args, model):
    """Bits per byte of the plays' validation split."""
    data = args.folder / "bytes"
    text = run("./train_gpt2_cpu", "-j", f"{data}_val.bin", "--tokenizer", f"{data}_tokenizer.bin", "-e", model,
               "-x", 0, "-v", 1, "-m", 50, "-b", 8, "-t", T, "-s", 0, "--threads", 1)
    return float(re.findall(r"^bits per byte (\S+)", text, re.M)[-1])


def said(args, model):
    """Of samples the share that begin with W, and of those whose first sentence ends, the share that ask."""
    text = run("./train_gpt2_cpu", "-e", model, "--tokenizer", args.folder / "bytes_tokenizer.bin", "-x", 0,
               "--samples", SAMPLES, "-g", 56, "--prompt", PROMPT, "--quiet", 1, "--threads", 1)
    answers = [sample.split(PROMPT, 1)[-1] for sample in text.split("\0") if sample.strip()]
    ends = [end[0] for end in (re.search(r"[?.!]", answer) for answer in answers) if end]
    return {"W": sum(answer.startswith("W") for answer in answers) / len(answers), "asks": ends.count("?") / len(ends)}


def before(args):
    data = shakespeare_tokens.made(args.folder / "bytes")
    questions.write(args.folder / "pairs.jsonl")
    run(sys.executable, "dev/data/pairs.py", args.folder / "pairs.jsonl", "-o", args.folder / "pairs", "--bytes", 1)
    run("./train_gpt2_cpu", "-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "--tokenizer",
        f"{data}_tokenizer.bin", "-e", MODEL, "-b", 8, "-t", T, "-x", STEPS, "-v", 0, "-s", 0, "-l", 2e-3, "-u",
        STEPS // 10, "-q", 0.1, "-c", 0.1, "--threads", 1, "--overwrite", 1, "-o", args.folder / "base")
    return {**said(args, args.folder / "base"), "bits": bits_of(args, args.folder / "base")}


def tuned(args, beta):
    pairs, out = args.folder / "pairs", args.folder / f"tuned_{beta:g}"
    text = run("./prefer", "-i", f"{pairs}_train.bin", "-j", f"{pairs}_val.bin", "--tokenizer",
               f"{pairs}_tokenizer.bin", "-e", args.folder / "base", "-b", 2 * PAIRS, "-t", T, "-x", TUNED, "-v",
               EVERY, "-s", 0, "-l", 3e-4, "-u", EVERY, "-q", 0.1, "--threads", 1, "--beta", beta, "--overwrite", 1,
               "-o", out)
    found = re.findall(r"^val pairs: loss (\S+) \| margin (\S+) \| (\S+)% of", text, re.M)
    losses = re.findall(r"^val loss (\S+)$", text, re.M)
    return {"steps": [[float(number) for number in (*pair, loss)] for pair, loss in zip(found, losses)],
            **said(args, out), "bits": bits_of(args, out)}


def table(args):
    of = [MODEL, T, STEPS, TUNED, PAIRS, EVERY, SAMPLES, PROMPT]
    base = readme.kept(args.folder / "before.json", of, lambda: before(args))
    runs = {beta: readme.kept(args.folder / f"tuned_{beta:g}.json", [*of, beta], lambda: tuned(args, beta))
            for beta in BETAS}
    pairs = len(questions.pairs())
    text = (f"{MODEL}, {STEPS} steps on the bytes of the plays; then `prefer` with {PAIRS} pairs a step, of the "
            f"{pairs} that two lines of a speaker make. On the tenth of the pairs that validates: the loss, the "
            "margin, the share of pairs that are right, and the loss of a byte of an answer, chosen or rejected, in "
            "nats.")
    lines = [*textwrap.wrap(text, 120), "", "| step | " + " | ".join(
        f"b = {beta}: loss | margin | right | of a byte" for beta in BETAS) + " |", "|---|" + 4 * len(BETAS) * "---|"]
    for row, step in enumerate(range(0, TUNED + 1, EVERY)):
        cells = [f"{loss:.3f} | {margin:+.2f} | {right:.0f}% | {byte:.3f}"
                 for loss, margin, right, byte in (found["steps"][row] for found in runs.values())]
        lines.append(f"| {step} | {' | '.join(cells)} |")
    lines += ["", f"{SAMPLES} continuations of `{PROMPT.strip()}`, and bits per byte of the plays:", "",
              "| | begin with W | ask, of those whose sentence ends | bits per byte |", "|---|---|---|---|"]
    for name, found in ("before", base), *((f"b = {beta}", found) for beta, found in runs.items()):
        lines.append(f"| {name} | {100 * found['W']:.0f}% | {100 * found['asks']:.0f}% | {found['bits']:.3f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/preferences")
    parser.add_argument("--write", action="store_true", help="into the chapter")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    text = table(args)
    print(text)
    if args.write:
        readme.write_between(CHAPTER, "preferences", text)


if __name__ == "__main__":
    main()
