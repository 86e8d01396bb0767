#!/usr/bin/env python3
"""GPT-2 from 124M to 1558M over 1 to 1024 GPUs, on paper: tables from `--plan`, which says by which model of a cluster (llmc/plan.h).

    make train_gpt2sim && python3 scripts/scaling.py [--program ./train_gpt2cu] [--stage 1]

Half a million tokens a step, T 1024, the largest micro-batch that leaves a micro-step for every GPU and fits 80 GB.
"""
import argparse
import pathlib
import re
import subprocess

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--program", default="./train_gpt2sim")
parser.add_argument("--stage", default="1")
args = parser.parse_args()
root = pathlib.Path(__file__).resolve().parents[1]
print("| model | GPUs | B | micro-steps | GiB a GPU | MB sent a step | compute ms | communicate ms | hidden ms | efficiency | what limits |")
print("|---|---|---|---|---|---|---|---|---|---|---|")
for name, descriptor in [("124M", "d12"), ("350M", "d24"), ("774M", "d36"), ("1558M", "d48")]:
    for gpus in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]:
        for B in [64, 32, 16, 8, 4, 2, 1]:
            tokens = 524288 if B * 1024 * gpus <= 524288 else B * 1024 * gpus
            if tokens > 524288 and B > 1:
                continue
            flags = ["--plan", "-e", descriptor, "-t", 1024, "-b", B, "-d", tokens, "-pn", gpus, "-z", args.stage if gpus > 1 else 0, "-s", 0]
            plan = subprocess.run([args.program, *map(str, flags)], cwd=root, capture_output=True, text=True, check=True).stdout
            gib = float(re.search(r"total (\d+) bytes", plan)[1]) / 2**30
            if gib < 78 or B == 1:
                break
        sent = int(re.search(r"wire a step: (\d+)", plan)[1]) / 1e6
        found = re.search(r"computes for ([\d.]+) ms and communicates for ([\d.]+) ms, of which ([\d.]+) ms .* efficiency ([\d.]+)%", plan)
        compute, communicate, hidden, efficiency = map(float, found.groups()) if found else (0, 0, 0, 100)
        limit = "one GPU" if not found else "computing" if efficiency > 90 else "network" if gpus > 8 else "links of the node"
        if found and tokens > 524288:
            limit = f"a batch of {tokens} tokens"
        print(f"| {name} | {gpus} | {B} | {tokens // (B * 1024 * gpus)} | {gib:.1f} | {sent:,.0f} | {compute:.1f} | {communicate:.1f} | {hidden:.1f} | {efficiency:.1f}% | {limit} |")
