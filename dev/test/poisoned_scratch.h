// Scratch memory for tests of the CPU's kernels, which may only read of it what they have written.
#pragma once
#include <cstring>
#include "llmc/cpu/scratch.h"

// Gives the kernels scratch memory for threads, sequences of T tokens and heads of HS channels, in
// either precision, in place of what they had. All bits are set: NaN in fp32 and in bf16.
inline void poisoned_scratch(int threads, int64_t T, int64_t HS, int64_t transposed_elems) {
    if (device.scratch) free_scratch();
    device.threads = threads;
    device.scratch_elems = std::max(thread_scratch_elems<float>(T, HS), thread_scratch_elems<bf16>(T, HS));
    device.transposed_elems = transposed_elems;
    allocate_scratch();
    memset(device.transposed, 0xFF, device.transposed_elems * sizeof(bf16));
    memset(device.scratch, 0xFF, threads * device.scratch_elems * sizeof(float));
}
