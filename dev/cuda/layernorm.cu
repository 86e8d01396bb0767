// Layer norm, forward with the residual sum before it, and backward. Memory-bound.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/layernorm.cuh"

__global__ void residual_scalar_kernel(bf16* out, const bf16* a, const bf16* b, size_t n) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (bf16)((float)a[i] + (float)b[i]);
}
// One thread per row. Neighbouring threads read C elements apart: each load of a warp touches 32
// cache lines and uses two bytes of each.
__global__ void layernorm_thread_kernel(bf16* out, const bf16* inp, const bf16* weight, const bf16* bias, int64_t rows,
                                        int64_t C) {
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const bf16* x = inp + row * C;
    float m = 0, v = 0;
    for (int64_t c = 0; c < C; c++) m += (float)x[c];
    m /= C;
    for (int64_t c = 0; c < C; c++) v += ((float)x[c] - m) * ((float)x[c] - m);
    const float s = rsqrtf(v / C + LAYERNORM_EPS);
    for (int64_t c = 0; c < C; c++)
        out[row * C + c] = (bf16)(((float)x[c] - m) * s * (float)weight[c] + (float)bias[c]);
}
// One warp per row. The lanes read neighbouring elements, 64 bytes at a time, and add up by
// shuffles.
__global__ void layernorm_warp_kernel(bf16* out, const bf16* inp, const bf16* weight, const bf16* bias, int64_t rows,
                                      int64_t C) {
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const bf16* x = inp + row * C;
    float m = 0, v = 0;
    for (int64_t c = threadIdx.x; c < C; c += 32) m += (float)x[c];
    m = warp_sum(m) / C;
    for (int64_t c = threadIdx.x; c < C; c += 32) v += ((float)x[c] - m) * ((float)x[c] - m);
    const float s = rsqrtf(warp_sum(v) / C + LAYERNORM_EPS);
    for (int64_t c = threadIdx.x; c < C; c += 32)
        out[row * C + c] = (bf16)(((float)x[c] - m) * s * (float)weight[c] + (float)bias[c]);
}

// One warp per row, 128 bits per load. The first pass copies the row to shared memory, from which
// the second and third read it.
constexpr int SHARED_WARPS = 4;
__global__ void layernorm_shared_kernel(bf16* out, const bf16* inp, const bf16* weight, const bf16* bias, int64_t rows,
                                        int64_t C) {
    extern __shared__ __align__(128) bf16 shared[];
    constexpr int N = Pack<bf16>::size;
    const int64_t row = (int64_t)blockIdx.x * SHARED_WARPS + threadIdx.y;
    if (row >= rows) return;
    bf16* x = shared + threadIdx.y * C;  // each lane reads back only what it wrote
    float m = 0, v = 0;
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const Pack<bf16> a = load_pack(inp + row * C + c);
        store_pack(x + c, a);
        for (int k = 0; k < N; k++) m += (float)a[k];
    }
    m = warp_sum(m) / C;
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const Pack<bf16> a = load_pack(x + c);
        for (int k = 0; k < N; k++) v += ((float)a[k] - m) * ((float)a[k] - m);
    }
    const float s = rsqrtf(warp_sum(v) / C + LAYERNORM_EPS);
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const PackFloats<bf16> a = load_floats(x + c), w = load_floats(weight + c), b = load_floats(bias + c);
        PackFloats<bf16> y;
        for (int k = 0; k < N; k++) y[k] = (a[k] - m) * s * w[k] + b[k];
        store_floats_streaming(out + row * C + c, y);
    }
}

BENCH("layernorm_forward", dims("rows", "C"), shapes({{16384, 768}, {33, 80}, {5, 1600}}, counted({64, 768}))) {
    const int64_t rows = shape[0], C = shape[1], n = rows * C;
    float *a = random_floats(n), *b = random_floats(n), *weight = random_floats(C), *bias = random_floats(C),
          *residual = buffer<float>(n), *out = buffer<float>(n), *mean = buffer<float>(rows),
          *rstd = buffer<float>(rows);
    bf16 *d_a = on_device<bf16>(a, n), *d_b = on_device<bf16>(b, n), *d_weight = on_device<bf16>(weight, C),
         *d_bias = on_device<bf16>(bias, C), *d_residual = device_buffer<bf16>(n), *d_out = device_buffer<bf16>(n);
    float *d_mean = device_buffer<float>(rows), *d_rstd = device_buffer<float>(rows);
    bytes(8.0 * n);  // two values read, two written
    output("out", out, n, 0), device_output("out", d_out, n, bf16_tolerance(1, C));
    output("residual", residual, n, 0), device_output("residual", d_residual, n, 0);
    expected([=] {
        reference::residual_forward(residual, a, b, n);
        for (int64_t i = 0; i < n; i++) residual[i] = (float)bf16(residual[i]);  // the sum is stored, then normalised
        reference::layernorm_forward(out, mean, rstd, residual, weight, bias, rows, C);
    });
    auto sum = [=] {
        launch("residual_scalar", residual_scalar_kernel, blocks_for(n, 256), 256, 0, stream, d_residual, d_a, d_b,
               (size_t)n);
    };
    auto thread_per_row = [=] {
        sum();
        launch("layernorm_thread", layernorm_thread_kernel, blocks_for(rows, 64), 64, 0, stream, d_out, d_residual,
               d_weight, d_bias, rows, C);
    };
    variant_bf16("thread-per-row",
                 "the residual sum by its own kernel; then one thread per row: 32 cache lines for each load of a warp",
                 thread_per_row);
    auto warp_per_row = [=](int warps) {
        sum();
        launch("layernorm_warp", layernorm_warp_kernel, blocks_for(rows, warps), dim3(32, (unsigned)warps), 0, stream,
               d_out, d_residual, d_weight, d_bias, rows, C);
    };
    sweep_bf16("warp-per-row", {1, 2, 4, 8, 16},
               "32 lanes share a row: neighbouring addresses, and 32 times the threads to hide latency; -1 to -16: "
               "warps per block",
               warp_per_row);
    auto vectorised = [=] {
        residual_forward(d_residual, d_a, d_b, n, stream);
        layernorm_forward(d_out, d_mean, d_rstd, d_residual, d_weight, d_bias, rows, C, stream);
    };
    variant_bf16("vectorised", "128 bits per load: an eighth of the loads for the same bytes", vectorised);
    auto shared = [=] {
        residual_forward(d_residual, d_a, d_b, n, stream);
        launch("layernorm_shared", layernorm_shared_kernel, blocks_for(rows, SHARED_WARPS), dim3(32, SHARED_WARPS),
               SHARED_WARPS * C * sizeof(bf16), stream, d_out, d_residual, d_weight, d_bias, rows, C);
    };
    variant_bf16(
        "shared",
        "the row stays in shared memory for the second and third pass, instead of perhaps in the first-level cache",
        shared);
    auto shipped = [=] {
        residual_layernorm_forward(d_residual, d_out, d_mean, d_rstd, d_a, d_b, d_weight, d_bias, rows, C, stream);
    };
    variant_bf16(
        "shipped",
        "residual sum and norm in one kernel: 4 values per element moved instead of 5, one launch instead of two",
        shipped);
}

// dweight and dbias: one thread per column, over all rows. A warp's loads are contiguous, but C
// threads are few.
__global__ void layernorm_columns_kernel(bf16* dweight, bf16* dbias, const bf16* dout, const bf16* inp,
                                         const float* mean, const float* rstd, int64_t rows, int64_t C) {
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    float dw = 0, db = 0;
    for (int64_t row = 0; row < rows; row++) {
        const float d = (float)dout[row * C + c];
        dw += d * ((float)inp[row * C + c] - mean[row]) * rstd[row], db += d;
    }
    dweight[c] = (bf16)dw, dbias[c] = (bf16)db;
}
// dinp: one warp per row.
__global__ void layernorm_backward_warp_kernel(bf16* dinp, const bf16* dout, const bf16* inp, const bf16* weight,
                                               const float* mean, const float* rstd, int64_t rows, int64_t C) {
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const float m = mean[row], s = rstd[row];
    float g_mean = 0, gx_mean = 0;
    for (int64_t c = threadIdx.x; c < C; c += 32) {
        const float g = (float)dout[row * C + c] * (float)weight[c];
        g_mean += g, gx_mean += g * ((float)inp[row * C + c] - m) * s;
    }
    g_mean = warp_sum(g_mean) / C, gx_mean = warp_sum(gx_mean) / C;
    for (int64_t c = threadIdx.x; c < C; c += 32) {
        const float g = (float)dout[row * C + c] * (float)weight[c], xhat = ((float)inp[row * C + c] - m) * s;
        dinp[row * C + c] = (bf16)((float)dinp[row * C + c] + (g - g_mean - xhat * gx_mean) * s);
    }
}

// One block per row at a time, one Pack per thread, which keeps the sums over rows of its columns.
// Every row ends with a barrier, behind which the threads load the next.
__global__ void layernorm_backward_block_kernel(bf16* dinp, float* partials, const bf16* dout, const bf16* inp,
                                                const bf16* weight, const float* mean, const float* rstd, int64_t rows,
                                                int64_t C) {
    constexpr int N = Pack<bf16>::size;
    __shared__ float2 warps[2][32];
    const int64_t c = (int64_t)threadIdx.x * N;
    const bool here = c < C;
    float dw[N] = {}, db[N] = {};
    int set = 0;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, set ^= 1) {
        PackFloats<bf16> d = {}, x = {}, w = {};
        if (here) d = load_floats(dout + row * C + c), x = load_floats(inp + row * C + c), w = load_floats(weight + c);
        float g_mean = 0, gx_mean = 0;
        for (int k = 0; k < N; k++) {
            x[k] = (x[k] - mean[row]) * rstd[row];
            dw[k] += d[k] * x[k], db[k] += d[k], d[k] *= w[k];
            g_mean += d[k], gx_mean += d[k] * x[k];
        }
        g_mean = warp_sum(g_mean), gx_mean = warp_sum(gx_mean);
        if (threadIdx.x % 32 == 0) warps[set][threadIdx.x / 32] = make_float2(g_mean, gx_mean);
        __syncthreads();
        g_mean = 0, gx_mean = 0;
        for (int i = 0; i < (int)blockDim.x / 32; i++) g_mean += warps[set][i].x / C, gx_mean += warps[set][i].y / C;
        if (!here) continue;
        PackFloats<bf16> result = load_floats(dinp + row * C + c);
        for (int k = 0; k < N; k++) result[k] += (d[k] - g_mean - x[k] * gx_mean) * rstd[row];
        store_floats(dinp + row * C + c, result);
    }
    float* part = partials + (int64_t)blockIdx.x * 2 * C;
    for (int k = 0; k < N && here; k++) part[c + k] = dw[k], part[C + c + k] = db[k];
}

BENCH("layernorm_backward", dims("rows", "C"), shapes({{16384, 768}, {33, 80}, {300, 160}}, counted({2048, 768}))) {
    const int64_t rows = shape[0], C = shape[1], n = rows * C;
    float *inp = random_floats(n), *dout = random_floats(n), *before = random_floats(n), *weight = random_floats(C),
          *bias = random_floats(C), *mean = buffer<float>(rows), *rstd = buffer<float>(rows);
    float *dinp = buffer<float>(n), *dweight = buffer<float>(C), *dbias = buffer<float>(C);
    reference::layernorm_forward(dinp, mean, rstd, inp, weight, bias, rows, C);
    bf16 *d_inp = on_device<bf16>(inp, n), *d_dout = on_device<bf16>(dout, n), *d_weight = on_device<bf16>(weight, C),
         *d_dinp = device_buffer<bf16>(n), *d_dweight = device_buffer<bf16>(C), *d_dbias = device_buffer<bf16>(C);
    float *d_mean = on_device<float>(mean, rows), *d_rstd = on_device<float>(rstd, rows),
          *d_partials = device_buffer<float>(LAYERNORM_PARTS * 3 * C);
    bytes(8.0 * n);  // dout, inp and dinp read, dinp written
    output("dinp", dinp, n, 0), device_output("dinp", d_dinp, n, bf16_tolerance(1, C));
    output("dweight", dweight, C, 0), device_output("dweight", d_dweight, C, bf16_tolerance(1, rows));
    output("dbias", dbias, C, 0), device_output("dbias", d_dbias, C, bf16_tolerance(1, rows));
    setup([=] { std::copy(before, before + n, dinp), put_back(d_dinp, before, n); });
    expected(
        [=] { reference::layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, rows, C, false); });
    auto two_kernels = [=] {
        launch("layernorm_backward_warp", layernorm_backward_warp_kernel, blocks_for(rows, 4), dim3(32, 4), 0, stream,
               d_dinp, d_dout, d_inp, d_weight, d_mean, d_rstd, rows, C);
        launch("layernorm_columns", layernorm_columns_kernel, blocks_for(C, 64), 64, 0, stream, d_dweight, d_dbias,
               d_dout, d_inp, d_mean, d_rstd, rows, C);
    };
    variant_bf16("two-kernels",
                 "one warp per row for dinp; for dweight and dbias one thread per column, too few to fill the GPU, and "
                 "dout and inp are read again",
                 two_kernels);
    auto shipped = [=] {
        layernorm_backward(d_dinp, d_dweight, d_dbias, d_partials, d_dout, d_inp, d_weight, d_mean, d_rstd, rows, C,
                           false, stream);
    };
    auto block_per_row = [=] {
        const int64_t parts = std::min<int64_t>(rows, 256), threads = round_up(ceil_div(C, Pack<bf16>::size), 32);
        launch("layernorm_backward_block", layernorm_backward_block_kernel, dim3((unsigned)parts),
               dim3((unsigned)threads), 0, stream, d_dinp, d_partials, d_dout, d_inp, d_weight, d_mean, d_rstd, rows,
               C);
        sum_parts(d_dweight, d_dbias, {d_partials, parts, 2 * C}, C, false, stream);
    };
    variant_bf16("block-per-row",
                 "each block walks over rows; a thread has the same columns of each, so sums over rows stay in its "
                 "registers, and everything is read once",
                 block_per_row);
    variant_bf16("shipped",
                 "one warp per row needs no barrier, and the next row is on its way to shared memory while this one is "
                 "computed: three times the bytes in flight; the sums of dinp are left for a bias",
                 shipped);
}
