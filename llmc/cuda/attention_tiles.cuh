// Tiles of rows in shared memory, for attention on tensor cores: how their rows lie there, how they
// arrive, and how results leave through them.
//
// A tile has rows of HS halfX, which are HS/8 chunks of 16 bytes. Shared memory has 32 banks of 4
// bytes: 8 columns of 16 bytes, each of which delivers one chunk at a time. ldmatrix reads the same
// chunk c of 8 consecutive rows at once, so these 8 chunks must lie in different columns. They are
// permuted (swizzled): chunk c of row r is stored as chunk c ^ x(r) of its row.
//
// HS 64, 128, 256: every row begins in column 0. x(r) = r % 8 moves chunk c to a different column
// in each of 8 rows. HS 64:
//
//     column    0   1   2   3   4   5   6   7
//     row 0    c0  c1  c2  c3  c4  c5  c6  c7
//     row 1    c1  c0  c3  c2  c5  c4  c7  c6
//     row 2    c2  c3  c0  c1  c6  c7  c4  c5
//      ...
//     row 7    c7  c6  c5  c4  c3  c2  c1  c0
//
// HS 32, 96: rows have 4 or 12 chunks, so odd rows begin in column 4, and only rows of the same
// parity collide. x(r) = r / 2 % 4 tells the four even rows apart, and the four odd ones. It is
// below 4, because chunk c ^ 4 may lie outside the row. HS 32, with two rows on a line of 128
// bytes:
//
//     column    0   1   2   3         4   5   6   7
//     row 0    c0  c1  c2  c3  row 1 c0  c1  c2  c3
//     row 2    c1  c0  c3  c2  row 3 c1  c0  c3  c2
//     row 4    c2  c3  c0  c1  row 5 c2  c3  c0  c1
//     row 6    c3  c2  c1  c0  row 7 c3  c2  c1  c0
#pragma once
#include "llmc/cuda/mma.cuh"

constexpr int ATTENTION_WARPS = 4, ATTENTION_THREADS = 32 * ATTENTION_WARPS;  // per block

template <int HS>
struct Tile {
    static constexpr int chunks = HS / 8;
    halfX* data;
    __device__ halfX* at(int row, int chunk) const {
        const int stored_as = chunks % 8 == 0 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3);
        return data + (row * chunks + stored_as) * 8;
    }
    // The rows from `row` on, a multiple of 8: x(r) repeats every 8 rows. If `row` is a constant,
    // the addresses are those of the whole tile plus a constant, which costs no instruction.
    __device__ Tile from_row(int row) const { return {data + row * HS}; }
};

// Starts copying rows first .. first + ROWS - 1 of a head into the tile. stride is the distance of
// the head's rows in elements. Rows from `length` on and channels from head_size on become zeros.
//
// The block copies STEP rows at once, of each LANES chunks. The thread's next chunks are STEP rows
// or LANES chunks further on. In the tile these are constant distances, because x(r) is the same
// there: STEP is a multiple of 8, and LANES is above every x(r).
template <int HS, int ROWS>
__device__ inline void load_tile(Tile<HS> tile, const halfX* head, int stride, int first, int length, int head_size) {
    constexpr int chunks = HS / 8, LANES = chunks % 16 == 0 ? 16 : chunks % 8 == 0 ? 8 : 4;
    constexpr int STEP = ATTENTION_THREADS / LANES;
    static_assert(ROWS % STEP == 0 && STEP % 8 == 0 && chunks % LANES == 0, "whole steps");
    const int row = threadIdx.x / LANES, chunk = threadIdx.x % LANES;
    const halfX* from = head + (int64_t)(first + row) * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP)
#pragma unroll
        for (int j = 0; j < chunks; j += LANES) {
            const bool valid = row < length - first - i && (chunk + j) * 8 < head_size;
            copy_async(tile.from_row(i).at(row, chunk) + j * 8, from + i * stride + j * 8, valid);
        }
}

// Stores a warp's 16 rows of c to rows first .. first + 15 of a head in global memory; the upper 8
// rows are multiplied by `upper`, the lower 8 by `lower`. A lane holds 4 bytes here and there, so
// the rows go through rows tile_row .. tile_row + 15 of a tile, which no other warp uses any more,
// and leave it in chunks of 16 bytes. If there are `sums`, what is stored is added to them: a
// lane's columns are 8n + lane % 4 * 2 and the next one.
template <int HS>
__device__ inline void store_rows(halfX* head, int stride, int first, int T, int head_size, const float (&c)[HS / 8][4],
                                  float upper, float lower, Tile<HS> tile, int tile_row, float (*sums)[2] = nullptr) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < HS / 8; n++) {
        const uint32_t up = pack_pair<halfX>(c[n][0] * upper, c[n][1] * upper);
        const uint32_t low = pack_pair<halfX>(c[n][2] * lower, c[n][3] * lower);
        *(uint32_t*)(tile.at(tile_row + g, n) + 2 * t) = up;
        *(uint32_t*)(tile.at(tile_row + g + 8, n) + 2 * t) = low;
        if (!sums) continue;
        float up_pair[2], low_pair[2];
        unpack_pair<halfX>(up, up_pair[0], up_pair[1]), unpack_pair<halfX>(low, low_pair[0], low_pair[1]);
        sums[n][0] += up_pair[0] + low_pair[0], sums[n][1] += up_pair[1] + low_pair[1];
    }
    __syncwarp();
    for (int i = lane; i < 16 * (HS / 8); i += 32) {
        const int row = i / (HS / 8), chunk = i % (HS / 8);
        if (first + row < T && chunk * 8 < head_size)
            store_pack(head + (int64_t)(first + row) * stride + chunk * 8, load_pack(tile.at(tile_row + row, chunk)));
    }
}

// The sums of a warp's columns, from those that its lanes have by store_rows, to `to` (HS).
template <int HS>
__device__ inline void add_lanes(float* to, const float (&sums)[HS / 8][2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < HS / 8; n++)
        for (int i = 0; i < 2; i++) {
            float sum = sums[n][i];
            for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
            if (lane < 4) to[n * 8 + lane * 2 + i] = sum;
        }
}
// The sums of a block's columns, for MATRICES results of which the warps' sums lie in warps
// (ATTENTION_WARPS, MATRICES, HS). Result i goes to part + i C. To be called by all threads.
template <int HS, int MATRICES>
__device__ inline void add_warps(float* part, int C, int head_size, const float* warps) {
    __syncthreads();
    for (int i = threadIdx.x; i < MATRICES * HS; i += ATTENTION_THREADS) {
        float total = 0;
        for (int w = 0; w < ATTENTION_WARPS; w++) total += warps[w * MATRICES * HS + i];
        if (i % HS < head_size) part[i / HS * C + i % HS] = total;
    }
}
