#!/usr/bin/env python3
"""The board of chapter 33 (dev/course/board.py): a small entry gets its line, and what would be a cheat is refused:
more time than the budget has, files named by flags, sources outside of the trainer or large enough to hold the answer,
a model that is none. While an entry trains, the validation text is not there.

    dev/test/board.py          needs ./train_gpt2_cpu and ./tokenize
"""
import json
import os
import pathlib
import shlex
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.chdir(ROOT)
sys.path.insert(0, str(ROOT / "dev/course"))
import board  # noqa: E402

ENTRY = {"what": "a small one", "vocabulary": 300, "model": "L1C16H1T128", "steps": 40000,
         "flags": "-b 1 -t 128 -l 1e-2"}
MINUTES = 0.025  # 3 s of the processor, 100 steps


def entry(folder, name, source=None, **changed):
    """Writes an entry; source: {path in src: text}."""
    where = folder / name
    where.mkdir()
    (where / "entry.json").write_text(json.dumps({**ENTRY, **changed}))
    for path, text in (source or {}).items():
        (where / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        (where / "src" / path).write_text(text)
    return where


def expect_refused(what, f):
    try:
        f()
    except board.Refused as refused:
        assert what in str(refused), f"expected {what!r}: {refused}"
    else:
        raise AssertionError(f"expected {what!r}: nothing was refused")


def check_bad_entries(folder):
    bad = [({"flags": flags}, what) for flags, what in [
        ("-i mine.bin", "-i is not the entry's"), ("--max-steps=9", "--max-steps is not"), ("-v 1", "-v is not"),
        ("--teacher ../mine", "names a file"), ("--trace=t.json", "names a file"), ("--offload-dir ..", "names a file"),
        ("--offload-dir dev", "names a file")]]
    bad += [({"model": "dev/data/mine.bin"}, "names a file"), ({"vocabulary": 100}, "257 to 65535"),
            ({"vocabulary": "mine"}, "257 to 65535"), ({"steps": 0}, "1 or more"), ({"steps": True}, "another kind"),
            ({"what": None}, "another kind"), ({"more": 1}, "unknown: more")]
    for number, (changed, what) in enumerate(bad):
        where = entry(folder, f"bad-{number}", **changed)
        expect_refused(what, lambda: board.load(where))
    for name, source, what in [("outside", {"dev/eval_lm.py": "x"}, "may be changed"),
                               ("evaluator", {"../tokenize": "x"}, "may be changed"),
                               ("answer", {"llmc/optim/answer.h": "x" * 70000}, "adds more than")]:
        if name == "evaluator":
            where = entry(folder, name)
            (where / "src").mkdir()
            (where / "src" / "train_gpt2_cpu.cpp").symlink_to("/dev/null")
            what = "only files"
        else:
            where = entry(folder, name, source)
        expect_refused(what, lambda: board.load(where))
    expect_refused("no entry.json", lambda: board.load(folder / "missing"))
    assert not board.load(entry(folder, "good"))["changed"]
    changed = board.load(entry(folder, "changed", {"llmc/optim/mine.h": "#pragma once\n"}))["changed"]
    assert [(str(path), n) for path, n in changed] == [("llmc/optim/mine.h", 14)], changed  # and an empty line


def check_trainers(folder):
    """What a changed trainer may try, by scripts in its place."""
    out = "while [ $# -gt 1 ]; do [ $1 = -o ] && out=$2; shift; done; mkdir -p $out; "
    scripts = {"endless": ("while :; do :; done", "of the processor, where 3 are allowed"),
               "none": ("exit 0", "the run failed"), "failed": ("exit 3", "the run failed"),
               "nonsense": (out + "echo 1 > $out/model_00000001.bin", "cannot be evaluated"),
               # The validation text, under any of the names that it has elsewhere.
               "looks": (f"cd {shlex.quote(str(board.BOARD))}; for f in val *val*.txt ./val/*; do [ -e $f ] && exit 7; "
                         "done; echo nothing seen; exit 8", "nothing seen")}
    good = board.trainer_of
    try:
        for name, (text, what) in scripts.items():
            program = folder / f"{name}.sh"
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
            board.trainer_of = lambda entry: program
            where = entry(folder, f"t-{name}")
            expect_refused(what, lambda: board.result_of(where, MINUTES, [1]))
    finally:
        board.trainer_of = good


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        board.BOARD = folder / "board"
        text = board.text_of("val")
        assert b"Troy must not be" in text and b"Troy must not be" not in board.text_of("train")
        check_bad_entries(folder)
        first = board.result_of(entry(folder, "small"), MINUTES, [42, 1])
        assert first["steps"] == 100 and first["seconds"] < 3 and first["changed"] == 0, first
        assert all(2 < bits < 6 for bits in first["bits"]) and first["bits"][0] != first["bits"][1], first
        # Fewer steps are worse; the same seed gives the same bits.
        again = board.result_of(entry(folder, "less", steps=2000), MINUTES, [42])
        assert again["steps"] == 5 and again["bits"][0] > first["bits"][0] + 0.1, again
        check_trainers(folder)
        lines = board.table([first, again]).split("\n")
        assert len(lines) == 4 and lines[2].startswith("| `small` |") and "budget 0.025 min" in lines[2], lines
    print(f"{first['bits']} bits per byte of a small model, {again['bits'][0]} after a twentieth of the steps")


if __name__ == "__main__":
    main()
