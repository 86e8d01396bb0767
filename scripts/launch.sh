#!/usr/bin/env bash
#SBATCH --job-name=gpt2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
# Runs a command, and starts it again when it dies. -y 1 is added to it, so each start goes on from the newest complete
# checkpoint.
#
#   scripts/launch.sh ./train_gpt2cu -o log -n 500 ...
#   RESTARTS=20 scripts/launch.sh scripts/run_gpt2_124M.sh
#   scripts/launch.sh -np 4 ./train_gpt2_cpu -o log -n 500 ...
#   scripts/launch.sh -np 4 --elastic ./train_gpt2_cpu -o log -n 500 -d 524288 ...
#   sbatch scripts/launch.sh scripts/multi_node/slurm_tcp.sh -i 'data/train_*.bin' -o shared/log ...
#
#   -np 4         as four processes on this machine, without MPI (scripts/processes.sh); if one fails, all are started
#                 again
#   --elastic     then with those that are left: without the processes that were killed, or the one that failed first.
#                 -d must be given. It stays: fewer processes do more micro-steps each. If B*T of so many does not
#                 divide it, the largest number of which it does
#   RESTARTS=10   how often at most
#   WAIT=10       seconds before the first restart; each further wait is twice as long, up to five minutes
#
# It ends when the command has ended well, with exit status 2 (a wrong flag), or because it was told to stop. INT, TERM,
# HUP and USR1 are passed on to the command. In a SLURM job, USR1 comes ten minutes before the time is up: the run saves
# and ends, and the job is put into the queue again. After a node has failed, SLURM does that by itself (--requeue).
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#SBATCH/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -um  # -m: the command is a process group of its own, which the terminal's Ctrl-C does not reach twice
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "${SLURM_SUBMIT_DIR:-.}" || exit 1
[ -x "$here/processes.sh" ] || here=scripts  # SLURM runs a copy of this file
say() { echo "launch.sh: $*" >&2; }
refuse() { echo "error: $*" >&2; exit 2; }
restarts=${RESTARTS:-10} wait=${WAIT:-10} longest_wait=300
for number in "$restarts" "$wait"; do
    case $number in "" | *[!0-9]*) refuse "RESTARTS=$restarts WAIT=$wait: whole numbers are accepted" ;; esac
done
number="" elastic=""
while :; do
    case ${1-} in
        -np) number=${2-}
            case $number in "" | *[!0-9]* | 0*) refuse "-np $number: a whole number from 1 on is accepted" ;; esac
            shift 2 ;;
        --elastic) elastic=1; shift ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || refuse "no command; scripts/launch.sh ./train_gpt2cu -o FOLDER ... is accepted"

if [ -n "$elastic" ]; then
    [ -n "$number" ] || refuse "--elastic is for several processes: -np N --elastic is accepted"
    case " $*" in *" -d "* | *" --total-batch-size"*) ;; *) refuse "--elastic keeps the batch: -d must be given" ;; esac
    LOST=$(mktemp) || exit 1
    export LOST
    trap 'rm -f "$LOST"' EXIT
fi
# The largest number of processes, after some were lost, that the batch can be divided among: 0 if there is none.
fewer() {
    local n=$((number - $(cat "$LOST")))
    while [ "$n" -ge 1 ] && ! "$@" -y 1 -pn "$n" --plan > /dev/null 2>&1 < /dev/null; do n=$((n - 1)); done
    echo $((n > 0 ? n : 0))
}

child="" got=""
pass_on() {  # name of the signal
    got=$1
    [ -z "$child" ] || kill "-$1" "$child" 2> /dev/null
}
for signal in INT TERM HUP USR1; do trap "pass_on $signal" $signal; done
finish() {  # command: waits for it, sets status
    "$@" < /dev/null &
    child=$!
    [ -z "$got" ] || kill "-$got" "$child" 2> /dev/null  # came before $child was known
    wait "$child"
    status=$?
    while kill -0 "$child" 2> /dev/null; do  # a signal has ended the wait, not yet the command
        wait "$child"
        status=$?
    done
    child=""
}

for ((start = 0; ; start++)); do
    finish ${number:+"$here/processes.sh" -np "$number"} "$@" -y 1
    case "$got $status" in
        "USR1 0")
            [ -n "${SLURM_JOB_ID:-}" ] || exit 0
            say "the time is up: job $SLURM_JOB_ID goes on when its turn comes again"
            scontrol requeue "$SLURM_JOB_ID"
            exit ;;
        " 0") exit 0 ;;
        " 2" | " 126" | " 127") say "not started again: exit status $status, which a restart would not change"
            exit "$status" ;;
        " 129" | " 130" | " 143") say "not started again: the command was told to stop"; exit "$status" ;;
        " "*) ;;
        *) exit "$status" ;;
    esac
    if [ "$start" -ge "$restarts" ]; then
        say "exit status $status after $start restarts; RESTARTS=$restarts allows no more"
        exit "$status"
    fi
    if [ -s "${LOST:-}" ]; then
        before=$number number=$(fewer "$@")
        : > "$LOST"
        if [ "$number" -eq 0 ]; then
            say "exit status $status, and no number of processes below $before will do"
            exit "$status"
        fi
        say "$number of $before processes go on"
    fi
    say "exit status $status; restart $((start + 1)) of $restarts in $wait s"
    finish sleep "$wait"
    case $got in "") ;; USR1) exit 0 ;; *) exit "$status" ;; esac
    wait=$((wait * 2 < longest_wait ? wait * 2 : longest_wait))
done
