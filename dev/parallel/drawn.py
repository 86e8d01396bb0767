"""What the scripts that draw the programs of this folder share."""
import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COURSE = ROOT / "dev/course"
sys.path.insert(0, str(ROOT / "dev"))
import charts  # noqa: E402
import readme  # noqa: E402
import svg  # noqa: E402

LEFT, WIDTH, ROW, TITLE = 80, 750, 17, 26  # of time lines, in pixels


def run(doc, name, chapter, caption, measure, text_of, picture_of):
    """The main() of such a script: measures, and shows what it has found in a chapter (readme.Shown)."""
    shown = readme.Shown(COURSE / f"{name}.json", COURSE / chapter, name, COURSE / f"pictures/{name}.svg", caption,
                         text_of, picture_of)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    shown.add_flags(parser)
    args = parser.parse_args()
    if args.page:
        return shown.make_page()
    shown.show(measure(), args.write)


def time_lines(panels, rows, latest, legend):
    """A picture of panels, {title: [(row, color, opacity, number, begin, end)]}: a line for each name of `rows`, a box
    with its number for what ends before `latest`. legend: {name: color}."""
    parts, top = [], 4
    for title, boxes in panels.items():
        parts.append(svg.text(LEFT, top + TITLE - 9, title))
        top += TITLE
        parts += [svg.text(LEFT - 8, top + ROW * row + 12, name, "end") for row, name in enumerate(rows)]
        for row, color, opacity, number, begin, end in boxes:
            if end > latest:
                continue
            x, y, width = LEFT + begin / latest * WIDTH, top + ROW * row, (end - begin) / latest * WIDTH
            parts.append(svg.box(x + 0.4, y + 0.5, max(width - 0.8, 0.6), ROW - 2, color, opacity))
            if width > 9:
                parts.append(f'<text x="{x + width / 2:.1f}" y="{y + 11.5:.1f}" text-anchor="middle" font-size="9" '
                             f'fill="#ffffff">{number}</text>')
        top += ROW * len(rows) + 4
    names, height = charts.legend(LEFT, top + 18, WIDTH, legend.keys(), legend.values())
    return svg.picture(LEFT + WIDTH + 20, top + 8 + height, charts.SIZE, parts + names)
