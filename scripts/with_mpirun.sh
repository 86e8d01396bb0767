#!/usr/bin/env bash
# Runs mpirun so that a run can be stopped without losing work. Ctrl-C and SIGTERM reach the processes as SIGUSR1, which
# mpirun passes on: they finish their step, save and end. A second Ctrl-C or SIGTERM ends them at once. mpirun alone
# would kill its processes one second after it is told to stop, or after odls_base_sigkill_timeout seconds.
#
#   scripts/with_mpirun.sh -np 8 ./train_gpt2cu ...
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
setsid=$(command -v setsid || true)  # in a session of its own: the terminal's Ctrl-C reaches this script only
$setsid mpirun --mca odls_base_sigkill_timeout 60 "$@" &
mpirun=$!
asked=0 status=0
stop() {  # number of the signal
    if [ "$asked" -eq 0 ]; then asked=$1 && kill -USR1 "$mpirun"; else kill -TERM "$mpirun"; fi 2>/dev/null
}
trap 'stop 2' INT
trap 'stop 15' TERM
trap 'kill -USR1 "$mpirun"' USR1
wait "$mpirun" || status=$?
while kill -0 "$mpirun" 2>/dev/null; do  # a signal ended the wait, but not mpirun
    status=0
    wait "$mpirun" || status=$?
done
[ "$asked" -eq 0 ] || [ "$status" -ne 0 ] || status=$((128 + asked))
exit "$status"
