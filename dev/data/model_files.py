"""What import_hf.py and export_hf.py share: model files (llmc/checkpoint/model_file.h) and .safetensors files. Names
and shapes of the tensors come from build/host/model_table, which is built from llmc/gpt2/tensors.h.

A .safetensors file holds the length of its header in 8 bytes, little-endian; the header as JSON, {name: {"dtype",
"shape", "data_offsets": [begin, end]}}; then the values of all tensors without gaps. Offsets count from where the
values begin.
"""
import json
import math
import os
import pathlib
import struct
import subprocess
import sys

import children
import numpy as np

from files import ROOT, fail

HEADER_BYTES = 1024  # of a model file: 256 int32
STORED = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}  # numpy has no bf16: its bits
NAME_OF = {"fp32": "F32", "bf16": "BF16"}
LARGEST_HEADER = 100_000_000  # what the safetensors package accepts


def model_table(*arguments):
    """What model_table prints of a model file, a run's folder or a shape. If it refuses, the script ends."""
    program = ROOT / "build/host/model_table"
    sources = [ROOT / "dev/data/model_table.cpp", *(ROOT / "llmc").glob("*/*.h")]
    if not program.exists() or any(source.stat().st_mtime > program.stat().st_mtime for source in sources):
        children.run(["make", "-s", "--no-print-directory", "-C", ROOT, "build/host/model_table"])
    result = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sys.stderr.write(result.stderr.decode(errors="replace"))
    if result.returncode:
        sys.exit(1)
    return json.loads(result.stdout)


def stored_tensors(table):
    """Every tensor of the table in the order of a model file: its row, and its name in Hugging Face's files."""
    for row in table["tensors"]:
        for layer in range(row["layers"]):
            yield row, row["hf_name"].replace("%d", str(layer))


def as_fp32(values, dtype):
    return (values.astype("<u4") << 16).view("<f4") if dtype == "BF16" else values.astype("<f4")


def as_bf16(values):
    """The bits of fp32 values rounded to bf16, to nearest, halfway cases to even."""
    bits = values.view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def unique_members(pairs):
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name occurs twice")
    return members


def read_json(path):
    if pathlib.Path(path).exists() and not pathlib.Path(path).is_file():  # a device need not end, a FIFO not begin
        fail(f"{path} is no file; JSON is expected")
    try:
        members = json.loads(pathlib.Path(path).read_bytes(), object_pairs_hook=unique_members)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except (ValueError, RecursionError) as error:
        fail(f"{path} is no JSON: {error}")
    if not isinstance(members, dict):
        fail(f"{path} is no JSON object")
    return members


def read_values(path, dtype, count, offset, name):
    """A tensor's values as they are stored, in one dimension."""
    try:
        values = np.fromfile(path, STORED[dtype], count, offset=offset)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    if values.size != count:
        fail(f"{path} has changed while it was read: it ends within {name}")
    return values


class Safetensors:
    """The tensors of one .safetensors file; their values stay on the disk until they are asked for."""

    def __init__(self, path):
        self.path = path
        try:
            if path.exists() and not path.is_file():
                fail(f"{path} is no file; a safetensors file is expected")
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
                if length > min(size - 8, LARGEST_HEADER):
                    fail(f"{path} is cut short or no safetensors file: it ends within its header")
                header = json.loads(file.read(length), object_pairs_hook=unique_members)
        except OSError as error:
            fail(f"cannot read {path}: {error.strerror}")
        except (ValueError, RecursionError) as error:
            fail(f"{path} is no safetensors file: its header is no JSON ({error})")
        try:
            header.pop("__metadata__", None)
            self.tensors = {name: (t["dtype"], t["shape"], t["data_offsets"]) for name, t in header.items()}
            data_bytes = self.check_offsets()
        except (AttributeError, KeyError, TypeError, ValueError):
            fail(f"{path} is no safetensors file: its header does not describe tensors")
        if 8 + length + data_bytes != size:
            fail(f"{path} is {'cut short' if size < 8 + length + data_bytes else 'too long'}: "
                 f"it has {size} bytes where its header promises {8 + length + data_bytes}")
        self.data_begin = 8 + length

    def check_offsets(self):
        """The number of bytes of all values, which must follow each other without gaps."""
        at = 0
        for name, (dtype, shape, (begin, end)) in sorted(self.tensors.items(), key=lambda tensor: tensor[1][2]):
            good = begin == at <= end and all(type(n) is int and n >= 0 for n in [begin, end, *shape])
            if not good or (dtype in STORED and end - begin != math.prod(shape) * STORED[dtype].itemsize):
                fail(f"{self.path} is damaged: the place of {name} does not fit its shape or the tensors before it")
            at = end
        return at

    def fp32(self, name):
        dtype, shape, (begin, _) = self.tensors[name]
        values = read_values(self.path, dtype, math.prod(shape), self.data_begin + begin, name)
        return as_fp32(values, dtype).reshape(shape)
