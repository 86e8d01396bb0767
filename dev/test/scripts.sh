#!/usr/bin/env bash
# The scripts: all are valid bash; the recipes run, on a tiny model in the simulator; the SLURM ones run with stand-ins
# for srun and scontrol.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -euo pipefail
for script in scripts/*.sh scripts/multi_node/*.sh; do bash -n "$script"; done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PROGRAM=build/BF16/train_gpt2sim MPIRUN_FLAGS="--oversubscribe --allow-run-as-root" OUT_DIR=$folder/out
tiny="-i dev/data/shakespeare_train.bin -j dev/data/shakespeare_val.bin -e L1C32H2T16 -t 16 -b 1 -d 32 -x 2 -m 1 -h 0"
tiny="$tiny -g 4 -s 2 --comm-timeout 30"
runs() {  # what it is, log: it got to its second step
    grep -q "step    2/2 | loss" "$2" || { echo "$1 did not train:"; tail -n 20 "$2"; exit 1; }
}
for recipe in scripts/run_gpt*.sh; do
    rm -rf "$OUT_DIR"
    GPUS=1 "$recipe" $tiny > "$folder/log" 2>&1 || true
    runs "$recipe" "$folder/log"
done
scripts/shakespeare_char.sh -x 2 -v 2 -m 1 -g 4 > "$folder/log" 2>&1 || true
runs shakespeare_char.sh "$folder/log"
grep -q "^bits per byte" "$folder/log"
if command -v mpirun > /dev/null; then
    rm -rf "$OUT_DIR"
    GPUS=2 scripts/run_gpt2_124M.sh $tiny > "$folder/log" 2>&1 || true
    runs "two GPUs" "$folder/log"
    grep -q "of 2 processes" "$folder/log"
    HOSTS=localhost:2 scripts/multi_node/mpirun.sh $tiny -o "$folder/mpi" > "$folder/log" 2>&1 || true
    runs mpirun.sh "$folder/log"
    # A log of its own: an older one already says "step 2", and the recipe would be stopped before it has begun.
    rm -rf "$OUT_DIR"
    log=$folder/stopped
    : > "$log"
    GPUS=2 scripts/run_gpt2_124M.sh $tiny -x 1000000 > "$log" 2>&1 &
    recipe=$!
    for _ in $(seq 600); do grep -q "step    2/" "$log" && break; sleep 0.1; done
    kill -TERM "$recipe"
    status=0
    wait "$recipe" || status=$?
    { [ "$status" -eq 143 ] && grep -q "stopped at step" "$log" && ls "$OUT_DIR"/DONE_* > /dev/null; } ||
        { echo "a recipe stopped by SIGTERM ended with $status:"; tail -n 20 "$log"; exit 1; }
fi
mkdir "$folder/bin"
# How many processes mpirun.sh asks for, and where.
echo 'echo "$@" > "$ASKED"' > "$folder/bin/mpirun"; chmod +x "$folder/bin/mpirun"
export ASKED=$folder/asked
for case in a,b:2 node1:8,node2:8 a; do
    PATH="$folder/bin:$PATH" HOSTS=$case scripts/multi_node/mpirun.sh -o x
    case $case in a,b:2) count=3 ;; a) count=1 ;; *) count=16 ;; esac
    grep -q -- " -np $count --host $case " "$ASKED" || { echo "HOSTS=$case: $(cat "$ASKED")"; exit 1; }
done
for case in a: a:x , ' '; do
    status=0; HOSTS=$case scripts/multi_node/mpirun.sh 2> "$folder/error" || status=$?
    [ $status = 2 ] && grep -q "separated by commas" "$folder/error" ||
        { echo "HOSTS='$case': $status, $(cat "$folder/error")"; exit 1; }
done
rm "$folder/bin/mpirun"
echo 'echo 127.0.0.1' > "$folder/bin/scontrol"     # scontrol show hostnames
cat > "$folder/bin/srun" <<'SRUN'
#!/usr/bin/env bash
# two tasks, with what srun leaves in the environment
[ "${1#--}" = "$1" ] || shift
SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=2 "$@" > /dev/null 2>&1 &
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 "$@"
wait
SRUN
chmod +x "$folder"/bin/*
for way in tcp fs; do
    PATH="$folder/bin:$PATH" SLURM_JOB_ID=1 SLURM_JOB_NODELIST=here RENDEZVOUS=$folder/meet \
        MASTER_PORT=$((20000 + RANDOM % 9000)) scripts/multi_node/slurm_$way.sh $tiny -o "$folder/$way" \
        > "$folder/log" 2>&1 || true
    runs "slurm_$way.sh" "$folder/log"
done
dev/recompute.py --model L2C32H2T16 -b 1 -t 16 --steps 1 --rounds 1 --csv "$folder/levels.csv" \
    --svg "$folder/levels.svg" > "$folder/log"
[ "$(grep -c '^| -r [0-4]' "$folder/log")" = 6 ] && [ "$(wc -l < "$folder/levels.csv")" -eq 7 ] &&
    [ "$(grep -c 'r="4"' "$folder/levels.svg")" = 6 ] && grep -q '>-r 3<' "$folder/levels.svg" ||
    { cat "$folder/log"; exit 1; }
dev/compressed_activations.py --model L3C32H2T64 --steps 2 --seeds 1 --folder "$folder/codes" > "$folder/log"
[ "$(grep -c '^| codes at `-r [0-4]` | [0-9,]* to [0-9,]* (0[.]' "$folder/log")" = 5 ] &&
    [ "$(ls "$folder/codes/"*.json | wc -l)" = 7 ] || { cat "$folder/log"; exit 1; }
if dev/test/average.py --packages 2> /dev/null; then
    dev/averages.py --model L1C16H1T64 --steps 50 --seeds 1 --folder "$folder/averages" > "$folder/log"
    [ "$(grep -c '^| .* | [+-][0-9.]*, least [+-][0-9.]* | [+-]' "$folder/log")" = 3 ] &&
        grep -q '^| the last weights | [0-9.]*, spread 0.0000 |' "$folder/log" || { cat "$folder/log"; exit 1; }
fi
dev/distil.py --teacher L2C16H1T64 --student L1C16H1T64 --steps 20 --teacher-steps 20 --seeds 1 2 \
    --folder "$folder/distil" > "$folder/log"
[ "$(grep -c '^| .* | [0-9]* | [0-9.]* | [0-9.]* | [0-9.]* |$' "$folder/log")" = 5 ] || { cat "$folder/log"; exit 1; }
# A package that is not there is named with its pip line (-S: none is).
said=$(python3 -S dev/data/unicode_tables.py 2>&1) && { echo "unicode_tables.py does without tiktoken"; exit 1; }
[[ $said == *"pip install tiktoken"* ]] || { echo "unicode_tables.py does not name tiktoken: $said"; exit 1; }
