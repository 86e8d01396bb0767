#!/bin/sh
# nvcc takes every ladder of dev/cuda, without warnings; one architecture is enough.
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
flags="-std=c++17 -I. -arch=sm_80 -Werror all-warnings -cubin -o /dev/null"
for source in dev/cuda/*.cu; do
    "$nvcc" $flags -Xcompiler "-Wall -Wextra -Wno-parentheses" "$source" || exit 1
done
