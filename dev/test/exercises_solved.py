#!/usr/bin/env python3
"""Solutions in a reader's folder: `make grade` passes each of them, as a reader's file, and a GPT-2 is made of them
(`make mine`). The slowest judges are printed. All that are a part of that GPT-2 and every fourth of the others, since
the judges themselves are tested with all; --all: all of them.

    dev/test/exercises_solved.py MAKE [--all]
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def said_by(make, *arguments):
    done = subprocess.run([make, "-s", *arguments], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def main():
    make = sys.argv[1]
    for name in ("MAKEFLAGS", "MFLAGS"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EXERCISE_MY"] = folder
        sys.path.insert(0, str(ROOT / "dev/course/exercises"))
        import exercise  # which reads EXERCISE_MY
        known = exercise.all_exercises()
        needed = [*exercise.mine.places(known), *exercise.mine.kernels(known)]
        others = [e for e in known if e not in needed]
        exercises = needed + (others if "--all" in sys.argv else others[::4])
        for e in exercises:
            e.my.write_text(e.sections["solution"])
        _, grades = said_by(make, "grade")  # judges them all
        results = json.loads((pathlib.Path(folder) / "results.json").read_text())
        slowest = sorted((results[e.name]["seconds"], e.name) for e in exercises)[-5:]
        print("judged, the slowest: " + ", ".join(f"{name} {seconds} s" for seconds, name in reversed(slowest)))
        failed = [f"{e.name} is not passed by its solution" for e in exercises if not results[e.name]["passed"]]
        if f"{len(exercises)} of {len(known)} done." not in grades:
            failed.append(f"make grade says:\n{grades}")
        status, mine = said_by(make, "mine")
        if status or not all(re.search(rf"^(\d+) of \1 {parts} are yours", mine, re.M)
                             for parts in ("parts of lesson zero", "kernels of a CUDA training step")):
            failed.append(f"make mine says:\n{mine}")
    print("\n".join(failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    if "--help" in sys.argv:
        sys.exit(print(__doc__))
    main()
