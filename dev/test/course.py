#!/usr/bin/env python3
"""Trains dev/course/gpt2.cpp beside train_gpt2_cpu, from the same weights on the same tokens: losses, norms, and the
weights after the last step. Standard library only.

    dev/test/course.py [TRAINER]     TRAINER: ./train_gpt2_cpu unless given
"""
import array
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.chdir(ROOT)
TRAINER = sys.argv[1] if len(sys.argv) > 1 else "./train_gpt2_cpu"
# L, C, NH, maxT, V, and of the run B, T, steps
SHAPES = [(2, 48, 3, 41, 300, 3, 33, 20), (3, 40, 5, 19, 131, 2, 19, 20), (1, 36, 1, 70, 513, 5, 7, 20)]
STEP = re.compile(r"^step +\d+/\d+ \| loss ([\d.]+) .*?\| norm ([\d.]+)", re.M)


def run(*command, status=0, **environment):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=300, env={**os.environ, **environment})
    assert done.returncode == status, f"{command}: status {done.returncode}, not {status}: {done.stdout[-2000:]}"
    return done.stdout


def numbers(kind, values):
    return array.array(kind, values).tobytes()


def parameter_sizes(L, C, maxT, Vp):
    """(elements, standard deviation, mean) of each tensor of a model file, over all layers."""
    layer = [(C, 0.1, 1), (C, 0.1, 0), (3 * C * C, 0.1, 0), (3 * C, 0.1, 0), (C * C, 0.1, 0), (C, 0.1, 0), (C, 0.1, 1),
             (C, 0.1, 0), (4 * C * C, 0.1, 0), (4 * C, 0.1, 0), (4 * C * C, 0.1, 0), (C, 0.1, 0)]
    return ([(Vp * C, 0.1, 0), (maxT * C, 0.1, 0)] + [(n * L, deviation, mean) for n, deviation, mean in layer] +
            [(C, 0.1, 1), (C, 0.1, 0)])


def make_model(path, L, C, NH, maxT, V):
    Vp = -(-V // 128) * 128
    rng = random.Random(L * 1000 + C)
    values = []
    for n, deviation, mean in parameter_sizes(L, C, maxT, Vp):
        values += [rng.gauss(mean, deviation) for _ in range(n)]
    values[V * C:Vp * C] = [0.0] * ((Vp - V) * C)  # the padding of the token table
    header = [20240326, 3, maxT, V, L, NH, C, Vp] + [0] * 248
    path.write_bytes(numbers("i", header) + numbers("f", values))


def make_tokens(path, V, count):
    rng = random.Random(V)
    tokens = [min(int(rng.expovariate(8 / V)), V - 1) for _ in range(count)]  # some are more frequent than others
    path.write_bytes(numbers("i", [20240520, 1, count] + [0] * 253) + numbers("H", tokens))


def weights(path):
    values = array.array("f")
    values.frombytes(path.read_bytes()[1024:])
    assert all(map(math.isfinite, values)), f"{path} has values that are not finite"
    return values


def key_biases(L, C, maxT, Vp):
    """Where the biases of the keys lie. Their gradient is 0: the same number is added to all scores of a query, which
    the softmax does not notice. AdamW divides what is left, rounding, by its own size."""
    begin = sum(n for n, _, _ in parameter_sizes(L, C, maxT, Vp)[:5])
    return {begin + layer * 3 * C + i for layer in range(L) for i in range(C, 2 * C)}


def compare(folder, L, C, NH, maxT, V, B, T, steps):
    model, tokens, out = folder / "model.bin", folder / "tokens_train.bin", folder / "lesson.bin"
    make_model(model, L, C, NH, maxT, V)
    make_tokens(tokens, V, B * T * (steps + 1) * 10 // 9 + 10 * B * T)
    lesson = run("./gpt2", model, tokens, f"save={out}", f"batch={B}", f"length={T}", f"steps={steps}", "shuffle=0",
                 "report=0", "rate=0.001", "warmup=5", "final_rate=0.1", "decay=0.1")
    run_folder = folder / f"L{L}C{C}"
    trainer = run(TRAINER, "-e", model, "-i", tokens, "-j", tokens, "-b", B, "-t", T, "-d", B * T, "-x", steps, "-v", 0,
                  "-s", 0, "--shuffle", 0, "-l", 0.001, "-u", 5, "-k", "cosine", "-q", 0.1, "-c", 0.1, "--threads", 2,
                  "--precision", "fp32", "-o", run_folder)
    ours, theirs = STEP.findall(lesson), STEP.findall(trainer)
    assert len(ours) == len(theirs) == steps, f"{len(ours)} and {len(theirs)} steps, not {steps}"
    largest = [0.0, 0.0]
    for step, (a, b) in enumerate(zip(ours, theirs), 1):
        for i, (what, tolerance) in enumerate((("loss", 1e-5), ("norm", 1e-4))):
            x, y = float(a[i]), float(b[i])
            assert abs(x - y) <= tolerance * y, f"step {step}: {what} {x} of the lesson, {y} of {TRAINER}"
            largest[i] = max(largest[i], abs(x - y) / y)
    start, ours = weights(model), weights(out)
    theirs = weights(run_folder / f"model_{steps:08d}.bin")
    assert len(start) == len(ours) == len(theirs)
    noise = key_biases(L, C, maxT, -(-V // 128) * 128)
    kept = [i for i in range(len(start)) if i not in noise]
    changed = math.fsum((theirs[i] - start[i]) ** 2 for i in kept)
    apart = math.fsum((ours[i] - theirs[i]) ** 2 for i in kept)
    worst = max(abs(ours[i] - theirs[i]) for i in kept)
    print(f"L{L} C{C}: losses apart by up to {largest[0]:.1e}, norms {largest[1]:.1e}; final weights by "
          f"{math.sqrt(apart / changed):.1e} of their change, {worst:.1e} at most")
    assert changed > 0 and float(lesson.split("loss ")[-1].split()[0]) < float(lesson.split("loss ")[1].split()[0])
    assert math.sqrt(apart / changed) < 1e-4


def refused(folder):
    """Wrong files end with status 1, wrong arguments with 2; either with one sentence."""
    model, tokens, short = folder / "model.bin", folder / "tokens_train.bin", folder / "short.bin"
    make_model(model, 1, 8, 2, 9, 50)
    make_tokens(tokens, 50, 3000)
    short.write_bytes(model.read_bytes()[:-4])
    huge = folder / "huge.bin"
    huge.write_bytes(numbers("i", [20240326, 3, 1024, 50257, 1000, 1, 65536, 50304] + [0] * 248))
    for status, arguments in [(1, (tokens, tokens)), (1, (huge, tokens)), (1, (model, model)), (1, (short, tokens)),
                              (1, (folder / "none.bin", tokens)), (2, (model, tokens, "length=10")), (2, (model,)),
                              (2, ("steps=x",)), (2, ("rate=nan",)), (2, ("steps=1e300",)), (2, ("steps=1.5",)),
                              (2, ("step=1",)), (2, ("heads=5",)),
                              (2, (model, tokens, "length=9", "batch=100")), (2, (model, tokens, tokens)),
                              (1, (model, tokens, "length=9", "steps=0", f"save={folder / 'no' / 'out.bin'}"))]:
        said = run("./gpt2", *arguments, status=status)
        lines = [line for line in said.splitlines() if not re.match(r"\d+ parameters", line)]
        assert len(lines) == 1 and lines[0].startswith("gpt2: "), said
    make_tokens(tokens, 51, 30000)
    assert "not in the vocabulary" in run("./gpt2", model, tokens, "length=9", status=1)


def learns():
    """What ./gpt2 does without files, with a smaller model: the loss of bytes falls from log 256, and it writes."""
    said = run("./gpt2", "steps=30", "report=30", "channels=32", "warmup=5", "rate=0.005", OMP_NUM_THREADS="1")
    losses = [float(loss) for loss, _ in STEP.findall(said)]
    assert len(losses) == 30 and abs(losses[0] - math.log(256)) < 0.1 and losses[-1] < 4, losses
    validation, _, text = said.partition("validation loss ")[2].partition("\n")
    assert 3 < float(validation) < 4 and len(text) > 200, said[-1000:]


with tempfile.TemporaryDirectory() as name:
    if len(sys.argv) == 1:
        learns()
        refused(pathlib.Path(name))
    for shape in SHAPES:
        compare(pathlib.Path(name), *shape)
