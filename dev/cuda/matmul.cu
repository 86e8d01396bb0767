// The linear layer, out (rows, OC) = inp (rows, C) weight (OC, C)^T, 2 rows C OC FLOPs: from one
// thread per result to tensor cores fed by asynchronous copies; cuBLASLt is what ships. From the
// rung that loads 128 bits on, C must be a multiple of 8, as it is in all models.
#include "dev/cuda/bench_cuda.cuh"
#include "dev/cuda/hopper.cuh"
#include "llmc/cpu/reference.h"
#include "llmc/cuda/matmul.cuh"

struct Operands {
    bf16* out;
    const bf16 *inp, *weight;
    int rows, C, OC;
};
__device__ inline bool inside(const Operands& o, int row, int column) { return row < o.rows && column < o.OC; }

// One result of out: 2 C loads for C multiply-adds.
__device__ inline void compute_result(const Operands& o, int row, int column) {
    if (!inside(o, row, column)) return;
    float sum = 0;
    for (int c = 0; c < o.C; c++)
        sum += (float)o.inp[(int64_t)row * o.C + c] * (float)o.weight[(int64_t)column * o.C + c];
    o.out[(int64_t)row * o.OC + column] = (bf16)sum;
}

// One thread per result. Neighbouring threads have neighbouring rows: their loads of inp are C
// elements apart, their stores OC elements, each in a cache line of its own.
__global__ void matmul_naive_kernel(Operands o) {
    compute_result(o, blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y);
}
// Neighbouring threads have neighbouring columns: one value of inp serves a whole warp, and its
// results are contiguous. The weight is still read with a stride of C.
__global__ void matmul_coalesced_kernel(Operands o) {
    compute_result(o, blockIdx.y * blockDim.y + threadIdx.y, blockIdx.x * blockDim.x + threadIdx.x);
}

// 32 x 32 results per block, one per thread; 32 x 32 tiles of both operands in shared memory. They
// are loaded along C, with contiguous loads, and each value from memory serves 32 results.
constexpr int TILE = 32;
__global__ void __launch_bounds__(TILE* TILE) matmul_shared_kernel(Operands o) {
    __shared__ float a[TILE][TILE];
    __shared__ float b[TILE][TILE + 1];  // padded by one, so that a column of b lies in 32 banks
    const int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * TILE + ty, column = blockIdx.x * TILE + tx,
              weight_row = blockIdx.x * TILE + ty;
    float sum = 0;
    for (int c0 = 0; c0 < o.C; c0 += TILE) {
        a[ty][tx] = row < o.rows && c0 + tx < o.C ? (float)o.inp[(int64_t)row * o.C + c0 + tx] : 0.0f;
        b[ty][tx] = weight_row < o.OC && c0 + tx < o.C ? (float)o.weight[(int64_t)weight_row * o.C + c0 + tx] : 0.0f;
        __syncthreads();
        for (int c = 0; c < TILE; c++) sum += a[ty][c] * b[tx][c];
        __syncthreads();
    }
    if (inside(o, row, column)) o.out[(int64_t)row * o.OC + column] = (bf16)sum;
}

// 64 x 64 results per block, 4 x 4 per thread. A thread loads 8 values from shared memory for 16
// multiply-adds, instead of 32. If VECTOR, it loads tiles from memory 128 bits at a time.
constexpr int BLOCK = 64, DEPTH = 32, EACH = 4, BLOCK_THREADS = 256;
template <bool VECTOR>
__global__ void __launch_bounds__(BLOCK_THREADS) matmul_registers_kernel(Operands o) {
    __shared__ float a[DEPTH][BLOCK + 4];  // [c][row]: the 4 values that a thread needs are contiguous
    __shared__ float b[DEPTH][BLOCK + 4];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, row0 = blockIdx.y * BLOCK, column0 = blockIdx.x * BLOCK;
    float sum[EACH][EACH] = {};
    for (int c0 = 0; c0 < o.C; c0 += DEPTH) {
        if (VECTOR) {
            const int r = threadIdx.x / 4, c = threadIdx.x % 4 * 8;
            Pack<bf16> pa, pb;
            for (int k = 0; k < 8; k++) pa[k] = pb[k] = (bf16)0.0f;
            if (row0 + r < o.rows && c0 + c < o.C) pa = load_pack(o.inp + (int64_t)(row0 + r) * o.C + c0 + c);
            if (column0 + r < o.OC && c0 + c < o.C) pb = load_pack(o.weight + (int64_t)(column0 + r) * o.C + c0 + c);
            for (int k = 0; k < 8; k++) a[c + k][r] = (float)pa[k], b[c + k][r] = (float)pb[k];
        } else {
            for (int i = threadIdx.x; i < BLOCK * DEPTH; i += BLOCK_THREADS) {
                const int r = i / DEPTH, c = i % DEPTH;
                a[c][r] = row0 + r < o.rows && c0 + c < o.C ? (float)o.inp[(int64_t)(row0 + r) * o.C + c0 + c] : 0.0f;
                b[c][r] =
                    column0 + r < o.OC && c0 + c < o.C ? (float)o.weight[(int64_t)(column0 + r) * o.C + c0 + c] : 0.0f;
            }
        }
        __syncthreads();
#pragma unroll 8
        for (int c = 0; c < DEPTH; c++) {
            float x[EACH], w[EACH];
            for (int i = 0; i < EACH; i++) x[i] = a[c][ty * EACH + i], w[i] = b[c][tx * EACH + i];
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) sum[i][j] += x[i] * w[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
            if (inside(o, row0 + ty * EACH + i, column0 + tx * EACH + j))
                o.out[(int64_t)(row0 + ty * EACH + i) * o.OC + column0 + tx * EACH + j] = (bf16)sum[i][j];
}

// Tensor cores. A block of 4 warps computes 64 x 64 results, each warp 32 x 32 of them, from tiles
// of 64 rows and 64 channels in shared memory. A row of a tile is 128 bytes; its eight 16-byte
// chunks are permuted by its number, so that the chunks that ldmatrix reads at once lie in
// different banks (llmc/cuda/attention_tiles.cuh has a picture).
constexpr int MMA_THREADS = 128, MMA_DEPTH = 64;
__device__ inline bf16* chunk_at(bf16* tile, int row, int chunk) {
    return tile + row * MMA_DEPTH + (chunk ^ (row & 7)) * 8;
}
// Starts copying rows from `first` on and channels from c0 on of a matrix (n, C) into a tile; zeros
// beyond its edges.
__device__ inline void start_tile(bf16* tile, const bf16* matrix, int first, int n, int c0, int C) {
    for (int i = threadIdx.x; i < BLOCK * (MMA_DEPTH / 8); i += MMA_THREADS) {
        const int row = i / (MMA_DEPTH / 8), chunk = i % (MMA_DEPTH / 8);
        const bool valid = first + row < n && c0 + chunk * 8 < C;
        copy_async(chunk_at(tile, row, chunk), matrix + (valid ? (int64_t)(first + row) * C + c0 + chunk * 8 : 0),
                   valid);
    }
}
// sum += rows warp_row .. + 31 of a, times rows warp_column .. + 31 of b, transposed: 2 x 4
// fragments (mma.cuh) per warp.
__device__ inline void multiply_tiles(float (&sum)[2][4][4], bf16* a, bf16* b, int warp_row, int warp_column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < MMA_DEPTH / 16; k++) {
        uint32_t fa[2][4], fb[2][4];
        for (int i = 0; i < 2; i++) ldmatrix(fa[i], chunk_at(a, warp_row + i * 16 + lane % 16, 2 * k + lane / 16));
        for (int j = 0; j < 2; j++)
            ldmatrix(fb[j], chunk_at(b, warp_column + j * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++) mma(sum[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
}
// With one buffer, a tile is loaded, then multiplied, then the next is loaded. With two, the next
// is on its way while this one is multiplied (picture: llmc/cuda/attention_forward.cuh).
template <int BUFFERS>
__global__ void __launch_bounds__(MMA_THREADS) matmul_mma_kernel(Operands o) {
    __shared__ __align__(128) bf16 a[BUFFERS][BLOCK * MMA_DEPTH];
    __shared__ __align__(128) bf16 b[BUFFERS][BLOCK * MMA_DEPTH];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp / 2 * 32, warp_column = warp % 2 * 32,
              row0 = blockIdx.y * BLOCK, column0 = blockIdx.x * BLOCK;
    const int tiles = ceil_div(o.C, MMA_DEPTH);
    auto start = [&](int tile) {
        start_tile(a[tile % BUFFERS], o.inp, row0, o.rows, tile * MMA_DEPTH, o.C);
        start_tile(b[tile % BUFFERS], o.weight, column0, o.OC, tile * MMA_DEPTH, o.C);
    };
    float sum[2][4][4] = {};
    if (BUFFERS == 2) start(0), copy_async_commit();
    for (int tile = 0; tile < tiles; tile++) {
        const int next = tile + BUFFERS - 1;
        if (next < tiles) start(next);
        copy_async_commit();
        copy_async_wait<BUFFERS - 1>();
        __syncthreads();  // this tile has arrived, for all threads
        multiply_tiles(sum, a[tile % BUFFERS], b[tile % BUFFERS], warp_row, warp_column);
        __syncthreads();  // no thread reads it any more
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            for (int half = 0; half < 2; half++) {
                const int row = row0 + warp_row + i * 16 + lane / 4 + half * 8,
                          column = column0 + warp_column + j * 8 + lane % 4 * 2;
                for (int k = 0; k < 2; k++)
                    if (inside(o, row, column + k))
                        o.out[(int64_t)row * o.OC + column + k] = (bf16)sum[i][j][half * 2 + k];
            }
}

// Hopper's instructions (hopper.cuh has the pictures). A block computes 128 x 256 results, one
// warpgroup 64 of the rows, in 128 registers of a thread. A ninth warp is the producer: its first
// lane keeps STAGES pairs of tiles on their way, and does nothing else. The tiles of a stage are
// free again when the products of the next are on their way and these are over. The results leave
// through the tiles' memory, once no warp multiplies any more.
constexpr int STAGES = 4, CONSUMER_WARPS = 8, HOPPER_ROWS = 128, HOPPER_COLUMNS = 256;
constexpr int STAGE_ELEMS = (HOPPER_ROWS + HOPPER_COLUMNS) * BOX_COLUMNS;
constexpr size_t HOPPER_SHARED_BYTES = STAGES * STAGE_ELEMS * sizeof(bf16) + PATTERN_BYTES;
__global__ void __launch_bounds__(32 * (CONSUMER_WARPS + 1), 1)
    matmul_wgmma_kernel(const __grid_constant__ TensorMap inp, const __grid_constant__ TensorMap weight,
                        const __grid_constant__ TensorMap out, int C) {
#ifdef HOPPER_CODE
    extern __shared__ __align__(128) bf16 shared[];
    __shared__ uint64_t full[STAGES];
    __shared__ uint64_t empty[STAGES];
    __shared__ uint64_t finished[1];
    bf16* const tiles = first_tile(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, steps = ceil_div(C, BOX_COLUMNS),
              row0 = blockIdx.y * HOPPER_ROWS, column0 = blockIdx.x * HOPPER_COLUMNS;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) mbarrier_init(&full[s], 1), mbarrier_init(&empty[s], CONSUMER_WARPS);
        mbarrier_init(finished, CONSUMER_WARPS);
        fence_async();
    }
    __syncthreads();
    if (warp == CONSUMER_WARPS) {
        for (int step = 0; step < steps && lane == 0; step++) {
            const int stage = step % STAGES;
            bf16 *const a = tiles + stage * STAGE_ELEMS, *const b = a + HOPPER_ROWS * BOX_COLUMNS;
            mbarrier_wait(&empty[stage], (step / STAGES + 1) % 2);  // in the first round nobody has to arrive
            mbarrier_expect(&full[stage], STAGE_ELEMS * sizeof(bf16));
            tma_load(a, inp, step * BOX_COLUMNS, 0, row0, 0, &full[stage]);
            tma_load(b, weight, step * BOX_COLUMNS, 0, column0, 0, &full[stage]);
        }
        return;
    }
    float sum[HOPPER_COLUMNS / 8][4] = {};
    for (int step = 0; step < steps; step++) {
        const int stage = step % STAGES;
        const bf16 *const a = tiles + stage * STAGE_ELEMS, *const b = a + HOPPER_ROWS * BOX_COLUMNS;
        const uint64_t rows = descriptor(a + warp / 4 * 64 * BOX_COLUMNS), columns = descriptor(b);
        mbarrier_wait(&full[stage], step / STAGES % 2);
        wgmma_fence(sum);
#pragma unroll
        for (int k = 0; k < BOX_COLUMNS; k += 16) wgmma(sum, further(rows, k), further(columns, k), true);
        wgmma_commit();
        wgmma_wait<1>(sum);
        if (step > 0 && lane == 0) mbarrier_arrive(&empty[(step - 1) % STAGES]);
    }
    wgmma_wait<0>(sum);
    if (lane == 0) mbarrier_arrive(finished);
    mbarrier_wait(finished, 0);
    store_through(tiles + warp * 16 * HOPPER_COLUMNS, out, column0, 0, row0 + warp * 16, 0, sum, 1.0f, 1.0f);
#endif
}

BENCH("matmul_forward", dims("rows", "C", "OC"),
      shapes({{8192, 768, 3072}, {64, 96, 80}, {33, 40, 264}, {130, 72, 8}, {70, 600, 24}}, counted({256, 256, 256}))) {
    const int64_t rows = shape[0], C = shape[1], OC = shape[2];
    float *inp = random_floats(rows * C), *weight = random_floats(OC * C), *out = buffer<float>(rows * OC);
    bf16 *d_inp = on_device<bf16>(inp, rows * C), *d_weight = on_device<bf16>(weight, OC * C),
         *d_out = device_buffer<bf16>(rows * OC);
    open_blas();
    const Operands o{d_out, d_inp, d_weight, (int)rows, (int)C, (int)OC};
    flops(2.0 * rows * C * OC), bytes(2.0 * (rows * C + C * OC + rows * OC));
    output("out", out, rows * OC, 0), device_output("out", d_out, rows * OC, bf16_tolerance(1, C));
    expected([=] { reference::matmul_forward(out, inp, weight, (const float*)nullptr, rows, C, OC); });
    const dim3 blocks = grid_for(OC, BLOCK, rows, BLOCK), threads(32, 8);
    auto naive = [=] { launch("matmul_naive", matmul_naive_kernel, grid_for(rows, 32, OC, 8), threads, 0, stream, o); };
    variant_bf16(
        "naive",
        "one thread per result, neighbouring threads in neighbouring rows: 32 cache lines for each load of a warp",
        naive);
    auto coalesced = [=] {
        launch("matmul_coalesced", matmul_coalesced_kernel, grid_for(OC, 32, rows, 8), threads, 0, stream, o);
    };
    variant_bf16("coalesced",
                 "neighbouring threads in neighbouring columns: one load of inp serves a warp, and results are stored "
                 "contiguously",
                 coalesced);
    auto shared = [=] {
        launch("matmul_shared", matmul_shared_kernel, grid_for(OC, TILE, rows, TILE), dim3(TILE, TILE), 0, stream, o);
    };
    variant_bf16("shared", "32 x 32 tiles in shared memory: each value from memory serves 32 results", shared);
    auto registers = [=] {
        launch("matmul_registers", matmul_registers_kernel<false>, blocks, BLOCK_THREADS, 0, stream, o);
    };
    variant_bf16("registers",
                 "4 x 4 results per thread: half a load from shared memory per multiply-add instead of two", registers);
    auto vectorised = [=] {
        launch("matmul_vectorised", matmul_registers_kernel<true>, blocks, BLOCK_THREADS, 0, stream, o);
    };
    variant_bf16("vectorised", "128 bits per load: an eighth of the instructions that fetch tiles", vectorised);
    auto tensor_cores = [=] { launch("matmul_mma", matmul_mma_kernel<1>, blocks, MMA_THREADS, 0, stream, o); };
    variant_bf16("tensor-cores",
                 "mma.sync: 4096 FLOPs per instruction of a warp; operands by ldmatrix from swizzled rows, without "
                 "bank conflicts",
                 tensor_cores);
    auto async = [=] { launch("matmul_async", matmul_mma_kernel<2>, blocks, MMA_THREADS, 0, stream, o); };
    variant_bf16("async",
                 "two buffers: the next tile is on its way while this one is multiplied, so tensor cores do not wait a "
                 "full memory latency per tile",
                 async);
    auto wgmma_and_tma = [=] {
        const TensorMap inp_map = tensor_map(d_inp, 1, rows, 1, C, C, rows * C, HOPPER_ROWS),
                        weight_map = tensor_map(d_weight, 1, OC, 1, C, C, OC * C, HOPPER_COLUMNS),
                        out_map = tensor_map(d_out, 1, rows, 1, OC, OC, rows * OC, 16);
        allow_hopper_shared(matmul_wgmma_kernel, HOPPER_SHARED_BYTES, "matmul_wgmma");
        launch("matmul_wgmma", matmul_wgmma_kernel, grid_for(OC, HOPPER_COLUMNS, rows, HOPPER_ROWS),
               32 * (CONSUMER_WARPS + 1), HOPPER_SHARED_BYTES, stream, inp_map, weight_map, out_map, (int)C);
    };
    if (has_hopper_code(stream))
        variant_bf16("wgmma",
                     "Hopper alone: one instruction multiplies 64 x 256 from shared memory; one thread copies tiles by "
                     "TMA, four stages ahead",
                     wgmma_and_tma);
    auto shipped = [=] { matmul_forward(d_out, d_inp, d_weight, (const bf16*)nullptr, rows, C, OC, stream); };
    variant_bf16(
        "shipped",
        "cuBLASLt, which chooses among kernels with many tile sizes, deeper pipelines and, on Hopper, wgmma and TMA",
        shipped);
}

// What follows the product in the first layer of the MLP: bias, then GELU. The backward pass needs
// the input of GELU, so both are written. One thread per element.
__global__ void bias_kernel(bf16* out, const bf16* bias, int64_t rows, int64_t OC) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * OC) out[i] = (bf16)((float)out[i] + (float)bias[i % OC]);
}

BENCH("matmul_bias_gelu", dims("rows", "C", "OC"),
      shapes({{8192, 768, 3072}, {64, 96, 80}, {33, 48, 112}}, counted({256, 256, 256}))) {
    const int64_t rows = shape[0], C = shape[1], OC = shape[2], n = rows * OC;
    float *inp = random_floats(rows * C), *weight = random_floats(OC * C, 0.1), *bias = random_floats(OC),
          *out = buffer<float>(n), *gelu_out = buffer<float>(n);
    bf16 *d_inp = on_device<bf16>(inp, rows * C), *d_weight = on_device<bf16>(weight, OC * C),
         *d_bias = on_device<bf16>(bias, OC), *d_out = device_buffer<bf16>(n), *d_gelu = device_buffer<bf16>(n);
    open_blas();
    flops(2.0 * rows * C * OC), bytes(2.0 * (rows * C + C * OC + 2 * n));
    output("out", out, n, 0), device_output("out", d_out, n, bf16_tolerance(2, C));
    output("gelu", gelu_out, n, 0), device_output("gelu", d_gelu, n, bf16_tolerance(3, C));
    expected([=] { reference::matmul_forward(out, inp, weight, bias, rows, C, OC, gelu_out); });
    // the product itself is counted with its least: each operand read once
    auto three_kernels = [=] {
        matmul_forward(d_out, d_inp, d_weight, (const bf16*)nullptr, rows, C, OC, stream);
        launch("bias", bias_kernel, blocks_for(n, 256), 256, 0, stream, d_out, d_bias, rows, OC);
        gelu_forward(d_gelu, d_out, n, stream);
    };
    variant_bf16("three-kernels", "the product, then the bias, then GELU: the result goes to memory and back twice",
                 three_kernels);
    auto shipped = [=] { matmul_forward(d_out, d_inp, d_weight, d_bias, rows, C, OC, stream, d_gelu); };
    variant_bf16("shipped",
                 "the bias in the epilogue of the product, while results are in registers; GELU by its own kernel, "
                 "applied to the stored values (-ge 0)",
                 shipped);
    auto shipped_fused = [=] { matmul_forward(d_out, d_inp, d_weight, d_bias, rows, C, OC, stream, d_gelu, true); };
    variant_bf16(
        "shipped-fused",
        "GELU in the epilogue too: 2 bytes per element less, applied to values before they are rounded (-ge 1)",
        shipped_fused);
}
