#!/usr/bin/env python3
"""Turns a GPT-2 from Hugging Face into a model file that the trainers load with -e, and a Llama or Qwen3 into one that
build/modern loads.

    pip install numpy && python3 dev/data/import_hf.py gpt2 gpt2.bin

The model is one of
    a folder with config.json and model.safetensors, or shards and model.safetensors.index.json
    a .safetensors or .index.json file with config.json beside it
    a name on the hub, which is downloaded first: gpt2, gpt2-medium, gpt2-large, gpt2-xl, somebody/their-model
Weights stored as fp32, fp16 or bf16 are accepted, and any shape of GPT-2's architecture. The model's tokenizer, if it
is there, becomes gpt2_tokenizer.bin beside gpt2.bin, where the trainers look for it. One that cuts or merges in another
way than GPT-2's is refused.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402

children.need("numpy")
import argparse  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402

import numpy as np  # noqa: E402

import hub  # noqa: E402
from files import ROOT, Progress, fail, write_whole, wrong_use  # noqa: E402
from hf_tokenizer import imported_tokenizer, tokenizer_text  # noqa: E402
from model_files import (  # noqa: E402
    NAME_OF, STORED, Safetensors, as_bf16, as_fp32, model_table, read_json, stored_tensors)

# What config.json may say besides the sizes. The first value is the default. The three activations are the same
# formula, GELU with tanh.
ACCEPTED = {
    "model_type": ["gpt2"],
    "activation_function": ["gelu_new", "gelu_pytorch_tanh", "gelu_fast"],
    "scale_attn_weights": [True],
    "scale_attn_by_inverse_layer_idx": [False],
    "add_cross_attention": [False],
}
BUFFERS = re.compile(r"h\.\d{1,4}\.attn\.(bias|masked_bias)")  # older files hold the causal mask
SAVE_AGAIN = "save_pretrained() of transformers turns PyTorch's .bin files into a folder that is accepted"
PREFIX, EMBEDDING, HEAD = "transformer.", "wte.weight", "lm_head.weight"


def shape_of(path, config):
    """The descriptor of the model's shape. Ends the script if config.json asks for another architecture."""
    def size(*names):
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if type(value) is not int or value < 1:
            fail(f"{path}: {names[0]} is {value!r}; a positive number is expected")
        return value

    for name, accepted in ACCEPTED.items():
        value = config.get(name, accepted[0])
        if value not in accepted:
            fail(f"{path}: {name} is {value!r}; the trainers compute {' or '.join(map(repr, accepted))}")
    sizes = {"L": size("n_layer"), "C": size("n_embd"), "H": size("n_head"), "T": size("n_positions", "n_ctx"),
             "V": size("vocab_size")}
    inner = config.get("n_inner")
    if inner is not None and inner != 4 * sizes["C"]:
        fail(f"{path}: n_inner is {inner!r}; the trainers compute 4 * n_embd, {4 * sizes['C']}")
    return "".join(f"{letter}{value}" for letter, value in sizes.items())


def listed_shards(index):
    """The files that an index names."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        fail(f"{index}: weight_map is expected, the file of each tensor")
    strange = [name for name in names.values() if pathlib.PurePath(name).name != name]
    if strange:
        fail(f"{index}: {strange[0]!r} is no name of a file beside it")
    return sorted(set(names.values()))


def is_here(source):
    """Whether a folder or file is meant. A file without a suffix, such as the program gpt2, does not hide a model's
    name."""
    return source.is_dir() or source.is_file() and (source.suffix != "" or not hub.is_name(str(source)))


def files_of(source):
    """config.json and the .safetensors files of a model: of a folder, an index, or a single file."""
    single, index = source / "model.safetensors", source / "model.safetensors.index.json"
    if not source.is_dir():
        if source.suffix == ".bin":
            fail(f"{source} is no .safetensors file; the trainers load their own .bin files as they are, and "
                 f"{SAVE_AGAIN}")
        single, index = (None, source) if source.name.endswith(".index.json") else (source, None)
    if single and single.is_file():
        shards = [single]
    elif index and index.is_file():
        shards = [index.parent / name for name in listed_shards(index)]
    elif list(source.glob("pytorch_model*.bin")):
        fail(f"{source} has its weights in pytorch_model.bin, which only PyTorch reads; {SAVE_AGAIN}")
    else:
        fail(f"{source} holds neither model.safetensors nor model.safetensors.index.json")
    config = shards[0].parent / "config.json"
    if not config.is_file():
        fail(f"{config} is not there; it says how many heads the model has")
    return config, shards


def some(names):
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def find_tensors(table, shards):
    """{name without the prefix: (file, name in it)}. Ends the script if these are not exactly the table's tensors."""
    found = {}
    for shard in shards:
        for name in shard.tensors:
            plain = name.removeprefix(PREFIX)
            if BUFFERS.fullmatch(plain) and int(plain.split(".")[1]) < table["L"]:
                continue
            if plain in found:
                fail(f"{name} of {shard.path} is there twice")
            found[plain] = shard, name
    shapes = {name.removeprefix(PREFIX): row["hf_shape"] for row, name in stored_tensors(table)}
    missing = [name for name in shapes if name not in found]
    left_over = [found[name][1] for name in found if name not in shapes and name != HEAD]
    where = shards[0].path if len(shards) == 1 else shards[0].path.parent
    for names, what in (missing, "missing"), (left_over, "left over"):
        if names:
            fail(f"{where}: {some(names)} {'is' if len(names) == 1 else 'are'} {what}; "
                 f"a GPT-2 of {table['L']} layers has {len(shapes)} tensors")
    shapes[HEAD] = shapes[EMBEDDING]
    for plain, (shard, name) in found.items():
        dtype, shape, _ = shard.tensors[name]
        if shape != shapes[plain]:
            fail(f"{shard.path}: {name} has the shape {shape}; {shapes[plain]} is expected")
        if dtype not in STORED:
            fail(f"{shard.path}: {name} is stored as {dtype}; {', '.join(STORED)} are accepted")
    return found


def finite_values(found, name):
    shard, stored_name = found[name]
    values = shard.fp32(stored_name)
    if not np.isfinite(values).all():
        fail(f"{shard.path}: {stored_name} has values that are not finite")
    return values


def check_head(found):
    """A separate output head must equal the token embedding, which the trainers use as the head."""
    if HEAD in found and not np.array_equal(finite_values(found, HEAD), finite_values(found, EMBEDDING)):
        fail(f"{found[HEAD][0].path}: {HEAD} differs from {EMBEDDING}; the trainers have one matrix for both")


def tokenizer_writer(options, out, folder, config, table):
    """{path: function that writes it} of the tokenizer file beside the model file, and a notice."""
    if options.no_tokenizer:
        return {}, ""
    tokenizer = imported_tokenizer(folder, config)
    if not tokenizer:
        return {}, f"\nwithout a tokenizer: {folder} has neither tokenizer.json nor vocab.json"
    tokens, end_of_text = tokenizer
    if len(tokens) > table["V"]:
        fail(f"{folder} has a tokenizer of {len(tokens)} tokens and a model of {table['V']}; "
             "--no-tokenizer imports the weights alone")
    path, text = out.with_name(f"{out.stem}_tokenizer.bin"), tokenizer_text(tokens, end_of_text)
    if path.exists() and not (path.is_file() and path.read_bytes() == text) and not options.overwrite:
        fail(f"{path} is another vocabulary; another name than {out}, --overwrite 1 or --no-tokenizer is accepted")
    return {path: lambda file: file.write(text)}, f"\n{path}: {len(tokens)} tokens, {end_of_text} ends a text"


def write_model(file, table, found, dtype):
    header = np.zeros(256, "<i4")
    header[:8] = [table["magic"], table["versions"][dtype], *(table[k] for k in ("maxT", "V", "L", "NH", "C", "Vp"))]
    file.write(header.tobytes())
    progress = Progress("importing", table["parameters"], "M parameters", 1_000_000)
    done = 0
    for row, name in stored_tensors(table):
        values = finite_values(found, name.removeprefix(PREFIX))
        values = np.ascontiguousarray(values.T if row["transposed"] else values)
        if dtype == "bf16":
            values = as_bf16(values)
            if not np.isfinite(as_fp32(values, "BF16")).all():
                fail(f"{name} has values that bf16 cannot hold")
        file.write(values.data)
        file.write(bytes((row["elems"] - values.size) * values.itemsize))  # the padding of the vocabulary
        done += values.size
        progress.reach(done)
    progress.done()


def later_models():
    """What reads and writes models after GPT-2, if the folder is there."""
    if not (ROOT / "dev/modern/hf.py").is_file():
        return None
    sys.path.append(str(ROOT / "dev/modern"))
    import hf
    return hf


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = wrong_use
    parser.add_argument("model", help="a folder, a .safetensors file, its index, or a name on the hub")
    parser.add_argument("out", help="the model file to write; it must end in .bin")
    parser.add_argument("--dtype", choices=sorted(NAME_OF), default="fp32",
                        help="how the model file stores weights (%(default)s)")
    parser.add_argument("--hub", metavar="URL", default=os.environ.get("HF_ENDPOINT", hub.URL),
                        help="where names are looked up (%(default)s)")
    parser.add_argument("--download-dir", metavar="FOLDER", default=hub.FOLDER, type=pathlib.Path,
                        help="where downloads are kept (dev/data/downloads)")
    parser.add_argument("--no-tokenizer", action="store_true", help="import the weights alone")
    parser.add_argument("--overwrite", type=int, choices=(0, 1), default=0,
                        help="1: replace a vocabulary that is beside OUT already and differs")
    options = parser.parse_args()
    out, source = pathlib.Path(options.out), pathlib.Path(options.model)
    if not options.out.endswith(".bin"):
        wrong_use(f"{options.out} does not end in .bin; the trainers take a model file by that")
    if not out.parent.is_dir():
        wrong_use(f"the folder {out.parent} is not there")
    if not is_here(source):
        if not hub.is_name(options.model):
            fail(f"{source} is not there, and it is no name on the hub (model or owner/model)")
        source = hub.download(options.model, options.hub, options.download_dir)
    config_path, shard_paths = files_of(source)
    config = read_json(config_path)
    if later := later_models():
        if later.is_later(config):
            return later.import_model(out, config_path, config, shard_paths, options.dtype)
    table = model_table("--shape", shape_of(config_path, config))
    epsilon = config.get("layer_norm_epsilon", table["layernorm_eps"])
    if epsilon != table["layernorm_eps"]:
        fail(f"{config_path}: layer_norm_epsilon is {epsilon!r}; the trainers compute {table['layernorm_eps']}")
    found = find_tensors(table, [Safetensors(path) for path in shard_paths])
    if config.get("tie_word_embeddings", True) is not True and HEAD not in found:
        fail(f"{config_path}: tie_word_embeddings is false; the trainers have one matrix for embedding and head")
    check_head(found)
    tokenizer, notice = tokenizer_writer(options, out, config_path.parent, config, table)
    write_whole({**tokenizer, out: lambda file: write_model(file, table, found, options.dtype)})
    shape = ", ".join(f"{name} {table[name]}" for name in ("L", "C", "NH", "maxT", "V"))
    print(f"{out}: {shape}: {table['parameters']:,} parameters in {options.dtype}{notice}")


if __name__ == "__main__":
    main()
