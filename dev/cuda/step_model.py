#!/usr/bin/env python3
"""Predicts the time of a training step on GPUs, kernel by kernel, and what bounds each kernel. Predicted, not measured.

    make step-model                                     # tables of all chips; WRITE=1 puts them into dev/MEASURED.md
    python3 dev/cuda/step_model.py --kernels --chip H100 --model d12 -b 64
    python3 dev/cuda/step_model.py --gpus 1,8,64        # 124M to 1558M on several GPUs
    python3 dev/cuda/step_model.py --counts FILE        # with bank conflicts and sectors that the simulator counted
    python3 dev/cuda/step_model.py --measured FILE      # beside what scripts/gpu_day.sh measured

The launches are those of the trainer itself: a dry run in the simulator writes them down (CUSIM_DRY). Instructions are
those of the machine code, which nvcc compiles for each chip (machine_code.py); without nvcc, or without cuobjdump, they
come from dev/cuda/machine_code.json, written by WRITE=1. Work and bytes per launch: kernel_work.py. Chips: chips.py.
--counts takes a file of CUSIM_COUNT (dev/cusim/README.md), of a step of any size: without it shared memory has no bank
conflicts, and every sector of memory that is asked for is used as a whole.

What bounds a kernel is the slowest of: memory; the latency of loads, with the warps that fit; issue slots; tensor
cores; shared memory; the special-function, fma, alu and fp64 pipes. Assumed:
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
import shutil  # noqa: E402
import time  # noqa: E402

import counts  # noqa: E402
import machine_code  # noqa: E402
from chips import CHIPS  # noqa: E402
from kernel_work import Launch, Shape, X, work_of  # noqa: E402
from readme import MEASURED, replace, write_between  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORED = ROOT / "dev/cuda/machine_code.json"

DRIVER_BYTES = 2**30  # of a chip's memory
MEMORY_SHARE = 0.9  # of the bandwidth, that a kernel of large operands reaches
PIPE_SHARE = 0.8  # of the slots of the pipe that bounds a kernel
L2_BYTES_PER_CLOCK = 32  # per multiprocessor, where all operands fit into half of the second-level cache
SECTORS_PER_CLOCK = 64  # bytes per multiprocessor, between the first and the second-level cache
LOADED = 2  # latency under load, as a multiple of that of a single load
L2_LATENCY, SHUFFLE_LATENCY, BARRIER_LATENCY = 270, 25, 30  # clocks
GAP_S = 1.5e-6  # from the end of a kernel to the beginning of the next
HOST_S = 4e-6  # that the host takes to start one
TILES = [(256, 128, 1), (128, 128, 0.93), (128, 64, 0.8), (64, 64, 0.6)]  # of products, and their speed
NOT_HIDDEN = 0.25  # of what takes second longest in a kernel, that is not hidden behind what bounds it
TILE_OVERHEAD = 128  # begin and end of a tile, in terms of its sums
ASSUMED = f"""
- Kernels reach {MEMORY_SHARE:.0%} of the memory bandwidth, or {PIPE_SHARE:.0%} of the slots of the pipe that bounds
  them.
- The latency of memory under load is {LOADED} times that of a single load. Shuffles take {SHUFFLE_LATENCY} clocks,
  barriers {BARRIER_LATENCY}.
- {1e6 * GAP_S:g} us pass between two kernels; the host starts one in {1e6 * HOST_S:g} us.
- Products by cuBLASLt: tiles of 256 x 128 or less on all multiprocessors, the sum split where there are few tiles. Each
  tile takes the time of its FLOPs and of {TILE_OVERHEAD} more terms per sum, at the share of the peak in
  dev/cuda/chips.py.
- In every kernel {NOT_HIDDEN:.0%} of what takes second longest is not hidden behind what bounds it.
"""

# What others report, tokens per second and GPU, GPT-2 124M, T 1024, bf16.
REPORTED = [
    ("llm.c with cuDNN, A100 40GB PCIe, B 32", 145000, "github.com/karpathy/llm.c/pull/323"),
    ("llm.c, 8 x A100 80GB SXM, 10 billion tokens in 90 minutes", 10e9 / (90 * 60) / 8,
     "github.com/karpathy/llm.c/discussions/481"),
    ("llm.c, 8 x H100 SXM, 10 billion tokens in 45 minutes", 10e9 / (45 * 60) / 8,
     "github.com/KellerJordan/modded-nanogpt"),
]
MODELS = {"d12": ("124M", 12, 768, 12), "d24": ("350M", 24, 1024, 16), "d36": ("774M", 36, 1280, 20),
          "d48": ("1558M", 48, 1600, 25)}


# ---- what runs

@functools.lru_cache(None)
def run_once(program, flags, record):
    """The lines of the launches of a step, without computing it."""
    children.run([program, *flags, "-x", 1], env={"CUSIM_MEMORY_MIB": "4000000", "CUSIM_DRY": record}, cwd=ROOT)
    return [line.split() for line in (ROOT / record).read_text().splitlines()]


def dry_run(args, C, NH, L, B, micro_steps):
    pathlib.Path("build").mkdir(exist_ok=True)
    flags = ("-e", f"L{L}C{C}H{NH}T{args.T}", "-b", B, "-t", args.T, "-d", B * args.T * micro_steps, "-v", 0, "-s", 0,
             "-r", args.recompute, "-ge", args.gelu_fusion, "-i", args.data)
    return run_once(args.program, flags, f"build/launches_L{L}C{C}_{B}x{args.T}x{micro_steps}")


def plan_of(args, model, B, more):
    """What --plan says, FLOPs of a step, and bytes that it allocates."""
    flags = ["-e", model, "-b", B, "-t", args.T, "-s", 0, "-i", args.data, *more]
    plan, _ = children.run([args.program, "--plan", *flags], env={"CUSIM_MEMORY_MIB": "4000000"}, cwd=ROOT)
    return plan, float(re.search(r"FLOPs a step: (\S+)", plan)[1]), float(re.search(r"total (\d+) bytes", plan)[1])


def machine_codes(args):
    """Arch -> symbol -> registers, static shared memory, and code; and where they come from."""
    tool = machine_code.disassembler(args.nvcc)
    reasons = [(args.stored, "as asked"), (not shutil.which(args.nvcc), "nvcc is missing"),
               (not tool, "cuobjdump is missing")]
    why = next((reason for holds, reason in reasons if holds), None)
    if why:
        return json.loads(STORED.read_text()), f"stored machine code ({why})"
    codes = {}
    for arch in dict.fromkeys(chip.arch for chip in args.chips):
        cubin, figures = machine_code.compile_for(args.nvcc, arch, "BF16")
        kernels = machine_code.disassemble(tool, cubin)
        codes[arch] = {s: {"registers": figures[s][0], "shared": figures[s][1], **kernels[s]} for s in kernels}
    return codes, "compiled machine code"


# ---- how long it takes

class Counted:
    """What was counted of a kernel in the simulator: wavefronts of shared memory as a multiple of those without
    conflicts, and bytes of the sectors that loads touch as a multiple of the bytes that they ask for."""
    def __init__(self, kernels=()):
        totals = {}
        loads = ["global_load", "cp_async_global"]
        for kind, what in [(kind, what) for kind in loads + counts.SHARED
                           for what in ("bytes", "sectors", "wavefronts", "wavefronts_without_conflicts")]:
            totals[kind, what] = sum(k.get(kind, {}).get(what, 0) for k in kernels)
        ratio = lambda a, b: a / b if b else 1
        of = lambda kinds, what: sum(totals[kind, what] for kind in kinds)
        self.conflicts = ratio(of(counts.SHARED, "wavefronts"), of(counts.SHARED, "wavefronts_without_conflicts"))
        self.sectors = ratio(32 * of(loads, "sectors"), of(loads, "bytes"))


def read_counts(path):
    """Name of a kernel -> Counted."""
    kernels = {}
    for kernel in counts.read(path)[0] if path else []:
        kernels.setdefault(kernel["kernel"], []).append(kernel)
    return {name: Counted(found) for name, found in kernels.items()}


def pipes(chip, launch, code, work, counted):
    """Seconds by what could bound the kernel."""
    seconds = {}
    moved = work["read"] + work["written"]
    cached = moved < chip.l2_bytes / 2
    cache_rate = L2_BYTES_PER_CLOCK * chip.sms * chip.clock
    seconds["cache" if cached else "memory"] = moved / (cache_rate if cached else MEMORY_SHARE * chip.bandwidth)
    if not code:
        return seconds
    times = machine_code.executions(code, work, launch.warps, work.get("rare", 1))
    total = {}
    for block, n in zip(code["blocks"], times):
        for key, count in block.items():
            if key not in ("loop", "skipped"):
                total[key] = total.get(key, 0) + n * count
    total["tensor"] = work.get("flops", 0)
    sms = min(chip.sms, launch.blocks)
    for pipe, rate in chip.per_clock.items():
        seconds[pipe] = total.get(pipe, 0) / (rate * PIPE_SHARE * sms * chip.clock)
    seconds["shared"] *= counted.conflicts
    asked = (work["loaded"] + work.get("copied", 0)) * max(1, counted.sectors) + work["written"]
    seconds["sectors"] = asked / (SECTORS_PER_CLOCK * PIPE_SHARE * sms * chip.clock)
    shared = code["shared"] + launch.shared
    resident = machine_code.resident_blocks(code["registers"], shared, launch.threads, chip.warps, chip.shared_kb)
    if not work.get("flops"):
        warps = min(max(1, resident) * chip.sms, launch.blocks) * -(-launch.threads // 32)
        from_memory = 0 if cached else min(1, work["read"] / max(1, work["loaded"]))
        latency = LOADED * (from_memory * chip.latency + (1 - from_memory) * L2_LATENCY)
        waits = {"waits": latency, "shuffles": SHUFFLE_LATENCY, "barriers": BARRIER_LATENCY}
        clocks = sum(total.get(key, 0) * each for key, each in waits.items())
        seconds["latency"] = clocks / warps / chip.clock
    return seconds


def product_seconds(chip, m, n, k, type_bytes, add, extra):
    """A product of cuBLASLt. extra: operands of the size of the result that the epilogue reads or writes."""
    moved = X * (m * k + k * n) + m * n * (type_bytes * (2 if add else 1) + X * extra)
    best = None
    for rows, columns, speed in TILES:
        tiles = min(-(-m // rows) * -(-n // columns), -(-m // columns) * -(-n // rows))
        for parts in (1, 2, 3, 4, 6, 8, 12, 16):
            if k / parts < 256 and parts > 1:
                continue
            rounds = -(-tiles * parts // chip.sms)
            one = 2 * rows * columns * (k / parts + TILE_OVERHEAD) / (chip.peak / chip.sms * chip.product_share * speed)
            sums = 2 * parts * m * n * 4 if parts > 1 else 0
            compute = rounds * one + sums / (L2_BYTES_PER_CLOCK * chip.sms * chip.clock)
            best = min(best or compute, compute)
    memory = moved / (MEMORY_SHARE * chip.bandwidth)
    return max(best, memory) + NOT_HIDDEN * min(best, memory), "tensor" if best > memory else "memory"


EPILOGUE_OPERANDS = {164: 1, 192: 1}  # GELU with its input kept; the derivative of GELU


class Kernel:
    """All launches of one kind in a step."""
    def __init__(self):
        self.calls, self.seconds, self.bytes, self.flops, self.bound, self.note = 0, 0, 0, 0, {}, ""

    def add(self, seconds, bound, moved, flops):
        self.calls, self.seconds, self.bytes, self.flops = (self.calls + 1, self.seconds + seconds, self.bytes + moved,
                                                            self.flops + flops)
        self.bound[bound] = self.bound.get(bound, 0) + seconds

    def add_weighted(self, other, weight):
        for name in ("calls", "seconds", "bytes", "flops"):
            setattr(self, name, getattr(self, name) + weight * getattr(other, name))
        for bound, seconds in other.bound.items():
            self.bound[bound] = self.bound.get(bound, 0) + weight * seconds
        self.note = other.note


def model_step(chip, codes, args, lines, shape):
    """Name -> Kernel, of one step."""
    kernels, before, known = {}, {}, {}
    for kind, *words in lines:
        if kind == "product":
            m, n, k, _, typeD, epilogue, add = map(int, words)
            of_result = 4 if typeD == 0 else X
            seconds, bound = product_seconds(chip, m, n, k, of_result, add, EPILOGUE_OPERANDS.get(epilogue, 0))
            moved = X * (m * k + k * n) + m * n * of_result
            kernels.setdefault(f"product {m} x {n} x {k}", Kernel()).add(seconds + GAP_S, bound, moved, 2 * m * n * k)
        if kind != "kernel":
            continue
        launch = Launch(words)
        launch.before = before
        code = codes[chip.arch].get(launch.symbol)
        work = before = work_of(shape, launch, code)
        key = (*words, *work.items())
        counted = args.counted.get(launch.name, Counted())
        by = known[key] = known.get(key) or pipes(chip, launch, code, work, counted)
        bound = max(by, key=by.get)
        kernel = kernels.setdefault(launch.name, Kernel())
        seconds = by[bound] + NOT_HIDDEN * max((v for pipe, v in by.items() if pipe != bound), default=0)
        kernel.add(seconds + GAP_S, bound, work["read"] + work["written"], work.get("flops", 0))
        kernel.note = "no machine code" if not code else "not in kernel_work.py" if work.get("guessed") else ""
    return kernels


def combined(parts):
    """The sum of weight times kernels, kernel by kernel."""
    total = {}
    for weight, kernels in parts:
        for name, k in kernels.items():
            total.setdefault(name, Kernel()).add_weighted(k, weight)
    return total


def step_of(chip, codes, args, model, B, micro_steps=1, gpus=1):
    """Name -> Kernel, of a step of a model. All layers launch the same, and so do all micro-steps but the first: steps
    of 2 and 3 layers, and of 2 and 3 micro-steps, are recorded, and others follow from the differences. On several GPUs
    a process sums the squares of its part of the gradients, and updates its part of the weights."""
    _, L, C, NH = MODELS[model]

    def recorded(layers, micro):
        shape = Shape(layers, C, NH, B, args.T)
        shape.parameters /= gpus
        return model_step(chip, codes, args, dry_run(args, C, NH, layers, B, micro), shape)

    def with_layers(micro):
        return combined([(3 - L, recorded(2, micro)), (L - 2, recorded(3, micro))])
    if micro_steps == 1:
        return with_layers(1)
    return combined([(3 - micro_steps, with_layers(2)), (micro_steps - 2, with_layers(3))])


def step_seconds(kernels):
    return max(sum(k.seconds for k in kernels.values()), HOST_S * sum(k.calls for k in kernels.values()))


# ---- tables

def conditions(args):
    """What all steps of a table have in common."""
    return f"bf16, T {args.T}, `-r {args.recompute} -ge {args.gelu_fusion}`"


def kernel_table(kernels, measured):
    """measured: name -> milliseconds of a step, from a card; of products: of each that has this shape."""
    total = sum(k.seconds for k in kernels.values())
    last = " measured ms |" if measured else ""
    lines = [f"| kernel | calls | predicted ms | share | bound by | GB | TFLOP |{last}",
             "|" + "---|" * (7 + bool(last))]
    for name, k in sorted(kernels.items(), key=lambda item: -item[1].seconds):
        bound = max(k.bound, key=k.bound.get) + (f" ({k.note})" if k.note else "")
        row = (f"| {name} | {k.calls} | {1e3 * k.seconds:.3f} | {k.seconds / total:.1%} | {bound} | "
               f"{1e-9 * k.bytes:.2f} | {1e-12 * k.flops:.2f} |")
        if measured:
            there = measured.get(name)  # of a product the times of those of this shape
            there = k.calls * sum(there) / len(there) if isinstance(there, list) else there
            row += f" {there:.3f} |" if there else " |"
        lines.append(row)
    if measured:
        modelled = sum(k.seconds for name, k in kernels.items() if name.startswith("product "))
        lines.append(f"| all products | | {1e3 * modelled:.3f} | | | | | {measured.get('all products', 0):.3f} |")
    lines.append(f"| all | {sum(k.calls for k in kernels.values())} | {1e3 * step_seconds(kernels):.3f} | | | | |" +
                 (" |" if measured else ""))
    return lines


def step_row(chip, codes, args, model, B, measured):
    """A row of the table; none if the step does not fit the memory of the chip."""
    _, flops, memory = plan_of(args, model, B, ["-d", B * args.T, "-r", args.recompute])
    if memory > chip.memory_bytes - DRIVER_BYTES:
        return []
    seconds = step_seconds(step_of(chip, codes, args, model, B))
    tokens = B * args.T / seconds
    mfu, there = flops / seconds / chip.peak, measured.get((chip.name, model, B))
    return [f"| {chip.name} | {MODELS[model][0]} | {B} | {1e3 * seconds:.1f} | {tokens:,.0f} | {mfu:.0%} |" +
            (f" {there:,.0f} |" if there else " |")]


def step_table(codes, args, batches, measured):
    lines = ["| GPU | model | B | predicted ms | predicted tokens/s | predicted MFU | measured tokens/s |",
             "|" + "---|" * 7]
    for model, sizes in batches.items():
        for chip in args.chips:
            lines += [row for B in sizes for row in step_row(chip, codes, args, model, B, measured)]
    return lines


def measured_steps(paths):
    """(chip, model, B) -> tokens per second; chip -> kernel -> ms. Of the JSON of scripts/gpu_day.sh."""
    steps, kernels = {}, {}
    for path in paths:
        day = json.loads(pathlib.Path(path).read_text())
        chip = next((c.name for c in CHIPS if c.name.split()[-1 if "RTX" in c.name else 0] in day.get("gpu", "")), None)
        for row in day.get("steps", []):
            if row["who"].startswith("this trainer"):
                steps[chip, row["model"], row["B"]] = row["tokens_per_s"]
        kernels[chip] = day.get("kernels", {})
        for row in day.get("products", []):
            name = "product " + row["product"].split(",")[0]
            kernels[chip].setdefault(name, []).append(row["ms"])
    return steps, kernels


ESTIMATE = r"communicates for ([\d.]+) ms, of which ([\d.]+) ms .* efficiency ([\d.]+)%"


def scaling_row(chip, codes, args, model, gpus):
    """A step of half a million tokens on several GPUs. Communication is --plan's model (llmc/plan/plan_time.h), which
    is told a peak at which its share of the peak is the speed modelled here."""
    for B in [64, 32, 16, 8, 4, 2, 1]:
        tokens = max(args.tokens, B * args.T * gpus)
        if tokens > args.tokens and B > 1:
            continue
        flags = ["-d", tokens, "-pn", gpus, "-z", 1 if gpus > 1 else 0, "-r", args.recompute]
        plan, flops, memory = plan_of(args, model, B, [*flags, "--device", "1,1,1"])
        if B == 1 or memory < chip.memory_bytes - 2 * DRIVER_BYTES:
            break
    micro_steps = tokens // (B * args.T * gpus)
    seconds = step_seconds(step_of(chip, codes, args, model, B, micro_steps, gpus))
    share = float(re.search(r"TFLOP/s used to (\d+)%", plan)[1]) / 100
    peak = flops / gpus / seconds / share / 1e12
    plan, _, _ = plan_of(args, model, B, [*flags, "--device", f"{peak:.6f},1,1"])
    communicate, hidden, efficiency = map(float, re.search(ESTIMATE, plan).groups())
    all_s = seconds + 1e-3 * (communicate - hidden)
    return (f"| {MODELS[model][0]} | {gpus} | {B} | {micro_steps} | {1e3 * seconds:.1f} | {communicate:.1f} | "
            f"{hidden:.1f} | {efficiency:.1f}% | {tokens / all_s:,.0f} | {flops / gpus / all_s / chip.peak:.0%} |")


def scaling_table(codes, args, gpus):
    lines = [f"On {args.chips[0].name}, {conditions(args)}, steps of {args.tokens:,} tokens, B the largest that fits:",
             "",
             "| model | GPUs | B | micro-steps | compute ms | communicate ms | hidden | efficiency | tokens/s | MFU |",
             "|" + "---|" * 10]
    for model in args.models:
        lines += [scaling_row(args.chips[0], codes, args, model, g) for g in gpus]
    return lines


# ---- what is written

# B that are shown of each model.
SHOWN = {"d12": [4, 16, 64], "d24": [16], "d36": [4], "d48": [4]}


def reported_lines():
    lines = ["### What others report", "", "GPT-2 124M; nothing of it was measured here.", "",
             "| program, GPU | tokens/s of a GPU | source |", "|---|---|---|"]
    return lines + [f"| {what} | {tokens:,.0f} | {source} |" for what, tokens, source in REPORTED]


def write(args, codes):
    """Tables into the pages, and the machine code of the kernels of a step into machine_code.json."""
    used = {Launch(words[1:]).symbol for model in MODELS for micro_steps in (1, 2)
            for words in dry_run(args, *MODELS[model][2:], 2, 4, micro_steps) if words[0] == "kernel"}
    kept = {arch: {s: c for s, c in sorted(code.items()) if s in used} for arch, code in codes.items()}
    short = lambda code: json.dumps(code, separators=(",", ":"))
    of_arch = lambda code: ",\n".join(f'  "{symbol}": {short(c)}' for symbol, c in code.items())
    replace(STORED, "{\n" + ",\n".join(f' "{a}": {{\n{of_arch(code)}\n }}' for a, code in kept.items()) + "\n}\n")
    version = re.search(r"release ([\d.]+)", children.run([args.nvcc, "--version"])[0])[1]
    origin = f"By `make step-model WRITE=1` with CUDA {version}, {time.strftime('%Y-%m-%d')}."
    steps, kernels = measured_steps(args.measured)
    table = step_table(codes, args, SHOWN, steps)
    write_between(ROOT / MEASURED, "step model", "\n".join(
        [f"**Predicted, not measured.** {origin}", "", f"GPT-2 in {conditions(args)}:", "", *table, "", "Assumed:",
         ASSUMED, *reported_lines(), ""]))
    chip = next(c for c in CHIPS if c.name.startswith("H100"))
    args.chips, args.models = [chip], list(MODELS)
    per_kernel = kernel_table(step_of(chip, codes, args, "d12", 64), kernels.get(chip.name, {}))
    write_between(ROOT / "dev/cuda/README.md", "step model", "\n".join(
        [f"**Predicted, not measured.** {origin}", "", f"{chip.name}, 124M, B 64, {conditions(args)}:", "", *per_kernel,
         "", *scaling_table(codes, args, [1, 8, 16, 64]), ""]))


def parse():
    parser = argparse.ArgumentParser(description=__doc__ + ASSUMED,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/BF16/train_gpt2sim")
    parser.add_argument("--nvcc", default=os.environ.get("NVCC", "nvcc"))
    parser.add_argument("--stored", action="store_true", help="take the machine code from machine_code.json")
    parser.add_argument("--chip", help="one chip, by a part of its name")
    parser.add_argument("--model", default="d12", help=f"{', '.join(MODELS)}, or several with commas")
    parser.add_argument("-b", type=lambda s: [int(b) for b in s.split(",")], default=[4, 16, 64])
    parser.add_argument("-t", dest="T", type=int, default=1024)
    parser.add_argument("-r", dest="recompute", type=int, default=0)
    parser.add_argument("-ge", dest="gelu_fusion", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=524288, help="of a step on several GPUs")
    parser.add_argument("--data", default="dev/data/shakespeare_train.bin")
    parser.add_argument("--kernels", action="store_true", help="a table of the kernels of a step")
    parser.add_argument("--gpus", type=lambda s: [int(g) for g in s.split(",")], help="a table for so many GPUs")
    parser.add_argument("--counts", metavar="FILE")
    parser.add_argument("--measured", nargs="*", default=[], metavar="FILE")
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
        write(args, codes)
    elif args.gpus:
        print("\n".join(scaling_table(codes, args, args.gpus)))
    elif args.kernels:
        for chip in args.chips:
            B = args.b[-1]
            print(f"\n{chip.name}, {args.models[0]}, B {B}, {conditions(args)}:\n")
            print("\n".join(kernel_table(step_of(chip, codes, args, args.models[0], B), kernels.get(chip.name, {}))))
    else:
        print("\n".join(step_table(codes, args, {m: args.b for m in args.models}, steps)))


if __name__ == "__main__":
    main()
