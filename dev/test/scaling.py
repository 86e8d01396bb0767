#!/usr/bin/env python3
"""dev/scaling.py: its arithmetic on numbers made up, a small experiment, and what --plan says of the fit."""
import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))
if "--packages" in sys.argv:
    import scipy  # noqa: F401
    sys.exit(0)

from run_script import script

import one_day
import scaling

ROOT = pathlib.Path(__file__).resolve().parents[2]
scaling.REDRAWN = 2  # fits take seconds
TRUE = [1.3, 30.0, 0.42, 120.0, 0.36]


def made_up(noise=0.0):
    points = [(N, S) for N in (3e4, 2e5, 1e6, 5e6) for S in (3e5, 2e6, 1e7)]
    return [{"N": N, "S": S, "budget": 6 * N * S, "loss": scaling.predicted(TRUE, N, S) * (1 + noise * (-1) ** i)}
            for i, (N, S) in enumerate(points)]


def arithmetic():
    found = scaling.fits(made_up())[0]
    assert all(math.isclose(a, b, rel_tol=0.02) for a, b in zip(found, TRUE)), found
    noisy = {"runs": made_up(0.01), "fits": scaling.fits(made_up(0.01))}
    assert 0.005 < scaling.spread(noisy) < 0.02, scaling.spread(noisy)
    N, S = scaling.optimum(TRUE, 1e12)
    assert math.isclose(6 * N * S, 1e12)
    assert all(scaling.predicted(TRUE, N, S) < scaling.predicted(TRUE, k * N, S / k) for k in (0.9, 1.1))
    valley = [{"N": math.exp(x), "loss": 2 + (x - 11) ** 2} for x in (9, 10, 12)]
    at, loss = scaling.best_size(valley)
    assert math.isclose(at, math.exp(11)) and math.isclose(loss, 2, abs_tol=1e-9), (at, loss)
    assert scaling.best_size(valley[:2] + [{"N": math.exp(10.5), "loss": 2.25}]) is None  # beyond the last


def experiment(folder):
    flags = ["--folder", folder, "--budgets", "4e10", "8e10", "--val-batches", 4]
    assert "0 runs fit the budgets" in script(scaling, *flags, status=1)
    flags += ["--fewest-steps", 150]
    said = script(scaling, *flags)
    rows = re.findall(r"^\| [48]e\+10 \| (L\w+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|", said, re.M)
    assert [row[0] for row in rows] == ["L2C32H2", "L2C32H2", "L2C48H3"], said
    assert rows[0][1] == "33,696" and rows[0][2] == "157,696", rows  # 37,792 less 128 positions of 32 channels
    assert float(rows[1][3]) < float(rows[0][3]) < 4, rows
    assert said[said.index("| FLOPs"):] == (again := script(scaling, *flags))[again.index("| FLOPs"):]


def plan(steps, model="L4C96H4"):
    command = ["./train_gpt2_cpu", "--plan", "-e", f"{model}T128V257", "-b", 8, "-t", 128, "-x", steps]
    said = subprocess.run(map(str, command), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = re.search(r"to expect on the bytes of Shakespeare: ([\d.]+) \(([\d.]+) to ([\d.]+)\), by the fit to (\d+) "
                      r"runs of (\S+)", said)
    return found and [float(found[i]) for i in (1, 2, 3)] + [int(found[4]), found[5]]


def what_plan_says():
    figures = json.loads(scaling.SHOWN.figures.read_text())
    parameters, _ = scaling.shape("L4C96H4")
    loss, low, high, runs, date = plan(3000)
    fitted = [scaling.predicted(constants, parameters, 3000 * 1024) for constants in figures["fits"]]
    spread = scaling.spread(figures)
    assert abs(loss - fitted[0]) < 0.006 and (runs, date) == (len(figures["runs"]), figures["date"])
    assert abs(low - min(fitted) * (1 - spread)) < 0.006 and abs(high - max(fitted) * (1 + spread)) < 0.006
    assert plan(10) is None and plan(10 ** 6) is None  # fewer tokens than any run, and far more
    for run in figures["runs"]:  # what the page says of the fit is so of each run
        assert abs(math.log(run["loss"] / scaling.predicted(figures["fits"][0], run["N"], run["S"]))) < 5 * spread


def one_day_chosen():
    """A day is as many steps as it has time for, the size that does not fit is not chosen, nor one that has too little
    time."""
    args = argparse.Namespace(device="RTX 4090", hours=24, price=0.5, recompute=0, program="none")
    parameters = {"124M": 123.7e6, "350M": 353.8e6, "774M": 772.7e6}
    one_day.plan = lambda args, size, *_: (parameters[size], 20.0, size != "350M")
    found = one_day.candidates(args)
    assert [one["size"] for one in found] == list(parameters)
    for one in found:
        times = [ms * 512 / one["batch"] / 1e3 for ms in one["ms"]]  # of 2^19 tokens
        assert all(0 <= 86400 / seconds - steps < 1 for seconds, steps in zip(times, one["steps"])), one
        assert one["low"] < one["loss"] < one["high"]
    chosen = one_day.section(args)
    assert "So 124M for" in chosen and "19.00" not in chosen and "12.00" in chosen and chosen.count("too much") == 1
    one_day.plan = lambda args, size, *_: (parameters[size], 20.0, True)
    assert "So 350M for" in one_day.section(args)


def main():
    arithmetic()
    one_day_chosen()
    what_plan_says()
    with tempfile.TemporaryDirectory() as name:
        experiment(pathlib.Path(name) / "runs")
    print("dev/scaling.py: good")


main()
