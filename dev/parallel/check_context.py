#!/usr/bin/env python3
"""Checks dev/parallel/context.cpp: the losses of one process, pairs, bytes and memory by the formulas, idle time where
attention sleeps, what it says of wrong numbers. `make parallel` runs it.

    dev/parallel/check_context.py
"""
import concurrent.futures
import re
import sys

import check

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

check.PROGRAM = "build/context"
WAYS = ["ring", "zigzag", "ulysses"]
COUNTS = re.compile(r"^process \d+ \| pairs (\d+), by the formula (\d+) \| keeps (\d+) bytes, by the formula (\d+) \| "
                    r"sends (\d+) bytes, by the formula (\d+)$", re.M)
SLOW = ["--slow-us", 300, "--layers", 1, "--steps", 1]


def losses(said):
    return [float(loss) for loss in re.findall(r"^step \d+ \| loss (\S+)$", said, re.M)]


def check_counts(said, processes):
    found = COUNTS.findall(said)
    assert len(found) == processes, said
    for pairs, its_formula, kept, kept_formula, sent, sent_formula in found:
        assert (pairs, sent) == (its_formula, sent_formula), f"not as by the formulas: {said}"
        assert abs(int(kept) - int(kept_formula)) <= 0.05 * int(kept_formula), f"memory not by the formula: {said}"


def same_losses():
    said = check.run([], "--way", "ulysses", "--steps", 200)  # on one process, the kernels' attention
    check_counts(said, 1)
    one = losses(said)
    assert len(one) == 200
    for way, processes, launcher in (("ring", 2, check.by_tcp), ("ring", 4, check.by_mpi), ("zigzag", 4, check.by_tcp),
                                     ("zigzag", 1, check.by_tcp), ("ulysses", 4, check.by_tcp)):
        steps = 200 if way == "zigzag" else 20
        said = check.run(launcher(processes), "--way", way, "--steps", steps)
        check_counts(said, processes)
        found = losses(said)
        assert len(found) == steps and all(abs(a - b) <= 1e-5 * b for a, b in zip(found, one)), f"{way}: other losses"
    return one[-1]


def idle(way):
    said = check.run(check.by_tcp(4), "--way", way, *SLOW)
    return [float(x) for x in re.search(r"^idle (\S+), by the formula (\S+)$", said, re.M).groups()]


def check_idle():
    """Other programs can make a process wait longer, never shorter: what is too much is measured again."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        found = dict(zip(WAYS, threads.map(idle, WAYS)))
    for way, (measured, formula) in found.items():
        near = lambda x, formula=formula: abs(x - formula) <= max(0.1 * formula, 0.04)  # noqa: E731
        for _ in range(check.TRIES):
            if not near(measured):
                measured = min(measured, idle(way)[0])
        print(f"{way}: idle {measured:.3f}, by the formula {formula:.3f}")
        assert near(measured), f"{way}: the idle time is not that of the formula"
    assert found["ring"][1] > 0.4 and found["zigzag"][1] == 0


def refusals():
    wrong = {"--way round": "--way round is unknown", "--way zigzag": "do not divide into 6 pieces for 3 processes",
             "--way ring": "do not divide into 3 pieces", "--steps x": '--steps "x": whole numbers',
             "--stpes 1": "--stpes is unknown"}
    for flags, sentence in wrong.items():
        assert sentence in check.run(check.by_tcp(3), *flags.split(), status=2)
    assert "4 heads do not divide among 8 processes" in check.run(check.by_tcp(8), "--way", "ulysses", status=2)


def main():
    print(f"every way has the losses of one process: {same_losses():.3f} after 200 steps")
    check_idle()
    refusals()


if __name__ == "__main__":
    main()
