"""What a script writes into a page lies between two markers, <!-- NAME begin --> and <!-- NAME end -->, which stay.

Figures of one kind of machine are NAME KIND, <!-- bench amx begin -->: a run leaves those of other machines alone. The
first run on a new kind puts its markers below the line <!-- NAME tables -->.
"""
import dataclasses
import json
import os
import pathlib
import platform
import re
import sys
import typing

MEASURED = "dev/MEASURED.md"  # where comparisons with other programs go


def replace(path, text):
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(text)
    os.replace(beside, path)


def kept(path, what, make):
    """What make() returns, kept in a file beside what it was made from, such as a command; made again if that is
    another."""
    found = json.loads(path.read_text()) if path.exists() else {}
    if found.get("from") != what:
        found = {"from": what, "made": make()}
        replace(path, json.dumps(found))
    return found["made"]


def write_between(path, name, content):
    """Replaces what is between the markers by content, a text or a function of the text that is there."""
    text, begin, end = path.read_text(), f"<!-- {name} begin -->", f"<!-- {name} end -->"
    if begin not in text or end not in text:
        sys.exit(f"no markers {begin} ... {end} in {path}: what is to be written needs its place there")
    first, last = text.index(begin) + len(begin), text.index(end)
    if callable(content):
        content = content(text[first:last])
    replace(path, f"{text[:first]}\n{content}\n{text[last:]}")


def write_of_machine(path, name, kind, content):
    """The same for figures of one kind of machine; adds its markers if there are none."""
    text, anchor = path.read_text(), f"<!-- {name} tables -->"
    if f"<!-- {name} {kind} begin -->" not in text:
        if anchor not in text:
            sys.exit(f"no line {anchor} in {path}: tables of a new machine need their place there")
        empty = f"{anchor}\n\n<!-- {name} {kind} begin -->\n<!-- {name} {kind} end -->\n"
        replace(path, text.replace(anchor + "\n", empty, 1))
    write_between(path, f"{name} {kind}", content)


@dataclasses.dataclass
class Shown:
    """A text and a picture that a page shows between two markers, made from figures: what a script has measured, kept
    in a .json. --write keeps new figures and makes the page from them, --page makes it from those that are there."""
    figures: pathlib.Path
    page: pathlib.Path
    name: str
    picture: pathlib.Path
    caption: str
    text_of: typing.Callable
    picture_of: typing.Callable

    @staticmethod
    def add_flags(parser):
        parser.add_argument("--write", action="store_true", help="keep the figures, and make the page from them")
        parser.add_argument("--page", action="store_true", help="make the page from the figures that are there")

    def make_page(self):
        if not self.figures.exists():
            sys.exit(f"{self.figures} is not there; --write makes it")
        figures = json.loads(self.figures.read_text())
        replace(self.picture, self.picture_of(figures))
        link = os.path.relpath(self.picture, self.page.parent)
        write_between(self.page, self.name, f"{self.text_of(figures)}\n\n![{self.caption}]({link})")

    def show(self, figures, write):
        print(self.text_of(figures))
        if write:
            replace(self.figures, json.dumps(figures, indent=1) + "\n")
            self.make_page()


# The kind of a CPU is the widest of these that it has: the flag of /proc/cpuinfo, the name in markers and in tables.
# AMD's have a name of their own, by family: Zen 4 multiplies 256 bits at a time, Zen 5 512.
CPU_KINDS = [("amx_bf16", "amx", "AMX"), ("avx512_bf16", "avx512-bf16", "AVX-512, AVX512-BF16"),
             ("avx512f", "avx512", "AVX-512"), ("avx2", "avx2", "AVX2")]
AMD_KINDS = {"25": ("zen4", "AVX512-BF16, Zen 4"), "26": ("zen5", "AVX512-BF16, Zen 5")}
MULTIPLY_BF16 = ("amx", "avx512-bf16", "zen4", "zen5")


def this_cpu(info="/proc/cpuinfo"):
    """The kind of this CPU, for markers, and its name, for readers."""
    text = pathlib.Path(info).read_text() if os.path.exists(info) else ""
    flags = set(re.findall(r"\w+", (re.search(r"^flags\s*:(.*)", text, re.M) or ["", ""])[1]))
    if "GenuineIntel" in text and "avx512_fp16" in flags:
        flags.discard("avx512_bf16")  # is slow, and not used (llmc/cpu/matrix_unit.h)
    kind, what = next(((k, w) for flag, k, w in CPU_KINDS if flag in flags), (platform.machine(),) * 2)
    family = re.search(r"cpu family\s*: (\d+)", text)
    if kind == "avx512-bf16" and "AuthenticAMD" in text and family and family[1] in AMD_KINDS:
        kind, what = AMD_KINDS[family[1]]
    name = re.search(r"model name\s*: (.*)", text)
    return kind, f"{name[1] if name else platform.processor() or 'a CPU'} ({what})"
