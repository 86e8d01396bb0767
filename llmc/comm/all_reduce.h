// The sum of what all processes of a group have, for all of them.
#pragma once
#include "llmc/comm/comm.h"

// values (n) = their elementwise sums over a group: a reduce-scatter of n / processes elements
// each, then an all-gather. Sums are added in the order of ranks, or in that of MPI; either way all
// get the same bits. What is left, fewer elements than processes, travels as single numbers do.
inline void comm_all_reduce(float* values, int64_t n, int64_t bucket, const CommGroup& group, const char* what) {
    const int64_t P = group.processes, piece = n / P, rest = n % P;
    if (P == 1 || comm.processes == 1) return;
    if (piece > 0) {
        comm_wait(comm_reduce_scatter_start(values, piece, bucket, group), what);
        comm_wait(comm_all_gather_start(values, piece, bucket, group), what);
    }
    if (rest == 0) return;
    const std::vector<float> mine(values + P * piece, values + n);
    std::vector<float> all(P * rest);
    comm_gather(group, all.data(), mine.data(), rest * (int64_t)sizeof(float), what);
    for (int64_t i = 0; i < rest; i++) {
        values[P * piece + i] = all[i];
        for (int64_t r = 1; r < P; r++) values[P * piece + i] += all[r * rest + i];
    }
}
