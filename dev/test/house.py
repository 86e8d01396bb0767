#!/usr/bin/env python3
"""dev/house.py finds what breaks a rule: faults planted in a copy of the sources are named, and nothing else is."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
from house import EVERYTHING, FILES

PAGE, NO = "dev/troubleshooting.md", "no_such"  # no source must have the words that are said to be missing
LONG = "".join(f"// line {number}\n" for number in range(300))
BODY = "    x++;\n" * 58
FAULTS = [  # file, what is added at its end, what must be said
    ("llmc/base/clock.h", '#include "llmc/run/stop.h"\n', "includes llmc/run/stop.h, which is above base"),
    ("llmc/base/fp16.h", '#include "clock.h"\n', "includes clock.h, which is no path of llmc"),
    ("llmc/base/utf8.h", '#include "llmc/no_such.h"\n', "includes llmc/no_such.h, which is no path"),
    ("llmc/cpu/vec.h", '#include "llmc/plan/plan.h"\n', "llmc/cpu/vec.h > llmc/plan/plan.h: cpu needs nothing of"),
    ("llmc/base/random.h", LONG, "lines; a header has 300"),
    ("llmc/base/bf16.h", f"inline void one(int x) {{\n{BODY}    x++;\n}}\n", "one() has 61 lines; a function has 60"),
    ("llmc/base/parse.h",
     f"struct S {{\n    int two(int x,\n            int y) {{\n{BODY}    }}\n}};\n", "two() has 61"),
    ("train_gpt2.cu", LONG * 2, "lines; a trainer has 450"),
    ("README.md", LONG, "lines; a page has 150"),
    (PAGE, "See `llmc/base/no_such.h`.\n", "there is no llmc/base/no_such.h"),
    (PAGE, "    python3 dev/no_such.py\n", "there is no dev/no_such.py"),
    (PAGE, "They are in dev/no_such/.\n", "there is no dev/no_such/"),
    (PAGE, f"`{NO}_function()` does it.\n", f"there is no {NO}_function()"),
    (PAGE, "[here](troubleshooting.md#no-title)\n", "troubleshooting.md#no-title leads nowhere"),
    (PAGE, "[there](no-such-page)\n", "the link no-such-page leads nowhere"),
    ("llmc/base/check.h", "int x;  // as in no_such_header.h\n", "there is no no_such_header.h"),
    ("llmc/base/check.h", f"// as {NO}_call() does\n", f"there is no {NO}_call()"),
    ("llmc/cuda/gelu.cuh", 'inline void nothing() { asm volatile("nop;"); }\n', "PTX belongs to llmc/cuda/mma.cuh"),
    ("llmc/trace/work.h", "\n// The same for others.\n", 'begins with "The same"'),
    ("llmc/trace/work.h", "\nstruct X {\n    // It is short.\n    int x;\n};\n", 'begins with "It"'),
]
HARMLESS = [
    ("llmc/trace/trace.h", "int x;  // A comment of two lines:\n        // It goes on.\n"),
    ("llmc/base/cores.h", f"inline void sixty(int x) {{\n{BODY}}}\n"),
    ("llmc/trace/step_phases.h", '#include "llmc/base/cores.h"\n\n// This process\'s time.\n// It is long.\n'),
    ("dev/cusim/README.md", "`now_seconds()`, `clock.h`, [here](#here), `test_NAME.cpp`, dev/course/my/\n\n# Here\n"),
]
# Text that is replaced: one change at a time, since each is about a whole page or file.
CHANGES = [
    ("llmc/cuda/mma.cuh", '"n"(groups) : "memory"', '"n"(groups)', 'cp.async has no "memory" clobber'),
    ("llmc/cuda/mma.cuh", '"r"(valid ? 4 : 0)\n                 : "memory"', '"r"(valid ? 4 : 0)',
     'cp.async has no "memory" clobber'),
    ("llmc/README.md", "| `trace` |", "| trace |", "llmc/trace and the table of floors"),
    ("llmc/README.md", "| options, ", "| option, ", "names option, which is no floor"),
    ("llmc/base/clock.h", "Seconds on", "Minutes on", "its lines are not what the headers say"),
    ("llmc/base/clock.h", "//", "\n//", "llmc/base/clock.h does not open with a comment"),
    ("llmc/options/option_table.h", "& option_table()", "& options()", "llmc/options/option_table.h is not needed"),
]


def said(root):
    ran = subprocess.run([sys.executable, root / "dev/house.py", "--check"], capture_output=True, text=True)
    assert not ran.stderr and ran.returncode == bool(ran.stdout), ran
    return set(ran.stdout.splitlines())


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in (name for name in EVERYTHING if (ROOT / name).is_file()):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copy if name in FILES or name == ".gitignore" else os.symlink)(ROOT / name, root / name)
        for name, added in HARMLESS:
            (root / name).write_text((root / name).read_text() + added)
        subprocess.run([sys.executable, root / "dev/house.py", "--write"], check=True)
        before = said(root)
        assert not any(name in line for line in before for name, _ in HARMLESS), before
        for name, text, change, fault in CHANGES:
            original = (root / name).read_text()
            assert text in original, f"{name} has no {text!r}"
            (root / name).write_text(original.replace(text, change, 1))
            assert any(fault in line for line in said(root) - before), f"not found: {fault}"
            (root / name).write_text(original)
        for name, added, _ in FAULTS:
            (root / name).write_text((root / name).read_text() + added)
        found = said(root) - before
        for _, _, fault in FAULTS:
            assert any(fault in line for line in found), f"not found: {fault} in {found}"
        others = [line for line in found if not any(fault in line for _, _, fault in FAULTS)]
        assert not others, others


main()
