// As numbers.cpp and facts.cpp, for the chapters on GPUs. It runs in the simulator, so what is
// printed is what the instructions do.
//
//     build/course_numbers_gpu threads      for the PyTorch twins (twin.py)
//     build/course_numbers_gpu pictures     for the pictures (pictures.py)
#include "dev/course/show.h"
#include "llmc/cuda/attention_tiles.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/base/random.h"

static cudaStream_t stream;
template <class T>
struct OnDevice {
    T* p;
    size_t n;
    explicit OnDevice(size_t elems) : n(elems) { check_cuda(cudaMalloc((void**)&p, n * sizeof(T)), "allocating"); }
    explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
        check_cuda(cudaMemcpyAsync(p, values.data(), n * sizeof(T), cudaMemcpyHostToDevice, stream), "copying");
        wait_for_stream(stream, "waiting");
    }
    std::vector<T> fetch() const {
        std::vector<T> values(n);
        check_cuda(cudaMemcpyAsync(values.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, stream), "copying");
        wait_for_stream(stream, "waiting");
        return values;
    }
};
static std::vector<float> random_values(int64_t n) {
    static MersenneTwister rng(1);
    std::vector<float> values(n);
    normal_fill(rng, values.data(), n, 1);
    return values;
}
static std::vector<bf16> rounded(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// -------------------------------------------------------------------------------------------------
// threads: which of them computes which element, and how they add up

// Writes block and number of the thread that gets an element.
__global__ void owners_kernel(float* block, float* thread, size_t n) {
    for_each_pack<float>(n, [&](size_t i, int count) {
        for (int k = 0; k < count; k++) block[i + k] = (float)blockIdx.x, thread[i + k] = (float)threadIdx.x;
    });
}
__global__ void sums_kernel(float* of_warp, float* of_block, const float* values) {
    of_warp[threadIdx.x] = warp_sum(values[threadIdx.x]);
    of_block[threadIdx.x] = block_sum(values[threadIdx.x]);
}

static void threads() {
    const int64_t n = 2 * PACK_THREADS * Pack<float>::size + 101, block_size = 128;  // 3 blocks, the last not full
    const auto x = random_values(n);
    auto values = random_values(block_size);
    for (float& value : values) value += 1;  // their sum is not near 0
    const OnDevice<float> inp(x), out(n), block(n), thread(n), summed(values), warp_sums(block_size),
        block_sums(block_size);
    gelu_forward(out.p, inp.p, n, stream);
    launch("owners", owners_kernel, pack_blocks<float>(n), PACK_THREADS, 0, stream, block.p, thread.p, (size_t)n);
    launch("sums", sums_kernel, 1, block_size, 0, stream, warp_sums.p, block_sums.p, summed.p);
    show("threads", PACK_THREADS), show("pack", Pack<float>::size);
    show("x", {n}, x), show("y", {n}, out.fetch());
    show("block", {n}, block.fetch()), show("thread", {n}, thread.fetch()), show("values", {block_size}, values);
    show("warp_sums", {block_size}, warp_sums.fetch()), show("block_sums", {block_size}, block_sums.fetch());
}

// -------------------------------------------------------------------------------------------------
// fragments: which lane of a warp holds which element of a matrix on tensor cores

// C = A B by one warp: A (16, 64) goes through a swizzled tile, B (64, 8) through rows as they are.
// Writes the tile as it lies in memory, and what each lane holds: of A and B in the first step of
// 16, of C in the end.
constexpr int M = 16, N = 8, K = 64, HELD_A = 8, HELD_B = 4, HELD_C = 4;
__global__ void product_kernel(float* stored, float* held_a, float* held_b, float* held_c, const bf16* A,
                               const bf16* B) {
    __shared__ __align__(128) bf16 memory[M * K];
    __shared__ __align__(128) bf16 memory_b[K * N];
    const Tile<K> tile{memory};
    const int lane = threadIdx.x;
    for (int i = lane; i < M * K / 8; i += 32) store_pack(tile.at(i / (K / 8), i % (K / 8)), load_pack(A + 8 * i));
    for (int i = lane; i < K * N / 8; i += 32) store_pack(memory_b + 8 * i, load_pack(B + 8 * i));
    __syncwarp();
    for (int i = lane; i < M * K; i += 32) stored[i] = (float)memory[i];
    const auto value = [](const uint32_t* registers, int i) {
        return __bfloat162float(__ushort_as_bfloat16((unsigned short)(registers[i / 2] >> 16 * (i % 2))));
    };
    float c[4] = {};
    for (int k = 0; k < K; k += 16) {
        uint32_t a[4], b[4];
        ldmatrix(a, tile.at(lane % 16, k / 8 + lane / 16));
        ldmatrix_transposed(b, memory_b + (k + lane % 16) * N);
        for (int i = 0; i < HELD_A && k == 0; i++) held_a[HELD_A * lane + i] = value(a, i);
        for (int i = 0; i < HELD_B && k == 0; i++) held_b[HELD_B * lane + i] = value(b, i);
        mma(c, a, b[0], b[1]);
    }
    for (int i = 0; i < HELD_C; i++) held_c[HELD_C * lane + i] = c[i];
}

struct Held {
    std::vector<float> tile, a, b, c;
};
static Held multiply(const std::vector<float>& A, const std::vector<float>& B) {
    const OnDevice<bf16> a(rounded(A)), b(rounded(B));
    const OnDevice<float> tile(M * K), held_a(32 * HELD_A), held_b(32 * HELD_B), held_c(32 * HELD_C);
    launch("product", product_kernel, 1, 32, 0, stream, tile.p, held_a.p, held_b.p, held_c.p, a.p, b.p);
    return {tile.fetch(), held_a.fetch(), held_b.fetch(), held_c.fetch()};
}

static void fragments() {
    std::vector<float> A = random_values(M * K), B = random_values(K * N);
    for (auto* values : {&A, &B})
        for (float& x : *values) x = (float)(bf16)x;
    const Held held = multiply(A, B);
    show("A", {M, K}, A), show("B", {K, N}, B), show("tile", {M, K / 8, 8}, held.tile);
    show("a", {32, HELD_A}, held.a), show("b", {32, HELD_B}, held.b), show("c", {32, HELD_C}, held.c);
}

// The matrices hold the number of each element, so the lanes say which ones they have. C = I B.
static void pictures() {
    std::vector<float> numbers_a(M * K), numbers_b(K * N), one(M * K);
    for (int i = 0; i < M * 16; i++) numbers_a[i / 16 * K + i % 16] = (float)i;
    for (int i = 0; i < M * N; i++) numbers_b[i] = (float)i;
    for (int i = 0; i < M; i++) one[i * K + i] = 1;
    const Held held = multiply(numbers_a, numbers_b);
    show("fragment_a", {32 * HELD_A}, held.a), show("fragment_b", {32 * HELD_B}, held.b);
    show("fragment_c", {32 * HELD_C}, multiply(one, numbers_b).c);
    // attention_tiles.cuh: where chunk c of row r of a tile with heads of 64 channels lies, in
    // chunks from its begin
    alignas(16) static bf16 memory[8 * K];
    const Tile<K> tile{memory};
    show_each("swizzle", 64, [&](int64_t i) { return (tile.at((int)i / 8, (int)i % 8) - memory) / 8; });
}

int main(int argc, char** argv) {
    const Part parts[] = {{"threads", threads}, {"fragments", fragments}, {"pictures", pictures}};
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    return show_part(parts, argc, argv);
}
