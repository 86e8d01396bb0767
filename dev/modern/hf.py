"""Models after GPT-2 from and to Hugging Face: what dev/data/import_hf.py and export_hf.py call for them.

LlamaForCausalLM and Qwen3ForCausalLM have the tensors of dev/modern/model.h under other names: qkvw is q_proj, k_proj
and v_proj one below the other, fcw is gate_proj and up_proj. Names and shapes of our own come from
build/host/modern_table. What config.json asks for and is not built is refused by its name.
"""
import functools
import json
import math
import pathlib
import subprocess
import sys

import numpy as np

import children
from files import ROOT, Progress, fail, write_whole
from model_files import HEADER_BYTES, NAME_OF, STORED, Safetensors, as_bf16, as_fp32, read_json, read_values

MAGIC = 20261130
FAMILIES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# Families with a part that is not built.
NOT_BUILT = {"mistral": "sliding windows", "mixtral": "a mixture of experts", "qwen3_moe": "a mixture of experts",
             "qwen2": "biases of attention", "gemma2": "sliding windows and norms behind the branches",
             "phi3": "sliding windows", "gpt_oss": "a mixture of experts"}
# What config.json may say besides the sizes; the first value is the default.
ACCEPTED = {"hidden_act": ["silu"], "attention_bias": [False], "mlp_bias": [False], "sliding_window": [None],
            "use_sliding_window": [False], "pretraining_tp": [1], "partial_rotary_factor": [1.0]}
LAYER = "model.layers.%d."
NAMES = {"wte": ["model.embed_tokens"], "norm1w": [LAYER + "input_layernorm"],
         "qkvw": [LAYER + f"self_attn.{part}_proj" for part in "qkv"], "qw": [LAYER + "self_attn.q_norm"],
         "kw": [LAYER + "self_attn.k_norm"], "attprojw": [LAYER + "self_attn.o_proj"],
         "norm2w": [LAYER + "post_attention_layernorm"], "fcw": [LAYER + f"mlp.{part}_proj" for part in ("gate", "up")],
         "fcprojw": [LAYER + "mlp.down_proj"], "normfw": ["model.norm"], "headw": ["lm_head"]}


@functools.cache
def table_program():
    """build/host/modern_table, which make builds where it is missing or old."""
    program = ROOT / "build/host/modern_table"
    children.run(["make", "-s", "--no-print-directory", "-C", ROOT, program.relative_to(ROOT)])
    return program


def table_of(*arguments):
    """What modern_table prints of a model file or of fields. If it refuses, the script ends."""
    result = subprocess.run([table_program(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sys.stderr.write(result.stderr.decode(errors="replace"))
    if result.returncode:
        sys.exit(1)
    return json.loads(result.stdout)


def stored_tensors(table):
    """Every tensor of every layer in the order of a model file: its row, and the names and shapes of its parts."""
    heads = table["HS"]
    rows_of = {"wte": [table["V"]], "headw": [table["V"]], "fcw": [table["F"]] * 2,
               "qkvw": [table["NH"] * heads, table["NKV"] * heads, table["NKV"] * heads]}
    for row in table["tensors"]:
        vector = row["name"].startswith("norm") or row["name"] in ("qw", "kw")
        for layer in range(row["layers"] if row["rows"] else 0):
            names = [name.replace("%d", str(layer)) + ".weight" for name in NAMES[row["name"]]]
            rows = rows_of.get(row["name"], [row["rows"]])
            yield row, list(zip(names, [[row["cols"]] if vector else [n, row["cols"]] for n in rows]))


# ---- in


def is_later(config):
    """Whether config.json is of a family after GPT-2, built or not."""
    return config.get("model_type") in [*FAMILIES, *NOT_BUILT]  # a damaged file may have anything there


def rope_theta(path, config):
    """The base of the angles. Ends the script if they are scaled."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
    if kind != "default" or not isinstance(rope, dict):
        fail(f"{path}: its rotary positions are scaled ({kind!r}), which is not built; unscaled ones are accepted")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        fail(f"{path}: partial_rotary_factor is {rope['partial_rotary_factor']!r}; 1.0 is built")
    return rope.get("rope_theta", config.get("rope_theta", 10000.0))


def fields_of(path, config):
    """The fields of a model file's header. Ends the script where config.json asks for what is not built."""
    family = config["model_type"]
    if family in NOT_BUILT:
        fail(f"{path}: a {family} has {NOT_BUILT[family]}, which is not built; {' and '.join(FAMILIES)} are accepted")
    for name, accepted in ACCEPTED.items():
        if config.get(name, accepted[0]) not in accepted:
            fail(f"{path}: {name} is {config[name]!r}, which is not built; {accepted[0]!r} is accepted")
    types = config.get("layer_types") or []
    others = [each for each in types if each != "full_attention"] if isinstance(types, list) else [types]
    if others:
        fail(f"{path}: layer_types has {others[0]!r}, which is not built; 'full_attention' is accepted")

    def number(name, default=None, kind=int):
        value = config.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int) or value <= 0:
            fail(f"{path}: {name} is {value!r}; a positive number is expected")
        return value

    heads, channels = number("num_attention_heads"), number("hidden_size")
    head_size = number("head_dim", 128 if family == "qwen3" else channels // heads)
    theta = rope_theta(path, config)
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or theta <= 0:
        fail(f"{path}: rope_theta is {theta!r}; a positive number is expected")
    return {"maxT": number("max_position_embeddings", 2048), "V": number("vocab_size"), "C": channels, "NH": heads,
            "L": number("num_hidden_layers"), "NKV": number("num_key_value_heads", heads), "HS": head_size,
            "F": number("intermediate_size"), "qk_norm": int(family == "qwen3"), "theta": theta,
            "tied": int(config.get("tie_word_embeddings", False) is True), "eps": number("rms_norm_eps", 1e-6, float)}


def find_tensors(table, shards):
    """{name: file}. Ends the script if the files have not exactly the tensors of the table."""
    found = {}
    for shard in shards:
        for name in shard.tensors:
            if name in found:
                fail(f"{name} of {shard.path} is there twice")
            found[name] = shard
    shapes = {name: shape for _, parts in stored_tensors(table) for name, shape in parts}
    if table["tied"]:  # it may be stored nevertheless
        shapes |= {name: shapes["model.embed_tokens.weight"] for name in found if name == "lm_head.weight"}
    for names, what in (shapes.keys() - found.keys(), "missing"), (found.keys() - shapes.keys(), "left over"):
        if names:
            fail(f"{shards[0].path}: {min(names)} is {what}; a model of {table['L']} layers has {len(shapes)} tensors")
    for name, shard in found.items():
        dtype, shape, _ = shard.tensors[name]
        if shape != shapes[name]:
            fail(f"{shard.path}: {name} has the shape {shape}; {shapes[name]} is expected")
        if dtype not in STORED:
            fail(f"{shard.path}: {name} is stored as {dtype}; {', '.join(STORED)} are accepted")
    return found


def finite_values(found, name):
    values = found[name].fp32(name)
    if not np.isfinite(values).all():
        fail(f"{found[name].path}: {name} has values that are not finite")
    return values


def write_model(file, table, found, dtype):
    file.write(np.array(table[f"header_{dtype}"], "<i4").tobytes())
    total = sum(math.prod(shape) for _, parts in stored_tensors(table) for _, shape in parts)
    progress, done = Progress("importing", total, "M parameters", 1_000_000), 0
    for row, parts in stored_tensors(table):
        values = np.concatenate([finite_values(found, name).reshape(-1) for name, _ in parts])
        done += values.size
        if dtype == "bf16":
            values = as_bf16(values)
            if not np.isfinite(as_fp32(values, "BF16")).all():
                fail(f"{parts[0][0]} has values that bf16 cannot hold")
        file.write(values.tobytes())
        file.write(bytes((row["rows"] * row["cols"] - values.size) * values.itemsize))  # the padding of the vocabulary
        progress.reach(done)
    progress.done()


def import_model(out, config_path, config, shard_paths, dtype):
    """Writes a model file. Tokenizers of these models are others than GPT-2's, and are left out."""
    fields = fields_of(config_path, config)
    table = table_of(*(f"{name}={value}" for name, value in fields.items()))
    found = find_tensors(table, [Safetensors(path) for path in shard_paths])
    if table["tied"] and "lm_head.weight" in found and not np.array_equal(
            finite_values(found, "lm_head.weight"), finite_values(found, "model.embed_tokens.weight")):
        fail(f"{config_path}: tie_word_embeddings is true, and lm_head.weight differs from the embedding")
    write_whole({out: lambda file: write_model(file, table, found, dtype)})
    print(f"{out}: a {config['model_type']} of {fields['L']} layers and {fields['C']} channels in {dtype}, without a "
          "tokenizer; build/modern loads it")


# ---- out


def model_file(source):
    """The model file that is meant, if it is of a model after GPT-2: it, or the newest of a run's folder."""
    if source.is_dir():
        done = sorted(path.name.removeprefix("DONE_") for path in source.glob("DONE_*"))
        source = source / f"model_{done[-1]}.bin" if done else source
    if not source.is_file():
        return None
    with open(source, "rb") as file:
        return source if int.from_bytes(file.read(4), "little") == MAGIC else None


def config_of(model, table):
    """What config.json holds. Ends the script if no family of Hugging Face has such a model."""
    for name, built in {"mlp": 0, "norm": 0, "positions": 0, "softcap": 0, "value_residual": 0}.items():
        if table[name] != built:
            fail(f"{model}: its {name} is one that {' and '.join(FAMILIES.values())} have not")
    family = "qwen3" if table["qk_norm"] else "llama"
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[table["dtype"]]
    return {"architectures": [FAMILIES[family]], "model_type": family, "dtype": dtype, "torch_dtype": dtype,
            "vocab_size": table["V"], "max_position_embeddings": table["maxT"], "hidden_size": table["C"],
            "num_hidden_layers": table["L"], "num_attention_heads": table["NH"], "num_key_value_heads": table["NKV"],
            "head_dim": table["HS"], "intermediate_size": table["F"], "hidden_act": "silu", "attention_bias": False,
            "rms_norm_eps": float(f"{table['eps']:.6g}"), "tie_word_embeddings": bool(table["tied"]),
            "rope_theta": table["theta"], "rope_parameters": {"rope_type": "default", "rope_theta": table["theta"]},
            "bos_token_id": None, "eos_token_id": None}


def write_weights(file, model, table):
    stored = NAME_OF[table["dtype"]]
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for _, parts in stored_tensors(table):
        for name, shape in parts:
            end = at + math.prod(shape) * STORED[stored].itemsize
            header[name] = {"dtype": stored, "shape": shape, "data_offsets": [at, end]}
            at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the values begin at a multiple of 8
    file.write(len(text).to_bytes(8, "little") + text)
    at = HEADER_BYTES
    for row, parts in stored_tensors(table):
        values = read_values(model, stored, row["rows"] * row["cols"], at, row["name"])
        at += values.nbytes
        if not np.isfinite(as_fp32(values, stored)).all():
            fail(f"{model} is damaged: {row['name']} has values that are not finite")
        file.write(values[:sum(math.prod(shape) for _, shape in parts)].tobytes())  # without the padding


def export_model(model, out, check_out, overwrite):
    table = table_of(model)
    config = config_of(model, table)
    check_out(out, overwrite, config)
    write_whole({out / "model.safetensors": lambda file: write_weights(file, model, table),
                 out / "config.json": lambda file: file.write((json.dumps(config, indent=2) + "\n").encode())},
                [out / "config.json"])
    print(f"{out}: {config['architectures'][0]} from {model}, without a tokenizer")
