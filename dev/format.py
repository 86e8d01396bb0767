#!/usr/bin/env python3
"""Lays out C++ and CUDA sources: `make format`. --check only says which files it would change (exit 1 if any).

clang-format does the code (.clang-format, 120 columns). It has no width of its own for comments, so paragraphs of
comments wider than 100 columns are wrapped here first. A line indented within its comment (a picture, a command) stays
as it is; one wider than 120 columns, which clang-format would wrap, is named instead, and its file left alone.
"""
import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from width import sources

ROOT = Path(__file__).resolve().parent.parent
VERSION = "14"  # versions lay out differently; this is Debian 12's, and pip's clang-format==14.0.6
COMMENT_COLUMNS = 100
CODE_COLUMNS = 120
PICTURE = re.compile(r"^ *//  +\S")


def clang_format():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        if path and f"version {VERSION}." in subprocess.run([path, "--version"], capture_output=True, text=True).stdout:
            return path
    return None


def wrap_comments(text):
    out, paragraph = [], []

    def flush():
        if any(len(line) > COMMENT_COLUMNS for line in paragraph):
            indent = paragraph[0][: paragraph[0].index("//")] + "// "
            words = " ".join(line.strip()[3:] for line in paragraph)
            out.extend(textwrap.wrap(words, COMMENT_COLUMNS, initial_indent=indent, subsequent_indent=indent,
                                     break_long_words=False, break_on_hyphens=False))
        else:
            out.extend(paragraph)
        paragraph.clear()

    for line in text.split("\n"):
        prose = re.match(r"^ *// \S", line) and not re.match(r"^ *// (-{5,}|clang-format )", line)
        if not prose or (paragraph and line.index("//") != paragraph[0].index("//")):
            flush()
        if prose:
            paragraph.append(line)
        else:
            out.append(line)
    flush()
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file would change")
    parser.add_argument("--program", action="store_true", help="only print which clang-format is used; exit 1 if none")
    parser.add_argument("files", nargs="*", help="default: all that git tracks")
    options = parser.parse_args()
    program = clang_format()
    if program is None:
        sys.exit(f"format.py needs clang-format {VERSION}: pip install clang-format=={VERSION}.0.6")
    if options.program:
        return print(program)
    before, pictures = {}, []
    for name in options.files or sources(["*.cpp", "*.h", "*.cu", "*.cuh"]):
        name = str((ROOT / name).relative_to(ROOT))
        text = (ROOT / name).read_text(encoding="utf-8")
        wide = [i + 1 for i, line in enumerate(text.split("\n")) if len(line) > CODE_COLUMNS and PICTURE.match(line)]
        pictures += [f"{name}:{i}: wider than {CODE_COLUMNS} columns" for i in wide]
        if not wide:
            before[name] = text
    with tempfile.TemporaryDirectory() as folder:
        for name, text in before.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wrap_comments(text), encoding="utf-8")
        if before:
            subprocess.run([program, f"--style=file:{ROOT / '.clang-format'}", "-i", *before], check=True, cwd=folder)
        after = {name: Path(folder, name).read_text(encoding="utf-8") for name in before}
    changed = [name for name in before if after[name] != before[name]]
    for name in changed:
        if not options.check:
            (ROOT / name).write_text(after[name], encoding="utf-8")
        print(f"{name}: {'not laid out as make format does' if options.check else 'formatted'}")
    print("\n".join(pictures), end="\n" if pictures else "")
    sys.exit(1 if pictures or (options.check and changed) else 0)


if __name__ == "__main__":
    main()
