// ----- task
// Puzzle: out[i] = s x[i] for i from 0 to n - 1, four numbers a thread: as a float4 (members x, y,
// z, w; 16 bytes, at a multiple of 16) they are loaded and stored at once. There are at least n / 4
// threads. The last n % 4 numbers are no whole float4: threads 0 to 2 do one each.
__global__ void scale(float* out, const float* x, float s, int n) {
    // your code
}

// ----- solution
__global__ void scale(float* out, const float* x, float s, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, whole = n / 4;
    if (i < whole) {
        float4 four = ((const float4*)x)[i];
        four.x *= s, four.y *= s, four.z *= s, four.w *= s;
        ((float4*)out)[i] = four;
    }
    if (i < n % 4) out[4 * whole + i] = s * x[4 * whole + i];
}

// ----- mistakes
//     tail: if (i < n % 4) ==> if (false)
//     bounds: whole = n / 4; ==> whole = (n + 3) / 4;
//     begin: if (i < n % 4) out[4 * whole + i] = s * x[4 * whole + i] ==> if (i < n % 4) out[whole + i] = s * s *
//         x[whole + i]
//     one-by-one: float4 four = ((const float4*)x)[i]; ==> float4 four; four.x = x[4 * i]; four.y = x[4 * i + 1];
//         four.z = x[4 * i + 2]; four.w = x[4 * i + 3];
//     last: , four.w *= s ==>
//     alone: if (i < whole) { ==> if (i == 0) for (int i = 0; i < whole; i++) {

// ----- limits
//     counted loads <= 9, one-by-one: the four numbers of a thread are loaded one by one: as a float4 they take one
//         load.

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::scale)* scale) {
    j.cuda = true;
    j.hints = {{"tail", "the last n % 4 numbers are not done."},
               {"last", "the fourth number of each float4 is not multiplied."},
               {"begin", "the last n % 4 numbers are those from 4 (n / 4) on."}};
    for (int n : {4, 7, 258, 1027}) {
        j.sizes("n %d", n);
        const std::vector<float> x = j.random(n);
        OnDevice<float> out(begins(n)), from(x);
        run(n == 1027 ? "counted" : "scale", scale, (n / 4 + 63) / 64, 64, out, from, 1.5f, n);
        j.check({{"out", {n}, out.fetch()}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected = doubles(begins(n));
            const int whole = n / 4 * 4;
            for (int i = 0; i < n; i++)
                if (i < whole || wrong == "" || wrong == "last")
                    expected[i] = (wrong == "last" && i < whole && i % 4 == 3 ? 1 : 1.5) * x[i];
                else if (wrong == "begin") expected[i] = ANY;
            for (int i = n / 4; wrong == "begin" && i < n / 4 + n % 4; i++) expected[i] = ANY;
            return {expected};
        });
    }
}
