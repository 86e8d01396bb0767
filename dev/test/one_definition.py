#!/usr/bin/env python3
"""Tests link both trainers: a function that both define under one name and signature would, where it is not inlined, be
replaced by the other trainer's. one_definition.py CXX BUILD compiles both without optimisation, and fails if a symbol
is defined in two files. BUILD has the CUDA sources as the simulator compiles them."""
import os
import re
import subprocess
import sys
import tempfile

if len(sys.argv) != 3 or "--help" in sys.argv:
    sys.exit(print(__doc__) if "--help" in sys.argv else __doc__)
CXX, BUILD = sys.argv[1:]
FLAGS = "-std=c++17 -O0 -g1 -march=native -pthread -I.".split()
SIM = f"-I{BUILD}/sim -Idev/cusim/include -Wno-unknown-pragmas -DUSE_NCCL -x c++".split()


def definitions(source, more):
    """{symbol: file} of all that `source` defines and other files may define as well"""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program")
        subprocess.run([CXX, *more, *FLAGS, "-c", source, "-o", f"{program}.o"], check=True)
        # Linked alone, whatever is missing: nm finds lines in one table much sooner than in one of each function.
        link = ["-no-pie", "-Wl,--unresolved-symbols=ignore-all", f"{program}.o", "-o", program]
        subprocess.run([CXX, *link], check=True)
        lines = subprocess.run(["nm", "-l", program], check=True, capture_output=True, text=True).stdout.splitlines()
    found = [re.match(r"\S+ [WTVu] (\S+)\t(.*):\d+$", line) for line in lines]
    return {match[1]: os.path.basename(match[2]) for match in found if match}


on_cpu = {**definitions("dev/test/cpu_oracle.cpp", []), **definitions("llmc/cpu/compiled_once.cpp", [])}
twice = {}
for precision in ("BF16", "FP32"):  # templates of both trainers are the same functions where both are for fp32
    on_gpu = definitions(f"{BUILD}/sim/test_gpt2.cu", [f"-DPRECISION_{precision}", *SIM])
    both = on_cpu.keys() & on_gpu.keys()
    assert len(both) > 100, f"only {len(both)} symbols are in both programs: nm finds no lines"
    twice |= {symbol: on_gpu[symbol] for symbol in sorted(both) if on_cpu[symbol] != on_gpu[symbol]}
for symbol, file in twice.items():
    name = subprocess.run(["c++filt", symbol], capture_output=True, text=True).stdout.strip()
    print(f"{name} is in {on_cpu[symbol]} and in {file}: make it static, or give one another name")
sys.exit(1 if twice else 0)
