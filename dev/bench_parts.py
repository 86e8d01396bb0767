"""What dev/bench.py measures: training steps, their products alone, the tokenizer, generation. Each is a class whose
tasks() lists the programs to run, round by round, and a last task that reports."""
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

import shakespeare_tokens
from bench_tasks import ROOT, Task, child, say
from children import have
from readme import this_cpu

# The shape for -e, and for dev/torch_step.py. NANO is that of scripts/shakespeare_char.sh.
NANO, BYTES = "L4C128H4T64V257", "dev/data/shakespeare_bytes"
MODELS = {"d12": "12,768,12,50257", "L2C64H2T64": "2,64,2,50257", NANO: "4,128,4,257"}
OURS = {"fp32": ["--precision", "fp32"], "bf16, fp32 master": ["--precision", "bf16"],
        "bf16, no master": ["--precision", "bf16", "-w", "0"]}
if this_cpu()[0] == "amx":  # elsewhere it does not pay
    OURS["fp32x3"] = ["--precision", "fp32x3"]
# precision, mode: bf16 is autocast with fp32 weights, all-bf16 has no fp32 anywhere
PEERS = ["fp32 eager", "fp32 compile", "fp32 tuned", "bf16 eager", "bf16 compile", "bf16 tuned", "all-bf16 tuned"]
ONLY_AVX2 = this_cpu()[0] == "avx2"
if ONLY_AVX2:  # PyTorch multiplies bf16 one number after the other: its kernels need AVX-512, and a step takes minutes
    PEERS = [peer for peer in PEERS if peer.startswith("fp32")]


class Steps:
    """Training steps at one shape (B, T), of all programs. A model other than that of the bench is so small that many
    steps are timed."""
    def __init__(self, args, B, T, report, model=None):
        self.args, self.B, self.T, self.report = args, B, T, report
        self.model, self.steps = model or args.model, args.steps * (50 if model else 1)
        self.what = f"step ({B},{T})" + (f" of {model}" if model else "")
        self.is_of_bench = model is None
        self.part = "steps" if self.is_of_bench else "small"
        self.times, self.memory, self.plan = {}, {}, {}
        self.rooflines = {}  # by precision: the least bound of a step, and its table, kernel by kernel

    def tasks(self):
        steps, what, tasks = self.steps, self.what, []
        tokens = self.B * self.T * (1 if self.is_of_bench else 0.01)  # what as many of the bench's model cost
        for _ in range(self.args.rounds):
            for name in OURS:
                seconds = 3 + (steps + 1) * tokens * (0.0018 if name == "fp32" else 0.001)
                tasks.append(Task(f"{what}, this trainer, {name}", seconds, lambda name=name: self.ours(name)))
            for peer in self.args.peers:
                start = 8 if "eager" in peer else 45
                seconds = start + (steps + 2) * tokens * (0.0048 if "fp32" in peer else 0.002)
                tasks.append(Task(f"{what}, PyTorch, {peer}", seconds, lambda peer=peer: self.torch(peer)))
            for precision in dict.fromkeys(name.split(",")[0] for name in OURS):
                tasks.append(Task(f"{what}, kernel by kernel, {precision}", 5 + 4 * tokens * 0.0015,
                                  lambda precision=precision: self.roofline(precision)))
        return tasks + [Task("", 0, self.rows)]

    def keep(self, name, ms, rss):
        self.times.setdefault(name, []).extend(ms)
        self.memory[name] = max(self.memory.get(name, 0), rss)

    def ours(self, name):
        command = ["./train_gpt2_cpu", "-e", self.model, "-b", self.B, "-t", self.T, "-x", self.steps + 1,
                   "-v", 0, "-s", 0, "-r", 0, "--threads", self.args.threads, *OURS[name]]
        if self.model == NANO:
            command += ["-i", shakespeare_tokens.made(BYTES) + "_train.bin"]
        output, rss = child(command)
        plan, _ = child(command + ["--plan"])
        self.plan[name] = float(re.search(r"total \d+ bytes, ([\d.]+) MiB", plan)[1])
        self.keep(name, [float(m) for m in re.findall(r"\| ([\d.]+) ms \|", output)][1:], rss)

    def torch(self, peer):
        precision, mode = peer.split()
        env = {"THP_MEM_ALLOC_ENABLE": "1"} if mode == "tuned" else {}
        command = [sys.executable, "dev/torch_step.py", "--mode", mode, "--precision", precision, "-b", self.B,
                   "-t", self.T, "--threads", self.args.threads, "--steps", self.steps,
                   "--shape", MODELS[self.model]]
        output, rss = child(command, env)
        self.keep(peer, [float(v) for v in re.search(r"MS (.*)", output)[1].split()], rss)

    def roofline(self, precision):
        """Beside other work the peaks of a machine are measured too low, so the round that found the highest counts."""
        table, _ = child(["build/bench/roofline", self.B, self.T, precision, self.model, 3, self.args.threads])
        bound = float(re.search(r"^all\s+(.*)", table, re.M)[1].split()[5])
        self.rooflines[precision] = min((bound, table), self.rooflines.get(precision, (math.inf, "")))

    def rows(self):
        for _, table in self.rooflines.values():
            self.report.rooflines.setdefault(self.part, []).append(table)
            say(table)
        for name, ms in self.times.items():
            ms.sort()
            if name in OURS:
                bound, _ = self.rooflines[name.split(",")[0]]
                note = f"{100 * bound / ms[0]:.0f}% of its roofline ({bound:.0f} ms); plan {self.plan[name]:.0f} MiB"
                who = f"this trainer, {name}"
            else:
                precision, mode = name.split()
                rival = {"fp32": "fp32", "bf16": "bf16, fp32 master", "all-bf16": "bf16, no master"}[precision]
                kind = {"fp32": "fp32", "bf16": "bf16 autocast", "all-bf16": "all bf16"}[precision]
                who, note = f"PyTorch {mode}, {kind}", f"{ms[0] / self.times[rival][0]:.2f} times ours, {rival}"
            self.report.row(self.part, self.what, who, ms, note, MiB=self.memory[name])
        for precision, ours in (("fp32", "fp32"), ("bf16", "bf16, fp32 master")) if self.is_of_bench else ():
            theirs = [ms[0] for name, ms in self.times.items() if name.split()[0] == precision and name not in OURS]
            found = (self.times[ours][0], min(theirs, default=None), f"({self.B},{self.T})")
            self.report.steps.setdefault((self.B * self.T, precision), found)


def padded(vocabulary):
    return -(-vocabulary // 128) * 128


class Products:
    """The matrix products of a step with B T rows, of all libraries. The rounds are twice those of steps in number, and
    shorter: if the machine is busy for a minute, each library still meets it at rest."""
    ROUNDS, PASSES = 2, 2
    BLAS = {"as it chooses": {}}
    if not ONLY_AVX2:  # which has not the instructions
        BLAS["SkylakeX"] = {"OPENBLAS_CORETYPE": "SkylakeX"}
    # memory that oneDNN's results have used stays with the process, so that it need not ask for new pages each time
    KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    OURS = {"fp32": "this trainer, fp32", "bf16": "this trainer, bf16"}

    def __init__(self, args, rows, report):
        self.args, self.n_rows, self.report = args, rows, report
        self.passes, self.peak = {}, {}

    def tasks(self):
        what, tasks = f"products of {self.n_rows} rows", []
        seconds = 3 + 3 * self.n_rows * 0.0018
        for _ in range(self.ROUNDS * self.args.rounds):
            for precision in self.OURS:
                tasks.append(Task(f"{what}, this trainer, {precision}", seconds, lambda p=precision: self.ours(p)))
            if self.args.peers:
                tasks.append(Task(f"{what}, PyTorch and oneDNN", 4 * seconds, lambda: self.others("torch", {})))
            if self.args.peers and have("numpy"):
                for kernels, env in self.BLAS.items():
                    tasks.append(Task(f"{what}, OpenBLAS, kernels {kernels}", 2 * seconds,
                                      lambda env=env: self.others("numpy", env)))
        return tasks + [Task("", 0, self.rows)]

    def ours(self, precision):
        output, _ = child(["build/bench/products", self.n_rows, precision, self.args.model, self.PASSES,
                           self.args.threads])
        first, *passes = map(json.loads, output.splitlines())
        self.peak[precision] = max(self.peak.get(precision, 0), first["peak_gflops"])
        self.passes.setdefault(self.OURS[precision], []).extend(passes)

    def others(self, library, env):
        L, C, _, V = map(int, MODELS[self.args.model].split(","))
        command = [sys.executable, "dev/products.py", "--library", library, "--rows", self.n_rows,
                   "--passes", self.PASSES, "--threads", self.args.threads, "--shape", f"{L},{C},{padded(V)}"]
        if ONLY_AVX2:
            command.append("--without-bf16")
        env = {"OPENBLAS_NUM_THREADS": str(self.args.threads), "OPENBLAS_VERBOSE": "2", **self.KEEP_MEMORY, **env}
        output, _ = child(command, env)
        core = re.search(r"^Core: (\S+)", output, re.M)
        for line in re.findall(r"^{.*}$", output, re.M):
            found = json.loads(line)
            name = found["library"].replace("OpenBLAS", f"OpenBLAS for {core[1]}") if core else found["library"]
            self.passes.setdefault(name, []).append(found["ms"])

    def flops(self, product):
        L, C, _, V = map(int, MODELS[self.args.model].split(","))
        inputs, outputs, layers = {"qkv": (C, 3 * C, L), "proj": (C, C, L), "fc": (C, 4 * C, L), "out": (4 * C, C, L),
                                   "head": (C, padded(V), 1)}[product.split()[0]]
        return 2.0 * self.n_rows * inputs * outputs * layers

    def rows(self):
        names = sorted(self.passes, key=lambda name: (name[-4:] == "bf16", name not in self.OURS.values()))
        products = list(self.passes[self.OURS["fp32"]][0])
        total = {name: sorted(sum(ms.values()) for ms in self.passes[name]) for name in names}
        all_flops = sum(map(self.flops, products))
        for name in names:
            gflops, ours = 1e-6 * all_flops / total[name][0], self.OURS[name[-4:]]
            note = f"{gflops:,.0f} GFLOP/s, {100 * gflops / self.peak[name[-4:]]:.0f}% of the peak"
            if name != ours:
                note += f"; {total[name][0] / total[ours][0]:.2f} times ours"
            self.report.row("products", f"products, {self.n_rows} rows", name, total[name], note)
        lines = [f"| {self.n_rows} rows, GFLOP/s | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for product in products:
            best = {name: min(ms[product] for ms in self.passes[name]) for name in names}
            rates = [1e-6 * self.flops(product) / best[name] for name in names]
            lines.append(f"| {product} | " + " | ".join(f"{r:,.0f}" for r in rates) + " |")
        rates = [1e-6 * all_flops / total[name][0] for name in names]
        shares = [100 * r / self.peak[name[-4:]] for r, name in zip(rates, names)]
        cells = [f"{rate:,.0f}, {share:.0f}%" for rate, share in zip(rates, shares)]
        lines.append("| all of a step, of the peak | " + " | ".join(cells) + " |")
        self.report.products.append("\n".join(lines))
        say("\n".join(lines))
        self.report.compare(self.n_rows, {name: ms[0] for name, ms in total.items()})


TIKTOKEN = r"""
import glob, sys, time, tiktoken
data, at, ranks = open("dev/data/gpt2_tokenizer.bin", "rb").read(), 1024, {}
for i in range(50256):
    ranks[data[at + 1:at + 1 + data[at]]] = i
    at += 1 + data[at]
e = tiktoken.Encoding("gpt2",
                      pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
                      mergeable_ranks=ranks, special_tokens={})
texts = 4 * [open(f).read() for f in sorted(glob.glob("dev/data/shakespeare/*.txt"))]
e.encode_ordinary(texts[0][:1000])
t = time.perf_counter()
e.encode_ordinary_batch(texts, num_threads=int(sys.argv[1]))
print("MS", 1e3 * (time.perf_counter() - t))
"""


class Tokenizer:
    """Tokenizing four times the works of Shakespeare, 20 MB, on one core and on two: our whole program, and tiktoken's
    encode_ordinary_batch."""
    def __init__(self, args, report):
        self.args, self.report, self.ms = args, report, {}
        self.cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.cores = [n for n in (1, 2) if n <= len(self.cpus)] if shutil.which("taskset") else [1]

    def on_cores(self, n):
        bound = n <= len(self.cpus) and shutil.which("taskset")
        return ["taskset", "-c", ",".join(map(str, self.cpus[:n]))] if bound else []

    def tasks(self):
        tasks = []
        for _ in range(self.args.rounds):
            for n in self.cores:
                tasks.append(Task(f"tokenize 20 MB, this tokenizer, cores: {n}", 1, lambda n=n: self.ours(n)))
                if self.args.peers and have("tiktoken"):
                    tasks.append(Task(f"tokenize 20 MB, tiktoken, cores: {n}", 3, lambda n=n: self.tiktoken(n)))
        return tasks + [Task("", 0, self.rows)]

    def ours(self, n):
        texts = 4 * sorted((ROOT / "dev/data/shakespeare").glob("*.txt"))
        begin = time.perf_counter()
        child([*self.on_cores(n), "./tokenize", *texts, "--threads", n, "-o", ROOT / "build/bench_tokens"])
        self.ms.setdefault(("this tokenizer", n), []).append(1e3 * (time.perf_counter() - begin))

    def tiktoken(self, n):
        output = child([*self.on_cores(n), sys.executable, "-c", TIKTOKEN, n])[0]
        self.ms.setdefault(("tiktoken", n), []).append(float(output.split()[-1]))

    def rows(self):
        for (who, n), ms in self.ms.items():
            note = "whole program: start, reading, writing"
            if who == "tiktoken":
                note = f"encode_ordinary_batch alone; {min(ms) / min(self.ms['this tokenizer', n]):.2f} times ours"
            cores = ("one core", "two cores")[n - 1]
            self.report.row("tokenizer", "tokenize 20 MB", f"{who}, {cores}", sorted(ms), note)


GENERATE = r"""
import sys, time, torch
from transformers import GPT2Config, GPT2LMHeadModel
threads, dtype, prompt_tokens, count = int(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
model = GPT2LMHeadModel(GPT2Config()).eval().to(dtype)
prompt = torch.randint(50257, (1, prompt_tokens))
reads, ms = [], 0
with torch.no_grad():
    for _ in range(4):
        begin = time.perf_counter()
        out = model(prompt, use_cache=True, logits_to_keep=1)
        reads.append(1e3 * (time.perf_counter() - begin))
    if count:
        cache = out.past_key_values
        tokens = out.logits[:, -1:].argmax(-1)
        begin = time.perf_counter()
        for _ in range(count):
            out = model(tokens, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            tokens = torch.multinomial(torch.softmax(out.logits[:, -1].float(), -1), 1)
        ms = 1e3 * (time.perf_counter() - begin) / count
print("MS", ms, reads[0], min(reads[1:]))
"""


class Generation:
    """Milliseconds per token that GPT-2 124M generates, with a key/value cache, and the milliseconds from a prompt to
    the first token, which comes with its forward pass. A program's first prompt also waits for its memory; again, with
    the memory at hand, it is read several times, of which the fastest counts. Ours are what the trainer reports, and
    the roofline for prompts that are read again. The bound of a token: the time to read as many bytes as it needs. It
    needs all weights but the other positions' rows of wpe, and the keys and values of its position and those before;
    of these the mean over the tokens is counted. The bandwidth of a shared machine changes within seconds, so memory is
    read before each of our runs, for as many passes as there are tokens, and the share of the bound is that of the
    medians."""
    PROMPTS, PROMPT_TOKENS, TOKENS = (32, 512, 1024), 512, 100
    WEIGHTS, MEAN_CACHED = 124_439_808 - 1023 * 768, 2 * 12 * 768 * (PROMPT_TOKENS + TOKENS // 2)
    OURS, THEIRS = "this trainer", "PyTorch (transformers)"

    def __init__(self, args, report):
        self.args, self.report = args, report
        self.ms, self.read_ms = {}, {}  # by (what, who, precision); of reading as many bytes as a token, by precision

    def tasks(self):
        tasks = [Task("generation, a model", 5, self.make_model)]
        for _ in range(self.args.rounds + 1):
            for precision in ("fp32", "bf16"):
                for n in self.PROMPTS:
                    what = f"a prompt of {n} tokens, {precision}"
                    tasks.append(Task(f"{what}, {self.OURS}", 6 + n // 100, lambda p=precision, n=n: self.ours(p, n)))
                    if self.args.peers and have("transformers") and not (ONLY_AVX2 and precision == "bf16"):
                        tasks.append(Task(f"{what}, {self.THEIRS}", 8 + n // 100,
                                          lambda p=precision, n=n: self.transformers(p, n)))
        return tasks + [Task("", 0, self.rows)]

    def make_model(self):
        self.folder = ROOT / "build/bench_model"
        if not (self.folder / "model_00000001.bin").exists():
            child(["./train_gpt2_cpu", "-e", "d12", "-b", 1, "-t", 8, "-x", 1, "-v", 0, "-s", 0, "-o", self.folder])

    def keep(self, what, who, precision, ms):
        self.ms.setdefault((what, who, precision), []).append(ms)

    def keep_prompt(self, n, who, precision, first, again):
        self.keep(f"prompt of {n} tokens, the first", who, precision, first)
        self.keep(f"prompt of {n} tokens, again", who, precision, again)

    def read_memory(self, precision):
        """The milliseconds that the threads need to read as many bytes as a token does."""
        value_bytes = {"fp32": 4, "bf16": 2}[precision]
        token_bytes = value_bytes * (self.WEIGHTS + self.MEAN_CACHED)
        output, _ = child(["build/bench/reading", self.args.threads, self.TOKENS, token_bytes])
        self.read_ms.setdefault(precision, []).append(float(output))

    def ours(self, precision, prompt_tokens):
        """The text of the prompt has as many tokens as words: ' the' is one, and so is 'the'."""
        generates = prompt_tokens == self.PROMPT_TOKENS
        if generates:
            self.read_memory(precision)
        tokens = self.TOKENS if generates else 1
        command = ["./train_gpt2_cpu", "-e", self.folder / "model_00000001.bin", "-x", 0, "--precision", precision,
                   "--threads", self.args.threads, "--prompt", " ".join(["the"] * prompt_tokens), "-g", tokens]
        done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=True)
        prompt, generated = map(float, re.findall(r": \d+ tokens?, ([\d.]+) tok/s", done.stderr)[-2:])
        table, _ = child(["build/bench/roofline", "prompt", prompt_tokens, precision, "d12", 3, self.args.threads])
        again = float(re.search(r"^all\s+(.*)", table, re.M)[1].split()[1])
        self.keep_prompt(prompt_tokens, self.OURS, precision, 1e3 * prompt_tokens / prompt, again)
        if generates:
            self.keep("generation, a token", self.OURS, precision, 1e3 / generated * tokens / (tokens - 1))

    def transformers(self, precision, prompt_tokens):
        dtype = {"fp32": "float32", "bf16": "bfloat16"}[precision]
        tokens = self.TOKENS if prompt_tokens == self.PROMPT_TOKENS else 0
        output, _ = child([sys.executable, "-c", GENERATE, self.args.threads, dtype, prompt_tokens, tokens])
        ms, first, again = map(float, output.split()[-3:])
        self.keep_prompt(prompt_tokens, self.THEIRS, precision, first, again)
        if tokens:
            self.keep("generation, a token", self.THEIRS, precision, ms)

    def rows(self):
        first = lambda key: (key[0][0] != "g", [n for n in self.PROMPTS if f" {n} " in key[0]], key[0][-1] == "n")
        for what, who, precision in sorted(self.ms, key=first):  # equal keys keep their order
            ms = self.ms[what, who, precision]
            note = f"{min(ms) / min(self.ms[what, self.OURS, precision]):.2f} times ours" if who != self.OURS else ""
            if what == "generation, a token":
                bound = statistics.median(self.read_ms[precision])
                share = 100 * bound / statistics.median(ms)
                of_bound = f"median {share:.0f}% of the bound ({bound:.1f} ms: what it needs, read once)"
                note = f"{of_bound}; {note}" if note else of_bound
            self.report.row("generation", what, f"{who}, {precision}", sorted(ms), note)
