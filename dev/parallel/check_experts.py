#!/usr/bin/env python3
"""Checks build/experts: the bits of one process, one expert against the trainer, bytes and memory by the formulas, and
what it says of wrong numbers. `make parallel` runs it after dev/parallel/check.py.

    dev/parallel/check_experts.py
"""
import re
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

import check

PROCESS = re.compile(r"^process \d+ \| (keeps .*)$", re.M)
LAYERS, STEPS = 4, 200


def result(said):
    """What every step says, and the checksum of the weights."""
    return re.findall(r"^step \d+ \| (.*)$", said, re.M), re.search(r"^weights (\w{16})$", said, re.M)[1]


def check_counts(said, processes):
    assert len(PROCESS.findall(said)) == processes, said
    for line in PROCESS.findall(said):
        kept, kept_by_formula, sent, sent_by_formula = map(int, re.findall(r"\d+", line))
        assert abs(kept - kept_by_formula) <= 0.05 * kept_by_formula, f"memory is not that of the formula: {line}"
        assert sent == sent_by_formula and (sent > 0) == (processes > 1), f"bytes are not those of the formula: {line}"


def same_bits():
    """200 steps, in which a token that went elsewhere would show; then other numbers for a few."""
    expected = {}
    for steps, flags in ((STEPS, []), (20, ["--top", 1]), (20, ["--experts", 4, "--capacity", 0.5, "--layers", 2])):
        said = check.run([], "--steps", steps, *flags)
        check_counts(said, 1)
        one = result(said)
        assert len(one[0]) == steps and one not in expected.values(), "other numbers are not told from these"
        expected[str(flags)] = one
        launchers = [(2, check.by_tcp), (4, check.by_tcp)] if steps == STEPS else [(4, check.by_mpi)]
        for processes, by in launchers:
            said = check.run(by(processes), "--steps", steps, *flags)
            check_counts(said, processes)
            assert result(said) == one, f"{processes} processes, {flags}: not the losses and weights of one process"
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
        said = check.run(check.by_tcp(4), *flags.split(), status=2)
        assert sentence in said and said.count(sentence) == said.count("error: rank "), said
    assert "--top 2 is more than --experts 1" in check.run([], "--experts", 1, status=2)
    assert "4 sequences do not divide among 3 processes" in check.run(check.by_mpi(3), "--experts", 6, status=2)


def main():
    check.PROGRAM = "build/experts"
    losses = same_bits()
    print(f"experts: the bits of one process; loss {losses[-1]:.3f} after {STEPS} steps")
    dense = check.run([], "--steps", 20, "--experts", 1, "--top", 1, "--capacity", 1)
    check.as_trainer([float(loss) for loss in re.findall(r"\| loss (\S+)", dense)], LAYERS, 4)
    refusals()


if __name__ == "__main__":
    main()
