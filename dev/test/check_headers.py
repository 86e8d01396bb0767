#!/usr/bin/env python3
"""Every header compiles by itself, and included twice, without a warning; those for CUDA as the simulator sees them.

    dev/test/check_headers.py COMPILER "FLAGS"

One compilation checks several headers: a chain in which each includes the one before, itself or by others. What comes
before a header in a chain, the header would include anyway as its first lines, so it sees no more than it does alone.
A chain that fails is compiled again header by header, to name those that do not stand alone. The longest chains, and so
the fewest, are found as a maximum matching between headers and those that they include (Fulkerson 1956, on Dilworth's
theorem). A header with a missing include and one without #pragma once, planted here, must be found.
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

# Those left out are parts of a test, after the model.
PARTS_OF_TESTS = re.compile(r"dev/test/.*_(tests|kernels)\.h")
CPU = ["llmc/*/*.h", "dev/bench.h", "dev/bench_run.h", "dev/cpu/bench_cpu.h", "dev/data/*.h", "dev/parallel/*.h",
       "dev/talk/*.h", "dev/test/*.h", "dev/test/fuzz/*.h", "dev/course/exercises/judge.h",
       "dev/course/exercises/ranks.h"]
SIMULATED = ["llmc/cuda/*.cuh", "dev/cusim/cusim.h", "dev/course/exercises/judge_cuda.h"]
STRICT = ["-O0", "-Werror", "-Wno-unused-function", "-fsyntax-only", "-x", "c++"]
SIM = ["-Ibuild/sim", "-Idev/cusim/include", "-Wno-unknown-pragmas"]


def included_first(path):
    """What a header includes from this repository in its first lines, whatever the macros: not below #if or code."""
    for line in path.read_text().splitlines():
        if include := re.match(r'#include "(.*)"', line):
            yield include[1]
        elif line and not re.match(r"//|#pragma once|#include <", line):
            return


def closures(headers, root):
    """Of each header all that it includes, itself or by others, in their first lines."""
    known = {}

    def closure(name):
        if name not in known:
            known[name] = set()  # ends a circle
            path = root / name
            first = list(included_first(path)) if path.exists() else []
            known[name] = set(first).union(*map(closure, first)) - {name}
        return known[name]

    return {header: closure(header) for header in headers}


def chains(headers, root):
    """The headers as few lists, in each of which every header includes the one before."""
    below, before, after = closures(headers, root), {}, {}

    def take(header, seen):
        """Finds a header to come before this one, if need be one that came before another."""
        for other in sorted(below[header] & below.keys() - seen):
            seen.add(other)
            if other not in after or take(after[other], seen):
                before[header], after[other] = other, header
                return True
        return False

    for header in headers:
        take(header, set())
    for last in (header for header in headers if header not in after):
        chain = [last]
        while chain[0] in before:
            chain.insert(0, before[chain[0]])
        yield chain


def problem(compiler, headers, folder):
    """What the compiler says of headers, each included twice; nothing if they are right."""
    source = folder / "twice.cu"
    source.write_text("".join(f'#include "{header}"\n' * 2 for header in headers))
    return subprocess.run([*compiler, *STRICT, source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True).stdout


def check(compiler, headers, folder, root=pathlib.Path()):
    """The headers that do not stand alone, and what the compiler says of them."""
    bad = {}
    for chain in chains(headers, root):
        if said := problem(compiler, chain, folder):
            alone = {header: problem(compiler, [header], folder) for header in chain}
            bad.update({header: text for header, text in alone.items() if text} or {" and ".join(chain): said})
    return bad


def finds_planted(compiler, folder):
    """Each planted header is named, at the end of a chain as in its middle, and the right ones are not."""
    once = "#pragma once\n"
    planted = {"a.h": once + "#include <string>\n",
               "b.h": once + '#include "a.h"\ninline std::string b() { return ""; }\n',
               "c.h": once + "inline std::string c();\n", "d.h": once + '#include "c.h"\n#include "b.h"\n',
               "e.h": '#include "b.h"\nstruct E {};\n', "f.h": once + '#include "b.h"\n#include "e.h"\n'}
    for name, text in planted.items():
        (folder / name).write_text(text)
    found = check([*compiler, f"-I{folder}"], sorted(planted), folder, folder)
    return sorted(found) == ["c.h", "d.h", "e.h"]


def main():
    compiler = [*shlex.split(sys.argv[1]), *shlex.split(sys.argv[2])]
    root = pathlib.Path()
    kinds = [sorted({str(path) for pattern in patterns for path in root.glob(pattern)
                     if not PARTS_OF_TESTS.fullmatch(str(path))}) for patterns in (CPU, SIMULATED)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if not finds_planted(compiler, folder):
            sys.exit("headers planted that do not stand alone are not those that are found")
        bad = {**check(compiler, kinds[0], folder), **check([compiler[0], *SIM, *compiler[1:]], kinds[1], folder)}
    for header, said in bad.items():
        print(f"{said}{header} does not stand alone")
    print(f"{sum(map(len, kinds))} headers in {sum(len(list(chains(kind, root))) for kind in kinds)} compilations")
    sys.exit(bool(bad))


main()
