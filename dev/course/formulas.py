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

holds(name=value, ...) demands that what stands on the sides of the formulas is equal, with these values, at every index.
run(name=value, ...) takes the formulas as assignments, one after another, and returns all values; what it returns is
compared by same(a, b). A check finds np, normal(*shape), slope(f, x), the gradient of a number by differences, and
jacobian(f, x). lines=(0, 2) takes some of the formulas, where=lambda t, u: u <= t some of the places.
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = re.compile(r"""(?P<quote>^<!--\ quote\ [^\n]*-->\n.*?^<!--\ end\ quote\ -->\n)|(?P<fence>^```.*?^```\n)
                     |(?P<check>^<!--\ check\n(?P<code>.*?)^-->\n)|(?P<block>(?:^\ {4}[^\n]*\n|(?<=\n)\n(?=\ {4}))+)""",
                   re.M | re.S | re.X)
COMMANDS = ("make", "./", "mpirun", "build/", "dev/", "scripts/", "python3", "for ", "run=", "small=", "count()",
            "train()", "launch(", "pip")
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
        self.shown, self.held, self.compared = shown, set(), 0
        random = np.random.default_rng(7)
        self.names = {"np": np, "holds": self.holds, "run": self.run, "same": self.same, "slope": slope,
                      "jacobian": jacobian, "normal": lambda *shape: random.standard_normal(shape)}

    def same(self, a, b, tolerance=1e-6):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or not np.isfinite(a).all():
            raise Drifted(f"{a.shape} and {b.shape}, or a value that is not finite")
        apart, size = np.abs(a - b).max(), max(np.abs(b).max(), 1e-300)
        if not apart <= tolerance * size:
            raise Drifted(f"apart by {apart / size:.1e}")
        self.compared += 1

    def relations(self, values, lines):
        found = formula.statements(self.shown, values)
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
                except IndexError:
                    continue
                if sides[-1][0] == "softmax":
                    results[-1] = results[-1][at[-1]]
                for left, sign, right in zip(results, signs, results[1:]):
                    if sign in ("<", "<="):
                        if not formula.COMPARE[sign](left, right).all():
                            raise Drifted(f"{text}: {left} and {right}")
                        self.compared += 1
                    else:
                        scale = np.abs(values[sides[0][1]]).max() if sides[0][0] == "index" else 0
                        difference = np.abs(np.asarray(left) - right).max()
                        if not difference <= tolerance * max(np.abs(right).max(), scale, 1e-300):
                            raise Drifted(f"{text}: {np.round(left, 6)} and {np.round(right, 6)}, at {at}")
                        self.compared += 1
                count += 1
            if not count:
                raise Drifted(f"{text}: holds at no place")

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
    missing = [r[2] for n, r in enumerate(formula.statements(shown, ("",))) if n not in check.held] \
        if " " not in "".join(check.names) else []
    if missing:
        raise Drifted(f"nothing is computed for: {missing[0]}")
    if not check.compared:
        raise Drifted("its check compares nothing")
    return len(check.held)


def changed(shown):
    """The block with one sign or one number changed, in every way."""
    for relation in formula.statements(shown):
        for part in [relation[2]]:
            for old, new in CHANGES.items():
                for match in re.finditer(re.escape(old), part):
                    yield part, part[:match.start()] + new + part[match.end():]
            for match in re.finditer(r"(?<![\w.^-])\d+(?![\w.])", part):
                yield part, part[:match.start()] + str(int(match[0]) + 1) + part[match.end():]


def main():
    options = [a for a in sys.argv[1:] if a.startswith("--")]
    wanted = ([a for a in sys.argv[1:] if not a.startswith("--")] + [""])[0]
    failed = formulas = changes = 0
    for page in sorted(ROOT.glob("dev/course/[0-9]*.md")):
        if wanted not in page.name:
            continue
        try:
            blocks = displayed(page)
        except Drifted as problem:
            print(f"{page.name}: {problem}")
            failed += 1
            continue
        for shown, code, line, _ in blocks:
            try:
                if "--list" in options:
                    print(page.name, line, *[f"\n    {text}" for _, _, text in formula.statements(shown)])
                    continue
                if code is None:
                    raise Drifted("a displayed formula has no <!-- check ... --> behind it")
                formulas += run_check(shown, code)
            except Exception as problem:
                print(f"{page.name}:{line}: {type(problem).__name__ if not isinstance(problem, Drifted) else ''} {problem}")
                failed += 1
                continue
            if "--changed" in options:
                for old, new in changed(shown):
                    changes += 1
                    try:
                        run_check(" ".join(shown.split(" ")).replace(old, new), code)
                    except Exception:
                        continue
                    print(f"{page.name}:{line}: nobody notices that {old} has become {new}")
                    failed += 1
    if not formulas and "--list" not in options:
        sys.exit(f"no chapter with a formula has {wanted!r} in its name")
    print(f"{formulas} formulas are computed" + (f", {changes} changes are noticed" if changes and not failed else ""))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
