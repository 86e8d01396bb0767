// ----- task
// Puzzle: x[i] = x[i + 1] for i from 0 to n - 2, in place, and the last element stays as it is. One
// block does it, thread i element i; n is at most blockDim.x. A thread must not write what another
// has yet to read: what makes them wait for each other?
__global__ void shift_left(float* x, int n) {
    // your code
}

// ----- solution
__global__ void shift_left(float* x, int n) {
    const int i = threadIdx.x;
    const float next = i + 1 < n ? x[i + 1] : 0.0f;
    __syncthreads();
    if (i + 1 < n) x[i] = next;
}

// ----- mistakes
//     race: __syncthreads(); ==> ;
//     bounds: i + 1 < n ? x[i + 1] : 0.0f ==> x[i + 1]
//     last: if (i + 1 < n) x ==> if (i < n) x
//     right: i + 1 < n ? x[i + 1] : 0.0f ==> i > 0 && i < n ? x[i - 1] : 0.0f ;; if (i + 1 < n) ==> if (i > 0 && i < n)
//     alone: if (i + 1 < n) x[i] = next ==> if (i == 0) for (int k = 0; k + 1 < n; k++) x[k] = x[k + 1]

// ----- judge
#include "dev/course/exercises/judge_cuda.h"
void judge(Judge& j, decltype(task::shift_left)* shift_left) {
    j.cuda = true;
    j.hints = {{"last", "the last element changes: it has no neighbour, and stays."},
               {"right", "the elements move to the right: x[i] comes from x[i + 1]."}};
    for (int n : {2, 40, 256}) {
        j.sizes("n %d", n);
        const std::vector<float> before = j.random(n);
        OnDevice<float> x(before);
        run(n == 256 ? "counted" : "shift_left", shift_left, 1, (n + 31) / 32 * 32, x, n);
        j.check({{"x", {n}, x.fetch(), before}}, [&](const Key& wrong) -> Arrays {
            std::vector<double> expected = doubles(before);
            for (int i = 0; i < n; i++)
                if (wrong == "right") expected[i] = before[std::max(i - 1, 0)];
                else if (i + 1 < n || wrong == "last") expected[i] = i + 1 < n ? before[i + 1] : 0;
            return {expected};
        });
    }
}
