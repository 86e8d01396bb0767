#!/bin/sh
# A bench whose variants are wrong must fail, each by name, and the right one must not.
output=$(build/planted_bench --check) && { echo "planted errors were not found"; exit 1; }
for wrong in wrong idle elsewhere; do echo "$output" | grep -q "FAILED planted $wrong, 1000" || { echo "$wrong was not found: $output"; exit 1; }; done
echo "$output" | tail -n 1 | grep -q '^1 passed, 3 failed, 0 skipped$' || { echo "$output"; exit 1; }
