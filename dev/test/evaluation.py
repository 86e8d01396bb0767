#!/usr/bin/env python3
"""Tests what the trainer says of a text and of HellaSwag against transformers, and dev/eval_lm.py against lm-eval.

    pip install accelerate lm_eval numpy tiktoken torch transformers
    make train_gpt2_cpu && dev/test/evaluation.py [transformers|lm_eval]
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data")]
import children  # noqa: E402

WHAT = sys.argv[1] if len(sys.argv) > 1 else "transformers"
children.need("numpy", "tiktoken", "torch", "transformers", *(["accelerate", "lm_eval"] if WHAT == "lm_eval" else []))
if sys.argv[2:] == ["--packages"]:  # only says which are missing
    sys.exit()
import json  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import struct  # noqa: E402
import tempfile  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import numpy as np  # noqa: E402
import torch  # noqa: E402

import fixtures  # noqa: E402
from run_script import run  # noqa: E402

SHAPE = (2, 48, 3, 70, 50257)  # L, C, NH, maxT, V
END_OF_TEXT = 50256
SONNETS = (ROOT / "dev/data/shakespeare/sonnets.txt").read_text(encoding="utf-8")
GPT2 = fixtures.gpt2_encoder()


def evaluated(*flags):
    return run(ROOT / "train_gpt2_cpu", "-x", 0, "-s", 0, "-b", 3, "--threads", 2, *flags)


def near(a, b, relative):
    assert abs(a - b) <= relative * abs(b), (a, b)


def model_in(folder):
    model = fixtures.make_model(*SHAPE, seed=11)
    fixtures.write_model(folder / "model.bin", model)
    return model.eval()


def losses(model, x, y):
    """The losses of one sequence, by transformers, as fp64."""
    with torch.no_grad():
        logits = model(torch.tensor([x])).logits[0, :, :SHAPE[4]].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(y), reduction="none").numpy()


def perplexities(output):
    line = re.search(r"^val loss (\S+)\nbits per byte (\S+)\nperplexity: (\S+) per token, (\S+) per word, "
                     r"(\S+) per byte \((\d+) tokens?, (\d+) words?, (\d+) bytes?\)$", output, re.M)
    assert line, output
    return [float(value) for value in line.groups()]


def compare_text(model, folder, text, T):
    (folder / "text.txt").write_bytes(text.encode())
    ids = [END_OF_TEXT, *GPT2.encode_ordinary(text)]
    x, y = ids[:-1], ids[1:]
    total = sum(losses(model, x[at:at + T], y[at:at + T]).sum() for at in range(0, len(x) - T + 1, T))
    if tail := len(x) % T:  # the last window is a full one, too, but only what is new counts
        total += losses(model, x[-T:], y[-T:])[-tail:].sum()
    tokens, words, size = len(ids) - 1, len(text.split()), len(text.encode())
    loss, bits, *found = perplexities(evaluated("-e", folder / "model.bin", "-j", folder / "text.txt", "-t", T))
    assert found[3:] == [tokens, words, size], (found, tokens, words, size)
    near(loss, total / tokens, 1e-6)
    assert abs(bits - total / math.log(2) / size) < 6e-5
    for value, n in zip(found, (tokens, words, size)):
        near(math.log(value), total / n, 1e-6)


def perplexity_of_texts(folder):
    """Loss, counts and perplexities of texts: windows that divide the text and that do not, characters of all kinds."""
    model = model_in(folder)
    nasty = "  naïve\u00a0café\u2003— it's 1234567 \U0001f600\r\n\t\u65e5\u672c\u8a9e, don't!   "
    for text, T in (SONNETS[:5000], 70), (SONNETS[:2000], 33), (nasty, 70), (nasty, 7), (nasty * 9, 1), ("x", 70):
        compare_text(model, folder, text, T)


def questions(count, same_length):
    """Made-up questions: lines of the sonnets, of which one goes on as it should. With same_length, all completions of
    a question have as many tokens."""
    lines = [line.strip() for line in SONNETS.splitlines() if len(line.split()) > 5]
    made = []
    for i in range(count):
        words = [lines[i * 7 + k].split()[:3 + (0 if same_length else (i + k) % 4)] for k in range(5)]
        ctx, endings = " ".join(lines[i * 3:i * 3 + 1 + i % 6]), [" ".join(w) for w in words[:4]]
        if same_length:
            shortest = min(len(GPT2.encode_ordinary(" " + e)) for e in endings)
            endings = [GPT2.decode(GPT2.encode_ordinary(" " + e)[:shortest])[1:] for e in endings]
        made.append({"ctx": ctx, "endings": endings, "label": i * i % 4})
    return made


def write_hellaswag(path, examples):
    records = []
    for index, example in enumerate(examples):
        parts = [GPT2.encode_ordinary(text) for text in [example["ctx"], *(" " + e for e in example["endings"])]]
        body = [65535, 0, index, example["label"], 4, *(v for part in parts for v in [len(part), *part])]
        body[1] = 2 * len(body)
        records.append(struct.pack(f"<{len(body)}H", *body))
    header = [20240522, 1, len(records), max(map(len, records))] + [0] * 252
    path.write_bytes(struct.pack("<256i", *header) + b"".join(records))


def right_answers(model, examples, T):
    right = 0
    for example in examples:
        means = []
        for ending in example["endings"]:
            completion = GPT2.encode_ordinary(" " + ending)
            ids = [*GPT2.encode_ordinary(example["ctx"]), *completion][-(T + 1):]
            counted = min(len(completion), len(ids) - 1)
            means.append(losses(model, ids[:-1], ids[1:])[-counted:].mean())
        right += int(np.argmin(means)) == example["label"]
    return right


def hellaswag(folder):
    """HellaSwag alone, without data to validate on; contexts that fit in T, and contexts that lose their beginning."""
    model, examples = model_in(folder), questions(16, same_length=False)
    write_hellaswag(folder / "questions.bin", examples)
    flags = ["-e", folder / "model.bin", "-v", 0, "-h", 1, "--hellaswag-data", folder / "questions.bin"]
    for T, B in (70, 1), (70, 3), (20, 2), (4, 50):
        expected = right_answers(model, examples, T)
        output = evaluated(*flags, "-t", T, "-b", B)
        assert f"HellaSwag: {expected}/16 = {expected / 16:.6f}\n" in output and "val loss" not in output, output


def through_lm_eval(folder):
    """eval_lm.py on two tasks of the test's own: what lm-eval says of a text and of questions is what the trainer says.
    Its tasks count words by splitting at white space, so the text neither begins nor ends with any."""
    model_in(folder)
    examples, text = questions(24, same_length=True), SONNETS[:3000].strip()
    (folder / "text.txt").write_text(text, encoding="utf-8")
    (folder / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
    (folder / "questions.jsonl").write_text("".join(json.dumps(e) + "\n" for e in examples))
    write_hellaswag(folder / "questions.bin", examples)
    task = "task: own_{0}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {1}\ntest_split: test\n"
    (folder / "text.yaml").write_text(task.format("text", folder / "text.jsonl") + (
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\nmetric_list:\n"
        "  - metric: word_perplexity\n  - metric: byte_perplexity\n  - metric: bits_per_byte\n"))
    (folder / "questions.yaml").write_text(task.format("questions", folder / "questions.jsonl") + (
        "output_type: multiple_choice\ndoc_to_text: '{{ctx}}'\ndoc_to_target: '{{label}}'\n"
        "doc_to_choice: '{{endings}}'\nmetric_list:\n  - metric: acc\n"))
    output = run(sys.executable, ROOT / "dev/eval_lm.py", folder / "model.bin", "--tasks", "own_text,own_questions",
                 "--include_path", folder, "--output_path", folder / "results", "--device", "cpu")
    assert f"-m lm_eval run --model hf --model_args pretrained={folder}/model-hf --tasks own_text" in output, output
    results = json.loads(next((folder / "results").rglob("results*.json")).read_text())["results"]

    flags = ["-e", folder / "model.bin", "-h", 1, "--hellaswag-data", folder / "questions.bin"]
    output = evaluated(*flags, "-j", folder / "text.txt")
    _, bits, _, per_word, per_byte, *_ = perplexities(output)
    own = results["own_text"]
    near(math.log(own["word_perplexity,none"]), math.log(per_word), 1e-6)
    near(math.log(own["byte_perplexity,none"]), math.log(per_byte), 1e-6)
    assert abs(own["bits_per_byte,none"] - bits) < 6e-5
    right = round(results["own_questions"]["acc,none"] * 24)
    assert 0 < right < 24 and f"HellaSwag: {right}/24 = " in output, (right, output)


def refusals_of_eval_lm(folder):
    fixtures.write_model(folder / "small.bin", fixtures.make_model(1, 8, 1, 16, 300, seed=1))
    output = run(sys.executable, ROOT / "dev/eval_lm.py", folder / "small.bin", status=1)
    assert "--tokenizer FILE names it" in output and "50257 tokens, the model 300" in output, output
    assert "is not there" in run(sys.executable, ROOT / "dev/eval_lm.py", folder / "nothing.bin", status=1)
    said = run(sys.executable, ROOT / "dev/eval_lm.py", status=2)
    assert "required: model" in said and said.count("\n") == 1, said


def without_packages(folder):
    output = run(sys.executable, "-S", ROOT / "dev/eval_lm.py", folder, status=1)
    assert output.startswith("missing: accelerate, lm_eval, ") and "(pip install accelerate lm_eval " in output, output


def main():
    torch.set_num_threads(1)
    tests = {"transformers": [perplexity_of_texts, hellaswag, without_packages],
             "lm_eval": [through_lm_eval, refusals_of_eval_lm]}[WHAT]
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            test(pathlib.Path(folder))
            print(f"passed: {test.__name__}", flush=True)


main()
