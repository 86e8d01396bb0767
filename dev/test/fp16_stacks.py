#!/usr/bin/env python3
"""fp16_stacks.py NVCC: exit 1 if a hot kernel of train_gpt2cu PRECISION=FP16 has a stack. Those of the other
precisions: dev/cuda/kernel_table.py."""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in (".", "cuda")]
import children  # noqa: E402
from kernel_table import COLD  # noqa: E402
from machine_code import compile_for  # noqa: E402

kernels = compile_for(sys.argv[1], "90a", "FP16")[1]
names = children.run(["c++filt"], text="\n".join(kernels))[0].splitlines()
in_fp16 = [name for name in names if "__half" in name]
stacks = [name for name, (_, _, stack, _) in zip(names, kernels.values()) if stack]
hot = [name for name in stacks if not COLD.search(name)]
print(f"{len(in_fp16)} kernels of {len(names)} have fp16 arguments, {len(stacks)} a stack, of the hot ones: {hot}")
sys.exit(bool(hot) or len(in_fp16) < 20)
