#!/usr/bin/env python3
"""dev/parallel/choose.py: a layout computed by hand, what must hold of all layouts, sizes of models, refusals; and the
tables of chapters 21 to 25 are what dev/parallel/published.py and on_gpus.py write. Standard library only."""
import math
import pathlib
import re
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev/parallel"))
import choose  # noqa: E402
import costs  # noqa: E402
import on_gpus  # noqa: E402
import published  # noqa: E402

MODEL = costs.Model(L=4, C=8, NH=2, T=4, V=128)
CARDS = costs.Cards(n=8, memory=1e6, flops=1e6, bytes_s=1e5, within=1e4, between=1e3, per_node=4, products=0.5,
                    memory_share=0.5, flash=False, hidden=0, sum_bytes=4)
LAYOUT = costs.Layout(d=2, p=2, t=2, B=1, v=1, sequence=False, zero=1, recompute="none")


def near(ours, by_hand):
    assert all(math.isclose(x, y, rel_tol=1e-9) for x, y in zip(ours, by_hand, strict=True)), (ours, by_hand)


def by_hand():
    """Eight sequences, so four micro-batches; a node has four cards, so stages are in different ones."""
    layers, first, last = 2 * ((768 + 56) / 2 + 48), 128 * 8 + 4 * 8, 128 * 8 + 2 * 8
    near(costs.stage_elems(MODEL, LAYOUT, 0), (layers, first))
    near(costs.stage_elems(MODEL, LAYOUT, 1), (layers, last))
    kept = [costs.kept_bytes(MODEL, LAYOUT._replace(sequence=s), again) for s in (False, True)
            for again in ("none", "selective", "full")]
    near(kept, (32 * (10 + 12 + 2.5), 32 * (10 + 12), 64, 32 * (17 + 2.5), 32 * 17, 32))
    # weights and fp32 gradients whole, half of the state; two micro-batches of two layers
    near([costs.memory_of(MODEL, CARDS, LAYOUT, 4)], [(2 + 4 + 12 / 2) * 1976 + 4 * 784])
    # 4 all-reduces of 64 bytes in each of two layers and one beside, of which each card sends half twice
    near(costs.tensor_wire(MODEL, CARDS, LAYOUT, 4), (4 * 9 * 64, 9 * 64 / 1e4 + 18e-5))
    # 32 bytes each way to another node, gathered by the neighbour
    near(costs.pipeline_wire(MODEL, CARDS, LAYOUT, 4), (4 * 64, 2 * (32 / 1e3 + 1e-5) + 64 / 1e4 + 2e-5))
    # half of 1976 gradients of 4 bytes, of weights of 2, in the node; wte's 1024 gradients to the other
    data_s = (988 * 4 + 988 * 2) / 1e4 + 2 * 3e-5 + 4096 / 1e3
    near(costs.data_wire(MODEL, CARDS, LAYOUT, 4, 0, 0), (988 * 4 + 988 * 2 + 4096, data_s))
    forward = 3328 / 5e5 + (32 * 30 + 13 * 16) / 5e4
    backward = 2 * 3328 / 5e5 + (32 * 38 + 19 * 16) / 5e4
    near(costs.layer_seconds(MODEL, CARDS, LAYOUT), (forward, backward))
    classifier, update = 6 * 256 * 8 / 5e5 + 10 * 256 / 5e4, 988 * 30 / 5e4
    stage = 2 * (forward + backward) + 0.05778 + 0.07044
    seconds = 4 * (stage + classifier) + stage + data_s + update
    cost = costs.cost_of(MODEL, CARDS, LAYOUT, 8)
    near([cost.seconds, cost.bubble, cost.share], [seconds, stage / seconds, 3 * 32 * 8704 / seconds / 8e6])
    # two chunks: half of a stage's time is idle, in which twice as much is sent on; a layer more is kept
    stage, cost = stage + 0.07044, costs.cost_of(MODEL, CARDS, LAYOUT._replace(v=2), 8)
    seconds = 4 * (stage + classifier) + stage / 2 + data_s + update
    near([cost.seconds, cost.bubble, cost.memory], [seconds, stage / 2 / seconds, 12 * 1976 + 5 * 784])


def stages_of_zero():
    """What is kept and sent in each stage, by the table of chapter 16; eight cards of which each has all layers."""
    places = 2 * (768 + 13 * 8) + (128 + 4 + 2) * 8  # two layers, and what is outside
    n = places + 2 * 872
    for zero, kept, sent in ((0, 18 * n, 2 * 4 * n), (1, 6 * n + 12 * n / 8, (4 + 2) * n),
                             (2, 2 * n + 16 * n / 8 + 4 * places, (4 * 2 + 2) * n),
                             (3, 18 * n / 8 + 6 * places, 4 * (2 + 2 + 2) * n)):
        layout = costs.Layout(8, 1, 1, 1, 1, False, zero, "full")
        near([costs.state_bytes(MODEL, layout, 0, 4), costs.data_wire(MODEL, CARDS, layout, 4, 0, 0)[0]],
             [kept, 7 / 8 * sent])


def all_layouts():
    """Layouts divide evenly; what a choice promises holds in each."""
    seen = set()
    for layout in choose.layouts_of(MODEL, CARDS, 16):
        assert layout not in seen and layout.d * layout.p * layout.t == 8, layout
        assert MODEL.L % (layout.p * layout.v) == 0 and MODEL.NH % layout.t == 0 and 16 % (layout.d * layout.B) == 0
        seen.add(layout)
        cost, m = costs.cost_of(MODEL, CARDS, layout, 16), 16 // layout.d // layout.B
        assert (cost.bubble == 0) == (layout.p == 1) and (cost.tensor == 0) == (layout.t == 1), layout
        if layout.sequence:
            without = costs.cost_of(MODEL, CARDS, layout._replace(sequence=False), 16)
            gathered = m * 2 * MODEL.L / layout.p * (layout.t - 1) / layout.t * 2 * layout.B * MODEL.T * MODEL.C
            assert cost.memory < without.memory and math.isclose(cost.tensor, without.tensor + gathered), layout
        if layout.v > 1:
            plain = costs.cost_of(MODEL, CARDS, layout._replace(v=1), 16)
            assert cost.pipeline == layout.v * plain.pipeline, layout
    assert {layout.zero for layout in seen if layout.p > 1} == {0, 1} and len(seen) > 200, len(seen)
    kept = [costs.kept_chunks(LAYOUT._replace(p=4, v=v), 8, stage) for v in (1, 2) for stage in (0, 3)]
    assert kept == [4, 1, 11, 5] and costs.kept_chunks(LAYOUT._replace(p=4), 2, 0) == 2, kept


def models():
    assert costs.model_elems(choose.model_of("d12")) == 124439808
    assert choose.model_of("gpt2:d48") == choose.model_of("d48") == (48, 1600, 25, 1024, 50257)
    assert choose.model_of("L2C8H2") == (2, 8, 2, 1024, 50257) and choose.model_of("V64T8H2C8L2") == (2, 8, 2, 8, 64)
    assert not any(map(choose.model_of, ("d13", "L2C8", "L2C9H2", "L2C8H2X", "L0C8H2", "")))
    for run in [*published.TABLE_1, *published.TABLE_2]:  # each row has the size by which the paper calls it
        assert f"{costs.model_elems(published.model_of_run(run)) / 1e9:.1f}B" == run.name, run


def program(*flags):
    done = subprocess.run([sys.executable, ROOT / "dev/parallel/choose.py", *map(str, flags)], text=True,
                          capture_output=True)
    return done.returncode, done.stdout, done.stderr


def shown_and_refused():
    status, said, _ = program("-e", "d48", "-pn", 8, "-d", 524288, "--top", 2)
    rows = re.findall(r"^\| (\d+) x (\d+) x (\d+) \|.*\| ([\d.]+) \| [\d.]+% \|$", said, re.M)
    assert status == 0 and len(rows) == 2 and float(rows[0][3]) <= float(rows[1][3]), said
    for words, what in ((["-e", "d13", "-pn", 8, "-d", 1024], "d13 is no model"),
                        (["-e", "d12", "-pn", 8, "-d", 1000], "1000 is no multiple of T, 1024"),
                        (["-e", "d12", "-pn", 0, "-d", 1024], "above 0"),
                        (["-e", "d12", "-pn", 8, "-d", 8192, "--within", "nan"], "above 0"),
                        (["-e", "d12", "-pn", 8, "-d", 8192, "--chip", "V100"], "A100")):
        status, said, error = program(*words)
        assert (status, said, error.count("\n")) == (2, "", 1) and what in error, (words, status, said, error)
    status, _, error = program("-e", "L88C8192H64T2048", "-pn", 8, "-d", 2097152)
    assert status == 1 and "the least that a layout takes is" in error and error.count("\n") == 1, error


def page():
    with tempfile.TemporaryDirectory() as folder:
        chapter = pathlib.Path(folder) / "chapter.md"
        chapter.write_text(published.CHAPTER.read_text())
        published.write_page(chapter)
        assert chapter.read_text() == published.CHAPTER.read_text(), "run dev/parallel/published.py --write"
    for page, text_of in on_gpus.PAGES.items():
        text = (on_gpus.COURSE / page).read_text()
        shown = f"<!-- on GPUs begin -->\n{text_of()}\n<!-- on GPUs end -->"
        assert shown in text, "run dev/parallel/on_gpus.py --write"
    _, found = published.table_1()
    assert all(0.8 < ratio < 1 for ratio, _, _ in found), found  # the chapter says: too fast, by much the same factor


by_hand()
stages_of_zero()
all_layouts()
models()
shown_and_refused()
page()
print("dev/parallel/choose.py: good")
