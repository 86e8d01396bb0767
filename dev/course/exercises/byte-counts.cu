// ----- task
// Puzzle: counts[v] += how often v occurs among x[0] ... x[n-1], for v from 0 to 15. Many threads
// meet the same v, so the addition must be one step that nobody comes into: atomicAdd(&number, 1).
// Atomics in device memory are slow. So each block counts in 16 numbers of shared memory, and adds
// them to counts at the end. Thread k of the grid has the elements k, k + threads, k + 2 threads,
// ...
__global__ void byte_counts(int* counts, const int* x, int n) {
    // your code
}

// ----- solution
__global__ void byte_counts(int* counts, const int* x, int n) {
    __shared__ int here[16];
    if (threadIdx.x < 16) here[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&here[x[i]], 1);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], here[threadIdx.x]);
}

// ----- mistakes
//     lost: atomicAdd(&here[x[i]], 1) ==> here[x[i]] += 1
//     global: atomicAdd(&here[x[i]], 1) ==> atomicAdd(&counts[x[i]], 1)
//     zero: if (threadIdx.x < 16) here[threadIdx.x] = 0; ==> ;
//     race: = 0;\n    __syncthreads(); ==> = 0;
//     block: int i = blockIdx.x * blockDim.x + threadIdx.x; ==> int i = threadIdx.x;
//     once: i < n; i += gridDim.x * blockDim.x ==> i < n; i = n
//     alone: int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x ==> int i = blockIdx.x;
//         i < n && threadIdx.x == 0; i += gridDim.x

// ----- limits
//     counted global-atomics <= 4, global: elements are counted in device memory: 16 atomics for each block are enough.
//     counted shared-atomics >= 32, lost: here[v] += 1 is a load, an addition and a store. Another thread may come
//         between them, and one of the two is lost: atomicAdd.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::byte_counts)* byte_counts) {
    j.cuda = true;
    j.hints = {{"zero", "shared memory does not begin as 0: it must be set, and all threads must wait for it."},
               {"block", "each block counts all elements from its own threads on: the number of the block is missing."},
               {"once", "each thread counts one element alone."}};
    for (auto [n, blocks] : {std::pair<int, int>{20, 1}, {500, 3}, {1024, 4}}) {
        j.sizes("n %d, %d blocks of 64 threads", n, blocks);
        std::vector<int> x, first(16);
        for (int i = 0; i < n; i++) x.push_back((int)j.random_below(16));
        for (int v = 0; v < 16; v++) first[v] = 3 * v;
        OnDevice<int> counts(first), from(x);
        run(n == 1024 ? "counted" : "byte_counts", byte_counts, blocks, 64, counts, from, n);
        j.check({{"counts", {16}, counts.fetch(), {first.begin(), first.end()}}},
                [&, n = n, blocks = blocks](const Key& wrong) -> Arrays {
                    std::vector<double> expected(first.begin(), first.end());
                    for (int i = 0; i < n; i++) {
                        // without the block's number its threads begin at 0, and go on by all
                        // threads of the grid
                        if (wrong == "block" && i % (64 * blocks) >= 64 || wrong == "once" && i >= 64 * blocks)
                            continue;
                        expected[x[i]] += wrong == "block" ? blocks : 1;
                    }
                    for (double& v : expected) v -= wrong == "zero" ? blocks : 0;  // it begins as -1 here
                    return {expected};
                });
    }
}
