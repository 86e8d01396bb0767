#!/bin/sh
# Unit tests, kernels of the simulator and the ladders of dev/cuda under the sanitizers, in build-address and build-thread. AddressSanitizer and UndefinedBehaviorSanitizer
# for everything; ThreadSanitizer for the CPU's threads, and for the kernels of the simulator: to it each CUDA thread is a thread. And both must see
# the bugs planted for them.
set -e
make -s SANITIZE=address build-address/test_kernels build-address/test_softmax build-address/test_threads build-address/test_host build-address/test_model build-address/test_model_bf16 build-address/test_data_files build-address/BF16/test_gpt2sim build-address/FP32/test_gpt2sim build-address/cusim_seeded_bugs
make -s SANITIZE=thread build-thread/test_kernels build-thread/test_softmax build-thread/test_threads build-thread/BF16/test_gpt2sim build-thread/FP32/test_gpt2sim build-thread/cusim_seeded_bugs
ladders=$(for source in dev/cuda/*.cu; do basename "$source" .cu; done)
make -s SANITIZE=address $(printf 'build-address/cuda/%s ' $ladders)
make -s SANITIZE=thread $(printf 'build-thread/cuda/%s ' $ladders)
export ASAN_OPTIONS=detect_leaks=0
# Some kernels place memory where older ThreadSanitizers do not expect it; without random addresses all is well.
fixed="setarch $(uname -m) -R"
$fixed true 2>/dev/null || fixed=
for test in kernels softmax threads host model model_bf16 data_files; do build-address/test_$test; done
# Children of a fork start threads of their own there, which it must be told to allow.
for test in kernels softmax threads; do TSAN_OPTIONS=die_after_fork=0 $fixed build-thread/test_$test; done
for precision in BF16 FP32; do
    build-address/$precision/test_gpt2sim kernels
    $fixed build-thread/$precision/test_gpt2sim quick
done
for ladder in $ladders; do
    build-address/cuda/$ladder --check
    $fixed build-thread/cuda/$ladder --check
done
for sanitizer in address thread; do
    for name in good early_exit async_copy stream_wait; do $fixed build-$sanitizer/cusim_seeded_bugs $name; done
done
# sanitizer, bug, what the report names
must_find() {
    output=$($fixed build-$1/cusim_seeded_bugs $2 2>&1) && { echo "$1 sanitizer: $2 was not found"; exit 1; }
    case "$output" in *"$3"*) ;; *) echo "$1 sanitizer: $2: no '$3' in: $output"; exit 1 ;; esac
}
must_find address off_by_one "off_by_one_kernel"
must_find address read_off_by_one "read_off_by_one_kernel"
must_find address shared_off_by_one "out of bounds"
must_find address stack_overflow "stack-overflow"
must_find thread missing_barrier "data race"
must_find thread missing_barrier_hidden "data race"
must_find thread block_race "block_race_kernel"
must_find thread block_order "block_order_kernel"
