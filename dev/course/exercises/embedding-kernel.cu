// ----- task
// The gradient of the token embedding: the row of each token gets the sum of the gradients of all
// positions that hold it.
//
//     dtable[v,c] += sum of dout[r,c] over all r with tokens[r] = v
//
// dtable (V, C), dout (rows, C), tokens (rows). If each position added to the row of its token, two
// threads could add to one number at the same time, and one of the sums would be lost. atomicAdd
// would be right, but the order of its additions, and so the rounding, would differ from run to
// run. Instead each number of dtable belongs to one thread, which looks for its positions in order:
// block v has token v, and its threads the channels; blockDim.x may be less than C. Same bits in
// every run.
__global__ void embedding_backward(float* dtable, const float* dout, const int* tokens, int rows, int C) {
    // your code
}

// ----- solution
__global__ void embedding_backward(float* dtable, const float* dout, const int* tokens, int rows, int C) {
    const int v = blockIdx.x;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        float sum = 0;
        for (int r = 0; r < rows; r++)
            if (tokens[r] == v) sum += dout[r * C + c];
        dtable[v * C + c] += sum;
    }
}

// ----- mistakes
//     overwritten: dtable[v * C + c] += sum ==> dtable[v * C + c] = sum
//     last-use: sum += dout ==> sum = dout
//     order: const int v = blockIdx.x; ==> const int V = gridDim.x; ;; float sum = 0; ==> ;; for (int r = 0; r <
//         rows; r++) ==>
//         for (int r = blockIdx.x; r < rows; r += V) ;; if (tokens[r] == v) sum += dout[r * C + c]; ==>
//         dtable[tokens[r] * C + c] += dout[r * C + c]; ;; dtable[v * C + c] += sum; ==> ;
//     channels: int c = threadIdx.x; c < C; c += blockDim.x ==> int c = threadIdx.x; c < C; c = C
//     bounds: c < C; ==> c < C + 32;
//     strided: dout[r * C + c] ==> dout[c * rows + r]
//     order: const int v = blockIdx.x; ==> const int V = gridDim.x; ;; float sum = 0; ==> ;; for (int r = 0; r <
//         rows; r++) ==>
//         for (int r = blockIdx.x; r < rows; r += V) ;; if (tokens[r] == v) sum += dout[r * C + c]; ==>
//         atomicAdd(&dtable[tokens[r] * C + c], dout[r * C + c]); ;; dtable[v * C + c] += sum; ==> ;
//     atomics: dtable[v * C + c] += sum ==> atomicAdd(&dtable[v * C + c], sum)
//     alone: int c = threadIdx.x; c < C; c += blockDim.x ==> int c = 0; c < C && threadIdx.x == 0; c++

// ----- limits
//     counted load-sectors <= 4.01, sectors: the threads of a warp must read neighbouring channels of one row of
//         dout.
//     counted atomics <= 0, atomics: no atomics: each number of dtable belongs to one thread.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::embedding_backward)* embedding_backward) {
    j.cuda = true;
    j.hints = {{"last-use", "a token that occurs more than once keeps the gradient of one of its uses alone."},
               {"channels", "channels from blockDim.x on are left out: each thread does c, c + blockDim.x, ..."},
               {"strided", "dout is read as if it were (C, rows): element (r, c) is dout[r * C + c]."}};
    struct Case {
        int rows, C, V, threads;
    };
    for (const Case& c : {Case{1, 32, 3, 32}, {5, 7, 4, 32}, {100, 70, 3, 32}, {64, 33, 10, 64}, {128, 64, 8, 64}}) {
        j.sizes("rows %d, C %d, V %d, %d threads", c.rows, c.C, c.V, c.threads);
        const std::vector<float> d = j.random(c.rows * c.C);
        std::vector<int> ids;
        for (int r = 0; r < c.rows; r++) ids.push_back((int)j.random_below(c.V));
        OnDevice<float> dtable(begins(c.V * c.C)), dout(d);
        OnDevice<int> tokens(ids);
        run(c.rows == 128 ? "counted" : "embedding_backward", embedding_backward, c.V, c.threads, dtable, dout, tokens,
            c.rows, c.C);
        j.check({{"dtable", {c.V, c.C}, dtable.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> sums(c.V * c.C);
            for (int r = 0; r < c.rows; r++)
                for (int i = 0; i < c.C; i++) {
                    double& sum = sums[ids[r] * c.C + i];
                    if (wrong == "channels" && i >= c.threads) continue;
                    sum = (wrong == "last-use" ? 0 : sum) + d[wrong == "strided" ? i * c.rows + r : r * c.C + i];
                }
            return added_to_begins({sums});
        });
    }
}
