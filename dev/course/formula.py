"""Reads the formulas that the chapters display, as they are written, and computes or typesets them.

A displayed formula is a line like

    out[r,o] = bias[o] + sum over c of x[r,c] weight[o,c]         remarks stand apart by two spaces

Names with a space between them are multiplied, from left to right with / and the dot of two vectors; the body of
`sum over c of`, `mean over c of` and `max over c of` reaches to the next + or -. `name(` is a function, p_i is p[i],
x^T a transposed matrix, |x| a number without its sign or the length of a vector. A name that is an index and nothing
else runs over the shape of what it indexes. Two matrices are multiplied as matrices where their shapes ask for it.
"""
import html
import itertools
import re

import numpy as np

RELATIONS = ("=", "+=", "<-", "<=", "<")
FOLDS = {"sum": sum, "mean": lambda values: sum(values) / len(values), "max": max}
KNOWN = {"pi": np.pi, "e": np.e, "log": np.log, "ln": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "sin": np.sin,
         "max": max, "min": min, "ceil": lambda x: np.ceil(x - 1e-9), "round": np.round}
APPLIED = ("log", "ln", "sin")
TOKEN = re.compile(r"""\s*(?P<derivative>d(?:\([^()]*\)|\w+)(?:\[[^\]]*\])?/d[A-Za-z]\w*(?:\[[^\]]*\])?)
                     |\s*(?P<number>\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)|\s*(?P<name>[A-Za-z]\w*'*)|\s*(?P<rest>\.\.\.)
                     |\s*(?P<sign>\+=|<-|<=|>=|[-+*/^()\[\],=<>|.·])""", re.X)


RELATION = re.compile(r"(?:^|\s)(?:=|\+=|<-|<=|<)\s(?!\S+, else)")


class Unreadable(Exception):
    pass


def tokens_of(text, names=()):
    """(kind, text, whether a space stands before it) of each token; `names` are those with spaces in them."""
    found, at = [], 0
    while text[at:].strip():
        spaces = len(text[at:]) - len(text[at:].lstrip())
        long = [name for name in names if " " in name and text[at + spaces:].startswith(name)]
        if long:
            found.append(("name", max(long, key=len), True))
            at += spaces + len(found[-1][1])
            continue
        match = TOKEN.match(text, at)
        if not match:
            raise Unreadable(f"cannot read {text[at:].strip()!r}")
        found.append((match.lastgroup, match[match.lastgroup], spaces > 0))
        at = match.end()
    return found


class Parser:
    """Trees of tuples: the operator, then its operands."""

    def __init__(self, text, names=()):
        self.tokens, self.at, self.bars = tokens_of(text, names), 0, 0

    def next(self, ahead=0):
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ("end", "", True)

    def accept(self, *texts):
        if self.next()[1] in texts and self.next()[0] != "end":
            self.at += 1
            return self.tokens[self.at - 1][1]
        return None

    def expect(self, text):
        if not self.accept(text):
            raise Unreadable(f"{text!r} is expected before {self.next()[1]!r}")

    def relation(self):
        sides, signs = [self.sum()], []
        while self.next()[1] in RELATIONS:
            signs.append(self.accept(*RELATIONS))
            sides.append(self.sum())
        if self.next()[0] != "end":
            raise Unreadable(f"cannot read on at {self.next()[1]!r}")
        return sides, signs

    def sum(self):
        tree = self.product()
        while self.next()[1] in ("+", "-"):
            tree = (self.accept("+", "-"), tree, self.product())
        return tree

    def begins(self):
        kind, text, _ = self.next()
        return kind in ("number", "name", "derivative") and text not in ("if", "else", "of") or \
            text == "(" or text == "|" and not self.bars

    def product(self):
        tree = self.signed()
        while True:
            if self.next()[1] in ("/", "*", ".", "·"):
                tree = (self.accept("/", "*", ".", "·"), tree, self.signed())
            elif self.begins():
                tree = (" ", tree, self.power())
            else:
                return tree

    def signed(self):
        return ("neg", self.signed()) if self.accept("-") else self.power()

    def power(self):
        tree = self.primary()
        while self.accept("^"):
            if self.next()[1] == "T":
                self.at += 1
                tree = ("transpose", tree)
            else:
                tree = ("^", tree, ("neg", self.primary()) if self.accept("-") else self.primary())
        return tree

    def arguments(self, end):
        found = [self.sum()]
        while self.accept(","):
            found.append(self.sum())
        self.expect(end)
        return found

    def primary(self):
        kind, text, _ = self.next()
        self.at += 1
        if kind == "number":
            tree = ("number", text)
            if self.next()[0] == "name" and not self.next()[2]:  # 2P
                tree = (" ", tree, self.primary())
            return tree
        if text == "...":
            return ("name", "...")
        if text == "(":
            bars, self.bars = self.bars, 0
            tree = self.sum()
            if self.accept("if"):
                left, sign, right = self.sum(), self.accept("=", "<", "<=", ">", ">="), self.sum()
                self.expect(",")
                self.expect("else")
                tree = ("if", tree, sign, left, right, self.sum())
            self.expect(")")
            self.bars = bars
            return ("group", tree)
        if text == "|":
            self.bars += 1
            tree = self.sum()
            self.expect("|")
            self.bars -= 1
            return ("abs", tree)
        if kind == "derivative":
            indices = ",".join(re.findall(r"\[(.*?)\]", text))
            return self.indexed(re.sub(r"\[[^\]]*\]", "", text), indices)
        if text in FOLDS and self.next()[1] == "over":
            self.at += 1
            index, sign, bound = self.next()[1], None, None
            self.at += 1
            sign = self.accept("<=", ">=", "<", ">")
            if sign:
                bound = self.sum()
            self.expect("of")
            return ("fold", text, index, sign, bound, self.product())
        if text == "softmax" and self.next()[1] == "of":
            self.at += 1
            first = self.primary()
            self.expect("...")
            return ("softmax", first, self.primary())
        if text in APPLIED and self.begins() and (self.next()[1] != "(" or self.next()[2]):  # log p
            return ("call", text, [self.power()])
        if kind == "name":
            return self.named(text)
        raise Unreadable(f"cannot read on at {text!r}")

    def indexed(self, name, indices):
        return ("index", name, [Parser(i).sum() for i in indices.split(",")]) if indices else ("name", name)

    def named(self, text):
        if self.next()[1] == "[" and not self.next()[2]:
            self.at += 1
            return ("index", text, self.arguments("]"))
        if self.next()[1] == "(" and not self.next()[2]:
            self.at += 1
            return ("call", text, self.arguments(")"))
        return ("name", text)


def pieces(text):
    """[label, formula or remark] of what stands apart by two spaces, line by line; a formula may go on in the next."""
    found, open_ = [], None
    for line in text.splitlines():
        here, goes_on = [], False
        for piece in filter(None, re.split(r"\s{2,}", line.strip())):
            if re.match(r"(?:=|\+=|<-|<=|<|\+|-)\s", piece) and (here or open_):
                (here[-1] if here else open_)[1] += " " + piece
                goes_on = goes_on or not here
            else:
                label = re.match(r"(?:[^:(\[]*:|as(?= \w+ = ))\s*", piece)
                here.append([label[0] if label else "", piece[label.end() if label else 0:].rstrip(",;")])
        found += here
        open_ = next((piece for piece in here[::-1] if RELATION.search(piece[1])),
                     open_ if goes_on or not here else here[0])
    return found


def statements(text, names=()):
    """The relations in a displayed block: (sides, signs, the text). What has no sign of a relation is a remark."""
    parts = itertools.chain.from_iterable(split(piece) for _, piece in pieces(text))
    return [(*Parser(part, names).relation(), part) for part in parts if RELATION.search(part)]


def split(text):
    """The parts between commas outside of all parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


# ---- computing -------------------------------------------------------------------------------------------------

def times(a, b):
    if callable(a):
        return a(b)
    a, b = np.asarray(a), np.asarray(b)
    matrices = a.ndim == 2 and b.ndim == 2 and 1 not in a.shape + b.shape
    return a @ b if matrices and a.shape[1] == b.shape[0] else a * b


def subscripted(name):
    """p_ij' is ij of p'."""
    base, _, letters = name.rstrip("'").partition("_")
    return base + "'" * (len(name) - len(name.rstrip("'"))), letters


def lookup(name, values):
    """The value of a name; p_i is p[i]."""
    if name in values:
        return values[name]
    base, letters = subscripted(name)
    if base in values and letters and all(i in values for i in letters):
        return values[base][tuple(int(values[i]) for i in letters)]
    if name in KNOWN:
        return KNOWN[name]
    raise KeyError(name)


def find_ranges(tree, values, ranges, bound=frozenset()):
    """How far each index runs that has no value: as far as the shape of what it indexes."""
    if not isinstance(tree, tuple):
        return
    kind, *parts = tree
    if kind == "fold":
        bound = bound | {parts[1]}
    name, letters = None, []
    if kind == "index" and parts[0] in values:
        name, letters = parts[0], [i[1] if i[0] == "name" else None for i in parts[1]]
    if kind == "call" or kind == "name" and tree[1] not in values:
        base, subscript = subscripted(tree[1])
        if base in values:
            name, letters = base, list(subscript)
    for axis, letter in enumerate(letters):
        if letter and letter not in values:
            ranges.setdefault(letter, (np.shape(values[name])[axis], letter in bound))
            if letter not in bound:
                ranges[letter] = (ranges[letter][0], False)
    for part in parts:
        for each in part if isinstance(part, list) else [part]:
            find_ranges(each, values, ranges, bound)


COMPARE = {"=": np.equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}


def compute(tree, values):
    kind, *parts = tree
    if kind == "number":
        return float(parts[0].replace(",", ""))
    if kind == "name":
        return lookup(parts[0], values)
    if kind == "group":
        return compute(parts[0], values)
    if kind == "index":
        array = lookup(parts[0], values)
        at = tuple(int(compute(i, values)) for i in parts[1])
        if any(i < 0 or i >= n for i, n in zip(at, np.shape(array))):
            raise IndexError(parts[0])
        return array[at]
    if kind == "call":
        function = lookup(parts[0], values)
        arguments = [compute(a, values) for a in parts[1]]
        return function(*arguments) if callable(function) else times(function, arguments[0])
    if kind == "fold":
        name, index, sign, bound, body = parts
        ranges = {}
        find_ranges(body, values, ranges)
        inner = [{**values, index: i} for i in range(ranges[index][0])]
        if sign:
            inner = [v for v in inner if COMPARE[sign](v[index], compute(bound, values))]
        return FOLDS[name]([compute(body, v) for v in inner])
    if kind == "if":
        then, sign, left, right, otherwise = parts
        return compute(then if COMPARE[sign](compute(left, values), compute(right, values)) else otherwise, values)
    if kind == "softmax":
        (_, name, first), (_, _, last) = parts
        ends = [[int(compute(i, values)) for i in index] for index in (first, last)]
        row = np.exp(values[name][tuple(ends[0][:-1])][ends[0][-1]:ends[1][-1] + 1])
        return row / row.sum()
    operands = [compute(part, values) for part in parts]
    if kind == "abs":
        return np.linalg.norm(operands[0], axis=-1) if np.ndim(operands[0]) else abs(operands[0])
    if kind == "neg":
        return -operands[0]
    if kind == "transpose":
        return np.swapaxes(operands[0], -1, -2)
    if kind == "^":
        return np.asarray(operands[0]) ** operands[1]
    if kind in ".·":
        return np.dot(*operands)
    return {"+": np.add, "-": np.subtract, "/": np.divide, "*": np.multiply, " ": times}[kind](*operands)


def places(sides, values, where):
    """A copy of `values` for every place at which the relation is to hold: all values of its free indices."""
    ranges = {}
    for side in sides:
        find_ranges(side, values, ranges)
    free = {letter: n for letter, (n, bound) in ranges.items() if not bound}
    for at in itertools.product(*map(range, free.values())):
        place = dict(zip(free, at))
        if where is None or where(**{k: place[k] for k in where.__code__.co_varnames[:where.__code__.co_argcount]}):
            yield {**values, **place}, tuple(place.values())


# ---- typesetting -----------------------------------------------------------------------------------------------

def mathml(tree):
    kind, *parts = tree
    if kind == "number":
        return f"<mn>{parts[0]}</mn>"
    if kind == "name":
        return name_mathml(parts[0])
    if kind == "group":
        return f"<mrow><mo>(</mo>{mathml(parts[0])}<mo>)</mo></mrow>"
    if kind == "abs":
        return f"<mrow><mo>|</mo>{mathml(parts[0])}<mo>|</mo></mrow>"
    if kind == "index":
        return f"<msub>{name_mathml(parts[0])}<mrow>{comma(parts[1])}</mrow></msub>"
    if kind == "call" and parts[0] == "sqrt":
        return f"<msqrt>{comma(parts[1])}</msqrt>"
    if kind == "call" and parts[0] in APPLIED:
        return f'<mrow>{name_mathml(parts[0])}<mspace width="0.2em"/>{mathml(parts[1][0])}</mrow>'
    if kind == "call":
        return f"<mrow>{name_mathml(parts[0])}<mo>(</mo>{comma(parts[1])}<mo>)</mo></mrow>"
    if kind == "fold":
        name, index, sign, bound, body = parts
        under = name_mathml(index) + (f"<mo>{html.escape(SIGNS.get(sign, sign))}</mo>{mathml(bound)}" if sign else "")
        over = {"sum": '<mo>∑</mo>'}.get(name, f"<mi>{name}</mi>")
        return f"<mrow><munder>{over}<mrow>{under}</mrow></munder>{mathml(body)}</mrow>"
    if kind == "if":
        then, sign, left, right, otherwise = parts
        return (f"<mrow>{mathml(then)}<mtext> if </mtext>{mathml(left)}<mo>{html.escape(sign)}</mo>{mathml(right)}"
                f"<mtext>, else </mtext>{mathml(otherwise)}</mrow>")
    if kind == "softmax":
        return f"<mrow><mtext>softmax of </mtext>{mathml(parts[0])}<mo>…</mo>{mathml(parts[1])}</mrow>"
    if kind == "neg":
        return f"<mrow><mo>-</mo>{mathml(parts[0])}</mrow>"
    if kind == "transpose":
        return f"<msup>{mathml(parts[0])}<mi>T</mi></msup>"
    if kind == "^":
        exponent = parts[1][1] if parts[1][0] == "group" else parts[1]
        return f"<msup>{mathml(parts[0])}<mrow>{mathml(exponent)}</mrow></msup>"
    if kind == "/":
        over, under = (part[1] if part[0] == "group" else part for part in parts)
        return f"<mfrac><mrow>{mathml(over)}</mrow><mrow>{mathml(under)}</mrow></mfrac>"
    between = {" ": '<mspace width="0.2em"/>', ".": "<mo>·</mo>", "*": "<mo>·</mo>"}.get(kind, f"<mo>{kind}</mo>")
    return f"<mrow>{mathml(parts[0])}{between}{mathml(parts[1])}</mrow>"


SIGNS = {"<=": "≤", ">=": "≥", "<-": "←"}
GREEK = {"alpha": "α", "beta": "β", "eps": "ε", "pi": "π", "beta1": "β<!-- -->1", "beta2": "β<!-- -->2"}


def comma(trees):
    return "<mo>,</mo>".join(map(mathml, trees))


def name_mathml(name):
    if name == "...":
        return "<mo>…</mo>"
    base, primes = name.rstrip("'"), "′" * (len(name) - len(name.rstrip("'")))
    stem, _, subscript = base.partition("_")
    one = f"<mi>{GREEK.get(stem, html.escape(stem))}</mi>"
    one = re.sub(r"<!-- -->", "", one)
    if subscript:
        one = f"<msub>{one}<mi>{html.escape(subscript)}</mi></msub>"
    return f"<msup>{one}<mo>{primes}</mo></msup>" if primes else one


def typeset(text):
    """A displayed block as rows of HTML: its formulas, and beside them labels and remarks."""
    rows = []
    for label, piece in pieces(text):
        parts = [part for part in split(piece) if part]
        if not any(RELATION.search(part) for part in parts):
            rows.append(f'<span class="remark">{html.escape(label + piece)}</span>')
            continue
        for part in parts:
            shown = relation_mathml(*Parser(part).relation()) if RELATION.search(part) else html.escape(part)
            rows.append(f'<span class="label">{html.escape(label)}</span> {shown}')
            label = ""
    return '<div class="formula">\n' + "\n".join(f"<div>{row}</div>" for row in rows) + "\n</div>\n"


def relation_mathml(sides, signs):
    row = mathml(sides[0])
    for sign, side in zip(signs, sides[1:]):
        row += f"<mo>{html.escape(SIGNS.get(sign, sign))}</mo>{mathml(side)}"
    return f'<math displaystyle="true">{row}</math>'
