#!/usr/bin/env python3
"""Checks build/tensor: the losses and weights of one process, and of the trainer; bytes, memory and numbers of weights
by the formulas; what it says of numbers that do not divide, and of a process that dies. `make parallel` runs it.

    dev/parallel/check_tensor.py
"""
import array
import itertools
import pathlib
import sys
import tempfile

from programs import Program, as_trainer, by_tcp, counts, losses

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

TENSOR = Program("tensor")
TOLERANCE = 1e-5


def weights_of(path):
    """By tensor and layer; without the biases of keys: their gradient is 0, and Adam makes whole steps of its noise."""
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):
        end = data.index(b"\n", at)
        name, layer, n = data[at:end].decode().split()
        values = array.array("f", data[end + 1:end + 1 + 4 * int(n)])
        found[name, layer] = values[:int(n) // 3] + values[int(n) // 3 * 2:] if name == "qkvb" else values
        at = end + 1 + 4 * int(n)
    return found


def trained(launcher, *flags):
    """Losses, weights, and what the processes count, which is that of the formulas."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "weights"
        said = TENSOR.run(launcher, *flags, "--weights", path)
        first = counts(said, int(launcher[-1]) if launcher else 1)[0]
        return losses(said), weights_of(path), (first["keeps"], first["sends"])


def apart(one, other):
    """The largest differences of losses and of weights; NaN is the largest of all."""
    assert len(one[0]) == len(other[0]) and one[1].keys() == other[1].keys()
    pairs = (zip(one[0], other[0]), itertools.chain.from_iterable(zip(one[1][name], other[1][name]) for name in one[1]))
    return tuple(max(abs(a - b) if a == a and b == b else float("inf") for a, b in some) for some in pairs)


def check_same(what, one, other):
    losses, weights = apart(one, other)
    assert losses <= TOLERANCE and weights <= TOLERANCE, f"{what}: losses are {losses}, weights {weights} apart"
    return f"{what}: losses are {losses:.1e} apart at most, weights {weights:.1e}"


def same_as_one():
    one = trained([], "--steps", 200)
    as_trainer(one[0], 4, 4, 0.001)
    print(f"loss {one[0][-1]:.3f} after 200 steps, as the trainer's")
    split = [trained(by_tcp(4), "--steps", 200, "--sequence", sequence) for sequence in (0, 1)]
    again = trained(by_tcp(4), "--steps", 20, "--sequence", 2)
    for name, run_of_four in zip(("4 processes", "4 processes, --sequence 1"), split):
        print(check_same(name, one, run_of_four))
    assert again[0] == split[1][0][:20], "--sequence 2: not the bits of --sequence 1"
    memory, sent = zip(*[counts for _, _, counts in (*split, again)])
    assert memory[0] > memory[1] > memory[2], f"what is kept does not shrink: {memory}"
    print(f"kept, --sequence 0, 1, 2: {memory} bytes; sent in a step: {sent}")
    return one


def smaller_ones(one):
    short = trained([], "--steps", 20)
    assert short[0] == one[0][:20]
    other = trained([], "--steps", 20, "--micro", 3)
    assert max(apart(other, short)) > TOLERANCE, "other numbers are not told from these"
    by_two = trained(TENSOR.by_mpi(2), "--steps", 20, "--sequence", 2)
    print(check_same("2 processes, MPI, --sequence 2", short, by_two))
    odd = ["--steps", 20, "--micro", 8, "--heads", 3, "--channels", 48, "--layers", 2]
    print(check_same("3 processes, TCP", trained([], *odd), trained(by_tcp(3), *odd)))


def refusals():
    wrong = {("--heads 3", 4): "--channels 32 do not divide among --heads 3",
             ("--heads 2", 4): "--heads 2 do not divide among 4 processes",
             ("--heads 5 --channels 40", 5): "a vocabulary of 384, with its padding, does not divide among 5 processes",
             ("--heads 3 --channels 48 --sequence 1", 3): "64 tokens of a micro-batch do not divide among 3 processes",
             ("--sequence 3", 4): '--sequence "3": whole numbers from 0 to 2', ("--head 4", 4): "--head is unknown"}
    for (flags, processes), sentence in wrong.items():
        TENSOR.refuses(by_tcp(processes), flags, sentence)


def main():
    smaller_ones(same_as_one())
    refusals()
    TENSOR.deaths("--steps", "100000")


if __name__ == "__main__":
    main()
