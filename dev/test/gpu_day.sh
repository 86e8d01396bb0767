#!/bin/bash
# scripts/gpu_day.sh in the simulator: every part is done or skipped, a second call repeats nothing, a part that
# fails is named, and the curve tells a wrong run from a right one. What only a GPU's machine has is played by scripts:
# nvidia-smi, ncu, compute-sanitizer. Then some parts in pieces, each in a fresh folder, from archive to archive, the
# first of them killed in the middle of a part. Questions have the answers that follow from what parts found.
#
#     dev/test/gpu_day.sh rehearse [MINUTES]
#
# plays the day itself, not --simulate: the commands with the sizes that a GPU gets, in pieces of 9 minutes. The trainer
# is the simulator's, which writes down its launches and computes nothing (CUSIM_DRY), so times and losses mean nothing;
# of the tests those called quick run. Left out is what needs numbers: PyTorch, the ladders, the curve.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tools=$folder/tools programs=$folder/gpu_programs
fail() { echo "$1:"; cat "$folder/log"; exit 1; }
play() { printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod +x "$1"; }
# nvidia-smi of a machine whose driver knows this CUDA.
play_driver() {
    mkdir -p "$tools"
    play "$tools/nvidia-smi" 'case "$*" in *compute_cap*) echo 9.0 ;;
*query-gpu*) echo "NVIDIA H100, 580.65, 81559 MiB, 1980 MHz, 345 MHz, 2619 MHz, 700.00 W" ;;
*) echo "CUDA Version: '"$1"'" ;; esac'
}
# initcheck and memcheck find something; ncu does not know one of the metrics.
play_profilers() {
    play "$tools/compute-sanitizer" "echo '========= Uninitialized __global__ memory read'
echo '========= ERROR SUMMARY: $1 error'; exit $2"
    play "$tools/ncu" 'case "$*" in *--clock-control\ none*) ;; *) exit 3 ;; esac
case "$*" in *dram__bytes.sum*) echo "==ERROR== Failed to find metric dram__bytes.sum"; exit 1 ;; esac
echo "\"ID\",\"Kernel Name\""'
}
# The programs of the day: the simulator's under their names.
play_programs() {
    mkdir -p "$programs"/{BF16,FP32,cuda} && cp "$PWD/build/BF16/train_gpt2sim" "$programs/BF16/train_gpt2cu"
    for p in BF16 FP32; do
        [ ! -x "build/$p/test_gpt2sim" ] || play "$programs/$p/test_gpt2cu" 'unset CUSIM_DRY
case $1 in plan) group=plan ;; *) group=quick ;; esac; exec '"$PWD/build/$p/test_gpt2sim"' $group'
    done
    cp dev/data/shakespeare_train.bin "$programs/" && echo '{"cuda": "13.0", "archs": "90a"}' > "$programs/built.json"
}
# Pieces of so many minutes, with these flags, until nothing is left: each in a bare folder, which has nothing of the
# one before but the archive. The first is killed when it has begun the part $killed_in, if that is set.
rehearse() {
    pieces=0 minutes=$1; shift
    while [ $pieces -lt 40 ]; do
        pieces=$((pieces + 1)) bare=$folder/bare$pieces
        mkdir -p "$bare/build/host" "$bare/dev/data"
        git ls-files dev/*.py dev/cuda/*.py dev/cusim/*.py dev/MEASURED.md scripts Makefile llmc dev/test/fixtures \
            dev/data | tar -cT - | tar -xC "$bare"
        ln -s "$PWD/build/BF16" "$PWD/build/cuda" "$bare/build/" && ln -s "$PWD/build/host/tokenize" "$bare/build/host/"
        [ ! -d "$programs" ] || cp -r "$programs" "$bare/build/gpu_day"
        cp dev/data/*.bin "$bare/dev/data/"
        if [ $pieces = 1 ] && [ -n "$killed_in" ]; then
            "$bare/scripts/gpu_day.sh" 60 --archive "$folder/archive" "$@" > "$folder/log" 2>&1 & piece=$!
            until grep -q "^$killed_in: " "$folder/log"; do
                kill -0 $piece 2> "$folder/killed" || fail "the first piece ends before $killed_in"
                sleep 0.1
            done
            kill -9 $piece && ! wait $piece 2> "$folder/killed" || fail "the first piece is not killed"
            ! grep -q "^$killed_in *done" "$folder/log" || fail "it was killed too late"
            cp "$folder/log" "$folder/all_pieces" && rm -rf "$bare" && continue
        fi
        "$bare/scripts/gpu_day.sh" "$minutes" --archive "$folder/archive" "$@" > "$folder/log" 2>&1 ||
            grep -q '^[0-9]* done, [1-9][0-9]* failed' "$folder/log" || fail "piece $pieces has no report"
        cat "$folder/log" >> "$folder/all_pieces"
        rm -rf "$bare"
        [ "$(ls "$folder"/archive.* | wc -l)" -le 8 ] && [ -z "$(find "$folder"/archive.* -size +16384k)" ] ||
            fail "the archive is more than 8 files of 16 MiB"
        grep -q ': left for the next call' "$folder/log" || return 0
    done
    fail "it never ends"
}
if [ "${1-}" = rehearse ]; then
    play_driver 13.0 && play_profilers 0 0 && play_programs
    export CUSIM_DRY=$folder/dry CUSIM_MEMORY_MIB=81559 CUSIM_ALGORITHMS=3 CUSIM_NAMES='NVIDIA H100' CUSIM_CAPABILITY=90
    parts=$(python3 -c 'import sys; sys.path.insert(0, "dev"); from gpu_day_parts import PARTS
print(",".join(name for name in PARTS if not name.startswith(("torch", "ladder", "curve", "features"))))')
    PATH=$tools:$PATH rehearse "${2:-9}" --only "$parts"
    for part in ${parts//,/ }; do grep -Eq "^$part +(done|skipped) " "$folder/log" || fail "$part is not done"; done
    cat "$folder/log" && echo "$pieces pieces" && ls -l "$folder"/archive.*
    exit
fi
python3 - <<'PY'
import pathlib, sys, tempfile
sys.path.insert(0, "dev")
import gpu_day
from gpu_day_parts import first_and_last, misfit
for driver, gpu, cuda, archs, said in (
        ("13.0", "9.0", "13.0", "90a", None), ("12.8", "9.0", "13.0", "90a", "install a newer driver"),
        ("13.0", "8.0", "12.8", "90a", "GPU_ARCH=80"), ("13.0", "9.0", "12.8", "80", "GPU_ARCH=90a"),
        ("13.0", "8.9", "13.0", "80", None), ("13.0", "12.0", "13.0", "80 90a ptx", None),
        ("13.1", "10.0", "13.0", "90a 80", "GPU_ARCH=100a"), ("13.0", "8.6", "13.0", "89", "GPU_ARCH=86")):
    found = misfit(driver, gpu, {"cuda": cuda, "archs": archs})
    assert (found is None) == (said is None) and (said is None or said in found), (driver, gpu, cuda, archs, found)
with tempfile.TemporaryDirectory() as name:  # pieces of an archive
    state, other, archive = (pathlib.Path(name, place) for place in ("a", "b", "archive"))
    state.mkdir(), other.mkdir()
    (state / "x.json").write_bytes(bytes(5000)), (state / "y.log").write_bytes(b"1" * 3 + b"2" * gpu_day.LOG_BYTES)
    import random
    (state / "z.csv").write_bytes(random.Random(1).randbytes(40000))
    gpu_day.PIECE_BYTES = 16 << 10
    gpu_day.pack(state, archive), gpu_day.unpack(archive, other)
    sizes = [path.stat().st_size for path in gpu_day.pieces_of(archive)]
    assert len(sizes) == 3 and max(sizes) <= 16 << 10, sizes
    assert (other / "z.csv").read_bytes() == (state / "z.csv").read_bytes()
    assert (other / "y.log").read_bytes() == b"2" * gpu_day.LOG_BYTES
    (state / "z.csv").unlink()
    gpu_day.pack(state, archive)
    assert len(gpu_day.pieces_of(archive)) == 1
    (state / "z.csv").write_bytes(random.Random(1).randbytes(200000))
    try:
        gpu_day.pack(state, archive)
        raise AssertionError("too large a state was packed")
    except SystemExit as reason:
        assert "8 pieces" in str(reason)
    for damaged in (b"no archive", archive.with_name("archive.0").read_bytes()[:400]):
        archive.with_name("archive.0").write_bytes(damaged)
        try:
            gpu_day.unpack(archive, other)
            raise AssertionError("a damaged archive was taken")
        except SystemExit as reason:
            assert "no whole archive of a state" in str(reason), reason
assert first_and_last([10.0] * 3 + [9.0] + [10.0] * 16) == (10, 10, False)
assert first_and_last([10.0] * 12 + [10.4] * 8) == (10, 10.4, True)
names = list(gpu_day.PARTS)  # first whether all fits; what decides the rest of the day comes before the ladders
ladders = [names.index(name) for name in names if name.startswith("ladder_")]
assert names[0] == "check" and gpu_day.PARTS["check"].limit_s <= 60
assert max(names.index("torch_attention"), names.index("gelu_fusion")) < min(ladders), names

# Questions: each has one answer from what a good day finds, and the other from a bad one.
from gpu_day_questions import QUESTIONS, answered, lines
assert all(part in gpu_day.PARTS for question in QUESTIONS for part in question.parts)
rung = lambda identity, ms, type="bf16": {"bench": "forward", "id": identity, "type": type, "min_ms": ms}
product = lambda ms: {"product": "768 x 50304 x 8192, NT, bf16 to fp32, aligned to 256 bytes", "ms": ms}
def found_on_a_day(good, gpu="NVIDIA H100 80GB HBM3"):
    pick = lambda one, other: one if good else other
    records = {
        "check": {"capability": "9.0"}, "machine": {"gpu": gpu},
        "steps_64": {"steps": [{"who": "this trainer, bf16", "min_ms": pick(128.0, 171.0)}]},
        "torch_attention": {"attention": {"cudnn": pick([1.0, 2.0], [0.2, 0.3]), "math": [9.0, 9.0]}},
        "kernels": {"B": 64, "kernels": {"attention_forward": 48.0, "attention_backward_q": 48.0, "adamw": 99.0}},
        "gelu_fusion": {"ms": {"16": {"-ge 0": pick(9.0, 10.0), "-ge 1": 9.5, "-ge 2": 9.2}}},
        "cuda_graph": {"pays": good, "said": "B 4: 9, 8; graphs are"},
        "defaults_64": {"throttled": not good, "said": "9 ms at best"},
        "products": {"products": [product(pick(0.9, 1.3))], "before_ms": pick(130, 128), "after_ms": 128},
        **{f"ladder_{name}": {"ladders": [{"results": [rung("wgmma", pick(2.0, 1.0)), rung("shipped", 1.5),
                                                         rung("naive", 0.1, "fp32")]}]}
           for name in ("attention_forward", "matmul")}}
    return {name: {"status": "done", **record} for name, record in records.items()}
answers = lambda records: [row.get("answer") for row in answered(records)]
assert answers({}) == [None] * len(QUESTIONS) and answers(found_on_a_day(True)) == ["yes"] * len(QUESTIONS)
assert answers(found_on_a_day(False)) == ["no"] * len(QUESTIONS)
text = "\n".join(lines(answered(found_on_a_day(False))))
for said in ("171.0 ms, modelled 1", "2.00 ms a layer at B 16, cudnn 0.50 ms", "8192 with 487 TFLOP/s, modelled",
             "-ge 2 has 9.20 ms, -ge 0 10.00 ms", "wgmma has 1.000 ms, shipped 1.500 ms): that rung goes to llmc/cuda"):
    assert said in text, text
unknown = found_on_a_day(True, "another") | {"steps_64": {"status": "failed"}, "gelu_fusion": {"status": "done"}}
open_rows = [row["open"] for row in answered(unknown) if "open" in row]
assert open_rows == ["it needs steps_64", "KeyError('ms')", "another is not in dev/cuda/chips.py"]
PY
# A machine with a GPU. The driver is too old for the programs: the day stops, and says so.
play_driver 12.4 && play_programs
status=0
PATH=$tools:$PATH GPU_DAY_PROGRAMS=$programs scripts/gpu_day.sh 1 --state "$folder/old" > "$folder/log" 2>&1 ||
    status=$?
[ $status = 1 ] && grep -q '^the day stops here: the driver knows CUDA 12.4, .* built with 13.0: install' \
    "$folder/log" && ! grep -q '^machine: ' "$folder/log" || fail "an old driver does not stop the day"
# What initcheck finds is a report, and what memcheck finds a failure; ncu without one of the metrics; the commands of
# the day itself, with its sizes, by a trainer that computes nothing.
play_driver 13.0 && play_profilers 1 9
status=0
PATH=$tools:$PATH GPU_DAY_PROGRAMS=$programs CUSIM_DRY=$folder/dry CUSIM_MEMORY_MIB=81559 scripts/gpu_day.sh 60 \
    --state "$folder/new" --only check,machine,steps_64,kernels,sanitizer_initcheck,sanitizer_memcheck,ncu \
    > "$folder/log" 2>&1 || status=$?
[ $status = 1 ] && grep -q '^sanitizer_initcheck *done .*ERROR SUMMARY: 1 error; Uninitialized' "$folder/log" &&
    grep -q '^sanitizer_memcheck *failed' "$folder/log" || fail "initcheck is no report, or memcheck is one"
grep -q '^ncu *done .*unknown here: dram__bytes.sum' "$folder/log" || fail "ncu does not go on without a metric"
grep -q '^NVIDIA H100, CUDA 13.0, ' "$folder/log" || fail "the day does not know its GPU"
for part in steps_64 kernels; do grep -q "^$part *done" "$folder/log" || fail "$part does not run as on a GPU"; done
rm -rf "$programs"
# Some parts in pieces that have time for one part or two, but for the first, which is killed.
parts=machine,gelu_fusion,defaults_64,kernels,steps_16
killed_in=defaults_64 rehearse 0.02 --simulate --only $parts
[ $pieces -ge 3 ] || fail "all that is left in one piece"
for part in ${parts//,/ }; do
    [ "$(grep -c "^$part: .*(about [0-9]* s, at most [0-9]* s)$" "$folder/all_pieces")" -ge 1 ] ||
        fail "$part is not in the pieces"
    grep -q "^$part *done" "$folder/log" || fail "$part is not done in the end"
done
for part in machine gelu_fusion; do
    [ "$(grep -c "^$part: " "$folder/all_pieces")" = 1 ] || fail "$part, done before the kill, is repeated"
done
[ "$(grep -c '^defaults_64: ' "$folder/all_pieces")" -ge 2 ] || fail "the part that was killed does not begin again"
# All parts, in one call.
LD_LIBRARY_PATH=$PWD/build/fake_nvml scripts/gpu_day.sh --simulate --state "$folder/state" > "$folder/log" 2>&1 ||
    fail "it failed"
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
assert len(day["parts"]["cuda_graph"]["ms"]["2"]) == 2 and day["parts"]["cuda_graph"]["status"] == "done", day
hot = day["parts"]["defaults_64"]
assert 1410 in hot["clocks"] and 212.5 in hot["watts"] and hot["celsius"] and "clock 1410 to" in hot["said"], hot
assert [row["question"] for row in day["questions"] if "answer" in row], day["questions"]
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
