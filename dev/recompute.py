#!/usr/bin/env python3
"""Memory against time of a training step at each recompute level: -r 0 to -r 3, and -r 4 for every k. Memory is that of
--plan and the measured peak of the process; time is the median of all steps but the first. Rounds are interleaved.

    make train_gpt2_cpu data && python3 dev/recompute.py [--model d12] [-b 4] [-t 256] [--csv FILE]

It also checks that all levels print the same losses and norms. --svg draws memory against time, --csv writes its
numbers: level, every, plan_mib, peak_mib, ms. --program runs another trainer; the peak of a GPU's process is that of
its host memory.
"""
import children
import argparse
import csv
import pathlib
import re
import statistics
import sys

import charts
import svg

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
    parser.add_argument("--svg", type=pathlib.Path)
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


def picture(rows, title):
    """Memory against time: a point for each level, and a curve through the k of -r 4. Each has an open ring at the peak
    and a filled dot at the plan."""
    width, height, left, top = 760, 340, 64, 64
    panel = charts.Panel(left, top, width - left - 40, height,
                         charts.around([ms for *_, ms in rows] + [min(ms for *_, ms in rows) * 0.97]),
                         (0, 1.05 * max(mib for _, _, plan, peak, _ in rows for mib in (plan, peak))))
    panel.frame(title, "ms per step")
    sweep = sorted((every, ms, plan) for level, every, plan, _, ms in rows if level == 4)
    panel.curve([(ms, plan) for _, ms, plan in sweep], svg.COLORS[1], 1, 0.5)
    taken = [(panel.x(ms) - 5, panel.y(mib) - 5, panel.x(ms) + 5, panel.y(mib) + 5)
             for _, _, plan, peak, ms in rows for mib in (plan, peak)]
    for level, every, plan, peak, ms in rows:
        color = svg.COLORS[level == 4]
        panel.marks([(ms, plan)], color)
        panel.parts.append(svg.ring(panel.x(ms), panel.y(peak), 4, color))
        name_beside(panel, panel.x(ms), panel.y(plan), f"k {every}" if level == 4 else f"-r {level}", taken)
    names = ["-r 0 to -r 3", "-r 4, every k", "dot: plan, ring: measured peak"]
    return svg.picture(width, top + height + 44, charts.SIZE,
                       charts.legend(left, 22, width - left, names, [*svg.COLORS[:2], "none"])[0] + panel.parts)


def name_beside(panel, x, y, name, taken):
    """Writes a name at a point, on the first side on which it covers nothing; nowhere if there is none."""
    width = svg.text_width(name, charts.SIZE) * 0.9
    for dx, dy in ((8, 4), (-8 - width, 4), (-width / 2, -9), (-width / 2, 18), (8, -7), (8, 15), (-8 - width, -7),
                   (-8 - width, 15)):
        box = x + dx, y + dy - 9, x + dx + width, y + dy + 2
        if box[2] < panel.left + panel.width + 36 and not any(
                box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
            taken.append(box)
            panel.parts.append(svg.text(x + dx, y + dy, name))
            return


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
    if args.svg:
        args.svg.write_text(picture(rows, f"MiB: {args.model}, B {args.b}, T {args.t}"))
    if len(set().union(*(s.numbers for s in settings))) != 1:
        sys.exit("the levels print other losses or norms than each other")


if __name__ == "__main__":
    main()
