#!/usr/bin/env python3
"""Compares this trainer with PyTorch on the same cores: whole training steps of GPT-2 124M in fp32 and bf16, with
their peak memory, and the time of each kernel beside its roofline; the matrix products of a step alone, beside MKL,
oneDNN and OpenBLAS; the tokenizer; generation.

    pip install torch numpy tiktoken transformers   # peers that are not installed are skipped with a message
    make bench                        # or: python3 dev/bench.py [--rounds 2] [--shapes 4x64,4x256,1x1024] [--write]
    python3 dev/bench.py --parts steps --shapes 4x64 --llmc ~/llm.c      # beside llm.c's CPU trainer, a clone of yours

Each program runs in its own process, and rounds are interleaved. The ratio of the minima is what to compare. Results go
to the terminal and, with --write, into dev/MEASURED.md and dev/cpu/README.md, where each part has a table of its own
for each kind of CPU (AMX, AVX512-BF16, ...); tables of parts that were not measured stay. README.md shows six of their
rows (dev/first_page.py).
"""
import children  # noqa: F401: Ctrl-C
import argparse
import json
import os
import pathlib
import time

import bench_llmc
from bench_parts import MODELS, NANO, PEERS, Generation, Products, Steps, Tokenizer
from bench_tasks import ROOT, run_tasks, say
from children import have
from first_page import write_speed
from readme import MEASURED, this_cpu, write_of_machine

PARTS = ["steps", "products", "small", "tokenizer", "generation"]


class Report:
    """What was measured: the rows of each part's table, and what goes into dev/cpu/README.md."""
    def __init__(self):
        self.rows, self.rooflines, self.products, self.sentences, self.steps = [], {}, [], [], {}

    def row(self, part, what, who, sorted_ms, note, **more):
        ms = {"min_ms": sorted_ms[0], "median_ms": sorted_ms[len(sorted_ms) // 2]}
        self.rows.append({"part": part, "what": what, "who": who, **ms, "note": note, **more})
        memory = f"{more['MiB']:6.0f} MiB  " if "MiB" in more else ""
        say(f"{what:20} {who:34} min {ms['min_ms']:8.1f} ms  median {ms['median_ms']:8.1f} ms  {memory}{note}")

    def compare(self, rows, products_ms):
        """How much of the ratio to PyTorch the products explain, if steps of as many tokens were measured."""
        for (tokens, precision), (ours, theirs, shape) in self.steps.items():
            peer = products_ms.get(f"PyTorch, {precision}")
            if tokens == rows and peer and theirs:
                mine = products_ms[f"this trainer, {precision}"]
                self.sentences.append(
                    f"In {precision} the fastest step {shape} of PyTorch takes {theirs:,.0f} ms, ours {ours:,.0f} ms; "
                    f"its matrix products alone take {peer:,.0f} ms there and {mine:,.0f} ms here.")
                say(self.sentences[-1])


def cells(r):
    """The cells of a row. Steps of small models take milliseconds, of which the tenths matter."""
    ms = lambda key: f"{r[key]:,.{0 if r[key] >= 100 else 1}f} ms" if key in r else ""
    memory = f"{r['MiB']:,.0f} MiB" if "MiB" in r else ""
    return [r["what"], r["who"], ms("min_ms"), ms("median_ms"), memory, r["note"]]


def write_tables(report, machine, kind):
    """Writes the tables of the parts that were measured into the pages; those of other parts, other CPUs stay."""
    measured = f"Measured {time.strftime('%Y-%m-%d')} on {machine} by `make bench`."
    main, cpu = ROOT / MEASURED, ROOT / "dev/cpu/README.md"
    for part in PARTS:
        rows = [r for r in report.rows if r["part"] == part]
        if rows:
            above = "\n".join([measured, *(report.sentences if part == "steps" else [])])
            lines = ["| what | who | min | median | peak memory | |", "|---|---|---|---|---|---|"]
            lines += ["| " + " | ".join(cells(r)) + " |" for r in rows]
            write_of_machine(main, f"bench {part}", kind, "\n".join([above, "", *lines]))
    for part, tables in report.rooflines.items():
        blocks = "\n".join(f"```\n{table}```" for table in tables)
        write_of_machine(cpu, f"roofline {part}", kind, f"{measured}\n\n{blocks}")
    if report.products:
        write_of_machine(cpu, "products", kind, f"{measured}\n\n" + "\n\n".join(report.products))


def shapes(text):
    return [(int(B), int(T)) for B, T in (shape.split("x") for shape in text.split(","))]


def numbers(text):
    return [int(n) for n in text.split(",")]


def choice_of(names):
    def parse(text):
        chosen = [name for name in text.split(",") if name]
        wrong = [name for name in chosen if name not in names]
        if wrong:
            raise argparse.ArgumentTypeError(f"{wrong[0]} is unknown; {', '.join(names)} are accepted")
        return chosen
    return parse


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="steps that a program times")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shapes", type=shapes, default=shapes("4x64,4x256,1x1024"), help="B and T of steps")
    parser.add_argument("--rows", type=numbers, default=numbers("256,1024"), help="of products")
    parser.add_argument("--peers", type=choice_of(PEERS), default=PEERS, help="PyTorch's precisions, modes; or nothing")
    parser.add_argument("--parts", type=choice_of(PARTS), default=PARTS, help="what is measured: " + ", ".join(PARTS))
    parser.add_argument("--model", choices=MODELS, default="d12", help="of steps and products")
    parser.add_argument("--write", action="store_true", help="put the tables into the pages (see above)")
    parser.add_argument("--llmc", type=pathlib.Path, metavar="DIR", help="a clone of llm.c, to build its CPU trainer")
    args = parser.parse_args()
    if args.llmc and bench_llmc.problem_of(args.llmc):
        parser.error(f"--llmc {bench_llmc.problem_of(args.llmc)}")
    if args.write and (args.model != "d12" or args.peers != PEERS):
        parser.error("--write replaces whole tables; all peers of d12 are accepted with it")
    if args.write and ("steps" in args.parts) != ("products" in args.parts):
        parser.error("--write compares steps with products; both or neither are accepted with it")
    return args


def main():
    args, report, tasks = parse(), Report(), []
    if args.peers:
        for module in ("torch", "numpy", "tiktoken", "transformers"):
            if not have(module):
                print(f"{module} is not installed, what needs it is left out; pip install {module} adds it")
    if not have("torch"):
        args.peers = []
    if "steps" in args.parts:
        for B, T in args.shapes:
            tasks += Steps(args, B, T, report).tasks()
    if args.llmc:
        tasks += bench_llmc.LlmC(args, report).tasks()
    if "small" in args.parts:
        tasks += Steps(args, 12, 64, report, model=NANO).tasks()
    if "products" in args.parts:
        for rows in args.rows:
            tasks += Products(args, rows, report).tasks()
    if "tokenizer" in args.parts:
        tasks += Tokenizer(args, report).tasks()
    if "generation" in args.parts:
        tasks += Generation(args, report).tasks()
    run_tasks(tasks)
    kind, name = this_cpu()
    machine = f"{name}, {args.threads} threads"
    result = {"machine": machine, "rows": report.rows, "sentences": report.sentences}
    (ROOT / "build/bench.json").write_text(json.dumps(result, indent=1))
    if args.write:
        write_tables(report, machine, kind)
        write_speed()


if __name__ == "__main__":
    main()
