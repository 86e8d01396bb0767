#!/usr/bin/env bash
# What the recipes in this folder share: shows the plan, then starts the trainer on the GPUs of this machine. A run that was interrupted goes on (-y 1).
#
#   GPUS=8 scripts/run_gpt2_124M.sh [more flags, which win over the recipe's]
#   PROGRAM=./train_gpt2_cpu GPUS=2 scripts/run_gpt2_124M.sh -e d6 ...         the CPU trainer, two processes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PROGRAM=${PROGRAM:-./train_gpt2cu}
GPUS=${GPUS:-$( (nvidia-smi -L 2>/dev/null || true) | grep -c . || true)}
[ "$GPUS" -ge 1 ] || GPUS=1
[ -x "$PROGRAM" ] || { echo "error: $PROGRAM is not built; make $(basename "$PROGRAM")" >&2; exit 1; }
stage=$([ "$GPUS" -gt 1 ] && echo 1 || echo 0)
"$PROGRAM" "$@" -z "$stage" --plan -pn "$GPUS" | grep -E '^(model|total|FLOPs|bytes on|on GPUs|a step)'
if [ "$GPUS" -gt 1 ]; then
    # a signal lets the processes finish their step and save: Open MPI waits up to 10 minutes before it kills
    exec mpirun -np "$GPUS" --mca odls_base_sigkill_timeout 600 ${MPIRUN_FLAGS:-} "$PROGRAM" "$@" -z "$stage" -pg "$GPUS"
fi
exec "$PROGRAM" "$@"
