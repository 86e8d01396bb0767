// ----- task
// Puzzle: out[i] = x[i-1] + x[i] + x[i+1], where what lies outside of 0 to n - 1 counts as 0. Three
// threads need each x[i]; it shall be loaded once. So a block of 64 threads first loads what it
// needs into shared memory, 66 numbers, of which the first and the last belong to its neighbours.
constexpr int THREADS = 64;
__global__ void neighbour_sums(float* out, const float* x, int n) {
    // your code
}

// ----- solution
constexpr int THREADS = 64;
__global__ void neighbour_sums(float* out, const float* x, int n) {
    __shared__ float near[THREADS + 2];  // near[k] is x[first + k - 1]
    const int first = blockIdx.x * THREADS, i = first + threadIdx.x;
    for (int k = threadIdx.x; k < THREADS + 2; k += THREADS) {
        const int from = first + k - 1;
        near[k] = from >= 0 && from < n ? x[from] : 0.0f;
    }
    __syncthreads();
    const int k = threadIdx.x + 1;
    if (i < n) out[i] = near[k - 1] + near[k] + near[k + 1];
}

// ----- mistakes
//     uninitialised: __syncthreads(); ==> ;
//     bounds: from >= 0 && from < n ==> from >= 0
//     bounds: near[THREADS + 2] ==> near[THREADS]
//     halo: k < THREADS + 2; k += THREADS ==> k < THREADS + 2; k += THREADS ;; from >= 0 && from < n ==>
//         from >= first && from < first + THREADS && from < n
//     reads: near[k - 1] + near[k] + near[k + 1] ==> (i > 0 ? x[i - 1] : 0) + x[i] + (i + 1 < n ? x[i + 1] : 0)
//     left: near[k - 1] + near[k] ==> near[k] + near[k]
//     alone: int k = threadIdx.x; k < THREADS + 2; k += THREADS ==> int k = 0; k < THREADS + 2 && threadIdx.x == 0; k++

// ----- limits
//     counted reads <= 1.1, reads: elements are loaded three times: read the neighbours from shared memory.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::neighbour_sums)* neighbour_sums) {
    j.cuda = true;
    j.hints = {
        {"halo", "elements at the border of a block lack their neighbour in the next block: it must be loaded too."},
        {"left", "x[i] is added twice, and x[i-1] is not part of the sum."}};
    for (int n : {1, 64, 100, 256}) {
        j.sizes("n %d", n);
        const std::vector<float> x = j.random(n);
        OnDevice<float> out(begins(n)), from(x);
        run(n == 256 ? "counted" : "neighbour_sums", neighbour_sums, (n + 63) / 64, 64, out, from, n);
        j.check({{"out", {n}, out.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected(n);
            for (int i = 0; i < n; i++)
                for (int k = i - 1; k <= i + 1; k++) {
                    const int from = wrong == "left" && k < i ? i : k;
                    if (from >= 0 && from < n && (wrong != "halo" || from / 64 == i / 64)) expected[i] += x[from];
                }
            return {expected};
        });
    }
}
