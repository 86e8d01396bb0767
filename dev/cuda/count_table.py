#!/usr/bin/env python3
"""What each variant of the ladders does, counted in the simulator, beside what nvcc makes of it; no GPU is needed.

    make -C dev/cuda count              prints the tables; with nvcc and cuobjdump also the columns of machine code
    make -C dev/cuda count WRITE=1      puts them into dev/cuda/README.md
    dev/cuda/count_table.py --check PROGRAM...    counts again, and compares with the tables that are there

PROGRAM is a ladder built with COUNT=1. Each variant runs once, at the shape that the ladder declares for counting.
"""
import argparse
import os
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev"), str(ROOT / "dev/cusim")]
import children  # noqa: E402
import counts  # noqa: E402
import hot_loops  # noqa: E402
import kernel_table  # noqa: E402
import machine_code  # noqa: E402
from readme import write_between  # noqa: E402

README = ROOT / "dev/cuda/README.md"
ARCH = "90a"
LIBRARY = "in a library"  # what it does there is not counted
COUNTED = ["variant", "kernel", "global requests", "sectors each", "asked for", "touched", "shared requests",
           "wavefronts each", "in conflicts", "mma", "shuffles", "barriers"]
COMPILED = ["registers", "shared memory", "occupancy", "hot loop"]


def benches(program):
    """Name, shape and variants of each bench of a program; of a variant its name and the least bytes that must move."""
    listed, _ = children.run([program, "--list", "--counted"])
    for part in re.split(r"(?m)^(?=\w)", listed)[1:]:
        name, shape = part.split()[0], part.splitlines()[0].split(") ")[1]
        yield name, shape, [(v, int(least)) for v, least in re.findall(r"(?m)^  (\S+) .*?at least (\d+) bytes", part)]


def count(program, bench, variant):
    """The kernels of one run of a variant; one entry for each symbol, over all sizes of its launches."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "counts"
        children.run([program, "--check", "--counted", "--bench", bench, "--variant", variant],
                     env={"CUSIM_COUNT": str(path), "CUSIM_CAPABILITY": ARCH.rstrip("a")})
        found, _ = counts.read(path) if path.exists() else ([], "")
    kernels = {}
    for k in found:
        threads = k["block"][0] * k["block"][1] * k["block"][2]
        one = kernels.setdefault(k["symbol"], {"kernel": k["kernel"], "threads": 0, "dynamic": 0})
        one["threads"], one["dynamic"] = max(one["threads"], threads), max(one["dynamic"], k["dynamic_shared_bytes"])
        add(one, k)
    return kernels


def add(to, more):
    for key, value in more.items():
        if isinstance(value, dict):
            add(to.setdefault(key, {}), value)
        elif isinstance(value, int):
            to[key] = to.get(key, 0) + value


def figure(n):
    return "" if n == 0 else f"{n:,.0f}" if n >= 100 or n == int(n) else f"{n:.3g}"


def counted_cells(kernel, least):
    total = lambda kinds, what: counts.total(kernel, kinds, what)
    requests, sectors = total(counts.GLOBAL, "requests"), total(counts.GLOBAL, "sectors")
    touched = kernel["read_sectors"] + kernel["written_sectors"]
    of_least = lambda n: figure(32 * n / least) if least else ""
    shared, wavefronts = total(counts.SHARED, "requests"), total(counts.SHARED, "wavefronts")
    conflicts = sum(counts.conflicts(kernel[kind]) for kind in counts.SHARED)
    shuffles = sum(n for what, n in kernel["warps"].items() if what.startswith("__shfl"))
    wgmma = kernel["warps"].get("wgmma", 0)
    name = f"{kernel['kernel']} x {kernel['launches']}" if kernel["launches"] > 1 else kernel["kernel"]
    return [name, figure(requests), figure(sectors / requests if requests else 0),
            of_least(sectors), of_least(touched), figure(shared), figure(wavefronts / shared if shared else 0),
            f"{100 * conflicts / wavefronts:.0f}%" if conflicts else "",
            f"{figure(wgmma)} wgmma" if wgmma else figure(kernel["warps"].get("mma", 0)),
            figure(shuffles), figure(kernel["barriers"])]


def compiled_cells(kernel, code):
    if not code:
        return ["?"] * len(COMPILED)
    shared = code["shared"] + kernel["dynamic"]
    occupancy = kernel_table.occupancy(code["registers"], shared, kernel["threads"], ARCH)
    hot = code["hot"]
    parts = ", ".join(f"{hot[c]} {c}" for c in dict.fromkeys(hot_loops.CLASSES.values()) if hot[c])
    stack = f" ({code['stack']} B of stack)" if code["stack"] else ""
    return [f"{code['registers']}{stack}", figure(shared), f"{100 * occupancy:.0f}%",
            f"{hot['all']}{'' if code['loop'] else ' in all'}{': ' + parts if parts else ''}"]


def of_nvcc(symbol):
    return symbol.replace("4bf16", "13__nv_bfloat16")  # the simulator's name of the type, and CUDA's


def tables(program, codes):
    """For each bench: its name, shape, and groups of variants that do the same: their names, and for each kernel the
    counted cells and those of machine code."""
    for bench, shape, variants in benches(program):
        groups = []
        for variant, least in variants:
            kernels = count(program, bench, variant)
            rows = [(counted_cells(kernel, least), compiled_cells(kernel, codes.get(of_nvcc(symbol))) if codes else [])
                    for symbol, kernel in kernels.items()]
            rows = rows or [([LIBRARY] + [""] * (len(COUNTED) - 2), [""] * len(COMPILED) if codes else [])]
            if groups and groups[-1][1] == rows:
                groups[-1][0].append(variant)  # a sweep in which nothing changes
            else:
                groups.append(([variant], rows))
        if any(rows[0][0][0] != LIBRARY for _, rows in groups):
            yield bench, shape, groups


def markdown(groups, with_code):
    heads = COUNTED + (COMPILED if with_code else [])
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "--:|" * (len(COUNTED) - 2) +
             ("--:|--:|--:|---|" if with_code else "")]
    for names, rows in groups:
        for i, (cells, code) in enumerate(rows):
            lines.append("| " + " | ".join([", ".join(names) if i == 0 else "", *cells, *code]) + " |")
    return "\n".join(lines)


def counted_in(readme, bench):
    """The counted cells of a table in the README: variant -> rows."""
    block = re.search(rf"(?s)<!-- counts {bench} begin -->(.*?)<!-- counts {bench} end -->", readme)
    found, names = {}, []
    for line in re.findall(r"(?m)^\| (?!variant)(.*) \|$", block[1] if block else ""):
        cells = line.split(" | ")
        names = cells[0].strip().split(", ") if cells[0].strip() else names
        for name in names:
            found.setdefault(name, []).append([c.strip() for c in cells[1:len(COUNTED)]])
    return found


def check(programs, readme):
    """Whether the README has what is counted now."""
    wrong = []
    for program in programs:
        for bench, _, groups in tables(program, None):
            there = counted_in(readme, bench)
            here = {name: [cells for cells, _ in rows] for names, rows in groups for name in names}
            for name in dict.fromkeys([*there, *here]):
                if there.get(name) != here.get(name):
                    wrong.append(f"{bench} {name}: README has {there.get(name)}, counted {here.get(name)}")
    if wrong:
        sys.exit("\n".join(wrong) + "\nmake -C dev/cuda count WRITE=1 writes the tables again")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--readme", type=pathlib.Path, default=README, help="the one to compare with")
    args = parser.parse_args()
    if args.check:
        return check(args.programs, args.readme.read_text())
    write, tool = os.environ.get("WRITE"), machine_code.disassembler(os.environ.get("NVCC", "nvcc"))
    for program in args.programs:
        cubin = f"build/nvcc/{pathlib.Path(program).name}.cubin"
        with_code = bool(tool and os.path.exists(cubin))
        if write and not with_code:
            sys.exit("the tables of dev/cuda/README.md have columns of machine code: nvcc and cuobjdump are needed")
        codes = hot_loops.read(cubin, tool) if with_code else None
        for bench, shape, groups in tables(program, codes):
            what = f"{bench} at {shape}" + (f", machine code of sm_{ARCH}" if with_code else "")
            text = f"Counted: {what}.\n\n{markdown(groups, with_code)}"
            print(text, end="\n\n", flush=True)
            if write:
                write_between(README, f"counts {bench}", text)


if __name__ == "__main__":
    main()
