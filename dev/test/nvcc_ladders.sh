#!/bin/sh
# nvcc takes every ladder of dev/cuda, without warnings; one architecture is enough.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
flags="-std=c++17 -I. -arch=sm_80 -Werror all-warnings -cubin -o /dev/null"
for source in dev/cuda/*.cu; do
    "$nvcc" $flags -Xcompiler "-Wall -Wextra -Wno-parentheses" "$source" || exit 1
done

# A GPU without what the kernels need is refused with a sentence.
"$nvcc" -std=c++17 -I. -arch=sm_75 -cubin -o /dev/null dev/cuda/gelu.cu 2>&1 | grep -q "no bf16 tensor cores" ||
    { echo "sm_75 is not refused with a sentence"; exit 1; }
