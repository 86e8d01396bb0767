// Causal self-attention, forward: from the T x T matrix of scores in memory to flash attention on
// tensor cores. FLOPs: 2 B T^2 C. Bytes, at least: qkv read, out written.
#include "dev/cuda/bench_cuda.cuh"
#include "dev/cuda/hopper.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/attention.cuh"

struct Operands {
    bf16* out;
    float *lse, *matrix;  // matrix (B,NH,T,T): the first rungs only
    const bf16* qkv;
    int B, T, C, NH, HS;
    __device__ const bf16* row(int b, int t, int which, int h) const {
        return qkv + ((int64_t)b * T + t) * 3 * C + which * C + h * HS;
    }
};

// One thread per score. Neighbouring threads read rows of keys, 3C elements apart.
__global__ void scores_kernel(Operands o) {
    const int key = blockIdx.x * blockDim.x + threadIdx.x, query = blockIdx.y, b = blockIdx.z / o.NH,
              h = blockIdx.z % o.NH;
    if (key > query) return;
    const bf16 *q = o.row(b, query, 0, h), *k = o.row(b, key, 1, h);
    float sum = 0;
    for (int c = 0; c < o.HS; c++) sum += (float)q[c] * (float)k[c];
    o.matrix[((int64_t)blockIdx.z * o.T + query) * o.T + key] = sum * rsqrtf((float)o.HS);
}
// 16 x 16 scores per block, one per thread; 16 queries and 16 keys in shared memory. Each value
// read from memory serves 16 scores.
constexpr int SMALL = 16;
__global__ void __launch_bounds__(SMALL* SMALL) scores_shared_kernel(Operands o) {
    __shared__ float q[SMALL][SMALL + 1];
    __shared__ float k[SMALL][SMALL + 1];
    const int tx = threadIdx.x, ty = threadIdx.y, key0 = blockIdx.x * SMALL, query0 = blockIdx.y * SMALL,
              b = blockIdx.z / o.NH, h = blockIdx.z % o.NH;
    if (key0 > query0) return;  // all of these keys come after all of these queries
    float sum = 0;
    for (int c0 = 0; c0 < o.HS; c0 += SMALL) {
        q[ty][tx] = query0 + ty < o.T && c0 + tx < o.HS ? (float)o.row(b, query0 + ty, 0, h)[c0 + tx] : 0.0f;
        k[ty][tx] = key0 + ty < o.T && c0 + tx < o.HS ? (float)o.row(b, key0 + ty, 1, h)[c0 + tx] : 0.0f;
        __syncthreads();
        for (int c = 0; c < SMALL; c++) sum += q[ty][c] * k[tx][c];
        __syncthreads();
    }
    const int query = query0 + ty, key = key0 + tx;
    if (query < o.T && key <= query)
        o.matrix[((int64_t)blockIdx.z * o.T + query) * o.T + key] = sum * rsqrtf((float)o.HS);
}
// One warp per row of the matrix.
__global__ void softmax_kernel(Operands o) {
    const int query = blockIdx.x;
    float* p = o.matrix + ((int64_t)blockIdx.y * o.T + query) * o.T;
    float top = -INFINITY, total = 0;
    for (int key = threadIdx.x; key <= query; key += 32) top = fmaxf(top, p[key]);
    top = warp_max(top);
    for (int key = threadIdx.x; key <= query; key += 32) total += p[key] = expf(p[key] - top);
    total = warp_sum(total);
    for (int key = threadIdx.x; key <= query; key += 32) p[key] /= total;
    if (threadIdx.x == 0) o.lse[(int64_t)blockIdx.y * o.T + query] = top + logf(total);
}
// One block per query of a head, one thread per channel of the output.
__global__ void mix_kernel(Operands o) {
    const int c = threadIdx.x, query = blockIdx.x, b = blockIdx.y / o.NH, h = blockIdx.y % o.NH;
    const float* p = o.matrix + ((int64_t)blockIdx.y * o.T + query) * o.T;
    float sum = 0;
    for (int key = 0; key <= query; key++) sum += p[key] * (float)o.row(b, key, 2, h)[c];
    o.out[((int64_t)b * o.T + query) * o.C + h * o.HS + c] = (bf16)sum;
}
// Online softmax: one warp per query walks over the keys once. A lane holds every 32nd channel of
// query and output. Nothing of size T x T is stored.
constexpr int MOST_CHANNELS = 4;  // per lane
__global__ void online_kernel(Operands o) {
    const int query = blockIdx.x * blockDim.y + threadIdx.y, b = blockIdx.y / o.NH, h = blockIdx.y % o.NH,
              lane = threadIdx.x;
    if (query >= o.T) return;
    float q[MOST_CHANNELS], out[MOST_CHANNELS] = {}, top = -INFINITY, total = 0;
    for (int i = 0; i < MOST_CHANNELS; i++)
        q[i] = lane + 32 * i < o.HS ? (float)o.row(b, query, 0, h)[lane + 32 * i] * rsqrtf((float)o.HS) : 0.0f;
    for (int key = 0; key <= query; key++) {
        const bf16 *k = o.row(b, key, 1, h), *v = o.row(b, key, 2, h);
        float score = 0;
        for (int i = 0; i < MOST_CHANNELS; i++)
            if (lane + 32 * i < o.HS) score += q[i] * (float)k[lane + 32 * i];
        score = warp_sum(score);
        const float higher = fmaxf(top, score), shrink = expf(top - higher), p = expf(score - higher);
        total = total * shrink + p, top = higher;
        for (int i = 0; i < MOST_CHANNELS; i++)
            if (lane + 32 * i < o.HS) out[i] = out[i] * shrink + p * (float)v[lane + 32 * i];
    }
    for (int i = 0; i < MOST_CHANNELS; i++)
        if (lane + 32 * i < o.HS)
            o.out[((int64_t)b * o.T + query) * o.C + h * o.HS + lane + 32 * i] = (bf16)(out[i] / total);
    if (lane == 0) o.lse[(int64_t)blockIdx.y * o.T + query] = top + logf(total);
}
// Copies a tile in the plain way: the thread's next chunk is wherever its number says, and the
// number of chunks is not known to the compiler. Row, chunk, swizzle and bounds are computed for
// each.
template <int HS>
__device__ inline void load_plainly(Tile<HS> tile, int rows, const bf16* head, int stride, int first, int T,
                                    int head_size) {
    for (int i = threadIdx.x; i < rows * (HS / 8); i += ATTENTION_THREADS) {
        const int row = i / (HS / 8), chunk = i % (HS / 8);
        const bool valid = first + row < T && chunk * 8 < head_size;
        copy_async(tile.at(row, chunk), head + (valid ? (first + row) * (int64_t)stride + chunk * 8 : 0), valid);
    }
}
// Tensor cores, as in the shipped kernel (llmc/cuda/attention_forward.cuh), but with 16 queries per
// warp, which are loaded from shared memory for each tile, and with one buffer: a tile of keys and
// values is loaded, then multiplied, then the next is loaded.
template <int HS, int KEYS, bool CONSTANT_STEPS>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    tensor_kernel(bf16* out, float* lse, const bf16* qkv, int T, int NH, int head_size, float scale,
                  int keys_per_tile) {
    extern __shared__ __align__(128) bf16 shared[];
    constexpr int ROWS = 16 * ATTENTION_WARPS;
    const AttentionOrder order{nullptr, (int)gridDim.x, ALL_KEYS, 1, NH * head_size};
    const AttentionBlock<ROWS, FIRST_TILE_FIRST> block(order, T, NH, head_size);
    const bf16* head = qkv + block.qkv_offset;
    const Tile<HS> q{shared}, keys = q.from_row(ROWS), values = keys.from_row(KEYS);
    auto load_keys = [&](Tile<HS> tile, int which, int first_key) {
        const bf16* from = head + which * block.C;
        if (CONSTANT_STEPS) load_tile<HS, KEYS>(tile, from, block.stride, first_key, T, head_size);
        else load_plainly(tile, keys_per_tile, from, block.stride, first_key, T, head_size);
    };
    const int warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, row = block.first + warp_row + lane / 4;
    load_tile<HS, ROWS>(q, head, block.stride, block.first, T, head_size);
    float o[1][HS / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    for (int first_key = 0; first_key < min(T, block.first + ROWS); first_key += KEYS) {
        load_keys(keys, 1, first_key);
        load_keys(values, 2, first_key);
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        float s[1][KEYS / 8][4];
        multiply_transposed<KEYS>(s, RowsInShared<HS, 1>{q, warp_row}, keys);
        mask(s, block.first + warp_row, first_key, [](int query, int key) { return key > query; });
        softmax_step<HS, KEYS>(s[0], o[0], m, l, scale);
        multiply<KEYS>(o, s, values);
        __syncthreads();
    }
    for (int half = 0; half < 2; half++) {
        l[half] = row_sum(l[half]);
        if (lane % 4 == 0 && row + 8 * half < T)
            lse[block.row_offset + row + 8 * half] = m[half] * scale + logf(l[half]);
    }
    bf16* out_head = out + block.out_offset;
    store_rows(out_head, block.C, block.first + warp_row, T, head_size, o[0], 1.0f / l[0], 1.0f / l[1], q, warp_row);
}
// The shipped kernel with 16 queries per warp.
struct Forward16 {
    AttentionForward<false> forward;
    template <int HS, int KEYS, int COLS, int M>
    void run() {
        forward.run<HS, KEYS, COLS, 1>();
    }
};

// Hopper's instructions (hopper.cuh has the pictures). A block has 128 queries of a head, one
// warpgroup 64 of them; a ninth warp, the producer, keeps tiles of keys and values on their way.
// Scores are a product of two tiles; probabilities go from registers into p v, in the layout of
// mma.cuh, and values are a transposed operand. While one warpgroup computes its softmax, the other
// has the tensor cores. With 9 warps a thread has 168 registers, enough for 128 keys at HS 64, and
// for 64 at HS 128. TMA fills head sizes between these with zeros.
constexpr int STAGES = 2, CONSUMER_WARPS = 8, HOPPER_ROWS = 128, BOX_ROWS = 64;
template <int HS, int KEYS>
constexpr size_t wgmma_shared_bytes() {
    return (HOPPER_ROWS + 2 * STAGES * KEYS) * HS * sizeof(bf16) + PATTERN_BYTES;
}
// Rows of q, keys or values lie in HS / 64 tiles of 64 columns, one behind the other. This starts
// to copy ROWS of them.
template <int HS, int ROWS>
__device__ inline void load_by_tma(bf16* to, const TensorMap& qkv, int head, int first, int b, uint64_t* barrier) {
    for (int c = 0; c < HS; c += BOX_COLUMNS)
        for (int r = 0; r < ROWS; r += BOX_ROWS)
            tma_load(to + c * ROWS + r * BOX_COLUMNS, qkv, c, head, first + r, b, barrier);
}
// s (64 x KEYS) = 64 rows of q times keys, transposed.
template <int HS, int KEYS>
__device__ inline void multiply_scores(float (&s)[KEYS / 8][4], const bf16* q, const bf16* keys) {
    wgmma_fence(s);
#pragma unroll
    for (int c = 0; c < HS; c += 16) {
        const int in_row = c % BOX_COLUMNS, tile = c - in_row;
        wgmma(s, further(descriptor(q + tile * HOPPER_ROWS), in_row), further(descriptor(keys + tile * KEYS), in_row),
              c > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(s);
}
// o (64 x HS) += p (64 x KEYS), rounded to bf16, times values.
template <int HS, int KEYS>
__device__ inline void multiply_values(float (&o)[HS / 8][4], const float (&p)[KEYS / 8][4], const bf16* values) {
    uint32_t a[KEYS / 16][4];
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++)
        for (int i = 0; i < 4; i++) {
            const float(&half)[4] = p[2 * j + i / 2];
            a[j][i] = pack_pair<bf16>(half[i % 2 * 2], half[i % 2 * 2 + 1]);
        }
    wgmma_fence(o);
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++)
        wgmma(o, a[j], further(descriptor(values, KEYS * BOX_COLUMNS * sizeof(bf16)), j * 16 * BOX_COLUMNS));
    wgmma_commit();
    wgmma_wait<0>(o);
}
template <int HS, int KEYS>
__global__ void __launch_bounds__(32 * (CONSUMER_WARPS + 1), 1)
    attention_wgmma_kernel(const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap out, float* lse,
                           int T, int NH, float scale) {
#ifdef HOPPER_CODE
    extern __shared__ __align__(128) bf16 shared[];
    __shared__ uint64_t full[STAGES];
    __shared__ uint64_t empty[STAGES];
    __shared__ uint64_t q_full[1];
    __shared__ uint64_t finished[1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = blockIdx.x % NH, b = blockIdx.x / NH,
              first = (gridDim.y - 1 - blockIdx.y) * HOPPER_ROWS, tiles = ceil_div(min(T, first + HOPPER_ROWS), KEYS);
    bf16 *const q = first_tile(shared), *const stages = q + HOPPER_ROWS * HS;
    constexpr int VALUES = KEYS * HS, STAGE = 2 * VALUES;  // elements
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) mbarrier_init(&full[s], 1), mbarrier_init(&empty[s], CONSUMER_WARPS);
        mbarrier_init(q_full, 1), mbarrier_init(finished, CONSUMER_WARPS);
        fence_async();
    }
    __syncthreads();
    if (warp == CONSUMER_WARPS) {
        if (lane != 0) return;
        mbarrier_expect(q_full, HOPPER_ROWS * HS * sizeof(bf16));
        load_by_tma<HS, HOPPER_ROWS>(q, qkv, h, first, b, q_full);
        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            bf16* const keys = stages + stage * STAGE;
            mbarrier_wait(&empty[stage], (tile / STAGES + 1) % 2);  // in the first round nobody has to arrive
            mbarrier_expect(&full[stage], STAGE * sizeof(bf16));
            load_by_tma<HS, KEYS>(keys, qkv, NH + h, tile * KEYS, b, &full[stage]);
            load_by_tma<HS, KEYS>(keys + VALUES, qkv, 2 * NH + h, tile * KEYS, b, &full[stage]);
        }
        return;
    }
    const int first_query = first + warp * 16, row = first_query + lane / 4;
    float o[HS / 8][4] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    mbarrier_wait(q_full, 0);
    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % STAGES, first_key = tile * KEYS;
        const bf16* const keys = stages + stage * STAGE;
        float s[1][KEYS / 8][4];
        mbarrier_wait(&full[stage], tile / STAGES % 2);
        multiply_scores<HS, KEYS>(s[0], q + warp / 4 * 64 * BOX_COLUMNS, keys);
        if (first_key + KEYS - 1 > first_query)
            mask(s, first_query, first_key, [](int query, int key) { return key > query; });
        softmax_step<HS, KEYS>(s[0], o, m, l, scale);
        multiply_values<HS, KEYS>(o, s[0], keys + VALUES);
        if (lane == 0) mbarrier_arrive(&empty[stage]);
    }
    for (int half = 0; half < 2; half++) {
        l[half] = row_sum(l[half]);
        if (lane % 4 == 0 && row + 8 * half < T)
            lse[(int64_t)blockIdx.x * T + row + 8 * half] = m[half] * scale + logf(l[half]);
    }
    if (lane == 0) mbarrier_arrive(finished);
    mbarrier_wait(finished, 0);  // no warp multiplies q any more
    store_through(q + warp * 16 * HS, out, 0, h, first_query, b, o, 1.0f / l[0], 1.0f / l[1]);
#endif
}

BENCH("attention_forward", dims("B", "T", "C", "NH"),
      shapes({{16, 1024, 768, 12}, {2, 67, 128, 2}, {1, 130, 96, 3}, {1, 33, 128, 1}, {1, 261, 64, 1}, {1, 270, 80, 1}},
             counted({1, 256, 128, 2}))) {
    const int64_t B = shape[0], T = shape[1], C = shape[2], NH = shape[3], HS = C / NH, rows = B * T;
    float *qkv = random_floats(rows * 3 * C, 1.5), *out = buffer<float>(rows * C), *lse = buffer<float>(rows * NH);
    bf16 *d_qkv = on_device<bf16>(qkv, rows * 3 * C), *d_out = device_buffer<bf16>(rows * C);
    float *d_lse = device_buffer<float>(rows * NH), *d_matrix = device_buffer<float>(B * NH * T * T);
    const Operands o{d_out, d_lse, d_matrix, d_qkv, (int)B, (int)T, (int)C, (int)NH, (int)HS};
    flops(2.0 * B * T * T * C), bytes(2.0 * rows * 4 * C);
    output("out", out, rows * C, 0), device_output("out", d_out, rows * C, bf16_tolerance(2, HS + T));
    expected([=] { reference::attention_forward(out, lse, qkv, B, T, C, NH); });
    auto rest = [=] {
        launch("softmax", softmax_kernel, grid_for(T, 1, B * NH, 1), 32, 0, stream, o);
        launch("mix", mix_kernel, grid_for(T, 1, B * NH, 1), (unsigned)HS, 0, stream, o);
    };
    auto naive = [=] {
        launch("scores", scores_kernel, grid_for(T, 64, T, 1, B * NH), 64, 0, stream, o);
        rest();
    };
    variant_bf16("naive", "three kernels; between them the T x T matrix of each head is in memory, in fp32", naive);
    auto shared = [=] {
        launch("scores_shared", scores_shared_kernel, grid_for(T, SMALL, T, SMALL, B * NH), dim3(SMALL, SMALL), 0,
               stream, o);
        rest();
    };
    variant_bf16("shared",
                 "scores from 16 x 16 tiles in shared memory: a sixteenth of the loads of queries and keys; the matrix "
                 "is still in memory",
                 shared);
    auto online = [=] { launch("online", online_kernel, grid_for(T, 4, B * NH, 1), dim3(32, 4), 0, stream, o); };
    variant_bf16("online",
                 "one kernel, one warp per query, a softmax that is corrected as it goes: no matrix; but every query "
                 "reads its keys and values on its own",
                 online);
    auto run_tensor = [=](auto kernel, int padded) {
        const int keys = 64;
        const size_t shared_bytes = (64 + 2 * keys) * padded * sizeof(bf16);
        allow_shared(kernel, shared_bytes, "tensor");
        launch("tensor", kernel, attention_grid(B, T, NH, 64, {}), ATTENTION_THREADS, shared_bytes, stream, d_out,
               d_lse, d_qkv, (int)T, (int)NH, (int)HS, 1.0f / sqrtf((float)HS), keys);
    };
    auto tensor_cores = [=] {
        if (HS <= 32) run_tensor(tensor_kernel<32, 64, false>, 32);
        else if (HS <= 64) run_tensor(tensor_kernel<64, 64, false>, 64);
        else run_tensor(tensor_kernel<128, 64, false>, 128);
    };
    variant_bf16("tensor-cores",
                 "64 queries share tiles of 64 keys and values; products by mma.sync; scores stay in registers",
                 tensor_cores);
    auto constant_steps = [=] {
        if (HS <= 32) run_tensor(tensor_kernel<32, 64, true>, 32);
        else if (HS <= 64) run_tensor(tensor_kernel<64, 64, true>, 64);
        else run_tensor(tensor_kernel<128, 64, true>, 128);
    };
    variant_bf16(
        "constant-steps",
        "a thread's copies are constant steps apart, in memory and in the swizzled tile: the loop is unrolled, "
        "and most addresses are constants in the instructions",
        constant_steps);
    auto async = [=] {
        Forward16 forward{{d_out, d_lse, d_qkv, B, T, C, NH, stream, {}, 0, NH}};
        for_head_size(HS, forward);
    };
    variant_bf16("async",
                 "two buffers: the next tile arrives while this one is multiplied; queries stay in registers; those "
                 "with the most keys start first; masks only on the diagonal",
                 async);
    auto run_wgmma = [=](auto kernel, size_t shared_bytes) {
        const TensorMap qkv_map = tensor_map(d_qkv, B, T, 3 * NH, HS, 3 * C, T * 3 * C, BOX_ROWS),
                        out_map = tensor_map(d_out, B, T, NH, HS, C, T * C, 16);
        allow_hopper_shared(kernel, shared_bytes, "attention_wgmma");
        launch("attention_wgmma", kernel, attention_grid(B, T, NH, HOPPER_ROWS, {}), 32 * (CONSUMER_WARPS + 1),
               shared_bytes, stream, qkv_map, out_map, d_lse, (int)T, (int)NH, 1.0f / sqrtf((float)HS));
    };
    auto wgmma_and_tma = [=] {
        if (HS <= 64) run_wgmma(attention_wgmma_kernel<64, 128>, wgmma_shared_bytes<64, 128>());
        else run_wgmma(attention_wgmma_kernel<128, 64>, wgmma_shared_bytes<128, 64>());
    };
    if (has_hopper_code(stream))
        variant_bf16("wgmma",
                     "Hopper alone: products of 64 queries and 128 keys in one instruction, from shared memory, where "
                     "one thread's copies by TMA put them",
                     wgmma_and_tma);
    auto shipped = [=] { attention_forward(d_out, d_lse, d_qkv, B, T, C, NH, stream); };
    variant_bf16("shipped",
                 "32 queries per warp, where registers allow: each fragment of keys and values that is loaded from "
                 "shared memory serves two of queries; groups of heads whose keys and values stay in the cache",
                 shipped);
}
