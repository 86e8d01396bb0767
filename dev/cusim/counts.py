#!/usr/bin/env python3
"""The counts of a simulated program (CUSIM_COUNT=FILE, dev/cusim/README.md) as tables.

    dev/cusim/counts.py FILE                            one row for each kernel and size of its launch
    dev/cusim/counts.py FILE --lines [--kernel NAME]    for each of them the lines of source that access memory

Figures are of all launches together. B/B: bytes that the lanes asked for, over the bytes that were touched at all.
Sec/req: sectors of 32 bytes per request of a warp; 32 lanes that read 4 bytes each, side by side, need 4. Wave/req:
wavefronts of shared memory per request; conflicts: wavefronts more than without conflicts of banks.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

GLOBAL = ["global_load", "global_store", "global_atomic", "cp_async_global", "tma_load", "tma_store"]
SHARED = ["shared_load", "shared_store", "shared_atomic", "cp_async_shared", "ldmatrix"]


def read(path):
    """The kernels of a file, and the program that wrote it."""
    lines = [json.loads(line) for line in open(path)]
    return lines[1:], lines[0]["program"]


def of_run(command, **settings):
    """The kernels of a program that counts, run with these variables of the environment beside its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/counts"
        subprocess.run(command, env={**os.environ, **settings, "CUSIM_COUNT": path}, check=True)
        return read(path)[0]


def total(kernel, kinds, what):
    return sum(kernel[kind].get(what, 0) for kind in kinds)


def conflicts(tally):
    return tally["wavefronts"] - tally["wavefronts_without_conflicts"]


def per(amount, of):
    return f"{amount / of:.4g}" if of else "-"


def aligned(rows):
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(row, widths)))
             for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def size(kernel):
    dims = lambda three: "x".join(str(n) for n in three[:3 if three[2] > 1 else 2 if three[1] > 1 else 1])
    return f"{dims(kernel['grid'])} of {dims(kernel['block'])}"


def table(kernels):
    rows = [["kernel", "blocks", "launches", "read", "sec/req", "B/B", "written", "sec/req", "B/B", "shared",
             "wave/req", "conflicts", "mma", "shuffles", "barriers"]]
    for k in kernels:
        loads, stores = ["global_load", "cp_async_global", "tma_load"], ["global_store", "tma_store"]
        shuffles = sum(n for what, n in k["warps"].items() if what.startswith("__shfl"))
        wgmma = k["warps"].get("wgmma", 0)
        row = [k["kernel"], size(k), k["launches"]]
        for kinds, touched in ((loads, k["read_bytes"]), (stores, k["written_bytes"])):
            requests = total(k, kinds, "requests")
            row += [requests, per(total(k, kinds, "sectors"), requests), per(total(k, kinds, "bytes"), touched)]
        requests = total(k, SHARED, "requests")
        row += [requests, per(total(k, SHARED, "wavefronts"), requests), sum(conflicts(k[kind]) for kind in SHARED)]
        rows.append(row + [f"{wgmma} wgmma" if wgmma else k["warps"].get("mma", 0), shuffles, k["barriers"]])
    return aligned(rows)


def source_frames(program, codes):
    """Code address -> the lines of source, innermost first where functions were inlined: FILE:LINE."""
    # a return address belongs to the instruction after the call
    asked = "\n".join(f"{int(code, 16) - 1:#x}" for code in codes)
    said = subprocess.run(["addr2line", "-a", "-i", "-e", program], input=asked, capture_output=True, text=True,
                          check=True).stdout
    here = str(pathlib.Path.cwd()) + "/"
    short = lambda line: line.split(" (")[0].replace(here, "").replace("build/sim/", "")
    lines = {}
    for part in said.split("0x")[1:]:
        address, *frames = part.split("\n")
        lines[f"{int(address, 16) + 1:#x}"] = [
            short(f) for f in frames if f and "dev/cusim/" not in f.replace("dev/cusim/test", "")]
    return lines


def source_lines(program, codes):
    """The same as text, of three lines at most: FILE:LINE < FILE:LINE."""
    return {code: " < ".join(dict.fromkeys(frames[:3])) for code, frames in source_frames(program, codes).items()}


def line_table(kernel, where):
    tallies = {}
    for site in kernel["sites"]:
        line = tallies.setdefault((where[site["code"]], site["kind"], site["lane_bytes"]), {})
        for what, n in site.items():
            if isinstance(n, int) and what != "lane_bytes":
                line[what] = line.get(what, 0) + n
    rows = [["  line", "kind", "bytes", "requests", "sectors", "sec/req", "wavefronts", "wave/req", "conflicts"]]
    for (line, kind, lane_bytes), t in sorted(tallies.items()):
        sectors, wavefronts = t.get("sectors", ""), t.get("wavefronts", "")
        rows.append(["  " + line, kind, lane_bytes, t["requests"], sectors, sectors and per(sectors, t["requests"]),
                     wavefronts, wavefronts and per(wavefronts, t["requests"]), wavefronts and conflicts(t)])
    return aligned(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--lines", action="store_true", help="the lines of source too")
    parser.add_argument("--kernel", help="only kernels whose names contain this")
    args = parser.parse_args()
    try:
        kernels, program = read(args.file)
    except (OSError, ValueError, IndexError, KeyError) as error:
        sys.exit(f"{args.file}: no file of counts (CUSIM_COUNT=FILE writes one): {error}")
    kernels = [k for k in kernels if not args.kernel or args.kernel in k["kernel"]]
    if not args.lines:
        return print(table(kernels))
    where = source_lines(program, sorted({site["code"] for k in kernels for site in k["sites"]}))
    for k in kernels:
        print(table([k]), line_table(k, where), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
