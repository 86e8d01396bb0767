// Tensor cores, and the instructions that feed them: the PTX that attention and the matmul ladder
// use. Each instruction is behind one function; a C++ twin of each function runs in the simulator
// (dev/cusim). All of them exist from sm_80 on.
// Source: PTX ISA, sections on mma.m16n8k16, ldmatrix, cp.async and ex2.
//
// mma.m16n8k16 is one instruction of a warp: C (16 x 8, fp32) += A (16 x 16, halfX) B (16 x 8,
// halfX), 4096 FLOPs, where halfX is bf16 or fp16. The matrices lie in registers, distributed over
// the 32 lanes. These pieces are called fragments. A register of A or B holds two of them, the one
// with the lower index in the low half. The numbers in the pictures are lanes:
//
//     A  columns  0-1  2-3  4-5  6-7 | 8-9 10-11 12-13 14-15      C  columns  0-1  2-3  4-5  6-7
//        row  0    0    1    2    3  |  0    1     2     3           row  0    0    1    2    3
//        row  1    4    5    6    7  |  4    5     6     7           row  1    4    5    6    7
//         ...           a[0]         |         a[2]                   ...       c[0], c[1]
//        row  7   28   29   30   31  | 28   29    30    31           row  7   28   29   30   31
//        ----------------------------+---------------------          ---------------------------
//        row  8    0    1    2    3  |  0    1     2     3           row  8    0    1    2    3
//         ...           a[1]         |         a[3]                   ...       c[2], c[3]
//        row 15   28   29   30   31  | 28   29    30    31           row 15   28   29   30   31
//
//     B  columns    0   1   2   3   4   5   6   7
//        rows  0-1  0   4   8  12  16  20  24  28
//        rows  2-3  1   5   9  13  17  21  25  29      b0
//        rows  4-5  2   6  10  14  18  22  26  30
//        rows  6-7  3   7  11  15  19  23  27  31
//        -----------------------------------------
//        rows 8-15: the lanes of rows 0-7               b1
//
// In formulas, with g = lane / 4 and t = lane % 4: a[0] is A[g][2t, 2t+1], a[1] is 8 rows below it,
// a[2] is 8 columns to its right; b0 is B[2t, 2t+1][g]; c[0], c[1] are C[g][2t, 2t+1] and c[2],
// c[3] are 8 rows below.
//
// The left half of A and C have the same layout. So two results C0 and C1, side by side, are one
// operand A of the next product, without any exchange between lanes. Only the type changes:
//
//     a[0] = halfX(C0.c[0], C0.c[1])     a[2] = halfX(C1.c[0], C1.c[1])
//     a[1] = halfX(C0.c[2], C0.c[3])     a[3] = halfX(C1.c[2], C1.c[3])
//
// Attention uses this: the scores q k^T go into p v straight from registers
// (attention_products.cuh).
#pragma once
#include <cfloat>
#include "llmc/base/bf16.h"
#include "llmc/cuda/common.cuh"

constexpr float LOG2_E = 1.4426950408889634f;  // e^x = 2^(x LOG2_E): for exp2_flushed

#ifdef PRECISION_FP16
#define MMA_TYPES "f32.f16.f16.f32"
#else
#define MMA_TYPES "f32.bf16.bf16.f32"
#endif

#ifndef CUSIM
__device__ inline uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// C += A B.
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col." MMA_TYPES
                 " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Loads four 8 x 8 matrices of halfX from shared memory. Lane 8i + r passes the address of row r of
// matrix i: 16 bytes, 16-byte aligned. Afterwards r[i] of each lane holds elements [g][2t, 2t+1] of
// matrix i: one quarter of an A fragment.
__device__ inline void ldmatrix(uint32_t (&r)[4], const halfX* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
// Loads four 8 x 8 matrices as ldmatrix() does, but transposes each on the way: r[i] holds elements
// [2t, 2t+1][g], half of a B fragment.
__device__ inline void ldmatrix_transposed(uint32_t (&r)[4], const halfX* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
// Starts copying 16 bytes from global to shared memory. The thread does not wait, and the bytes
// pass through none of its registers. If not valid, 16 zeros are written, and nothing is read.
// "memory" tells the compiler that memory changes behind its back: it moves no load or store across
// one of these instructions.
__device__ inline void copy_async(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
// Starts copying 4 bytes likewise; if not valid, zeros are written.
__device__ inline void copy_async_4(float* to, const float* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
}
// Makes one group of all copies that this thread started since its last commit.
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until at most the newest `groups` groups of this thread are still on their way. Other
// threads see the data after a barrier.
template <int groups>
__device__ inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(groups) : "memory");
}
// 2^x, with 0 in place of subnormal results. One instruction; exp2f needs four, to return those
// too.
__device__ inline float exp2_flushed(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

#else

// The twins. Where an instruction involves the whole warp, the lanes wait for each other, and the
// last one to arrive computes the results of all.

inline float half_of(uint32_t reg, int half) {
    halfX value;
    value.bits = (uint16_t)(reg >> (16 * half));
    return value;
}

inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    struct Lane {
        float* c;
        const uint32_t* a;
        uint32_t b[2];
    } mine{c, a, {b0, b1}};
    cusim::warp_collective(0xFFFFFFFFu, "mma", CUSIM_HERE, &mine, [](void** lanes) {
        typedef float Row __attribute__((vector_size(32)));
        float A[16][16];
        Row B[16], C[16] = {};
        for (int lane = 0; lane < 32; lane++) {
            const Lane& l = *(Lane*)lanes[lane];
            const int g = lane / 4, t = lane % 4;
            for (int r = 0; r < 4; r++)
                for (int half = 0; half < 2; half++) A[g + r % 2 * 8][2 * t + r / 2 * 8 + half] = half_of(l.a[r], half);
            for (int r = 0; r < 2; r++)
                for (int half = 0; half < 2; half++) B[2 * t + r * 8 + half][g] = half_of(l.b[r], half);
        }
        for (int row = 0; row < 16; row++)
            for (int k = 0; k < 16; k++) C[row] += A[row][k] * B[k];
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) ((Lane*)lanes[lane])->c[i] += C[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    });
}
template <bool transposed>
inline void ldmatrix_twin(uint32_t (&r)[4], const halfX* row) {
    cusim::check_alignment(row, 16, CUSIM_HERE);
    cusim::count_ldmatrix(row);
    struct Lane {
        uint32_t* r;
        const halfX* row;
    } mine{r, row};
    const char* name = transposed ? "ldmatrix_transposed" : "ldmatrix";
    cusim::warp_collective(0xFFFFFFFFu, name, CUSIM_HERE, &mine, [](void** lanes) {
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                const int g = lane / 4, t = lane % 4;
                auto element = [&](int half) -> uint32_t {
                    const int row = transposed ? 2 * t + half : g, column = transposed ? g : 2 * t + half;
                    return ((Lane*)lanes[8 * i + row])->row[column].bits;
                };
                ((Lane*)lanes[lane])->r[i] = element(0) | element(1) << 16;
            }
    });
}
inline void ldmatrix(uint32_t (&r)[4], const halfX* row) { ldmatrix_twin<false>(r, row); }
inline void ldmatrix_transposed(uint32_t (&r)[4], const halfX* row) { ldmatrix_twin<true>(r, row); }
inline void copy_async(void* to, const void* from, bool valid) {
    cusim::async_copy(to, from, 16, valid ? 16 : 0, CUSIM_HERE);
}
inline void copy_async_4(float* to, const float* from, bool valid) {
    cusim::async_copy(to, from, 4, valid ? 4 : 0, CUSIM_HERE);
}
inline void copy_async_commit() { cusim::async_commit(); }
template <int groups>
inline void copy_async_wait() {
    cusim::async_wait(groups);
}
inline float exp2_flushed(float x) {
    const float y = exp2f(x);
    return y < FLT_MIN ? 0.0f : y;
}
#endif

// e^x, flushed to 0 where it is subnormal.
__device__ inline float exp_flushed(float x) { return exp2_flushed(x * LOG2_E); }
