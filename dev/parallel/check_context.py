#!/usr/bin/env python3
"""Checks build/context: the losses of one process, pairs, bytes and memory by the formulas, idle time where attention
sleeps, what it says of wrong numbers, and of a process that dies. `make parallel` runs it.

    dev/parallel/check_context.py
"""
import sys

from programs import Program, by_tcp, check_shares, counts, losses, measured

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

CONTEXT = Program("context")
WAYS = ["ring", "zigzag", "ulysses"]
SLOW = ["--slow-us", 300, "--layers", 1, "--steps", 1]
ENDLESS = ["--slow-us", "100", "--steps", "1000"]


def trained(launcher, way, steps, processes):
    said = CONTEXT.run(launcher, "--way", way, "--steps", steps)
    counts(said, processes)
    found = losses(said)
    assert len(found) == steps
    return found


def same_losses():
    one = trained([], "ulysses", 200, 1)  # on one process, the kernels' attention
    for way, processes, by in (("ring", 2, by_tcp), ("ring", 4, CONTEXT.by_mpi), ("zigzag", 4, by_tcp),
                               ("zigzag", 1, by_tcp), ("ulysses", 4, by_tcp)):
        found = trained(by(processes), way, 200 if way == "zigzag" else 20, processes)
        assert all(abs(a - b) <= 1e-5 * b for a, b in zip(found, one)), f"{way}: other losses"
    return one[-1]


def idle(way):
    return measured("idle", CONTEXT.run(by_tcp(4), "--way", way, *SLOW))


def check_idle():
    found = check_shares("idle", idle, WAYS, lambda share, formula: abs(share - formula) <= max(0.1 * formula, 0.04))
    assert found["ring"][1] > 0.4 and found["zigzag"][1] == 0


def refusals():
    wrong = {"--way round": "--way round is unknown", "--way zigzag": "do not divide into 6 pieces for 3 processes",
             "--way ring": "do not divide into 3 pieces", "--steps x": '--steps "x": whole numbers',
             "--stpes 1": "--stpes is unknown"}
    for flags, sentence in wrong.items():
        CONTEXT.refuses(by_tcp(3), flags, sentence)
    CONTEXT.refuses(by_tcp(8), "--way ulysses", "4 heads do not divide among 8 processes")


def main():
    print(f"every way has the losses of one process: {same_losses():.3f} after 200 steps")
    check_idle()
    refusals()
    CONTEXT.deaths(*ENDLESS)


if __name__ == "__main__":
    main()
