// A small product with Hopper's instructions (dev/cuda/hopper.cuh), and the mistakes that can be
// made in one, each of which the simulator must find. dev/test/test_sim.cpp runs all of them.
//
//     make build/cusim_hopper_bugs && build/cusim_hopper_bugs no_wait
//
// Exit status as of seeded_bugs.cu: 0: the result is right. 3: it is wrong. 1: the simulator
// stopped the kernel and said why.
#include <map>
#include <sstream>
#include <string>
#include "dev/cuda/hopper.cuh"

#define MISTAKES \
    good, no_wait, other_parity, first_round_waits, no_release, early_release, fewer_bytes, more_bytes, \
        fewer_arrivals, more_arrivals, not_initialised, no_init_fence, other_swizzle, other_stride, other_row, \
        unaligned, no_register_fence, no_commit, late_wait, half_a_warpgroup, no_store_fence, no_store_wait, \
        outside_memory, stride_of_tensor
enum Mistake { MISTAKES };
#define AS_TEXT(...) #__VA_ARGS__
#define TEXT_OF(...) AS_TEXT(__VA_ARGS__)

constexpr int N = 64, STEPS = 9, STAGES = 2, ELEMS = N * BOX_COLUMNS;
constexpr size_t SHARED_BYTES = 2 * STAGES * ELEMS * sizeof(bf16) + PATTERN_BYTES;

// out (64, 64) = a (64, C) b (64, C)^T by one warpgroup and a producer, as matmul_wgmma_kernel.
__global__ void product_kernel(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                               const __grid_constant__ TensorMap out, Mistake m) {
    extern __shared__ __align__(128) bf16 shared[];
    __shared__ uint64_t full[STAGES];
    __shared__ uint64_t empty[STAGES];
    bf16* const tiles = first_tile(shared) + (m == unaligned ? 64 : 0);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES && m != not_initialised; s++)
            mbarrier_init(&full[s], 1), mbarrier_init(&empty[s], m == fewer_arrivals ? 3 : m == more_arrivals ? 5 : 4);
        if (m != no_init_fence) fence_async();
    }
    __syncthreads();
    if (warp == 4) {
        for (int step = 0; step < STEPS && lane == 0; step++) {
            const int stage = step % STAGES, bytes = 2 * ELEMS * sizeof(bf16);
            bf16* const tile = tiles + stage * 2 * ELEMS;
            mbarrier_wait(&empty[stage], (step / STAGES + (m != first_round_waits)) % 2);
            mbarrier_expect(&full[stage], m == fewer_bytes ? bytes / 2 : m == more_bytes ? bytes + 2 : bytes);
            tma_load(tile, a, step * BOX_COLUMNS, 0, 0, 0, &full[stage]);
            tma_load(tile + ELEMS, b, step * BOX_COLUMNS, 0, 0, 0, &full[stage]);
        }
        return;
    }
    float sum[N / 8][4] = {};
    for (int step = 0; step < STEPS; step++) {
        const int stage = step % STAGES;
        uint64_t rows = descriptor(tiles + stage * 2 * ELEMS), columns = descriptor(tiles + (stage * 2 + 1) * ELEMS);
        if (m == other_swizzle) rows ^= (uint64_t)3 << 62;  // 64 bytes
        if (m == other_stride) columns -= (uint64_t)1 << 32;
        if (m == other_row) rows += 128 >> 4;
        if (m != no_wait) mbarrier_wait(&full[stage], (step / STAGES + (m == other_parity)) % 2);
        if (m != no_register_fence) wgmma_fence(sum);
        if (m == half_a_warpgroup && warp >= 2) return;
        for (int k = 0; k < BOX_COLUMNS; k += 16) wgmma(sum, further(rows, k), further(columns, k), true);
        if (m != no_commit) wgmma_commit();
        if (m == early_release && lane == 0) mbarrier_arrive(&empty[stage]);
        if (m != late_wait || step + 1 < STEPS) wgmma_wait<0>(sum);
        if (m != early_release && m != no_release && lane == 0) mbarrier_arrive(&empty[stage]);
    }
    bf16* const rows = tiles + 4 * ELEMS - (4 - warp) * 16 * BOX_COLUMNS;  // the last tile of the other stage
    const Tile<BOX_COLUMNS> tile{rows};
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++) tile.at(lane / 4 + i / 2 * 8, n)[lane % 4 * 2 + i % 2] = (bf16)sum[n][i];
    if (m == late_wait) wgmma_wait<0>(sum);
    if (m != no_store_fence) fence_async();
    __syncwarp();
    if (lane == 0) tma_store(out, rows, 0, 0, warp * 16, 0);
    if (lane == 0 && m != no_store_wait) tma_store_wait();
}

// -1, 0 or 1, so that all sums are exact in bf16.
static int value(int i) {
    uint32_t h = (uint32_t)i * 0x9E3779B9u;
    h = (h ^ h >> 15) * 0x85EBCA6Bu;
    return (int)(h >> 16) % 3 - 1;
}

int main(int argc, char** argv) {
    std::map<std::string, Mistake> mistakes;
    std::istringstream names(TEXT_OF(MISTAKES));
    for (std::string name; std::getline(names, name, ',');) {
        name.erase(0, name.find_first_not_of(' '));
        mistakes.insert({name, (Mistake)mistakes.size()});
    }
    const auto found = argc == 2 ? mistakes.find(argv[1]) : mistakes.end();
    if (found == mistakes.end()) {
        for (auto& [name, mistake] : mistakes) printf("%s\n", name.c_str());
        return argc == 1 ? 0 : 2;
    }
    const Mistake m = found->second;
    cudaStream_t stream;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    // rows and columns are no multiples of the tiles, out is smaller than a block's results
    const int rows = 61, columns = 56, C = STEPS * BOX_COLUMNS - 24;
    std::vector<bf16> host(rows * C + columns * C), results(rows * columns);
    for (int i = 0; i < (int)host.size(); i++) host[i] = (bf16)(float)value(i);
    bf16 *in, *out;
    check_cuda(cudaMalloc(&in, host.size() * sizeof(bf16)), "allocating");
    check_cuda(cudaMalloc(&out, results.size() * sizeof(bf16)), "allocating");
    copy_to_device(in, host.data(), host.size() * sizeof(bf16), stream);
    const int beyond = m == outside_memory ? 1 << 20 : 0, wrong_stride = m == stride_of_tensor ? 4 : 0;
    const TensorMap a = tensor_map(in + beyond, 1, rows, 1, C, C + wrong_stride, rows * C, N),
                    b = tensor_map(in + rows * C, 1, columns, 1, C, C, columns * C, N),
                    o = tensor_map(out, 1, rows, 1, columns, columns, rows * columns, 16);
    allow_hopper_shared(product_kernel, SHARED_BYTES, "product");
    launch("product", product_kernel, 1, 160, SHARED_BYTES, stream, a, b, o, m);
    copy_to_host(results.data(), out, results.size() * sizeof(bf16), stream);
    bool good = true;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            int sum = 0;
            for (int c = 0; c < C; c++) sum += value(i * C + c) * value(rows * C + j * C + c);
            good = good && (float)results[i * columns + j] == (float)sum;
        }
    printf("result %s, first value %g\n", good ? "right" : "wrong", (float)results[0]);
    return good ? 0 : 3;
}
