// ----- task
// Where a process is in a mesh of D replicas, P stages and N parts (Narayanan et al. 2021,
// arXiv:2104.04473, section 3). Parts of a layer are neighbours, then come replicas, then stages:
//
//     rank = (stage D + replica) N + part
//
// Write the ranks, in increasing order, of the processes that differ from `rank` in one axis at
// most: parts (N), replicas (D) and stages (P). Each has `rank` itself in it.
void mesh_ranks(int64_t* parts, int64_t* replicas, int64_t* stages, int64_t rank, int64_t D, int64_t P, int64_t N) {
    // your code
}

// ----- solution
void mesh_ranks(int64_t* parts, int64_t* replicas, int64_t* stages, int64_t rank, int64_t D, int64_t P, int64_t N) {
    const int64_t part = rank % N, replica = rank / N % D, stage = rank / (N * D);
    for (int64_t i = 0; i < N; i++) parts[i] = (stage * D + replica) * N + i;
    for (int64_t i = 0; i < D; i++) replicas[i] = (stage * D + i) * N + part;
    for (int64_t i = 0; i < P; i++) stages[i] = (i * D + replica) * N + part;
}

// ----- mistakes
//     other-order: part = rank % N, replica = rank / N % D, stage = rank / (N * D); ==> replica = rank % D,
//         part = rank / D % N, stage = rank / (N * D);
//     first-mesh: parts[i] = (stage * D + replica) * N + i ==> parts[i] = i
//     wrap: replica = rank / N % D ==> replica = rank / N
//     first-stage: replicas[i] = (stage * D + i) * N + part ==> replicas[i] = i * N + part
//     first-replica: stages[i] = (i * D + replica) * N + part ==> stages[i] = i * D * N + part

// ----- judge
#include "dev/course/exercises/judge.h"
static Arrays ranks_of(int64_t rank, int64_t D, int64_t P, int64_t N, const Key& wrong) {
    const bool other = wrong == "other-order";
    const int64_t part = other ? rank / D % N : rank % N, stage = rank / (N * D);
    const int64_t replica = other ? rank % D : wrong == "wrap" ? rank / N : rank / N % D;
    Arrays found(3);
    for (int64_t i = 0; i < N; i++) found[0].push_back(wrong == "first-mesh" ? i : (stage * D + replica) * N + i);
    for (int64_t i = 0; i < D; i++) found[1].push_back(((wrong == "first-stage" ? 0 : stage) * D + i) * N + part);
    for (int64_t i = 0; i < P; i++) found[2].push_back((i * D + (wrong == "first-replica" ? 0 : replica)) * N + part);
    return found;
}

void judge(Judge& j, decltype(task::mesh_ranks)* mesh_ranks) {
    j.hints = {{"other-order", "here replicas are neighbours; the parts of a layer, which send most, should be."},
               {"first-mesh", "these are the parts of the first stage of the first replica, whatever the rank."},
               {"wrap", "rank / N counts on over the stages: the replica is that modulo D."},
               {"first-stage", "replicas of this process are in its own stage, not in the first one."},
               {"first-replica", "a pipeline stays within a replica: the stages are those of the own one."}};
    for (auto [D, P, N] : {std::array<int64_t, 3>{1, 1, 1}, {2, 2, 2}, {3, 2, 4}, {1, 4, 2}, {4, 3, 1}}) {
        j.sizes("%d replicas, %d stages, %d parts", (int)D, (int)P, (int)N);
        const int64_t all = D * P * N;
        std::vector<int64_t> parts(all * N, -1), replicas(all * D, -1), stages(all * P, -1);
        for (int64_t r = 0; r < all; r++) mesh_ranks(&parts[r * N], &replicas[r * D], &stages[r * P], r, D, P, N);
        j.check({{"parts of rank", {all, N}, parts, std::vector<float>(all * N, -1)},
                 {"replicas of rank", {all, D}, replicas, std::vector<float>(all * D, -1)},
                 {"stages of rank", {all, P}, stages, std::vector<float>(all * P, -1)}},
                [&, D = D, P = P, N = N](const Key& wrong) -> Arrays {
                    Arrays found(3);
                    for (int64_t r = 0; r < all; r++) {
                        const Arrays one = ranks_of(r, D, P, N, wrong);
                        for (int i = 0; i < 3; i++) found[i].insert(found[i].end(), one[i].begin(), one[i].end());
                    }
                    return found;
                });
    }
}
