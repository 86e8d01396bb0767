#!/usr/bin/env python3
"""Tables and charts of benches (dev/bench.h) in a README.

    python3 dev/bench_table.py README JSON...

Between the markers <!-- ladder NAME begin --> and <!-- ladder NAME end --> of the README goes the table of bench NAME at its main shape, with a bar
chart in charts/NAME.svg beside the README; between <!-- machine begin --> and <!-- machine end --> the machine and the date.
"""
import html
import json
import pathlib
import sys
import time


def chart(results, unit, value):
    """Horizontal bars, one a variant, on a logarithmic scale: an SVG that any browser shows."""
    import math
    width, row, left, right = 760, 26, 150, 110
    top = max(value(r) for r in results)
    low = min(value(r) for r in results) / 2
    scale = lambda v: (math.log(v) - math.log(low)) / (math.log(top) - math.log(low)) * (width - left - right)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{row * len(results) + 12}" font-family="sans-serif" font-size="13">', f'<rect width="{width}" height="100%" fill="white"/>']
    for i, r in enumerate(results):
        y = 6 + i * row
        color = "#d97706" if r["type"] == "bf16" else "#2563eb"
        lines.append(f'<text x="{left - 8}" y="{y + 17}" text-anchor="end">{html.escape(r["id"])}</text>')
        lines.append(f'<rect x="{left}" y="{y + 3}" width="{scale(value(r)):.1f}" height="{row - 6}" fill="{color}"/>')
        lines.append(f'<text x="{left + scale(value(r)) + 6:.1f}" y="{y + 17}">{value(r):,.1f} {unit}</text>')
    return "\n".join(lines + ["</svg>", ""])


def table(results, unit, value):
    lines = [f"| variant | | min | median | {unit} | of peak | against the one before | what changed, and why |", "|---|---|---|---|---|---|---|---|"]
    before = None
    for r in results:
        gain = f"{before / r['min_ms']:.2f} x" if before else ""
        lines.append(f"| {r['id']} | {r['type']} | {r['min_ms']:,.3f} ms | {r['median_ms']:,.3f} ms | {value(r):,.1f} | {r['percent']:.0f}% | {gain} | {r['why']} |")
        before = r["min_ms"]
    return "\n".join(lines)


def between(text, name, content):
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    if begin not in text or end not in text:
        sys.exit(f"no markers {begin} ... {end}: the bench needs its place in the README")
    return text[:text.index(begin) + len(begin)] + "\n" + content + "\n" + text[text.index(end):]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    readme = pathlib.Path(sys.argv[1])
    text, charts = readme.read_text(), readme.parent / "charts"
    charts.mkdir(exist_ok=True)
    machines = []
    for path in sys.argv[2:]:
        data = json.loads(pathlib.Path(path).read_text())
        machines.append(data)
        for name in dict.fromkeys(r["bench"] for r in data["results"] if r["main"]):
            results = [r for r in data["results"] if r["bench"] == name and r["main"]]
            compute = results[0]["bound"] == "compute"
            unit, value = ("GFLOP/s", lambda r: r["gflops"]) if compute else ("GB/s", lambda r: r["gbs"])
            (charts / f"{name}.svg").write_text(chart(results, unit, value))
            text = between(text, f"ladder {name}", f"{name}, {results[0]['shape']}:\n\n![{name}](charts/{name}.svg)\n\n{table(results, unit, value)}\n")
    best = lambda key: max(m[key] for m in machines)
    text = between(text, "machine", f"Measured {time.strftime('%Y-%m-%d')} on {machines[0]['machine']}: {best('fp32_gflops'):,.0f} GFLOP/s in fp32, {best('bf16_gflops'):,.0f} in bf16, {best('memory_gbs'):.0f} GB/s.")
    readme.write_text(text)


if __name__ == "__main__":
    main()
