#!/usr/bin/env python3
"""The exercises of the course. Standard library only; `make exercise EX=NAME` and `make grade` call it.

    exercise.py judge NAME       the first time copies the stub to dev/course/my/, afterwards judges what is there
    exercise.py show NAME        judges it, and writes a page of its run in the simulator beside it (show.py)
    exercise.py mine             lesson zero with your own functions is built and trained, beside the original
    exercise.py grade            the table of all exercises: which are done, which is next
    exercise.py table [--check]  writes the table of README.md
    exercise.py prove KIND...    tests the judges: the solution passes, the stub and every listed mistake fail with the
                                 hint that fits. KIND: model, fast, cuda, or names of exercises. With
                                 EXERCISE_TIMES=no, as in make test-all, what is right but slow passes

An exercise is one file, NAME.cpp or NAME.cu, in sections that begin with `// ----- SECTION`:

    task       what the student gets: the description and the stub
    solution   the definition that takes its place; `// ----- solution: FILE NAMES` takes functions of that file
    shipped    optional: the same by functions of llmc/; the judge must pass it too
    mistakes   `//     KEY: OLD ==> NEW` replaces all OLD in the solution (`;;` and more of that), and the judge must
               give the hint KEY
    limits     optional: `//     KERNEL METRIC <= NUMBER, KEY: HINT` (or >=) of the simulator's counts
    judge      void judge(Judge&, decltype(task::FUNCTION)*...), see judge.h
"""
import hashlib
import json
import os
import pathlib
import re
import sys
import time

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
os.chdir(ROOT)
sys.path.insert(0, str(HERE))
import mine  # noqa: E402
import programs  # noqa: E402
import show  # noqa: E402
from programs import Problem, definitions  # noqa: E402
from runs import MEANING, limits_of, run_judge  # noqa: E402

MY = pathlib.Path(os.environ.get("EXERCISE_MY", "dev/course/my"))
SECTION = re.compile(r"^// ----- (task|solution|shipped|mistakes|limits|judge)(?:: (.*))?$")
UNTIMED = os.environ.get("EXERCISE_TIMES") == "no"  # judge.h, faster()


def chapters():
    """{number: (title, page or "")} of the table of chapters in dev/course/README.md."""
    rows = re.findall(r"^\| \[?(\d+b?)\. ([^|\]]+?)(?:\]\((.*?)\))? \|", (HERE.parent / "README.md").read_text(), re.M)
    return {number: (title, page) for number, title, page in rows}


class Exercise:
    def __init__(self, track, name, minutes, chapter, title):
        self.track, self.name, self.minutes, self.title = track, name, int(minutes), title
        self.number, (self.chapter, self.page) = chapter, chapters()[chapter]
        self.path = next((p for p in (HERE / f"{name}.cpp", HERE / f"{name}.cu") if p.exists()), None)
        if not self.path:
            raise Problem(f"dev/course/exercises/{name}.cpp or .cu is missing")
        self.path = self.path.relative_to(ROOT)
        self.my = MY / self.path.name
        self.cuda = self.path.suffix == ".cu"
        self.sections, self.lines, current = {}, {}, None
        for number, line in enumerate(self.path.read_text().split("\n"), 1):
            begins = SECTION.match(line)
            if begins:
                current = begins.group(1)
                self.sections[current], self.lines[current] = "", number + 1
                if begins.group(2):
                    file, *names = begins.group(2).split()
                    self.sections[current] = definitions(pathlib.Path(file), names)
            elif current:
                self.sections[current] += line + "\n"
        missing = {"task", "solution", "mistakes", "judge"} - set(self.sections)
        if missing:
            raise Problem(f"{self.path} has no section {', '.join(sorted(missing))}")
        self.functions = re.findall(r"decltype\(task::(\w+)\)\s*\*", self.sections["judge"])
        limits = re.sub(r"\n//      +", " ", self.sections.get("limits", ""))
        self.limits = [(kernel, name, sign, float(bound), key, hint) for kernel, name, sign, bound, key, hint in
                       re.findall(r"^//     (\w+) ([\w-]+) ([<>]=) ([\d.]+), ([\w-]+): (.+)$", limits, re.M)]
        self.kind = "cuda" if self.cuda else "fast" if "j.faster(" in self.sections["judge"] else "model"

    def mistakes(self):
        """(key, text of the solution with this mistake) of each line of the section."""
        found = []
        # A line that is indented further goes on with the one before.
        lines = re.sub(r"\n//      +", " ", self.sections["mistakes"]).replace(";;  ", ";; ")
        for key, changes in re.findall(r"^//     ([\w-]+): (.+)$", lines, re.M):
            text = self.sections["solution"]
            for change in changes.replace("\\n", "\n").split(" ;; "):
                old, _, new = change.partition(" ==>")
                if old not in text:
                    raise Problem(f"{self.path}: the solution does not contain {old!r} of mistake {key}")
                text = text.replace(old, new.lstrip())
            found.append((key, text))
        return found


def all_exercises():
    found, track = [], ""
    for line in (HERE / "exercises.txt").read_text().split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            track = line.strip()
            continue
        found.append(Exercise(track, *line.split(None, 3)))
    return found


def exercise_of(name):
    for exercise in all_exercises():
        if exercise.name == name:
            return exercise
    raise Problem(f"there is no exercise {name!r}; make grade lists them")


# ---- what students call

def results():
    try:
        return json.loads((MY / "results.json").read_text())
    except (OSError, ValueError):
        return {}


def digest(e):
    return hashlib.sha256(e.my.read_bytes() + e.path.read_bytes()).hexdigest()


def judge(e):
    """Judges the student's file and keeps the result. Returns (passed, what to print)."""
    begin = time.time()
    program, said, refused = programs.student_program(e)
    if program:
        passed, text = run_judge(program, [], e)
        text = said + re.sub(r"^  bits .*\n", "", text, flags=re.M)  # run_judge compares them
    elif refused:
        passed, text = False, f"{said}hint (forbidden): {refused}\n"
    else:
        passed, text = False, said + f"\n{e.my} does not compile. The function must stay as the stub declares it.\n"
    keep(e, passed, begin)
    return passed, text


def keep(e, passed, begin):
    known = results()
    known[e.name] = {"digest": digest(e), "passed": passed, "seconds": round(time.time() - begin, 1)}
    part = MY / "results.json.tmp"
    part.write_text(json.dumps(known, indent=1) + "\n")
    part.rename(MY / "results.json")


def give_stub(e):
    """Copies the stub to the student's folder; False if it is there already."""
    MY.mkdir(parents=True, exist_ok=True)
    if e.my.exists():
        return False
    note = "// Tensor is that of dev/course/gpt2.cpp, section 1.\n" if "Tensor" in e.sections["task"] else ""
    e.my.write_text(f"// {e.title}. About {e.minutes} minutes; chapter {e.number}, {e.chapter}.\n{note}//\n" +
                    e.sections["task"].strip("\n") + "\n")
    return True


def show_command(name):
    e = exercise_of(name)
    if not e.my.exists():
        return judge_command(name)
    begin = time.time()
    passed, text, page = show.show(e)
    keep(e, passed, begin)
    print(f"{e.my}, judged by {e.path}\n\n{text.rstrip()}")
    if page:
        print(f"\nWhat the threads did: {page} (open it in a browser)")
    return 0 if passed else 1


def judge_command(name):
    e = exercise_of(name)
    if give_stub(e):
        print(f"{e.my} is yours: {e.title}, about {e.minutes} minutes.\nWrite the body of {' and '.join(e.functions)}; "
              f"the comment says what it computes. Then, to have it judged:\n\n    make exercise EX={e.name}\n")
        print(how_judged(e), flush=True)
        programs.compile_judge(e)
        return 0
    passed, text = judge(e)
    print(f"{e.my}, judged by {e.path}\n\n{text.rstrip()}")
    if passed:
        done = results()
        following = [x.name for x in all_exercises() if not done.get(x.name, {}).get("passed")]
        print(f"\nJudged in {done[e.name]['seconds']:.0f} s. " +
              (f"Next: make exercise EX={following[0]}" if following else "That was the last one."))
    return 0 if passed else 1


def how_judged(e):
    ways = ["for several sizes, odd ones too, beside an independent computation in double; it names the first wrong "
            "element, and the mistake"]
    if "finite_differences(" in e.sections["judge"]:
        ways.append("gradients by finite differences of the forward pass")
    if e.kind == "fast":
        ways.append("by the ratio of its time to that of the plain loop, measured in the same run")
    if e.cuda:
        ways.append("in the simulator; it needs no GPU: out of bounds, uninitialised memory, barriers that do not "
                    "match, races")
    ways += [f"by its counts: {MEANING[name]}, at {'most' if sign == '<=' else 'least'} {bound:g}"
             for _, name, sign, bound, *_ in limits_of(e)]
    return "It is judged\n" + "\n".join(f"  - {w}" for w in ways)


def state_of(e):
    """done, wrong, begun or nothing; judges again what has changed."""
    if not e.my.exists():
        return ""
    known = results().get(e.name)
    if not known or known["digest"] != digest(e):
        print(f"judging {e.name} ...", file=sys.stderr, flush=True)
        judge(e)
        known = results()[e.name]
    return "done" if known["passed"] else "not yet"


def grade_command():
    exercises, track, following, done = all_exercises(), None, None, 0
    for e in exercises:
        if e.track != track:
            track = e.track
            print(f"\n{track}")
        state = state_of(e)
        done += state == "done"
        if state != "done" and not following:
            following, state = e, state or "next"
        print(f"  {e.name:28} {state:8} {e.minutes:3} min   {e.title} (chapter {e.number})")
    print(f"\n{done} of {len(exercises)} done." + (f" Next: make exercise EX={following.name}" if following else ""))
    return 0


# ---- README and tests

def table_command(check):
    readme = HERE / "README.md"
    rows = ["| exercise | minutes | chapter | |", "|---|---|---|---|"]
    track = None
    for e in all_exercises():
        if e.track != track:
            track = e.track
            rows.append(f"| **{track}** | | | |")
        chapter = f"[{e.number}. {e.chapter}](../{e.page})" if e.page else f"{e.number}. {e.chapter}"
        rows.append(f"| [`{e.name}`]({e.path.name}) | {e.minutes} | {chapter} | {e.title} |")
    before = readme.read_text()
    after = re.sub(r"(<!-- table begin -->\n).*?(<!-- table end -->)",
                   lambda m: m.group(1) + "\n".join(rows) + "\n" + m.group(2), before, flags=re.S)
    if check and after != before:
        raise Problem("the table of dev/course/exercises/README.md is not that of exercises.txt: exercise.py table")
    readme.write_text(after)
    minutes = {e.name: e.minutes for e in all_exercises()}
    for page in sorted(HERE.parent.glob("*.md")):
        for name, said in re.findall(r"make exercise EX=([\w-]+)(?: +# (\d+) minutes)?", page.read_text()):
            if name not in minutes or said and int(said) != minutes[name]:
                raise Problem(f"{page.name}: exercises.txt has no exercise {name} of {said} minutes")
    return 0


def expect_hint(e, program, candidate, key):
    """Runs one candidate; None if it fails with this hint (or passes, if the key is None), else what it did."""
    passed, text = run_judge(program, [e.name, candidate], e)
    found = re.findall(r"^hint \(([\w-]+)\): \S", text, re.M)
    if key is None:
        return None if passed and not found else text
    return None if not passed and found[-1:] == [key] else text


def prove_command(kinds):
    exercises = [e for e in all_exercises() if e.kind in kinds or e.name in kinds]
    failures = 0
    for kind in sorted({e.kind for e in exercises}):
        group = [e for e in exercises if e.kind == kind]
        program, said = programs.proof_program("proof_" + "_".join(kinds), group, kind)
        if not program:
            print(said)
            return 1
        for e in group:
            trials = [("task", "nothing")] + [(s, None) for s in ("solution", "shipped") if s in e.sections]
            trials += [(f"mistake_{i}", None if key == "slow" and UNTIMED else key)
                       for i, (key, _) in enumerate(e.mistakes())]
            if len(e.mistakes()) < 3:
                failures += 1
                print(f"FAILED {e.name}: fewer than three mistakes")
            for candidate, key in trials:
                wrong = expect_hint(e, program, candidate, key)
                failures += wrong is not None
                if wrong is not None:
                    print(f"FAILED {e.name} {candidate}: expected {key or 'a pass'}:\n{wrong}")
            print(f"{e.name}: {len(trials)} candidates judged", flush=True)
    return 1 if failures or not exercises else 0


def main():
    command, *arguments = sys.argv[1:] or ["grade"]
    if command == "judge" and arguments and arguments[0]:
        return judge_command(arguments[0])
    if command == "show" and arguments and arguments[0]:
        return show_command(arguments[0])
    if command in ("grade", "judge"):
        return grade_command()
    if command == "mine":
        return mine.mine(all_exercises(), state_of)
    if command == "table":
        return table_command("--check" in arguments)
    if command == "prove" and arguments:
        return prove_command(arguments)
    raise Problem(f"unknown command {command!r}: judge NAME, show NAME, grade, mine, table or prove KIND")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        print(f"exercise.py: {problem}", file=sys.stderr)
        sys.exit(2)
