// Optimizers that look at whole tensors: llmc/optim/directions.h says how. Two passes over all
// parameters of the process, one launch each; between them the sums over tensors, which in ZeRO
// stage 1 the processes exchange.
//
// A block has a piece: up to 16384 elements of one tensor, within the slice of one rank. The pieces
// of a tensor and rank follow each other, so their sums can be added in order.
//
//     directions   block per piece                gradients -> directions, m, v; sums of the piece
//     tensor_sums  block per tensor and rank      adds the sums of its pieces
//     along        block per piece                adds the sums of the ranks: the scale; weights
#pragma once
#include "llmc/optim/update_work.h"
#include "llmc/optim/directions.h"
#include "llmc/optim/optimizer_state.h"
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/comm.cuh"
#include "llmc/cuda/factors.cuh"

constexpr int64_t PIECE_ELEMS = 1 << 14;
constexpr int DIRECTION_THREADS = 256;

struct DirectionPiece {
    int64_t index, state;  // of its first element, as in TensorPart
    int elems, number;     // number: of the tensor
    int rows, cols;        // of the whole tensor
    bool decayed, matrix;
    PlaceOfV v;
};
// The pieces of a tensor in the slice of a rank.
struct PieceRange {
    int begin, end;
};

// The tables are copied to the device once; the sums are of the present step.
struct Directions {
    std::vector<DirectionPiece> pieces;
    std::vector<PieceRange> ranges;  // [rank][tensor]; empty if a rank's slice is not updated here
    int64_t tensors = 0;
    int64_t elems = 0, v_elems = 0;  // of all pieces; of those that have v
    FactorTables factored;
    char* memory = nullptr;

    int64_t pieces_bytes() const { return round_up((int64_t)(pieces.size() * sizeof(DirectionPiece)), 256); }
    int64_t ranges_bytes() const { return round_up((int64_t)(ranges.size() * sizeof(PieceRange)), 256); }
    int64_t sums_bytes() const { return round_up((int64_t)(ranges.size() * sizeof(DirectionSums)), 256); }
    int64_t partials_bytes() const { return round_up((int64_t)(pieces.size() * sizeof(DirectionSums)), 256); }
    int64_t own_bytes() const { return pieces_bytes() + ranges_bytes() + sums_bytes() + partials_bytes(); }
    int64_t bytes() const { return own_bytes() + factored.bytes(); }

    void upload(cudaStream_t stream) {
        factored.memory = memory + own_bytes();
        const auto send = [&](void* to, const auto& table) {
            const size_t bytes = table.size() * sizeof(table[0]);
            if (bytes == 0) return;
            check_cuda(cudaMemcpyAsync(to, table.data(), bytes, cudaMemcpyHostToDevice, stream), "copying the pieces");
        };
        send(device_pieces(), pieces), send(device_ranges(), ranges);
        send(factored.device_tensors(), factored.tensors), send(factored.device_tiles(), factored.tiles);
    }
    DirectionPiece* device_pieces() const { return (DirectionPiece*)memory; }
    PieceRange* device_ranges() const { return (PieceRange*)(memory + pieces_bytes()); }
    DirectionSums* sums() const { return (DirectionSums*)((char*)device_ranges() + ranges_bytes()); }  // [rank][tensor]
    DirectionSums* partials() const { return (DirectionSums*)((char*)sums() + sums_bytes()); }         // of the pieces
};

// Cuts what a process updates into pieces.
inline Directions cut_into_pieces(Optimizer optimizer, const ParameterLayout& layout, const BucketSlice& slice) {
    const GPT2Config& c = layout.config;
    Directions d;
    d.factored = factor_tables(optimizer, layout);
    d.tensors = all_tensors(c);
    d.ranges.resize(layout.processes * d.tensors);
    const auto cut = [&](int64_t rank, const TensorPart& part) {
        PieceRange& range = d.ranges[rank * d.tensors + part.number];
        range.begin = (int)d.pieces.size();
        const PlaceOfV v = place_of_v(optimizer, layout, slice, part);
        for (int64_t at = 0; at < part.elems(); at += PIECE_ELEMS)
            d.pieces.push_back({part.index + at,
                                part.state + at,
                                (int)std::min(PIECE_ELEMS, part.elems() - at),
                                part.number,
                                (int)real_rows(part.tensor, c),
                                (int)dimension(TENSORS[part.tensor].cols, c),
                                TENSORS[part.tensor].decayed,
                                is_layer_matrix(part.tensor),
                                {v.state, v.at + at}});
        range.end = (int)d.pieces.size();
        d.elems += part.elems(), d.v_elems += v.state == NUM_STATES ? 0 : part.elems();
    };
    const int64_t P = layout.processes, first = slice.parts > 1 ? slice.part : 0;
    for (int64_t rank = first; rank < (slice.parts > 1 ? first + 1 : P); rank++)
        for_each_part(layout, {P, rank}, slice, [&](const TensorPart& part) { cut(rank, part); });
    return d;
}

// The constants for a piece.
__device__ inline UpdateConstants constants_for(const DirectionPiece& piece, UpdateConstants k) {
    k.matrix = piece.matrix;
    return k;
}

// Calls f(i) for the elements of a piece that this thread has, UPDATE_ELEMS at a time.
template <class F>
__device__ inline void for_each_of_piece(const DirectionPiece& piece, F f) {
    for (int i = threadIdx.x * UPDATE_ELEMS; i < piece.elems; i += DIRECTION_THREADS * UPDATE_ELEMS) f(i);
}

template <Optimizer optimizer, class floatX>
__global__ void __launch_bounds__(DIRECTION_THREADS)
    directions_kernel(float* grads, const floatX* params, const float* master, float* m, float* all_v, float* factors,
                      const FactorTensor* factored, const float* row_scales, const DirectionPiece* pieces,
                      DirectionSums* partials, UpdateConstants constants, const DeviceResults* results) {
    constexpr int N = UPDATE_ELEMS;
    constexpr bool keeps_m = OPTIMIZERS[optimizer].keeps.m == KEEP_ALL;
    const DirectionPiece piece = pieces[blockIdx.x];
    if (!results->wanted) return;
    float* const v = piece.v.state == NUM_STATES ? nullptr : (piece.v.state == STATE_V ? all_v : factors) + piece.v.at;
    const float grad_scale = results->grad_scale;
    const RuleConstants k = rule_constants(constants_for(piece, constants), piece.decayed);
    double weights = 0, directions = 0;
    for_each_of_piece(piece, [&](int i) {
        float g[N], mi[N], vi[N] = {}, p[N], squares = 0, direction_squares = 0;
        load_packs(g, grads + piece.index + i);
        if constexpr (keeps_m) load_packs(mi, m + piece.state + i);
        if (v) load_packs(vi, v + i);
        if constexpr (OPTIMIZERS[optimizer].keeps.factors == KEEP_FACTORED)
            load_factors<optimizer>(mi, vi, factors, factored[piece.number], row_scales + piece.number,
                                    piece.index + i);
        load_weights(p, params, master, piece.index + i, piece.state + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            g[j] = RuleOf<optimizer>::direction(p[j], mi[j], vi[j], g[j] * grad_scale, k);
            squares += p[j] * p[j], direction_squares += g[j] * g[j];
        }
        if constexpr (keeps_m) store_packs(m + piece.state + i, mi);
        if (v) store_packs(v + i, vi);
        store_packs(grads + piece.index + i, g);
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
__global__ void __launch_bounds__(DIRECTION_THREADS)
    along_kernel(floatX* params, float* master, const float* directions, const DirectionPiece* pieces,
                 const DirectionSums* sums, int processes, int tensors, UpdateConstants constants,
                 const DeviceResults* results, uint64_t seed) {
    constexpr int N = UPDATE_ELEMS;
    const DirectionPiece piece = pieces[blockIdx.x];
    if (!results->wanted) return;
    DirectionSums total{};
    for (int rank = 0; rank < processes; rank++) total.add(sums[rank * tensors + piece.number]);
    constants = constants_for(piece, constants);
    const float scale = (float)RuleOf<optimizer>::scale(total, piece.rows, piece.cols, constants);
    const RuleConstants k = rule_constants(along_directions(constants, scale), piece.decayed);
    for_each_of_piece(piece, [&](int i) {
        float d[N], p[N], none = 0;
        load_packs(d, directions + piece.index + i);
        load_weights(p, params, master, piece.index + i, piece.state + i);
#pragma unroll
        for (int j = 0; j < N; j++) RuleOf<optimizer>::update(p[j], none, none, d[j], k);
        store_weights(params, master, p, constants.round_to_nearest, seed, piece.index + i, piece.state + i);
    });
}

// Turns grads, complete in what this process updates, into directions, and moves the weights along
// them. params and master are as in update_by(), m, v (Muon's: of the last bucket alone) and
// factors as optimizer_state.h says, or null. between() enqueues what else is done with the
// directions.
template <class floatX, class Between>
void directions_update(Optimizer optimizer, const Directions& d, floatX* params, float* master, float* m, float* v,
                       float* factors, float* grads, const BucketSlice& slice, const UpdateConstants& k,
                       const DeviceResults* results, uint64_t seed, cudaStream_t stream, Between between) {
    const OptimizerInfo& info = OPTIMIZERS[optimizer];
    const dim3 pieces((unsigned)d.pieces.size()), ranges((unsigned)d.ranges.size());
    const int processes = (int)(d.ranges.size() / d.tensors), tensors = (int)d.tensors;
    const auto renew = [&] { renew_factors(optimizer, d.factored, factors, k.t, results, stream); };
    collect_factors(optimizer, d.factored, factors, grads, results, stream);
    if (!directs_by_old_factors(optimizer)) renew();
    with_direction(optimizer, [&](auto constant) {
        const StreamRange in_stream(work::directions(info, d.elems, d.v_elems, master ? 4 : sizeof(floatX)), stream);
        launch("directions", directions_kernel<constant.value, floatX>, pieces, DIRECTION_THREADS, 0, stream, grads,
               params, master, m, v, factors, d.factored.device_tensors(), d.factored.row_scales(), d.device_pieces(),
               d.partials(), k, results);
        launch("tensor_sums", tensor_sums_kernel<DirectionSums>, ranges, 256, 0, stream, d.sums(), d.partials(),
               d.device_ranges());
    });
    if (directs_by_old_factors(optimizer)) renew();
    if (slice.parts > 1) {
        gpu_all_gather((double*)d.sums(), 2 * d.tensors, -1, stream);
        gpu_comm_join(stream);
    }
    between();
    with_direction(optimizer, [&](auto constant) {
        const StreamRange in_stream(work::update(info, d.elems, master, sizeof(floatX), 4), stream);
        launch(info.name, along_kernel<constant.value, floatX>, pieces, DIRECTION_THREADS, 0, stream, params, master,
               grads, d.device_pieces(), d.sums(), processes, tensors, k, results, seed);
    });
}
