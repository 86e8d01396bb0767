#!/bin/sh
# run.sh MAKE PART...: has make build and run these parts of dev/test/test.mk, then lists what took most processor time,
# what was skipped and what failed, and ends with one line: N passed, N failed[, N skipped]. With RERUN=1, for machines
# whose other users may stop a process for seconds, a part that failed is run once more, alone, when all others have
# ended; if it then passes, it counts as passed and is listed as UNSTABLE, with what it printed the first time.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
make=$1
shift
case "${MAKEFLAGS%% *}" in *=* | -*) ;; *n*) exec $make -s "$@" ;; esac  # make -n only shows what would run
rm -rf build/test
mkdir -p build/test
echo "${CI_BEGAN:-$(date +%s)}" > build/test/began  # what the log counts from
export TIMED=dev/test/timed.sh
# Two more than the cores, since some parts wait more than they compute.
cores=$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1)
case "$MAKEFLAGS" in *jobserver*) jobs= ;; *) jobs=-j${JOBS:-$((cores + 2))} ;; esac
$make -s -k --no-print-directory $jobs "$@"
[ -z "$RERUN" ] || for part in "$@"; do
    name=${part#part-}
    read -r p f s 2> /dev/null < "build/test/$name.result" && [ "$f" -gt 0 ] || continue
    mv "build/test/$name.log" "build/test/$name.first.log"
    $make -s -k --no-print-directory "$part"
    read -r p f s < "build/test/$name.result"
    [ "$f" -gt 0 ] || unstable="$unstable $name"
done
passed=0 failed=0 skipped=0
for part in "$@"; do
    name=${part#part-}
    [ -f "build/test/$name.result" ] || {
        echo "FAILED $name was not run: what it needs could not be built" > "build/test/$name.log"
        echo "0 1 0" > "build/test/$name.result"
    }
    read -r p f s < "build/test/$name.result"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo
cat build/test/*.time | awk -v cores="$cores" '{ sum += $1 }
    END { printf "%.0f seconds of processor time, %.0f on each of %d cores; most took:\n", sum, sum / cores, cores }'
sort -rn build/test/*.time | head -n 12 | sed 's/^/    /'
for part in "$@"; do grep -h '^SKIPPED' "build/test/${part#part-}.log"; done
for name in $unstable; do echo "UNSTABLE $name failed once and passed alone (build/test/$name.first.log)"; done
for part in "$@"; do
    grep -h '^FAILED' "build/test/${part#part-}.log" | sed "s,\$, (build/test/${part#part-}.log),"
done
line="$passed passed, $failed failed"
[ "$skipped" -gt 0 ] && line="$line, $skipped skipped"
echo "$line"
[ "$failed" -eq 0 ]
