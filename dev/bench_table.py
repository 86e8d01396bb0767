#!/usr/bin/env python3
"""Tables and charts of benches (dev/bench.h) in a README.

    python3 dev/bench_table.py README JSON...
    python3 dev/bench_table.py README --redraw             draws the charts again, from the tables that are there

Between the markers <!-- ladder NAME begin --> and <!-- ladder NAME end --> of the README goes the table of bench NAME
at its main shape, with a bar chart in charts/NAME.svg beside the README. Tables of other machines that are there stay,
below it.
"""
import json
import pathlib
import re
import sys
import time

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

import svg
from readme import write_between

ROW, SIZE, WIDTH = 26, 13, 760  # of a chart, in pixels: a bar and its gap, the font, all


def chart(title, unit, peaks, results):
    """Horizontal bars, one per variant, on a linear scale from 0. Each lies on a pale one: the peak of what bounds it.
    Of a result it takes id, type, min_ms and value, as the table has them."""
    first = results[0]
    labels = [f"{r['value']}" + ("" if r is first else f", {ratio(first['min_ms'] / r['min_ms'])} x {first['id']}")
              for r in results]
    peak = lambda r: peaks["GB/s" if unit == "GB/s" else r["type"]]
    value = lambda r: float(r["value"].replace(",", ""))
    left = 20 + max(svg.text_width(r["id"], SIZE) for r in results)
    right = 20 + max(svg.text_width(label, SIZE) for label in labels)
    top = max(max(value(r), peak(r)) for r in results)
    scale = (WIDTH - left - right) / top
    legend = f"{unit}, linear scale from 0; x: times as fast; blue: fp32, orange: bf16, pale: peak"
    drawn = [svg.text(min(left, WIDTH - 8 - svg.text_width(legend, SIZE)), 18, legend)]
    for i, (r, label) in enumerate(zip(results, labels)):
        y, color = 28 + i * ROW, svg.COLORS[r["type"] == "bf16"]
        drawn += [svg.text(left - 8, y + 17, r["id"], "end"),
                  svg.box(left, y + 3, scale * peak(r), ROW - 6, color, 0.2),
                  svg.box(left, y + 3, scale * value(r), ROW - 6, color),
                  svg.text(left + scale * max(peak(r), value(r)) + 8, y + 17, label)]
    return svg.picture(WIDTH, 34 + ROW * len(results), SIZE, [f"<title>{title}</title>", *drawn])


def ratio(of):
    return f"{of:,.0f}" if of >= 100 else f"{of:.3g}"


def number(of):
    return "?" if of < 0 else ratio(of)


def table(results, unit):
    counted = any(r["requested"] >= 0 for r in results)  # where variants say what they request
    lines = [f"| variant | | min | median | {unit} | of peak |{' bytes |' if counted else ''} against the one before | "
             "what changed, and why |", "|---" * (9 if counted else 8) + "|"]
    before = None
    for r in results:
        gain = f"{before / r['min_ms']:.2f} x" if before else ""
        requested = f" {number(r['requested'])} |" if counted else ""
        lines.append(f"| {r['id']} | {r['type']} | {r['min_ms']:,.3f} ms | {r['median_ms']:,.3f} ms | {r['value']} | "
                     f"{r['percent']:.0f}% |{requested} {gain} | {r['why']} |")
        before = r["min_ms"]
    return "\n".join(lines)


def others(text, machine):
    """The blocks of a ladder that are not this machine's: each begins with a line 'On MACHINE, DATE, ...'. The chart is
    that of the newest."""
    blocks = re.split(r"(?m)^(?=On .*, \d{4}-\d\d-\d\d, )", text)[1:]
    return [re.sub(r"(?m)^!\[.*\n\n?", "", b).strip() for b in blocks if not b.startswith(f"On {machine}, ")]


PEAKS = "{:,.0f} GB/s, {:,.0f} GFLOP/s in fp32, {:,.0f} in bf16"


def write_ladder(readme, charts, name, data):
    results = [r for r in data["results"] if r["bench"] == name and r["main"]]
    unit, key = ("GFLOP/s", "gflops") if results[0]["bound"] == "compute" else ("GB/s", "gbs")
    for r in results:
        r["value"] = f"{r[key]:,.1f}"
    peaks = PEAKS.format(data["memory_gbs"], data["fp32_gflops"], data["bf16_gflops"])
    what = f"On {data['machine']}, {time.strftime('%Y-%m-%d')}, {name} at {results[0]['shape']}; peaks {peaks}:"
    block = f"{what}\n\n![{name}](charts/{name}.svg)\n\n{table(results, unit)}"
    write_between(readme, f"ladder {name}",
                  lambda there: "\n\n".join([block] + others(there, data["machine"])) + "\n")
    redraw(readme, charts, name)


def redraw(readme, charts, name):
    """The chart of a ladder, from the table below the line that shows it."""
    image = rf"!\[{name}\]\(charts/{name}.svg\)"
    block = re.search(rf"(?m)^(On .*; peaks (.*)):\n\n{image}\n\n((?:\|.*\n)+)", readme.read_text())
    what, peaks, rows = block[1], re.findall(r"(\d[\d,]*) (?:G|in )", block[2]), block[3].splitlines()
    rows = [row.split(" | ") for row in rows]
    results = [{"id": row[0][2:], "type": row[1], "min_ms": float(row[2].split()[0].replace(",", "")), "value": row[4]}
               for row in rows[2:]]
    peaks = dict(zip(("GB/s", "fp32", "bf16"), (float(peak.replace(",", "")) for peak in peaks)))
    charts.mkdir(exist_ok=True)
    (charts / f"{name}.svg").write_text(chart(what, rows[0][3], peaks, results))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    readme = pathlib.Path(sys.argv[1])
    charts = readme.parent / "charts"
    if sys.argv[2] == "--redraw":
        for name in re.findall(r"(?m)^!\[(\w+)\]\(charts/\1\.svg\)\n\n\| variant ", readme.read_text()):
            redraw(readme, charts, name)
    else:
        for path in sys.argv[2:]:
            data = json.loads(pathlib.Path(path).read_text())
            for name in dict.fromkeys(r["bench"] for r in data["results"] if r["main"]):
                write_ladder(readme, charts, name, data)


if __name__ == "__main__":
    main()
