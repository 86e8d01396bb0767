#!/usr/bin/env python3
"""What GPT-2 from 124M to 1558M would take on 1 to 1024 GPUs: tables of the estimates of `--plan`, whose model of a
cluster is in llmc/plan.h.

    make train_gpt2sim data && python3 scripts/scaling.py [--program ./train_gpt2cu] [--stage 1]

A step has half a million tokens, T is 1024. B is the largest that gives every GPU a micro-step and fits 80 GB.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "dev"))
import children  # noqa: E402
import argparse  # noqa: E402
import re  # noqa: E402

TOKENS, T, GIB = 524288, 1024, 78
MODELS = [("124M", "d12"), ("350M", "d24"), ("774M", "d36"), ("1558M", "d48")]
ESTIMATE = r"computes for ([\d.]+) ms and communicates for ([\d.]+) ms, of which ([\d.]+) ms .* efficiency ([\d.]+)%"


def plan_of(args, descriptor, gpus):
    """The largest micro-batch that fits, the tokens of its step, and its plan."""
    for B in [64, 32, 16, 8, 4, 2, 1]:
        tokens = max(TOKENS, B * T * gpus)
        if tokens > TOKENS and B > 1:
            continue
        stage = args.stage if gpus > 1 else 0
        flags = ["-e", descriptor, "-t", T, "-b", B, "-d", tokens, "-pn", gpus, "-z", stage, "-s", 0]
        plan, _ = children.run([args.program, "--plan", *flags], cwd=ROOT)
        gib = float(re.search(r"total (\d+) bytes", plan)[1]) / 2**30
        if gib < GIB or B == 1:
            return B, tokens, gib, plan


def limit_of(gpus, tokens, efficiency):
    if gpus == 1:
        return "one GPU"
    if tokens > TOKENS:
        return f"a batch of {tokens} tokens"
    return "computing" if efficiency > 90 else "network" if gpus > 8 else "links of the node"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_gpt2sim")
    parser.add_argument("--stage", default="1")
    args = parser.parse_args()
    print("| model | GPUs | B | micro-steps | GiB a GPU | MB sent a step | compute ms | communicate ms | hidden ms | "
          "efficiency | what limits |")
    print("|" + "---|" * 11)
    for name, descriptor in MODELS:
        for gpus in [2**i for i in range(11)]:
            B, tokens, gib, plan = plan_of(args, descriptor, gpus)
            sent = int(re.search(r"wire a step: (\d+)", plan)[1]) / 1e6
            compute, communicate, hidden, efficiency = map(float, re.search(ESTIMATE, plan).groups())
            print(f"| {name} | {gpus} | {B} | {tokens // (B * T * gpus)} | {gib:.1f} | {sent:,.0f} | {compute:.1f} | "
                  f"{communicate:.1f} | {hidden:.1f} | {efficiency:.1f}% | {limit_of(gpus, tokens, efficiency)} |",
                  flush=True)


main()
