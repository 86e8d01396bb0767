#!/usr/bin/env python3
"""Lesson zero, and a training step in CUDA, with what exercises that are passed have made, for `make mine`.

A function that an exercise asks for in the words of lesson zero takes the place of that one. Others are called by a few
lines in its place (CALLED). The step (dev/course/step.cu) has the kernels of exercises as they are.
"""
import pathlib
import re
import subprocess
import sys
import time

import programs
from pages import definition
from programs import LESSON, Problem, split_includes

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

STEP = pathlib.Path("dev/course/step.cu")
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


def kernels(exercises):
    """The exercises whose kernels the step launches: its first comment names each kernel and, last, its exercise."""
    listed = re.findall(r"^//     (\w+) .*?([\w-]+)$", STEP.read_text(), re.M)
    return [e for e in exercises if any((f, e.name) in listed for f in e.functions)]


def step_with(parts, passed):
    """The step, behind the kernels of these exercises: yours of those that are passed, else the model solution."""
    includes, given = [], ""
    for e in parts:
        space = "mine_" + e.name.replace("-", "_")
        path, text = (e.my, e.my.read_text()) if e in passed else (e.path, e.sections["solution"])
        given += programs.in_namespace(space, path, 1, text, includes)
        given += "".join(f"using {space}::{name};\n" for name in e.functions)
    return programs.prelude("cuda") + "\n".join(includes) + f'\n{given}#line 1 "{STEP}"\n' + STEP.read_text()


def built(name, text, cuda=False):
    """The program, compiled as exercises on speed are, or for the simulator."""
    command, margins = programs.shared_parts("cuda") if cuda else (programs.command_of("fast"), None)
    if cuda:  # without the counts, which take most of the time
        command = [f for f in programs.command_of("cuda") if f not in programs.settings("COUNT")] + ["-O2"]
    part = programs.Compilation(name, text, command, kept=True, cuda=cuda)
    if not part.wait():
        raise Problem(f"what passed one by one does not compile together, in {part.source}:\n{part.said}")
    program, said = programs.link(name + "_gpt2", [part.target] + [margins] * cuda, "cuda" if cuda else "fast")
    if not program:
        raise Problem(said)
    return program


def trained(program, settings):
    """The first and the last loss, and what the training took."""
    begin = time.time()
    done = subprocess.run([str(program), *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    losses = re.findall(r"\| loss (\S+)", done.stdout)
    if done.returncode or not losses:
        raise Problem(f"{program} ended with status {done.returncode}: {done.stderr.strip() or done.stdout[-500:]}")
    return float(losses[0]), float(losses[-1]), len(losses), time.time() - begin


def compared(what, parts, state_of, build, settings=()):
    """Says how many parts are yours. If any, builds the program with them and without, trains both; the status."""
    passed = {e: None for e in parts if state_of(e) == "done"}
    missing = [e.name for e in parts if e not in passed]
    print(f"{len(passed)} of {len(parts)} {what} are yours"
          f"{': ' + ', '.join(e.name for e in passed) if passed else ''}.")
    if missing:
        print(f"Not yet: {', '.join(missing)}.\nNext: make exercise EX={missing[0]}")
    if not passed:
        return 0
    original, program = build({}), build(passed)
    print(f"\n{program} {' '.join(settings)}", flush=True)
    rows = [("yours", *trained(program, settings)), ("the original", *trained(original, settings))]
    for name, first, last, steps, seconds in rows:
        print(f"  {name:14} loss {first:.4f} at first, {last:.4f} after {steps} steps, {seconds:.1f} s")
    if not abs(rows[0][2] - rows[1][2]) <= 0.02 * rows[1][2]:
        print("The two losses are further apart than rounding explains: something that its judge did not see is wrong.")
        return 1
    return 0


def mine(exercises, state_of):
    parts, steps = places(exercises), kernels(exercises)
    status = compared("parts of lesson zero", parts, state_of, lambda passed: built(
        *(("mine", lesson_with({e: parts[e] for e in passed})) if passed else ("lesson_zero", LESSON.read_text()))),
        SETTINGS)
    print()
    return compared("kernels of a CUDA training step", steps, state_of, lambda passed: built(
        "mine_step" if passed else "model_step", step_with(steps, passed), cuda=True)) or status
