#!/usr/bin/env python3
"""How long attention takes with a window, beside what its FLOPs say.

    make build/bench/window && python3 dev/windows.py [--write]

One layer of GPT-2 124M at T 1024, forward and backward, on one thread. Windows take turns, so that other programs slow
all of them down alike; times are shares of the time without a window. --write puts the table into
dev/course/10-flash-attention.md.
"""
import children
import argparse
import pathlib

import readme

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "dev/course/10-flash-attention.md"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--write", action="store_true", help="into the chapter")
    return parser.parse_args()


def table(rounds):
    output, _ = children.run(["build/bench/window", rounds], cwd=ROOT)
    rows = {(name, int(window)): (float(seconds), float(share))
            for name, window, seconds, share in map(str.split, output.splitlines())}
    lines = [f"T 1024, 12 heads of 64, {readme.this_cpu()[1]}, one thread, medians of {rounds} rounds:", "",
             "| W | FLOPs | time, fp32 | time, bf16 |", "|---|---|---|---|"]
    for window in sorted({window for _, window in rows}, key=lambda w: -(w or 1 << 20)):
        cells = []
        for name in "fp32", "bf16":
            seconds, whole = rows[name, window][0], rows[name, 0][0]
            cells.append(f"{1e3 * seconds:.1f} ms, {seconds / whole:.0%}" if window == 0 else f"{seconds / whole:.0%}")
        lines.append(f"| {window or 'none'} | {rows['fp32', window][1]:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    args = arguments()
    text = table(args.rounds)
    print(text)
    if args.write:
        readme.write_between(CHAPTER, "windows", text)


if __name__ == "__main__":
    main()
