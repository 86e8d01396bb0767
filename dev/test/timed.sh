#!/bin/sh
# timed.sh COMPILER ... -o PROGRAM ...: compiles, and says what and how long it took. What the compiler prints comes in
# one piece, so that compilers which run side by side do not mix their lines.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
. dev/test/log.sh
for word in "$@"; do [ "$before" = -o ] && program=$word; before=$word; done
file=$(echo "$program" | tr / _)
say compiling "$program"
start_clock
"$@" > "build/test/$file.log" 2>&1
status=$?
stop_clock "$file" "compiling $program"
[ $status -eq 0 ] && say compiled "$program" "$seconds s" || say FAILED "compiling $program" "$seconds s"
cat "build/test/$file.log"
exit $status
