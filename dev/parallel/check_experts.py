#!/usr/bin/env python3
"""Checks build/experts: the bits of one process, one expert against the trainer, bytes and memory by the formulas, and
what it says of wrong numbers, and of a process that dies. `make parallel` runs it.

    dev/parallel/check_experts.py
"""
import re
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

from programs import Program, as_trainer, by_tcp, checksum, counts, losses

EXPERTS = Program("experts")
LAYERS, STEPS = 4, 200


def trained(launcher, steps, *flags, processes):
    """What every step says, and the checksum of the weights."""
    said = EXPERTS.run(launcher, "--steps", steps, *flags)
    assert all((count["sends"] > 0) == (processes > 1) for count in counts(said, processes)), said
    return re.findall(r"^step \d+ \| (.*)$", said, re.M), checksum(said)


def same_bits():
    """200 steps, in which a token that went elsewhere would show; then other numbers for a few."""
    expected = {}
    for steps, flags in ((STEPS, []), (20, ["--top", 1]), (20, ["--experts", 4, "--capacity", 0.5, "--layers", 2])):
        one = trained([], steps, *flags, processes=1)
        assert len(one[0]) == steps and one not in expected.values(), "other numbers are not told from these"
        expected[str(flags)] = one
        for processes, by in [(2, by_tcp), (4, by_tcp)] if steps == STEPS else [(4, EXPERTS.by_mpi)]:
            found = trained(by(processes), steps, *flags, processes=processes)
            assert found == one, f"{processes} processes, {flags}: not the losses and weights of one process"
    steps = expected["[]"][0]
    dropped = [float(re.search(r"dropped (\S+)", step)[1]) for step in steps]
    assert 0.02 < min(dropped) and max(dropped) < 0.9, "nothing is dropped, so it is not checked"
    return [float(re.match(r"loss (\S+)", step)[1]) for step in steps]


def refusals():
    wrong = {"--experts 6": "--experts 6 do not divide among 4 processes", "--top 3": "--top 3: 1 or 2 are accepted",
             "--capacity 0": "--capacity 0 leaves no place for a token",
             "--capacity x": '--capacity "x": numbers from 0', "--alpha -1": '--alpha "-1": numbers from 0',
             "--experts": '--experts "": whole numbers',
             "--expert 4": "--expert is unknown"}
    for flags, sentence in wrong.items():
        EXPERTS.refuses(by_tcp(4), flags, sentence)
    EXPERTS.refuses([], "--experts 1", "--top 2 is more than --experts 1")
    EXPERTS.refuses(EXPERTS.by_mpi(3), "--experts 6", "4 sequences do not divide among 3 processes")


def main():
    found = same_bits()
    print(f"experts: the bits of one process; loss {found[-1]:.3f} after {STEPS} steps")
    as_trainer(losses(EXPERTS.run([], "--steps", 20, "--experts", 1, "--top", 1, "--capacity", 1)), LAYERS, 4)
    refusals()
    EXPERTS.deaths("--steps", "100000")


if __name__ == "__main__":
    main()
