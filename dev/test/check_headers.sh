#!/bin/sh
# check_headers.sh COMPILER "FLAGS" [quick]: every header compiles by itself, and included twice, without a warning;
# those for CUDA as the simulator sees them, and with nvcc where it is installed. Most of the time goes into the
# standard library's headers; quick compiles those once for all, and so does not see that one of them is not included.
compiler=$1 flags=$2 quick=$3
cpu_headers="llmc/*.h llmc/cpu/*.h dev/data/*.h dev/bench.h dev/bench_run.h dev/cpu/bench_cpu.h
    dev/test/test.h dev/test/run_program.h dev/test/tokenized.h dev/test/meeting.h dev/test/several.h
    dev/test/cpu_oracle.h"
sim_headers="llmc/cuda/*.cuh dev/cusim/cusim.h"
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
status=0
check() {  # header, compiler and flags
    header=$1
    shift
    printf '#include "%s"\n#include "%s"\n' "$header" "$header" > "$dir/twice.cu"
    "$@" "$dir/twice.cu" || { echo "$header does not stand alone"; status=1; }
}
strict="-Werror -Wno-unused-function -fsyntax-only -x c++"
sim="-Ibuild/sim -Idev/cusim/include -Wno-unknown-pragmas"
if [ "$quick" ]; then
    cat $cpu_headers $sim_headers | grep -hE '^#include <[a-z_]+>' | sort -u > "$dir/standard.h"
    printf '#ifdef __x86_64__\n#include <immintrin.h>\n#endif\n' >> "$dir/standard.h"
    $compiler $flags -x c++-header "$dir/standard.h" -o "$dir/standard.h.gch" || exit 1
    flags="$flags -include $dir/standard.h"
fi
for header in $cpu_headers; do check $header $compiler $flags $strict; done
for header in $sim_headers; do check $header $compiler $sim $flags $strict; done
[ "$quick" ] && exit $status
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
[ -z "$nvcc" ] || for header in llmc/cuda/*.cuh; do
    check $header $nvcc -std=c++17 -I. -Werror all-warnings -arch=sm_80 -cuda -o /dev/null
done
exit $status
