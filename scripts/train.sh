#!/usr/bin/env bash
# What the recipes in this folder have in common: shows the plan of the run, and starts it on the GPUs of this machine,
# with the flags below and those of the recipe. Started again, it resumes a run that was interrupted.
#
#   GPUS=8 scripts/run_gpt2_124M.sh [more flags, which win over the recipe's]
#   PROGRAM=./train_gpt2_cpu GPUS=2 scripts/run_gpt2_124M.sh -e d6 ...         the CPU trainer, two processes
#
# The data: token shards (llm.c's layout) of FineWeb, which `python3 dev/data/get.py fineweb10B` makes, or of any other
# text, as a pattern in TRAIN_DATA and VAL_DATA. HellaSwag: `python3 dev/data/hellaswag.py`.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PROGRAM=${PROGRAM:-./train_gpt2cu}
GPUS=${GPUS:-$( (nvidia-smi -L 2>/dev/null || true) | grep -c . || true)}
[ "$GPUS" -ge 1 ] || GPUS=1
[ -x "$PROGRAM" ] || { echo "error: $PROGRAM is not built; make $(basename "$PROGRAM")" >&2; exit 1; }
flags=(
    -i "${TRAIN_DATA:-dev/data/fineweb10B/fineweb_train_*.bin}"   # where FineWeb is looked for unless said otherwise
    -j "${VAL_DATA:-dev/data/fineweb10B/fineweb_val_*.bin}"
    -d 524288                      # tokens of an optimizer step, half a million as GPT-3 (Brown et al. 2020, table 2.1)
    -k cosine -q 0.0               # the learning rate ends at 0, along a cosine
    -c 0.1                         # weight decay of the matrices
    -v 250 -m 2560 -s 20000 -h 1   # every 250 steps HellaSwag and the loss of 10 million tokens; samples now and then
    -n 5000 -nk 5 -nm 50000 -y 1   # checkpoints every 5000 steps; the last five and every 50000th stay; goes on
    "$@"
    -z "$([ "$GPUS" -gt 1 ] && echo 1 || echo 0)"
)
"$PROGRAM" "${flags[@]}" --plan -pn "$GPUS" | grep -E '^(model|total|FLOPs|bytes on|on GPUs|a step)'
if [ "$GPUS" -gt 1 ]; then
    exec scripts/with_mpirun.sh -np "$GPUS" ${MPIRUN_FLAGS:-} "$PROGRAM" "${flags[@]}" -pg "$GPUS"
fi
exec "$PROGRAM" "${flags[@]}"
