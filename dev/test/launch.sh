#!/usr/bin/env bash
# scripts/launch.sh: a run killed once ends with the weights of an undisturbed one; a command that always fails is given
# up; wrong flags and signals end it at once; in SLURM, with a stand-in for scontrol, the job is queued again.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -emuo pipefail  # -m: what it starts in the background can be stopped by SIGINT
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export STARTS=$folder/starts WAIT=0 RESTARTS=3
fail() { echo "$*"; cat "$folder/log"; exit 1; }
launched() {  # command: runs it, sets status and starts
    : > "$STARTS"
    status=0
    scripts/launch.sh "$@" > "$folder/log" 2>&1 || status=$?
    starts=$(grep -c "" "$STARTS" || true)
}
expect() {  # what, status, starts
    [ "$status" = "$2" ] || fail "$1 ended with $status instead of $2:"
    [ "$starts" = "$3" ] || fail "$1 was started $starts times instead of $3:"
}
command() {  # name, lines of bash: a command that notes each start
    printf '#!/usr/bin/env bash\necho "$@" >> "$STARTS"\n%s\n' "$2" > "$folder/$1"
    chmod +x "$folder/$1"
}

command fails 'exit 1'
launched "$folder/fails" -o x
expect "a command that always fails" 1 4
grep -q "exit status 1 after 3 restarts" "$folder/log" || fail "it does not say why it gave up:"
[ "$(sort -u "$STARTS")" = "-o x -y 1" ] || fail "arguments: $(cat "$STARTS")"
command dies 'kill -9 $$'
RESTARTS=1 launched "$folder/dies"
expect "a command that kill -9 ends" 137 2
for last in 0 2 129 130 143; do
    command "ends_$last" "exit $last"
    launched "$folder/ends_$last"
    expect "a command that ends with $last" $last 1
done
launched ./no_such_program
expect "a program that is not there" 127 0
launched
expect "no command" 2 0
RESTARTS=many launched "$folder/fails"
expect "RESTARTS=many" 2 0
WAIT=1 RESTARTS=2 launched "$folder/fails"
grep -q "restart 2 of 2 in 2 s" "$folder/log" || fail "the second wait is not twice as long:"

# Signals, while the command runs and between two starts.
stopped_by() {  # signal, command, what to wait for in the log
    : > "$STARTS"
    : > "$folder/log"
    scripts/launch.sh "$2" > "$folder/log" 2>&1 &
    for _ in $(seq 200); do grep -q "$3" "$folder/log" && break; sleep 0.05; done
    status=0
    kill "-$1" $!
    wait $! || status=$?
    starts=$(grep -c "" "$STARTS" || true)
}
command saves 'trap "exit 130" INT; trap "exit 143" TERM; trap "exit 129" HUP; trap "exit 0" USR1; echo began
for i in {1..200}; do sleep 0.05; done; exit 1'
for signal in INT TERM HUP; do
    stopped_by $signal "$folder/saves" began
    expect "a command stopped by $signal" $((128 + $(kill -l $signal))) 1
done
stopped_by USR1 "$folder/saves" began
expect "a command stopped by USR1" 0 1
WAIT=100 stopped_by TERM "$folder/fails" "restart 1"
expect "a launcher stopped while it waits" 143 1

# SLURM: after USR1 the job is queued again, after a failure it is not.
mkdir "$folder/bin"
printf '#!/bin/sh\necho "$@" > "%s/asked"\n' "$folder" > "$folder/bin/scontrol"
chmod +x "$folder/bin/scontrol"
export PATH=$folder/bin:$PATH SLURM_JOB_ID=71 SLURM_SUBMIT_DIR=$PWD
launched "$folder/fails"
expect "a job that always fails" 1 4
[ ! -e "$folder/asked" ] || fail "a job that fails was queued again"
stopped_by USR1 "$folder/saves" began
expect "a job whose time is up" 0 1
[ "$(cat "$folder/asked")" = "requeue 71" ] || fail "asked scontrol for: $(cat "$folder/asked")"
unset SLURM_JOB_ID SLURM_SUBMIT_DIR

# A run of the CPU trainer, killed at its second checkpoint, beside one that is left alone.
./tokenize --bytes 1 dev/data/shakespeare/sonnets.txt -o "$folder/bytes" > /dev/null 2>&1
export OUT=$folder/killed
flags=(-e L1C32H2T16V257 -i "$folder/bytes_train.bin" -j "$folder/bytes_val.bin" -t 16 -b 2 -v 0 -s 0 -x 1500 -n 50)
flags+=(--threads 1)
command killed_once '[ "$(wc -l < "$STARTS")" -eq 1 ] || exec ./train_gpt2_cpu "$@"
./train_gpt2_cpu "$@" &
for i in {1..2000}; do [ -e "$OUT/DONE_00000100" ] && break; sleep 0.01; done
kill -9 $!
wait $!'
launched "$folder/killed_once" "${flags[@]}" -o "$OUT"
expect "a run killed once" 0 2
grep -q "exit status 137; restart 1 of 3" "$folder/log" || fail "the run was not killed:"
./train_gpt2_cpu "${flags[@]}" -o "$folder/whole" > "$folder/log" 2>&1
cmp "$OUT/model_00001500.bin" "$folder/whole/model_00001500.bin"
cmp "$OUT/main.log" "$folder/whole/main.log"

# Processes of one machine: the status of the first that failed, signals, wrong flags; rank 0's output alone on stdout.
processes() { status=0; PATIENCE=1 scripts/processes.sh "$@" > "$folder/out" 2> "$folder/log" || status=$?; }
ended() { [ "$status" = "$2" ] || fail "$1 ended with $status instead of $2:"; }
command says 'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR"; [ "$RANK" != 1 ] || exit 3; sleep 0.3; exit "$RANK"'
processes -np 3 "$folder/says"
ended "rank 1 of three" 3
[ "$(cat "$folder/out")" = "rank 0 of 3 at 127.0.0.1" ] || fail "stdout of three processes: $(cat "$folder/out")"
grep -q "rank 2 of 3" "$folder/log" || fail "rank 2 says nothing:"
processes -np 2 true
ended "two processes that end well" 0
command stays '[ "$RANK" = 0 ] || kill -9 $$; exec sleep 60'
LOST=$folder/lost processes -np 3 "$folder/stays"
ended "two of three killed" 137
[ "$(cat "$folder/lost")" = 2 ] || fail "lost are $(cat "$folder/lost") of two:"
for wrong in "-np 0 true" "-np x true" "-np 2" "true"; do
    processes $wrong
    ended "processes.sh $wrong" 2
done
for wrong in "-np 2 --elastic true" "--elastic true -d 1" "-np 0 true"; do
    launched $wrong
    expect "launch.sh $wrong" 2 0
done
scripts/processes.sh -np 2 "$folder/saves" > "$folder/log" 2>&1 &
for _ in $(seq 200); do [ "$(grep -c began "$folder/log")" = 2 ] && break; sleep 0.05; done
status=0
kill -TERM $!
wait $! || status=$?
ended "two processes stopped by TERM" 143

# The same bits whatever --bucket-mb, by TCP and in shared memory: at stage 0, and where processes keep slices.
flags=(-e L3C32H2T16V257 -i "$folder/bytes_train.bin" -t 16 -b 2 -v 0 -s 0 -x 3 --threads 1)
tcp="--shared-memory 0 --bucket-mb 1"
for more in "-z 0" "-z 0 --bucket-mb 1" "-z 0 $tcp" "-z 3 $tcp"; do
    rm -rf "$folder/bits"
    processes -np 2 ./train_gpt2_cpu "${flags[@]}" $more -o "$folder/bits"
    ended "a run with $more" 0
    [ -e "$folder/first.bin" ] || cp "$folder/bits/model_00000003.bin" "$folder/first.bin"
    cmp "$folder/first.bin" "$folder/bits/model_00000003.bin"
done

# One of three processes is killed: the others save, and those that are left go on with the same batch. At stage 1 what
# is on the disk counts, and where two processes cannot have the batch, one has it.
flags=(-e L1C32H2T16V257 -i "$folder/bytes_train.bin" -t 16 -b 2 -v 0 -s 0 -x 60 --threads 1 --comm-timeout 20)
./train_gpt2_cpu "${flags[@]}" -d 192 -o "$folder/one" > "$folder/log" 2>&1
command loses_one '[ "${RANK-}" = 1 ] && [ ! -e "$OUT/lost" ] || exec ./train_gpt2_cpu "$@"
./train_gpt2_cpu "$@" &
for i in {1..2000}; do [ "$(cat "$OUT/main.log" | grep -c trl)" -gt 7 ] && break; sleep 0.01; done 2> /dev/null
touch "$OUT/lost"
kill -9 $!
wait $!'
loses() {  # what, what the log says, processes that go on, more flags
    launched -np 3 --elastic "$folder/loses_one" "${flags[@]}" "${@:4}" -o "$OUT"
    [ "$status" = 0 ] || fail "$1 ended with $status:"
    grep -Eq "$2" "$folder/log" || fail "$1, and nobody says: $2"
    grep -q "$3 of 3 processes go on" "$folder/log" || fail "$1: not $3 go on:"
    [ "$(grep -c trl "$OUT/main.log")" = 60 ] || fail "$1: $(grep -c trl "$OUT/main.log") steps"
}
last_loss() { sed -n 's/^s:59 trl:\([^ ]*\).*/\1/p' "$1/main.log"; }
OUT=$folder/elastic loses "one of three is killed" "rank 1 has ended.* is saved in " 2 -d 192 -n 1000
awk -v a="$(last_loss "$folder/one")" -v b="$(last_loss "$folder/elastic")" \
    'BEGIN { exit !(a > 0 && (a - b) ^ 2 < 1e-6) }' || fail "the loss is not that of a run of one process:"
OUT=$folder/sliced loses "one of three is killed at stage 1" \
    "counts, since part of the state was rank 1's alone|step [0-9]*0 is saved" 2 -d 192 -n 10 -z 1
OUT=$folder/odd loses "one of three is killed, two cannot go on" "rank 1 has ended" 1 -d 96
