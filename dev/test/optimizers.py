#!/usr/bin/env python3
"""dev/optimizers.py at a tiny size: its table and picture, and that runs which are there are not run again."""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(good, what):
    if not good:
        sys.exit(f"not so: {what}")


def bench(folder, *flags):
    command = [sys.executable, "dev/optimizers.py", "--steps", "12", "--model", "L1C16H1T64", "--most", "2", "--folder",
               folder, *flags]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True)


with tempfile.TemporaryDirectory() as folder:
    only = ["--only", "sgd", "momentum", "adamw", "sm3", "adamw8bit", "adamw16bit"]
    first = bench(folder, *only)
    check(first.returncode == 0, first.stderr)
    rows = dict(re.findall(r"^\| (sgd|momentum|momentum, Nesterov|adamw\w*|sm3) \| ([\d.]+) \| ", first.stdout, re.M))
    factors = float(rows.pop("sm3", "nan"))
    check(0 < factors < 1, f"a few bytes of factors: {factors}\n{first.stdout}")
    check(rows == {"sgd": "0.0", "momentum": "4.0", "momentum, Nesterov": "4.0", "adamw": "8.0", "adamw8bit": "2.0",
                   "adamw16bit": "4.0"},
          f"bytes of state in the table: {rows}\n{first.stdout}")
    check("7 of 7 optimizers, 14 runs" in first.stdout, f"two runs each\n{first.stdout}")
    check((pathlib.Path(folder) / "optimizers.svg").read_text().count("<polyline") > 8, "curves in the picture")
    (pathlib.Path(folder) / "sgd_0.json").unlink()
    again = bench(folder, *only)
    check("7 of 7 optimizers, 1 runs" in again.stdout, f"one run again\n{again.stdout}{again.stderr}")
    names = set(re.findall(r"^\| (\w+) \| ", again.stdout, re.M))
    check(names >= {"sgd", "adamw"}, f"a table, with {names}")
    other = bench(folder, "--only", "sgd", "--steps", "13")
    check("1 of 1 optimizers, 2 runs" in other.stdout, f"other settings are other runs\n{other.stdout}{other.stderr}")
