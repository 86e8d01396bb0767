"""How long a launch takes on a machine, and what bounds it.

What bounds a kernel is the slowest of: memory; the latency of its warps' instructions and loads, with the warps that
fit; issue slots; tensor cores; shared memory; the special-function, fma, alu and fp64 pipes. Demand is what a launch
needs, whatever the assumptions; seconds() is how long that takes under them.
"""
import functools
import math

import cache_replay
import machine_code
from kernel_work import X

SECTORS_PER_CLOCK = 64  # bytes per multiprocessor, between the first and the second-level cache
L2_LATENCY = 270  # clocks, of a single load
TILES = [(256, 128), (128, 128), (128, 64), (64, 64)]  # of products
PARTS = (1, 2, 3, 4, 6, 8, 12, 16)  # into which the sum of a product is cut where there are few tiles
LEAST_SUM = 256  # of a part


def waves(pieces, places):
    """The time of equal pieces that take places, as a multiple of what it would be if pieces could be cut."""
    return math.ceil(pieces / places) * places / pieces if pieces > places else 1


class Demand:
    """What a launch needs. counted: conflicts of banks and sectors (step_model.py)."""
    def __init__(self, chip, launch, code, work, counted):
        self.name, self.work, self.blocks, self.code = launch.name, work, launch.blocks, code
        self.moved = work["read"] + work["written"]
        self.cached = self.moved < chip.l2_bytes / 2
        self.asked = (work["loaded"] + work.get("copied", 0)) * max(1, counted.sectors) + work["written"]
        self.total, self.slots, self.block_warps = {}, chip.sms, -(-launch.threads // 32)
        if not code:
            return
        resident = machine_code.resident_blocks(code["registers"], code["shared"] + launch.shared, launch.threads,
                                                chip.warps, chip.shared_kb)
        self.slots = max(1, resident) * chip.sms
        times = machine_code.executions(code, work, launch.warps, work.get("rare", 1))
        for block, n in zip(code["blocks"], times):
            for key, count in block.items():
                if key not in ("loop", "skipped"):
                    self.total[key] = self.total.get(key, 0) + n * count
        self.total["tensor"] = work.get("flops", 0)
        self.total["shared"] = self.total.get("shared", 0) * counted.conflicts
        self.total["warps"] = self.warp_clocks(chip, code, times)

    def warp_clocks(self, chip, code, times):
        """Clocks of all warps, if as many share the card as fit. A loop of products takes as long as it does beside the
        other warps; everything else runs while these wait for memory, or too seldom to meet."""
        alone = f"alone {chip.name}"
        ordinary = [(b, n) for b, n in zip(code["blocks"], times) if b["loop"] != code.get("hot") or b["skipped"] == []]
        clocks = sum(n * b.get(alone, 0) for b, n in ordinary)
        if "hot" not in code:
            return clocks
        rounds = max(n for b, n in zip(code["blocks"], times) if b["loop"] == code["hot"] and "flops" in b)
        sharing = -(-min(self.slots, self.blocks) * self.block_warps // (4 * chip.sms))
        each = code["together"][chip.name]
        return clocks + rounds * sharing * each[min(sharing, len(each)) - 1]

    def traffic(self, machine):
        """What the replay of its blocks finds in memory; None for kernels whose blocks share nothing."""
        capacity = machine.l2_share * machine.chip.l2_bytes
        if "tiles" in self.work:
            order = machine.order or cache_replay.shipped_order(self.work["tiles"], machine.chip.l2_bytes)
            return cache_replay.attention_traffic(self.work["tiles"], self.slots, capacity, order)
        if "rows_twice" in self.work:
            rows, row_bytes = self.work["rows_twice"]
            return cache_replay.twice_read_rows(min(rows, 8 * self.slots), row_bytes, self.slots, capacity)
        return None

    def memory_bytes(self, machine):
        """What comes from memory and goes there."""
        traffic, read = self.traffic(machine), self.work["read"]
        if "tiles" in self.work:
            read = traffic.read
        elif traffic:
            read *= 2 * traffic.read / traffic.asked  # each is asked for twice
        return read + self.work["written"]


def seconds_by(demand, machine):
    """Seconds by what could bound the kernel."""
    chip, work, traffic = machine.chip, demand.work, demand.traffic(machine)
    memory_bytes, by = demand.memory_bytes(machine), {}
    busy = cache_replay.tail(traffic) if "tiles" in work else waves(demand.blocks, chip.sms)
    if demand.cached and not traffic:
        by["cache"] = demand.moved / (machine.l2_rate * chip.sms * machine.clock)
    else:
        by["memory"] = memory_bytes / machine.bandwidth
    if not demand.code:
        return by
    sms = min(chip.sms, demand.blocks)
    per_pipe = machine.pipe_share * sms * machine.clock / busy
    for pipe, rate in machine.per_clock.items():
        by[pipe] = demand.total.get(pipe, 0) / (rate * per_pipe)
    by["sectors"] = demand.asked / (SECTORS_PER_CLOCK * per_pipe)
    loaded = max(1, work["loaded"] + work.get("copied", 0))
    far = 0 if demand.cached else min(1, (memory_bytes - work["written"]) / loaded)
    wait = machine.loaded * (far * machine.latency + (1 - far) * L2_LATENCY)
    clocks = machine.warp_clocks * demand.total["warps"] + wait * demand.total.get("waits", 0)
    slots = min(demand.slots, demand.blocks)
    if "tiles" not in work:
        busy = waves(demand.blocks, demand.slots)
    by["latency"] = busy * clocks / (slots * demand.block_warps) / machine.clock
    return by


def with_what_is_not_hidden(by, machine):
    """Seconds, and what bounds them: either what lies outside the multiprocessors, or what is in them."""
    bound = max(by, key=by.get)
    outside = lambda what: what in ("memory", "cache")
    other = max((s for what, s in by.items() if outside(what) != outside(bound)), default=0)
    return by[bound] + machine.not_hidden * other, bound


def kernel_seconds(demand, machine):
    seconds, bound = with_what_is_not_hidden(seconds_by(demand, machine), machine)
    return seconds + 1e-6 * machine.gap, bound


@functools.lru_cache(None)
def cuts(m, n, k, sms):
    """How a product can be cut: rows and columns of a tile, parts of the sum, and how many tiles a multiprocessor
    computes one after the other: 192 tiles on 132 multiprocessors are two."""
    return [(rows, columns, parts, -(-tiles * parts // sms)) for rows, columns in TILES for parts in PARTS
            if parts == 1 or k / parts >= LEAST_SUM
            for tiles in [min(-(-m // rows) * -(-n // columns), -(-m // columns) * -(-n // rows))]]


def product_seconds(machine, m, n, k, type_bytes, add, extra):
    """A product of cuBLASLt, and what bounds it. type_bytes: of the result, which add reads too; extra: operands of
    the size of the result that the epilogue reads or writes.

    A tile waits for its first operands, computes, and writes its result while all other multiprocessors may do so too.
    What of that hides behind other tiles moves with the operands, beside the computation."""
    chip, result = machine.chip, type_bytes * (2 if add else 1) + X * extra
    begin = machine.loaded * machine.latency / machine.clock
    best = None
    for rows, columns, parts, rounds in cuts(m, n, k, chip.sms):
        fewer = math.log2(TILES[0][0] * TILES[0][1] / (rows * columns)) / 3  # 0: the largest, 1: the smallest
        rate = machine.product_rate * machine.small_tiles ** (fewer ** 2)
        end = machine.epilogue * rows * columns * (result if parts == 1 else 0) * chip.sms / machine.bandwidth
        one = begin + 2 * rows * columns * (k / parts) / rate + end
        sums = 2 * parts * m * n * 4 if parts > 1 else 0
        compute = rounds * one + sums / (machine.l2_rate * chip.sms * machine.clock)
        best = min(best or compute, compute)
    memory = (X * (m * k + k * n) + (1 - machine.epilogue) * m * n * result) / machine.bandwidth
    seconds, bound = with_what_is_not_hidden({"tensor": best, "memory": memory}, machine)
    return seconds + 1e-6 * machine.gap, bound
