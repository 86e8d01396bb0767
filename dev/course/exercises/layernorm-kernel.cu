// ----- task
// Layer normalisation, one warp per row. For each row x of C channels, with n = (x - mean) s:
//
//     mean = (sum over c of x[c]) / C,   var = (sum over c of (x[c] - mean)^2) / C,   s = 1 / sqrt(var + 1e-5)
//     out[c] = (x[c] - mean) s gain[c] + bias[c]
//
// out (rows, C), inp (rows, C), gain (C), bias (C). A block has 4 warps; warp w of block b has row
// 4 b + w. rsqrtf(x) is 1 / sqrt(x).
__global__ void layernorm(float* out, const float* inp, const float* gain, const float* bias, int rows, int C) {
    // your code
}

// ----- solution
__device__ float sum_over_warp(float x) {
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    return x;
}
__global__ void layernorm(float* out, const float* inp, const float* gain, const float* bias, int rows, int C) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* x = inp + row * C;
    float sum = 0, squares = 0;
    for (int c = lane; c < C; c += 32) sum += x[c];
    const float mean = sum_over_warp(sum) / C;
    for (int c = lane; c < C; c += 32) squares += (x[c] - mean) * (x[c] - mean);
    const float s = rsqrtf(sum_over_warp(squares) / C + 1e-5f);
    for (int c = lane; c < C; c += 32) out[row * C + c] = (x[c] - mean) * s * gain[c] + bias[c];
}

// ----- mistakes
//     partial-mean: sum_over_warp(sum) / C ==> sum / C
//     biased: sum_over_warp(squares) / C ==> sum_over_warp(squares) / (C - 1)
//     eps: / C + 1e-5f) ==> / C)
//     bounds: if (row >= rows) return; ==> ;
//     pieces: int c = lane; c < C; c += 32 ==> int c = lane * ((C + 31) / 32); c < C && c < (lane + 1) * ((C + 31)
//         / 32); c++
//     gain: gain[c] ==> gain[lane % C]
//     one-pass: squares += (x[c] - mean) * (x[c] - mean) ==> squares += x[c] * x[c] ;;
//         rsqrtf(sum_over_warp(squares) / C + 1e-5f) ==> rsqrtf(sum_over_warp(squares) / C - mean * mean + 1e-5f)
//     alone: int c = lane; c < C; c += 32) sum ==> int c = 0; c < C && lane == 0; c++) sum ;; int c = lane; c < C; c
//         += 32)
//         squares ==> int c = 0; c < C && lane == 0; c++) squares ;; int c = lane; c < C; c += 32) out ==>
//         int c = 0; c < C && lane == 0; c++) out
//     bias: + bias[c] ==> + bias[lane % C]

// ----- limits
//     counted load-sectors <= 4.01, pieces: the lanes of a warp read from far apart: lane i must read channels i,
//         i + 32,
//         ...
//     counted shared-requests <= 0, shared: one warp per row needs no shared memory: shuffles do.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::layernorm)* layernorm) {
    j.cuda = true;
    j.hints = {{"partial-mean", "each lane takes its own sum for that of the row: add over the warp before dividing."},
               {"biased", "the variance is divided by C - 1. Layer normalisation divides by C."},
               {"eps", "1e-5 is missing in sqrt(var + 1e-5): rows of small variance show it."},
               {"gain", "the gain of channel c is gain[c], also where the loop has gone on by 32."},
               {"bias", "the bias of channel c is bias[c], also where the loop has gone on by 32."},
               {"one-pass",
                "the mean of the squares minus the square of the mean: both are large where the mean is, and their "
                "difference is lost to rounding. Sum up (x - mean)^2 once the mean is known."}};
    struct Case {
        int rows, C;
        double scale;
        float add;
    };
    for (const Case& c :
         {Case{4, 32, 1, 0}, {1, 5, 1, 0}, {7, 48, 0.003, 0}, {3, 100, 1, 0}, {8, 256, 2, 0}, {2, 64, 0.5, 30}}) {
        j.sizes("rows %d, C %d, x %g +- %g", c.rows, c.C, c.add, c.scale);
        std::vector<float> x = j.random(c.rows * c.C, c.scale);
        for (float& v : x) v += c.add;
        const std::vector<float> g = j.random(c.C), b = j.random(c.C);
        OnDevice<float> out(begins(c.rows * c.C)), inp(x), gain(g), bias(b);
        run(c.rows == 8 ? "counted" : "layernorm", layernorm, (c.rows + 3) / 4, 128, out, inp, gain, bias, c.rows, c.C);
        j.check({{"out", {c.rows, c.C}, out.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected(c.rows * c.C);
            for (int r = 0; r < c.rows; r++) {
                const float* row = &x[r * c.C];
                std::vector<double> mean(32);  // of each lane
                for (int i = 0; i < c.C; i++)
                    for (int lane = 0; lane < 32; lane++)
                        if (wrong != "partial-mean" || i % 32 == lane) mean[lane] += (double)row[i] / c.C;
                double var = 0;
                for (int i = 0; i < c.C; i++) var += std::pow(row[i] - mean[i % 32], 2);
                const double s = 1 / std::sqrt(var / (wrong == "biased" ? c.C - 1 : c.C) + (wrong == "eps" ? 0 : 1e-5));
                for (int i = 0; i < c.C; i++)
                    expected[r * c.C + i] = (row[i] - mean[i % 32]) * s * g[wrong == "gain" ? i % 32 % c.C : i] +
                                            b[wrong == "bias" ? i % 32 % c.C : i];
            }
            if (wrong == "one-pass" && c.add > 0) std::fill(expected.begin(), expected.end(), ANY);
            return {expected};
        });
    }
}
