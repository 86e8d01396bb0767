#!/usr/bin/env python3
"""What they say and what holds: three claims about training, each measured with quickstart's GPT-2.

    pip install torch
    make train_gpt2_cpu tokenize && dev/modern/claims.py [--seconds 60] [--seeds 3] [--write]

A padded vocabulary makes a step faster: 50,304 tokens for 50,257, in PyTorch and here, on one core; the smallest time
of interleaved runs; and what a warp of a GPU touches of unpadded rows, which dev/cusim counts. Small batches at first,
and short sequences at first, make better models: the loss after the same tokens, and the processor time, with
--batch-warmup and --seq-warmup over a third of the steps. It goes on where it was interrupted, in the folder of
dev/modern/ladder.py. --write keeps the figures in dev/course/claims.json and puts the table into
dev/course/30-after-gpt-2.md.
"""
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in (".", "cusim")]
import children  # noqa: E402
import argparse  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import time  # noqa: E402

import counts  # noqa: E402
import ladder  # noqa: E402
import readme  # noqa: E402

ROOT = ladder.ROOT
FIGURES = ladder.COURSE / "claims.json"
PAD, ROUNDS, STEPS = (50257, 50304), 3, 4
B = 4
PIECES = {**ladder.GPT2, "-d": 4 * B * ladder.T}  # of four micro-steps, so that fewer are fewer


def step_ms(vocabulary, by_torch):
    """Of a GPT-2 of 2 layers and 128 channels, most of which is the head."""
    if by_torch:
        command = [sys.executable, "dev/torch_step.py", "--threads", 1, "--steps", STEPS, "-b", 2, "-t", 64, "--shape",
                   f"2,128,4,{vocabulary}"]
        return min(float(ms) for ms in children.run(command, cwd=ROOT)[0].split("MS ")[1].split())
    command = ["./train_gpt2_cpu", "-e", f"L2C128H4T64V{vocabulary}", "-b", 2, "-t", 64, "-x", STEPS + 1, "-v", 0, "-s",
               0, "-r", 0, "--threads", 1]
    return min(float(ms) for ms in re.findall(r"\| ([\d.]+) ms \|", children.run(command, cwd=ROOT)[0])[1:])


def padded(by_torch):
    rounds = [[step_ms(vocabulary, by_torch) for vocabulary in PAD] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds)]


def counted():
    """Bytes and sectors of 32 bytes of a warp's request for logits of a row: unpadded, padded, and padded in Packs."""
    children.run(["make", "-s", "CXX=g++", "COUNT=1", "build-count/cusim_counts"], cwd=ROOT)
    loads = {kernel["kernel"]: kernel["global_load"] for kernel in counts.of_run([ROOT / "build-count/cusim_counts"])}
    return [[loads[name]["bytes"] / loads[name]["requests"], loads[name]["sectors"] / loads[name]["requests"]]
            for name in ("rows_50257", "rows_50304", "rows_in_packs")]


def warmed(runs, flags, steps):
    """The losses of all seeds, and processor time of a run."""
    seconds = runs.remembered(f"seconds of {ladder.words(flags)} -x {steps}", lambda: runs.seconds(flags, steps))
    return {"steps": steps, "losses": runs.losses(flags, steps), "seconds": seconds}


def measure(args):
    runs = ladder.Ladder(args, "claims")
    pads = {who: runs.remembered(f"padded {who}", lambda by=by: padded(by))
            for who, by in (("PyTorch", True), ("this trainer", False))}
    first = runs.remembered(f"step of {PIECES}", lambda: runs.seconds(PIECES, 4) / 4)
    steps = max(12, round(args.seconds / first))
    N = steps // 3
    return {"date": time.strftime("%Y-%m-%d"), "cpu": readme.this_cpu()[1], "seeds": args.seeds, "padded": pads,
            "counted": counted(), "without": warmed(runs, PIECES, steps),
            "sequences": warmed(runs, {**PIECES, "--seq-warmup": N}, steps),
            # steps s < N have (s + 1) / N of the windows: (N - 1) / 2 steps more have as many in all
            "batch": warmed(runs, {**PIECES, "--batch-warmup": N}, steps + (N - 1) // 2)}


def text_of(figures):
    without = figures["without"]
    lines = [f"Measured {figures['date']} on {figures['cpu']} by `dev/modern/claims.py`: {figures['seeds']} seeds, "
             f"{without['steps']} full steps.", "", "| they say | measured | without | with |", "|---|---|---|---|"]
    for who, (plain, pad) in figures["padded"].items():
        lines.append(f"| a vocabulary of {PAD[1]:,} is faster than one of {PAD[0]:,} | a step of {who} | "
                     f"{plain:.1f} ms | {pad:.1f} ms |")
    (plain, touched), (pad, least), (wide, _) = figures["counted"]
    lines.append(f"| | sectors that a GPU's warp touches for {plain:.0f} bytes of a row, counted in the simulator | "
                 f"{touched:.2f} | {least:.2f} |")
    lines.append(f"| | bytes of one request, with Packs where rows allow them | {plain:.0f} | {wide:.0f} |")
    for name, what in ("batch", "small batches at first help"), ("sequences", "short sequences at first help"):
        run = figures[name]
        lines.append(f"| {what} | bits per byte after the same tokens | {ladder.spread(without['losses'])} | "
                     f"{ladder.spread(run['losses'])} |")
        lines.append(f"| | processor time | {without['seconds']:.1f} s | {run['seconds']:.1f} s |")
    return ladder.wrapped(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ladder.add_flags(parser, B)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    figures = measure(args)
    print(text_of(figures))
    if args.write:
        readme.replace(FIGURES, json.dumps(figures, indent=1) + "\n")
        readme.write_between(ladder.SHOWN.page, "claims", text_of(figures))


if __name__ == "__main__":
    main()
