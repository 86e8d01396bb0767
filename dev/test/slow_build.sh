#!/bin/sh
# A trainer built without optimisation, for a CPU older than this one, says both when a long run starts. The fast build
# says neither.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
case $(uname -m) in x86_64) ;; *) exit 0 ;; esac
mkdir -p build/slow
${CXX:-g++} -std=c++17 -O0 -march=x86-64 -Wno-psabi -pthread -I. train_gpt2_cpu.cpp \
    llmc/run/services.cpp llmc/cpu/compiled_once.cpp -o build/slow/train_gpt2_cpu
# About 1e15 FLOPs, of which a time limit of no time leaves the first step.
flags="-e L2C256H4T64V257 -i build/slow/t_train.bin -b 2 -t 32 -d 64 -x 2000000 -v 0 -s 0 --max-minutes 1e-9"
head -c 20000 /dev/zero | tr '\0' a > build/slow/t.txt
./tokenize build/slow/t.txt --bytes 1 --val-fraction 0.1 -o build/slow/t > /dev/null
said() { "$1" $flags 2>&1 > /dev/null | grep -c "$2" || true; }
expect() { [ "$2" = "$3" ] || { echo "$1: said $2 times, wanted $3"; exit 1; }; }
old="and this program was built for 16 (SSE)" slow="built without optimisation"
expect "vectors, slow build" "$(said build/slow/train_gpt2_cpu "$old")" "$(grep -c -m 1 avx2 /proc/cpuinfo)"
expect "optimisation, slow build" "$(said build/slow/train_gpt2_cpu "$slow")" 1
expect "vectors, fast build" "$(said ./train_gpt2_cpu "$old")" 0
expect "optimisation, fast build" "$(said ./train_gpt2_cpu "$slow")" 0
