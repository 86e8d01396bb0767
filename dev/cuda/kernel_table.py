#!/usr/bin/env python3
"""Registers, shared memory, stack and theoretical occupancy of every kernel of the trainer, for each architecture; no
GPU is needed.

    make kernel-table          # WRITE=1 puts the table into dev/cuda/README.md

Registers, static shared memory and a thread's stack are what ptxas reports when train_gpt2.cu is compiled. The
compiler does not know threads per block and dynamic shared memory: they come from the launches of the tests in the
simulator (CUSIM_LAUNCHES). Occupancy is the share of the multiprocessor's warps that fit at once (CUDA programming
guide, technical specifications per compute capability). Instructions are those of the machine code, each counted once
however often it runs, from the sizes of the code. Exits 1 if a hot kernel has a stack: spilled registers, or an array
with an index that only the running thread knows.
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import time  # noqa: E402
from machine_code import compile_for, resident_blocks  # noqa: E402
from readme import write_between  # noqa: E402

SHARED_KB = {"80": 164, "90a": 228, "100": 228, "120": 100}  # of a multiprocessor
WARPS = {"120": 48}  # 64 where it is not named
COLD = re.compile(r"attention_\w+<256, |attention_\w+_fp32_kernel<16, ")  # head sizes beyond 128: correct, not fast


def occupancy(registers, shared, threads, arch):
    most_warps = WARPS.get(arch, 64)
    blocks = resident_blocks(registers, shared, threads, most_warps, SHARED_KB[arch])
    return blocks * -(-threads // 32) / most_warps


def main():
    nvcc, launches_file, archs = sys.argv[1], sys.argv[2], sys.argv[3:]
    launches = {}
    for line in open(launches_file):
        # the simulator's name of the type, and CUDA's
        symbol, threads, dynamic = line.replace("4bf16", "13__nv_bfloat16").split()
        threads, dynamic = int(threads), int(dynamic)
        if symbol not in launches or launches[symbol] < (threads, dynamic):
            launches[symbol] = (threads, dynamic)  # the largest launch
    tables = {}
    for precision in ("BF16", "FP32"):
        for arch in archs:
            for symbol, figures in compile_for(nvcc, arch, precision)[1].items():
                tables.setdefault(symbol, {})[arch] = figures
    names = dict(zip(tables, children.run(["c++filt"], text="\n".join(tables))[0].splitlines()))
    columns = [f" sm_{a}: registers | static shared | stack | occupancy | instructions |" for a in archs]
    lines = ["| kernel | threads | dynamic shared |" + "".join(columns), "|---|---|---|" + "---|" * 5 * len(archs)]
    stacks = []
    for symbol in sorted(tables, key=lambda s: names[s]):
        plain = re.sub(r"\(\w+\)(?=\d)", "", names[symbol])  # arguments of a template without their types
        name = re.sub(r"^void |\(.*\)$", "", plain).replace("__nv_bfloat16", "bf16")
        threads, dynamic = launches.get(symbol, (0, 0))
        row = f"| `{name}` | {threads or 'not launched'} | {dynamic} |"
        for arch in archs:
            registers, static, stack, instructions = tables[symbol].get(arch, (0, 0, 0, 0))
            share = f"{100 * occupancy(registers, static + dynamic, threads, arch):.0f}% " if threads else ""
            row += f" {registers} | {static} | {stack} | {share}| {instructions} |"
            if stack and not COLD.search(name):
                stacks.append(f"{name} on sm_{arch}")
        lines.append(row)
    print("\n".join(lines))
    if os.environ.get("WRITE"):
        version = re.search(r"release ([\d.]+)", children.run([nvcc, "--version"])[0])[1]
        origin = f"By `make kernel-table WRITE=1` with CUDA {version}, {time.strftime('%Y-%m-%d')}."
        write_between(pathlib.Path("dev/cuda/README.md"), "kernels", origin + "\n\n" + "\n".join(lines))
    if stacks:
        sys.exit("hot kernels with a stack: " + ", ".join(stacks))


if __name__ == "__main__":
    main()
