#!/bin/bash
# scripts/gpu_day.sh in the simulator: every part is done or skipped, a second call repeats nothing, a part that
# fails is named, and the curve tells a wrong run from a right one.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$1:"; cat "$folder/log"; exit 1; }
scripts/gpu_day.sh --simulate --state "$folder/state" > "$folder/log" 2>&1 || fail "it failed"
grep -q '^[0-9]* done, 0 failed, [0-9]* skipped, 0 left$' "$folder/log" || fail "no summary, or parts are left"
[ "$(grep -o '^[0-9]* done' "$folder/log" | cut -d' ' -f1)" -ge 10 ] || fail "too few parts are done"
scripts/gpu_day.sh --simulate --state "$folder/state" > "$folder/log" 2>&1 || fail "the second call failed"
! grep -q '^machine: ' "$folder/log" || fail "the second call repeats a part"
python3 - "$folder/state/gpu_day.json" <<'PY'
import json, sys
sys.path.insert(0, "dev")
import shakespeare_curve
day = json.load(open(sys.argv[1]))
assert day["gpu"] == "simulator" and day["steps"] and day["kernels"]["attention_forward"] > 0, day
assert len(day["products"]) > 10 and all(p["algorithm"] == 2 and p["of"] == 3 for p in day["products"]), day
curve = json.loads(shakespeare_curve.CURVE.read_text())
assert len(curve["fp32"]) == len(curve["bf16"]) == 300
assert shakespeare_curve.wrong_step(curve["fp32"], "bf16") is None  # another rounding
assert shakespeare_curve.wrong_step([], "bf16")
assert shakespeare_curve.wrong_step([float("nan")], "bf16")
late = curve["bf16"][:10] + curve["bf16"][:-10]  # as if ten updates were lost
assert shakespeare_curve.wrong_step(late, "bf16")
PY
# A part that fails, because its program does; and one without a program.
mkdir -p "$folder/programs/BF16" && printf '#!/bin/sh\necho broken; exit 3\n' > "$folder/programs/BF16/test_gpt2sim"
chmod +x "$folder/programs/BF16/test_gpt2sim"
status=0
GPU_DAY_PROGRAMS=$folder/programs scripts/gpu_day.sh --simulate --state "$folder/other" \
    --only tests_BF16_kernels,kernels > "$folder/log" 2>&1 || status=$?
[ $status = 1 ] && grep -q '^tests_BF16_kernels *failed .*ended with 3: broken' "$folder/log" ||
    fail "a part that fails is not named"
grep -q '^kernels *skipped .*make test_gpt2sim train_gpt2sim' "$folder/log" || fail "what is missing is not named"
for wrong in "0" "--only nothing"; do
    status=0; scripts/gpu_day.sh $wrong --state "$folder/other" > "$folder/log" 2>&1 || status=$?
    [ $status = 2 ] || fail "$wrong was accepted"
done
