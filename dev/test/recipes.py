#!/usr/bin/env python3
"""Runs the recipes of dev/manual.md, with small stand-ins for what they download: a random model in a folder named
gpt2, a .parquet file, questions. Only sizes are made smaller, by flags after those of the manual.

    pip install numpy pyarrow safetensors tiktoken torch transformers
    make train_gpt2_cpu tokenize && dev/test/recipes.py
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data")]
import children  # noqa: E402

children.need("numpy", "pyarrow", "safetensors", "tiktoken", "torch", "transformers")
if sys.argv[1:] == ["--packages"]:  # only says which are missing
    sys.exit()
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402

import fixtures  # noqa: E402


def lines_of_manual(begin):
    """The commands below the paragraph that begins so."""
    text = (ROOT / "dev/manual.md").read_text(encoding="utf-8")
    block = re.search(rf"^{begin}.*?\n\n((?:    .*\n)+)", text, re.M)[1]
    return [line.strip() for line in block.splitlines()]


def run(line, folder):
    result = subprocess.run(["sh", "-c", line], cwd=folder, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    assert result.returncode == 0 and "Traceback" not in result.stdout, f"{line}:\n{result.stdout[-3000:]}"
    return result.stdout


def fine_tuning(folder):
    make, bring_in, tokenize, train, talk = lines_of_manual("Fine-tune GPT-2 on a folder")
    assert make.startswith("make "), make
    for program in "train_gpt2_cpu", "tokenize", "dev":
        (folder / program).symlink_to(ROOT / program)
    fixtures.make_model(1, 32, 2, 256, 50257, seed=5).save_pretrained(folder / "gpt2")
    (folder / "my_folder").mkdir()
    for work in "sonnets", "hamlet":
        shutil.copy(ROOT / f"dev/data/shakespeare/{work}.txt", folder / "my_folder")
    run(bring_in, folder)
    run(tokenize, folder)
    before = run("./train_gpt2_cpu -e gpt2.bin -x 0 -s 0 -t 256 -m 1 -j mine_val.bin", folder)
    output = run(f"{train} -d 1024 -x 12 -u 2 -l 1e-2 -v 12 -m 1 -s 0", folder)
    losses = [float(loss) for loss in re.findall(r"^val loss (\S+)", output, re.M)]
    assert len(losses) == 2 and losses[1] < losses[0] - 0.2, losses
    assert f"val loss {losses[0]:.6f}\n" in before, (losses, before)  # it begins with the weights of gpt2.bin
    assert talk == "./talk -e tuned", talk
    text = run("./train_gpt2_cpu -e tuned -x 0 --prompt 'To be' -g 20 --quiet 1", folder)
    assert text.startswith("To be") and len(text) > 20, text


def conversing(folder):
    make, bring_in, tokenize, train, more, talk = lines_of_manual("Teach GPT-2 to converse")
    assert make.startswith("make ") and train[-1] == "\\" and talk == "./talk -e chatty --chat 1", (make, train, talk)
    for program in "train_gpt2_cpu", "tokenize", "dev":
        (folder / program).symlink_to(ROOT / program)
    fixtures.make_model(1, 32, 2, 256, 50257, seed=5).save_pretrained(folder / "gpt2")
    turns = [(("user", f"What is {n}?"), ("assistant", f"It is {n}.")) for n in range(300)]
    lines = [{"messages": [{"role": role, "content": content} for role, content in said]} for said in turns]
    (folder / "chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run(bring_in, folder)
    assert "tokens count" in run(tokenize, folder)
    output = run(f"{train[:-1]} {more} -d 1024 -x 12 -u 2 -l 1e-2 -v 12 -m 1 -s 0", folder)
    losses = [float(loss) for loss in re.findall(r"^val loss (\S+)", output, re.M)]
    assert len(losses) == 2 and losses[1] < losses[0] - 0.2, losses


def adapting(folder):
    """Pretrained on plays and adapted to sonnets; and the same with a model from the hub."""
    make, plays, sonnets, train, adapt, talk = lines_of_manual("Pretrain on one half")
    assert make.startswith("make ") and talk == "./talk -e plays && ./talk -e adapted", (make, talk)
    for program in "train_gpt2_cpu", "tokenize", "dev":
        (folder / program).symlink_to(ROOT / program)
    run(plays, folder)
    run(sonnets, folder)
    small = "-t 64 -b 4 -v 1000 -m 1 -s 0"
    run(f"{train} -e L2C32H2T64 {small} -x 20 -u 2 -l 1e-2", folder)
    before = (folder / "plays/model_00000020.bin").read_bytes()
    bring_in = lines_of_manual("The same with GPT-2 from the hub")
    fixtures.make_model(1, 32, 2, 64, 50257, seed=5).save_pretrained(folder / "gpt2")
    run(bring_in[0], folder)
    for line, base in (adapt, "plays"), (bring_in[1], "gpt2.bin"):
        assert f" -e {base} " in line and " --lora " in line, line
        output = run(f"{line} {small} -x 12 -l 1e-2 --overwrite 1", folder)
        losses = [float(loss) for loss in re.findall(r"^val loss (\S+)", output, re.M)]
        assert len(losses) == 2 and losses[1] < losses[0], losses  # begins with the weights of the base
        out = re.search(r" -o (\S+)", line)[1]
        assert (folder / out / "model_00000012.bin").stat().st_size < 100_000  # adapters alone
        text = run(f"./train_gpt2_cpu -e {out} -x 0 --prompt 'Shall I' -g 20 --quiet 1", folder)
        assert text.startswith("Shall I") and len(text) > 20, text
    assert before == (folder / "plays/model_00000020.bin").read_bytes()


def on_fineweb(folder):
    """The recipe finds the shards and the questions where the scripts before it have put them."""
    (get, hellaswag), (make, train) = (line.split(" && ") for line in lines_of_manual("GPT-2 124M on 10 billion"))
    assert make.startswith("make "), make
    for name in "dev/data/*.py", "scripts/*.sh":  # copies: they write below the folder that they are in
        (folder / name).parent.mkdir(parents=True)
        for path in ROOT.glob(name):
            shutil.copy(path, (folder / name).parent)
    for name in "tokenize", "train_gpt2_cpu", "dev/children.py", "dev/data/gpt2_tokenizer.bin":
        (folder / name).symlink_to(ROOT / name)
    lines = [line.strip() for line in (ROOT / "dev/data/shakespeare/sonnets.txt").read_text().splitlines() if line]
    (folder / "copy").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"text": lines}), folder / "copy/000.parquet")
    questions = [{"ctx": lines[5 * i], "endings": lines[5 * i + 1:5 * i + 5], "label": i % 4} for i in range(8)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    run(f"{get} --from copy --shard-tokens 9000", folder)
    run(f"{hellaswag} questions.jsonl", folder)
    small = "-e L1C32H2T32 -t 32 -b 2 -d 128 -x 2 -m 1 -g 4"
    output = run(f"PROGRAM=./train_gpt2_cpu GPUS=1 {train} {small}", folder)
    assert re.search(r"^step +2/2 \| loss", output, re.M) and "val loss" in output, output
    assert re.search(r"^HellaSwag: \d/8 ", output, re.M), output
    assert (folder / "log_run_gpt2_124M/DONE_00000002").exists()


def main():
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:1"  # nothing is downloaded
    for test in fine_tuning, conversing, adapting, on_fineweb:
        with tempfile.TemporaryDirectory() as folder:
            test(pathlib.Path(folder))
            print(f"passed: {test.__name__}", flush=True)


main()
