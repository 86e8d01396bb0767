#!/usr/bin/env python3
"""Holds the sources to the rules of the house, and writes the map of llmc.

    dev/house.py --check    names what breaks a rule and where, exit 1 if anything does (make part-house)
    dev/house.py --write    writes the lines of the headers into llmc/README.md

    floors     a header of llmc includes its own floor and lower ones. The table of llmc/README.md has the order, lowest
               first, and says what must not be in the closure of a header: a kernel needs no options and no files.
    limits     how long headers, functions, trainers and the first page may be: LIMITS
    names      a file, a `function()` or a link in a page or a comment leads to something that exists
    openings   a comment names its subject: it does not begin with a word that points back
    asm        PTX is in the headers of INSTRUCTIONS alone, behind functions with a twin in C++; cp.async tells the
               compiler that memory changes: loads and stores stay on their side of it
    map        the lines of headers in llmc/README.md are the first sentences of these headers

EXCEPTIONS names what may break a rule, with the reason. One that is not needed is a fault itself.
"""
import re
import sys
from pathlib import Path

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

from readme import write_between
from width import sources

ROOT = Path(__file__).resolve().parent.parent
MAP = "llmc/README.md"
LIMITS = [  # what, lines at most, in which files
    ("header", 300, r"llmc/.*\.(h|cuh)"),
    ("function", 60, r"(llmc/.*|[^/]*)\.(h|cuh|cpp|cu)"),
    ("trainer", 450, r"train_gpt2(_cpu\.cpp|\.cu)"),
    ("page", 150, r"README\.md"),
]
OPENINGS = r"(The same|Those|That of|It|Its|They|This(?! \w+'s)|Likewise|Of all|And|But|As above)\b"
EXCEPTIONS = {
    "header llmc/cpu/matrix_unit.h": "one product on three units and in portable C++, side by side",
    "header llmc/cpu/reference.h": "all layers as naive loops, read as one lesson",
    "header llmc/data/tokenizer.h": "file, encoder and decoder of one tokenizer",
    "function attention_backward_head in llmc/cpu/attention_bf16.h": "five products share the tiles that it packs",
    "function attention_backward_kv_kernel in llmc/cuda/attention_backward.cuh": "its sums stay in registers",
    "function attention_backward_q_kernel in llmc/cuda/attention_backward.cuh": "its sums stay in registers",
    "function option_table in llmc/options/option_table.h": "a table",
    **{f"closure llmc/{name}": "no kernel: it serves a model or a run" for name in
       ("cpu/backend.h", "cpu/compiled_once.h", "cpu/compiled_once.cpp", "cpu/offload.h", "cpu/other_optimizers.h",
        "cpu/shard.h", "cpu/wte_pieces.h", "cpu/whole_tensors.h", "cpu/compressed_gradients.h", "cpu/linear.h",
        "cpu/decode.h", "cpu/meet.h", "cpu/average.h", "cpu/prune.h", "cuda/average.cuh", "cuda/decode.cuh",
        "cuda/prune.cuh", "cuda/linear.cuh", "cuda/messages.cuh", "cuda/backend.cuh", "cuda/free_memory.cuh",
        "cuda/gpu.cuh", "cuda/nvml.cuh", "cuda/offload.cuh", "cuda/offload_memory.cuh", "cuda/other_optimizers.cuh",
        "cuda/shard.cuh", "cuda/teacher.cuh", "cuda/upload.cuh", "cuda/whole_tensors.cuh")},
    "name sanitizer/allocator_interface.h": "a header of the compiler",
    "name llama.cpp": "a program of others",
}
INSTRUCTIONS = ("llmc/cuda/mma.cuh", "dev/cuda/hopper.cuh", "llmc/cuda/common.cuh")  # the last: one conversion
CODE, SCRIPTS = ("*.h", "*.cuh", "*.cpp", "*.cu"), ("*.py", "*.sh", "*.sed")
EVERYTHING = sources(["*"])
FILES = {name: (ROOT / name).read_text(encoding="utf-8") for name in sources([*CODE, *SCRIPTS, "*.md"])}
IS_CODE = tuple(pattern[1:] for pattern in CODE)
LLMC = sorted(name for name in FILES if re.fullmatch(r"llmc/\w+/\w+\.(h|cuh|cpp|cu)", name))


def at(name, text, position):
    return f"{name}:{text.count(chr(10), 0, position) + 1}"


# ---- floors

def floors():
    """The table of floors, lowest first, and which floors each must not need."""
    rows = re.findall(r"^\| `(\w+)` \| .+? \|(.*)\|$", FILES[MAP], re.M)
    return {name: re.findall(r"\w+", closed) for name, closed in rows}


def included(name):
    """The files of the repository that a file includes, with the line of each."""
    return [(match[1], at(name, FILES[name], match.start()))
            for match in re.finditer(r'^#include "(.*?)"', FILES[name], re.M)]


def chain_to(name, unwanted):
    """The shortest way of includes from a file to one of the floors that are not wanted, or None."""
    chains, seen = [[name]], {name}
    for chain in chains:
        if chain[-1].split("/")[1] in unwanted:
            return chain
        new = [needed for needed, _ in included(chain[-1]) if needed in LLMC and needed not in seen]
        chains += [[*chain, needed] for needed in new]
        seen.update(new)
    return None


def check_floors():
    order = floors()
    rank = {floor: number for number, floor in enumerate(order)}
    folders = {name.split("/")[1] for name in LLMC}
    for floor in sorted(folders ^ set(order)):
        yield f"floor {floor}", f"{MAP}: llmc/{floor} and the table of floors: one has it, the other has not"
    for floor, closed in order.items():
        for other in set(closed) - set(order):
            yield f"floor {other}", f"{MAP}: the row of {floor} names {other}, which is no floor"
    for name in LLMC:
        floor = name.split("/")[1]
        for needed, place in included(name):
            if not needed.startswith("llmc/") or not (ROOT / needed).exists():
                yield f"edge {name} {needed}", f"{place}: includes {needed}, which is no path of llmc from the root"
            elif rank.get(needed.split("/")[1], 0) > rank.get(floor, 0):
                yield f"edge {name} {needed}", f"{place}: includes {needed}, which is above {floor}"
    for name in LLMC:
        floor = name.split("/")[1]
        chain = chain_to(name, order.get(floor, []))
        # Where it goes by a header of the same floor, that one is named, unless it is an exception.
        if chain and (not chain[1].startswith(f"llmc/{floor}/") or f"closure {chain[1]}" in EXCEPTIONS):
            yield f"closure {name}", f"{' > '.join(chain)}: {floor} needs nothing of that"


# ---- limits

def functions(text):
    """(name, first line, last line) of each function: from its head to the brace that closes it, as laid out."""
    depth, head, inside, macro = 0, None, None, False
    for number, line in enumerate(text.split("\n"), 1):
        macro, in_macro = line.endswith("\\") and (macro or line.startswith("#")), macro
        code = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'|//.*', "", line).rstrip()
        if line.startswith("#") or in_macro or not code:
            continue
        if not inside:
            head = (head[0], head[1] + " " + code) if head else (number, code)
            is_type = re.search(r"\b(struct|class|union|enum|namespace)\b[^()]*$|= \{$", head[1])
            if code.endswith("{") and "(" in head[1] and not is_type:
                called = re.search(r"(\w+|operator\W+)\(", re.sub(r"__launch_bounds__\([^)]*\)+", "", head[1]))
                inside = called and (called[1], head[0], depth)
        depth += code.count("{") - code.count("}")
        if inside and depth <= inside[2]:
            yield inside[0], inside[1], number
            inside = head = None
        elif code[-1] in ";{}:":
            head = None


def check_limits():
    for what, limit, pattern in LIMITS:
        for name in filter(re.compile(pattern).fullmatch, FILES):
            if what == "function":
                for function, first, last in functions(FILES[name]):
                    if last - first >= limit:
                        yield (f"function {function} in {name}",
                               f"{name}:{first}: {function}() has {last - first + 1} lines; a function has {limit}")
            elif FILES[name].count("\n") > limit:
                yield f"{what} {name}", f"{name} has {FILES[name].count(chr(10))} lines; a {what} has {limit}"


# ---- names

NAMED = re.compile(r"(?<![\w/.$<>{}*-])(?:[\w.-]+/)*[\w.-]+\.(?:cuh|cu|cpp|h|py|sh|mk|md)(?![\w/])|"
                   r"(?<![\w/.-])(?:llmc|dev|scripts)/(?:[\w-]+/)*")


def titles(text):
    """The anchors of a page, as its headings get them."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)", text, re.M)}


def check_names():
    there = set(re.findall(r".+", (ROOT / ".gitignore").read_text()))  # what programs and readers put there
    for name in EVERYTHING:  # by the ends of its path, as in "factors.h", and all folders
        slashes = [match.end() for match in re.finditer("/", name)]
        there.update([name, *(name[slash:] for slash in slashes), *(name[:slash] for slash in slashes)])
    words = set()
    for name in FILES:
        if not name.endswith(".md"):
            words.update(re.findall(r"\w+", re.sub("//.*", "", FILES[name]) if name.endswith(IS_CODE) else FILES[name]))
    for name, text in FILES.items():
        if name.endswith(".md"):
            prose = re.sub(r"```.*?```", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
            looked_at = [(text, 0, r"`[^`\n]*\b([A-Za-z_]\w*)\(\)")]
            for match in re.finditer(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", re.sub("`[^`\n]*`", "", prose)):
                target = ((ROOT / name).parent / match[1]).resolve() if match[1] else ROOT / name
                if not target.exists() or match[2] and match[2] not in titles(target.read_text(encoding="utf-8")):
                    yield f"link {match[0][2:-1]}", f"{name}: the link {match[0][2:-1]} leads nowhere"
        elif name.endswith(IS_CODE):
            looked_at = [(match[0], match.start(), r"\b([A-Za-z_]\w*)\(\)") for match in re.finditer("//.*", text)]
        else:
            continue
        for part, begin, call in looked_at:
            for match in NAMED.finditer(part):
                pattern = "NAME" in match[0] or "NN-" in match[0]
                if not (match[0] in there or pattern or (ROOT / name).parent.joinpath(match[0]).exists()):
                    yield f"name {match[0]}", f"{at(name, text, begin + match.start())}: there is no {match[0]}"
            for match in re.finditer(call, part):
                if match[1] not in words:
                    yield f"name {match[1]}()", f"{at(name, text, begin + match.start(1))}: there is no {match[1]}()"


# ---- openings, and the map

def check_openings():
    for name in LLMC + ["train_gpt2_cpu.cpp", "train_gpt2.cu"]:
        floor, before = name.split("/")[1] if name in LLMC else "trainers", ""
        for number, line in enumerate(FILES[name].split("\n"), 1):
            match = re.match(rf" *// {OPENINGS}", line)
            if match and before.find("//") != line.find("//"):  # else it goes on with the line before
                yield f"openings of {floor}", f"{name}:{number}: a comment begins with \"{match[1]}\""
            before = line


def check_asm():
    for name in (name for name in FILES if name.endswith((".cuh", ".cu"))):
        for match in re.finditer(r"\basm\b(?: volatile)?\(", FILES[name] if name not in INSTRUCTIONS else ""):
            place = at(name, FILES[name], match.start())
            yield f"asm {name}", f"{place}: PTX belongs to {' and '.join(INSTRUCTIONS[:2])}"
        for match in re.finditer(r'asm volatile\("cp\.async[^;]*;(?:\\n)?"(.*?)\);', FILES[name], re.S):
            if '"memory"' not in match[1]:
                yield f"asm {name}", f'{at(name, FILES[name], match.start())}: cp.async has no "memory" clobber'


def first_sentence(text, columns=115):
    """The first sentence of the comment that opens a file, without sources, cut where it is too long."""
    lines = re.match(r"(?:// \S.*\n)+", text)
    if not lines:
        return ""
    words = " ".join(line[3:].strip() for line in lines[0].split("\n"))
    words = re.sub(r" \([^()]*(?:\b(?:19|20)\d\d\b|https?:|arXiv)[^()]*\)", "", words)
    sentence = re.split(r"(?<!et al)(?<![. ])[.](?: |$)|:\s*$", words)[0]
    if len(sentence) > columns:
        sentence = re.sub(r" \([^()]*\)", "", sentence)
    for cut in (": ", "; ", ", ", " "):
        while len(sentence) > columns and cut in sentence[20:]:
            sentence = sentence.rpartition(cut)[0]
    return sentence.replace("|", "\\|")


def map_of_headers():
    rows = []
    for floor in floors():
        rows += [f"### {floor}", "", "| | |", "|---|---|"]
        for name in LLMC:
            if name.split("/")[1] == floor:
                rows.append(f"| [{name.split('/')[2]}]({name[5:]}) | {first_sentence(FILES[name])} |")
        rows.append("")
    return "\n".join(rows[:-1])


def check_map():
    for name in LLMC:
        if not first_sentence(FILES[name]):
            yield f"map {name}", f"{name} does not open with a comment that says what it is"
    if f"<!-- headers begin -->\n{map_of_headers()}\n<!-- headers end -->" not in FILES[MAP]:
        yield "map", f"{MAP}: its lines are not what the headers say; run dev/house.py --write"


def main():
    if sys.argv[1:] == ["--write"]:
        return write_between(ROOT / MAP, "headers", map_of_headers())
    if sys.argv[1:] != ["--check"]:
        sys.exit(__doc__)
    found = [*check_floors(), *check_limits(), *check_names(), *check_openings(), *check_asm(), *check_map()]
    faults = [fault for subject, fault in found if subject not in EXCEPTIONS]
    for subject in sorted(set(EXCEPTIONS) - {subject for subject, _ in found}):
        faults.append(f"dev/house.py: the exception for {subject} is not needed")
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
