#!/usr/bin/env bash
# GPT-2 124M on 10 billion tokens.
#
#   make train_gpt2cu && scripts/run_gpt2_124M.sh            all GPUs of this machine; GPUS=4 takes four
#
# The data, and what all recipes have in common: scripts/train.sh.
# Expected: validation loss 3.29 and HellaSwag 29.9, as llm.c reports for this recipe on FineWeb.
# Memory and hours on 8 A100, as scripts/train.sh shows from --plan: 20 GiB each, 2 hours at 45% of peak.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
flags=(
    -o "${OUT_DIR:-log_run_gpt2_124M}"
    -e d12                # the shape
    -b 64 -t 1024         # sequences of a micro-batch, tokens of a sequence; a smaller -b needs less memory
    -x 19073              # steps of half a million tokens: 10 billion tokens
    -l 6e-4 -u 700        # the peak of the learning rate, and the steps in which it rises to it
    -r 0                  # backward recomputes nothing; 1 and more need less memory
)
exec "$(dirname "$0")/train.sh" "${flags[@]}" "$@"
