#!/bin/sh
# The simulator with the portable way of switching fibers instead of its own.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
mkdir -p build/ucontext
flags="-std=c++17 -O2 -march=${ARCH:-native} -Wno-psabi -Wno-unknown-pragmas -Ibuild/sim -Idev/cusim/include -I."
machinery=$(ls dev/cusim/cusim_*.cpp | grep -v blas)  # the test's kernels need no products
${CXX:-g++} $flags -DCUSIM_UCONTEXT $machinery -x c++ build/sim/dev/cusim/test/seeded_bugs.cu -pthread -ldl \
    -o build/ucontext/seeded_bugs
for bug in good early_exit async_copy stream_wait; do build/ucontext/seeded_bugs $bug; done
! build/ucontext/seeded_bugs divergent_barrier 2>/dev/null
