#!/usr/bin/env python3
"""Names every source line that is wider than 120 columns; exit 1 if there is one. `make format` and `make test` run it.

In Markdown it looks at prose alone: tables, code blocks and what a script writes between <!-- NAME begin --> and
<!-- NAME end --> are as wide as they are.
"""
import re
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 120
SOURCES = ["*.cpp", "*.h", "*.cu", "*.cuh", "*.py", "*.sh", "*.mk", "*.md", "*Makefile", ".ci/run"]


def sources(patterns):
    """The files of these names: those that git tracks, or in an unpacked archive all that are there."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [name for name in listed.stdout.split() if (ROOT / name).exists()]
    names = (str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.rglob(pattern))
    return [name for name in names if not name.startswith("build")]


def prose(lines):
    """The lines of a Markdown file that somebody wrapped by hand, with their numbers."""
    generated = fenced = False
    before, in_list, in_code = "", False, False
    for number, line in enumerate(lines, 1):
        marker = re.match(r"<!-- .* (begin|end) -->$", line)
        if marker:
            generated = marker[1] == "begin"
        if re.match(r"\s*```", line):
            fenced = not fenced
        if line.strip() and not line.startswith(" "):
            in_list = bool(re.match(r"([-*+]|\d+\.) ", line))
        # indented by four: code, but where it continues a paragraph or an item of a list
        in_code = line.startswith("    ") and not in_list and (in_code or not before.strip())
        before = line
        if not (generated or fenced or in_code or line.lstrip().startswith("|")):
            yield number, line


def too_wide(path):
    lines = path.read_text(encoding="utf-8").split("\n")
    numbered = prose(lines) if path.suffix == ".md" else enumerate(lines, 1)
    return [(number, len(line)) for number, line in numbered if len(line) > COLUMNS]


def main():
    found = [(name, *line) for name in sys.argv[1:] or sources(SOURCES) for line in too_wide(ROOT / name)]
    for name, number, columns in found:
        print(f"{name}:{number}: {columns} columns; {COLUMNS} are accepted")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
