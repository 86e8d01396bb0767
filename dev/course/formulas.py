#!/usr/bin/env python3
"""Computes the formulas that the chapters display: each is read as it stands on the page and compared with numbers.

    dev/course/formulas.py                  all chapters
    dev/course/formulas.py layer-norm       those of one: a part of the page's name
    dev/course/formulas.py --changed        every formula with one sign or number changed: its check has to notice
    dev/course/formulas.py --list           the formulas as they are read

A formula is a line of an indented block that is no command, or of a comment in a quote, with =, +=, <-, < or <=; how
it is written is in dev/course/formula.py. Behind its block or quote stands a comment that a reader does not see:

    <!-- check
    x = normal(3, 4)
    holds(x=x, mean=x.mean(1), C=4)
    -->

holds(name=value, ...) demands that the sides of the formulas are equal, with these values, at every index.
run(name=value, ...) takes the formulas as assignments, one after another, and returns all values. What is computed by
itself is compared by same(a, b). sides(0, name=value, ...) returns the sides of formula 0. A check finds np,
normal(*shape), slope(f, x), the gradient of a number by differences, and jacobian(f, x). lines=(0, 2) takes some of the
formulas, where=lambda t, u: u <= t some of the places.
Needs: pip install numpy
"""
import pathlib
import re
import sys
import textwrap

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))
if "--packages" in sys.argv:
    import numpy  # noqa: F401
    sys.exit(0)

import numpy as np  # noqa: E402

import formula  # noqa: E402

np.seterr(all="ignore")  # what a check compares has to be finite

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = re.compile(r"""(?P<quote>^<!--\ quote\ [^\n]*-->\n.*?^<!--\ end\ quote\ -->\n)|(?P<fence>^```.*?^```\n)
                     |(?P<check>^<!--\ check\n(?P<code>.*?)^-->\n)|(?P<block>(?:^\ {4}[^\n]*\n|(?<=\n)\n(?=\ {4}))+)""",
                   re.M | re.S | re.X)
COMMANDS = ("make", "./", "mpirun", "build/", "dev/", "scripts/", "python3", "for ", "run=", "small=", "count()",
            "train", "launch(", "pip")
CHANGES = {" + ": " - ", " - ": " + ", " / ": " * ", "^2": "^3", "e^-": "e^", " <= t": " <= 0", " >= t": " >= 0"}


class Drifted(Exception):
    pass


def displayed(page):
    """[the text of a block of formulas, its check or None, the line] of a page."""
    text, blocks = page.read_text(), []
    for part in PARTS.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["check"]:
            if not blocks or blocks[-1][1] is not None or text[blocks[-1][3]:part.start()].strip():
                raise Drifted(f"the check in line {line} follows no formula")
            blocks[-1][1] = part["code"]
        elif part["quote"]:
            lines = re.findall(r"^\s*//     +(.*)", part["quote"], re.M)
            shown = "\n".join(each for each in lines if re.search(r"(?:^|\s)(?:=|\+=)\s", each))
            if shown:
                blocks.append([shown, None, line, part.end()])
        elif part["block"] and part["block"].strip() and not part["block"].strip().startswith(COMMANDS):
            blocks.append([textwrap.dedent(part["block"]), None, line, part.end()])
    return blocks


class Check:
    """What the code of one check finds."""

    def __init__(self, shown):
        self.shown, self.held, self.compared, self.count = shown, set(), 0, 0
        random = np.random.default_rng(7)
        self.names = {"np": np, "holds": self.holds, "run": self.run, "sides": self.sides, "same": self.same,
                      "slope": slope, "jacobian": jacobian, "normal": lambda *shape: random.standard_normal(shape)}

    def same(self, a, b, tolerance=1e-6):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or not np.isfinite(a).all():
            raise Drifted(f"{a.shape} and {b.shape}, or a value that is not finite")
        apart, size = np.abs(a - b).max(), max(np.abs(b).max(), 1e-300)
        if not apart <= tolerance * size:
            raise Drifted(f"apart by {apart / size:.1e}")
        self.compared += 1

    def relations(self, values, lines):
        found = formula.statements(self.shown, [name for name in values if " " in name])
        self.count = len(found)
        for number, relation in enumerate(found):
            if lines is None or number in lines:
                self.held.add(number)
                yield relation

    def holds(self, lines=None, where=None, tolerance=1e-6, **values):
        for sides, signs, text in self.relations(values, lines):
            count = 0
            for place, at in formula.places(sides, values, where):
                try:
                    results = [formula.compute(side, place) for side in sides]
                    if sides[-1][0] == "softmax":
                        results[-1] = results[-1][at[-1]]
                except IndexError:
                    continue
                for left, sign, right in zip(results, signs, results[1:]):
                    if sign in ("<", "<="):
                        if not formula.COMPARE[sign](left, right).all():
                            raise Drifted(f"{text}: {left} and {right}")
                        self.compared += 1
                    else:
                        name = sides[0][1] if sides[0][0] == "index" else formula.subscripted(str(sides[0][1]))[0]
                        scale = 0 if callable(values.get(name, len)) else np.abs(values[name]).max()
                        difference = np.abs(np.asarray(left) - right).max()
                        if not difference <= tolerance * max(np.abs(right).max(), scale, 1e-300):
                            raise Drifted(f"{text}: {np.round(left, 6)} and {np.round(right, 6)}, at {at}")
                        self.compared += 1
                count += 1
            if not count:
                raise Drifted(f"{text}: holds at no place")

    def sides(self, line, **values):
        (sides, _, _), = self.relations(values, (line,))
        return [formula.compute(side, values) for side in sides]

    def run(self, lines=None, **values):
        for (target, *sides), signs, text in self.relations(values, lines):
            name = target[1]
            if target[0] == "index":
                letters = [i[1] for i in target[2]]
                ranges = {}
                for side in sides:
                    formula.find_ranges(side, values, ranges)
                result = np.zeros([ranges[i][0] for i in letters])
                for at in np.ndindex(*result.shape):
                    result[at] = formula.compute(sides[0], {**values, **dict(zip(letters, at))})
            else:
                result = formula.compute(sides[0], values)
            for side in sides[1:]:
                self.same(formula.compute(side, values), result)
            values[name] = values[name] + result if signs[0] == "+=" else result
        return values


def slope(f, x, h=1e-5):
    """The gradient of the number f(x), by central differences in fp64."""
    return jacobian(lambda x: np.asarray(f(x)).reshape(()), x, h)


def jacobian(f, x, h=1e-5):
    """df/dx, the axes of f first, by central differences in fp64."""
    x = np.asarray(x, dtype=float)
    columns = []
    for at in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[at] += h
        down[at] -= h
        columns.append((np.asarray(f(up)) - np.asarray(f(down))) / (2 * h))
    return np.stack(columns, -1).reshape(np.shape(columns[0]) + x.shape)


def run_check(shown, code):
    check = Check(shown)
    exec(compile(code, "a check", "exec"), check.names)
    missing = set(range(check.count)) - check.held
    if missing:
        raise Drifted(f"nothing is computed for formula {min(missing)} of the block")
    if not check.compared:
        raise Drifted("its check compares nothing")
    return len(check.held)


def changed_blocks(shown):
    """The block with one sign or one number changed, in every way."""
    for part in re.finditer(r"\S+(?: \S+)*", shown):
        if not part[0].startswith(("= ", "+ ", "- ")) and (part[0][-1] == ":" or not formula.RELATION.search(part[0])):
            continue
        for old, new in CHANGES.items():
            for match in re.finditer(re.escape(old), part[0]):
                yield part[0], place(shown, part.start() + match.start(), old, new)
        for match in re.finditer(r"(?<![\w.^-])\d+(?![\w.])", part[0]):
            yield part[0], place(shown, part.start() + match.start(), match[0], str(int(match[0]) + 1))


def place(text, at, old, new):
    return text[:at] + new + text[at + len(old):]


def check_page(page, changed=False):
    """How many formulas are computed, what is wrong, and how many changes were tried."""
    formulas, wrong, changes = 0, [], 0
    try:
        blocks = displayed(page)
    except Drifted as problem:
        return 0, [f"{page.name}: {problem}"], 0
    for shown, code, line, _ in blocks:
        try:
            if code is None:
                raise Drifted("a displayed formula has no <!-- check ... --> behind it")
            if re.search(r"\bD\b", shown):
                raise Drifted("D alone is no name: it stands before others, for the gradient of what they name")
            formulas += run_check(shown, code)
        except Exception as problem:  # whatever a check may raise
            wrong.append(f"{page.name}:{line}: {problem if isinstance(problem, Drifted) else repr(problem)}")
            continue
        for part, new in changed_blocks(shown) if changed else ():
            changes += 1
            try:
                run_check(new, code)
                wrong.append(f"{page.name}:{line}: no check notices that {part!r} has become\n{new}")
            except Exception:
                pass
    return formulas, wrong, changes


def main():
    options = [a for a in sys.argv[1:] if a.startswith("--")]
    wanted = ([a for a in sys.argv[1:] if not a.startswith("--")] + [""])[0]
    pages = [page for page in sorted(ROOT.glob("dev/course/*.md")) if wanted in page.name]
    if "--list" in options:
        for page in pages:
            for shown, _, line, _ in displayed(page):
                print(f"{page.name}:{line}:", shown.strip().replace("\n", "\n    "), sep="\n    ")
        sys.exit()
    results = [check_page(page, "--changed" in options) for page in pages]
    formulas, wrong, changes = (sum(column, start) for column, start in zip(zip(*results), (0, [], 0)))
    if not formulas and not wrong:
        sys.exit(f"no chapter with a formula has {wanted!r} in its name")
    print(*wrong, f"{formulas} formulas are computed" + f", {changes} changes were tried" * bool(changes), sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
