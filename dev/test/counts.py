#!/usr/bin/env python3
"""The simulator's counts (COUNT=1) are those that follow from the kernels of dev/cusim/test/counts.cu on paper.

    dev/test/counts.py PROGRAM NOT_COUNTING     the counting program, and one built without COUNT=1
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cusim"))
import counts  # noqa: E402


def accesses(requests, transfers, lane_bytes, lanes=32):
    """Requests by so many lanes, each of lane_bytes; sectors or wavefronts of all of them."""
    return requests, transfers, requests * lanes * lane_bytes


def expected():
    """Kernel -> kind of access -> requests, sectors or wavefronts, bytes; what is not named here does not occur."""
    row, packs = accesses(1, 4, 4), accesses(1, 16, 16)  # 32 floats side by side; 32 times 16 bytes
    want = {}
    for stride, sectors in ((1, 4), (2, 8), (8, 32), (32, 32)):
        want[f"stride_{stride}"] = {"global_load": accesses(1, sectors, 4), "global_store": row}
    want["offset_1"] = {"global_load": accesses(1, 5, 4), "global_store": row}
    want["broadcast"] = {"global_load": accesses(2, 2, 4), "global_store": row, "read_bytes": 8, "read_sectors": 1}
    want["packs"] = {"global_load": packs, "global_store": packs, "read_bytes": 512, "written_bytes": 512}
    want["elements"] = {"global_load": accesses(4, 64, 4), "global_store": accesses(4, 64, 4), "written_bytes": 512}
    want["halves"] = {"global_load": accesses(1, 2, 2), "global_store": accesses(1, 2, 2)}
    want["pack_elements"] = {"global_load": packs, "global_store": row}
    # round i: lanes i to 31
    want["divergent"] = {"global_load": (32, sum(4 - i // 8 for i in range(32)), sum(4 * (32 - i) for i in range(32))),
                         "global_store": row}
    want["rejoined"] = {"global_load": (2, 8, 16 * 4 + 32 * 4), "global_store": row, "__shfl_xor_sync": 10}
    want["two_warps"] = {"global_load": accesses(4, 64, 16), "global_store": accesses(4, 64, 16), "blocks": 2,
                         "read_bytes": 1024, "written_bytes": 1024}
    want["atomic"] = {"global_atomic": accesses(1, 1, 4), "read_bytes": 32, "written_bytes": 32}
    rows = accesses(32, 32 * 4, 4)
    want["transpose_global"] = {"global_load": accesses(32, 32 * 32, 4), "global_store": rows, "read_sectors": 128}
    for name, wavefronts in (("conflicts", 32), ("padded", 1)):
        want[f"transpose_{name}"] = {
            "global_load": rows, "global_store": rows, "shared_store": accesses(32, 32, 4),
            "shared_load": accesses(32, 32 * wavefronts, 4), "barriers": 1}
    for stride, wavefronts in ((0, 1), (1, 1), (2, 2), (3, 1), (8, 8)):
        want[f"shared_{stride}"] = {"global_load": rows, "global_store": row, "shared_store": accesses(32, 32, 4),
                                    "shared_load": accesses(1, wavefronts, 4), "barriers": 1}
    for stride, wavefronts in ((1, 4), (2, 8), (8, 32)):  # a quarter of a warp at a time
        want[f"shared_packs_{stride}"] = {
            "global_load": accesses(8, 8 * 16, 16), "global_store": row, "shared_store": accesses(8, 8 * 4, 16),
            "shared_load": accesses(1, wavefronts, 16), "barriers": 1}
    for name, HS, wavefronts in (("64_plain", 64, 32), ("32", 32, 4), ("64", 64, 4), ("96", 96, 4), ("128", 128, 4),
                                 ("256", 256, 4)):
        chunks = HS // 8  # of a row; 12 of the 16 rows come from global memory
        want[f"tile_{name}"] = {
            "cp_async_global": (-(-12 * chunks // 32), 12 * HS * 2 // 32, 12 * HS * 2),
            "cp_async_shared": accesses(chunks // 2, 4 * chunks // 2, 16),
            "ldmatrix": accesses(chunks, wavefronts * chunks, 16),
            "global_store": row, "barriers": 1, "mma": chunks // 2, "read_bytes": 12 * HS * 2,
            "ldmatrix of a warp": chunks // 2, "ldmatrix_transposed": chunks // 2}
    return want


def counted(kernel):
    got = {"blocks": kernel["blocks"]} if kernel["blocks"] > 1 else {}
    for kind in counts.GLOBAL + counts.SHARED:
        tally = kernel[kind]
        if tally["requests"]:
            got[kind] = tally["requests"], tally["sectors" if kind in counts.GLOBAL else "wavefronts"], tally["bytes"]
    got.update({"ldmatrix of a warp" if what == "ldmatrix" else what: n for what, n in kernel["warps"].items()})
    return got


def check(got, want, name, kernel):
    for what in ("read_bytes", "read_sectors", "written_bytes", "barriers"):
        if what in want or (what == "barriers" and kernel[what]):
            got[what] = kernel[what]
    assert got == want, f"{name}: counted {got}, wanted {want}"


def main():
    program, not_counting = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/counts.json"
        subprocess.run([program], env={**os.environ, "CUSIM_COUNT": path}, check=True)
        kernels, _ = counts.read(path)
        want = expected()
        assert [k["kernel"] for k in kernels] == list(want), [k["kernel"] for k in kernels]
        for k in kernels:
            check(counted(k), want[k["kernel"]], k["kernel"], k)
        tables = subprocess.run(["dev/cusim/counts.py", path, "--lines", "--kernel", "transpose_conflicts"],
                                capture_output=True, text=True, check=True).stdout
        assert re.search(r"counts\.cu:\d+ +shared_load +4 +32 +1024 +32 +992\n", tables), tables
        refused = subprocess.run([not_counting, "good"], env={**os.environ, "CUSIM_COUNT": path}, capture_output=True,
                                 text=True)
        assert refused.returncode == 1 and "make it with COUNT=1" in refused.stderr, refused


main()
