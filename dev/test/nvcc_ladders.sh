#!/bin/sh
# nvcc takes every ladder of dev/cuda, without warnings; one architecture is enough, but for the rungs for Hopper.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
flags="-std=c++17 -I. -Werror all-warnings -cubin -o /dev/null"
for source in dev/cuda/*.cu; do
    "$nvcc" $flags -arch=sm_80 -Xcompiler "-Wall -Wextra -Wno-parentheses" "$source" || exit 1
done
# Products that wait for each other, and spilled registers, are no warnings.
for source in $(grep -l '"dev/cuda/hopper.cuh"' dev/cuda/*.cu); do
    said=$("$nvcc" $flags -arch=sm_90a -Xptxas -v "$source" 2>&1) || { echo "$said"; exit 1; }
    echo "$said" | grep serialized && exit 1
    spilled=$(echo "$said" | grep -A 2 "entry function.*wgmma_kernel" | grep spill | grep -v " 0 bytes spill stores")
    test -z "$spilled" || { echo "$source: $spilled"; exit 1; }
done

# A GPU without what the kernels need is refused with a sentence.
"$nvcc" -std=c++17 -I. -arch=sm_75 -cubin -o /dev/null dev/cuda/gelu.cu 2>&1 | grep -q "no bf16 tensor cores" ||
    { echo "sm_75 is not refused with a sentence"; exit 1; }
