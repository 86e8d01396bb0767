#!/usr/bin/env python3
"""How fast a model reads a prompt, and how fast it writes: the table of chapter 31.

    make train_gpt2_cpu && python3 dev/course/generation.py [--write]

Models with random weights take the same time as trained ones. The kinds of weights take turns, --rounds times, so that
all see the same machine; the median counts.
"""
import argparse
import pathlib
import re
import statistics
import subprocess
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import readme  # noqa: E402

KINDS = {"fp32": ["--precision", "fp32"], "bf16": ["--precision", "bf16"], "int8": ["--weights", "int8"],
         "int4": ["--weights", "int4"]}


def rates(model, flags, words, tokens, threads):
    """Tokens per second of the prompt, and of what is written behind it."""
    command = ["./train_gpt2_cpu", "-e", model, "-x", "0", "--prompt", "to be or not " * (words // 4), "-g", tokens,
               "--threads", threads, *flags]
    done = subprocess.run([str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)
    found = re.findall(r"(?:prompt|generated): [\d,]+ tokens?, ([\d.,]+) tok/s", done.stderr)
    if done.returncode or len(found) != 2:
        sys.exit(f"generation.py: {done.stderr.strip()[-300:]}")
    return [float(rate.replace(",", "")) for rate in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="d6")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--words", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    measured = {kind: [] for kind in KINDS}
    for _ in range(args.rounds):
        for kind, flags in KINDS.items():
            measured[kind].append(rates(args.model, flags, args.words, args.tokens, args.threads))
    lines = ["| weights | reading a prompt | writing | reading / writing |", "|---|---|---|---|"]
    for kind, pairs in measured.items():
        reading, writing = (statistics.median(pair[i] for pair in pairs) for i in range(2))
        ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
        lines.append(f"| {kind} | {reading:,.0f} tok/s | {writing:,.0f} tok/s | {ratio:.1f} |")
    lines += ["", f"`{args.model}`, a prompt of {args.words} words, {args.tokens} tokens behind it, threads: "
              f"{args.threads}; {readme.this_cpu()[1]}, median of {args.rounds}."]
    print("\n".join(lines))
    if args.write:
        readme.write_between(ROOT / "dev/course/31-generation.md", "generation", "\n".join(lines))


if __name__ == "__main__":
    main()
