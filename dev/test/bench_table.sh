#!/bin/sh
# The script that makes tables and charts, on the JSON of a short bench: what it writes is there, and what is missing is said.
set -e
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
build/bench/gelu --shape 33x81 --min-ms 1 --json "$dir/gelu.json" > /dev/null
sed -i 's/"main": false/"main": true/' "$dir/gelu.json"
printf '<!-- ladder gelu_forward begin -->\nnot measured\n<!-- ladder gelu_forward end -->\n<!-- ladder gelu_backward begin -->\n<!-- ladder gelu_backward end -->\nkept\n' > "$dir/README.md"
python3 dev/bench_table.py "$dir/README.md" "$dir/gelu.json"
grep -q '^| shipped | fp32 | ' "$dir/README.md"
grep -q '^kept$' "$dir/README.md"
! grep -q 'not measured' "$dir/README.md"
sed -i 's/"machine": "/"machine": "another, /' "$dir/gelu.json"
for again in 1 2; do python3 dev/bench_table.py "$dir/README.md" "$dir/gelu.json"; done
[ "$(grep -c '^On .*gelu_forward' "$dir/README.md")" = 2 ]
grep -q '</svg>' "$dir/charts/gelu_forward.svg"
echo nothing > "$dir/README.md"
! python3 dev/bench_table.py "$dir/README.md" "$dir/gelu.json" 2> "$dir/error"
grep -q 'no markers' "$dir/error"
