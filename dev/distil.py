#!/usr/bin/env python3
"""What a small model learns from a larger one: --teacher, beside the same model alone, for as many steps and as long.

    pip install numpy && make train_gpt2_cpu tokenize && python3 dev/distil.py [--write]

Trains a teacher of 6 layers on the bytes of Shakespeare, then students of 2 layers with several seeds. How much longer
a step with a teacher takes is the ratio of medians of runs that take turns. A run that is there, in build/distil, is
not run again; remove the folder if the trainer's results have changed. --write puts the table into
dev/course/29-distillation.md.
"""
import children
import argparse
import csv
import pathlib
import re
import statistics

import readme
import shakespeare_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "dev/course/29-distillation.md"
TEACHER, STUDENT, B, T, VAL_BATCHES, SEEDS = "L6C64H4T64", "L2C64H4T64", 8, 64, 100, (42, 1, 2)
SHARES = ((0.5, 1), (0.5, 2), (0.9, 2))  # --distill and --distill-temperature
TIMED_STEPS, TURNS = 40, 5


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--teacher-steps", type=int, default=3000)
    parser.add_argument("--teacher", default=TEACHER)
    parser.add_argument("--student", default=STUDENT)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/distil")
    parser.add_argument("--write", action="store_true", help="into the chapter")
    return parser.parse_args()


def trained(args, name, model, steps, *flags):
    """Trains a model into a folder unless it is there, and returns what the run printed."""
    data = shakespeare_tokens.made(args.folder.resolve() / "bytes")
    out = args.folder / name
    command = [str(word) for word in (
        "./train_gpt2_cpu", "-i", f"{data}_train.bin", "-j", f"{data}_val.bin",
        "--tokenizer", f"{data}_tokenizer.bin", "-e", model, "-b", B, "-t", T, "-x", steps, "-m", VAL_BATCHES,
        "-v", steps, "-s", 0, "-l", 2e-3, "-u", steps // 10, "-q", 0.1, "-c", 0.1, "--threads", args.threads,
        "--overwrite", 1, "-o", out, *flags)]
    return readme.kept(args.folder / f"{name}.json", command, lambda: children.run(command, cwd=ROOT)[0])


def bits_of(text):
    """Bits per byte of the last validation."""
    return float(re.findall(r"^bits per byte (\S+)", text, re.M)[-1])


def taught(args, share, temperature):
    return ["--teacher", args.folder / "teacher", "--distill", share, "--distill-temperature", temperature]


def slower(args):
    """How many times longer a step with the teacher takes: medians of runs that take turns."""
    times = {"alone": [], "taught": []}
    for turn in range(TURNS):
        for name, flags in ("alone", []), ("taught", taught(args, *SHARES[1])):
            trained(args, f"timed_{name}", args.student, TIMED_STEPS, "--seed", 100 + turn, "-k", "constant", *flags)
            with open(args.folder / f"timed_{name}/metrics.csv", encoding="utf-8") as lines:
                rows = list(csv.DictReader(lines))
            times[name] += [float(row["step_ms"]) for row in rows[5:]]
    return statistics.median(times["taught"]) / statistics.median(times["alone"])


def of_seeds(values):
    return f"{statistics.mean(values):.4f} | {max(values) - min(values):.4f}"


def table(args):
    teacher = bits_of(trained(args, "teacher", args.teacher, args.teacher_steps, "--seed", 7))
    timed = [args.student, args.teacher, TURNS, TIMED_STEPS]
    ratio = readme.kept(args.folder / "slower.json", timed, lambda: slower(args))
    longer = round(args.steps * ratio)
    rows = [("alone, as many steps", args.steps, []), ("alone, as long", longer, [])]
    rows += [(f"`--distill {share} --distill-temperature {t}`", args.steps, taught(args, share, t))
             for share, t in SHARES]
    lines = [f"Teacher {args.teacher}, {args.teacher_steps} steps of {B * T} bytes of Shakespeare: {teacher:.4f} bits "
             f"per byte. Students {args.student}, {len(args.seeds)} seeds: the mean, and how far the lowest and the "
             f"highest are apart. A step with the teacher takes {ratio:.2f} times as long as one without.", "",
             "| student | steps | time | bits per byte | spread |", "|---|---|---|---|---|"]
    for name, steps, flags in rows:
        folder = re.sub("[^a-z0-9]+", "_", name)
        found = [bits_of(trained(args, f"{folder}_{seed}", args.student, steps, "--seed", seed, *flags))
                 for seed in args.seeds]
        time = steps * (ratio if flags else 1) / args.steps
        lines.append(f"| {name} | {steps} | {time:.2f} | {of_seeds(found)} |")
    return "\n".join(lines)


def main():
    args = arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    text = table(args)
    print(text)
    if args.write:
        readme.write_between(CHAPTER, "distil", text)


if __name__ == "__main__":
    main()
