#!/usr/bin/env python3
"""Tries dev/data/import_hf.py on damaged models of Hugging Face: whatever model.safetensors, its index and config.json
hold, the script ends with status 0 or with one sentence, and takes little memory.

    dev/test/fuzz/import.py                     # 1000 cases, the same each time
    dev/test/fuzz/import.py --seed 2 --cases 5000
    dev/test/fuzz/import.py --only 17           # one case again; its folder stays in build/fuzz/import-17

A case is a valid model with one to three changes: of a value in the JSON of a file, of its bytes, or of its length.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data")]
import children  # noqa: E402

children.need("numpy", "safetensors")
if sys.argv[1:] == ["--packages"]:  # only says which are missing
    sys.exit()
import argparse  # noqa: E402
import contextlib  # noqa: E402
import functools  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import struct  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
import tracemalloc  # noqa: E402

import numpy as np  # noqa: E402
import safetensors.numpy  # noqa: E402

import import_hf  # noqa: E402

SECONDS, MOST_BYTES = 20, 64 << 20
CONFIG = {"model_type": "gpt2", "n_layer": 1, "n_embd": 4, "n_head": 2, "n_positions": 4, "vocab_size": 5,
          "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "n_inner": None}
LATER = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 2, "intermediate_size": 3, "max_position_embeddings": 4, "vocab_size": 5,
         "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "rope_theta": 10000.0,
         "rope_scaling": None, "rope_parameters": {"rope_type": "default"}, "layer_types": ["full_attention"]}
VALUES = [0, 1, -1, 2, 1 << 31, 1 << 63, 10**30, 0.0, 4.0, 1e308, True, None, "", "F32", "F64", "gelu", "\ud800", [],
          [[]], {}, [0], [0, 0], [-4, 4], [1 << 62, 4], "../config.json", "\x1b[31m\nerror: two", [None, "a"]]
NAMES = ["", "lm_head.weight", "wte.weight", "transformer.h.0.attn.bias", "h.9.attn.bias"]
model_table = functools.lru_cache(import_hf.model_table)  # a program each time


def save_later(folder):
    """A model after GPT-2, where dev/modern is there to import it."""
    later = import_hf.later_models()
    if later:
        table = later.table_of(*(f"{name}={value}" for name, value in later.fields_of(folder, LATER).items()))
        shapes = {name: shape for _, parts in later.stored_tensors(table) for name, shape in parts}
        folder.mkdir()
        safetensors.numpy.save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()},
                                    folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(LATER))


def valid(folder):
    """A model in two shards, the same in one file, and one of another family."""
    save_later(folder / "later")
    table = import_hf.model_table("--shape", "L1C4H2T4V5")
    rng = np.random.default_rng(1)
    tensors = {name: rng.standard_normal(row["hf_shape"]).astype(np.float32)
               for row, name in import_hf.stored_tensors(table)}
    names = list(tensors)
    for kind, shards in ("one", {"model.safetensors": names}), ("two", {"a.safetensors": names[:3],
                                                                        "b.safetensors": names[3:]}):
        (folder / kind).mkdir()
        for shard, held in shards.items():
            safetensors.numpy.save_file({name: tensors[name] for name in held}, folder / kind / shard)
        (folder / kind / "config.json").write_text(json.dumps(CONFIG))
    index = {"weight_map": {name: "a.safetensors" if name in names[:3] else "b.safetensors" for name in names}}
    (folder / "two/model.safetensors.index.json").write_text(json.dumps(index))
    return sorted(path for path in folder.glob("*/*"))


def places(value, path=()):
    """The way to each value within a JSON value."""
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from places(member, path + (key,))


def change_json(text, draw):
    value = json.loads(text)
    way = draw.choice(list(places(value)))
    if not way:
        return json.dumps(draw.choice(VALUES)).encode()
    within = functools.reduce(lambda held, key: held[key], way[:-1], value)
    change = draw.choice(["replace", "replace", "float", "remove", "rename"])
    if change == "replace":
        within[way[-1]] = draw.choice(VALUES)
    elif change == "float":  # the same number, of another kind
        for way in places(value) if draw.random() < 0.5 else [way]:
            within = functools.reduce(lambda held, key: held[key], way[:-1], value) if way else None
            if way and type(within[way[-1]]) is int and abs(within[way[-1]]) < 1 << 53:
                within[way[-1]] = float(within[way[-1]])
    else:
        member = within.pop(way[-1])
        if change == "rename" and isinstance(within, dict):
            within[draw.choice(NAMES)] = member
    return json.dumps(value).encode()


def change_bytes(data, draw):
    data, at = bytearray(data), draw.randrange(len(data) + 1)
    kind = draw.choice(["flip", "cut", "insert", "remove", "number"])
    if kind == "flip" and at < len(data):
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del data[draw.choice([0, 1, 7, 8, 9, at]):]
    elif kind == "insert":
        data[at:at] = draw.choice([b"\0", b"[" * 3000, b"\xff", b'"', b"\n" * 9, b"1" * 5000, bytes(100)])
    elif kind == "remove":
        del data[at:at + draw.choice([1, 4, 64])]
    else:
        lengths = [0, 1, 2, len(data), max(0, len(data) - 8), 100_000_000, 1 << 63, (1 << 64) - 1]
        data[:8] = struct.pack("<Q", draw.choice(lengths))
    return bytes(data)


def mutate(path, draw):
    data = path.read_bytes()
    for _ in range(draw.randint(1, 3)):
        try:
            if path.suffix == ".json" and draw.random() < 0.7:
                data = change_json(data, draw)
            elif path.suffix != ".json" and draw.random() < 0.7:
                (length,) = struct.unpack_from("<Q", data)
                header = change_json(data[8:8 + length], draw)
                data = struct.pack("<Q", len(header)) + header + data[8 + length:]
            else:
                data = change_bytes(data, draw)
        except (ValueError, struct.error, RecursionError):  # it is damaged already
            data = change_bytes(data, draw)
    path.write_bytes(data)


def run(folder, out):
    """How the script ends: the exit status, and what breaks the promise or None."""
    said, began = io.StringIO(), time.monotonic()
    sys.argv = ["import_hf.py", str(folder), str(out)]
    import_hf.model_table = lambda *arguments: model_table(*arguments)
    tracemalloc.reset_peak()
    status, wrong = 0, None
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            import_hf.main()
        except SystemExit as end:
            status = 1 if isinstance(end.code, str) else end.code or 0
            said.write(end.code if isinstance(end.code, str) else "")
        except BaseException:
            wrong = traceback.format_exc()
    text = said.getvalue()
    if status and not wrong and (len(text.strip().splitlines()) != 1 or not text.startswith("error: ")):
        wrong = f"status {status}, and not one sentence: {text[-500:]!r}"
    if tracemalloc.get_traced_memory()[1] > MOST_BYTES:
        wrong = wrong or f"it takes {tracemalloc.get_traced_memory()[1]} bytes"
    if time.monotonic() - began > SECONDS:
        wrong = wrong or f"it takes more than {SECONDS} s"
    if status and out.exists():
        wrong = wrong or "it leaves a model file"
    out.unlink(missing_ok=True)
    return status, wrong


def main():
    flags = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    flags.add_argument("--cases", type=int, default=1000)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--only", type=int)
    options = flags.parse_args()
    count, failed = {0: 0, 1: 0, 2: 0}, 0
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        (temporary / "valid").mkdir()
        files = valid(temporary / "valid")
        for kind in (temporary / "valid").iterdir():
            status, wrong = run(kind, temporary / "out.bin")
            assert status == 0 and not wrong, f"the valid model is refused: {wrong}"
        for number in [options.only] if options.only is not None else range(options.cases):
            draw = random.Random(f"{options.seed}/{number}")
            chosen = draw.choice(files)
            folder = temporary / f"import-{number}"
            shutil.copytree(chosen.parent, folder)
            mutate(folder / chosen.name, draw)
            status, wrong = run(folder, temporary / "out.bin")
            if wrong:
                failed += 1
                kept = ROOT / "build/fuzz" / folder.name
                shutil.copytree(folder, kept, dirs_exist_ok=True)
                print(f"FAILED case {number} of seed {options.seed}, {chosen.name} (kept in {kept}): {wrong}")
            else:
                count[status] += 1
            shutil.rmtree(folder)
    print(f"{sum(count.values()) + failed} models: {count[0]} accepted, {count[1]} refused, {failed} broke the promise")
    sensible = options.only is not None or (count[0] > 0 and count[1] > options.cases // 4)
    sys.exit(0 if sensible and not failed else 1)


if __name__ == "__main__":
    main()
