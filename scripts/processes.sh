#!/usr/bin/env bash
# Starts processes of a run on this machine, without MPI: each gets its rank, and where rank 0 is (RANK, WORLD_SIZE,
# LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, COMM_TOKEN). scripts/launch.sh -np N also restarts them.
#
#   scripts/processes.sh -np 4 ./train_gpt2_cpu -o log ...
#
# What rank 0 prints is printed as it is; what others print goes to stderr. INT, TERM, HUP and USR1 are passed on to
# all. When a process fails, the others have PATIENCE=60 seconds to end by themselves: they notice, and save what they
# can. The exit status is that of the first that failed. LOST=FILE: how many processes were lost is written there.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -um  # -m: each process is a group of its own, which the terminal's Ctrl-C does not reach twice
refuse() { echo "error: $*" >&2; exit 2; }
number=${2-} patience=${PATIENCE:-60}
[ "${1-}" = -np ] || refuse "${1-nothing}: scripts/processes.sh -np N COMMAND is accepted"
case $number in "" | *[!0-9]* | 0*) refuse "-np $number: a whole number from 1 on is accepted" ;; esac
case $patience in "" | *[!0-9]*) refuse "PATIENCE=$patience: whole seconds are accepted" ;; esac
shift 2
[ $# -gt 0 ] || refuse "no command; scripts/processes.sh -np $number ./train_gpt2_cpu -o FOLDER ... is accepted"

folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
in_use() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
port=$((20000 + RANDOM % 12000))
while in_use $port; do port=$((port + 1)); done
export WORLD_SIZE=$number LOCAL_WORLD_SIZE=$number MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
COMM_TOKEN=${COMM_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
export COMM_TOKEN
unset SLURM_PROCID SLURM_LOCALID SLURM_STEP_NUM_TASKS  # of the batch job that this may run in

groups=() got=""
each() {  # name of a signal: to all processes; false if there are none
    local reached=1
    for group in ${groups[@]+"${groups[@]}"}; do kill "-$1" -- "-$group" 2> /dev/null && reached=0; done
    return $reached
}
pass_on() { got=$1; each "$1"; }
for signal in INT TERM HUP USR1; do trap "pass_on $signal" $signal; done
mkfifo "$folder/ended" && exec 9<> "$folder/ended" || exit 1
run() {  # rank, command: reports its exit status
    local rank=$1 status=0
    shift
    trap : INT TERM HUP USR1  # they reach the command, which is of the same group
    export RANK=$rank LOCAL_RANK=$rank
    if [ "$rank" -eq 0 ]; then "$@"; else "$@" >&2; fi < /dev/null 9>&- || status=$?
    echo "$rank $status" >&9
}
for ((rank = 0; rank < number; rank++)); do
    run "$rank" "$@" &
    groups+=($!)
    [ -z "$got" ] || kill "-$got" -- "-$!" 2> /dev/null  # came before this one was known
done

# Those that were killed have not failed because of another: so many are lost, at least the first that failed.
left=$number first="" first_status=0 lost=0 deadline="" next=TERM
while [ "$left" -gt 0 ]; do
    if read -r -t 1 rank status <&9; then
        left=$((left - 1))
        [ "$status" -ne 0 ] || continue
        [ -n "$first" ] || first=$rank first_status=$status deadline=$((SECONDS + patience))
        case $next$status in TERM13[47] | TERM139) lost=$((lost + 1)) ;; esac
    elif ! each 0; then
        break  # somebody has killed those who would report
    elif [ -n "$deadline" ] && [ "$SECONDS" -ge "$deadline" ]; then
        each $next
        next=KILL deadline=$((SECONDS + 10))
    fi
done
[ -n "$first" ] || exit 0
[ -z "${LOST:-}" ] || echo $((lost > 0 ? lost : 1)) > "$LOST"
[ -n "$got" ] || [ "$first_status" -eq 2 ] || [ "$number" -eq 1 ] ||
    echo "processes.sh: rank $first of $number ended first, with exit status $first_status" >&2
exit "$first_status"
