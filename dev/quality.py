#!/usr/bin/env python3
"""How well does each number format train?

Runs the same small training from the same weights on the same batches: this trainer in fp32, with products of fp32 as
three of bf16 (fp32x3), in bf16 with fp32 master weights, in bf16 without them, rounded stochastically and to nearest,
with AdamW's m and v in bf16 and in 8 bits, with factored state (adafactor, whose learning rate is another), and PyTorch
in fp32. Prints bytes per parameter, the time of a step, and the validation loss at the end; how far apart runs in bf16
end by chance; then what rounding the weights does to small updates. Exit 1 if fp32 or one of the formats that should
train as well ends more than 0.5% from PyTorch, of bf16 the median of its runs. --write puts the tables into chapter 11
of the course and into dev/MEASURED.md, there with the curves. The CPU has no fp16: --fp16 names a program that has, for
one row more, without a time.

    pip install torch                   # without it, this trainer alone
    make build/FP16/train_gpt2sim       # the simulator, half an hour; on a GPU: make PRECISION=FP16 train_gpt2cu
    make train_gpt2_cpu data && python3 dev/quality.py [--fp16 build/FP16/train_gpt2sim] [--write]

Started again with the same settings it goes on where it was interrupted; --again begins anew. Times are of this machine
and mean something only if nothing else runs on it.
"""
import children
import argparse
import json
import math
import pathlib
import re
import shutil
import statistics
import sys
import time

import charts
import svg
from readme import MEASURED, replace, this_cpu, write_between

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT / "dev/data"
L, C, NH, T, B, V = 4, 64, 2, 64, 4, 50257
MODEL = f"L{L}C{C}H{NH}T{T}"
LR, WARMUP, FRAC, DECAY, VAL_BATCHES = 2e-3, 100, 0.1, 0.1, 40
FP32, FP16 = "this trainer, fp32", "this trainer, fp16 with scaled loss, fp32 master"
BF16 = "this trainer, bf16, fp32 master"
STOCHASTIC, NEAREST = "this trainer, bf16, stochastic rounding", "this trainer, bf16, rounding to nearest"
IN_8_BITS = "this trainer, bf16, fp32 master, m and v in 8 bits"
FACTORED = "this trainer, bf16, fp32 master, factored state"
OURS = {FP32: ["--precision", "fp32"],
        "this trainer, fp32x3": ["--precision", "fp32x3"],
        BF16: ["--precision", "bf16"],
        STOCHASTIC: ["--precision", "bf16", "-w", "0"],
        NEAREST: ["--precision", "bf16", "-w", "0", "--rounding", "nearest"],
        "this trainer, bf16, fp32 master, m and v in bf16": ["--precision", "bf16", "--optimizer", "adamw16bit"],
        IN_8_BITS: ["--precision", "bf16", "--optimizer", "adamw8bit"],
        FACTORED: ["--precision", "bf16", "--optimizer", "adafactor", "-l", "0.05", "-c", "0.01"]}
# Not expected to end where fp32 does: two are there to show what they lose, the last is another optimizer.
OTHERS = {NEAREST, IN_8_BITS, FACTORED}
BY_CHANCE = 6  # runs in bf16 whose learning rates differ by millionths: rounding, too, decides where a run ends
# Some go on from the weights with which fp32 ends, with updates so small that rounding can lose them.
SMALL_RATE, SMALL_STEPS = 2e-5, 300


class Result:
    """curve: [(step, validation loss)]; ms of a step on this CPU, the median, or None; bytes per parameter of weights,
    gradients and state."""
    def __init__(self, curve, ms, parameter_bytes):
        self.curve, self.ms, self.bytes = curve, ms, parameter_bytes

    def final(self):
        return self.curve[-1][1]

    def untimed(self):
        return Result(self.curve, None, self.bytes)

    def ms_text(self):
        return "–" if self.ms is None else f"{self.ms:.1f}"


def slug(name):
    return re.sub(r"\W+", "_", name)


def parameter_bytes(program, flags):
    """Weights, gradients and optimizer state of a parameter, as --plan counts them."""
    plan = children.run([program, "--plan", "-e", MODEL, "-b", B, "-t", T, *flags], cwd=ROOT)[0]
    parameters = int(re.search(r"(\d+) parameters$", plan, re.M)[1])
    kinds = r"^(?:parameters|gradients|optimizer) +(?!= )\S.* (\d+)$"
    return sum(int(n) for n in re.findall(kinds, plan, re.M)) / parameters


def ours(program, flags, start, steps, every, out):
    """Trains with this trainer, or goes on with what an earlier call has begun."""
    command = [program, "-e", start, "-b", B, "-t", T, "-x", steps, "-k", "cosine", "-l", LR, "-u", WARMUP,
               "-q", FRAC, "-c", DECAY, "-v", every, "-m", VAL_BATCHES, "-s", 0, "--shuffle", 0, "-n", every, "-nk", 1,
               "-o", out, "-y", 1, *flags]
    children.run(command, cwd=ROOT)
    curve = [(int(s), float(l)) for s, l in re.findall(r"s:(\d+) tel:([\d.]+)", (out / "main.log").read_text())]
    header, *lines = [line.split(",") for line in (out / "metrics.csv").read_text().splitlines()]
    ms = statistics.median(float(line[header.index("step_ms")]) for line in lines)
    return Result(curve, ms, parameter_bytes(program, flags))


def small_updates(folder, model):
    """{name: Result} of runs that go on from a model, with small updates."""
    flags = ["-k", "constant", "-l", SMALL_RATE, "-u", 0]
    return {name: ours("./train_gpt2_cpu", [*OURS[name], *flags], model, SMALL_STEPS, SMALL_STEPS,
                       folder / ("small_updates_" + slug(name)))
            for name in (FP32, STOCHASTIC, NEAREST)}


def read_model(path):
    """{name: tensor} of one of our model files. Shapes are those of the file, (output, input) for weights."""
    import numpy as np
    raw = path.read_bytes()
    maxT, vocab, layers, _, c, padded = np.frombuffer(raw[:1024], "<i4")[2:8]
    data, at, tensors = np.frombuffer(raw[1024:], "<f4"), 0, {}
    per_layer = [("ln1w", (c,)), ("ln1b", (c,)), ("qkvw", (3 * c, c)), ("qkvb", (3 * c,)), ("projw", (c, c)),
                 ("projb", (c,)), ("ln2w", (c,)), ("ln2b", (c,)), ("fcw", (4 * c, c)), ("fcb", (4 * c,)),
                 ("outw", (c, 4 * c)), ("outb", (c,))]
    shapes = [("wte", (padded, c)), ("wpe", (maxT, c)), *[(name, (layers, *shape)) for name, shape in per_layer],
              ("lnfw", (c,)), ("lnfb", (c,))]
    for name, shape in shapes:
        n = int(np.prod(shape))
        tensors[name] = data[at:at + n].reshape(shape).copy()
        at += n
    tensors["wte"] = tensors["wte"][:vocab]
    return tensors


def loss_of(p, x, y):
    """The loss of GPT-2 with parameters p on tokens x (batch, T) and targets y, in PyTorch."""
    import torch.nn.functional as F
    batch = x.shape[0]
    h = p["wte"][x] + p["wpe"][:T]
    for l in range(L):
        normed = F.layer_norm(h, (C,), p["ln1w"][l], p["ln1b"][l])
        qkv = F.linear(normed, p["qkvw"][l], p["qkvb"][l]).split(C, 2)
        q, k, v = (t.view(batch, T, NH, C // NH).transpose(1, 2) for t in qkv)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, T, C)
        h = h + F.linear(attended, p["projw"][l], p["projb"][l])
        normed = F.layer_norm(h, (C,), p["ln2w"][l], p["ln2b"][l])
        wide = F.gelu(F.linear(normed, p["fcw"][l], p["fcb"][l]), approximate="tanh")
        h = h + F.linear(wide, p["outw"][l], p["outb"][l])
    logits = F.layer_norm(h, (C,), p["lnfw"], p["lnfb"]) @ p["wte"].T
    return F.cross_entropy(logits.view(-1, V), y.reshape(-1))


def windows(path):
    """window(i), the i-th window of T + 1 tokens of a shard, from the beginning again after the last; their number."""
    import numpy as np
    import torch
    tokens = np.frombuffer(path.read_bytes()[1024:], "<u2").astype(np.int64)
    count = (len(tokens) - 1) // T
    return lambda i: torch.from_numpy(tokens[i % count * T:][:T + 1].copy()), count


def learning_rate(step, steps):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    low = FRAC * LR
    return low + (LR - low) * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))) / 2


def pytorch(start, steps, every, out):
    """The same as ours(), with PyTorch."""
    import torch
    kept = out.with_suffix(".json")
    if kept.exists():
        return Result(*json.loads(kept.read_text()))
    p = {n: torch.tensor(t).requires_grad_() for n, t in read_model(start).items()}
    matrices = [p[n] for n in ("wte", "wpe", "qkvw", "projw", "fcw", "outw")]
    others = [t for t in p.values() if not any(t is m for m in matrices)]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8, fused=True)
    (train, _), (val, val_windows) = windows(DATA / "shakespeare_train.bin"), windows(DATA / "shakespeare_val.bin")

    def batch_loss(source, first):
        w = torch.stack([source(first + b) for b in range(B)])
        return loss_of(p, w[:, :-1], w[:, 1:])

    curve, seconds = [], []
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            with torch.no_grad():
                batches = min(VAL_BATCHES, val_windows // B)
                curve.append((step, sum(batch_loss(val, i * B).item() for i in range(batches)) / batches))
        if step == steps:
            break
        begin = time.perf_counter()
        optimizer.zero_grad()
        batch_loss(train, step * B).backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    result = Result(curve, 1000 * statistics.median(seconds), 16.0)  # weights, gradients, m and v in fp32
    replace(kept, json.dumps([result.curve, result.ms, result.bytes]))
    return result


WIDTH, HEIGHT, LEFT, RIGHT, BETWEEN = 760, 300, 60, 20, 70  # of the picture and its panels, in pixels


def panel(top, title, curves, y_range):
    last = max(step for points in curves for step, _ in points)
    drawn = charts.Panel(LEFT, top, WIDTH - LEFT - RIGHT, HEIGHT, (0, last), y_range)
    drawn.frame(title, "step")
    for color, points in zip(svg.COLORS, curves):
        drawn.curve([(step, max(y_range[0], min(y_range[1], value))) for step, value in points], color)
    return drawn.parts


def plot(curves):
    """The curves as an SVG, and below them how far each is from PyTorch's (or, without it, the first), in percent."""
    base_name = "PyTorch, fp32" if "PyTorch, fp32" in curves else next(iter(curves))
    base = dict(curves[base_name])
    shown = [[(s, l) for s, l in c if s > 0] for c in curves.values()]
    apart = [[(s, 100 * (l / base[s] - 1)) for s, l in c] for c in shown]
    losses = [l for c in shown for _, l in c]
    parts, names_height = charts.legend(LEFT, 22, WIDTH - LEFT - RIGHT, curves, svg.COLORS)
    top = 22 + names_height + 22
    parts += panel(top, "validation loss", shown, (min(losses) - 0.1, max(losses) + 0.1))
    parts += panel(top + HEIGHT + BETWEEN, f"percent from {base_name}; more than 1 is drawn as 1", apart, (-1, 1))
    return svg.picture(WIDTH, top + 2 * HEIGHT + BETWEEN + 40, charts.SIZE, parts)


def ends_by_chance(first, run_ours):
    """The losses, sorted, with which runs end that differ from the first in bf16 by chance alone."""
    others = [run_ours(f"{BF16}, chance {i}", "./train_gpt2_cpu", [*OURS[BF16], "-l", f"{LR * (1 + 1e-6 * i):.12f}"])
              for i in range(1, BY_CHANCE)]
    return sorted(result.final() for result in [first, *others])


def chance(losses):
    return (f"{len(losses)} runs in bf16 with fp32 master weights, whose learning rates differ by millionths of "
            f"themselves, end between {losses[0]:.4f} and {losses[-1]:.4f}: differences of "
            f"{100 * (losses[-1] / losses[0] - 1):.1f}% are chance.")


def table_of_small_updates(results):
    lines = [f"{SMALL_STEPS} further steps from the weights with which fp32 ended, with a constant learning rate of "
             f"{SMALL_RATE:g}:", "", "| | validation loss before | after |", "|---|---|---|"]
    lines += [f"| {name} | {r.curve[0][1]:.4f} | {r.final():.4f} |" for name, r in results.items()]
    return "\n".join(lines)


def table(results, args):
    base = results.get("PyTorch, fp32", next(iter(results.values()))).final()
    lines = [f"Measured {time.strftime('%Y-%m-%d')} on {this_cpu()[1]} by `dev/quality.py`: {MODEL}, T {T}, B {B}, "
             f"{args.steps} steps from the same weights. PyTorch without torch.compile.", "",
             "| | bytes per parameter | ms per step | validation loss | from PyTorch in fp32 |",
             "|---|---|---|---|---|"]
    lines += [f"| {name} | {r.bytes:.1f} | {r.ms_text()} | {r.final():.4f} | {100 * (r.final() / base - 1):+.2f}% |"
              for name, r in results.items()]
    return "\n".join(lines)


def write(text):
    write_between(ROOT / "dev/course/11-sixteen-bits.md", "quality", text)
    write_between(ROOT / MEASURED, "quality", text + "\n\n![validation loss](plots/quality.svg)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--every", type=int, default=100, help="steps between validations, and between checkpoints")
    parser.add_argument("--fp16", metavar="PROGRAM", help="a trainer built with PRECISION=FP16, for the row of fp16")
    parser.add_argument("--again", action="store_true", help="begin anew")
    parser.add_argument("--write", action="store_true", help="put the table and the curves into the pages")
    args = parser.parse_args()
    folder = ROOT / f"build/quality_{args.steps}_{args.every}"
    if args.again:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    start = folder / "start/model_00000001.bin"
    if not start.exists():
        children.run(["./train_gpt2_cpu", "-e", MODEL, "-b", 1, "-t", T, "-x", 1, "-l", 0, "-v", 0, "-s", 0, "-o",
                      folder / "start", "--overwrite", 1], cwd=ROOT)

    def run_ours(name, program, flags):
        return ours(program, flags, start, args.steps, args.every, folder / slug(name))

    runs = {name: (lambda name=name, flags=flags: run_ours(name, "./train_gpt2_cpu", flags))
            for name, flags in OURS.items()}
    if args.fp16:
        runs[FP16] = lambda: run_ours(FP16, args.fp16, []).untimed()
    try:
        import torch  # noqa: F401
        runs["PyTorch, fp32"] = lambda: pytorch(start, args.steps, args.every, folder / "pytorch")
    except ImportError:
        print("PyTorch is not installed: this trainer alone (pip install torch adds the comparison)", file=sys.stderr)
    results = {}
    for name, run in runs.items():
        results[name] = run()
        print(f"{name:50} validation loss {results[name].final():.4f} after {args.steps} steps, "
              f"{results[name].ms_text()} ms per step", flush=True)
    last = folder / slug(FP32) / f"model_{args.steps:08d}.bin"
    in_bf16 = ends_by_chance(results[BF16], run_ours)
    small = table_of_small_updates(small_updates(folder, last))
    text = "\n\n".join([table(results, args), chance(in_bf16), small])
    print(text)
    picture = ROOT / "dev/plots/quality.svg" if args.write else folder / "quality.svg"
    picture.write_text(plot({name: r.curve for name, r in results.items()}))
    if args.write:
        write(text)
    base = results.get("PyTorch, fp32", next(iter(results.values()))).final()
    ends = {name: result.final() for name, result in results.items()} | {BF16: statistics.median(in_bf16)}
    worst = max(abs(loss / base - 1) for name, loss in ends.items() if name not in OTHERS)
    sys.exit(f"the runs end {100 * worst:.2f}% apart; 0.5% is expected") if worst > 0.005 else None


if __name__ == "__main__":
    main()
