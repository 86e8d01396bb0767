#!/usr/bin/env python3
"""Compares training steps of GPT-2 on a GPU with PyTorch's: torch.compile, flash attention, bf16 autocast, fused AdamW.

    make bench-gpu                    # or: python3 dev/bench_gpu.py [--shapes 4x1024,16x1024] [--rounds 3] [--write]
    scripts/gpu_day.sh                # this and all else that is worth measuring on a new GPU
    python3 dev/bench_gpu.py --sim    # no GPU: a tiny shape in the simulator; tests the script, its times mean nothing

Each program runs in its own process, and rounds are interleaved. The table has minimum and median of the steps, tokens
per second, the share of the GPU's dense bf16 peak (llmc/plan/mfu.h), and memory: ours from --plan, which is what is
allocated, PyTorch's from the peak of its allocator. It goes to the terminal, to build/bench_gpu.json and, with --write,
into dev/MEASURED.md, where the tables of other GPUs stay.
"""
import children  # noqa: F401: Ctrl-C
import argparse
import json
import pathlib
import re
import sys
import time

from bench_tasks import ROOT, child
from children import have
from readme import MEASURED, write_of_machine

OURS = "this trainer, bf16"
SHAPES = {"d12": "12,768,12,50257", "d24": "24,1024,16,50257", "d36": "36,1280,20,50257", "d48": "48,1600,25,50257",
          "L2C64H2T64V512": "2,64,2,512"}  # as -e has it, as dev/torch_step.py has it


def ours(program, model, B, T, steps, data, more):
    flags = [program, "-e", model, "-b", str(B), "-t", str(T), "-x", str(steps + 2), "-v", "0", "-s", "0", "-r", "0",
             "-ge", "0", *more]
    flags += ["-i", "build/bench_tiny.bin" if model.startswith("L") else data]
    output, _ = child(flags)
    plan, _ = child(flags + ["--plan"])
    shares = [float(m) for m in re.findall(r"\| ([\d.]+)% \w+ MFU", output)]
    ms = [float(m) for m in re.findall(r"\| ([\d.]+) ms \|", output)]
    mib = float(re.search(r"total \d+ bytes, ([\d.]+) MiB", plan)[1])
    return ms[2:], mib, max(shares[2:], default=None)


def torch_step(device, mode, model, B, T, steps):
    output, _ = child([sys.executable, "dev/torch_step.py", "--device", device, "--precision", "bf16", "--mode", mode,
                       "-b", str(B), "-t", str(T), "--steps", str(steps), "--shape", SHAPES[model]])
    found = {key: value for key, value in re.findall(r"^(MS|MIB|GPU) (.*)$", output, re.M)}
    return [float(v) for v in found["MS"].split()], float(found.get("MIB", "nan")), found.get("GPU")


def write_tiny_tokens():
    import array
    header, tokens = array.array("i", [0] * 256), array.array("H", [(i * i * 7 + i // 3) % 512 for i in range(5000)])
    header[0], header[1], header[2] = 20240520, 1, len(tokens)
    (ROOT / "build/bench_tiny.bin").write_bytes(header.tobytes() + tokens.tobytes())


def json_rows(model, B, T, times, memory, share):
    """A row of results for each who was measured; ours is the first."""
    mine, rows = min(next(iter(times.values()))), []
    for who, ms in times.items():
        ms.sort()
        rows.append({"what": f"{model} ({B},{T})", "model": model, "B": B, "T": T, "who": who, "min_ms": ms[0],
                     "median_ms": ms[len(ms) // 2], "tokens_per_s": 1e3 * B * T / ms[0],
                     "percent_of_peak": share * mine / ms[0] if share else None, "MiB": memory[who],
                     "times_ours": ms[0] / mine})
    return rows


def table(rows, origin):
    lines = [f"Measured {origin}.", "", "| what | who | min | median | tokens/s | % of peak | MiB | time over ours |",
             "|---" * 8 + "|"]
    for r in rows:
        peak = f"{r['percent_of_peak']:.1f}" if r["percent_of_peak"] else "n/a"
        lines.append(f"| {r['what']} | {r['who']} | {r['min_ms']:.2f} ms | {r['median_ms']:.2f} ms | "
                     f"{r['tokens_per_s']:,.0f} | {peak} | {r['MiB']:,.0f} | {r['times_ours']:.2f} |")
    return "\n".join(lines)


def write_table(gpu, rows, origin, below=""):
    write_of_machine(ROOT / MEASURED, "gpu bench", gpu, f"{table(rows, f'on {gpu}, {origin}')}\n\n{below}".strip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="d12")
    parser.add_argument("--shapes", default="4x1024,16x1024,32x1024")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--sim", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the table into dev/MEASURED.md")
    parser.add_argument("--program", default="./train_gpt2cu")
    parser.add_argument("--data", default="dev/data/shakespeare_train.bin")
    parser.add_argument("--flags", default="", help="more flags of this trainer, as --flags='--lora 8'")
    parser.add_argument("--peers", default="compile,tuned", help="modes of dev/torch_step.py, with commas; '': none")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build/bench_gpu.json")
    args = parser.parse_args()
    program, device = ("build/BF16/train_gpt2sim", "cpu") if args.sim else (args.program, "cuda")
    if args.sim:
        args.model, args.shapes, args.rounds, args.steps = "L2C64H2T64V512", "2x64", 1, 2
        write_tiny_tokens()
    wanted = [peer for peer in args.peers.split(",") if peer]
    peers = (["eager"] if args.sim else wanted) if wanted and have("torch") else []
    if wanted and not peers:
        print("PyTorch is not installed: this trainer alone (pip install torch adds the comparison)")
    rows, gpu = [], "simulator" if args.sim else "GPU"
    we = f"{OURS}, {args.flags}" if args.flags else OURS
    for B, T in (tuple(map(int, s.split("x"))) for s in args.shapes.split(",")):
        times, memory, share = {}, {}, None
        for _ in range(args.rounds):
            ms, mib, best = ours(program, args.model, B, T, args.steps, args.data, args.flags.split())
            times.setdefault(we, []).extend(ms)
            memory[we], share = mib, max(filter(None, [share, best]), default=None)
            for peer in peers:
                ms, mib, name = torch_step(device, peer, args.model, B, T, args.steps)
                times.setdefault(f"PyTorch {peer}, bf16", []).extend(ms)
                memory[f"PyTorch {peer}, bf16"], gpu = mib, name or gpu
        rows += json_rows(args.model, B, T, times, memory, share)
    origin = f"{time.strftime('%Y-%m-%d')} by `make bench-gpu`"
    print(table(rows, f"on {gpu}, {origin}"))
    args.json.write_text(json.dumps({"gpu": gpu, "rows": rows}, indent=1))
    if args.write and not args.sim:
        write_table(gpu, rows, origin)


if __name__ == "__main__":
    main()
