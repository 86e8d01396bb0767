"""The chips that step_model.py predicts times for. Peaks and bandwidth come from the table in llmc/plan/mfu.h; here is
what else a model of time needs, with its sources.

- sms, l2_mb, warps and shared_kb of a multiprocessor, fp32 and fp64 lanes: NVIDIA's whitepapers "A100 Tensor Core GPU
  Architecture" (2020), "H100 Tensor Core GPU Architecture" (2022), "Ada GPU Architecture" (2022), "RTX Blackwell GPU
  Architecture" (2025), the datasheet of HGX B200; CUDA C++ programming guide, compute capabilities, arithmetic
  throughput.
- flops: dense bf16 FLOPs per clock and multiprocessor, whitepapers. The clock is peak / (sms x flops).
- mma: the share of the tensor cores' peak that mma.sync reaches, which is what the kernels here use. A100, Ada, RTX
  Blackwell: 1. H100: 0.629, Luo et al. 2024, arXiv:2402.13499. B200: mma.sync at an H100's rate per clock and
  multiprocessor: assumed.
- latency: of a load from memory that misses all caches, in clocks: Luo et al. 2024. RTX 5090, B200: assumed.
- product: the share of the peak that cuBLAS reaches at shapes that suit it. H100: 780 of 989 TFLOP/s, by H. He
  (gist.github.com/Chillee/2ec89696db8b7ed1c24461159e325405). The others: assumed.
- arch: the machine code it runs.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Chip:
    def __init__(self, name, peak_name, arch, sms, flops, l2_mb, warps, shared_kb, fp32, fp64, mma, latency, product):
        self.name, self.peak_name, self.arch, self.sms = name, peak_name, arch, sms
        self.l2_bytes, self.warps = l2_mb * 1e6, warps
        self.shared_kb, self.latency, self.product_share = shared_kb, latency, product
        self.peak, self.memory_bytes, self.bandwidth = peaks()[peak_name]
        self.clock = self.peak / (sms * flops)
        # what a multiprocessor does per clock: warp instructions, FLOPs of mma.sync, shared memory's wavefronts
        self.per_clock = {"issue": 4, "tensor": flops * mma, "shared": 1, "special": 16 / 32, "fma": fp32 / 32,
                          "alu": 64 / 32, "fp64": fp64 / 32, "global": 1}


def peaks():
    """Name -> bf16 FLOP/s, bytes of memory and bytes per second, from llmc/plan/mfu.h."""
    table = (ROOT / "llmc/plan/mfu.h").read_text()
    rows = re.findall(r'\{"([^"]+)", ([\d.]+), [\d.]+, [\d.]+, ([\d.]+), ([\d.]+)\}', table)
    return {name: (1e12 * float(tflops), 2**30 * float(gib), 1e9 * float(gb_s)) for name, tflops, gib, gb_s in rows}


CHIPS = [
    #    name            in mfu.h    arch  sms  flops l2_mb warps kb  fp32 fp64  mma  latency product
    Chip("A100 SXM 80GB", "A100", "80", 108, 2048, 40, 64, 164, 64, 32, 1, 466, 0.87),
    Chip("H100 SXM", "H100", "90a", 132, 4096, 50, 64, 228, 128, 64, 0.629, 479, 0.79),
    Chip("RTX 4090", "RTX 4090", "80", 128, 512, 72, 48, 100, 128, 2, 1, 542, 0.90),
    Chip("RTX 5090", "RTX 5090", "120", 170, 512, 96, 48, 100, 128, 2, 1, 600, 0.90),
    Chip("B200", "B200", "100", 148, 8192, 126, 64, 228, 128, 64, 0.629 / 2, 600, 0.75),
]
