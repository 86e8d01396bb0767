"""What a training step launches, as step_model.py times it: the launches of the trainer's own dry run in the simulator
(CUSIM_DRY), with the machine code and the work of each, and the bytes that --plan counts."""
import functools
import json
import pathlib
import re
import shutil

import children
import counts
import machine_code
import warp_time
from chips import Machine
from kernel_time import Demand
from kernel_work import Launch, Shape, X, work_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORED = ROOT / "dev/cuda/machine_code.json"
MODELS = {"d12": ("124M", 12, 768, 12), "d24": ("350M", 24, 1024, 16), "d36": ("774M", 36, 1280, 20),
          "d48": ("1558M", 48, 1600, 25)}
# Of products: GELU with its input kept; the derivative of GELU, without and with the gradient of the bias.
EPILOGUE_OPERANDS = {164: 1, 192: 1}


def memory_mib(chip):
    return int(chip.memory_bytes) >> 20


@functools.lru_cache(None)
def run_once(program, flags, record, card):
    """The lines of the launches of a step, without computing it."""
    children.run([program, "-x", 1, *flags], env={**dict(card), "CUSIM_DRY": record}, cwd=ROOT)
    return [line.split() for line in (ROOT / record).read_text().splitlines()]


def dry_run(args, chip, C, NH, L, B, micro_steps, more=()):
    """On a simulated card that holds as many blocks as the chip does, and has its memory. more: flags."""
    card = (("CUSIM_CAPABILITY", chip.capability), ("CUSIM_MULTIPROCESSORS", str(chip.sms)),
            ("CUSIM_SHARED_KIB", str(chip.shared_kb)), ("CUSIM_MEMORY_MIB", str(memory_mib(chip))))
    pathlib.Path("build").mkdir(exist_ok=True)
    flags = ("-e", f"L{L}C{C}H{NH}T{args.T}", "-b", B, "-t", args.T, "-d", B * args.T * micro_steps, "-v", 0, "-s", 0,
             "-r", args.recompute, "-ge", args.gelu_fusion, "-i", args.data, *args.flags, *more)
    record = f"build/launches_{chip.capability}_L{L}C{C}_{B}x{args.T}x{micro_steps}"
    return run_once(args.program, flags, record, card)


@functools.lru_cache(None)
def plan_of(program, T, data, model, B, more, memory=4000000):
    """What --plan says, FLOPs of a step, and bytes that it allocates on a card with so many MiB."""
    flags = ["-e", model, "-b", B, "-t", T, "-s", 0, "-i", data, *more]
    plan, _ = children.run([program, "--plan", *flags], env={"CUSIM_MEMORY_MIB": str(memory)}, cwd=ROOT)
    return plan, float(re.search(r"FLOPs a step: (\S+)", plan)[1]), float(re.search(r"total (\d+) bytes", plan)[1])


DRIVER_BYTES = 2**30  # of a chip's memory


def fits_chip(args, chip, model, B):
    """Whether a step of one micro-step fits the memory of the chip, and its FLOPs."""
    flags = ("-d", B * args.T, "-r", args.recompute, *args.flags)
    _, flops, memory = plan_of(args.program, args.T, args.data, model, B, flags, memory_mib(chip))
    return memory <= chip.memory_bytes - DRIVER_BYTES, flops


WGMMA = "with wgmma"
WITHOUT = ("LDSM", "LDGSTS")  # with wgmma and TMA: the loads of fragments, the copies of a thread


def timers(chip, wgmma=False):
    """The clocks of a warp alone on a chip, of some instructions; and of each of n warps on a quarter of a
    multiprocessor, whose four quarters take turns at shared memory. wgmma: the latter alone, as if products ran at the
    chip's peak and took their operands from shared memory."""
    per_clock = Machine(chip).per_clock
    flops = (chip.flops if wgmma else per_clock["tensor"]) / 4
    intervals = {pipe: 4 / per_clock[pipe] for pipe in ("fma", "alu", "special", "fp64")}
    intervals["tensor"] = lambda opcode: machine_code.products_flops(opcode) / flops
    turns = lambda quarters: {**intervals, "shared": lambda opcode: quarters * machine_code.wavefronts(opcode)}
    kept = lambda code: [i for i in code if not (wgmma and i[2].startswith(WITHOUT))]
    alone = lambda code: round(warp_time.alone(code, machine_code.pipe_of, turns(1)))
    together = lambda code, n: round(warp_time.together(kept(code), n, machine_code.pipe_of, turns(4)) / n)
    return None if wgmma else alone, together


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
        of_chips = {chip.name: timers(chip) for chip in args.chips if chip.arch == arch}
        of_chips |= {f"{chip.name} {WGMMA}": timers(chip, True) for chip in args.chips if arch == chip.arch == "90a"}
        kernels = machine_code.disassemble(tool, cubin, of_chips)
        codes[arch] = {s: {"registers": figures[s][0], "shared": figures[s][1], **kernels[s]} for s in kernels}
    return codes, "compiled machine code"


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


class Product:
    """A product of cuBLASLt, from the words that the dry run writes."""
    def __init__(self, words):
        self.m, self.n, self.k, _, typeD, epilogue, self.add = map(int, words)
        self.type_bytes, self.extra = 4 if typeD == 0 else X, EPILOGUE_OPERANDS.get(epilogue, 0)
        self.name = f"product {self.m} x {self.n} x {self.k}"
        self.moved = X * (self.m * self.k + self.k * self.n) + self.m * self.n * self.type_bytes
        self.flops = 2 * self.m * self.n * self.k


def launches_of(chip, codes, counted, lines, shape):
    """Key -> [how often, Demand or Product] of the launches of a step."""
    found, before = {}, {}
    for kind, *words in lines:
        if kind == "product":
            found.setdefault(tuple(words), [0, None])
            found[tuple(words)] = [found[tuple(words)][0] + 1, found[tuple(words)][1] or Product(words)]
        if kind != "kernel":
            continue
        launch = Launch(words)
        launch.before = before
        code = codes[chip.arch].get(launch.symbol)
        work = before = work_of(shape, launch, code)
        one = found.setdefault((*words, *work.items()), [0, None])
        one[0] += 1
        one[1] = one[1] or Demand(chip, launch, code, work, counted.get(launch.name, Counted()))
    return found


def trained(args, shape):
    """The parameters that a step updates: all, or with --lora R adapters of all matrices of the layers."""
    if "--lora" not in args.flags:
        return shape.parameters
    return 16 * shape.C * shape.L * int(args.flags[args.flags.index("--lora") + 1])


def step_of(chip, codes, args, model, B, micro_steps=1, gpus=1):
    """Pairs of how often and what, of a step of a model. All layers launch the same, and so do all micro-steps but the
    first: steps of 2 and 3 layers, and of 2 and 3 micro-steps, are recorded, and others follow from the differences. On
    several GPUs a process sums the squares of its part of the gradients, and updates its part of the weights."""
    _, L, C, NH = MODELS[model]
    micro = [(1, 1)] if micro_steps == 1 else [(3 - micro_steps, 2), (micro_steps - 2, 3)]
    step = []
    for micro_weight, micro_steps_recorded in micro:
        for layer_weight, layers in [(3 - L, 2), (L - 2, 3)]:
            shape = Shape(layers, C, NH, B, args.T)
            shape.parameters = trained(args, shape) / gpus
            lines = dry_run(args, chip, C, NH, layers, B, micro_steps_recorded)
            found = launches_of(chip, codes, args.counted, lines, shape)
            step += [(micro_weight * layer_weight * n, what) for n, what in found.values()]
    return step
