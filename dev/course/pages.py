#!/usr/bin/env python3
"""Puts the code that ships into the first page and the course, so that what a page shows cannot drift from it.

    dev/course/pages.py             quotes again
    dev/course/pages.py --check     names pages that differ from the sources, exercises that are not there and
                                    questions without an answer

In a page, what follows one of these lines up to <!-- end quote --> is replaced:

    <!-- quote FILE NAME -->                a function or struct, with the comment above it
    <!-- quote FILE NAME body -->           the same without the comment
    <!-- quote FILE "FIRST" to "LAST" -->   from the line that begins with FIRST to the next that begins with LAST
"""
import pathlib
import re
import sys
import textwrap

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("dev/course/*.md"), *ROOT.glob("dev/c*/README.md")])
QUOTE = re.compile(r"(<!-- quote (\S+) (.*?) -->\n).*?(<!-- end quote -->)", re.S)
LANGUAGES = {".py": "python", ".cu": "cuda", ".cuh": "cuda", ".sh": "bash"}


def definition(lines, name):
    """First and last line of the definition of a name that begins at the left margin."""
    begins = re.compile(rf"^(?![\s/#}}]).*(?<![\w.]){re.escape(name)}\b")
    for number, line in enumerate(lines):
        if not begins.match(line):
            continue
        depth, opened = 0, False
        for end in range(number, len(lines)):
            code = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'|//.*', "", lines[end])
            depth += code.count("{") - code.count("}")
            opened = opened or "{" in code
            if opened and depth == 0:
                return number, end
            if not opened and code.rstrip().endswith(";"):
                break  # a declaration, or a constant
        if "=" in line:
            return number, end
    raise LookupError(f"defines no {name}")


def quoted(path, what):
    lines = path.read_text().splitlines()
    between = re.fullmatch(r'"(.*)" to "(.*)"', what)
    if between:
        starts = [i for i, line in enumerate(lines) if line.strip().startswith(between[1])]
        if len(starts) != 1:
            raise LookupError(f'has {len(starts)} lines that begin with "{between[1]}"')
        ends = [i for i in range(starts[0], len(lines)) if lines[i].strip().startswith(between[2])]
        if not ends:
            raise LookupError(f'has no line that begins with "{between[2]}" after "{between[1]}"')
        return lines[starts[0]:ends[0] + 1]
    name, _, only = what.partition(" ")
    first, last = definition(lines, name)
    while first > 0 and lines[first - 1].startswith("template"):
        first -= 1
    while only != "body" and first > 0 and lines[first - 1].startswith("//"):
        first -= 1
    return lines[first:last + 1]


def filled(page):
    """The page with its quotes, and what is wrong with it."""
    wrong = []

    def fill(match):
        path = ROOT / match[2]
        try:
            code = textwrap.dedent("\n".join(quoted(path, match[3])))
        except (LookupError, OSError) as error:
            wrong.append(f"{match[2]} {error}" if isinstance(error, LookupError) else str(error))
            return match[0]
        return f"{match[1]}```{LANGUAGES.get(path.suffix, 'cpp')}\n{code}\n```\n{match[4]}"

    text = page.read_text()
    if text.count("<!-- quote ") != text.count("<!-- end quote -->"):
        wrong.append("a quote has no <!-- end quote -->")
    new = QUOTE.sub(fill, text)
    exercises = (ROOT / "dev/course/exercises/exercises.txt").read_text()
    for name, minutes in re.findall(r"^ +make exercise EX=(\S+) +# (\d+) minutes", new, re.M):
        if not re.search(rf"^ +{re.escape(name)} +{minutes} ", exercises, re.M):
            wrong.append(f"there is no exercise {name} of {minutes} minutes")
    return new, wrong + unanswered(new)


def unanswered(text):
    """The questions of a chapter are numbered; each that is no exercise for the judge has an answer, folded."""
    questions, _, rest = text.partition("<details>")
    asked = re.findall(r"^## (?:Exercises|Things to try|Try it|Where to look|Questions)$(.*?)"
                       r"(?=^## |^The exercises begin|\Z)", questions, re.M | re.S)
    numbers = lambda lines, ends="": re.findall(rf"^(\d+)\. {ends}", lines, re.M)
    answers = numbers(rest.partition("</details>")[0])
    return [f"question {number} has no answer" for number in numbers("".join(asked), "(?!`make exercise)")
            if number not in answers]


def main():
    failed = False
    for page in PAGES:
        new, wrong = filled(page)
        if new != page.read_text():
            if "--check" in sys.argv:
                wrong.append("its quotes are not what the sources say; run dev/course/pages.py")
            else:
                page.write_text(new)
                print(f"quoted again: {page.relative_to(ROOT)}")
        for what in wrong:
            print(f"{page.relative_to(ROOT)}: {what}")
        failed = failed or bool(wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
