#!/bin/sh
# What dev/cusim/README.md promises of gdb: a breakpoint in one CUDA thread stops there, and another thread's backtrace
# can be had.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
make -s build-debug/cusim_seeded_bugs DEBUG=1
output=$(gdb -q -batch -ex 'source dev/cusim/gdb.py' -ex 'set debuginfod enabled off' \
    -ex 'break exchange_kernel<true> if threadIdx.x == 5 && blockIdx.x == 0' -ex 'run good' -ex 'print threadIdx' \
    -ex cuda-threads -ex 'cuda-thread 2' -ex continue build-debug/cusim_seeded_bugs 2>&1)
for wanted in '= {x = 5, y = 0, z = 0}' 'thread (4,0,0) at a barrier dev/cusim/test/seeded_bugs.cu:' \
    'thread (6,0,0) not started' 'exchange_kernel<true> (out=' 'result right'; do
    case "$output" in *"$wanted"*) ;; *) echo "no '$wanted' in: $output"; exit 1 ;; esac
done
