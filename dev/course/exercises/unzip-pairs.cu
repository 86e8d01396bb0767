// ----- task
// Puzzle: x holds n pairs, one after another: x[2i] and x[2i+1]. Take them apart: a[i] = x[2i],
// b[i] = x[2i+1]. One thread for each pair; it loads the pair at once, as a float2 (members x and
// y, 8 bytes, at a multiple of 8), so that a warp asks for 256 bytes with one instruction.
__global__ void unzip(float* a, float* b, const float* x, int n) {
    // your code
}

// ----- solution
__global__ void unzip(float* a, float* b, const float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float2 pair = ((const float2*)x)[i];
    a[i] = pair.x;
    b[i] = pair.y;
}

// ----- mistakes
//     two-loads: const float2 pair = ((const float2*)x)[i]; ==> float2 pair; pair.x = x[2 * i]; pair.y = x[2 * i + 1];
//     bounds: if (i >= n) return; ==> ;
//     swapped: a[i] = pair.x ==> b[i] = pair.x ;; b[i] = pair.y ==> a[i] = pair.y
//     halves: ((const float2*)x)[i] ==> make_float2(x[i], x[n + i])
//     misaligned: ((const float2*)x)[i] ==> __ldcs((const float2*)(x + 2 * i + (i + 1 < n)))
//     alone: if (i >= n) return; ==> if (i > 0) return; for (int i = 0; i < n; i++) { ;; b[i] = pair.y; ==>
//         b[i] = pair.y; }

// ----- limits
//     counted loads <= 8, two-loads: a pair is loaded in two halves: as a float2 it takes one load for the warp.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::unzip)* unzip) {
    j.cuda = true;
    j.hints = {{"swapped", "a and b have changed places."},
               {"halves", "a and b are the two halves of x: but the members of a pair are neighbours."}};
    for (int n : {5, 100, 256}) {
        j.sizes("n %d", n);
        const std::vector<float> x = j.random(2 * n);
        OnDevice<float> a(begins(n)), b(begins(n)), from(x);
        run(n == 256 ? "counted" : "unzip", unzip, (n + 127) / 128, 128, a, b, from, n);
        j.check({{"a", {n}, a.fetch()}, {"b", {n}, b.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> A, B;
            for (int i = 0; i < n; i++) {
                A.push_back(wrong == "halves" ? x[i] : x[2 * i + (wrong == "swapped")]);
                B.push_back(wrong == "halves" ? x[n + i] : x[2 * i + (wrong != "swapped")]);
            }
            return {A, B};
        });
    }
}
