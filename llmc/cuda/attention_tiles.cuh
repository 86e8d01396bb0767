// What the tensor-core kernels of attention.cuh are made of: tiles of rows in shared memory,
// products of tiles, and the way back to global memory.
//
// A tile has rows of HS bf16, which are HS/8 chunks of 16 bytes. Shared memory has 32 banks of 4
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
#include "llmc/documents.h"

constexpr int ATTENTION_THREADS = 128;  // per block: 4 warps
constexpr int ATTENTION_ROWS = 64;      // queries (or keys) per block, 16 per warp

template <int HS>
struct Tile {
    static constexpr int chunks = HS / 8;
    bf16* data;
    __device__ bf16* at(int row, int chunk) const {
        const int stored_as = chunks % 8 == 0 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3);
        return data + (row * chunks + stored_as) * 8;
    }
};

// Starts copying rows first .. first + ROWS - 1 of one head into the tile, one chunk per thread at
// a time. stride is the distance of the head's rows in elements. Rows from T on and channels from
// head_size on become zeros.
template <int HS, int ROWS>
__device__ inline void load_tile(Tile<HS> tile, const bf16* head, int64_t stride, int first, int T, int head_size) {
    for (int i = threadIdx.x; i < ROWS * (HS / 8); i += ATTENTION_THREADS) {
        const int row = i / (HS / 8), chunk = i % (HS / 8);
        const bool valid = first + row < T && chunk * 8 < head_size;
        copy_async(tile.at(row, chunk), head + (valid ? (first + row) * stride + chunk * 8 : 0), valid);
    }
}

// An A fragment: rows row .. row + 15, channels 16k .. 16k + 15 of the tile. Lanes 0-15 pass the
// rows' chunk 2k, lanes 16-31 their chunk 2k + 1.
template <int HS>
__device__ inline void load_a(uint32_t (&a)[4], Tile<HS> tile, int row, int k) {
    const int lane = threadIdx.x % 32;
    ldmatrix(a, tile.at(row + lane % 16, 2 * k + lane / 16));
}

// c (16 x N) = rows a_row .. a_row + 15 of a, times rows 0 .. N - 1 of b, transposed: 32 HS N FLOPs
// of one warp. c[n] is the C fragment of columns 8n .. 8n + 7. Row j of b is column j of the
// operand B, and contiguous along the sum; so ldmatrix, without transposing, loads B fragments:
// fb[0], fb[1] of columns 16n .. 16n + 7, fb[2], fb[3] of the 8 columns after them.
template <int N, int HS>
__device__ inline void multiply_transposed(float (&c)[N / 8][4], Tile<HS> a, int a_row, Tile<HS> b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++) c[n][i] = 0;
#pragma unroll 4
    for (int k = 0; k < HS / 16; k++) {
        uint32_t fa[4], fb[4];
        load_a(fa, a, a_row, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            ldmatrix(fb, b.at(n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            mma(c[2 * n], fa, fb[0], fb[1]);
            mma(c[2 * n + 1], fa, fb[2], fb[3]);
        }
    }
}

// c (16 x HS) += p (16 x N), rounded to bf16, times rows 0 .. N - 1 of b: 32 HS N FLOPs. p is a
// result of multiply_transposed: p[2j], p[2j + 1] are two C fragments side by side, which are the A
// fragment of columns 16j .. 16j + 15 (mma.cuh). Row j of b is row j of the operand B, so ldmatrix
// transposes.
template <int N, int HS>
__device__ inline void multiply(float (&c)[HS / 8][4], const float (&p)[N / 8][4], Tile<HS> b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        const float(&left)[4] = p[2 * j], (&right)[4] = p[2 * j + 1];
        const uint32_t fa[4] = {pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3]), pack_bf16(right[0], right[1]),
                                pack_bf16(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < HS / 16; n++) {
            uint32_t fb[4];
            ldmatrix_transposed(fb, b.at(j * 16 + lane % 16, 2 * n + lane / 16));
            mma(c[2 * n], fa, fb[0], fb[1]);
            mma(c[2 * n + 1], fa, fb[2], fb[3]);
        }
    }
}

// Stores a warp's 16 rows of c to rows first .. first + 15 of a head in global memory; the upper 8
// rows are multiplied by `upper`, the lower 8 by `lower`. A lane holds 4 bytes here and there, so
// the rows go through rows tile_row .. tile_row + 15 of a tile, which no other warp uses any more,
// and leave it in chunks of 16 bytes.
template <int HS>
__device__ inline void store_rows(bf16* head, int64_t stride, int first, int T, int head_size,
                                  const float (&c)[HS / 8][4], float upper, float lower, Tile<HS> tile, int tile_row) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < HS / 8; n++) {
        *(uint32_t*)(tile.at(tile_row + g, n) + 2 * t) = pack_bf16(c[n][0] * upper, c[n][1] * upper);
        *(uint32_t*)(tile.at(tile_row + g + 8, n) + 2 * t) = pack_bf16(c[n][2] * lower, c[n][3] * lower);
    }
    __syncwarp();
    for (int i = lane; i < 16 * (HS / 8); i += 32) {
        const int row = i / (HS / 8), chunk = i % (HS / 8);
        if (first + row < T && chunk * 8 < head_size)
            store_pack(head + (first + row) * stride + chunk * 8, load_pack(tile.at(tile_row + row, chunk)));
    }
}

// The documents of a batch in tiles, on the device (cut_documents in documents.h); without a
// document mask tiles is null, and each sequence is one document.
struct DocumentTiles {
    const DocumentTile* tiles = nullptr;
    int64_t count = 0;
};
inline dim3 attention_grid(int64_t B, int64_t T, int64_t NH, int64_t rows, DocumentTiles documents) {
    if (documents.tiles) return dim3((unsigned)(documents.count * NH));
    return dim3((unsigned)(B * NH), (unsigned)ceil_div(T, rows));
}

// In which order the tiles of a document are started. Those with the most work should be first: the
// last queries see the most keys, the first keys are seen by the most queries.
enum TileOrder { LAST_TILE_FIRST, FIRST_TILE_FIRST };

// What a block works on: ROWS rows of one head of one document. Rows are counted from the
// document's first position.
template <int ROWS, TileOrder ORDER>
struct AttentionBlock {
    int length, first;               // rows of the document; the block's first one
    int64_t C, stride;               // stride: of rows of qkv
    int64_t qkv_offset, out_offset;  // of the document's head in qkv and dqkv (B,T,3C), in out and dout (B,T,C)
    int64_t row_offset;              // of the document's head in lse and D (B,NH,T)
    __device__ AttentionBlock(const DocumentTile* tiles, int T, int64_t NH, int head_size)
        : length(T), C(NH * head_size), stride(3 * C) {
        const int64_t h = blockIdx.x % NH;
        int64_t b = blockIdx.x / NH, begin = 0;
        int tile = gridDim.y - 1 - blockIdx.y;
        if (tiles) {
            const DocumentTile part = tiles[blockIdx.x / NH];
            b = part.first / T, begin = part.first % T, length = part.length, tile = part.index;
        }
        if (ORDER == FIRST_TILE_FIRST) tile = ceil_div(length, ROWS) - 1 - tile;
        first = tile * ROWS;
        qkv_offset = (b * T + begin) * stride + h * head_size;
        out_offset = (b * T + begin) * C + h * head_size;
        row_offset = (b * NH + h) * T + begin;
    }
};

// D (B,NH,T) = dout . out, the dot product over the channels of a head at a position. One thread
// per head and position; n = B T NH of them. Memory-bound: reads dout and out (B,T,C) once.
template <class floatX>
__global__ void attention_dot_kernel(float* D, const floatX* dout, const floatX* out, int64_t n, int64_t T, int64_t NH,
                                     int head_size) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;  // (b, t, h)
    if (i >= n) return;
    float sum = 0;
    for (int c = 0; c < head_size; c += Pack<floatX>::size) {
        const Pack<floatX> a = load_pack(dout + i * head_size + c), b = load_pack(out + i * head_size + c);
        for (int k = 0; k < Pack<floatX>::size; k++) sum += (float)a[k] * (float)b[k];
    }
    const int64_t h = i % NH, t = i / NH % T, b = i / NH / T;
    D[(b * NH + h) * T + t] = sum;
}
template <class floatX>
void attention_dot(float* D, const floatX* dout, const floatX* out, int64_t B, int64_t T, int64_t NH, int head_size,
                   cudaStream_t stream) {
    const int64_t n = B * T * NH;
    launch("attention_dot", attention_dot_kernel<floatX>, dim3((unsigned)ceil_div(n, 256)), 256, 0, stream, D, dout,
           out, n, T, NH, head_size);
}
