// ----- task
// An adapter becomes part of the matrix that it stands beside, so that the model is as fast as
// before. With A (R, C), B (R, OC) and W (OC, C), all row by row, what was computed as
//
//     out = x W^T + scale x A^T B
//
// is then x W^T with another W, which is written in place. x may be anything.
void merge_adapter(float* W, const float* A, const float* B, float scale, int64_t C, int64_t OC, int64_t R) {
    // your code
}

// ----- solution
void merge_adapter(float* W, const float* A, const float* B, float scale, int64_t C, int64_t OC, int64_t R) {
    for (int64_t o = 0; o < OC; o++)
        for (int64_t i = 0; i < R; i++)
            for (int64_t c = 0; c < C; c++) W[o * C + c] += scale * B[i * OC + o] * A[i * C + c];
}

// ----- mistakes
//     scale: scale * B[i * OC + o] ==> B[i * OC + o]
//     replaced: W[o * C + c] += ==> W[o * C + c] = (i ? W[o * C + c] : 0) +
//     transposed: W[o * C + c] += ==> W[(c * OC + o) % (C * OC)] +=
//     one: for (int64_t i = 0; i < R; i++) ==> for (int64_t i = 0; i < 1; i++)
//     layout: B[i * OC + o] ==> B[o * R + i]

// ----- judge
#include "dev/course/exercises/judge.h"
void judge(Judge& j, decltype(task::merge_adapter)* merge_adapter) {
    j.hints = {{"scale", "the factor scale is left out."},
               {"replaced", "the old W is lost: the adapter is added to it."},
               {"transposed", "what is added is transposed: row o of W belongs to output o, as B^T A has it."},
               {"one", "only the first of the R directions is added."},
               {"layout", "B is read as (OC, R); it is (R, OC): element (i, o) is B[i * OC + o]."}};
    struct Case {
        int64_t C, OC, R;
    };
    for (const Case& c : {Case{1, 1, 1}, {3, 5, 1}, {4, 4, 3}, {17, 9, 2}}) {
        const auto [C, OC, R] = c;
        j.sizes("C %d, OC %d, R %d", (int)C, (int)OC, (int)R);
        const std::vector<float> before = j.random(OC * C), A = j.random(R * C), B = j.random(R * OC);
        std::vector<float> W = before;
        const float scale = 0.75f;
        merge_adapter(W.data(), A.data(), B.data(), scale, C, OC, R);
        j.check({{"W", {OC, C}, W, before}}, [&, C = C, OC = OC, R = R](const Key& wrong) -> Arrays {
            std::vector<double> merged = doubles(before);
            if (wrong == "replaced") merged.assign(OC * C, 0);
            for (int64_t o = 0; o < OC; o++)
                for (int64_t i = 0; i < (wrong == "one" ? 1 : R); i++)
                    for (int64_t k = 0; k < C; k++)
                        merged[wrong == "transposed" ? (k * OC + o) % (C * OC) : o * C + k] +=
                            (wrong == "scale" ? 1.0 : scale) * B[wrong == "layout" ? o * R + i : i * OC + o] *
                            A[i * C + k];
            return {merged};
        });
    }
}
