#!/usr/bin/env python3
"""Preference tuning: the steps of ./prefer beside the formula of DPO in PyTorch, with its gradients by autograd, on the
same model and pairs; beside TRL's DPOTrainer, if it is installed; with adapters; resumed; on several processes; what is
not accepted.

    pip install numpy safetensors torch transformers         and trl
    make train_gpt2_cpu prefer tokenize && dev/test/preferences.py
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
import contextlib  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

torch.set_num_threads(1)

import import_hf  # noqa: E402
from run_script import script  # noqa: E402

BETA, RATE, STEPS, T, END = 0.3, 3e-3, 4, 24, 256
PAIRS = [("To", " be", " go there"), ("A", " rose, a rose.", "?"), ("", "x", "yy"), ("Now is the", " winter", " end"),
         ("Et", " tu", " cetera"), ("Out", ", out", " of it all")] * 4
LONG = ("Tomorrow", 400 * "x", 400 * "y")  # is left out


def run(*command, status=0):
    result = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert result.returncode == status, (command, result.returncode, result.stdout[-300:], result.stderr[-300:])
    return result


def make_inputs(folder):
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=T, vocab_size=257, resid_pdrop=0,
                                     initializer_range=0.2, embd_pdrop=0, attn_pdrop=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "hf")
    script(import_hf, folder / "hf", folder / "model.bin")
    lines = [json.dumps(dict(zip(("prompt", "chosen", "rejected"), pair))) for pair in [*PAIRS, LONG]]
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    run(sys.executable, "dev/data/pairs.py", folder / "pairs.jsonl", "-o", folder / "pairs", "--val-every", 4,
        "--bytes", 1)


def tokens_of(folder):
    """The bytes of a text as tokens: their order in the vocabulary is that of GPT-2."""
    data = (folder / "pairs_tokenizer.bin").read_bytes()[1024:]
    number, at = {}, 0
    while at < len(data):
        number[data[at + 1:at + 1 + data[at]]] = len(number)
        at += 1 + data[at]
    return lambda text: [number[bytes([byte])] for byte in text.encode()]


def log_probability(net, encode, prompt, answer):
    """The sum over the tokens of the answer, and the end of text behind it."""
    begin, end = [END, *encode(prompt)], [*encode(answer), END]
    logs = net(input_ids=torch.tensor([begin + end[:-1]])).logits[0].log_softmax(1)
    return logs[len(begin) - 1:].gather(1, torch.tensor(end)[:, None]).sum()


def train_torch(folder, order, beta, pairs_a_step):
    """Losses, norms, margins of the steps, and wte in the end."""
    encode, net = tokens_of(folder), transformers.GPT2LMHeadModel.from_pretrained(folder / "hf")
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    with torch.no_grad():
        reference = {pair: [log_probability(net, encode, pair[0], answer) for answer in pair[1:]] for pair in PAIRS}
    found = []
    for step in range(STEPS):
        margins = []
        for pair in order[step * pairs_a_step:(step + 1) * pairs_a_step]:
            chosen, rejected = (log_probability(net, encode, pair[0], answer) for answer in pair[1:])
            margins.append(beta * ((chosen - reference[pair][0]) - (rejected - reference[pair][1])))
        loss = -torch.nn.functional.logsigmoid(torch.stack(margins)).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        found += [loss.item(), norm.item(), torch.stack(margins).mean().item()]
    return found, net.transformer.wte.weight.detach().numpy()


def command(folder, out, *flags, beta=BETA):
    return ["./prefer", "-i", folder / "pairs_train.bin", "-j", folder / "pairs_val.bin", "--tokenizer",
            folder / "pairs_tokenizer.bin", "-e", folder / "model.bin", "-b", 6, "-t", T, "-d", 12 * T, "-x", STEPS,
            "-l", RATE, "-k", "constant", "-v", 2, "-s", 0, "--threads", 1, "--beta", beta, "-o", folder / out, *flags]


def numbers_of(text):
    steps = re.findall(r"^step .* loss ([\d.]+) .*norm ([\d.]+) ", text, re.M)
    margins = re.findall(r"^pairs of the step: .*margin ([-+\d.]+)", text, re.M)
    assert len(steps) == len(margins) == STEPS, text
    return [float(number) for step, margin in zip(steps, margins) for number in (*step, margin)]


def beside_torch(folder):
    """All pairs that train are alike in one step: six kinds, each as often, in any order."""
    text = run(*command(folder, "out", "-d", 36 * T)).stdout
    trained = [pair for i, pair in enumerate(PAIRS) if (i + 1) % 4]
    assert "pairs: 18; 6 to validate; 1 left out" in text, text
    theirs, wte = train_torch(folder, trained * STEPS, BETA, len(trained))
    ours = numbers_of(text)
    assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-4), (ours, theirs)
    weights = np.fromfile(folder / f"out/model_{STEPS:08}.bin", "<f4", offset=1024, count=257 * 32)
    error = np.linalg.norm(weights - wte.ravel()) / np.linalg.norm(wte)
    assert error < 1e-5, error
    other, _ = train_torch(folder, trained * STEPS, 1.02 * BETA, len(trained))
    assert not np.allclose(ours, other, rtol=1e-4, atol=1e-4), "a planted error is not found"
    assert abs(ours[0] - np.log(2)) < 1e-6 and ours[2] == 0, "the first step is that of the reference"
    right = [float(share) for share in re.findall(r"^val pairs: .* ([\d.]+)% of 6 pairs right", text, re.M)]
    assert right[0] == 0 and right[-1] > 50, right
    print(f"losses {ours[0]:.6f} to {ours[-3]:.6f}, margin to {ours[-1]:.4f}, wte after {STEPS} steps to {error:.1e}")


def byte_tokenizer():
    """The vocabulary of the pairs as a tokenizer of transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: token for token, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    end = "<|endoftext|>"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end)


def beside_trl(folder):
    """The same steps by TRL's trainer, which is given text: loss, norm and margin of each."""
    sys.path[:] = [path for path in sys.path if not path.startswith(str(ROOT))]  # where there is a datasets.py, too
    try:
        import datasets
        import trl
    except ImportError:
        return print("pip install trl: without it its trainer is not compared")
    pairs = [{"prompt": "<|endoftext|>" + prompt, "chosen": chosen, "rejected": rejected}
             for i, (prompt, chosen, rejected) in enumerate(PAIRS) if (i + 1) % 4]
    ours = numbers_of(run(*command(folder, "beside_trl", "-d", 36 * T)).stdout)
    for beta in BETA, 1.02 * BETA:
        settings = trl.DPOConfig(
            output_dir=folder / "trl", beta=beta, learning_rate=RATE, lr_scheduler_type="constant", max_steps=STEPS,
            per_device_train_batch_size=len(pairs), adam_beta2=0.95, max_grad_norm=1.0, logging_steps=1,
            report_to="none", use_cpu=True, bf16=False, save_strategy="no")
        with contextlib.redirect_stdout(io.StringIO()):
            trainer = trl.DPOTrainer(transformers.GPT2LMHeadModel.from_pretrained(folder / "hf"), args=settings,
                                     train_dataset=datasets.Dataset.from_list(pairs),
                                     processing_class=byte_tokenizer())
            trainer.train()
        steps = [log for log in trainer.state.log_history if "loss" in log]
        theirs = [step[key] for step in steps for key in ("loss", "grad_norm", "rewards/margins")]
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-4) == (beta == BETA), (beta, ours, theirs)
    print(f"losses, norms and margins are those of TRL {trl.__version__}")


def same_files(folder, one, other):
    for name in f"model_{STEPS:08}.bin", f"state_{STEPS:08}_00000.bin", "reference.bin":
        assert (folder / one / name).read_bytes() == (folder / other / name).read_bytes(), (one, other, name)


def resumed(folder):
    for name, more in ("plain", ()), ("adapters", ("--lora", 2)):
        whole = run(*command(folder, name, *more)).stdout
        run(*command(folder, f"{name}_half", *more, "-x", 2))
        run("./prefer", "-y", 1, "-x", STEPS, "-o", folder / f"{name}_half")
        same_files(folder, name, f"{name}_half")
        numbers = numbers_of(whole)
        assert numbers[-3] < numbers[0], numbers
    micro = numbers_of(run(*command(folder, "micro", "-b", 2)).stdout)
    assert np.allclose(micro, numbers_of(run(*command(folder, "once", "-b", 12)).stdout), rtol=1e-4, atol=1e-4)


def on_processes(folder):
    place = folder / "meet"
    place.mkdir()
    flags = ["-z", 1, "-pi", "fs", "-pf", place, "-pn", 2, "-pr"]
    several = [subprocess.Popen([str(word) for word in command(folder, "two", *flags, rank)], cwd=ROOT, text=True,
                                stdout=subprocess.PIPE) for rank in range(2)]
    texts = [process.communicate(timeout=200)[0] for process in several]
    assert not any(process.returncode for process in several), texts
    one = numbers_of(run(*command(folder, "one")).stdout)
    assert np.allclose(numbers_of(texts[0]), one, rtol=1e-4, atol=1e-4)


def refusals(folder):
    train = folder / "pairs_train.bin"
    for flags, status, words in (
            (["-b", 3, "-d", 12 * T], 2, "-b 3"), (["--beta", 0], 2, "--beta"), (["--beta", "x"], 2, "--beta"),
            (["--precision", "bf16"], 2, "fp32"), (["-x", -1], 2, "-x"), (["--seq-warmup", 2], 2, "--seq-warmup"),
            (["-t", 4, "-d", 48], 1, "has no pairs"),
            (["-e", "L1C16H1T24V200", "--tokenizer", folder / "no"], 1, "only 200"),
            (["-i", folder / "half.bin"], 1, "make no pairs"), (["-i", folder / "none.bin"], 1, "mask")):
        if "half.bin" in str(flags):
            (folder / "one.jsonl").write_text('{"prompt": "a", "completion": "' + 200 * "b" + '"}\n')
            run("./tokenize", folder / "one.jsonl", "-o", folder / "one", "--val-fraction", 0, "--bytes", 1)
            for kind in "bin", "mask":
                (folder / f"half.{kind}").write_bytes((folder / f"one_train.{kind}").read_bytes())
            (folder / "none.bin").write_bytes(train.read_bytes())
        small = ["-d", 6 * T] if "half.bin" in str(flags) else []
        result = run(*command(folder, "refused"), *small, *flags, status=status)
        assert words in result.stderr and result.stderr.count("\n") == 1, (flags, result.stderr)
        assert not (folder / "refused/reference.bin").exists()
    result = run("./prefer", "-y", 1, "-x", 6, "--beta", 0.2, "-o", folder / "one", status=2)
    assert "--beta 0.2 differs" in result.stderr, result.stderr
    for line, words in ('{"prompt": "a", "chosen": "b"}', "pairs.jsonl:1"), ("no", "pairs.jsonl:1"):
        (folder / "bad_pairs.jsonl").write_text(line + "\n")
        result = run(sys.executable, "dev/data/pairs.py", folder / "bad_pairs.jsonl", "-o", folder / "bad", status=1)
        assert words in result.stderr and result.stderr.count("\n") == 1, result.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_inputs(folder)
        for test in beside_torch, beside_trl, resumed, on_processes, refusals:
            test(folder)


if __name__ == "__main__":
    main()
