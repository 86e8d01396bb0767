#!/bin/sh
# From nothing to a small language model, in about two minutes on two cores. `make quickstart` has built the programs;
# this script learns a vocabulary from Shakespeare, trains a model on the text, samples from it, and compares it with a
# model that knows only token frequencies. Run again, it goes on from what is there.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
out=log_quickstart
data=dev/data/shakespeare4096
steps=1400
again=
model_file=$out/model_$(printf %08d $steps).bin
model=L4C192H6T128
val_batches=80  # of 4 x 128 tokens, so that a validation takes little of the two minutes

# bf16 where the CPU has instructions for it, which is where it is faster.
precision=fp32
grep -qwE 'amx_bf16|avx512_bf16|bf16' /proc/cpuinfo 2>/dev/null && precision=bf16
[ "$(sysctl -n hw.optional.arm.FEAT_BF16 2>/dev/null)" != 1 ] || precision=bf16  # macOS

# With GPT-2's 50,257 tokens, most of so small a model would be its embedding. With 4,096 it is a third.
if [ ! -f ${data}_tokenizer.bin ] || [ ! -f ${data}_train.bin ] || [ ! -f ${data}_val.bin ]; then
    ./tokenize --train-vocab 4096 dev/data/shakespeare --val-split tail -o $data
fi
read_data="-i ${data}_train.bin -j ${data}_val.bin"
baseline=$(build/unigram ${data}_train.bin ${data}_val.bin ${data}_tokenizer.bin)
baseline_loss=${baseline% *} baseline_bits=${baseline#* }
echo "Training a GPT-2 of 4 layers and 192 channels on the works of Shakespeare," \
    "in $precision on the CPU, $steps steps of Muon, the optimizer that gets furthest in so little time."
echo "A model that knows only how often each token occurs has a validation loss of $baseline_loss," \
    "$baseline_bits bits per byte."
echo "While it trains, it is validated on the first $((val_batches * 4 * 128)) tokens of the validation text;" \
    "at the end on all of it."
if [ -f "$out/DONE_$(printf %08d $steps)" ]; then
    echo "It is already trained, in $out: here is another sample."
    again=1
    ./train_gpt2_cpu -e "$model_file" --tokenizer ${data}_tokenizer.bin -x 0 -v 0 -g 200 --top-k 50 --temperature 0.8 \
        --prompt "ROMEO." \
        --seed "$(date +%s)" --quiet 1
else
    # In the background, so that the script can pass a signal on to the trainer, which saves and says how to go on.
    ./train_gpt2_cpu -e $model $read_data -o $out -y 1 --precision $precision -b 16 -t 128 -r 0 -x $steps \
        --optimizer muon -l 1e-2 -u 50 -q 0.05 -c 0.1 -n 500 -nk 2 -v 200 -m $val_batches -s 1000000 -g 200 --top-k 50 \
        --temperature 0.8 --prompt "ROMEO." &
    trainer=$!
    for signal in INT TERM USR1; do trap "kill -$signal $trainer 2>/dev/null" $signal; done
    status=0
    wait $trainer || status=$?
    while kill -0 $trainer 2>/dev/null; do  # a signal has ended the wait, not yet the trainer
        status=0
        wait $trainer || status=$?
    done
    [ $status -eq 0 ] || exit $status
    [ -f "$out/DONE_$(printf %08d $steps)" ] || exit 0  # stopped by SIGUSR1
fi
whole_split=$(./train_gpt2_cpu -e "$model_file" $read_data --precision $precision -b 8 -t 128 -x 0 -m -1 -s 0 --quiet 1)
loss=$(echo "$whole_split" | sed -n 's/^val loss //p') bits=$(echo "$whole_split" | sed -n 's/^bits per byte //p')
echo "Validation loss of the whole validation text: $loss, $bits bits per byte;" \
    "model of token frequencies: $baseline_loss, $baseline_bits bits per byte."
# The trainer has said how to prompt the model and how to train it longer.
if [ -n "$again" ]; then
    echo "to prompt it: ./train_gpt2_cpu -e $out -x 0 --prompt ROMEO. -g 200 --top-k 50 --temperature 0.8"
    echo "to go on: ./train_gpt2_cpu -o $out -y 1 -x $((2 * steps))"
fi
echo "to train a larger one: ./train_gpt2_cpu -e d6 $read_data --precision $precision -o log_d6 -b 4 -t 256 \\"
echo "    -d 4096 -x 2000 -l 1e-3 -u 100 -q 0.1 -n 50 -nk 2   (--plan says what it needs)"
