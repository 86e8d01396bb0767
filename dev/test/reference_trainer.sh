#!/bin/sh
# reference_trainer.sh COMPILER "FLAGS" "LIBRARIES": the trainer built on llmc/cpu/reference.h must give the losses of
# the fast one, to rounding; and of lesson zero.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
mkdir -p build/reference
# The services of a run know no kernels: those of the fast trainer serve.
$1 $2 -O2 -DKERNELS_REFERENCE train_gpt2_cpu.cpp llmc/cpu/compiled_once.cpp build/services.o \
    -o build/reference/train_gpt2_cpu $3
losses() { sed -n 's/^step .*| loss \([0-9.]*\) .*norm \([0-9.]*\) .*/\1 \2/p'; }
for optimizer in adamw lion lamb muon adafactor sm3 adamw8bit; do
    flags="-e L2C48H3T40 -b 2 -t 33 -x 3 -v 0 -s 0 -d 132 --threads 2 --optimizer $optimizer"
    ./train_gpt2_cpu $flags | losses > build/reference/fast
    build/reference/train_gpt2_cpu $flags | losses > build/reference/slow
    paste -d ' ' build/reference/fast build/reference/slow | awk '
        function apart(a, b) { return !(a - b <= 1e-4 * b && b - a <= 1e-4 * b) }
        { lines++; if (apart($1, $3) || apart($2, $4)) { print "fast " $1 " " $2 ", reference " $3 " " $4; bad = 1 } }
        END { exit bad || lines != 3 }'
done
dev/test/course.py build/reference/train_gpt2_cpu
