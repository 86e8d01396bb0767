#!/usr/bin/env python3
"""Predicts the time of a training step on GPUs, kernel by kernel, and what bounds each kernel. Predicted, not measured.

    make step-model                                     # tables of all chips; WRITE=1 puts them into dev/MEASURED.md
    python3 dev/cuda/step_model.py --kernels --chip H100 --model d12 -b 64
    python3 dev/cuda/step_model.py --held-out           # published figures that nothing here was fitted to
    python3 dev/cuda/step_model.py --llmc               # a step with default flags, beside llm.c's
    python3 dev/cuda/step_model.py --order groups:64    # attention's blocks in another order
    python3 dev/cuda/step_model.py --gpus 1,8,64        # 124M to 1558M on several GPUs
    python3 dev/cuda/step_model.py --flags "--lora 8 --weights nf4" --kernels --chip H200
    python3 dev/cuda/step_model.py --graphs             # what --cuda-graph 1 saves; --write: only this table
    python3 dev/cuda/step_model.py --counts FILE        # with bank conflicts and sectors that the simulator counted
    python3 dev/cuda/step_model.py --measured FILE      # beside what scripts/gpu_day.sh measured

The launches are those of the trainer itself: a dry run in the simulator writes them down (step_launches.py).
Instructions are those of the machine code, which nvcc compiles for each chip (machine_code.py, warp_time.py); without
nvcc, or without cuobjdump, they come from dev/cuda/machine_code.json, written by WRITE=1. Work and bytes per launch:
kernel_work.py. What of it the second-level cache has: cache_replay.py. How long that takes: kernel_time.py. Chips:
chips.py. What is assumed: assumptions.py.
--counts takes a file of CUSIM_COUNT (dev/cusim/README.md), of a step of any size: without it shared memory has no bank
conflicts, and every sector of memory that is asked for is used as a whole.
"""
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in (".", "cusim")]
import children  # noqa: E402
import argparse  # noqa: E402
import functools  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import time  # noqa: E402

import beside_llmc  # noqa: E402
import cache_replay  # noqa: E402
import counters  # noqa: E402
import held_out  # noqa: E402
import step_graphs  # noqa: E402
from assumptions import GENERAL, shown  # noqa: E402
from chips import CHIPS, DAYS, Machine, measured_steps  # noqa: E402
from gpu_day_parts import ADAPTERS  # noqa: E402
from kernel_work import Launch  # noqa: E402
from readme import MEASURED, replace, write_between  # noqa: E402
from step_launches import (DRIVER_BYTES, MODELS, ROOT, STORED, dry_run, fits_chip, machine_codes,  # noqa: E402
                           plan_of, read_counts, step_of)
from step_time import communication, in_range, kernels_of, moves, step_seconds, time_of  # noqa: E402


# ---- tables

def conditions(args):
    """What all steps of a table have in common."""
    return f"bf16, T {args.T}, `-r {args.recompute} -ge {args.gelu_fusion}`"


def milliseconds(seconds, digits=1):
    return " | ".join(f"{1e3 * s:.{digits}f}" for s in seconds)


def kernel_table(args, chip, step, measured):
    """measured: name -> milliseconds of a step, from a card; of products: of each that has this shape."""
    kernels = kernels_of(step, Machine(chip, order=args.order))
    total = sum(k.seconds for k in kernels.values())
    last = " measured ms |" if measured else ""
    lines = [f"| kernel | calls | low ms | expected ms | high ms | share | bound by | GB | TFLOP |{last}",
             "|" + "---|" * (9 + bool(last))]
    for name, k in sorted(kernels.items(), key=lambda item: -item[1].seconds):
        bound = max(k.bound, key=k.bound.get) + (f" ({k.note})" if k.note else "")
        of_this = [one for one in step if one[1].name == name]
        all_three = in_range(*moves(chip, args.order, lambda machine: kernels_of(of_this, machine)[name].seconds))
        row = (f"| {name} | {k.calls} | {milliseconds(all_three, 3)} | {k.seconds / total:.1%} | {bound} | "
               f"{1e-9 * k.bytes:.2f} | {1e-12 * k.flops:.2f} |")
        if measured:
            there = measured.get(name)  # of a product the times of those of this shape
            there = k.calls * sum(there) / len(there) if isinstance(there, list) else there
            row += f" {there:.3f} |" if there else " |"
        lines.append(row)
    if measured:
        modelled = sum(k.seconds for name, k in kernels.items() if name.startswith("product "))
        lines.append(f"| all products | | | {1e3 * modelled:.3f} | | | | | | {measured.get('all products', 0):.3f} |")
    calls = sum(k.calls for k in kernels.values())
    lines.append(f"| all | {calls} | {milliseconds(time_of(args, chip, step), 3)} | | | | |")
    return [*lines[:-1], lines[-1] + " |" * bool(measured)]


def step_row(chip, codes, args, model, B, measured):
    """A row of the table; none if the step does not fit the memory of the chip."""
    fits, flops = fits_chip(args, chip, model, B)
    if not fits:
        return []
    seconds = time_of(args, chip, step_of(chip, codes, args, model, B))
    tokens = B * args.T / seconds[1]
    mfu, there = flops / seconds[1] / chip.peak, measured.get((chip.name, model, B, ""))
    return [f"| {chip.name} | {MODELS[model][0]} | {B} | {milliseconds(seconds)} | {tokens:,.0f} | {mfu:.0%} |" +
            (f" {there:,.0f} |" if there else " |")]


def step_table(codes, args, batches, measured):
    lines = ["| GPU | model | B | low ms | expected ms | high ms | tokens/s | MFU | measured tokens/s |",
             "|" + "---|" * 9]
    for model, sizes in batches.items():
        for chip in args.chips:
            lines += [row for B in sizes for row in step_row(chip, codes, args, model, B, measured)]
    return lines


def assumption_table(codes, args):
    """All assumptions, and by how much each moves a step; those of all chips: an H100's."""
    lines = ["| chip | assumed | short / expected / long | moves its step by ms | source |", "|---|---|---|---|---|"]
    for chip in args.chips:
        step = step_of(chip, codes, args, "d12", 16 if chip.memory_bytes < 64 * 2**30 else 64)
        _, found = moves(chip, args.order, functools.partial(step_seconds, step))
        for a, both in found.items():
            if a not in GENERAL or chip.name.startswith("H100"):
                lines.append(f"| {'all; moved: H100' if a in GENERAL else chip.name} | {a.what} | "
                             f"{shown(a.values, a.unit)} | {1e3 * both[0]:+.1f} / {1e3 * both[1]:+.1f} | {a.source} |")
    return lines


def scaling_row(chip, codes, args, model, gpus):
    """A step of half a million tokens on several GPUs."""
    for B in [64, 32, 16, 8, 4, 2, 1]:
        tokens = max(args.tokens, B * args.T * gpus)
        if tokens > args.tokens and B > 1:
            continue
        flags = ("-d", tokens, "-pn", gpus, "-z", 1 if gpus > 1 else 0, "-r", args.recompute)
        _, flops, memory = plan_of(args.program, args.T, args.data, model, B, flags)
        if B == 1 or memory < chip.memory_bytes - 2 * DRIVER_BYTES:
            break
    micro_steps = tokens // (B * args.T * gpus)
    seconds = step_seconds(step_of(chip, codes, args, model, B, micro_steps, gpus), Machine(chip, order=args.order))
    communicate, hidden, efficiency = communication(args, chip, model, B, tokens, gpus, seconds)
    all_s = seconds + communicate - hidden
    mfu = flops / gpus / all_s / chip.peak
    return (f"| {MODELS[model][0]} | {gpus} | {B} | {micro_steps} | {1e3 * seconds:.1f} | {1e3 * communicate:.1f} | "
            f"{1e3 * hidden:.1f} | {efficiency:.1f}% | {tokens / all_s:,.0f} | {mfu:.0%} |")


def scaling_table(codes, args, gpus):
    lines = [f"On {args.chips[0].name}, {conditions(args)}, steps of {args.tokens:,} tokens, B the largest that fits:",
             "",
             "| model | GPUs | B | micro-steps | compute ms | communicate ms | hidden | efficiency | tokens/s | MFU |",
             "|" + "---|" * 10]
    for model in args.models:
        lines += [scaling_row(args.chips[0], codes, args, model, g) for g in gpus]
    return lines


def adapter_table(args, chip, codes, measured, model="d48", B=4):
    lines = [f"Adapters, {MODELS[model][0]} at B {B} on {chip.name}, {conditions(args)}:", "",
             "| flags | low ms | expected ms | high ms | GB by `--plan` | measured ms |", "|" + "---|" * 6]
    for flags in ["", *ADAPTERS]:
        of = beside_llmc.with_flags(args, flags=flags.split())
        step = time_of(of, chip, step_of(chip, codes, of, model, B))
        _, _, memory = plan_of(args.program, args.T, args.data, model, B,
                               ("-d", B * args.T, "-r", args.recompute, *of.flags))
        name = f"`{flags}`" if flags else "all weights train"
        there = measured.get((chip.name, model, B, flags))
        lines.append(f"| {name} | {milliseconds(step)} | {1e-9 * memory:.1f} |" +
                     (f" {1e3 * B * args.T / there:.1f} |" if there else " |"))
    return lines


# ---- what is written

# B that are shown of each model.
SHOWN = {"d12": [4, 16, 64], "d24": [16], "d36": [4], "d48": [4]}


def write_graphs(args, codes):
    write_between(ROOT / "dev/cuda/README.md", "step graphs", "\n".join(
        ["**Predicted, not measured.**", "", *step_graphs.table(args, codes), ""]))


def write(args, codes):
    """Tables into the pages, and the machine code of the kernels of a step into machine_code.json."""
    flags = [beside_llmc.with_flags(args, gelu_fusion=level) for level in (0, 2)]
    flags += [beside_llmc.with_flags(args, flags=adapters.split()) for adapters in ADAPTERS]
    used = {Launch(words[1:]).symbol for chip in CHIPS for model in MODELS for micro_steps in (1, 2) for those in flags
            for words in dry_run(those, chip, *MODELS[model][2:], 2, 4, micro_steps) if words[0] == "kernel"}
    kept = {arch: {s: c for s, c in sorted(code.items()) if s in used} for arch, code in codes.items()}
    short = lambda code: json.dumps(code, separators=(",", ":"))
    of_arch = lambda code: ",\n".join(f'  "{symbol}": {short(c)}' for symbol, c in code.items())
    replace(STORED, "{\n" + ",\n".join(f' "{a}": {{\n{of_arch(code)}\n }}' for a, code in kept.items()) + "\n}\n")
    version = re.search(r"release ([\d.]+)", children.run([args.nvcc, "--version"])[0])[1]
    origin = f"By `make step-model WRITE=1` with CUDA {version}, {time.strftime('%Y-%m-%d')}."
    steps, kernels = measured_steps(args.measured)
    table = step_table(codes, args, SHOWN, steps)
    write_between(ROOT / MEASURED, "step model", "\n".join(
        [f"**Predicted, not measured.** {origin}", "", f"GPT-2 in {conditions(args)}:", "", *table, "",
         *beside_llmc.lines(args, codes), "", *held_out.lines(args, codes), "", "### What is assumed", "",
         held_out.ASSUMED, "", *assumption_table(codes, args), ""]))
    chip = next((c for c in CHIPS if c.name in kernels), next(c for c in CHIPS if c.name.startswith("H100")))
    args.chips, args.models = [chip], list(MODELS)
    per_kernel = kernel_table(args, chip, step_of(chip, codes, args, "d12", 64), kernels.get(chip.name, {}))
    write_between(ROOT / "dev/cuda/README.md", "step model", "\n".join(
        [f"**Predicted, not measured.** {origin}", "", f"{chip.name}, 124M, B 64, {conditions(args)}:", "", *per_kernel,
         "", *scaling_table(codes, args, [1, 8, 16, 64]), "", *adapter_table(args, chip, codes, steps), "",
         *counters_text(args, chip, codes)]))


def counters_text(args, chip, codes):
    """What Nsight Compute counted on this chip in steps at B 16, beside the bytes that are modelled."""
    days = [day for day in (json.loads(pathlib.Path(path).read_text()) for path in args.measured)
            if day.get("counters") and chip.peak_name in day["gpu"]]
    if not days:
        return []
    kernels = kernels_of(step_of(chip, codes, args, "d12", 16), Machine(chip))
    modelled = {name.removeprefix("residual_"): 1e-6 * k.bytes / k.calls for name, k in kernels.items()
                if name not in ("layernorm_forward", "adamw", "global_norm", "round_gradients")}
    day = days[0]
    return [f"**Measured** on {day['gpu']}, {day['date']}, by Nsight Compute: a launch of each kernel, 2 layers of "
            "124M at B 16,",
            "medians. Memory's bandwidth, multiprocessors and warps are shares of what the chip could; the products of "
            "cuBLASLt are", "one row.", "", *counters.table(day["counters"], modelled), ""]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/BF16/train_gpt2sim")
    parser.add_argument("--nvcc", default=os.environ.get("NVCC", "nvcc"))
    parser.add_argument("--stored", action="store_true", help="take the machine code from machine_code.json")
    parser.add_argument("--chip", help="one chip, by a part of its name")
    parser.add_argument("--model", default="d12", help=f"{', '.join(MODELS)}, or several with commas")
    parser.add_argument("-b", type=lambda s: [int(b) for b in s.split(",")], default=[4, 16, 64])
    parser.add_argument("-t", dest="T", type=int, default=1024)
    parser.add_argument("-r", dest="recompute", type=int, default=0)
    parser.add_argument("-ge", dest="gelu_fusion", type=int, default=0)
    parser.add_argument("--flags", type=str.split, default=[], help="more flags of the trainer: adapters, codes")
    parser.add_argument("--tokens", type=int, default=524288, help="of a step on several GPUs")
    parser.add_argument("--data", default="dev/data/shakespeare_train.bin")
    parser.add_argument("--order", type=cache_replay.order_of, help="of attention's blocks: " + cache_replay.ORDERS)
    parser.add_argument("--held-out", action="store_true", help="a table of published figures")
    parser.add_argument("--llmc", action="store_true", help="a step with default flags beside llm.c's")
    parser.add_argument("--kernels", action="store_true", help="a table of the kernels of a step")
    parser.add_argument("--gpus", type=lambda s: [int(g) for g in s.split(",")], help="a table for so many GPUs")
    parser.add_argument("--graphs", action="store_true", help="a table of what CUDA graphs save")
    parser.add_argument("--counts", metavar="FILE")
    parser.add_argument("--measured", nargs="*", default=DAYS, metavar="FILE",
                        help="of scripts/gpu_day.sh; unless given, those in dev/cuda/measured")
    parser.add_argument("--write", action="store_true", help="put the tables into the pages, store the machine code")
    args = parser.parse_args()
    args.models = args.model.split(",")
    unknown = [m for m in args.models if m not in MODELS]
    args.chips = [c for c in CHIPS if not args.chip or args.chip.lower() in c.name.lower()]
    if unknown or not args.chips:
        parser.error(f"{unknown[0] if unknown else args.chip} is unknown; models: {', '.join(MODELS)}; chips: " +
                     ", ".join(c.name for c in CHIPS))
    return args


def main():
    args = parse()
    os.chdir(ROOT)
    args.counted = read_counts(args.counts)
    codes, origin = machine_codes(args)
    steps, kernels = measured_steps(args.measured)
    print(f"Predicted, not measured; {origin}.")
    if args.write:
        write_graphs(args, codes)
        if not args.graphs:
            write(args, codes)
    elif args.graphs:
        print("\n".join(step_graphs.table(args, codes)))
    elif args.held_out:
        print("\n".join(held_out.lines(args, codes)))
    elif args.llmc:
        print("\n".join(beside_llmc.lines(args, codes)))
    elif args.gpus:
        print("\n".join(scaling_table(codes, args, args.gpus)))
    elif args.kernels:
        for chip in args.chips:
            B = args.b[-1]
            print(f"\n{chip.name}, {args.models[0]}, B {B}, {conditions(args)}:\n")
            step = step_of(chip, codes, args, args.models[0], B)
            print("\n".join(kernel_table(args, chip, step, kernels.get(chip.name, {}))))
    else:
        print("\n".join(step_table(codes, args, {m: args.b for m in args.models}, steps)))


if __name__ == "__main__":
    main()
