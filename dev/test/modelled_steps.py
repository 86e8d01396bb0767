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
sys.path[:0] = [str(ROOT / folder) for folder in ("dev/cuda", "dev", "dev/cusim")]  # before dev/test: equal names
import beside_llmc  # noqa: E402
import cache_replay  # noqa: E402
import held_out  # noqa: E402
import machine_code  # noqa: E402
import run_script  # noqa: E402
import step_graphs  # noqa: E402
import step_launches  # noqa: E402
import step_model  # noqa: E402
import step_time  # noqa: E402
import warp_time  # noqa: E402
from assumptions import EXPECTED, LONG, SHORT  # noqa: E402
from cache_replay import Access, Tiles, replay  # noqa: E402
from chips import CHIPS, DAYS, Machine  # noqa: E402
from kernel_time import cuts, product_seconds, waves  # noqa: E402
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
    # M 1: 4 warps of 16 rows.
    # 4 tiles of 64 rows see 1, 2, 3 and 4 tiles of 64 columns, of 2 x 12 heads; two products of 64 x 64 x 64
    work = work_of(shape, launch("attention_forward", "aILi64ELi64ELi1E", (24, 4, 1), (128, 1, 1)), None)
    near(work["flops"], 24 * 10 * 2 * 2 * 64**3, "FLOPs of attention")
    near(work["rare"], 0.4, "tiles on the diagonal")
    near(work["copied"], 24 * (4 * 64 * 64 * 2 + 10 * 2 * 64 * 64 * 2), "bytes copied by attention")
    work = work_of(shape, launch("attention_backward_kv", "aILi64ELi64ELi1E", (24, 4, 1), (128, 1, 1)), None)
    near(work["flops"], 24 * 10 * 4 * 2 * 64**3, "FLOPs of attention's backward pass")
    # 8 warps of 32 rows see 8, 7 .. 1 tiles of 32 columns; their 2 blocks copy 8 and 4 of these tiles
    work = work_of(shape, launch("attention_backward_kv", "aILi64ELi32ELi2E", (24, 2, 1), (128, 1, 1)), None)
    near(work["flops"], 24 * 36 * 4 * 2 * 32 * 32 * 64, "FLOPs of attention's backward pass, 32 rows per warp")
    near(work["rare"], 8 / 36, "tiles on the diagonal, 32 rows per warp")
    near(work["copied"], 24 * (2 * 2 * 128 * 64 * 2 + 12 * 32 * (2 * 64 * 2 + 2 * 4)), "bytes copied for dk and dv")


def tile(name, size=10, written=False):
    return Access(name, 0, 0, 1, size, written)


def the_cache_drops_what_was_used_longest_ago():
    """Traces whose misses are counted by hand; a cache of two tiles of 10 bytes."""
    found = replay([[tile(name) for name in "ABACAB"]], 1, 20)  # A, B, C (drops B), B (drops C)
    near(found.read, 40, "bytes missed by one block")
    near(found.asked, 60, "bytes asked for by one block")
    found = replay([[tile(name) for name in part] for part in ("AB", "AB", "C")], 2, 20)
    near(found.read, 30, "two blocks that read the same, side by side")
    near(cache_replay.tail(found), 3 * 2 / 5, "three rounds of two slots for five accesses")
    found = replay([[tile("A"), tile("W", written=True), tile("V", written=True), tile("A")]], 1, 20)
    near(found.read, 20, "what is written drops what was read")
    near(found.asked, 20, "what is written is not read")


def blocks_have_an_order():
    rows, groups = cache_replay.rows_of_all_heads, cache_replay.groups_of_heads
    near(list(rows(2, 2)) == [(0, 0), (1, 0), (0, 1), (1, 1)], True, "rows of all heads")
    near(list(groups(3, 2, 2)) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)], True, "groups of two heads")
    t = Tiles(64, 1024, 64, 128, 64, False, 1, 1, 2)
    once, all_asked = 64 * 3 * 1024 * 128, 64 * (8 + 2 * 36) * 128 * 128  # q, k, v; q and 1 to 8 tiles of 128 keys
    traffic = lambda capacity, order: cache_replay.attention_traffic(t, 16, capacity, order)
    near(traffic(1e9, rows).read, once, "everything fits")
    near(traffic(1e6, rows).read, all_asked, "keys and values of 64 heads do not fit into 1 MB")
    near(traffic(8e6, lambda h, n: groups(h, n, 16)).read, once, "those of 16 heads fit into 8 MB")
    near(traffic(1e6, rows).asked, all_asked, "bytes that blocks copy")
    near(cache_replay.attention_group(768, 1024, 128, 50 << 20), 48, "16 groups: 50 heads fit 12.5 MiB")
    near(cache_replay.attention_group(768, 1024, 128, 1e5), 1, "a head that does not fit is a group")
    near(traffic(8e6, cache_replay.shipped_order(t, 8e6)).read, once, "the groups of a cache fit into it")


def pieces_come_in_waves():
    near(waves(192, 132), 264 / 192, "192 tiles on 132 multiprocessors are two waves")
    near(waves(100, 132), 1, "100 tiles on 132 multiprocessors")
    rounds = {(rows, columns, parts): n for rows, columns, parts, n in cuts(4096, 768, 768, 132)}
    near(rounds[128, 128, 1], 2, "rounds of the 192 tiles of 128 x 128 of 4096 x 768")
    near(rounds[256, 128, 1], 1, "rounds of its 96 tiles of 256 x 128")


INTERVALS = {"tensor": 8, "special": 8}


def instructions(*lines):
    return [(16 * i, None, *line.split(" ", 1)) for i, line in enumerate(lines)]


def warps_wait_for_results_and_pipes():
    alone = lambda *lines: warp_time.alone(instructions(*lines), machine_code.pipe_of, INTERVALS)
    near(alone("FADD R1, R2, R3", "FADD R4, R5, R6"), 2, "independent sums")
    near(alone("FADD R1, R2, R3", "FADD R4, R1, R6"), 1 + warp_time.LATENCY["fma"], "dependent sums")
    product = "HMMA.16816.F32.BF16 R{0}, R20, R24, R{0}"
    near(alone(product.format(0), product.format(4)), 9, "independent products take their pipe")
    near(alone(product.format(0), product.format(2)), 1 + warp_time.LATENCY["tensor"], "sums that share registers")
    near(alone("LDSM.16.M88.4 R20, [R8]", product.format(0)), 1 + warp_time.LATENCY["shared"], "fragments are awaited")
    both = lambda n: warp_time.together(instructions(product.format(0), product.format(4)), n, machine_code.pipe_of,
                                        INTERVALS)
    near(both(4), 4 * 2 * 8, "products of four warps, bound by their pipe", 0.05)
    near(both(1), warp_time.LATENCY["tensor"], "one warp waits for its own sums", 0.05)


def products_are_plausible():
    for chip in CHIPS:
        machine = Machine(chip)
        speed = lambda *sizes: 2 * sizes[0] * sizes[1] * sizes[2] / product_seconds(machine, *sizes, 2, False, 0)[0]
        share = speed(8192, 8192, 8192) / chip.peak
        expect(0.8 * machine.product < share < machine.product, f"{chip.name}: {share:.2f} of the peak at 8192")
        expect(speed(64, 64, 64) / chip.peak < 0.02, f"{chip.name}: a small product is as fast as a large one")
        expect(speed(768, 768, 65536) / chip.peak > 0.3, f"{chip.name}: a long sum is not split")
        result_of = lambda *result: product_seconds(machine, 768, 50304, 8192, *result, 0)[0]
        expect(result_of(4, True) > result_of(2, False), f"{chip.name}: adding in fp32 is free")


def every_assumption_has_a_range_and_a_source():
    for chip in CHIPS:
        found = chip.assumptions()
        expect(len({a.name for a in found}) == len(found) > 10, f"{chip.name}: one is there twice, or few are")
        for a in found:
            expect(a.source and len(a.values) == 3, f"{chip.name}: {a.name} has no source, or no range")
            between = sorted(a.values)[1] == a.values[EXPECTED]
            expect(between, f"{chip.name}: {a.name} is not expected between its ends")
            moved = getattr(Machine(chip, a.name, SHORT), a.name), getattr(Machine(chip, a.name, LONG), a.name)
            expect(moved == (a.values[SHORT], a.values[LONG]), f"{chip.name}: {a.name} cannot be moved")


def run(*arguments):
    """What step_model.py prints; here, where the caches are those of the steps before."""
    return run_script.script(step_model, *arguments)


def steps_respect_the_roofline(program):
    """No prediction is faster than each kernel's bound, nor ten times as slow, on any chip, with the stored code."""
    text = run("--stored", "--program", program, "-b", "4,16")
    rows = re.findall(r"^\| ([^|]+) \| 124M \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text, re.M)
    expect(len(rows) == 2 * len(CHIPS), f"{len(rows)} rows of steps:\n{text}")
    names = {chip.name: chip.peak_name for chip in CHIPS}
    for name, B, *ms in rows:
        plan = subprocess.run([program, "--plan", "-e", "d12", "-b", B, "-t", "1024", "-d", str(1024 * int(B)),
                               "--device", names[name]], cwd=ROOT, text=True, capture_output=True).stdout
        bound = float(re.search(r"a step takes at least ([\d.]+) ms", plan)[1])
        low, expected, high = map(float, ms)
        expect(bound < low < expected < high < 10 * bound,
               f"{name}, B {B}: {low} to {high} ms modelled, {expected} expected, at least {bound} ms by the roofline")


class Arguments:
    """Those of step_model.py that held_out.py reads."""
    order, T, recompute, gelu_fusion, flags, counted = None, 1024, 0, 0, [], {}
    data, chips, measured = "dev/data/shakespeare_train.bin", CHIPS, DAYS

    def __init__(self, program):
        self.program = program


def held_out_figures_are_met(program):
    """Within 10%, or the table says why."""
    args, codes = Arguments(program), json.loads(step_launches.STORED.read_text())
    count = 0
    for figure, measured, modelled, line in held_out.rows(args, codes):
        off = modelled[EXPECTED] / measured - 1
        count += 1
        expect(figure.why or abs(off) <= held_out.WITHIN, f"off by {off:.1%}: {line}")
        ends = sorted((modelled[SHORT], modelled[LONG]))
        expect(ends[0] < modelled[EXPECTED] < ends[1], f"no range: {line}")
        expect(line in (ROOT / "dev/MEASURED.md").read_text(), f"dev/MEASURED.md has not: {line}")
    expect(count == len(held_out.ATTENTION) + len(held_out.STEPS), f"{count} figures")


def default_flags_beside_llmc(program):
    """The page has the table; what it was to reach, it reaches; flags are those that the trainer takes by itself."""
    args, codes = Arguments(program), json.loads(step_launches.STORED.read_text())
    page = (ROOT / "dev/MEASURED.md").read_text()
    reached, most = {}, {"A100 SXM 80GB": 290, "H100 SXM": 135}
    for chip, ms, line in beside_llmc.rows(args, codes):
        reached[chip.name] = ms[EXPECTED]
        expect(line in page, f"dev/MEASURED.md has not: {line}")
        expect("`-r 0 -ge 0` " in line, f"other flags are chosen: {line}")
    expect(reached.keys() == most.keys(), f"steps beside llm.c: {reached}")
    expect(all(reached[name] <= ms for name, ms in most.items()), f"{reached} ms with default flags, asked: {most}")
    expect(beside_llmc.PAGE in page, f"dev/MEASURED.md has not: {beside_llmc.PAGE}")
    of_chip = lambda name: step_launches.dry_run(args, next(c for c in CHIPS if name in c.name), 768, 12, 2, 16, 1)
    scores = lambda rows, name: ["product", "50304", str(rows), "768"] in [words[:4] for words in of_chip(name)]
    expect(scores(16384, "A100") and scores(8192, "RTX 4090"), "scores do not come in chunks as the memory says")


def pages_say_what_is_modelled():
    """The figures of the paragraphs that explain attention, and the texts beside the tables."""
    code = json.loads(step_launches.STORED.read_text())["90a"]
    forward = next(c for symbol, c in code.items() if "attention_forward_kernelILi64ELi64ELi2E" in symbol)
    one, two = forward["together"]["H100 SXM"][:2]
    hot = [b for b in forward["blocks"] if b["loop"] == forward["hot"]]
    machine = Machine(next(c for c in CHIPS if c.name == "H100 SXM"))
    tensor = sum(b.get("flops", 0) for b in hot) / (machine.per_clock["tensor"] / 4)
    t = Tiles(768, 1024, 64, 128, 64, False, 1, 1, 2)
    shipped = cache_replay.shipped_order(t, machine.chip.l2_bytes)
    read = [cache_replay.attention_traffic(t, 264, 37.5e6, order).read
            for order in (cache_replay.rows_of_all_heads, shipped)]
    page = " ".join((ROOT / "dev/cuda/README.md").read_text().split())
    for said in (f"take {two} clocks for a tile each of the forward pass, where one alone takes {one}, and the tensor "
                 f"cores need {tensor:.0f}", f"B 64 these are {64 * 1024 * 2 * 768 * 2 / 1e6:.0f} MB",
                 f"{1e-9 * read[0]:.1f} GB a layer in place of the {1e-9 * read[1]:.1f} GB"):
        expect(said in page, f"dev/cuda/README.md has not: {said}")
    page = (ROOT / "dev/MEASURED.md").read_text()
    for text in (held_out.PAGE, held_out.ASSUMED):
        expect(text in page, "dev/MEASURED.md has other words than held_out.py")


def each_assumption_moves_a_step_one_way(program):
    """To its short end not longer, to its long end not shorter; one at least of each kind moves an H100's step."""
    args, codes = Arguments(program), json.loads(step_launches.STORED.read_text())
    chip = next(c for c in CHIPS if c.name == "H100 SXM")
    step = step_launches.step_of(chip, codes, args, "d12", 64)
    seconds = lambda machine: step_time.step_seconds(step, machine)
    expected, found = step_time.moves(chip, None, seconds)
    for a, (short, long) in found.items():
        expect(short <= 1e-12 and long >= -1e-12, f"{a.name} moves a step by {1e3 * short:+.2f}, {1e3 * long:+.2f} ms")
    expect(sum(long > 1e-3 for _, long in found.values()) >= 4, "assumptions do not matter")
    by_rows = Machine(chip, order=cache_replay.order_of("rows"))
    expect(expected < seconds(by_rows) - 1e-3, "groups of heads whose keys and values fit save nothing")


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
    product. By default no product runs twice."""
    for asked, environment, wanted in (
            ("-ge 0 -r 0", {}, (3, 3)), ("-ge 0 -r 1", {}, (5, 3)), ("-ge 2 -r 0", {}, (0, 3)),
            ("-ge 2 -r 1", {}, (0, 5)), ("", {}, (3, 3)), ("", {"CUSIM_CAPABILITY": "90"}, (3, 3)),
            ("-r 1", {}, (5, 3)), ("", {"CUSIM_MEMORY_MIB": "2000"}, (5, 3))):
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


def graphs_save_gaps(program):
    """All launches but those whose grids or arguments are others in each step are in two graphs. The fewer rows, the
    larger the part that they save."""
    near(sum(step_graphs.captured([["kernel"], ["graph", "3"], ["kernel"], ["memset"], ["product"], ["kernel"],
                                   ["graph", "1"], ["kernel"], ["product"]])), 2 + 3, "graphs, and launches in them")
    args, codes = Arguments(program), json.loads(step_launches.STORED.read_text())
    chip, part = next(c for c in CHIPS if c.name == "H100 SXM"), {}
    for B in (4, 64):
        step, inside = step_launches.step_of(chip, codes, args, "d12", B), step_graphs.captured_of(args, chip, "d12", B)
        names = {name: k.calls for name, k in step_time.kernels_of(step, Machine(chip)).items()}
        outside = sum(n for name, n in names.items() if name.startswith(("encoder_backward", "global_norm", "sum_rank",
                                                                         "finish_norm", "adamw", "round_gradients")))
        near(inside[0], 2, "graphs of a micro-step")
        near(inside[1], sum(names.values()) - outside, f"launches in graphs at B {B}")
        seconds = lambda *graphs: step_time.step_seconds(step, Machine(chip), *graphs)
        part[B] = 1 - seconds(*inside) / seconds()
    expect(0.002 < 4 * part[64] < part[4] < 0.1, f"graphs save {part} of a step")
    machine = Machine(chip)
    machine.host = 1e6  # the host is what a step waits for
    near(step_time.step_seconds(step, machine, *inside),
         sum(names.values()) - inside[1] + 2e-6 * machine.graph_launch, "a step that waits for the host")


def several_gpus(program):
    text = run("--stored", "--program", program, "--chip", "H100", "--gpus", "1,8", "--model", "d12,d24")
    rows = re.findall(r"^\| (\w+) \| (\d) \|.* ([\d.]+)% \| ([\d,]+) \| \d+% \|$", text, re.M)
    expect(len(rows) == 4, f"{len(rows)} rows of several GPUs:\n{text}")
    for model, gpus, efficiency, _ in rows:
        expect((float(efficiency) < 99.95) == (gpus != "1"), f"{model} on {gpus} GPUs: efficiency {efficiency}%")
    speed = {(model, gpus): float(tokens.replace(",", "")) for model, gpus, _, tokens in rows}
    for model in ("124M", "350M"):
        gain = speed.get((model, "8"), 0) / speed.get((model, "1"), 1)
        expect(6 < gain < 9, f"{model}: 8 GPUs are {gain:.1f} times as fast as one")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    program = parser.parse_args().program
    loops_are_metered(), tiles_are_metered(), narrow_paths_are_left_out(), work_is_counted_by_hand()
    the_cache_drops_what_was_used_longest_ago(), blocks_have_an_order(), pieces_come_in_waves()
    warps_wait_for_results_and_pipes(), every_assumption_has_a_range_and_a_source(), products_are_plausible()
    pages_say_what_is_modelled(), held_out_figures_are_met(program)
    default_flags_beside_llmc(program), each_assumption_moves_a_step_one_way(program)
    steps_respect_the_roofline(program), kernels_have_code_and_work(program)
    what_is_recomputed(program), measured_beside_modelled(program), several_gpus(program)
    graphs_save_gaps(program)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
