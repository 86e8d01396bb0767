#!/bin/sh
# nanoGPT's first demo, as its README has it for a CPU: 4 layers, 4 heads, 128 channels, context 64, 12 sequences per
# step, 2,000 steps, one token per character. Here every byte is a token. nanoGPT's text is "tiny Shakespeare", 1.1 MB;
# where dev/data/tiny_shakespeare.txt is there it is used (python3 dev/data/get.py tinyshakespeare downloads it), else
# the 5 MB of dev/data/shakespeare are.
#
#   scripts/shakespeare_char.sh [more flags, which win over the ones below]
#
# Its recipe: learning rate 1e-3, falling to a tenth along a cosine after 100 steps of warmup; beta2 0.99, because a
# step has few tokens; weight decay 0.1; no dropout. nanoGPT leaves out the biases, here they are trained.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
cd "$(dirname "$0")/.."
data=dev/data/shakespeare_bytes text=dev/data/shakespeare
[ ! -f dev/data/tiny_shakespeare.txt ] || text=dev/data/tiny_shakespeare.txt
./tokenize --bytes 1 $text --val-split tail -o $data
exec ./train_gpt2_cpu -i ${data}_train.bin -j ${data}_val.bin -e L4C128H4T64 -b 12 -t 64 -x 2000 -l 1e-3 -u 100 \
    -q 0.1 --beta2 0.99 -c 0.1 -v 250 -m 60 -s 1000000 -g 500 "$@"
