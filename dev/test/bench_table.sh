#!/bin/sh
# The script that makes tables and charts, on the JSON of a short bench: what it writes is there, what is missing is
# said, and a chart says its scale, has room for its labels, and is the same when it is drawn again from the table.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
dir=$(mktemp -d)
edit() { sed "$1" "$2" > "$2.new" && mv "$2.new" "$2"; }  # in place, as BSD's sed can
trap 'rm -rf "$dir"' EXIT
build/bench/gelu --shape 33x81 --min-ms 1 --json "$dir/gelu.json" > /dev/null
edit 's/"main": false/"main": true/' "$dir/gelu.json"
cat > "$dir/README.md" <<'END'
<!-- ladder gelu_forward begin -->
not measured
<!-- ladder gelu_forward end -->
<!-- ladder gelu_backward begin -->
<!-- ladder gelu_backward end -->
kept
END
python3 dev/bench_table.py "$dir/README.md" "$dir/gelu.json"
grep -q '^| shipped | fp32 | ' "$dir/README.md"
grep -q '^kept$' "$dir/README.md"
! grep -q 'not measured' "$dir/README.md"
edit 's/"machine": "/"machine": "another, /' "$dir/gelu.json"
for again in 1 2; do python3 dev/bench_table.py "$dir/README.md" "$dir/gelu.json"; done
[ "$(grep -c '^On .*gelu_forward' "$dir/README.md")" = 2 ]

chart=$dir/charts/gelu_forward.svg
grep -q '</svg>' "$chart"
grep -q 'GB/s, linear scale from 0' "$chart"
cp "$chart" "$dir/first.svg"
rm -r "$dir/charts"
python3 dev/bench_table.py "$dir/README.md" --redraw
cmp "$chart" "$dir/first.svg"
# A wide label and a long name have room too. Nothing is black or white, which one of the two pages would hide.
edit '/^| shipped /{s/shipped/a-variant-with-a-name/; s/| [0-9.,]* | \([0-9]*%\)/| 123,456,789.1 | \1/;}' \
    "$dir/README.md"
python3 dev/bench_table.py "$dir/README.md" --redraw
for picture in "$chart" dev/*/charts/*.svg; do
    python3 - "$picture" <<'END'
import re
import sys
drawn = open(sys.argv[1]).read()
width, size = (int(re.search(rf'{key}="(\d+)"', drawn)[1]) for key in ("width", "font-size"))
for x, end, label in re.findall(r'<text x="([\d.]+)"[^>]*?(?: text-anchor="(end)")?>([^<]*)<', drawn):
    long = 0.55 * size * len(label)
    begin = float(x) - (long if end else 0)
    assert begin >= 0 and begin + long <= width, f"{sys.argv[1]}: '{label}' is cut off"
colors = re.findall(r'(?:fill|stroke)="(\S+?)"', drawn)
assert re.match(r'<svg [^>]*fill="#', drawn), "text of the default colour, black"
hidden = {"white", "black", "#fff", "#000", "#ffffff", "#000000"} & set(colors)
assert not hidden, f"{sys.argv[1]}: {hidden} vanishes on one of the pages"
END
done
grep -q '123,456,789.1' "$chart"

echo nothing > "$dir/README.md"
! python3 dev/bench_table.py "$dir/README.md" "$dir/gelu.json" 2> "$dir/error"
grep -q 'no markers' "$dir/error"
