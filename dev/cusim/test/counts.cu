// Kernels whose counts are known on paper. dev/test/counts.py says what they are, and compares.
//
//     make build-count/cusim_counts COUNT=1 && CUSIM_COUNT=counts.json build-count/cusim_counts
//     dev/cusim/counts.py counts.json --lines
#include "dev/cuda/hopper.cuh"
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/attention.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/layernorm.cuh"

constexpr int N = 1024;  // elements of the arrays

// ---- global memory: which addresses a warp asks for at once

__global__ void stride_kernel(float* out, const float* inp, int stride) {
    out[threadIdx.x] = inp[threadIdx.x * stride];
}
__global__ void offset_kernel(float* out, const float* inp, int offset) {
    out[threadIdx.x] = inp[threadIdx.x + offset];
}
__global__ void broadcast_kernel(float* out, const float* inp) { out[threadIdx.x] = inp[0] + inp[blockIdx.x + 1]; }
__global__ void packs_kernel(float* out, const float* inp) {
    store_pack(out + 4 * threadIdx.x, load_pack(inp + 4 * threadIdx.x));
}
// The same bytes, one element at a time: what a compiler makes of a loop over elements.
__global__ void elements_kernel(float* out, const float* inp) {
    for (int i = 0; i < 4; i++) out[4 * threadIdx.x + i] = inp[4 * threadIdx.x + i];
}
__global__ void halves_kernel(bf16* out, const bf16* inp) { out[threadIdx.x] = inp[threadIdx.x]; }
__global__ void pack_elements_kernel(float* out, const bf16* inp) {  // each element is used by itself
    const Pack<bf16> pack = load_pack(inp + 8 * threadIdx.x);
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += (float)pack[i] * (float)(i + 1);
    out[threadIdx.x] = sum;
}
// Logits of 16 rows that are so far apart: with a vocabulary of 50,257 a row begins 2 bytes further
// behind a sector's begin than the row before; with 50,304 each begins with a sector, and can be
// read in Packs.
__global__ void rows_kernel(float* out, const bf16* logits, int apart) {
    float sum = 0;
    for (int row = 0; row < 16; row++) sum += (float)logits[row * apart + threadIdx.x];
    out[threadIdx.x] = sum;
}
__global__ void rows_in_packs_kernel(float* out, const bf16* logits, int apart) {
    float sum = 0;
    for (int row = 0; row < 16; row++) sum += load_floats(logits + row * apart + 8 * threadIdx.x)[0];
    out[threadIdx.x] = sum;
}
// Lane i reads i + 1 elements: fewer lanes take part in each round.
__global__ void divergent_kernel(float* out, const float* inp) {
    float sum = 0;
    for (int i = 0; i <= (int)threadIdx.x; i++) sum += inp[32 * i + threadIdx.x];
    out[threadIdx.x] = sum;
}
// Odd lanes do not take part in the first round, but are in step again after the shuffle.
__global__ void rejoined_kernel(float* out, const float* inp) {
    float sum = 0;
    for (int i = 0; i < 2; i++) {
        if (i == 1 || threadIdx.x % 2 == 0) sum += inp[32 * i + threadIdx.x];
        sum = warp_sum(sum);
    }
    out[threadIdx.x] = sum;
}

__global__ void atomic_kernel(int* out) { __atomic_fetch_add(out + threadIdx.x % 8, 1, __ATOMIC_RELAXED); }

// ---- shared memory: which banks a warp asks for at once

// 32 x 32 elements by 32 x 8 threads.
__global__ void transpose_global_kernel(float* out, const float* inp) {
    const int x = threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 8) out[y * 32 + x] = inp[x * 32 + y];
}
template <int width>
__global__ void transpose_kernel(float* out, const float* inp) {
    __shared__ float tile[32][width];
    const int x = threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 8) tile[y][x] = inp[y * 32 + x];
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8) out[y * 32 + x] = tile[x][y];
}
// Each lane adds a row. nvcc loads 4 elements at once, unless rows begin at other multiples of 4.
template <int width>
__global__ void row_sums_kernel(float* out) {
    __shared__ __align__(16) float rows[32][width];
    for (int i = 0; i < 32; i++) rows[i][threadIdx.x] = 1;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 32; i++) sum += rows[threadIdx.x][i];
    out[threadIdx.x] = sum;
}
__global__ void shared_kernel(float* out, const float* inp, int stride) {
    __shared__ float values[N];
    for (int i = 0; i < 32; i++) values[32 * i + threadIdx.x] = inp[32 * i + threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x * stride];
}
__global__ void shared_packs_kernel(float* out, const float4* inp, int stride) {
    __shared__ float4 values[N / 4];
    for (int i = threadIdx.x; i < N / 4; i += 32) values[i] = inp[i];
    __syncthreads();
    const float4 v = values[threadIdx.x * stride % (N / 4)];
    out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

// ---- cp.async, ldmatrix and mma, with the swizzle of attention_tiles.cuh or without

template <int HS, bool swizzled>
struct TestTile : Tile<HS> {
    __device__ bf16* at(int row, int chunk) const {
        return swizzled ? Tile<HS>::at(row, chunk) : this->data + row * HS + chunk * 8;
    }
};
// One warp; the last 4 of 16 rows are zeros that cp.async writes.
template <int HS, bool swizzled>
__global__ void tile_kernel(float* out, const bf16* inp) {
    __shared__ __align__(128) bf16 memory[16 * HS];
    const TestTile<HS, swizzled> tile{{memory}};
    const int lane = threadIdx.x;
    for (int i = lane; i < 16 * (HS / 8); i += 32) {
        const int row = i / (HS / 8), chunk = i % (HS / 8);
        copy_async(tile.at(row, chunk), inp + row * HS + chunk * 8, row < 12);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    float c[4] = {};
    for (int k = 0; k < HS / 16; k++) {
        uint32_t a[4], b[4];
        ldmatrix(a, tile.at(lane % 16, 2 * k + lane / 16));
        ldmatrix_transposed(b, tile.at(lane % 16, 2 * k + lane / 16));
        mma(c, a, b[0], b[1]);
    }
    out[lane] = c[0] + c[1] + c[2] + c[3];
}
// Hopper: a box of 16 rows of 64 columns to shared memory and on to another tensor, by one thread;
// the tensors have 12 rows of 40.
__global__ void box_kernel(const __grid_constant__ TensorMap to, const __grid_constant__ TensorMap from) {
    extern __shared__ __align__(128) bf16 shared[];
    __shared__ uint64_t arrived[1];
    if (threadIdx.x > 0) return;
    bf16* const tile = first_tile(shared);
    mbarrier_init(arrived, 1);
    fence_async();
    mbarrier_expect(arrived, 16 * BOX_COLUMNS * sizeof(bf16));
    tma_load(tile, from, 0, 0, 0, 0, arrived);
    mbarrier_wait(arrived, 0);
    tma_store(to, tile, 0, 0, 0, 0);
    tma_store_wait();
}

static cudaStream_t stream;
template <class T>
static T* device_array(int64_t elems) {
    T* p;
    check_cuda(cudaMalloc(&p, elems * sizeof(T)), "allocating");
    check_cuda(cudaMemsetAsync(p, 0, elems * sizeof(T), stream), "clearing");
    return p;
}
template <class... Params, class... Args>
static void run(const char* name, void (*kernel)(Params...), Args... args) {
    launch(name, kernel, 1, 32, 0, stream, args...);
}

// Kernels of the trainer.
static void shipped() {
    constexpr int64_t n = 10240, rows = 8, C = 768, B = 1, T = 128, NH = 2, HS = 64;
    bf16 *a = device_array<bf16>(6 * n), *b = device_array<bf16>(6 * n), *c = device_array<bf16>(6 * n);
    float *x = device_array<float>(n), *y = device_array<float>(n), *z = device_array<float>(n),
          *g = device_array<float>(n);
    gelu_forward(a, b, n, stream);
    gelu_backward(a, x, b, c, n / 256, 256, stream);
    DeviceResults wanted{}, *results = (DeviceResults*)device_array<char>(256);
    wanted.wanted = 1;
    check_cuda(cudaMemcpyAsync(results, &wanted, sizeof(wanted), cudaMemcpyHostToDevice, stream), "copying");
    const UpdateConstants rule = update_constants(1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 3);
    DecayRanges none{};
    none.layer_elems = none.layers_end = n;
    adamw_update(a, x, y, z, g, SliceMap{n, n, 0, 1, 0}, rule, none, results, 0, stream);
    layernorm_forward(a, x, y, b, c, c + C, rows, C, stream);
    residual_layernorm_forward(a, a + rows * C, x, y, b, b + rows * C, c, c + C, rows, C, stream);
    attention_forward(a, x, b, B, T, NH * HS, NH, stream);
    attention_backward(c, x, a, a + B * T * NH * HS, y, b, B, T, NH * HS, NH, stream);
}

int main() {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    float *out = device_array<float>(N), *inp = device_array<float>(N + 32);
    bf16 *out16 = device_array<bf16>(32), *inp16 = device_array<bf16>(16 * 256);
    for (int stride : {1, 2, 8, 32}) run(format("stride_%d", stride).c_str(), stride_kernel, out, inp, stride);
    run("offset_1", offset_kernel, out, inp, 1);
    run("broadcast", broadcast_kernel, out, inp);
    run("packs", packs_kernel, out, inp);
    run("elements", elements_kernel, out, inp);
    run("halves", halves_kernel, out16, inp16);
    run("pack_elements", pack_elements_kernel, out, inp16);
    const bf16* logits = device_array<bf16>(16 * 50304);
    for (int apart : {50257, 50304}) run(format("rows_%d", apart).c_str(), rows_kernel, out, logits, apart);
    run("rows_in_packs", rows_in_packs_kernel, out, logits, 50304);
    run("divergent", divergent_kernel, out, inp);
    run("rejoined", rejoined_kernel, out, inp);
    launch("two_warps", packs_kernel, 2, 64, 0, stream, out, inp);
    run("atomic", atomic_kernel, (int*)out);
    const dim3 rows_of_threads(32, 8);
    launch("transpose_global", transpose_global_kernel, 1, rows_of_threads, 0, stream, out, inp);
    launch("transpose_conflicts", transpose_kernel<32>, 1, rows_of_threads, 0, stream, out, inp);
    launch("transpose_padded", transpose_kernel<33>, 1, rows_of_threads, 0, stream, out, inp);
    run("row_sums_aligned", row_sums_kernel<32>, out);
    run("row_sums_padded", row_sums_kernel<33>, out);
    for (int stride : {0, 1, 2, 3, 8}) run(format("shared_%d", stride).c_str(), shared_kernel, out, inp, stride);
    for (int stride : {1, 2, 8})
        run(format("shared_packs_%d", stride).c_str(), shared_packs_kernel, out, (const float4*)inp, stride);
    run("tile_64_plain", tile_kernel<64, false>, out, inp16);
    run("tile_32", tile_kernel<32, true>, out, inp16);
    run("tile_64", tile_kernel<64, true>, out, inp16);
    run("tile_96", tile_kernel<96, true>, out, inp16);
    run("tile_128", tile_kernel<128, true>, out, inp16);
    run("tile_256", tile_kernel<256, true>, out, inp16);
    const TensorMap from = tensor_map(inp16, 1, 12, 1, 40, 64, 12 * 64, 16),
                    to = tensor_map(device_array<bf16>(12 * 64), 1, 12, 1, 40, 64, 12 * 64, 16);
    allow_hopper_shared(box_kernel, 3 * PATTERN_BYTES, "box");
    launch("box", box_kernel, 1, 32, 3 * PATTERN_BYTES, stream, to, from);
    shipped();
    check_cuda(cudaDeviceSynchronize(), "waiting");
}
