#!/bin/sh
# `make quickstart MODEL=modern`: trains the best model of dev/modern/ladder.py on the text and vocabulary of `make
# quickstart`, for as many steps of as many tokens, and samples from it. Run again, it goes on from what is there.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
out=log_quickstart_modern
data=dev/data/shakespeare4096
steps=${STEPS:-1400}
if [ ! -f ${data}_tokenizer.bin ] || [ ! -f ${data}_train.bin ] || [ ! -f ${data}_val.bin ]; then
    ./tokenize --train-vocab 4096 dev/data/shakespeare --val-split tail -o $data
fi
precision=fp32
grep -qwE 'amx_bf16|avx512_bf16|bf16' /proc/cpuinfo 2>/dev/null && precision=bf16
flags=$(sed "s/{steps}/$steps/" dev/modern/best_flags)
baseline=$(build/unigram ${data}_train.bin ${data}_val.bin ${data}_tokenizer.bin)
echo "Training the best model of the ladder in chapter 30: $flags"
set -- -i ${data}_train.bin -j ${data}_val.bin --precision $precision -b 16 -t 128 -x $steps -u 50 -k cosine -q 0.05 \
    -c 0.1 -n 500 -v 200 -m 80 -o $out -g 200 --prompt ROMEO. --tokenizer ${data}_tokenizer.bin --top-k 50 \
    --temperature 0.8
if ls $out/DONE_* > /dev/null 2>&1; then  # its model file has the sizes and the switches
    of_the_model='-e|--mlp|--norm|--positions|--qk-norm|--tied|--softcap|--value-residual'
    flags=$(echo "$flags" | sed -E "s/($of_the_model) [^ ]+ ?//g")
    set -- -y 1 "$@"
fi
mkdir -p $out
rm -f $out/ended
{ build/modern $flags "$@" && touch $out/ended; } | tee $out/said.txt
[ -f $out/ended ] || exit 1
loss=$(sed -n 's/^val loss //p' $out/said.txt | tail -n 1)
[ -z "$loss" ] || echo "Validation loss $loss, $(echo "$loss $baseline" | awk '{ printf "%.4f", $1 * $3 / $2 }')" \
    "bits per byte of the first 80 batches; a model of token frequencies has $baseline."
