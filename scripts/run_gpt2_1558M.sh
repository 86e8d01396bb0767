#!/usr/bin/env bash
# GPT-2 1558M (XL) on 32 billion tokens.
#
#   make train_gpt2cu && scripts/run_gpt2_1558M.sh            all GPUs of this machine; GPUS=4 takes four
#
# The data, and what all recipes have in common: scripts/train.sh.
# Expected: validation loss about 2.7, by the law of Hoffmann et al. 2022 (arXiv:2203.15556), plus the 0.2
# by which GPT-2 124M on FineWeb lies above it.
# Memory and hours on 8 A100, as scripts/train.sh shows from --plan: 35 GiB each, 79 hours at 45% of peak.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
flags=(
    -o "${OUT_DIR:-log_run_gpt2_1558M}"
    -e d48                # the shape
    -b 16 -t 1024         # sequences of a micro-batch, tokens of a sequence; a smaller -b needs less memory
    -x 61035              # steps of half a million tokens: 32 billion tokens
    -l 6e-4 -u 700        # the peak of the learning rate, and the steps in which it rises to it
    -r 2                  # backward recomputes GELU and the layer norms, to fit
)
exec "$(dirname "$0")/train.sh" "${flags[@]}" "$@"
