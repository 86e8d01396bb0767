"""Panels of tensors.csv (llmc/run/tensor_log.h): norms of weights, gradients, updates and of the residual stream. Of
one run by layer and by tensor, of several runs over all layers."""
import math

import charts
import svg

FIRST, LAST = (0x3b, 0x76, 0xe8), (0xd9, 0x77, 0x06)  # colours of the first and the last layer
LARGE = ["wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw"]  # the tensors that have lines of their own


def layer_color(layer, layers):
    share = layer / max(1, layers - 1)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(FIRST, LAST))


def joined(run, column, what, wanted):
    """The square root of the sum of squares over the tensors for which wanted(tensor, layer), at each step."""
    sums = {}
    for (its_column, its_what, tensor, layer), points in run.tensors.items():
        if (its_column, its_what) == (column, what) and wanted(tensor, layer):
            for step, value in points:
                sums[step] = sums.get(step, 0) + value * value
    return sorted((step, math.sqrt(total)) for step, total in sums.items())


def root_mean_square(run, what, wanted):
    """By step. elems has the numbers of elements, whose root is to be taken of: joined() squares them."""
    squares, elems = joined(run, "norm", what, wanted), {}
    for (column, its_what, tensor, layer), points in run.tensors.items():
        if (column, its_what) == ("elems", what) and wanted(tensor, layer):
            for step, value in points:
                elems[step] = elems.get(step, 0) + value
    return [(step, norm / math.sqrt(elems[step])) for step, norm in squares if elems.get(step)]


def update_ratio(run, wanted):
    """The norm of the update relative to that of the weight, at each step."""
    weights = dict(joined(run, "norm", "weight", wanted))
    return [(step, norm / weights[step]) for step, norm in joined(run, "norm", "update", wanted) if weights.get(step)]


def everything(_tensor, _layer):
    return True


def panels_of_runs(runs):
    """All layers of each run together."""
    measures = [("weights, root mean square", lambda run: root_mean_square(run, "weight", everything)),
                ("norm of the update / norm of the weights", lambda run: update_ratio(run, everything)),
                ("residual stream, root mean square", lambda run: root_mean_square(run, "residual", everything))]
    return [(title, [("", color, run, of(run)) for run, color in runs]) for title, of in measures]


def panels_by_layer(run):
    layers = sorted({layer for _, _, _, layer in run.tensors if layer is not None})
    measures = [("weights of a layer, root mean square", lambda wanted: root_mean_square(run, "weight", wanted)),
                ("gradient of a layer, norm", lambda wanted: joined(run, "norm", "gradient", wanted)),
                ("update of a layer / its weights, norms", lambda wanted: update_ratio(run, wanted)),
                ("residual stream, root mean square", lambda wanted: root_mean_square(run, "residual", wanted))]
    found = []
    for title, of in measures:
        lines = [(f"layer {l}" if l in (layers[0], layers[-1]) else "", layer_color(l, len(layers)), run,
                  of(lambda tensor, layer: layer == l)) for l in layers]
        found.append((title, lines))
    return found


def panels_by_tensor(run):
    measures = [("gradient of a tensor, norm", lambda wanted: joined(run, "norm", "gradient", wanted)),
                ("update of a tensor / its weights, norms", lambda wanted: update_ratio(run, wanted))]
    return [(title, [(name, color, run, of(lambda tensor, layer: tensor == name))
                     for name, color in zip(LARGE, svg.COLORS)]) for title, of in measures]


def panels(runs, colors):
    """(title, lines), a line being (name, color, run, points by step)."""
    runs = [(run, color) for run, color in zip(runs, colors) if run.tensors]
    if len(runs) > 1:
        return panels_of_runs(runs)
    return panels_by_layer(runs[0][0]) + panels_by_tensor(runs[0][0]) if runs else []


def draw(place, title, lines, x_label, x_range):
    """One panel, with the names of its lines below it; None if there is nothing to draw."""
    values = [y for *_, points in lines for _, y in points]
    bad = [x for *_, points in lines for x, y in points if not math.isfinite(y)]
    finite = [y for y in values if math.isfinite(y)]
    if not values:
        return None
    log = bool(finite) and min(finite) > 0
    panel = charts.Panel(*place, x_range, charts.around(finite or [0, 1], log), log)
    panel.frame(title + (", log scale" if log else ""), x_label)
    for _, color, points in lines:
        panel.curve(points, color)
    panel.bad(sorted(set(bad)))
    named = [(name, color) for name, color, _ in lines if name]
    x = panel.left
    for name, color in named:
        panel.parts += [svg.box(x, panel.top + panel.height + 24, 9, 9, color),
                        svg.text(x + 13, panel.top + panel.height + 32, name)]
        x += 26 + svg.text_width(name, charts.SIZE) * 0.85
    return panel.parts
