#!/usr/bin/env python3
"""dev/optimizers.py at a tiny size: its table and picture, that the median of the seeds counts, and that runs which are
there are not run again."""
import math
import pathlib
import re
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import optimizers  # noqa: E402


def check(good, what):
    if not good:
        sys.exit(f"not so: {what}")


def bench(folder, *flags):
    command = [sys.executable, "dev/optimizers.py", "--steps", "8", "--model", "L1C16H1T64", "--most", "2", "--rounds",
               "1", "--folder", folder, *flags]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True)


def refused(text, *flags):
    """The script ends with one sentence that contains the text."""
    done = bench(*flags)
    check(done.returncode == 1 and text in done.stderr and done.stderr.count("\n") == 1, f"one sentence: {done}")


# The median of several runs, of which some may have diverged.
run = lambda *losses: {"curve": [[i + 1, loss] for i, loss in enumerate(losses)]}  # noqa: E731
of = optimizers.Searched("sgd", [], {0: [run(7, 5), run(), run(9, 8)], -1: [run(1, 1), run(), run()],
                                     1: [run(8, 8.25), run(6, 6), run(8, 8.5)]})
check((of.best, of.loss, of.losses) == (0, 8, [5, 8, math.inf]), f"the median: {of.best}, {of.loss}, {of.losses}")
check(of.curve() == [(1, 9), (2, 8)], f"medians by step: {of.curve()}")
check((of.rise(-1), of.rise(1), of.rise(2)) == ("diverges", "+0.25", "not run"), "the other rates")
lost = optimizers.Searched("sgd", [], {0: [run(), run(), run(5)]})
check(lost.loss == math.inf and lost.curve() == [(1, math.inf)], f"most runs have diverged: {lost.curve()}")
check([optimizers.loss_at([(2, 8), (4, 6)], step) for step in (1, 2, 3, 5)] == [8, 8, 7, 6], "between validations")
places = optimizers.apart([10, 11, 12, 50, 90, 91], 14)
check(places == [-3, 11, 25, 50, 83.5, 97.5], f"labels do not overlap: {places}")

with tempfile.TemporaryDirectory() as folder:
    only = ["--seeds", "42", "1", "--only", "sgd", "momentum", "adamw", "sm3", "adamw8bit", "adamw16bit"]
    first = bench(folder, *only)
    check(first.returncode == 0, first.stderr)
    rows = dict(re.findall(r"^\| (sgd|momentum|momentum, Nesterov|adamw\w*|sm3) \| ([\d.]+) \| ", first.stdout, re.M))
    factors = float(rows.pop("sm3", "nan"))
    check(0 < factors < 1, f"a few bytes of factors: {factors}\n{first.stdout}")
    check(rows == {"sgd": "0.0", "momentum": "4.0", "momentum, Nesterov": "4.0", "adamw": "8.0", "adamw8bit": "2.0",
                   "adamw16bit": "4.0"},
          f"bytes of state in the table: {rows}\n{first.stdout}")
    check("7 of 7 optimizers, 28 runs" in first.stdout, f"two rates, two seeds\n{first.stdout}")
    check("medians of seeds 42 and 1 of" in first.stdout, f"the caption\n{first.stdout}")
    drawn = (pathlib.Path(folder) / "optimizers.svg").read_text()
    names = re.findall(r"fill=\"#\w+\">([^<]+)</text>", drawn)
    check(sorted(names) == sorted(["adamw"] * 3 + ["sgd", "momentum", "momentum, Nesterov", "sm3", "adamw8bit",
                                                   "adamw16bit"]), f"the names of the lines: {names}")
    (pathlib.Path(folder) / "sgd_-1_42.json").unlink()
    again = bench(folder, *only)
    check("7 of 7 optimizers, 1 runs" in again.stdout, f"one run again\n{again.stdout}{again.stderr}")
    names = set(re.findall(r"^\| (\w+) \| ", again.stdout, re.M))
    check(names >= {"sgd", "adamw"}, f"a table, with {names}")
    third = bench(folder, "--only", "sgd")
    check("1 of 1 optimizers, 2 runs" in third.stdout, f"a third seed for two rates\n{third.stdout}{third.stderr}")
    row = re.search(r"^\| sgd \|(?:[^|]*\|){2} ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", third.stdout, re.M)
    check(row and row[2] < row[1] < row[3], f"the median lies between lowest and highest\n{third.stdout}")
    page = bench(folder, "--only", "sgd", "--page", "--rounds", "0")
    check("1 of 1 optimizers, 0 runs" in page.stdout and row[0] in page.stdout, f"the same\n{page.stdout}{page.stderr}")
    refused("has no times of adamw", folder, "--seeds", "42", "--only", "adamw", "--page", "--rounds", "0")
    refused("--page: lion has no rate with runs of all seeds", folder, "--only", "lion", "--page")
    other = bench(folder, "--only", "sgd", "--seeds", "42", "--steps", "9")
    check("1 of 1 optimizers, 2 runs" in other.stdout, f"other settings are other runs\n{other.stdout}{other.stderr}")
    refused("no such optimizer; there are adamw, adam, ", folder, "--only", "sgd", "foo")
refused("Not a directory", f"{__file__}/folder")
