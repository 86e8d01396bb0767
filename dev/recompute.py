#!/usr/bin/env python3
"""Memory against time of a training step at each recompute level: -r 0 to -r 3, and -r 4 for every k. Memory is that of
--plan and the measured peak of the process; time is the median of all steps but the first. Rounds are interleaved.

    make train_gpt2_cpu data && python3 dev/recompute.py [--model d12] [-b 4] [-t 256] [--csv FILE]

It also checks that all levels print the same losses and norms. --csv writes what a picture needs: level, every,
plan_mib, peak_mib, ms. --program runs another trainer; the peak of a GPU's process is that of its host memory.
"""
import children
import argparse
import csv
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
STEP = r"^step +(\d+)/\d+ \| loss (\S+).*?\| norm (\S+).*\| ([\d.]+) ms \|"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_gpt2_cpu")
    parser.add_argument("--model", default="d12")
    parser.add_argument("-b", type=int, default=4)
    parser.add_argument("-t", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--every", type=int, nargs="*", help="the k of -r 4; all from 1 to L unless given")
    parser.add_argument("--flags", default="", help="more flags for the trainer, as one word")
    parser.add_argument("--csv", type=pathlib.Path)
    return parser.parse_args()


class Setting:
    def __init__(self, args, level, every=0):
        self.level, self.every, self.ms, self.peak_mib, self.numbers = level, every, [], 0, set()
        self.flags = ["-r", level] + (["--recompute-every", every] if every else [])
        self.name = " ".join(map(str, self.flags))
        self.command = [args.program, "-e", args.model, "-b", args.b, "-t", args.t, "-x", args.steps + 1, "-v", 0,
                        "-s", 0, *args.flags.split(), *self.flags]
        plan, _ = children.run([*self.command, "--plan"], cwd=ROOT)
        self.layers = int(re.search(r"^model: L (\d+)", plan)[1])
        self.plan_mib = float(re.search(r"^total \d+ bytes, ([\d.]+) MiB", plan, re.M)[1])

    def run(self):
        output, peak = children.run(self.command, cwd=ROOT)
        steps = re.findall(STEP, output, re.M)
        self.ms += [float(ms) for number, _, _, ms in steps if int(number) > 1]
        self.peak_mib = max(self.peak_mib, peak)
        self.numbers.add(tuple((loss, norm) for _, loss, norm, _ in steps))


def main():
    args = arguments()
    settings = [Setting(args, level) for level in range(4)]
    layers = settings[0].layers
    settings += [Setting(args, 4, every) for every in args.every or range(1, layers + 1)]
    for _ in range(args.rounds):
        for setting in settings:
            setting.run()
    base = statistics.median(settings[0].ms)
    print(f"{args.model}, B {args.b}, T {args.t}, {layers} layers\n")
    print("| recompute | plan MiB | peak MiB | ms per step | times -r 0 |\n|---|---|---|---|---|")
    rows = []
    for s in settings:
        ms = statistics.median(s.ms)
        print(f"| {s.name} | {s.plan_mib:.0f} | {s.peak_mib:.0f} | {ms:.1f} | {ms / base:.3f} |")
        rows.append([s.level, s.every, s.plan_mib, round(s.peak_mib, 1), ms])
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            csv.writer(file).writerows([["level", "every", "plan_mib", "peak_mib", "ms"], *rows])
    if len(set().union(*(s.numbers for s in settings))) != 1:
        sys.exit("the levels print other losses or norms than each other")


main()
