#!/usr/bin/env python3
"""Runs the lines of README that fine-tune GPT-2, as they are, with a small random model in a folder named gpt2 in place
of the download. Only the sizes of the run are made smaller, by flags after those of README.

    pip install numpy safetensors tiktoken torch transformers
    make train_gpt2_cpu tokenize && dev/test/recipes.py
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/data")]
import children  # noqa: E402

children.need("numpy", "safetensors", "tiktoken", "torch", "transformers")
if sys.argv[1:] == ["--packages"]:  # only says which are missing
    sys.exit()
import re  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

import fixtures  # noqa: E402


def lines_of_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^Fine-tune GPT-2 on a folder.*?\n\n((?:    .*\n)+)", text, re.M)[1]
    lines = [line.strip() for line in block.splitlines()]
    assert len(lines) == 5 and lines[0].startswith("make "), lines
    return lines[1:]


def run(line, folder):
    result = subprocess.run(["sh", "-c", line], cwd=folder, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    assert result.returncode == 0 and "Traceback" not in result.stdout, f"{line}:\n{result.stdout[-3000:]}"
    return result.stdout


def main():
    bring_in, tokenize, train, talk = lines_of_readme()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
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
        text = run(f"{talk} --prompt 'To be' -g 20 --quiet 1", folder)
        assert text.startswith("To be") and len(text) > 20, text
    print("passed: fine-tuning by the lines of README")


main()
