#!/usr/bin/env python3
"""Steps of LoRA beside steps that train all of GPT-2 124M, and beside PEFT with torch.compile, on this machine's CPU.

    pip install numpy peft torch transformers && make train_gpt2_cpu data && python3 dev/lora_bench.py [--write]

The programs take turns, so that other programs slow all of them down alike: a round is some steps of each. Times are
the least of all rounds, ratios medians of the rounds. --write puts the table into dev/MEASURED.md. PEFT's steps are
left out with --without-peft. On a machine that others use, --cpu measures the time that one thread of each computes.
"""
import children
import argparse
import csv
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

import readme

ROOT = pathlib.Path(__file__).resolve().parents[1]
B, T, RANK = 4, 256, 8
FULL, LORA, PEFT = "all of GPT-2 124M", f"`--lora {RANK}`", f"PEFT, rank {RANK}, torch.compile"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of each program in a round, beside one that warms it up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="d12")
    parser.add_argument("--without-peft", action="store_true")
    parser.add_argument("--peft", action="store_true", help=argparse.SUPPRESS)  # a step for each line of stdin
    parser.add_argument("--cpu", action="store_true", help="CPU time, on one thread")
    parser.add_argument("--write", action="store_true", help=f"into {readme.MEASURED}")
    return parser.parse_args()


def cpu_ms_here(args, *flags):
    """CPU milliseconds of a step of the trainer: what a run of more steps takes more, of each."""
    def run_of(steps):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = ["./train_gpt2_cpu", "-e", args.model, "-b", B, "-t", T, "-x", steps, "-v", 0, "-s", 0,
                   "--threads", 1, *flags]
        children.run([str(word) for word in command], cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [(run_of(1 + args.steps) - run_of(1)) / args.steps]


def steps_here(args, *flags):
    """Milliseconds of some steps of the trainer."""
    if args.cpu:
        return cpu_ms_here(args, *flags)
    with tempfile.TemporaryDirectory() as out:
        command = ["./train_gpt2_cpu", "-e", args.model, "-b", B, "-t", T, "-x", args.steps + 1, "-v", 0, "-s", 0, "-n",
                   0, "--threads", args.threads, "-o", out, "--overwrite", 1, *flags]
        children.run([str(word) for word in command], cwd=ROOT)
        with open(f"{out}/metrics.csv", encoding="utf-8") as lines:
            return [float(row["step_ms"]) for row in csv.DictReader(lines)][1:]


def peft_worker(args):
    """A step of PEFT for each line of stdin; prints its milliseconds."""
    import time
    import peft
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    config = transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = peft.get_peft_model(
        transformers.GPT2LMHeadModel(config),
        peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True,
                        task_type="CAUSAL_LM"))
    x, y = torch.randint(0, config.vocab_size, (2, B, T)).unbind(0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4)

    @torch.compile
    def loss_of(x, y):
        return torch.nn.functional.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())
    clock = time.process_time if args.cpu else time.perf_counter
    for _ in sys.stdin:
        begin = clock()
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()
        print(1e3 * (clock() - begin), flush=True)


def measure(args):
    """Milliseconds of the steps of each round by program."""
    found = {FULL: [], LORA: []}
    worker = None
    if not args.without_peft:
        found[PEFT] = []
        worker = subprocess.Popen([sys.executable, __file__, "--peft", "--threads", str(args.threads),
                                   *["--cpu"][:args.cpu]], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def steps_of_peft():
        times = []
        for _ in range(args.steps + 1):
            print(file=worker.stdin, flush=True)
            times.append(float(worker.stdout.readline()))
        return times[1:]
    if worker:
        steps_of_peft()  # compiles
    for _ in range(args.rounds):
        found[FULL].append(steps_here(args))
        found[LORA].append(steps_here(args, "--lora", RANK))
        if worker:
            found[PEFT].append(steps_of_peft())
        print({name: [round(ms) for ms in rounds[-1]] for name, rounds in found.items()}, file=sys.stderr)
    if worker:
        worker.stdin.close()
        worker.wait()
    return found


def table(args):
    found = measure(args)
    lines = [f"B {B}, T {T}, fp32, {args.threads} thread{'s' * (args.threads > 1)}, {args.rounds} rounds; "
             f"{readme.this_cpu()[1]}:", "", f"| a step of | {'CPU ' * args.cpu}ms | of that of all |", "|---|---|---|"]
    for name, rounds in found.items():
        ratios = [statistics.median(mine) / statistics.median(full) for mine, full in zip(rounds, found[FULL])]
        lines.append(f"| {name} | {min(map(min, rounds)):,.0f} | {statistics.median(ratios):.2f} |")
    return "\n".join(lines)


def main():
    args = arguments()
    if args.cpu:
        args.threads = 1
    if args.peft:
        return peft_worker(args)
    text = table(args)
    print(text)
    if args.write:
        readme.write_of_machine(ROOT / readme.MEASURED, "lora", readme.this_cpu()[0], text)


if __name__ == "__main__":
    main()
