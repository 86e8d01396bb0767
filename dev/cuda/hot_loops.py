"""The hot loop of a kernel in its machine code.

It is, of the loops that load from global memory or multiply matrices and of the loops inside them, the one with the
most products of matrices or, if none has any, the most arithmetic and accesses to memory, without what is in loops
inside it. How often it runs is not in the code. A kernel without such a loop is shown whole.
"""
import collections
import pathlib
import re

import machine_code

CLASSES = {"HMMA": "HMMA", "HGMMA": "HGMMA", "UTMALDG": "UTMALDG", "LDSM": "LDSM", "LDGSTS": "LDGSTS", "LDG": "LDG",
           "STG": "STG", "LDS": "LDS", "STS": "STS", "SHFL": "SHFL", "MUFU": "MUFU", "FFMA": "fp32", "FADD": "fp32",
           "FMUL": "fp32", "FMNMX": "fp32"}


def loops(instructions):
    """The loops as pairs: of all their instructions, and of those that are in no loop inside them."""
    ends = set()
    for at, _, opcode, operands in instructions:
        target = re.search(r"0x([0-9a-f]+)", operands) if opcode.startswith("BRA") else None
        if target and int(target[1], 16) < at:
            ends.add((int(target[1], 16), at))
    inside = lambda at, loop: loop[0] <= at <= loop[1]
    for loop in ends:
        inner = [other for other in ends if other != loop and inside(other[0], loop) and inside(other[1], loop)]
        yield ([i for i in instructions if inside(i[0], loop)],
               [i for i in instructions if inside(i[0], loop) and not any(inside(i[0], other) for other in inner)])


def hot_loop(instructions):
    """The instructions of the hot loop; None if there is none."""
    found = list(loops(instructions))
    loading = [set(whole) for whole, _ in found if any(i[2].startswith(("LDG", "HMMA", "HGMMA")) for i in whole)]
    hot = [own for whole, own in found if any(set(whole) <= other for other in loading)]
    return max(hot, key=lambda own: weight(classes(own)), default=None)


def weight(c):
    """What is compared. Of loops with the same products the shorter one counts: a branch back from the end of the code,
    where a thread goes that has to wait for an mbarrier, looks like the end of a longer loop."""
    products = c["HMMA"] + c["HGMMA"]
    return products, -c["all"] if products else sum(n for what, n in c.items() if what != "all"), c["all"]


def classes(instructions):
    """Instructions by class; @!PT: never executed, such an instruction only takes its slot."""
    names = [opcode.split(".")[0] for _, predicate, opcode, _ in instructions if predicate != "@!PT"]
    return collections.Counter([CLASSES[name] for name in names if name in CLASSES] + ["all"] * len(instructions))


def read(cubin, tool):
    """Symbol -> its registers, shared memory and stack; "hot": classes of the hot loop, or of all instructions; and
    "loop": whether it has one. make has compiled the cubin, and kept what ptxas said."""
    figures, kernels = machine_code.ptxas_figures(pathlib.Path(cubin + ".log").read_text()), {}
    for symbol, instructions in machine_code.listing(tool, cubin).items():
        instructions = [i for i in instructions if i[2] != "NOP"]
        hot = hot_loop(instructions)
        registers, shared, stack = figures[symbol]
        kernels[symbol] = {"registers": registers, "shared": shared, "stack": stack,
                           "hot": classes(hot or instructions), "loop": hot is not None}
    return kernels
