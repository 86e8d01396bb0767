#!/usr/bin/env python3
"""Tests dev/modern against transformers and PyTorch: models from and to Hugging Face, logits, losses, every gradient, a
step of AdamW; threads, resuming, the plan, and all that is refused.

    pip install numpy safetensors tiktoken torch transformers
    make build/modern build/modern_probe build/host/modern_table train_gpt2_cpu tokenize data
    dev/test/modern.py [TEST...]
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data"), str(ROOT / "dev/test"), str(ROOT / "dev/modern")]
import children  # noqa: E402

children.need("numpy", "safetensors", "tiktoken", "torch", "transformers")
if sys.argv[1:] == ["--packages"]:  # only says which are missing
    sys.exit()
import argparse  # noqa: E402
import functools  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
import traceback  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
import numpy as np  # noqa: E402
import safetensors.torch  # noqa: E402
import tiktoken  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import export_hf as export_hf_script  # noqa: E402
import hf  # noqa: E402
import hf_tokenizer  # noqa: E402
import import_hf as import_hf_script  # noqa: E402
import ladder  # noqa: E402
import tokenizer_file  # noqa: E402
from run_script import run, script  # noqa: E402

MODERN, PROBE, TOKENS = ROOT / "build/modern", ROOT / "build/modern_probe", ROOT / "dev/modern/tokens.py"
RATE, DECAY, WINDOW = 0.01, 0.1, 9
# family, L, C, heads, of keys, channels of a head, F, V, maxT, tied; B, T
SHAPES = {"llama": ("llama", 2, 48, 3, 1, 16, 80, 97, 64, True, 2, 33),
          "untied": ("llama", 1, 40, 10, 5, 4, 101, 130, 40, False, 3, 1),
          "long": ("llama", 2, 24, 2, 2, 12, 33, 300, 150, True, 1, 149),
          "qwen3": ("qwen3", 2, 36, 6, 2, 10, 71, 257, 80, True, 2, 70),
          "qwen3_untied": ("qwen3", 3, 50, 7, 1, 18, 64, 99, 90, False, 4, 13)}


def import_hf(*arguments, **keywords):
    return script(import_hf_script, *arguments, **keywords)


def export_hf(*arguments, **keywords):
    return script(export_hf_script, *arguments, **keywords)


def make_model(family, L, C, heads, kv_heads, head_dim, F, V, maxT, tied, seed=1, **more):
    classes = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
               "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM)}[family]
    config = classes[0](num_hidden_layers=L, hidden_size=C, num_attention_heads=heads, num_key_value_heads=kv_heads,
                        head_dim=head_dim, intermediate_size=F, vocab_size=V, max_position_embeddings=maxT,
                        tie_word_embeddings=tied, attn_implementation="eager", rms_norm_eps=2e-5, rope_theta=5000.0,
                        bos_token_id=None, eos_token_id=None, pad_token_id=None, **more)
    torch.manual_seed(seed)
    model = classes[1](config)
    with torch.no_grad():  # so that scores, gates and norms are not all alike
        for name, p in model.named_parameters():
            p.copy_(1 + 0.3 * torch.randn_like(p) if "norm" in name else p + torch.randn_like(p) * 0.15)
    return model


def windows(V, B, T, seed=3):
    draw = np.random.default_rng(seed)
    return draw.integers(0, V, (B, T)), draw.integers(0, V, (B, T))


def probe(folder, model, table, x, y, *flags):
    """What modern_probe computes: logits, losses, and {name: values} of gradients and of weights after an update."""
    (B, T), V = x.shape, table["V"]
    (folder / "input").write_bytes(np.array([B, T, *x.ravel(), *y.ravel()], "<i4").tobytes())
    run(PROBE, model, folder / "input", folder / "output", "-l", RATE, "-c", DECAY, *flags)
    values = np.fromfile(folder / "output", "<f4")
    logits, losses, rest = np.split(values, [B * T * V, B * T * (V + 1)])
    return logits.reshape(B, T, V), losses.reshape(B, T), *(by_name(table, part) for part in np.split(rest, 2))


def by_name(table, values):
    """{Hugging Face's name: values}, from all tensors in the order of a model file."""
    parts, at = {}, 0
    for row, named in hf.stored_tensors(table):
        own = at
        for name, shape in named:
            parts[name] = values[own:own + int(np.prod(shape))].reshape(shape)
            own += parts[name].size
        at += row["rows"] * row["cols"]
        assert not values[own:at].any(), f"{row['name']}: its padding is not 0"
    assert at == values.size
    return parts


def of_pytorch(model, x, y, cap=0):
    """Logits, losses and gradients."""
    model.zero_grad()
    logits = model(torch.tensor(x)).logits
    if cap:
        logits = cap * torch.tanh(logits / cap)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(y).flatten(), reduction="none")
    losses.mean().backward()
    return logits, losses, {name: p.grad for name, p in model.named_parameters()}


def error(ours, exact, least):
    """The largest difference, by the largest value, which counts as `least` where it is smaller."""
    exact = exact.detach().double().numpy()
    difference = np.abs(np.asarray(ours, np.float64).reshape(exact.shape) - exact).max()
    return difference / max(np.abs(exact).max(), least)


def same_numbers(ours, model, x, y, cap=0, factor=4, floor=2e-6, dtype=torch.float32):
    """No value of ours is further from those of PyTorch in fp64 than `factor` times what PyTorch in dtype is, by the
    largest value of the tensor."""
    exact = of_pytorch(model.double(), x, y, cap)
    theirs = of_pytorch(model.to(dtype), x, y, cap)
    model.float()
    pairs = [("logits", ours[0], theirs[0], exact[0]), ("losses", ours[1], theirs[1], exact[1])]
    assert ours[2].keys() == exact[2].keys(), ours[2].keys() ^ exact[2].keys()
    pairs += [(name, ours[2][name], theirs[2][name], exact[2][name]) for name in exact[2]]
    least = 0.03 * max(float(gradient.abs().max()) for gradient in exact[2].values())  # with T = 1 some are 0
    for name, own, other, want in pairs:
        limit = factor * error(other.detach().double().numpy(), want, least) + floor
        assert error(own, want, least) <= limit, (name, error(own, want, least), limit)  # NaN fails


def same_step(weights, gradients, model):
    """PyTorch's AdamW makes the same weights of these gradients."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                                  lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.grad = torch.tensor(gradients[name])
    optimizer.step()
    for name, p in model.named_parameters():
        moved = (p.detach() - before[name]).abs().max()
        assert np.abs(weights[name] - p.detach().numpy()).max() <= 1e-5 * moved + 2e-7, name
        with torch.no_grad():
            p.copy_(before[name])


# ---- the numbers


def imported(folder, name, model, *flags):
    model.save_pretrained(folder / name)
    import_hf(folder / name, folder / f"{name}.bin", *flags)
    return folder / f"{name}.bin", hf.table_of(folder / f"{name}.bin")


def numbers(folder):
    """Llama and Qwen3 at awkward shapes: logits, losses, every gradient, and the weights after a step of AdamW."""
    for name, (*shape, B, T) in SHAPES.items():
        model = make_model(*shape)
        path, table = imported(folder, name, model)
        x, y = windows(table["V"], B, T)
        ours = probe(folder, path, table, x, y)
        same_numbers(ours, model, x, y)
        same_step(ours[3], ours[2], model)


def planted_errors(folder):
    """The comparison fails for a wrong angle, a wrong eps, a gradient without its last head, and for NaN."""
    *shape, B, T = SHAPES["qwen3"]
    model = make_model(*shape)
    path, table = imported(folder, "model", model)
    x, y = windows(table["V"], B, T)
    good = probe(folder, path, table, x, y)
    same_numbers(good, model, x, y)
    text = path.read_bytes()
    fields = [name for name in table if name not in ("dtype", "header_fp32", "header_bf16", "tensors")]
    for field, factor in ("theta", 1.01), ("eps", 1.5):
        at = 4 * (2 + fields.index(field))
        value = np.frombuffer(text[at:at + 4], "<f4") * np.float32(factor)
        (folder / "wrong.bin").write_bytes(text[:at] + value.tobytes() + text[at + 4:])
        assert_differs(probe(folder, folder / "wrong.bin", table, x, y), model, x, y)
    for wrong in 0.0, np.nan:
        gradient = good[2]["model.layers.1.self_attn.k_proj.weight"]
        kept, gradient[-1, 0] = gradient[-1, 0], wrong
        assert_differs(good, model, x, y)
        gradient[-1, 0] = kept


def assert_differs(ours, model, x, y):
    try:
        same_numbers(ours, model, x, y)
    except AssertionError:
        return
    raise AssertionError("a planted error was not found")


def micro_steps_and_threads(folder):
    """The same bits on 1, 2 and 3 threads; two micro-steps add up to the gradients of one."""
    for name in "llama", "qwen3_untied":
        *shape, B, T = SHAPES[name]
        model = make_model(*shape)
        path, table = imported(folder, name, model)
        x, y = windows(table["V"], B, T)
        for flags in (), ("--precision", "bf16"):
            outputs = []
            for threads in 1, 2, 3:
                probe(folder, path, table, x, y, "--threads", threads, *flags)
                outputs.append((folder / "output").read_bytes())
            assert outputs[0] == outputs[1] == outputs[2]
        same_numbers(probe(folder, path, table, x, y, "--micro", 2), model, x, y)


def in_bf16(folder):
    """In bf16 no number is much further from PyTorch's in fp64 than PyTorch's own in bf16."""
    for name, (*shape, B, T) in SHAPES.items():
        model = make_model(*shape)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.to(torch.bfloat16).float())
        path, table = imported(folder, name, model, "--dtype", "bf16")
        x, y = windows(table["V"], B, T)
        ours = probe(folder, path, table, x, y, "--precision", "bf16")
        same_numbers(ours, model, x, y, factor=2, floor=5e-3, dtype=torch.bfloat16)


class Relu2(torch.nn.Module):
    def __init__(self, mlp):
        super().__init__()
        self.up_proj, self.down_proj = mlp.up_proj, mlp.down_proj

    def forward(self, x):
        return self.down_proj(torch.relu(self.up_proj(x)) ** 2)


class Gelu(Relu2):
    def forward(self, x):
        return self.down_proj(torch.nn.functional.gelu(self.up_proj(x), approximate="tanh"))


class NoBias(torch.nn.LayerNorm):
    def __init__(self, norm):
        super().__init__(norm.weight.shape, eps=1e-5, bias=False)
        self.weight = norm.weight


class Learned(torch.nn.Module):
    """The sum of the embeddings of tokens and of positions."""

    def __init__(self, tokens, positions):
        super().__init__()
        self.tokens, self.positions = tokens, torch.nn.Parameter(positions)
        self.weight = tokens.weight

    def forward(self, x):
        return self.tokens(x) + self.positions[:x.shape[1]]


class MixedValues(torch.nn.Module):
    """v_proj, whose output is mixed with that of the first layer by a learned share."""

    def __init__(self, v_proj, first, share):
        super().__init__()
        self.weight, self.first = v_proj.weight, [first]  # in a list, so that it is no part of this one
        self.share = torch.nn.Parameter(torch.tensor(share))

    def forward(self, x):
        self.own = torch.nn.functional.linear(x, self.weight)
        first = self.first[0].own if self.first[0] else self.own  # the share of the first layer has no effect
        return self.own + self.share * (first - self.own)


def named(name, layer):
    """The name in PyTorch of a tensor of a layer; most end in .weight."""
    return name.replace("%d", str(layer)) + ".weight" * (not name.endswith(("positions", "share")))


def write_ours(path, table, model, names):
    """A model file from a PyTorch model whose parts are ours: {name in the table: names in it}."""
    with open(path, "wb") as file:
        file.write(np.array(table["header_fp32"], "<i4").tobytes())
        parameters = dict(model.named_parameters())
        for row in table["tensors"]:
            for layer in range(row["layers"] if row["rows"] else 0):
                parts = [parameters[named(name, layer)].detach().numpy().ravel() for name in names[row["name"]]]
                values = np.concatenate(parts)
                file.write(values.tobytes() + bytes(4 * (row["rows"] * row["cols"] - values.size)))


def switches(folder):
    """ReLU squared, GELU, layer norm, learned positions, a soft cap, value residuals and a window, which no Llama has,
    on Llamas so changed."""
    *shape, B, T = SHAPES["llama"]
    sizes = "V=97 maxT=64 L=2 C=48 NH=3 NKV=1 HS=16 F=80 theta=5000 eps=2e-5".split()
    names = {name: list(parts) for name, parts in hf.NAMES.items()}
    for cap, fields, changed in (
            (0, ("mlp=1",), "relu2"), (0, ("mlp=2",), "gelu"), (0, ("norm=1", "eps=1e-5"), "layer"),
            (0, ("positions=1",), "learned"), (3, ("softcap=3",), "softcap"), (0, ("value_residual=1",), "values"),
            (0, (), "window")):
        model, of = make_model(*shape), dict(names)
        for layer in model.model.layers:
            if changed in ("relu2", "gelu"):
                layer.mlp = (Relu2 if changed == "relu2" else Gelu)(layer.mlp)
            if changed == "layer":
                layer.input_layernorm, layer.post_attention_layernorm = (
                    NoBias(layer.input_layernorm), NoBias(layer.post_attention_layernorm))
        if changed in ("relu2", "gelu"):
            of["fcw"] = names["fcw"][1:]
        if changed == "layer":
            model.model.norm = NoBias(model.model.norm)
        if changed == "learned":
            model.model.embed_tokens = Learned(model.model.embed_tokens, torch.randn(64, 48) * 0.2)
            rotary = model.model.rotary_emb
            ones, zeros = torch.ones(1, T, 16), torch.zeros(1, T, 16)
            rotary.forward = lambda h, position_ids, ones=ones, zeros=zeros: (ones.to(h.dtype), zeros.to(h.dtype))
            of["wpe"] = ["model.embed_tokens.positions"]
        if changed == "values":
            first = None
            for share, layer in zip((0.3, 0.7), model.model.layers):
                layer.self_attn.v_proj = MixedValues(layer.self_attn.v_proj, first, share)
                first = first or layer.self_attn.v_proj
            of["sharew"] = ["model.layers.%d.self_attn.v_proj.share"]
        if changed == "window":
            apart = torch.arange(T)[:, None] - torch.arange(T)
            hidden = (apart < 0) | (apart >= WINDOW)
            mask = (hidden * torch.finfo(torch.float32).min)[None, None].expand(B, 1, T, T)
            model.forward = functools.partial(model.forward, attention_mask=mask)
        table = hf.table_of(*sizes, *fields, "tied=1")
        write_ours(folder / "ours.bin", table, model, of)
        x, y = windows(97, B, T)
        (folder / "input").write_bytes(np.array([B, T, *x.ravel(), *y.ravel()], "<i4").tobytes())
        run(PROBE, folder / "ours.bin", folder / "input", folder / "output", "-l", RATE, "-c", DECAY,
            *(["--window", WINDOW] if changed == "window" else []))
        values = np.fromfile(folder / "output", "<f4")
        logits, losses, rest = np.split(values, [B * T * 97, B * T * 98])
        gradients, at = {}, 0
        for row in table["tensors"]:
            for layer in range(row["layers"] if row["rows"] else 0):
                own, at = at, at + row["rows"] * row["cols"]
                for name in of[row["name"]]:
                    name = named(name, layer)
                    like = dict(model.named_parameters())[name]
                    gradients[name] = rest[own:own + like.numel()].reshape(like.shape)
                    own += like.numel()
        same_numbers((logits, losses, gradients), model, x, y, cap)


def muon(folder):
    """A step of Muon: matrices of layers along their orthogonalised momentum, all else as AdamW has it."""
    *shape, B, T = SHAPES["llama"]
    model = make_model(*shape)
    path, table = imported(folder, "model", model)
    x, y = windows(table["V"], B, T)
    *_, gradients, weights = probe(folder, path, table, x, y, "--optimizer", "muon")
    before = {name: p.detach().numpy() for name, p in model.named_parameters()}
    for row, parts in hf.stored_tensors(table):
        p, g, got = (np.concatenate([of[name] for name, _ in parts]).astype(np.float64)
                     for of in (before, gradients, weights))
        is_matrix = row["name"] in ("qkvw", "attprojw", "fcw", "fcprojw")
        direction, tolerance = g / (np.abs(g) + 1e-8), 1e-4  # AdamW's first
        if is_matrix:
            direction, tolerance = 0.2 * max(g.shape) ** 0.5 * orthogonal(g), 2e-3
        keep = 1 - RATE * DECAY * row["decayed"]
        difference = np.abs(got - (keep * p - RATE * direction)).max() / np.abs(got - p).max()
        assert difference <= tolerance, (row["name"], difference)
        wrong = keep * p - RATE * 0.2 * max(g.shape) ** 0.5 * g / np.linalg.norm(g)  # momentum as it is
        assert np.abs(got - wrong).max() / np.abs(got - p).max() > tolerance, row["name"]


def orthogonal(g):
    """Muon's Newton-Schulz iteration, in fp64."""
    x = g / np.linalg.norm(g)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def generated(folder):
    """The tokens that follow a prompt are those that transformers finds likeliest."""
    for name in "llama", "qwen3":
        *shape, _, _ = SHAPES[name]
        model = make_model(*shape)
        path, _ = imported(folder, name, model)
        want = model.generate(torch.tensor([[3, 17, 5]]), max_new_tokens=30, do_sample=False)[0].tolist()
        output = modern("-e", path, "-x", 0, "-v", 0, "-b", 2, "-g", 30, "--prompt", "3 17 5", "--temperature", 0)
        assert " ".join(map(str, want)) in output.splitlines() and len(set(want)) > 5, (want, output)
    # With the cache each token is the likeliest after those before it, as one forward pass of the whole text has it;
    # once the cache is full, after the second half of what it held.
    length, T = 40, 26
    for switch in (("--positions", "learned"), ("--value-residual", 1, "--softcap", 3), ("--qk-norm", 1),
                   ("--norm", "layer", "--mlp", "relu2")):
        modern("-e", "L2C48H6K2T64", "--tied", 0, *switch, "-b", 2, "-t", 32, "-v", 0, "-x", 0, "-o", folder / "run")
        model = folder / "run/model_00000000.bin"
        header, weights = np.split(np.fromfile(model, "<f4"), [256])
        weights[np.abs(weights) < 0.2] *= 6  # so that scores are not all alike
        model.write_bytes(header.tobytes() + weights.tobytes())
        shown = modern("-e", model, "-x", 0, "-v", 0, "-b", 2, "-t", T, "-g", length, "--prompt", "11 7 300",
                       "--temperature", 0).splitlines()[-1]
        tokens = [int(token) for token in shown.split()]
        assert len(tokens) == 3 + length and len(set(tokens)) > 3, tokens
        begin, first = 0, 3
        while begin + first < len(tokens):
            assert_likeliest(folder, model, tokens[begin:begin + T + 1], first)
            begin, first = begin + T + 1 - T // 2, T // 2
        shutil.rmtree(folder / "run")


def assert_likeliest(folder, model, tokens, first):
    """Tokens from number `first` on have the largest logit, but for roundings."""
    (folder / "input").write_bytes(np.array([1, len(tokens), *tokens, *tokens], "<i4").tobytes())
    run(PROBE, model, folder / "input", folder / "output")
    V = hf.table_of(model)["V"]
    logits = np.fromfile(folder / "output", "<f4", count=len(tokens) * V).reshape(len(tokens), V)
    for row, token in zip(logits[first - 1:], tokens[first:]):
        assert row[token] > row.max() - 1e-4, (token, row.argmax(), tokens)


# ---- tokens of 32 bits


def wide_tokens(folder):
    """With a vocabulary above 65,536 tokenize writes what tiktoken says, in 32 bits; a run learns from it."""
    text = (ROOT / "dev/data/shakespeare/hamlet.txt").read_text()
    tokens, end_of_text = hf_tokenizer.read_tokenizer(ROOT / "dev/data/gpt2_tokenizer.bin")
    known, random = set(tokens), np.random.default_rng(1)
    gpt2 = tokenizer_file.gpt2_encoder()
    made_up = ("".join(random.choice(list("bcdfgjkqvwxz"), 7)).encode() for _ in iter(int, 1))
    while len(tokens) < 66000:
        token = next(made_up)
        if token not in known:
            known.add(token)
            tokens.append(token)
    for word in re.findall(r" [A-Za-z]{4,}", text):
        parts = gpt2.encode(word)
        if len(parts) == 2 and word.encode() not in known:
            known.add(word.encode())
            tokens.append(word.encode())
    (folder / "wide_tokenizer.bin").write_bytes(hf_tokenizer.tokenizer_text(tokens, end_of_text))
    ranks = {token: id for id, token in enumerate(tokens) if id != end_of_text}
    wide = tiktoken.Encoding("wide", pat_str=gpt2._pat_str, mergeable_ranks=ranks, special_tokens={})
    expected = np.array([end_of_text, *wide.encode(text)], "<u4")
    assert (expected >= 66000).sum() > 100, "words of the text have ids of more than 16 bits"
    run(ROOT / "tokenize", "--tokenizer", folder / "wide_tokenizer.bin", "--val-split", "tail", "--val-fraction", 0.2,
        ROOT / "dev/data/shakespeare/hamlet.txt", "-o", folder / "wide")
    parts = []
    for split in "train", "val":
        written = np.fromfile(folder / f"wide_{split}.bin", "<u4")
        assert written[:3].tolist() == [20240801, 7, len(written) - 256] and not written[3:256].any()
        parts.append(written[256:])
    assert np.array_equal(np.concatenate(parts), expected) and len(parts[1]) == round(0.2 * len(expected))
    flags = ("-e", f"L1C32H2K1T32V{len(tokens)}", "-b", 4, "-x", 30, "-l", 0.01, "-i", folder / "wide_train.bin", "-j",
             folder / "wide_val.bin", "-v", 30, "-g", 5, "--prompt", "The play", "--tokenizer",
             folder / "wide_tokenizer.bin", "--temperature", 0)
    output = modern(*flags)
    first, *_, last = (float(loss) for _, loss, _ in lines_of_steps(output))
    assert last < first - 2 and "\nThe play" in output, output
    refused(1, "is not in the model's vocabulary", *flags[:1], "L1C32H2K1T32V65000", *flags[2:12], "-v", 0)


def foreign_tokens(folder):
    """dev/modern/tokens.py writes what Hugging Face's tokenizers say, in 16 or 32 bits, and refuses what it cannot."""
    text = ROOT / "dev/data/shakespeare/hamlet.txt"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["</s>"], show_progress=False)
    tokenizer.train([str(text)], trainer)
    for kind, more in ("<u2", 0), ("<u4", 65200):
        tokenizer.add_tokens([f"token {i}" for i in range(more)] + ["Guildenstern"] * (more > 0))
        tokenizer.save(str(folder / "tokenizer.json"))
        run(TOKENS, folder / "tokenizer.json", text, text, "-o", folder / "out/text", "--val-fraction", 0.25)
        parts = [np.fromfile(folder / f"out/text_{split}.bin", kind, offset=1024) for split in ("train", "val")]
        once = [tokenizer.token_to_id("</s>"), *tokenizer.encode(text.read_text(), add_special_tokens=False).ids]
        assert np.array_equal(np.concatenate(parts), once * 2) and len(parts[1]) == round(len(once) / 2), kind
        assert (max(once) > 65535) == (kind == "<u4")
        vocabulary = tokenizer.get_vocab_size()
        modern("-e", f"L1C16H2T32V{vocabulary}", "-b", 2, "-x", 2, "-i", folder / "out/text_train.bin", "-j",
               folder / "out/text_val.bin", "-v", 2)
    numbers = run(TOKENS, folder / "tokenizer.json", "--numbers", "Enter Hamlet, reading").split()
    assert run(TOKENS, folder / "tokenizer.json", "--text", *numbers) == "Enter Hamlet, reading\n"
    (folder / "latin").write_bytes(b"caf\xe9")
    for status, sentence, *arguments in (
            (1, "no UTF-8 text: byte 3", folder / "tokenizer.json", folder / "latin", "-o", folder / "x"),
            (1, "is no tokenizer.json", text, text, "-o", folder / "x"),
            (1, "is not there", folder / "tokenizer.json", folder / "nothing", "-o", folder / "x"),
            (1, "999999 is no token", folder / "tokenizer.json", "--text", 999999),
            (2, "has no such token", folder / "tokenizer.json", text, "-o", folder / "x", "--end-of-text", "<end>"),
            (2, "one of them", folder / "tokenizer.json", text), (2, "0 to 1", folder / "tokenizer.json", text, "-o",
                                                                 folder / "x", "--val-fraction", 2)):
        assert sentence in run(TOKENS, *arguments, status=status), sentence
    assert not list(folder.glob("x*"))


# ---- files


def there_and_back(folder):
    """Export gives transformers the same model, to the bit; of a run's folder too. A head that is stored though tied,
    bf16 and shards are read."""
    for name, (*shape, _, _) in SHAPES.items():
        model = make_model(*shape)
        path, _ = imported(folder, name, model)
        export_hf(path, folder / f"{name}_out")
        again = transformers.AutoModelForCausalLM.from_pretrained(folder / f"{name}_out")
        assert type(again) is type(model)
        for (key, a), (other, b) in zip(model.named_parameters(), again.named_parameters(), strict=True):
            assert key == other and torch.equal(a, b), key
        for key in "rms_norm_eps", "head_dim", "tie_word_embeddings", "rope_parameters":
            assert getattr(again.config, key) == getattr(model.config, key), key
        import_hf(folder / f"{name}_out", folder / "again.bin")
        assert (folder / "again.bin").read_bytes() == path.read_bytes()
    model.save_pretrained(folder / "shards", max_shard_size="60KB")
    assert len(list((folder / "shards").glob("*.safetensors"))) > 1
    import_hf(folder / "shards", folder / "got.bin")
    assert (folder / "got.bin").read_bytes() == path.read_bytes()
    tied = make_model(*SHAPES["llama"][:-2])
    path, _ = imported(folder, "tied", tied)
    weights = safetensors.torch.load_file(folder / "tied/model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    safetensors.torch.save_file(weights, folder / "tied/model.safetensors")
    import_hf(folder / "tied", folder / "got.bin")
    assert (folder / "got.bin").read_bytes() == path.read_bytes()
    weights["lm_head.weight"][0, 0] += 1
    safetensors.torch.save_file(weights, folder / "tied/model.safetensors")
    assert "differs from the embedding" in import_hf(folder / "tied", folder / "got.bin", status=1)


SMALL = "-e", "L2C32H4K2T64", "-b", 2, "-t", 33, "-v", 0, "-l", 0.003


def modern(*arguments, status=0, **keywords):
    return run(MODERN, *arguments, status=status, **keywords)


def lines_of_steps(output):
    """(step, loss, norm)."""
    return re.findall(r"^step +(\d+)/.*?loss (\S+) \| norm (\S+)", output, re.M)


def resumed(folder):
    """A run that stops and goes on has the bits of one that did not, in fp32 and bf16, on any number of threads; of a
    checkpoint that is not complete nothing is read."""
    for precision in "fp32", "bf16":
        whole, parts = folder / f"whole_{precision}", folder / f"parts_{precision}"
        flags = *SMALL, "--precision", precision, "-n", 2, "-x", 5, "--qk-norm", 1, "-d", 132, "-k", "constant"
        flags += "--optimizer", "muon", "--window-warmup", 4, "--value-residual", int(precision == "fp32")
        all_steps = lines_of_steps(modern(*flags, "-o", whole, "--threads", 1))
        first = lines_of_steps(modern(*flags, "-o", parts, "-x", 2, "--threads", 2))
        (parts / "model_00000004.bin").write_bytes(b"broken")
        pairs = zip(flags[::2], flags[1::2])
        flags = [each for pair in pairs if pair[0] not in ("-e", "--qk-norm", "--value-residual") for each in pair]
        rest = lines_of_steps(modern(*flags, "-o", parts, "-y", 1, "--threads", 3))
        assert first + rest == all_steps and len(first) == 2, (first, rest, all_steps)
        for name in "model_00000005.bin", "state_00000005.bin":
            assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    export_hf(whole, folder / "exported")
    refused(2, "the run had --optimizer muon", "-o", parts, "-y", 1, "-t", 33, "-b", 2, "-d", 132, "-v", 0, "-x", 9,
            "--precision", "bf16")
    refused(2, "the run had -b 2, and now it is 1", "-o", parts, "-y", 1, "-t", 33, "-b", 1, "-d", 132, "-v", 0,
            "-x", 9, "--precision", "bf16", "--optimizer", "muon")
    refused(2, "has checkpoints of another run", *SMALL, "-o", parts)
    state = parts / "state_00000005.bin"
    damaged = bytearray(state.read_bytes())
    damaged[2000] ^= 1
    state.write_bytes(damaged)
    refused(1, "its checksum is not", "-o", parts, "-y", 1, "-t", 33, "-b", 2, "-d", 132, "-v", 0, "-x", 9,
            "--precision", "bf16", "--optimizer", "muon")


def planned(folder):
    """--plan is what is then allocated, to the byte; the shapes of SmolLM2-135M and TinyLlama have their size."""
    for flags in ((), ("--precision", "bf16"), ("--mlp", "relu2", "--norm", "layer", "--positions", "learned"),
                  ("--qk-norm", 1, "--tied", 0, "--softcap", 20), ("-b", 3, "-d", 198, "--threads", 3),
                  ("--optimizer", "muon", "--value-residual", 1, "--precision", "bf16")):
        plan = modern(*SMALL, *flags, "--plan", 1)
        parts = [int(n) for n in re.findall(r"^plan: .*?(\d+) bytes", plan, re.M)]
        allocated = int(re.search(r"(\d+) bytes allocated", modern(*SMALL, *flags, "-x", 0))[1])
        assert sum(parts[:-1]) == parts[-1] == allocated, plan
    for name, parameters in ("smollm2-135m", "134,515,008"), ("tinyllama-1.1b", "1,100,048,384"):
        assert f"{parameters} parameters" in modern("-e", name, "-b", 1, "-t", 64, "--plan", 1)


# ---- the ladder


def climbed(folder):
    """A ladder of made-up runs: steps at equal time, what is kept, what is remembered, and what it writes."""
    args = argparse.Namespace(seconds=8, seeds=2, b=4, windows=320, jobs=2, folder=folder)
    for part in "tokenizer", "val":
        shutil.copy(ROOT / f"dev/data/{'gpt2' if part == 'tokenizer' else 'shakespeare'}_{part}.bin",
                    folder / f"shakespeare4096_{part}.bin")
    asked = []

    def seconds(self, flags, steps):
        asked.append(flags)
        return 1 + steps * (0.16 if flags.get("--optimizer") == "muon" else 0.08)

    def loss(self, flags, steps, seed):
        asked.append(flags)
        worse = 0.2 * (flags.get("--norm") == "rms") - 0.1 * (flags.get("--tied") == 0)
        return 4 + worse - 0.9 * (flags["--optimizer"] == "muon") - steps / 1000 + seed / 100

    ladder.Ladder.seconds, ladder.Ladder.loss = seconds, loss
    figures = ladder.Ladder(args).climb()
    rungs = {rung["name"]: rung for rung in figures["rungs"]}
    assert figures["steps"] == 100 and rungs["Muon for AdamW"]["steps"] == 50
    assert [name for name, rung in rungs.items() if rung["kept"]] == ["GPT-2", "no biases", "Muon for AdamW",
                                                                       "an untied head"], figures
    assert figures["best"]["--tied"] == 0 and figures["best"]["--norm"] == "layer"
    assert rungs["window warmup"]["flags"]["--window-warmup"] == ladder.STEPS
    text = ladder.text_of(figures)
    assert "| RMSNorm for layer norm | 1.00 | 100 |" in text and text.count("not kept") == len(rungs) - 4, text
    assert "| Muon for AdamW | 2.00 | 50 |" in text and "nan" not in ladder.picture(figures)
    count = len(asked)
    assert ladder.Ladder(args).climb() == figures and len(asked) == count  # all was remembered


# ---- what is refused


def refused(status, sentence, *arguments):
    output = modern(*arguments, status=status)
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and sentence in errors[0], output


def bad_inputs(folder):
    """One sentence, status 2 for a flag and 1 for a file; nothing is written."""
    refused(2, "is no model", "-e", "L2")
    refused(2, "is no model", "-e", "L2C32H4X3")
    refused(2, "do not divide among", "-e", "L2C32H4K3")
    refused(2, "no two halves", "-e", "L2C12H4")
    refused(2, "swiglu, relu2, gelu are accepted", "-e", "L2C32H4", "--mlp", "silu")
    refused(2, "has an eps of 1e-5", "-e", "qwen3-0.6b", "--norm", "layer")
    refused(2, "fp32 and bf16 are accepted", "--precision", "fp16")
    refused(2, "adamw and muon are accepted", *SMALL, "--optimizer", "sgd")
    refused(2, "numbers from 0 to 50256", *SMALL, "-g", 3, "--prompt", "3 x")
    refused(2, "the model's context is 64", "-e", "L2C32H4T64", "-t", 65)
    refused(2, "is no multiple", *SMALL, "-d", 65)
    refused(2, "cosine", *SMALL, "-k", "never")
    refused(2, "-o names", *SMALL, "-n", 2)
    refused(2, "no complete checkpoint", "-o", folder / "nothing", "-y", 1)
    refused(1, "cannot open", "-e", folder / "nothing.bin")
    refused(1, "matches no file", *SMALL, "-i", folder / "nothing.bin")
    refused(1, "not in the model's vocabulary", "-e", "L1C16H2T64V1000", "-t", 33, "-v", 0)
    *shape, _, _ = SHAPES["llama"]
    path, _ = imported(folder, "model", make_model(*shape))
    refused(2, "are for new models", "-e", path, "--mlp", "gelu")
    text = path.read_bytes()
    for name, bytes_, sentence in (("short", text[:-4], "is cut short"), ("long", text + b"\0", "is too long"),
                                   ("version", text[:4] + b"\x07" + text[5:], "version 7"),
                                   ("nan", text[:-4] + b"\0\0\xc0\x7f", "not finite"),
                                   ("sizes", text[:8] + b"\0\0\0\0" + text[12:], "by its header")):
        (folder / f"{name}.bin").write_bytes(bytes_)
        refused(1, sentence, "-e", folder / f"{name}.bin", "-v", 0, "-i", "dev/data/shakespeare_val.bin")
    # Each family refuses the other's file.
    run(ROOT / "train_gpt2_cpu", "-e", "L1C16H2T64V50257", "-t", 33, "-x", 1, "-v", 0, "-s", 0, "-o", folder / "gpt2",
        "-n", 1)
    refused(1, "is no modern model file", "-e", folder / "gpt2/model_00000001.bin")
    output = run(ROOT / "train_gpt2_cpu", "-e", path, status=1)
    assert "is no model file: it begins with" in output and output.count("error: ") == 1, output


def refused_imports(folder):
    """What config.json asks for and is not built is named."""
    *shape, _, _ = SHAPES["llama"]
    make_model(*shape).save_pretrained(folder / "model")
    good = json.loads((folder / "model/config.json").read_text())
    for change, sentence in (
            ({"model_type": "mistral", "sliding_window": 4096}, "sliding windows, which is not built"),
            ({"model_type": "mixtral"}, "a mixture of experts, which is not built"),
            ({"model_type": "qwen2"}, "biases of attention"), ({"attention_bias": True}, "attention_bias is True"),
            ({"mlp_bias": True}, "mlp_bias is True"), ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
            ({"sliding_window": 128}, "sliding_window is 128"),
            ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has 'sliding_attention'"),
            ({"rope_parameters": None, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "scaled ('llama3')"),
            ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "are scaled ('yarn')"),
            ({"hidden_size": "48"}, "hidden_size is '48'"), ({"num_key_value_heads": 2}, "do not divide among"),
            ({"num_hidden_layers": 1}, "is left over"), ({"num_hidden_layers": 3}, "is missing"),
            ({"intermediate_size": 81}, "has the shape [48, 80]; [48, 81] is expected"),
            ({"model_type": "falcon"}, "model_type is 'falcon'")):
        (folder / "model/config.json").write_text(json.dumps({**good, **change}))
        output = import_hf(folder / "model", folder / "out.bin", status=1)
        assert sentence in output and output.count("error: ") == 1, (change, output)
    assert not (folder / "out.bin").exists()
    modern(*SMALL, "-x", 1, "-n", 1, "--softcap", 10, "-o", folder / "capped")
    assert "its softcap is one that" in export_hf(folder / "capped", folder / "no", status=1)


TESTS = [numbers, planted_errors, micro_steps_and_threads, muon, generated, in_bf16, switches, wide_tokens,
         foreign_tokens, there_and_back, resumed, planned, climbed, bad_inputs, refused_imports]


def main():
    torch.set_num_threads(1)
    failed, chosen = 0, [test for test in TESTS if not sys.argv[1:] or test.__name__ in sys.argv[1:]]
    for test in chosen:
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(pathlib.Path(folder))
            except Exception:
                failed += 1
                print(f"FAILED {test.__name__}")
                traceback.print_exc(file=sys.stdout)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    sys.exit(failed > 0 or not chosen)


if __name__ == "__main__":
    main()
