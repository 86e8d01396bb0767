#!/usr/bin/env bash
#SBATCH --job-name=gpt2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@600
#SBATCH --requeue
# SLURM without PMIx or MPI: the processes meet at the first node, by TCP. Ranks come from srun's environment. So does
# the secret by which the processes recognise each other; it is drawn anew for every job.
#
#   sbatch scripts/multi_node/slurm_tcp.sh -i 'data/train_*.bin' -j 'data/val_*.bin' -o shared/log \
#       -e d12 -b 32 -t 1024 -d 524288
#
# Ten minutes before its time is up, the job gets SIGUSR1: all processes finish the step, save and end. Submitted
# again, it resumes (-y 1).
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#SBATCH/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
PROGRAM=${PROGRAM:-./train_gpt2cu}
server=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
COMM_TOKEN=${COMM_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
export COMM_TOKEN
exec srun --kill-on-bad-exit=1 "$PROGRAM" -z 1 -y 1 -pi tcp -ps "$server:${MASTER_PORT:-29500}" \
    -pg "${SLURM_NTASKS_PER_NODE:-8}" "$@"
