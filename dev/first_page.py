#!/usr/bin/env python3
"""The table of speed in README.md: some rows of those in dev/MEASURED.md, this trainer beside the fastest of PyTorch's.

    dev/first_page.py             writes it again, as dev/bench.py --write does
    dev/first_page.py --check     exit 1 if it is not what dev/MEASURED.md says
"""
import pathlib
import re
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

from readme import MEASURED, write_between

ROOT = pathlib.Path(__file__).resolve().parents[1]
STEP = "training step of GPT-2 124M, 4 x 256 tokens"
# What README calls it; the part of dev/bench.py, the kind of CPU; there: the row, who we are, who the others are.
ROWS = [
    (f"{STEP}, fp32", "steps", "amx", "step (4,256)", "this trainer, fp32", "PyTorch .*, fp32"),
    (f"{STEP}, bf16", "steps", "amx", "step (4,256)", "this trainer, bf16, fp32 master", "PyTorch .*, bf16 autocast"),
    (f"{STEP}, fp32", "steps", "zen5", "step (4,256)", "this trainer, fp32", "PyTorch .*, fp32"),
    (f"{STEP}, bf16", "steps", "zen5", "step (4,256)", "this trainer, bf16, fp32 master",
     "PyTorch .*, bf16 autocast"),
    ("generating a token, bf16", "generation", "amx", "generation, a token", "this trainer, bf16", "PyTorch .*, bf16"),
    ("reading a prompt of 512 tokens, bf16", "generation", "zen4", "prompt of 512 tokens, the first",
     "this trainer, bf16", "PyTorch .*, bf16"),
]
# Of scripts/gpu_day.sh: what README calls it, the GPU, the shape there.
GPU_ROWS = [(f"training step of GPT-2 124M, {B} x 1024 tokens, bf16", gpu, f"d12 ({B},1024)")
            for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA H200") for B in (64, 16)]


def block(text, name):
    return text.partition(f"<!-- {name} begin -->")[2].partition(f"<!-- {name} end -->")[0]


def number(text):
    return float(text.replace(",", ""))


def row(measured, shown, part, kind, what, ours, others):
    """The cells of a row; when and on how many threads it was measured."""
    table = block(measured, f"bench {part} {kind}")
    origin = re.search(r"^Measured (\S+) on (.*) \((.*?)\), (\d+ threads)", table, re.M)
    times = re.findall(rf"^\| {re.escape(what)} \| (.*?) \| ([\d.,]+ ms) \|.*\|.*\| (.*?) \|$", table, re.M)
    mine = [ms for who, ms, _ in times if who == ours]
    best = min(((ms, note) for who, ms, note in times if re.fullmatch(others, who)), default=None,
               key=lambda found: number(found[0].split()[0]))
    ratio = best and re.search(r"([\d.]+) times ours", best[1])
    if not origin or not mine or not ratio:
        sys.exit(f"{MEASURED} has no rows `{what}` of `{ours}` and `{others}` on {kind}, which README shows: measure "
                 "them, or show others (dev/first_page.py)")
    name = " ".join(re.sub(r"\(R\)|\bProcessor\b|\bCPU\b|@ \S+", "", origin[2]).split())
    return [shown, f"{name}, {origin[3].split(', ')[-1]}", mine[0], best[0], ratio[1]], origin[1], origin[4]


def gpu_row(measured, shown, gpu, what):
    """The cells of a row, and when it was measured."""
    table = block(measured, f"gpu bench {gpu}")
    origin = re.search(rf"^Measured on {gpu}, .*, (\S+), by", table, re.M)
    rows = rf"^\| {re.escape(what)} \| (this trainer|PyTorch).*? \| ([\d.,]+) ms \|"
    times = dict(re.findall(rows, table, re.M))
    if not origin or len(times) != 2:
        sys.exit(f"{MEASURED} has no rows `{what}` of both trainers on {gpu}, which README shows")
    ours, theirs = times["this trainer"], times["PyTorch"]
    return [shown, gpu, f"{ours} ms", f"{theirs} ms", f"{number(theirs) / number(ours):.2f}"], origin[1]


def speed_table(measured):
    rows = [row(measured, *columns) for columns in ROWS]
    on_gpus = [gpu_row(measured, *columns) for columns in GPU_ROWS]
    days, threads = (sorted(set(column)) for column in list(zip(*rows))[1:])
    gpu_days = sorted({day for _, day in on_gpus})
    return "\n".join([f"Minima; CPUs with {' and '.join(threads)}, measured {', '.join(days)} by `make bench`; GPUs,",
                      f"{' and '.join(gpu_days)}, by `scripts/gpu_day.sh`.", "",
                      "| | on | this trainer | PyTorch, its fastest mode | times ours |", "|---|---|---|---|---|",
                      *("| " + " | ".join(cells) + " |" for cells, *_ in [*on_gpus, *rows])])


def write_speed(root=ROOT):
    write_between(root / "README.md", "speed", speed_table((root / MEASURED).read_text()))


def main():
    if not sys.argv[1:]:
        write_speed()
    elif sys.argv[1:] != ["--check"]:
        sys.exit(__doc__)
    elif block((ROOT / "README.md").read_text(), "speed").strip() != speed_table((ROOT / MEASURED).read_text()):
        sys.exit(f"the table of speed in README.md is not what {MEASURED} says: dev/first_page.py writes it")


if __name__ == "__main__":
    main()
