"""What nvcc makes of a kernel: registers, shared memory and spills as ptxas reports them, and the instructions of its
hot loop as cuobjdump shows them.

The hot loop is, of those that load from global memory or multiply matrices and of the loops inside them, the one with the
most products of matrices or, if none has any, the most arithmetic and accesses to memory, without what is in loops
inside it. How often it runs is not in the code. A kernel without such a loop is shown whole.
"""
import collections
import pathlib
import re
import shutil

import children

CLASSES = {"HMMA": "HMMA", "LDSM": "LDSM", "LDGSTS": "LDGSTS", "LDG": "LDG", "STG": "STG", "LDS": "LDS", "STS": "STS",
           "SHFL": "SHFL", "MUFU": "MUFU", "FFMA": "fp32", "FADD": "fp32", "FMUL": "fp32", "FMNMX": "fp32"}
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+((?:@!?U?P\w+ +)?[A-Z][\w.]*)([^;]*);")


def cuobjdump(nvcc):
    """The path of cuobjdump: in PATH, or beside nvcc; triton brings one along too. None if there is none."""
    beside = [pathlib.Path(nvcc).parent / "cuobjdump"]
    if children.have("triton"):
        import importlib.util
        beside.append(pathlib.Path(importlib.util.find_spec("triton").origin).parent / "backends/nvidia/bin/cuobjdump")
    return shutil.which("cuobjdump") or next((str(path) for path in beside if path.exists()), None)


def resources(said):
    """Symbol -> registers, bytes of static shared memory, bytes of spills, from what ptxas -v said."""
    kernels = {}
    for part in said.split("Compiling entry function '")[1:]:
        number = lambda pattern: int((re.search(pattern, part) or [0, 0])[1])
        kernels[part.split("'")[0]] = {
            "registers": number(r"Used (\d+) registers"), "shared": number(r"(\d+) bytes smem"),
            "spilled": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")}
    return kernels


def loops(instructions):
    """The loops as pairs: of all their instructions, and of those that are in no loop inside them."""
    ends = set()
    for address, name, operands in instructions:
        target = re.search(r"0x([0-9a-f]+)", operands) if name.startswith("BRA") else None
        if target and int(target[1], 16) < address:
            ends.add((int(target[1], 16), address))
    inside = lambda at, loop: loop[0] <= at <= loop[1]
    for loop in ends:
        inner = [other for other in ends if other != loop and inside(other[0], loop) and inside(other[1], loop)]
        yield ([i for i in instructions if inside(i[0], loop)],
               [i for i in instructions if inside(i[0], loop) and not any(inside(i[0], other) for other in inner)])


def hot_loop(instructions):
    """The instructions of the hot loop; None if there is none."""
    found = list(loops(instructions))
    loading = [set(whole) for whole, _ in found if any(name.startswith(("LDG", "HMMA")) for _, name, _ in whole)]
    hot = [own for whole, own in found if any(set(whole) <= other for other in loading)]
    return max(hot, key=lambda own: weight(classes(own)), default=None)


def weight(c):
    return c["HMMA"], sum(n for what, n in c.items() if what != "all"), c["all"]


def classes(instructions):
    found = collections.Counter(CLASSES[name] for _, full, _ in instructions
                                if (name := full.split(".")[0]) in CLASSES)
    found["all"] = len(instructions)
    return found


def hot_loops(sass):
    """Symbol -> classes of the instructions of its hot loop, and whether it is a loop, from what cuobjdump -sass said."""
    kernels = {}
    for part in re.split(r"\n\s*Function : ", sass)[1:]:
        # @!PT: never executed, it only takes its slot
        instructions = [(int(a, 16), name if name.startswith("@!PT") else name.split()[-1], operands)
                        for a, name, operands in INSTRUCTION.findall(part)]
        instructions = [i for i in instructions if i[1] != "NOP"]
        hot = hot_loop(instructions)
        kernels[part.split("\n")[0].strip()] = (classes(hot or instructions), hot is not None)
    return kernels


def read(cubin, tool):
    """Symbol -> its resources, "hot" (classes of the hot loop, or of all instructions) and "loop", of a cubin that make
    has compiled."""
    kernels = resources(pathlib.Path(cubin + ".log").read_text())
    for symbol, (hot, is_loop) in hot_loops(children.run([tool, "-sass", cubin])[0]).items():
        if symbol in kernels:
            kernels[symbol].update(hot=hot, loop=is_loop)
    return kernels
