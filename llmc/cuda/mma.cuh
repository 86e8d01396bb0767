// Tensor cores, and what feeds them: the PTX instructions that attention uses, each behind a
// function, each with a twin in C++ that dev/cusim runs (there the last lane of the warp to arrive
// computes for all). All are from sm_80 on. Source: PTX ISA, sections on mma.m16n8k16, ldmatrix and
// cp.async.
//
// Fragments. A warp holds a matrix in pieces; with g = lane / 4 and t = lane % 4, lane holds, two
// bf16 to a register,
//     A (16 x 16):  a[0] = A[g][2t..2t+1],  a[1] = A[g+8][2t..],  a[2] = A[g][2t+8..],  a[3] = A[g+8][2t+8..]
//     B (16 x 8):   b[0] = B[2t..2t+1][g],  b[1] = B[2t+8..2t+9][g]
//     C (16 x 8, fp32):  c[0..1] = C[g][2t..2t+1],  c[2..3] = C[g+8][2t..2t+1]
// So the C of one product, rounded to bf16, is already the A of the next: two C side by side make
// one A.
#pragma once
#include "llmc/bf16.h"
#include "llmc/cuda/common.cuh"

// Two fp32 values as bf16 in one register, low first.
__device__ inline uint32_t pack_bf16(float low, float high) {
    return (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(low)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
}

#ifndef CUSIM
__device__ inline uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// c (16 x 8) += a (16 x 16) b (16 x 8).
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices of bf16 from shared memory: lane 8i + r gives the address of row r of matrix
// i, 16-byte aligned. Register i of lane then holds elements 2t and 2t+1 of row g of matrix i.
__device__ inline void ldmatrix(uint32_t (&r)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
// The same of the transposed matrices: elements (2t, g) and (2t+1, g).
__device__ inline void ldmatrix_transposed(uint32_t (&r)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
// 16 bytes from global to shared memory while the thread goes on; zeros instead if not valid
// (`from` must be a good address all the same).
__device__ inline void copy_async(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0));
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;\n"); }
// Until all but the newest `groups` commits of this thread have arrived.
template <int groups>
__device__ inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(groups));
}

#else  // the twins

inline float bf16_of(uint32_t reg, int half) {
    return __bfloat162float(__ushort_as_bfloat16((unsigned short)(reg >> (16 * half))));
}

inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    struct Lane {
        float* c;
        const uint32_t* a;
        uint32_t b[2];
    } mine{c, a, {b0, b1}};
    cusim::warp_collective(0xFFFFFFFFu, "mma", CUSIM_HERE, &mine, [](void** lanes) {
        float A[16][16], B[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const Lane& l = *(Lane*)lanes[lane];
            const int g = lane / 4, t = lane % 4;
            for (int r = 0; r < 4; r++)
                for (int half = 0; half < 2; half++) A[g + r % 2 * 8][2 * t + r / 2 * 8 + half] = bf16_of(l.a[r], half);
            for (int r = 0; r < 2; r++)
                for (int half = 0; half < 2; half++) B[2 * t + r * 8 + half][g] = bf16_of(l.b[r], half);
        }
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                const int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
                float sum = 0;
                for (int k = 0; k < 16; k++) sum += A[row][k] * B[k][col];
                ((Lane*)lanes[lane])->c[i] += sum;
            }
    });
}
template <bool transposed>
inline void ldmatrix_twin(uint32_t (&r)[4], const bf16* row) {
    cusim::check_alignment(row, 16, CUSIM_HERE);
    struct Lane {
        uint32_t* r;
        const bf16* row;
    } mine{r, row};
    cusim::warp_collective(
        0xFFFFFFFFu, transposed ? "ldmatrix_transposed" : "ldmatrix", CUSIM_HERE, &mine, [](void** lanes) {
            for (int lane = 0; lane < 32; lane++)
                for (int i = 0; i < 4; i++) {
                    const int g = lane / 4, t = lane % 4;
                    auto element = [&](int half) -> uint32_t {
                        return __bfloat16_as_ushort(transposed ? ((Lane*)lanes[8 * i + 2 * t + half])->row[g]
                                                               : ((Lane*)lanes[8 * i + g])->row[2 * t + half]);
                    };
                    ((Lane*)lanes[lane])->r[i] = element(0) | element(1) << 16;
                }
        });
}
inline void ldmatrix(uint32_t (&r)[4], const bf16* row) { ldmatrix_twin<false>(r, row); }
inline void ldmatrix_transposed(uint32_t (&r)[4], const bf16* row) { ldmatrix_twin<true>(r, row); }
inline void copy_async(void* to, const void* from, bool valid) {
    cusim::async_copy(to, from, 16, valid ? 16 : 0, CUSIM_HERE);
}
inline void copy_async_commit() { cusim::async_commit(); }
template <int groups>
inline void copy_async_wait() {
    cusim::async_wait(groups);
}
#endif
