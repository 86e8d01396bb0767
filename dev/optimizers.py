#!/usr/bin/env python3
"""Trains the same small model with every optimizer that --optimizer names, on the Shakespeare of this repository.

    make train_gpt2_cpu tokenize && python3 dev/optimizers.py [--steps 300] [--write]

Model, data, schedule and steps are the same in all runs. Each learning rate is tried with the same seeds (--seeds 42 1
2), which decide on the initial weights and on the order of the data; the median of their losses counts. A run that
diverges has an infinite loss. The rate is searched for each optimizer on the same grid, the powers of the square root
of 10: from a usual one on, until both neighbours of the best have no lower median. Those whose weight decay does not
pass through the gradient (adamw with 32, 16 or 8 bits of state, lion, lamb, muon, adafactor, sm3) have a decay of 0.1,
the others none. A run has one thread. One that is there, in build/optimizers, is not run again, so the script can be
stopped and started; remove the folder if the trainer's results have changed.

Then the best rates are timed: short runs, all optimizers in turn, several rounds; the medians of the fastest round
count. Forward and backward pass are the same for all, so the table has their median over all optimizers, and adds the
update of each. Losses do not depend on what else the machine does, times do. So start the script again when the machine
is idle: with all runs there, it only measures times. --rounds 0 keeps the times of the measurement before.

--write puts table, rates and picture into dev/course/18-optimizers.md. --page trains nothing: it takes the rates whose
runs are there with all seeds, though the search has not ended.
"""
import children
import argparse
import contextlib
import csv
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import charts
import readme
import shakespeare_tokens
import svg
import sweep

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "dev/course/18-optimizers.md"
MODEL, T, B, WARMUP_SHARE, FRAC, VAL_BATCHES, VALIDATIONS = "L4C128H4T64", 64, 16, 0.08, 0.1, 80, 8
SEEDS = (42, 1, 2)
# the powers with which the search begins; else USUAL
FIRST = {"sgd": -1, "momentum": -1, "adagrad": -3, "lion": -6, "lars": -3, "lamb": -3, "muon": -4, "adafactor": -2,
         "sm3": -3}
USUAL = -5
DECOUPLED = {"adamw", "lion", "lamb", "muon", "adafactor", "sm3", "adamw8bit", "adamw16bit"}
NOT_RUN = "not run"
# the panels of the picture; an optimizer that is in none has one with others such
FAMILIES = {"one rate for all": ("sgd", "momentum"),
            "a scale for each parameter, or signs": ("adagrad", "rmsprop", "adam", "lion"),
            "one rate for each tensor": ("lars", "lamb"), "whole matrices": ("muon",),
            "values for rows and columns": ("adafactor", "sm3"), "fewer bits": ("adamw8bit", "adamw16bit")}
REFERENCE = "adamw"  # in all panels


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--only", nargs="*", help="these optimizers alone")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="the median of their runs counts")
    parser.add_argument("--most", type=int, default=9, help="learning rates tried for each optimizer")
    parser.add_argument("--rounds", type=int, default=3,
                        help="short runs of each optimizer that are timed; 0: the times of the measurement before")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/optimizers")
    parser.add_argument("--write", action="store_true", help="into the chapter")
    parser.add_argument("--page", action="store_true", help="of the runs that are there alone")
    return parser.parse_args()


def rate_of(power):
    return float(f"{10 ** (power / 2):.2g}")


class Bench:
    def __init__(self, args):
        self.args = args
        kind, self.cpu = readme.this_cpu()
        self.precision = "bf16" if kind in readme.MULTIPLY_BF16 else "fp32"
        args.folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=args.folder).close()  # fails at once if nothing can be written there
        data = shakespeare_tokens.made(os.path.relpath(args.folder.resolve() / "text4096", ROOT),
                                       ("--train-vocab", 4096))
        self.flags = ["-e", args.model, "-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "-b", B, "-t", T,
                      "--precision", self.precision, "-x", args.steps, "-u", int(WARMUP_SHARE * args.steps), "-q", FRAC,
                      "-v", max(1, args.steps // VALIDATIONS), "-m", min(VAL_BATCHES, args.steps), "-s", 0, "-r", 0]
        self.trained = 0

    def command(self, name, flags, power):
        decay = 0.1 if name in DECOUPLED else 0
        return ["./train_gpt2_cpu", *map(str, self.flags), "--optimizer", name, *flags, "-c", str(decay), "-l",
                str(rate_of(power))]

    def path(self, label, power, seed):
        return self.args.folder / f"{label.replace(', ', '_')}_{power}_{seed}.json"

    def command_of_run(self, name, flags, power, seed):
        return [*self.command(name, flags, power), "--seed", str(seed), "--threads", "1"]

    def kept(self, label, name, flags, power, seed):
        """The result of a run, if it is there: its losses by step."""
        path = self.path(label, power, seed)
        result = json.loads(path.read_text()) if path.exists() else {}
        return result if result.get("command") == self.command_of_run(name, flags, power, seed) else None

    def result(self, label, name, flags, power, seed):
        """The same; it is trained if it is not there."""
        kept = self.kept(label, name, flags, power, seed)
        if kept:
            return kept
        begin = time.perf_counter()
        result = {"command": self.command_of_run(name, flags, power, seed), "curve": []}  # no curve: diverged
        with self.run(result["command"], may_diverge=True) as out:
            if out is not None:
                result["curve"] = validation_losses(out)
        readme.replace(self.path(label, power, seed), json.dumps(result))
        self.trained += 1
        print(f"{label:20} learning rate {rate_of(power):<8g} seed {seed:<3} validation loss {loss_of(result):.4f}, "
              f"{time.perf_counter() - begin:.0f} s", flush=True)
        return result

    @contextlib.contextmanager
    def run(self, command, may_diverge=False):
        """Trains, and gives the folder that has been written; None if the loss was not finite and may be."""
        with tempfile.TemporaryDirectory(dir=self.args.folder, prefix="run") as folder:
            out = pathlib.Path(folder) / "out"
            process = children.start([*command, "-o", str(out)], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT)
            output, _ = process.communicate()
            children.running.remove(process)
            diverged = may_diverge and process.returncode != 0 and "not finite" in output
            if process.returncode != 0 and not diverged:
                sys.exit(f"{' '.join(command)} failed:\n{output[-2000:]}")
            yield None if diverged else out

    def time_steps(self, found):
        """{label: [ms of a step, of it the update]} of each optimizer at its best rate, and the date."""
        path, rounds = self.args.folder / "times.json", {label: [] for label in found}
        if self.args.rounds == 0:
            kept = json.loads(path.read_text())
            missing = [label for label in found if label not in kept["times"]]
            if missing:
                sys.exit(f"--rounds 0: {path} has no times of {missing[0]}")
            return kept["times"], kept["date"]
        for _ in range(self.args.rounds):
            for label, optimizer in found.items():
                command = self.command(optimizer.name, optimizer.flags, optimizer.best)
                with self.run([*command, "-x", str(min(self.args.steps, 40)), "-v", "0"]) as out:
                    rounds[label].append(median_times(out))
        times, date = {label: min(of_rounds) for label, of_rounds in rounds.items()}, time.strftime("%Y-%m-%d")
        readme.replace(path, json.dumps({"date": date, "times": times}))
        return times, date

    def search(self, label, name, flags):
        """The runs from the usual power on, until both neighbours of the best have no lower median, or of --most."""
        first, results = FIRST.get(name, USUAL), {}
        if self.args.page:
            powers = range(first - self.args.most, first + self.args.most + 1)
            runs = {power: [self.kept(label, name, flags, power, seed) for seed in self.args.seeds] for power in powers}
            results = {power: of_seeds for power, of_seeds in runs.items() if all(of_seeds)}
            return Searched(name, flags, results) if results else None

        losses = {}
        while powers := sweep.next_to_try(losses, first, self.args.most):
            for power in powers:
                results[power] = [self.result(label, name, flags, power, seed) for seed in self.args.seeds]
                losses[power] = median_loss(results[power])
        return Searched(name, flags, results)

    def state_bytes(self, name):
        """Bytes of m, v and factors for each parameter, by --plan."""
        plan, _ = children.run([*self.command(name, [], USUAL), "--plan"], cwd=ROOT)
        of = {row[1].strip(): int(row[2]) for row in re.finditer(r"^optimizer +(m|v|factors) .*?(\d+)$", plan, re.M)}
        parameters = sum(int(n) for n in re.findall(r"^parameters +(?!= all).*?(\d+)$", plan, re.M))
        return sum(of.values()) / (parameters / (2 if self.precision == "bf16" else 4))


class Searched:
    """The runs of an optimizer: {power: [result of each seed]}."""

    def __init__(self, name, flags, results):
        self.name, self.flags, self.results = name, flags, results
        self.best = min(results, key=lambda power: median_loss(results[power]))
        self.losses = sorted(map(loss_of, results[self.best]))
        self.loss = statistics.median(self.losses)

    def curve(self):
        """[(step, median of the losses)] at the best rate; infinite where half of the runs have diverged."""
        curves = [dict(result["curve"]) for result in self.results[self.best]]
        steps = sorted(set().union(*curves))
        return [(step, statistics.median(curve.get(step, math.inf) for curve in curves)) for step in steps]

    def rise(self, power):
        """How much the loss rises with another rate."""
        if power not in self.results:
            return NOT_RUN
        more = median_loss(self.results[power]) - self.loss
        return f"+{more:.2f}" if math.isfinite(more) else "diverges"


def loss_of(result):
    return result["curve"][-1][1] if result["curve"] else math.inf


def median_loss(results):
    return statistics.median(map(loss_of, results))


def loss_at(curve, steps):
    """The loss after so many steps, between two validations if need be."""
    after = next((i for i, (step, _) in enumerate(curve) if step >= steps), len(curve) - 1)
    if after <= 0 or curve[after][0] <= steps:
        return curve[after][1] if curve else math.inf
    (step0, loss0), (step1, loss1) = curve[after - 1], curve[after]
    share = (steps - step0) / (step1 - step0)
    return loss0 * (1 - share) + loss1 * share


def loss_text(loss):
    return f"{loss:.3f}" if math.isfinite(loss) else "diverged"


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
    text, _ = children.run(["./train_gpt2_cpu", "--help", "all"], cwd=ROOT)
    names = re.split(r",\s+", re.search(r"--optimizer .*?accepted: (.*?);", text, re.DOTALL)[1])
    unknown = sorted(set(only or ()) - set(names))
    if unknown:
        sys.exit(f"--only {unknown[0]}: no such optimizer; there are {', '.join(names)}")
    found = {}
    for name in names:
        found[name] = (name, [])
        if name == "momentum":
            found["momentum, Nesterov"] = (name, ["--nesterov", "1"])
    return {label: found[label] for label in found if not only or found[label][0] in only}


def caption(bench, rest, date):
    args, tokens, warmup = bench.args, bench.args.steps * B * T, int(WARMUP_SHARE * bench.args.steps)
    today = time.strftime("%Y-%m-%d")
    of_date = "" if date == today else f" (measured {date})"
    *most, last = args.seeds
    seeds = f"seeds {', '.join(map(str, most))} and {last}" if most else f"seed {last} alone"
    return (f"Measured {today} on {bench.cpu} by `dev/optimizers.py`: {args.model}, {args.steps} "
            f"steps of {B * T:,} tokens ({tokens:,} in all), {bench.precision}. The rate rises over the first {warmup} "
            f"steps, then falls along a cosine to {FRAC:g} of its peak (`-u {warmup} -q {FRAC:g}`). Losses are on the "
            f"validation text, medians of {seeds} of initial weights and order of data. A step without its update "
            f"takes {rest:.1f} ms{of_date}.")


def table(bench, found, times, date):
    updates = {label: times[label][1] for label in found}
    rest = statistics.median(times[label][0] - times[label][1] for label in found)
    rows, fastest = [], rest + min(updates.values())
    for label, optimizer in found.items():
        best, ms = optimizer.best, rest + updates[label]
        same_time = loss_at(optimizer.curve(), bench.args.steps * fastest / ms)
        lowest, highest = loss_text(optimizer.losses[0]), loss_text(optimizer.losses[-1])
        rows.append((optimizer.loss, f"| {label} | {bench.state_bytes(optimizer.name):.1f} | {rate_of(best):g} | "
                     f"{loss_text(optimizer.loss)} | {lowest} to {highest} | {optimizer.rise(best - 1)} | "
                     f"{optimizer.rise(best + 1)} | {ms:.1f} | {updates[label]:.2f} | {loss_text(same_time)} |"))
    head = [caption(bench, rest, date), "",
            "| optimizer | bytes of state per parameter | best learning rate | loss at the end | lowest to highest | "
            "at 1/3.16 of that rate | at 3.16 times that rate | ms per step | of it update | "
            "loss in the time of the fastest |",
            "|---|---|---|---|---|---|---|---|---|---|"]
    return "\n".join(head + [row for _, row in sorted(rows)])


def rates(found):
    """The best rates alone, and whose they are."""
    of_power = {}
    for label, optimizer in found.items():
        of_power.setdefault(optimizer.best, []).append(label)
    rows = [f"| {rate_of(power):g} | {'; '.join(of_power[power])} |" for power in sorted(of_power)]
    return "\n".join(["| `-l` | `--optimizer` |", "|---|---|", *rows])


def apart(places, least):
    """The places from top to bottom, moved so that neighbours are so far apart, each as little as possible."""
    groups = []  # of places that touch: [sum of the tops they ask for, their number]
    for i, place in enumerate(places):
        groups.append([place, 1])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] + groups[-2][1] * least > groups[-1][0] / groups[-1][1]:
            total, number = groups.pop()
            groups[-1][0] += total - number * groups[-1][1] * least
            groups[-1][1] += number
    return [total / number + i * least for total, number in groups for i in range(number)]


def families(found):
    """{title: labels} of the panels that have optimizers."""
    listed = {name for names in FAMILIES.values() for name in names} | {REFERENCE}
    others = {label for label in found if found[label].name not in listed}
    panels = {title: [label for label in found if found[label].name in names] for title, names in FAMILIES.items()}
    return {title: labels for title, labels in {**panels, "others": sorted(others)}.items() if labels}


def picture(found, steps):
    """A panel for each family: median loss against steps, names at the ends of the lines. The reference is in all."""
    curves = {label: [point for point in optimizer.curve() if point[0] >= steps / 6 and math.isfinite(point[1])]
              for label, optimizer in found.items()}
    losses = [loss for curve in curves.values() for _, loss in curve]
    columns, left, width, height, top, names = 2, 40, 210, 130, 34, 150
    panels, parts = families(found) or {REFERENCE: []}, []
    for i, (title, labels) in enumerate(panels.items()):
        panel = charts.Panel(left + i % columns * (left + width + names), top + i // columns * (height + 70), width,
                             height, (steps / 6, steps), charts.around(losses or [0]))
        panel.frame(f"validation loss: {title}" if i == 0 else title, "steps")
        shown = [label for label in [REFERENCE, *labels] if curves.get(label)]
        color = dict(zip(shown, [svg.TEXT, *svg.COLORS] if REFERENCE in shown else svg.COLORS))
        for label in shown:
            panel.curve(curves[label], color[label], dash="4 3" if label == REFERENCE else "")
        shown.sort(key=lambda label: panel.y(curves[label][-1][1]))
        ends = [panel.y(curves[label][-1][1]) for label in shown]
        for label, end, place in zip(shown, ends, apart(ends, charts.SIZE + 3)):
            right = panel.left + width
            panel.parts += [svg.line([(right + 2, end), (right + 10, place)], color[label], 1),
                            svg.text(right + 13, place + 4, label, color=color[label])]
        parts += panel.parts
    lines = -(-len(panels) // columns)
    return svg.picture(columns * (left + width + names), top + lines * (height + 70) - 20, charts.SIZE, parts)


def main():
    args = arguments()
    bench, found = Bench(args), {}
    chosen = variants(args.only)
    for i, (label, (name, flags)) in enumerate(chosen.items()):
        found[label] = bench.search(label, name, flags)
        if not found[label]:
            sys.exit(f"--page: {label} has no rate with runs of all seeds in {args.folder}")
        print(f"{i + 1} of {len(chosen)} optimizers, {bench.trained} runs", flush=True)
    text = table(bench, found, *bench.time_steps(found))
    print(text)
    drawn = picture(found, args.steps)
    target = ROOT / "dev/course/pictures/optimizers.svg" if args.write else args.folder / "optimizers.svg"
    readme.replace(target, drawn)
    if args.write:
        readme.write_between(CHAPTER, "optimizers", text + "\n\n![validation loss](pictures/optimizers.svg)")
        readme.write_between(CHAPTER, "optimizer rates", rates(found))


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"{error.filename or 'a file'}: {error.strerror}")
