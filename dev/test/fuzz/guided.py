#!/usr/bin/env python3
"""Looks for inputs that break a parser's promise, for as long as it is given: `make fuzz MINUTES=10`.

    dev/test/fuzz/guided.py MINUTES [PARSER...] [--keep]

With clang's libFuzzer, which changes inputs by what they reach in the parser (fuzz_parsers.cpp); without it, by cases
of seeds that were not tried before. An input that breaks a promise is kept in build/fuzz, and the exit status is 1.
What libFuzzer has found to reach is kept in build/fuzz/found, where the next time begins; --keep adds a few small
inputs of each parser to dev/test/fuzz/corpus, with which the tests begin.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
PARSERS, GUIDED = ROOT / "build-address/fuzz_parsers", ROOT / "build/fuzz/guided"
FOUND, CORPUS = ROOT / "build/fuzz/found", ROOT / "dev/test/fuzz/corpus"
KEPT, LARGEST_KEPT = 8, 512  # inputs of a parser, bytes of one
FLAGS = ["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=0", "-verbosity=1"]


def guided(parser, seconds):
    """Runs libFuzzer on a parser; the failure, or None."""
    folders = [FOUND / parser, ROOT / "build/fuzz/seeds" / parser]
    folders += [CORPUS / parser] if (CORPUS / parser).is_dir() else []
    folders[0].mkdir(parents=True, exist_ok=True)
    done = subprocess.run([GUIDED, *FLAGS, f"-max_total_time={seconds:.0f}", f"-artifact_prefix=build/fuzz/{parser}-",
                           *folders], cwd=ROOT, env={**os.environ, "FUZZ_PARSER": parser}, capture_output=True)
    said = done.stderr.decode(errors="replace")
    last = [line for line in said.splitlines() if re.match(r"#\d", line)][-1:]
    print(f"{parser:10s} {' '.join(last[0].split()[2:8]) if last else 'no case was run'}", flush=True)
    good = done.returncode == 0 and last
    return None if good else f"{parser}: libFuzzer ends with {done.returncode}\n{said[-3000:]}"


def at_random(seconds):
    """Runs cases of new seeds until the time is over; the failures."""
    until, failed = time.monotonic() + seconds, []
    while time.monotonic() < until and not failed:
        seed = random.SystemRandom().randrange(1 << 40)
        done = subprocess.run([PARSERS, "--seed", str(seed)], cwd=ROOT, capture_output=True)
        said = done.stdout.decode(errors="replace")
        print(f"seed {seed}: {said.splitlines()[-1] if said else done.stderr.decode()}", flush=True)
        failed += [said] if done.returncode else []
    return failed


def keep(parser):
    """Adds some small inputs, of all sizes, to the corpus: of those that reach what it and the seeds do not."""
    merged = ROOT / "build/fuzz/merged" / parser
    shutil.rmtree(merged, ignore_errors=True)
    shutil.copytree(ROOT / "build/fuzz/seeds" / parser, merged)
    (CORPUS / parser).mkdir(parents=True, exist_ok=True)
    shutil.copytree(CORPUS / parser, merged, dirs_exist_ok=True)
    known = set(merged.iterdir())
    subprocess.run([GUIDED, "-merge=1", f"-artifact_prefix=build/fuzz/{parser}-", merged, FOUND / parser], cwd=ROOT,
                   check=True, env={**os.environ, "FUZZ_PARSER": parser}, capture_output=True)
    sized = sorted((path.stat().st_size, path) for path in merged.iterdir() if path not in known)
    small = [path for size, path in sized if size <= LARGEST_KEPT]
    kept = small[::-(-len(small) // KEPT) or 1]
    for path in kept:
        shutil.copyfile(path, CORPUS / parser / path.name[:12])
    print(f"{parser:10s} {len(sized)} inputs reach what seeds and corpus do not; kept: {len(kept)}")


def main():
    flags = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    flags.add_argument("minutes", type=float)
    flags.add_argument("parsers", nargs="*")
    flags.add_argument("--keep", action="store_true")
    options = flags.parse_args()
    names = subprocess.run([PARSERS, "--list"], capture_output=True, text=True, check=True).stdout.split()
    parsers, jobs = options.parsers or names, os.cpu_count()
    if not GUIDED.exists():
        print("clang with libFuzzer is not there (apt-get install clang): cases at random")
        failed = at_random(60 * options.minutes)
    else:
        subprocess.run([PARSERS, "--seeds", ROOT / "build/fuzz/seeds"], cwd=ROOT, check=True)
        seconds = max(1, 60 * options.minutes * min(jobs, len(parsers)) / len(parsers))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            failed = [wrong for wrong in pool.map(lambda name: guided(name, seconds), parsers) if wrong]
    print("\n".join(failed) or "no promise was broken")
    if options.keep and GUIDED.exists() and not failed:
        for parser in parsers:
            keep(parser)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
