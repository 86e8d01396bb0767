#!/usr/bin/env python3
"""What each kernel of a training step keeps in which number format, and why: the appendix of chapter 11.

    make build/BF16/train_gpt2sim data && dev/course/formats.py           writes the table into the appendix
    dev/course/formats.py --check                                         exit 1 if the appendix has another one

The kernels are those that a step launches with one or another optimizer, as dry runs in the simulator write them down.
The formats are the types of their arguments, from the symbols that the compiler has made; the names of the arguments
are those of the sources. The reasons are below: a kernel that has none, or a reason without a kernel, is an error.
"""
import argparse
import itertools
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))
import children  # noqa: E402
from readme import write_between  # noqa: E402

PAGE = ROOT / "dev/course/kernel-formats.md"
STRUCTS = {"ColumnSums": "fp32", "StateStretch": "fp32", "DeviceResults": "fp64", "SquareSums": "fp64",
           "StateBlock": "8 bits"}  # what they hold, or point to
PRODUCTS = "matrix products (cuBLASLt)"
# In the order of a step, which is that of the table. Kernels that have the same formats may share a row.
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
    "attention_backward_q": "probabilities are computed again from lse, in fp32, and rounded as operands; delta is a "
                            "sum over channels, subtracted from numbers of its size",
    "attention_backward_kv": "the same for the gradients of keys and values",
    "gelu_backward": "computed in fp32, rounded once; the sums over rows are of the rounded values",
    "encoder_backward_wte": "a frequent token has thousands of rows to add, and the classifier's gradient besides",
    "encoder_backward_split": "the same for tokens whose rows several blocks have added",
    "encoder_backward_wpe": "a sum over the batch alone, rounded once",
    "round_gradients": "one micro-step: the sums end in the format in which gradients are sent",
    "add_gradients": "several micro-steps: in 16 bits, the later ones would vanish beside the sum of the earlier; also "
                     "where fp32 directions are to replace the gradients",
    "loss_sum": "the sum of all losses, exact enough for every digit that is printed",
    "global_norm": "squares of values that differ by many powers of ten",
    "sum_rank": "the end of these sums, in a fixed order",
    "finish_norm": "one number",
    "collect_factors": "Adafactor, SM3: sums and maxima over rows and columns, of squares of gradients",
    "gather_tiles": "the end of these, in a fixed order: few numbers, so fp32 costs little",
    "renew_factors": "running means and growing maxima, of which a later step changes only a small part",
    "directions": "optimizers that look at whole tensors (their state: m, v and master): a direction replaces its "
                  "gradient, in fp32; the squares of directions and weights are summed by tensor",
    "tensor_sums": "the end of these sums, in a fixed order",
    "sum_norm": "Muon: the end of the sum of a matrix's squares, which `global_norm` begins",
    "normalize": "Muon: divided in fp32, rounded once, as operands of the products",
    "newton_schulz": "Muon: computed in fp32, rounded as operands; the singular values that result need only be near 1",
    "adamw, adam, sgd, momentum, adagrad, rmsprop, lion":
        "updates are small beside the weights and beside m and v (those that the optimizer keeps), and would be "
        "rounded away",
    "adamw8bit": "m and v are decoded, updated in fp32 and rounded to codes, which every block's fp32 scale multiplies",
    "adamw16bit": "m and v are updated in fp32 and rounded stochastically, so that small updates survive in the mean",
    "lars, lamb, muon, adafactor, sm3": "the step along the directions, as small beside the weights as AdamW's",
}


def arguments_of(kernel):
    """The names of a kernel's arguments, from its definition."""
    for source in sorted(ROOT.glob("llmc/cuda/*.cuh")):
        text = re.sub(r"//.*", "", source.read_text())
        found = re.search(rf"\b{kernel}_kernel\(([^)]*)\)\s*\{{", text)
        if found:
            return [re.search(r"(\w+)\s*$", argument)[1] for argument in found[1].split(",")]
    sys.exit(f"{kernel}_kernel is in none of llmc/cuda/*.cuh")


def optimizers():
    """The names in the table of optimizers."""
    names = re.findall(r'^ +X\(\w+, +\w+, +"(\w+)"', (ROOT / "llmc/optim/optimizers.h").read_text(), re.M)
    assert "adamw" in names
    return names


def steps(program):
    """The lines of dry runs, with each optimizer, of a step of one micro-step and of one of two."""
    lines = []
    for optimizer, micro_steps in itertools.product(optimizers(), (1, 2)):
        with tempfile.TemporaryDirectory() as folder:
            record = f"{folder}/launches"
            children.run([program, "-e", "L2C64H2T64", "-b", 64, "-t", 64, "-d", 4096 * micro_steps, "-x", 1, "-v", 0,
                          "-s", 0, "-r", 2, "--optimizer", optimizer], env={"CUSIM_DRY": record}, cwd=ROOT)
            lines += [line.split() for line in pathlib.Path(record).read_text().splitlines()]
    return lines


def formats(program):
    """{kernel: {format: [arguments]}}: of those that are arrays of numbers."""
    table, names = {}, {"bf16": "16 bits", "float": "fp32", "double": "fp64"}
    lines = steps(program)
    launched = list(dict.fromkeys((words[1], words[2]) for words in lines if words[0] == "kernel"))
    signatures = children.run(["c++filt"], text="\n".join(symbol for _, symbol in launched))[0].splitlines()
    for (kernel, _), signature in zip(launched, signatures):
        symbol, types = re.search(r"(\w+)_kernel(?:<.*>)?\((.*)\)$", signature).groups()
        types, arguments = types.split(", "), arguments_of(symbol)
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
    assert operands == {"14"} and results == {"14", "0"}, "CUDA_R_16BF, and CUDA_R_32F for two results"
    table[PRODUCTS] = {"16 bits": ["operands", "results"], "fp32": ["sums", "dwte", "Muon's directions"]}
    return table


def markdown(table):
    rows = {key: key.split(", ") for key in REASONS}
    explained = {kernel for kernels in rows.values() for kernel in kernels}
    if set(table) != explained:
        sys.exit(f"kernels without a reason: {sorted(set(table) - explained)}; reasons without a kernel: "
                 f"{sorted(explained - set(table))}")
    columns = ("8 bits", "16 bits", "fp32", "fp64")
    lines = [f"| kernel | in {' | in '.join(columns)} | why |", "|---|---|---|---|---|---|"]
    for key, kernels in rows.items():
        formats_of = [[", ".join(dict.fromkeys(table[kernel].get(column, []))) for column in columns]
                      for kernel in kernels]
        if any(cells != formats_of[0] for cells in formats_of):
            sys.exit(f"these kernels have different formats, and need rows of their own: {key}")
        name = key if key == PRODUCTS else ", ".join(f"`{kernel}`" for kernel in kernels)
        lines.append(f"| {name} | {' | '.join(formats_of[0])} | {REASONS[key]} |")
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
