#!/usr/bin/env python3
"""Draws the pictures of the course into dev/course/pictures, from the constants and tables of the code that ships:
build/course_facts and build/course_numbers_gpu print them; and from what vocabularies.py has measured. Standard library
only.

    dev/course/pictures.py [NAME...]     draws all, or those named
    dev/course/pictures.py --check       names those that differ from what the code says; status 1
"""
import json
import math
import pathlib
import subprocess
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dev/course/pictures"
sys.path.insert(0, str(ROOT / "dev"))
import svg  # noqa: E402

BLUE, ORANGE, GREEN, VIOLET, PINK, CYAN = svg.COLORS[:6]
THIN, THICK = 1.2, 2.2


def arrow(x0, y0, x1, y1, color=svg.LINES, width=THIN, dash="", head=7):
    length = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    left = (x1 - head * ux + head * uy / 2, y1 - head * uy - head * ux / 2)
    right = (x1 - head * ux - head * uy / 2, y1 - head * uy + head * ux / 2)
    return [svg.line([(x0, y0), (x1 - head * ux / 2, y1 - head * uy / 2)], color, width, dash=dash),
            svg.area([(x1, y1), left, right], color)]


def layer_norm(facts):
    """A row of three channels, seen along (1, 1, 1): outputs lie on a circle, the gradient is tangent to it."""
    x, y, radius = 150, 190, 110
    toward = math.radians(28)
    nx, ny = x + radius * math.cos(toward), y - radius * math.sin(toward)
    g = (70, -105)                                            # any direction
    along = g[0] * math.cos(toward) - g[1] * math.sin(toward)  # g . n; the picture's y axis points down
    removed = (along * math.cos(toward), -along * math.sin(toward))
    kept = (g[0] - removed[0], g[1] - removed[1])
    parts = [svg.ring(x, y, radius, svg.LINES), *arrow(x, y, nx, ny, svg.LINES),
             *arrow(nx, ny, nx + g[0], ny + g[1], ORANGE, THICK),
             *arrow(nx, ny, nx + removed[0], ny + removed[1], svg.LINES, THIN, "4 3"),
             *arrow(nx, ny, nx + kept[0], ny + kept[1], BLUE, THICK),
             svg.line([(nx + g[0], ny + g[1]), (nx + kept[0], ny + kept[1])], svg.LINES, THIN, dash="2 3"),
             svg.dot(x, y, 3, svg.TEXT), svg.dot(nx, ny, 3, svg.TEXT),
             svg.text((x + nx) / 2 - 4, (y + ny) / 2 + 20, "n"),
             svg.text(nx + g[0] + 8, ny + g[1] - 2, "g", color=ORANGE),
             svg.text(nx + removed[0] + 6, ny + removed[1] + 16, "n mean(g n): scaling"),
             svg.text(nx + kept[0] - 8, ny + kept[1] - 6, "Dx / s", "end", BLUE),
             svg.text(x, y + radius + 24, "all outputs n: mean 0, variance 1", "middle")]
    return svg.picture(520, 350, 14, parts)


def rounded(x, y, width, height, color, label, size=13):
    """A box with a coloured border and a label in its middle."""
    return [f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" fill="{color}" '
            f'fill-opacity="0.12" stroke="{color}" stroke-width="{THIN}"/>',
            svg.text(x + width / 2, y + height / 2 + size * 0.35, label, "middle")]


def residual_stream(facts):
    """The stream with the two branches of a block: forward on the left, backward on the right."""
    parts, top, bottom = [], 60, 500
    branches = [(390, "attention", ["layer norm", "linear: q, k, v", "attention", "linear"], BLUE),
                (195, "MLP", ["layer norm", "linear: 4 C", "GELU", "linear"], GREEN)]
    for x, side, backward in ((90, 1, False), (590, 1, True)):
        parts += arrow(x, top if backward else bottom, x, bottom if backward else top, ORANGE, 4, head=14)
        parts.append(svg.text(x, 30, "backward" if backward else "forward", "middle"))
        for at, name, layers, color in branches:
            high, low = at - 55, at + 85                       # where the branch joins, where it leaves
            place = x + 120
            first, last = (high, low) if backward else (low, high)
            parts += [svg.line([(x, first), (place + 55, first)], svg.LINES, THIN)]
            for i, layer in enumerate(layers):
                parts += rounded(place, low - 36 - 33 * i, 110, 26, color, "D " + layer if backward else layer, 12)
            parts += arrow(place + 55, last, x + 13, last, svg.LINES, THIN)
            parts += [svg.ring(x, last, 9, svg.TEXT), svg.text(x - 15, last - 4, "+", "end")]
            parts.append(svg.text(x - 24, (high + low) / 2, name, "end", color))
    parts += [svg.text(90, bottom + 22, "embedding", "middle"), svg.text(590, bottom + 22, "D embedding", "middle"),
              svg.text(112, top + 6, "to the next block, or the logits"), svg.text(612, top + 6, "from the next block"),
              svg.text(430, 562, "Forward, a branch adds to the stream what it computed. Backward, it adds to the "
                       "gradient: the stream itself is never multiplied.", "middle")]
    return svg.picture(860, 585, 13, parts)


def schedules(facts):
    """The learning rate over a run, for each schedule."""
    left, top, width, height = 60, 30, 480, 200
    peak = max(max(rates) for name, rates in facts.items() if name.startswith("schedule_"))
    parts = [svg.line([(left, top), (left, top + height), (left + width, top + height)], svg.LINES, THIN),
             svg.text(left - 8, top + 6, "peak", "end"), svg.text(left - 8, top + height + 5, "0", "end"),
             svg.text(left + width, top + height + 20, "steps", "end")]
    styles = {"constant": (BLUE, ""), "linear": (VIOLET, ""), "cosine": (GREEN, ""), "wsd": (ORANGE, "6 3"),
              "inverse-sqrt": (PINK, ""), "exponential": (CYAN, ""), "step": (svg.LINES, "2 3")}
    names = [name.removeprefix("schedule_") for name in facts if name.startswith("schedule_")]
    areas = {name: round(sum(facts[f"schedule_{name}"]), 3) for name in names}  # rounded: some are equal
    for place, name in enumerate(sorted(names, key=lambda name: -areas[name])):
        color, dash = styles[name]
        rates, key, y = facts[f"schedule_{name}"], left + width + 20, top + 20 + 24 * place
        step = width / (len(rates) - 1)
        points = [(left + step * i, top + height * (1 - rate / peak)) for i, rate in enumerate(rates)]
        parts += [svg.line(points, color, THICK, dash=dash), svg.text(key + 38, y + 5, name),
                  svg.line([(key, y), (key + 30, y)], color, THICK, dash=dash)]
    parts.append(svg.text(left + width * 0.05, top + height + 20, "warmup", "middle"))
    return svg.picture(690, 265, 13, parts)


def frame(x, y, width, height, color=svg.LINES, fill=0.0, stroke=THIN):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}" '
            f'fill-opacity="{fill:g}" stroke="{color}" stroke-width="{stroke:g}"/>')


def gemm_blocking(facts):
    """Matrices A, B and C with a block of B, its panels, and one register tile, to scale for a product of 256 rows,
    768 of k, 3072 columns (the columns to half the scale)."""
    rows, k, columns, scale = 256, 768, 3072, 0.32
    kc, nc, mr, nr = (facts["gemm_" + name] for name in ("kc", "nc", "mr", "nr"))
    across = scale / 2
    left, top = 40, 40
    bx, by = left + k * scale + 30, top
    cx, cy = bx, top + k * scale + 30
    n0 = 14 * nc                                            # the block that is drawn
    m0, tile = 12 * mr, n0 + nr
    parts = [frame(bx, by, columns * across, k * scale), frame(left, cy, k * scale, rows * scale),
             frame(cx, cy, columns * across, rows * scale),
             frame(bx + n0 * across, by, nc * across, min(kc, k) * scale, BLUE, 0.25),
             svg.line([(bx + tile * across, by), (bx + tile * across, by + kc * scale)], BLUE, THIN),
             frame(left, cy + m0 * scale, kc * scale, mr * scale, ORANGE, 0.6),
             frame(cx + n0 * across, cy, nc * across, rows * scale, BLUE, 0.1),
             frame(cx + tile * across, cy + m0 * scale, nr * across, mr * scale, ORANGE, 0.9, THICK),
             svg.text(bx + 8, by + 20, "B: k = 768, 3,072 columns"), svg.text(left + 6, cy - 8, "A: 256 rows"),
             svg.text(cx + 8, cy + rows * scale - 8, "C"),
             svg.text(bx + (n0 + nc) * across + 8, by + 60, f"a block: {kc} x {nc} numbers,", color=BLUE),
             svg.text(bx + (n0 + nc) * across + 8, by + 78, f"packed in panels of {nr} columns", color=BLUE),
             svg.text(cx + (tile + nr) * across + 8, cy + m0 * scale + 6,
                      f"a tile: {mr} x {nr} sums in registers", color=ORANGE),
             svg.text(left + 6, cy + m0 * scale - 8, f"{mr} rows of A", color=ORANGE)]
    return svg.picture(left + int(k * scale) + 30 + int(columns * across) + 20, int(cy + rows * scale + 20), 13, parts)


def online_softmax(facts):
    """One block of queries meets blocks of keys, one after the other; m, l and o are corrected after each."""
    block, size, gap, left, top = facts["attention_block"], 84, 66, 30, 60
    parts = [svg.text(left, 24, f"{block} queries, and all keys they see, {block} at a time")]
    for i in range(4):
        x, diagonal = left + i * (size + gap), i == 3
        parts += [frame(x, top, size, size, BLUE, 0.0 if diagonal else 0.2)]
        if diagonal:
            parts.append(svg.area([(x, top), (x, top + size), (x + size, top + size)], BLUE, 0.2))
        parts += [svg.text(x + size / 2, top - 8, f"keys {i * block} to {i * block + block - 1}", "middle"),
                  *arrow(x + size / 2, top + size + 4, x + size / 2, top + size + 30),
                  *rounded(x - 6, top + size + 32, size + 12, 30, ORANGE, "m, l, o")]
        if i < 3:
            parts += arrow(x + size + 8, top + size + 47, x + size + gap - 8, top + size + 47, ORANGE, THICK)
            parts.append(svg.text(x + size + gap / 2, top + size + 24, "e^(m - m')", "middle", ORANGE))
    end = left + 3 * (size + gap) + size + 6
    below = top + size + 47
    parts += [*arrow(end, below, end + 40, below, ORANGE, THICK), svg.text(end + 48, below - 3, "out = o / l"),
              svg.text(end + 48, below + 15, "lse = m + log l"), svg.text(end + 4, top + 30, "on the diagonal"),
              svg.text(end + 4, top + 48, "half is masked")]
    return svg.picture(760, 225, 13, parts)


def formats(facts):
    """The bits of fp32, bf16 and fp16."""
    parts, width, left = [], 15, 70
    kinds = [("fp32", 8, 23), ("bf16", 8, 7), ("fp16", 5, 10)]
    for row, (name, exponent, fraction) in enumerate(kinds):
        y = 20 + 44 * row
        parts.append(svg.text(left - 12, y + 16, name, "end"))
        for first, bits, color in ((0, 1, PINK), (1, exponent, ORANGE), (1 + exponent, fraction, BLUE)):
            parts += [frame(left + (first + bit) * width, y, width, 22, color, 0.25) for bit in range(bits)]
    for place, (label, color) in enumerate((("sign", PINK), ("exponent: the range", ORANGE),
                                            ("fraction: the precision", BLUE))):
        parts += [svg.box(330, 70 + 24 * place, 14, 14, color, 0.5), svg.text(352, 82 + 24 * place, label)]
    return svg.picture(580, 155, 13, parts)


def warp_sum(facts):
    """Eight lanes of a warp add up in three steps; the lanes that exchange differ in one bit."""
    lanes, left, step, across = 8, 110, 62, 72
    held = [[lane] for lane in range(lanes)]
    parts = [svg.text(left + lane * across, 24, f"lane {lane}", "middle") for lane in range(lanes)]
    distance, row = lanes // 2, 0
    while True:
        y = 44 + row * step
        for lane in range(lanes):
            label = f"x{lane}" if row == 0 else f"sum of {len(held[lane])}"
            parts += rounded(left + lane * across - 32, y - 11, 64, 24, BLUE if row == 0 else GREEN, label, 12)
        if distance == 0:
            break
        parts.append(svg.text(8, y + step / 2 + 5, f"lane ^ {distance}"))
        for lane in range(lanes):
            x, other = left + lane * across, left + (lane ^ distance) * across
            parts += [svg.line([(x, y + 14), (other, y + step - 13)], ORANGE, 0.9),
                      svg.line([(x, y + 14), (x, y + step - 13)], svg.LINES, 0.9)]
        held = [sorted(held[lane] + held[lane ^ distance]) for lane in range(lanes)]
        distance, row = distance // 2, row + 1
    assert all(lane == list(range(lanes)) for lane in held)
    return svg.picture(left + lanes * across, 70 + row * step, 13, parts)


def ring(facts):
    """Reduce-scatter among four processes: which slice each one passes on in which round, and what it has then."""
    processes, left, top, cell, height = 4, 130, 50, 34, 26
    have = [[{p} for _ in range(processes)] for p in range(processes)]
    parts = []
    for stage in range(processes):
        x = left + stage * (processes * cell + 62)
        title = "before" if stage == 0 else f"after round {stage}"
        parts.append(svg.text(x + processes * cell / 2, 22, title, "middle"))
        for p in range(processes):
            y = top + p * 58
            if stage == 0:
                parts.append(svg.text(left - 14, y + 18, f"process {p}", "end"))
            for s in range(processes):
                terms = len(have[p][s])
                color = GREEN if terms == processes else BLUE
                parts += [frame(x + s * cell, y, cell - 4, height, color, 0.1 + 0.2 * (terms - 1)),
                          svg.text(x + s * cell + cell / 2 - 2, y + 18, str(terms), "middle")]
            if stage < processes - 1:
                sent = (p - stage - 1) % processes
                down = y + 58 if p < processes - 1 else y
                parts += arrow(x + sent * cell + cell / 2 - 2, y + height + 2, x + sent * cell + cell / 2 - 2,
                               down - 4 if p < processes - 1 else y + height + 22, ORANGE, THICK)
        if stage < processes - 1:
            moved = [(p, (p - stage - 1) % processes) for p in range(processes)]
            values = {(p, s): set(have[p][s]) for p, s in moved}
            for p, s in moved:
                have[(p + 1) % processes][s] |= values[p, s]
    assert all(have[p][p] == set(range(processes)) for p in range(processes))
    parts += [svg.text(left, top + 246, "Four slices per process; in each, how many processes it is summed over."),
              svg.text(left, top + 265, "Arrows: what a process sends to the next, and the last to the first.")]
    return svg.picture(left + processes * (processes * cell + 62) - 40, top + 4 * 58 + 50, 13, parts)


def zero(facts):
    """The bytes that a process of four holds at -z 0 and -z 1, to scale, from the layout of the 124M model."""
    whole, slices = facts["zero_elems"], facts["zero_slice_elems"]
    left, top, scale = 90, 50, 560 / (16 * whole)
    kinds = [("weights", 2, False, BLUE), ("gradients", 2, False, ORANGE), ("master weights", 4, True, GREEN),
             ("m", 4, True, VIOLET), ("v", 4, True, PINK)]
    parts = []
    for row, (stage, sliced) in enumerate((("-z 0", False), ("-z 1", True))):
        x, y, total = left, top + 80 * row, 0
        parts.append(svg.text(left - 14, y + 25, stage, "end"))
        for name, size, state, color in kinds:
            count = sum(slices) if sliced and state else whole
            width, total = size * count * scale, total + size * count
            parts.append(frame(x, y, width, 38, color, 0.25))
            if row == 0:
                parts.append(svg.text(x + width / 2, y - 8, name, "middle", color))
            x += width
        parts.append(svg.text(x + 8, y + 25, f"{total / 2**20:,.0f} MiB"))
    parts.append(svg.text(left, top + 150, f"GPT-2 124M in bf16 on 4 processes, in {len(slices)} buckets. At -z 1 each "
                          "keeps one slice of every bucket's state."))
    return svg.picture(790, 220, 13, parts)


def lane_color(lane):
    """One colour for each group of four lanes."""
    return svg.colors(8)[lane // 4]


def fragments(facts):
    """Which lane holds which elements of A, B and C of one m16n8k16 instruction."""
    cell = 25
    places = [("A: 16 x 16", "fragment_a", 16, 30, 60), ("B: 16 x 8", "fragment_b", 8, 470, 60),
              ("C: 16 x 8", "fragment_c", 8, 710, 60)]
    parts = []
    for title, name, columns, left, top in places:
        held = facts[name]
        count = len(held) // 32
        parts.append(svg.text(left + columns * cell / 2, top - 14, title, "middle"))
        for index, element in enumerate(held):
            lane, row, column = index // count, int(element) // columns, int(element) % columns
            x, y = left + column * cell, top + row * cell
            parts += [frame(x, y, cell, cell, lane_color(lane), 0.28, 0.5),
                      svg.text(x + cell / 2, y + 17, str(lane), "middle")]
    parts.append(svg.text(30, 60 + 16 * cell + 26, "Numbers are lanes. A lane holds 8 elements of A, 4 of B, 4 of C. "
                          "Two neighbours in a row of A, or in a column of B, share a register."))
    return svg.picture(940, 60 + 16 * cell + 44, 13, parts)


def swizzle(facts):
    """Eight rows of a tile in shared memory, in chunks of 16 bytes, without and with the permutation. A column of the
    picture is four banks."""
    cell, height, top = 46, 30, 74
    chunk = 3                                               # the one that ldmatrix reads of eight rows at once
    parts = []
    for title, left, place in (("as it is", 60, list(range(64))), ("permuted", 520, facts["swizzle"])):
        parts.append(svg.text(left + 4 * cell, 24, title, "middle"))
        used = set()
        for column in range(8):
            parts.append(svg.text(left + column * cell + cell / 2, top - 8, f"{4 * column}-{4 * column + 3}", "middle"))
        for row in range(8):
            parts.append(svg.text(left - 10, top + row * height + 20, f"row {row}", "end"))
            for c in range(8):
                column = place[row * 8 + c] % 8
                wanted = c == chunk
                used |= {column} if wanted else set()
                x, y = left + column * cell, top + row * height
                parts += [frame(x, y, cell, height, ORANGE if wanted else svg.LINES, 0.5 if wanted else 0.04, 0.8),
                          svg.text(x + cell / 2, y + 20, f"c{c}", "middle")]
        waves = "1 wavefront" if len(used) == 8 else f"{8 // len(used)} wavefronts"
        below = top + 8 * height + 24
        parts.append(svg.text(left + 4 * cell, below, f"chunk {chunk} of 8 rows: {waves}", "middle", ORANGE))
    parts.append(svg.text(520 - 14, top - 8, "banks", "end"))
    return svg.picture(920, top + 8 * height + 44, 13, parts)


def merges(facts):
    """The parts of a word after each merge of byte-pair encoding."""
    word, cell, height, left, top = "unbelievable", 42, 36, 90, 20
    rows = []
    while f"merges_{len(rows)}" in facts:
        rows.append([int(length) for length in facts[f"merges_{len(rows)}"]])
    parts = []
    for row, lengths in enumerate(rows):
        at, y = 0, top + row * height
        label = "bytes" if row == 0 else "tokens" if row == len(rows) - 1 else f"merge {row}"
        parts.append(svg.text(left - 12, y + 19, label, "end"))
        for length in lengths:
            part = word[at:at + length]
            parts += rounded(left + at * cell, y, length * cell - 4, 26, BLUE if length == 1 else GREEN, part, 13)
            at += length
        assert at == len(word)
    return svg.picture(left + len(word) * cell + 20, top + len(rows) * height + 10, 13, parts)


def gelu(facts):
    """GELU and its derivative."""
    left, top, unit = 40, 20, 56
    values, slopes = facts["gelu"], facts["gelu_slope"]
    x = [-5 + 9 * i / (len(values) - 1) for i in range(len(values))]
    across = [left + (point + 5) * unit for point in x]
    zero = top + 4 * unit
    parts = [svg.line([(left, zero), (left + 9 * unit, zero)], svg.LINES, THIN),
             svg.line([(left + 5 * unit, top), (left + 5 * unit, zero + 40)], svg.LINES, THIN)]
    for mark in range(-4, 5, 2):
        parts.append(svg.text(left + (mark + 5) * unit, zero + 18, str(mark), "middle"))
    for mark in range(1, 5):
        parts.append(svg.text(left + 5 * unit - 8, zero - mark * unit + 5, str(mark), "end"))
    parts += [svg.line([(a, zero - v * unit) for a, v in zip(across, values)], BLUE, THICK),
              svg.line([(a, zero - v * unit) for a, v in zip(across, slopes)], ORANGE, THICK),
              svg.text(left + 7.6 * unit, zero - 3 * unit, "gelu(x)", "end", BLUE),
              svg.text(left + 7.7 * unit, zero - 1.25 * unit, "gelu'(x)", "middle", ORANGE)]
    return svg.picture(left + 9 * unit + 20, zero + 50, 13, parts)


def attention(facts):
    """The probabilities p[t,u] of one head: row t is what position t takes from each position."""
    size, left, top = 24, 120, 46
    p = facts["attention_p"]
    T = round(math.sqrt(len(p)))
    parts = [svg.text(left + T * size / 2, 22, "key u", "middle"),
             svg.text(left - 40, top + T * size / 2, "query t", "end")]
    for t in range(T):
        assert abs(sum(p[t * T:t * T + T]) - 1) < 1e-4
        parts += [svg.text(left + t * size + size / 2, top - 6, str(t), "middle"),
                  svg.text(left - 8, top + t * size + 16, str(t), "end")]
        for u in range(t + 1):
            shade = round(0.04 + 0.9 * p[t * T + u], 2)
            parts.append(frame(left + u * size, top + t * size, size, size, BLUE, shade, 0.5))
    parts += [svg.text(left + T * size + 16, top + 20, "each row adds up to 1"),
              svg.text(left + T * size + 16, top + 42, "above the diagonal: the future,"),
              svg.text(left + T * size + 16, top + 58, "which no position sees")]
    return svg.picture(left + T * size + 240, top + T * size + 16, 13, parts)


def cross_entropy(facts):
    """The probabilities of eight tokens and the gradient of their logits, p minus 1 at the target."""
    probabilities, target = [0.05, 0.3, 0.02, 0.1, 0.38, 0.08, 0.04, 0.03], 1
    left, top, unit, width = 50, 30, 190, 34
    parts = []
    for place, (title, values) in enumerate((("p: what the model said", probabilities), (
            "p - onehot: the gradient", [p - (i == target) for i, p in enumerate(probabilities)]))):
        x0, zero = left + place * 420, top + unit * 0.45
        parts += [svg.text(x0, 20, title), svg.line([(x0, zero), (x0 + 8 * 44, zero)], svg.LINES, THIN)]
        for i, value in enumerate(values):
            color, height = GREEN if i == target else BLUE, abs(value) * unit
            parts.append(svg.box(x0 + i * 44 + 5, zero - max(value, 0) * unit, width, height, color, 0.6))
            below = zero + (16 if value >= 0 else height + 16)
            parts.append(svg.text(x0 + i * 44 + 22, below, f"{value:+.2f}", "middle"))
    parts.append(svg.text(left, top + unit * 1.36, "Green: the token that came. Its logit must grow, all others "
                          "shrink, each by what it was given too much."))
    return svg.picture(left + 420 + 8 * 44 + 20, int(top + unit * 1.36 + 16), 13, parts)


def checkpoint(facts):
    """The files of a checkpoint of two processes over time: each is complete when it gets its name, DONE comes last."""
    left, top, height = 190, 34, 34
    names = [("model_00000050.bin", 0, 40, 52), ("state of rank 0", 60, 84, 94), ("state of rank 1", 8, 46, 60),
             ("DONE_00000050", 100, 101, 104)]
    unit, parts = 5.2, []
    for row, (name, begin, written, renamed) in enumerate(names):
        y = top + row * height
        parts += [svg.text(left - 12, y + 17, name, "end"),
                  svg.box(left + begin * unit, y + 4, (written - begin) * unit, 18, BLUE, 0.45),
                  svg.box(left + written * unit, y + 4, (renamed - written) * unit, 18, ORANGE, 0.55),
                  svg.line([(left + renamed * unit, y + 13), (left + 112 * unit, y + 13)], GREEN, 3)]
    y = top + len(names) * height
    parts.append(svg.line([(left + 104 * unit, top - 8), (left + 104 * unit, y)], svg.TEXT, THIN, dash="3 3"))
    for place, (label, color) in enumerate((("written beside its name", BLUE), ("fsync, rename", ORANGE),
                                            ("complete", GREEN))):
        x = left + place * 190
        parts += [svg.box(x, y + 12, 14, 14, color, 0.6), svg.text(x + 20, y + 24, label)]
    parts.append(svg.text(left + 104 * unit, top - 14, "from here on it counts", "end"))
    return svg.picture(left + int(112 * unit) + 20, y + 40, 13, parts)


def vocabularies(facts):
    """Models with vocabularies of several sizes: what each predicts, and what its steps cost (vocabularies.py)."""
    rows, left, width, y = facts["vocabularies"], 30, 86, 50
    (steps, tokens, seconds, device), = {(row["steps"], row["step_tokens"], row["same_time"]["seconds"], row["device"])
                                         for row in rows}
    # of each panel: height, what it begins at, lines: name, colour, format of the numbers, value of a row
    panels = [
        (130, 2, [(f"bits per byte after {steps} steps of {tokens:,} tokens", BLUE, "%.2f",
                   lambda row: row["bits_per_byte"]),
                  (f"bits per byte after {seconds:g} s of training", VIOLET, "%.2f",
                   lambda row: row["same_time"]["bits_per_byte"])]),
        (80, 0, [("time per step in ms", ORANGE, "%.0f", lambda row: row["step_ms"])]),
        (80, 0, [("time to read 1 MB of text in s", GREEN, "%.0f",
                  lambda row: 1e3 * row["step_ms"] / row["step_tokens"] / row["bytes_per_token"])])]
    parts = []
    for height, least, lines in panels:
        most = max(value(row) for *_, value in lines for row in rows)
        for place, (name, color, form, value) in enumerate(lines):
            up = [height * (value(row) - least) / (most - least) for row in rows]
            at = [(left + 24 + i * width, y + height - part) for i, part in enumerate(up)]
            parts += [svg.text(left + 330 * place, y - 24, name, color=color), svg.line(at[:-1], color, THICK)]
            for i, (row, (px, py)) in enumerate(zip(rows, at)):
                mark = svg.ring(px, py, 4, color) if i == len(rows) - 1 else svg.dot(px, py, 4, color)
                highest = all(value(row) >= other(row) for *_, other in lines)
                parts += [mark, svg.text(px, py + (-8 if highest else 18), form % value(row), "middle", color)]
        y += height + 14
        parts.append(svg.line([(left, y), (left + len(rows) * width, y)], svg.LINES, THIN))
        y += 54
    y -= 36
    for i, row in enumerate(rows):
        parts.append(svg.text(left + 24 + i * width, y, f"{row['size']:,}", "middle"))
    parts += [svg.text(left, y + 24, "tokens in the vocabulary, which is learned from the text; the last is GPT-2's"),
              svg.text(left, y + 44, device)]
    return svg.picture(left + len(rows) * width + 30, y + 56, 13, parts)


PICTURES = {"merges": merges, "vocabularies": vocabularies, "gelu": gelu, "attention": attention,
            "cross-entropy": cross_entropy, "checkpoint": checkpoint, "fragments": fragments, "swizzle": swizzle,
            "warp-sum": warp_sum, "ring": ring, "zero": zero, "gemm-blocking": gemm_blocking,
            "online-softmax": online_softmax, "formats": formats, "layer-norm": layer_norm,
            "residual-stream": residual_stream, "schedules": schedules}


# drawn by the scripts that measure them
MEASURED = {"batch-size": "dev/batch_size.py", "optimizers": "dev/optimizers.py",
            "messages": "dev/messages.py", "pipeline": "dev/parallel/draw_pipeline.py",
            "tensor": "dev/parallel/draw_tensor.py", "context": "dev/parallel/draw_context.py",
            "experts": "dev/parallel/draw_experts.py", "stale": "dev/parallel/stale.py",
            "together": "dev/parallel/draw_together.py", "ladder": "dev/modern/ladder.py",
            "pruning": "dev/prune.py", "scaling": "dev/scaling.py"}


def read_facts():
    facts = {}
    for program, *part in (["build/course_facts"], ["build/course_numbers_gpu", "pictures"]):
        if not (ROOT / program).exists():
            sys.exit(f"{program} is missing: make build/course_facts build/course_numbers_gpu")
        done = subprocess.run([ROOT / program, *part], stdout=subprocess.PIPE, text=True, check=True)
        for fact in map(json.loads, done.stdout.splitlines()):
            facts[fact["name"]] = fact["values"] if fact["shape"] else fact["values"][0]
    facts["vocabularies"] = json.loads((ROOT / "dev/course/vocabularies.json").read_text())
    return facts


def main():
    check, names = "--check" in sys.argv, [a for a in sys.argv[1:] if not a.startswith("--")]
    unknown = set(names) - set(PICTURES)
    if unknown:
        sys.exit(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}")
    facts, failed = read_facts(), False
    for name in names or PICTURES:
        path, drawn = FOLDER / f"{name}.svg", PICTURES[name](facts)
        same = path.exists() and path.read_text() == drawn
        if check and not same:
            print(f"{path.relative_to(ROOT)} is not what the code says; run dev/course/pictures.py")
            failed = True
        elif not same:
            path.write_text(drawn)
    if check and not names:
        for path in sorted(FOLDER.glob("*.svg")):
            if path.stem not in PICTURES and path.stem not in MEASURED:
                print(f"{path.relative_to(ROOT)}: no function draws it")
                failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
