#!/usr/bin/env python3
"""Averages model files: each weight of the result is the mean of that weight in all of them.

    dev/average.py OUT.bin MODEL.bin MODEL.bin ...

The last checkpoints of one run (checkpoint averaging; with a constant learning rate, stochastic weight averaging:
Izmailov et al. 2018, arXiv:1803.05407), or runs that began from the same weights (Wortsman et al. 2022, model soups,
arXiv:2203.05482). The result has the number format of the first file. Needs: pip install numpy
"""
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parent / "data")]
import children  # noqa: E402

children.need("numpy")
import argparse  # noqa: E402

import numpy as np  # noqa: E402

from files import fail, write_whole, wrong_use  # noqa: E402
from model_files import HEADER_BYTES, as_bf16, as_fp32  # noqa: E402

MAGIC, FORMATS = 20240326, {3: ("F32", "<f4"), 5: ("BF16", "<u2")}
PIECE_ELEMS = 1 << 22  # at a time
NAMES = ("context", "vocabulary", "layers", "heads", "channels", "padded vocabulary", "window", "local layers")


def read_header(path):
    """The header of a model file as numbers; the script ends if it is none."""
    try:
        with open(path, "rb") as file:
            header = np.frombuffer(file.read(HEADER_BYTES), "<i4")
    except (OSError, ValueError) as error:
        fail(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no model file'}")
    if len(header) < 256 or header[0] != MAGIC or header[1] not in FORMATS:
        fail(f"{path} is no model file")
    return header


def tensor_elems(header):
    """The weights of a model of this shape."""
    maxT, _, L, _, C, Vp = map(int, header[2:8])
    return (Vp + maxT) * C + L * (12 * C * C + 13 * C) + 2 * C


def check_same(paths, headers):
    for path, header in zip(paths, headers):
        for name, first, other in zip(NAMES, headers[0][2:10], header[2:10]):
            if first != other:
                fail(f"{path} has {name} {other}, and {paths[0]} has {first}; models of one shape are accepted")
        kind = np.dtype(FORMATS[header[1]][1])
        expected = HEADER_BYTES + tensor_elems(header) * kind.itemsize
        if path.stat().st_size != expected:
            fail(f"{path} is damaged: it has {path.stat().st_size} bytes, and a model of its shape {expected}")


def write_mean(out, paths, headers):
    """Sums are in fp64, in the order of the files."""
    kinds = [FORMATS[header[1]] for header in headers]
    files = [open(path, "rb") for path in paths]
    out.write(headers[0].tobytes())
    for file in files:
        file.seek(HEADER_BYTES)
    for first in range(0, elems := tensor_elems(headers[0]), PIECE_ELEMS):
        n = min(PIECE_ELEMS, elems - first)
        total = np.zeros(n)
        for path, file, (name, dtype) in zip(paths, files, kinds):
            values = as_fp32(np.frombuffer(file.read(n * np.dtype(dtype).itemsize), dtype), name)
            if not np.isfinite(values).all():
                fail(f"{path} is damaged: it has values that are not finite")
            total += values
        mean = (total / len(files)).astype("<f4")
        out.write((as_bf16(mean) if kinds[0][0] == "BF16" else mean).tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="the file to write")
    parser.add_argument("models", type=pathlib.Path, nargs="+", help="model files of one shape")
    parser.error = wrong_use
    args = parser.parse_args()
    if args.out in args.models or args.out.is_dir():
        wrong_use(f"{args.out} is no file to write: a name of its own is accepted")
    headers = [read_header(path) for path in args.models]
    check_same(args.models, headers)
    write_whole({args.out: lambda file: write_mean(file, args.models, headers)})
    print(f"{args.out}: the mean of {len(args.models)} models")


if __name__ == "__main__":
    main()
