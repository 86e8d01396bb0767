#!/usr/bin/env python3
"""LoRA beside PEFT, on the same model and data: losses, gradients of A and B, five steps of AdamW, adapters from and to
PEFT's files, merged models, and what is refused. With --weights PEFT's base has the numbers that codes stand for, by
dev/data/weight_codes.py, which is compared with bitsandbytes where that is installed.

    pip install numpy peft safetensors torch transformers
    make train_gpt2_cpu && dev/test/lora.py
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data"), str(ROOT / "dev/test")]
import children  # noqa: E402

children.need("numpy", "peft", "safetensors", "torch", "transformers")
if sys.argv[1:] == ["--packages"]:  # only says which are missing
    sys.exit()
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
import numpy as np  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import adapter as adapter_script  # noqa: E402
import import_hf  # noqa: E402
import weight_codes  # noqa: E402
from run_script import script  # noqa: E402
from tiny_runs import write_tokens  # noqa: E402

B, T, STEPS, RATE, DECAY, RANK, ALPHA = 2, 16, 5, 1e-2, 0.1, 4, 6
SHAPE = dict(n_layer=2, n_embd=48, n_head=3, n_positions=32, vocab_size=97)
failures = []


def expect(good, what):
    print(f"{'ok  ' if good else 'FAIL'} {what}")
    if not good:
        failures.append(what)


def error_of(ours, theirs):
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def base_model(folder):
    torch.manual_seed(1)
    config = transformers.GPT2Config(**SHAPE, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


def with_adapter(folder, base, targets):
    """A PEFT model whose A and B are random, saved to a folder."""
    model = transformers.GPT2LMHeadModel.from_pretrained(base)
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, fan_in_fan_out=True,
                             task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return model


def tokens_of(path):
    tokens = np.random.default_rng(2).integers(0, SHAPE["vocab_size"], B * T * STEPS + 1)
    write_tokens(path, tokens)
    return torch.tensor(tokens)


def train_peft(model, tokens):
    """Losses of the steps, and the gradients of the first by name."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY)
    losses, gradients = [], {}
    for step in range(STEPS):
        x = tokens[step * B * T:(step + 1) * B * T].view(B, T)
        y = tokens[step * B * T + 1:(step + 1) * B * T + 1]
        loss = torch.nn.functional.cross_entropy(model(input_ids=x).logits.view(B * T, -1), y)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.requires_grad}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def train_here(folder, *flags):
    command = [ROOT / "train_gpt2_cpu", "-i", folder / "tokens.bin", "-e", folder / "base.bin", "-b", B, "-t", T, "-x",
               STEPS, "-l", RATE, "-k", "constant", "-c", DECAY, "--grad-clip", 0, "--shuffle", 0, "-v", 0, "-s", 0,
               "--threads", 2, *flags]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def first_gradients(path, adapter):
    """What the state file of step 1 has: m is a tenth of the gradients. {(matrix, layer): [A, B]}"""
    layer_elems = sum(RANK * (a + b) * SHAPE["n_embd"] for i, (_, _, a, b) in enumerate(adapter_script.MATRICES)
                      if adapter.on >> i & 1)
    L, values = SHAPE["n_layer"], path.stat().st_size - 8
    m = np.frombuffer(path.read_bytes()[values - 8 * layer_elems * L:values], "<f4").reshape(L, 2, layer_elems)[:, 0]
    gradients = {}
    for layer in range(L):
        at = 0
        for i in adapter.matrices():
            for channels in adapter_script.MATRICES[i][2:]:
                elems = RANK * channels * SHAPE["n_embd"]
                gradients.setdefault((i, layer), []).append(m[layer, at:at + elems].reshape(RANK, -1) * 10)
                at += elems
    return gradients


def coded_base(folder, name):
    """The base with the numbers that codes of its matrices stand for. wte has rows of zeros as its padding."""
    model = transformers.GPT2LMHeadModel.from_pretrained(folder / "base")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            values = parameter.detach().numpy()
            if key.endswith("wte.weight"):
                padded = np.pad(values, ((0, -SHAPE["vocab_size"] % 128), (0, 0)))
                parameter.copy_(torch.tensor(weight_codes.decoded(padded, name)[:SHAPE["vocab_size"]]))
            elif re.search(r"\.c_\w+\.weight$", key):
                parameter.copy_(torch.tensor(weight_codes.decoded(values.T.copy(), name).T))
    model.save_pretrained(folder / f"base_{name}")
    return folder / f"base_{name}"


def compare(folder, targets, flags=(), tolerance=2e-5, base=None):
    name = f"{','.join(targets)} {' '.join(map(str, flags))}"
    model = with_adapter(folder / "theirs", base or folder / "base", targets)
    script(adapter_script, "import", folder / "theirs", folder / "base.bin", folder / "a.bin")
    shutil.rmtree(folder / "out", ignore_errors=True)
    run = train_here(folder, "--adapter", folder / "a.bin", "-o", folder / "out", "-n", 1, *flags)
    expect(run.returncode == 0, f"{name}: trained {run.stderr}")
    losses, gradients = train_peft(model, tokens_of(folder / "tokens.bin"))
    ours = [float(loss) for loss in re.findall(r"loss ([\d.]+) \|", run.stdout)]
    expect(len(ours) == STEPS and np.allclose(ours, losses, rtol=1e-6, atol=2e-6), f"{name}: losses {ours} {losses}")
    after = adapter_script.read_adapter(folder / "out")
    begun = first_gradients(folder / "out/state_00000001_00000.bin", after)
    state = {name: p.detach().numpy() for name, p in model.named_parameters() if p.requires_grad}
    worst = {"gradients": 0, "adapters": 0}
    for (i, layer), pair in after.pairs.items():
        for kind, gradient, value in zip("AB", begun[i, layer], pair):
            full = f"{adapter_script.PREFIX}.{layer}.{adapter_script.MATRICES[i][0]}.lora_{kind}.default.weight"
            turn = (lambda values: values.T) if kind == "B" else (lambda values: values)
            worst["gradients"] = max(worst["gradients"], error_of(turn(gradient), gradients[full]))
            worst["adapters"] = max(worst["adapters"], error_of(turn(value), state[full]))
    expect(worst["gradients"] < tolerance, f"{name}: gradients of the first step, {worst['gradients']:.1e}")
    expect(worst["adapters"] < 10 * tolerance, f"{name}: adapters after {STEPS} steps, {worst['adapters']:.1e}")
    return model


def files(folder, model):
    """The adapter that a run has written loads in PEFT, and is its model's; merged it is PEFT's merged one."""
    script(adapter_script, "export", folder / "out", folder / "exported")
    loaded = peft.PeftModel.from_pretrained(transformers.GPT2LMHeadModel.from_pretrained(folder / "base"),
                                            folder / "exported")
    tokens = tokens_of(folder / "tokens.bin")[:B * T].view(B, T)
    with torch.no_grad():
        ours, theirs = (m(input_ids=tokens).logits.numpy() for m in (loaded, model))
    error = error_of(ours, theirs)
    expect(error < 1e-4, f"exported: PEFT's logits, {error:.1e}")
    script(adapter_script, "import", folder / "exported", folder / "base.bin", folder / "again.bin")
    before, after = (path.read_bytes() for path in (adapter_script.newest(folder / "out"), folder / "again.bin"))
    expect(before[1024:] == after[1024:], "exported and imported: the same bytes")
    script(adapter_script, "merge", folder / "base.bin", folder / "out", folder / "merged.bin")
    merged = {name: p.detach().numpy() for name, p in loaded.merge_and_unload().named_parameters()}
    fcproj = merged["transformer.h.1.mlp.c_proj.weight"].T.ravel()
    elems, C = fcproj.size, SHAPE["n_embd"]
    values = np.fromfile(folder / "merged.bin", "<f4", offset=1024)
    at = values.size - 2 * C - 2 * C - elems  # before the biases of fcproj and lnf
    expect(error_of(values[at:at + elems], fcproj) < 1e-6, "merged: PEFT's merged matrix")
    val = ["-x", 0, "-j", folder / "tokens.bin", "-v", 1, "-m", -1]
    for more in (["--adapter", folder / "out"], ["-e", folder / "merged.bin"]):
        run = train_here(folder, *val, *more)
        ours = re.search(r"val loss ([\d.]+)", run.stdout)
        x, y = (tokens_of(folder / "tokens.bin")[i:i + B * T * STEPS].view(-1, T) for i in (0, 1))
        with torch.no_grad():
            theirs = torch.nn.functional.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten()).item()
        good = ours and abs(float(ours[1]) - theirs) < 1e-5
        expect(good, f"validation of {more[0]}: {ours and ours[1]} {theirs:.6f}")


def beside_codes(folder):
    """Adapters beside a base in codes: what PEFT computes beside the numbers that they stand for."""
    for name, targets in (("int8", ["c_fc"]), ("int4", ["c_attn"]), ("nf4", ["c_attn", "c_proj", "c_fc"])):
        base = coded_base(folder, name)
        compare(folder, targets, ["--weights", name, "-r", 2], base=base)
    merged = script(adapter_script, "merge", folder / "base.bin", folder / "out", folder / "merged.bin")
    expect("what nf4 codes" in merged, f"merged: {merged.strip()}")
    val, losses = ["-x", 0, "-j", folder / "tokens.bin", "-v", 1, "-m", -1], []
    for more in (["--adapter", folder / "out"], ["-e", folder / "merged.bin"],
                 ["--adapter", folder / "out", "--weights", "none"]):
        run = train_here(folder, *val, *more)
        losses.append(float(re.search(r"val loss ([\d.]+)", run.stdout)[1]))
        expect(("warning" in run.stderr) == ("none" in more), f"{more[0]}: {run.stderr.strip()}")
    expect(abs(losses[0] - losses[1]) < 2e-6, f"merged: the loss beside codes {losses[:2]}")
    expect(abs(losses[0] - losses[2]) > 1e-5, f"beside numbers another: {losses[2]}")


def same_as_bitsandbytes():
    """Codes of nf4 with double quantisation in NumPy, and by bitsandbytes on a CPU."""
    try:
        import bitsandbytes.functional
    except ImportError:
        return print("skip bitsandbytes is not there; dev/test/fixtures/weight_codes.bin has some of its codes")
    weights = np.random.default_rng(7).standard_normal((96, 192)).astype("<f4") * np.float32(0.02)
    packed, state = bitsandbytes.functional.quantize_4bit(torch.tensor(weights), blocksize=64, quant_type="nf4",
                                                          compress_statistics=True)
    codes, scale_codes, mean, groups = weight_codes.nf4_codes(weights)
    theirs = np.stack([packed.numpy().ravel() >> 4, packed.numpy().ravel() & 15], 1).reshape(codes.shape)
    expect((codes == theirs).all() and (state.absmax.numpy() == scale_codes).all(), "nf4: the codes of bitsandbytes")
    good = np.allclose([mean, *groups], [state.offset.item(), *state.state2.absmax.numpy()], rtol=3e-7)
    expect(good, "nf4: its mean and scales")
    numbers = bitsandbytes.functional.dequantize_4bit(packed, state).numpy()
    expect(error_of(weight_codes.decoded(weights, "nf4"), numbers) < 3e-7, "nf4: its numbers")


def refusals(folder):
    """What PEFT can and the trainers cannot is named in one sentence, and nothing is written."""
    config = json.loads((folder / "theirs/adapter_config.json").read_text())
    for name, value in {"use_dora": True, "use_rslora": True, "bias": "all", "modules_to_save": ["wte"],
                        "rank_pattern": {"c_attn": 2}, "r": 5000, "lora_alpha": None, "peft_type": "IA3",
                        "fan_in_fan_out": False}.items():
        shutil.copytree(folder / "theirs", folder / "broken", dirs_exist_ok=True)
        (folder / "broken/adapter_config.json").write_text(json.dumps({**config, name: value}))
        said = script(adapter_script, "import", folder / "broken", folder / "base.bin", folder / "no.bin", status=1)
        expect(said.count("\n") == 1 and name in said and not (folder / "no.bin").exists(), f"refused: {said.strip()}")
    whole = (folder / "theirs/adapter_model.safetensors").read_bytes()
    for length in (0, 7, 100, len(whole) - 1):
        shutil.copytree(folder / "theirs", folder / "broken", dirs_exist_ok=True)
        (folder / "broken/adapter_model.safetensors").write_bytes(whole[:length])
        said = script(adapter_script, "import", folder / "broken", folder / "base.bin", folder / "no.bin", status=1)
        expect(said.count("\n") == 1 and not (folder / "no.bin").exists(), f"refused: {said.strip()}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base_model(folder / "base")
        tokens_of(folder / "tokens.bin")
        script(import_hf, folder / "base", folder / "base.bin")
        compare(folder, ["c_attn"])
        compare(folder, ["attn.c_proj", "c_fc"], ["-r", 3])
        model = compare(folder, ["c_attn", "c_proj", "c_fc"], ["-r", 0])
        files(folder, model)
        refusals(folder)
        beside_codes(folder)
        same_as_bitsandbytes()
        model = with_adapter(folder / "theirs", folder / "base", ["c_attn"])
        script(adapter_script, "import", folder / "theirs", folder / "base.bin", folder / "a.bin")
        run = train_here(folder, "--adapter", folder / "a.bin", "--lora-alpha", 3)
        expect(run.returncode == 2 and run.stderr.count("\n") == 1, "refused: another alpha than the file's")
        bytes_ = bytearray((folder / "a.bin").read_bytes())
        bytes_[40:44] = np.float32(ALPHA * 1.01).tobytes()  # a scale that is one percent too large is found
        (folder / "a.bin").write_bytes(bytes_)
        run = train_here(folder, "--adapter", folder / "a.bin")
        losses, _ = train_peft(model, tokens_of(folder / "tokens.bin"))
        ours = [float(loss) for loss in re.findall(r"loss ([\d.]+) \|", run.stdout)]
        expect(len(ours) == STEPS and not np.allclose(ours, losses, rtol=1e-6, atol=2e-6), "a planted error is found")
    print(f"{len(failures)} failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
