"""Line charts with axes, of the parts in svg.py. A panel is a rectangle with ticks on both axes, into which lines,
marks and reference lines are drawn."""
import math

import svg

SIZE = 12  # of the text, in pixels
BAD = "#e5484d"  # marks steps whose value is not finite


def finite(points):
    return [(x, y) for x, y in points if math.isfinite(y)]


def smooth(points, window):
    """Means over a window of `window` points, an odd number, around each. It is narrower at the start, where losses
    fall fast, and one half of it at the end. What is not finite does not count."""
    sums, counts = [0.0], [0]
    for _, y in points:
        good = math.isfinite(y)
        sums.append(sums[-1] + (y if good else 0))
        counts.append(counts[-1] + good)
    half, smoothed = window // 2, []
    for i, (x, _) in enumerate(points):
        low, high = i - min(half, i), min(i + min(half, i) + 1, len(points))
        count = counts[high] - counts[low]
        smoothed.append((x, (sums[high] - sums[low]) / count if count else math.nan))
    return smoothed


def ticks(low, high, most):
    """Round numbers within [low, high], at most so many, at distances of 1, 2 or 5 times a power of ten."""
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * k for k in (1, 2, 5, 10, 20) if span / (power * k) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) if step > 1e-9 else i * step for i in range(first, int(high / step + 1e-9) + 1)]


def log_ticks(low, high, most):
    """Round numbers for a logarithmic axis: powers of ten; 1, 2, 3, 5 times those over few decades; those of a linear
    axis over much less than one."""
    decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    if high / low < 4:
        return ticks(low, high, most)
    if len(decades) < 3:
        factors = (1, 2, 3, 5) if high / low < 30 else (1, 2, 5)
        return [f * 10.0 ** d for d in range(decades.start - 1, decades.stop + 1) for f in factors
                if low * 0.999 <= f * 10.0 ** d <= high * 1.001]
    every = -(-len(decades) // most)
    return [10.0 ** d for d in decades if d % every == 0]


def tick_text(value):
    """0.25, 1.5k, 20M, 3e-4"""
    size = abs(value)
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * 0.9999:
            return f"{value / unit:.4g}{letter}"
    if size != 0 and size < 1e-2:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.4g}"


def thinned(points, columns, x_of):
    """At most a lowest and a highest point for each of so many columns of the picture, in their order."""
    if len(points) <= 2 * columns:
        return points
    kept, group, at = [], [], None
    for point in [*points, None]:
        column = None if point is None else x_of(point[0])
        if group and column != at:
            ends = sorted({group.index(min(group, key=lambda p: p[1])), group.index(max(group, key=lambda p: p[1]))})
            kept += [group[i] for i in ends]
            group = []
        at = column
        if point is not None:
            group.append(point)
    return kept


class Panel:
    """x and y: the ranges, (low, high). Points are given in their units."""

    def __init__(self, left, top, width, height, x, y, log=False):
        self.left, self.top, self.width, self.height, self.log = left, top, width, height, log
        self.x_range, self.y_range = x, y
        self.parts = []

    def x(self, value):
        low, high = self.x_range
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value):
        low, high = self.y_range
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
        share = (value - low) / (high - low)
        return self.top + self.height * (1 - min(max(share, -0.02), 1.02))

    def frame(self, title, x_label="", x_text=tick_text, y_text=tick_text):
        bottom, right = self.top + self.height, self.left + self.width
        self.parts.append(svg.text(self.left, self.top - 8, title))
        for value in (log_ticks if self.log else ticks)(*self.y_range, max(2, int(self.height / 28))):
            y = self.y(value)
            self.parts += [svg.line([(self.left, y), (right, y)], svg.LINES, 1, 0.3),
                           svg.text(self.left - 6, y + 4, y_text(value), "end")]
        for value in ticks(*self.x_range, max(2, int(self.width / 70))) if x_text else []:
            x = self.x(value)
            self.parts += [svg.line([(x, bottom), (x, bottom + 4)], svg.LINES, 1, 0.6),
                           svg.text(x, bottom + 17, x_text(value), "middle")]
        self.parts.append(svg.line([(self.left, self.top), (self.left, bottom), (right, bottom)], svg.LINES, 1, 0.6))
        if x_label:
            self.parts.append(svg.text(right, bottom + 32, x_label, "end"))

    def curve(self, points, color, width=1.6, opacity=1, dash=""):
        """A line that is broken where a value is not finite; a single point is a dot."""
        pieces, piece = [], []
        for point in [*points, (0, math.nan)]:
            if math.isfinite(point[1]):
                piece.append(point)
            elif piece:
                pieces.append(piece)
                piece = []
        for piece in pieces:
            columns = max(1, int(self.width / 2 * (self.x(piece[-1][0]) - self.x(piece[0][0])) / self.width))
            places = [(self.x(x), self.y(y)) for x, y in thinned(piece, columns, lambda x: int(self.x(x) / 2))]
            if len(places) == 1:
                self.parts.append(svg.dot(*places[0], 1.5 * width, color, opacity))
            else:
                self.parts.append(svg.line(places, color, width, opacity, dash))

    def marks(self, points, color):
        for x, y in finite(points):
            self.parts.append(svg.dot(self.x(x), self.y(y), 3, color))

    def bad(self, xs):
        """Marks at the upper edge where values are not finite, and how many there are."""
        if not xs:
            return
        for place in sorted({round(self.x(x)) for x in xs}):
            self.parts.append(svg.line([(place, self.top), (place, self.top + 7)], BAD, 2))
        self.parts.append(svg.text(self.left + self.width, self.top - 8, f"{len(xs)} not finite", "end", BAD))

    def references(self, lines):
        """Dashed lines across the panel, each with its name at its left end. Names that would cover each other are
        moved up."""
        names = max((svg.text_width(label, SIZE) for label in lines), default=0)
        begin, right = self.left + 6 + names, self.left + self.width
        lowest = self.top + self.height - 6
        for label, value in sorted(lines.items(), key=lambda line: line[1]):
            line, place = self.y(value), min(self.y(value), lowest)
            lowest = place - 14
            self.parts += [svg.line([(begin, place), (begin + 16, line), (right, line)], svg.TEXT, 1.2, 0.9, "5 4"),
                           svg.text(self.left + 6, place + 4, label)]


def around(values, log=False):
    """A range that holds all values, with some room."""
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** 0.04 if high > low else 1.2
        return low / room, high * room
    room = 0.05 * (high - low) or 0.1 * abs(high) or 1
    return low - room, high + room


def legend(left, top, width, names, colors):
    """Names with a box of their colour, in lines as long as the picture is wide. Returns parts and their height."""
    parts, x, y = [], left, top
    for name, color in zip(names, colors):
        needed = 20 + svg.text_width(name, SIZE) + 18
        if x > left and x + needed > left + width:
            x, y = left, y + 20
        parts += [svg.box(x, y - 9, 13, 10, color), svg.text(x + 19, y, name)]
        x += needed
    return parts, y + 20 - top
