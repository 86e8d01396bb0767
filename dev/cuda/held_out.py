"""Figures that others have measured and published, beside what the model says of the same work. No constant of the
model was fitted to any of them: they are what it is judged by.

Attention on an H100: causal, forward, head size 64, 16,384 tokens in all, 32 heads; FLOPs are those of half the T x T
matrix, as the paper counts. FlashAttention-2 is our own algorithm by the same instruction, so our kernel's machine code
stands for it, with the heads one after the other as its grid has them. FlashAttention-3 and cuDNN multiply by wgmma:
our kernel's loop stands for theirs, with products at the chip's peak and without the loads of fragments; a tile of
scores, the warpgroups that share it, and nothing that hides the beginning of a block, as one block fills a
multiprocessor.

llm.c's steps: our own step stands for llm.c's, with what --plan says of communication.
"""
import collections

import cache_replay
from chips import CHIPS, FLASH3
from kernel_time import Demand, kernel_seconds
from kernel_work import Launch, Shape, work_of
from step_launches import MODELS, WGMMA, Counted
from step_time import in_range, moves, several_gpus

HEADS, HEAD_SIZE, TOKENS = 32, 64, 16384
WITHIN = 0.10
ASSUMED = """\
Each assumption with the value that makes a step short, the expected one, and the one that makes it long; by how much
the step of 124M (B 64; on cards of less than 64 GiB B 16) becomes shorter and longer if it alone is moved; and where
they come from. The range of a time is the root of the sum of the squares of these differences."""
WGMMA_ROUND = 2048  # scores that a warp of our loop computes in a round
FIGURE_5 = f"{FLASH3}, figure 5"

CLOCK = "modelled at the clock of a step at B 64; attention alone draws less power, and may run at a higher one"
# who, T, TFLOP/s measured, rows and columns of a tile and warpgroups of a block (None: our kernel), why it is off
Attention = collections.namedtuple("Attention", "who T measured tile why")
ATTENTION = [
    Attention("FlashAttention-2", 512, 180, None, CLOCK),
    Attention("FlashAttention-2", 1024, 229, None, CLOCK),
    Attention("FlashAttention-2", 2048, 262, None, CLOCK),
    Attention("FlashAttention-2", 16384, 299, None, CLOCK),
    Attention("cuDNN", 1024, 288, (128, 128, 2), "its tile is not published: assumed; the clock, as above"),
    Attention("FlashAttention-3", 1024, 265, (192, 128, 3),
              "its warpgroups take turns by barriers of their own, which our loop has not; at T 16384 it reaches 473"),
]
# model, B, tokens of a step, GPUs, ms measured per step, how, why it is off
Step = collections.namedtuple("Step", "chip model B tokens gpus ms source why")
STEPS = [
    Step("A100 SXM 80GB", "d12", 64, 524288, 8, 1e3 * 90 * 60 * 524288 / 10e9,
         "10 billion tokens in 90 minutes, github.com/karpathy/llm.c/discussions/481", ""),
    Step("H100 SXM", "d12", 64, 524288, 8, 1e3 * 45 * 60 * 524288 / 10e9,
         "10 billion tokens in 45 minutes, github.com/KellerJordan/modded-nanogpt",
         "our step, which stands for llm.c's, takes less still when measured: llm.c's takes longer than ours"),
    Step("H100 SXM", "d48", 16, 1048576, 8, 2750, "2.75 s a step, github.com/karpathy/llm.c/discussions/677", ""),
    Step("RTX 4090", "d12", 24, 24576, 1, 170.77, "github.com/karpathy/llm.c/pull/322",
         "without fp32 weights, clipping and sums in fp32; the clock of that card is not known"),
]


def flash2_seconds(chip, codes, T, machine):
    symbol = next(s for s in codes[chip.arch] if "attention_forward_kernelILi64ELi64ELi2E" in s)
    batch = TOKENS // T
    launch = Launch(["attention_forward", symbol, batch * HEADS, -(-T // 128), 1, 128, 1, 1, 3 * 128 * HEAD_SIZE * 2])
    code = codes[chip.arch][symbol]
    work = work_of(Shape(1, HEADS * HEAD_SIZE, HEADS, batch, T), launch, code)
    return kernel_seconds(Demand(chip, launch, code, work, Counted()), machine)[0]


def wgmma_seconds(chip, codes, T, tile, machine):
    symbol = next(s for s in codes[chip.arch] if "attention_forward_kernelILi64ELi64ELi2E" in s)
    code, (rows, columns, warpgroups) = codes[chip.arch][symbol], tile
    row_tiles = -(-T // rows)
    tiles = sum(-(-min(T, first + rows) // columns) for first in range(0, T, rows))
    rounds = tiles * rows * columns / WGMMA_ROUND / 4  # of a quarter of a multiprocessor
    around = sum(b.get(f"alone {chip.name}", 0) for b in code["blocks"] if not b["loop"])
    waits = 2 * machine.loaded * machine.latency  # for queries, then keys
    each = code["together"][f"{chip.name} {WGMMA}"][warpgroups - 1]
    clocks = machine.warp_clocks * (rounds * each + row_tiles * around) + row_tiles * waits
    return TOKENS // T * HEADS * clocks / chip.sms / machine.clock + 1e-6 * machine.gap


def attention_of(figure, args, codes):
    """TFLOP/s: low, expected and high in terms of time."""
    chip = next(c for c in CHIPS if c.name == "H100 SXM")
    seconds = lambda machine: (wgmma_seconds(chip, codes, figure.T, figure.tile, machine) if figure.tile else
                               flash2_seconds(chip, codes, figure.T, machine))
    flops = 2 * TOKENS * figure.T * HEADS * HEAD_SIZE
    return [flops / s / 1e12 for s in in_range(*moves(chip, cache_replay.head_by_head, seconds))]


def step_of_figure(figure, args, codes):
    """Milliseconds: low, expected and high."""
    chip = next(c for c in CHIPS if c.name == figure.chip)
    return [1e3 * s for s in several_gpus(args, chip, codes, figure.model, figure.B, figure.tokens, figure.gpus)]


def row(cells, measured, modelled, why):
    """A row of the table; why: given if the model is off by more than 10%, or was in an earlier state."""
    off = modelled[1] / measured - 1
    three = " / ".join(f"{value:.0f}" for value in modelled)
    return f"| {cells} | {measured:.0f} | {three} | {off:+.0%} | {why} |"


def rows(args, codes):
    """The figure, what is modelled, and a row for each."""
    names = [chip.name for chip in args.chips]
    for f in ATTENTION if "H100 SXM" in names else []:
        modelled = attention_of(f, args, codes)
        what = f"{f.who}, T {f.T}, H100, TFLOP/s"
        yield f, f.measured, modelled, row(f"{what} | {FIGURE_5}", f.measured, modelled, f.why)
    for f in [f for f in STEPS if f.chip in names]:
        modelled = step_of_figure(f, args, codes)
        gpus = f"{f.gpus} x {f.chip}" if f.gpus > 1 else f.chip
        what = f"llm.c, {MODELS[f.model][0]}, {gpus}, B {f.B}, {f.tokens:,} tokens a step, ms"
        yield f, f.ms, modelled, row(f"{what} | {f.source}", f.ms, modelled, f.why)


PAGE = """### What others report

Measured by others, at the addresses given; beside it what the model says of the same work, expected and in its range
(`dev/cuda/held_out.py` says how). No constant was fitted to these figures. FlashAttention-2's at T 1024 had a say in
one thing: a model in which warps share their pipes without hindering each other was 40% too fast there, so
`warp_time.py` lets them take turns, instruction by instruction. Where the model is off by more than 10%, the table says
why.

| what | source | measured | modelled: short / expected / long | off | why |
|---|---|---|---|---|---|"""


def lines(args, codes):
    return [*PAGE.splitlines(), *[line for _, _, _, line in rows(args, codes)]]
