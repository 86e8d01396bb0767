#!/usr/bin/env python3
"""dev/sweep.py on models that train in a moment: grids, random search, the range test, what is resumed, what is
refused."""
import csv
import math
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.dom.minidom

from run_script import ROOT, run, script

sys.path.insert(0, str(ROOT / "dev"))
import sweep  # noqa: E402
from run_data import Run  # noqa: E402

TINY = ["./train_gpt2_cpu", "-e", "L1C16H1T16", "-t", "16", "-b", "2", "-m", "1", "-s", "0", "-x", "8", "-v", "4",
        "--threads", "1"]


def sweeps(*arguments, status=0):
    return script(sweep, *arguments, status=status)


def rows_of(folder):
    with open(folder / "sweep.csv") as file:
        return list(csv.DictReader(file))


def dots(path):
    return len(xml.dom.minidom.parse(str(path)).getElementsByTagName("circle"))


def grid(folder):
    vary = ["--vary=-l=1e-4,3e-2", "--vary=-c=0,0.1"]
    said = sweeps(folder, *vary, "--", *TINY)
    rows = rows_of(folder)
    assert {(row["-l"], row["-c"]) for row in rows} == {(l, c) for l in ("1e-4", "3e-2") for c in ("0", "0.1")}, rows
    losses = [float(row["val_loss"]) for row in rows]
    assert losses == sorted(losses) and rows[0]["-l"] == "3e-2", rows
    best = said.splitlines()[-1]
    assert best == " ".join([*TINY, "-l", rows[0]["-l"], "-c", rows[0]["-c"]]), said
    for row in rows:  # what the table says is what a run by hand gives
        out = folder / "by_hand"
        run(*TINY, "-l", row["-l"], "-c", row["-c"], "-o", out, "--overwrite", "1")
        hand = Run(out).series
        assert math.isclose(hand["val_loss"][-1][1], float(row["val_loss"])), row
        assert math.isclose(hand["loss"][-1][1], float(row["train_loss"])), row  # a tenth of 8 steps is one
    assert dots(folder / "sweep.svg") == 2 * (4 + 1)  # two panels, in each the four runs, the best marked
    assert not list(folder.glob("*/model_0*.bin")) or list(folder.glob("by_hand/model_0*.bin")), "models are kept"
    said = sweeps(folder, *vary, "--", *TINY)
    assert "4 of 4 runs are there already" in said and best in said, said
    said = sweeps(folder, "--vary=-l=1e-4,3e-2,1e-3", "--vary=-c=0,0.1", "--", *TINY)
    assert "4 of 6 runs are there already" in said and len(rows_of(folder)) == 6, said
    said = sweeps(folder, *vary, "--", *TINY, "-u", "1", status=1)
    assert "holds runs of another command" in said, said


def random_search(folder):
    vary = ["--random", "5", "--vary=-l=1e-4:1e-2", "--vary=-u=1:6", "--vary=-k=cosine,linear"]
    sweeps(folder, *vary, "--", *TINY)
    rows = rows_of(folder)
    assert len(rows) == 5 and all(1e-4 <= float(r["-l"]) <= 1e-2 and r["-u"] in "123456" for r in rows), rows
    assert len({row["-l"] for row in rows}) == 5 and {row["-k"] for row in rows} <= {"cosine", "linear"}
    assert "5 of 5 runs are there already" in sweeps(folder, *vary, "--", *TINY)  # the same draws
    assert "5 of 5" not in sweeps(folder, *vary, "--seed", "1", "--", *TINY)
    assert "have only 2 combinations" in sweeps(folder, "--random", "3", "--vary=-c=0,1", "--", *TINY, status=1)


def diverging(folder):
    said = sweeps(folder, "--vary=-l=1e-3,1e30", "--", *TINY, "--grad-clip", "0", "-c", "1", "-k", "constant")
    assert [row["status"] for row in rows_of(folder)] == ["done", "not finite"] and "not finite" in said, said
    assert said.splitlines()[-1].endswith("-l 1e-3")


def range_test(folder):
    long = [word if word != "8" else "60" for word in TINY]
    said = sweeps(folder, "--lr-range", "0.3", "--", *long)
    found = re.search(r"fastest at (\S+), and is lowest at (\S+);", said)
    steepest, lowest = map(float, found.groups())
    assert 0 < steepest <= lowest <= 0.3 and "-l" in said.splitlines()[-1], said
    [trained] = folder.glob("u=60*")
    rates = [rate for _, rate in Run(trained).series["learning_rate"]]
    assert len(rates) == 60
    assert all(math.isclose(rate, 0.3 * (i + 1) / 60, rel_tol=1e-6) for i, rate in enumerate(rates))
    xml.dom.minidom.parse(str(folder / "sweep.svg"))


def interrupted(folder):
    """A sweep that is interrupted goes on with the runs that it has not finished."""
    long = [word if word != "8" else "200" for word in TINY]
    command = [sys.executable, ROOT / "dev/sweep.py", folder, "--jobs", "1", "--vary=-l=1e-3,2e-3,3e-3", "--", *long]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "1/3 " in process.stdout.readline()
    while not (folder / "l=2e-3/metrics.csv").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "Traceback" not in said, said
    said = sweeps(folder, "--jobs", "1", "--vary=-l=1e-3,2e-3,3e-3", "--", *long)
    assert "1 of 3 runs are there already" in said and len(rows_of(folder)) == 3, said
    assert [row["steps"] for row in rows_of(folder)] == ["200"] * 3
    run(*long, "-l", "2e-3", "-o", folder / "by_hand")
    [row] = [row for row in rows_of(folder) if row["-l"] == "2e-3"]
    assert math.isclose(Run(folder / "by_hand").series["val_loss"][-1][1], float(row["val_loss"])), row


def refused(folder):
    for arguments, sentence in [
            (["--vary=-l=1", "--"], "the command of the trainer is missing"),
            (["--", *TINY], "one of them is accepted"),
            (["--vary=-l", "--", *TINY], "FLAG=a,b,c or FLAG=LOW:HIGH"),
            (["--vary=-l=1,,2", "--", *TINY], "has an empty value"),
            (["--vary=-l=1:x", "--random", "2", "--", *TINY], "must be numbers"),
            (["--vary=-l=2:1", "--random", "2", "--", *TINY], "0 < LOW < HIGH"),
            (["--vary=-l=1:2", "--", *TINY], "with --random N"),
            (["--vary=-l=1", "--vary=-l=2", "--", *TINY], "-l varies twice"),
            (["--vary=-l=1", "--", *TINY, "-o", "here"], "-o is what the sweep sets"),
            (["--vary=-l=1", "--", "./no_trainer"], "is no program"),
            (["--lr-range", "nan", "--", *TINY], "must be above 0")]:
        assert sentence in sweeps(folder, *arguments, status=2), arguments
    assert not folder.exists()
    assert "--no-flag" in sweeps(folder, "--vary=--no-flag=1", "--", *TINY, status=1)
    assert "20 steps or more" in sweeps(folder.with_name("range2"), "--lr-range", "1", "--", *TINY, status=1)


def main():
    with tempfile.TemporaryDirectory() as name:
        for test in (grid, random_search, diverging, range_test, interrupted, refused):
            begin = time.monotonic()
            test(pathlib.Path(name) / test.__name__)
            print(f"{test.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


main()
