// Codes of weights (llmc/adapt/weight_codes.h) turned into bf16 numbers, as it is done before every
// product of a step with --weights. Memory-bound: 1 byte of int8 or 0.52 of nf4 is read for 2 that
// are written.
#include "dev/cuda/bench_cuda.cuh"
#include "llmc/cuda/weight_codes.cuh"
#include <random>

// One thread per element; the levels of nf4 from global memory.
template <WeightFormat format>
__global__ void decode_element_kernel(bf16* out, CodeMatrix m) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, C = (unsigned)m.C;
    const int64_t row = i / C, c = i % C;
    if (row >= m.rows) return;
    const CodeReader<format> codes{m, NF4_TABLES.level};
    if (format == WEIGHTS_INT8) {
        out[i] = (bf16)((float)(int8_t)m.codes(row)[c] * codes.scale(row, c));
        return;
    }
    const uint8_t byte = m.codes(row)[c / CODE_GROUP * 32 + c % 32];
    out[i] = (bf16)(codes.levels[c % CODE_GROUP < 32 ? byte & 15 : byte >> 4] * codes.scale(row, c));
}

struct Levels {
    float level[16];
};
// One thread per 8 bytes of codes. The levels are a parameter, of which a thread's number names an
// element: the compiler copies all 16 to the stack of every thread. Row and column by a division of
// 64 bits.
template <WeightFormat format>
__global__ void __launch_bounds__(WEIGHT_CODE_THREADS) decode_stack_kernel(bf16* out, CodeMatrix m, Levels given) {
    __shared__ float levels[16];
    if (threadIdx.x < 16) levels[threadIdx.x] = given.level[threadIdx.x];
    __syncthreads();
    const CodeReader<format> codes{m, levels};
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, pieces = codes.pieces(), row = i / pieces;
    if (row >= m.rows) return;
    codes.for_each_run(row, i % pieces,
                       [&](int64_t c, const float(&weights)[CODE_RUN]) { store_run(out + row * m.C + c, weights); });
}
// The same without a copy of the levels.
template <WeightFormat format>
__global__ void __launch_bounds__(WEIGHT_CODE_THREADS) decode_division_kernel(bf16* out, CodeMatrix m) {
    __shared__ float levels[16];
    CodeReader<format>::fill(levels);
    const CodeReader<format> codes{m, levels};
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, pieces = codes.pieces(), row = i / pieces;
    if (row >= m.rows) return;
    codes.for_each_run(row, i % pieces,
                       [&](int64_t c, const float(&weights)[CODE_RUN]) { store_run(out + row * m.C + c, weights); });
}
// Pieces a block apart for each thread.
template <WeightFormat format>
__global__ void __launch_bounds__(WEIGHT_CODE_THREADS) decode_several_kernel(bf16* out, CodeMatrix m, int each) {
    __shared__ float levels[16];
    CodeReader<format>::fill(levels);
    const CodeReader<format> codes{m, levels};
    const unsigned first = blockIdx.x * WEIGHT_CODE_THREADS * each + threadIdx.x, pieces = codes.pieces();
    for (int n = 0; n < each; n++) {
        const unsigned i = first + n * WEIGHT_CODE_THREADS;
        const int64_t row = i / pieces;
        if (row >= m.rows) return;
        codes.for_each_run(row, i % pieces, [&](int64_t c, const float(&weights)[CODE_RUN]) {
            store_run(out + row * m.C + c, weights);
        });
    }
}

// Random codes, and scales of about 1/10.
static void fill_randomly(const CodeMatrix& m) {
    std::mt19937 random(1);
    std::generate(m.memory, m.memory + m.bytes(), random);
    if (m.format == WEIGHTS_INT8)
        for (int64_t row = 0; row < m.rows; row++) *m.scales(row) = 0.1f + 1e-3f * (float)(random() % 64);
    if (m.format != WEIGHTS_NF4) return;
    *m.mean() = 0.1f;
    for (int64_t i = 0; i <= (m.rows * m.row_groups() - 1) / NF4_GROUP; i++)
        m.mean()[1 + i] = 0.05f + 1e-3f * (float)(random() % 16);
}

template <WeightFormat format>
static void decode_bench(const Shape& shape) {
    const int64_t rows = shape[0], C = shape[1];
    CodeMatrix host{format, rows, C, nullptr}, m = host;
    host.memory = buffer<uint8_t>(m.bytes()), m.memory = device_buffer<uint8_t>(m.bytes());
    if (!current->only_listed) {
        fill_randomly(host);
        copy_to_device(m.memory, host.memory, m.bytes(), stream);
    }
    float* out = buffer<float>(rows * C);
    bf16* d_out = device_buffer<bf16>(rows * C);
    bytes((double)host.bytes() + 2.0 * rows * C);
    output("out", out, rows * C, 0), device_output("out", d_out, rows * C, bf16_tolerance(1, 1));
    expected([=] {
        for (int64_t row = 0; row < rows; row++)
            for (int64_t c = 0; c < C; c++) {
                const int half = host.codes(row)[c / CODE_GROUP * 32 + c % 32];
                out[row * C + c] = format == WEIGHTS_INT8 ? (float)(int8_t)host.codes(row)[c] * *host.scales(row)
                                                          : NF4_LEVELS[c % CODE_GROUP < 32 ? half & 15 : half >> 4] *
                                                                host.nf4_scale(row, c / NF4_BLOCK);
            }
    });
    auto element = [=] {
        launch("decode_element", decode_element_kernel<format>, blocks_for(rows * C, 256), 256, 0, stream, d_out, m);
    };
    variant_bf16("element", "one thread per weight: each asks for a byte, its scale, and writes 2 bytes", element);
    auto stack = [=] {
        Levels levels;
        std::copy(NF4_LEVELS, NF4_LEVELS + 16, levels.level);
        launch("decode_stack", decode_stack_kernel<format>, piece_blocks(m, rows), WEIGHT_CODE_THREADS, 0, stream,
               d_out, m, levels);
    };
    variant_bf16("stack",
                 "8 bytes of codes per thread; each copies the 16 levels to its stack, as they are a parameter with an "
                 "index that only the thread knows: 64 bytes, and of int8 it writes 16",
                 stack);
    auto division = [=] {
        launch("decode_division", decode_division_kernel<format>, piece_blocks(m, rows), WEIGHT_CODE_THREADS, 0, stream,
               d_out, m);
    };
    variant_bf16("division", "levels and scales of nf4 from a table in memory: the stack is gone", division);
    auto several = [=](int each) {
        launch("decode_several", decode_several_kernel<format>,
               blocks_for(rows * m.row_code_bytes() / CODE_RUN, (int64_t)WEIGHT_CODE_THREADS * each),
               WEIGHT_CODE_THREADS, 0, stream, d_out, m, each);
    };
    sweep_bf16("several", {2, 4, 8}, "so many pieces of 8 bytes per thread, a block apart; the division in 32 bits",
               several);
    variant_bf16("shipped", "one piece per thread, the division of its number by those of a row in 32 bits",
                 [=] { decode_weights(d_out, m, stream); });
}
BENCH("decode_int8", dims("rows", "C"), shapes({{6400, 1600}, {7, 200}, {65, 64}}, counted({192, 768}))) {
    decode_bench<WEIGHTS_INT8>(shape);
}
BENCH("decode_nf4", dims("rows", "C"), shapes({{6400, 1600}, {7, 200}, {65, 64}}, counted({192, 768}))) {
    decode_bench<WEIGHTS_NF4>(shape);
}
