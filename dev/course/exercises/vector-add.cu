// ----- task
// A first kernel: out[i] = a[i] + b[i] for i from 0 to n - 1. n may be larger than the number of
// threads, so each thread does several elements: thread k of the whole grid does k, k + threads,
// k + 2 threads, ... (a grid-stride loop). Then neighbouring threads have neighbouring elements at
// every step, and a warp's accesses are whole sectors of 32 bytes.
//
// blockIdx.x is the number of the block, gridDim.x how many there are, threadIdx.x the number of
// the thread in its block, blockDim.x how many these are.
__global__ void vector_add(float* out, const float* a, const float* b, int n) {
    // your code
}

// ----- solution
__global__ void vector_add(float* out, const float* a, const float* b, int n) {
    const int threads = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) out[i] = a[i] + b[i];
}

// ----- mistakes
//     once: i < n; i += threads ==> i < n; i = n
//     bounds: i < n; ==> i <= n;
//     block: blockIdx.x * blockDim.x + threadIdx.x ==> threadIdx.x
//     repeated: i += threads ==> i += blockDim.x
//     pieces: int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) ==>
//             int k = blockIdx.x * blockDim.x + threadIdx.x, i = k * ((n + threads - 1) / threads);
//             i < n && i < (k + 1) * ((n + threads - 1) / threads); i++)
//     alone: int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) ==>
//             int i = 0; i < n && blockIdx.x + threadIdx.x == 0; i++)
//     idle: for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) out[i] = a[i] + b[i] ==>
//         if (threadIdx.x % 4 == 0) for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += threads)
//         for (int i = k; i < n && i < k + 4; i++) out[i] = a[i] + b[i]

// ----- limits
//     counted reads <= 1.01, repeated: elements are computed by more than one thread: the stride is the number of
//         threads
//         of the whole grid.
//     counted load-sectors <= 4.01, pieces: the threads of a warp read from far apart. Neighbouring threads must
//         have
//         neighbouring elements, so each thread's own elements are a whole grid apart.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::vector_add)* vector_add) {
    j.cuda = true;
    j.hints = {{"once", "each thread does one element alone: those from the number of threads on are left out."},
               {"block", "all blocks do the same elements: the number of the block is missing in the first index."}};
    struct Case {
        int n, blocks, threads;
    };
    for (const Case& c : {Case{1, 1, 32}, {33, 1, 32}, {1000, 3, 64}, {97, 7, 32}, {4096, 4, 256}}) {
        j.sizes("n %d, %d blocks of %d threads", c.n, c.blocks, c.threads);
        const std::vector<float> a = j.random(c.n), b = j.random(c.n);
        OnDevice<float> out(begins(c.n)), da(a), db(b);
        run(c.n == 4096 ? "counted" : "vector_add", vector_add, c.blocks, c.threads, out, da, db, c.n);
        j.check({{"out", {c.n}, out.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> sum = doubles(begins(c.n));
            const int threads = c.blocks * c.threads;
            for (int i = 0; i < c.n; i++) {
                if (wrong == "once" && i >= threads) continue;
                if (wrong == "block" && i % threads >= c.threads) continue;
                sum[i] = (double)a[i] + b[i];
            }
            return {sum};
        });
    }
}
