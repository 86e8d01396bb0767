#!/usr/bin/env bash
# GPT-3 125M (context 2048) on 300 billion tokens.
#
#   make train_gpt2cu && scripts/run_gpt3_125M.sh            all GPUs of this machine; GPUS=4 takes four
#
# The data, and what all recipes have in common: scripts/train.sh.
# Expected: validation loss about 2.9, by the law of Hoffmann et al. 2022 (arXiv:2203.15556), plus the 0.2
# by which GPT-2 124M on FineWeb lies above it.
# Memory and hours on 8 A100, as scripts/train.sh shows from --plan: 20 GiB each, 65 hours at 45% of peak.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
flags=(
    -o "${OUT_DIR:-log_run_gpt3_125M}"
    -e gpt3:c768          # the shape
    -b 32 -t 2048         # sequences of a micro-batch, tokens of a sequence; a smaller -b needs less memory
    -x 572204             # steps of half a million tokens: 300 billion tokens
    -l 6e-4 -u 700        # the peak of the learning rate, and the steps in which it rises to it
    -r 0                  # backward recomputes nothing; 1 and more need less memory
)
exec "$(dirname "$0")/train.sh" "${flags[@]}" "$@"
