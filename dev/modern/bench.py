#!/usr/bin/env python3
"""The time of a training step of dev/modern beside PyTorch's, of the same model, on the same cores.

    pip install torch transformers
    make build/modern data && dev/modern/bench.py [--rounds 3] [--layers 3] [--threads N] [-b 2] [-t 128]

The model is a Llama of SmolLM2-135M's shape (576 channels, 9 heads that share 3 of keys, 1536 hidden channels, 49152
tokens) cut to a few layers. PyTorch's step is transformers' model by torch.compile, with scaled_dot_product_attention
and fused AdamW; bf16 is autocast. Rounds are interleaved, each program has a process of its own, and what to compare is
the ratio of the minima. --write puts the table into dev/MEASURED.md.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import argparse  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import time  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 6  # of a round; the first two are not counted


def torch_step(args):
    """Prints the milliseconds of PyTorch's steps."""
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=args.layers, hidden_size=576, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, vocab_size=49152, max_position_embeddings=8192, tie_word_embeddings=True,
        rope_theta=100000.0, attn_implementation="sdpa", use_cache=False)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = torch.randint(0, 49152, (2, args.b, args.t)).unbind(0)

    def loss_of(x, y):
        logits = model(x).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    step = torch.compile(loss_of)
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = step(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
    print("MS", *times[2:])


def milliseconds(command):
    output, _ = children.run(command, cwd=ROOT)
    if "MS " in output:
        return [float(ms) for ms in output.split("MS ")[1].split()]
    return [float(ms) for ms in re.findall(r"\| ([\d.]+) ms", output)][2:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("-b", type=int, default=2)
    parser.add_argument("-t", type=int, default=128)
    parser.add_argument("--precision", default="fp32,bf16")
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.torch:
        return torch_step(args)
    shape = f"L{args.layers}C576H9K3F1536T8192V49152"
    common = ["-b", args.b, "-t", args.t, "--threads", args.threads]
    rows = ["| precision | PyTorch | dev/modern | ratio |", "|---|---|---|---|"]
    for precision in args.precision.split(","):
        ours = [ROOT / "build/modern", "-e", shape, "-x", STEPS, "-v", 0, "--precision", precision, *common]
        theirs = [sys.executable, __file__, "--torch", "--layers", args.layers, "--precision", precision, *common]
        times = {"ours": [], "theirs": []}
        for _ in range(args.rounds):
            times["ours"] += milliseconds(ours)
            times["theirs"] += milliseconds(theirs)
        best = {who: min(all_ms) for who, all_ms in times.items()}
        rows.append(f"| {precision} | {best['theirs']:,.0f} ms | {best['ours']:,.0f} ms | "
                    f"{best['theirs'] / best['ours']:.2f} |")
        print(rows[-1], flush=True)
    if args.write:
        from readme import MEASURED, this_cpu, write_of_machine
        kind, machine = this_cpu()
        above = (f"Measured {time.strftime('%Y-%m-%d')} on {machine} by `dev/modern/bench.py --rounds {args.rounds}`: "
                 f"a step of {shape}, -b {args.b} -t {args.t}, {args.threads} threads; the smallest of "
                 f"{args.rounds * (STEPS - 2)}.")
        write_of_machine(ROOT / MEASURED, "modern", kind, "\n".join([above, "", *rows]))


if __name__ == "__main__":
    main()
