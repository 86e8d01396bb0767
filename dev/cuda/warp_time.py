"""How long a warp needs for some instructions when it has its quarter of a multiprocessor for itself.

It issues them in order, at most one per clock. An instruction waits until the registers that it reads are there, and
until its pipe has taken the one before. Loads from global memory count as ready at once: their latency is added by
step_model.py, which knows how far the data is.

Clocks until a result can be read: arithmetic 4 to 6, shared memory 29 (Luo et al. 2024, arXiv:2402.13499), the others
assumed; step_model.py moves all of them together.
"""
import re

LATENCY = {"fma": 5, "alu": 5, "special": 20, "fp64": 10, "shared": 29, "tensor": 33, "global": 1, None: 5}
BARRIER = 30  # until the warps of a block that arrive together go on
NO_RESULT = ("ST", "LDGSTS", "BAR", "BRA", "EXIT", "RED", "DEPBAR", "LDGDEPBAR", "BSSY", "BSYNC", "WARPSYNC", "CALL",
             "RET", "CCTL", "MEMBAR", "ERRBAR")
REGISTER = re.compile(r"\b(U?R)(\d+)(\.64)?|\b(U?P\d)")


def registers(operand, width=1):
    """The registers and predicates of an operand; width: registers that follow each other."""
    found = set()
    for file, number, wide, predicate in REGISTER.findall(operand):
        if predicate:
            found.add(predicate)
        else:
            found |= {f"{file}{int(number) + i}" for i in range(max(width, 2 if wide else 1))}
    return found


def widths(opcode, operands):
    """Registers of the result, and of each source."""
    wide = 4 if ".128" in opcode else 2 if ".64" in opcode else 1
    if opcode.startswith("HMMA"):
        return 4, [4, 2, 4]
    if opcode.startswith("LDSM"):
        return int(opcode[-1]) if opcode[-1].isdigit() else 1, [1]
    if opcode.startswith(("LDS", "LDG", "LDC", "CS2R")):
        return 2 if opcode == "CS2R" else wide, [1] * operands
    if opcode.startswith("ST"):
        return 0, [1, wide]
    if re.match(r"D(ADD|MUL|FMA|SETP)", opcode):
        return 2, [2] * operands
    if ".WIDE" in opcode:
        return 2, [1, 1, 2]
    return 1, [1] * operands


def reads_and_writes(opcode, operands):
    parts = [p.strip() for p in operands.split(",")] if operands.strip() else []
    results = 0 if opcode.startswith(NO_RESULT) else 1
    if results and len(parts) > 1 and re.fullmatch(r"U?P[\dT]", parts[1]) or opcode.startswith("SHFL"):
        results = 2  # a carry, a second predicate, or the lane's
    result, sources = widths(opcode, len(parts))
    written = set().union(*[registers(p, result) for p in parts[:results]])
    read = set().union(*[registers(p, w) for p, w in zip(parts[results:], sources + [1] * len(parts))])
    return read, written


def alone(instructions, pipe_of, intervals):
    """Clocks. instructions: address, predicate, opcode, operands. intervals: pipe -> clocks from one instruction of it
    to the next, a number or a function of the opcode."""
    clock, ready, free = 0, {}, {}
    for _, predicate, opcode, operands in instructions:
        if predicate == "@!PT":  # never executed
            clock += 1
            continue
        read, written = reads_and_writes(opcode, operands)
        read |= registers(predicate or "")
        pipe = pipe_of(opcode)
        begin = max([clock, free.get(pipe, 0)] + [ready.get(r, 0) for r in read])
        interval = intervals.get(pipe, 1)
        free[pipe] = begin + (interval(opcode) if callable(interval) else interval)
        for register in written:
            ready[register] = begin + LATENCY[pipe]
        clock = begin + (BARRIER if opcode.startswith("BAR") else 1)
    return clock


def together(instructions, warps, pipe_of, intervals, rounds=6):
    """Clocks of a loop's instructions, once for each of some warps that share a quarter of a multiprocessor: of each
    clock the warp gets it that can issue first, and of those that can, the one that has waited longest."""
    steps = []
    for _, predicate, opcode, operands in instructions:
        if predicate != "@!PT":
            read, written = reads_and_writes(opcode, operands)
            pipe = pipe_of(opcode)
            interval = intervals.get(pipe, 1)
            steps.append((read | registers(predicate or ""), written, pipe,
                          interval(opcode) if callable(interval) else interval,
                          BARRIER if opcode.startswith("BAR") else 1))
    clock, free, at, can, ready, issued = 0, {}, [0] * warps, [0] * warps, [{} for _ in range(warps)], [0] * warps
    ends = []
    when = lambda w: max([can[w], free.get(steps[at[w] % len(steps)][2], 0)] +
                         [ready[w].get(r, 0) for r in steps[at[w] % len(steps)][0]])
    for count in range(rounds * warps * len(steps)):
        w = min(range(warps), key=lambda w: (max(when(w), clock), issued[w]))
        read, written, pipe, interval, after = steps[at[w] % len(steps)]
        begin = max(when(w), clock)
        free[pipe] = begin + interval
        for register in written:
            ready[w][register] = begin + LATENCY[pipe]
        can[w], clock, issued[w], at[w] = begin + after, begin + 1, count, at[w] + 1
        if at[w] % len(steps) == 0:
            ends.append(begin)
    half = len(ends) // 2
    return (ends[-1] - ends[half - 1]) / (len(ends) - half) * warps
