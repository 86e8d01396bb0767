// The linear layer, backward: dinp = dout weight, dweight = dout^T inp, dbias = sum over rows of
// dout. Two products of 2 rows C OC FLOPs.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/matmul.cuh"

struct Operands {
    bf16 *dinp, *dweight, *dbias;
    const bf16 *dout, *inp, *weight;
    int rows, C, OC;
};
// One thread per result, in all three kernels.
__global__ void dinp_kernel(Operands o) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= o.C || row >= o.rows) return;
    float sum = 0;
    for (int k = 0; k < o.OC; k++)
        sum += (float)o.dout[(int64_t)row * o.OC + k] * (float)o.weight[(int64_t)k * o.C + c];
    o.dinp[(int64_t)row * o.C + c] = (bf16)sum;
}
__global__ void dweight_kernel(Operands o) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, k = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= o.C || k >= o.OC) return;
    float sum = 0;
    for (int row = 0; row < o.rows; row++)
        sum += (float)o.dout[(int64_t)row * o.OC + k] * (float)o.inp[(int64_t)row * o.C + c];
    o.dweight[(int64_t)k * o.C + c] = (bf16)sum;
}
__global__ void dbias_kernel(Operands o) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= o.OC) return;
    float sum = 0;
    for (int row = 0; row < o.rows; row++) sum += (float)o.dout[(int64_t)row * o.OC + k];
    o.dbias[k] = (bf16)sum;
}
// 32 columns per block, 8 threads per column: the rows are split among them, and their sums are
// added in shared memory.
__global__ void dbias_shared_kernel(Operands o) {
    __shared__ float sums[8][32];
    const int k = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    for (int row = threadIdx.y; row < o.rows && k < o.OC; row += 8) sum += (float)o.dout[(int64_t)row * o.OC + k];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || k >= o.OC) return;
    float total = 0;
    for (int w = 0; w < 8; w++) total += sums[w][threadIdx.x];
    o.dbias[k] = (bf16)total;
}
// One element of a product, sum over k < length of a(i, k) b(k, j), by 32 x 32 tiles in shared
// memory. Both operands are functions of their indices.
constexpr int TILE = 32;
template <class A, class B>
__device__ inline float tile_product(int i, int j, int length, A a, B b) {
    __shared__ float at[TILE][TILE];
    __shared__ float bt[TILE][TILE];
    float sum = 0;
    for (int k0 = 0; k0 < length; k0 += TILE) {
        at[threadIdx.y][threadIdx.x] = a(i, k0 + (int)threadIdx.x);
        bt[threadIdx.y][threadIdx.x] = b(k0 + (int)threadIdx.y, j);
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += at[threadIdx.y][k] * bt[k][threadIdx.x];
        __syncthreads();
    }
    return sum;
}
__global__ void __launch_bounds__(TILE* TILE) dinp_shared_kernel(Operands o) {
    const int c = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    const float sum = tile_product(
        row, c, o.OC,
        [&](int i, int k) { return i < o.rows && k < o.OC ? (float)o.dout[(int64_t)i * o.OC + k] : 0.0f; },
        [&](int k, int j) { return k < o.OC && j < o.C ? (float)o.weight[(int64_t)k * o.C + j] : 0.0f; });
    if (row < o.rows && c < o.C) o.dinp[(int64_t)row * o.C + c] = (bf16)sum;
}
__global__ void __launch_bounds__(TILE* TILE) dweight_shared_kernel(Operands o) {
    const int c = blockIdx.x * TILE + threadIdx.x, k = blockIdx.y * TILE + threadIdx.y;
    const float sum = tile_product(
        k, c, o.rows,
        [&](int i, int row) { return i < o.OC && row < o.rows ? (float)o.dout[(int64_t)row * o.OC + i] : 0.0f; },
        [&](int row, int j) { return row < o.rows && j < o.C ? (float)o.inp[(int64_t)row * o.C + j] : 0.0f; });
    if (k < o.OC && c < o.C) o.dweight[(int64_t)k * o.C + c] = (bf16)sum;
}

BENCH("matmul_backward", dims("rows", "C", "OC"),
      shapes({{8192, 768, 3072}, {64, 96, 80}, {33, 40, 56}}, counted({256, 256, 256}))) {
    const int64_t rows = shape[0], C = shape[1], OC = shape[2];
    float *inp = random_floats(rows * C), *weight = random_floats(OC * C), *dout = random_floats(rows * OC),
          *dinp = buffer<float>(rows * C), *dweight = buffer<float>(OC * C), *dbias = buffer<float>(OC);
    bf16 *d_inp = on_device<bf16>(inp, rows * C), *d_weight = on_device<bf16>(weight, OC * C),
         *d_dout = on_device<bf16>(dout, rows * OC);
    bf16 *d_dinp = device_buffer<bf16>(rows * C), *d_dweight = device_buffer<bf16>(OC * C),
         *d_dbias = device_buffer<bf16>(OC);
    float* d_partials = device_buffer<float>(COLUMN_SUM_PARTS * OC);
    open_blas();
    const Operands o{d_dinp, d_dweight, d_dbias, d_dout, d_inp, d_weight, (int)rows, (int)C, (int)OC};
    flops(4.0 * rows * C * OC), bytes(2.0 * (2 * rows * C + 2 * C * OC + rows * OC));
    output("dinp", dinp, rows * C, 0), device_output("dinp", d_dinp, rows * C, bf16_tolerance(1, OC));
    output("dweight", dweight, OC * C, 0), device_output("dweight", d_dweight, OC * C, bf16_tolerance(1, rows));
    output("dbias", dbias, OC, 0), device_output("dbias", d_dbias, OC, bf16_tolerance(1, rows));
    expected([=] { reference::matmul_backward(dinp, dweight, dbias, dout, inp, weight, rows, C, OC, false); });
    auto naive = [=] {
        launch("dinp", dinp_kernel, grid_for(C, 32, rows, 8), dim3(32, 8), 0, stream, o);
        launch("dweight", dweight_kernel, grid_for(C, 32, OC, 8), dim3(32, 8), 0, stream, o);
        launch("dbias", dbias_kernel, blocks_for(OC, 64), 64, 0, stream, o);
    };
    variant_bf16("naive", "one thread per result; for dbias one thread per column", naive);
    auto shared = [=] {
        launch("dinp_shared", dinp_shared_kernel, grid_for(C, TILE, rows, TILE), dim3(TILE, TILE), 0, stream, o);
        launch("dweight_shared", dweight_shared_kernel, grid_for(C, TILE, OC, TILE), dim3(TILE, TILE), 0, stream, o);
        launch("dbias_shared", dbias_shared_kernel, blocks_for(OC, 32), dim3(32, 8), 0, stream, o);
    };
    variant_bf16("shared", "32 x 32 tiles in shared memory; for dbias 8 threads per column", shared);
    auto shipped = [=] {
        matmul_backward(d_dinp, d_dweight, d_dbias, {d_partials}, d_dout, d_inp, d_weight, rows, C, OC, false, stream);
    };
    variant_bf16(
        "shipped",
        "cuBLASLt for the products; for dbias 128 bits per load, 8 loads in flight per thread, up to 64 partial "
        "sums, which a second kernel adds in order",
        shipped);
}
