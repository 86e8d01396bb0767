#!/usr/bin/env python3
"""The model of a step's time (dev/cuda/step_model.py): machine code whose executions are known on paper, work of
kernels counted by hand, and predictions that respect the bounds of --plan.

    dev/test/modelled_steps.py PROGRAM       the simulator's trainer in bf16
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "dev/cuda"), str(ROOT / "dev")]  # before dev/test, which has a kernel_work.py too
import machine_code  # noqa: E402
import step_model  # noqa: E402
from chips import CHIPS  # noqa: E402
from kernel_work import Launch, Shape, work_of  # noqa: E402

failed = []


def expect(true, what):
    if not true:
        failed.append(what)


def near(value, wanted, what, tolerance=1e-9):
    expect(abs(value - wanted) <= tolerance * max(1, abs(wanted)), f"{what}: {value}, wanted {wanted}")


def code_of(text):
    """Instructions of 16 bytes each, '@P0 OPCODE operands' line by line; a label is the number of a line."""
    lines = [re.match(r"(@\S+ )?(\S+) ?(.*)", line.strip()) for line in text.strip().splitlines()]
    return machine_code.kernel_of([(16 * n, m[1], m[2], re.sub(r"line (\d+)", lambda t: hex(16 * int(t[1])), m[3]))
                                   for n, m in enumerate(lines)])


def sums(kernel, totals, warps, rare=1):
    times = machine_code.executions(kernel, totals, warps, rare)
    total = {}
    for block, n in zip(kernel["blocks"], times):
        for key, count in block.items():
            if key not in ("loop", "skipped"):
                total[key] = total.get(key, 0) + n * count
    return total


def loops_are_metered():
    """A loop of one load of 16 bytes: 512 bytes of a warp. 10 warps that load 10 x 512 x 7 bytes go around 7 times."""
    kernel = code_of("""MOV R0, R1
                        LDG.E.128 R4, [R2]
                        FFMA R4, R4, R5, R6
                        @P0 BRA line 1
                        STG.E.128 [R2], R4
                        EXIT""")
    total = sums(kernel, {"loaded": 10 * 512 * 7}, 10)
    near(total["issue"], 10 * (1 + 7 * 3 + 2), "instructions of a loop")
    near(total["fma"], 10 * 7, "multiply-adds of a loop")
    near(total["waits"], 10 * 7, "waits of a loop")
    near(total["stored"], 10 * 512, "bytes stored")


def tiles_are_metered():
    """A loop of products: what a branch skips alone is the mask, which runs on the diagonal only."""
    kernel = code_of("""MOV R0, R1
                        HMMA.16816.F32.BF16 R4, R8, R10, R4
                        @P1 BRA line 5
                        FSEL R4, R4, R5, P2
                        FSEL R5, R4, R5, P2
                        MUFU.EX2 R4, R4
                        @P0 BRA line 1
                        EXIT""")
    total = sums(kernel, {"flops": 4 * 4096 * 8}, 4, rare=0.25)
    near(total["special"], 4 * 8, "exponentials of tiles")
    near(total["alu"], 4 * (1 + 8 * 0.25 * 2), "the mask of tiles, and what is before")
    near(total["flops"], 4 * 8 * 4096, "products of tiles")


def narrow_paths_are_left_out():
    """A whole pack, or element by element at the end of a tensor."""
    kernel = code_of("""ISETP P0, R0, R1
                        @P0 BRA line 4
                        LDG.E.128 R4, [R2]
                        BRA line 6
                        LDG.E.U16 R4, [R2]
                        LDG.E.U16 R5, [R2+2]
                        FADD R4, R4, R5
                        EXIT""")
    near(sums(kernel, {"loaded": 512}, 1)["issue"], 6, "instructions of whole packs")


def work_is_counted_by_hand():
    shape = Shape(12, 768, 12, 2, 256)
    launch = lambda name, symbol, grid, block: Launch([name, symbol, *map(str, grid), *map(str, block), "0"])
    near(shape.parameters, 124475904, "parameters with a padded vocabulary")  # 124,439,808 and 47 rows of 768
    work = work_of(shape, launch("gelu_forward", "g", (768, 1, 1), (256, 1, 1)), None)
    near(work["read"], 2 * 256 * 3072 * 2, "bytes of gelu")
    # 4 tiles of 64 rows see 1, 2, 3 and 4 tiles of 64 columns, of 2 x 12 heads; two products of 64 x 64 x 64
    work = work_of(shape, launch("attention_forward", "aILi64ELi64E", (24, 4, 1), (128, 1, 1)), None)
    near(work["flops"], 24 * 10 * 2 * 2 * 64**3, "FLOPs of attention")
    near(work["rare"], 0.4, "tiles on the diagonal")
    near(work["copied"], 24 * (4 * 64 * 64 * 2 + 10 * 2 * 64 * 64 * 2), "bytes copied by attention")
    work = work_of(shape, launch("attention_backward_kv", "aILi64ELi64E", (24, 4, 1), (128, 1, 1)), None)
    near(work["flops"], 24 * 10 * 4 * 2 * 64**3, "FLOPs of attention's backward pass")
    # 8 warps of 32 rows see 8, 7 .. 1 tiles of 32 columns; their 2 blocks copy 8 and 4 of these tiles
    work = work_of(shape, launch("attention_backward_kv", "aILi64ELi32E", (24, 2, 1), (128, 1, 1)), None)
    near(work["flops"], 24 * 36 * 4 * 2 * 32 * 32 * 64, "FLOPs of attention's backward pass, 32 rows per warp")
    near(work["rare"], 8 / 36, "tiles on the diagonal, 32 rows per warp")
    near(work["copied"], 24 * (2 * 2 * 128 * 64 * 2 + 12 * 32 * (2 * 64 * 2 + 2 * 4)), "bytes copied for dk and dv")


def products_are_plausible():
    for chip in CHIPS:
        seconds, _ = step_model.product_seconds(chip, 8192, 8192, 8192, 2, False, 0)
        share = 2 * 8192**3 / seconds / chip.peak
        expect(0.8 * chip.product_share < share < chip.product_share, f"{chip.name}: {share:.2f} of the peak at 8192")
        small, _ = step_model.product_seconds(chip, 64, 64, 64, 2, False, 0)
        expect(2 * 64**3 / small / chip.peak < 0.02, f"{chip.name}: a small product is as fast as a large one")
        cut, _ = step_model.product_seconds(chip, 768, 768, 65536, 2, False, 0)
        expect(2 * 768 * 768 * 65536 / cut / chip.peak > 0.3, f"{chip.name}: a long sum is not split")


def run(*arguments):
    done = subprocess.run([sys.executable, ROOT / "dev/cuda/step_model.py", *map(str, arguments)], cwd=ROOT, text=True,
                          capture_output=True)
    expect(done.returncode == 0, f"step_model.py {arguments} fails: {done.stderr[-500:]}")
    return done.stdout


def steps_respect_the_roofline(program):
    """No prediction is faster than each kernel's bound, nor ten times as slow, on any chip, with the stored code."""
    text = run("--stored", "--program", program, "-b", "4,16")
    rows = re.findall(r"^\| ([^|]+) \| 124M \| (\d+) \| ([\d.]+) \|", text, re.M)
    expect(len(rows) == 2 * len(CHIPS), f"{len(rows)} rows of steps:\n{text}")
    names = {chip.name: chip.peak_name for chip in CHIPS}
    for name, B, ms in rows:
        plan = subprocess.run([program, "--plan", "-e", "d12", "-b", B, "-t", "1024", "-d", str(1024 * int(B)),
                               "--device", names[name]], cwd=ROOT, text=True, capture_output=True).stdout
        bound = float(re.search(r"a step takes at least ([\d.]+) ms", plan)[1])
        expect(bound < float(ms) < 10 * bound, f"{name}, B {B}: {ms} ms modelled, at least {bound} ms by the roofline")


def kernels_have_code_and_work(program):
    """A kernel without machine code is bound by memory alone, one without a row of work by what its code says."""
    text = run("--stored", "--program", program, "--kernels", "--chip", "H100", "-b", "16")
    shares = [float(s) for s in re.findall(r"\| ([\d.]+)% \|", text)]
    near(sum(shares), 100, "shares of the kernels", 0.01)
    for name, note in re.findall(r"^\| (\w+) \|.*\((no machine code|not in kernel_work.py)\)", text, re.M):
        print(f"note: {name}: {note}; `make step-model WRITE=1` stores machine code")
    expect("(no machine code)" not in text or text.count("(no machine code)") < 6, "most machine code is missing")


def what_is_recomputed(program):
    """GELU of all 3 layers once; with -r 1 that of the first 2 again, by its own kernel or, if -ge says so, by the
    product. By default no product runs twice: on Hopper GELU is in the epilogues; where memory is short, a kernel."""
    hopper = {"CUSIM_CAPABILITY": "90"}
    for asked, environment, wanted in (
            ("-ge 0 -r 0", {}, (3, 3)), ("-ge 0 -r 1", {}, (5, 3)), ("-ge 2 -r 0", {}, (0, 3)),
            ("-ge 2 -r 1", {}, (0, 5)), ("", {}, (3, 3)), ("", hopper, (0, 3)), ("-r 1", hopper, (5, 3)),
            ("", {**hopper, "CUSIM_MEMORY_MIB": "2000"}, (5, 3))):
        flags = ["-e", "L3C64H1T64", "-t", "64", "-b", "1", "-x", "1", "-v", "0", "-s", "0", *asked.split(), "-i",
                 "dev/data/shakespeare_train.bin"]
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run([program, *flags], cwd=ROOT, capture_output=True,
                           env={**os.environ, **environment, "CUSIM_DRY": file.name})
            lines = file.read().decode().splitlines()
        kernels = sum(line.startswith("kernel gelu_forward ") for line in lines)
        products = sum(bool(re.match(r"product 256 64 64 14 14 (4|164) 0$", line)) for line in lines)
        expect((kernels, products) == wanted, f"'{asked}' {environment}: {kernels} kernels of GELU, {products} "
                                              f"products before it, wanted {wanted}")


def measured_beside_modelled(program):
    """What scripts/gpu_day.sh measured: kernels of a step, and products of one call, of which a step has 24."""
    day = {"gpu": "NVIDIA H100 80GB HBM3", "kernels": {"attention_forward": 5.5}, "steps": [],
           "products": [{"product": f"768 x 16384 x 768, {more}", "ms": ms} for more, ms in [("NN", 0.1), ("TN", 0.3)]]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(day))
        file.flush()
        text = run("--stored", "--program", program, "--kernels", "--chip", "H100", "-b", "16", "--measured", file.name)
    expect(re.search(r"^\| attention_forward \|.* 5.500 \|$", text, re.M), f"no measured attention:\n{text}")
    expect(re.search(r"^\| product 768 x 16384 x 768 \| 24 \|.* 4.800 \|$", text, re.M), f"no product:\n{text}")
    expect(re.search(r"^\| gelu_forward \|.* [\d.]+ \| \|$", text, re.M), "gelu was measured")


def several_gpus(program):
    text = run("--stored", "--program", program, "--chip", "H100", "--gpus", "1,8", "--model", "d12,d24")
    rows = re.findall(r"^\| (\w+) \| (\d) \|.* ([\d.]+)% \| ([\d,]+) \| \d+% \|$", text, re.M)
    expect(len(rows) == 4, f"{len(rows)} rows of several GPUs:\n{text}")
    speed = {(model, gpus): float(tokens.replace(",", "")) for model, gpus, _, tokens in rows}
    for model in ("124M", "350M"):
        gain = speed.get((model, "8"), 0) / speed.get((model, "1"), 1)
        expect(6 < gain < 9, f"{model}: 8 GPUs are {gain:.1f} times as fast as one")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    program = parser.parse_args().program
    loops_are_metered(), tiles_are_metered(), narrow_paths_are_left_out(), work_is_counted_by_hand()
    products_are_plausible(), steps_respect_the_roofline(program), kernels_have_code_and_work(program)
    what_is_recomputed(program), measured_beside_modelled(program), several_gpus(program)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
