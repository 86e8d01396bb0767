#!/bin/sh
# A bench whose variants are wrong must fail, each by name, and the right ones must not; a variant that ends its process
# does not keep the others from running.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
fail() { echo "$1"; echo "$output"; exit 1; }
says() { echo "$output" | grep -q -- "$1" || fail "'$1' was not found in:"; }
output=$(build/planted_bench --check 2>&1) && fail "planted errors were not found"
for wrong in wrong idle elsewhere refuses throws crashes; do says "FAILED planted $wrong, 1000"; done
says 'wrong, out: element 500 is .*, wanted .*; 2 of 1000 elements are wrong'
says 'the launch was refused'
says 'thrown by a variant'
says 'FAILED planted crashes.*signal 11'
says '^2 passed, 6 failed, 0 skipped$'

# One variant that is wrong is not one that does not exist.
output=$(build/planted_bench --bench planted --variant wrong --shape 1000 2>&1) && fail "a wrong variant passed"
says 'element 500 is'
says '^0 passed, 1 failed, 0 skipped$'
echo "$output" | grep -q 'of these names' && fail "a wrong variant was said not to exist"
output=$(build/planted_bench --variant none 2>&1)
[ $? = 2 ] || fail "an unknown variant was accepted"
says 'no bench, variant and shape of these names'

# What the right ones took is kept.
json=$(mktemp)
output=$(build/planted_bench --min-ms 1 --json "$json" 2>&1) && fail "planted errors were not found"
python3 -c 'import json, sys
results = json.load(open(sys.argv[1]))["results"]
assert [(r["id"], r["requested"]) for r in results] == [("right", -1), ("last", 10)], results' "$json" ||
    fail "the results of the right variants are not there"
rm "$json"

# What nobody has counted is unknown, not the least.
output=$(build/planted_bench --list)
says 'right .*bytes requested ? of the least'
says 'last .*bytes requested 10.00 of the least'
