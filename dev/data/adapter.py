#!/usr/bin/env python3
"""Adapters of --lora: from and to PEFT's layout, or merged into the model that they adapt.

    pip install numpy
    python3 dev/data/adapter.py export log_lora adapter-mine      a folder that PEFT loads beside the exported model
    python3 dev/data/adapter.py import their-adapter gpt2.bin adapter.bin      for -e gpt2.bin --adapter adapter.bin
    python3 dev/data/adapter.py merge gpt2.bin log_lora merged.bin             a model as any other, for -e merged.bin

An adapter is a file, or the folder of a run, whose newest checkpoint counts. PEFT's folder holds adapter_config.json
and adapter_model.safetensors of a GPT2LMHeadModel. What cannot be trained here is refused by its name: DoRA, ranks
that differ, other parts that train. An imported adapter does not say which model it was trained on.

Adapters that --weights nf4 (int8, int4) has trained make up for the errors of these codes. So merge adds them to the
numbers that the codes of gpt2.bin stand for, and the merged model has the loss that the run had.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402

children.need("numpy")
import argparse  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402

import numpy as np  # noqa: E402

from files import fail, write_whole, wrong_use  # noqa: E402
from model_files import (  # noqa: E402
    HEADER_BYTES, STORED, Safetensors, as_bf16, as_fp32, model_table, read_json, read_values, stored_tensors)
from weight_codes import BESIDE_AT, FORMATS, decoded  # noqa: E402

MAGIC, BASE_AT, MOST_RANK = 20261125, 11, 1024  # llmc/checkpoint/adapter_file.h
DTYPES = {3: "F32", 5: "BF16"}
SHAPE = ("maxT", "V", "L", "NH", "C", "Vp")  # behind magic and version, as in a model file
# The bits of the header's field 9: PEFT's name, the model's matrix, inputs and outputs in C channels.
MATRICES = [("attn.c_attn", "qkvw", 1, 3), ("attn.c_proj", "attprojw", 1, 1), ("mlp.c_fc", "fcw", 1, 4),
            ("mlp.c_proj", "fcprojw", 4, 1)]
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model.transformer.h"
# What adapter_config.json may say: these, or nothing. lora_dropout counts in training alone, and is not taken over.
ACCEPTED = {"peft_type": ["LORA"], "bias": ["none"], "use_dora": [False], "use_rslora": [False], "lora_bias": [False],
            "modules_to_save": [None], "rank_pattern": [{}, None], "alpha_pattern": [{}, None],
            "layers_to_transform": [None], "layers_pattern": [None], "layer_replication": [None],
            "trainable_token_indices": [None], "target_parameters": [None, []], "exclude_modules": [None],
            "fan_in_fan_out": [True], "use_qalora": [False], "alora_invocation_tokens": [None],
            "init_lora_weights": [True, False, "gaussian"]}


class Adapter:
    """An adapter: the header's numbers, and {(matrix, layer): (A (R, in), B transposed (R, out))}."""

    def __init__(self, header, pairs):
        self.header, self.pairs = header, pairs
        self.version, self.rank, self.on = (int(header[i]) for i in (1, 8, 9))
        self.alpha = float(header[10:11].view("<f4")[0])
        self.sizes = {name: int(header[2 + i]) for i, name in enumerate(SHAPE)}
        self.beside = FORMATS[header[BESIDE_AT]] if 0 <= header[BESIDE_AT] < len(FORMATS) else None

    def matrices(self):
        return [i for i in range(len(MATRICES)) if self.on >> i & 1]


def newest(path):
    """An adapter's file: that of a folder's newest checkpoint, if it is a run's."""
    if not path.is_dir():
        return path
    done = sorted(path.glob("DONE_????????"))
    if not done:
        fail(f"{path} holds no complete checkpoint")
    return path / f"model_{done[-1].name[5:]}.bin"


def read_adapter(path):
    path = newest(path)
    try:
        header = np.fromfile(path, "<i4", 256)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    if header.size < 256 or header[0] != MAGIC or header[1] not in DTYPES:
        fail(f"{path} is no adapter file; --lora writes them")
    adapter = Adapter(header, {})
    C, rank = adapter.sizes["C"], adapter.rank
    shape = 0 < C <= 65536 and 0 < adapter.sizes["L"] <= 1000
    if not (0 < rank <= MOST_RANK and 0 < adapter.on < 16 and adapter.beside and shape):
        fail(f"{path} is damaged: its header makes no sense")
    dtype, at = DTYPES[adapter.version], HEADER_BYTES
    for i in adapter.matrices():
        for number, channels in enumerate(MATRICES[i][2:]):
            for layer in range(adapter.sizes["L"]):
                values = read_values(path, dtype, rank * channels * C, at, MATRICES[i][0])
                at += values.nbytes
                values = as_fp32(values, dtype).reshape(rank, channels * C)
                if not np.isfinite(values).all():
                    fail(f"{path} is damaged: {MATRICES[i][0]} of layer {layer} has values that are not finite")
                adapter.pairs.setdefault((i, layer), []).append(values)
    if path.stat().st_size != at:
        fail(f"{path} is {'too long' if path.stat().st_size > at else 'cut short'}: {at} bytes are expected")
    return adapter


def safetensors_of(tensors):
    """The bytes of a file with these fp32 tensors."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in tensors.values())


def export_adapter(options):
    adapter = read_adapter(options.adapter)
    out, tensors = options.out, {}
    for (i, layer), (A, B) in adapter.pairs.items():
        name = f"{PREFIX}.{layer}.{MATRICES[i][0]}"
        tensors[f"{name}.lora_A.weight"] = A.astype("<f4")
        tensors[f"{name}.lora_B.weight"] = np.ascontiguousarray(B.T.astype("<f4"))
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": options.base, "r": adapter.rank,
              "lora_alpha": adapter.alpha, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": True,
              "target_modules": [MATRICES[i][0] for i in adapter.matrices()], "inference_mode": True}
    try:
        out.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in out.iterdir() if path.name not in (WEIGHTS, CONFIG)]
    except OSError as error:
        fail(f"cannot write the folder {out}: {error.strerror}")
    if others:
        fail(f"{out} holds {others[0]}, which this script did not write; a new or empty folder is accepted")
    texts = {WEIGHTS: safetensors_of(tensors), CONFIG: (json.dumps(config, indent=2) + "\n").encode()}
    write_whole({out / name: lambda file, text=text: file.write(text) for name, text in texts.items()},
                [out / CONFIG])
    trained = f"; trained beside weights in {adapter.beside}, which these files cannot say"
    print(f"{out}: {WEIGHTS}, {CONFIG}, rank {adapter.rank}{trained if adapter.beside != 'none' else ''}")


def number_of(path, config, name):
    value = config.get(name)
    if type(value) not in (int, float) or not 0 < value < 1e6:
        fail(f"{path}: {name} is {value!r}; a positive number is expected")
    return value


def check_config(path, config):
    """Ends the script if the config asks for what the trainers do not compute."""
    for name, accepted in ACCEPTED.items():
        value = config.get(name, accepted[0])
        if value not in accepted:
            fail(f"{path}: {name} is {value!r}; the trainers compute {' or '.join(map(repr, accepted))}")


def import_adapter(options):
    folder, table = options.folder, model_table(options.base)
    path = folder / CONFIG
    config = read_json(path)
    check_config(path, config)
    rank, alpha = number_of(path, config, "r"), number_of(path, config, "lora_alpha")
    if type(rank) is not int or rank > MOST_RANK:
        fail(f"{path}: r is {rank!r}; 1 to {MOST_RANK} are accepted")
    file, found = Safetensors(folder / WEIGHTS), {}
    pattern = re.compile(re.escape(PREFIX) + r"\.(\d{1,4})\.([a-z_.]+)\.lora_([AB])\.weight")
    for name in file.tensors:
        match = pattern.fullmatch(name)
        i = next((i for i, row in enumerate(MATRICES) if match and match[2] == row[0]), None)
        if i is None or int(match[1]) >= table["L"]:
            fail(f"{file.path}: {name} is no adapter of a matrix of this model")
        channels = MATRICES[i][2 if match[3] == "A" else 3] * table["C"]
        shape = [rank, channels] if match[3] == "A" else [channels, rank]
        dtype, stored, _ = file.tensors[name]
        if stored != shape or dtype not in STORED:
            fail(f"{file.path}: {name} is {dtype} of the shape {stored}; {shape} is expected")
        values = file.fp32(name)
        if not np.isfinite(values).all():
            fail(f"{file.path}: {name} has values that are not finite")
        found[i, match[3], int(match[1])] = values if match[3] == "A" else values.T
    on = sum(1 << i for i in {key[0] for key in found})
    wanted = [(i, kind, layer) for i in range(4) if on >> i & 1 for kind in "AB" for layer in range(table["L"])]
    missing = [key for key in wanted if key not in found]
    if missing or not on:
        i, kind, layer = missing[0] if missing else (0, "A", 0)
        fail(f"{file.path}: layer {layer} has no lora_{kind} of {MATRICES[i][0]}; the trainers adapt a matrix in all "
             "layers or in none")
    header = np.zeros(256, "<i4")
    header[:10] = [MAGIC, 3, *(table[name] for name in SHAPE), rank, on]
    header[10:11].view("<f4")[0] = alpha
    values = [np.ascontiguousarray(found[key], "<f4").tobytes() for key in wanted]
    write_whole({options.out: lambda out: out.write(header.tobytes() + b"".join(values))})
    print(f"{options.out}: rank {rank}, alpha {alpha:g}, {len(wanted) // 2} adapters")


def merge(options):
    table, adapter = model_table(options.base), read_adapter(options.adapter)
    if any(table[name] != adapter.sizes[name] for name in SHAPE):
        fail(f"{options.adapter} adapts a model of another shape than {options.base}")
    version = table["version"]
    dtype, at, pieces = DTYPES[version], HEADER_BYTES, []
    layers = {}
    for row, name in stored_tensors(table):
        layer = layers[row["name"]] = layers.get(row["name"], -1) + 1
        values = read_values(options.base, dtype, row["elems"], at, name)
        at += values.nbytes
        i = next((i for i in adapter.matrices() if MATRICES[i][1] == row["name"]), None)
        changed = as_fp32(values, dtype)
        if row["name"] == "wte" or row["name"] in (matrix[1] for matrix in MATRICES):
            C = table["C"] * (4 if row["name"] == "fcprojw" else 1)
            changed = decoded(changed.reshape(-1, C), adapter.beside).ravel()
        if i is not None:
            A, B = (values.astype("f8") for values in adapter.pairs[i, layer])
            changed = (changed.astype("f8") + adapter.alpha / adapter.rank * (B.T @ A).ravel()).astype("<f4")
        pieces.append((as_bf16(changed) if dtype == "BF16" else changed.astype("<f4")).tobytes())
    header = np.fromfile(options.base, "u1", HEADER_BYTES)
    write_whole({options.out: lambda out: out.write(header.tobytes() + b"".join(pieces))})
    base = options.base if adapter.beside == "none" else f"what {adapter.beside} codes of {options.base} stand for"
    print(f"{options.out}: {base} with {options.adapter}, scale {adapter.alpha / adapter.rank:g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = wrong_use
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="to PEFT's layout")
    export.add_argument("adapter", type=pathlib.Path)
    export.add_argument("out", type=pathlib.Path, help="the folder to write: a new one, or an earlier export")
    export.add_argument("--base", default="gpt2", help="base_model_name_or_path in its config (%(default)s)")
    other = commands.add_parser("import", help="from PEFT's layout")
    other.add_argument("folder", type=pathlib.Path)
    other.add_argument("base", type=pathlib.Path, help="the model file that it adapts")
    other.add_argument("out", type=pathlib.Path)
    merged = commands.add_parser("merge", help="into a model file")
    merged.add_argument("base", type=pathlib.Path)
    merged.add_argument("adapter", type=pathlib.Path)
    merged.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    {"export": export_adapter, "import": import_adapter, "merge": merge}[options.command](options)


if __name__ == "__main__":
    main()
