#!/usr/bin/env python3
"""How much of the validation text of the repository stands in the training text, word by word: a table of chapter 32.

    python3 dev/course/contamination.py [--write | --check]

A run of n words of the validation text is found if the same n words, without marks and capitals, follow each other in
the training text. Both are read back from the token files.
"""
import pathlib
import re
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import board  # noqa: E402
import readme  # noqa: E402

LENGTHS = (1, 2, 3, 5, 8, 13)
PAGE = HERE / "32-data-and-evaluation.md"


def runs_of(words, n):
    return [tuple(words[i:i + n]) for i in range(len(words) - n + 1)]


def share(train, val, n):
    """The share of the runs of n words of one list that the other has, too; and one of them."""
    known, runs = set(runs_of(train, n)), runs_of(val, n)
    found = [run for run in runs if run in known]
    return len(found) / len(runs), found


def main():
    words = {split: re.findall(r"[a-z']+", board.text_of(split).decode().lower()) for split in ("train", "val")}
    assert share(["a", "b", "c"], ["b", "c", "d"], 2) == (0.5, [("b", "c")])
    lines = ["| words in a row | found in the training text | for example |", "|---|---|---|"]
    for n in LENGTHS:
        part, found = share(words["train"], words["val"], n)
        example = " ".join(found[len(found) // 2]) if found else ""
        lines.append(f"| {n} | {100 * part:.2f}% | {example} |")
    print("\n".join(lines))
    content = "\n".join(lines)
    if "--write" in sys.argv:
        readme.write_between(PAGE, "contamination", content)
    if "--check" in sys.argv and f"begin -->\n{content}\n<!--" not in PAGE.read_text():
        sys.exit(f"{PAGE.name} has another table: dev/course/contamination.py --write")


if __name__ == "__main__":
    main()
