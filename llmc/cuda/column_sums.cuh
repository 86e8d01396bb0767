// Sums over the rows of a matrix: the gradients of biases, and of what a layer norm multiplies by.
//
// Two steps, so that the order of the additions is fixed without atomics. The rows are split among
// blocks, each of which writes its sums to a row of `partials`: a part. A second kernel adds the
// parts in order.
//
// Memory-bound: column_sums reads the matrix once. The kernels that write a gradient have its
// values in registers, so gelu_backward, layernorm_backward and attention_backward leave the parts
// too, and the gradient need not be read again for the bias.
#pragma once
#include "llmc/cuda/common.cuh"

// The parts of the sums over the rows of a matrix: part p has partials[p * stride + c] of column c.
// parts 0: the matrix has not been summed, partials is scratch memory.
struct ColumnSums {
    float* partials;
    int64_t parts = 0, stride = 0;
};

// -------------------------------------------------------------------------------------------------
// from rows to parts

// The grid of kernels that leave parts: (n / 32 Packs, parts), 32 x 4 threads. A lane has one Pack
// of columns. The rows are split among the warps of all parts.
constexpr int COLUMN_SUM_PARTS = 64, COLUMN_SUM_WARPS = 4;

struct ColumnSumGrid {
    int64_t parts;
    dim3 blocks, threads{32, COLUMN_SUM_WARPS};
};
template <class floatX>
inline ColumnSumGrid column_sum_grid(int64_t rows, int64_t n) {
    const int64_t most_parts = ceil_div(rows, COLUMN_SUM_WARPS);
    const int64_t parts = most_parts < COLUMN_SUM_PARTS ? most_parts : COLUMN_SUM_PARTS;
    return {parts, dim3((unsigned)ceil_div(n, 32 * Pack<floatX>::size), (unsigned)parts)};
}

// Calls f(offset, here) for ROWS rows at a time of those that belong to this warp: element
// offset[i] is the first of this lane's Pack in row i, which exists if here[i]. So f can load all
// of them before it uses the first: with one load at a time a warp would wait for memory at every
// row.
template <class floatX, int ROWS, class F>
__device__ inline void for_own_rows(int64_t rows, int64_t n, F f) {
    const int64_t c = ((int64_t)blockIdx.x * 32 + threadIdx.x) * Pack<floatX>::size;
    const int64_t first = (int64_t)blockIdx.y * COLUMN_SUM_WARPS + threadIdx.y;
    const int64_t step = (int64_t)gridDim.y * COLUMN_SUM_WARPS * n, end = rows * n;
    if (c >= n) return;
    for (int64_t at = first * n + c; at < end; at += ROWS * step) {
        int64_t offset[ROWS];
        bool here[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) offset[i] = at + i * step, here[i] = offset[i] < end;
        f(offset, here);
    }
}
// Adds the sums of the block's warps in order, and writes them as its part.
template <class floatX, int N>
__device__ inline void write_part(float* partials, const float (&sum)[N], int64_t n) {
    constexpr int WIDTH = 36;  // of 32 lanes, so that the columns that a warp reads below lie in 32 banks
    __shared__ float warps[COLUMN_SUM_WARPS][N * WIDTH];
    for (int k = 0; k < N; k++) warps[threadIdx.y][k * WIDTH + threadIdx.x] = sum[k];
    __syncthreads();
    for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * N; i += 32 * COLUMN_SUM_WARPS) {
        const int64_t c = (int64_t)blockIdx.x * 32 * N + i;
        float total = 0;
        for (int w = 0; w < COLUMN_SUM_WARPS; w++) total += warps[w][i % N * WIDTH + i / N];
        if (c < n) partials[blockIdx.y * n + c] = total;
    }
}

constexpr int COLUMN_SUM_ROWS = 8;  // Packs that a lane loads before it adds the first
template <class floatX>
__global__ void __launch_bounds__(32 * COLUMN_SUM_WARPS)
    column_sums_kernel(float* partials, const floatX* inp, int64_t rows, int64_t n) {
    constexpr int N = Pack<floatX>::size, ROWS = COLUMN_SUM_ROWS;
    float sum[N] = {};
    for_own_rows<floatX, ROWS>(rows, n, [&](const int64_t(&offset)[ROWS], const bool(&here)[ROWS]) {
        int4 bits[ROWS] = {};
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (here[i]) bits[i] = load_bits(inp + offset[i]);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const PackFloats<floatX> x = to_floats<floatX>(bits[i]);
            for (int k = 0; k < N; k++) sum[k] += x[k];
        }
    });
    write_part<floatX>(partials, sum, n);
}
// The parts of the sums over the rows of inp (rows, n). partials has room for COLUMN_SUM_PARTS * n.
template <class floatX>
ColumnSums column_sums(float* partials, const floatX* inp, int64_t rows, int64_t n, cudaStream_t stream) {
    const ColumnSumGrid grid = column_sum_grid<floatX>(rows, n);
    launch("column_sums", column_sums_kernel<floatX>, grid.blocks, grid.threads, 0, stream, partials, inp, rows, n);
    return {partials, grid.parts, n};
}

// -------------------------------------------------------------------------------------------------
// from parts to sums

// out1 (n) and out2 (n), which may be null, = or (add) += the sums of the parts: out1 of columns 0
// .. n - 1, out2 of columns n .. 2n - 1. One block per 32 columns, 32 x 16 threads: 16 warps split
// the parts, and the first warp adds their sums in order.
constexpr int SUM_PARTS_WARPS = 16;
template <class floatX>
__global__ void __launch_bounds__(32 * SUM_PARTS_WARPS)
    sum_parts_kernel(floatX* out1, floatX* out2, ColumnSums sums, int64_t n, bool add) {
    __shared__ float warps[SUM_PARTS_WARPS][32];
    const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x, columns = out2 ? 2 * n : n;
    const int parts = column < columns ? (int)sums.parts : 0;
    const float* from = sums.partials + column;
    float sum = 0;
#pragma unroll 8
    for (int p = threadIdx.y; p < parts; p += SUM_PARTS_WARPS) sum += from[p * sums.stride];
    warps[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns) return;
    float total = 0;
    for (int w = 0; w < SUM_PARTS_WARPS; w++) total += warps[w][threadIdx.x];
    floatX* out = column < n ? out1 + column : out2 + (column - n);
    *out = (floatX)(add ? (float)*out + total : total);
}
template <class floatX>
void sum_parts(floatX* out1, floatX* out2, const ColumnSums& sums, int64_t n, bool add, cudaStream_t stream) {
    const dim3 blocks((unsigned)ceil_div(out2 ? 2 * n : n, 32)), threads(32, SUM_PARTS_WARPS);
    launch("sum_parts", sum_parts_kernel<floatX>, blocks, threads, 0, stream, out1, out2, sums, n, add);
}
