"""How long a training step takes on a chip: expected, and in which range."""
import functools
import re

from assumptions import LONG, SHORT
from chips import Machine
from kernel_time import Demand, kernel_seconds, product_seconds
from step_launches import plan_of, step_of


class Kernel:
    """All launches of one kind in a step."""
    def __init__(self):
        self.calls, self.seconds, self.bytes, self.flops, self.bound, self.note = 0, 0, 0, 0, {}, ""

    def add(self, calls, seconds, bound, moved, flops):
        self.calls, self.seconds, self.bytes, self.flops = (self.calls + calls, self.seconds + calls * seconds,
                                                            self.bytes + calls * moved, self.flops + calls * flops)
        self.bound[bound] = self.bound.get(bound, 0) + calls * seconds


def kernels_of(step, machine):
    """Name -> Kernel, of a step."""
    kernels = {}
    for calls, what in step:
        kernel = kernels.setdefault(what.name, Kernel())
        if isinstance(what, Demand):
            seconds, bound = kernel_seconds(what, machine)
            kernel.add(calls, seconds, bound, what.memory_bytes(machine), what.work.get("flops", 0))
            kernel.note = ("no machine code" if not what.code else
                           "not in kernel_work.py" if "guessed" in what.work else "")
        else:
            seconds, bound = product_seconds(machine, what.m, what.n, what.k, what.type_bytes, what.add, what.extra)
            kernel.add(calls, seconds, bound, what.moved, what.flops)
    return kernels


def step_seconds(step, machine, graphs=0, captured=0):
    """What is longer, the GPU's part or the host's. captured: so many of the launches are in so many graphs."""
    kernels = kernels_of(step, machine).values()
    gpu = sum(k.seconds for k in kernels) - 1e-6 * captured * machine.gap * (1 - machine.graph_gap)
    host = machine.host * (sum(k.calls for k in kernels) - captured) + machine.graph_launch * graphs
    return max(gpu, 1e-6 * host)


def moves(chip, order, seconds_of, more=()):
    """What is expected; and assumption -> by how many seconds it shortens and lengthens what seconds_of(machine) says,
    if it alone is moved to an end. more: assumptions that not all steps have."""
    at = lambda *moved: seconds_of(Machine(chip, *moved, order=order))
    expected, assumptions = at(), [*chip.assumptions(), *more]
    return expected, {a: (at(a.name, SHORT) - expected, at(a.name, LONG) - expected) for a in assumptions}


def in_range(expected, found):
    """Low, expected and high: the differences as those of independent errors."""
    down = sum(min(0, *both) ** 2 for both in found.values()) ** 0.5
    up = sum(max(0, *both) ** 2 for both in found.values()) ** 0.5
    return expected - down, expected, expected + up


def time_of(args, chip, step):
    return in_range(*moves(chip, args.order, functools.partial(step_seconds, step)))


ESTIMATE = r"communicates for ([\d.]+) ms, of which ([\d.]+) ms .* efficiency ([\d.]+)%"


def communication(args, chip, model, B, tokens, gpus, seconds):
    """Seconds that a step communicates, those that it hides, and the efficiency in percent, by --plan's model
    (llmc/plan/plan_time.h), which is told a peak at which its share of the peak is the speed modelled here."""
    flags = ("-d", tokens, "-pn", gpus, "-z", 1 if gpus > 1 else 0, "-r", args.recompute)
    device = lambda peak: ("--device", f"{peak:.6f},1000000,1000000")  # a memory that bounds nothing
    plan_with = lambda peak: plan_of(args.program, args.T, args.data, model, B, (*flags, *device(peak)))
    plan, flops, _ = plan_with(1)
    share = float(re.search(r"TFLOP/s used to (\d+)%", plan)[1]) / 100
    plan, _, _ = plan_with(flops / gpus / seconds / share / 1e12)
    communicate, hidden, efficiency = map(float, re.search(ESTIMATE, plan).groups())
    return 1e-3 * communicate, 1e-3 * hidden, efficiency


def several_gpus(args, chip, codes, model, B, tokens, gpus):
    """Low, expected and high of a step on one or more GPUs, with what it does not hide of its communication."""
    step = step_of(chip, codes, args, model, B, tokens // (B * args.T * gpus), gpus)
    low, expected, high = time_of(args, chip, step)
    communicate, hidden, _ = communication(args, chip, model, B, tokens, gpus, expected) if gpus > 1 else (0, 0, 0)
    return [seconds + communicate - hidden for seconds in (low, expected, high)]
