#!/usr/bin/env python3
"""What weights in fewer bits cost and save: bytes, tokens a second, and the loss on a whole validation split.

    make train_gpt2_cpu tokenize data && python3 dev/quantised.py [--lora] [--write]

Losses are those of a small model that is trained here on the bytes of Shakespeare, unless --model names another; bytes
and speed those of GPT-2 124M, whose weights need not be trained for that. Formats take turns, so that other programs
slow all of them down alike; the most tokens a second of all turns count. With llama-cpp-python (pip install, which
compiles for this CPU), llama.cpp takes its turns with GGUF files of that model, bf16's in f16, int8's in q8_0,
int4's in q4_0. --write puts the table into dev/course/28-fewer-bits.md.

--lora: what adapters cost beside such weights, and what their loss is, for dev/course/27-adapting.md.
"""
import children
import argparse
import math
import pathlib
import re
import resource
import sys
import time

import readme
import shakespeare_tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHAPTER, ADAPTING = ROOT / "dev/course/28-fewer-bits.md", ROOT / "dev/course/27-adapting.md"
FORMATS = {"fp32": (), "bf16": ("--precision", "bf16"), "int8": ("--weights", "int8"), "int4": ("--weights", "int4"),
           "nf4": ("--weights", "nf4")}
GGUF_TYPES = {"bf16": "f16", "int8": "q8_0", "int4": "q4_0"}
IN_BF16 = {name: ("--precision", "bf16", *(flags if "--weights" in flags else ()))
           for name, flags in FORMATS.items() if name != "fp32"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", default="L4C128H4T64", help="the model that is trained")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--timed", default="d12", help="the model that is timed")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/quantised")
    parser.add_argument("--write", action="store_true", help="into the chapter")
    parser.add_argument("--llama", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--lora", action="store_true", help="the table of adapters")
    parser.add_argument("--lora-steps", type=int, default=200)
    parser.add_argument("--lora-timed", default="L6C384H6T128", help="the model of which a step is timed, B 4, T 128")
    return parser.parse_args()


def trainer(*flags):
    return children.run([str(word) for word in ("./train_gpt2_cpu", *flags)], cwd=ROOT)[0]


def trained(args):
    """Flags that name the data, and the folder of a trained model."""
    data = shakespeare_tokens.made(args.folder.resolve() / "bytes")
    model = args.folder / f"{args.trained}_{args.steps}"
    common = ["-i", f"{data}_train.bin", "-j", f"{data}_val.bin", "--tokenizer", f"{data}_tokenizer.bin", "-b", 8, "-t",
              64, "-s", 0, "--threads", args.threads]
    if not (model / f"DONE_{args.steps:08}").exists():
        trainer(*common, "-e", args.trained, "-x", args.steps, "-l", 2e-3, "-u", args.steps // 10, "-q", 0.1, "-v", 0,
                "-o", model, "--overwrite", 1)
    return common, model


def validated(*flags):
    """Bits per byte of the whole validation split."""
    return float(re.search(r"^bits per byte (\S+)", trainer("-x", 0, "-v", 1, "-m", -1, *flags), re.M)[1])


def losses(args):
    common, model = trained(args)
    return {name: validated(*common, "-e", model, *flags) for name, flags in FORMATS.items()}


def bytes_of_matrices(args, flags):
    """Of the matrices of a model, by its plan, and those of a weight."""
    plan = trainer("-e", args.timed, "-x", 1, "-s", 0, "-v", 0, "-b", 1, "-t", 64, "--lora", 8, "--plan", *flags)
    rows = re.findall(r"^parameters +(?:wte|qkvw|attprojw|fcw|fcprojw) .* (\d+)$", plan, re.M)
    C, L, V = 768, 12, 50304
    assert args.timed == "d12" and len(rows) == 5
    return sum(map(int, rows)), sum(map(int, rows)) / (V * C + L * 12 * C * C)


def cpu_ms(args, flags):
    """CPU milliseconds of a step: what a run of more steps takes more, of each."""
    def run_of(steps):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        trainer("-e", args.lora_timed, "-b", 4, "-t", 128, "-x", steps, "-v", 0, "-s", 0, "--threads", 1, "--lora", 8,
                *flags)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return (run_of(4) - run_of(1)) / 3


def lora_table(args):
    common, model = trained(args)
    times = {name: [] for name in IN_BF16}
    for _ in range(args.turns):
        for name, flags in IN_BF16.items():
            times[name].append(cpu_ms(args, flags))
    lines = [f"Bytes of {args.timed}'s matrices; CPU time of a step of {args.lora_timed} with `--lora 8`, B 4, T 128, "
             f"bf16, one thread, {readme.this_cpu()[1]}, the least of {args.turns}; bits per byte of {args.trained} "
             f"on the whole validation split, before and after {args.lora_steps} steps of its adapters.", "",
             "| weights | bytes | of a weight | ms | of bf16's | loss before | after |", "|---" * 7 + "|"]
    for name, flags in IN_BF16.items():
        out, (total, each) = args.folder / f"lora_{name}", bytes_of_matrices(args, flags)
        trainer(*common, "-e", model, "-x", args.lora_steps, "-l", 2e-3, "-q", 0.1, "-v", 0, "--lora", 8, "-o", out,
                "--overwrite", 1, *flags)
        before, after = validated(*common, "-e", model, *flags), validated(*common, "-e", out, *flags)
        lines.append(f"| {name} | {total:,} | {each:.3f} | {min(times[name]):,.0f} | "
                     f"{min(times[name]) / min(times['bf16']):.2f} | {before:.4f} | {after:.4f} |")
    return "\n".join(lines)


def llama_speed(args):
    """Prints the tokens a second that llama.cpp generates with args.llama, each the likeliest."""
    import llama_cpp
    import numpy
    model = llama_cpp.Llama(args.llama, n_ctx=256, n_threads=args.threads, verbose=False)
    token, begin = model.token_bos(), 0.0
    for i in range(args.tokens + 1):
        if i == 1:
            begin = time.perf_counter()
        model.eval([token])
        logits = llama_cpp.llama_get_logits(model.ctx)
        token = int(numpy.ctypeslib.as_array(logits, shape=(model.n_vocab(),)).argmax())
    print(args.tokens / (time.perf_counter() - begin))


def gguf_files(args):
    """The timed model by format, in files for llama.cpp; none where that is not installed."""
    if not children.have("llama_cpp"):
        return {}
    model, files = args.folder / f"{args.timed}_1", {}
    if not (model / "DONE_00000001").exists():
        trainer("-e", args.timed, "-x", 1, "-b", 1, "-t", 64, "-s", 0, "-v", 0, "-o", model, "--overwrite", 1)
    for name, gguf_type in GGUF_TYPES.items():
        files[name] = args.folder / f"{args.timed}.{gguf_type}.gguf"
        children.run([sys.executable, "dev/data/export_gguf.py", model, files[name], "--type", gguf_type], cwd=ROOT)
    return files


def sizes_and_speeds(args):
    """Bytes of the parameters, and tokens a second, by format; and llama.cpp's tokens a second."""
    sizes, speeds, files = {}, dict.fromkeys(FORMATS, 0.0), gguf_files(args)
    peers = dict.fromkeys(files, 0.0)
    for name, flags in FORMATS.items():
        plan = trainer("-e", args.timed, "-x", 0, "-s", 0, "-v", 0, "--plan", *flags)
        sizes[name] = int(re.search(r"^parameters +(= all )? +(\d+) .*MiB", plan, re.M)[2])
    for _ in range(args.turns):
        for name, flags in FORMATS.items():
            text = trainer("-e", args.timed, "-x", 0, "--prompt", "The", "-g", args.tokens, "--temperature", 0,
                           "--threads", args.threads, *flags)
            speeds[name] = max(speeds[name], float(re.search(r"generated: .* ([\d.]+) tok/s", text)[1]))
            if name in files:
                output, _ = children.run([sys.executable, __file__, "--llama", files[name], "--tokens",
                                          str(args.tokens), "--threads", str(args.threads)], cwd=ROOT)
                peers[name] = max(peers[name], float(output.split()[-1]))
    return sizes, speeds, peers


def table(args):
    bits, (sizes, speeds, peers) = losses(args), sizes_and_speeds(args)
    beside = (" llama.cpp: its tokens a second with a model of this shape in " + ", ".join(GGUF_TYPES.values()) +
              " of GGUF." if peers else "")
    lines = [f"Bytes of the parameters and tokens a second of {args.timed}, {args.threads} threads, "
             f"{readme.this_cpu()[1]}, {time.strftime('%Y-%m-%d')}; the loss of {args.trained} after {args.steps} "
             f"steps, on the whole validation split. Perplexity: of a byte, against fp32's.{beside}", "",
             "| weights | bytes | tokens/s | times bf16's | llama.cpp | times | bits per byte | perplexity |",
             "|---" * 8 + "|"]
    for name in FORMATS:
        change = 2 ** (bits[name] - bits["fp32"]) - 1
        peer = f"{peers[name]:.1f} | {speeds[name] / peers[name]:.2f}" if name in peers else " | "
        lines.append(f"| {name} | {sizes[name]:,} | {speeds[name]:.1f} | {speeds[name] / speeds['bf16']:.2f} | {peer} "
                     f"| {bits[name]:.4f} | {100 * change:+.2f}% |")
    assert math.isfinite(sum(bits.values()))
    return "\n".join(lines)


def main():
    args = arguments()
    if args.llama:
        return llama_speed(args)
    args.folder.mkdir(parents=True, exist_ok=True)
    text = lora_table(args) if args.lora else table(args)
    print(text)
    if args.write:
        readme.write_between(*((ADAPTING, "adapters") if args.lora else (CHAPTER, "quantised")), text)


if __name__ == "__main__":
    main()
