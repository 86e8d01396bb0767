"""The chips that step_model.py predicts times for. Peaks and bandwidth come from the table in llmc/plan/mfu.h; here is
what else a model of time needs, with its sources.

- sms, l2_mb, warps and shared_kb of a multiprocessor, fp32 and fp64 lanes: NVIDIA's whitepapers "A100 Tensor Core GPU
  Architecture" (2020), "H100 Tensor Core GPU Architecture" (2022), "Ada GPU Architecture" (2022), "RTX Blackwell GPU
  Architecture" (2025), the datasheet of HGX B200; CUDA C++ programming guide, compute capabilities, arithmetic
  throughput.
- flops: dense bf16 FLOPs per clock and multiprocessor, whitepapers. The clock is peak / (sms x flops).
- arch: the machine code it runs.
- PER_CHIP: what is assumed of each chip, as in assumptions.py. Loops of products are timed warp by warp at the expected
  speed of mma.sync; to move it moves their bound alone.
"""
import json
import pathlib
import re

from assumptions import CHEESE, EXPECTED, GENERAL, GRAPHS, HE, MAMF, Assumption

ROOT = pathlib.Path(__file__).resolve().parents[2]
DAYS = sorted((ROOT / "dev/cuda/measured").glob("*.json"))  # of scripts/gpu_day.sh
LUO = "Luo et al. 2024, arXiv:2402.13499"
FLASH3 = "Shah et al. 2024, arXiv:2407.08608"
BOOST = "hardwaretimes.com, RTX 4090 features a boost clock of over 2.8 GHz: rated 2.52"


class Chip:
    def __init__(self, name, peak_name, arch, sms, flops, l2_mb, warps, shared_kb, fp32, fp64):
        self.name, self.peak_name, self.arch, self.sms, self.flops = name, peak_name, arch, sms, flops
        self.l2_bytes, self.warps, self.shared_kb = l2_mb * 2**20, warps, shared_kb
        # the compute capability; machine code for 8.0 stands for 8.9, which holds fewer threads
        self.capability = "89" if warps == 48 and arch == "80" else arch.rstrip("a")
        self.peak, self.memory_bytes, self.bandwidth = peaks()[peak_name]
        # what a multiprocessor does per clock: warp instructions, shared memory's wavefronts
        self.per_clock = {"issue": 4, "shared": 1, "special": 16 / 32, "fma": fp32 / 32, "alu": 64 / 32,
                          "fp64": fp64 / 32, "global": 1}

    def assumptions(self):
        """All that is assumed of the chip: of it alone, and of all."""
        return [*PER_CHIP[self.name], *GENERAL]


class Machine:
    """A chip with a value for each assumption: the expected ones but for one that is moved to an end. order: of
    attention's blocks, if not that of the kernels (cache_replay.py)."""
    def __init__(self, chip, moved=None, end=EXPECTED, order=None):
        self.chip, self.order = chip, order
        for a in [*chip.assumptions(), *GRAPHS]:
            setattr(self, a.name, a.values[end if a.name == moved else EXPECTED])
        self.clock = chip.peak / (chip.sms * chip.flops) * self.clock_factor
        self.bandwidth = self.memory_share * chip.bandwidth
        self.product_rate = self.product * chip.peak / chip.sms
        self.per_clock = {**chip.per_clock, "tensor": chip.flops * self.mma}


def peaks():
    """Name -> bf16 FLOP/s, bytes of memory and bytes per second, from llmc/plan/mfu.h."""
    table = (ROOT / "llmc/plan/mfu.h").read_text()
    rows = re.findall(r'\{"([^"]+)", ([\d.]+), [\d.]+, [\d.]+, ([\d.]+), ([\d.]+)\}', table)
    return {name: (1e12 * float(tflops), 2**30 * float(gib), 1e9 * float(gb_s)) for name, tflops, gib, gb_s in rows}


def per_chip(product, mma, latency, clock):
    """Each as three values and a source."""
    return [Assumption("product", "of the peak, that a product of cuBLAS of large tiles reaches", *product[:1], "share",
                       product[1]),
            Assumption("mma", "of the peak, that mma.sync reaches, the instruction of our kernels", *mma[:1], "share",
                       mma[1]),
            Assumption("latency", "of a single load from memory that misses all caches", *latency[:1], "clocks",
                       latency[1]),
            Assumption("clock_factor", "of the clock while our kernels run, as a multiple of the peak's", *clock[:1],
                       "factor", clock[1])]


PER_CHIP = {
    "A100 SXM 80GB": per_chip(
        ((0.869, 0.826, 0.78), f"short: the best of many shapes, 271 TFLOP/s ({MAMF}); expected: 8192 x 8192 x 8192 of "
         f"random numbers, 258 ({HE}); long: assumed"),
        ((1.0, 1.0, 0.95), f"{LUO}; long: assumed"), ((420, 466, 560), f"expected: {LUO}; others assumed"),
        ((1.0, 1.0, 0.95), f"1410 MHz under load ({CHEESE}); long: assumed")),
    "H100 SXM": per_chip(
        ((0.83, 0.807, 0.749), "expected: 8192 x 8192 x 8192 of random numbers, 798 TFLOP/s, measured by "
         "scripts/gpu_day.sh; long: 6144 x 6144 x 6144, 741 (Handwritten H100 matmul kernels, github.com/pranjalssh); "
         "short: assumed"),
        ((0.667, 0.629, 0.60), f"expected: {LUO}; others assumed"),
        ((430, 479, 580), f"expected: {LUO}; others assumed"),
        ((1.0, 0.90, 0.85), "expected: 1650 MHz, to which its 700 W hold it during steps at B 64, measured by "
         "scripts/gpu_day.sh; short: the clock of the peak; long: assumed")),
    "H200 SXM": per_chip(
        ((0.83, 0.811, 0.76), "expected: 8192 x 8192 x 8192 of random numbers, 802 TFLOP/s, measured by "
         "scripts/gpu_day.sh; others assumed"),
        ((0.667, 0.629, 0.60), "as the H100, whose multiprocessors it has"),
        ((430, 479, 580), "as the H100"),
        ((1.0, 0.92, 0.88), "expected: 1680 MHz, to which its 700 W hold it during steps at B 64, measured by "
         "scripts/gpu_day.sh; short: the clock of the peak; long: assumed")),
    "RTX 4090": per_chip(
        ((1.0, 0.94, 0.85), "assumed, of the peak at the rated clock"), ((1.0, 1.0, 0.95), f"{LUO}; long: assumed"),
        ((490, 542, 650), f"expected: {LUO}; others assumed"),
        ((1.1, 1.05, 1.0), f"short: {BOOST}; expected: assumed")),
    "RTX 5090": per_chip(
        ((1.0, 0.94, 0.85), "assumed, as the RTX 4090"), ((1.0, 1.0, 0.95), "assumed, as the RTX 4090"),
        ((540, 600, 720), "assumed"), ((1.1, 1.05, 1.0), "assumed, as the RTX 4090")),
    "B200": per_chip(
        ((0.80, 0.72, 0.60), "assumed"),
        ((0.334, 0.3145, 0.30), "assumed: an H100's rate per clock and multiprocessor"),
        ((540, 600, 720), "assumed"), ((1.05, 1.0, 0.9), "assumed")),
}
CHIPS = [
    #    name            in mfu.h    arch  sms  flops l2_mb warps kb  fp32 fp64
    Chip("A100 SXM 80GB", "A100", "80", 108, 2048, 40, 64, 164, 64, 32),
    Chip("H100 SXM", "H100", "90a", 132, 4096, 50, 64, 228, 128, 64),
    Chip("H200 SXM", "H200", "90a", 132, 4096, 60, 64, 228, 128, 64),
    Chip("RTX 4090", "RTX 4090", "80", 128, 512, 72, 48, 100, 128, 2),
    Chip("RTX 5090", "RTX 5090", "120", 170, 512, 96, 48, 100, 128, 2),
    Chip("B200", "B200", "100", 148, 8192, 126, 64, 228, 128, 64),
]


def measured_steps(paths):
    """(chip, model, B, flags) -> tokens per second; chip -> kernel -> ms. Of some of DAYS."""
    steps, kernels = {}, {}
    for path in paths:
        day = json.loads(pathlib.Path(path).read_text())
        chip = next((c.name for c in CHIPS if c.name.split()[-1 if "RTX" in c.name else 0] in day.get("gpu", "")), None)
        for row in day.get("steps", []):
            if row["who"].startswith("this trainer"):
                steps[chip, row["model"], row["B"], row["who"].partition("bf16, ")[2]] = row["tokens_per_s"]
        kernels[chip] = day.get("kernels", {})
        for row in day.get("products", []):
            name = "product " + row["product"].split(",")[0]
            kernels[chip].setdefault(name, []).append(row["ms"])
    return steps, kernels
