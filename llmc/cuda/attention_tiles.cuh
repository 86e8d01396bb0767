// What the tensor-core kernels of attention.cuh are made of: tiles of rows in shared memory, their
// products, and the way back to global memory.
//
// Shared memory is swizzled: the 16-byte chunk c of row r lies at place c ^ (r % 8) of its row, so
// that the 8 rows which ldmatrix reads at once lie in different banks.
#pragma once
#include "llmc/cuda/mma.cuh"

constexpr int ATTENTION_THREADS = 128, ATTENTION_ROWS = 64;  // a block's threads, and its queries (or keys); 16 a warp

// Rows of HS bf16 in shared memory, swizzled.
template <int HS>
struct Tile {
    static constexpr int chunks = HS / 8;
    bf16* data;
    __device__ bf16* at(int row, int chunk) const {
        return data + (row * chunks + (chunks % 8 == 0 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3))) * 8;
    }
};

// Starts copying rows first.. of one head into the tile; zeros for rows from T on and for channels
// from head_size on.
template <int HS, int ROWS>
__device__ inline void load_tile(Tile<HS> tile, const bf16* head, int64_t stride, int first, int T, int head_size) {
    for (int i = threadIdx.x; i < ROWS * (HS / 8); i += ATTENTION_THREADS) {
        const int row = i / (HS / 8), chunk = i % (HS / 8);
        const bool valid = first + row < T && chunk * 8 < head_size;
        copy_async(tile.at(row, chunk), head + (valid ? (first + row) * stride + chunk * 8 : 0), valid);
    }
}

// The A of mma: rows row..row+15, channels 16k..16k+15 of a tile.
template <int HS>
__device__ inline void load_a(uint32_t (&a)[4], Tile<HS> tile, int row, int k) {
    const int lane = threadIdx.x % 32;
    ldmatrix(a, tile.at(row + lane % 16, 2 * k + lane / 16));
}

// c (16 x N) = rows a_row..a_row+15 of a, times rows 0..N-1 of b, transposed.
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

// c (16 x HS) += p (16 x N), rounded to bf16, times rows 0..N-1 of b.
template <int N, int HS>
__device__ inline void multiply(float (&c)[HS / 8][4], const float (&p)[N / 8][4], Tile<HS> b) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        const uint32_t fa[4] = {pack_bf16(p[2 * j][0], p[2 * j][1]), pack_bf16(p[2 * j][2], p[2 * j][3]),
                                pack_bf16(p[2 * j + 1][0], p[2 * j + 1][1]),
                                pack_bf16(p[2 * j + 1][2], p[2 * j + 1][3])};
#pragma unroll
        for (int n = 0; n < HS / 16; n++) {
            uint32_t fb[4];
            ldmatrix_transposed(fb, b.at(j * 16 + lane % 16, 2 * n + lane / 16));
            mma(c[2 * n], fa, fb[0], fb[1]);
            mma(c[2 * n + 1], fa, fb[2], fb[3]);
        }
    }
}

// A warp's 16 rows of c, the upper 8 times upper, the lower times lower, to rows first.. of a head
// in global memory, by way of rows tile_row.. of a tile that only this warp still uses: 16 bytes a
// store.
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

// What a block works on: one head of one sequence, and 64 rows of it.
struct AttentionBlock {
    int64_t b, h, C, stride;
    int first;  // row
    __device__ AttentionBlock(int64_t NH, int head_size, int64_t tile)
        : b(blockIdx.x / NH), h(blockIdx.x % NH), C(NH * head_size), stride(3 * C), first((int)tile * ATTENTION_ROWS) {}
};

// D (B,NH,T) = dout . out of every head at every position. A thread: one of them.
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
