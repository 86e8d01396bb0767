#!/usr/bin/env python3
"""What do gradients cost that come late? Trains a small network on the bytes of Shakespeare in one process, as several
would that do not wait for each other: a parameter server, whose gradients are k updates old, and PipeDream, whose
stages each have a delay of their own, with and without keeping the weights of the forward pass (weight stashing).

    dev/parallel/stale.py [--write]

Needs numpy; a few minutes on two idle cores. --write keeps the figures in dev/course/stale.json, and puts tables and
picture into dev/course/25-which-split.md; --page does so from the figures that are there.
"""
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

import os  # noqa: E402
import pathlib  # noqa: E402

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the products are small
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import collections  # noqa: E402
import functools  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import statistics  # noqa: E402
from concurrent.futures import ProcessPoolExecutor  # noqa: E402

import numpy as np  # noqa: E402

import charts  # noqa: E402
import readme  # noqa: E402
import svg  # noqa: E402

CHAPTER, FIGURES = ROOT / "dev/course/25-which-split.md", ROOT / "dev/course/stale.json"
PICTURE = ROOT / "dev/course/pictures/stale.svg"
CONTEXT, EMBEDDING, WIDTH, BLOCKS, BATCH = 8, 16, 64, 6, 64
STAGES = BLOCKS + 2
DELAYS, SEEDS, STEPS, EVERY = (0, 1, 2, 4, 8, 16), (1, 2, 3), 1000, 20
RATES = {"sgd": [2.0 ** -i for i in range(1, 8)], "adam": [0.008 * 2.0 ** -i for i in range(6)]}
PIPELINES = (2, 4, 8)


# ---- the network: a stage is a list of arrays

@functools.cache
def read_bytes():
    """Training and validation text, as numbers from 0 to the number of different bytes."""
    text = b"".join(path.read_bytes() for path in sorted((ROOT / "dev/data/shakespeare").glob("*.txt")))
    _, numbers = np.unique(np.frombuffer(text, np.uint8), return_inverse=True)
    cut = len(numbers) * 9 // 10
    return numbers[:cut], numbers[cut:]


def first_weights(rng, symbols):
    normal = lambda rows, columns: rng.normal(0, rows ** -0.5, (rows, columns))
    blocks = [[normal(WIDTH, WIDTH) / 2, np.zeros(WIDTH)] for _ in range(BLOCKS)]
    return [[rng.normal(0, 1, (symbols, EMBEDDING)), normal(CONTEXT * EMBEDDING, WIDTH), np.zeros(WIDTH)], *blocks,
            [normal(WIDTH, symbols), np.zeros(symbols)]]


# h = tanh(E[x] W + b), then h += tanh(h W + b) in each block, then softmax(h W + b).
def forward(weights, x):
    """Probabilities, and what the backward pass needs."""
    (E, W, b), *blocks, (Wv, bv) = weights
    e = E[x].reshape(len(x), -1)
    h = np.tanh(e @ W + b)
    kept = [(e, h)]
    for W, b in blocks:
        a = np.tanh(h @ W + b)
        kept.append((h, a))
        h = h + a
    logits = h @ Wv + bv
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True), kept, h


# Dlogits = (p - onehot) / B; of a block Da = Dh (1 - a^2), DW = h^T Da, Dh += Da W^T.
def backward(weights, x, y, p, kept, h):
    """The gradients; weights: those that the products with W^T read."""
    d = p.copy()
    d[np.arange(len(y)), y] -= 1
    d /= len(y)
    gradients = [[h.T @ d, d.sum(0)]]
    dh = d @ weights[-1][0].T
    for (W, _), (inp, a) in zip(weights[-2:0:-1], kept[:0:-1]):
        da = dh * (1 - a * a)
        gradients.insert(0, [inp.T @ da, da.sum(0)])
        dh = dh + da @ W.T
    e, h = kept[0]
    da, dE = dh * (1 - h * h), np.zeros_like(weights[0][0])
    np.add.at(dE, x, (da @ weights[0][1].T).reshape(*x.shape, EMBEDDING))
    return [[dE, e.T @ da, da.sum(0)], *gradients]


def loss_of(weights, text, places):
    p, _, _ = forward(weights, text[places[:, None] + np.arange(CONTEXT)])
    return float(-np.log(np.maximum(p[np.arange(len(places)), text[places + CONTEXT]], 1e-30)).mean())


# ---- training with delays

# Delay of stage s in a pipeline of P that never waits: P - 1 - s updates have passed between forward and backward of a
# micro-batch (Harlap et al. 2018, arXiv:1806.03377, section 3.3). Here stages are groups of the network's.
def pipeline_delays(P):
    return [P - 1 - s * P // STAGES for s in range(STAGES)]


def train(task):
    """Validation losses [(step, loss)] of a run, which ends with an infinite one if it diverges. A gradient is computed
    with weights that are `delays` updates old, one number a stage; without stashing the backward pass reads those of
    now."""
    delays, rate, optimizer, seed, steps, every, stash = task
    np.seterr(all="ignore")  # of runs that diverge
    rng = np.random.default_rng(seed)
    text, held = read_bytes()
    weights = first_weights(rng, int(max(text.max(), held.max())) + 1)
    moments = [[np.zeros((2, *w.shape)) for w in stage] for stage in weights]
    places = np.random.default_rng(0).integers(0, len(held) - CONTEXT - 1, 2048)
    history, losses = collections.deque(maxlen=max(delays) + 1), []
    for step in range(steps):
        history.append([[w.copy() for w in stage] for stage in weights])
        old = [history[max(0, len(history) - 1 - delay)][s] for s, delay in enumerate(delays)]
        at = rng.integers(0, len(text) - CONTEXT - 1, BATCH)
        x, y = text[at[:, None] + np.arange(CONTEXT)], text[at + CONTEXT]
        gradients = backward(old if stash else weights, x, y, *forward(old, x))
        for stage, gs, ms in zip(weights, gradients, moments):
            for w, g, m in zip(stage, gs, ms):
                w -= rate * (g if optimizer == "sgd" else adam(g, m, step + 1))
        if (step + 1) % every == 0:
            losses.append((step + 1, loss_of(weights, held, places)))
            if not losses[-1][1] < 2 * math.log(256):
                return [*losses[:-1], (step + 1, math.inf)]
    return losses


def adam(g, m, t, beta1=0.9, beta2=0.95):
    m[0] += (1 - beta1) * (g - m[0])
    m[1] += (1 - beta2) * (g * g - m[1])
    return m[0] / (1 - beta1 ** t) / (np.sqrt(m[1] / (1 - beta2 ** t)) + 1e-8)


def medians(runs, steps, every):
    """The median over seeds at each validation, infinite from where most have diverged."""
    at = [dict(losses) for losses in runs]
    return [statistics.median(one.get(step, math.inf) for one in at) for step in range(every, steps + 1, every)]


def run_all(steps, every):
    """Of each kind, delay (stages) and rate the median curve, and the losses of all seeds at the end."""
    kinds = [(optimizer, k, [k] * STAGES, optimizer, True) for optimizer in RATES for k in DELAYS]
    kinds += [(name, P, pipeline_delays(P), "sgd", name == "stashed") for name in ("stashed", "not stashed")
              for P in PIPELINES]
    runs = [(kind, delay, rate, [(delays, rate, optimizer, seed, steps, every, stash) for seed in SEEDS])
            for kind, delay, delays, optimizer, stash in kinds for rate in RATES[optimizer]]
    json_of = lambda losses: [round(loss, 3) if math.isfinite(loss) else None for loss in losses]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        all_losses = iter(list(pool.map(train, [task for *_, tasks in runs for task in tasks])))
    figures = []
    for kind, delay, rate, tasks in runs:
        of_seeds = [next(all_losses) for _ in tasks]
        figures.append({"kind": kind, "delay": delay, "rate": rate, "curve": json_of(medians(of_seeds, steps, every)),
                        "ends": json_of(losses[-1][1] for losses in of_seeds)})
    return {"steps": steps, "every": every, "runs": figures}


# ---- figures, tables, picture

# w <- w - rate c w(k updates ago) has solutions z^step with z^(k+1) - z^k + rate c = 0. All |z| < 1 if and only if
#     rate c < 2 sin(pi / (2 (2 k + 1))):    2, 1, 0.618, 0.347, 0.185, 0.095 for k = 0, 1, 2, 4, 8, 16
def stable_rate(k):
    """The highest rate, in units of 1 / curvature."""
    return 2 * math.sin(math.pi / (2 * (2 * k + 1)))


def best_run(figures, kind, delay, only_rate=None):
    """(rate, [(step, loss)]) with the lowest loss at the end."""
    curves = [(run["rate"], [(figures["every"] * (i + 1), math.inf if loss is None else loss)
                             for i, loss in enumerate(run["curve"])]) for run in figures["runs"]
              if (run["kind"], run["delay"]) == (kind, delay) and only_rate in (None, run["rate"])]
    return min(curves, key=lambda one: one[1][-1][1])


def steps_to(target, curve):
    return next((step for step, loss in curve if loss <= target), None)


def shown(loss):
    return f"{loss:.3f}" if math.isfinite(loss) else "diverges"


def as_much_as(loss, base):
    """How soon the run without delay has such a loss."""
    return steps_to(loss, base) or "never"


def delay_table(figures):
    lines = ["| updates late | highest stable rate | SGD, rate of 0 late | best rate | loss | 0 late has that after "
             "steps | Adam, rate of 0 late | best rate | loss | 0 late has that after steps |", "|" + "---|" * 10]
    for k in DELAYS:
        row = f"| {k} | {stable_rate(k) / stable_rate(0):.3f} of 0's |"
        for optimizer in RATES:
            rate0, base = best_run(figures, optimizer, 0)
            rate, curve = best_run(figures, optimizer, k)
            _, same = best_run(figures, optimizer, k, rate0)
            row += f" {shown(same[-1][1])} | {rate:g} | {shown(curve[-1][1])} | {as_much_as(curve[-1][1], base)} |"
        lines.append(row)
    return lines


def pipeline_table(figures):
    """Losses at the rate that is best without delay, and at twice that rate."""
    rate0, base = best_run(figures, "sgd", 0)
    end = lambda kind, delay, rate: best_run(figures, kind, delay, rate)[1][-1][1]
    lines = [f"| stages | updates late | stashed, rate {rate0:g} | 0 late has that after steps | rate {2 * rate0:g} "
             f"| not stashed, rate {rate0:g} | 0 late has that after steps | rate {2 * rate0:g} |", "|" + "---|" * 8]
    for P in (1, *PIPELINES):
        row = f"| {P} | {f'{P - 1} to 0' if P > 1 else 0} |"
        for kind in ("stashed", "not stashed"):
            key = (kind, P) if P > 1 else ("sgd", 0)
            loss = end(*key, rate0)
            row += f" {shown(loss)} | {as_much_as(loss, base)} | {shown(end(*key, 2 * rate0))} |"
        lines.append(row)
    return lines


def picture(figures):
    """Losses against steps by delay, at the best rate of no delay and at the best of each."""
    colors, last = svg.colors(len(DELAYS)), best_run(figures, "adam", 0)[1][-1][1]
    panels, parts = [("SGD, rate of 0 late", "sgd", True), ("SGD, each at its best rate", "sgd", False),
                     ("Adam, rate of 0 late", "adam", True)], []
    for i, (title, kind, same) in enumerate(panels):
        rate0, base = best_run(figures, kind, 0)
        panel = charts.Panel(50 + 310 * i, 40, 250, 230, (0, figures["steps"]), (0.97 * last, 1.1 * base[0][1]))
        panel.frame(title, "steps")
        for color, k in zip(colors, DELAYS):
            _, curve = best_run(figures, kind, k, rate0 if same else None)
            top = panel.y_range[1]
            panel.curve([(s, min(loss, top) if math.isfinite(loss) else math.nan) for s, loss in curve], color)
        parts += panel.parts
    names, _ = charts.legend(50, 325, 850, [f"{k} late" for k in DELAYS], colors)
    return svg.picture(940, 340, charts.SIZE, [*parts, *names])


def write_page(figures, chapter, image):
    image.write_text(picture(figures))
    note = (f"Losses per byte of text that was not trained on, after {figures['steps']:,} steps of {BATCH} bytes;\n"
            f"medians of {len(SEEDS)} seeds.")
    readme.write_between(chapter, "late gradients", "\n".join(
        [*delay_table(figures), "", note, "", f"![Losses with late gradients](pictures/{image.name})"]))
    readme.write_between(chapter, "pipelines", "\n".join(pipeline_table(figures)))


def main():
    if "--page" in sys.argv:
        if not FIGURES.exists():
            sys.exit(f"{FIGURES} is not there; --write makes it")
        return write_page(json.loads(FIGURES.read_text()), CHAPTER, PICTURE)
    figures = run_all(STEPS, EVERY)
    print("\n".join([*delay_table(figures), "", *pipeline_table(figures)]))
    if "--write" in sys.argv:
        readme.replace(FIGURES, json.dumps(figures, separators=(",", ":")) + "\n")
        write_page(figures, CHAPTER, PICTURE)


if __name__ == "__main__":
    main()
