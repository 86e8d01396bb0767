#!/usr/bin/env python3
"""Writes a folder that Hugging Face's transformers loads, from a model file or a run's newest complete checkpoint.

    pip install numpy && python3 dev/data/export_hf.py log124M gpt2-mine

AutoModelForCausalLM.from_pretrained("gpt2-mine") loads the model. AutoTokenizer loads the tokenizer, which is the file
that --tokenizer names, else NAME_tokenizer.bin beside NAME.bin, else the one that the run used, else GPT-2's; of those
that are not named only one with as many tokens as the model. Weights keep their precision, fp32 or bf16.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402

children.need("numpy")
import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402

import numpy as np  # noqa: E402

from files import ROOT, Progress, fail, write_whole, wrong_use  # noqa: E402
from hf_tokenizer import TOKENIZER_FILES, read_tokenizer, tokenizer_files  # noqa: E402
from import_hf import later_models  # noqa: E402
from model_files import (  # noqa: E402
    HEADER_BYTES, NAME_OF, STORED, as_fp32, model_table, read_json, read_values, stored_tensors)

GPT2_TOKENIZER = ROOT / "dev/data/gpt2_tokenizer.bin"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
TORCH_NAME = {"fp32": "float32", "bf16": "bfloat16"}


def safetensors_header(table, dtype):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for row, name in stored_tensors(table):
        end = at + math.prod(row["hf_shape"]) * STORED[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": row["hf_shape"], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the values begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def write_weights(file, table, dtype, model):
    file.write(safetensors_header(table, dtype))
    progress = Progress("exporting", table["parameters"], "M parameters", 1_000_000)
    done, at = 0, HEADER_BYTES
    for row, name in stored_tensors(table):
        values = read_values(model, dtype, row["elems"], at, name)
        at += values.nbytes
        if not np.isfinite(as_fp32(values, dtype)).all():
            fail(f"{model} is damaged: {name} has values that are not finite")
        values = values[:math.prod(row["hf_shape"])]  # without the padding of the vocabulary
        if row["transposed"]:
            values = np.ascontiguousarray(values.reshape(row["hf_shape"][::-1]).T)
        file.write(values.data)
        done += values.size
        progress.reach(done)
    progress.done()


def config_of(table, dtype, end_of_text):
    """What config.json holds. Dropout is 0, whatever --dropout was. end_of_text is None if the tokenizer is unknown."""
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": dtype, "torch_dtype": dtype,
        "vocab_size": table["V"], "n_positions": table["maxT"], "n_embd": table["C"], "n_layer": table["L"],
        "n_head": table["NH"], "n_inner": None, "activation_function": "gelu_new",
        "layer_norm_epsilon": table["layernorm_eps"], "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "tie_word_embeddings": True, "bos_token_id": end_of_text, "eos_token_id": end_of_text}


def known_tokenizer(model):
    """The tokenizer file that a run used, also for a model file in its out dir; for any other model file the one beside
    it, else GPT-2's."""
    beside = model.with_name(f"{model.stem}_tokenizer.bin")
    if model.is_file() and beside.is_file():
        return beside
    run = (model if model.is_dir() else model.parent) / "run.json"
    flags = read_json(run).get("flags", {}) if run.is_file() else {}
    path = pathlib.Path(flags.get("--tokenizer") or GPT2_TOKENIZER)
    return path if path.exists() else ROOT / path


def chosen_tokenizer(options, table):
    """Its path, the bytes of its tokens, its end-of-text id, and a notice that says why there is none."""
    path = options.tokenizer or known_tokenizer(options.model)
    if options.tokenizer or path.exists():
        tokens, end_of_text = read_tokenizer(path)
        if len(tokens) == table["V"] or (options.tokenizer and len(tokens) < table["V"]):
            return path, tokens, end_of_text, ""
        problem = f"{path} has {len(tokens)} tokens, the model {table['V']}"
    else:
        problem = f"{path} is not there"
    if options.tokenizer:
        fail(problem)
    return path, [], None, f"\nwithout a tokenizer: {problem} (--tokenizer FILE names another)"


def check_out(folder, overwrite, config):
    """Creates the folder. Refuses one with other files, which transformers might load instead. Without overwrite
    it also refuses files of these names that are no earlier export: config.json has other settings, or is missing."""
    ours = (WEIGHTS, CONFIG, *TOKENIZER_FILES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        fail(f"cannot write the folder {folder}: {error.strerror}")
    others = [name for name in names if name.removesuffix(".tmp") not in ours]
    if others:
        fail(f"{folder} holds {others[0]}, which this script did not write; a new or empty folder is accepted")
    here = [name for name in names if name in ours]
    exported = CONFIG in here and read_json(folder / CONFIG).keys() == config.keys()
    if here and not exported and not overwrite:
        fail(f"{folder} holds {here[0]} and is no export of this script; a new or empty folder, or --overwrite 1, is "
             "accepted")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = wrong_use
    parser.add_argument("model", type=pathlib.Path, help="a model file, or the out dir of a run")
    parser.add_argument("out", type=pathlib.Path, help="the folder to write: a new one, or an earlier export")
    parser.add_argument("--tokenizer", metavar="FILE", type=pathlib.Path, help="the tokenizer file of the model")
    parser.add_argument("--overwrite", type=int, choices=(0, 1), default=0,
                        help="1: replace files of the same names that this script did not write")
    options = parser.parse_args()
    if not options.model.exists():
        fail(f"{options.model} is not there")
    if later := later_models():
        if model := later.model_file(options.model):
            return later.export_model(model, options.out, check_out, options.overwrite)
    table = model_table(options.model)
    model = options.model / table["file"] if table["file"] else options.model
    if table["window"]:
        fail(f"{model} has a window of {table['window']} positions, which GPT-2 in transformers has not; a model "
             "without one is accepted")
    precision = next(name for name, version in table["versions"].items() if version == table["version"])
    path, tokens, end_of_text, notice = chosen_tokenizer(options, table)
    tokenizer = tokenizer_files(path, tokens, end_of_text, table["maxT"]) if tokens else {}
    config = config_of(table, TORCH_NAME[precision], end_of_text)
    check_out(options.out, options.overwrite, config)

    texts = {**tokenizer, CONFIG: json.dumps(config, indent=2) + "\n"}
    writers = {WEIGHTS: lambda file: write_weights(file, table, NAME_OF[precision], model)}
    writers |= {name: lambda file, text=text: file.write(text.encode()) for name, text in texts.items()}
    # config.json is removed first and written last, so transformers never loads a mixture of two exports.
    outdated = [options.out / name for name in (CONFIG, *TOKENIZER_FILES)]
    write_whole({options.out / name: write for name, write in writers.items()}, outdated)
    size = f"{table['parameters']:,} parameters in {precision}"
    print(f"{options.out}: {', '.join(writers)}, from {model} ({size}){notice}")


if __name__ == "__main__":
    main()
