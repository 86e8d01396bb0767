#!/usr/bin/env python3
"""dev/parallel/stale.py: its gradients against finite differences, which weights a late gradient is of, the highest
stable rate, a run of all kinds at a tiny size; and tables and picture of chapter 25 are what the figures say."""
import json
import math
import pathlib
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev/parallel"))
import stale  # noqa: E402

if "--packages" in sys.argv:
    sys.exit(0)
import numpy as np  # noqa: E402


def batch(rng, text):
    at = rng.integers(0, len(text) - stale.CONTEXT - 1, stale.BATCH)
    return text[at[:, None] + np.arange(stale.CONTEXT)], text[at + stale.CONTEXT]


def gradients_are_differences():
    rng = np.random.default_rng(1)
    text = rng.integers(0, 11, 1000)
    weights = stale.first_weights(rng, 11)
    x, y = batch(rng, text)
    loss = lambda: -np.log(stale.forward(weights, x)[0][np.arange(len(y)), y]).mean()
    for stage, gradients in zip(weights, stale.backward(weights, x, y, *stale.forward(weights, x)), strict=True):
        for w, g in zip(stage, gradients, strict=True):
            direction = rng.normal(0, 1, w.shape)
            w += 1e-5 * direction
            above = loss()
            w -= 2e-5 * direction
            slope = (above - loss()) / 2e-5
            w += 1e-5 * direction
            assert abs(slope - (g * direction).sum()) < 1e-6 * (1 + abs(slope)), (w.shape, slope)


def losses_by_list(delays, steps, stash):
    """SGD that keeps all weights there ever were, and takes of stage s those of `delays[s]` updates ago."""
    rng = np.random.default_rng(1)
    text, held = stale.read_bytes()
    all_weights = [stale.first_weights(rng, 1 + int(max(text.max(), held.max())))]
    places = np.random.default_rng(0).integers(0, len(held) - stale.CONTEXT - 1, 2048)
    for step in range(steps):
        seen = [all_weights[max(0, step - delay)][s] for s, delay in enumerate(delays)]
        x, y = batch(rng, text)
        gradients = stale.backward(seen if stash else all_weights[step], x, y, *stale.forward(seen, x))
        all_weights.append([[w - 0.1 * g for w, g in zip(*both)] for both in zip(all_weights[step], gradients)])
    return [stale.loss_of(weights, held, places) for weights in all_weights[1:]]


def late_by_so_many_updates():
    assert [stale.pipeline_delays(P) for P in (1, 2, 8)] == [[0] * 8, [1] * 4 + [0] * 4, list(range(7, -1, -1))]
    found = []
    for delays, stash in (([0] * 8, True), ([2] * 8, True), (stale.pipeline_delays(4), True),
                          (stale.pipeline_delays(4), False)):
        ours = [loss for _, loss in stale.train((delays, 0.1, "sgd", 1, 6, 1, stash))]
        assert np.allclose(ours, losses_by_list(delays, 6, stash), rtol=1e-9, atol=0), (delays, stash)
        found.append(ours[-1])
    assert len(set(found)) == 4, found  # each is another computation
    assert stale.train(([0] * 8, 1e3, "sgd", 1, 9, 1, True))[-1][1] == math.inf
    assert stale.medians([[(1, 3.0), (2, 1.0)], [(1, math.inf)], [(1, 4.0), (2, 2.0)]], 2, 1) == [4.0, 2.0]
    assert stale.medians([[(1, 3.0)], [(1, math.inf)], [(1, 4.0), (2, 2.0)]], 2, 1) == [4.0, math.inf]


def adam_is_its_formula():
    g, moments = np.array([3.0, -0.5]), np.zeros((2, 2))
    assert np.allclose(stale.adam(g, moments, 1), [1, -1]) and np.allclose(stale.adam(g, moments, 2), [1, -1])
    m, v = 0.9 * 0.19 * g + 0.1 * 1.0, 0.95 * 0.0975 * g * g + 0.05 * 1.0
    assert np.allclose(stale.adam(np.ones(2), moments, 3), m / (1 - 0.9 ** 3) / np.sqrt(v / (1 - 0.95 ** 3)), rtol=1e-6)


def stable_up_to_the_formula():
    for k in stale.DELAYS:
        for share, grows in ((0.98, False), (1.02, True)):
            w = [1.0] * (k + 1)
            for _ in range(60 * (k + 1) ** 2):
                w.append(w[-1] - share * stale.stable_rate(k) * w[-1 - k])
            assert (max(map(abs, w[-9 * (k + 1):])) > max(map(abs, w[:9 * (k + 1)]))) == grows, (k, share)


def all_kinds():
    """Two steps of one seed; and what the tables say of losses that are made up."""
    stale.SEEDS, stale.DELAYS, stale.RATES = (1,), (0, 2), {"sgd": [0.25, 0.125], "adam": [0.004]}
    figures = stale.run_all(2, 1)
    assert len(figures["runs"]) == 2 * 2 + 2 + 2 * 3 * 2, len(figures["runs"])
    for run in figures["runs"]:
        loss = {"sgd": 4 + run["delay"], "stashed": 3}.get(run["kind"], 5)
        run["curve"] = [4.9, loss if run["rate"] < 0.25 else None]
    tables = "\n".join([*stale.delay_table(figures), *stale.pipeline_table(figures)])
    for row in ("| 0 | 1.000 of 0's | 4.000 | 0.125 | 4.000 | 2 | 5.000 |",
                "| 2 | 0.309 of 0's | 6.000 | 0.125 | 6.000 | 1 |",
                "| 8 | 7 to 0 | 3.000 | never | diverges | 5.000 | 1 | diverges |"):
        assert row in tables, tables
    stale.picture(figures)


def page(folder):
    figures = json.loads(stale.FIGURES.read_text())
    for path in (stale.CHAPTER, stale.PICTURE):
        (folder / path.name).write_text(path.read_text())
    stale.write_page(figures, folder / stale.CHAPTER.name, folder / stale.PICTURE.name)
    for path in (stale.CHAPTER, stale.PICTURE):
        assert (folder / path.name).read_text() == path.read_text(), f"{path} is not what the figures say"
    for optimizer, rates in stale.RATES.items():  # the best rate lies between two others; later is no faster
        best = [stale.best_run(figures, optimizer, k)[0] for k in stale.DELAYS]
        assert min(rates) < min(best) and max(best) < max(rates) and best == sorted(best, reverse=True), best


if __name__ == "__main__":  # not in the processes that it starts
    with tempfile.TemporaryDirectory() as name:
        page(pathlib.Path(name))
    gradients_are_differences()
    late_by_so_many_updates()
    adam_is_its_formula()
    stable_up_to_the_formula()
    all_kinds()
    print("dev/parallel/stale.py: good")
