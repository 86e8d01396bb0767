#!/usr/bin/env python3
"""This trainer beside PyTorch, in the same run on the same cores: full training steps of GPT-2 124M in fp32, peak memory, GEMM, tokenizer, generation.

    pip install torch tiktoken transformers   # peers that are not installed are skipped with a message
    make bench                        # or: python3 dev/bench.py [--rounds 2] [--shapes 4x64,4x256,1x1024] [--write]

Rounds are interleaved, each program in its own process; what counts is the ratio of the minima. The table goes to the terminal and, between
its markers, into README.md with --write.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
def have(module):
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0


def child(command, env=None):
    """Runs a command; returns its output and peak resident memory in MiB."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env={**os.environ, **(env or {})})
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))[:200]} failed:\n{output[-2000:]}")
    return output, usage.ru_maxrss / 1024


def ours(B, T, threads, steps):
    flags = ["-e", "d12", "-b", B, "-t", T, "-x", steps + 1, "-v", 0, "-s", 0, "-r", 0, "--threads", threads]
    output, rss = child(["./train_gpt2_cpu", *map(str, flags)])
    plan, _ = child(["./train_gpt2_cpu", *map(str, flags), "--plan"])
    return [float(m) for m in re.findall(r"\| ([\d.]+) ms \|", output)][1:], rss, float(re.search(r"total \d+ bytes, ([\d.]+) MiB", plan)[1])


def torch_step(mode, B, T, threads, steps):
    env = {"THP_MEM_ALLOC_ENABLE": "1"} if mode == "tuned" else {}
    output, rss = child([sys.executable, "dev/torch_step.py", "--mode", mode, "-b", str(B), "-t", str(T), "--threads", str(threads), "--steps", str(steps)], env)
    return [float(v) for v in re.search(r"MS (.*)", output)[1].split()], rss


def bench_steps(args, rows):
    peers = ["eager", "compile", "tuned"] if have("torch") else []
    if not peers:
        print("PyTorch is not installed: the steps of this trainer alone (pip install torch adds the comparison)")
    for B, T in args.shapes:
        times, memory, plan = {}, {}, 0
        for _ in range(args.rounds):
            ms, rss, plan = ours(B, T, args.threads, args.steps)
            times.setdefault("ours", []).extend(ms)
            memory["ours"] = max(memory.get("ours", 0), rss)
            for peer in peers:
                ms, rss = torch_step(peer, B, T, args.threads, args.steps)
                times.setdefault(peer, []).extend(ms)
                memory[peer] = max(memory.get(peer, 0), rss)
        for name, ms in times.items():
            ms.sort()
            label = "this trainer, fp32" if name == "ours" else f"PyTorch {name}, fp32"
            note = f"plan {plan:.0f} MiB" if name == "ours" else f"{ms[0] / times['ours'][0]:.2f} times ours"
            rows.append({"what": f"step ({B},{T})", "who": label, "min_ms": ms[0], "median_ms": ms[len(ms) // 2], "MiB": memory[name], "note": note})
            print("{what:16} {who:24} min {min_ms:8.1f} ms  median {median_ms:8.1f} ms  {MiB:6.0f} MiB  {note}".format(**rows[-1]), flush=True)


def bench_gemm(args, rows):
    output, _ = child(["build/bench_gemm", str(args.threads)])
    print(output, end="")
    for name, gflops, percent in re.findall(r"^(.*?)\s+([\d.]+) GFLOP/s\s+([\d.]+)% of peak", output, re.M):
        if "all of a step" in name:  # the single products are on the terminal
            rows.append({"what": "GEMM", "who": " ".join(name.split()), "note": f"{gflops} GFLOP/s, {percent}% of the FMA peak"})


TIKTOKEN = r"""
import glob, time, tiktoken
data, at, ranks = open("dev/data/gpt2_tokenizer.bin", "rb").read(), 1024, {}
for i in range(50256):
    ranks[data[at + 1:at + 1 + data[at]]] = i
    at += 1 + data[at]
e = tiktoken.Encoding("gpt2", pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s", mergeable_ranks=ranks, special_tokens={})
text = "".join(open(f).read() for f in sorted(glob.glob("dev/data/shakespeare/*.txt")))
e.encode_ordinary(text[:1000])
t = time.perf_counter()
e.encode_ordinary(text)
print("MS", 1e3 * (time.perf_counter() - t))
"""


def bench_tokenizer(args, rows):
    texts = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "dev/data/shakespeare").glob("*.txt"))
    out = ROOT / "build/bench_tokens"
    mine, theirs = [], []
    for _ in range(3 * args.rounds):
        begin = time.perf_counter()
        child(["./tokenize", *texts, "-o", str(out)])
        mine.append(1e3 * (time.perf_counter() - begin))
        if have("tiktoken"):
            theirs.append(float(child([sys.executable, "-c", TIKTOKEN])[0].split()[-1]))
    rows.append({"what": "tokenize 5 MB", "who": "this tokenizer, one core", "min_ms": min(mine), "note": "whole program: start, reading, writing"})
    print(f"tokenize 5 MB    this tokenizer           min {min(mine):8.1f} ms (whole program)")
    if theirs:
        rows.append({"what": "tokenize 5 MB", "who": "tiktoken, one core", "min_ms": min(theirs), "note": f"encode_ordinary alone; {min(theirs) / min(mine):.2f} times ours"})
        print(f"tokenize 5 MB    tiktoken                 min {min(theirs):8.1f} ms (encode alone)  {min(theirs) / min(mine):.2f} times ours")
    else:
        print("tiktoken is not installed: skipped (pip install tiktoken adds the comparison)")


GENERATE = r"""
import sys, time, torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.set_num_threads(int(sys.argv[1]))
model, tokens, cache = GPT2LMHeadModel(GPT2Config()).eval(), torch.tensor([[50256]]), None
with torch.no_grad():
    for i in range(100):
        if i == 20: t = time.perf_counter()
        out = model(tokens, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        tokens = torch.multinomial(torch.softmax(out.logits[:, -1], -1), 1)
print("MS", 1e3 * (time.perf_counter() - t) / 80)
"""


def bench_generation(args, rows):
    """Milliseconds a token of GPT-2 124M with a key/value cache: ours from the difference of a long and a short run."""
    model = ROOT / "build/bench_model"
    if not (model / "model_00000001.bin").exists():
        child(["./train_gpt2_cpu", "-e", "d12", "-b", "1", "-t", "8", "-x", "1", "-v", "0", "-s", "0", "-o", str(model)])
    def seconds(tokens):
        begin = time.perf_counter()
        child(["./train_gpt2_cpu", "-e", str(model / "model_00000001.bin"), "-b", "1", "-t", "8", "-x", "0", "-v", "0", "-g", str(tokens), "--threads", str(args.threads)])
        return time.perf_counter() - begin
    mine, theirs = [], []
    for _ in range(args.rounds + 1):
        mine.append(1e3 * (min(seconds(100), seconds(100)) - min(seconds(20), seconds(20))) / 80)
        if have("transformers"):
            theirs.append(float(child([sys.executable, "-c", GENERATE, str(args.threads)])[0].split()[-1]))
    rows.append({"what": "generation, a token", "who": "this trainer, fp32", "min_ms": min(mine), "median_ms": sorted(mine)[len(mine) // 2], "note": "key/value cache"})
    print(f"generation       this trainer             min {min(mine):8.1f} ms a token")
    if theirs:
        rows.append({"what": "generation, a token", "who": "PyTorch (transformers), fp32", "min_ms": min(theirs), "median_ms": sorted(theirs)[len(theirs) // 2], "note": f"{min(theirs) / min(mine):.2f} times ours"})
        print(f"generation       PyTorch (transformers)   min {min(theirs):8.1f} ms a token  {min(theirs) / min(mine):.2f} times ours")
    else:
        print("transformers is not installed: generation alone (pip install transformers adds the comparison)")


def write_readme(rows, machine):
    readme = ROOT / "README.md"
    lines = [f"Measured {time.strftime('%Y-%m-%d')} on {machine} by `make bench`.", "", "| what | who | min | median | peak memory | |", "|---|---|---|---|---|---|"]
    for r in rows:
        cell = lambda key, unit: f"{r[key]:,.0f} {unit}" if key in r else ""
        lines.append(f"| {r['what']} | {r['who']} | {cell('min_ms', 'ms')} | {cell('median_ms', 'ms')} | {cell('MiB', 'MiB')} | {r['note']} |")
    text = readme.read_text()
    begin, end = "<!-- bench begin -->", "<!-- bench end -->"
    readme.write_text(text[:text.index(begin) + len(begin)] + "\n" + "\n".join(lines) + "\n" + text[text.index(end):])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shapes", default="4x64,4x256,1x1024")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    args = parser.parse_args()
    args.shapes = [tuple(map(int, s.split("x"))) for s in args.shapes.split(",")]
    rows = []
    bench_gemm(args, rows)
    bench_steps(args, rows)
    bench_tokenizer(args, rows)
    bench_generation(args, rows)
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()) if os.path.exists("/proc/cpuinfo") else None
    isa = "AVX-512" if cpu and "avx512f" in pathlib.Path("/proc/cpuinfo").read_text() else platform.machine()
    machine = f"{cpu[1] if cpu else platform.processor()} ({isa}), {args.threads} threads"
    (ROOT / "build/bench.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    if args.write:
        write_readme(rows, machine)


if __name__ == "__main__":
    main()
