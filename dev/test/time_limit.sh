#!/bin/sh
# time_limit.sh FOLDER SHELL SECONDS: if FOLDER is still there after SECONDS, makes FOLDER/late, says what the processes
# that SHELL has started are doing, and ends them. part.sh has it run beside a part of the tests, whose folder that is.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
folder=$1 left=$3
while [ "$left" -gt 0 ]; do
    sleep 1
    [ -d "$folder" ] || exit 0
    left=$((left - 1))
done
touch "$folder/late"
started=$(ps -A -o pid= -o ppid= | awk -v shell="$2" -v own=$$ '{ parent[$1] = $2 } END {
    for (p in parent) { for (q = p; q in parent && q != shell && q != own; q = parent[q]);
        if (p != shell && q == shell) print p }
}')
echo "not done after $3 seconds; its processes:"
for process in $started; do
    ps -o pid= -o ppid= -o stat= -o time= -o args= -p "$process" | cut -c 1-160
    case $(ps -o comm= -p "$process") in sh | bash | dash | make) continue ;; esac
    gdb -nx -batch -p "$process" -ex 'thread apply all backtrace -8' 2> /dev/null | grep -E '^(Thread|#)' |
        cut -c 1-160 | head -n 24
done
kill $started
sleep 3
kill -KILL $started 2> /dev/null
exit 0
