#!/usr/bin/env python3
"""Short trainings with one feature each, whose losses on a GPU must be those of a CPU.

    make train_gpt2_cpu tokenize && python3 dev/gpu_features.py    # writes dev/test/fixtures/gpu_features.json

Both compute in fp32, the GPU without TF32, from the same weights on the same batches, so that losses differ by rounding
alone: by at most TOLERANCE, which a GPU has to keep in each of the few steps. Where values are kept in 8 bits, a
rounding may fall to the other side: CODES. A run samples and validates, too.
"""
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

import children
import json
import pathlib
import re
import tempfile

import shakespeare_curve

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOSSES = ROOT / "dev/test/fixtures/gpu_features.json"
FLAGS = ["-e", "L4C128H4T64", "-b", 16, "-t", 64, "-x", 6, "-l", 1e-3, "-v", 3, "-m", 2, "-s", 6, "--sample-tokens", 8]
TOLERANCE, CODES = 1e-4, 3e-3
RUN = "RUN"  # stands for the folder of the run of none, whose model is the teacher of another
FEATURES = {
    "none": ["-o", RUN],
    "a teacher": ["--teacher", RUN],
    "accumulation": ["-d", 4096],
    "recompute 2": ["-r", 2],
    "recompute 4": ["-r", 4],
    "clipping and decay": ["--grad-clip", 0.5, "-c", 0.1],
    "a mask of documents": ["--document-mask", 1],
    "a window": ["--window", "32,alternate"],
    "dropout": ["--dropout", 0.1],
    "sequence warmup": ["--seq-warmup", 4],
    "batch warmup": ["--batch-warmup", 4, "-d", 4096],
    "an average of the weights": ["--ema", 0.9],
    "adapters": ["--lora", 4],
    "adapters beside codes": ["--lora", 4, "--weights", "nf4"],
    "some tensors": ["--train", "ln,bias,head"],
    "pruning": ["--prune", "2:4", "--prune-steps", 3],
    "Muon": ["--optimizer", "muon"],
    "Lion": ["--optimizer", "lion", "-l", 1e-4],
    "Adafactor": ["--optimizer", "adafactor"],
    "AdamW in 8 bits": ["--optimizer", "adamw8bit"],
    "codes of activations": ["--compress-activations", 1],
    "offloaded state": ["--offload", "optimizer"],
    "offloaded activations": ["--offload", "activations", "-r", 3],
    "a graph": ["--cuda-graph", 1],
}
ON_A_GPU_ALONE = ["a graph"]


def flags_of(name, run):
    return [*FLAGS, *(run if flag == RUN else flag for flag in FEATURES[name])]


def losses_of(text):
    """The losses of steps and of validations, in the order in which a run says them."""
    return [float(loss) for loss in re.findall(r"(?:\| |val )loss(?: of the average)? ([\d.]+)", text)]


def wrong_loss(name, losses):
    """The first loss that is not the recorded one, as a sentence; None if there is none."""
    recorded = json.loads(LOSSES.read_text())["none" if name in ON_A_GPU_ALONE else name]
    tolerance = CODES if "8 bits" in name or "codes" in name else TOLERANCE
    if len(losses) != len(recorded):
        return f"{name}: {len(losses)} losses, {len(recorded)} on a CPU"
    for number, (loss, wanted) in enumerate(zip(losses, recorded), 1):
        if not abs(loss - wanted) <= tolerance:
            return f"{name}: {loss:.4f} is loss {number}, {wanted:.4f} on a CPU"
    return None


def main():
    recorded = {}
    with tempfile.TemporaryDirectory() as folder:
        data = shakespeare_curve.make_data("./tokenize", folder)
        for name in [name for name in FEATURES if name not in ON_A_GPU_ALONE]:
            text, _ = children.run(["./train_gpt2_cpu", "-i", data, "-j", data,
                                    *flags_of(name, f"{folder}/run")], cwd=ROOT)
            recorded[name] = losses_of(text)
            print(name, recorded[name], flush=True)
    lines = [f' "{name}": {json.dumps(losses)}' for name, losses in recorded.items()]
    LOSSES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
