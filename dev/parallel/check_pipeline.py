#!/usr/bin/env python3
"""Checks build/pipeline: the bits of one process, bytes and memory by the formulas, the bubble of every schedule where
stages sleep, what it says of wrong numbers, and of a process that dies. `make parallel` runs it.

    dev/parallel/check_pipeline.py
"""
import sys

from programs import Program, as_trainer, by_tcp, check_shares, checksum, counts, losses, measured

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

PIPELINE = Program("pipeline")
SCHEDULES = {"naive": [], "gpipe": [], "1f1b": [], "interleaved": ["--chunks", "2"], "zb-h1": []}
# So long that what the system takes to wake processes up is little beside it.
SLOW = ["--slow-ms", "200", "--steps", "1"]
ENDLESS = ["--slow-ms", "50", "--steps", "1000"]


def trained(launcher, *flags, processes=4):
    said = PIPELINE.run(launcher, *flags)
    counts(said, processes)
    return losses(said), checksum(said)


def same_bits():
    """Every schedule against one process; one of them, and the trainer, over a longer run."""
    one, long_one = (trained([], "--steps", steps, processes=1) for steps in (20, 200))
    assert one[0] == long_one[0][:20] and len(long_one[0]) == 200
    assert trained([], "--steps", 20, "--micro", 4, processes=1) != one, "other numbers are not told from these"
    for number, (schedule, flags) in enumerate(SCHEDULES.items()):
        launcher = (PIPELINE.by_mpi, by_tcp)[number % 2](4)
        found = trained(launcher, "--steps", 20, "--schedule", schedule, *flags)
        assert found == one, f"{schedule}: not the losses and weights of one process"
    for processes, flags in ((2, ["--chunks", 4]), (1, ["--chunks", 2])):  # where both neighbours are one process
        found = trained(by_tcp(processes), "--steps", 20, "--schedule", "interleaved", *flags, processes=processes)
        assert found == one, f"interleaved on {processes}: not the losses and weights of one process"
    assert trained(by_tcp(4), "--steps", 200) == long_one, "200 steps: not the losses and weights of one process"
    return long_one[0]


def bubble(schedule):
    """The bubble, measured and by the formula."""
    micro = 1 if schedule == "naive" else 4  # the naive bubble does not depend on it
    said = PIPELINE.run(by_tcp(4), *SLOW, "--micro", micro, "--schedule", schedule, *SCHEDULES[schedule])
    counts(said, 4)
    return measured("bubble", said)


def is_near(share, formula):
    return abs(share - formula) <= 0.1 * formula


def check_bubbles():
    found = check_shares("bubble", bubble, SCHEDULES, is_near)
    assert not is_near(found["gpipe"][0], found["zb-h1"][1]), "another bubble is not told from it"


def refusals():
    wrong = {"--layers 6": "--layers 6 do not divide among 4 processes",
             "--layers 4 --schedule interleaved --chunks 2": "do not divide among 4 processes, --chunks 2 each",
             "--micro 3": "1f1b keeps 4 stages busy with 4 micro-batches or more",
             "--micro 6 --schedule interleaved --chunks 2": "a multiple of its 4 stages",
             "--chunks 2": "only --schedule interleaved has chunks", "--schedule best": "--schedule best is unknown",
             "--micro x": '--micro "x": whole numbers', "--mirco 4": "--mirco is unknown"}
    for flags, sentence in wrong.items():
        PIPELINE.refuses(by_tcp(4), flags, sentence)
    assert "do not divide among 3 processes" in PIPELINE.run(PIPELINE.by_mpi(3), status=2)


def main():
    found = same_bits()
    print(f"every schedule has the bits of one process; loss {found[-1]:.3f} after 200 steps")
    as_trainer(found[:20])
    check_bubbles()
    refusals()
    PIPELINE.deaths(*ENDLESS)


if __name__ == "__main__":
    main()
