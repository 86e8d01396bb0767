#!/usr/bin/env python3
"""Trains with many settings, several at once, and says which did best. Standard library only.

    dev/sweep.py DIR --vary=-l=3e-4,1e-3,3e-3 --vary=-c=0,0.1 -- ./train_gpt2_cpu -e L4C64H4T64 -t 64 -x 300
        a grid: every combination of the values
    dev/sweep.py DIR --random 12 --vary=-l=1e-4:1e-2 --vary=-b=2,4,8 -- ./train_gpt2_cpu ...
        combinations drawn at random: of lists, and of ranges LOW:HIGH, log-uniformly
    dev/sweep.py DIR --lr-range 0.1 -- ./train_gpt2_cpu ...
        the learning rate range test (Smith 2017, arXiv:1506.01186): one run in which -l rises linearly from 0 to 0.1

What follows -- is the command of the trainer, without -o. Each run has a folder in DIR, and ranks by its last
validation loss, or by its last training losses if it has none. DIR/sweep.csv and DIR/sweep.svg show all runs, and the
best command is printed. The same command goes on where it was interrupted; more values add runs.

A run has ended after all its steps, after its --max-minutes, or at a loss that is not finite. One that stopped or
failed before goes on when the same command is started again. Flags that the trainer refuses are a row of the table.
"""
import children
import argparse
import csv
import io
import itertools
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
import zlib

import charts
import svg
from run_data import Run

LAST = 0.1  # the share of the steps whose mean training loss ranks runs without validation
GOING_ON = "is the folder of a run that is going on now"
NOT_FINITE, TIME_IS_OVER = "is not finite; the run stops", re.compile(r"--max-minutes \S+ is over")
ENDED = "done", "not finite"
COLUMNS = "val_loss", "train_loss", "steps", "tokens", "seconds", "status", "error"


def cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_whole(path, text):
    """Replaces a file by a whole one."""
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


class Vary:
    """FLAG=VALUES: a list a,b,c or a range LOW:HIGH of numbers above 0."""

    def __init__(self, text):
        self.flag, _, values = text.partition("=")
        if not self.flag.startswith("-") or not values:
            raise argparse.ArgumentTypeError(f"{text}: FLAG=a,b,c or FLAG=LOW:HIGH is accepted, such as -l=1e-4,3e-4")
        self.values, self.range = list(dict.fromkeys(values.split(","))), None  # each once
        low, colon, high = values.partition(":")
        if colon:
            try:
                self.range = float(low), float(high)
            except ValueError:
                raise argparse.ArgumentTypeError(f"{text}: LOW:HIGH must be numbers")
            if not 0 < self.range[0] < self.range[1] < math.inf:
                raise argparse.ArgumentTypeError(f"{text}: 0 < LOW < HIGH is accepted")
            self.whole = low.isdigit() and high.isdigit()
        elif "" in self.values:
            raise argparse.ArgumentTypeError(f"{text}: has an empty value")

    def draw(self, rng):
        if not self.range:
            return rng.choice(self.values)
        value = math.exp(rng.uniform(*map(math.log, self.range)))
        return str(round(value)) if self.whole else f"{value:.3g}"


def next_to_try(found, first, most):
    """The points of a grid, whole numbers, at which a search for the lowest value goes on; none if it is over. `found`
    has the values so far. The search begins at `first`, and ends when both neighbours of the lowest are known, or at
    `most` points."""
    lowest = min(found, key=found.get, default=None)
    points = [first] if lowest is None else [lowest + 1, lowest - 1]
    return [point for point in points if point not in found][:most - len(found)]


def trials_of(options):
    """The settings to try, as lists of (flag, value), each once."""
    if not options.random:
        return [list(zip([v.flag for v in options.vary], values))
                for values in itertools.product(*[v.values for v in options.vary])]
    rng, drawn = random.Random(options.seed), []
    for _ in range(100 * options.random):
        trial = [(v.flag, v.draw(rng)) for v in options.vary]
        if trial not in drawn:
            drawn.append(trial)
        if len(drawn) == options.random:
            return drawn
    sys.exit(f"--random {options.random}: these lists have only {len(drawn)} combinations; that many are accepted")


def folder_of(trial):
    """A name for each trial; one that is too long, or has characters unfit for names, ends with a checksum."""
    name = "_".join(f"{flag.lstrip('-')}={value}" for flag, value in trial)
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "=._+-") else "~" for c in name)[:100]
    return plain if plain == name else f"{plain}-{zlib.crc32(name.encode()):08x}"


def has_begun(folder):
    return any((folder / name).is_file() for name in Run.FILES)


def outcome_of(folder):
    """What a run has recorded: its last losses, steps, tokens and seconds."""
    series = Run(folder).series if has_begun(folder) else {}
    last = {column: values[-1][1] for column, values in series.items()}
    trained = charts.finite(series.get("loss", []))
    latest = trained[-max(1, round(LAST * len(trained))):]
    return {"steps": len(series.get("tokens", [])), "tokens": round(last.get("tokens", 0)),
            "seconds": round(last.get("seconds", 0), 1),
            "train_loss": sum(loss for _, loss in latest) / len(latest) if latest else None,
            "val_loss": last["val_loss"] if math.isfinite(last.get("val_loss", math.nan)) else None}


def status_of(returncode, said, begun):
    """How a run ended, by its exit status, what it printed, and whether it has begun to train."""
    if returncode == 0:
        stopped = any(line.startswith("stopped at step ") for line in said)
        return "stopped" if stopped and not any(TIME_IS_OVER.fullmatch(line) for line in said) else "done"
    if any(NOT_FINITE in line for line in said):
        return "not finite"
    if any(GOING_ON in line for line in said):
        return "going on"
    if returncode < 0 or returncode > 128:  # by a signal
        return "stopped"
    return "failed" if begun and returncode != 2 else "refused"


def score(result):
    """What runs are ranked by; infinity if the run failed."""
    if result["status"] != "done":
        return math.inf
    loss = result["val_loss"] if result["val_loss"] is not None else result["train_loss"]
    return math.inf if loss is None else loss


class Sweep:
    """The runs of a command with different flags, in a folder of their own each."""

    def __init__(self, folder, command, jobs=0, keep=False):
        self.folder, self.command, self.keep = pathlib.Path(folder), [str(word) for word in command], keep
        on_gpu = pathlib.Path(self.command[0]).name == "train_gpt2cu"
        self.jobs = jobs or (1 if on_gpu else cores())
        settled = on_gpu or value_of(self.command, ["--threads"], None)
        self.threads = [] if settled else ["--threads", str(max(1, cores() // self.jobs))]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.check_command()

    def check_command(self):
        """A folder belongs to one command, so that its runs can be compared."""
        path = self.folder / "command.json"
        try:
            before = json.loads(path.read_text()) if path.exists() else self.command
        except ValueError:
            sys.exit(f"{path} is damaged; another folder is accepted, or this one without its runs")
        if before != self.command:
            sys.exit(f"{self.folder} holds runs of another command: {shlex.join(before)}\n"
                     "that command is accepted, or another folder")
        write_whole(path, json.dumps(self.command) + "\n")

    def result_path(self, trial):
        return self.folder / folder_of(trial) / "result.json"

    def known(self, trial):
        """The result of a run that has ended; None if it has not."""
        try:
            result = json.loads(self.result_path(trial).read_text())
        except (OSError, ValueError):
            return None
        return result if set(COLUMNS) <= set(result) and result["status"] in ENDED else None

    def start(self, trial):
        folder = self.folder / folder_of(trial)
        folder.mkdir(exist_ok=True)
        flags = [word for pair in trial for word in pair]
        command = [*self.command, *self.threads, *flags, "-o", str(folder), "-y", "1"]
        with open(folder / "output.txt", "w") as output:
            return children.start(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def finish(self, trial, process):
        """What a run has come to. It is recorded if the run has ended; else its checkpoint stays, to go on from."""
        children.running.discard(process)
        folder = self.folder / folder_of(trial)
        said = (folder / "output.txt").read_text(errors="replace").strip().splitlines() or [""]
        status = status_of(process.returncode, said, has_begun(folder))
        sentence = next((line.removeprefix("error: ") for line in said if line.startswith("error")), said[-1])
        result = {"flags": trial, "status": status, **outcome_of(folder),
                  "error": "" if status in ("done", "stopped") else sentence}
        if status not in ENDED:
            return result
        write_whole(self.result_path(trial), json.dumps(result) + "\n")
        if not self.keep:
            for pattern in ("model_0*.bin*", "state_0*.bin*", "DONE_0*"):
                for path in folder.glob(pattern):
                    path.unlink()
        return result

    def run(self, trials):
        """The results of all these runs; those that have not ended are started or go on, `jobs` at a time. The script
        ends if the trainer refuses the first one, as it may refuse them all."""
        results, under_way, begin, done = [self.known(trial) for trial in trials], [], time.monotonic(), 0
        waiting = [number for number, result in enumerate(results) if not result]
        most = len(waiting)
        if most < len(trials):
            print(f"{len(trials) - most} of {len(trials)} runs are there already", flush=True)
        while waiting or under_way:
            while waiting and len(under_way) < self.jobs:
                number = waiting.pop(0)
                under_way.append((number, self.start(trials[number])))
            time.sleep(0.05)
            for entry in [entry for entry in under_way if entry[1].poll() is not None]:
                under_way.remove(entry)
                number, process = entry
                result = results[number] = self.finish(trials[number], process)
                if result["status"] == "going on":  # started by a sweep that was killed: it is waited for
                    waiting.append(number)
                    time.sleep(1)
                    continue
                if number == 0 and result["status"] == "refused":
                    sys.exit(f"{shlex.join(process.args)} ended with status {process.returncode}: {result['error']}")
                done += 1
                left = (time.monotonic() - begin) / done * (most - done)
                loss = f"loss {score(result):.4f}" if result["status"] == "done" else result["status"]
                print(f"{done}/{most} {flags_text(trials[number])}: {loss}, {result['seconds']:.0f} s, "
                      f"about {left:.0f} s left", flush=True)
        return results

    def run_all(self, trials):
        """The same, where each run is needed: the script ends if one has not ended."""
        results = self.run(trials)
        if what_is_left(results):
            sys.exit(what_is_left(results))
        return results


def flags_text(trial):
    return " ".join(f"{flag} {value}" for flag, value in trial)


def what_is_left(results):
    """A sentence about runs that have not ended; None if there are none."""
    left = [r for r in results if r["status"] in ("stopped", "failed")]
    return f"{len(left)} of {len(results)} runs have not ended; the same command goes on with them" if left else None


def table(results):
    """The runs as lines, the best first."""
    def number(value):
        return "" if value is None else f"{value:.4f}"
    rows = [["flags", *(column.replace("_", " ") for column in COLUMNS)]]
    for r in sorted(results, key=score):
        rows.append([flags_text(r["flags"]), number(r["val_loss"]), number(r["train_loss"]), str(r["steps"]),
                     f"{r['tokens']:,}", f"{r['seconds']:.0f}", r["status"], r["error"]])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def csv_text(results):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(flag for flag, _ in results[0]["flags"]), *COLUMNS])
    for r in sorted(results, key=score):
        writer.writerow([*(value for _, value in r["flags"]), *(r[column] for column in COLUMNS)])
    return text.getvalue()


def log_marks(low, high):
    """Round numbers between two, by their place on an axis of powers of ten."""
    return [(math.log10(n), charts.tick_text(n)) for n in charts.log_ticks(low, high, 8)]


def places_of(values):
    """Where values lie on an axis, and the marks of the axis: a logarithmic one for numbers above 0 that span a factor
    of 3, else all values in a row. Up to 8 numbers are marks themselves."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = []
    if numbers and min(numbers) > 0 and max(numbers) >= 3 * min(numbers):
        own = sorted({(math.log10(n), value) for n, value in zip(numbers, values)})
        return [math.log10(n) for n in numbers], own if len(own) <= 8 else log_marks(min(numbers), max(numbers))
    names = sorted(set(values), key=lambda v: (float(v) if numbers else 0, v))
    return [names.index(value) for value in values], list(enumerate(names))


def mark_x(panel, marks):
    """Marks on the x axis of a panel: (place, text)."""
    bottom = panel.top + panel.height
    for at, text in marks:
        x = panel.x(at)
        panel.parts += [svg.line([(x, bottom), (x, bottom + 4)], svg.LINES, 1, 0.6),
                        svg.text(x, bottom + 17, text, "middle")]


def loss_name(results):
    """Which loss ranks these runs."""
    with_validation = {r["val_loss"] is not None for r in results}
    validation, training = "validation loss", f"training loss, mean of the last {LAST:.0%} of the steps"
    return {(True,): validation, (False,): training}.get((*with_validation,), f"{validation}, or {training}")


def groups_of(good, flags, flag):
    """Runs that are drawn in one colour: those of one value of the other flag, if there are two flags."""
    others = [other for other in flags if other != flag]
    values = [dict(r["flags"])[others[0]] for r in good] if len(flags) == 2 else []
    if not 1 < len(set(values)) <= len(svg.COLORS):
        return {"": range(len(good))}
    at, _ = places_of(values)
    named = dict(sorted(set(zip(at, values))))
    return {f"{others[0]} {value}": [i for i, v in enumerate(values) if v == value] for value in named.values()}


def picture(results):
    """A panel for each flag: the loss of every run against its value, and a line through the best of each value; with
    two flags, one for each value of the other. A ring is around the best run."""
    good = [r for r in results if math.isfinite(score(r))]
    if not good:
        return None
    width, height, left, top, parts = 420, 200, 70, 14, []
    flags = [flag for flag, _ in results[0]["flags"]]
    losses = charts.around([score(r) for r in good])
    best = min(range(len(good)), key=lambda i: score(good[i]))
    for flag in flags:
        at, marks = places_of([dict(r["flags"])[flag] for r in good])
        groups = groups_of(good, flags, flag)
        names, used = charts.legend(left, top + 9, width, list(groups) if len(groups) > 1 else [], svg.COLORS)
        panel = charts.Panel(left, top + used + 8, width, height, charts.around(at), losses)
        panel.frame(loss_name(good), flag, x_text=None)
        mark_x(panel, marks)
        for runs, color in zip(groups.values(), svg.COLORS):
            points = sorted((at[i], score(good[i])) for i in runs)
            lowest = {x: min(y for other, y in points if other == x) for x, _ in points}
            panel.curve(sorted(lowest.items()), color)
            panel.marks(points, color)
        ring = svg.ring(panel.x(at[best]), panel.y(score(good[best])), 6, svg.TEXT)
        parts += [*names, *panel.parts, ring]
        top += used + 8 + height + 50
    return svg.picture(left + width + 30, top + 10, charts.SIZE, parts)


def lr_range(sweep, highest, steps):
    """The learning rate range test. Returns (rates, smoothed losses), the rates of the steepest fall and of the lowest
    loss, and whether the loss has risen again, by a tenth of what it had fallen, so that the lowest is one."""
    trial = [("-u", str(steps)), ("-x", str(steps)), ("-l", f"{highest:g}"), ("-k", "constant")]
    [result] = sweep.run_all([trial])
    run = Run(sweep.folder / folder_of(trial))
    raw = charts.finite(run.series["loss"])
    rates = dict(run.series["learning_rate"])
    curve = [(rates[step], loss) for step, loss in charts.smooth(raw, max(3, len(raw) // 20 * 2 + 1))]
    if len(curve) < 10:
        sys.exit(f"the run has {len(curve)} steps with a finite loss; a lower --lr-range, or a larger -x, is accepted")
    lowest = min(range(len(curve)), key=lambda i: curve[i][1])
    slopes = {i: (curve[i + 1][1] - curve[i - 1][1]) / math.log(curve[i + 1][0] / curve[i - 1][0])
              for i in range(1, lowest)}
    steepest = min(slopes, key=slopes.get) if slopes else lowest
    fallen, risen = curve[0][1] - curve[lowest][1], curve[-1][1] - curve[lowest][1]
    return curve, curve[steepest][0], curve[lowest][0], result["status"] == "not finite" or risen > 0.1 * fallen


def range_picture(curve, steepest, lowest):
    top = min(curve[0][1] * 1.2, max(y for _, y in curve))
    points = [(math.log10(x), y) for x, y in curve if y <= top]
    panel = charts.Panel(70, 40, 520, 240, charts.around([x for x, _ in points]),
                         charts.around([y for _, y in points]))
    panel.frame("smoothed loss", "learning rate", x_text=None)
    mark_x(panel, log_marks(curve[0][0], 10 ** points[-1][0]))
    panel.curve(points, svg.COLORS[0])
    for rate, color, name in ((steepest, svg.COLORS[2], "steepest"), (lowest, svg.COLORS[1], "lowest")):
        x = panel.x(math.log10(rate))
        panel.parts += [svg.line([(x, 40), (x, 280)], color, 1.2, dash="4 3"),
                        svg.text(x + 4, 52 if name == "lowest" else 68, f"{name} {rate:.2g}", color=color)]
    return svg.picture(660, 330, charts.SIZE, panel.parts)


def value_of(command, names, fallback):
    """The last value of a flag in a command."""
    value = fallback
    for i, word in enumerate(command):
        flag, equals, rest = word.partition("=")
        if flag in names:
            value = rest if equals else command[i + 1] if i + 1 < len(command) else fallback
    return value


def parse(arguments):
    parser = argparse.ArgumentParser(usage="%(prog)s DIR (--vary=FLAG=VALUES... [--random N] | --lr-range HIGHEST) "
                                     "[--jobs N] [--seed N] [--keep-models] -- COMMAND", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--vary", type=Vary, action="append", default=[], metavar="FLAG=VALUES")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="draw N combinations instead of all")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--lr-range", type=float, metavar="HIGHEST")
    parser.add_argument("--jobs", type=int, default=0, help="runs at once (as many as cores; one on a GPU)")
    parser.add_argument("--keep-models", action="store_true", help="keep the checkpoints of all runs")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    options.command = arguments[split + 1:]
    if not options.command:
        parser.error("the command of the trainer is missing: -- ./train_gpt2_cpu ... is accepted")
    if bool(options.vary) == (options.lr_range is not None):
        parser.error("--vary, once or more, or --lr-range: one of them is accepted")
    if options.random < 0 or options.jobs < 0 or (options.lr_range is not None and not 0 < options.lr_range < math.inf):
        parser.error("--random, --jobs and --lr-range must be above 0")
    if not options.random and any(v.range for v in options.vary):
        parser.error("a range LOW:HIGH is accepted with --random N; a grid has lists, a,b,c")
    flags = [v.flag for v in options.vary]
    for flag in flags:
        if flags.count(flag) > 1:
            parser.error(f"{flag} varies twice")
    for flag in [*flags, *options.command]:
        if flag.partition("=")[0] in ("-o", "--out-dir", "-y", "--resume", "--overwrite"):
            parser.error(f"{flag.partition('=')[0]} is what the sweep sets; the command is accepted without it")
    if not shutil.which(options.command[0]):
        parser.error(f"{options.command[0]} is no program; `make {pathlib.Path(options.command[0]).name}` builds it")
    return options


def main():
    options = parse(sys.argv[1:])
    sweep = Sweep(options.folder, options.command, options.jobs, options.keep_models)
    shown = sweep.folder / "sweep.svg"
    if options.lr_range is not None:
        steps = value_of(options.command, ("-x", "--max-steps"), "")
        if not steps.isdigit() or int(steps) < 20:
            sys.exit("--lr-range needs -x in the command, 20 steps or more")
        curve, steepest, lowest, has_risen = lr_range(sweep, options.lr_range, int(steps))
        write_whole(shown, range_picture(curve, steepest, lowest))
        if not has_risen:
            sys.exit(f"the loss has not risen up to a rate of {options.lr_range:g} ({shown} shows it): a higher "
                     "--lr-range will tell more")
        print(f"the loss falls fastest at {steepest:.2g}, and is lowest at {lowest:.2g}; {shown} shows it\n"
              "a tenth of the latter, as fastai's lr_find proposes:")
        return print(shlex.join([*options.command, "-l", f"{lowest / 10:.2g}"]))
    results = sweep.run(trials_of(options))
    print(table(results))
    write_whole(sweep.folder / "sweep.csv", csv_text(results))
    best = min(results, key=score)
    left = what_is_left(results)
    if score(best) == math.inf:
        sys.exit(left or "no run has a loss")
    write_whole(shown, picture(results))
    print(f"{shown} shows them; the best:")
    print(shlex.join([*options.command, *(word for pair in best["flags"] for word in pair)]))
    if left:
        sys.exit(left)


if __name__ == "__main__":
    main()
