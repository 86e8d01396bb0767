#!/usr/bin/env python3
"""Sets what dev/parallel/costs.py says beside runs that others have measured, and writes choose.py's verdicts.

    dev/parallel/published.py             prints the tables
    dev/parallel/published.py --write     puts them into dev/course/25-which-split.md

No constant was fitted to these runs. Peaks, links and shares of peaks are those of choose.py. Of Megatron's program the
paper says otherwise: attention's scores are stored, gradients are fp16, and are sent after the backward pass.
"""
import collections
import math
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

import choose  # noqa: E402

sys.path.insert(0, str(choose.ROOT / "dev/cusim"))  # for held_out
from choose import best_of, cards_of, model_of, row_of  # noqa: E402
from costs import Layout, Model, cost_of, model_elems  # noqa: E402
from held_out import STEPS  # noqa: E402
from readme import write_between  # noqa: E402

CHAPTER = choose.ROOT / "dev/course/25-which-split.md"
T, V = 2048, 51200

# Narayanan et al. 2021, arXiv:2104.04473, table 1: shape, t, p, cards, sequences of a step, TFLOP/s of a card. B, and
# the layers of a chunk where they are interleaved (0: not): the scripts of the paper, github.com/NVIDIA/Megatron-LM,
# examples/sc21/run_table_1.sh. All layers are recomputed.
Run = collections.namedtuple("Run", "name L C NH t p n sequences tflops B chunk")
TABLE_1 = [
    Run("1.7B", 24, 2304, 24, 1, 1, 32, 512, 137, 16, 0),
    Run("3.6B", 30, 3072, 32, 2, 1, 64, 512, 138, 16, 0),
    Run("7.5B", 36, 4096, 32, 4, 1, 128, 512, 142, 16, 0),
    Run("18.4B", 40, 6144, 48, 8, 1, 256, 1024, 135, 8, 0),
    Run("39.1B", 48, 8192, 64, 8, 2, 512, 1536, 138, 4, 0),
    Run("76.1B", 60, 10240, 80, 8, 4, 1024, 1792, 140, 2, 5),
    Run("145.6B", 80, 12288, 96, 8, 8, 1536, 2304, 148, 2, 5),
    Run("310.1B", 96, 16384, 128, 8, 16, 1920, 2160, 155, 1, 3),
    Run("529.6B", 105, 20480, 128, 8, 35, 2520, 2520, 163, 1, 1),
    Run("1008.0B", 128, 25600, 160, 8, 64, 3072, 3072, 163, 1, 0),
]
# ZeRO-3 by DeepSpeed alone, the paper's table 2.
TABLE_2 = [
    Run("174.6B", 96, 12288, 96, 1, 1, 384, 1536, 144, 4, 0),
    Run("174.6B", 96, 12288, 96, 1, 1, 768, 1536, 88, 2, 0),
    Run("174.6B", 96, 12288, 96, 1, 1, 1536, 1536, 44, 1, 0),
    Run("529.6B", 105, 20480, 128, 1, 1, 640, 2560, 138, 4, 0),
    Run("529.6B", 105, 20480, 128, 1, 1, 1120, 2240, 98, 2, 0),
    Run("529.6B", 105, 20480, 128, 1, 1, 2240, 2240, 48, 1, 0),
]
SHAPES = [("1.5B", "d48", 524288), ("7B", "gpt3:c4096", 2097152), ("70B", "L88C8192H64T2048", 2097152)]


# Seconds of a step from TFLOP/s of a card, which count recomputation (2104.04473, equation (3)):
#     96 S T L C^2 (1 + T / (6 C) + V / (16 L C)) / (n TFLOP/s)
def published_seconds(run):
    flops = 96 * run.sequences * T * run.L * run.C ** 2 * (1 + T / (6 * run.C) + V / (16 * run.L * run.C))
    return flops / run.n / run.tflops / 1e12


def model_of_run(run):
    return Model(run.L, run.C, run.NH, T, V)


def theirs(run, zero=0):
    """The layout of the run, on Selene's cards, and what it takes."""
    chunks = run.L // run.p // run.chunk if run.chunk else 1
    layout = Layout(run.n // run.t // run.p, run.p, run.t, run.B, chunks, False, zero, "full")
    cards = cards_of("A100 SXM 80GB", run.n, flash=False, sum_bytes=2, hidden=None if zero else 0)
    return cards, layout, cost_of(model_of_run(run), cards, layout, run.sequences)


def split_text(layout):
    return f"{layout.d} x {layout.p} x {layout.t}"


def table_1():
    """Rows, and for each run (modelled / published seconds, place of its split, time beside the best)."""
    lines = ["| model | cards | sequences | theirs: d x p x t, B, v | memory GiB | bubble | published s | modelled s | "
             "modelled / published | place of their split | fastest modelled: d x p x t, B, v | theirs / fastest |",
             "|" + "---|" * 12]
    found = []
    for run in TABLE_1:
        cards, layout, cost = theirs(run)
        best, _ = best_of(model_of_run(run), cards, run.sequences, zeros=(0,), recompute=("full",),
                          sequence=False)
        place = 1 + [one[:3] for one, _ in best].index(layout[:3])
        (fastest, quickest), seconds = best[0], published_seconds(run)
        found.append((cost.seconds / seconds, place, cost.seconds / quickest.seconds))
        lines.append(f"| {run.name} | {run.n} | {run.sequences} | {split_text(layout)}, {layout.B}, {layout.v} "
                     f"| {cost.memory / 2**30:.1f} | {cost.bubble:.1%} | {seconds:.2f} | {cost.seconds:.2f} "
                     f"| {cost.seconds / seconds:.2f} | {place} of {len(best)} "
                     f"| {split_text(fastest)}, {fastest.B}, {fastest.v} | {cost.seconds / quickest.seconds:.2f} |")
    return lines, found


def table_2():
    """ZeRO-3; again as if the rings of a node's eight cards shared one adapter."""
    lines = ["| model | cards | B | memory GiB | GB sent | published s | modelled s | modelled / published "
             "| modelled s, one adapter a node |", "|" + "---|" * 9]
    for run in TABLE_2:
        cards, layout, cost = theirs(run, zero=3)
        seconds = published_seconds(run)
        slow = cost_of(model_of_run(run), cards._replace(between=cards.between / 8), layout, run.sequences)
        lines.append(f"| {run.name} | {run.n} | {run.B} | {cost.memory / 2**30:.1f} | {cost.data / 1e9:,.0f} "
                     f"| {seconds:.1f} | {cost.seconds:.1f} | {cost.seconds / seconds:.2f} | {slow.seconds:.1f} |")
    return lines


def llmc_table():
    """Steps of llm.c on eight cards, from dev/cuda/held_out.py: data parallel with ZeRO-1."""
    lines = ["| model | cards | B | tokens a step | published s | modelled s | modelled / published |",
             "|" + "---|" * 7]
    for step in [step for step in STEPS if step.gpus > 1]:
        model, cards = model_of(step.model), cards_of(step.chip, step.gpus)
        cost = cost_of(model, cards, Layout(step.gpus, 1, 1, step.B, 1, False, 1, "selective"), step.tokens // model.T)
        lines.append(f"| {step.model} | {step.gpus} x {step.chip} | {step.B} | {step.tokens:,} | {1e-3 * step.ms:.3f} "
                     f"| {cost.seconds:.3f} | {1e3 * cost.seconds / step.ms:.2f} |")
    return lines


def published_text():
    lines, found = table_1()
    ratios, places, slower = zip(*found)
    lines += ["", f"Modelled over published lies between {min(ratios):.2f} and {max(ratios):.2f}, "
              f"{math.prod(ratios) ** (1 / len(ratios)):.2f} in the geometric mean. Of {len(found)} splits "
              f"{sum(p <= 3 for p in places)} are among the",
              f"three fastest that fit, and {sum(s <= 1.1 for s in slower)} within 10% of the fastest; the farthest "
              f"takes {max(slower):.2f} times as long."]
    return "\n".join(lines)


def least_cards(model, sequences):
    """The fewest nodes' cards on which a layout fits, by doubling."""
    n = 8
    while not best_of(model, cards_of("H100 SXM", n), sequences)[0]:
        n *= 2
    return n


def verdicts_text():
    lines = ["| model | cards " + choose.HEAD[0], "|---|---" + choose.HEAD[1]]
    for name, text, tokens in SHAPES:
        model = model_of(text)
        for n in (8, 64, 512):
            best, least = best_of(model, cards_of("H100 SXM", n), tokens // model.T)
            for layout, cost in best[:2]:
                lines.append(f"| {name} | {n} {row_of(layout, cost)}")
            if not best:
                lines.append(f"| {name} | {n} | none: {least / 2**30:.0f} GiB a card at least; from "
                             f"{least_cards(model, tokens // model.T)} cards on |" + " |" * 12)
    shapes = [f"{name} is `{text}`, {model_elems(model_of(text)) / 1e9:.2f}B parameters and {tokens:,} tokens a step"
              for name, text, tokens in SHAPES]
    lines += ["", "; ".join(shapes) + "."]
    return "\n".join(lines)


def texts():
    """What the chapter shows, by the name of its place."""
    return {"published layouts": published_text(), "published ZeRO-3": "\n".join(table_2()),
            "published steps": "\n".join(llmc_table()), "layouts": verdicts_text()}


def write_page(chapter):
    for name, text in texts().items():
        write_between(chapter, name, text)


def main():
    if "--write" in sys.argv:
        return write_page(CHAPTER)
    print("\n\n".join(texts().values()))


if __name__ == "__main__":
    main()
