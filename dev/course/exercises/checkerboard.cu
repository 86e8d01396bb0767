// ----- task
// Puzzle: out[r,c] = x[r,c], but negated where r + c is odd. x and out (rows, cols) are stored row
// by row. Blocks are of 16 x 4 threads: threadIdx.x and blockIdx.x count columns, threadIdx.y and
// blockIdx.y rows. The last blocks reach beyond the matrix in both directions.
__global__ void checkerboard(float* out, const float* x, int rows, int cols) {
    // your code
}

// ----- solution
__global__ void checkerboard(float* out, const float* x, int rows, int cols) {
    const int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < rows && c < cols) out[r * cols + c] = (r + c) % 2 == 1 ? -x[r * cols + c] : x[r * cols + c];
}

// ----- mistakes
//     bounds: r < rows && c < cols ==> c < cols
//     bounds: r < rows && c < cols ==> r < rows
//     stripes: (r + c) % 2 ==> r % 2
//     even: % 2 == 1 ==> % 2 == 0
//     flat: (r + c) % 2 ==> (r * cols + c) % 2
//     alone: if (r < rows && c < cols) out ==> if (r == 0) for (int r = 0; r < rows; r++) if (c < cols) out

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::checkerboard)* checkerboard) {
    j.cuda = true;
    j.hints = {
        {"stripes", "whole rows are negated: the sum of row and column decides."},
        {"even", "it is the other way round: elements with an odd r + c are negated."},
        {"flat", "the number of the element in memory decides; with an even number of columns that is c alone."}};
    for (auto [rows, cols] : {std::pair<int, int>{1, 1}, {3, 10}, {6, 33}, {16, 40}}) {
        j.sizes("rows %d, cols %d", rows, cols);
        const std::vector<float> x = j.random(rows * cols);
        OnDevice<float> out(begins(rows * cols)), from(x);
        run(rows == 16 ? "counted" : "checkerboard", checkerboard, dim3((cols + 15) / 16, (rows + 3) / 4), dim3(16, 4),
            out, from, rows, cols);
        j.check({{"out", {rows, cols}, out.fetch()}}, [&, rows = rows, cols = cols](const Key& wrong) -> Arrays {
            std::vector<double> expected;
            for (int i = 0; i < rows * cols; i++) {
                const int r = i / cols, c = i % cols, number = wrong == "stripes" ? r : wrong == "flat" ? i : r + c;
                expected.push_back((number % 2 == 1) != (wrong == "even") ? -x[i] : x[i]);
            }
            return {expected};
        });
    }
}
