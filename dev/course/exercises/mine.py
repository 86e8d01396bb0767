#!/usr/bin/env python3
"""Lesson zero with the functions of exercises that are passed, for `make mine`.

A function that an exercise asks for in the words of lesson zero takes the place of that one. Others are called by a few
lines in its place (CALLED).
"""
import re
import subprocess
import sys
import time

import programs
from pages import definition
from programs import BUILD, LESSON, Problem, split_includes

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

SETTINGS = "layers=2 heads=2 channels=64 batch=4 length=64 steps=60 warmup=10 report=0".split()
# By exercise: what is defined in lesson zero, and what takes its place.
CALLED = {
    "gradient-clipping": ("gradient_norm", """double gradient_norm(Model& model) {
    std::vector<std::vector<float>> grads;
    for (Parameter* p : model.parameters()) grads.push_back(p->grad);
    return NAMESPACE::clip_gradients(grads, 1e30);
}"""),
    "learning-rate": ("learning_rate", """double learning_rate(const Settings& s, int64_t step) {
    return NAMESPACE::learning_rate(step, s.steps, s.warmup, s.rate, s.final_rate);
}"""),
    "adamw": ("adamw", """void adamw(Model& model, const Settings& s, double rate, double norm, int64_t t) {
    for (Parameter* p : model.parameters()) {
        for (float& g : p->grad) g *= norm > 1 ? (float)(1 / norm) : 1.0f;
        NAMESPACE::adamw(p->value.data(), p->m.data(), p->v.data(), p->grad.data(), (int64_t)p->value.size(),
                         (float)rate, p->decayed ? (float)s.decay : 0.0f, t);
    }
}"""),
}


def places(exercises):
    """{exercise: (names in lesson zero, text that calls the exercise's, or None)} of those that are a part of it."""
    lesson, found = LESSON.read_text(), {}
    for e in exercises:
        heads = [re.search(rf"^\w+ {f}\(.*\{{$", e.sections["task"], re.M) for f in e.functions]
        if e.name in CALLED:
            found[e] = ([CALLED[e.name][0]], CALLED[e.name][1])
        elif all(head and f"\n{head[0]}\n" in lesson for head in heads):
            found[e] = (e.functions, None)
    return found


def lesson_with(passed):
    """Lesson zero, in which these exercises have taken their places. Lines keep their numbers and names."""
    lines, includes = LESSON.read_text().split("\n"), []
    changes = []  # first and last line, what comes in their place
    for e, (names, call) in passed.items():
        space = "mine_" + e.name.replace("-", "_")
        more, text = split_includes(e.my.read_text())
        includes += [i for i in more if i not in includes]
        given = f'namespace {space} {{\n#line 1 "{e.my}"\n{text}\n}}\n'
        for name in names:
            first, last = definition(lines, name)
            given += call.replace("NAMESPACE", space) if call else f"using {space}::{name};"
            changes.append((first, last, f'{given}\n#line {last + 2} "{LESSON}"'))
            given = ""
    for first, last, text in sorted(changes, reverse=True):
        lines[first:last + 1] = [text]
    return "\n".join(includes + [f'#line 1 "{LESSON}"'] + lines)


def built(name, text):
    """The program, compiled as exercises on speed are."""
    part = programs.Compilation(name, text, programs.command_of("fast"), kept=True)
    if not part.wait():
        return None, part.said
    return programs.link(name + "_gpt2", [part.target], "fast")


def trained(program):
    """The last loss, and what the training took."""
    begin = time.time()
    done = subprocess.run([str(program), *SETTINGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    losses = re.findall(r"\| loss (\S+) ", done.stdout)
    if done.returncode or not losses:
        raise Problem(f"{program} ended with status {done.returncode}: {done.stderr.strip() or done.stdout[-500:]}")
    return float(losses[0]), float(losses[-1]), time.time() - begin


def mine(exercises, state_of):
    parts = places(exercises)
    passed = {e: place for e, place in parts.items() if state_of(e) == "done"}
    missing = [e.name for e in parts if e not in passed]
    print(f"{len(passed)} of {len(parts)} parts of lesson zero are yours"
          f"{': ' + ', '.join(e.name for e in passed) if passed else ''}.")
    if missing:
        print(f"Not yet: {', '.join(missing)}.\nNext: make exercise EX={missing[0]}")
    if not passed:
        return 0
    original, said = built("lesson_zero", LESSON.read_text())
    if not original:
        raise Problem(f"{LESSON} does not compile:\n{said}")
    program, said = built("mine", lesson_with(passed))
    if not program:
        raise Problem(f"what passed one by one does not compile together, in {BUILD}/mine.cpp:\n{said}")
    print(f"\n{program} {' '.join(SETTINGS)}", flush=True)
    rows = [("yours", *trained(program)), ("the original", *trained(original))]
    for name, first, last, seconds in rows:
        print(f"  {name:14} loss {first:.4f} at first, {last:.4f} after {SETTINGS[5][6:]} steps, {seconds:.1f} s")
    if not abs(rows[0][2] - rows[1][2]) <= 0.02 * rows[1][2]:
        print("The two losses are further apart than rounding explains: something that its judge did not see is wrong.")
        return 1
    return 0
