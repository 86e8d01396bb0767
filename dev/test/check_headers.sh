#!/bin/sh
# check_headers.sh COMPILER "FLAGS": every header compiles by itself, and included twice, without a warning; those for
# CUDA as the simulator sees them.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
compiler=$1 flags=$2
cpu_headers="llmc/*/*.h dev/data/*.h dev/bench.h dev/bench_run.h dev/cpu/bench_cpu.h dev/talk/*.h dev/test/fuzz/*.h
    $(ls dev/test/*.h | grep -v -e _tests.h -e _kernels.h)
    $(ls dev/parallel/*.h 2> /dev/null)
    dev/course/exercises/judge.h
    dev/course/exercises/ranks.h"  # those left out are parts of a test, after the model
sim_headers="llmc/cuda/*.cuh dev/cusim/cusim.h dev/course/exercises/judge_cuda.h"
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
status=0
check() {  # header, compiler and flags
    header=$1
    shift
    printf '#include "%s"\n#include "%s"\n' "$header" "$header" > "$dir/twice.cu"
    "$@" "$dir/twice.cu" || { echo "$header does not stand alone"; status=1; }
}
strict="-O0 -Werror -Wno-unused-function -fsyntax-only -x c++"
sim="-Ibuild/sim -Idev/cusim/include -Wno-unknown-pragmas"
for header in $cpu_headers; do check $header $compiler $flags $strict; done
for header in $sim_headers; do check $header $compiler $sim $flags $strict; done
exit $status
