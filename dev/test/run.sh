#!/bin/sh
# Runs the test programs given, then the checks on the source, and ends with one line: N passed, N failed[, N skipped].
passed=0 failed=0 skipped=0
count() {  # a line "N passed, N failed, N skipped" into the totals
    set -- $(echo "$1" | tr -d ',')
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}
one() {    # name, command: passes if the command succeeds
    name=$1; shift
    if output=$("$@" 2>&1); then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $name"; echo "$output" | tail -n 30; fi
}
for program in "$@"; do
    echo "$program"
    output=$("$program" 2>&1)
    last=$(echo "$output" | tail -n 1)
    case "$last" in
        *" passed, "*" failed, "*" skipped") echo "$output"; count "$last" ;;
        *) echo "$output" | tail -n 30; echo "FAILED $program ended early"; failed=$((failed + 1)) ;;
    esac
done
echo "source checks"
one "every header compiles alone and twice" make -s check-headers
one "KERNELS=reference trains" dev/test/reference_trainer.sh
if echo 'int main(){}' | ${CXX:-g++} -x c++ -fsanitize=address,undefined - -o /dev/null 2>/dev/null; then
    one "unit tests under ASan and UBSan" make -s test-sanitized
else
    skipped=$((skipped + 1)); echo "SKIPPED unit tests under ASan and UBSan: the compiler has no sanitizers (apt-get install g++)"
fi
line="$passed passed, $failed failed"
[ "$skipped" -gt 0 ] && line="$line, $skipped skipped"
echo "$line"
[ "$failed" -eq 0 ]
