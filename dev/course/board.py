#!/usr/bin/env python3
"""The board: best bits per byte on the repository's Shakespeare, trained in ten minutes on two cores.

    make board                                          every entry of dev/course/board, three seeds each
    dev/course/board.py dev/course/board/mine           one entry
    dev/course/board.py --minutes 0.5 --write           a smaller budget; the table goes into chapter 33

An entry is a folder with entry.json:

    {"what": "one sentence", "vocabulary": 4096, "model": "L4C192H6T128", "steps": 1400, "flags": "-b 16 -t 128 ..."}

vocabulary is a number of tokens, learned from the training text, "bytes" or "gpt2"; steps are those of ten minutes, and
fewer in proportion with another budget. flags are any of the trainer's but those that name files and those that the
board gives. Files of the entry's folder src take the place of the repository's (src/llmc/optim/muon.h that of
llmc/optim/muon.h): then the trainer is compiled from a copy of the repository.

The clock is that of the processor: so many minutes of two cores, which other programs change little. A run that needs
more is ended and has no result. What counts is the model file that it leaves, evaluated by the repository's own trainer
on the whole validation text. While an entry trains, that text is not in its folder, nor can a flag name a file. What an
entry changes in the sources is limited to so many characters that the validation text does not fit, and counted in the
table, to be read by people.
"""
import argparse
import array
import datetime
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
import readme  # noqa: E402

BOARD = ROOT / "build/board"
RESULTS, PAGE = HERE / "board.json", HERE / "33-the-board.md"
SEEDS, CORES, FULL_MINUTES = (42, 1, 2), 2, 10
MOST_SOURCE = 65536  # characters that an entry may add to the sources; the validation text has seven times as many
END_OF_TEXT = 50256
# What the board gives, or what would make a run something else than a training from nothing.
GIVEN = ("-i", "--train-data", "-j", "--val-data", "--tokenizer", "-o", "--out-dir", "-e", "--model", "-x",
         "--max-steps", "--threads", "--seed", "-y", "--resume", "--max-minutes", "--stop", "--config", "--plan",
         "-pn", "--num-processes", "-v", "--val-every", "-s", "--sample-every", "-h", "--hellaswag")


class Refused(Exception):
    """Becomes one sentence and status 2."""


# ---- entries

def is_number(word):
    try:
        return float(word) == float(word)
    except ValueError:
        return False


def load(folder):
    """What an entry says, once it has been looked at."""
    try:
        entry = json.loads((folder / "entry.json").read_text())
    except (OSError, ValueError) as error:
        raise Refused(f"{folder}: no entry.json that can be read: {error}")
    kinds = {"what": str, "vocabulary": (int, str), "model": str, "steps": int, "flags": str}
    for name, kind in kinds.items():
        if not isinstance(entry.get(name), kind) or isinstance(entry.get(name), bool):
            raise Refused(f"{folder}/entry.json: {name} is missing or of another kind")
    if set(entry) - set(kinds):
        raise Refused(f"{folder}/entry.json: unknown: {', '.join(sorted(set(entry) - set(kinds)))}")
    if not re.fullmatch(r"[a-z0-9-]+", folder.name):
        raise Refused(f"{folder.name}: an entry's name has small letters, digits and - alone")
    if entry["vocabulary"] not in ("bytes", "gpt2") and not (
            isinstance(entry["vocabulary"], int) and 257 <= entry["vocabulary"] <= 65535):
        raise Refused(f"{folder}/entry.json: vocabulary is {entry['vocabulary']}; 257 to 65535, bytes and gpt2 are "
                      "accepted")
    if entry["steps"] < 1:
        raise Refused(f"{folder}/entry.json: steps is {entry['steps']}; 1 or more is accepted")
    for word in [entry["model"], *entry["flags"].split()]:
        name, _, value = word.partition("=")
        if name in GIVEN:
            raise Refused(f"{folder}/entry.json: {name} is not the entry's to give")
        if not is_number(value or word) and (re.search(r"[/.~]", word) or (ROOT / word).exists()):
            raise Refused(f"{folder}/entry.json: {word} names a file: an entry begins from nothing")
    return {**entry, "name": folder.name, "folder": folder, "changed": changes(folder)}


def changes(folder):
    """(path in the repository, characters added) of each file of src."""
    found = []
    for path in sorted((folder / "src").rglob("*")):
        where = path.relative_to(folder / "src")
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Refused(f"{path}: only files are accepted")
        if path.is_dir():
            continue
        if not re.match(r"(llmc/.*\.h|train_gpt2_cpu\.cpp)$", str(where)):
            raise Refused(f"{path}: headers of llmc and train_gpt2_cpu.cpp may be changed")
        old = (ROOT / where).read_text().split("\n") if (ROOT / where).exists() else []
        known = set(old)
        found.append((where, sum(len(line) + 1 for line in path.read_text().split("\n") if line not in known)))
    if sum(n for _, n in found) > MOST_SOURCE:
        raise Refused(f"{folder}/src adds more than {MOST_SOURCE} characters to the sources")
    return found


def trainer_of(entry):
    """The program that trains: the repository's, or one compiled from a copy with the entry's files."""
    if not entry["changed"]:
        return ROOT / "train_gpt2_cpu"
    tree = BOARD / entry["name"] / "tree"
    listed = subprocess.run(["git", "ls-files", "Makefile", "*.mk", "*.h", "*.cpp", "*.sed", "llmc"], cwd=ROOT,
                            stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    shutil.rmtree(tree, ignore_errors=True)
    for name in listed:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for where, _ in entry["changed"]:
        (tree / where).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(entry["folder"] / "src" / where, tree / where)
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(["make", "-s", "-j2", "train_gpt2_cpu"], cwd=tree, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=clean)
    if done.returncode:
        raise Refused(f"{entry['folder']}/src does not compile:\n{done.stdout[-3000:]}")
    return tree / "train_gpt2_cpu"


# ---- data

def text_of(split):
    """The bytes of a token file of the repository, whatever vocabulary an entry has."""
    tokens = array.array("H")
    tokens.frombytes((ROOT / f"dev/data/shakespeare_{split}.bin").read_bytes()[1024:])
    ids = " ".join(str(token) for token in tokens if token != END_OF_TEXT)
    return subprocess.run(["./tokenize", "--decode"], cwd=ROOT, input=ids.encode(), stdout=subprocess.PIPE,
                          check=True).stdout


def tokenized(split, vocabulary, folder):
    """Writes a split as tokens; the vocabulary is learned from the training text. Returns the path of the tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    text, prefix = folder / f"{split}.txt", folder / split
    text.write_bytes(text_of(split))
    how = {"bytes": ["--bytes", "1"], "gpt2": []}.get(vocabulary, ["--train-vocab", str(vocabulary)])
    if split == "val":
        how = ["--tokenizer", str(tokenizer_of(vocabulary))]
    subprocess.run(["./tokenize", *how, str(text), "--val-fraction", "0", "-o", str(prefix)], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    text.unlink()
    return folder / f"{split}_train.bin"


def tokenizer_of(vocabulary):
    learned = BOARD / f"data-{vocabulary}" / "train_tokenizer.bin"
    return ROOT / "dev/data/gpt2_tokenizer.bin" if vocabulary == "gpt2" else learned


# ---- runs

def two_cores(seconds):
    """To be called in the process that becomes the trainer: two cores, and no more processor time than these have."""
    def apply():
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
        limit = max(1, round(seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (limit + 1, limit + 5))  # the exact limit is compared afterwards
    return apply


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def train(entry, trainer, seed, minutes):
    """Runs an entry once. Returns (the model file, processor seconds)."""
    folder = BOARD / entry["name"] / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    data = BOARD / f"data-{entry['vocabulary']}"
    steps = max(1, round(entry["steps"] * minutes / FULL_MINUTES))
    command = [trainer, "-e", entry["model"], "-i", data / "train_train.bin", "-j", data / "train_train.bin",
               "--tokenizer", tokenizer_of(entry["vocabulary"]), *entry["flags"].split(), "-x", steps, "-v", 0, "-s", 0,
               "--seed", seed, "--threads", CORES, "-o", folder / "out"]
    limit, before = CORES * 60 * minutes, processor_seconds()
    with open(folder / "log", "w") as log:
        status = subprocess.run([str(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT, preexec_fn=two_cores(limit),
                                env={"PATH": os.environ["PATH"]}).returncode
    seconds = processor_seconds() - before
    if seconds > limit or status == -24:
        raise Refused(f"{entry['name']}, seed {seed}: {seconds:.0f} s of the processor, where {limit:.0f} are allowed")
    models = sorted(folder.glob("out/model_*.bin"), key=lambda path: ("_ema_" in path.name, path.name))
    if status or not models:
        raise Refused(f"{entry['name']}, seed {seed}: the run failed:\n{(folder / 'log').read_text()[-1500:]}")
    return models[-1], seconds, steps


def bits_per_byte(entry, model):
    """Of the whole validation text, which exists as tokens only for so long, by the repository's own trainer."""
    hidden = BOARD / "val"
    val = tokenized("val", entry["vocabulary"], hidden)
    try:
        said = subprocess.run(["./train_gpt2_cpu", "-e", str(model), "-i", str(val), "-j", str(val), "--tokenizer",
                               str(tokenizer_of(entry["vocabulary"])), "-b", "8", "-x", "0", "-m", "-1", "-s", "0",
                               "--quiet", "1"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    bits = re.search(r"^bits per byte (\S+)$", said.stdout, re.M)
    if said.returncode or not bits or not 0 < float(bits[1]) < 20:
        raise Refused(f"{entry['name']}: the model cannot be evaluated:\n{said.stdout[-1500:]}")
    return float(bits[1])


def result_of(folder, minutes, seeds):
    entry = load(folder)
    trainer = trainer_of(entry)
    if not tokenizer_of(entry["vocabulary"]).exists() or not (
            BOARD / f"data-{entry['vocabulary']}" / "train_train.bin").exists():
        tokenized("train", entry["vocabulary"], BOARD / f"data-{entry['vocabulary']}")
    runs = []
    for seed in seeds:
        model, seconds, steps = train(entry, trainer, seed, minutes)
        runs.append((bits_per_byte(entry, model), seconds))
        print(f"{entry['name']}, seed {seed}: {runs[-1][0]:.4f} bits per byte, {seconds:.0f} s of the processor",
              flush=True)
    return {"entry": entry["name"], "what": entry["what"], "minutes": minutes, "steps": steps,
            "bits": [bits for bits, _ in runs], "seconds": max(seconds for _, seconds in runs),
            "changed": sum(n for _, n in entry["changed"]), "cpu": readme.this_cpu()[1],
            "date": datetime.date.today().isoformat()}


# ---- the table

def table(results):
    lines = ["| entry | bits per byte | spread | steps | processor | sources changed | CPU | date | |",
             "|---|---|---|---|---|---|---|---|---|"]
    for r in sorted(results, key=lambda r: (-r["minutes"], statistics.median(r["bits"]))):
        seeds = "" if len(r["bits"]) == len(SEEDS) else f" ({len(r['bits'])} seed)"
        budget = "" if r["minutes"] == FULL_MINUTES else f", budget {r['minutes']:g} min"
        lines.append(f"| `{r['entry']}` | {statistics.median(r['bits']):.4f}{seeds} | "
                     f"{max(r['bits']) - min(r['bits']):.4f} | {r['steps']:,} | {r['seconds']:.0f} s{budget} | "
                     f"{r['changed'] or 'none'} | {r['cpu']} | {r['date']} | {r['what']} |")
    return "\n".join(lines)


def known_results(path=RESULTS):
    return json.loads(path.read_text()) if path.exists() else []


def write(results):
    readme.replace(RESULTS, json.dumps(results, indent=1) + "\n")
    readme.write_between(PAGE, "board", table(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=pathlib.Path, help="entries (all of dev/course/board)")
    parser.add_argument("--minutes", type=float, default=FULL_MINUTES, help="of two cores")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--write", action="store_true", help="the results and the table of chapter 33")
    parser.add_argument("--table", action="store_true", help="writes the table of the results that are there")
    args = parser.parse_args()
    if not 0 < args.minutes <= FULL_MINUTES:
        parser.error(f"--minutes {args.minutes}: more than 0, at most {FULL_MINUTES} is accepted")
    folders = args.folders or sorted(path.parent for path in (HERE / "board").glob("*/entry.json"))
    results, refused = known_results(), []
    same = lambda a, b: all(a[key] == b[key] for key in ("entry", "minutes", "cpu"))
    for folder in [] if args.table else folders:
        try:
            new = result_of(folder.resolve(), args.minutes, args.seeds)
        except Refused as reason:  # the others go on
            refused.append(str(reason))
            continue
        results = [old for old in results if not same(old, new)] + [new]
        if args.write:
            write(results)
    BOARD.mkdir(parents=True, exist_ok=True)
    (BOARD / "board.md").write_text(table(results) + "\n")
    print(table(results))
    if args.table:
        write(results)
    if refused:
        raise Refused("\n".join(refused))


if __name__ == "__main__":
    try:
        main()
    except Refused as refused:
        print(f"board.py: {refused}", file=sys.stderr)
        sys.exit(2)
