#!/bin/sh
# check_headers.sh COMPILER "FLAGS": every header compiles by itself, and included twice, without a warning; those for CUDA as the simulator sees
# them, and with nvcc where it is installed.
status=0
check() {  # header, compiler and flags
    header=$1; shift
    printf '#include "%s"\n#include "%s"\n' "$header" "$header" > build/twice.cu
    "$@" build/twice.cu || { echo "$header does not stand alone"; status=1; }
}
for header in llmc/*.h llmc/cpu/*.h dev/data/*.h dev/test/test.h dev/test/run_program.h dev/test/cpu_oracle.h dev/bench.h dev/bench_run.h dev/cpu/bench_cpu.h; do check $header $1 $2 -Werror -Wno-unused-function -fsyntax-only -x c++; done
for header in llmc/cuda/*.cuh dev/cusim/cusim.h; do check $header $1 -Ibuild/sim -Idev/cusim/include $2 -Wno-unknown-pragmas -Werror -Wno-unused-function -fsyntax-only -x c++; done
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
[ -z "$nvcc" ] || for header in llmc/cuda/*.cuh; do check $header $nvcc -std=c++17 -I. -Werror all-warnings -arch=sm_80 -cuda -o /dev/null; done
exit $status
