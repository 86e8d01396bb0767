#!/usr/bin/env python3
"""How the programs of exercise.py are put together and compiled.

The student's file and the judge are two objects: that of the judge is kept from one time to the next, and what the
student's refers to can be looked at. Headers that all of them include are compiled once (g++ alone).
"""
import hashlib
import os
import pathlib
import re
import resource
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from pages import quoted  # noqa: E402

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

BUILD = pathlib.Path(os.environ.get("B", "build")) / "exercises"
LESSON = pathlib.Path("dev/course/gpt2.cpp")
HEADERS = {"cuda": ["judge_cuda.h"]}  # of dev/course/exercises, by kind
# Functions of llmc that are what some exercise asks for: not there for the student, who may have others of these names.
HIDDEN = ["warp_sum", "warp_max", "block_sum", "for_each_pack"]

# What no solution needs: by the names of functions in the object that the compiler makes of it.
REFUSED = [
    (r"v?fork|_Fork|clone\d?|syscall|system|popen|exec\w+|posix_spawn\w*|kill|raise|ptrace|process_vm_\w+",
     "starts other programs, or makes calls of the system"),
    (r"pthread_create|_ZNSt6thread\w*|GOMP_\w+|__kmpc_\w+", "starts threads, whose work is not measured"),
    (r"(?!_Z|_*pthread|__[at]san_)\w*((?<!th)read|recv|gets|getw|getc|getwc|getchar|getline|getdelim|scanf|open|mmap|"
     r"io_)\w*|creat|splice|vmsplice|tee|sendfile\w*|copy_file_range|stdin|socket\w*|_ZSt3w?cin|"
     r"\w*basic_(i|o)?fstream\w*|\w*basic_filebuf\w*|\w*filesystem\w*", "reads files or input"),
    (r"dl(open|v?sym|addr|_iterate_phdr)|_*(sig)?longjmp|signal|sigaction|getenv|secure_getenv|setrlimit|prctl|"
     r"atexit|at_quick_exit|clock_gettime|mprotect|allocated_bytes", "reaches around its judge"),
]
# The same where memory is limited (Judge::within), which counts operator new.
MEMORY = (r"malloc|calloc|realloc|reallocarray|(posix_)?mem_?align|aligned_alloc|_Zn[wa]mSt11align_val_t\w*|sbrk",
          "takes memory that is not counted: std::vector's is")
NO_ASSEMBLY = "".join(f"#define {word} assembly_is_not_asked_for\n" for word in ("asm", "__asm", "__asm__"))
COMPILE_SECONDS, MEMORY_BYTES = 3 * int(os.environ.get("EXERCISE_SECONDS", 20)), 4 << 30
LARGEST_ARRAYS = 32768  # bytes of arrays outside of functions, or in the frame of one


class Problem(Exception):
    """Becomes one sentence and status 2."""


def definitions(path, names):
    """The definitions of these names at the top level of a C++ file."""
    try:
        return "".join("\n".join(quoted(path, f"{name} body")) + "\n" for name in names)
    except LookupError as error:
        raise Problem(f"{path} {error}")


# ---- texts

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


def prelude(kind):
    """What all programs of a kind begin with."""
    headers = HEADERS.get(kind, ["judge.h", "ranks.h", "disk.h", "chain.h"])
    return ("#define EXERCISE_IN_CUDA\n" if kind == "cuda" else "") + "".join(
        f'#include "dev/course/exercises/{h}"\n' for h in headers) + (
            "" if kind == "cuda" else definitions(LESSON, ["Tokens", "Tensor"]))


def student_text(e, text, path):
    """The student's file is in a namespace: it may define names that llmc has too."""
    includes = []
    task = in_namespace("task", e.path, e.lines["task"], e.sections["task"], includes)
    mine = in_namespace("mine", path, 1, text, includes)
    given = "".join(f"extern decltype(task::{f})* const student_{f} = mine::{f};\n" for f in e.functions)
    hidden = "".join(f"template <class... T> void {name}(T...) = delete;\n" for name in HIDDEN if e.cuda)
    return "\n".join(includes) + f"\n{NO_ASSEMBLY}namespace mine {{\n{hidden}}}\n{task}{mine}{given}"


def judging_text(e):
    includes = []
    judge = judge_text(e, [], includes)
    declared = "".join(f"extern decltype({namespace(e)}::task::{f})* const student_{f};\n" for f in e.functions)
    arguments = "".join(f", student_{f}" for f in e.functions)
    return ("\n".join(includes) + "\n" + judge + declared +
            f"int main() {{\nJudge j;\n{namespace(e)}::judge(j{arguments});\nreturn j.verdict();\n}}\n")


def candidates_of(e):
    named = [("solution", e.sections["solution"])]
    named += [("shipped", e.sections["shipped"])] if "shipped" in e.sections else []
    return named + [(f"mistake_{i}", text) for i, (_, text) in enumerate(e.mistakes())]


def proof_text(exercises):
    """One program for several exercises: PROGRAM EXERCISE CANDIDATE judges one of its candidates."""
    includes, judges, calls = [], "", ""
    for e in exercises:
        judges += judge_text(e, candidates_of(e), includes)
        for candidate in ["task"] + [name for name, _ in candidates_of(e)]:
            arguments = "".join(f", {namespace(e)}::{candidate}::{f}" for f in e.functions)
            calls += f'if (asked == "{e.name} {candidate}") {namespace(e)}::judge(j{arguments}), known = true;\n'
    return ("\n".join(includes) + "\n" + judges +
            "int main(int argc, char** argv) {\nJudge j;\nbool known = false;\n"
            'const std::string asked = argc == 3 ? argv[1] + std::string(" ") + argv[2] : "";\n'
            f"{calls}return known ? j.verdict() : 2;\n}}\n")


# ---- the compiler

def settings(name):
    return os.environ.get(f"EXERCISE_{name}", "").split()


def command_of(kind):
    """Compiler and flags, from make: CXX and EXERCISE_*."""
    flags = settings("FLAGS") or "-std=c++17 -O3 -march=native -g1 -pthread -I.".split()
    flags += [f"-Wno-{what}" for what in ("unused-parameter", "unused-variable", "unused-function",
                                          "unused-but-set-variable", "unknown-pragmas", "sign-compare")]
    if kind != "fast":
        flags.append("-O1")
    if kind == "cuda":
        if not settings("OBJECTS"):
            raise Problem("exercises in CUDA are compiled by make: make exercise EX=NAME")
        flags = settings("SIM") + flags + settings("COUNT")
    return os.environ.get("CXX", "g++").split() + flags


def limit_compiler():
    """Of a text that compiles for ever, or includes what has no end."""
    resource.setrlimit(resource.RLIMIT_CPU, (COMPILE_SECONDS,) * 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES,) * 2)


class Compilation:
    """Of a text to an object, or to a compiled header. One that is kept is made again when the text, the command or a
    header has changed; it gets its name when it is complete. limit() is called in the process of the compiler."""
    def __init__(self, name, text, command, kept=False, cuda=False, limit=None):
        BUILD.mkdir(parents=True, exist_ok=True)
        if cuda:
            text = subprocess.run(["sed", "-E", "-f", "dev/cusim/rewrite.sed"], input=text, text=True, check=True,
                                  stdout=subprocess.PIPE).stdout
        header = name.endswith(".h")
        self.source = BUILD / (name if header else name + ".cpp")
        self.target, self.process, self.said = BUILD / (name + (".gch" if header else ".o")), None, ""
        self.key = hashlib.sha256(" ".join(command + [text]).encode()).hexdigest()
        if kept and self.is_fresh():
            return
        self.made = self.target.with_suffix(f".{os.getpid()}")
        written = self.source.with_suffix(f".{os.getpid()}.text")
        written.write_text(text)
        written.rename(self.source)
        self.process = subprocess.Popen(
            command + ["-MMD", "-MF", f"{self.made}.d", "-x", "c++-header" if header else "c++", "-c",
                       str(self.source), "-o", str(self.made)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, preexec_fn=limit)

    def is_fresh(self):
        try:
            made = self.target.stat().st_mtime
            known, *files = pathlib.Path(f"{self.target}.d").read_text().replace("\\\n", " ").split()
            return known == self.key and all(os.stat(f).st_mtime <= made for f in files if not f.endswith(":"))
        except (OSError, ValueError):
            return False

    def wait(self):
        """Whether it compiles."""
        if self.process:
            self.said = self.process.communicate()[0]
            depends = pathlib.Path(f"{self.made}.d")
            if self.process.returncode:
                self.made.unlink(missing_ok=True), depends.unlink(missing_ok=True)
                return False
            depends.write_text(f"{self.key} {depends.read_text()}")
            self.made.rename(self.target), depends.rename(f"{self.target}.d")
        return True


def shared_parts(kind):
    """The command for a kind, with its headers, compiled; and the object with the memory between margins."""
    command = command_of(kind)
    header = Compilation(f"prelude_{kind}.h", prelude(kind), command, kept=True)
    margins = Compilation(f"margins_{kind}", '#include "dev/course/exercises/margins.cpp"\n',
                          command + (["-DEXERCISE_IN_CUDA"] if kind == "cuda" else []), kept=True)
    for part in (header, margins):
        if not part.wait():
            raise Problem(f"{part.source} does not compile:\n{part.said}")
    # What is kept is made again after the headers, whose time is part of the command.
    return command + ["-include", str(header.source), f"-DPRELUDE={header.target.stat().st_mtime_ns}"], margins.target


def link(name, objects, kind):
    program = BUILD / f"{name}.{os.getpid()}"
    sanitizers = [f for f in settings("FLAGS") if f.startswith("-fsanitize")]
    simulator = settings("OBJECTS") + ["-rdynamic", "-ldl"] if kind == "cuda" else []
    done = subprocess.run(os.environ.get("CXX", "g++").split() + sanitizers + ["-pthread", *map(str, objects)] +
                          simulator + ["-o", str(program)] + settings("LIBRARIES"),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        return None, done.stdout
    program.rename(BUILD / name)
    return BUILD / name, done.stdout


def refused_text(text):
    """A sentence about what no solution contains, or None."""
    text = re.sub(r"\\[ \t]*\n", "", text)
    no_code = (r'R"([^()\\\s]*)\(.*?\)\1"|"(\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(\\.|[^\'\\\n])*\'|'
               r"//[^\n]*|/\*.*?\*/")
    code = re.sub(no_code, '""', text, flags=re.S)
    word = re.search(rf"\b(undef|asm|__asm|__asm__|student_\w+)\b|::\s*({'|'.join(HIDDEN)})\b", code)
    return f"it says {word[0]}: a function of its own, in C++, is asked for." if word else None


def refused_files(mine, header):
    """The same about the files that its object is made of: those of the prelude, and of the system."""
    def files(of):
        return {f for f in pathlib.Path(f"{of}.d").read_text().replace("\\\n", " ").split()[1:] if f[-1] != ":"}

    more = sorted(files(mine.target) - files(f"{header}.gch") - {str(mine.source), str(header), f"{header}.gch"})
    return f"it includes {more[0]}: the standard headers, as in #include <vector>, are enough." if more else None


def refused_object(path, limited):
    """The same about what its object refers to and defines."""
    try:
        said = subprocess.run(["nm", "-S", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None  # the judge's word must do
    static_bytes = 0
    for line in said.stdout.split("\n"):
        *numbers, kind, name = line.split() if len(line.split()) > 1 else ("", "")
        if "5Judge" in name:
            return f"it calls its judge ({name})."
        if kind == "U":
            for pattern, what in REFUSED + ([MEMORY] if limited else []):
                if re.fullmatch(pattern, name.split("@")[0]):
                    return f"it {what} ({name})."
        weak_of_c = kind in ("W", "V") and re.fullmatch(r"[a-z]\w*", name)  # stands before that of the C library
        if weak_of_c or kind in tuple("TDBRG") and not re.search("4mine|4task|student_", name):
            return f"it defines {name} outside of its namespace."
        if kind in tuple("bBdD") and len(numbers) == 2:
            static_bytes += int(numbers[1], 16)
    return "it " + MEMORY[1] + "." if limited and static_bytes > LARGEST_ARRAYS else None


def student_program(e):
    """Compiles what is in the student's file with its judge. Returns (program, what the compiler said, None or a
    sentence that says why it is not judged)."""
    text = e.my.read_text(errors="replace")
    refused = refused_text(text)
    if refused:
        return None, "", refused
    command, margins = shared_parts(e.kind)
    limited = "j.within(" in e.sections["judge"]
    name = e.name.replace("-", "_")
    judge = Compilation(f"judge_{name}", judging_text(e), command, kept=True, cuda=e.cuda)
    # Where memory is limited, arrays on the stack are, too.
    stack = ["-Werror=vla", "-Werror=alloca", f"-Werror=frame-larger-than={LARGEST_ARRAYS}"] if limited else []
    mine = Compilation(f"my_{name}", student_text(e, text, e.my), command + stack, cuda=e.cuda, limit=limit_compiler)
    good = mine.wait()
    if not judge.wait():
        raise Problem(f"the judge of {e.name} does not compile:\n{judge.said}")
    if not good:
        return None, mine.said, None
    refused = refused_files(mine, BUILD / f"prelude_{e.kind}.h") or refused_object(mine.target, limited)
    if refused:
        return None, mine.said, refused
    program, said = link(f"my_{name}_judged", [judge.target, mine.target, margins], e.kind)
    return program, mine.said + said, None


def solution_program(e):
    """The model solution with the judge, as the student's is made."""
    command, margins = shared_parts(e.kind)
    name = e.name.replace("-", "_")
    parts = [Compilation(f"judge_{name}", judging_text(e), command, kept=True, cuda=e.cuda),
             Compilation(f"model_{name}", student_text(e, e.sections["solution"], e.path), command, kept=True,
                         cuda=e.cuda)]
    for part in parts:
        if not part.wait():
            raise Problem(f"the solution of {e.name} does not compile:\n{part.said}")
    return link(f"model_{name}_judged", [part.target for part in parts] + [margins], e.kind)[0]


def compile_judge(e):
    """So that it is there when the student's file is to be judged."""
    command, _ = shared_parts(e.kind)
    Compilation(f"judge_{e.name.replace('-', '_')}", judging_text(e), command, kept=True, cuda=e.cuda).wait()


def proof_program(name, exercises, kind):
    command, margins = shared_parts(kind)
    proof = Compilation(name, proof_text(exercises), command, cuda=kind == "cuda")
    if not proof.wait():
        return None, proof.said
    return link(f"{name}_program", [proof.target, margins], kind)
