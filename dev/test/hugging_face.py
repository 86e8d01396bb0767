#!/usr/bin/env python3
"""Tests dev/data/import_hf.py and export_hf.py against transformers and PyTorch: weights, logits, gradients, one step
of AdamW, tokens, downloads, and all that is refused.

    pip install numpy safetensors tiktoken torch transformers
    make train_gpt2_cpu tokenize build/test_model && dev/test/hugging_face.py
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data"), str(ROOT / "dev/test")]
import children  # noqa: E402

children.need("numpy", "safetensors", "tiktoken", "torch", "transformers")
if sys.argv[1:] == ["--packages"]:  # only says which are missing
    sys.exit()
import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import re  # noqa: E402
import resource  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
import numpy as np  # noqa: E402
import safetensors.torch  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import export_hf as export_hf_script  # noqa: E402
import file_server  # noqa: E402
import fixtures  # noqa: E402
import hf_tokenizer  # noqa: E402
import import_hf as import_hf_script  # noqa: E402
from run_script import run, script  # noqa: E402

GPT2_TOKENIZER = ROOT / "dev/data/gpt2_tokenizer.bin"
# of OpenAI's own encoder.json and vocab.bpe, as tiktoken checks them
VOCAB_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
SHAPES = {"a": (2, 48, 3, 35, 97), "b": (1, 40, 1, 70, 130), "c": (3, 32, 4, 9, 300)}  # L, C, NH, maxT, V


def import_hf(*arguments, **keywords):
    return script(import_hf_script, *arguments, **keywords)


def export_hf(*arguments, **keywords):
    return script(export_hf_script, *arguments, **keywords)


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    assert type(model) is transformers.GPT2LMHeadModel
    return model


def as_fixture(folder, name, model, B, T):
    """Writes the logits, loss and gradients of a transformers model for test_model to compare with."""
    torch.manual_seed(B)
    fixtures.debug_state(folder / f"{name}_debug_state.bin", model, B, T)


def same_logits(folder, *names):
    output = run(ROOT / "build/test_model", f"{folder}/", *names)
    assert re.search(r"^[1-9]\d* passed, 0 failed", output, re.M), output


def same_bytes(a, b):
    assert a.read_bytes() == b.read_bytes(), f"{a} and {b} differ"


# ---- in


def imported_models(folder):
    """Every byte of the model file is as fixtures.py writes it; logits and gradients equal PyTorch's."""
    for name, shape in SHAPES.items():
        model = fixtures.make_model(*shape, seed=7)
        model.save_pretrained(folder / name)
        import_hf(folder / name, folder / f"{name}.bin")
        fixtures.write_model(folder / "expected.bin", model)
        same_bytes(folder / f"{name}.bin", folder / "expected.bin")
        as_fixture(folder, name, model, 3, shape[3] - 1)
    same_logits(folder, *SHAPES)


def stored_otherwise(folder):
    """Shards; fp16 and bf16; names without the prefix, causal masks, a separate head; a file instead of a folder."""
    model = fixtures.make_model(*SHAPES["a"], seed=8)
    model.save_pretrained(folder / "shards", max_shard_size="60KB")
    assert len(list((folder / "shards").glob("*.safetensors"))) > 2
    fixtures.write_model(folder / "expected.bin", model)
    for source in "shards", "shards/model.safetensors.index.json":
        import_hf(folder / source, folder / "got.bin")
        same_bytes(folder / "got.bin", folder / "expected.bin")

    plain = folder / "plain"
    plain.mkdir()
    tensors = {name.removeprefix("transformer."): p.detach().clone() for name, p in model.named_parameters()}
    masks = {f"h.{layer}.attn.{name}": torch.ones(1, 1, 35, 35, dtype=torch.bool)
             for layer in range(2) for name in ("bias", "masked_bias")}
    safetensors.torch.save_file({**tensors, **masks, "lm_head.weight": tensors["wte.weight"].clone()},
                                plain / "model.safetensors")
    config = json.loads((folder / "shards/config.json").read_text())
    (plain / "config.json").write_text(json.dumps({**config, "activation_function": "gelu_pytorch_tanh"}))
    import_hf(plain / "model.safetensors", folder / "got.bin")
    same_bytes(folder / "got.bin", folder / "expected.bin")

    for dtype in torch.float16, torch.bfloat16:
        half = fixtures.make_model(*SHAPES["a"], seed=8).to(dtype)
        half.save_pretrained(folder / str(dtype))
        import_hf(folder / str(dtype), folder / "got.bin")
        fixtures.write_model(folder / "expected.bin", half.float())
        same_bytes(folder / "got.bin", folder / "expected.bin")


def rounded_to_bf16(folder):
    """--dtype bf16 rounds as PyTorch does; a bf16 model keeps its bits."""
    model = fixtures.make_model(*SHAPES["c"], seed=9)
    with torch.no_grad():  # halfway between two bf16 numbers, and next to that
        bits = torch.arange(0x3F7F0000, 0x3F7F0000 + 32 * 0x4000, 0x4000, dtype=torch.int32)
        model.transformer.wte.weight[0] = (bits + torch.tensor([0, 1] * 16, dtype=torch.int32)).view(torch.float32)
    model.save_pretrained(folder / "fp32")
    import_hf(folder / "fp32", folder / "half.bin", "--dtype", "bf16")
    half = model.to(torch.bfloat16)
    half.save_pretrained(folder / "half")
    import_hf(folder / "half", folder / "same.bin", "--dtype", "bf16")
    same_bytes(folder / "half.bin", folder / "same.bin")
    import_hf(folder / "half", folder / "got.bin")
    fixtures.write_model(folder / "expected.bin", half.float())
    same_bytes(folder / "got.bin", folder / "expected.bin")
    stored = np.fromfile(folder / "half.bin", "<u2", offset=1024).astype("<u4") << 16
    assert np.array_equal(stored.view("<f4"), np.fromfile(folder / "expected.bin", "<f4", offset=1024))


# ---- out


def exported_runs(folder):
    """transformers computes the same as a run's newest complete checkpoint; a round trip keeps every byte."""
    tokens = np.random.default_rng(3).integers(0, 130, 5000)
    fixtures.write_tokens(folder / "tokens.bin", tokens)
    for precision in "fp32", "bf16":
        out, model = folder / precision, folder / f"{precision}_exported"
        output = run(ROOT / "train_gpt2_cpu", "-i", folder / "tokens.bin", "-j", folder / "tokens.bin", "-e",
                     "L2C48H3T33V130", "-b", 2, "-t", 32, "-x", 3, "-n", 1, "-s", 0, "-v", 3, "-m", 1, "-l", 1e-2,
                     "-o", out, "--precision", precision)
        (out / "DONE_00000003").rename(out / "not_done")
        export_hf(out, model)
        import_hf(model, folder / "two.bin", "--dtype", precision)
        same_bytes(folder / "two.bin", out / "model_00000002.bin")
        (out / "not_done").rename(out / "DONE_00000003")
        printed = export_hf(out, model)
        assert "model_00000003.bin" in printed and "without a tokenizer" in printed
        assert sorted(os.listdir(model)) == ["config.json", "model.safetensors"]
        loaded = load(model)
        assert str(loaded.dtype) == f"torch.{dict(fp32='float32', bf16='bfloat16')[precision]}"
        import_hf(model, folder / "three.bin", "--dtype", precision)
        same_bytes(folder / "three.bin", out / "model_00000003.bin")
        x = torch.tensor(tokens[:129].astype(np.int64))
        logits = loaded.float()(x[:128].view(4, 32)).logits
        loss = torch.nn.functional.cross_entropy(logits.view(128, 130), x[1:]).item()
        printed_loss = float(re.findall(r"val loss ([\d.]+)", output)[-1])
        tolerance = 2e-6 if precision == "fp32" else 5e-3
        assert abs(loss - printed_loss) < tolerance * loss, (precision, loss, printed_loss)
        if precision == "fp32":
            shutil.copy(out / "model_00000003.bin", folder / "run.bin")
            as_fixture(folder, "run", loaded, 2, 33)
            same_logits(folder, "run")


def exported_best(folder):
    """model_best.bin, which is not the newest model here: its loss is the lowest that the run printed, in transformers
    too. Its tokenizer is the run's."""
    text = (ROOT / "dev/data/shakespeare/sonnets.txt").read_text()
    (folder / "text.txt").write_text(text)
    run(ROOT / "tokenize", "--train-vocab", 300, folder / "text.txt", "-o", folder / "data")
    data, tokenizer = folder / "data_train.bin", folder / "data_tokenizer.bin"
    output = run(ROOT / "train_gpt2_cpu", "-i", data, "-j", data, "-e", "L1C48H3T32V300", "-b", 2, "-t", 32, "-x", 6,
                 "-n", 6, "-s", 0, "-v", 2, "-m", 1, "-l", 1e-2, "-k", "constant", "--keep-best", 1,
                 "-o", folder / "run", "--tokenizer", tokenizer)
    run(ROOT / "train_gpt2_cpu", "-o", folder / "run", "-y", 1, "-x", 8, "-l", 1)  # the loss rises
    export_hf(folder / "run/model_best.bin", folder / "out")
    import_hf(folder / "out", folder / "back.bin")
    same_bytes(folder / "back.bin", folder / "run/model_best.bin")
    assert (folder / "back.bin").read_bytes() != (folder / "run/model_00000008.bin").read_bytes()
    assert transformers.AutoTokenizer.from_pretrained(folder / "out").vocab_size == 300
    x = torch.tensor(np.fromfile(data, "<u2", 129, offset=1024).astype(np.int64))
    logits = load(folder / "out")(x[:128].view(4, 32)).logits
    loss = torch.nn.functional.cross_entropy(logits.view(128, 300), x[1:]).item()
    lowest = min(float(number) for number in re.findall(r"val loss ([\d.]+)", output))
    assert abs(loss - lowest) < 2e-6 * loss, (loss, lowest)


RATE, DECAY, EPSILON, CLIP = 1e-2, 0.1, 1e-3, 0.5  # so large an eps that noise makes no full steps


def step_of_ours(folder, *flags):
    """What a run of one step prints, from before.bin to a checkpoint in run/."""
    return run(ROOT / "train_gpt2_cpu", "-i", folder / "tokens.bin", "-e", folder / "before.bin", "-x", 1, "-v", 0,
               "-s", 0, "-l", RATE, "-c", DECAY, "--eps", EPSILON, "--grad-clip", CLIP, "--shuffle", 0, "-o",
               folder / "run", "--overwrite", 1, *flags)


def step_of_pytorch(model, x, y):
    """Loss and norm of the same step in PyTorch. Targets of -100 are ignored: the ignore_index of its loss."""
    _, loss = fixtures.loss_of(model, x, y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}], lr=RATE,
                      betas=(0.9, 0.95), eps=EPSILON).step()
    return loss.item(), norm.item()


def same_step(folder, model):
    """The checkpoint in run/ has the weights of the model, and they are not those before the step."""
    export_hf(folder / "run", folder / "after")
    before, after = dict(load(folder / "before").named_parameters()), dict(load(folder / "after").named_parameters())
    for name, wanted in model.named_parameters():
        moved = (wanted - before[name]).abs().max().item()
        error = (wanted - after[name]).abs().max().item()
        assert moved > 1e-4 and error < 1e-6, f"{name}: off by {error:.3g} where the step is {moved:.3g}"


def one_step(folder):
    """Imported, trained for a step and exported: the weights of the same step of AdamW in PyTorch."""
    B, T = 4, 32
    model = fixtures.make_model(2, 48, 3, 32, 97, seed=11)
    model.save_pretrained(folder / "before")
    tokens = np.random.default_rng(4).integers(0, 97, B * T + 1)
    fixtures.write_tokens(folder / "tokens.bin", tokens)
    import_hf(folder / "before", folder / "before.bin")
    step_of_ours(folder, "-b", B, "-t", T)
    data = torch.tensor(tokens.astype(np.int64))
    step_of_pytorch(model, data[:-1].view(B, T), data[1:].view(B, T))
    same_step(folder, model)


def masked_step(folder):
    """A step on prompts and completions is PyTorch's with ignore_index, for any split into micro-steps."""
    windows, T = 6, 32
    draw, letters = random.Random(8), "abcdefgh \u00e9"
    lines = [{key: "".join(draw.choices(letters, k=draw.randrange(*sizes)))
              for key, sizes in (("prompt", (0, 40)), ("completion", (1, 20)))} for _ in range(20)]
    (folder / "sft.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run(ROOT / "tokenize", folder / "sft.jsonl", "-o", folder / "sft", "--bytes", 1, "--val-fraction", 0)
    (folder / "sft_train.bin").rename(folder / "tokens.bin")
    tokens = np.fromfile(folder / "tokens.bin", "<u2", offset=1024)[:windows * T + 1].astype(np.int64)
    bits = np.fromfile(folder / "sft_train.mask", "u1", offset=1024)
    counts = np.unpackbits(bits, bitorder="little")[:windows * T + 1]
    expected = np.concatenate([np.repeat([1, 0, 1], [1, len(line["prompt"].encode()), len(line["completion"].encode())])
                               for line in lines])
    assert np.array_equal(counts, expected[:len(counts)])
    x = torch.tensor(tokens[:-1]).view(windows, T)
    y = torch.tensor(np.where(counts == 1, tokens, -100)[1:]).view(windows, T)
    in_micro_steps = (y.view(3, -1) != -100).sum(1).tolist()
    assert len(set(in_micro_steps)) == 3, in_micro_steps  # the mean over the step is not the mean of means

    model = fixtures.make_model(2, 48, 3, 32, 257, seed=12)
    model.save_pretrained(folder / "before")
    import_hf(folder / "before", folder / "before.bin")
    loss, norm = step_of_pytorch(model, x, y)
    tokenizer = "--tokenizer", folder / "sft_tokenizer.bin"
    for B, *more in (2,), (1, "-r", 3), (6,), (2, "--precision", "bf16"):
        output = step_of_ours(folder, "-b", B, "-t", T, "-d", windows * T, "--loss-mask", folder / "sft_train.mask",
                              *tokenizer, *more)
        ours = re.search(r"loss ([\d.]+) *\| *norm ([\d.]+)", output)
        tolerance = 5e-3 if more[-1:] == ["bf16"] else 1e-5
        assert abs(float(ours[1]) - loss) < tolerance * loss, (B, more, loss, output)
        assert abs(float(ours[2]) - norm) < 10 * tolerance * norm, (B, more, norm, output)
        if "bf16" not in more:
            same_step(folder, model)


def gpt2_tokenizer(folder):
    """GPT-2's tokenizer files equal OpenAI's to the byte; with them, transformers gives tiktoken's tokens."""
    fixtures.make_model(1, 8, 1, 16, 50257, seed=1).save_pretrained(folder / "model")
    import_hf(folder / "model", folder / "model.bin")
    export_hf(folder / "model.bin", folder / "out")
    for name, sha256 in ("vocab.json", VOCAB_SHA256), ("merges.txt", MERGES_SHA256):
        assert hashlib.sha256((folder / "out" / name).read_bytes()).hexdigest() == sha256, name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    text = (ROOT / "dev/test/fixtures/tokenizer_text.bin").read_bytes().decode()
    ids = np.fromfile(ROOT / "dev/test/fixtures/tokenizer_ids.bin", "<u2").tolist()
    assert tokenizer.encode(text, split_special_tokens=True) == ids and tokenizer.decode(ids) == text
    encoder, draw = fixtures.gpt2_encoder(), random.Random(6)
    for _ in range(3000):  # pieces of it, which begin and end anywhere
        begin = draw.randrange(len(text))
        piece = text[begin:begin + draw.randrange(30)]
        theirs = tokenizer.encode(piece, split_special_tokens=True)
        assert theirs == encoder.encode_ordinary(piece) and tokenizer.decode(theirs) == piece, repr(piece)
    assert tokenizer.encode("a<|endoftext|>b") == [64, 50256, 65]
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == 50256 and tokenizer.model_max_length == 16
    model = load(folder / "out")
    generated = model.generate(**tokenizer("To be", return_tensors="pt"), max_new_tokens=4, do_sample=False)
    assert generated.shape == (1, 6)


def write_tokenizer(path, tokens, end_of_text):
    header = np.zeros(256, "<u4")
    header[:4] = [20240328, 2, len(tokens), end_of_text]
    path.write_bytes(header.tobytes() + b"".join(bytes([len(token)]) + token for token in tokens))


def gpt2_tokens(count):
    data, at, tokens = GPT2_TOKENIZER.read_bytes(), 1024, []
    while len(tokens) < count:
        tokens.append(data[at + 1:at + 1 + data[at]])
        at += 1 + data[at]
    return tokens


def other_tokenizers(folder):
    """Other vocabularies: transformers gives the tokens of our tokenizer, whatever id ends a text."""
    text = (ROOT / "dev/test/fixtures/tokenizer_text.bin").read_bytes().decode() + "".join(
        path.read_text() for path in sorted((ROOT / "dev/data/shakespeare").glob("*.txt"))[:1])
    (folder / "text.txt").write_text(text.replace("\0", ""))
    run(ROOT / "tokenize", "--train-vocab", 900, folder / "text.txt", "-o", folder / "trained")
    for name, count, end_of_text in ("trained", 0, None), ("a", 1000, 1000), ("b", 700, 0), ("c", 256, 256):
        file = folder / f"{name}_tokenizer.bin"
        if count:
            tokens = gpt2_tokens(count)
            tokens.insert(end_of_text, b"<|endoftext|>")
            write_tokenizer(file, tokens, end_of_text)
        size, end_of_text = np.fromfile(file, "<u4", 4)[2:].tolist()
        fixtures.write_model(folder / "model.bin", fixtures.make_model(1, 8, 1, 16, size + 3, seed=1))
        export_hf(folder / "model.bin", folder / "out", "--tokenizer", file)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
        ours = [int(i) for i in run(ROOT / "tokenize", "--ids", "--tokenizer", file, input=text).split()]
        theirs = tokenizer.encode(text, split_special_tokens=True)
        assert theirs == ours and tokenizer.decode(theirs) == text, f"{name}: {len(theirs)} and {len(ours)}"
        assert tokenizer.eos_token_id == load(folder / "out").config.eos_token_id == end_of_text
    run(ROOT / "train_gpt2_cpu", "-i", folder / "trained_train.bin", "-e", "L1C8H1T16V900", "-t", 16, "-x", 1, "-v", 0,
        "-s", 0, "--tokenizer", folder / "trained_tokenizer.bin", "-o", folder / "run")
    export_hf(folder / "run", folder / "out_of_run")
    assert transformers.AutoTokenizer.from_pretrained(folder / "out_of_run").vocab_size == 900


def encoded(file, text):
    return [int(i) for i in run(ROOT / "tokenize", "--ids", "--tokenizer", file, input=text).split()]


def imported_tokenizers(folder):
    """What was exported comes back whole, by whichever of transformers' files; a stranger's vocabulary gives the tokens
    that it gives there, is found beside the model, and is not replaced by another."""
    text = (ROOT / "dev/data/shakespeare/sonnets.txt").read_text()
    (folder / "text.txt").write_text(text)
    run(ROOT / "tokenize", "--train-vocab", 700, folder / "text.txt", "-o", folder / "trained")
    fixtures.write_model(folder / "model.bin", fixtures.make_model(1, 8, 1, 16, 700, seed=1))
    export_hf(folder / "model.bin", folder / "out", "--tokenizer", folder / "trained_tokenizer.bin")
    assert "700 tokens" in import_hf(folder / "out", folder / "back.bin")
    same_bytes(folder / "back_tokenizer.bin", folder / "trained_tokenizer.bin")
    for name in transformers.AutoTokenizer.from_pretrained(folder / "out").save_pretrained(folder / "again"):
        assert "vocab" not in name, name  # tokenizer.json alone
    for name in "config.json", "model.safetensors":
        shutil.copy(folder / "out" / name, folder / "again")
    import_hf(folder / "again", folder / "again.bin")
    same_bytes(folder / "again_tokenizer.bin", folder / "trained_tokenizer.bin")
    export_hf(folder / "again.bin", folder / "third")  # the tokenizer is found beside the model
    for name in sorted(os.listdir(folder / "out")):
        same_bytes(folder / "out" / name, folder / "third" / name)

    (folder / "stranger").mkdir()
    stranger = tokenizers.ByteLevelBPETokenizer()
    stranger.train(str(folder / "text.txt"), vocab_size=600, special_tokens=["<|endoftext|>", "<pad>"])
    fixtures.make_model(1, 8, 1, 16, 640, seed=2).save_pretrained(folder / "stranger")
    stranger.save(str(folder / "stranger/tokenizer.json"))
    import_hf(folder / "stranger", folder / "stranger.bin")
    assert encoded(folder / "stranger_tokenizer.bin", text) == stranger.encode(text).ids
    output = run(ROOT / "train_gpt2_cpu", "-e", folder / "stranger.bin", "-x", 0, "--prompt", "To be", "-g", 4)
    assert "To be" in output and "warning" not in output, output
    run(ROOT / "tokenize", folder / "text.txt", "-o", folder / "data", "--tokenizer", folder / "stranger_tokenizer.bin")
    output = run(ROOT / "train_gpt2_cpu", "-e", folder / "stranger.bin", "-i", folder / "data_train.bin", "-x", 1, "-v",
                 0, "-s", 1, "-g", 4, "--prompt", "To be")
    assert "To be" in output and "warning" not in output, output

    before = (folder / "back.bin").read_bytes()
    assert "another vocabulary" in import_hf(folder / "stranger", folder / "back.bin", status=1)
    same_bytes(folder / "back_tokenizer.bin", folder / "trained_tokenizer.bin")
    assert (folder / "back.bin").read_bytes() == before
    import_hf(folder / "stranger", folder / "back.bin", "--overwrite", 1)
    same_bytes(folder / "back_tokenizer.bin", folder / "stranger_tokenizer.bin")


def refusals_of_tokenizers(folder):
    """What our tokenizer would do otherwise is named; --no-tokenizer imports the weights."""
    fixtures.write_model(folder / "model.bin", fixtures.make_model(1, 8, 1, 16, 300, seed=1))
    write_tokenizer(folder / "t.bin", gpt2_tokens(299) + [b"<|endoftext|>"], 299)
    export_hf(folder / "model.bin", folder / "out", "--tokenizer", folder / "t.bin")
    transformers.AutoTokenizer.from_pretrained(folder / "out").save_pretrained(folder / "good")
    for name in "config.json", "model.safetensors":
        shutil.copy(folder / "out" / name, folder / "good")
    good = {name: json.loads((folder / "good" / name).read_text())
            for name in ("tokenizer.json", "tokenizer_config.json")}
    merges, vocabulary = good["tokenizer.json"]["model"]["merges"], good["tokenizer.json"]["model"]["vocab"]
    added = good["tokenizer.json"]["added_tokens"][0]

    def refused(expected, name="tokenizer.json", **changes):
        text = changes.pop("text", None)
        model = {**good[name].get("model", {}), **changes.pop("model", {})}
        changed = {**good[name], **({"model": model} if model else {}), **changes}
        (folder / "good" / name).write_text(text or json.dumps(changed))
        output = import_hf(folder / "good", folder / "got.bin", status=1)
        assert expected in output and output.count("\n") == 1 and str(folder) in output, (expected, output)
        (folder / "good" / name).write_text(json.dumps(good[name]))

    level, text = {"type": "ByteLevel", "add_prefix_space": False}, {"Sequence": {"id": "A", "type_id": 0}}
    refused("normalizer is NFC", normalizer={"type": "NFC"})
    refused("pre_tokenizer is Whitespace", pre_tokenizer={"type": "Whitespace"})
    refused("pre_tokenizer is Sequence", pre_tokenizer={"type": "Sequence", "pretokenizers": [level]})
    refused("pre_tokenizer is none", pre_tokenizer=None)
    refused("add_prefix_space", pre_tokenizer={**level, "add_prefix_space": True})
    refused("use_regex", pre_tokenizer={**level, "use_regex": False})
    refused("adds tokens", post_processor={"type": "TemplateProcessing",
                                           "single": [{"SpecialToken": {"id": "<|endoftext|>"}}, text]})
    refused("post_processor is BertProcessing", post_processor={"type": "BertProcessing"})
    refused("decoder is WordPiece", decoder={"type": "WordPiece"})
    refused("type is 'Unigram'", model={"type": "Unigram"})
    refused("ignore_merges is True", model={"ignore_merges": True})
    refused("merge 1 of 43", model={"merges": [merges[1], merges[0], *merges[2:]]})
    refused("merge 43 of 42", model={"merges": merges[:-1]})
    refused("merge 44 of 44", model={"merges": merges + [["a", "b"]]})
    refused("ids are not 0, 1, 2", model={"vocab": {**vocabulary, "abc": 400}})
    refused("id 7 stands for two tokens", model={"vocab": {**vocabulary, "abc": 7}})
    refused("same bytes", added_tokens=[added, {**added, "id": 300, "content": "a"}])
    refused("stand for no byte", model={"vocab": {**vocabulary, "\u4e2d": 300}})
    refused("cut out of any text", added_tokens=[added, {**added, "id": 300, "content": "word", "special": False}])
    refused("two parts", added_tokens=[added, {**added, "id": 300, "content": "ab"}])
    refused("end of text, '<end>'", "tokenizer_config.json", eos_token="<end>")
    refused("add_bos_token is True", "tokenizer_config.json", add_bos_token=True)
    refused("tokenizer_class is 'LlamaTokenizer'", "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    refused("damaged", model={"merges": 3})
    refused("damaged", pre_tokenizer="ByteLevel")
    refused("JSON", text="{")
    (folder / "good/tokenizer.json").write_text(json.dumps({**good["tokenizer.json"], "added_tokens": [
        added, {**added, "id": 300, "content": "<pad>"}]}))
    assert "301 tokens and a model of 300" in import_hf(folder / "good", folder / "got.bin", status=1)
    assert not list(folder.glob("got*"))
    import_hf(folder / "good", folder / "got.bin", "--no-tokenizer")
    assert [path.name for path in folder.glob("got*")] == ["got.bin"]


def damaged_tokenizers(folder):
    """Whatever the files of a tokenizer hold: it is imported or refused, in one sentence."""
    fixtures.write_model(folder / "model.bin", fixtures.make_model(1, 8, 1, 16, 300, seed=1))
    write_tokenizer(folder / "t.bin", gpt2_tokens(299) + [b"<|endoftext|>"], 299)
    export_hf(folder / "model.bin", folder / "out", "--tokenizer", folder / "t.bin")
    shutil.copytree(folder / "out", folder / "whole")
    transformers.AutoTokenizer.from_pretrained(folder / "out").save_pretrained(folder / "whole")
    draw, values = random.Random(5), [None, 1, -1, 10**12, 1.5, True, "x", "\ud800", [], {}, [1], {"a": 1}]

    def damage(node):
        keys = list(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(node[key], (dict, list)) and draw.random() < 0.7:
            return damage(node[key])
        node[key] = draw.choice(values)

    refused = 0
    for number in range(300):
        where = folder / ("out" if number % 2 else "whole")
        name = draw.choice([path.name for path in where.iterdir() if path.suffix == ".json" and path.stem != "config"])
        whole = (where / name).read_bytes()
        content = json.loads(whole)
        damage(content)
        (where / name).write_text(json.dumps(content))
        try:
            hf_tokenizer.imported_tokenizer(where, {"eos_token_id": 299})
        except SystemExit as end:
            assert re.fullmatch("error: .*", end.code), end.code
            refused += 1
        (where / name).write_bytes(whole)
    assert 100 < refused < 300, refused


# ---- what is refused


def refusals_of_config(folder):
    fixtures.make_model(*SHAPES["a"], seed=1).save_pretrained(folder / "good")
    good = json.loads((folder / "good/config.json").read_text())
    cases = [("activation_function", "gelu", "gelu_new"), ("layer_norm_epsilon", 1e-6, "1e-05"), ("n_inner", 96, "192"),
             ("scale_attn_by_inverse_layer_idx", True, "False"), ("scale_attn_weights", False, "True"),
             ("add_cross_attention", True, "False"), ("model_type", "opt", "gpt2"), ("n_head", 5, "multiple"),
             ("vocab_size", 70000, "65536"), ("n_layer", 3, "h.2.ln_1.weight"), ("n_layer", 1, "left over"),
             ("n_embd", 51, "shape"), ("n_positions", 34, "wpe.weight"), ("n_layer", "2", "positive"),
             ("vocab_size", None, "positive"), ("tie_word_embeddings", False, "one matrix")]
    for key, value, expected in cases:
        (folder / "good/config.json").write_text(json.dumps({**good, key: value}))
        output = import_hf(folder / "good", folder / "out.bin", status=1)
        assert expected in output and output.count("\n") == 1, (key, value, output)
    for text in "{", "[]", '{"n_layer": 1, "n_layer": 2}':
        (folder / "good/config.json").write_text(text)
        assert "JSON" in import_hf(folder / "good", folder / "out.bin", status=1)
    assert not list(folder.glob("out*"))


def refusals_of_tensors(folder):
    model = fixtures.make_model(*SHAPES["a"], seed=1)
    model.save_pretrained(folder / "good")
    tensors = safetensors.torch.load_file(folder / "good/model.safetensors")
    file, name = folder / "good/model.safetensors", "transformer.h.1.mlp.c_fc.weight"

    def refused(changed, *expected):
        if isinstance(changed, bytes):
            file.write_bytes(changed)
        else:
            safetensors.torch.save_file(changed, file)
        output = import_hf(folder / "good", folder / "out.bin", status=1)
        assert all(text in output for text in expected) and output.count("\n") == 1, (expected, output)

    def with_value(key, value, dtype=torch.float32):
        changed = tensors[key].clone().to(dtype)
        changed.view(-1)[-1] = value
        return {**tensors, key: changed}

    refused({key: t for key, t in tensors.items() if key != name}, "h.1.mlp.c_fc.weight is missing")
    refused({**tensors, "transformer.h.1.extra": tensors[name].clone()}, "transformer.h.1.extra is left over")
    refused({**tensors, "transformer.h.2.attn.bias": tensors[name].clone()}, "transformer.h.2.attn.bias is left over")
    refused({**tensors, name: tensors[name].T.contiguous()}, f"{name} has the shape [192, 48]; [48, 192] is expected")
    refused({**tensors, name: tensors[name].to(torch.int32)}, name, "I32")
    refused({**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1}, "lm_head.weight differs")
    refused({**tensors, "wte.weight": tensors["transformer.wte.weight"].clone()}, "wte.weight", "twice")
    for dtype in torch.float32, torch.float16, torch.bfloat16:
        refused(with_value(name, float("nan"), dtype), f"{name} has values that are not finite")
    refused(with_value("transformer.ln_f.bias", float("-inf")), "transformer.ln_f.bias has values that are not finite")

    safetensors.torch.save_file(tensors, file)
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:8 + length])

    def with_header(changes):
        text = json.dumps({**header, name: {**header[name], **changes}}).encode()
        return len(text).to_bytes(8, "little") + text + whole[8 + length:]

    begin, end = header[name]["data_offsets"]
    for cut in 0, 5, 8, 8 + length // 2, 8 + length, len(whole) - 1:
        refused(whole[:cut], str(file))
    refused(whole + b"x", "too long")
    refused(b"\xff" * 8 + whole[8:], "header")
    refused(whole[:8] + b"x" * length + whole[8 + length:], "header")
    refused(with_header({"data_offsets": [begin, end - 4]}), "damaged")
    refused(with_header({"data_offsets": [end, begin]}), "damaged")
    refused(with_header({"shape": [47, 192], "data_offsets": [begin + 4 * 192, end]}), "damaged")
    refused(with_header({"shape": [49, 192], "data_offsets": [begin - 4 * 192, end]}), "damaged")
    refused(with_header({"shape": [48, -192]}), "damaged")
    refused(with_header({"shape": None}), "header")
    refused(with_header({"data_offsets": ["0", "1"]}), "header")

    safetensors.torch.save_file(with_value(name, 3.4e38), file)
    assert "bf16 cannot hold" in import_hf(folder / "good", folder / "out.bin", "--dtype", "bf16", status=1)
    assert not list(folder.glob("out*"))


def refusals_of_folders(folder):
    assert "neither model.safetensors" in import_hf(folder, folder / "out.bin", status=1)
    (folder / "pytorch_model.bin").write_text("")
    assert "only PyTorch reads" in import_hf(folder, folder / "out.bin", status=1)
    for name in "../model.safetensors", "/etc/passwd":
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wte.weight": name}}))
        assert "no name of a file beside it" in import_hf(folder, folder / "out.bin", status=1)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "weight_map" in import_hf(folder, folder / "out.bin", status=1)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert "weight_map" in import_hf(folder, folder / "out.bin", status=1)
    (folder / "model.safetensors").write_text("")
    assert "config.json is not there" in import_hf(folder, folder / "out.bin", status=1)
    assert "is not there" in import_hf(folder / "nothing", folder / "out.bin", status=1)
    for file in "pytorch_model.bin", "model.bin":
        (folder / file).write_text("")
        assert "save_pretrained()" in import_hf(folder / file, folder / "out.bin", status=1)
    wrong_uses = [("out does not end in .bin", import_hf, folder, folder / "out"),
                  ("nowhere is not there", import_hf, folder, folder / "nowhere/out.bin"),
                  ("invalid choice", import_hf, folder, folder / "out.bin", "--dtype", "fp64"),
                  ("required: model, out", import_hf), ("required: out", export_hf, folder)]
    for expected, script_of, *arguments in wrong_uses:
        output = script_of(*arguments, status=2)
        assert expected in output and output.count("\n") == 1, output
    for module in import_hf_script, export_hf_script:  # -S: without the packages that pip installs
        output = run(sys.executable, "-S", module.__file__, folder, folder / "out.bin", status=1)
        assert output == "missing: numpy (pip install numpy)\n", output
    assert not list(folder.glob("out*"))


def refusals_of_export(folder):
    fixtures.write_model(folder / "good.bin", fixtures.make_model(*SHAPES["a"], seed=1))
    whole = (folder / "good.bin").read_bytes()
    export_hf(folder / "good.bin", folder / "out")
    first = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}

    def refused(expected, model, *flags, out="out"):
        output = export_hf(model, folder / out, *flags, status=1)
        assert expected in output and output.count("\n") == 1, output

    bad = folder / "bad.bin"
    for data, expected in [(whole[:-1], "cut short"), (b"x" * 2000, "no model file"), (whole[:100], "shorter"),
                           (whole[:-4] + np.float32("nan").tobytes(), "transformer.ln_f.bias has values that are not")]:
        bad.write_bytes(data)
        refused(expected, bad)
    refused("is not there", folder / "nothing.bin")
    (folder / "empty").mkdir()
    refused("no complete checkpoint", folder / "empty")
    refused("50257 tokens, the model 97", folder / "good.bin", "--tokenizer", GPT2_TOKENIZER)
    refused("no tokenizer file", folder / "good.bin", "--tokenizer", folder / "good.bin")
    refused("cannot read", folder / "good.bin", "--tokenizer", folder / "nothing")
    fixtures.write_model(folder / "large.bin", fixtures.make_model(1, 8, 1, 16, 300, seed=1))
    letters = gpt2_tokens(256) + [b"<|endoftext|>"]
    for tokens, end, expected in [(letters + [b"abc"], 256, "no merge"), (letters + [b"a"], 256, "same bytes"),
                                  (letters[1:] + [b"ab"], 255, "no token"), (letters, 300, "damaged")]:
        write_tokenizer(folder / "t.bin", tokens, end)
        refused(expected, folder / "large.bin", "--tokenizer", folder / "t.bin")
    (folder / "taken").mkdir()
    (folder / "taken/pytorch_model.bin").write_text("")
    refused("pytorch_model.bin", folder / "good.bin", out="taken")
    refused("cannot write", folder / "good.bin", out="good.bin/out")
    (folder / "stranger").mkdir()
    for name, text in ("config.json", '{"model_type": "gpt2"}'), ("vocab.json", "{}"):
        (folder / "stranger" / name).write_text(text)
        refused(f"{name} and is no export", folder / "good.bin", out="stranger")
        assert (folder / "stranger" / name).read_text() == text
        export_hf(folder / "good.bin", folder / "stranger", "--overwrite", 1)
        shutil.rmtree(folder / "stranger")
        (folder / "stranger").mkdir()
    os.mkfifo(folder / "fifo")
    for strange in "/dev/zero", folder / "fifo":  # endless, and blocking
        refused("is no file", folder / "good.bin", "--tokenizer", strange)
        (folder / "run.json").write_text(json.dumps({"flags": {"--tokenizer": str(strange)}}))
        refused("is no file", folder / "good.bin")
    assert {path.name: path.read_bytes() for path in (folder / "out").iterdir()} == first


def full_disk(folder):
    """A write that fails leaves the old files as they were, and no new ones."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    fixtures.make_model(*SHAPES["a"], seed=1).save_pretrained(folder / "model")
    import_hf(folder / "model", folder / "model.bin")
    export_hf(folder / "model.bin", folder / "out")
    files = {path: path.read_bytes() for path in [folder / "model.bin", *(folder / "out").iterdir()]}
    assert "cannot write" in import_hf(folder / "model", folder / "model.bin", status=1, preexec_fn=limit)
    assert "cannot write" in export_hf(folder / "model.bin", folder / "out", status=1, preexec_fn=limit)
    assert {path: path.read_bytes() for path in [folder / "model.bin", *(folder / "out").iterdir()]} == files
    assert not list(folder.rglob("*.tmp"))


def interrupted(folder):
    """Ctrl-C within a write: no traceback, the old file stays, the new one is gone."""
    program = ("import pathlib, sys, time, files\n"
               "def write(file): file.write(b'new'); print('writing', flush=True); time.sleep(60)\n"
               "files.write_whole({pathlib.Path(sys.argv[1]): write})")
    (folder / "out.bin").write_text("old")
    for number in signal.SIGINT, signal.SIGTERM:
        process = subprocess.Popen([sys.executable, "-c", program, str(folder / "out.bin")], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env={**os.environ, "PYTHONPATH": f"{ROOT}/dev:{ROOT}/dev/data"})
        assert process.stdout.readline() == "writing\n"
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == -number and "Traceback" not in output, output
        assert os.listdir(folder) == ["out.bin"] and (folder / "out.bin").read_text() == "old"


# ---- the hub


class Hub(file_server.Handler):
    """A stand-in for the hub: one model, in a folder. Like the hub it redirects, from old names and to where large
    files are."""
    folder, false_checksum = None, False

    def siblings(self):
        for path in sorted(self.folder.iterdir()):
            data = path.read_bytes()
            sha256 = "0" * 64 if self.false_checksum else hashlib.sha256(data).hexdigest()
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            large = {"lfs": {"sha256": sha256, "size": len(data), "pointerSize": 134}}
            yield {"rfilename": path.name, "size": len(data), "blobId": blob, **(large if len(data) > 10000 else {})}
        yield {"rfilename": "onnx/model.safetensors", "size": 1, "blobId": "0" * 40}

    def do_GET(self):
        Hub.asked.append((self.path, self.headers.get("Range")))
        if self.path == "/api/models/somebody/small?blobs=true":
            return self.answer_json({"sha": "abcdef0123456789", "siblings": list(self.siblings())})
        if self.path == "/api/models/small?blobs=true":
            return self.answer(307, b"", Location="/api/models/somebody/small?blobs=true")
        path = self.folder / self.path.rpartition("/")[2]
        places = tuple(f"/{owner}small/resolve/abcdef0123456789/" for owner in ("", "somebody/"))
        if not self.path.startswith((*places, "/large/")) or not path.is_file():
            return self.answer(404, b"")
        if self.path.startswith(places) and path.stat().st_size > 10000:
            return self.answer(302, b"", Location=f"/large/{path.name}")
        return self.answer_file(path.read_bytes())


def from_the_hub(folder):
    """A model by its name: downloaded once, resumed, checked, and refused if its checksum differs."""
    model = fixtures.make_model(*SHAPES["a"], seed=2)
    model.save_pretrained(folder / "single")
    model.save_pretrained(folder / "shards", max_shard_size="100KB")
    fixtures.write_model(folder / "expected.bin", model)
    server, address = file_server.serve(Hub)
    flags = ["--hub", address, "--download-dir", folder / "downloads"]
    parts = folder / "downloads/somebody--small"

    def fresh(**settings):
        shutil.rmtree(folder / "downloads", ignore_errors=True)
        for name, value in {"folder": folder / "single", "most_bytes": 1 << 30, "ranges": True, "false_checksum": False,
                            "stalls": False, **settings}.items():
            setattr(Hub, name, value)
        Hub.asked.clear()

    def imported(**keywords):
        (folder / "got.bin").unlink(missing_ok=True)
        return import_hf("somebody/small", folder / "got.bin", *flags, **keywords)

    for source in "single", "shards":
        fresh(folder=folder / source)
        output = imported()
        assert "from http://127.0.0.1" in output and "into" in output and "config.json, model" in output, output
        same_bytes(folder / "got.bin", folder / "expected.bin")
        Hub.asked.clear()
        imported()
        assert len(Hub.asked) == 1, "what is there was downloaded again"
    damaged = parts / "config.json"
    damaged.write_bytes(damaged.read_bytes().replace(b"2", b"3"))
    imported()
    same_bytes(folder / "got.bin", folder / "expected.bin")

    fresh(most_bytes=100_000)
    imported()
    ranges = [asked for path, asked in Hub.asked if path == "/large/model.safetensors"]
    assert ranges == [None, "bytes=100000-", "bytes=200000-"], ranges
    same_bytes(folder / "got.bin", folder / "expected.bin")
    fresh(false_checksum=True)
    assert "checksum of model.safetensors is wrong" in imported(status=1)
    assert not list(parts.glob("model*")) and not (folder / "got.bin").exists()

    fresh(most_bytes=100_000, stalls=True)
    command = [sys.executable, import_hf_script.__file__, "somebody/small", str(folder / "got.bin"), *map(str, flags)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    while not any(path.startswith("/large/") for path, _ in Hub.asked) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "Traceback" not in output, output
    server.stalled.set()
    for ranges in True, False:
        fresh(ranges=ranges)
        parts.mkdir(parents=True)
        whole = (folder / "single/model.safetensors").read_bytes()
        begun = parts / f"model.safetensors.{hashlib.sha256(whole).hexdigest()[:16]}.part"
        begun.write_bytes(whole[:70_000])
        assert "goes on from byte 70,000" in imported()
        same_bytes(folder / "got.bin", folder / "expected.bin")

    fresh()
    import_hf("small", folder / "got.bin", *flags)
    same_bytes(folder / "got.bin", folder / "expected.bin")
    fresh()
    (folder / "small").write_text("a program, perhaps: it does not hide the model of that name")
    os.chdir(folder)
    import_hf("small", folder / "got.bin", *flags)
    os.chdir(ROOT)
    same_bytes(folder / "got.bin", folder / "expected.bin")
    for name in "gpt2", "nobody/small":
        said = import_hf(name, folder / "got.bin", *flags, status=1)
        assert f"{name} is neither a file or folder here" in said, said
    server.shutdown()
    server.server_close()
    assert "cannot be read" in import_hf("gpt2", folder / "got.bin", *flags, status=1)


def main():
    torch.set_num_threads(1)
    tests = [imported_models, stored_otherwise, rounded_to_bf16, exported_runs, exported_best, one_step, masked_step,
             gpt2_tokenizer, other_tokenizers, imported_tokenizers, refusals_of_tokenizers, damaged_tokenizers,
             refusals_of_config, refusals_of_tensors, refusals_of_folders, refusals_of_export, full_disk, interrupted,
             from_the_hub]
    chosen = [test for test in tests if test.__name__ in sys.argv[1:]] or tests
    failed = 0
    for test in chosen:
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(pathlib.Path(folder))
            except AssertionError:
                failed += 1
                print(f"FAILED {test.__name__}: {traceback.format_exc()}")
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)


main()
