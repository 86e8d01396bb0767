#!/usr/bin/env python3
"""What do smaller and fewer messages cost? Trains a small model on the bytes of Shakespeare with four processes:
gradients in fp32, in 8 bits and in 1, and processes that train apart (--compress-gradients, --sync-every). Compares
their losses at the same tokens, for three seeds each, and the bytes that a process sends, as the trace counts them.

    make train_gpt2_cpu tokenize && python3 dev/messages.py [--write]

About five minutes on two idle cores. It goes on where it was interrupted. --write keeps the figures in
dev/course/messages.json, and puts table and picture into dev/course/20-smaller-messages.md; --page does so from the
figures that are there.
"""
import children
import argparse
import os
import pathlib
import re
import statistics

import charts
import readme
import shakespeare_tokens
import svg
from run_data import Run

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL, T, BATCH, PROCESSES, SEEDS = "L2C64H2T64", 64, 2048, 4, (1, 2, 3)
WARMUP, TRACED = 1 / 5, 50  # share of a run before gradients are compressed; the last steps, whose bytes are counted
LINK = 1e9 / 8  # bytes a second, for the plan of a large model
SLOW = 4  # in the picture, fp32's messages take so many times as long as computing


def kinds(steps):
    """(name, flags) of what is compared; the first is the usual."""
    one = ["--compress-gradients", "1bit", "--compress-warmup", round(steps * WARMUP)]
    outer = ["--outer-lr", 0.7, "--outer-momentum", 0.9]
    return [("fp32", []), ("8bit", ["--compress-gradients", "8bit"]), ("1bit", one), ("1bit, -z 1", [*one, "-z", 1]),
            ("every 10", ["--sync-every", 10]), ("every 50", ["--sync-every", 50]),
            ("every 50, outer step", ["--sync-every", 50, *outer])]


def sent_bytes(trace):
    """What rank 0 has sent in the traced steps: the collectives of its first track."""
    return sum(float(match[1]) for line in trace.splitlines() if '"pid":0,"tid":0' in line
               for match in re.finditer(r'"sent bytes":([0-9.e+]+)', line))


def mpirun(processes):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", "--oversubscribe", *root, "-np", processes]


def run_once(args, data, name, flags, seed):
    folder = args.folder / f"{re.sub('[^a-z0-9]+', '-', name)}_{seed}"
    trace, traced = folder.with_suffix(".json"), min(TRACED, args.steps)
    done = folder / f"DONE_{args.steps:08d}"
    if not (done.exists() and trace.exists()):
        children.run([*mpirun(PROCESSES), "./train_gpt2_cpu", "-e", MODEL, "-t", T, "-b", BATCH // T // PROCESSES,
                      "-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "-s", 0, "-k", "constant", "-u", 40,
                      "-l", 2e-3, "-x", args.steps, "-v", min(50, args.steps), "-m", 128, "--threads", 1,
                      "--seed", seed, "--overwrite", 1, "-o", folder, "--trace", trace,
                      "--trace-steps", f"{args.steps - traced + 1}:{args.steps}", *flags], cwd=ROOT)
    losses = Run(folder).series["val_loss"]
    return {"kind": name, "seed": seed, "losses": losses, "bytes": sent_bytes(trace.read_text()) / traced}


def planned_bytes(flags):
    """Bytes that each of 8 processes sends in a step of GPT-2 124M."""
    plan = ["./train_gpt2_cpu", "-e", "d12", "-b", 4, "--plan", "-pn", 8, "-x", 1000]
    said, _ = children.run([*plan, *flags], cwd=ROOT)
    return int(re.search(r"bytes on the wire a step: (\d+)", said)[1])


def run_all(args):
    os.chdir(ROOT)
    args.folder.mkdir(parents=True, exist_ok=True)
    data = shakespeare_tokens.made(args.folder / "bytes")
    runs = [run_once(args, data, name, flags, seed) for seed in SEEDS for name, flags in kinds(args.steps)]
    return {"model": MODEL, "steps": args.steps, "batch": BATCH, "processes": PROCESSES, "cpu": readme.this_cpu()[1],
            "runs": runs, "planned": {name: planned_bytes(flags) for name, flags in kinds(1000)}}


def names_of(figures):
    return list(figures["planned"])


def last_losses(figures, name):
    return [run["losses"][-1][1] for run in figures["runs"] if run["kind"] == name]


def bytes_of(figures, name):
    return next(run["bytes"] for run in figures["runs"] if run["kind"] == name)


def text_of(figures):
    usual, *_ = names_of(figures)
    base = last_losses(figures, usual)
    lines = ["| | bytes a step | of fp32's | loss, three seeds | against fp32 | GPT-2 124M: bytes a step "
             "| at 1 Gbit/s |",
             "|---|---|---|---|---|---|---|"]
    for name in names_of(figures):
        losses, sent, planned = last_losses(figures, name), bytes_of(figures, name), figures["planned"][name]
        gaps = [loss - other for loss, other in zip(losses, base)]
        gap = "" if name == usual else f"{statistics.mean(gaps):+.3f}"
        lines.append(f"| {name} | {sent:,.0f} | {sent / bytes_of(figures, usual):.3f} "
                     f"| {', '.join(f'{loss:.3f}' for loss in losses)} | {gap} | {planned:,} "
                     f"| {planned / LINK:.2f} s |")
    lines += ["", f"Model {figures['model']}, {figures['steps']} steps of {figures['batch']:,} tokens on "
              f"{figures['processes']} processes, validation loss per byte, on {figures['cpu']}.",
              f"The seeds of fp32 spread over {max(base) - min(base):.3f}. Bytes are those that rank 0 sends in "
              f"the last {min(TRACED, figures['steps'])} steps,",
              "as --trace has them; those of GPT-2 124M are the plan's, on 8 processes."]
    return "\n".join(lines)


def mean_curve(figures, name):
    runs = [run["losses"] for run in figures["runs"] if run["kind"] == name]
    return [(points[0][0], statistics.mean(loss for _, loss in points)) for points in zip(*runs)]


def seconds_of(figures, name, step):
    """Modelled time until a step is done, in units of a step's computation: messages do not overlap with it."""
    share = bytes_of(figures, name) / bytes_of(figures, names_of(figures)[0])
    plain = min(step, round(figures["steps"] * WARMUP)) if name.startswith("1bit") else 0
    return step * 1.0 + SLOW * (plain + (step - plain) * share)


def picture(figures):
    """Mean validation losses: against tokens, and against modelled time where messages are slow."""
    names = names_of(figures)
    curves = {name: mean_curve(figures, name)[1:] for name in names}
    losses = [loss for points in curves.values() for _, loss in points]
    panels = [("loss at the same tokens", "steps", lambda name, step: step),
              (f"where fp32's messages take {SLOW} times as long as computing", "time, in steps' computation",
               lambda name, step: seconds_of(figures, name, step))]
    parts = []
    for number, (title, x_label, x_of) in enumerate(panels):
        xs = [x_of(name, step) for name in names for step, _ in curves[name]]
        panel = charts.Panel(60 + 430 * number, 40, 350, 240, (0, max(xs) * 1.02), charts.around(losses))
        panel.frame(title, x_label)
        for name, color in zip(names, svg.COLORS):
            panel.curve([(x_of(name, step), loss) for step, loss in curves[name]], color)
        parts += panel.parts
    parts += charts.legend(60, 336, 760, names, svg.COLORS)[0]
    return svg.picture(880, 370, charts.SIZE, parts)


COURSE = ROOT / "dev/course"
SHOWN = readme.Shown(COURSE / "messages.json", COURSE / "20-smaller-messages.md", "messages",
                     COURSE / "pictures/messages.svg", "Losses with smaller and fewer messages", text_of, picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/messages")
    parser.add_argument("--steps", type=int, default=200)
    SHOWN.add_flags(parser)
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    if args.page:
        return SHOWN.make_page()
    figures = run_all(args)
    SHOWN.show(figures, args.write)


if __name__ == "__main__":
    main()
