#!/usr/bin/env python3
"""dev/course/formulas.py and pages.py find what is wrong: planted faults are named, nothing else is."""
import pathlib
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev/course"))
import formulas  # noqa: E402
import pages  # noqa: E402

CHECK = "<!-- check\nholds(x=2, y=3, z=6)\n-->\n"
FAULTS = [  # what stands on the page, what must be said; nothing: it is right
    ("    z = x y\n\n" + CHECK, ""),
    ("    make nothing\n\nText.\n\n    ./gpt2\n", ""),
    ("    z = x y          a remark\n\n```text\n    z = x\n```\n", "has no <!-- check"),
    ("<!-- quote a.h f -->\n```cpp\n//     z = x y\n```\n<!-- end quote -->\n", "has no <!-- check"),
    ("    z = x + y\n\n" + CHECK, "z = x + y: 6 and 5"),
    ("    z = x y          y = x\n\n" + CHECK, "y = x: 3 and 2"),
    ("    z < x\n\n" + CHECK, "z < x: 6 and 2"),
    ("    z = x of y\n\n" + CHECK, "cannot read on at 'of'"),
    ("    z = x w\n\n" + CHECK, "'w'"),
    ("    z = x y          y = x\n\n<!-- check\nholds((0,), x=2, y=3, z=6)\n-->\n", "is computed for formula 1"),
    ("    z = x y\n\n<!-- check\nrun(x=2, y=3)\n-->\n", "compares nothing"),
    ("    z = x y\n\n<!-- check\nholds(x=2, y=np.nan, z=np.nan)\n-->\n", "nan and nan"),
    ("    z = x y\n\n<!-- check\nsame(run(x=2, y=3)['z'], 5)\n-->\n", "apart by 2.0e-01"),
    ("    z = x D          y = 3\n\n<!-- check\nholds(x=2, D=3, y=3, z=6)\n-->\n", "D alone is no name"),
    ("    Dz = x y\n\n<!-- check\nholds(x=2, y=3, Dz=6)\n-->\n", ""),
    ("Text.\n\n" + CHECK, "follows no formula"),
    ("    z = x y\n\nText.\n\n" + CHECK, "follows no formula"),
    ("    out[r] = sum over c of x[r,c] y[c]\n\n<!-- check\nx, y = normal(2, 3), normal(3)\n"
     "holds(x=x, y=y, out=x @ y)\n-->\n", ""),
    ("    out[r] = mean over c of x[r,c] y[c]\n\n<!-- check\nx, y = normal(2, 3), normal(3)\n"
     "holds(x=x, y=y, out=x @ y)\n-->\n", "out[r] = mean over c"),
]


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "01-page.md"
        for text, expected in FAULTS:
            page.write_text("# 1. A page\n\n" + text)
            said = "\n".join(formulas.check_page(page)[1])
            if bool(expected) != bool(said) or expected not in said or said and not said.startswith("01-page.md"):
                print(f"{text}said: {said or 'nothing'}\nexpected: {expected or 'nothing'}\n")
                failed += 1
    lax = formulas.check_page(ROOT / "dev/course/04-layer-norm.md", changed=True)
    if lax[1] or lax[2] < 20:
        print("chapter 4:", *lax)
        failed += 1
    page = ("## Try it\n\nText.\n\n## Exercises\n\n1. What?\n2. Why?\n3. `make exercise EX=a`: that.\n\n"
            "<details>\n1. This.\n</details>\n")
    if pages.unanswered(page) != ["question 2 has no answer"]:
        print("questions without an answer:", pages.unanswered(page))
        failed += 1
    if pages.unanswered("## Try it\n\n1. What?\n\n## Exercises\n\n    make\n") != ["question 1 has no answer"]:
        print("a question under 'Try it' needs no answer")
        failed += 1
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
