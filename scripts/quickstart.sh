#!/bin/sh
# From nothing to a small language model. `make quickstart` has built the trainer and tokenized Shakespeare; this script
# trains for about two minutes on two cores, compares the result with a model that knows only token frequencies, and
# samples. Started again, it resumes, or samples once more.
set -e
out=log_quickstart
steps=450
model_file=$out/model_$(printf %08d $steps).bin
model=L4C192H6T128

# bf16 where the CPU has instructions for it, which is where it is faster.
precision=fp32
grep -qE 'amx_bf16|avx512_bf16' /proc/cpuinfo 2>/dev/null && precision=bf16

baseline=$(build/unigram dev/data/shakespeare_train.bin dev/data/shakespeare_val.bin 50257)
echo "Training a GPT-2 of 4 layers and 192 channels on the works of Shakespeare," \
    "in $precision on the CPU, $steps steps."
echo "A model that knows only how often each token occurs has a validation loss of $baseline."
if [ -f "$out/DONE_$(printf %08d $steps)" ]; then
    echo "It is already trained, in $out: here is another sample."
    ./train_gpt2_cpu -e "$model_file" -x 0 -v 0 -g 120 --top-k 50 --prompt "ROMEO." --seed "$(date +%s)" --quiet 1
else
    # Beside this script, so that a signal to either reaches the trainer, which saves and says how to go on.
    ./train_gpt2_cpu -e $model -o $out -y 1 --precision $precision -b 8 -t 128 -x $steps -l 2e-3 -u 30 -q 0.1 -c 0.1 \
        -n 100 -nk 2 -v 100 -m 40 -s 1000000 -g 120 --top-k 50 &
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
loss=$(sed -n 's/^s:[0-9]* tel://p' $out/main.log | tail -n 1)
echo "Validation loss: $loss; model of token frequencies: $baseline."
echo "Longer:        ./train_gpt2_cpu -o $out -y 1 -x 3000 -l 1e-3 -k constant   (resumes from $out)"
echo "Bigger:        ./train_gpt2_cpu -e d6 --precision $precision -o log_d6 -b 4 -t 256 -d 4096 -x 2000" \
    "-l 1e-3 -u 100 -q 0.1 -n 50 -nk 2   (--plan says what it needs)"
echo "With a prompt: ./train_gpt2_cpu -e $model_file -x 0 --prompt \"To be, or not to be\" -g 100 --top-k 50"
