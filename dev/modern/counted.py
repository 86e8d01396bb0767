#!/usr/bin/env python3
"""counted.py PROGRAM: exit 1 if the CUDA kernels of dev/modern move other bytes than their headers say; the simulator
counts them. PROGRAM is build-count/BF16/test_modern_cuda."""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in (".", "cusim")]
import children  # noqa: E402, F401
import counts  # noqa: E402

# The shape of each_once() in test_modern.cu. In bytes: a row's C values, F values, heads of queries and keys, heads of
# values; bf16 has 2 bytes.
ROWS, T, HEADS, HS, PARTS = 64, 32, 12, 64, 8
C, F, NORMED, VALUES = (2 * ROWS * width for width in (576, 512, HEADS * HS, 3 * HS))
RSTD, QK_RSTD, WEIGHT, SHARE = 4 * ROWS, 4 * ROWS * HEADS, 2 * 576, 2
EXPECTED = {  # read, written; what a kernel reads back counts as read
    "rmsnorm_forward": (C + WEIGHT, C + RSTD),
    "residual_rmsnorm_forward": (3 * C + WEIGHT, 2 * C + RSTD),
    "rmsnorm_backward": (3 * C + WEIGHT + RSTD, C + PARTS * 2 * WEIGHT),
    "qk_norm_forward": (NORMED + 2 * HS, 2 * NORMED + QK_RSTD),
    "qk_norm_backward": (2 * NORMED + QK_RSTD + 2 * HS, NORMED + PARTS * 2 * 4 * HS),
    "rope": (NORMED + 4 * T * HS, NORMED),
    "swiglu_forward": (2 * F, F), "swiglu_backward": (3 * F, 2 * F),
    "relu2_forward": (F, F), "relu2_backward": (2 * F, F),
    "softcap_forward": (F, 2 * F), "softcap_backward": (2 * F, F),
    "mix_values_forward": (2 * VALUES + SHARE, 2 * VALUES),
    "mix_values_backward": (5 * VALUES + SHARE, 3 * VALUES + 4 * ROWS // 4),
    "add_to_values": (3 * VALUES, VALUES)}

got = {kernel["kernel"]: (kernel["read_bytes"], kernel["written_bytes"])
       for kernel in counts.of_run([sys.argv[1], "counted"])}
wrong = [f"{name}: {got.get(name)} bytes read and written, {want} are expected"
         for name, want in EXPECTED.items() if got.get(name) != want]
print("\n".join(wrong) or f"{len(EXPECTED)} kernels move what is expected")
sys.exit(bool(wrong))
