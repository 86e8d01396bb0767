"""Machine code of the kernels: what a warp executes, pipe by pipe, read from the disassembly; no GPU is needed.

A kernel is cut into basic blocks, and loops are found by their branches back. How often a block runs is not in the
code. A block that computes products (HMMA), copies to shared memory (cp.async: LDGSTS) or loads (LDG) is metered: what
the kernel needs of these in all is known, so the number of times follows (executions(), below).
"""
import pathlib
import re
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402

# The pipe of an instruction, by the beginning of its name; what is not here takes an issue slot alone.
PIPES = [("HMMA", "tensor"), ("MUFU|F2F|I2F|F2I|POPC|FRND", "special"), ("D(ADD|MUL|FMA|SETP)", "fp64"),
         ("F(FMA|MUL|ADD)|HFMA2|HADD2|HMUL2|IMAD|IDP", "fma"),
         ("LDSM|LDS|STS|SHFL|LDGSTS", "shared"), ("LDG|STG|LD|ST|ATOM|RED|CCTL", "global"),
         ("IADD|LOP|SHF|LEA|ISETP|FSETP|FMNMX|SEL|FSEL|MOV|PRMT|PLOP|F2FP|IABS|VIMNMX|IMNMX|VIADD|FLO|BREV|SGXT|I2I|"
          "P2R|R2P|BMSK|XMAD|FSET|HSETP2|HMNMX2", "alu")]
PIPES = [(re.compile(f"(?:{pattern})"), pipe) for pattern, pipe in PIPES]
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,5})\*/\s+(?:(@!?U?P\d+|@!?U?PT)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")


def pipe_of(opcode):
    return next((pipe for pattern, pipe in PIPES if pattern.match(opcode)), None)


def access_bytes(opcode):
    """Bytes per thread of a load, store or copy."""
    for width in ("128", "64"):
        if f".{width}" in opcode:
            return int(width) // 8
    return 1 if re.search(r"\.[US]8\b", opcode) else 2 if re.search(r"\.[US]16\b", opcode) else 4


def wavefronts(opcode):
    """128 bytes of shared memory at a time, without bank conflicts. A shuffle takes as long as one."""
    if opcode.startswith("LDSM"):
        return int(opcode[-1]) if opcode[-1].isdigit() else 1
    return 1 if opcode.startswith("SHFL") else max(1, access_bytes(opcode) // 4)


def products_flops(opcode):
    """Of one HMMA of a warp: HMMA.16816 multiplies a 16 x 16 by a 16 x 8 matrix."""
    shape = re.search(r"\.(16)(8)(16|8)\b", opcode)
    return 2 * int(shape[1]) * int(shape[2]) * int(shape[3]) if shape else 4096


METERS = ("flops", "copied", "loaded")
SHARING = range(1, 5)  # warps on a quarter of a multiprocessor, for which loops of products are timed


class Block:
    """Instructions that run one after the other. counts: instructions by pipe, and what is metered."""
    def __init__(self, begin):
        self.begin, self.end, self.loop, self.counts, self.instructions = begin, begin, 0, {}, []
        self.wide, self.after, self.falls_through = False, [], True

    def add(self, opcode):
        def count(key, n=1):
            self.counts[key] = self.counts.get(key, 0) + n
        count("issue")
        pipe = pipe_of(opcode)
        self.wide |= bool(re.match(r"(LDG|STG)\S*\.128", opcode))
        if pipe:
            count(pipe, wavefronts(opcode) if pipe == "shared" else 1)
        if opcode.startswith("HMMA"):
            count("flops", products_flops(opcode))
        elif opcode.startswith("LDGSTS"):
            count("copied", 32 * access_bytes(opcode))
        elif opcode.startswith("LDG"):
            count("loaded", 32 * access_bytes(opcode))
            self.counts["waits"] = 1  # for all loads of the block together
        elif opcode.startswith("STG"):
            count("stored", 32 * access_bytes(opcode))


def cut_into_blocks(instructions):
    """Blocks, and branches as (from, to)."""
    branches = []
    for at, _, opcode, operands in instructions:
        target = re.search(r"0x([0-9a-f]+)", operands) if opcode.startswith("BRA") else None
        if target:
            branches.append((at, int(target[1], 16)))
    leaders = {to for _, to in branches}
    leaders |= {at + 16 for at, _, opcode, _ in instructions if opcode.startswith(("BRA", "EXIT"))}
    blocks, targets = [], dict(branches)
    for at, predicate, opcode, operands in instructions:
        if not blocks or at in leaders:
            blocks.append(Block(at))
        block = blocks[-1]
        block.add(opcode)
        block.instructions.append((at, predicate, opcode, operands))
        block.end = at + 16
        if at in targets:
            block.after.append(targets[at])
        if opcode.startswith(("BRA", "EXIT")) and not predicate:
            block.falls_through = False
    return blocks, branches


def reaches(blocks):
    """For each block the numbers of those that can follow it, branches back left out."""
    numbers = {b.begin: n for n, b in enumerate(blocks)}
    after = [set() for _ in blocks]
    for n in reversed(range(len(blocks))):
        following = [numbers[to] for to in blocks[n].after if numbers.get(to, -1) > n]
        following += [n + 1] if blocks[n].falls_through and n + 1 < len(blocks) else []
        for f in following:
            after[n] |= {f} | after[f]
    return after


def without_narrow_paths(blocks):
    """The blocks that can run together with the 128-bit accesses of their loop: the way around these is for the end of
    a tensor, element by element."""
    after = reaches(blocks)
    excluded = {n for w, wide in enumerate(blocks) if wide.wide for n, b in enumerate(blocks)
                if b.loop == wide.loop and not b.wide and n != w and n not in after[w] and w not in after[n]}
    return [b for n, b in enumerate(blocks) if n not in excluded]


def way_around(block, blocks, branches):
    """What a branch may skip together with a block: None if none skips it, otherwise what is metered beside it, on the
    shortest way around it."""
    skips = [(at, to) for at, to in branches if at < block.begin and block.end <= to and
             any(b.begin <= at < b.end and b.loop == block.loop for b in blocks)]
    at, to = min(skips, key=lambda s: s[1] - s[0], default=(0, 0))
    beside = [key for key in ("flops", "copied") if any(key in b.counts for b in blocks if at < b.begin < to)]
    return beside if skips else None


def hot_loop(blocks, branches):
    """The loop with most products, and its instructions but for the mask of the diagonal; 0 if there is none."""
    flops = lambda loop: sum(b.counts.get("flops", 0) for b in blocks if b.loop == loop)
    loop = max({b.loop for b in blocks}, key=flops)
    inside = [b for b in blocks if b.loop == loop and way_around(b, blocks, branches) != []]
    return (loop if flops(loop) else 0), [i for b in inside for i in b.instructions]


def kernel_of(instructions, timers={}):
    """Blocks of a kernel with the loop of each, 0 for none; loops as their parents; of blocks that a branch may skip,
    what else is skipped with them. Blocks that run equally often are merged. timers: name of a chip -> functions of
    instructions: clocks of a warp alone, and of each of some warps that share a quarter of a multiprocessor."""
    instructions = [i for i in instructions if i[2] != "NOP"]
    ends = {}
    blocks, branches = cut_into_blocks(instructions)
    for at, to in branches:
        if to < at:  # a loop from `to` to the last branch back to it
            ends[to] = max(ends.get(to, 0), at)
    loops = sorted(ends.items(), key=lambda loop: loop[1] - loop[0], reverse=True)  # outer ones first
    parents = {0: 0}
    for number, (begin, end) in enumerate(loops, 1):
        parents[number] = next((n for n in range(number - 1, 0, -1)
                                if loops[n - 1][0] <= begin and end <= loops[n - 1][1]), 0)
        for block in blocks:
            if begin <= block.begin <= end:
                block.loop = number
    for block in blocks:
        if "copied" in block.counts and not block.loop:
            block.counts["waits"] = 1  # for the first tiles; those of a loop come while others are in work
        for chip, (alone, _) in timers.items():
            if alone:
                block.counts[f"alone {chip}"] = alone(block.instructions)
    merged = {}
    for block in without_narrow_paths(blocks):
        meters = tuple(m for m in METERS if m in block.counts)
        kind = {"loop": block.loop, "skipped": way_around(block, blocks, branches)}
        one = merged.setdefault(repr((kind, meters)), kind)
        for key, n in block.counts.items():
            one[key] = one.get(key, 0) + n
    kernel = {"parents": [parents[n] for n in range(len(parents))], "blocks": list(merged.values())}
    hot, inside = hot_loop(blocks, branches)
    if hot and timers:
        kernel["hot"] = hot
        kernel["together"] = {chip: [together(inside, n) for n in SHARING] for chip, (_, together) in timers.items()}
    return kernel


def disassembler(nvcc):
    """cuobjdump of the PATH, beside nvcc, or of the Python package triton; None if there is none."""
    beside = pathlib.Path(shutil.which(nvcc) or "").parent / "cuobjdump"
    triton = [pathlib.Path(p) / "triton/backends/nvidia/bin/cuobjdump" for p in sys.path]
    return next((str(p) for p in [shutil.which("cuobjdump"), beside, *triton] if p and pathlib.Path(p).is_file()), None)


def listing(tool, cubin):
    """Symbol -> instructions: address, predicate, opcode, operands."""
    text, _ = children.run([tool, "-sass", cubin])
    return {part.split()[0]: [(int(m[1], 16), m[2], m[3], m[4]) for m in INSTRUCTION.finditer(part)]
            for part in text.split("Function : ")[1:]}


def disassemble(tool, cubin, timers):
    """Symbol -> kernel."""
    return {symbol: kernel_of(found, timers) for symbol, found in listing(tool, cubin).items()}


def instruction_counts(elf):
    """Kernel -> instructions of 16 bytes (sm_70 and later), from the sizes of a cubin's sections .text.KERNEL; padding
    at the end included."""
    sections, size, count, names = struct.unpack_from("<Q", elf, 0x28)[0], *struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, sections + i * size) for i in range(count)]
    name = lambda h: elf[headers[names][4] + h[0]:].split(b"\0", 1)[0].decode()
    return {name(h)[6:]: h[5] // 16 for h in headers if name(h).startswith(".text.")}


def ptxas_figures(said):
    """Symbol -> registers, static shared memory, bytes of a thread's stack, from what ptxas -v said. On the stack are
    registers that are spilled, and arrays of which only the running thread knows the index; parameters are copied there
    for it, unless they are __grid_constant__."""
    kernels = {}
    for part in said.split("Compiling entry function '")[1:]:
        number = lambda pattern: int((re.search(pattern, part) or [0, 0])[1])
        kernels[part.split("'")[0]] = (number(r"Used (\d+) registers"), number(r"(\d+) bytes smem"),
                                       number(r"(\d+) bytes stack frame"))
    return kernels


def compile_for(nvcc, arch, precision, source="train_gpt2.cu"):
    """Compiles the trainer, or another source. Returns the cubin's path, and symbol -> registers, static shared memory,
    stack, instructions."""
    pathlib.Path("build").mkdir(exist_ok=True)
    cubin = f"build/kernels_{pathlib.Path(source).stem}_{precision}_{arch}.cubin"
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    command = [nvcc, "-std=c++17", "-O3", "-I.", f"-DPRECISION_{precision}", target, "-Xptxas", "-v", "-cubin",
               "-o", cubin, source]
    said, _ = children.run(command)
    instructions = instruction_counts(pathlib.Path(cubin).read_bytes())
    return cubin, {symbol: (*figures, instructions.get(symbol, 0)) for symbol, figures in ptxas_figures(said).items()}


BLOCKS, REGISTERS = 32, 65536  # of a multiprocessor: blocks at most, registers


def resident_blocks(registers, shared, threads, most_warps, shared_kb):
    """Blocks that fit on a multiprocessor at once. A block takes 1 KB more shared memory than it asks for; registers
    are given out to warps in units of 256."""
    warps = -(-threads // 32)
    by_registers = REGISTERS // (-(-registers * 32 // 256) * 256) // warps
    by_shared = shared_kb * 1024 // (shared + 1024)
    return min(most_warps // warps, by_registers, by_shared, BLOCKS)


def executions(kernel, totals, warps, rare):
    """How often a warp runs each block, over all warps. totals: what the kernel computes, copies and loads in all.

    All metered blocks of loops run equally often, which is right in sum where one of them does what another leaves
    (a loop unrolled by four, and its rest). Other blocks run as often as their loop, the others once per warp. In a
    loop of products, blocks that a branch skips without skipping a product or a copy are the mask of the diagonal:
    they run in the share `rare` of the tiles. Blocks skipped with a copy run as often as the copies."""
    blocks, parents = kernel["blocks"], kernel["parents"]
    times = {}
    for meter in METERS:
        straight = sum(b.get(meter, 0) for b in blocks if not b["loop"])
        looped = sum(b.get(meter, 0) for b in blocks if b["loop"])
        total = totals.get(meter) or warps * straight
        once = min(warps, total / straight) if straight else warps
        often = max(0, total - once * straight) / looped if looped else 0
        times[meter] = (once, often)
    has_products = any("flops" in b for b in blocks)
    rounds = {0: warps}
    for loop in range(1, len(parents)):
        inside = [b for b in blocks if b["loop"] == loop]
        metered = [times[m][1] for m in METERS for b in inside if m in b][:1]
        rounds[loop] = metered[0] if metered else None
    for loop in range(1, len(parents)):
        if rounds[loop] is None:  # as often as what surrounds it, times its threads' warps: sums over warps
            rounds[loop] = 4 * (rounds[parents[loop]] or warps)
    result = []
    for b in blocks:
        meter = next((m for m in METERS if m in b), None)
        if meter:
            result.append(times[meter][bool(b["loop"])])
        elif b["loop"] and has_products and b["skipped"] == ["copied"]:
            result.append(times["copied"][1])
        elif b["loop"] and has_products and b["skipped"] == []:
            result.append(rare * rounds[b["loop"]])
        else:
            result.append(rounds[b["loop"]])
    return result
