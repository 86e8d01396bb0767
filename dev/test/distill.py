#!/usr/bin/env python3
"""Distillation beside PyTorch, on the same models and data: losses of five steps of AdamW, the gradients of the first,
and the weights after them.

    pip install numpy safetensors torch transformers
    make train_gpt2_cpu && dev/test/distill.py
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data"), str(ROOT / "dev/test")]
import children  # noqa: E402

children.need("numpy", "safetensors", "torch", "transformers")
if sys.argv[1:] == ["--packages"]:  # only says which are missing
    sys.exit()
import os  # noqa: E402
import re  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from torch.nn.functional import cross_entropy, kl_div, log_softmax  # noqa: E402

import import_hf  # noqa: E402
from run_script import script  # noqa: E402
from tiny_runs import write_tokens  # noqa: E402

B, T, STEPS, RATE, VOCABULARY = 3, 16, 5, 1e-3, 97
STUDENT = dict(n_layer=1, n_embd=32, n_head=2, n_positions=32)
TEACHER = dict(n_layer=3, n_embd=48, n_head=3, n_positions=20)


def made(folder, name, seed, shape):
    """A model with random weights, large enough that its predictions differ; saved and imported."""
    torch.manual_seed(seed)
    config = transformers.GPT2Config(**shape, vocab_size=VOCABULARY, initializer_range=0.3, resid_pdrop=0, embd_pdrop=0,
                                     attn_pdrop=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / name)
    script(import_hf, folder / name, folder / f"{name}.bin")


def tokens_of(path):
    tokens = np.random.default_rng(2).integers(0, VOCABULARY, B * T * STEPS + 1)
    write_tokens(path, tokens)
    return torch.tensor(tokens)


def train_torch(folder, tokens, share, temperature):
    """Losses of the steps, the gradient of wte in the first, and wte after the last."""
    student, teacher = (transformers.GPT2LMHeadModel.from_pretrained(folder / name) for name in ("student", "teacher"))
    optimizer = torch.optim.AdamW(student.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    wte, losses, gradient = student.transformer.wte.weight, [], None
    for step in range(STEPS):
        at = step * B * T
        x, y = tokens[at:at + B * T].view(B, T), tokens[at + 1:at + B * T + 1]
        scores = student(input_ids=x).logits.flatten(0, 1)
        with torch.no_grad():
            theirs = teacher(input_ids=x).logits.flatten(0, 1)
        divergence = kl_div(log_softmax(scores / temperature, 1), log_softmax(theirs / temperature, 1),
                            reduction="batchmean", log_target=True)
        loss = (1 - share) * cross_entropy(scores, y) + share * temperature ** 2 * divergence
        optimizer.zero_grad()
        loss.backward()
        gradient = wte.grad.numpy().copy() if step == 0 else gradient
        optimizer.step()
        losses.append(loss.item())
    return losses, gradient, wte.detach().numpy()


def train_here(folder, share, temperature):
    command = [ROOT / "train_gpt2_cpu", "-i", folder / "tokens.bin", "-e", folder / "student.bin", "-b", B, "-t", T,
               "-x", STEPS, "-l", RATE, "-k", "constant", "-c", 0, "--grad-clip", 0, "--shuffle", 0, "-v", 0, "-s", 0,
               "--threads", 2, "-n", 1, "-o", folder / "out", "--overwrite", 1, "--teacher", folder / "teacher.bin",
               "--distill", share, "--distill-temperature", temperature]
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    elems, padded = VOCABULARY * STUDENT["n_embd"], 128 * STUDENT["n_embd"]
    state = np.fromfile(folder / "out/state_00000001_00000.bin", "<f4", offset=0)
    wte = np.fromfile(folder / f"out/model_{STEPS:08}.bin", "<f4", offset=1024, count=elems)
    # The last bucket, wte, wpe and lnf, ends the state: m, which is a tenth of the gradient, then v, then 8 bytes.
    bucket = padded + (STUDENT["n_positions"] + 2) * STUDENT["n_embd"]
    gradient = state[state.size - 2 - 2 * bucket:][:elems] * 10
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+) \|", run.stdout)]
    return losses, gradient, wte


def error_of(ours, theirs):
    return float(np.linalg.norm(ours.ravel() - theirs.ravel()) / np.linalg.norm(theirs))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        made(folder, "student", 1, STUDENT), made(folder, "teacher", 2, TEACHER)
        tokens = tokens_of(folder / "tokens.bin")
        for share, temperature in (0.5, 2), (1, 4), (0.2, 0.5), (0.9, 1):
            ours, theirs = train_here(folder, share, temperature), train_torch(folder, tokens, share, temperature)
            text = f"--distill {share} --distill-temperature {temperature}"
            assert np.allclose(ours[0], theirs[0], rtol=1e-6, atol=2e-6), (text, ours[0], theirs[0])
            gradient, weights = (error_of(ours[i], theirs[i]) for i in (1, 2))
            assert gradient < 2e-5 and weights < 2e-4, (text, gradient, weights)
            other = train_torch(folder, tokens, share, 1.01 * temperature)
            assert not np.allclose(ours[0], other[0], rtol=1e-6, atol=2e-6), "a planted error is not found"
            print(f"{text}: losses {ours[0][0]:.6f} to {ours[0][-1]:.6f}, gradient of wte to {gradient:.1e}, wte after "
                  f"{STEPS} steps to {weights:.1e}")


if __name__ == "__main__":
    main()
