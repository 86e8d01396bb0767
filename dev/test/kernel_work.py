#!/usr/bin/env python3
"""The work that the model of a step assumes for each kernel (dev/cuda/kernel_work.py) is what the simulator counts.

    make COUNT=1 build-count/BF16/train_gpt2sim && dev/test/kernel_work.py build-count/BF16/train_gpt2sim
"""
import os
import pathlib
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("dev/cuda", "dev", "dev/cusim")]
import counts  # noqa: E402
from kernel_work import WORK, Launch, Shape, work_of  # noqa: E402

L, C, NH, B, T = 1, 256, 4, 2, 128
SMALL = 8192  # bytes: statistics of rows, scalars


def run(program, folder, **environment):
    subprocess.run([program, "-e", f"L{L}C{C}H{NH}T{T}", "-b", str(B), "-t", str(T), "-x", "1", "-s", "0", "-v", "0"],
                   cwd=ROOT, env={**os.environ, **environment}, check=True, stdout=subprocess.DEVNULL)


def assumed(path):
    """Name -> work of all launches of a dry run."""
    totals, before, shape = {}, {}, Shape(L, C, NH, B, T, maxT=T)
    for line in path.read_text().splitlines():
        kind, *words = line.split()
        if kind != "kernel":
            continue
        launch = Launch(words)
        launch.before = before
        work = before = work_of(shape, launch, None)
        total = totals.setdefault(launch.name, {})
        for key in ("read", "written", "loaded", "copied", "flops"):
            total[key] = total.get(key, 0) + work.get(key, 0)
    return totals


def counted(path):
    totals = {}
    for k in counts.read(path)[0]:
        total = totals.setdefault(k["kernel"], {})
        found = {"read": k["read_bytes"], "written": k["written_bytes"], "copied": k["cp_async_global"]["bytes"],
                 "flops": 4096 * k["warps"].get("mma", 0)}
        for key, value in found.items():
            total[key] = total.get(key, 0) + value
    return totals


def differences(name, want, found):
    """FLOPs of products and bytes of cp.async are exact. What is read lies between what must come from memory and what
    is loaded: counted as read is also what the kernel itself has written, or the one before it."""
    for key in ("flops", "copied"):
        if want[key] != found[key]:
            yield f"{name}: {want[key]} of {key} assumed, {found[key]} counted"
    most = 1.05 * max(want["read"], want["loaded"] + want["copied"]) + SMALL
    if not 0.95 * want["read"] - SMALL <= found["read"] <= most:
        yield f"{name}: {want['read']} bytes read assumed, {want['loaded']} loaded, {found['read']} counted"
    if not abs(want["written"] - found["written"]) <= 0.05 * want["written"] + SMALL:
        yield f"{name}: {want['written']} bytes written assumed, {found['written']} counted"


def main():
    program = sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        run(program, folder, CUSIM_COUNT=str(folder / "counts"))
        run(program, folder, CUSIM_DRY=str(folder / "launches"))
        want, found = assumed(folder / "launches"), counted(folder / "counts")
    wrong = [f"{name} is launched, but not counted" for name in want if name not in found]
    for name in want:
        if name not in WORK:
            print(f"note: {name} has no row in kernel_work.py; the model takes what its machine code says")
        elif name in found:
            wrong += differences(name, want[name], found[name])
    if len(want) < 15:
        wrong.append(f"only {len(want)} kernels in a step")
    doubled = {key: 2 * value for key, value in want["attention_forward"].items()}
    if not list(differences("attention_forward", doubled, found["attention_forward"])):
        wrong.append("twice the work is not noticed")
    if wrong:
        sys.exit("\n".join(wrong))


main()
