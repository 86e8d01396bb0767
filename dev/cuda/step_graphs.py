"""What CUDA graphs save (--cuda-graph 1), by the model of a step: the gaps between kernels are shorter, and the host
has less to do. How many launches of a micro-step are in graphs, a dry run of the trainer says."""
from assumptions import GRAPHS
from chips import Machine
from step_launches import MODELS, dry_run, fits_chip, step_of
from step_time import in_range, kernels_of, moves, step_seconds

LAUNCHES = ("kernel", "product")  # what the model times


def captured(lines):
    """How many graphs a step launches, and kernels and products in them. lines: of two steps, the first without."""
    graphs, launches, left = 0, 0, 0
    for kind, *words in lines:
        launches += left > 0 and kind in LAUNCHES
        left -= left > 0
        if kind == "graph":
            graphs, left = graphs + 1, int(words[0])
    return graphs, launches


def captured_of(args, chip, model, B):
    """The same of a model of any depth, from those of 2 and 3 layers."""
    _, L, C, NH = MODELS[model]
    lines = [dry_run(args, chip, C, NH, layers, B, 1, ("--cuda-graph", 1, "-x", 2)) for layers in (2, 3)]
    (graphs, two), (_, three) = map(captured, lines)
    return graphs, two + (L - 2) * (three - two)


def row(args, chip, codes, model, B):
    step, inside = step_of(chip, codes, args, model, B), captured_of(args, chip, model, B)
    calls = sum(k.calls for k in kernels_of(step, Machine(chip)).values())
    saved = lambda machine: step_seconds(step, machine) - step_seconds(step, machine, *inside)
    expected = step_seconds(step, Machine(chip))
    low, middle, high = in_range(*moves(chip, args.order, saved, GRAPHS))
    return (f"| {chip.name} | {MODELS[model][0]} | {B} | {calls} | {inside[1]} | {1e3 * expected:.2f} | "
            f"{1e3 * low:.2f} | {1e3 * middle:.2f} | {1e3 * high:.2f} | {middle / expected:.1%} |")


def table(args, codes):
    source = "; ".join(f"{a.what} ({a.values[0]:g} / {a.values[1]:g} / {a.values[2]:g} {a.unit}): {a.source}"
                       for a in GRAPHS)
    return [f"Steps of one micro-step, `-r {args.recompute} -ge {args.gelu_fusion}`, with `--cuda-graph 1`. Assumed: "
            f"{source}.", "",
            "| GPU | model | B | launches | in graphs | without ms | saved, low | expected ms | high | of the step |",
            "|" + "---|" * 10,
            *(row(args, chip, codes, args.models[0], B) for chip in args.chips for B in args.b
              if fits_chip(args, chip, args.models[0], B)[0])]
