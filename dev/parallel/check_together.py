#!/usr/bin/env python3
"""Checks build/together: the losses and weights of one process on several meshes, bytes of each axis and memory by the
formulas, checkpoints, the bubble where stages sleep, what it says of wrong numbers, and of a process that dies.
`make parallel` runs it.

    dev/parallel/check_together.py
"""
import math
import pathlib
import sys
import tempfile

from check_tensor import check_same, weights_of
from programs import Program, as_trainer, by_tcp, check_shares, counts, losses, measured

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

TOGETHER = Program("together")
AXES = ["--data", "--pipeline", "--tensor"]


def flags_of(mesh):
    return [text for axis, size in zip(AXES, mesh) for text in (axis, size)]


def trained(mesh, *flags, by=by_tcp):
    """Losses, and weights; wte is in the first stage and in the last, and the same there."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "weights"
        said = TOGETHER.run(by(math.prod(mesh)), *flags_of(mesh), *flags, "--weights", path)
        counts(said, math.prod(mesh))
        weights = {}
        for stage in range(mesh[1]):
            for name, values in weights_of(path.with_suffix(f".{stage}")).items():
                assert weights.setdefault(name, values) == values, f"{name} differs between stages"
        return losses(said), weights


def meshes():
    one = trained((1, 1, 1), "--steps", 200)
    as_trainer(one[0], 4, 8, 0.001)
    print(check_same("2 x 2 x 2", one, trained((2, 2, 2), "--steps", 200)))
    short = trained((1, 1, 1), "--steps", 20)
    assert short[0] == one[0][:20]
    for mesh, flags, by in (((1, 4, 2), ["--sequence", 2], by_tcp), ((4, 1, 2), ["--sequence", 1], by_tcp),
                            ((2, 4, 1), [], by_tcp), ((1, 2, 2), [], TOGETHER.by_mpi)):
        print(check_same(" x ".join(map(str, mesh)), short, trained(mesh, "--steps", 20, *flags, by=by)))


def checkpoints():
    """The same bits as a run that was never stopped; replicas may be others; another mesh is refused."""
    with tempfile.TemporaryDirectory() as folder:
        place, mesh = ["--folder", pathlib.Path(folder) / "run"], flags_of((2, 2, 2))
        whole = losses(TOGETHER.run(by_tcp(8), *mesh, "--steps", 12))
        parts = [losses(TOGETHER.run(by_tcp(8), *mesh, "--steps", steps, *place)) for steps in (5, 8)]
        parts.append(losses(TOGETHER.run(by_tcp(4), *flags_of((1, 2, 2)), "--steps", 12, *place)))
        assert [len(part) for part in parts] == [5, 3, 4]
        assert parts[0] + parts[1] == whole[:8], "a run that went on from a checkpoint has other losses"
        assert all(abs(a - b) <= 1e-5 for a, b in zip(parts[2], whole[8:])), "with other replicas, other losses"
        assert len(list((pathlib.Path(folder) / "run").iterdir())) == 5, "a file of each stage and part, and latest"
        for other in ((2, 4, 1), (2, 1, 2)):
            TOGETHER.refuses(by_tcp(math.prod(other)), " ".join(map(str, [*flags_of(other), *place])),
                             "only --data may be another")


def bubble(mesh):
    flags = ["--slow-ms", 100, "--steps", 1, "--micro", 4 * mesh[0]]
    return measured("bubble", TOGETHER.run(by_tcp(math.prod(mesh)), *flags_of(mesh), *flags))


def refusals():
    wrong = {"--data 2": "--data 2 --pipeline 1 --tensor 1 are 2 processes, and there are 4",
             "--tensor 4 --sequence 3": '--sequence "3": whole numbers from 0 to 2',
             "--pipeline 4 --layers 6": "--layers 6 do not divide among --pipeline 4",
             "--data 4 --micro 6": "--micro 6 do not divide among --data 4",
             "--data 2 --pipeline 2 --micro 2": "--micro 2 / --data 2 do not keep 2 stages busy"}
    for flags, sentence in wrong.items():
        TOGETHER.refuses(by_tcp(4), flags, sentence)
    TOGETHER.refuses(by_tcp(8), "--tensor 8", "4 heads do not divide among --tensor 8")


def main():
    meshes()
    checkpoints()
    check_shares("bubble", bubble, [(1, 4, 1), (2, 2, 2)], lambda share, formula: abs(share - formula) <= 0.1 * formula)
    refusals()
    TOGETHER.deaths(*map(str, flags_of((2, 2, 1))), "--steps", "100000")


if __name__ == "__main__":
    main()
