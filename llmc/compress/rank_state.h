// What a rank alone keeps beside its part of the optimizer's state, and where it lies in state
// files: the residuals of compressed gradients (gradient_codes.h), the outer momentum of
// --sync-every (sync.h), and the average of the weights in its slices (optim/average.h).
//
// Another number of processes may go on with them. What counts of residuals is their sum over the
// ranks, for all of them will be added to the same sum of gradients: so old rank r's go to rank r
// modulo the new number. What belongs to slices follows its elements.
#pragma once
#include <algorithm>
#include "llmc/gpt2/tensors.h"

enum RankState { RESIDUAL, SUM_RESIDUAL, OUTER_MOMENTUM, AVERAGE, NUM_RANK_STATES };
inline const char* const RANK_STATES[] = {"the residual", "the residual of sums", "the outer momentum", "the average"};

// Whether every rank has one value for each parameter, or for each in its own slices.
inline bool is_whole(RankState state) { return state == RESIDUAL; }

inline int64_t rank_values(const ParameterLayout& layout, int64_t states) {
    int64_t values = 0;
    for (int state = 0; state < NUM_RANK_STATES; state++)
        if (states >> state & 1) values += layout.total_elems() / (is_whole((RankState)state) ? 1 : layout.processes);
    return values;
}

// Elements of one bucket, `first` the first of them in what the rank has of the bucket, `at` in all
// that it has.
struct RankPiece {
    int64_t bucket, first, at, elems;
};
// Where a piece of old rank r begins in its bucket.
inline int64_t rank_piece_begin(const ParameterLayout& layout, RankState state, const RankPiece& piece, int64_t rank) {
    return piece.first + (is_whole(state) ? 0 : rank * layout.slice_elems(piece.bucket));
}
// Calls f(state, piece) for what a rank has of some states, in the order of a state file.
template <class F>
void for_each_rank_piece(const ParameterLayout& layout, int64_t states, F f) {
    constexpr int64_t MOST = 1 << 16;
    for (int state = 0; state < NUM_RANK_STATES; state++)
        for (int64_t b = 0, at = 0; (states >> state & 1) && b < layout.buckets(); b++) {
            const int64_t elems = layout.bucket_elems(b) / (is_whole((RankState)state) ? 1 : layout.processes);
            for (int64_t first = 0; first < elems; first += MOST)
                f((RankState)state, RankPiece{b, first, at + first, std::min(MOST, elems - first)});
            at += elems;
        }
}
