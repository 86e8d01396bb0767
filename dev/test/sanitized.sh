#!/bin/sh
# sanitized.sh address|thread: unit tests, kernels of the simulator and the ladders of dev/cuda under a sanitizer, in
# build-address or build-thread. AddressSanitizer, with UndefinedBehaviorSanitizer, tests all of them. ThreadSanitizer
# tests the CPU's threads and the kernels of the simulator, where each CUDA thread is a thread to it; those of the FP32
# build, whose barriers are the same, run in random order elsewhere. Both must see the bugs planted for them.
[ "${1-}" != --help ] || { sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$0"; exit; }
set -e
sanitizer=$1 build=build-$1
ladders=$(for source in dev/cuda/*.cu; do basename "$source" .cu; done)
# Some Linux kernels place memory where older ThreadSanitizers do not expect it; fixed addresses avoid that.
fixed="setarch $(uname -m) -R"
$fixed true 2>/dev/null || fixed=
export ASAN_OPTIONS=detect_leaks=0
export TSAN_OPTIONS=die_after_fork=0  # children of a fork start threads of their own there
case $sanitizer in
    address)
        tests="kernels softmax documents threads host model data_files" sizes=medium
        precisions="BF16 FP32" kernels=kernels ;;
    thread)
        tests="kernels softmax threads" sizes=small
        precisions=BF16 kernels=quick
        echo 'int main(){}' | ${CXX:-g++} -x c++ -fsanitize=thread - -o build/tsan_test 2>/dev/null &&
            $fixed build/tsan_test 2>/dev/null || {
            echo "SKIPPED the thread sanitizer does not run here (apt-get install g++; sysctl vm.mmap_rnd_bits=28)"
            exit 77
        } ;;
    *) echo "usage: sanitized.sh address|thread"; exit 2 ;;
esac
make -s SANITIZE="$sanitizer" $(printf "$build/test_%s " $tests) $(printf "$build/cuda/%s " $ladders) \
    $(printf "$build/%s/test_gpt2sim " $precisions) $build/cusim_seeded_bugs $build/cusim_hopper_bugs

for test in $tests; do
    some=
    [ $test != kernels ] || some=$sizes
    $fixed $build/test_$test $some
done
for precision in $precisions; do $fixed $build/$precision/test_gpt2sim $kernels; done
for ladder in $ladders; do
    shape=
    [ $sanitizer-$ladder != thread-attention_forward ] || shape="--shape 1x130x96x3"  # all shapes take minutes
    $fixed $build/cuda/$ladder --check $shape
done
for name in good early_exit async_copy stream_wait; do $fixed $build/cusim_seeded_bugs $name; done
$fixed $build/cusim_hopper_bugs good
must_find() {  # bug, what the report names, the program that has it
    output=$($fixed $build/${3-cusim_seeded_bugs} $1 2>&1) && { echo "$sanitizer sanitizer: $1 was not found"; exit 1; }
    case "$output" in *"$2"*) ;; *) echo "$sanitizer sanitizer: $1: no '$2' in: $output"; exit 1 ;; esac
}
if [ "$sanitizer" = address ]; then
    must_find off_by_one "off_by_one_kernel"
    must_find read_off_by_one "read_off_by_one_kernel"
    must_find shared_off_by_one "out of bounds"
    must_find stack_overflow "stack-overflow"
else
    must_find missing_barrier "data race"
    must_find missing_barrier_hidden "data race"
    must_find block_race "block_race_kernel"
    must_find block_order "block_order_kernel"
    must_find early_release "data race" cusim_hopper_bugs
fi
