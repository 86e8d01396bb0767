#!/usr/bin/env python3
"""What watching a run costs: the time of a step without -o, and with all that it then records of every step
(metrics.csv, with the noise scale). The model is that of quickstart on bytes, whose steps are short. Both kinds of run
alternate; every run counts by the median of its steps, each kind by its best run. Standard library only.

    dev/metrics_cost.py [--rounds 4] [--steps 150] [--threads N]"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEXT = "dev/data/shakespeare/hamlet.txt"
RUN = "./train_gpt2_cpu -e L4C192H6T128V257 -b 4 -t 128 -d 1024 -v 0 -s 0".split()


def step_ms(flags):
    out = subprocess.run([*RUN, *flags], check=True, stdout=subprocess.PIPE, text=True).stdout
    steps = [float(ms) for ms in re.findall(r"^step .*\| ([0-9.]+) ms \|", out, re.M)]
    return statistics.median(steps[len(steps) // 10:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--threads", default="")
    args = parser.parse_args()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["./tokenize", TEXT, "--bytes", "1", "-o", f"{folder}/t"], check=True, stdout=subprocess.DEVNULL)
        flags = ["-i", f"{folder}/t_train.bin", "-x", str(args.steps)]
        flags += ["--threads", args.threads] if args.threads else []
        without, recorded = [], []
        for number in range(args.rounds):
            without.append(step_ms(flags))
            recorded.append(step_ms([*flags, "--noise-scale", "1", "-o", f"{folder}/{number}"]))
    cost = 100 * (min(recorded) / min(without) - 1)
    print(f"a step takes {min(without):.2f} ms, and {min(recorded):.2f} ms with metrics.csv and the noise scale: "
          f"{cost:+.1f}%")


main()
