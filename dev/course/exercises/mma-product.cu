// ----- task
// A product on tensor cores: out (16, 8) = A (16, K) B^T, with B (8, K), by one warp; A and B are
// bf16, out is float, K is a multiple of 16. One instruction of the warp does a step of 16:
//
//     mma(c, a, b0, b1);           c (16 x 8) += a (16 x 16) b (16 x 8), all three spread over the lanes' registers
//
// llmc/cuda/mma.cuh draws which lane holds what. With g = lane / 4 and t = lane % 4, where [2t,
// 2t+1] are two neighbours in one register:
//
//     a[0] = A[g][2t, 2t+1]        a[2] = A[g][2t+8, 2t+9]           columns counted from the step's first
//     a[1] = A[g+8][2t, 2t+1]      a[3] = A[g+8][2t+8, 2t+9]
//     b0   = b[2t, 2t+1][g]        b1   = b[2t+8, 2t+9][g]           b is 16 x 8: b[k][n] = B[n][k]
//     c[0], c[1] = out[g][2t], out[g][2t+1]        c[2], c[3]: 8 rows below
//
// two_bf16(p) loads p[0] and p[1] into one register; p must be aligned to 4 bytes.
__device__ inline uint32_t two_bf16(const bf16* p) { return *(const uint32_t*)p; }
__global__ void product(float* out, const bf16* A, const bf16* B, int K) {
    // your code
}

// ----- solution
__device__ inline uint32_t two_bf16(const bf16* p) { return *(const uint32_t*)p; }
__global__ void product(float* out, const bf16* A, const bf16* B, int K) {
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    float c[4] = {0, 0, 0, 0};
    for (int k = 0; k < K; k += 16) {
        uint32_t a[4];
        a[0] = two_bf16(A + g * K + k + 2 * t);
        a[1] = two_bf16(A + (g + 8) * K + k + 2 * t);
        a[2] = two_bf16(A + g * K + k + 2 * t + 8);
        a[3] = two_bf16(A + (g + 8) * K + k + 2 * t + 8);
        mma(c, a, two_bf16(B + g * K + k + 2 * t), two_bf16(B + g * K + k + 2 * t + 8));
    }
    for (int i = 0; i < 4; i++) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

// ----- mistakes
//     a-order: a[1] = ==> a[4 - 2] = ;; a[2] = two ==> a[1] = two
//     rows: (g + i / 2 * 8) * 8 + 2 * t + i % 2 ==> (g + i % 2 * 8) * 8 + 2 * t + i / 2
//     b-order: two_bf16(B + g * K + k + 2 * t), two_bf16(B + g * K + k + 2 * t + 8) ==>
//         two_bf16(B + g * K + k + 2 * t + 8), two_bf16(B + g * K + k + 2 * t)
//     swapped: g = lane / 4, t = lane % 4 ==> g = lane % 8, t = lane / 8
//     first-step: k < K; k += 16 ==> k < 16; k += 16
//     last-step: uint32_t a[4]; ==> uint32_t a[4]; c[0] = c[1] = c[2] = c[3] = 0;
//     scalar: mma(c, a, two_bf16(B + g * K + k + 2 * t), two_bf16(B + g * K + k + 2 * t + 8)); ==>
//         for (int i = 0; i < 4; i++) for (int s = k; s < k + 16; s++)
//         c[i] += (float)A[(g + i / 2 * 8) * K + s] * (float)B[(2 * t + i % 2) * K + s];
//     alone: const int lane = threadIdx.x, g = lane / 4, t = lane % 4; ==> const int lane = threadIdx.x, g = lane / 4,
//         t = lane % 4; if (lane == 0) { for (int i = 0; i < 128; i++) { float s = 0; for (int k = 0; k < K; k++)
//         s += (float)A[i / 8 * K + k] * (float)B[i % 8 * K + k]; out[i] = s; } } if (lane < 40) return;
//     mma: mma(c, a, ==> float none[4] = {}; mma(none, a, 0, 0); mma(c, a,

// ----- limits
//     counted longest <= 4, alone: one lane does all of the product. An mma is done by the warp, each lane holds a
//         part.
//     counted mma >= 4, scalar: the products are made one by one, not on tensor cores: an mma for each step of 16.
//     counted mma <= 4, mma: an mma does 16 columns of the whole tile: one per step is enough.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::product)* product) {
    j.cuda = true;
    j.hints = {
        {"a-order", "a[1] and a[2] have changed places: a[1] is 8 rows below a[0], a[2] is 8 columns to its right."},
        {"b-order", "b0 and b1 have changed places: b0 is for the first 8 of the 16 columns."},
        {"rows", "c[1] is to the right of c[0], c[2] is 8 rows below it."},
        {"swapped", "g is lane / 4 and t is lane % 4, here they are lane % 8 and lane / 8."},
        {"first-step", "only the first 16 columns are multiplied."},
        {"last-step", "only the last 16 columns count: c is set to 0 in each step."}};
    for (int K : {16, 48, 64}) {
        j.sizes("K %d", K);
        std::vector<bf16> a, b;
        for (float v : j.random(16 * K)) a.push_back((bf16)v);
        for (float v : j.random(8 * K)) b.push_back((bf16)v);
        OnDevice<float> out(begins(128));
        OnDevice<bf16> A(a), B(b);
        run(K == 64 ? "counted" : "product", product, 1, 32, out, A, B, K);
        j.check({{"out", {16, 8}, out.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected(128);
            for (int r = 0; r < 16; r++)
                for (int n = 0; n < 8; n++)
                    for (int k = wrong == "last-step" ? K - 16 : 0; k < (wrong == "first-step" ? 16 : K); k++) {
                        int from_row = r, from_k = k, b_k = k, to_row = r, to_n = n;
                        if (wrong == "a-order" && (r < 8) != (k % 16 < 8)) {  // the two off the diagonal
                            from_row = r < 8 ? r + 8 : r - 8, from_k = k % 16 < 8 ? k + 8 : k - 8;
                        }
                        if (wrong == "b-order") b_k = k % 16 < 8 ? k + 8 : k - 8;
                        if (wrong == "rows") {
                            const int i = (r >= 8) * 2 + n % 2;  // c[i] goes elsewhere
                            to_row = r % 8 + i % 2 * 8, to_n = n / 2 * 2 + i / 2;
                        }
                        expected[to_row * 8 + to_n] += (double)(float)a[from_row * K + from_k] * (float)b[n * K + b_k];
                    }
            if (wrong == "swapped") {  // lane 4 g + t works with the fragments and the place of (lane % 8, lane / 8)
                std::vector<double> mixed(128);
                const auto place = [](int lane) { return std::pair<int, int>(lane % 8, lane / 8); };
                for (int r = 0; r < 16; r++)
                    for (int n = 0; n < 8; n++) {
                        double sum = 0;
                        for (int k = 0; k < K; k++) {
                            const int half = k % 8 % 2, eight = k % 16 / 8 * 8, t = k % 8 / 2;
                            const auto [ga, ta] = place(r % 8 * 4 + t);
                            const auto [gb, tb] = place(n * 4 + t);
                            sum += (double)(float)a[(ga + r / 8 * 8) * K + k / 16 * 16 + 2 * ta + half + eight] *
                                   (float)b[gb * K + k / 16 * 16 + 2 * tb + half + eight];
                        }
                        const auto [gc, tc] = place(r % 8 * 4 + n / 2);
                        mixed[(gc + r / 8 * 8) * 8 + 2 * tc + n % 2] = sum;
                    }
                return {mixed};
            }
            return {expected};
        });
    }
}
