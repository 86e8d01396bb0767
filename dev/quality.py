#!/usr/bin/env python3
"""Does bf16 train as well as fp32? The same small run, from the same weights on the same batches: this trainer in fp32, in bf16 with fp32 master weights, in bf16
with stochastic rounding alone, and PyTorch in fp32. Ends with each one's validation loss; --write puts table and curves into dev/cpu/README.md.

    pip install torch        # without it: this trainer alone
    make train_gpt2_cpu data && python3 dev/quality.py [--steps 3000] [--write]
"""
import children
import argparse
import math
import pathlib
import re
import shutil
import sys
import time

from readme import write_between

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT / "dev/data"
L, C, NH, T, B, V = 4, 64, 2, 64, 4, 50257
LR, WARMUP, FRAC, DECAY, VAL_BATCHES = 2e-3, 100, 0.1, 0.1, 40
OURS = {"this trainer, fp32": ["--precision", "fp32"], "this trainer, bf16, fp32 master": ["--precision", "bf16"], "this trainer, bf16, stochastic rounding": ["--precision", "bf16", "-w", "0"]}


def ours(flags, start, steps, every, out):
    command = ["./train_gpt2_cpu", "-e", str(start), "-b", str(B), "-t", str(T), "-x", str(steps), "-k", "cosine", "-l", str(LR), "-u", str(WARMUP), "-q", str(FRAC), "-c", str(DECAY),
               "-v", str(every), "-m", str(VAL_BATCHES), "-s", "0", "--shuffle", "0", "-o", str(out), *flags]
    begin = time.perf_counter()
    children.run(command, cwd=ROOT)
    curve = [(int(s), float(l)) for s, l in re.findall(r"s:(\d+) tel:([\d.]+)", (out / "main.log").read_text())]
    return curve, time.perf_counter() - begin


def read_model(path):
    """name -> tensor of our model file, in Hugging Face's shapes but for the transposed Conv1D weights, which nn.Linear has as the file does."""
    import numpy as np
    raw = path.read_bytes()
    maxT, vocab, layers, _, c, padded = np.frombuffer(raw[:1024], "<i4")[2:8]
    data, at, tensors = np.frombuffer(raw[1024:], "<f4"), 0, {}
    shapes = [("wte", (padded, c)), ("wpe", (maxT, c))] + [(n, (layers, *s)) for n, s in [
        ("ln1w", (c,)), ("ln1b", (c,)), ("qkvw", (3 * c, c)), ("qkvb", (3 * c,)), ("projw", (c, c)), ("projb", (c,)), ("ln2w", (c,)), ("ln2b", (c,)),
        ("fcw", (4 * c, c)), ("fcb", (4 * c,)), ("outw", (c, 4 * c)), ("outb", (c,))]] + [("lnfw", (c,)), ("lnfb", (c,))]
    for name, shape in shapes:
        n = int(np.prod(shape))
        tensors[name] = data[at:at + n].reshape(shape).copy()
        at += n
    tensors["wte"] = tensors["wte"][:vocab]
    return tensors


def pytorch(start, steps, every):
    import numpy as np
    import torch
    import torch.nn.functional as F
    p = {n: torch.tensor(t).requires_grad_() for n, t in read_model(start).items()}
    matrices = [p[n] for n in ("wte", "wpe", "qkvw", "projw", "fcw", "outw")]
    others = [t for t in p.values() if not any(t is m for m in matrices)]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def loss_of(x, y):
        b = x.shape[0]
        h = p["wte"][x] + p["wpe"][:T]
        for l in range(L):
            q, k, v = (t.view(b, T, NH, C // NH).transpose(1, 2) for t in F.linear(F.layer_norm(h, (C,), p["ln1w"][l], p["ln1b"][l]), p["qkvw"][l], p["qkvb"][l]).split(C, 2))
            h = h + F.linear(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, T, C), p["projw"][l], p["projb"][l])
            wide = F.gelu(F.linear(F.layer_norm(h, (C,), p["ln2w"][l], p["ln2b"][l]), p["fcw"][l], p["fcb"][l]), approximate="tanh")
            h = h + F.linear(wide, p["outw"][l], p["outb"][l])
        return F.cross_entropy((F.layer_norm(h, (C,), p["lnfw"], p["lnfb"]) @ p["wte"].T).view(-1, V), y.reshape(-1))

    def windows(path):
        tokens = np.frombuffer(path.read_bytes()[1024:], "<u2").astype(np.int64)
        return lambda i: torch.from_numpy(tokens[i % ((len(tokens) - 1) // T) * T:][:T + 1].copy()), (len(tokens) - 1) // T
    (train, _), (val, val_windows) = windows(DATA / "shakespeare_train.bin"), windows(DATA / "shakespeare_val.bin")
    batch = lambda source, first: torch.stack([source(first + b) for b in range(B)])

    curve, begin = [], time.perf_counter()
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            with torch.no_grad():
                batches = min(VAL_BATCHES, val_windows // B)
                curve.append((step, sum(loss_of(w[:, :-1], w[:, 1:]).item() for w in (batch(val, i * B) for i in range(batches))) / batches))
        if step == steps:
            break
        w = batch(train, step * B)
        optimizer.zero_grad()
        loss_of(w[:, :-1], w[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
        low = FRAC * LR
        rate = LR * (step + 1) / WARMUP if step < WARMUP else low + (LR - low) * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return curve, time.perf_counter() - begin


def plot(curves):
    """The curves as an SVG, and below them how far each is from PyTorch's (or, without it, the first), in percent."""
    width, height, left, top, colors = 760, 300, 60, 20, ["#2563eb", "#d97706", "#059669", "#111827"]
    last = max(s for c in curves.values() for s, _ in c)
    base = dict(curves.get("PyTorch, fp32") or next(iter(curves.values())))
    shown = {n: [(s, l) for s, l in c if s > 0] for n, c in curves.items()}
    def panel(y0, lines, low, high, label):
        out = [f'<text x="{left}" y="{y0 - 6}">{label}</text>', f'<rect x="{left}" y="{y0}" width="{width - left - 20}" height="{height}" fill="none" stroke="#999"/>']
        px = lambda s: left + s / last * (width - left - 20)
        py = lambda v: y0 + height - (v - low) / (high - low) * height
        for i in range(5):
            v = low + (high - low) * i / 4
            out.append(f'<text x="{left - 6}" y="{py(v) + 4:.1f}" text-anchor="end">{v:.2f}</text><line x1="{left}" x2="{width - 20}" y1="{py(v):.1f}" y2="{py(v):.1f}" stroke="#eee"/>')
        for color, points in lines:
            out.append(f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{" ".join(f"{px(s):.1f},{py(max(low, min(high, v))):.1f}" for s, v in points)}"/>')
        return out
    losses = [l for c in shown.values() for _, l in c]
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{2 * height + 150}" font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    svg += panel(top, [(colors[i % 4], c) for i, c in enumerate(shown.values())], min(losses) - 0.1, max(losses) + 0.1, "validation loss")
    svg += panel(top + height + 40, [(colors[i % 4], [(s, 100 * (l / base[s] - 1)) for s, l in c]) for i, c in enumerate(shown.values())], -1, 1, "percent from PyTorch in fp32")
    for i, name in enumerate(curves):
        svg.append(f'<rect x="{left + 350 * (i % 2)}" y="{2 * height + 90 + 20 * (i // 2)}" width="14" height="10" fill="{colors[i % 4]}"/><text x="{left + 20 + 350 * (i % 2)}" y="{2 * height + 99 + 20 * (i // 2)}">{name}</text>')
    return "\n".join(svg + [f'<text x="{width - 20}" y="{2 * height + 74}" text-anchor="end">steps, 0 to {last}</text>', "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=int, default=100, help="steps between validations")
    parser.add_argument("--write", action="store_true", help="put the table and the curves into dev/cpu/README.md")
    args = parser.parse_args()
    folder = ROOT / "build/quality"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    children.run(["./train_gpt2_cpu", "-e", f"L{L}C{C}H{NH}T{T}", "-b", 1, "-t", T, "-x", 1, "-l", 0, "-v", 0, "-s", 0, "-o", folder / "start"],
                 cwd=ROOT)
    start, curves = folder / "start/model_00000001.bin", {}
    runs = {name: (lambda flags=flags, i=i: ours(flags, start, args.steps, args.every, folder / f"run{i}")) for i, (name, flags) in enumerate(OURS.items())}
    try:
        import torch  # noqa: F401
        runs["PyTorch, fp32"] = lambda: pytorch(start, args.steps, args.every)
    except ImportError:
        print("PyTorch is not installed: this trainer alone (pip install torch adds the comparison)", file=sys.stderr)
    for name, run in runs.items():
        curves[name], seconds = run()
        print(f"{name:40} validation loss {curves[name][-1][1]:.4f} after {args.steps} steps, {seconds:.0f} s", flush=True)
    final = {name: c[-1][1] for name, c in curves.items()}
    base = final.get("PyTorch, fp32", next(iter(final.values())))
    lines = [f"Measured {time.strftime('%Y-%m-%d')} by `dev/quality.py`: L{L}C{C}H{NH}, T {T}, B {B}, {args.steps} steps.", "", "| | validation loss | from PyTorch in fp32 |", "|---|---|---|"]
    lines += [f"| {name} | {loss:.4f} | {100 * (loss / base - 1):+.2f}% |" for name, loss in final.items()]
    print("\n".join(lines))
    svg = ROOT / "dev/cpu/charts/quality.svg" if args.write else folder / "quality.svg"
    svg.parent.mkdir(exist_ok=True)
    svg.write_text(plot(curves))
    if args.write:
        write_between(ROOT / "dev/cpu/README.md", "quality", "\n".join(lines) + "\n\n![validation loss](charts/quality.svg)")
    worst = max(abs(loss / base - 1) for loss in final.values())
    sys.exit(f"the runs end {100 * worst:.2f}% apart; 0.5% is expected") if worst > 0.005 else None


if __name__ == "__main__":
    main()
