#!/usr/bin/env python3
"""What each way to divide a model would take on GPUs, by dev/parallel/costs.py: modelled, not measured.

    dev/parallel/on_gpus.py             prints the tables of chapters 21 to 24
    dev/parallel/on_gpus.py --write     puts them there
"""
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

import choose  # noqa: E402
from choose import cards_of, model_of  # noqa: E402
from costs import Layout, cost_of, layer_seconds, pipeline_wire, tensor_wire  # noqa: E402
from readme import write_between  # noqa: E402

COURSE, CHIP, SHAPE = choose.ROOT / "dev/course", "H100 SXM", "gpt3:c4096"
MODEL, B = model_of(SHAPE), 4
NOTE = f"Modelled: `{SHAPE}` on {CHIP}, T {MODEL.T}, {B} sequences a micro-batch."


def layout(p=1, t=1):
    return Layout(1, p, t, B, 1, t > 1, 0, "selective")


# A stage waits for its messages; the bubble is of a step of m micro-batches.
def pipelines():
    lines = ["| stages of 8 cards | a stage's micro-batch, ms | its messages, ms | bubble, 8 micro-batches | 32 "
             "| 128 |",
             "|" + "---|" * 6]
    for p in (2, 4, 8, 16):
        cards, one = cards_of(CHIP, 8 * p), layout(p, 8)
        compute = MODEL.L // p * sum(layer_seconds(MODEL, cards, one)) + tensor_wire(MODEL, cards, one, 1)[1]
        bubbles = [cost_of(MODEL, cards, one, B * m).bubble for m in (8, 32, 128)]
        lines.append(f"| {p} | {1e3 * compute:.2f} | {1e3 * pipeline_wire(MODEL, cards, one, 1)[1]:.2f} | "
                     + " | ".join(f"{bubble:.1%}" for bubble in bubbles) + " |")
    return "\n".join([*lines, "", NOTE, "Stages are nodes of 8 cards, which share each layer."])


# Computing shrinks with the cards, messages hardly do.
def tensors():
    lines = ["| cards that share a layer | computing, ms of a layer | messages, ms | of the time |", "|" + "---|" * 4]
    for t in (1, 2, 4, 8, 16, 32):
        cards, one = cards_of(CHIP, t), layout(t=t)
        compute, wire = sum(layer_seconds(MODEL, cards, one)), tensor_wire(MODEL, cards, one, 1)[1] / (MODEL.L + 0.5)
        lines.append(f"| {t} | {1e3 * compute:.3f} | {1e3 * wire:.3f} | {wire / (compute + wire):.0%} |")
    return "\n".join([*lines, "", NOTE, "From 16 cards on they are of several nodes."])


# A round of n queries and n keys: 4 n^2 C FLOPs forward, at the rate of large products; 2 n C numbers of 2 bytes are
# received. It hides if n > FLOP/s / bytes/s; zigzag has half as many pairs.
def rings():
    cards = cards_of(CHIP, 8)
    lines = ["| positions of a process | a round, ms | its block by NVLink, ms | by network, ms | NVLink hides "
             "| network hides |",
             "|" + "---|" * 6]
    for n in (1024, 4096, 16384, 65536):
        compute, sent = 2 * n * n * MODEL.C / cards.products / cards.flops, 4 * n * MODEL.C
        times = [sent / rate for rate in (cards.within, cards.between)]
        lines.append(f"| {n:,} | {1e3 * compute:.2f} | " + " | ".join(f"{1e3 * time:.2f}" for time in times) + " | "
                     + " | ".join("yes" if time < compute else "no" for time in times) + " |")
    least = [2 * cards.products * cards.flops / rate for rate in (cards.within, cards.between)]
    return "\n".join([*lines, "", f"Modelled: C = {MODEL.C}, zigzag, forward, on {CHIP}. Positions of a process from "
                      "which on a block is", f"hidden: {least[0]:,.0f} by NVLink, {least[1]:,.0f} by network."])


# A token of bf16: 8 factor k C bytes there and back in both passes, 48 C^2 FLOPs in k experts of 4 C / k hidden units.
def experts():
    cards, k, factor, C = cards_of(CHIP, 8), 2, 1.25, MODEL.C
    compute = 48 * C * C / cards.products / cards.flops
    lines = ["| experts are | exchange, of the experts' time |", "|---|---|"]
    for where, rate in (("in a machine, by NVLink", cards.within), ("in other machines, by network", cards.between)):
        lines.append(f"| {where} | {8 * factor * k * C / rate / compute:.2f} |")
    return "\n".join([*lines, "", f"Modelled: C = {C}, k = {k}, factor {factor}, on {CHIP}."])


PAGES = {"21-pipelines.md": pipelines, "22-tensors.md": tensors, "23-long-sequences.md": rings,
         "24-experts.md": experts}


def main():
    for page, text_of in PAGES.items():
        if "--write" in sys.argv:
            write_between(COURSE / page, "on GPUs", text_of())
        else:
            print(f"{page}\n\n{text_of()}\n")


if __name__ == "__main__":
    main()
