#!/bin/sh
# make dist: the archive has the files that git knows and no others, is the same each time, and builds tokenize without
# git in a folder whose name has a space.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
make=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$*"; exit 1; }
pack() { "$make" -s dist > "$folder/said"; archive=$(sed -n 's/: .* MB$//p' "$folder/said"); }
pack && cp "$archive" "$folder/first.tar.gz"
pack && cmp "$archive" "$folder/first.tar.gz"
mkdir "$folder/a folder" "$folder/bin"
tar xzf "$archive" -C "$folder/a folder"
name=$(basename "$archive" .tar.gz)
unpacked="$folder/a folder/$name"
[ "gpt2-$(cat "$unpacked/VERSION")" = "$name" ] || fail "$name has version $(cat "$unpacked/VERSION")"
{ git ls-files; echo VERSION; } | LC_ALL=C sort > "$folder/known"
(cd "$unpacked" && find . ! -type d | sed 's,^\./,,' | LC_ALL=C sort) | diff "$folder/known" - || fail "other files"
modes() { (cd "$1" && for f in $(cat "$folder/known"); do if [ -x "$f" ]; then echo "$f"; fi; done); }
[ "$(modes .)" = "$(modes "$unpacked")" ] || fail "other files are executable"
cmp dev/data/gpt2_tokenizer.bin "$unpacked/dev/data/gpt2_tokenizer.bin"
cited=$(sed -n 's/^version: *//p' .github/CITATION.cff)
grep -q "TRAINER_VERSION = \"gpt2 trainer $cited\"" llmc/options/option_table.h ||
    fail "CITATION.cff has version $cited"

printf '#!/bin/sh\necho "git was called: $*" >&2\nexit 1\n' > "$folder/bin/git"
chmod +x "$folder/bin/git"
cd "$unpacked"
PATH=$folder/bin:$PATH
said=$("$make" -s dist 2>&1) && fail "an archive was packed without git"
case $said in *"unpacked archive of ${name#gpt2-}"*) ;; *) fail "without git, make dist says: $said" ;; esac
"$make" -s DEBUG=1 tokenize > "$folder/said" 2>&1 || fail "tokenize does not build: $(cat "$folder/said")"
! grep -q "git was called" "$folder/said" || fail "the build calls git"
[ "$(printf 'To be' | ./tokenize --ids)" = "2514 307" ] || fail "tokenize says $(printf 'To be' | ./tokenize --ids)"
