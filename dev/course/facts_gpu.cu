// As facts.cpp, for the pictures of GPUs: how tiles lie in shared memory, and which lane of a warp
// holds which element of a matrix on tensor cores. It runs in the simulator, so what is printed is
// what the instructions do.
//
//     build/course_facts_gpu
#include <cstdio>
#include <vector>
#include "llmc/cuda/attention_tiles.cuh"

constexpr int FRAGMENT_A = 4 * 2, FRAGMENT_B = 2 * 2, FRAGMENT_C = 4, FRAGMENTS = FRAGMENT_A + FRAGMENT_B + FRAGMENT_C;

// Every lane writes which elements of A (16 x 16), B (16 x 8) and C (16 x 8) it holds, as their
// number in the matrix.
__global__ void fragments_kernel(float* held) {
    __shared__ __align__(128) bf16 numbers[16 * 16];
    __shared__ __align__(128) bf16 numbers_b[16 * 8];
    const int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) numbers[i] = (bf16)(float)i;
    for (int i = lane; i < 128; i += 32) numbers_b[i] = (bf16)(float)i;
    __syncwarp();
    uint32_t a[4], b[4], one[4];
    ldmatrix(a, numbers + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_transposed(b, numbers_b + lane % 16 * 8);
    // C = I B for the upper rows of C; I is 1 at (g, g) for g < 8 and at (g + 8, g + 8)
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        const bool diagonal = i == 0 || i == 3;
        one[i] = pack_bf16(diagonal && g == 2 * t, diagonal && g == 2 * t + 1);
    }
    float c[4] = {};
    mma(c, one, b[0], b[1]);
    float* out = held + lane * FRAGMENTS;
    for (int i = 0; i < FRAGMENT_A; i++)
        *out++ = __bfloat162float(__ushort_as_bfloat16((unsigned short)(a[i / 2] >> 16 * (i % 2))));
    for (int i = 0; i < FRAGMENT_B; i++)
        *out++ = __bfloat162float(__ushort_as_bfloat16((unsigned short)(b[i / 2] >> 16 * (i % 2))));
    for (int i = 0; i < FRAGMENT_C; i++) *out++ = c[i];
}

template <class F>
static void numbers(const char* name, int count, F f) {
    printf("{\"name\": \"%s\", \"value\": [", name);
    for (int i = 0; i < count; i++) printf("%s%d", i ? ", " : "", (int)f(i));
    printf("]}\n");
}

int main() {
    cudaStream_t stream;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    float* device_held;
    std::vector<float> held(32 * FRAGMENTS);
    check_cuda(cudaMalloc((void**)&device_held, held.size() * sizeof(float)), "allocating");
    launch("fragments", fragments_kernel, 1, 32, 0, stream, device_held);
    check_cuda(cudaMemcpyAsync(held.data(), device_held, held.size() * sizeof(float), cudaMemcpyDeviceToHost, stream),
               "copying");
    wait_for_stream(stream, "waiting");
    auto fragment = [&](int first, int count) {
        return [=](int i) { return held[i / count * FRAGMENTS + first + i % count]; };
    };
    numbers("fragment_a", 32 * FRAGMENT_A, fragment(0, FRAGMENT_A));
    numbers("fragment_b", 32 * FRAGMENT_B, fragment(FRAGMENT_A, FRAGMENT_B));
    numbers("fragment_c", 32 * FRAGMENT_C, fragment(FRAGMENT_A + FRAGMENT_B, FRAGMENT_C));
    // attention_tiles.cuh: where chunk c of row r of a tile with heads of 64 channels lies, in
    // chunks from its begin
    alignas(16) static bf16 memory[8 * 64];
    const Tile<64> tile{memory};
    numbers("swizzle", 64, [&](int i) { return (tile.at(i / 8, i % 8) - memory) / 8; });
}
