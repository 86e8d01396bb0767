// ----- task
// Puzzle: out[i] = x[n - 1 - i] for i from 0 to n - 1, one thread for each i. There are more
// threads than elements: blockDim.x in each of gridDim.x blocks.
__global__ void mirror(float* out, const float* x, int n) {
    // your code
}

// ----- solution
__global__ void mirror(float* out, const float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[n - 1 - i];
}

// ----- mistakes
//     bounds: if (i < n) ==>
//     bounds: x[n - 1 - i] ==> x[n - i]
//     block: blockIdx.x * blockDim.x + threadIdx.x ==> threadIdx.x
//     straight: x[n - 1 - i] ==> x[i]
//     alone: if (i < n) out[i] = x[n - 1 - i] ==> if (i == 0) for (int k = 0; k < n; k++) out[k] = x[n - 1 - k]

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::mirror)* mirror) {
    j.cuda = true;
    j.hints = {{"block", "the number of the block is missing in i: all blocks do the same elements."},
               {"straight", "the elements are in their old order: element i comes from n - 1 - i."}};
    for (auto [n, threads] : {std::pair<int, int>{1, 32}, {50, 32}, {250, 64}}) {
        j.sizes("n %d, blocks of %d threads", n, threads);
        const std::vector<float> x = j.random(n);
        OnDevice<float> out(begins(n)), from(x);
        run(n == 250 ? "counted" : "mirror", mirror, (n + threads - 1) / threads, threads, out, from, n);
        j.check({{"out", {n}, out.fetch()}}, [&, n = n, threads = threads](const Key& wrong) -> Arrays {
            std::vector<double> expected = doubles(begins(n));
            for (int i = 0; i < (wrong == "block" ? std::min(n, threads) : n); i++)
                expected[i] = x[wrong == "straight" ? i : n - 1 - i];
            return {expected};
        });
    }
}
