#!/usr/bin/env python3
"""Writes a GGUF file, which llama.cpp and what is built on it load, from a model file or a run's newest checkpoint.

    pip install numpy && python3 dev/data/export_gguf.py log124M gpt2.gguf --type q4_0

--type: the matrices of the layers and the embeddings of tokens in 16 bits (f16), or for every 32 weights of a row a
scale of 16 bits and codes of 8 bits (q8_0) or of 4 (q4_0, which --weights int4 is as well). All else is in fp32. The
tokenizer is the one that export_hf.py would take.

GGUF: "GGUF", version 3, the numbers of tensors and of values that describe the model; these values, each a name, a type
and itself; of each tensor name, shape (the fastest dimension first), type and where it begins; then the tensors. All of
it is little-endian, and each tensor begins at a multiple of 32 bytes. A text is its length in 8 bytes, and its bytes.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402

children.need("numpy")
import argparse  # noqa: E402
import struct  # noqa: E402

import numpy as np  # noqa: E402

from export_hf import chosen_tokenizer  # noqa: E402
from files import Progress, fail, write_whole, wrong_use  # noqa: E402
from hf_tokenizer import characters, merges  # noqa: E402
from model_files import HEADER_BYTES, NAME_OF, STORED, as_fp32, model_table, read_values  # noqa: E402

ALIGNMENT, BLOCK = 32, 32
NAMES = {"wte": "token_embd.weight", "wpe": "position_embd.weight", "ln1w": "blk.{}.attn_norm.weight",
         "ln1b": "blk.{}.attn_norm.bias", "qkvw": "blk.{}.attn_qkv.weight", "qkvb": "blk.{}.attn_qkv.bias",
         "attprojw": "blk.{}.attn_output.weight", "attprojb": "blk.{}.attn_output.bias",
         "ln2w": "blk.{}.ffn_norm.weight", "ln2b": "blk.{}.ffn_norm.bias", "fcw": "blk.{}.ffn_up.weight",
         "fcb": "blk.{}.ffn_up.bias", "fcprojw": "blk.{}.ffn_down.weight", "fcprojb": "blk.{}.ffn_down.bias",
         "lnfw": "output_norm.weight", "lnfb": "output_norm.bias"}
F32, U32, I32, BOOL, TEXT, ARRAY = 6, 4, 5, 7, 8, 9  # types of values
NORMAL, CONTROL = 1, 3                               # kinds of tokens


def as_f16(values):
    with np.errstate(over="ignore"):
        return values.astype("<f2")


def scaled(values, scale):
    """values (blocks, 32) divided by scale (blocks, 1); 0 where that is 0."""
    return values * np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def as_q8_0(values):
    """Of every 32 values the scale, max |w| / 127, and w / scale as whole numbers, halves away from 0."""
    values = values.reshape(-1, BLOCK)
    scale = np.abs(values).max(1, keepdims=True) / np.float32(127)
    whole = scaled(values, scale)
    magnitude = np.abs(whole)
    codes = np.copysign(np.floor(magnitude) + (magnitude - np.floor(magnitude) >= 0.5), whole).astype("i1")
    return np.concatenate([as_f16(scale).view("u1"), codes.view("u1")], 1)


def as_q4_0(values):
    """As --weights int4 (llmc/adapt/weight_codes.h); byte j of a block has code j and, above it, j + 16."""
    values = values.reshape(-1, BLOCK)
    extreme = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)
    scale = extreme / np.float32(-8)
    codes = np.minimum(15, (scaled(values, scale) + np.float32(8.5)).astype("u1"))
    return np.concatenate([as_f16(scale).view("u1"), codes[:, :16] | codes[:, 16:] << 4], 1)


# By --type: its number for tensors and for files, how values become bytes, bytes of 32 weights.
TYPES = {"f16": (1, 1, as_f16, 64), "q8_0": (8, 7, as_q8_0, 34), "q4_0": (2, 2, as_q4_0, 18)}
FP32 = (0, 0, lambda values: values.astype("<f4"), 128)


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(name, kind, value):
    if kind == TEXT:
        return text(name) + struct.pack("<I", TEXT) + text(value)
    return text(name) + struct.pack("<I", kind) + struct.pack({F32: "<f", U32: "<I", BOOL: "<B"}[kind], value)


def array_of(name, kind, values):
    items = map(text, values) if kind == TEXT else (struct.pack("<i", value) for value in values)
    return text(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(items)


def described(table, file_type, name, tokens, end_of_text):
    """The values that describe model and tokenizer."""
    values = [value_of("general.architecture", TEXT, "gpt2"), value_of("general.name", TEXT, name),
              value_of("general.file_type", U32, file_type), value_of("general.quantization_version", U32, 2),
              value_of("general.alignment", U32, ALIGNMENT)]
    sizes = {"context_length": table["maxT"], "embedding_length": table["C"], "feed_forward_length": 4 * table["C"],
             "block_count": table["L"], "attention.head_count": table["NH"], "vocab_size": table["V"]}
    values += [value_of(f"gpt2.{size}", U32, number) for size, number in sizes.items()]
    values.append(value_of("gpt2.attention.layer_norm_epsilon", F32, table["layernorm_eps"]))
    if not tokens:
        return [*values, value_of("tokenizer.ggml.model", TEXT, "no_vocab")]
    character = characters()
    words = ["".join(character[byte] for byte in token) for token in tokens]
    words[end_of_text] = tokens[end_of_text].decode(errors="replace")
    pairs = [" ".join("".join(character[byte] for byte in part) for part in pair)
             for pair in merges(tokens, end_of_text)]
    kinds = [CONTROL if i == end_of_text else NORMAL for i in range(len(tokens))]
    words += [f"[unused {i}]" for i in range(len(words), table["V"])]  # rows of wte that no token has
    kinds += [CONTROL] * (len(words) - len(kinds))
    return [*values, value_of("tokenizer.ggml.model", TEXT, "gpt2"), value_of("tokenizer.ggml.pre", TEXT, "gpt-2"),
            array_of("tokenizer.ggml.tokens", TEXT, words), array_of("tokenizer.ggml.token_type", I32, kinds),
            array_of("tokenizer.ggml.merges", TEXT, pairs), value_of("tokenizer.ggml.bos_token_id", U32, end_of_text),
            value_of("tokenizer.ggml.eos_token_id", U32, end_of_text),
            value_of("tokenizer.ggml.add_bos_token", BOOL, False)]


def tensors(table, matrix_type):
    """Every tensor in the order of a model file: its row of the table, name, shape (rows first), type."""
    for row in table["tensors"]:
        shape = row["hf_shape"][::-1] if row["transposed"] else row["hf_shape"]
        in_codes = len(shape) == 2 and row["name"] != "wpe"
        for layer in range(row["layers"]):
            yield row, NAMES[row["name"]].format(layer), shape, matrix_type if in_codes else FP32


def padding(at):
    return bytes(-at % ALIGNMENT)


def write_gguf(file, table, matrix_type, values, dtype, model):
    listed, at = [], 0
    for _, name, shape, (number, _, _, of_32) in tensors(table, matrix_type):
        listed.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], number, at))
        at += int(np.prod(shape)) * of_32 // 32
        at += len(padding(at))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(values)) + b"".join(values) + b"".join(listed)
    file.write(head + padding(len(head)))
    progress = Progress("exporting", table["parameters"], "M parameters", 1_000_000)
    done, begin = 0, HEADER_BYTES
    for row, name, shape, (_, _, encode, _) in tensors(table, matrix_type):
        stored = read_values(model, dtype, row["elems"], begin, name)
        begin += stored.nbytes
        numbers = as_fp32(stored, dtype)[:int(np.prod(shape))]  # without the padding of the vocabulary
        if not np.isfinite(numbers).all():
            fail(f"{model} is damaged: {name} has values that are not finite")
        if encode is not FP32[2] and np.abs(numbers).max() > 65504:
            fail(f"{name} of {model} has values beyond those of 16 bits, 65504")
        data = encode(numbers).tobytes()
        file.write(data + padding(len(data)))
        done += numbers.size
        progress.reach(done)
    progress.done()


def is_gguf(path):
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = wrong_use
    parser.add_argument("model", type=pathlib.Path, help="a model file, or the out dir of a run")
    parser.add_argument("out", type=pathlib.Path, help="the file to write: a new one, or an earlier GGUF file")
    parser.add_argument("--type", choices=list(TYPES), default="f16", help="of the matrices (f16)")
    parser.add_argument("--tokenizer", metavar="FILE", type=pathlib.Path, help="the tokenizer file of the model")
    parser.add_argument("--overwrite", type=int, choices=(0, 1), default=0, help="1: replace a file that is no GGUF")
    options = parser.parse_args()
    if not options.model.exists():
        fail(f"{options.model} is not there")
    table = model_table(options.model)
    if options.type != "f16" and table["C"] % BLOCK:
        wrong_use(f"--type {options.type} has blocks of {BLOCK} weights, and {options.model} has rows of {table['C']}; "
                  "f16 is accepted")
    if options.out.exists() and not options.overwrite and not (options.out.is_file() and is_gguf(options.out)):
        fail(f"{options.out} is no GGUF file; another name, or --overwrite 1, is accepted")
    model = options.model / table["file"] if table["file"] else options.model
    precision = next(name for name, version in table["versions"].items() if version == table["version"])
    _, tokens, end_of_text, notice = chosen_tokenizer(options, table)
    matrix_type = TYPES[options.type]
    values = described(table, matrix_type[1], options.model.stem, tokens, end_of_text)
    write_whole({options.out: lambda file: write_gguf(file, table, matrix_type, values, NAME_OF[precision], model)})
    print(f"{options.out}: {table['parameters']:,} parameters, matrices in {options.type}, from {model}{notice}")


if __name__ == "__main__":
    main()
