#!/usr/bin/env python3
"""What each kernel of a training step keeps in which number format, and why: the table of chapter 11.

    make build/BF16/train_gpt2sim data && dev/course/formats.py           writes the table into the chapter
    dev/course/formats.py --check                                         exit 1 if the chapter has another one

The kernels are those that a step launches, as a dry run in the simulator writes them down. The formats are the types
of their arguments, from the symbols that the compiler has made; the names of the arguments are those of the sources.
The reasons are below: a kernel that has none, or a reason without a kernel, is an error.
"""
import argparse
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import children  # noqa: E402
from readme import write_between  # noqa: E402

PAGE = ROOT / "dev/course/11-sixteen-bits.md"
STRUCTS = {"ColumnSums": "fp32", "DeviceResults": "fp64"}  # what they hold, or point to
PRODUCTS = "matrix products (cuBLASLt)"
# In the order of a step, which is that of the table.
REASONS = {
    "encoder_forward": "one addition, rounded once",
    "layernorm_forward": "mean and variance are sums over all channels; what is stored of them is read again by the "
                         "backward pass",
    PRODUCTS: "this is where the time goes, and where tensor cores need 16 bits; their sums are fp32",
    "attention_forward": "scores and softmax stay in registers, in fp32; the probabilities are rounded, as operands "
                         "of the next product",
    "residual_layernorm_forward": "the sum is normalised as it is stored, so that the backward pass sees the same "
                                  "numbers",
    "gelu_forward": "computed in fp32 from the value as it is stored, rounded once",
    "softmax_loss": "the loss is a small difference of large numbers; the gradient of a logit is at most 1 times dloss",
    "layernorm_backward": "the gradients of gains and biases are sums over all rows, left in parts",
    "sum_parts": "the end of these sums: rounded once",
    "attention_dot": "a sum over channels, subtracted from numbers of its size",
    "attention_backward_kv": "probabilities are computed again from lse, in fp32, and rounded as operands",
    "attention_backward_q": "the same for the gradient of the queries",
    "gelu_backward": "computed in fp32, rounded once; the sums over rows are of the rounded values",
    "encoder_backward_wte": "a frequent token has thousands of rows to add, and the classifier's gradient besides",
    "encoder_backward_split": "the same for tokens whose rows several blocks have added",
    "encoder_backward_wpe": "a sum over the batch alone, rounded once",
    "round_gradients": "one micro-step: the sums end in the format in which gradients are sent",
    "add_gradients": "several micro-steps: in 16 bits, the later ones would vanish beside the sum of the earlier",
    "loss_sum": "the sum of all losses, exact enough for every digit that is printed",
    "global_norm": "squares of values that differ by many powers of ten",
    "sum_rank": "the end of these sums, in a fixed order",
    "finish_norm": "one number",
    "adamw": "updates are small beside the weights and beside m and v, and would be rounded away",
}


def arguments_of(kernel):
    """The names of a kernel's arguments, from its definition."""
    for source in sorted(ROOT.glob("llmc/cuda/*.cuh")):
        text = re.sub(r"//.*", "", source.read_text())
        found = re.search(rf"\b{kernel}_kernel\(([^)]*)\)\s*\{{", text)
        if found:
            return [re.search(r"(\w+)\s*$", argument)[1] for argument in found[1].split(",")]
    sys.exit(f"{kernel}_kernel is in none of llmc/cuda/*.cuh")


def steps(program):
    """The lines of dry runs of a step of one micro-step and of one of two."""
    lines = []
    for micro_steps in 1, 2:
        with tempfile.TemporaryDirectory() as folder:
            record = f"{folder}/launches"
            children.run([program, "-e", "L2C64H2T64", "-b", 64, "-t", 64, "-d", 4096 * micro_steps, "-x", 1, "-v", 0,
                          "-s", 0, "-r", 2], env={"CUSIM_DRY": record}, cwd=ROOT)
            lines += [line.split() for line in pathlib.Path(record).read_text().splitlines()]
    return lines


def formats(program):
    """{kernel: {format: [arguments]}}: of those that are arrays of numbers."""
    table, names = {}, {"bf16": "16 bits", "float": "fp32", "double": "fp64"}
    lines = steps(program)
    launched = list(dict.fromkeys((words[1], words[2]) for words in lines if words[0] == "kernel"))
    signatures = children.run(["c++filt"], text="\n".join(symbol for _, symbol in launched))[0].splitlines()
    for (kernel, _), signature in zip(launched, signatures):
        types = re.search(r"\((.*)\)$", signature)[1].split(", ")
        arguments = arguments_of(re.search(r"(\w+)_kernel\b", signature)[1])
        assert len(types) == len(arguments), (signature, arguments)
        row = table.setdefault(kernel, {})
        for type_, argument in zip(types, arguments):
            pointer = re.fullmatch(r"(\w+)(?: const)?\*", type_)
            if pointer and pointer[1] in names:
                row.setdefault(names[pointer[1]], []).append(argument)
            if type_ in STRUCTS or pointer and pointer[1] in STRUCTS:
                row.setdefault(STRUCTS[pointer[1] if pointer else type_], []).append(argument)
    operands = {words[4] for words in lines if words[0] == "product"}
    results = {words[5] for words in lines if words[0] == "product"}
    assert operands == {"14"} and results == {"14", "0"}, "CUDA_R_16BF, and CUDA_R_32F for one result"
    table[PRODUCTS] = {"16 bits": ["operands", "results"], "fp32": ["sums", "the result dwte"]}
    return table


def markdown(table):
    if set(table) != set(REASONS):
        sys.exit(f"kernels without a reason: {sorted(set(table) - set(REASONS))}; reasons without a kernel: "
                 f"{sorted(set(REASONS) - set(table))}")
    columns = ("16 bits", "fp32", "fp64")
    lines = ["| kernel | in 16 bits | in fp32 | in fp64 | why |", "|---|---|---|---|---|"]
    for kernel, why in REASONS.items():
        cells = [", ".join(dict.fromkeys(table[kernel].get(column, []))) for column in columns]
        lines.append(f"| {kernel if kernel == PRODUCTS else f'`{kernel}`'} | {' | '.join(cells)} | {why} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("program", nargs="?", default="build/BF16/train_gpt2sim")
    args = parser.parse_args()
    table = markdown(formats(ROOT / args.program))
    if args.check:
        stored = re.search(r"<!-- formats begin -->\n(.*)\n<!-- formats end -->", PAGE.read_text(), re.S)
        sys.exit(None if stored and stored[1] == table else f"{PAGE.name} has another table: dev/course/formats.py")
    write_between(PAGE, "formats", table)


if __name__ == "__main__":
    main()
