#!/usr/bin/env python3
"""spills.py NVCC: compiles the CUDA kernels of dev/modern; exit 1 if one of them spills registers. Of attention's, with
heads that share keys, those that have no registers for it are named here."""
import pathlib
import sys

if __name__ == "__main__" and "--help" in sys.argv:
    sys.exit(print(__doc__))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import children  # noqa: E402
import re  # noqa: E402
import tempfile  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Heads of more than 128 channels; and of 33 to 64 on an A100, 16 bytes.
EXPECTED = {"80": ("kv_kernel<256", "kv_kernel<64, 32, 2, true>"), "90": ("kv_kernel<256",)}


def spilling(nvcc, arch, precision, folder):
    """Names of all kernels, and of those that spill."""
    command = [nvcc, "-std=c++17", "-O3", f"-arch=sm_{arch}", f"-DPRECISION_{precision}", "-I.", "-Xptxas", "-v", "-c",
               "dev/modern/test_modern.cu", "-o", f"{folder}/kernels.o"]
    lines = r"Compiling entry function '(\w+)'(?:.*\n)+?.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
    found = re.findall(lines, children.run(command, cwd=ROOT)[0])
    names = children.run(["c++filt"], text="\n".join(name for name, _, _ in found))[0].splitlines()
    return names, [name for name, (_, stores, loads) in zip(names, found) if int(stores) + int(loads)]


failed = False
with tempfile.TemporaryDirectory() as temporary:
    for arch, precision in (("80", "BF16"), ("90", "BF16"), ("90", "FP32")):
        kernels, spill = spilling(sys.argv[1], arch, precision, temporary)
        wrong = [name for name in spill if not any(part in name for part in EXPECTED[arch])]
        failed = failed or bool(wrong) or len(kernels) < 20
        print(f"sm_{arch}, {precision}: {len(kernels)} kernels, {len(spill)} spill, of which not known: {wrong}")
sys.exit(failed)
