#!/usr/bin/env python3
"""Lesson zero in WebAssembly (build/lesson.js, in node) saves a model with which gpt2 has the same losses on the same
text, and takes at most three times the CPU time of gpt2.cpp compiled for this machine, on one thread.

    dev/test/browser_lesson.py               12 steps
    dev/test/browser_lesson.py --write       and trains for three minutes; what it writes then, into dev/MEASURED.md

The latter on an idle machine. A word that it writes counts as one if the plays have it, and has four letters or more:
shorter ones are hit by chance.
"""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
from readme import MEASURED, this_cpu, write_of_machine
STEPS, LEAST_SHARE, TOLERANCE = 12, 1 / 3, 2e-4
SECONDS = 20, 60, 180
FLAGS = "-std=c++17 -O3 -march=native -ffp-contract=fast -fno-math-errno -fopenmp-simd -w".split()
NODE = """
const fs = require("fs"), path = require("path");
(async () => {
    const [steps, ...seconds] = process.argv.slice(1).map(Number), lesson = await require("./build/lesson.js")();
    const samples = [];
    const names = fs.readdirSync("dev/data/shakespeare").filter((name) => name.endsWith(".txt")).sort();
    const text = Buffer.concat(names.map((name) => fs.readFileSync(path.join("dev/data/shakespeare", name))));
    const at = lesson._malloc(text.length), losses = [], begin = Date.now();
    lesson.HEAPU8.set(text, at);
    lesson._begin(at, text.length, 1000, seconds.length ? 1 : 0);
    lesson._save();
    fs.writeFileSync("build/lesson_model.bin", lesson.FS.readFile("model.bin"));
    const header = Buffer.alloc(1024), tokens = Buffer.alloc(2 * text.length);
    [20240520, 1, text.length].forEach((number, i) => header.writeInt32LE(number, 4 * i));
    text.forEach((byte, i) => tokens.writeUInt16LE(byte, 2 * i));
    fs.writeFileSync("build/lesson_text.bin", Buffer.concat([header, tokens]));
    const cpu = process.cpuUsage();
    while (seconds.length ? samples.length < seconds.length : losses.length < steps) {
        losses.push(lesson._train());
        if (seconds.length === 0 || Date.now() - begin < seconds[samples.length] * 1000) continue;
        const letters = Array.from({length: 1000}, (_, i) => lesson._write(i === 0 ? 1 : 0));
        samples.push({step: losses.length, loss: losses.at(-1), text: String.fromCharCode(...letters)});
    }
    const used = process.cpuUsage(cpu).user / 1e6;
    console.log(JSON.stringify({losses, used, samples}));
})();
"""


def in_wasm(steps, *seconds):
    done = subprocess.run(["node", "-e", NODE, str(steps), *map(str, seconds)], cwd=ROOT, stdout=subprocess.PIPE,
                          check=True)
    return json.loads(done.stdout)


def native(steps, program):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    files = ["build/lesson_model.bin", "build/lesson_text.bin"]
    done = subprocess.run([program, *files, f"steps={steps}", "report=0", "shuffle=0"], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)], used


def words(text):
    return [word.lower() for word in re.findall("[A-Za-z]{4,}", text)]


def write_first_words(share):
    """Trains for the longest of SECONDS and writes what the samples show into the page."""
    plays = set(words("".join(path.read_text() for path in (ROOT / "dev/data/shakespeare").glob("*.txt"))))
    kind, cpu = this_cpu()
    lines = [f"Measured {time.strftime('%Y-%m-%d')} on {cpu}, one thread, by `dev/test/browser_lesson.py --write`.",
             f"A step has {share:.2f} of the speed that g++ gives it.", "",
             "| after | steps | loss | words of four letters or more that the plays have | the first of them |",
             "|---|---|---|---|---|"]
    for seconds, sample in zip(SECONDS, in_wasm(0, *SECONDS)["samples"]):
        written = words(sample["text"])
        known = [word for word in written if word in plays]
        lines.append(f"| {seconds} s | {sample['step']} | {sample['loss']:.2f} | {len(known)} of {len(written)} "
                     f"| {', '.join(known[:5])} |")
    write_of_machine(ROOT / MEASURED, "browser", kind, "\n".join(lines))


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = folder + "/gpt2"
        subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, ROOT / "dev/course/gpt2.cpp", "-o", program], check=True)
        shares = []
        for _ in range(3):                                       # in turn; the best counts, for others may be at work
            wasm, (losses, used) = in_wasm(STEPS), native(STEPS, program)
            shares.append((used - native(0, program)[1]) / wasm["used"])     # less the reading of the text
    apart = max(abs(a - b) for a, b in zip(wasm["losses"], losses))
    print(f"losses apart by {apart:.1e}; {max(shares):.2f} of the speed of one native thread")
    if "--write" in sys.argv[1:]:
        write_first_words(max(shares))
    sys.exit(not (apart < TOLERANCE and len(losses) == STEPS and max(shares) >= LEAST_SHARE))


if __name__ == "__main__":
    main()
