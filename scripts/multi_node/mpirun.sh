#!/usr/bin/env bash
# Several machines with mpirun. HOSTS names them, each with its number of GPUs, 1 if no number is given. All machines
# have the repository, built, under the same path, and share the folder of the out dir. Processes exchange NCCL's id by
# MPI, and gradients by NCCL.
#
#   HOSTS=node1:8,node2:8 scripts/multi_node/mpirun.sh -i 'data/train_*.bin' -j 'data/val_*.bin' -o shared/log \
#       -e d12 -b 32 -t 1024 -d 524288
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
HOSTS=${HOSTS:?names the machines, as node1:8,node2:8}
PROGRAM=${PROGRAM:-./train_gpt2cu}
refuse() { echo "error: HOSTS=$HOSTS$1; NAME:GPUS, separated by commas, is accepted" >&2; exit 2; }
total=0
for host in ${HOSTS//,/ }; do
    case $host in *:*) gpus=${host##*:} ;; *) gpus=1 ;; esac
    case $gpus in "" | *[!0-9]*) refuse ": $host" ;; esac
    total=$((total + 10#$gpus))
done
[ "$total" -ge 1 ] || refuse " names no GPU"
# -x   variables that the other machines are to have
exec scripts/with_mpirun.sh -np "$total" --host "$HOSTS" -x PATH -x LD_LIBRARY_PATH -x NCCL_DEBUG=WARN \
    ${MPIRUN_FLAGS:-} "$PROGRAM" -z 1 -y 1 -pi mpi -pg "${GPUS_PER_NODE:-8}" "$@"
