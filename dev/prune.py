#!/usr/bin/env python3
"""What a model loses when weights of its matrices become 0: --prune, by how much of them and how, beside smaller models
and the lottery ticket.

    pip install numpy && make train_gpt2_cpu tokenize && python3 dev/prune.py [--write]

Trains a small model on the bytes of Shakespeare with several seeds, prunes it in several ways and trains on. About five
minutes of processor time. A run that is there, in build/prune, is not run again; remove the folder if the trainer's
results have changed. --write keeps the figures in dev/course/pruning.json and puts table and picture into
dev/course/35-pruning.md; --page does so from the figures that are there.
"""
import children
import argparse
import pathlib
import re
import resource
import statistics
import textwrap
import time

children.need("numpy")
import numpy as np  # noqa: E402

import charts  # noqa: E402
import readme  # noqa: E402
import shakespeare_tokens  # noqa: E402
import svg  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
COURSE = ROOT / "dev/course"
MODEL, SMALLER, B, T, VAL_BATCHES, SEEDS = "L2C64H4T64", "L2C48H4T64", 8, 64, 100, (42, 1, 2)
SHARES = (0.5, 0.8, 0.95)
HEADER_BYTES, FP32 = 1024, 3
TIMED_STEPS, TURNS = 100, 5
# The ways: name, what is said in the legend. Those with a share have a point for each.
WAYS = {"cut": "pruned, not trained on", "once": "at once, trained on", "gradual": "growing, trained on",
        "ticket": "from the first weights", "redrawn": "from other weights"}


def shape(path):
    """(context, layers, channels, padded vocabulary) of a model file in fp32."""
    header = np.fromfile(path, "<i4", 256)
    assert header[1] == FP32
    return tuple(int(header[i]) for i in (2, 4, 6, 7))


def matrices(path):
    """The weights of a model file, and where the matrices of the layers are in them: [(rows, cols, first)]."""
    maxT, L, C, Vp = shape(path)
    places, at = [], (Vp + maxT) * C
    for rows, cols, is_matrix in ((1, C, 0), (1, C, 0), (3 * C, C, 1), (1, 3 * C, 0), (C, C, 1), (1, C, 0), (1, C, 0),
                                  (1, C, 0), (4 * C, C, 1), (1, 4 * C, 0), (C, 4 * C, 1), (1, C, 0)):
        places += [(rows, cols, at + l * rows * cols) for l in range(L)] if is_matrix else []
        at += L * rows * cols
    return np.fromfile(path, "<f4", offset=HEADER_BYTES), places


def write_ticket(path, first, pruned):
    """The weights of `first`, with zeros where the matrices of `pruned` have them."""
    weights, places = matrices(first)
    mask = matrices(pruned)[0]
    for rows, cols, at in places:
        weights[at:at + rows * cols] *= mask[at:at + rows * cols] != 0
    path.write_bytes(first.read_bytes()[:HEADER_BYTES] + weights.tobytes())


def stored_bytes(model, share):
    """Bytes of a model whose matrices have this share of zeros, weights in 16 bits: {way of storing them: bytes}."""
    L, C, maxT = (int(re.search(rf"{letter}(\d+)", model)[1]) for letter in "LCT")
    rows, n = L * (3 + 1 + 4 + 1) * C, 12 * C * C * L
    kept, rest = n - round(share * n), (257 + maxT) * C + L * 13 * C + 2 * C
    of_matrices = {"dense": 2 * n, "mask": n // 8 + 2 * kept, "CSR": 4 * kept + 4 * (rows + 4 * L),
                   "2:4": 2 * kept + kept // 4}
    return {how: 2 * rest + size for how, size in of_matrices.items()}


class Runs:
    def __init__(self, args):
        self.args, self.folder = args, args.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data = shakespeare_tokens.made(self.folder / "bytes")

    def bits(self, name, model, *flags):
        """Trains or evaluates in a folder, unless that is done, and returns bits per byte at the end."""
        command = [str(word) for word in (
            "./train_gpt2_cpu", "-i", f"{self.data}_train.bin", "-j", f"{self.data}_val.bin", "--tokenizer",
            f"{self.data}_tokenizer.bin", "-e", model, "-b", B, "-t", T, "-m", VAL_BATCHES, "-s", 0, "--threads", 1,
            *flags)]

        def run():
            return float(re.findall(r"^bits per byte (\S+)", children.run(command, cwd=ROOT)[0], re.M)[-1])
        return readme.kept(self.folder / f"{name}.json", command, run)

    def trained(self, name, model, steps, rate, *flags):
        bits = self.bits(name, model, "-x", steps, "-v", steps, "-l", rate, "-u", steps // 10, "-q", 0.1, "-c", 0.1,
                         "--overwrite", 1, "-o", self.folder / name, *flags)
        return bits, self.folder / name / f"model_{steps:08}.bin"

    def of_seed(self, seed):
        """{way: bits per byte, or {share: bits per byte}}"""
        args, found = self.args, {way: {} for way in WAYS}
        more = args.steps // 4
        plain = ["--seed", seed]
        found["dense"], dense = self.trained(f"dense_{seed}", MODEL, args.steps, 2e-3, *plain)
        found["smaller"], _ = self.trained(f"smaller_{seed}", SMALLER, args.steps, 2e-3, *plain)
        found["dense on"], _ = self.trained(f"on_{seed}", dense, more, 1e-3, *plain)
        found["2:4 cut"] = self.bits(f"24cut_{seed}", dense, "-x", 0, "-v", 1, "--prune", "2:4")
        found["2:4"], _ = self.trained(f"24_{seed}", dense, more, 1e-3, "--prune", "2:4", *plain)
        first = {s: self.trained(f"first_{s}", MODEL, 1, 0, "--seed", s)[1] for s in (seed, seed + 1000)}
        for share in SHARES:
            name, prune = f"{share:g}_{seed}", ["--prune", share]
            found["cut"][share] = self.bits(f"cut_{name}", dense, "-x", 0, "-v", 1, *prune)
            found["once"][share], cut = self.trained(f"once_{name}", dense, more, 1e-3, *prune, *plain)
            found["gradual"][share], _ = self.trained(f"gradual_{name}", dense, more, 1e-3, *prune, "--prune-steps",
                                                      f"0-{more // 2}", *plain)
            for way, weights in ("ticket", first[seed]), ("redrawn", first[seed + 1000]):
                write_ticket(self.folder / f"{way}.bin", weights, cut)
                found[way][share], _ = self.trained(f"{way}_{name}", self.folder / f"{way}.bin", args.steps, 2e-3,
                                                    *prune, *plain)
        return found

    def slower(self):
        """How many times the processor time of a step that keeps zeros is that of one without: by turns, medians."""
        times = {"0": [], "0.5": []}
        for turn in range(TURNS):
            for share, spent in times.items():
                before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
                self.bits(f"timed_{turn}_{share}", MODEL, "-x", TIMED_STEPS, "-v", TIMED_STEPS, "-m", 1, "--prune",
                          share, "--seed", turn)
                spent.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        return statistics.median(times["0.5"]) / statistics.median(times["0"])

    def figures(self):
        seeds = [self.of_seed(seed) for seed in self.args.seeds]
        joined = {way: [one[way] for one in seeds] for way in seeds[0] if way not in WAYS}
        joined.update({way: {str(share): [one[way][share] for one in seeds] for share in SHARES} for way in WAYS})
        return {"date": time.strftime("%Y-%m-%d"), "cpu": readme.this_cpu()[1], "steps": self.args.steps,
                "slower": readme.kept(self.folder / "slower.json", [MODEL, TURNS, TIMED_STEPS], self.slower),
                "bits": joined}


def of_seeds(values):
    return f"{statistics.mean(values):.3f} ± {(max(values) - min(values)) / 2:.3f}"


def text_of(figures):
    bits, steps, seeds = figures["bits"], figures["steps"], len(figures["bits"]["dense"])
    dense = stored_bytes(MODEL, 0)["dense"]
    lines = [f"Measured {figures['date']} on {figures['cpu']} by `dev/prune.py`: {MODEL} on the bytes of Shakespeare, "
             f"{steps} steps of {B * T} bytes, then {steps // 4} more where it is trained on. Bits per byte of the "
             f"validation split, {seeds} seeds: the mean, and half of how far the lowest and the highest are apart. "
             f"Weights in 16 bits. A step with `--prune` takes {figures['slower']:.2f} times the processor time of one "
             "without.", "",
             "| | kB | bits per byte |", "|---|---|---|",
             f"| dense, {steps} steps | {dense / 1000:.0f} | {of_seeds(bits['dense'])} |",
             f"| dense, trained on | {dense / 1000:.0f} | {of_seeds(bits['dense on'])} |",
             f"| dense and smaller, {SMALLER} | {stored_bytes(SMALLER, 0)['dense'] / 1000:.0f} | "
             f"{of_seeds(bits['smaller'])} |",
             f"| 2:4, not trained on | {stored_bytes(MODEL, 0.5)['2:4'] / 1000:.0f} | {of_seeds(bits['2:4 cut'])} |",
             f"| 2:4, trained on | {stored_bytes(MODEL, 0.5)['2:4'] / 1000:.0f} | {of_seeds(bits['2:4'])} |", "",
             f"| | {' | '.join(f'{100 * share:g}% zeros' for share in SHARES)} |", "|---|" + "---|" * len(SHARES)]
    for how, name in ("mask", "kB: a bit for each weight, and values"), ("CSR", "kB: CSR"):
        cells = [f"{stored_bytes(MODEL, share)[how] / 1000:.0f}" for share in SHARES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for way, name in WAYS.items():
        lines.append(f"| {name} | {' | '.join(of_seeds(bits[way][str(share)]) for share in SHARES)} |")
    return "\n".join(line if line.startswith("|") else textwrap.fill(line, 120) for line in lines)


def picture(figures):
    """Bits per byte over the share of zeros: means, and the seeds as dots."""
    bits = figures["bits"]
    ways = {way: {float(share): values for share, values in bits[way].items()} for way in WAYS}
    top = statistics.mean(bits["dense"]) + 1.2  # what was cut and not trained on goes beyond
    every = [v for way in ways.values() for values in way.values() for v in values if v < top] + bits["dense on"]
    panel = charts.Panel(70, 92, 500, 290, (0, 1), charts.around(every))
    panel.frame("bits per byte", "share of zeros in the matrices")
    panel.references({"dense": statistics.mean(bits["dense"]), "dense, trained on": statistics.mean(bits["dense on"])})
    for color, found in zip(svg.COLORS, ways.values()):
        panel.curve([(share, statistics.mean(values)) for share, values in found.items()
                     if statistics.mean(values) < top], color)
        panel.marks([(share, v) for share, values in found.items() for v in values if v < top], color)
    panel.parts += charts.legend(70, 18, 520, WAYS.values(), svg.COLORS)[0]
    return svg.picture(640, 432, charts.SIZE, panel.parts)


SHOWN = readme.Shown(COURSE / "pruning.json", COURSE / "35-pruning.md", "pruning", COURSE / "pictures/pruning.svg",
                     "Bits per byte by the share of zeros", text_of, picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/prune")
    SHOWN.add_flags(parser)
    args = parser.parse_args()
    if args.page:
        return SHOWN.make_page()
    SHOWN.show(Runs(args).figures(), args.write)


if __name__ == "__main__":
    main()
