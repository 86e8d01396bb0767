#!/usr/bin/env python3
"""Trains a mixture of experts and a dense twin of the same FLOPs on the same tokens, from three seeds each: their
losses and what is dropped, into the table of chapter 24; and where the tokens go, step by step, into its picture.

    make parallel && dev/parallel/draw_experts.py [--write]

About two minutes on two idle cores.
"""
import math
import re
import statistics

import drawn
from check_experts import EXPERTS
from drawn import charts, svg

SEEDS, STEPS, E, T, C, CAPACITY = (1, 2, 3), 600, 8, 64, 32, 1.25
AT = (200, 600)  # losses are means of the 50 steps before
LAYER, POINT = 1, 15  # of the picture: whose choices, and steps of which a point is the mean
# name: experts, k, capacity, alpha. Hidden units of an expert: 4 C / k.
KINDS = {"dense": (1, 1, 1, 0), "k = 1, alpha 0.01": (E, 1, CAPACITY, 0.01), "k = 1, alpha 0.1": (E, 1, CAPACITY, 0.1),
         "k = 2, alpha 0": (E, 2, CAPACITY, 0), "k = 2, alpha 0.01": (E, 2, CAPACITY, 0.01),
         "k = 2, alpha 0.1": (E, 2, CAPACITY, 0.1), "k = 2, alpha 0.1, nothing dropped": (E, 2, E, 0.1)}
DRAWN = ("k = 2, alpha 0", "k = 2, alpha 0.1")


def mean_before(values, step):
    return statistics.mean(values[step - 50:step])


def measure(name, seed):
    experts, k, capacity, alpha = KINDS[name]
    said = EXPERTS.run([], "--steps", STEPS, "--seed", seed, "--experts", experts, "--top", k, "--capacity", capacity,
                       "--alpha", alpha, "--trace", 1)
    steps = [(float(loss), float(dropped)) for loss, dropped in
             re.findall(r"^step \d+ \| loss (\S+) \| .* dropped (\S+)$", said, re.M)]
    loads = [list(map(int, line.split())) for line in re.findall(rf"^loads \d+ {LAYER} (.*)$", said, re.M)]
    assert len(steps) == len(loads) == STEPS
    losses, dropped = zip(*steps)
    found = {"losses": [mean_before(losses, step) for step in AT], "dropped": [mean_before(dropped, s) for s in AT]}
    if name in DRAWN and seed == SEEDS[0]:
        shares = [[n / sum(step) for n in step] for step in loads]
        found["shares"] = [[round(statistics.mean(column), 4) for column in zip(*shares[i:i + POINT])]
                           for i in range(0, STEPS, POINT)]
    return found


def weights_of(name):
    """MLP weights of a layer: those that there are, and those that a token meets; without the router's."""
    experts, k, _, _ = KINDS[name]
    hidden = 4 * C // k
    one = 2 * C * hidden + hidden + C
    return experts * one, k * one


def table(figures):
    lines = ["| | MLP weights of a layer | of these for a token | " +
             " | ".join(f"loss at step {step}, three seeds | against dense | dropped" for step in AT) + " |",
             "|" + "---|" * 9]
    for name, runs in figures.items():
        cells = [f"{n:,}" for n in weights_of(name)]
        for i in range(len(AT)):
            losses, base = ([run["losses"][i] for run in all_runs] for all_runs in (runs, figures["dense"]))
            gap = statistics.mean(loss - other for loss, other in zip(losses, base))
            cells += [", ".join(f"{loss:.3f}" for loss in losses), "" if name == "dense" else f"{gap:+.3f}",
                      f"{statistics.mean(run['dropped'][i] for run in runs):.1%}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    few, all_of_them = math.ceil(CAPACITY * 2 * T / E), T
    lines += ["", f"Four layers of C = {C}, {E} experts in each, capacity {CAPACITY}, {4 * T} bytes of Shakespeare a "
              f"step; loss and drops",
              "are means over the 50 steps before. A token meets the same weights in all rows, but for a second bias "
              "with k = 2.",
              f"Where nothing is dropped, an expert has {all_of_them} places in a sequence and not {few}: "
              f"{all_of_them / few:.1f} times the messages."]
    return "\n".join(lines)


def picture(figures):
    parts, colors = [], svg.colors(E)
    runs = [figures[name][0]["shares"] for name in DRAWN]
    top = max(share for shares in runs for step in shares for share in step)
    for number, (name, shares) in enumerate(zip(DRAWN, runs)):
        panel = charts.Panel(60 + 430 * number, 40, 350, 240, (0, STEPS), (0, top * 1.05))
        panel.frame(name, "steps")
        for e in range(E):
            panel.curve([((i + 0.5) * POINT, step[e]) for i, step in enumerate(shares)], colors[e])
        panel.curve([(0, CAPACITY / E), (STEPS, CAPACITY / E)], svg.LINES, dash="5 4")
        parts += panel.parts
    names = [f"expert {e}" for e in range(E)] + ["capacity, if all sequences are alike"]
    parts += charts.legend(60, 336, 760, names, [*colors, svg.LINES])[0]
    return svg.picture(880, 370, charts.SIZE, parts)


if __name__ == "__main__":
    drawn.run(__doc__, "experts", "24-experts.md", f"Shares of the choices by expert in layer {LAYER}",
              lambda: {name: [measure(name, seed) for seed in SEEDS] for name in KINDS}, table, picture)
