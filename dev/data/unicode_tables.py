#!/usr/bin/env python3
"""Makes llmc/data/unicode_tables.h: which code points are letters (\\p{L}), numbers (\\p{N}) and white space (\\s).

It asks the regular expression engine of tiktoken itself, one code point at a time, so that our tokenizer splits text
exactly where tiktoken does, whatever version of Unicode that was built with.

    pip install tiktoken && python3 dev/data/unicode_tables.py
"""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402

children.need("tiktoken")
import tiktoken  # noqa: E402

OUT = pathlib.Path(__file__).parents[2] / "llmc" / "unicode_tables.h"


def members(pattern):
    """The code points that match `pattern`: an encoder that knows single bytes only emits tokens for matches alone."""
    single_bytes = {bytes([i]): i for i in range(256)}
    encoder = tiktoken.Encoding("probe", pat_str=pattern, mergeable_ranks=single_bytes, special_tokens={})
    return {cp for cp in range(0x110000) if not 0xD800 <= cp < 0xE000 and encoder.encode_ordinary(chr(cp))}


def ranges(code_points):
    out = []
    for cp in sorted(code_points):
        if out and out[-1][1] == cp - 1:
            out[-1][1] = cp
        else:
            out.append([cp, cp])
    return out


def table(name, comment, code_points):
    cells = [f"{{0x{a:X}, 0x{b:X}}}," for a, b in ranges(code_points)]
    lines, line = [], "   "
    for cell in cells:
        if len(line) + 1 + len(cell) > 116:
            lines.append(line)
            line = "   "
        line += " " + cell
    lines.append(line)
    head = f"// {comment}: {len(code_points)} code points.\nconstexpr CodePointRange {name}[] = {{\n"
    return head + "\n".join(lines) + "\n};\n"


def main():
    text = (
        "// Which code points are letters, numbers and white space, as ranges with both ends included.\n"
        "// Made by dev/data/unicode_tables.py from the regular expression engine of tiktoken "
        f"{tiktoken.__version__}; do not edit.\n"
        "#pragma once\n#include <cstdint>\n\n// clang-format off\nstruct CodePointRange { uint32_t first, last; };\n\n"
        + table("UNICODE_LETTERS", r"\p{L}", members(r"\p{L}")) + "\n"
        + table("UNICODE_NUMBERS", r"\p{N}", members(r"\p{N}")) + "\n"
        + table("UNICODE_SPACES", r"\s", members(r"\s"))
        + "// clang-format on\n"
    )
    OUT.write_text(text, encoding="ascii")
    print(f"{len(text)} bytes in {OUT}")


if __name__ == "__main__":
    main()
