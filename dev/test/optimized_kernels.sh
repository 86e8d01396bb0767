#!/bin/sh
# Of an inline function that the kernels and the rest of a program both have, the program has the kernels' copy, which
# is optimized: it is as long as theirs. optimized_kernels.sh KERNELS.o PROGRAM
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -eu
lengths() { nm -S "$1" | awk '$3 == "W" { print $4, $2 }' | sort; }  # of the functions that several objects may have
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
lengths "$1" > "$folder/kernels"
lengths "$2" > "$folder/program"
join "$folder/kernels" "$folder/program" > "$folder/both"
[ "$(wc -l < "$folder/both")" -gt 100 ] || { echo "only $(wc -l < "$folder/both") functions are in both"; exit 1; }
awk '$2 != $3 { print $1 }' "$folder/both" > "$folder/others"
[ ! -s "$folder/others" ] || { echo "not the kernels' copies:"; c++filt < "$folder/others"; exit 1; }
