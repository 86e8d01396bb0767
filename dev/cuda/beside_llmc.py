"""A step with default flags, beside what was measured of llm.c's on the same GPUs."""
import copy
import re

import held_out
from chips import CHIPS, measured_steps
from step_launches import MODELS, plan_of, step_of
from step_time import several_gpus, time_of

MODEL, B = "d12", 64
NAME = MODELS[MODEL][0]


def with_flags(args, **flags):
    args = copy.copy(args)
    vars(args).update(flags)
    return args


def as_chosen(args, chip):
    """The flags that the trainer takes where none is given but -b: -r by the plan on this GPU, -ge 0."""
    plan, _, _ = plan_of(args.program, args.T, args.data, MODEL, B, ("-d", B * args.T, "--device", chip.peak_name))
    return with_flags(args, recompute=int(re.search(r"-r (\d)\*", plan)[1]), gelu_fusion=0)


def measured(args, chip):
    """Milliseconds of a step on one GPU, where scripts/gpu_day.sh has run on one."""
    steps, _ = measured_steps(args.measured)
    tokens_per_s = steps.get((chip.name, MODEL, B, ""))
    return f"{1e3 * B * args.T / tokens_per_s:.1f}" if tokens_per_s else "nobody yet"


def milliseconds(args, chip, codes):
    """Low, expected and high of a step on one GPU."""
    return [1e3 * s for s in time_of(args, chip, step_of(chip, codes, args, MODEL, B))]


def rows(args, codes):
    """Chip, milliseconds on one GPU, and a row of the table for each."""
    names = [chip.name for chip in args.chips]
    for figure in held_out.STEPS:
        if (figure.model, figure.B) != (MODEL, B) or figure.chip not in names:
            continue
        chip = next(c for c in CHIPS if c.name == figure.chip)
        flags = as_chosen(args, chip)
        one = milliseconds(flags, chip, codes)
        several = [1e3 * s for s in several_gpus(flags, chip, codes, MODEL, B, figure.tokens, figure.gpus)]
        shown = " | ".join(" / ".join(f"{ms:.1f}" for ms in three) for three in (one, several))
        chosen = f"`-r {flags.recompute} -ge {flags.gelu_fusion}`"
        cells = f"{chosen} | {measured(args, chip)} | {shown} | {figure.ms:.0f} | {figure.source}"
        yield chip, one, f"| {chip.name} | {cells} |"


PAGE = f"""### Beside llm.c

A step of {NAME}, B {B}, T 1024, with no flag given but -b; the second column says what the trainer chooses then. The
three columns after it are this trainer's in ms: measured on one GPU, modelled (low / expected / high) on one and on
eight. The last but one is llm.c's (ms), on 8 GPUs, **measured by its users**: the last says who.

| GPU | chosen | one GPU, measured | modelled | 8 GPUs, 524,288 tokens, modelled | llm.c, these 8, measured | by whom |
|---|---|---|---|---|---|---|"""


def lines(args, codes):
    return [*PAGE.splitlines(), *(row for _, _, row in rows(args, codes))]
