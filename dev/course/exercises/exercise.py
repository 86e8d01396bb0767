#!/usr/bin/env python3
"""The exercises of the course. Standard library only; `make exercise EX=NAME` and `make grade` call it.

    exercise.py judge NAME       the first time copies the stub to dev/course/my/, afterwards judges what is there
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
    limits     optional: `//     KERNEL METRIC <= NUMBER, KEY: HINT` of the simulator's counts
    judge      void judge(Judge&, decltype(task::FUNCTION)*...), see judge.h
"""
import hashlib
import json
import os
import pathlib
import re
import secrets
import subprocess
import sys
import time

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
os.chdir(ROOT)
sys.path.insert(0, str(HERE.parent))
from pages import quoted  # noqa: E402

MY = pathlib.Path(os.environ.get("EXERCISE_MY", "dev/course/my"))
BUILD = pathlib.Path(os.environ.get("B", "build")) / "exercises"
LESSON = pathlib.Path("dev/course/gpt2.cpp")
SECTION = re.compile(r"^// ----- (task|solution|shipped|mistakes|limits|judge)(?:: (.*))?$")
CUDA_SEEDS = 4
UNTIMED = os.environ.get("EXERCISE_TIMES") == "no"  # judge.h, faster()

# What the simulator says when it stops a kernel, the key of the mistake, and what it means.
SIMULATOR = [
    ("wrote beyond its memory|byte .* of a device buffer|before a device buffer|beyond the end of the shared|"
     "no device memory", "bounds", "an index is out of range: the last block or the last pass of a loop may have more "
     "threads than elements."),
    ("the same barrier|at the __syncthreads|never come", "divergent", "not all threads of the block reach the same "
     "__syncthreads(): it must not stand where some threads have branched off."),
    ("with mask", "mask", "all lanes that the mask names must come to the same shuffle: none may leave a loop early."),
    ("is not aligned|misaligned", "misaligned", "a vector of n bytes must lie at a multiple of n bytes."),
    ("shared memory|__shared__", "shared", "too much shared memory, or none was given at the launch."),
]
MEANING = {"load-sectors": "sectors of 32 bytes per load of a warp",
           "store-sectors": "sectors of 32 bytes per store of a warp",
           "conflicts": "bank conflicts", "shared-requests": "accesses to shared memory", "atomics": "atomics",
           "reads": "bytes asked for per byte that is read", "writes": "bytes stored per byte that is written",
           "barriers": "barriers per block", "mma": "mma instructions"}


class Problem(Exception):
    """Becomes one sentence and status 2."""


def definitions(path, names):
    """The definitions of these names at the top level of a C++ file."""
    try:
        return "".join("\n".join(quoted(path, f"{name} body")) + "\n" for name in names)
    except LookupError as error:
        raise Problem(f"{path} {error}")


def chapters():
    """{number: (title, page or "")} of the table of chapters in dev/course/README.md."""
    rows = re.findall(r"^\| \[?(\d+)\. ([^|\]]+?)(?:\]\((.*?)\))? \|", (HERE.parent / "README.md").read_text(), re.M)
    return {int(number): (title, page) for number, title, page in rows}


class Exercise:
    def __init__(self, track, name, minutes, chapter, title):
        self.track, self.name, self.minutes, self.title = track, name, int(minutes), title
        self.number, (self.chapter, self.page) = int(chapter), chapters()[int(chapter)]
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
        self.limits = [(kernel, name, float(most), key, hint) for kernel, name, most, key, hint in
                       re.findall(r"^//     (\w+) ([\w-]+) <= ([\d.]+), ([\w-]+): (.+)$", limits, re.M)]
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


# ---- programs

def split_includes(text):
    """Includes must stand outside of namespaces. Lines stay lines."""
    includes = re.findall(r"^#include .*$", text, re.M)
    return includes, re.sub(r"^#include .*$", "", text, flags=re.M)


def in_namespace(name, path, line, text, includes):
    more, text = split_includes(text)
    includes += [i for i in more if i not in includes]
    return f'namespace {name} {{\n#line {line} "{path}"\n{text}\n}}\n'


def judge_text(e, candidates, includes):
    """The judge of an exercise, in a namespace of its own with these (name, text) beside it."""
    text = in_namespace("task", e.path, e.lines["task"], e.sections["task"], includes)
    for name, candidate in candidates:
        text += in_namespace(name, f"{e.path}: {name}", 1, candidate, includes)
    judge = split_includes(e.sections["judge"])
    includes += [i for i in judge[0] if i not in includes]
    return f'namespace {namespace(e)} {{\n{text}\n#line {e.lines["judge"]} "{e.path}"\n{judge[1]}\n}}\n'


def namespace(e):
    return e.name.replace("-", "_") + "_exercise"


def prelude(includes, cuda):
    headers = "#define EXERCISE_IN_CUDA\n" if cuda else ""
    headers += "\n".join(['#include "dev/course/exercises/judge.h"'] + includes)
    return headers + "\n" + ("" if cuda else definitions(LESSON, ["Tokens", "Tensor"]))


def student_program(e):
    """The student's file is in a namespace: it may define names that llmc has too."""
    includes = []
    mine = in_namespace("mine", e.my, 1, e.my.read_text(), includes)
    judge = judge_text(e, [], includes)
    arguments = "".join(f", mine::{f}" for f in e.functions)
    return (prelude(includes, e.cuda) + mine + judge +
            f'int main() {{\nJudge j;\nj.begin();\n{namespace(e)}::judge(j{arguments});\nreturn j.verdict();\n}}\n')


def candidates_of(e):
    named = [("solution", e.sections["solution"])]
    named += [("shipped", e.sections["shipped"])] if "shipped" in e.sections else []
    return named + [(f"mistake_{i}", text) for i, (_, text) in enumerate(e.mistakes())]


def proof_program(exercises):
    """One program for several exercises: PROGRAM EXERCISE CANDIDATE judges one of its candidates."""
    includes, judges, calls = [], "", ""
    for e in exercises:
        judges += judge_text(e, candidates_of(e), includes)
        for candidate in ["task"] + [name for name, _ in candidates_of(e)]:
            arguments = "".join(f", {namespace(e)}::{candidate}::{f}" for f in e.functions)
            calls += f'if (asked == "{e.name} {candidate}") {namespace(e)}::judge(j{arguments}), known = true;\n'
    return (prelude(includes, any(e.cuda for e in exercises)) + judges +
            "int main(int argc, char** argv) {\nJudge j;\nj.begin();\nbool known = false;\n"
            'const std::string asked = argc == 3 ? argv[1] + std::string(" ") + argv[2] : "";\n'
            f"{calls}return known ? j.verdict() : 2;\n}}\n")


def compile_program(name, text, kind):
    """Compiles with what make hands over in CXX and EXERCISE_*; returns (program, what the compiler said)."""
    BUILD.mkdir(parents=True, exist_ok=True)
    source, program = BUILD / f"{name}.cpp", BUILD / name
    if kind == "cuda":
        text = subprocess.run(["sed", "-E", "-f", "dev/cusim/rewrite.sed"], input=text, text=True, check=True,
                              stdout=subprocess.PIPE).stdout
    source.write_text(text)
    compiler = os.environ.get("CXX", "g++").split()
    flags = os.environ.get("EXERCISE_FLAGS", "-std=c++17 -O3 -march=native -g1 -pthread -I.").split()
    flags += [f"-Wno-{what}" for what in ("unused-parameter", "unused-variable", "unused-function",
                                          "unused-but-set-variable", "unknown-pragmas", "sign-compare")]
    libraries = os.environ.get("EXERCISE_LIBRARIES", "").split()
    if kind != "fast":
        flags.append("-O1")
    steps = [compiler + flags + ["-x", "c++", str(source), "-o", str(program)] + libraries]
    if kind == "cuda":
        simulator, objects, count = (os.environ.get(f"EXERCISE_{what}", "").split()
                                     for what in ("SIM", "OBJECTS", "COUNT"))
        if not objects:
            raise Problem("exercises in CUDA are compiled by make: make exercise EX=NAME")
        sanitizer = [f for f in flags if f.startswith("-fsanitize")]
        steps = [compiler + simulator + flags + count + ["-x", "c++", "-c", str(source), "-o", f"{program}.o"],
                 compiler + sanitizer + ["-pthread", f"{program}.o"] + objects + ["-rdynamic", "-ldl", "-o", program] +
                 libraries]
    said = ""
    for step in steps:
        done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said += done.stdout
        if done.returncode != 0:
            return None, said
    return program, said


def run_judge(program, arguments, e, limit=120):
    """Runs the judge; in CUDA in several orders of blocks, warps and lanes. Returns (passed, what was printed). Only
    the judge knows the token that it gets on its standard input, and says after "passed"."""
    token = secrets.token_hex(8)
    text, counts = "", program.with_name(f"{program.name}_{'_'.join(arguments)}.counts")
    counts.unlink(missing_ok=True)
    for seed in range(CUDA_SEEDS if e.cuda else 1):
        settings = {"CUSIM_SEED": str(seed)}
        if e.limits and seed == 0 and os.environ.get("EXERCISE_COUNT"):
            settings["CUSIM_COUNT"] = str(counts)
        try:
            done = subprocess.run([str(program), *arguments], input=f" {token}\n", stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=limit, errors="replace",
                                  env={**os.environ, **settings})
        except subprocess.TimeoutExpired as late:
            return False, ((late.stdout or b"").decode(errors="replace") +
                           f"\nhint (endless): not finished after {limit} s: a loop that does not end.\n")
        if done.returncode != 0:
            if e.cuda and "hint (unknown)" in done.stdout and changes_with_order(program, arguments, done.stdout):
                return False, done.stdout.split("hint (")[0] + RACE
            return False, done.stdout.replace(f"passed {token}\n", "") + explain(done, seed)
        if done.stdout.count(token) != 1 or not done.stdout.endswith(f"passed {token}\n"):
            return False, (done.stdout.replace(token, "") + done.stderr + "\nhint (unfinished): the program has ended "
                           "before its judge had: the function must return, once.\n")
        if seed > 0 and done.stdout != text:
            return False, text + ("hint (order): not the same bits when the threads run in another order "
                                  f"(CUSIM_SEED={seed}): several threads add to the same number.\n")
        text = done.stdout
    passed, counted = judge_counts(e, counts)
    return passed, done.stderr + text.replace(f"passed {token}\n", "" if counted else "passed\n") + counted


def metric(kernel, name):
    """A figure of the counts of a kernel (dev/cusim/README.md); see the limits of an exercise."""
    if name.endswith("-sectors"):  # per request of a warp
        tally = kernel["global_" + name.partition("-")[0]]
        return tally["sectors"] / max(tally["requests"], 1)
    shared = [kernel[kind] for kind in ("shared_load", "shared_store", "cp_async_shared", "ldmatrix")]
    return {"conflicts": sum(t["wavefronts"] - t["wavefronts_without_conflicts"] for t in shared),
            "shared-requests": sum(t["requests"] for t in shared),
            "reads": kernel["global_load"]["bytes"] / max(kernel["read_bytes"], 1),
            "writes": kernel["global_store"]["bytes"] / max(kernel["written_bytes"], 1),
            "atomics": kernel["global_atomic"]["requests"], "barriers": kernel["barriers"] / kernel["blocks"],
            "mma": kernel["warps"].get("mma", 0)}[name]


def judge_counts(e, path):
    """Compares what the simulator counted with the limits of the exercise."""
    if not path.exists():
        return True, ""
    kernels = {k["kernel"]: k for k in map(json.loads, path.read_text().split("\n")[1:-1])}
    text = ""
    for kernel, name, most, key, hint in e.limits:
        value = metric(kernels[kernel], name)
        text += f"  {kernel}: {MEANING[name]} {value:.4g}, asked: at most {most:g}\n"
        if not value <= most:
            return False, text + f"hint ({key}): {hint}\n"
    return True, text + "passed\n"


RACE = ("hint (race): other results when the threads run in another order. A __syncthreads() is missing between the "
        "write of one thread to memory and the read of another, or between a read and the next write.\n")


def changes_with_order(program, arguments, before):
    said = (subprocess.run([str(program), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, errors="replace",
                           env={**os.environ, "CUSIM_SEED": str(seed)}).stdout
            for seed in range(1, 1 + CUDA_SEEDS))
    return any(text != before for text in said)


def explain(done, seed):
    """What to add to the output of a judge that did not pass."""
    if done.returncode < 0:
        return ("\n" + done.stderr + f"\nhint (crash): the program crashed (signal {-done.returncode}) at the sizes of "
                "the last line: an index out of range, or a null pointer. make exercise EX=... SANITIZE=address names "
                "the line.\n")
    if re.search(r"^hint \(", done.stdout, re.M):
        if seed == 0:
            return done.stderr
        return "\n" + RACE
    where = "\n".join(re.findall(r"^ *#0 .*|^.*of size .*|^SUMMARY: .*", done.stderr, re.M))
    if "ThreadSanitizer: data race" in done.stderr:
        return (f"\n{where}\nhint (race): two threads access the same memory, one of them writes, and no barrier is "
                "between the two.\n")
    if "AddressSanitizer" in done.stderr:
        return f"\n{where}\nhint (bounds): this line accesses memory that is not the function's.\n"
    for pattern, key, meaning in SIMULATOR:
        if re.search(pattern, done.stderr):
            return f"\n{done.stderr}hint ({key}): {meaning}\n"
    return f"\n{done.stderr}hint (stopped): the program ended with status {done.returncode}.\n"


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
    program, said = compile_program("my_" + e.name.replace("-", "_"), student_program(e), e.kind)
    if program:
        passed, text = run_judge(program, [], e)
        text = said + re.sub(r"^  bits .*\n", "", text, flags=re.M)  # run_judge compares them
    else:
        passed, text = False, said + f"\n{e.my} does not compile. The function must stay as the stub declares it.\n"
    known = results()
    known[e.name] = {"digest": digest(e), "passed": passed}
    part = MY / "results.json.tmp"
    part.write_text(json.dumps(known, indent=1) + "\n")
    part.rename(MY / "results.json")
    return passed, text


def give_stub(e):
    """Copies the stub to the student's folder; False if it is there already."""
    MY.mkdir(parents=True, exist_ok=True)
    if e.my.exists():
        return False
    note = "// Tensor is that of dev/course/gpt2.cpp, section 1.\n" if "Tensor" in e.sections["task"] else ""
    e.my.write_text(f"// {e.title}. About {e.minutes} minutes; chapter {e.number}, {e.chapter}.\n{note}//\n" +
                    e.sections["task"].strip("\n") + "\n")
    return True


def judge_command(name):
    e = exercise_of(name)
    if give_stub(e):
        print(f"{e.my} is yours: {e.title}, about {e.minutes} minutes.\nWrite the body of {' and '.join(e.functions)}; "
              f"the comment says what it computes. Then, to have it judged:\n\n    make exercise EX={e.name}\n")
        print(how_judged(e))
        return 0
    begin = time.time()
    passed, text = judge(e)
    print(f"{e.my}, judged by {e.path}\n\n{text.rstrip()}")
    if passed:
        done = results()
        following = [x.name for x in all_exercises() if not done.get(x.name, {}).get("passed")]
        print(f"\nJudged in {time.time() - begin:.0f} s. " +
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
    ways += [f"by its counts: {MEANING[name]}, at most {most:g}" for _, name, most, _, _ in e.limits]
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
        program, said = compile_program("proof_" + "_".join(kinds), proof_program(group), kind)
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
    if command in ("grade", "judge"):
        return grade_command()
    if command == "table":
        return table_command("--check" in arguments)
    if command == "prove" and arguments:
        return prove_command(arguments)
    raise Problem(f"unknown command {command!r}: judge NAME, grade, table or prove KIND")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        print(f"exercise.py: {problem}", file=sys.stderr)
        sys.exit(2)
