#!/usr/bin/env python3
"""From the GPT-2 of quickstart to the best model in the same time, one change a rung, over several seeds.

    make train_gpt2_cpu build/modern tokenize && dev/modern/ladder.py [--seconds 60] [--seeds 3] [--write]

The first rung is quickstart's model, trained by train_gpt2_cpu with AdamW. Each further one is the model so far with
one change, and takes the place of the model so far if its loss at equal time is lower. Every rung is trained twice with
each seed: for as many steps as take as long as the first rung's, and for as many steps as the first rung had. Both
times the rate falls as quickstart's does, over the steps of the run. How long a step takes is processor time on one
core, measured beside the first rung's, one after the other. Losses are bits per byte of the validation text: the mean
over the seeds, and half the distance between the best and the worst.

It goes on where it was interrupted. --write keeps the figures in dev/course/ladder.json, puts table and picture into
dev/course/30-after-gpt-2.md, and with quickstart's -b 16 the flags of the best model into dev/modern/best_flags, which
`make quickstart MODEL=modern` reads; --page does so from the figures that are there.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import argparse  # noqa: E402
import concurrent.futures  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import resource  # noqa: E402
import struct  # noqa: E402
import textwrap  # noqa: E402
import time  # noqa: E402

import charts  # noqa: E402
import readme  # noqa: E402
import shakespeare_tokens  # noqa: E402
import svg  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
COURSE, BEST_FLAGS = ROOT / "dev/course", ROOT / "dev/modern/best_flags"
T, ROUNDS = 128, 3
QUICKSTART_B = 16
SHAPE = {"-e": "L4C192H6T128V4096"}
ADAMW, MUON = {"--optimizer": "adamw", "-l": "2e-3"}, {"--optimizer": "muon", "-l": "1e-2"}
GPT2 = {**SHAPE, **ADAMW}
BARE = {**GPT2, "--mlp": "gelu", "--norm": "layer", "--positions": "learned"}
STEPS = "{steps}"  # in a flag: the steps of the run
CHANGES = [  # the flags that a change has other than the model so far
    ("rotary positions", {"--positions": "rotary"}),
    ("RMSNorm for layer norm", {"--norm": "rms"}),
    ("ReLU squared for GELU", {"--mlp": "relu2"}),
    ("SwiGLU in its place", {"--mlp": "swiglu"}),
    ("Muon for AdamW", MUON),
    ("QK norm", {"--qk-norm": 1}),
    ("an untied head", {"--tied": 0}),
    ("value residuals", {"--value-residual": 1}),
    ("window warmup", {"--window-warmup": STEPS}),
    ("2 heads of keys for 6", {"-e": SHAPE["-e"] + "K2"}),
    ("a soft cap of 15", {"--softcap": 15}),
]


def words(flags):
    return " ".join(f"{flag} {value}" for flag, value in flags.items())


def tokens_per_byte(data, windows):
    """Of the validation text: its tokens, and the bytes that they stand for."""
    text = pathlib.Path(f"{data}_tokenizer.bin").read_bytes()
    lengths, at = [], 1024
    while at < len(text):
        lengths.append(text[at])
        at += 1 + text[at]
    end_of_text = struct.unpack_from("<I", text, 12)[0]
    shard = pathlib.Path(f"{data}_val.bin").read_bytes()[1024:]
    tokens = struct.unpack(f"<{len(shard) // 2}H", shard)[1:windows * T + 1]
    return len(tokens) / sum(0 if token == end_of_text else lengths[token] for token in tokens)


class Ladder:
    """What has been measured, in a file that grows with every run."""

    def __init__(self, args, name="runs"):
        self.args, self.folder = args, args.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data = shakespeare_tokens.made(self.folder / "shakespeare4096", ("--train-vocab", 4096))
        self.path = self.folder / f"{name}_{args.seconds:g}s_{args.b}_{args.windows}.json"
        self.kept = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.bits = tokens_per_byte(self.data, args.windows) / math.log(2)

    def remembered(self, key, measure):
        if key not in self.kept:
            self.kept[key] = measure()
            readme.replace(self.path, json.dumps(self.kept, indent=1) + "\n")
        return self.kept[key]

    def command(self, flags, steps, *more):
        of_gpt2 = "--mlp" not in flags
        program = ROOT / ("train_gpt2_cpu" if of_gpt2 else "build/modern")
        command = [program, "-b", self.args.b, "-t", T, "-x", steps, "-u", steps // 10, "-k", "cosine", "-q", 0.05,
                   "-c", 0.1, "-i", f"{self.data}_train.bin", "--threads", 1]
        command += ["-s", 0, "--tokenizer", f"{self.data}_tokenizer.bin"] if of_gpt2 else []
        for name, value in flags.items():
            command += [name, steps if value == STEPS else value]
        return [*command, *more]

    def seconds(self, flags, steps):
        """Processor time of a run without validation."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        children.run(self.command(flags, steps, "-v", 0), cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def step_seconds(self, flags, first):
        """Those of a step of two models, the smallest of several rounds."""
        n = max(4, round(self.args.seconds / 8))
        rounds = [[self.seconds(each, n) - self.seconds(each, 0) for each in (flags, first)] for _ in range(ROUNDS)]
        return [min(times) / n for times in zip(*rounds)]

    def loss(self, flags, steps, seed):
        validation = ["-v", steps, "-m", self.args.windows // self.args.b, "-j", f"{self.data}_val.bin"]
        command = self.command(flags, steps, *validation, "--seed", seed)
        output, _ = children.run(command, cwd=ROOT)
        return float(re.findall(r"^val loss ([\d.]+)", output, re.M)[-1])

    def losses(self, flags, steps):
        """Of all seeds, some at a time."""
        def one(seed):
            return self.loss(flags, steps, seed)
        name, seeds = words(flags), range(1, self.args.seeds + 1)
        missing = [seed for seed in seeds if f"{name} -x {steps} --seed {seed}" not in self.kept]
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            for seed, loss in zip(missing, pool.map(one, missing)):
                self.remembered(f"{name} -x {steps} --seed {seed}", lambda: loss)
        return [self.kept[f"{name} -x {steps} --seed {seed}"] * self.bits for seed in seeds]

    def rung(self, name, flags):
        """What a rung has come to: the losses of its seeds at equal time and at equal tokens."""
        key = words(flags)
        own, first = self.remembered(f"step of {key}", lambda: self.step_seconds(flags, GPT2))
        base = self.remembered("steps", lambda: max(10, round(self.args.seconds / first)))
        steps = round(base * first / own) if flags != GPT2 else base
        rung = {"name": name, "flags": flags, "steps": steps, "step_seconds": own, "ratio": own / first,
                "time": self.losses(flags, steps), "tokens": self.losses(flags, base)}
        print(f"{name}: {steps} steps, {spread(rung['time'])}; {base} steps, {spread(rung['tokens'])}", flush=True)
        return rung

    def climb(self):
        """All rungs, of which each says whether it took the place of the model so far."""
        rungs = [{**self.rung("GPT-2", GPT2), "kept": True}, {**self.rung("no biases", BARE), "kept": True}]
        best = rungs[-1]
        for name, change in CHANGES:
            rung = self.rung(name, {**best["flags"], **change})
            rungs.append({**rung, "kept": mean(rung["time"]) < mean(best["time"]), "before": mean(best["time"])})
            best = rungs[-1] if rungs[-1]["kept"] else best
        quickstart = self.rung("GPT-2 with Muon, as in quickstart", {**SHAPE, **MUON})
        return {"date": time.strftime("%Y-%m-%d"), "cpu": readme.this_cpu()[1], "seconds": self.args.seconds,
                "seeds": self.args.seeds, "b": self.args.b, "windows": self.args.windows,
                "steps": rungs[0]["steps"], "rungs": rungs,
                "quickstart": quickstart, "best": best["flags"]}


def mean(values):
    return sum(values) / len(values)


def half_range(values):
    return (max(values) - min(values)) / 2


def spread(values):
    return f"{mean(values):.4f} ± {half_range(values):.4f}"


def verdict(rung):
    if "before" not in rung:
        return "the others stand on it"
    gain = rung["before"] - mean(rung["time"])
    return ("kept" if rung["kept"] else "not kept") + (", within the spread" if abs(gain) < half_range(rung["time"])
                                                       else "")


def wrapped(lines):
    return "\n".join(line if line.startswith("|") else textwrap.fill(line, 120) for line in lines)


def text_of(figures):
    seconds, b = f"{figures['seconds']:g}", figures["b"]
    lines = [f"Measured {figures['date']} on {figures['cpu']} by `dev/modern/ladder.py --seconds {seconds} -b {b}`: "
             f"{figures['seeds']} seeds, runs of {b} x {T} tokens a step that take as long as {figures['steps']} "
             f"steps of GPT-2, about {seconds} seconds of one core. Each rung is the model so far with one change; it "
             "is kept if its mean at equal time is lower.", "",
             "| the change | a step's time | steps | bits per byte at equal time | at equal tokens | |",
             "|---|---|---|---|---|---|"]
    for rung in [*figures["rungs"], figures["quickstart"]]:
        says = verdict(rung) if rung in figures["rungs"] else "beside the ladder"
        lines.append(f"| {rung['name']} | {rung['ratio']:.2f} | {rung['steps']} | {spread(rung['time'])} | "
                     f"{spread(rung['tokens'])} | {says} |")
    best = next(rung for rung in figures["rungs"] if rung["flags"] == figures["best"])
    first, quickstart = mean(figures["rungs"][0]["time"]), mean(figures["quickstart"]["time"])
    lines += ["", f"From {first:.4f} bits per byte to {mean(best['time']):.4f} in the same time; the GPT-2 of "
              f"quickstart, with Muon, has {quickstart:.4f}."]
    return wrapped(lines)


def picture(figures):
    """A line for each rung, with its seeds: at equal time above, at equal tokens below."""
    rungs, left, top, row = [*figures["rungs"], figures["quickstart"]], 250, 52, 24
    values = [value for rung in rungs for value in (*rung["time"], *rung["tokens"])]
    panel = charts.Panel(left, top, 420, row * len(rungs), charts.around(values), (0, len(rungs)))
    panel.frame("bits per byte of the validation text", "", y_text=lambda value: "")
    for i, rung in enumerate(rungs):
        y = top + row * (i + 0.5)
        color = svg.TEXT if rung.get("kept") or rung is rungs[-1] else svg.LINES
        panel.parts.append(svg.text(left - 8, y + 4, rung["name"], "end", color))
        for values, shift, color in (rung["time"], -4, svg.COLORS[0]), (rung["tokens"], 4, svg.COLORS[1]):
            ends = [(panel.x(end), y + shift) for end in (min(values), max(values))]
            panel.parts.append(svg.line(ends, color, 2))
            panel.parts += [svg.dot(panel.x(value), y + shift, 2.5, color) for value in values]
    panel.parts += charts.legend(left, 20, 420, ["at equal time", "at equal tokens"], svg.COLORS)[0]
    return svg.picture(700, top + row * len(rungs) + 34, charts.SIZE, panel.parts)


SHOWN = readme.Shown(COURSE / "ladder.json", COURSE / "30-after-gpt-2.md", "ladder", COURSE / "pictures/ladder.svg",
                     "Bits per byte of each rung, by seed", text_of, picture)


def add_flags(parser, b=16):
    parser.add_argument("--seconds", type=float, default=60, help="of one core, for a run of the first rung")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-b", type=int, default=b, choices=[4, 8, 16, 32], help="sequences of a step")
    parser.add_argument("--windows", type=int, default=320, help="of a validation, a multiple of -b")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/modern_ladder")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    SHOWN.add_flags(parser)
    args = parser.parse_args()
    if args.page:
        SHOWN.make_page()
    else:
        SHOWN.show(Ladder(args).climb(), args.write)
    if args.write or args.page:
        figures = json.loads(SHOWN.figures.read_text())
        if figures["b"] == QUICKSTART_B:
            readme.replace(BEST_FLAGS, words(figures["best"]) + "\n")


if __name__ == "__main__":
    main()
