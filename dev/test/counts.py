#!/usr/bin/env python3
"""The simulator's counts (COUNT=1) are those that follow from the kernels of dev/cusim/test/counts.cu on paper.

    dev/test/counts.py PROGRAM NOT_COUNTING LADDER...   the counting program, one built without COUNT=1, ladders with it

The table in dev/cusim/README.md must be what counts.py prints (WRITE=1 writes it), those of the ladders in
dev/cuda/README.md what they count (make -C dev/cuda count WRITE=1 writes them).
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

DEV = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(DEV), str(DEV / "cusim")]
import counts  # noqa: E402
import readme  # noqa: E402


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
    # 64 bytes of each row: 2 sectors, or 3 where they do not begin with one, which 15 rows of 16 do not
    want["rows_50257"] = {"global_load": accesses(16, 2 + 15 * 3, 2), "global_store": row}
    want["rows_50304"] = {"global_load": accesses(16, 16 * 2, 2), "global_store": row}
    want["rows_in_packs"] = {"global_load": accesses(16, 16 * 16, 16), "global_store": row}
    # round i: lanes i to 31
    want["divergent"] = {"global_load": (32, sum(4 - i // 8 for i in range(32)), sum(4 * (32 - i) for i in range(32))),
                         "global_store": row}
    want["rejoined"] = {"global_load": (2, 8, 16 * 4 + 32 * 4), "global_store": row, "__shfl_xor_sync": 10}
    want["two_warps"] = {"global_load": accesses(4, 64, 16), "global_store": accesses(4, 64, 16), "blocks": 2,
                         "read_bytes": 1024, "written_bytes": 1024}
    want["atomic"] = {"global_atomic": accesses(1, 1, 4), "read_bytes": 32, "written_bytes": 32}
    rows = accesses(32, 32 * 4, 4)
    want["transpose_global"] = {"global_load": accesses(32, 32 * 32, 4), "global_store": rows, "read_sectors": 128}
    # 16 bytes of each lane at once, in 8 lanes of a quarter all in the same banks; or 4 bytes in 32 banks
    for name, loads in (("aligned", accesses(8, 8 * 32, 16)), ("padded", accesses(32, 32, 4))):
        want[f"row_sums_{name}"] = {"shared_store": accesses(32, 32, 4), "shared_load": loads, "global_store": row,
                                    "barriers": 1}
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
    # 12 rows of 40 bf16, each 3 sectors; the other rows and columns of the box are not asked for
    want["box"] = {"tma_load": (1, 12 * 3, 12 * 80), "tma_store": (1, 12 * 3, 12 * 80), "read_bytes": 12 * 80,
                   "read_sectors": 12 * 3, "written_bytes": 12 * 80}
    return want


def expected_of_shipped():
    """Of shipped() there: gelu and adamw of n elements, layer norm of rows of C, attention of T positions, NH heads."""
    n, rows, C, T, NH, HS = 10240, 8, 768, 128, 2, 64
    want = {}
    whole = lambda elems: accesses(elems // 256, elems // 256 * 16, 16)  # bf16, 8 per lane
    want["gelu_forward"] = {"global_load": whole(n), "global_store": whole(n), "read_bytes": 2 * n,
                            "written_bytes": 2 * n}
    # 40 rows of 256, one for each of 4 warps in 10 blocks. A block adds the sums of its warps, of 8 columns per lane,
    # through shared memory, with one barrier, and writes them side by side.
    blocks = 10
    sums = blocks * 8
    want["gelu_backward"] = {"global_load": whole(2 * n), "read_bytes": 4 * n, "written_bytes": 2 * n + sums * 128,
                             "global_store": tuple(s + w for s, w in zip(whole(n), accesses(sums, 4 * sums, 4))),
                             "shared_store": accesses(4 * sums, 4 * sums, 4),
                             "shared_load": accesses(4 * sums, 4 * sums, 4), "barriers": blocks}
    # 8 elements per lane: fp32 ones by two instructions, each of which touches half of every sector. Gradient, m, v and
    # master weight are read, and two words of the results of the step by all lanes.
    warps = n // 256
    want["adamw"] = {"global_load": (warps * (4 * 2 + 2), warps * (4 * 2 * 32 + 2), 16 * n + 2 * 4 * n // 8),
                     "global_store": (warps * (3 * 2 + 1), warps * (3 * 2 * 32 + 16), 14 * n),
                     "read_bytes": 16 * n + 8, "written_bytes": 14 * n}
    # a row is read three times, weight and bias once per row; mean and 1/deviation by one lane
    packs = rows * C // 256
    statistics = (2 * rows, 2 * rows, 8 * rows)
    stored = lambda times: tuple(s + w for s, w in zip(whole(times * rows * C), statistics))
    of_rows = {"__shfl_xor_sync": 2 * 5 * rows, "blocks": 2}
    want["layernorm_forward"] = {"global_load": accesses(5 * packs, 5 * packs * 16, 16), "global_store": stored(1),
                                 "read_bytes": 2 * rows * C + 2 * 2 * C, "written_bytes": 2 * rows * C + 8 * rows,
                                 **of_rows}
    # two inputs, their sum twice, weight and bias; the sum and the result are stored
    want["residual_layernorm_forward"] = {
        "global_load": accesses(6 * packs, 6 * packs * 16, 16), "global_store": stored(2),
        "read_bytes": 3 * 2 * rows * C + 2 * 2 * C, "written_bytes": 2 * 2 * rows * C + 8 * rows, **of_rows}
    # One block per head, which has all T = 128 rows, 32 per warp. A warp's rows need what they see of the other
    # tensors: in tiles of 64 keys forward, so that two warps multiply one tile and two warps two; in tiles of 32
    # backward, so that the warps multiply 1, 2, 3 and 4. A product of a warp's rows and a tile takes its rows / 16 *
    # columns / 8 * HS / 16 mma.
    mma = lambda products, columns, warp_tiles: NH * products * warp_tiles * 2 * columns // 8 * HS // 16
    requests = lambda tensors: tensors * T * NH * HS * 2 // 512  # of 32 lanes, 16 bytes each
    qkv, of_out, per_row = T * 3 * NH * HS * 2, T * NH * HS * 2, NH * T * 4
    want["attention_forward"] = {
        "cp_async_global": accesses(requests(3), 16 * requests(3), 16), "mma": mma(2, 64, 1 + 1 + 2 + 2),
        "read_bytes": qkv, "written_bytes": of_out + per_row}
    # q, k, v and dout; for dk and dv also lse and delta, 4 bytes per lane; in that kernel 4 products, in that for dq 3.
    # The latter reads out too, and writes delta.
    packs, singles = requests(4), 2 * NH * T // 32
    whole_tensors = accesses(packs, 16 * packs, 16)
    with_rows = (packs + singles, 16 * packs + 4 * singles, 512 * packs + 128 * singles)
    for name, products, copied, read, written in (
            ("q", 3, whole_tensors, qkv + 2 * of_out + per_row, of_out + per_row),
            ("kv", 4, with_rows, qkv + of_out + 2 * per_row, 2 * of_out)):
        want[f"attention_backward_{name}"] = {
            "cp_async_global": copied, "mma": mma(products, 32, 1 + 2 + 3 + 4), "read_bytes": read,
            "written_bytes": written}
    return want


def check_shipped(kernel, want):
    name, got = kernel["kernel"], counted(kernel)
    if name.startswith("attention"):  # what is named; how fragments are loaded is the kernel's own matter
        got = {what: n for what, n in got.items() if what in want}
        assert all(counts.conflicts(kernel[kind]) == 0 for kind in counts.SHARED), f"{name}: conflicts of banks"
    check(got, want, name, kernel)


def counted(kernel):
    got = {"barriers": kernel["barriers"]} if kernel["barriers"] else {}
    for kind in counts.GLOBAL + counts.SHARED:
        tally = kernel[kind]
        if tally["requests"]:
            got[kind] = tally["requests"], tally["sectors" if kind in counts.GLOBAL else "wavefronts"], tally["bytes"]
    got.update({"ldmatrix of a warp" if what == "ldmatrix" else what: n for what, n in kernel["warps"].items()})
    return got


def check(got, want, name, kernel):
    for what in ("read_bytes", "read_sectors", "written_bytes", "barriers", "blocks"):
        if what in want:
            got[what] = kernel[what]
    assert got == want, f"{name}: counted {got}, wanted {want}"


def check_readme(printed):
    path, block = DEV / "cusim/README.md", "\n" + "".join(f"    {line}\n" for line in printed.splitlines())
    if os.environ.get("WRITE"):
        readme.write_between(path, "counts transpose", block)
    assert f"<!-- counts transpose begin -->\n{block}\n<!-- counts transpose end -->" in path.read_text(), \
        f"{path} has another table than\n{block}WRITE=1 writes it"


def check_ladders(ladders, folder):
    def compare(path, *programs):
        return subprocess.run(["dev/cuda/count_table.py", "--check", "--readme", path, *programs], capture_output=True,
                              text=True)
    path = DEV / "cuda/README.md"
    right = compare(path, *ladders)
    assert right.returncode == 0, right.stderr
    wrong = pathlib.Path(folder) / "README.md"
    wrong.write_text(re.sub(r"(\| shipped \| gelu_forward \| [\d,]+)", r"\g<1>1", path.read_text()))
    found = compare(wrong, next(name for name in ladders if name.endswith("gelu")))
    assert found.returncode == 1 and "gelu_forward shipped: README has" in found.stderr, found


def main():
    program, not_counting, *ladders = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/counts.json"
        subprocess.run([program], env={**os.environ, "CUSIM_COUNT": path}, check=True)
        kernels, _ = counts.read(path)
        want, shipped = expected(), expected_of_shipped()
        assert sorted(k["kernel"] for k in kernels) == sorted([*want, *shipped]), [k["kernel"] for k in kernels]
        for k in kernels:
            if k["kernel"] in want:
                check(counted(k), want[k["kernel"]], k["kernel"], k)
            else:
                check_shipped(k, shipped[k["kernel"]])
        print_counts = lambda *args: subprocess.run(["dev/cusim/counts.py", path, *args], capture_output=True,
                                                    text=True, check=True).stdout
        check_readme(print_counts("--kernel", "transpose"))
        tables = print_counts("--lines", "--kernel", "transpose_conflicts")
        assert re.search(r"counts\.cu:\d+ +shared_load +4 +32 +1024 +32 +992\n", tables), tables
        if ladders:
            check_ladders(ladders, folder)
        refused = subprocess.run([not_counting, "good"], env={**os.environ, "CUSIM_COUNT": path}, capture_output=True,
                                 text=True)
        assert refused.returncode == 1 and "make it with COUNT=1" in refused.stderr, refused


main()
