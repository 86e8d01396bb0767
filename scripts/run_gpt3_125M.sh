#!/usr/bin/env bash
# GPT-3 125M (context 2048) on 300 billion tokens.
#
#   make train_gpt2cu && scripts/run_gpt3_125M.sh            all GPUs of this machine; GPUS=4 takes four
#
# The data: token shards (llm.c's layout) of FineWeb or any other text, as a pattern in TRAIN_DATA and VAL_DATA.
# Expected: validation loss about 2.9, by the law of Hoffmann et al. 2022 (arXiv:2203.15556), plus the 0.2 by which GPT-2 124M on FineWeb lies above it.
# Memory and hours on 8 A100, as scripts/train.sh shows from --plan: 20 GiB each, 65 hours at 45% of peak.
set -euo pipefail
train=${TRAIN_DATA:-dev/data/fineweb10B/fineweb_train_*.bin}   # where FineWeb is looked for unless said otherwise
val=${VAL_DATA:-dev/data/fineweb10B/fineweb_val_*.bin}
flags=(
    -i "$train" -j "$val"
    -o "${OUT_DIR:-log_run_gpt3_125M}" -y 1      # logs and checkpoints; goes on where it was interrupted
    -e gpt3:c768                            # the shape: GPT-3 125M (context 2048) on 300 billion tokens.
    -b 32 -t 2048                      # sequences of a micro-batch, tokens of a sequence; a smaller -b needs less memory, and more micro-steps
    -d 524288                        # tokens of an optimizer step, half a million as GPT-3 (Brown et al. 2020, table 2.1)
    -x 572204                       # steps: 300 billion tokens
    -l 6e-4 -u 700 -k cosine -q 0.0     # learning rate: its peak, steps of warmup, and down to 0 along a cosine
    -c 0.1                           # weight decay of the matrices
    -r 0                             # what backward recomputes: 0 nothing; 1 and more need less memory
    -v 250 -m 20 -s 20000 -h 1       # validation loss and HellaSwag every 250 steps, samples now and then
    -n 5000 -nk 5 -nm 50000          # checkpoints
)
exec "$(dirname "$0")/train.sh" "${flags[@]}" "$@"
