// The instructions of hopper.cuh in C++, for the simulator. What is asynchronous on a GPU is late
// here: products are computed when a thread waits for them, boxes arrive when all threads wait
// (dev/cusim/cusim_hopper.h). A wgmma reads its operands through their descriptors, as the hardware
// does: a wrong distance, address or swizzle gives wrong results here too.
#pragma once
#include "llmc/cuda/mma.cuh"

#define CUSIM_CALLED cusim::Location here = CUSIM_HERE

inline uint32_t shared_address(const void* p) { return cusim::shared_offset(p); }

inline void mbarrier_init(uint64_t* barrier, uint32_t arrivals, CUSIM_CALLED) {
    cusim::mbarrier_init(barrier, arrivals, here);
}
inline void mbarrier_arrive(uint64_t* barrier, CUSIM_CALLED) { cusim::mbarrier_arrive(barrier, 0, here); }
inline void mbarrier_expect(uint64_t* barrier, uint32_t bytes, CUSIM_CALLED) {
    cusim::mbarrier_arrive(barrier, bytes, here);
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity, CUSIM_CALLED) {
    cusim::mbarrier_wait(barrier, parity, here);
}
inline void fence_async() { cusim::fence_async_proxy(); }
inline void tma_load(bf16* to, const CUtensorMap& map, int column, int head, int row, int plane, uint64_t* barrier,
                     CUSIM_CALLED) {
    cusim::tma_load(to, map, {column, head, row, plane}, barrier, here);
}
inline void tma_store(const CUtensorMap& map, const bf16* from, int column, int head, int row, int plane,
                      CUSIM_CALLED) {
    cusim::tma_store(map, from, {column, head, row, plane}, here);
}
inline void tma_store_wait() { cusim::tma_store_wait(); }
inline void wgmma_commit(CUSIM_CALLED) { cusim::wgmma_commit(here); }
template <int N8>
inline void wgmma_fence(float (&)[N8][4], CUSIM_CALLED) {
    cusim::wgmma_fence(here);
}
template <int groups, int N8>
inline void wgmma_wait(float (&)[N8][4], CUSIM_CALLED) {
    cusim::wgmma_wait(groups, here);
}

// What one thread passes to a wgmma.
struct Wgmma {
    float* c;
    const uint32_t* a_registers;  // or null, then a
    uint64_t a, b;
    bool b_transposed, add;
};
// Where element (row, k) of an operand lies; of B, `row` is a column. In the layouts of the PTX ISA
// a unit of 8 rows, or if transposed of 8 k, takes `span` bytes of each: 128, 64 or 32, swizzled,
// or 16.
inline uint32_t element_address(uint64_t descriptor, int row, int k, bool transposed) {
    constexpr uint32_t SPANS[] = {16, 128, 64, 32};
    const uint32_t start = (descriptor & 0x3FFF) << 4, leading = (descriptor >> 16 & 0x3FFF) << 4,
                   stride = (descriptor >> 32 & 0x3FFF) << 4, span = SPANS[descriptor >> 62];
    const int across = transposed ? k : row, along = transposed ? row : k, chunks = (int)span / 16;
    // Without a swizzle, the two distances of a transposed operand change places.
    const uint32_t next_8 = transposed && chunks == 1 ? leading : stride;
    const uint32_t next_span = transposed && chunks == 1 ? stride : leading;
    const uint32_t at = start + across / 8 * next_8 + across % 8 * span + along / 8 / chunks * next_span +
                        along / 8 % chunks * 16 + along % 8 * 2;
    return cusim::swizzled(at, span);
}
inline float element(uint64_t descriptor, int row, int k, bool transposed) {
    bf16 value;
    value.bits = cusim::async_read(element_address(descriptor, row, k, transposed));
    return value;
}
template <int N8>
inline void compute_wgmma(void** threads) {
    const Wgmma& first = *(Wgmma*)threads[0];
    float A[64][16], B[8 * N8][16];
    for (int row = 0; row < 64 && !first.a_registers; row++)
        for (int k = 0; k < 16; k++) A[row][k] = element(first.a, row, k, false);
    for (int column = 0; column < 8 * N8; column++)
        for (int k = 0; k < 16; k++) B[column][k] = element(first.b, column, k, first.b_transposed);
    for (int t = 0; t < 128 && first.a_registers; t++)
        for (int i = 0; i < 8; i++)
            A[t / 4 % 8 + t / 32 * 16 + i / 2 % 2 * 8][t % 4 * 2 + i / 4 * 8 + i % 2] =
                half_of(((Wgmma*)threads[t])->a_registers[i / 2], i % 2);
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < 4 * N8; i++) {
            const int row = t / 32 * 16 + t / 4 % 8 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
            float sum = 0;
            for (int k = 0; k < 16; k++) sum += A[row][k] * B[column][k];
            float& c = ((Wgmma*)threads[t])->c[i];
            c = first.add ? c + sum : sum;
        }
}
inline void check_descriptor(uint64_t descriptor, cusim::Location here) {
    if (descriptor >> 49 & 7 || (descriptor >> 3 & 7) != 0)
        cusim::fail(here, "the swizzled rows of an operand begin at a multiple of 1024 bytes, this one at %u",
                    (unsigned)(descriptor & 0x3FFF) << 4);
}
template <int N8>
inline void wgmma(float (&c)[N8][4], uint64_t a, uint64_t b, bool add, CUSIM_CALLED) {
    check_descriptor(a, here), check_descriptor(b, here);
    const Wgmma mine{&c[0][0], nullptr, a, b, false, add};
    cusim::wgmma_start(&mine, sizeof(mine), compute_wgmma<N8>, a ^ b, here);
}
template <int N8>
inline void wgmma(float (&c)[N8][4], const uint32_t (&a)[4], uint64_t b, CUSIM_CALLED) {
    check_descriptor(b, here);
    const Wgmma mine{&c[0][0], a, 0, b, true, true};
    cusim::wgmma_start(&mine, sizeof(mine), compute_wgmma<N8>, b, here);
}
