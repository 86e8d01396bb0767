#!/usr/bin/env python3
"""The addresses that the model replays through the second-level cache (dev/cuda/cache_replay.py) are those that
attention's kernels copy: block by block, in the order in which blocks start, in the simulator.

    make COUNT=1 build-count/cuda/attention_forward build-count/cuda/attention_backward
    dev/test/replayed_addresses.py build-count/cuda/attention_forward build-count/cuda/attention_backward
"""
import collections
import os
import pathlib
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev/cuda"))
import cache_replay  # noqa: E402
from cache_replay import COPIED, KEPT, Tiles, accesses_of_block  # noqa: E402

X, CHUNK = 2, 16  # bytes of bf16, and of a copy
CACHE_BYTES = 64 << 10  # the second-level cache of the simulator: of so little that these shapes have several groups
# B, T, C, heads, and the rows of a block, at which the ladders check their variants: small, some of odd sizes
SHAPES = [(2, 67, 64, 1, 128), (2, 67, 128, 2, 128), (1, 130, 96, 3, 128), (1, 70, 96, 3, 128), (1, 33, 128, 1, 64),
          (1, 256, 128, 2, 128), (2, 290, 128, 2, 128), (1, 261, 64, 1, 128), (1, 270, 80, 1, 64)]
COLUMNS = {"attention_forward": 64, "attention_backward_kv": 32, "attention_backward_q": 32}
# which thirds of qkv, and whether dout with them, a kernel keeps and copies again and again
OPERANDS = {"attention_forward": (("q", False), ("kv", False)), "attention_backward_q": (("q", True), ("kv", False)),
            "attention_backward_kv": (("kv", False), ("q", True))}
THIRDS = {"q": [0], "kv": [1, 2]}


def recorded(programs):
    """(kernel, shape) -> blocks in the order of their start, each as a Counter of (bytes of the allocation, offset,
    bytes). Only a ladder's own kernels: that of the backward pass runs the forward kernel too."""
    kernels = {}
    with tempfile.TemporaryDirectory() as folder:
        for program in programs:
            for more in ([], ["--counted"]):
                path = pathlib.Path(folder) / "copies"
                subprocess.run([program, "--check", *more, "--variant", "shipped"], cwd=ROOT, check=True,
                               stdout=subprocess.DEVNULL, env={**os.environ, "CUSIM_COPIES": str(path)})
                for line in path.read_text().splitlines():
                    kernel, block, allocation, offset, size = line.split()
                    if not kernel.startswith(pathlib.Path(program).name):
                        continue
                    blocks = kernels.setdefault((kernel, shape_of(int(allocation))), {})
                    blocks.setdefault(block, collections.Counter())[int(allocation), int(offset), int(size)] += 1
    return {key: list(blocks.values()) for key, blocks in kernels.items()}


def allocations(shape):
    B, T, C, NH, _ = shape
    return {"qkv": B * T * 3 * C * X, "dout": B * T * C * X, "rows": B * T * NH * 4}


def shape_of(allocation):
    return next(shape for shape in SHAPES if allocation in allocations(shape).values())


def copies(kernel, shape, access):
    """What an access stands for: (bytes of the allocation, offset, bytes) of each copy."""
    B, T, C, NH, _ = shape
    kept, moving = OPERANDS[kernel]
    third, with_dout = {KEPT: kept, COPIED: moving}.get(access.what, ("", False))
    size, hs, (b, h) = allocations(shape), C // NH, divmod(access.head, NH)
    for row in range(b * T + access.first, b * T + access.first + access.rows):
        for chunk in range(0, hs * X, CHUNK):
            for part in THIRDS.get(third, []):
                yield size["qkv"], (row * 3 * C + part * C + h * hs) * X + chunk, CHUNK
            if with_dout:
                yield size["dout"], (row * C + h * hs) * X + chunk, CHUNK
    if with_dout and access.what == COPIED:  # lse and delta, which are tensors of one size
        for row in range(access.first, access.first + access.rows):
            yield from [(size["rows"], (access.head * T + row) * 4, 4)] * 2


def replayed(kernel, shape, order):
    """The blocks as the model replays them; order: what becomes of those that are replayed."""
    B, T, C, NH, rows = shape
    backward = kernel != "attention_forward"
    transposed = kernel == "attention_backward_kv"
    tiles = Tiles(B * NH, T, C // NH, rows, COLUMNS[kernel], transposed, 1 + backward, 1 + transposed, X)
    for block in order(cache_replay.shipped_order(tiles, CACHE_BYTES)(B * NH, -(-T // rows))):
        accesses = list(accesses_of_block(tiles, *block))
        yield collections.Counter(c for a in accesses for c in copies(kernel, shape, a)), accesses


def differences(kernels, order):
    for (kernel, shape), found in kernels.items():
        blocks = list(replayed(kernel, shape, order))
        if len(blocks) != len(found):
            yield f"{kernel} at {shape}: {len(found)} blocks, {len(blocks)} replayed"
        for i, (there, (wanted, accesses)) in enumerate(zip(found, blocks)):
            if there != wanted:
                yield f"{kernel} at {shape}: block {i} copies other addresses than the model replays"
            asked = sum(a.bytes for a in accesses if not a.written)
            copied = sum(size * n for (_, _, size), n in there.items())
            if asked != copied:
                yield f"{kernel} at {shape}: block {i} copies {copied} bytes, the model replays {asked}"


def main():
    kernels = recorded(sys.argv[1:] or sys.exit(__doc__))
    wrong = list(differences(kernels, iter))
    for kernel in COLUMNS:
        if sum(name == kernel for name, _ in kernels) < 4:
            wrong.append(f"{kernel} does not run at four shapes")
    if not list(differences(kernels, lambda blocks: reversed(list(blocks)))):
        wrong.append("another order of the blocks is not noticed")
    if wrong:
        sys.exit("\n".join(wrong))


main()
