// Layer norm, and the residual sum before it; formulas and shapes: llmc/cpu/layernorm.h. C must be
// a multiple of Pack<floatX>::size.
//
// Forward: one warp per row, 4 rows per block. The second and third pass over the row find it in
// the first-level cache, unless other warps have displaced it. Backward: at most 512 blocks, whose
// warps walk over rows. A lane handles the same columns of each row, so the sums over rows, of
// dweight, dbias and dinp, stay in its registers; each block writes its sums to `partials`, and a
// second kernel adds them in order. No atomics. The sums of dinp are the gradient of the bias of
// the linear layer whose output dinp is the gradient of.
//
// Memory-bound. Forward moves 2 values per element (4 with the residual sum), backward 4: dout, inp
// and dinp are read, dinp is written.
#pragma once
#include "llmc/gpt2/constants.h"
#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/mma.cuh"

constexpr int LAYERNORM_WARPS = 4;  // rows per block, forward
// Backward: blocks at most, which is four on each of 128 multiprocessors; and the least number of
// rows of a team, so that partials are small beside the rows.
constexpr int LAYERNORM_PARTS = 512, LAYERNORM_TEAM_ROWS = 8;

// With inp2: residual = inp1 + inp2, then out, mean, rstd from residual, which may be inp1 or inp2.
// Without (null): out, mean, rstd from inp1. One warp per row, one Pack per lane at a time; three
// passes over the row: its mean, its variance, the result.
template <class floatX>
__global__ void layernorm_forward_kernel(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* inp1,
                                         const floatX* inp2, const floatX* weight, const floatX* bias, int64_t rows,
                                         int64_t C) {
    constexpr int N = Pack<floatX>::size;
    const int64_t row = (int64_t)blockIdx.x * LAYERNORM_WARPS + threadIdx.y;
    if (row >= rows) return;
    const floatX* x = inp1 + row * C;
    float sum = 0;
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        PackFloats<floatX> a = load_floats(x + c);
        if (inp2) {
            const PackFloats<floatX> b = load_floats_streaming(inp2 + row * C + c);
            for (int k = 0; k < N; k++) a[k] += b[k];
            a = store_rounded(residual + row * C + c, a);
        }
        for (int k = 0; k < N; k++) sum += a[k];
    }
    if (inp2) x = residual + row * C;  // each lane reads back only what it wrote
    const float m = warp_sum(sum) / C;
    float squares = 0;
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const PackFloats<floatX> a = load_floats(x + c);
        for (int k = 0; k < N; k++) squares += (a[k] - m) * (a[k] - m);
    }
    const float s = rsqrtf(warp_sum(squares) / C + LAYERNORM_EPS);
    for (int64_t c = threadIdx.x * N; c < C; c += 32 * N) {
        const PackFloats<floatX> a = load_floats(x + c), w = load_floats(weight + c), b = load_floats(bias + c);
        PackFloats<floatX> y;
        for (int k = 0; k < N; k++) y[k] = (a[k] - m) * s * w[k] + b[k];
        store_floats(out + row * C + c, y);
    }
    if (threadIdx.x == 0) mean[row] = m, rstd[row] = s;
}

// A team of warps handles one row at a time. A block has about 4 warps: 4 teams of one, 2 of two,
// or one of more. A lane has the Packs lane, lane + 32 * warps, ... of the row, at most 3 of them
// (4 in the widest rows), so the sums over rows, of dweight, dbias and dinp, stay in its registers.
// For each row of a team:
//
//     1. ask for the values of its next row, which arrive in shared memory while this one is computed
//     2. g = dout weight, xhat = (inp - mean) rstd; add to the sums of dweight and dbias
//     3. sum(g), sum(g xhat): per warp by shuffles, then across the team through shared memory
//     4. dinp += rstd (g - sum(g) / C - xhat sum(g xhat) / C); add to the sum of dinp
//
// Lanes share no values but the sums of step 3: each lane reads back what it asked for.
constexpr int LAYERNORM_PACKS = 3, LAYERNORM_MOST_PACKS = 4, LAYERNORM_MOST_WARPS = 12;
constexpr int64_t LAYERNORM_SHARED_BYTES = 64 << 10;  // at most, so that at least one block fits every chip
struct LayernormTeams {
    int warps, teams;  // of a team; in a block
    int packs;         // of a lane
    int stages;        // rows of a team in shared memory: 2, or 1 where two do not fit
    int64_t shared_bytes;
};
inline LayernormTeams layernorm_teams(int64_t packs) {
    const int64_t wanted = ceil_div(packs, 32 * LAYERNORM_PACKS);
    LayernormTeams t;
    t.warps = (int)(wanted < LAYERNORM_MOST_WARPS ? wanted : LAYERNORM_MOST_WARPS);
    t.teams = t.warps < 4 ? 4 / t.warps : 1;
    t.packs = (int)ceil_div(packs, 32 * t.warps);
    const int64_t row_bytes = (int64_t)t.teams * t.warps * t.packs * 32 * 3 * 16;  // dout, inp, dinp
    t.stages = 2 * row_bytes <= LAYERNORM_SHARED_BYTES ? 2 : 1;
    t.shared_bytes = t.stages * row_bytes;
    return t;
}

// Grid: the rows are split among the teams of all blocks. Block: 32 x (warps of a team) x teams.
template <class floatX, int PACKS>
__global__ void __launch_bounds__(32 * LAYERNORM_MOST_WARPS)
    layernorm_backward_kernel(floatX* dinp, float* partials, const floatX* dout, const floatX* inp,
                              const floatX* weight, const float* mean, const float* rstd, int64_t rows, int64_t C,
                              int stages) {
    constexpr int N = Pack<floatX>::size;
    extern __shared__ __align__(128) float rows_ahead[];
    __shared__ float2 warps[2][LAYERNORM_MOST_WARPS];  // sums of each warp; rows take turns in two sets
    const int warp = threadIdx.z * blockDim.y + threadIdx.y, team_threads = 32 * blockDim.y;
    const int64_t first = (threadIdx.y * 32 + threadIdx.x) * N, step = (int64_t)gridDim.x * blockDim.z;
    const auto channel = [&](int p) { return first + (int64_t)p * team_threads * N; };
    enum Input { DOUT, INP, DINP };
    const auto place = [&](int stage, Input input, int p) {
        const int pack = (((warp * stages + stage) * 3 + input) * PACKS + p) * 32 + threadIdx.x;
        return (floatX*)rows_ahead + pack * N;
    };
    // Behind the last row and the last channel come zeros.
    const auto fetch = [&](int stage, int64_t row) {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const bool valid = row < rows && channel(p) < C;
            const int64_t at = valid ? row * C + channel(p) : 0;
            copy_async(place(stage, DOUT, p), dout + at, valid);
            copy_async(place(stage, INP, p), inp + at, valid);
            copy_async(place(stage, DINP, p), dinp + at, valid);
        }
        copy_async_commit();
    };
    float sums[3][PACKS][N] = {};  // of dweight, dbias and dinp
    const int64_t first_row = (int64_t)blockIdx.x * blockDim.z;
    const float per_channel = 1.0f / C;
    const bool ahead = stages == 2;
    if (ahead) fetch(0, first_row + threadIdx.z);
    int turn = 0;
    for (int64_t block_row = first_row; block_row < rows; block_row += step, turn ^= 1) {
        const int64_t row = block_row + threadIdx.z;
        const int stage = ahead ? turn : 0;
        const float m = row < rows ? mean[row] : 0.0f, s = row < rows ? rstd[row] : 0.0f;
        if (ahead) fetch(turn ^ 1, row + step), copy_async_wait<1>();
        else fetch(0, row), copy_async_wait<0>();
        __syncwarp();
        float g_mean = 0, gx_mean = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            if (channel(p) >= C) continue;
            const PackFloats<floatX> d = load_floats(place(stage, DOUT, p)), x = load_floats(place(stage, INP, p)),
                                     w = load_floats(weight + channel(p));
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float xhat = (x[k] - m) * s, g = d[k] * w[k];
                sums[0][p][k] += d[k] * xhat;
                sums[1][p][k] += d[k];
                g_mean += g, gx_mean += g * xhat;
            }
        }
        g_mean = warp_sum(g_mean), gx_mean = warp_sum(gx_mean);
        __syncwarp();  // so that the compiler reads dout and inp again below, and does not keep them in registers
        if (blockDim.y > 1) {
            if (threadIdx.x == 0) warps[turn][warp] = make_float2(g_mean, gx_mean);
            __syncthreads();
            g_mean = 0, gx_mean = 0;
            for (int i = threadIdx.z * blockDim.y; i < (int)((threadIdx.z + 1) * blockDim.y); i++)
                g_mean += warps[turn][i].x, gx_mean += warps[turn][i].y;
        }
        g_mean *= per_channel, gx_mean *= per_channel;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            if (row >= rows || channel(p) >= C) continue;
            const PackFloats<floatX> d = load_floats(place(stage, DOUT, p)), x = load_floats(place(stage, INP, p)),
                                     w = load_floats(weight + channel(p));
            PackFloats<floatX> result = load_floats(place(stage, DINP, p));
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float xhat = (x[k] - m) * s, g = d[k] * w[k];
                result[k] += (g - g_mean - xhat * gx_mean) * s;
            }
            result = store_rounded(dinp + row * C + channel(p), result);
#pragma unroll
            for (int k = 0; k < N; k++) sums[2][p][k] += result[k];
        }
    }
    if (ahead) copy_async_wait<0>();
#pragma unroll
    for (int s = 0; s < 3; s++) {  // the sums of the teams, added in order through shared memory
        const auto of_warp = [&](int w, int i) { return (w * PACKS * N + i) * 32 + threadIdx.x; };
        float* part = partials + ((int64_t)blockIdx.x * 3 + s) * C;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PACKS * N; i++) rows_ahead[of_warp(warp, i)] = sums[s][i / N][i % N];
        __syncthreads();
        for (int i = threadIdx.z; i < PACKS * N; i += blockDim.z) {
            float total = 0;
            for (int t = 0; t < (int)blockDim.z; t++) total += rows_ahead[of_warp(t * blockDim.y + threadIdx.y, i)];
            if (channel(i / N) < C) part[channel(i / N) + i % N] = total;
        }
    }
}

// out (rows, C), mean and rstd (rows), written, from inp (rows, C).
template <class floatX>
void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                       const floatX* bias, int64_t rows, int64_t C, cudaStream_t stream) {
    const StreamRange in_stream(work::layernorm(rows, C, sizeof(floatX)), stream);
    const dim3 blocks((unsigned)ceil_div(rows, LAYERNORM_WARPS)), threads(32, LAYERNORM_WARPS);
    floatX* const no_residual = nullptr;
    const floatX* const no_inp2 = nullptr;
    launch("layernorm_forward", layernorm_forward_kernel<floatX>, blocks, threads, 0, stream, no_residual, out, mean,
           rstd, inp, no_inp2, weight, bias, rows, C);
}
// residual (rows, C) = inp1 + inp2, written; then as above, from residual as stored.
template <class floatX>
void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* inp1,
                                const floatX* inp2, const floatX* weight, const floatX* bias, int64_t rows, int64_t C,
                                cudaStream_t stream) {
    const StreamRange in_stream(work::residual_layernorm(rows, C, sizeof(floatX)), stream);
    const dim3 blocks((unsigned)ceil_div(rows, LAYERNORM_WARPS)), threads(32, LAYERNORM_WARPS);
    launch("residual_layernorm_forward", layernorm_forward_kernel<floatX>, blocks, threads, 0, stream, residual, out,
           mean, rstd, inp1, inp2, weight, bias, rows, C);
}

// The sum alone: out (n_elems) = inp1 + inp2. out may be inp1 or inp2. One thread per Pack.
template <class floatX>
__global__ void residual_forward_kernel(floatX* out, const floatX* inp1, const floatX* inp2, size_t n_elems) {
    for_each_pack<floatX>(n_elems, [&](size_t i, int count) {
        PackFloats<floatX> a = load_some(inp1 + i, count);
        const PackFloats<floatX> b = load_some(inp2 + i, count);
        for (int k = 0; k < Pack<floatX>::size; k++) a[k] += b[k];
        store_some(out + i, a, count);
    });
}
template <class floatX>
void residual_forward(floatX* out, const floatX* inp1, const floatX* inp2, size_t n_elems, cudaStream_t stream) {
    launch("residual_forward", residual_forward_kernel<floatX>, pack_blocks<floatX>(n_elems), PACK_THREADS, 0, stream,
           out, inp1, inp2, n_elems);
}

// The largest C that layernorm_backward accepts.
template <class floatX>
constexpr int64_t layernorm_most_channels() {
    return LAYERNORM_MOST_WARPS * 32 * LAYERNORM_MOST_PACKS * Pack<floatX>::size;
}

// Arguments: llmc/cpu/layernorm.h. partials has room for LAYERNORM_PARTS * 3C. Returns the parts of
// the sums over the rows of dinp, which stay there.
template <class floatX>
ColumnSums layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, float* partials, const floatX* dout,
                              const floatX* inp, const floatX* weight, const float* mean, const float* rstd,
                              int64_t rows, int64_t C, bool add, cudaStream_t stream) {
    const StreamRange in_stream(work::layernorm_backward(rows, C, sizeof(floatX)), stream);
    const LayernormTeams t = layernorm_teams(C / Pack<floatX>::size);
    const int64_t parts = std::min<int64_t>(ceil_div(rows, t.teams * LAYERNORM_TEAM_ROWS), LAYERNORM_PARTS);
    const dim3 blocks((unsigned)parts), threads(32, (unsigned)t.warps, (unsigned)t.teams);
    auto run = [&](auto kernel) {
        allow_shared(kernel, t.shared_bytes, "layernorm_backward");
        launch("layernorm_backward", kernel, blocks, threads, t.shared_bytes, stream, dinp, partials, dout, inp, weight,
               mean, rstd, rows, C, t.stages);
    };
    if (t.packs == 1) run(layernorm_backward_kernel<floatX, 1>);
    else if (t.packs == 2) run(layernorm_backward_kernel<floatX, 2>);
    else if (t.packs == 3) run(layernorm_backward_kernel<floatX, 3>);
    else run(layernorm_backward_kernel<floatX, LAYERNORM_MOST_PACKS>);
    sum_parts(dweight, dbias, {partials, parts, 3 * C}, C, add, stream);
    return {partials + 2 * C, parts, 3 * C};
}
