#!/usr/bin/env python3
"""Tests dev/data/export_gguf.py with ggml's own reader and its quantisation.

    pip install gguf numpy
    make train_gpt2_cpu && dev/test/gguf_files.py
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data")]
import children  # noqa: E402

children.need("gguf", "numpy")
if sys.argv[1:] == ["--packages"]:  # only says which are missing
    sys.exit()
import functools  # noqa: E402
import json  # noqa: E402
import struct  # noqa: E402
import tempfile  # noqa: E402

import gguf  # noqa: E402
import numpy as np  # noqa: E402

import export_gguf  # noqa: E402
import hf_tokenizer  # noqa: E402
from hf_tokenizer import read_tokenizer, tokenizer_files  # noqa: E402
from run_script import run, script  # noqa: E402

L, C, NH, T, V, VP = 2, 96, 3, 24, 50257, 50304
GGML = gguf.GGMLQuantizationType
OUTSIDE = ("wte", "wpe", "lnfw", "lnfb")


def write_model(path, change=lambda weights: None, C=C):
    """A model file of random weights; returns them as {(tensor, layer): values}."""
    shapes = {"wte": (VP, C), "wpe": (T, C), "ln1w": (C,), "ln1b": (C,), "qkvw": (3 * C, C), "qkvb": (3 * C,),
              "attprojw": (C, C), "attprojb": (C,), "ln2w": (C,), "ln2b": (C,), "fcw": (4 * C, C), "fcb": (4 * C,),
              "fcprojw": (C, 4 * C), "fcprojb": (C,), "lnfw": (C,), "lnfb": (C,)}
    random, weights = np.random.default_rng(7), {}
    header = np.zeros(256, "<i4")
    header[:8] = 20240326, 3, T, V, L, NH, C, VP
    for name, shape in shapes.items():
        for layer in range(1 if name in OUTSIDE else L):
            weights[name, layer] = random.standard_normal(shape).astype("<f4") * np.float32(0.05)
    weights["wte", 0][V:] = 0
    weights["qkvw", 0][3] = 0
    change(weights)
    path.write_bytes(header.tobytes() + b"".join(values.tobytes() for values in weights.values()))
    return weights


@functools.cache
def merges_of_gpt2():
    return list(hf_tokenizer.merges(*read_tokenizer(ROOT / "dev/data/gpt2_tokenizer.bin")))


def export(*arguments):
    """Runs the script; the merges of the tokenizer are computed once for all exports."""
    export_gguf.merges = lambda tokens, end_of_text: merges_of_gpt2()
    return script(export_gguf, *arguments)


def expected(weights, kind):
    """{name in GGUF: (shape, type, bytes)} by ggml's own code; names are those that it has for the architecture."""
    names = {value: gguf.TENSOR_NAMES[value] for value in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.GPT2]}
    tensor = gguf.MODEL_TENSOR
    of = {"wte": tensor.TOKEN_EMBD, "wpe": tensor.POS_EMBD, "ln1": tensor.ATTN_NORM, "qkv": tensor.ATTN_QKV,
          "attproj": tensor.ATTN_OUT, "ln2": tensor.FFN_NORM, "fc": tensor.FFN_UP, "fcproj": tensor.FFN_DOWN,
          "lnf": tensor.OUTPUT_NORM}
    found = {}
    for (name, layer), values in weights.items():
        stem, part = (name, "weight") if name in of else (name[:-1], {"w": "weight", "b": "bias"}[name[-1]])
        values = values[:V] if name == "wte" else values
        to = kind if values.ndim == 2 and name != "wpe" else GGML.F32
        stored = gguf.quants.quantize(values, to)
        found[f"{names[of[stem]].format(bid=layer)}.{part}"] = (values.shape, to, stored.tobytes())
    return found


def same_tensors(path, want):
    """Whether a GGUF file has these tensors and no others."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    return tensors.keys() == want.keys() and all(
        tuple(int(n) for n in tensors[name].shape[::-1]) == shape and tensors[name].tensor_type == kind
        and tensors[name].data.tobytes() == data for name, (shape, kind, data) in want.items())


def check_tensors(folder, weights):
    for name, kind in (("f16", GGML.F16), ("q8_0", GGML.Q8_0), ("q4_0", GGML.Q4_0)):
        out = folder / f"{name}.gguf"
        export(folder / "model.bin", out, "--type", name)
        want = expected(weights, kind)
        assert same_tensors(out, want), name
        # The comparison fails if one byte is another.
        data = bytearray(out.read_bytes())
        data[-C * 4 - 10] ^= 1
        (folder / "other.gguf").write_bytes(data)
        assert not same_tensors(folder / "other.gguf", want)
        # What llama.cpp computes with is near our weights.
        at = next(t for t in gguf.GGUFReader(out).tensors if t.name == "token_embd.weight")
        error = np.abs(gguf.quants.dequantize(at.data, kind).reshape(V, C) - weights["wte", 0][:V]).max()
        assert error < {"f16": 1e-4, "q8_0": 2e-3, "q4_0": 5e-2}[name], (name, error)


def check_description(folder):
    reader = gguf.GGUFReader(folder / "q8_0.gguf")
    value = {name: field.contents() for name, field in reader.fields.items()}
    keys = gguf.Keys
    want = {keys.General.ARCHITECTURE: "gpt2", keys.LLM.CONTEXT_LENGTH: T, keys.LLM.EMBEDDING_LENGTH: C,
            keys.LLM.FEED_FORWARD_LENGTH: 4 * C, keys.LLM.BLOCK_COUNT: L, keys.Attention.HEAD_COUNT: NH,
            keys.LLM.VOCAB_SIZE: V, keys.General.FILE_TYPE: int(gguf.LlamaFileType.MOSTLY_Q8_0),
            keys.Tokenizer.MODEL: "gpt2", keys.Tokenizer.PRE: "gpt-2", keys.Tokenizer.EOS_ID: 50256,
            keys.Tokenizer.BOS_ID: 50256, keys.Tokenizer.ADD_BOS: False}
    for name, expects in want.items():
        name = name.format(arch="gpt2")
        assert value[name] == expects, (name, value[name], expects)
    assert abs(value[keys.Attention.LAYERNORM_EPS.format(arch="gpt2")] - 1e-5) < 1e-12
    path = ROOT / "dev/data/gpt2_tokenizer.bin"
    files = tokenizer_files(path, *read_tokenizer(path), T)
    vocabulary = json.loads(files["vocab.json"])
    assert value[keys.Tokenizer.LIST] == sorted(vocabulary, key=vocabulary.get)
    assert value[keys.Tokenizer.MERGES] == files["merges.txt"].splitlines()[1:]
    kinds = value[keys.Tokenizer.TOKEN_TYPE]
    assert kinds[50256] == gguf.TokenType.CONTROL and set(kinds[:50256]) == {int(gguf.TokenType.NORMAL)}


def refuses(status, sentence, out, *arguments):
    before = out.read_bytes() if out.exists() else None
    said = script(export_gguf, *arguments, status=status)
    assert sentence in said and said.count("\n") == 1, said
    assert (out.read_bytes() if out.exists() else None) == before
    assert not pathlib.Path(f"{out}.tmp").exists()


def check_refusals(folder):
    model, out = folder / "model.bin", folder / "refused.gguf"
    whole = model.read_bytes()
    bad = folder / "bad.bin"
    refuses(1, "is not there", out, folder / "none.bin", out)
    for data in (whole[:-4], b"x" + whole[1:], whole[:500]):
        bad.write_bytes(data)
        run(sys.executable, export_gguf.__file__, bad, out, status=1)  # the sentence is model_table's
        assert not out.exists()
    bad.write_bytes(whole[:-4] + struct.pack("<f", float("nan")))
    refuses(1, "is damaged: output_norm.bias has values that are not finite", out, bad, out)
    write_model(bad, lambda weights: weights["fcw", 1].__setitem__((0, 0), 1e5))
    refuses(1, "has values beyond those of 16 bits", out, bad, out)
    write_model(bad, C=48)
    refuses(2, "f16 is accepted", out, bad, out, "--type", "q4_0")
    refuses(2, "invalid choice", out, model, out, "--type", "q5_0")
    out.write_bytes(b"a text")
    refuses(1, "is no GGUF file", out, model, out)
    refuses(1, "is no tokenizer file", out, model, out, "--overwrite", 1, "--tokenizer", model)
    export(model, out, "--overwrite", 1)
    assert out.read_bytes() == (folder / "f16.gguf").read_bytes()
    export(model, out, "--type", "q8_0")  # in place of an earlier export
    assert out.read_bytes() == (folder / "q8_0.gguf").read_bytes()


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        weights = write_model(folder / "model.bin")
        check_tensors(folder, weights)
        check_description(folder)
        check_refusals(folder)
    print("GGUF files have the tensors, values and tokenizer that ggml's reader expects")


if __name__ == "__main__":
    main()
