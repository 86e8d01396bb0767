"""A step with default flags, beside what was measured of llm.c's on the same GPUs, and what a reviewer of the kernels
expected of ours."""
import copy
import re
import textwrap

import cache_replay
import held_out
from chips import CHIPS, Machine
from step_launches import MODELS, dry_run, plan_of, step_of
from step_time import several_gpus, step_seconds, time_of

MODEL, B = "d12", 64
NAME = MODELS[MODEL][0]
GELU_OPERANDS = {"164": 1, "192": 2}  # products with GELU in their epilogue, and with its derivative: what -ge is
REVIEWED = {"recompute": 0, "gelu_fusion": 0}
REVIEWER = {"H100 SXM": (138, 150), "A100 SXM 80GB": (295, 320)}  # ms from, to; of one GPU


def with_flags(args, **flags):
    args = copy.copy(args)
    vars(args).update(flags)
    return args


def as_chosen(args, chip):
    """The flags that the trainer takes where none is given but -b: -r by the plan on this GPU, -ge by its launches."""
    plan, _, _ = plan_of(args.program, args.T, args.data, MODEL, B, ("-d", B * args.T, "--device", chip.peak_name))
    args = with_flags(args, recompute=int(re.search(r"-r (\d)\*", plan)[1]), gelu_fusion=-1)
    _, _, C, NH = MODELS[MODEL]
    products = [words for words in dry_run(args, chip, C, NH, 2, B, 1) if words[0] == "product"]
    return with_flags(args, gelu_fusion=max(GELU_OPERANDS.get(words[6], 0) for words in products))


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
        yield chip, one, f"| {chip.name} | {chosen} | {shown} | {figure.ms:.0f} | {figure.source} |"


def reviewed(args, codes):
    """For each chip of the reviewer's what he expected, the milliseconds that are modelled, and those with attention's
    blocks in the order that they had then."""
    args = with_flags(args, **REVIEWED)
    for name, expected in REVIEWER.items():
        chip = next(c for c in CHIPS if c.name == name)
        then = Machine(chip, order=cache_replay.order_of("rows"))
        yield (name, expected, milliseconds(args, chip, codes),
               1e3 * step_seconds(step_of(chip, codes, args, MODEL, B), then))


PAGE = f"""### Beside llm.c

A step of {NAME}, B {B}, T 1024, with no flag given but -b; the second column says what the trainer chooses then. The
two columns after it are this trainer's, modelled here (low / expected / high ms): **nobody has measured them**. The
last but one is llm.c's (ms), on 8 GPUs, **measured by its users**: the last says who.

| GPU | chosen | ours, one GPU, modelled | ours, 8 GPUs, 524,288 tokens, modelled | llm.c, these 8, measured | by whom |
|---|---|---|---|---|---|"""
REVIEW = """\
On one GPU with `-r {recompute} -ge {gelu_fusion}` a reviewer of the kernels, before attention's blocks went by groups
of heads, expected {said}. The ranges overlap, and the reviewer's are longer: which end is true is the first question
that `scripts/gpu_day.sh` answers."""


def review(found):
    """What the page says of reviewed()."""
    said = "; ".join(f"{first} to {last} ms on {name}, where {expected:.0f} are modelled, {low:.0f} to {high:.0f}, and "
                     f"{then:.0f} with blocks in the order of then"
                     for name, (first, last), (low, expected, high), then in found)
    return textwrap.wrap(" ".join(REVIEW.format(**REVIEWED, said=said).split()), 120)


def lines(args, codes):
    return [*PAGE.splitlines(), *(row for _, _, row in rows(args, codes)), "", *review(reviewed(args, codes))]
