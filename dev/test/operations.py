#!/usr/bin/env python3
"""What runs depend on beside the programs: every message that dev/troubleshooting.md quotes is in the sources; the
commands of scripts/Dockerfile build what its later stages take, from what it copies and nothing else; and its images
let mpirun run as root. Compilers are stand-ins that note nothing and write the program asked for; dev/test/dist.sh has
a build with a real one."""
import errno
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OURS = ("error: ", "warning: ", "rank ")  # how lines of the trainers begin
OTHERS = ("NCCL WARN ", "NCCL INFO ", "dmesg: ", "slurmstepd: ", "mpirun ")
SHORTEST = 8  # characters of a piece that is looked for
SYSTEM = [os.strerror(number) for number in errno.errorcode]  # strerror()
LIBRARIES = {"error: CUDA, ": ["out of memory"], "error: NCCL, ": ["unhandled system error"]}


def literals():
    """The text of all string literals, adjacent ones joined, cut at conversions of printf."""
    texts = []
    for pattern in ("llmc/**/*.h", "llmc/**/*.cuh", "llmc/**/*.cpp", "*.cu", "*.cpp"):
        for path in ROOT.glob(pattern):
            for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', path.read_text()):
                text = re.sub(r'"\s*"', "", match[0])[1:-1].replace('\\"', '"')
                texts += re.split(r"%[-+ 0#]*[0-9.*]*(?:ll|z|l)?[a-zA-Z]", text)
    return texts


def pieces(line):
    """The fixed parts of a quoted message that is ours."""
    for begin in OURS[:2]:
        line = line.removeprefix(begin)
    return [piece for piece in (part.strip(" :;,.") for part in line.split("...")) if len(piece) >= SHORTEST]


def foreign_removed(line):
    """A quoted line without the sentences that the system or a library puts into it."""
    texts = SYSTEM + [text for begin, found in LIBRARIES.items() if line.startswith(begin) for text in found]
    for text in sorted(texts, key=len, reverse=True):
        line = line.replace(f": {text}", ": ...")
    return line


def problems_of_page(text, known):
    """What is wrong with the quotes of a page."""
    quotes = re.findall(r"^    (\S.*)$", text, re.M)
    found = [] if len(quotes) > 20 else [f"only {len(quotes)} messages are quoted"]
    for quote in quotes:
        if quote.startswith(OTHERS):
            continue
        parts = pieces(foreign_removed(quote))
        if not quote.startswith(OURS) or not parts:
            found.append(f"{quote!r} is no message of the trainers, and names no other program")
        found += [f"no source says {part!r} (of {quote!r})" for part in parts if not any(part in k for k in known)]
    return found


def check_page():
    text, known = (ROOT / "dev/troubleshooting.md").read_text(), literals()
    found = problems_of_page(text, known)
    # The check itself: a word changed in a message is found, wherever it is.
    for there, changed in (("one of them hangs", "one of them hung"), ("another token", "another key"),
                           ("did not connect", "never connected"), ("--plan shows", "--plan says")):
        if not problems_of_page(text.replace(there, changed), known):
            found.append(f"the check does not notice {changed!r}")
    return found


def instructions(dockerfile):
    """(stage, instruction, arguments) of a Dockerfile, without comments."""
    text = re.sub(r"^#.*\n", "", dockerfile, flags=re.M).replace("\\\n", " ")
    stage = None
    for line in filter(None, (line.strip() for line in text.split("\n"))):
        word, rest = line.split(None, 1)
        if word == "FROM":
            stage = rest.split(" AS ")[1]
        yield stage, word, rest


STAND_IN = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
[ -n "$out" ] || exit 0
echo "touch dev/data/shakespeare_train.bin dev/data/shakespeare_val.bin" > "$out"
chmod +x "$out"
"""


ROOT_ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def without_root(dockerfile):
    """The stages that have mpirun, and in which it would refuse to run as root."""
    have, allowed = set(), {}
    for stage, word, rest in instructions(dockerfile):
        if word == "ENV":
            allowed.setdefault(stage, {}).update(pair.split("=") for pair in rest.split())
        if word == "RUN" and "openmpi-bin" in rest:
            have.add(stage)
    return sorted(stage for stage in have if not ROOT_ALLOWED.items() <= allowed.get(stage, {}).items())


def check_root():
    dockerfile = (ROOT / "scripts/Dockerfile").read_text()
    found = [f"the image {stage}: mpirun refuses root" for stage in without_root(dockerfile)]
    if without_root(dockerfile.replace("_CONFIRM=1", "_CONFIRM=0")) != ["cpu", "cuda"]:
        found.append("the check does not notice an image whose mpirun refuses root")
    if os.geteuid() == 0 and shutil.which("mpirun"):
        ran = subprocess.run(["mpirun", "--oversubscribe", "-np", "1", "true"], env={**os.environ, **ROOT_ALLOWED},
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if ran.returncode:
            found.append(f"mpirun refuses root with the variables of the images: {ran.stdout[-400:]}")
    return found


# As .dockerignore says; and what other tests may be writing while files are copied.
made_here = shutil.ignore_patterns("*_train.bin", "*_val.bin", "*.tmp", "__pycache__")


def check_dockerfile():
    found, folders, variables = [], {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        tools = pathlib.Path(scratch, "tools")
        tools.mkdir()
        for name in ("g++", "nvcc"):
            (tools / name).write_text(STAND_IN)
            (tools / name).chmod(0o755)
        environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": scratch}
        for stage, word, rest in instructions((ROOT / "scripts/Dockerfile").read_text()):
            folder = folders.setdefault(stage, pathlib.Path(scratch, stage))
            folder.mkdir(exist_ok=True)
            if word == "ARG":
                variables[rest.split("=")[0]] = rest.split("=", 1)[1]
            elif word == "COPY":
                *sources, target = rest.split()
                origin = ROOT
                if sources[0].startswith("--from="):
                    origin = folders[sources.pop(0)[7:]]
                for source in sources:
                    path = origin / source.removeprefix("/gpt2/")
                    if path.is_dir():
                        shutil.copytree(path, folder / target, ignore=made_here if origin == ROOT else None)
                    elif path.exists():
                        shutil.copy(path, folder)
                    else:
                        found.append(f"{stage}: COPY of {source}, which is not there")
            elif word == "RUN" and "apt-get" not in rest:
                ran = subprocess.run(["sh", "-ec", rest], cwd=folder, env={**environment, **variables}, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                if ran.returncode:
                    found.append(f"{stage}: {rest} ended with {ran.returncode}: {ran.stdout[-1000:]}")
        for stage, program in (("cpu", "train_gpt2_cpu"), ("cuda", "train_gpt2cu")):
            for name in (program, "tokenize", "dev/data/shakespeare_train.bin", "dev/data/gpt2_tokenizer.bin"):
                if not (folders[stage] / name).exists():
                    found.append(f"the image {stage} has no {name}")
    return found


if __name__ == "__main__":
    problems = check_page() + check_dockerfile() + check_root()
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)
