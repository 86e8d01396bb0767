// Layer norm's backward pass; formulas and shapes: llmc/cpu/layernorm.h. C must be a multiple of
// Pack<floatX>::size.
//
// As many blocks as the GPU holds at once, whose warps walk over rows. Each block writes its sums
// over rows, of dweight, dbias and dinp, to its row of `partials`, and a second kernel adds these
// rows in order. No atomics. The sums of dinp are the gradient of the bias of the linear layer
// whose output dinp is the gradient of. Memory-bound: 4 values per element are moved: dout, inp and
// dinp are read, dinp is written.
//
// One block: a team of warps has one row at a time, and of each row a lane has the same columns:
// the Packs lane, lane + 32 * warps of the team, ... So the sums over rows stay in its registers. A
// block has about 4 warps: 4 teams of one, 2 of two, or one of more. With C = 1024 in bf16, which
// is 128 Packs, it has 2 teams of 2 warps, and a lane 2 Packs:
//
//     columns           0-255     256-511   512-767   768-1023
//     row r             warp 0    warp 1    warp 0    warp 1     team 0
//     row r + 1         warp 2    warp 3    warp 2    warp 3     team 1
//     row r + step      warp 0    warp 1    warp 0    warp 1     team 0's next row; step: teams of all blocks
//     row r + step + 1  warp 2    warp 3    warp 2    warp 3     team 1's
//     ...                 |         |         |         |
//     registers         dweight, dbias and dinp, summed over the rows of a team
//                         |         |         |         |        at the end: the teams' sums are added in order,
//     partials          row blockIdx.x: dweight | dbias | dinp   through shared memory
//
// For each row of a team:
//
//     1. ask for the values of its next row, which arrive in shared memory while this one is computed
//     2. g = dout weight, xhat = (inp - mean) rstd; add to the sums of dweight and dbias
//     3. sum(g), sum(g xhat): per warp by shuffles, then across the team through shared memory
//     4. dinp += rstd (g - sum(g) / C - xhat sum(g xhat) / C); add to the sum of dinp
//
//     shared memory of a warp   stage 0:  dout | inp | dinp    the row of steps 2 to 4, its mean and rstd
//                               stage 1:  dout | inp | dinp    those of step 1; after the row they change places
//                  of a team    weight, the same for all teams: it comes once, not with every row
//
// Each is PACKS times 32 Packs, one for each lane. Lanes share no values but mean, rstd and the
// sums of step 3: each lane reads back what it asked for. Where two rows do not fit, there is one
// stage, and step 1 asks for the row itself.
#pragma once
#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/mma.cuh"

constexpr int LAYERNORM_PACKS = 3, LAYERNORM_MOST_PACKS = 4;  // of a lane; in the widest rows
constexpr int LAYERNORM_MOST_WARPS = 12;                      // of a team
constexpr int64_t LAYERNORM_SHARED_BYTES = 64 << 10;          // at most, so that at least one block fits every chip
// Blocks at most, for which partials has room: four on each of 128 multiprocessors. And the least
// number of rows of a team, so that partials are small beside the rows.
constexpr int LAYERNORM_PARTS = 512, LAYERNORM_TEAM_ROWS = 8;

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
    const int64_t weight_bytes = (int64_t)t.warps * t.packs * 32 * 16, mean_and_rstd = 2 * sizeof(float);
    t.stages = 2 * row_bytes <= LAYERNORM_SHARED_BYTES ? 2 : 1;
    t.shared_bytes = t.stages * (row_bytes + t.teams * t.warps * mean_and_rstd) + weight_bytes;
    return t;
}

// A lane of this block: its columns of each row, and its place in shared memory.
template <class floatX, int PACKS>
struct LayernormLane {
    static constexpr int N = Pack<floatX>::size;
    enum Input { DOUT, INP, DINP };
    struct Values {
        PackFloats<floatX> dout, inp, weight;
    };
    floatX* shared;  // the block's, [warp][stage][input][PACKS][32] Packs
    const floatX *dout, *inp, *dinp;
    const float *mean, *rstd;
    int64_t rows, C;
    int stages;
    int warp = threadIdx.z * blockDim.y + threadIdx.y;     // in the block
    int64_t first = (threadIdx.y * 32 + threadIdx.x) * N;  // column of Pack 0
    int team_threads = 32 * blockDim.y;
    floatX* weight = shared + (int64_t)team_threads * blockDim.z * stages * 3 * PACKS * N;    // [warp][PACKS][32] Packs
    float* norms = (float*)(weight + (int64_t)team_threads * PACKS * N) + warp * stages * 2;  // [stage] mean, rstd

    // The first column of Pack p.
    __device__ int64_t column(int p) const { return first + (int64_t)p * team_threads * N; }
    // Pack p of a row's input in shared memory.
    __device__ floatX* place(int stage, Input input, int p) const {
        const int pack = (((warp * stages + stage) * 3 + input) * PACKS + p) * 32 + threadIdx.x;
        return shared + pack * N;
    }
    __device__ floatX* weight_place(int p) const { return weight + ((threadIdx.y * PACKS + p) * 32 + threadIdx.x) * N; }
    // The first team brings the weight, for all.
    __device__ void fetch_weight(const floatX* from) const {
#pragma unroll
        for (int p = 0; p < PACKS; p++)
            if (threadIdx.z == 0 && column(p) < C) store_pack(weight_place(p), load_pack(from + column(p)));
        __syncthreads();
    }
    // Asks for a row. Behind the last row and the last column come zeros.
    __device__ void fetch(int stage, int64_t row) const {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const bool valid = row < rows && column(p) < C;
            const int64_t at = valid ? row * C + column(p) : 0;
            copy_async(place(stage, DOUT, p), dout + at, valid);
            copy_async(place(stage, INP, p), inp + at, valid);
            copy_async(place(stage, DINP, p), dinp + at, valid);
        }
        const bool valid = row < rows;
        if (threadIdx.x < 2)
            copy_async_4(norms + 2 * stage + threadIdx.x, (threadIdx.x == 0 ? mean : rstd) + (valid ? row : 0), valid);
        copy_async_commit();
    }
    // What steps 2 and 4 read of Pack p.
    __device__ Values values(int stage, int p) const {
        return {load_floats(place(stage, DOUT, p)), load_floats(place(stage, INP, p)), load_floats(weight_place(p))};
    }
};

// x and y, summed over the lanes of the team. of_warps is shared memory for one row of every team.
__device__ inline void team_sums(float& x, float& y, float2 (&of_warps)[LAYERNORM_MOST_WARPS]) {
    x = warp_sum(x), y = warp_sum(y);
    __syncwarp();  // so that the compiler reads dout and inp again in step 4, and does not keep them in registers
    if (blockDim.y == 1) return;
    if (threadIdx.x == 0) of_warps[threadIdx.z * blockDim.y + threadIdx.y] = make_float2(x, y);
    __syncthreads();
    x = 0, y = 0;
    for (int w = threadIdx.z * blockDim.y; w < (int)((threadIdx.z + 1) * blockDim.y); w++)
        x += of_warps[w].x, y += of_warps[w].y;
}

// part (3, C) = the sums of the block's teams, added in order.
template <class floatX, int PACKS, int N>
__device__ inline void add_teams(float* part, const float (&sums)[3][PACKS][N],
                                 const LayernormLane<floatX, PACKS>& lane) {
    float* const shared = (float*)lane.shared;  // [warp][PACKS * N][32], for dweight, dbias and dinp in turn
    const auto place = [&](int warp, int i) { return (warp * PACKS * N + i) * 32 + threadIdx.x; };
#pragma unroll
    for (int s = 0; s < 3; s++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PACKS * N; i++) shared[place(lane.warp, i)] = sums[s][i / N][i % N];
        __syncthreads();
        for (int i = threadIdx.z; i < PACKS * N; i += blockDim.z) {
            float total = 0;
            for (int t = 0; t < (int)blockDim.z; t++) total += shared[place(t * blockDim.y + threadIdx.y, i)];
            const int64_t column = lane.column(i / N);
            if (column < lane.C) part[s * lane.C + column + i % N] = total;
        }
    }
}

// Threads of a block for which the kernel is compiled: at most 65,536 / 512 = 128 registers each,
// so that four blocks of 4 warps fit a multiprocessor. The widest rows need more of them.
constexpr int layernorm_threads(int packs) { return packs <= LAYERNORM_PACKS ? 512 : 32 * LAYERNORM_MOST_WARPS; }

// Grid: the rows are split among the teams of all blocks. Block: 32 x (warps of a team) x teams.
template <class floatX, int PACKS>
__global__ void __launch_bounds__(layernorm_threads(PACKS))
    layernorm_backward_kernel(floatX* dinp, float* partials, const floatX* dout, const floatX* inp,
                              const floatX* weight, const float* mean, const float* rstd, int64_t rows, int64_t C,
                              int stages) {
    typedef LayernormLane<floatX, PACKS> Lane;
    constexpr int N = Pack<floatX>::size;
    extern __shared__ __align__(128) float rows_ahead[];
    __shared__ float2 of_warps[2][LAYERNORM_MOST_WARPS];  // rows take turns
    const Lane lane{(floatX*)rows_ahead, dout, inp, dinp, mean, rstd, rows, C, stages};
    const int64_t first_row = (int64_t)blockIdx.x * blockDim.z, step = (int64_t)gridDim.x * blockDim.z;
    const float per_channel = 1.0f / C;
    const bool ahead = stages == 2;
    float sums[3][PACKS][N] = {};  // of dweight, dbias and dinp
    lane.fetch_weight(weight);
    if (ahead) lane.fetch(0, first_row + threadIdx.z);
    int turn = 0;
    for (int64_t block_row = first_row; block_row < rows; block_row += step, turn ^= 1) {
        const int64_t row = block_row + threadIdx.z;
        const int stage = ahead ? turn : 0;
        if (ahead) lane.fetch(turn ^ 1, row + step), copy_async_wait<1>();
        else lane.fetch(0, row), copy_async_wait<0>();
        __syncwarp();  // mean and rstd have arrived, for all lanes
        const float m = lane.norms[2 * stage], s = lane.norms[2 * stage + 1];
        float g_mean = 0, gx_mean = 0;  // the sums, at first
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            if (lane.column(p) >= C) continue;
            const typename Lane::Values v = lane.values(stage, p);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float xhat = (v.inp[k] - m) * s, g = v.dout[k] * v.weight[k];
                sums[0][p][k] += v.dout[k] * xhat;
                sums[1][p][k] += v.dout[k];
                g_mean += g, gx_mean += g * xhat;
            }
        }
        team_sums(g_mean, gx_mean, of_warps[turn]);
        g_mean *= per_channel, gx_mean *= per_channel;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            if (row >= rows || lane.column(p) >= C) continue;
            const typename Lane::Values v = lane.values(stage, p);
            PackFloats<floatX> result = load_floats(lane.place(stage, Lane::DINP, p));
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float xhat = (v.inp[k] - m) * s, g = v.dout[k] * v.weight[k];
                result[k] += (g - g_mean - xhat * gx_mean) * s;
            }
            result = store_rounded(dinp + row * C + lane.column(p), result);
#pragma unroll
            for (int k = 0; k < N; k++) sums[2][p][k] += result[k];
        }
    }
    if (ahead) copy_async_wait<0>();
    add_teams<floatX, PACKS>(partials + (int64_t)blockIdx.x * 3 * C, sums, lane);
}

// The largest C that layernorm_backward accepts.
template <class floatX>
constexpr int64_t layernorm_most_channels() {
    return LAYERNORM_MOST_WARPS * 32 * LAYERNORM_MOST_PACKS * Pack<floatX>::size;
}

// Arguments: llmc/cpu/layernorm.h. partials has room for LAYERNORM_PARTS * 3C. Returns the parts of
// the sums over the rows of dinp, which stay there. On a kind of GPU that holds another number of
// blocks, the sums are cut elsewhere, and have other bits.
template <class floatX>
ColumnSums layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, float* partials, const floatX* dout,
                              const floatX* inp, const floatX* weight, const float* mean, const float* rstd,
                              int64_t rows, int64_t C, bool add, cudaStream_t stream) {
    const StreamRange in_stream(work::layernorm_backward(rows, C, sizeof(floatX)), stream);
    const LayernormTeams t = layernorm_teams(C / Pack<floatX>::size);
    const dim3 threads(32, (unsigned)t.warps, (unsigned)t.teams);
    int64_t parts = std::min<int64_t>(ceil_div(rows, t.teams * LAYERNORM_TEAM_ROWS), LAYERNORM_PARTS);
    auto run = [&](auto kernel) {
        allow_shared(kernel, t.shared_bytes, "layernorm_backward");
        parts = std::min(parts, resident_blocks(kernel, threads, t.shared_bytes));
        launch("layernorm_backward", kernel, dim3((unsigned)parts), threads, t.shared_bytes, stream, dinp, partials,
               dout, inp, weight, mean, rstd, rows, C, t.stages);
    };
    if (t.packs == 1) run(layernorm_backward_kernel<floatX, 1>);
    else if (t.packs == 2) run(layernorm_backward_kernel<floatX, 2>);
    else if (t.packs == 3) run(layernorm_backward_kernel<floatX, 3>);
    else run(layernorm_backward_kernel<floatX, LAYERNORM_MOST_PACKS>);
    floatX* const no_second = nullptr;
    if (dweight) sum_parts(dweight, dbias, {partials, parts, 3 * C}, C, add, stream);
    else if (dbias) sum_parts(dbias, no_second, {partials + C, parts, 3 * C}, C, add, stream);
    return {partials + 2 * C, parts, 3 * C};
}
