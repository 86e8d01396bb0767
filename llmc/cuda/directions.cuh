// The directions of optimizers that look at whole tensors (llmc/optim/whole_tensors.h) on a GPU,
// and the weights' move along them; whole_tensors.cuh has the order of an update.
//
// A block works on a piece: up to 16384 elements of one tensor, within the slice of one rank. In
// ZeRO stage 1 a process has the pieces of its own slices, in stage 0 those of all ranks. With two
// ranks, a bucket becomes pieces like this:
//
//     bucket of a layer    | ln1w | ln1b |           qkvw            | qkvb |  attprojw  | ...
//     slices               |           rank 0              |           rank 1              ...
//     parts of tensors     | ln1w | ln1b |      qkvw       |  qkvw   | qkvb |  attprojw  | ...
//     pieces               |      |      |      |      |   |      |  |      |      |     | ...
//                                         \_______________/ \_______/
//     ranges                               [0][this qkvw]   [1][this qkvw]
//
// Of each element a piece knows where it lies among the parameters, in m and the master weights,
// and in v. The pieces of a range follow each other in the table, so that their sums can be added
// in order. One launch each:
//
//     directions    block per piece   gradients become directions; m and v; sums of squares of the piece
//     tensor_sums   block per range   adds the sums of its pieces
//     along         block per piece   adds the sums of all ranks: the scale; weights
#pragma once
#include "llmc/optim/update_work.h"
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/factors.cuh"

constexpr int64_t PIECE_ELEMS = 1 << 14;
constexpr int PIECE_THREADS = 256;

// -------------------------------------------------------------------------------------------------
// the tables

// What a block works on.
struct Piece {
    int64_t index;             // of its first element among all parameters
    int64_t weight, gradient;  // where these lie
    int64_t state;             // its place among those of which this process keeps m and master weights
    int elems;                 // at most PIECE_ELEMS
    int number;                // of its tensor (TensorPart::number)
    int rows, cols;            // of the whole tensor
    bool decayed, matrix;      // the tensor is decayed; is a matrix of a layer
    PlaceOfV v;                // of its first element
};
// The pieces that are one rank's part of a tensor.
struct PieceRange {
    int begin, end;
};

// What the host knows. Pieces and ranges are copied to the device once.
struct PieceTables {
    std::vector<Piece> pieces;
    std::vector<PieceRange> ranges;  // [rank][tensor]; empty if this process does not update the rank's slice
    int64_t tensors = 0;
    int64_t elems = 0, v_elems = 0;  // of all pieces; of those that have v
};

// Adds the pieces of a part, and returns which they are.
inline PieceRange add_pieces(PieceTables& tables, const TensorPart& part, int64_t weight, int64_t gradient,
                             const PlaceOfV& v, const GPT2Config& c) {
    const TensorInfo& tensor = TENSORS[part.tensor];
    PieceRange range;
    range.begin = (int)tables.pieces.size();
    for (int64_t at = 0; at < part.elems(); at += PIECE_ELEMS) {
        Piece piece;
        piece.index = part.index + at, piece.state = part.state + at;
        piece.weight = weight + at, piece.gradient = gradient + at;
        piece.elems = (int)std::min(PIECE_ELEMS, part.elems() - at);
        piece.number = part.number;
        piece.rows = (int)real_rows(part.tensor, c), piece.cols = (int)dimension(tensor.cols, c);
        piece.decayed = tensor.decayed, piece.matrix = is_layer_matrix(part.tensor);
        piece.v = {v.state, v.at + at};
        tables.pieces.push_back(piece);
    }
    range.end = (int)tables.pieces.size();
    tables.elems += part.elems();
    if (v.state != NUM_STATES) tables.v_elems += part.elems();
    return range;
}
// The pieces of all that a process updates.
inline PieceTables piece_tables(Optimizer optimizer, const ParameterLayout& layout, const BucketSlice& slice,
                                const BucketPlaces& weights, const BucketPlaces& gradients) {
    PieceTables tables;
    tables.tensors = all_tensors(layout.config);
    tables.ranges.resize(layout.processes * tables.tensors);
    const RankRange ranks = updated_ranks(slice, layout.processes);
    for (int64_t rank = ranks.begin; rank < ranks.end; rank++)
        for_each_part(layout, {layout.processes, rank}, slice, [&](const TensorPart& part) {
            const PlaceOfV v = place_of_v(optimizer, layout, slice, part);
            tables.ranges[rank * tables.tensors + part.number] =
                add_pieces(tables, part, weights.at(layout, part), gradients.at(layout, part), v, layout.config);
        });
    return tables;
}

// -------------------------------------------------------------------------------------------------
// the kernels

// The constants for a piece.
__device__ inline UpdateConstants constants_for(const Piece& piece, UpdateConstants k) {
    k.matrix = piece.matrix;
    return k;
}

// Whether the state of a piece is there.
__device__ inline bool is_in(const StateStretch& state, const Piece& piece) {
    const int64_t at = piece.state - state.mine.first;
    return at >= 0 && at < state.mine.elems();
}

// Calls f(i) for the elements of a piece that this thread has, UPDATE_ELEMS at a time.
template <class F>
__device__ inline void for_each_of_piece(const Piece& piece, F f) {
    for (int i = threadIdx.x * UPDATE_ELEMS; i < piece.elems; i += PIECE_THREADS * UPDATE_ELEMS) f(i);
}

// A rule gets m and v of each element (llmc/optim/optimizers.h), as far as the optimizer keeps
// them; v of the layers' vectors, which Muon keeps, is among the factors. Adafactor and SM3 get in
// their place the factors of the element's row and column.
template <Optimizer optimizer, class floatX>
__global__ void __launch_bounds__(PIECE_THREADS)
    directions_kernel(float* grads, const floatX* params, StateStretch state, float* factors,
                      const FactorTensor* factored, const float* row_scales, const Piece* pieces, SquareSums* partials,
                      UpdateConstants constants, const DeviceResults* results) {
    constexpr int N = UPDATE_ELEMS;
    constexpr bool keeps_m = OPTIMIZERS[optimizer].keeps.m == KEEP_ALL;
    const Piece piece = pieces[blockIdx.x];
    if (!results->wanted || !is_in(state, piece)) return;
    float* const v = piece.v.state == NUM_STATES ? nullptr
                     : piece.v.state == STATE_V  ? (float*)state.v + piece.v.at - state.first_v
                                                 : factors + piece.v.at;
    const int64_t kept = piece.state - state.mine.first;  // of the elements that m and master have here
    float* const m = keeps_m ? (float*)state.m + kept : nullptr;
    const float* const master = state.master ? state.master + kept : nullptr;
    const float grad_scale = results->grad_scale;
    const RuleConstants k = rule_constants(constants_for(piece, constants), piece.decayed);
    double weights = 0, directions = 0;
    for_each_of_piece(piece, [&](int i) {
        float g[N], mi[N], vi[N] = {}, p[N], squares = 0, direction_squares = 0;
        load_packs(g, grads + piece.gradient + i);
        if constexpr (keeps_m) load_packs(mi, m + i);
        if (v) load_packs(vi, v + i);
        if constexpr (OPTIMIZERS[optimizer].keeps.factors == KEEP_FACTORED)
            load_factors<optimizer>(mi, vi, factors, factored[piece.number], row_scales + piece.number,
                                    piece.index + i);
        load_weights(p, params, master, piece.weight + i, i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            g[j] = RuleOf<optimizer>::direction(p[j], mi[j], vi[j], g[j] * grad_scale, k);
            squares += p[j] * p[j], direction_squares += g[j] * g[j];
        }
        if constexpr (keeps_m) store_packs(m + i, mi);
        if (v) store_packs(v + i, vi);
        store_packs(grads + piece.gradient + i, g);
        weights += squares, directions += direction_squares;
    });
    weights = block_sum(weights), directions = block_sum(directions);
    if (threadIdx.x == 0) partials[blockIdx.x] = {weights, directions};
}

// (A template so that several source files may include this header.)
template <class Sums>
__global__ void tensor_sums_kernel(Sums* sums, const Sums* partials, const PieceRange* ranges) {
    const PieceRange range = ranges[blockIdx.x];
    double weights = 0, directions = 0;
    for (int i = range.begin + (int)threadIdx.x; i < range.end; i += blockDim.x)
        weights += partials[i].weights, directions += partials[i].directions;
    weights = block_sum(weights), directions = block_sum(directions);
    if (threadIdx.x == 0) sums[blockIdx.x] = {weights, directions};
}

template <Optimizer optimizer, class floatX>
__global__ void __launch_bounds__(PIECE_THREADS)
    along_kernel(floatX* params, StateStretch state, const float* directions, const Piece* pieces,
                 const SquareSums* sums, int processes, int tensors, UpdateConstants constants,
                 const DeviceResults* results, uint64_t seed) {
    constexpr int N = UPDATE_ELEMS;
    const Piece piece = pieces[blockIdx.x];
    if (!results->wanted || !is_in(state, piece)) return;
    const int64_t kept = piece.state - state.mine.first;  // of the elements that the master has here
    SquareSums total{};
    for (int rank = 0; rank < processes; rank++) total.add(sums[rank * tensors + piece.number]);
    constants = constants_for(piece, constants);
    const float scale = (float)RuleOf<optimizer>::scale(total, piece.rows, piece.cols, constants);
    const RuleConstants k = rule_constants(along_directions(constants, scale), piece.decayed);
    for_each_of_piece(piece, [&](int i) {
        float d[N], p[N], none = 0;
        load_packs(d, directions + piece.gradient + i);
        load_weights(p, params, state.master, piece.weight + i, kept + i);
#pragma unroll
        for (int j = 0; j < N; j++) RuleOf<optimizer>::update(p[j], none, none, d[j], k);
        store_weights(params, state.master, p, constants.round_to_nearest, seed, piece.index + i, piece.weight + i,
                      kept + i);
    });
}
