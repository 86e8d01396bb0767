// Processes as a mesh of three axes: R replicas of the model, each in P stages, each of N processes
// that share every layer. Who sends most sits closest: those that share layers are neighbours, then
// come the replicas, and the stages of one replica are farthest apart.
//
//     rank = (stage R + replica) N + part
//
//     R 2, P 2, N 2:     stage 0          stage 1
//     replica 0          0 1              4 5            parts:     {0 1} {2 3} {4 5} {6 7}
//     replica 1          2 3              6 7            replicas:  {0 2} {1 3} {4 6} {5 7}
//
// Source: Narayanan et al. 2021, arXiv:2104.04473, section 3.
#pragma once
#include "llmc/comm/comm.h"

struct Mesh {
    int64_t R, P, N;
    int64_t replica, stage, part;  // of this process
    CommGroup parts, replicas;     // which share its layers; which have the same weights

    bool first() const { return stage == 0; }
    bool last() const { return stage == P - 1; }
    bool has(int64_t other_stage) const { return other_stage >= 0 && other_stage < P; }
    // The process of another stage with the same replica and part.
    int64_t rank_of(int64_t other_stage) const { return (other_stage * R + replica) * N + part; }
};
// All processes call it.
inline Mesh make_mesh(int64_t R, int64_t P, int64_t N) {
    const int64_t r = comm.rank, part = r % N, replica = r / N % R, stage = r / (N * R);
    const CommGroup parts = comm_make_group({N, part, r - part, 1});
    return {R, P, N, replica, stage, part, parts, comm_make_group({R, replica, stage * R * N + part, N})};
}
