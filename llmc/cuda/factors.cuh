// The factors of optimizers with factored state, Adafactor and SM3 (llmc/optim/factors.h), on a
// GPU. Before or after the directions of all tensors (directions.cuh), the factors of all are
// renewed:
//
//     gradients                   in the slice of this process
//        | collect                block per tile: its rows and its columns
//     results of the tiles
//        | gather_tiles           thread per factor of a bucket: adds the tiles' results in order
//     collected, of this process
//        | all-gather             the processes exchange them
//     collected, of all processes
//        | renew_factors          block per tensor of a bucket: adds them in order; the mean over rows
//     factors, row_scales
//
// SM3 has maxima where Adafactor has sums. The last three steps are for one bucket after the other.
//
// A tile has 256 rows and 512 columns of a tensor. The slice that a process has of a bucket begins
// and ends anywhere in a tensor; the process has the tiles of all rows that the slice touches. Here
// these are elements `first` to `end` of a tensor of 700 x 1200:
//
//     column              0          512         1024   1200
//     row 256 = first_row +-----------+-----------+------+
//                         |      first|###########|######|     tiles (0, 0), (0, 1), (0, 2)
//                         |###########|###########|######|
//         512             +-----------+-----------+------+
//                         |###########|##end      |      |     tiles (1, 0), (1, 1), (1, 2)
//         700             +-----------+-----------+------+
//
//     results of columns  [row of tiles][1200]          a tile writes 512 of one row
//     results of rows     [column of tiles][2 * 256]    a tile writes 256 of one row
#pragma once
#include "llmc/gpt2/bucket_places.h"
#include "llmc/optim/update_work.h"
#include "llmc/cuda/comm.cuh"
#include "llmc/cuda/global_norm.cuh"
#include "llmc/optim/factors.h"

constexpr int FACTOR_THREADS = 256, TILE_ROWS = 256, TILE_COLS = 512;

// -------------------------------------------------------------------------------------------------
// the tables

// A tensor of one layer, and what this process has of it.
struct FactorTensor {
    int64_t index;                     // of the tensor's first element among all parameters
    int64_t gradient;                  // where that of element 0 lies, or would lie
    int64_t first, end;                // the elements in the slice
    int64_t factors;                   // where its factors begin among all: row_factors, then cols
    int64_t row_results, col_results;  // where the results of its tiles begin among all
    int rows, cols;                    // of the whole tensor
    int row_factors;                   // rows, or 0 if it is a vector
    int first_row;                     // of its tiles, a multiple of TILE_ROWS
    int row_tiles, col_tiles;          // its tiles are row_tiles x col_tiles

    __host__ __device__ int tiled_rows() const { return row_tiles * TILE_ROWS; }
    // The result that the tiles of one row have for a column; that which those of one column have
    // for row first_row + r.
    __host__ __device__ int64_t col_result(int row_of_tiles, int col) const {
        return col_results + (int64_t)row_of_tiles * cols + col;
    }
    __host__ __device__ int64_t row_result(int col_of_tiles, int r) const {
        return row_results + (int64_t)col_of_tiles * tiled_rows() + r;
    }
};
struct FactorTile {
    int tensor;    // its number (TensorPart::number)
    int row, col;  // of tiles
};
struct FactorBucket {
    int64_t begin, elems;              // of its factors among all
    int tensors, number[NUM_TENSORS];  // its tensors, by TensorPart::number
};

// What the host knows. Tensors and tiles are copied to the device once.
struct FactorTables {
    std::vector<FactorTensor> tensors;  // by TensorPart::number
    std::vector<FactorTile> tiles;
    std::vector<FactorBucket> buckets;  // the layers', then the last; none: the state is not factored
    int64_t tile_results = 0;           // of all tiles
    int64_t grad_elems = 0;             // in all tiles
    int64_t processes = 1;

    int64_t collected_elems() const {  // of all processes, from the largest bucket
        return buckets.empty() ? 0 : processes * std::max(buckets.front().elems, buckets.back().elems);
    }
};
// What the kernels have in the device's memory.
struct FactorArrays {
    FactorTensor* tensors;
    FactorTile* tiles;
    float* row_scales;    // by tensor
    float* tile_results;  // FactorTables::tile_results
    float* collected;     // [process][factor of a bucket]
};

// Adds a tensor's part in this process's slice.
inline void add_tiles(FactorTables& tables, const TensorPart& part, const MatrixPart& matrix, int64_t factors,
                      int64_t gradient) {
    const int64_t elems_of_row = TILE_ROWS * matrix.cols;  // of tiles
    const int64_t first_tile = matrix.first / elems_of_row;
    FactorTensor t{};
    t.index = part.index - part.first, t.gradient = gradient - part.first;
    t.first = matrix.first, t.end = matrix.end;
    t.factors = factors;
    t.rows = (int)matrix.rows, t.cols = (int)matrix.cols, t.row_factors = (int)matrix.row_factors;
    t.first_row = (int)(first_tile * TILE_ROWS);
    t.row_tiles = matrix.first < matrix.end ? (int)(ceil_div(matrix.end, elems_of_row) - first_tile) : 0;
    t.col_tiles = (int)ceil_div(matrix.cols, TILE_COLS);
    t.col_results = tables.tile_results;
    t.row_results = t.col_results + (int64_t)t.row_tiles * t.cols;
    tables.tile_results = t.row_results + (t.row_factors ? (int64_t)t.col_tiles * t.tiled_rows() : 0);
    tables.grad_elems += part.elems();
    tables.tensors[part.number] = t;
    for (int row = 0; row < t.row_tiles; row++)
        for (int col = 0; col < t.col_tiles; col++) tables.tiles.push_back({part.number, row, col});
}
// Empty if the optimizer's state is not factored.
inline FactorTables factor_tables(Optimizer optimizer, const ParameterLayout& layout, const BucketPlaces& gradients) {
    const StateLayout factors = factor_layout(optimizer, layout);
    FactorTables tables;
    if (factors.kept != KEEP_FACTORED) return tables;
    tables.processes = layout.processes;
    tables.tensors.resize(all_tensors(layout.config));  // what does not train has no tiles
    for (int64_t b = 0; b < layout.buckets(); b++)
        tables.buckets.push_back({factors.bucket_begin(b), factors.bucket_elems(b), 0, {}});
    for_each_part(layout, {layout.processes, comm.shards.rank}, {}, [&](const TensorPart& part) {
        add_tiles(tables, part, matrix_part(part, layout.config), factors.factors_at(part.tensor, part.layer),
                  gradients.at(layout, part));
        FactorBucket& bucket = tables.buckets[layout.bucket_of(part.tensor, part.layer)];
        bucket.number[bucket.tensors++] = part.number;
    });
    return tables;
}

// -------------------------------------------------------------------------------------------------
// the kernels

template <Optimizer optimizer>
__device__ inline float together(float a, float b) {
    return RuleOf<optimizer>::SUMS ? a + b : fmaxf(a, b);
}

// A block has a tile, a warp every eighth row of it, a lane four Packs of each row. So a lane has
// the same columns of all its rows, whose results stay in registers; those of the warps are put
// together through shared memory.
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
    const float *const row_factors = factors + t.factors, *const col_factors = row_factors + t.row_factors;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_r = tile.row * TILE_ROWS, first_col = tile.col * TILE_COLS;
    const auto in_tile = [&](int j, int k) { return (j * 32 + lane) * N + k; };  // the column of value k of Pack j
    float of_cols[PACKS][N] = {}, factor_of_col[PACKS][N] = {};
    for (int j = 0; j < PACKS; j++)
        for (int k = 0; k < N && first_col + in_tile(j, 0) < t.cols; k++)
            factor_of_col[j][k] = col_factors[first_col + in_tile(j, k)];
    for (int r = first_r + warp; r < first_r + TILE_ROWS && t.first_row + r < t.rows; r += WARPS) {
        const int64_t row = t.first_row + r;
        const float factor_of_row = t.row_factors ? row_factors[row] : RuleOf<optimizer>::NO_ROW;
        float of_row = 0;
#pragma unroll
        for (int j = 0; j < PACKS; j++) {
            const int col = first_col + in_tile(j, 0);
            const int64_t i = row * t.cols + col;
            if (col >= t.cols || i < t.first || i >= t.end) continue;
            const PackFloats<float> g = load_floats(grads + t.gradient + i);
            for (int k = 0; k < N; k++) {
                const float x = RuleOf<optimizer>::contribution(g[k] * grad_scale, factor_of_row, factor_of_col[j][k]);
                of_cols[j][k] = together<optimizer>(of_cols[j][k], x);
                of_row = together<optimizer>(of_row, x);
            }
        }
        of_row = RuleOf<optimizer>::SUMS ? warp_sum(of_row) : warp_max(of_row);
        if (lane == 0 && t.row_factors) results_of_tiles[t.row_result(tile.col, r)] = of_row;
    }
    for (int j = 0; j < PACKS; j++)
        for (int k = 0; k < N; k++) of_warps[warp][in_tile(j, k)] = of_cols[j][k];
    __syncthreads();
    for (int c = threadIdx.x; c < TILE_COLS && first_col + c < t.cols; c += FACTOR_THREADS) {
        float all = of_warps[0][c];
        for (int w = 1; w < WARPS; w++) all = together<optimizer>(all, of_warps[w][c]);
        results_of_tiles[t.col_result(tile.row, first_col + c)] = all;
    }
}

// mine (bucket.elems) = what this process has collected for the factors of a bucket. Grid: blocks
// of factors x tensors of the bucket.
template <Optimizer optimizer>
__global__ void gather_tiles_kernel(float* mine, const float* results_of_tiles, const FactorTensor* tensors,
                                    const __grid_constant__ FactorBucket bucket, const DeviceResults* results) {
    const FactorTensor t = tensors[bucket.number[blockIdx.y]];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= t.row_factors + t.cols || !results->wanted) return;
    float all = 0;
    if (i < t.row_factors) {
        const int r = i - t.first_row, tiles = r >= 0 && r < t.tiled_rows() && i < t.rows ? t.col_tiles : 0;
        for (int col = 0; col < tiles; col++) all = together<optimizer>(all, results_of_tiles[t.row_result(col, r)]);
    } else {
        for (int row = 0; row < t.row_tiles; row++)
            all = together<optimizer>(all, results_of_tiles[t.col_result(row, i - t.row_factors)]);
    }
    mine[t.factors - bucket.begin + i] = all;
}

// The new factors of a bucket's tensors, from collected (processes, bucket.elems); and row_scales
// of these tensors.
template <Optimizer optimizer>
__global__ void renew_kernel(float* factors, float* row_scales, const float* collected, int processes,
                             const FactorTensor* tensors, const __grid_constant__ FactorBucket bucket, float share,
                             const DeviceResults* results) {
    const int number = bucket.number[blockIdx.x];
    const FactorTensor t = tensors[number];
    if (!results->wanted) return;
    float* const own = factors + t.factors;
    collected += t.factors - bucket.begin;
    double rows = 0;
    for (int i = threadIdx.x; i < t.row_factors + t.cols; i += blockDim.x) {
        float all = collected[i];
        for (int r = 1; r < processes; r++) all = together<optimizer>(all, collected[r * bucket.elems + i]);
        const bool is_row = i < t.row_factors;
        own[i] = RuleOf<optimizer>::renewed(own[i], all, (float)(is_row ? t.cols : t.rows), share);
        if (is_row) rows += own[i];
    }
    rows = block_sum(rows);
    if (threadIdx.x == 0) row_scales[number] = t.row_factors ? RuleOf<optimizer>::row_scale((float)(rows / t.rows)) : 1;
}

// What a rule takes of the factors, for N elements of a tensor, the first of which has this index
// among all parameters. They are of one row: rows are multiples of N.
template <Optimizer optimizer, int N>
__device__ inline void load_factors(float (&of_row)[N], float (&of_cols)[N], const float* factors,
                                    const FactorTensor& t, const float* row_scale, int64_t index) {
    const int64_t row = (index - t.index) / t.cols, col = (index - t.index) % t.cols;
    factors += t.factors;
    const float scale = needs_old_factors(optimizer) ? 1.0f : *row_scale;
    const float factor = t.row_factors ? factors[row] * scale : RuleOf<optimizer>::NO_ROW;
    for (int k = 0; k < N; k++) of_row[k] = factor, of_cols[k] = factors[t.row_factors + col + k];
}

// -------------------------------------------------------------------------------------------------
// the host's side: two functions that do nothing for other optimizers

// Collects from grads, complete in the slice of this process, into tile_results.
inline void collect_factors(Optimizer optimizer, const FactorTables& tables, const FactorArrays& device,
                            const float* factors, const float* grads, const DeviceResults* results,
                            cudaStream_t stream) {
    if (tables.tiles.empty()) return;
    const StreamRange in_stream(work::collect_factors(tables.grad_elems), stream);
    with_factored(optimizer, [&](auto constant) {
        launch("collect_factors", collect_kernel<constant.value>, dim3((unsigned)tables.tiles.size()), FACTOR_THREADS,
               0, stream, device.tile_results, grads, factors, device.tensors, device.tiles, results);
    });
}
// Renews factors in update number `step`, from tile_results.
inline void renew_factors(Optimizer optimizer, const FactorTables& tables, const FactorArrays& device, float* factors,
                          int64_t step, const DeviceResults* results, cudaStream_t stream) {
    for (size_t b = 0; b < tables.buckets.size(); b++) {
        const FactorBucket& bucket = tables.buckets[b];
        if (bucket.tensors == 0) continue;  // nothing in it trains
        const dim3 tensors((unsigned)bucket.tensors);
        const dim3 blocks((unsigned)ceil_div(bucket.elems, FACTOR_THREADS), tensors.x);
        with_factored(optimizer, [&](auto constant) {
            launch("gather_tiles", gather_tiles_kernel<constant.value>, blocks, FACTOR_THREADS, 0, stream,
                   device.collected + comm.shards.rank * bucket.elems, device.tile_results, device.tensors, bucket,
                   results);
        });
        gpu_all_gather(device.collected, bucket.elems, (int64_t)b, stream);
        gpu_comm_join(stream);
        with_factored(optimizer, [&](auto constant) {
            const float share = RuleOf<constant.value>::newest_share(step);
            launch("renew_factors", renew_kernel<constant.value>, tensors, 1024, 0, stream, factors, device.row_scales,
                   device.collected, (int)tables.processes, device.tensors, bucket, share, results);
        });
    }
}
