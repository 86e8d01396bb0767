#!/bin/sh
# part.sh program|check NAME TITLE COMMAND: runs one part of the tests (see dev/test/test.mk). build/test/NAME.log keeps
# what it prints, NAME.result "passed failed skipped". A program counts for itself, in its last line. A check counts as
# one; skip ends it with the status 77. A part that fails does not end make, which goes on with the others: run.sh
# counts. Each part has a folder of its own for temporary files: two mpiruns that make their shared one at the same
# instant end with "File exists". A part that is not done after LIMIT seconds fails, and says what it was doing.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
. dev/test/log.sh
kind=$1 name=$2 title=$3 command=$4
# Makes that the part starts get the variables given to this one, but not its jobs.
case "$MAKEFLAGS" in *"-- "*) MAKEFLAGS="-- ${MAKEFLAGS#*-- }" ;; *) unset MAKEFLAGS ;; esac
unset MFLAGS MAKELEVEL TIMED
mkdir -p build/test
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/part.XXXXXX") && export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
log=build/test/$name.log
say running "$title"
start_clock
: > "$log"
dev/test/time_limit.sh "$TMPDIR" $$ "${LIMIT:-1800}" >> "$log" 2>&1 < /dev/null &
(
    skip() { echo "SKIPPED $title ($1)"; exit 77; }
    eval "$command"
) >> "$log" 2>&1 < /dev/null
status=$?
[ ! -e "$TMPDIR/late" ] || status=124
stop_clock "$name" "$title"
last=$(tail -n 1 "$log")
passed=0 failed=0 skipped=0 counts=
case "$kind $status $last" in
    "program "*" passed, "*" failed, "*" skipped")
        set -- $(echo "$last" | tr -d ,)
        passed=$1 failed=$3 skipped=$5 counts="$last, "
        if [ $status -ne 0 ] && [ "$failed" -eq 0 ]; then
            failed=1 && echo "FAILED $title, with status $status" >> "$log"
        fi ;;
    "program "*) failed=1 && echo "FAILED $title ended early, with status $status" >> "$log" ;;
    "check 0 "*) passed=1 ;;
    "check 77 "*) skipped=1 ;;
    *) failed=1 && echo "FAILED $title, with status $status" >> "$log" ;;
esac
echo "$passed $failed $skipped" > "build/test/$name.result"
if [ "$failed" -gt 0 ]; then say FAILED "$title" "$counts$seconds s" && tail -n 40 "$log"
elif [ "$passed" -gt 0 ]; then say passed "$title" "$counts$seconds s" && grep '^SKIPPED' "$log"
else say skipped "$title" "$seconds s" && grep '^SKIPPED' "$log"; fi
exit 0
