// ----- task
// Puzzle: out[i] = x[i] - x[i - 1], but out[i] = x[i] for the first of every 32 elements. n is a
// multiple of 32; thread i has element i, and loads nothing else. What the lane before has loaded
// it learns by a shuffle, to which all lanes of a warp must come:
//
//     __shfl_up_sync(0xFFFFFFFFu, value, 1)         the value of the lane before; lane 0 gets its own
__global__ void lane_before(float* out, const float* x, int n) {
    // your code
}

// ----- solution
__global__ void lane_before(float* out, const float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    if (i >= n) return;
    const float value = x[i];
    const float before = __shfl_up_sync(0xFFFFFFFFu, value, 1);
    out[i] = lane == 0 ? value : value - before;
}

// ----- mistakes
//     twice: __shfl_up_sync(0xFFFFFFFFu, value, 1) ==> lane == 0 ? 0.0f : x[i - 1]
//     down: __shfl_up_sync ==> __shfl_down_sync
//     first: lane == 0 ? value : value - before ==> value - before
//     alone: const float before = ==> float before = 0; if (lane > 0) before =
//     sign: value - before ==> before - value
//     memory: const float before = ==> __shared__ float all[64]; all[threadIdx.x] = value; __syncthreads(); const float
//         before = lane > 0 ? all[threadIdx.x - 1] :

// ----- limits
//     counted loads <= 8, twice: elements are loaded a second time: the lane before has its value in a register.
//     counted shared-requests <= 0, memory: no shared memory is needed: a shuffle hands a register to the next lane.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::lane_before)* lane_before) {
    j.cuda = true;
    j.hints = {
        {"down", "this is the difference to the lane after: __shfl_up_sync brings a value up, from the lane before."},
        {"first", "lane 0 gets its own value from the shuffle, and the difference is 0: its result is x[i]."},
        {"alone", "lane 0 does not come to the shuffle, so lane 1 cannot get its value. All lanes must come."},
        {"sign", "the sign is wrong: x[i] - x[i - 1]."}};
    for (int n : {32, 96, 256}) {
        j.sizes("n %d", n);
        const std::vector<float> x = j.random(n);
        OnDevice<float> out(begins(n)), from(x);
        run(n == 256 ? "counted" : "lane_before", lane_before, (n + 63) / 64, 64, out, from, n);
        j.check({{"out", {n}, out.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected;
            for (int i = 0; i < n; i++) {
                const int lane = i % 32, other = wrong == "down" ? (lane < 31 ? i + 1 : i) : i - 1;
                const double difference = lane == 0 ? x[i] : (double)x[i] - x[other];
                expected.push_back(wrong == "first" && lane == 0   ? 0
                                   : wrong == "alone" && lane == 1 ? 0
                                   : wrong == "sign" && lane > 0   ? -difference
                                                                   : difference);
            }
            return {expected};
        });
    }
}
