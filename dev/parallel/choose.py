#!/usr/bin/env python3
"""Which way to split a model, and how: lists the fastest layouts that fit, with what each takes, by formulas alone.

    dev/parallel/choose.py -e gpt3:c4096 -pn 64 -d 2097152                 # 64 H100, steps of 2 million tokens
    dev/parallel/choose.py -e L96C12288H96T2048 -pn 512 -d 3145728 --chip A100 --memory 40
    dev/parallel/choose.py -e d48 -pn 8 -d 524288 --within 20 --between 1  # GB/s: other links

A layout is data x pipeline x tensor, with or without sequence parallel, a stage of ZeRO, a micro-batch, chunks of
layers a stage (interleaved 1F1B), and what is computed again: "selective" is attention's scores, which flash attention
never stores, "full" a layer. The formulas: dev/parallel/costs.py. How near they come to what others measured:
dev/parallel/published.py.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/cuda")]
import argparse  # noqa: E402
import math  # noqa: E402
import re  # noqa: E402

from chips import CHIPS, Machine  # noqa: E402
from costs import Cards, Layout, Model, cost_of, model_elems  # noqa: E402

# GB/s. A ring on NVLink reaches 0.8 of 300, 450 and 900 GB/s each way (A100's as llmc/plan/plan_time.h has it); the
# network of a DGX has 200 Gbit/s for each A100, 400 for each H100 and B200 (NVIDIA's datasheets of DGX and HGX).
LINKS = {"A100 SXM 80GB": (240, 25), "H100 SXM": (360, 50), "B200": (720, 50)}
USABLE = 0.9  # of a card's memory; the rest is the libraries' and lost between allocations: assumed


# ---- all layouts

def divisors(n):
    return [k for k in range(1, n + 1) if n % k == 0]


def layouts_of(model, cards, sequences, zeros=(0, 1, 2, 3), recompute=("none", "selective", "full"), sequence=True):
    """All that divide evenly. ZeRO's stages 2 and 3 are for one stage: with more, each micro-batch would move them."""
    for t in [t for t in divisors(cards.n) if model.NH % t == 0]:
        for p in [p for p in divisors(cards.n // t) if model.L % p == 0]:
            d = cards.n // t // p
            for B in [2 ** k for k in range(6) if sequences % (d * 2 ** k) == 0]:
                m = sequences // d // B
                for v in [v for v in divisors(model.L // p) if v == 1 or (p > 1 and m % p == 0)]:
                    for again in recompute:
                        for zero in [z for z in zeros if z == 0 or (d > 1 and (z == 1 or p == 1))]:
                            for s in (False, True) if sequence and t > 1 else (False,):
                                yield Layout(d, p, t, B, v, s, zero, again)


def best_of(model, cards, sequences, **restricted):
    """(layout, cost) of those that fit, the fastest first, of each d x p x t the best; and the least memory of all."""
    best, least = {}, math.inf
    for layout in layouts_of(model, cards, sequences, **restricted):
        cost = cost_of(model, cards, layout, sequences)
        least = min(least, cost.memory)
        rank = (cost.seconds, cost.memory)
        if cost.memory <= USABLE * cards.memory and rank < best.get(layout[:3], ((math.inf,),))[0]:
            best[layout[:3]] = rank, layout, cost
    return [(layout, cost) for _, layout, cost in sorted(best.values())], least


# ---- the program

def model_of(text):
    """L, C, NH, T and V of a descriptor as the trainers' -e takes it; None if it is none."""
    table = (ROOT / "llmc/gpt2/config.h").read_text()
    for name, C, L, NH, T in re.findall(r'\{"([\w:]+)", (\d+), (\d+), (\d+), (\d+)\}', table):
        if text in (name, f"gpt2:{name}"):
            return Model(int(L), int(C), int(NH), int(T), 50257)
    sizes = {letter: int(number) for letter, number in re.findall(r"([LCHTV])([1-9]\d*)", text)}
    if not re.fullmatch(r"([LCHTV][1-9]\d*)+", text) or not {"L", "C", "H"} <= set(sizes) or sizes["C"] % sizes["H"]:
        return None
    return Model(sizes["L"], sizes["C"], sizes["H"], sizes.get("T", 1024), sizes.get("V", 50257))


def cards_of(chip_name, n, **other):
    """So many of a chip: the table of llmc/plan/mfu.h, the links above, the shares that dev/cuda/assumptions.py and
    dev/cuda/chips.py expect; of what travels meanwhile as much is hidden as of memory's time."""
    chip = next(c for c in CHIPS if c.name == chip_name)
    machine, (within, between) = Machine(chip), LINKS[chip.name]
    usual = Cards(n, chip.memory_bytes, chip.peak, chip.bandwidth, 1e9 * within, 1e9 * between, 8, machine.product,
                  machine.memory_share, True, 1 - machine.not_hidden, 4)
    return usual._replace(**{name: value for name, value in other.items() if value is not None})


HEAD = ["| data x pipeline x tensor | micro-batch | chunks | sequence | ZeRO | recompute | memory GiB | bubble | "
        "tensor GB | pipeline GB | data GB | step s | share of peak |", "|" + "---|" * 13]


def row_of(layout, cost):
    return (f"| {layout.d} x {layout.p} x {layout.t} | {layout.B} | {layout.v} | {'yes' if layout.sequence else 'no'} "
            f"| {layout.zero} | {layout.recompute} | {cost.memory / 2**30:.1f} | {cost.bubble:.1%} "
            f"| {cost.tensor / 1e9:.1f} | {cost.pipeline / 1e9:.1f} | {cost.data / 1e9:.1f} | {cost.seconds:.3g} "
            f"| {cost.share:.1%} |")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-e", dest="model", required=True, help="d12, gpt3:c4096, L96C12288H96T2048V51200, ...")
    parser.add_argument("-pn", dest="n", type=int, required=True, help="cards")
    parser.add_argument("-d", dest="tokens", type=int, required=True, help="tokens of a step")
    parser.add_argument("--chip", default="H100", help=f"a part of a name: {', '.join(LINKS)}")
    parser.add_argument("--per-node", type=int, help="cards in a node, 8 unless given")
    for name, what, unit in (("memory", "GiB of a card", 2**30), ("tflops", "peak of a card", 1e12),
                             ("bandwidth", "GB/s of its memory", 1e9), ("within", "GB/s to cards of its node", 1e9),
                             ("between", "GB/s to other nodes", 1e9)):
        parser.add_argument(f"--{name}", type=lambda text, unit=unit: unit * float(text), help=what)
    parser.add_argument("--top", type=int, default=5, help="layouts that are shown")
    args = parser.parse_args()
    model, chip = model_of(args.model), next((c for c in LINKS if args.chip.lower() in c.lower()), None)
    numbers = [args.n, args.tokens, args.per_node, args.memory, args.tflops, args.bandwidth, args.within, args.between]
    wrong = (f"-e {args.model} is no model" if not model else f"--chip {args.chip}: {', '.join(LINKS)} are accepted"
             if not chip else "numbers above 0 are accepted" if not all(x is None or 0 < x < math.inf for x in numbers)
             else f"-d {args.tokens} is no multiple of T, {model.T}" if args.tokens % model.T else None)
    if wrong:
        parser.exit(2, f"choose.py: {wrong}\n")
    return args, model, chip


def main():
    args, model, chip = parse()
    cards = cards_of(chip, args.n, memory=args.memory, flops=args.tflops, bytes_s=args.bandwidth, within=args.within,
                     between=args.between, per_node=args.per_node)
    best, least = best_of(model, cards, args.tokens // model.T)
    if not best:
        why = f"the least that a layout takes is {least / 2**30:.1f} GiB" if least < math.inf else "none divides evenly"
        sys.exit(f"no layout fits {USABLE:.0%} of {cards.memory / 2**30:.0f} GiB a card: {why}")
    print(f"{model_elems(model) / 1e9:.2f}B parameters on {args.n} x {chip}, {args.tokens:,} tokens a step; modelled, "
          "not measured:\n")
    print("\n".join([*HEAD, *[row_of(*one) for one in best[:args.top]]]))


if __name__ == "__main__":
    main()
