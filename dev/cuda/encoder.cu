// The embedding, forward and backward.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/encoder.cuh"

// One thread per element.
__global__ void encoder_scalar_kernel(bf16* out, const int* inp, const bf16* wte, const bf16* wpe, int64_t rows,
                                      int64_t T, int64_t C) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / C, c = i % C;
    if (row < rows) out[i] = (bf16)((float)wte[inp[row] * C + c] + (float)wpe[row % T * C + c]);
}

static int* some_tokens(int64_t rows, int64_t V) {
    int* tokens = buffer<int>(rows);
    // a few frequent tokens, many rare ones, as in text
    for (int64_t i = 0; i < rows; i++)
        tokens[i] = (int)(std::pow((double)(i * 7919 % rows) / (double)rows, 4) * (double)V);
    return tokens;
}

BENCH("encoder_forward", dims("B", "T", "C", "V"),
      shapes({{16, 1024, 768, 50257}, {3, 33, 80, 11}}, counted({1, 256, 768, 1000}))) {
    const int64_t B = shape[0], T = shape[1], C = shape[2], V = shape[3], rows = B * T;
    float *wte = random_floats(V * C), *wpe = random_floats(T * C), *out = buffer<float>(rows * C);
    int *tokens = some_tokens(rows, V), *d_tokens = on_device<int>(tokens, rows);
    bf16 *d_wte = on_device<bf16>(wte, V * C), *d_wpe = on_device<bf16>(wpe, T * C),
         *d_out = device_buffer<bf16>(rows * C);
    bytes(6.0 * rows * C);
    output("out", out, rows * C, 0), device_output("out", d_out, rows * C, bf16_tolerance(1, 1));
    expected([=] { reference::encoder_forward(out, tokens, wte, wpe, B, T, C); });
    auto scalar = [=] {
        launch("encoder_scalar", encoder_scalar_kernel, blocks_for(rows * C, 256), 256, 0, stream, d_out, d_tokens,
               d_wte, d_wpe, rows, T, C);
    };
    variant_bf16("scalar", "one thread per element, and a division and a remainder to find its row and column", scalar);
    auto shipped = [=] { encoder_forward(d_out, d_tokens, d_wte, d_wpe, B, T, C, 0, stream); };
    variant_bf16("shipped", "128 bits per thread: an eighth of the loads, and of the divisions", shipped);
}

// One thread per channel, which walks over all positions. No two threads touch the same value, but
// C threads are few, and each of them reads a value from every row.
__global__ void encoder_backward_columns_kernel(float* dwte, const bf16* dout, const int* inp, int64_t rows,
                                                int64_t C) {
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t row = 0; row < rows && c < C; row++) dwte[inp[row] * C + c] += (float)dout[row * C + c];
}
// One thread per element of dwpe: sums it over the batch.
__global__ void encoder_backward_wpe_scalar_kernel(bf16* dwpe, const bf16* dout, int64_t B, int64_t T, int64_t C) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= T * C) return;
    float sum = 0;
    for (int64_t b = 0; b < B; b++) sum += (float)dout[b * T * C + i];
    dwpe[i] = (bf16)sum;
}

BENCH("encoder_backward", dims("B", "T", "C", "V"),
      shapes({{16, 1024, 768, 50257}, {3, 33, 80, 11}}, counted({1, 256, 768, 1000}))) {
    const int64_t B = shape[0], T = shape[1], C = shape[2], V = shape[3], rows = B * T;
    float *dout = random_floats(rows * C), *dwte = buffer<float>(V * C), *dwpe = buffer<float>(T * C);
    int *tokens = some_tokens(rows, V), *order = buffer<int>(rows), *begin = buffer<int>(rows + 1);
    const TokenOrder sorted = sort_by_token(order, begin, tokens, rows, encoder_segment_positions(rows));
    int *order_whole = buffer<int>(rows), *begin_whole = buffer<int>(rows + 1);
    const TokenOrder whole = sort_by_token(order_whole, begin_whole, tokens, rows);
    int *d_order_whole = on_device<int>(order_whole, rows), *d_begin_whole = on_device<int>(begin_whole, rows + 1);
    float* d_partials = device_buffer<float>(ENCODER_PARTS * C);
    int *d_tokens = on_device<int>(tokens, rows), *d_order = on_device<int>(order, rows),
        *d_begin = on_device<int>(begin, rows + 1);
    bf16 *d_dout = on_device<bf16>(dout, rows * C), *d_dwpe = device_buffer<bf16>(T * C);
    float* d_dwte = device_buffer<float>(V * C);
    bytes(2.0 * rows * C + 8.0 * (double)whole.segments * C + 2.0 * T * C);
    output("dwte", dwte, V * C, 0), device_output("dwte", d_dwte, V * C, sum_tolerance(rows));
    output("dwpe", dwpe, T * C, 0), device_output("dwpe", d_dwpe, T * C, bf16_tolerance(1, B));
    setup([=] {
        memset(dwte, 0, V * C * sizeof(float));
        check_cuda(cudaMemsetAsync(d_dwte, 0, V * C * sizeof(float), stream), "clearing");
    });
    expected([=] { reference::encoder_backward(dwte, dwpe, dout, tokens, B, T, C, T, false); });
    auto columns = [=] {
        launch("encoder_backward_columns", encoder_backward_columns_kernel, blocks_for(C, 64), 64, 0, stream, d_dwte,
               d_dout, d_tokens, rows, C);
        launch("encoder_backward_wpe_scalar", encoder_backward_wpe_scalar_kernel, blocks_for(T * C, 256), 256, 0,
               stream, d_dwpe, d_dout, B, T, C);
    };
    variant_bf16("columns",
                 "one thread per channel, over all positions in order: deterministic without atomics, but C threads "
                 "fill a fraction of the GPU",
                 columns);
    auto sorted_by_token = [=] {
        encoder_backward(d_dwte, d_dwpe, d_partials, d_dout, d_tokens, d_order_whole, d_begin_whole, whole, B, T, C, T,
                         false, stream);
    };
    variant_bf16("sorted",
                 "the host sorts the positions by token; one block sums those of one token, 128 bits per load, and "
                 "touches its row once",
                 sorted_by_token);
    auto shipped = [=] {
        encoder_backward(d_dwte, d_dwpe, d_partials, d_dout, d_tokens, d_order, d_begin, sorted, B, T, C, T, false,
                         stream);
    };
    variant_bf16("shipped",
                 "a frequent token is split among several blocks, whose sums a second kernel adds in order: no block "
                 "is left over when all others are done",
                 shipped);
}
