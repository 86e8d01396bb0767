#!/usr/bin/env python3
"""Tables and charts of benches (dev/bench.h) in a README.

    python3 dev/bench_table.py README JSON...
    python3 dev/bench_table.py README --bytes PROGRAM...      needs no GPU: between <!-- bytes begin/end --> what each variant of these programs requests

Between the markers <!-- ladder NAME begin --> and <!-- ladder NAME end --> of the README goes the table of bench NAME at its main shape, with a bar
chart in charts/NAME.svg beside the README. Tables of other machines that are there stay, below it.
"""
import children
import html
import json
import pathlib
import re
import sys
import time

from readme import write_between


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


def number(ratio):
    return "?" if ratio < 0 else f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def table(results, unit, value):
    counted = any(r["requested"] >= 0 for r in results)  # where variants say what they request
    lines = [f"| variant | | min | median | {unit} | of peak |{' bytes |' if counted else ''} against the one before | what changed, and why |", "|---" * (9 if counted else 8) + "|"]
    before = None
    for r in results:
        gain = f"{before / r['min_ms']:.2f} x" if before else ""
        requested = f" {number(r['requested'])} |" if counted else ""
        lines.append(f"| {r['id']} | {r['type']} | {r['min_ms']:,.3f} ms | {r['median_ms']:,.3f} ms | {value(r):,.1f} | {r['percent']:.0f}% |{requested} {gain} | {r['why']} |")
        before = r["min_ms"]
    return "\n".join(lines)


def others(text, machine):
    """The blocks of a ladder that are not this machine's: each begins with a line 'On MACHINE, DATE, ...'."""
    blocks = re.split(r"(?m)^(?=On .*, \d{4}-\d\d-\d\d, )", text)[1:]
    return [re.sub(r"(?m)^!\[.*\n\n?", "", b).strip() for b in blocks if not b.startswith(f"On {machine}, ")]  # the chart is the newest's


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    readme = pathlib.Path(sys.argv[1])
    charts = readme.parent / "charts"
    if sys.argv[2] == "--bytes":
        lines = ["| ladder | bytes requested, of the least |", "|---|---|"]
        for program in sys.argv[3:]:
            listed, _ = children.run([program, "--list"])
            for part in re.split(r"(?m)^(?=\w)", listed)[1:]:
                rungs = re.findall(r"^  (\S+) .*bytes requested ([\d.?]+) of the least", part, re.M)
                lines.append(f"| {part.split()[0]} at {part.splitlines()[0].split(') ')[1].split()[0]} | " + ", ".join(f"{name} {ratio if ratio == '?' else number(float(ratio))}" for name, ratio in rungs) + " |")
        write_between(readme, "bytes", "\n".join(lines))
        return
    charts.mkdir(exist_ok=True)
    for path in sys.argv[2:]:
        data = json.loads(pathlib.Path(path).read_text())
        for name in dict.fromkeys(r["bench"] for r in data["results"] if r["main"]):
            results = [r for r in data["results"] if r["bench"] == name and r["main"]]
            unit, value = ("GFLOP/s", lambda r: r["gflops"]) if results[0]["bound"] == "compute" else ("GB/s", lambda r: r["gbs"])
            (charts / f"{name}.svg").write_text(chart(results, unit, value))
            peaks = f"{data['memory_gbs']:,.0f} GB/s, {data['fp32_gflops']:,.0f} GFLOP/s in fp32, {data['bf16_gflops']:,.0f} in bf16"
            block = f"On {data['machine']}, {time.strftime('%Y-%m-%d')}, {name} at {results[0]['shape']}; peaks {peaks}:\n\n![{name}](charts/{name}.svg)\n\n{table(results, unit, value)}"
            write_between(readme, f"ladder {name}", lambda there: "\n\n".join([block] + others(there, data["machine"])) + "\n")


if __name__ == "__main__":
    main()
