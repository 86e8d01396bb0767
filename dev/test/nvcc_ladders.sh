#!/bin/sh
# nvcc takes every ladder of dev/cuda, without warnings; one architecture is enough.
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
for source in dev/cuda/*.cu; do "$nvcc" -std=c++17 -I. -arch=sm_80 -Werror all-warnings -Xcompiler "-Wall -Wextra -Wno-parentheses" -cubin -o /dev/null "$source" || exit 1; done
