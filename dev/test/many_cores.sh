#!/bin/sh
# many_cores.sh PIECES: a small run has the same weights and log on 1 to 64 threads, and the table of dev/cpu/README.md
# is what the program PIECES counts. WRITE=1 writes the table.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
pieces=$1 readme=dev/cpu/README.md
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "$*"; exit 1; }

table() {
    "$pieces" > "$out/table"
    begin="<!-- pieces begin -->" end="<!-- pieces end -->"
    awk -v begin="$begin" -v end="$end" -v table="$out/table" '
        $0 == end { inside = 0 } !inside { print }
        $0 == begin { inside = 1; while ((getline line < table) > 0) print line }' $readme > "$out/README.md"
    grep -q "idle in a step" "$out/README.md" || fail "$readme has no place for the table"
    if [ -n "$WRITE" ]; then cp "$out/README.md" $readme
    elif [ "$(uname -m)" = x86_64 ]; then  # elsewhere vectors have another length, and blocks another size
        diff $readme "$out/README.md" || fail "$readme has another table; WRITE=1 $0 $pieces writes this one"
    fi
}
# On x86-64 the program is built for AVX-512, whatever the CPU: the size of its vectors decides the pieces.
if [ "$(uname -m)" != x86_64 ] || grep -qw avx512vl /proc/cpuinfo 2> /dev/null; then table
else echo "SKIPPED the table of idle pieces (a CPU with AVX-512 counts them)"; fi

cat dev/data/shakespeare/*.txt | head -c 20000 > "$out/t.txt"
./tokenize "$out/t.txt" --bytes 1 --val-fraction 0.1 -o "$out/t" > "$out/log"
for precision in fp32 fp32x3 bf16; do
    for threads in 1 2 3 7 16 64; do
        ./train_gpt2_cpu -i "$out/t_train.bin" -j "$out/t_val.bin" -e L2C96H3T64 -b 2 -t 64 -d 256 -x 5 -v 5 -m 2 -s 0 \
            --threads $threads --precision $precision -o "$out/$precision-$threads" > "$out/log" 2>&1 ||
            fail "$(cat "$out/log")"
        for file in model_00000005.bin main.log; do
            cmp "$out/$precision-1/$file" "$out/$precision-$threads/$file"
        done
    done
done
for other in fp32x3 bf16; do
    ! cmp -s "$out/fp32-1/model_00000005.bin" "$out/$other-1/model_00000005.bin" || fail "$other is fp32"
done
