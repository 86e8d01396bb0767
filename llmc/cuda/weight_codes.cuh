// Products with weights in codes on a GPU; formulas and layout: llmc/adapt/weight_codes.h.
//
// Generation multiplies one row of inputs: memory limits it, and the kernel reads codes. One warp
// per row of the matrix, 8 bytes of codes per lane; the lanes of a warp read 256 bytes that follow
// each other. All other products are cuBLASLt's, with a matrix that a kernel has turned into
// numbers just before: that moves the matrix once more, which is little beside a product of many
// rows.
//
// The levels of nf4 are looked up in shared memory: 16, in as many banks, so that lanes with
// different codes are served at once.
#pragma once
#include "llmc/adapt/weight_codes.h"
#include "llmc/cuda/matmul.cuh"

constexpr int WEIGHT_CODE_THREADS = 256;
constexpr int CODE_RUN = 8;  // weights whose codes are in 8 bytes; of 4-bit codes twice as many

// Of nf4 the levels, and the values of its scales' codes. In memory of the GPU, not a parameter:
// where a thread's number names an element of a parameter, the compiler copies all of it to the
// stack of every thread, which is more than a thread writes here.
struct Nf4Tables {
    float level[16], scale[256];
};
constexpr Nf4Tables nf4_tables() {
    Nf4Tables tables{};
    for (int code = 0; code < 16; code++) tables.level[code] = NF4_LEVELS[code];
    for (int code = 0; code < 256; code++) tables.scale[code] = ScaleCode::value(code);
    return tables;
}
static __device__ const Nf4Tables NF4_TABLES = nf4_tables();

// What the kernels read of a matrix in codes; levels: those of nf4 in shared memory.
template <WeightFormat format>
struct CodeReader {
    static constexpr int RUNS = format == WEIGHTS_INT8 ? 1 : 2;
    const CodeMatrix& m;
    const float* levels;

    // To be called by all threads of a block.
    __device__ static void fill(float* levels) {
        if (format != WEIGHTS_NF4) return;
        if (threadIdx.x < 16) levels[threadIdx.x] = NF4_TABLES.level[threadIdx.x];
        __syncthreads();
    }
    // Pieces of 8 bytes in a row.
    __device__ unsigned pieces() const { return (unsigned)(m.row_code_bytes() / CODE_RUN); }
    // The first of the 8 columns in a piece; of 4-bit codes of those in the lower halves of its
    // bytes (run 0), or in the upper.
    __device__ static int64_t column(int64_t piece, int run) {
        return format == WEIGHTS_INT8 ? piece * CODE_RUN : piece / 4 * CODE_GROUP + piece % 4 * CODE_RUN + 32 * run;
    }
    __device__ uint64_t bytes(int64_t row, int64_t piece) const {
        return *(const uint64_t*)(m.codes(row) + piece * CODE_RUN);
    }
    __device__ float level(uint64_t bytes, int k, int run) const {
        const int byte = (int)(bytes >> 8 * k & 255), half = run == 0 ? byte & 15 : byte >> 4;
        if (format == WEIGHTS_INT8) return (float)(int8_t)byte;
        return format == WEIGHTS_INT4 ? (float)(half - 8) : levels[half];
    }
    __device__ float scale(int64_t row, int64_t column) const {
        if (format == WEIGHTS_INT8) return *m.scales(row);
        if (format == WEIGHTS_INT4) return (float)m.half_scales(row)[column / INT4_BLOCK];
        const int64_t block = column / NF4_BLOCK;
        return fmaf(NF4_TABLES.scale[m.scale_codes(row)[block]], *m.group(row, block), *m.mean());
    }
    // Calls f(column, weights) for the 8 columns of each run of a piece. C is a multiple of 8, so
    // that all are inside of the row or none.
    template <class F>
    __device__ void for_each_run(int64_t row, int64_t piece, F f) const {
        const uint64_t of_piece = bytes(row, piece);
        for (int run = 0; run < RUNS; run++) {
            const int64_t c = column(piece, run);
            if (c >= m.C) continue;
            float weights[CODE_RUN];
            const float by = scale(row, c);
            for (int k = 0; k < CODE_RUN; k++) weights[k] = level(of_piece, k, run) * by;
            f(c, weights);
        }
    }
};

// out (8) = x, or + other (8) unless it is null.
template <class floatX>
__device__ inline void store_run(floatX* out, const float (&x)[CODE_RUN], const floatX* other = nullptr) {
    constexpr int N = Pack<floatX>::size;
    for (int first = 0; first < CODE_RUN; first += N) {
        PackFloats<floatX> sum;
        if (other) sum = load_floats(other + first);
        for (int k = 0; k < N; k++) sum[k] = other ? sum[k] + x[first + k] : x[first + k];
        store_floats(out + first, sum);
    }
}

// out (m.rows, m.C) = the numbers that m stands for. One thread per piece.
template <WeightFormat format, class floatX>
__global__ void __launch_bounds__(WEIGHT_CODE_THREADS) decode_weights_kernel(floatX* out, CodeMatrix m) {
    __shared__ float levels[16];
    CodeReader<format>::fill(levels);
    const CodeReader<format> codes{m, levels};
    const unsigned i = blockIdx.x * WEIGHT_CODE_THREADS + threadIdx.x, pieces = codes.pieces();
    const int64_t row = i / pieces;
    if (row >= m.rows) return;
    codes.for_each_run(row, i % pieces,
                       [&](int64_t c, const float(&weights)[CODE_RUN]) { store_run(out + row * m.C + c, weights); });
}
// out (rows, C) = the embedding: rows inp[row] of wte + rows of wpe, from position `first` on. One
// thread per piece.
template <WeightFormat format, class floatX>
__global__ void __launch_bounds__(WEIGHT_CODE_THREADS)
    coded_encoder_kernel(floatX* out, const int* inp, CodeMatrix wte, const floatX* wpe, int64_t rows, int64_t T,
                         int64_t first) {
    __shared__ float levels[16];
    CodeReader<format>::fill(levels);
    const CodeReader<format> codes{wte, levels};
    const unsigned i = blockIdx.x * WEIGHT_CODE_THREADS + threadIdx.x, pieces = codes.pieces();
    const int64_t row = i / pieces;
    if (row >= rows) return;
    codes.for_each_run(inp[row], i % pieces, [&](int64_t c, const float(&token)[CODE_RUN]) {
        store_run(out + row * wte.C + c, token, wpe + (first + row % T) * wte.C + c);
    });
}
// out (m.rows) = m inp (m.C) + bias, which may be null. One warp per row.
template <WeightFormat format, class floatX>
__global__ void __launch_bounds__(WEIGHT_CODE_THREADS)
    coded_matvec_kernel(floatX* out, const floatX* inp, CodeMatrix m, const floatX* bias) {
    constexpr int N = Pack<floatX>::size;
    __shared__ float levels[16];
    CodeReader<format>::fill(levels);
    const CodeReader<format> codes{m, levels};
    const int lane = threadIdx.x % 32;
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= m.rows) return;
    float sum = 0;
    for (int64_t piece = lane; piece < codes.pieces(); piece += 32)
        codes.for_each_run(row, piece, [&](int64_t c, const float(&weights)[CODE_RUN]) {
            for (int first = 0; first < CODE_RUN; first += N) {
                const PackFloats<floatX> x = load_floats(inp + c + first);
                for (int k = 0; k < N; k++) sum += weights[first + k] * x[k];
            }
        });
    sum = warp_sum(sum);
    if (lane == 0) out[row] = (floatX)(bias ? sum + (float)bias[row] : sum);
}

// Calls f with a constant of the format.
template <class F>
void with_weight_format(WeightFormat format, F f) {
    if (format == WEIGHTS_INT8) f(std::integral_constant<WeightFormat, WEIGHTS_INT8>());
    else if (format == WEIGHTS_INT4) f(std::integral_constant<WeightFormat, WEIGHTS_INT4>());
    else f(std::integral_constant<WeightFormat, WEIGHTS_NF4>());
}
// Blocks for all pieces of so many rows.
inline dim3 piece_blocks(const CodeMatrix& m, int64_t rows) {
    return dim3((unsigned)ceil_div(rows * m.row_code_bytes() / CODE_RUN, (int64_t)WEIGHT_CODE_THREADS));
}

template <class floatX>
void decode_weights(floatX* out, const CodeMatrix& m, cudaStream_t stream) {
    const StreamRange in_stream(work::decode_weights(m.bytes(), (double)(m.rows * m.C), sizeof(floatX)), stream);
    with_weight_format(m.format, [&](auto format) {
        launch("decode_weights", decode_weights_kernel<format.value, floatX>, piece_blocks(m, m.rows),
               WEIGHT_CODE_THREADS, 0, stream, out, m);
    });
}
// out (B, T, C), as encoder_forward() writes it.
template <class floatX>
void coded_encoder(floatX* out, const int* inp, const CodeMatrix& wte, const floatX* wpe, int64_t B, int64_t T,
                   int64_t first, cudaStream_t stream) {
    const StreamRange in_stream(work::embedding(B * T, wte.C, sizeof(floatX)), stream);
    with_weight_format(wte.format, [&](auto format) {
        launch("coded_encoder", coded_encoder_kernel<format.value, floatX>, piece_blocks(wte, B * T),
               WEIGHT_CODE_THREADS, 0, stream, out, inp, wte, wpe, B * T, T, first);
    });
}
// One row of inputs (C): out (OC), and gelu_out (OC) = gelu(out) unless it is null.
template <class floatX>
void coded_matvec(floatX* out, const floatX* inp, const CodeMatrix& m, const floatX* bias, cudaStream_t stream,
                  floatX* gelu_out = nullptr) {
    KernelWork work = work::matmul(1, m.C, m.rows, gelu_out, sizeof(floatX));
    work.bytes += m.bytes() - m.C * m.rows * (double)sizeof(floatX);
    const StreamRange in_stream(work, stream);
    with_weight_format(m.format, [&](auto format) {
        launch("coded_matvec", coded_matvec_kernel<format.value, floatX>,
               dim3((unsigned)ceil_div(m.rows, (int64_t)WEIGHT_CODE_THREADS / 32)), WEIGHT_CODE_THREADS, 0, stream, out,
               inp, m, bias);
    });
    if (gelu_out) gelu_forward(gelu_out, out, m.rows, stream);
}
