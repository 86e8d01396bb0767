"""What the model of a step assumes: each with a value that makes a step short, the one expected, one that makes it
long, and where they come from. What differs from chip to chip is in chips.py.

A table shows the expected time, and a range: each assumption is moved alone to either end, and the differences are
added as independent errors are, by the root of the sum of their squares.
"""
import collections

SHORT, EXPECTED, LONG = range(3)

Assumption = collections.namedtuple("Assumption", "name what values unit source")

QUACK = "Guo, Zadouri, Dao 2025, Getting Memory-bound Kernels to Speed-of-Light, github.com/Dao-AILab/quack"
MAMF = "Bekman, Maximum Achievable Matmul FLOPS, github.com/stas00/ml-engineering/tree/master/compute/accelerator"
HE = "He 2024, thonking.ai/p/strangely-matrix-multiplications"
CHEESE = "chipsandcheese.com/p/nvidias-h100-funny-l2-and-tons-of-bandwidth"

GENERAL = [
    Assumption("memory_share", "of the bandwidth of memory, that kernels reach", (0.90, 0.82, 0.76), "share",
               f"short: a softmax tuned by hand, 3.01 of 3.35 TB/s ({QUACK}); expected and long: kernels that read and "
               "write several tensors, 2.6 to 2.8 TB/s on an H100, by the word of a reviewer"),
    Assumption("pipe_share", "of the slots of a pipe, that the warps of a kernel fill", (0.90, 0.80, 0.70), "share",
               "assumed"),
    Assumption("not_hidden", "of memory's time or the multiprocessors', the shorter, that the other does not hide",
               (0.1, 0.25, 0.5), "share", "assumed"),
    Assumption("warp_clocks", "of a warp alone, as a multiple of those that its instructions need", (0.9, 1.0, 1.2),
               "factor", "assumed"),
    Assumption("loaded", "latency of memory under load, as a multiple of that of a single load", (1.5, 2.0, 3.0),
               "factor", "assumed"),
    Assumption("l2_share", "of the second-level cache, that keeps different data", (1.0, 0.75, 0.5), "share",
               "the cache of A100 and H100 is two partitions, each of which caches for the multiprocessors next to it "
               f"(NVIDIA, A100 Tensor Core GPU Architecture, 2020; {CHEESE}): at worst everything lies in both"),
    Assumption("l2_rate", "bytes per clock and multiprocessor from the second-level cache", (48, 32, 24), "bytes",
               "assumed; A100: 5120 bytes per clock in all, 47 (NVIDIA, A100 Tensor Core GPU Architecture, 2020)"),
    Assumption("epilogue", "of the time in which a product's tile writes its result, that hides behind nothing",
               (0.0, 0.5, 1.0), "share", "assumed; short: kernels that begin the next tile meanwhile"),
    Assumption("small_tiles", "speed of a tile of 64 x 64 beside one of 256 x 128", (0.7, 0.6, 0.5), "share",
               "assumed"),
    Assumption("gap", "from the end of a kernel to the beginning of the next", (1.0, 1.5, 2.5), "us", "assumed"),
    Assumption("host", "that the host takes to start a kernel", (3.0, 4.0, 6.0), "us", "assumed"),
]

# Of steps with CUDA graphs alone (step_graphs.py).
GRAPHS = [
    Assumption("graph_gap", "from the end of a kernel in a graph to the beginning of the next, beside that in a stream",
               (0.4, 0.6, 0.9), "share", "on a V100 kernels of 2.9 us took 3.8 us each in a stream and 3.4 us in a "
               "graph (Gray 2019, Getting Started with CUDA Graphs, developer.nvidia.com/blog/cuda-graphs); others "
               "assumed"),
    Assumption("graph_launch", "that the host takes to launch a graph", (5, 10, 50), "us", "assumed"),
]


def shown(values, unit):
    """Three values as text."""
    if unit == "share":
        return " / ".join(f"{v:.0%}" for v in values)
    return " / ".join(f"{v:g}" for v in values) + (f" {unit}" if unit in ("us", "clocks", "bytes") else "")
