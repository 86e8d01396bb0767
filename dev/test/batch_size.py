#!/usr/bin/env python3
"""dev/batch_size.py: its arithmetic on numbers made up, a small experiment, and the page that it writes."""
import dataclasses
import json
import math
import pathlib
import sys
import tempfile
import xml.dom.minidom

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

from run_script import script

import batch_size


def arithmetic():
    assert batch_size.steps_to(2.0, [(0, 3.0), (10, 2.5), (20, 1.5), (30, 2.5), (40, 1.0)]) == 15
    assert batch_size.steps_to(2.0, [(0, 3.0), (10, 2.0)]) == 10
    late = [(step, 5.0 if step < 10 else step) for step in range(20)]
    assert batch_size.noise_scale(late, 20) == 14.5
    assert batch_size.noise_scale(late[:10] + [(step, math.nan) for step in range(10, 16)] + late[16:], 20) is None
    assert batch_size.steps_to(2.0, [(0, 3.0), (10, math.nan), (20, 2.5)]) is None
    points = [(b, 150 + 3e5 / b) for b in (128, 512, 2048, 8192)]
    least, tokens = batch_size.fit(points)
    assert math.isclose(least, 150, rel_tol=1e-6) and math.isclose(tokens, 3e5, rel_tol=1e-6), (least, tokens)
    least, tokens = batch_size.fit([(b, s * (1 + 0.02 * (-1) ** i)) for i, (b, s) in enumerate(points)])
    assert abs(least / 150 - 1) < 0.05 and abs(tokens / 3e5 - 1) < 0.05, (least, tokens)
    assert all(math.isnan(number) for number in batch_size.fit([(64, 10), (64, 12), (64, 11)]))
    for batch in batch_size.TOKENS:
        flags = dict(batch_size.flags_of(batch, "1e-3", batch_size.TOKENS[batch], 1))
        assert batch % (int(flags["-b"]) * batch_size.T * 2) == 0
        assert int(flags["-x"]) * batch <= batch_size.TOKENS[batch]


def experiment(folder):
    small = ["--folder", folder, "--batches", 512, 2048, 8192, "--scale", "0.1", "--most", "3"]
    said = script(batch_size, *small, "--target", "4.5")
    rows = [line for line in said.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert [row.split(" |")[0] for row in rows] == ["| 512", "| 2,048", "| 8,192"], said
    steps = [float(row.split(" | ")[2].replace(",", "")) for row in rows]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1] > 1, said
    noise = [row.split("|")[5].strip().replace(",", "") for row in rows]
    assert any(noise) and all(float(number) > 0 for number in noise if number), said
    again = script(batch_size, *small, "--target", "4.5")
    assert "6 of 6 runs are there already" in again and " left\n" not in again, again  # 3 first, then 2 beside each
    assert again[again.index("| tokens"):] == said[said.index("| tokens"):], again
    assert "no run reached a loss of 0.5" in script(batch_size, *small, "--target", "0.5", status=1)


def page(folder):
    runs = [{"batch": b, "rate": rate, "steps": None if b == 512 and rate > 1 else 150 * rate + 3e5 / b,
             "noise_scale": 1900.0} for b in (128, 512, 2048, 8192) for rate in (1.0, 2.0)]
    figures = {"model": "L1", "T": 64, "target": 2.4, "cpu": "a CPU", "runs": runs}
    chapter = folder / "chapter.md"
    chapter.write_text("above\n<!-- batch size begin -->\nold\n<!-- batch size end -->\nbelow\n")
    shown = dataclasses.replace(batch_size.SHOWN, figures=folder / "figures.json", page=chapter,
                                picture=folder / "picture.svg")
    shown.show(figures, write=True)
    text = chapter.read_text()
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert "S = 150 + 300,000 / B" in text and "critical batch size of 2,000 tokens" in text, text
    assert "| 2,048 | 1 | 296 | 607,200 | 1,900 |" in text, text
    circles = xml.dom.minidom.parse(str(folder / "picture.svg")).getElementsByTagName("circle")
    assert len(circles) == 7 + 4, len(circles)  # runs that reached the target, and the best of each batch
    figures = json.loads(batch_size.SHOWN.figures.read_text())
    for best in batch_size.best_of(figures):  # which lies between two others
        tried = [run["rate"] / best["rate"] for run in figures["runs"] if run["batch"] == best["batch"]]
        assert all(any(math.isclose(t, factor, rel_tol=0.1) for t in tried) for factor in (0.5, 2)), best


def main():
    arithmetic()
    with tempfile.TemporaryDirectory() as name:
        page(pathlib.Path(name))
        experiment(pathlib.Path(name) / "runs")
    print("dev/batch_size.py: good")


main()
