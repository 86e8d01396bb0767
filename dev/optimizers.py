#!/usr/bin/env python3
"""Trains the same small model with every optimizer that --optimizer names, on the Shakespeare of this repository.

    make train_gpt2_cpu tokenize && python3 dev/optimizers.py [--steps 300] [--write]

Model, data, order of the data, schedule and steps are the same in all runs. The learning rate is searched for each
optimizer on the same grid, the powers of the square root of 10: from a usual one in both directions, as long as the
validation loss falls. Those whose weight decay does not pass through the gradient (adamw with 32, 16 or 8 bits of
state, lion, lamb, muon, adafactor, sm3) have a decay of 0.1, the others none. A run that is there, in build/optimizers,
is not run again, so the script can be stopped and started.

Then the best runs are timed: short ones, all optimizers in turn, several rounds; the table has the median step of the
fastest round. Losses do not depend on what else the machine does, times do.

--write puts the table and the picture into dev/course/18-optimizers.md.
"""
import children
import argparse
import contextlib
import csv
import json
import math
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

import charts
import readme
import svg

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "dev/course/18-optimizers.md"
MODEL, T, B, WARMUP_SHARE, FRAC, VAL_BATCHES, VALIDATIONS = "L4C128H4T64", 64, 16, 0.08, 0.1, 20, 8
# the powers with which the search begins; else USUAL
FIRST = {"sgd": 0, "momentum": -2, "adagrad": -4, "lion": -6, "lars": -4, "lamb": -4, "muon": -4, "adafactor": -3,
         "sm3": -2}
USUAL = -5
DECOUPLED = {"adamw", "lion", "lamb", "muon", "adafactor", "sm3", "adamw8bit", "adamw16bit"}
SAME = 1e-9  # losses closer than this are equal


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--only", nargs="*", help="these optimizers alone")
    parser.add_argument("--most", type=int, default=9, help="learning rates tried for each optimizer")
    parser.add_argument("--rounds", type=int, default=3, help="short runs of each optimizer that are timed")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/optimizers")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def rate_of(power):
    return float(f"{10 ** (power / 2):.2g}")


class Bench:
    def __init__(self, args):
        self.args = args
        kind, self.cpu = readme.this_cpu()
        self.precision = "bf16" if kind in ("amx", "avx512-bf16") else "fp32"
        args.folder.mkdir(parents=True, exist_ok=True)
        self.data = args.folder / "text4096"
        if not all(self.data.with_name(self.data.name + end).exists() for end in
                   ("_tokenizer.bin", "_train.bin", "_val.bin")):
            children.run(["./tokenize", "--train-vocab", 4096, "dev/data/shakespeare", "--val-split", "tail", "-o",
                          self.data], cwd=ROOT)
        self.flags = ["-e", args.model, "-i", f"{self.data}_train.bin", "-j", f"{self.data}_val.bin", "-b", B, "-t", T,
                      "--precision", self.precision, "-x", args.steps, "-u", int(WARMUP_SHARE * args.steps), "-q", FRAC,
                      "-v", max(1, args.steps // VALIDATIONS), "-m", VAL_BATCHES, "-s", 0, "-r", 0]
        self.trained = 0

    def command(self, name, flags, power):
        decay = 0.1 if name in DECOUPLED else 0
        return ["./train_gpt2_cpu", *map(str, self.flags), "--optimizer", name, *flags, "-c", str(decay), "-l",
                str(rate_of(power))]

    def result(self, label, name, flags, power):
        """The result of a run, from its file if that is there: its losses by step."""
        command = self.command(name, flags, power)
        path = self.args.folder / f"{label.replace(', ', '_')}_{power}.json"
        if path.exists():
            result = json.loads(path.read_text())
            if result["command"] == command:
                return result
        begin = time.perf_counter()
        result = {"command": command, "curve": [], "diverged": False}
        with self.run(command, may_diverge=True) as out:
            if out is None:
                result["diverged"] = True
            else:
                result["curve"] = validation_losses(out)
        readme.replace(path, json.dumps(result))
        self.trained += 1
        print(f"{label:20} learning rate {rate_of(power):<8g} validation loss {loss_of(result):.4f}, "
              f"{time.perf_counter() - begin:.0f} s", flush=True)
        return result

    @contextlib.contextmanager
    def run(self, command, may_diverge=False):
        """Trains, and gives the folder that has been written; None if the loss was not finite and may be."""
        out = self.args.folder / "run"
        shutil.rmtree(out, ignore_errors=True)
        process = children.start([*command, "-o", str(out)], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT)
        output, _ = process.communicate()
        children.running.remove(process)
        diverged = may_diverge and process.returncode != 0 and "not finite" in output
        if process.returncode != 0 and not diverged:
            sys.exit(f"{' '.join(command)} failed:\n{output[-2000:]}")
        yield None if diverged else out
        shutil.rmtree(out)

    def time_steps(self, found):
        """{label: (ms of a step, of it the update)} of the best run of each optimizer."""
        rounds = {label: [] for label in found}
        for _ in range(self.args.rounds):
            for label, (name, results) in found.items():
                best = results[best_power(results)]
                with self.run([*best["command"], "-x", str(min(self.args.steps, 40)), "-v", "0"]) as out:
                    rounds[label].append(median_times(out))
        return {label: min(times) for label, times in rounds.items()}

    def search(self, label, name, flags):
        """{power: result}, from the usual power on, in each direction as long as the loss falls."""
        first, results = FIRST.get(name, USUAL), {}

        def loss(power):
            if power not in results and len(results) < self.args.most:
                results[power] = self.result(label, name, flags, power)
            return loss_of(results[power]) if power in results else math.inf

        for direction in (1, -1):
            power = first
            while loss(power + direction) < loss(power) - SAME:
                power += direction
        return results

    def state_bytes(self, name):
        """Bytes of m, v and factors for each parameter, by --plan."""
        plan, _ = children.run([*self.command(name, [], USUAL), "--plan"], cwd=ROOT)
        of = {row[1].strip(): int(row[2]) for row in re.finditer(r"^optimizer +(m|v|factors) .*?(\d+)$", plan, re.M)}
        parameters = sum(int(n) for n in re.findall(r"^parameters +(?!= all).*?(\d+)$", plan, re.M))
        return sum(of.values()) / (parameters / (2 if self.precision == "bf16" else 4))


def loss_of(result):
    return result["curve"][-1][1] if result["curve"] else math.inf


def best_power(results):
    return min(results, key=lambda power: loss_of(results[power]))


def validation_losses(out):
    """[step, validation loss] of a run; empty if one is not finite."""
    lines = [json.loads(line) for line in (out / "evals.jsonl").read_text().splitlines()]
    curve = [[line["step"], line["val_loss"]] for line in lines if "val_loss" in line]
    return [] if any(loss is None for _, loss in curve) else curve


def median_times(out):
    """Medians of the times of a step and of its update, in ms, without the first step."""
    with open(out / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))[1:]
    median = lambda column: statistics.median(float(row[column]) for row in rows)  # noqa: E731
    return median("step_ms"), median("update_ms")


def variants(only):
    """{label: (name, flags)} of all optimizers that the trainer accepts."""
    text, _ = children.run(["./train_gpt2_cpu", "--help"], cwd=ROOT)
    names = re.search(r"--optimizer .*\n +accepted: (.*?);", text)[1].split(", ")
    found = {}
    for name in names:
        found[name] = (name, [])
        if name == "momentum":
            found["momentum, Nesterov"] = (name, ["--nesterov", "1"])
    return {label: found[label] for label in found if not only or found[label][0] in only}


def neighbours(results, best):
    """How much the loss rises one step of the grid below the best learning rate, and above it."""
    def rise(power):
        if power not in results:
            return ""
        more = loss_of(results[power]) - loss_of(results[best])
        return f"+{more:.2f}" if math.isfinite(more) else "diverges"

    return f"{rise(best - 1)} | {rise(best + 1)}"


def table(bench, found, times):
    rows = []
    for label, (name, results) in found.items():
        best = best_power(results)
        result, (ms, update_ms) = results[best], times[label]
        curve = dict(map(tuple, result["curve"]))
        half = min(curve, key=lambda step: abs(step - bench.args.steps / 2))
        rows.append((loss_of(result), f"| {label} | {bench.state_bytes(name):.1f} | {rate_of(best):g} | "
                     f"{curve[half]:.3f} | {loss_of(result):.3f} | {neighbours(results, best)} | {ms:.1f} | "
                     f"{update_ms:.2f} |"))
    tokens = bench.args.steps * B * T
    head = [f"Measured {time.strftime('%Y-%m-%d')} on {bench.cpu} by `dev/optimizers.py`: {bench.args.model}, "
            f"{bench.args.steps} steps of {B * T:,} tokens ({tokens:,} in all), {bench.precision}.", "",
            "| optimizer | bytes of state per parameter | best learning rate | validation loss after half the steps | "
            "at the end | at 1/3.16 of that rate | at 3.16 times that rate | ms per step | of it update |",
            "|---|---|---|---|---|---|---|---|---|"]
    return "\n".join(head + [row for _, row in sorted(rows)])


def picture(found, times, steps):
    """Validation loss against steps, and against the time that so many steps take."""
    best = {label: min(results.values(), key=loss_of) for label, (_, results) in found.items()}
    best = {label: result for label, result in best.items() if result["curve"]}
    colors = svg.colors(len(best))
    left, width, height, top, between = 60, 680, 300, 90, 80
    losses = [loss for r in best.values() for step, loss in r["curve"] if step >= steps / 6]
    y = charts.around(losses)
    slowest = max(steps * times[label][0] / 1e3 for label in best)
    parts, _ = charts.legend(left, 22, width, best, colors)
    for i, (title, unit, end) in enumerate((("validation loss", "steps", steps), ("", "seconds in steps", slowest))):
        panel = charts.Panel(left, top + i * (height + between), width, height, (0, end), y)
        panel.frame(title, unit)
        for color, (label, result) in zip(colors, best.items()):
            scale = 1 if i == 0 else times[label][0] / 1e3
            panel.curve([(step * scale, loss) for step, loss in result["curve"] if loss <= y[1]], color)
        parts += panel.parts
    return svg.picture(left + width + 20, top + 2 * height + between + 50, charts.SIZE, parts)


def main():
    args = arguments()
    bench, found = Bench(args), {}
    chosen = variants(args.only)
    for i, (label, (name, flags)) in enumerate(chosen.items()):
        found[label] = name, bench.search(label, name, flags)
        print(f"{i + 1} of {len(chosen)} optimizers, {bench.trained} runs", flush=True)
    times = bench.time_steps(found)
    text = table(bench, found, times)
    print(text)
    drawn = picture(found, times, args.steps)
    target = ROOT / "dev/course/pictures/optimizers.svg" if args.write else args.folder / "optimizers.svg"
    readme.replace(target, drawn)
    if args.write:
        readme.write_between(CHAPTER, "optimizers", text + "\n\n![validation loss](pictures/optimizers.svg)")


if __name__ == "__main__":
    main()
