#!/usr/bin/env python3
"""stacks.py NVCC: compiles the CUDA kernels of dev/modern; exit 1 if one of them has a stack. Of attention's, with
heads that share keys, those that have no registers for it are named here."""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in (".", "cuda")]
import children  # noqa: E402
from kernel_table import COLD  # noqa: E402
from machine_code import compile_for  # noqa: E402

EXPECTED = "kv_kernel<64, 32, 2, true>"  # 16 bytes on an A100, 8 on an H100

failed = False
for arch, precision in (("80", "BF16"), ("90", "BF16"), ("90", "FP32")):
    kernels = compile_for(sys.argv[1], arch, precision, "dev/modern/test_modern.cu")[1]
    names = children.run(["c++filt"], text="\n".join(kernels))[0].splitlines()
    stacks = [name for name, (_, _, stack, _) in zip(names, kernels.values()) if stack]
    wrong = [name for name in stacks if not COLD.search(name) and EXPECTED not in name]
    failed = failed or bool(wrong) or len(kernels) < 20
    print(f"sm_{arch}, {precision}: {len(kernels)} kernels, {len(stacks)} have a stack, of which not known: {wrong}")
sys.exit(failed)
