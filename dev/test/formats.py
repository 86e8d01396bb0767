#!/usr/bin/env python3
"""Every call that formats a text (llmc/base/format.h) has as many values as its format has conversions, each known to
format(), and values whose kind is plain to see are of the conversion's. FILE... instead of all sources."""
import re
import sys
from pathlib import Path

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
from width import sources  # noqa: E402

CALL = re.compile(r"(?<![\w.>:])(?:format|warning|usage_error|runtime_failure)\(|(?<=[.>])(?:line|note)\(")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
TEXT = re.compile(rf"{LITERAL.pattern}(?:\s*{LITERAL.pattern})*")  # adjacent literals are one
TOKEN = re.compile(rf"{LITERAL.pattern}|'(?:[^'\\]|\\.)'|//[^\n]*|(?<=\w)<[\w:\s,*&]*>(?=\()|[(\[{{]|[)\]}}]|,|.",
                   re.DOTALL)
CONVERSION = re.compile(r"%[-+ #0]*(\d+|\*)?(?:\.(?:\d+|(\*))?)?(?:hh?|ll?|[qjzt])?(.?)", re.DOTALL)
KINDS = {**dict.fromkeys("diuxXoc", "whole"), **dict.fromkeys("eEfFgG", "real"), "s": "text"}
PLAIN = {  # values whose kind is plain to see
    "text": re.compile(rf'{TEXT.pattern}|.*\.(c_str|string)\(\)|(\w+_text|names_of|strerror)\([^?]*\)', re.DOTALL),
    "real": re.compile(r"\((?:double|float)\)[^?<>=]*|-?\d+(\.\d*)?e-?\d+|-?\d+\.\d*"),
    "whole": re.compile(r"\((?:int|size_t|int64_t|(?:unsigned )?long long)\)[\w.>()-]*|-?\d+|.*\.size\(\)"),
}


def calls(source):
    """(offset, [(begin, end) of each argument]) of every call; a definition has none, as no argument is like one."""
    for call in CALL.finditer(source):
        line = source[source.rfind("\n", 0, call.start()) + 1:call.start()]
        if "//" in line or line.lstrip().startswith("#define"):
            continue
        begin, depth, arguments = call.end(), 0, []
        for token in TOKEN.finditer(source, call.end()):
            if token[0] in "([{":
                depth += 1
            elif token[0] in ")]}":
                depth -= 1
            if depth < 0 or (depth == 0 and token[0] == ","):
                arguments.append((begin, token.start()))
                begin = token.end()
            if depth < 0:
                break
        yield call.start(), arguments


def conversions(text):
    """The kinds of the values that a format takes; None for a conversion that format() does not know."""
    kinds = []
    for width, precision, letter in CONVERSION.findall(text):
        if letter != "%":
            kinds += ["whole"] * ((width == "*") + bool(precision)) + [KINDS.get(letter)]
    return kinds


def problems(source):
    for offset, spans in calls(source):
        arguments = [re.sub(r"//[^\n]*", "", source[a:b]).strip() for a, b in spans]
        formats = [re.sub(r'"\s*"', "", text[0]) for text in TEXT.finditer(arguments[0])]
        rest = TEXT.sub('""', arguments[0])
        if not formats or not re.fullmatch(r'""|[^?]*\?\s*""\s*:\s*""', rest):
            continue  # a declaration, or a format that is computed
        for text in formats:
            kinds = conversions(text)
            if None in kinds:
                yield offset, f"{text} has a conversion that format() does not know"
            elif len(kinds) != len(arguments) - 1:
                yield offset, f"{text} takes {len(kinds)} values, not {len(arguments) - 1}"
            else:
                for kind, value in zip(kinds, arguments[1:]):
                    seen = next((name for name, form in PLAIN.items() if form.fullmatch(value)), kind)
                    if seen != kind:
                        yield offset, f"{text}: {value} is {seen}, not {kind}"


def main():
    names = sys.argv[1:] or sources(["*.h", "*.cuh", "*.cpp", "*.cu"])
    count, bad = 0, 0
    for name in names:
        source = (ROOT / name).read_text(encoding="utf-8")
        count += sum(1 for _ in calls(source))
        for offset, problem in problems(source):
            bad += 1
            print(f"{name}:{source.count(chr(10), 0, offset) + 1}: {problem}")
    print(f"{count} calls")
    sys.exit(bad > 0 or count == 0)


if __name__ == "__main__":
    main()
