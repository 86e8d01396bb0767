"""What is in memory during one step, from the plan of a trainer (--plan): its rows of memory, and when each activation
is needed (llmc/gpt2/activations.h). Above: the bytes that are needed at each point of the step, the plan's total, and
the peak that was measured. Below: one row per buffer, as high as the share of its copies that is in use.

The axis is the order of the work, not time: each layer is one unit forward and two backward.
"""
import children
import collections
import pathlib
import re
import sys
import tempfile

import charts
import run_data
import svg

ROOT = pathlib.Path(__file__).resolve().parents[1]
WIDTH, LEFT, RIGHT, TOP, HEIGHT, ROW = 1000, 180, 110, 64, 210, 19
MIB = 1 << 20
GROUPS = ["program", "scratch", "parameters", "optimizer", "gradients", "activations"]  # from the bottom up

Row = collections.namedtuple("Row", "category name copies bytes lives_in")


class Plan:
    def __init__(self, text, where):
        found = re.search(r"^model: L (\d+), C (\d+)", text, re.M)
        total = re.search(r"^total (\d+) bytes", text, re.M)
        if not found or not total:
            sys.exit(f"{where}: no plan; give a file with what a trainer printed with --plan, or the out dir of a run")
        self.layers, self.total, self.rows = int(found[1]), int(total[1]), []
        line = re.compile(r"^(\w+) +(\S.*?)  +(.*?) +(\d+)(?:   (\S.*))?$")
        for match in map(line.match, text[:total.start()].splitlines()):
            if match and match[2] != "= all":
                copies = re.match(r"(\d+) x ", match[3])
                copies = int(copies[1]) if copies else 1
                self.rows.append(Row(match[1], match[2], copies, int(match[4]), match[5] or ""))
        if sum(row.bytes for row in self.rows) != self.total:
            sys.exit(f"{where}: the rows of the plan do not add up to its total of {self.total} bytes")
        if not any(row.category == "gradients" for row in self.rows):
            sys.exit(f"{where}: the plan is that of a run without training, such as one with -x 0")
        # Layers that are recomputed at a time; all are kept if there are as many copies as layers.
        kept = [row.copies for row in self.rows if row.name == "qkv"]
        self.segment = kept[0] if kept else self.layers


def phases(plan):
    """The points of a step: (kind, layer, units). A segment that is recomputed runs forward again before its backward
    pass; the last one is still there."""
    layers, k = plan.layers, plan.segment
    order = [("embedding", None, 1)] + [("forward", l, 1) for l in range(layers)] + [("classifier", None, 2)]
    last = (layers - 1) // k
    for segment in reversed(range(last + 1)):
        inside = range(segment * k, min(layers, segment * k + k))
        if segment != last:
            order += [("recompute", l, 1) for l in inside]
        order += [("backward", l, 2) for l in reversed(inside)]
    return order + [("embedding backward", None, 1), ("update", None, 2)]


def copies_in_use(row, plan, order):
    """How many copies of an activation hold something that is still needed, at each point of the step."""
    kinds = [kind for kind, _, _ in order]
    backward, update = kinds.index("classifier"), kinds.index("update")
    if row.lives_in == "its layer":
        return copies_of_layers(row, plan, order)
    needed = {"both passes": range(update), "backward": range(backward, update), "classifier": [backward]}
    return [int(i in needed.get(row.lives_in, [])) * row.copies for i in range(len(order))]


def copies_of_layers(row, plan, order):
    """With a copy for each layer, it is needed from the layer's forward to its backward pass. k copies hold one segment
    of layers at a time. residual3 also keeps the last layer of each segment."""
    ends = plan.segment if row.name == "residual3" else 0
    turns = plan.segment if ends else row.copies
    now, all_layers, counts = set(), set(), []
    for kind, layer, _ in order:
        if kind in ("forward", "recompute") and layer % turns == 0:
            now = set()
        if layer is not None:
            now, all_layers = now | {layer}, all_layers | {layer}
        kept = {l for l in all_layers if row.copies == plan.layers or (ends and (l + 1) % ends == 0)}
        counts.append(min(row.copies, len(now | kept if row.copies < plan.layers else kept)))
        if kind == "backward":
            now, all_layers = now - {layer}, all_layers - {layer}
    return counts


def bytes_in_use(row, plan, order):
    """The bytes of a row that are needed at each point of the step."""
    kinds = [kind for kind, _, _ in order]
    if row.category == "activations":
        return [row.bytes * n / row.copies for n in copies_in_use(row, plan, order)]
    if row.category == "gradients" and not row.name.startswith("sums"):  # which are of all micro-steps
        return [row.bytes * (i >= kinds.index("classifier")) for i in range(len(order))]
    return [row.bytes] * len(order)


def newest_step(folder):
    """Of its checkpoints, as in their names. Each process has a file of state there."""
    return max((path.name[5:] for path in folder.glob("DONE_*")), default="none")


def plan_of_run(place, program):
    """The plan of a run, by its trainer and the flags in run.json; or what a file says."""
    path = pathlib.Path(place)
    if path.is_file() and path.name != "main.log":
        return Plan(path.read_text(errors="replace"), path), None, path.parent
    run = run_data.Run(place)
    if not run.flags:
        sys.exit(f"{place}: no run.json, which has the flags to plan with; give a file with what --plan printed")
    command = [program or run.command.split()[0], "--plan"]
    for flag, value in run.flags.items():
        if value is not None and not flag.startswith("--trace"):
            command += [flag, value]
    processes = len(list(run.folder.glob(f"state_{newest_step(run.folder)}_*.bin")))
    with tempfile.TemporaryDirectory() as unused:  # some flags need an out dir; --plan writes nothing
        text, _ = children.run([*command, "-o", f"{unused}/plan", "-pn", max(1, processes)], cwd=ROOT)
    peaks = [value for _, value in charts.finite(run.series.get("peak_bytes", []))]
    return Plan(text, place), max(peaks, default=None), run.folder


def stairs(values, edges):
    """A step function as points, one value for each interval between two edges."""
    return [(x, value) for i, value in enumerate(values) for x in edges[i:i + 2]]


def mib(of):
    if of < 0.1 * MIB:
        return f"{of / 1024:,.1f} KiB"
    return f"{of / MIB:,.0f} MiB" if of >= 10 * MIB else f"{of / MIB:,.1f} MiB"


def curves(panel, plan, order, edges, peak):
    """The stacked categories, and the lines of the plan and of the peak."""
    lower = [0] * len(order)
    for group, color in zip(GROUPS, svg.COLORS):
        used = [bytes_in_use(row, plan, order) for row in plan.rows if row.category == group]
        upper = [sum(values) for values in zip(lower, *used)]
        outline = stairs(upper, edges) + stairs(lower, edges)[::-1]
        panel.parts.append(svg.area([(panel.x(x), panel.y(y / MIB)) for x, y in outline], color, 0.75))
        lower = upper
    right = panel.left + panel.width
    lines = [(plan.total, f"plan {mib(plan.total)}")] + ([(peak, f"peak {mib(peak)}")] if peak else [])
    apart = len(lines) == 1 or abs(panel.y(plan.total / MIB) - panel.y(peak / MIB)) >= 14
    for i, (value, label) in enumerate(sorted(lines, reverse=True)):
        y = panel.y(value / MIB)
        panel.parts += [svg.line([(panel.left, y), (right, y)], charts.BAD if "peak" in label else svg.TEXT, 1.5, 1,
                                 "5 4" if "plan" in label else ""),
                        svg.text(right + 6, y + 4 + (0 if apart else 14 * i - 7), label)]


def lifetimes(panel, plan, order, edges, top):
    """One row per activation: its name, when its copies are in use, its bytes. Small ones share a row."""
    rows = [row for row in plan.rows if row.category == "activations"]
    large = [row for row in rows if row.bytes >= 0.015 * sum(other.bytes for other in rows)]
    small = [row for row in rows if row not in large]
    shown = [(f"{row.name}" + (f" x {row.copies}" if row.copies > 1 else ""), [row]) for row in large]
    shown += [(f"{len(small)} smaller ones", small)] if small else []
    parts = []
    for i, (name, group) in enumerate(shown):
        y, size = top + i * ROW, sum(row.bytes for row in group)
        used = [sum(values) / size for values in zip(*(bytes_in_use(row, plan, order) for row in group))]
        outline = [(panel.x(x), y + ROW - 3 - (ROW - 5) * share) for x, share in stairs(used, edges)]
        base = y + ROW - 3
        parts += [svg.line([(panel.left, base), (panel.left + panel.width, base)], svg.LINES, 1, 0.3),
                  svg.area([(panel.left, base), *outline, (panel.left + panel.width, base)], svg.COLORS[5], 0.85),
                  svg.text(panel.left - 8, y + ROW - 5, name, "end"),
                  svg.text(panel.left + panel.width + 6, y + ROW - 5, mib(size))]
        if not any(used):
            parts.append(svg.text(panel.left + 6, y + ROW - 5, "between steps"))
    return parts, top + len(shown) * ROW


def axis(panel, order, edges, top, y):
    """The names of the parts of the step, below y, and lines between them: through the panel, and from top to y."""
    names = [("forward" if kind == "embedding" else "backward" if kind in ("recompute", "embedding backward") else kind)
             for kind, _, _ in order]
    parts, begin = [], 0
    for i in range(1, len(names) + 1):
        if i == len(names) or names[i] != names[begin]:
            left, right = panel.x(edges[begin]), panel.x(edges[i])
            parts += [svg.line([(right, begin_y), (right, end_y)], svg.LINES, 1, 0.45)
                      for begin_y, end_y in ((panel.top, panel.top + panel.height), (top, y + 4))]
            lower = 15 if names[begin] in ("classifier", "update") else 0  # which are narrow
            parts.append(svg.text((left + right) / 2, y + 18 + lower, names[begin], "middle"))
            begin = i
    return parts


def draw(place, program):
    """The picture of a run or a plan, as text, and the folder that it belongs to."""
    plan, peak, folder = plan_of_run(place, program)
    order = phases(plan)
    edges = [0]
    for _, _, units in order:
        edges.append(edges[-1] + units)
    high = 1.06 * max(plan.total, peak or 0) / MIB
    panel = charts.Panel(LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT, (0, edges[-1]), (0, high))
    panel.frame("MiB needed at each point of a step; from left to right its work, not its time", x_text=None)
    curves(panel, plan, order, edges, peak)
    top = TOP + HEIGHT + 40
    rows, bottom = lifetimes(panel, plan, order, edges, top)
    there = {row.category for row in plan.rows}
    named = [(group, color) for group, color in zip(GROUPS, svg.COLORS) if group in there]
    parts, _ = charts.legend(LEFT, 22, WIDTH - LEFT, *zip(*named))
    title = svg.text(LEFT, top - 8, "activations: height is the share of its copies in use")
    return svg.picture(WIDTH, bottom + 44, charts.SIZE,
                       [*parts, *panel.parts, title, *rows, *axis(panel, order, edges, top, bottom)]), folder
