// ----- task
// Puzzle: sums[r] = A[r,0] + ... + A[r,15] for A (16, 16) in bf16, by one mma of one warp: a
// product with a matrix b of ones has the sums of the rows in each of its 8 columns. The places of
// c are those of the puzzle fragment-places. With g = lane / 4 and t = lane % 4:
//
//     mma(c, a, b0, b1);                   c (16 x 8) += a (16 x 16) b (16 x 8)
//     a[0] = A[g][2t, 2t+1]     a[1] = A[g+8][2t, 2t+1]     a[2] = A[g][2t+8, 2t+9]     a[3] = A[g+8][2t+8, 2t+9]
//     pack_pair<bf16>(x, y)                two numbers in one register; b0 and b1 are such pairs
//
// two_bf16(p) loads p[0] and p[1] into one register.
__device__ inline uint32_t two_bf16(const bf16* p) { return *(const uint32_t*)p; }
__global__ void row_sums(float* sums, const bf16* A) {
    // your code
}

// ----- solution
__device__ inline uint32_t two_bf16(const bf16* p) { return *(const uint32_t*)p; }
__global__ void row_sums(float* sums, const bf16* A) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    const bf16 *row = A + g * 16 + 2 * t, *below = row + 8 * 16;
    const uint32_t a[4] = {two_bf16(row), two_bf16(below), two_bf16(row + 8), two_bf16(below + 8)};
    const uint32_t ones = pack_pair<bf16>(1, 1);
    float c[4] = {0, 0, 0, 0};
    mma(c, a, ones, ones);
    if (t == 0) sums[g] = c[0], sums[g + 8] = c[2];
}

// ----- mistakes
//     half: mma(c, a, ones, ones) ==> mma(c, a, ones, 0)
//     rows: sums[g + 8] = c[2] ==> sums[g + 8] = c[1]
//     one: pack_pair<bf16>(1, 1) ==> pack_pair<bf16>(1, 0)
//     scalar: mma(c, a, ones, ones) ==> for (int k = 0; k < 16; k++) c[0] += (float)A[g * 16 + k],
//         c[2] += (float)A[(g + 8) * 16 + k]
//     a-order: two_bf16(below), two_bf16(row + 8) ==> two_bf16(row + 8), two_bf16(below)
//     alone: if (t == 0) sums[g] = c[0], sums[g + 8] = c[2] ==> if (threadIdx.x == 0)
//         for (int r = 0; r < 16; r++) { c[0] = 0; for (int k = 0; k < 16; k++) c[0] += (float)A[r * 16 + k];
//         sums[r] = c[0]; }

// ----- limits
//     counted mma >= 1, scalar: the numbers are added one by one: one mma with a matrix of ones adds all of them.
//     counted mma <= 1, twice: one mma is enough.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::row_sums)* row_sums) {
    j.cuda = true;
    j.hints = {
        {"half", "the last 8 columns are missing: b1 is for them, and must be ones too."},
        {"rows", "c[1] is in the same row as c[0]: the sum of row g + 8 is c[2]."},
        {"one", "every other column is missing: both numbers of a pair must be 1."},
        {"a-order", "a[1] and a[2] have changed places: a[1] is 8 rows below a[0], a[2] is 8 columns to its right."}};
    for (int round = 0; round < 2; round++) {
        j.sizes("matrix %d", round + 1);
        std::vector<bf16> a;
        for (float v : j.random(256)) a.push_back((bf16)v);
        OnDevice<float> sums(begins(16));
        OnDevice<bf16> A(a);
        run(round ? "counted" : "row_sums", row_sums, 1, 32, sums, A);
        j.check({{"sums", {16}, sums.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected(16);
            for (int r = 0; r < 16; r++)
                for (int k = 0; k < (wrong == "half" ? 8 : 16); k += wrong == "one" ? 2 : 1) {
                    int row = wrong == "rows" ? r % 8 : r, column = k;
                    if (wrong == "a-order" && (r < 8) != (k < 8)) row = (r + 8) % 16, column = (k + 8) % 16;
                    expected[r] += (float)a[row * 16 + column];
                }
            return {expected};
        });
    }
}
