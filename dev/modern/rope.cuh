// Rotary positions on a GPU; formulas and shapes: rope.h. The table comes from rope_table() there.
// One thread per Pack of a head's first half, which also turns the Pack in the second; where HS / 2
// is no multiple of a Pack, one per channel. Memory-bound, in place: queries and keys are read and
// written once.
#pragma once
#include "llmc/cuda/common.cuh"
#include "llmc/gpt2/heads.h"

template <class floatX, bool PACKS>
__global__ void rope_kernel(floatX* qkv, const float* table, int64_t rows, int T, int turned, int row_elems, int half,
                            float sign) {
    constexpr int N = PACKS ? Pack<floatX>::size : 1;
    const int steps = half / N;  // of a head
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / (turned * steps);
    if (row >= rows) return;
    const int within = (int)(i % (turned * steps)), c = within % steps * N;
    floatX* x = qkv + row * row_elems + within / steps * 2 * half + c;
    const float* angles = table + row % T * 2 * half + c;
    if constexpr (PACKS) {
        PackFloats<floatX> a = load_floats(x), b = load_floats(x + half);
        for (int k = 0; k < N; k++) {
            const float cosine = angles[k], sine = angles[half + k] * sign, old = a[k];
            a[k] = old * cosine - b[k] * sine, b[k] = b[k] * cosine + old * sine;
        }
        store_floats(x, a), store_floats(x + half, b);
    } else {
        const float cosine = angles[0], sine = angles[half] * sign, a = (float)x[0], b = (float)x[half];
        x[0] = (floatX)(a * cosine - b * sine), x[half] = (floatX)(b * cosine + a * sine);
    }
}
// The heads of queries and keys in qkv (rows,row), row r of which is position r % T, are turned in
// place, by the angles of table (T,2,HS/2) or, if `back`, by their opposites.
template <class floatX>
void rope(floatX* qkv, const float* table, int64_t rows, int64_t T, const Heads& heads, bool back,
          cudaStream_t stream) {
    const int64_t half = heads.HS / 2, turned = heads.NH + heads.NKV;
    const bool packs = half % Pack<floatX>::size == 0;
    const int64_t threads = rows * turned * half / (packs ? Pack<floatX>::size : 1);
    launch("rope", packs ? rope_kernel<floatX, true> : rope_kernel<floatX, false>,
           dim3((unsigned)ceil_div(threads, PACK_THREADS)), PACK_THREADS, 0, stream, qkv, table, rows, (int)T,
           (int)turned, (int)heads.qkv_row(), (int)half, back ? -1.0f : 1.0f);
}
