#!/bin/sh
# The script of the CPU bench, on a tiny model: it says first what it will do, then how far it is, and every part
# reports.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
out=$(mktemp) err=$(mktemp)
trap 'rm -f "$out" "$err"' EXIT
fail() { echo "$1:"; cat "$out" "$err"; exit 1; }
programs=11 rows=7
grep -qw amx_bf16 /proc/cpuinfo 2> /dev/null && programs=13 rows=8  # fp32x3, and where its time goes
tiny="--rounds 1 --steps 1 --shapes 1x32 --rows 32 --threads 1 --model L2C64H2T64"
python3 dev/bench.py $tiny --parts steps,products,tokenizer --peers "" > "$out" 2> "$err" || fail "it failed"
sed -n 1p "$out" | grep -q "^$programs programs run one after the other, about .* on two cores" ||
    fail "it does not say what it will do"
grep -q "^\[$programs/$programs, about .* left\] tokenize 20 MB" "$err" || fail "it does not say how far it is"
for row in 'step (1,32) *this trainer, bf16, no master' 'products, 32 rows *this trainer, fp32' 'tokenize 20 MB'; do
    grep -q "^$row .*min .* ms" "$out" || fail "'$row' is missing"
done
grep -q '^| head dweight | [0-9,]* | [0-9,]* |$' "$out" || fail "no products"
python3 -c 'import json; assert len(json.load(open("build/bench.json"))["rows"]) == '"$rows" || fail "build/bench.json"
for wrong in "--peers fp33" "--parts nothing" "--write --model L2C64H2T64" "--write --parts steps" "--shapes 4"; do
    status=0; python3 dev/bench.py $wrong > "$out" 2> "$err" || status=$?
    [ $status = 2 ] && ! grep -q Traceback "$err" || fail "$wrong was accepted"
done

# llm.c's trainer is built in a folder of the user's, and its lines are read; a folder without it is refused.
llmc=$(mktemp -d)
trap 'rm -rf "$out" "$err" "$llmc"' EXIT
status=0; python3 dev/bench.py --parts "" --llmc "$llmc" > "$out" 2> "$err" || status=$?
[ $status = 2 ] && grep -q 'train_gpt2.c is not there: it is no clone of llm.c' "$err" || fail "--llmc took any folder"
touch "$llmc/train_gpt2.c" "$llmc/gpt2_124M.bin"
printf 'train_gpt2:\n\tprintf "#!/bin/sh\\ncat lines\\n" > $@ && chmod +x $@\n' > "$llmc/Makefile"
printf 'val loss 5.3\nstep %d: train loss 5.35 (took %d.5 ms)\n' 0 999 1 700 2 600 3 800 > "$llmc/lines"
python3 dev/bench.py --parts "" --rounds 1 --llmc "$llmc" > "$out" 2> "$err" || fail "--llmc failed"
grep -q '^step (4,64) *llm.c, fp32 *min *600.5 ms *median *700.5 ms' "$out" || fail "llm.c's steps are others"
echo 'iter 1: loss 5, 6ms' > "$llmc/lines"
python3 dev/bench.py --parts "" --rounds 1 --llmc "$llmc" > "$out" 2> "$err" && fail "lines that are not llm.c's passed"
grep -q 'printed no steps that are known' "$err" || fail "it does not say what was expected"

# The libraries multiply what this trainer multiplies.
ours=$(build/bench/products 8 fp32 L2C64H2T64 1 | tail -n 1 | grep -o '"[a-z]* [a-z]*"' | sort)
for library in numpy torch; do
    python3 -c "import $library" 2> /dev/null || continue
    python3 dev/products.py --library $library --rows 8 --passes 1 --shape 2,64,50304 > "$out" 2> "$err" ||
        fail "$library"
    theirs=$(tail -n 1 "$out" | grep -o '"[a-z]* [a-z]*"' | sort)
    [ "$ours" = "$theirs" ] || fail "$library has other products"
done
