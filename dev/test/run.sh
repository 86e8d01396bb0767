#!/bin/sh
# Runs the test programs given, then the checks on the source, and ends with one line: N passed, N failed[, N skipped].
passed=0 failed=0 skipped=0
count() {  # a line "N passed, N failed, N skipped" into the totals
    set -- $(echo "$1" | tr -d ',')
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}
one() {    # name, command: passes if the command succeeds
    name=$1; shift
    if output=$("$@" 2>&1); then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $name"; echo "$output" | tail -n 30; fi
}
program() {  # one that counts for itself
    echo "$@"
    output=$("$@" 2>&1)
    last=$(echo "$output" | tail -n 1)
    case "$last" in
        *" passed, "*" failed, "*" skipped") echo "$output" | grep -v '^$'; count "$last" ;;
        *) echo "$output" | tail -n 30; echo "FAILED $* ended early"; failed=$((failed + 1)) ;;
    esac
}
for test in "$@"; do program "$test"; done
for source in dev/cpu/*.cpp; do
    name=$(basename "$source" .cpp)
    case $name in roofline | products) ;; *) program "build/bench/$name" --check ;; esac
done
for source in dev/cuda/*.cu; do program "build/cuda/$(basename "$source" .cu)" --check; done
echo "source checks"
one "no source line is wider than 120 columns" dev/width.py
one "the check of widths finds what is too wide" dev/test/width.sh
if python3 dev/format.py --program > /dev/null 2>&1; then one "laid out as make format does" dev/format.py --check
else skipped=$((skipped + 1)); echo "SKIPPED laid out as make format does (pip install clang-format==14.0.6)"; fi
one "every header compiles alone and twice" make -s check-headers
one "kinds of builds, and data" dev/test/make_targets.sh
one "KERNELS=reference trains" dev/test/reference_trainer.sh
for precision in fp32 bf16; do one "the roofline of a step, $precision" build/bench/roofline 2 16 $precision L2C48H3V300 1; done
one "a bench fails variants that are wrong" dev/test/planted_bench.sh
one "tables and charts of a bench" dev/test/bench_table.sh
one "tables of several machines in one README" dev/test/readme_tables.py
if python3 dev/test/hugging_face.py --packages > /dev/null 2>&1; then one "models from and to Hugging Face" dev/test/hugging_face.py
else
    skipped=$((skipped + 1))
    echo "SKIPPED models from and to Hugging Face (pip install numpy safetensors tiktoken torch transformers)"
fi
one "the script of the CPU bench" dev/test/bench_script.sh
one "scripts end when interrupted, and end what they started" dev/test/interrupted.py
for seed in 1 2; do
    one "BF16 kernels with blocks, warps and lanes in random order, seed $seed" env CUSIM_SEED=$seed build/BF16/test_gpt2sim kernels
    one "FP32 kernels with blocks, warps and lanes in random order, seed $seed" env CUSIM_SEED=$seed build/FP32/test_gpt2sim kernels
done
for source in dev/cuda/*.cu; do
    name=$(basename "$source" .cu)
    one "the ladder of $name with blocks, warps and lanes in random order" env CUSIM_SEED=1 "build/cuda/$name" --check
done
one "the model in random order" env CUSIM_SEED=3 build/BF16/test_gpt2sim cpu
one "the simulator on ucontext" dev/test/ucontext.sh
one "the script of the GPU bench, in the simulator" python3 dev/bench_gpu.py --sim
one "the recipes and multi-node scripts run" dev/test/scripts.sh
if bochs --help cpu 2>&1 | grep -q sapphire_rapids && command -v grub-mkrescue > /dev/null; then one "AMX in an emulator" dev/test/amx/run.sh
else skipped=$((skipped + 1)); echo "SKIPPED AMX in an emulator (Bochs 2.8 or newer; dev/test/amx/run.sh says how)"; fi
if command -v gdb > /dev/null; then one "gdb stops in a CUDA thread" dev/test/gdb.sh
else skipped=$((skipped + 1)); echo "SKIPPED gdb stops in a CUDA thread (apt-get install gdb)"; fi
if command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    one "the GPU trainer and its tests compile and link" make -s train_gpt2cu test_gpt2cu
    one "no hot kernel spills registers" make -s kernel-table
    one "the ladders of dev/cuda compile with nvcc" dev/test/nvcc_ladders.sh
else skipped=$((skipped + 1)); echo "SKIPPED nvcc compiles the GPU trainer (install the CUDA toolkit)"; fi
thread_sanitizer_runs() {
    echo 'int main(){}' | ${CXX:-g++} -x c++ -fsanitize=thread - -o build/tsan_test 2>/dev/null || return 1
    build/tsan_test 2>/dev/null || setarch "$(uname -m)" -R build/tsan_test 2>/dev/null
}
if thread_sanitizer_runs; then
    one "unit tests and kernels under ASan, UBSan and TSan" make -s test-sanitized
else
    skipped=$((skipped + 1)); echo "SKIPPED unit tests and kernels under ASan, UBSan and TSan: no ThreadSanitizer that runs here (apt-get install g++; sysctl vm.mmap_rnd_bits=28)"
fi
line="$passed passed, $failed failed"
[ "$skipped" -gt 0 ] && line="$line, $skipped skipped"
echo "$line"
[ "$failed" -eq 0 ]
