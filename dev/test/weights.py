#!/usr/bin/env python3
"""Tests --weights int8, int4 and nf4 in whole runs: perplexity, memory, generation, refusals.

    make train_gpt2_cpu data && dev/test/weights.py
"""
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

from run_script import ROOT, run

TRAINER = ROOT / "train_gpt2_cpu"
FORMATS = ("int8", "int4", "nf4")


def evaluated(model, *flags):
    """The validation loss of a model."""
    output = run(TRAINER, "-e", model, "-x", 0, "-s", 0, "-b", 8, "-t", 64, "-m", 2, "--threads", 2, *flags)
    return float(re.search(r"^val loss (\S+)$", output, re.M)[1])


def check_losses(model):
    exact = evaluated(model)
    change = {name: math.exp(evaluated(model, "--weights", name) - exact) - 1 for name in FORMATS}
    assert 0 < abs(change["int8"]) < 0.002, change
    assert abs(change["int8"]) < abs(change["int4"]) < 0.05 and abs(change["nf4"]) < 0.05, change
    in_bf16 = math.exp(evaluated(model, "--weights", "int8", "--precision", "bf16") - exact) - 1
    assert abs(in_bf16) < 0.004, in_bf16
    print(f"perplexity above fp32's: {', '.join(f'{name} {100 * x:.3f}%' for name, x in change.items())}")


def generated(model, *flags):
    return run(TRAINER, "-e", model, "-x", 0, "--quiet", 1, "--temperature", 0, "-g", 40, *flags)


def check_generation(model):
    for name in FORMATS:
        flags = ("--weights", name, "--prompt", "KING: the")
        text = generated(model, *flags, "--threads", 2)
        assert text == generated(model, *flags, "--threads", 1)
        # Tokens that were decoded one by one are those that a prompt with all tokens before them continues with.
        for words in (8, 20):
            prompt = re.match(r"(?s)(?:\S+\s+){%d}\S+" % words, text)
            if prompt and len(prompt[0]) < len(text) - 20:
                longer = generated(model, "--weights", name, "--threads", 2, "--prompt", prompt[0])
                assert longer.startswith(text[:len(prompt[0]) + 8]), (name, text, longer)


def check_memory_of_training():
    """Beside codes adapters alone have gradients and state, and the run takes what its plan says."""
    flags = ("-e", "L4C256H4T64", "-b", 2, "-x", 1, "-v", 0, "-s", 0, "--threads", 2, "--lora", 2, "--weights", "nf4")
    plan = run(TRAINER, *flags, "--plan")
    adapters = 4 * 2 * 4 * (4 + 2 + 5 + 5) * 256  # bytes: 4 layers of rank 2
    for row in (r"gradients +all +of what trains", r"optimizer +m +of what trains", r" +v +of what trains"):
        assert int(re.search(row + r" +(\d+)", plan)[1]) == adapters, plan
    within_plan(plan, flags)


def within_plan(plan, flags):
    planned = int(re.search(r"^total\s+(\d+)", plan, re.M)[1])
    process = subprocess.Popen([str(word) for word in (TRAINER, *flags)], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    assert status == 0 and 0.6 * planned < usage.ru_maxrss * 1024 < planned, (flags, planned, usage.ru_maxrss)


def check_memory():
    """What a run takes of memory is what its plan says."""
    flags = ("-e", "L4C256H4T64", "-x", 0, "-s", 0, "-v", 1, "-b", 2, "-m", 1, "--threads", 2)
    parameters = {}
    for name in (None, *FORMATS):
        of_format = ("--weights", name) if name else ()
        plan = run(TRAINER, *flags, *of_format, "--plan")
        rows = {words[1]: int(words[-1].replace(",", "")) for words in
                (re.split(r"\s{2,}", re.sub(r"^parameters\s+", "parameters  ", line.strip()))
                 for line in plan.splitlines()) if words[0] == "parameters" and words[-1].isdigit()}
        parameters[name] = sum(rows.values())
        within_plan(plan, (*flags, *of_format))
    matrices, C, rows = 50304 * 256 + 4 * 12 * 256 * 256, 256, 50304 + 4 * 9 * 256
    assert parameters[None] - parameters["int8"] == 4 * matrices - (matrices + 4 * rows), parameters
    assert parameters[None] - parameters["int4"] == 4 * matrices - matrices * 9 // 16, parameters
    of_nf4 = 4 * matrices - (parameters[None] - parameters["nf4"])
    blocks, tensors = matrices // 64, 1 + 4 * 4
    assert 0 <= of_nf4 - (matrices // 2 + blocks + 4 * blocks // 256) < tensors * 72, of_nf4  # mean, whole lines
    assert of_nf4 < 0.53 * matrices


def check_adapters(model, folder):
    """With codes of the model, adapters add what they add without."""
    out = folder / "adapted"
    run(TRAINER, "-e", model, "-b", 8, "-t", 64, "-x", 30, "-l", 1e-2, "--lora", 4, "-v", 0, "-s", 0, "-o", out)
    exact, base = evaluated(model, "--adapter", out), evaluated(model)
    assert abs(base - exact) > 0.02, (base, exact)  # they add something
    for name, bound in (("int8", 0.002), ("nf4", 0.05)):
        found = evaluated(model, "--adapter", out, "--weights", name)
        assert abs(math.exp(found - exact) - 1) < bound, (name, found, exact)
        in_bf16 = evaluated(model, "--adapter", out, "--weights", name, "--precision", "bf16")
        assert abs(in_bf16 - found) < 0.01, (in_bf16, found)
        flags = ("--adapter", out, "--weights", name, "--prompt", "KING: the", "--threads", 2)
        text = generated(model, *flags)
        prompt = re.match(r"(?s)(?:\S+\s+){8}\S+", text)
        if prompt and len(prompt[0]) < len(text) - 20:
            longer = generated(model, *flags, "--prompt", prompt[0])
            assert longer.startswith(text[:len(prompt[0]) + 8]), (name, text, longer)


def check_refusals():
    for flags, sentence in ((("--weights", "int8", "-x", 1), "with --lora, or with -x 0"),
                            (("--weights", "int8"), "with --lora, or with -x 0"),
                            (("--weights", "q4_0", "-x", 0), "int8, int4, nf4"),
                            (("--weights", "", "-x", 0), "int8, int4, nf4")):
        said = run(TRAINER, "-e", "L1C32H1T16", *flags, status=2)
        assert sentence in said and said.count("\n") == 1, said


def check_levels():
    """The levels of nf4 are the quantiles that the header says."""
    header = (ROOT / "llmc/adapt/weight_codes.h").read_text(encoding="utf-8")
    levels = [float(x) for x in re.findall(r"^    (-?[\d.]+)f,$", header, re.M)]
    quantile, d = statistics.NormalDist().inv_cdf, 0.9677083
    above = [quantile(d + (0.5 - d) * i / 8) for i in range(8)]
    below = [-quantile(d + (0.5 - d) * i / 7) for i in range(7)]
    want = sorted([0.0, *above, *below])
    assert len(levels) == 16 and all(abs(a - b / quantile(d)) < 2e-7 for a, b in zip(levels, want)), levels


def main():
    check_levels()
    check_refusals()
    check_memory()
    check_memory_of_training()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        run(TRAINER, "-e", "L2C64H4T64", "-b", 8, "-x", 60, "-l", 3e-3, "-v", 0, "-s", 0, "-o", folder)
        check_losses(folder)
        check_generation(folder)
        check_adapters(folder, folder)
    print("--weights: perplexity, generation, memory and refusals are as they are to be")


if __name__ == "__main__":
    main()
