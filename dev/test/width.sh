#!/bin/sh
# dev/width.py: a line of code or prose wider than 120 columns is named; tables, code blocks and generated text are not.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
wide=$(printf 'word %.0s' $(seq 25))
printf '# %s\nshort\n' "$wide" > "$dir/wide.sh"
{
    printf '%s\n\n- item\n    %s\n\ntext\n    %s\n\n' "$wide" "$wide" "$wide"         # prose: lines 1, 4, 7
    printf '| %s |\n\n    %s\n\n```\n%s\n```\n' "$wide" "$wide" "$wide"               # table, code, code
    printf '<!-- name begin -->\n%s\n<!-- name end -->\n%s\n' "$wide" "$wide"          # generated; prose: line 19
} > "$dir/wide.md"
found=$(python3 dev/width.py "$dir/wide.sh" "$dir/wide.md" | sed "s,$dir/,,; s,: .*,," | tr '\n' ' ')
[ "$found" = "wide.sh:1 wide.md:1 wide.md:4 wide.md:7 wide.md:19 " ] || { echo "found: $found"; exit 1; }
python3 dev/width.py "$dir/wide.sh" > /dev/null && { echo "exit status 0 with a line too wide"; exit 1; }
printf '%s\n' "$wide" | cut -c1-120 > "$dir/fits.sh"
python3 dev/width.py "$dir/fits.sh" || { echo "120 columns were refused"; exit 1; }
