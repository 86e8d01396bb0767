#!/bin/sh
# The first minutes on a GPU: checks and measures everything, the most valuable first. Can be stopped and called again:
# what is done stays done, and results are kept in a folder.
#
#   make gpu_day_programs            here, with nvcc; the GPU's machine needs none then (GPU_ARCH=90a: which GPU)
#   scripts/gpu_day.sh 9 --state build/gpu_day/state       there: 9 minutes of it; again: what is left
#
# --help has more. CUDA_LIB names a folder with CUDA's libraries where the system does not find them.
cd "$(dirname "$0")/.." && exec python3 dev/gpu_day.py "$@"
