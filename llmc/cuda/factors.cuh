// Optimizers with factored state: llmc/optim/factors.h says how. Before or after the directions of
// all tensors (directions.cuh), the factors of all tensors are renewed:
//
//     collect   block per tile     rows and columns of a tile: 256 x 512 elements of one tensor, as far
//                                  as they are in the slice of this process
//     gather    thread per factor  of a bucket: puts the tiles' results together, in order; then the
//                                  processes exchange them
//     renew     block per tensor   of a bucket: puts those of the processes together; the mean over rows
#pragma once
#include "llmc/optim/update_work.h"
#include "llmc/cuda/comm.cuh"
#include "llmc/cuda/global_norm.cuh"
#include "llmc/optim/factors.h"

constexpr int FACTOR_THREADS = 256, TILE_ROWS = 256, TILE_COLS = 512;

// A tensor of one layer, and the tiles of this process's slice of it.
struct FactorTensor {
    int64_t index;             // of the tensor's first element among all parameters
    int64_t first, end;        // the elements in the slice
    int64_t factors;           // where its factors begin among all
    int64_t of_rows, of_cols;  // where the tiles' results begin
    int rows, cols, row_factors;
    int first_row, row_tiles, col_tiles;  // the tiles cover row_tiles * TILE_ROWS rows, from first_row on
};
struct FactorTile {
    int tensor, row, col;
};
// The tensors of a bucket, by number.
struct BucketTensors {
    int count, number[NUM_TENSORS];
};

// The tables are copied to the device once. There, scratch memory follows them.
struct FactorTables {
    std::vector<FactorTensor> tensors;
    std::vector<FactorTile> tiles;
    std::vector<BucketTensors> buckets;        // the layers', then the last
    std::vector<int64_t> bucket_begin, elems;  // of their factors
    int64_t tile_results = 0;                  // elements
    int64_t grads = 0;                         // elements in all tiles
    int64_t processes = 1;
    char* memory = nullptr;

    int64_t tensors_bytes() const { return round_up((int64_t)(tensors.size() * sizeof(FactorTensor)), 256); }
    int64_t tiles_bytes() const { return round_up((int64_t)(tiles.size() * sizeof(FactorTile)), 256); }
    int64_t scales_bytes() const { return round_up((int64_t)tensors.size() * 4, 256); }
    int64_t results_bytes() const { return round_up(tile_results * 4, 256); }
    int64_t collected_bytes() const {
        return elems.empty() ? 0 : processes * std::max(elems.front(), elems.back()) * 4;
    }
    int64_t bytes() const {
        return tensors_bytes() + tiles_bytes() + scales_bytes() + results_bytes() + collected_bytes();
    }
    FactorTensor* device_tensors() const { return (FactorTensor*)memory; }
    FactorTile* device_tiles() const { return (FactorTile*)(memory + tensors_bytes()); }
    float* row_scales() const { return (float*)((char*)device_tiles() + tiles_bytes()); }  // by tensor
    float* results() const { return (float*)((char*)row_scales() + scales_bytes()); }      // of the tiles
    float* collected() const { return (float*)((char*)results() + results_bytes()); }  // of each process, from a bucket
};

inline FactorTables factor_tables(Optimizer optimizer, const ParameterLayout& layout) {
    const StateLayout factors = state_layout(layout, OPTIMIZERS[optimizer], STATE_FACTORS);
    FactorTables t;
    if (factors.kept != KEEP_FACTORED) return t;
    t.processes = layout.processes;
    for (int64_t b = 0; b < layout.buckets(); b++) {
        t.buckets.push_back({});
        t.bucket_begin.push_back(factors.bucket_begin(b)), t.elems.push_back(factors.bucket_elems(b));
    }
    for_each_part(layout, {layout.processes, comm.rank}, {}, [&](const TensorPart& part) {
        const MatrixPart m = matrix_part(part, layout.config);
        const int64_t tile_elems = TILE_ROWS * m.cols, first_tile = m.first / tile_elems;
        const int64_t row_tiles = m.first < m.end ? ceil_div(m.end, tile_elems) - first_tile : 0;
        const int64_t col_tiles = ceil_div(m.cols, TILE_COLS), of_cols = t.tile_results;
        const int64_t of_rows = of_cols + row_tiles * m.cols;
        t.grads += m.end - m.first;
        t.tile_results = of_rows + (m.row_factors ? row_tiles * TILE_ROWS * col_tiles : 0);
        t.tensors.push_back({part.index - part.first, m.first, m.end, factors.factors_at(part.tensor, part.layer),
                             of_rows, of_cols, (int)m.rows, (int)m.cols, (int)m.row_factors,
                             (int)(first_tile * TILE_ROWS), (int)row_tiles, (int)col_tiles});
        for (int row = 0; row < row_tiles; row++)
            for (int col = 0; col < col_tiles; col++) t.tiles.push_back({part.number, row, col});
        BucketTensors& bucket = t.buckets[layout.bucket_of(part.tensor, part.layer)];
        bucket.number[bucket.count++] = part.number;
    });
    return t;
}

template <Optimizer optimizer>
__device__ inline float put_together(float a, float b) {
    return RuleOf<optimizer>::SUMS ? a + b : fmaxf(a, b);
}

// A warp has every eighth row of the tile, a lane four Packs of each.
template <Optimizer optimizer>
__global__ void __launch_bounds__(FACTOR_THREADS)
    collect_kernel(float* results_of_tiles, const float* grads, const float* factors, const FactorTensor* tensors,
                   const FactorTile* tiles, const DeviceResults* results) {
    constexpr int N = Pack<float>::size, PACKS = TILE_COLS / (32 * N), WARPS = FACTOR_THREADS / 32;
    __shared__ float of_warps[WARPS][TILE_COLS];
    if (!results->wanted) return;
    const FactorTile tile = tiles[blockIdx.x];
    const FactorTensor t = tensors[tile.tensor];
    const float grad_scale = results->grad_scale;
    factors += t.factors;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_col = tile.col * TILE_COLS;
    const int covered_rows = t.row_tiles * TILE_ROWS, first_row = tile.row * TILE_ROWS;
    float of_cols[PACKS][N] = {}, cols[PACKS][N] = {};
    for (int j = 0; j < PACKS; j++) {
        const int col = first_col + (j * 32 + lane) * N;
        for (int k = 0; k < N && col < t.cols; k++) cols[j][k] = factors[t.row_factors + col + k];
    }
    for (int r = first_row + warp; r < first_row + TILE_ROWS && t.first_row + r < t.rows; r += WARPS) {
        const int64_t row = t.first_row + r;
        const float factor = t.row_factors ? factors[row] : RuleOf<optimizer>::NO_ROW;
        float of_row = 0;
#pragma unroll
        for (int j = 0; j < PACKS; j++) {
            const int col = first_col + (j * 32 + lane) * N;
            const int64_t i = row * t.cols + col;
            if (col >= t.cols || i < t.first || i >= t.end) continue;
            const PackFloats<float> g = load_floats(grads + t.index + i);
            for (int k = 0; k < N; k++) {
                const float x = RuleOf<optimizer>::contribution(g[k] * grad_scale, factor, cols[j][k]);
                of_cols[j][k] = put_together<optimizer>(of_cols[j][k], x);
                of_row = put_together<optimizer>(of_row, x);
            }
        }
        of_row = RuleOf<optimizer>::SUMS ? warp_sum(of_row) : warp_max(of_row);
        if (lane == 0 && t.row_factors) results_of_tiles[t.of_rows + (int64_t)tile.col * covered_rows + r] = of_row;
    }
    for (int j = 0; j < PACKS; j++)
        for (int k = 0; k < N; k++) of_warps[warp][(j * 32 + lane) * N + k] = of_cols[j][k];
    __syncthreads();
    for (int c = threadIdx.x; c < TILE_COLS && first_col + c < t.cols; c += FACTOR_THREADS) {
        float all = of_warps[0][c];
        for (int w = 1; w < WARPS; w++) all = put_together<optimizer>(all, of_warps[w][c]);
        results_of_tiles[t.of_cols + (int64_t)tile.row * t.cols + first_col + c] = all;
    }
}

// mine = what this process has collected for the factors of a bucket, from factor `begin` on.
template <Optimizer optimizer>
__global__ void gather_tiles_kernel(float* mine, const float* results_of_tiles, const FactorTensor* tensors,
                                    BucketTensors bucket, int64_t begin, const DeviceResults* results) {
    const FactorTensor t = tensors[bucket.number[blockIdx.y]];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= t.row_factors + t.cols || !results->wanted) return;
    const bool is_row = i < t.row_factors;
    const int covered_rows = t.row_tiles * TILE_ROWS, at = is_row ? i - t.first_row : i - t.row_factors;
    int count = is_row ? t.col_tiles : t.row_tiles;
    if (is_row && (i >= t.rows || at < 0 || at >= covered_rows)) count = 0;
    const int64_t stride = is_row ? covered_rows : t.cols;
    const float* from = results_of_tiles + (is_row ? t.of_rows : t.of_cols) + at;
    float all = 0;
    for (int n = 0; n < count; n++) all = put_together<optimizer>(all, from[n * stride]);
    mine[t.factors - begin + i] = all;
}

// The new factors of a bucket's tensors, from what each process has collected, `elems` apart.
template <Optimizer optimizer>
__global__ void renew_kernel(float* factors, float* row_scales, const float* collected, int processes, int64_t elems,
                             const FactorTensor* tensors, BucketTensors bucket, int64_t begin, float share,
                             const DeviceResults* results) {
    const int number = bucket.number[blockIdx.x];
    const FactorTensor t = tensors[number];
    if (!results->wanted) return;
    float* const own = factors + t.factors;
    collected += t.factors - begin;
    double rows = 0;
    for (int i = threadIdx.x; i < t.row_factors + t.cols; i += blockDim.x) {
        float all = collected[i];
        for (int r = 1; r < processes; r++) all = put_together<optimizer>(all, collected[r * elems + i]);
        const bool is_row = i < t.row_factors;
        own[i] = RuleOf<optimizer>::renewed(own[i], all, (float)(is_row ? t.cols : t.rows), share);
        if (is_row) rows += own[i];
    }
    rows = block_sum(rows);
    if (threadIdx.x == 0) row_scales[number] = t.row_factors ? RuleOf<optimizer>::row_scale((float)(rows / t.rows)) : 1;
}

// The two functions do nothing for other optimizers. grads are complete in the slice of this
// process.
inline void collect_factors(Optimizer optimizer, const FactorTables& t, const float* factors, const float* grads,
                            const DeviceResults* results, cudaStream_t stream) {
    if (t.tiles.empty()) return;
    const StreamRange in_stream(work::collect_factors(t.grads), stream);
    with_factored(optimizer, [&](auto constant) {
        launch("collect_factors", collect_kernel<constant.value>, dim3((unsigned)t.tiles.size()), FACTOR_THREADS, 0,
               stream, t.results(), grads, factors, t.device_tensors(), t.device_tiles(), results);
    });
}
// From what was collected.
inline void renew_factors(Optimizer optimizer, const FactorTables& t, float* factors, int64_t step,
                          const DeviceResults* results, cudaStream_t stream) {
    for (size_t b = 0; b < t.buckets.size(); b++) {
        const BucketTensors& bucket = t.buckets[b];
        const int64_t elems = t.elems[b], begin = t.bucket_begin[b];
        const dim3 blocks((unsigned)ceil_div(elems, FACTOR_THREADS), (unsigned)bucket.count);
        with_factored(optimizer, [&](auto constant) {
            launch("gather_tiles", gather_tiles_kernel<constant.value>, blocks, FACTOR_THREADS, 0, stream,
                   t.collected() + comm.rank * elems, t.results(), t.device_tensors(), bucket, begin, results);
        });
        gpu_all_gather(t.collected(), elems, (int64_t)b, stream);
        gpu_comm_join(stream);
        with_factored(optimizer, [&](auto constant) {
            const float share = RuleOf<constant.value>::newest_share(step);
            launch("renew_factors", renew_kernel<constant.value>, dim3((unsigned)bucket.count), 1024, 0, stream,
                   factors, t.row_scales(), t.collected(), (int)t.processes, elems, t.device_tensors(), bucket, begin,
                   share, results);
        });
    }
}

// The factors of N elements of a tensor, the first of which has this index among all parameters: m
// = those of their row, v = those of their columns. They are of one row: rows are multiples of N.
template <Optimizer optimizer, int N>
__device__ inline void load_factors(float (&m)[N], float (&v)[N], const float* factors, const FactorTensor& t,
                                    const float* row_scale, int64_t index) {
    const int64_t row = (index - t.index) / t.cols, col = (index - t.index) % t.cols;
    factors += t.factors;
    const float scale = directs_by_old_factors(optimizer) ? 1.0f : *row_scale;
    const float of_row = t.row_factors ? factors[row] * scale : RuleOf<optimizer>::NO_ROW;
    for (int k = 0; k < N; k++) m[k] = of_row, v[k] = factors[t.row_factors + col + k];
}
