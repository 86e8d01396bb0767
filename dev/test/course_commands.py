#!/usr/bin/env python3
"""Runs commands of the chapters as they stand there, and compares what they print with what the chapters say. Standard
library only.

    dev/test/course_commands.py killed     chapter 17: a run that is killed ends with the weights of one that is not
    dev/test/course_commands.py counted    chapter 14: sectors per request of three kernels (build-count/cuda/layernorm)
"""
import pathlib
import re
import subprocess
import sys
import tempfile

if sys.argv[1:] not in (["killed"], ["counted"]):
    sys.exit(print(__doc__) if "--help" in sys.argv else __doc__)

ROOT = pathlib.Path(__file__).resolve().parents[2]


def block_with(page, wanted):
    """The indented lines of a page among which one has `wanted`."""
    blocks = re.findall(r"(?:^    .*\n)+", (ROOT / "dev/course" / page).read_text(), re.M)
    return next(block for block in blocks if wanted in block)


def bash(commands):
    done = subprocess.run(["bash", "-c", commands], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


def killed(folder):
    said = bash(block_with("17-runs-that-survive.md", "kill -9").replace("log_", f"{folder}/log_"))
    assert said.endswith("\nequal\n"), said[-500:]
    resumed = re.search(r"going on from step (\d+)|resum\w+ .*?(\d+)", said)
    assert resumed, said


def counted(folder):
    block = block_with("14-moving-data.md", "CUSIM_COUNT").replace("build/counts.json", f"{folder}/counts.json")
    said = bash("".join(line for line in block.splitlines(True) if not line.startswith("    make ")))
    loads = re.findall(r"^ .*? global_load +(\d+) +(\d+) +\d+ +([\d.]+)$", said, re.M)
    table = block_of_table("| kernel | sectors per request for x |")
    for wanted in table:
        assert wanted in [(per, width) for width, _, per in loads], f"{wanted} is not among {loads}"


def block_of_table(head):
    """(sectors per request, bytes per lane) of the rows of chapter 14's table."""
    rows = (ROOT / "dev/course/14-moving-data.md").read_text().split(head)[1].split("\n\n")[0].splitlines()[2:]
    found = [(re.search(r"\| (\d+)[^|]*\|$", row)[1], (re.search(r"(\d+) bytes per lane", row) or [0, "2"])[1])
             for row in rows]
    assert len(found) == 3, rows
    return found


with tempfile.TemporaryDirectory() as folder:
    {"killed": killed, "counted": counted}[sys.argv[1]](folder)
