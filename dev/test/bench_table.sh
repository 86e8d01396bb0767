#!/bin/sh
# The script that makes tables and charts, on the JSON of a short bench: what it writes is there, and what is missing is said.
set -e
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
build/bench/gelu --shape 33x81 --min-ms 1 --json "$dir/gelu.json" > /dev/null
sed -i 's/"main": false/"main": true/' "$dir/gelu.json"
printf '<!-- machine begin -->\n<!-- machine end -->\n<!-- ladder gelu_forward begin -->\nold\n<!-- ladder gelu_forward end -->\n<!-- ladder gelu_backward begin -->\n<!-- ladder gelu_backward end -->\nkept\n' > "$dir/README.md"
python3 dev/bench_table.py "$dir/README.md" "$dir/gelu.json"
grep -q '^| shipped | fp32 | ' "$dir/README.md"
grep -q '^kept$' "$dir/README.md"
! grep -q '^old$' "$dir/README.md"
grep -q '</svg>' "$dir/charts/gelu_forward.svg"
echo nothing > "$dir/README.md"
! python3 dev/bench_table.py "$dir/README.md" "$dir/gelu.json" 2> "$dir/error"
grep -q 'no markers' "$dir/error"
