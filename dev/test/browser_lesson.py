#!/usr/bin/env python3
"""Lesson zero in WebAssembly (build/lesson.js, in node) saves a model with which gpt2 has the same losses on the same
text, and takes at most three times the CPU time of gpt2.cpp compiled for this machine, on one thread.

    dev/test/browser_lesson.py               12 steps
    dev/test/browser_lesson.py SECONDS       trains so long instead, and shows what it writes
"""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS, LEAST_SHARE, TOLERANCE = 12, 1 / 3, 2e-4
FLAGS = "-std=c++17 -O3 -march=native -ffp-contract=fast -fno-math-errno -fopenmp-simd -w".split()
NODE = """
const fs = require("fs"), path = require("path");
(async () => {
    const [steps, seconds] = process.argv.slice(1).map(Number), lesson = await require("./build/lesson.js")();
    const names = fs.readdirSync("dev/data/shakespeare").filter((name) => name.endsWith(".txt")).sort();
    const text = Buffer.concat(names.map((name) => fs.readFileSync(path.join("dev/data/shakespeare", name))));
    const at = lesson._malloc(text.length), losses = [], begin = Date.now();
    lesson.HEAPU8.set(text, at);
    lesson._begin(at, text.length, 1000, seconds ? 1 : 0);
    lesson._save();
    fs.writeFileSync("build/lesson_model.bin", lesson.FS.readFile("model.bin"));
    const header = Buffer.alloc(1024), tokens = Buffer.alloc(2 * text.length);
    [20240520, 1, text.length].forEach((number, i) => header.writeInt32LE(number, 4 * i));
    text.forEach((byte, i) => tokens.writeUInt16LE(byte, 2 * i));
    fs.writeFileSync("build/lesson_text.bin", Buffer.concat([header, tokens]));
    const cpu = process.cpuUsage();
    while (seconds ? Date.now() - begin < seconds * 1000 : losses.length < steps) losses.push(lesson._train());
    const used = process.cpuUsage(cpu).user / 1e6, sample = [];
    for (let i = 0; i < 300; i++) sample.push(lesson._write(i === 0 ? 1 : 0));
    console.log(JSON.stringify({losses, used, sample: String.fromCharCode(...sample)}));
})();
"""


def in_wasm(steps, seconds=0):
    done = subprocess.run(["node", "-e", NODE, str(steps), str(seconds)], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def native(steps, program):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    files = ["build/lesson_model.bin", "build/lesson_text.bin"]
    done = subprocess.run([program, *files, f"steps={steps}", "report=0", "shuffle=0"], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)], used


def main():
    if len(sys.argv) > 1:
        done = in_wasm(0, int(sys.argv[1]))
        sys.exit(print(f"{len(done['losses'])} steps, loss {done['losses'][-1]:.3f}\n{done['sample']}"))
    with tempfile.TemporaryDirectory() as folder:
        program = folder + "/gpt2"
        subprocess.run([os.environ.get("CXX", "g++"), *FLAGS, ROOT / "dev/course/gpt2.cpp", "-o", program], check=True)
        shares = []
        for _ in range(3):                                       # in turn; the best counts, for others may be at work
            wasm, (losses, used) = in_wasm(STEPS), native(STEPS, program)
            shares.append((used - native(0, program)[1]) / wasm["used"])     # less the reading of the text
    apart = max(abs(a - b) for a, b in zip(wasm["losses"], losses))
    print(f"losses apart by {apart:.1e}; {max(shares):.2f} of the speed of one native thread")
    sys.exit(not (apart < TOLERANCE and len(losses) == STEPS and max(shares) >= LEAST_SHARE))


if __name__ == "__main__":
    main()
