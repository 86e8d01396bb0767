// Hopper's own instructions, which only sm_90a has: products of matrices that lie in shared memory
// (wgmma), and copies of whole tiles that one thread starts (TMA). For the last rungs of the matmul
// and attention ladders. As in mma.cuh, each instruction is behind one function with a twin in C++.
// Source: PTX ISA 8.0 and later, sections on wgmma.mma_async (with its matrix descriptor and shared
// memory layouts), cp.async.bulk.tensor, mbarrier, and the proxies of the memory model; CUDA driver
// API, cuTensorMapEncodeTiled.
//
// wgmma.mma_async is one instruction of a warpgroup, 4 warps: C (64 x N, fp32) += A (64 x 16, bf16)
// B (16 x N, bf16), N up to 256: 64 mma.m16n8k16 in one for N 128. B, and A too unless it is in
// registers, are read from shared memory by the tensor cores: no ldmatrix, no fragments. Rows 16w
// .. 16w + 15 of C and of an A in registers belong to warp w of the four, in the fragments of
// mma.cuh. The products are on their way when the instruction is over:
//
//     wgmma_fence      registers are written: products may read and write them from here on
//     wgmma ...        in order, so that several may add to the same C
//     wgmma_commit     makes a group of them
//     wgmma_wait<n>    until at most the newest n groups are on their way; then C can be read
//
// A descriptor, 64 bits, says how an operand lies in shared memory. Addresses and distances count
// 16 bytes:
//
//     bits   0-13  where it starts             49-51  0: patterns begin at multiples of 1024 bytes
//           16-29  "leading" distance          62-63  1: rows of 128 bytes, swizzled
//           32-45  "stride" distance
//
// A tile has rows of 128 bytes, 64 bf16; bits 4-6 of an address, the 16-byte chunk, are xored with
// bits 7-9, the row modulo 8. That is Tile<64> of attention_tiles.cuh, with its picture, if tiles
// begin at multiples of 1024 bytes. Eight rows are 1024 bytes, the stride. 16 columns further is 32
// bytes further, within the row: the hardware swizzles addresses, not indices. Usually the sum of a
// product runs along the rows of both operands' tiles. For B it may run across them (transposed, as
// for the values of attention): an operand of N > 64 then lies in several tiles, and the leading
// distance leads from one to the next.
//
// TMA copies a box of a tensor of up to 5 dimensions between global and shared memory, swizzled. A
// tensor map, made on the host, has sizes, strides and box. One thread starts the copy and passes
// coordinates; no thread computes addresses. What lies outside the tensor arrives as zeros, and is
// not stored.
//
// An mbarrier, 64 bits of shared memory, says that bytes have arrived. It counts arrivals of
// threads and bytes of copies; when none are missing, its phase ends and the next begins. A thread
// waits for the end of a phase by its parity: 0 for the first, 1 for the second, 0 for the third.
// While the first phase is going on, the one before it, of parity 1, counts as over. With two
// arrays of them, a producer warp keeps a ring of STAGES tiles full:
//
//     producer      wait empty[s], expect bytes on full[s], start copies   ->   stage s + 1, ...
//     consumers     wait full[s], multiply, arrive at empty[s]             ->   stage s + 1, ...
//
// Copies and wgmma access shared memory through the asynchronous proxy. It sees what threads have
// stored there only after a fence of these threads (fence_async).
#pragma once
#include <cuda.h>
#include "llmc/cuda/attention_tiles.cuh"

// Code for sm_90a; of the kernels nothing is left for other architectures (has_hopper_code).
#if defined(CUSIM) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_CODE
#endif

typedef CUtensorMap TensorMap;  // a kernel has it as a parameter, const __grid_constant__

constexpr int BOX_COLUMNS = 64, WARPGROUP = 128;  // columns of a tile, 128 bytes of bf16; threads
constexpr uint32_t PATTERN_BYTES = 1024;          // 8 rows, after which the swizzle repeats

#ifndef CUSIM

// ---- mbarrier. One thread initialises it; then a fence_async, and a barrier of the block.

__device__ inline void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and lets the phase wait for so many bytes of copies.
__device__ inline void mbarrier_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Waits until the phase of this parity is over.
__device__ inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
    for (uint32_t over = 0; !over;)
        asm volatile(
            "{ .reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p; }\n"
            : "=r"(over)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
}
// What this thread has stored in shared memory is there for copies and wgmma.
__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// ---- TMA

// Starts copying the box at these coordinates to shared memory. Its bytes count at `barrier`, with
// those outside the tensor.
__device__ inline void tma_load(bf16* to, const TensorMap& map, int column, int head, int row, int plane,
                                uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(head), "r"(row), "r"(plane), "r"(shared_address(barrier))
        : "memory");
}
// Starts copying a box of shared memory there; it can be overwritten after tma_store_wait.
__device__ inline void tma_store(const TensorMap& map, const bf16* from, int column, int head, int row, int plane) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
        " [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(&map),
        "r"(shared_address(from)), "r"(column), "r"(head), "r"(row), "r"(plane)
        : "memory");
}
// Waits until all stores that this thread has started have read shared memory.
__device__ inline void tma_store_wait() {
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n" ::: "memory");
}

// ---- wgmma

// The compiler does not know that products write to c later on. For it, these registers change
// here.
template <int N8>
__device__ inline void changed(float (&c)[N8][4]) {
#pragma unroll
    for (int n = 0; n < N8; n++)
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(c[n][i])::"memory");
}
template <int N8>
__device__ inline void wgmma_fence(float (&c)[N8][4]) {
    changed(c);
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int groups, int N8>
__device__ inline void wgmma_wait(float (&c)[N8][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(groups) : "memory");
    changed(c);
}

// wgmma(c, a, b, add): c (64 x N) = a b, or c += a b if `add`; a, b: descriptors, and the sum runs
// along the rows of both tiles. wgmma(c, a, b) adds the product of an A fragment in registers, and
// of a transposed b. The instructions name every register of c.
#define FIVE(t, a, b, c, d, e) "%" t a ",%" t b ",%" t c ",%" t d ",%" t e ","
#define TEN(tens) FIVE(tens, "0", "1", "2", "3", "4") FIVE(tens, "5", "6", "7", "8", "9")
#define SIXTY TEN("") TEN("1") TEN("2") TEN("3") TEN("4") TEN("5")
#define NUMBERS_32 TEN("") TEN("1") TEN("2") "%30,%31"
#define NUMBERS_64 SIXTY "%60,%61,%62,%63"
#define NUMBERS_120 SIXTY TEN("6") TEN("7") TEN("8") TEN("9") TEN("10") TEN("11")
#define NUMBERS_128 NUMBERS_120 FIVE("12", "0", "1", "2", "3", "4") "%125,%126,%127"
#define C_4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define C_32(n) C_4(n), C_4(n + 1), C_4(n + 2), C_4(n + 3), C_4(n + 4), C_4(n + 5), C_4(n + 6), C_4(n + 7)
#define C_64 C_32(0), C_32(8)
#define C_128 C_32(0), C_32(8), C_32(16), C_32(24)
#define WGMMA_SHARED(N, NUMBERS, A, B, ADD, ...) \
    __device__ inline void wgmma(float(&c)[N / 8][4], uint64_t a, uint64_t b, bool add) { \
        asm volatile("{ .reg .pred p;\nsetp.ne.b32 p, " ADD \
                     ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NUMBERS "}, " A ", " B \
                     ", p, 1, 1, 0, 0; }\n" \
                     : __VA_ARGS__ \
                     : "l"(a), "l"(b), "r"((int)add)); \
    }
#define WGMMA_REGISTERS(N, NUMBERS, A, B, ...) \
    __device__ inline void wgmma(float(&c)[N / 8][4], const uint32_t(&a)[4], uint64_t b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NUMBERS "}, {" A "}, " B \
                     ", 1, 1, 1, 1;\n" \
                     : __VA_ARGS__ \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }
WGMMA_SHARED(64, NUMBERS_32, "%32", "%33", "%34", C_32(0))
WGMMA_SHARED(128, NUMBERS_64, "%64", "%65", "%66", C_64)
WGMMA_SHARED(256, NUMBERS_128, "%128", "%129", "%130", C_128)
WGMMA_REGISTERS(64, NUMBERS_32, "%32,%33,%34,%35", "%36", C_32(0))
WGMMA_REGISTERS(128, NUMBERS_64, "%64,%65,%66,%67", "%68", C_64)

#else
#include "dev/cuda/hopper_twins.cuh"
#endif

// Dynamic shared memory from its first multiple of 1024 bytes on; up to PATTERN_BYTES are left out.
__device__ inline bf16* first_tile(bf16* shared) {
    return shared + (PATTERN_BYTES - shared_address(shared) % PATTERN_BYTES) % PATTERN_BYTES / sizeof(bf16);
}
// The descriptor of a tile. next_tile_bytes: the leading distance, of a transposed operand of N >
// 64.
__device__ inline uint64_t descriptor(const bf16* tile, uint32_t next_tile_bytes = 0) {
    return (shared_address(tile) & 0x3FFFF) >> 4 | (uint64_t)(next_tile_bytes >> 4) << 16 |
           (uint64_t)(PATTERN_BYTES >> 4) << 32 | (uint64_t)1 << 62;
}
// The descriptor of what begins so many elements further on in memory.
__device__ inline uint64_t further(uint64_t descriptor, int elems) { return descriptor + (elems * 2 >> 4); }

// Stores a warp's 16 rows of c to rows first .. first + 15 of a head of a tensor, the upper 8 rows
// multiplied by `upper`, the lower 8 by `lower`. They leave through N / 64 tiles of 16 rows, which
// no other warp uses any more.
template <int N8>
__device__ inline void store_through(bf16* tiles, const TensorMap& map, int column, int head, int first, int plane,
                                     const float (&c)[N8][4], float upper, float lower) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < N8; n++) {
        const Tile<BOX_COLUMNS> tile{tiles + n / 8 * 16 * BOX_COLUMNS};
        *(uint32_t*)(tile.at(g, n % 8) + 2 * t) = pack_pair<bf16>(c[n][0] * upper, c[n][1] * upper);
        *(uint32_t*)(tile.at(g + 8, n % 8) + 2 * t) = pack_pair<bf16>(c[n][2] * lower, c[n][3] * lower);
    }
    fence_async();
    __syncwarp();
    if (lane != 0) return;
    for (int i = 0; i < N8 / 8; i++)
        tma_store(map, tiles + i * 16 * BOX_COLUMNS, column + i * BOX_COLUMNS, head, first, plane);
    tma_store_wait();
}

// ---- the host's side

// The map of a tensor (planes, rows, heads, columns) of bf16, in boxes of box_rows rows and 64
// columns of one head. row_stride and plane_stride: elements, multiples of 8, as columns is. The
// driver's function is asked for by name, so that programs need not be linked with the driver.
inline TensorMap tensor_map(const bf16* data, int64_t planes, int64_t rows, int64_t heads, int64_t columns,
                            int64_t row_stride, int64_t plane_stride, int box_rows) {
    void* found = nullptr;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault),
               "looking for cuTensorMapEncodeTiled");
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)heads, (cuuint64_t)rows, (cuuint64_t)planes};
    const cuuint64_t strides[] = {2 * (cuuint64_t)columns, 2 * (cuuint64_t)row_stride, 2 * (cuuint64_t)plane_stride};
    const cuuint32_t box[] = {BOX_COLUMNS, 1, (cuuint32_t)box_rows, 1}, every[] = {1, 1, 1, 1};
    TensorMap map;
    const CUresult result = ((decltype(&cuTensorMapEncodeTiled))found)(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void*)data, sizes, strides, box, every,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) runtime_failure("cuTensorMapEncodeTiled refuses the tensor: error %d", (int)result);
    return map;
}

// A kernel for Hopper alone may use what a block can have there, 227 KB of shared memory.
template <class Kernel>
inline void allow_hopper_shared(Kernel* kernel, size_t bytes, const char* name) {
#ifdef CUSIM
    cusim::allow_hopper((const void*)kernel);
#endif
    allow_shared(kernel, bytes, name);
}
// Whether this program has code for sm_90a, and runs on a GPU that can execute it.
__global__ void hopper_code_kernel([[maybe_unused]] int* found) {
#ifdef HOPPER_CODE
    *found = 1;
#endif
}
inline bool has_hopper_code([[maybe_unused]] cudaStream_t stream) {
#ifdef CUSIM
    return true;
#else
    static int found = -1;
    if (found >= 0) return found;
    int* on_device;
    check_cuda(cudaMalloc(&on_device, sizeof(int)), "allocating");
    check_cuda(cudaMemsetAsync(on_device, 0, sizeof(int), stream), "clearing");
    launch("hopper_code", hopper_code_kernel, 1, 1, 0, stream, on_device);
    copy_to_host(&found, on_device, sizeof(int), stream);
    check_cuda(cudaFree(on_device), "freeing");
    if (!found) fprintf(stderr, "the rungs for Hopper are left out: no code for sm_90a runs here (GPU_ARCH=90a)\n");
    return found;
#endif
}
