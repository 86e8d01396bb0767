#!/bin/sh
# portable.sh PART: that the programs are built and right elsewhere, as far as this machine can tell.
#
#   rules           make files and scripts use nothing that make 3.81, bash 3.2 and BSD tools do not have
#   compilers [all]   the oldest and the newest g++ and clang that are installed, or all of them, accept the sources
#                   without a warning; what they build passes the tests of kernels and host, and trains to the same
#                   losses
#   apple           the branches for macOS compile and train (dev/test/apple/apple.h), also with libc++
#   x86 LEVEL       the kernels pass their tests, built for x86-64-v2 or -v3
#   aarch64         the same in an emulator, and fp32 and bf16 train to the losses of this machine's programs
#   elsewhere MAKE  make -C, B= elsewhere, folders with spaces: the source tree stays as it is
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
out=build/portable/$1  # for each part, since they run side by side
mkdir -p $out
rm -f $out/t_*.bin
services=llmc/run/services.cpp once=llmc/cpu/compiled_once.cpp
trainer="train_gpt2_cpu.cpp $services"
flags="-std=c++17 -ffp-contract=fast -fno-math-errno -Wall -Wextra -Wno-psabi -Wno-unknown-pragmas -pthread -I."
fail() { echo "$*"; exit 1; }
skip() { echo "SKIPPED $1 ($2)"; exit 77; }
# A small run of program $1; prints the losses of its steps.
losses() {
    program=$1
    shift
    test -f $out/t_train.bin || {
        cat dev/data/shakespeare/*.txt | head -c 20000 > $out/t.txt
        ./tokenize $out/t.txt --bytes 1 --val-fraction 0.1 -o $out/t > $out/tokenize.log
    }
    $emulator "$program" -i $out/t_train.bin -j $out/t_val.bin -e L2C48H3T32V257 -b 2 -t 32 -d 128 -x 6 -l 1e-3 -v 3 \
        -m 2 -s 0 --threads 3 "$@" > $out/run.log 2>&1 || { cat $out/run.log >&2; return 1; }
    sed -n -e 's/^step .*| loss \([^ ]*\) .*| norm \([^ ]*\) .*/\1 \2/p' -e 's/^val loss //p' $out/run.log
}

# Whether the files here and there have the same losses, up to a relative difference of $1.
same_losses() {
    paste -d ' ' $out/here $out/there | awk -v most=$1 '
        { for (i = 1; i <= NF / 2; i++) { d = $i / $(i + NF / 2) - 1; bad += !(d < most && d > -most) } }
        { print; n += NF } END { exit bad > 0 || n != 2 * (6 * 2 + 3) }' > $out/pairs
}

rules() {
    found=0
    none() {  # what, pattern, files
        what=$1 pattern=$2
        shift 2
        grep -nE -- "$pattern" "$@" && { echo "^ $what"; found=1; }
        return 0
    }
    makefiles="Makefile $(find dev -name '*.mk') dev/cuda/Makefile"
    scripts="scripts/*.sh scripts/multi_node/*.sh .ci/run
        $(find dev -name '*.sh' ! -name portable.sh ! -path '*/amx/*')"
    none "newer than make 3.81" '(:|^) *private |^undefine |^[A-Za-z_]+ *!=|::=|&:|^define .*=' $makefiles
    none "newer than make 3.81" '\$\((file|let|intcmp|guile) ' $makefiles
    none "newer than make 3.81" '^\.(ONESHELL|RECIPEPREFIX|NOTINTERMEDIATE|POSIX|EXTRA_PREREQS)' $makefiles
    none "make before 4.3 runs this without a shell, so add 2>/dev/null" \
        'shell command -v ([a-z+]+|\$\([A-Z]+\))\)' $makefiles
    none "newer than bash 3.2" 'mapfile|readarray|(declare|local) -[gn]*[An]|\|&|&>>' $scripts
    none "newer than bash 3.2" '\$\{[A-Za-z_]+(,|\^|@)' $scripts
    none "newer than bash 3.2" 'wait -n|\[\[ -v |coproc|%\(.*\)T|\$\{[A-Za-z_]+\[-1\]' $scripts
    none "not in BSD" 'sed (-[nE]+ )*-i|readlink -|realpath|stat -|grep -[a-zA-Z]*P|xargs -r|sort -V|head -n -' $scripts
    none "not in BSD" '(^|[^(])date \+.*%N|cp -[a-z]*[dlu]|find .* -printf|(^|[;&|] *)tac |^ *timeout ' \
        $(ls $scripts | grep -v '/log.sh$')
    [ $found = 0 ] || exit 1
    # The patterns find what they are for.
    printf 'a: private X += 1\nx != date\n.ONESHELL:\ny := $(shell command -v nvcc)\n' > $out/bad.mk
    printf 'mapfile a\nsed -i s/a/b/ c\nreadlink -f x\ndate +%%s.%%N\n' > $out/bad.sh
    lines=$(none x '(:|^) *private |^[A-Za-z_]+ *!=|^\.ONESHELL|shell command -v [a-z]+\)' $out/bad.mk | wc -l)
    [ "$lines" -eq 5 ] || fail "what is newer than make 3.81 is not found"
    lines=$(none x 'mapfile|sed (-[nE]+ )*-i|readlink -|(^|[^(])date \+.*%N' $out/bad.sh | wc -l)
    [ "$lines" -eq 5 ] || fail "what BSD does not have is not found"
}

# Every g++ from 12 and clang++ from 14 on that is installed, oldest first, one kind after the other.
installed() {
    for kind in g++ clang++; do
        versions=
        for v in 12 13 14 15 16 17 18 19 20 21 22 23 24; do
            [ $kind-$v = clang++-12 ] || [ $kind-$v = clang++-13 ] || ! command -v $kind-$v || versions=yes
        done
        [ -n "$versions" ] || command -v $kind || true
    done
}

compilers() {
    installed > $out/installed
    for kind in g++ clang++; do
        grep "/$kind[^/]*$" $out/installed | if [ "$1" = all ]; then cat; else sed -n '1p;$p' | uniq; fi
    done > $out/compilers
    grep -q clang $out/compilers || echo "SKIPPED clang (apt-get install clang)"
    { ls llmc/*/*.h dev/data/*.h | sed 's/.*/#include "&"/'; echo 'int main() {}'; } > $out/headers.cpp
    losses ./train_gpt2_cpu > $out/here
    usual=$(${CXX:-g++} --version | head -n 1 | sed 's/[^ ]* //')
    for compiler in $(cat $out/compilers); do
        version=$($compiler --version | head -n 1)
        if [ "${version#* }" = "$usual" ]; then echo "$version: builds all that the other tests run"
        else built_by $compiler $([ "$1" = all ] && echo -O3 || echo -O1) && echo "$version: passes"; fi
    done
}

built_by() {
    compiler=$1 level=$2
    # A new clang warns of what an old standard library has in its own headers.
    strict="-Werror -Wno-unused-function -Wno-deprecated-declarations -march=native"
    for source in $out/headers.cpp dev/data/tokenize.cpp; do
        $compiler $flags $strict -fsyntax-only $source || fail "$compiler does not accept $source"
    done
    $compiler $flags $strict $level -c $once -o $out/once.o || fail "$compiler: $once"
    for source in "$trainer $out/once.o" "dev/test/test_kernels.cpp $out/once.o" dev/test/test_host.cpp; do
        $compiler $flags $strict $level $source -o $out/$(basename ${source%% *} .cpp) || fail "$compiler: $source"
    done
    $out/test_kernels medium > $out/run.log || fail "$compiler, test_kernels: $(tail -n 20 $out/run.log)"
    $out/test_host > $out/run.log || fail "$compiler, test_host: $(tail -n 20 $out/run.log)"
    losses $out/train_gpt2_cpu > $out/there
    same_losses 1e-5 || fail "built by $compiler, the trainer has other losses: $(cat $out/pairs)"
}

apple() {
    [ "$(uname -s)" != Darwin ] || exit 0
    pretend="-Idev/test/apple -include dev/test/apple/apple.h"
    ${CXX:-g++} $flags $pretend -Werror -Wno-unused-function -fsyntax-only dev/data/tokenize.cpp
    printf '#include "llmc/comm/socket.h"\nauto use = &sched_getaffinity;\n' > $out/linux_only.cpp
    ! ${CXX:-g++} $flags $pretend -fsyntax-only $out/linux_only.cpp 2> $out/refused ||
        fail "sched_getaffinity is accepted, as if macOS had it"
    ${CXX:-g++} $flags $pretend -O1 -march=native $trainer $once -o $out/apple
    losses ./train_gpt2_cpu > $out/here
    losses $out/apple > $out/there
    grep -q "Apple T1" $out/run.log || fail "the program does not ask macOS for the CPU's name: $(cat $out/run.log)"
    same_losses 1e-5 || fail "with the branches for macOS, other losses: $(cat $out/pairs)"
    for clang in clang++ clang++-19 clang++-16 clang++-14; do
        echo '#include <string>' > $out/string.cpp
        $clang -stdlib=libc++ -fsyntax-only $out/string.cpp 2>/dev/null || continue
        $clang $flags -stdlib=libc++ -march=native -Werror -fsyntax-only $trainer $once
        $clang $flags -stdlib=libc++ -march=native -Werror -fsyntax-only dev/data/tokenize.cpp
        return
    done
    echo "SKIPPED the headers of libc++ (apt-get install libc++-dev)"
}

x86() {
    case $1 in
        v2) needs=sse4_2 ;;
        v3) needs=avx2 ;;
    esac
    grep -qw $needs /proc/cpuinfo 2>/dev/null || skip "x86-64-$1" "a CPU with $needs tests it"
    ${CXX:-g++} $flags -O1 -march=x86-64-$1 dev/test/test_kernels.cpp $once -o $out/kernels_$1
    $out/kernels_$1 small
}

aarch64() {
    case $(uname -m) in aarch64 | arm64) exit 0 ;; esac
    compiler=aarch64-linux-gnu-g++
    command -v $compiler > /dev/null || skip aarch64 "apt-get install g++-aarch64-linux-gnu"
    command -v qemu-aarch64 > /dev/null || skip aarch64 "apt-get install qemu-user"
    libraries=/usr/aarch64-linux-gnu
    [ -d $libraries ] || libraries=$($compiler -print-sysroot)
    $compiler $flags -O0 -march=armv8-a -c $services -o $out/services.o  # nothing in it asks for features
    for features in armv8-a armv8.2-a+bf16; do
        $compiler $flags -O1 -march=$features -c $once -o $out/once_$features.o
        $compiler $flags -O1 -march=$features train_gpt2_cpu.cpp $out/services.o $out/once_$features.o \
            -o $out/train_$features
    done
    $compiler $flags -O1 -march=armv8.2-a+bf16 dev/test/test_kernels.cpp $out/once_armv8.2-a+bf16.o \
        -o $out/kernels_arm
    for precision in fp32 bf16; do
        emulator=
        losses ./train_gpt2_cpu --precision $precision > $out/here
        emulator="qemu-aarch64 -cpu max -L $libraries"
        for features in armv8-a armv8.2-a+bf16; do
            losses $out/train_$features --precision $precision > $out/there
            same_losses $([ $precision = fp32 ] && echo 1e-5 || echo 0.01) ||
                fail "$features, $precision: other losses than here: $(cat $out/pairs)"
        done
    done
    grep -q "bf16 on NEON BF16" $out/run.log || fail "the bf16 products of ARM are not used: $(cat $out/run.log)"
    $emulator $out/kernels_arm small
}

elsewhere() {
    make=$1
    scratch=$(mktemp -d)
    trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
    mkdir "$scratch/a tree" "$scratch/built" "$scratch/data of mine"
    tree="$scratch/a tree"
    tar cf - --exclude '*_train.bin' --exclude '*_val.bin' --exclude __pycache__ Makefile llmc dev scripts ./*.c* |
        tar xf - -C "$tree"
    chmod -R a-w "$tree"
    (cd "$tree" && find . | LC_ALL=C sort) > $out/before
    (cd / && "$make" -s -C "$tree" B="$scratch/built" MPI=no DEBUG=1 all)
    "$make" -n -C "$tree" B="$scratch/built" MPI=no DEBUG=1 all > $out/again
    ! grep -q -- ' -o ' $out/again || fail "make builds again what is built: $(cat $out/again)"
    (cd "$tree" && find . | LC_ALL=C sort) | diff $out/before - || fail "a build with B= writes into the source tree"
    chmod -R u+w "$tree"
    cd "$scratch"
    head -c 9000 "$tree/dev/data/shakespeare/"*omeo*.txt > "data of mine/a text.txt"
    built/tokenize "data of mine/a text.txt" --bytes 1 -o "data of mine/bytes" > log
    built/train_gpt2_cpu -i "data of mine/bytes_train.bin" -j "data of mine/bytes_val.bin" -e L1C16H1T16 -b 1 -t 16 \
        -x 2 -v 1 -m 1 -s 0 -o "out of mine" > log 2>&1 || fail "$(cat log)"
    built/train_gpt2_cpu -o "out of mine" -y 1 -x 3 >> log 2>&1 || fail "$(cat log)"
    [ -f "out of mine/DONE_00000003" ] || fail "no checkpoint: $(cat log)"
}

part=$1
shift
$part "$@"
