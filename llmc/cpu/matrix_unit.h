// Products of small bf16 matrices with sums in fp32, on the best unit that the CPU has. On x86 the
// unit is found at run time; on ARM the compiler must have been told of it (-march).
//
//     AMX           Eight registers, each a matrix of 16 rows of 64 bytes. One instruction, tdpbf16ps, multiplies
//                   16 x 32 by 32 x 16: 16384 FLOPs in 16 cycles (Intel 64 and IA-32 Architectures Optimization
//                   Reference Manual, chapter 20).
//     AVX512-BF16   vdpbf16ps takes 16 pairs of A and 16 pairs of B, multiplies value by value, and adds the two
//                   products of each pair to one fp32 sum: 64 FLOPs, once or twice per cycle; once in two on Intel's
//                   CPUs with AMX.
//     NEON BF16     bfdot does the same for 4 pairs of B and one pair of A: 16 FLOPs, up to four times per cycle (Arm
//                   Architecture Reference Manual, FEAT_BF16).
//     portable      Both values of each pair of B are widened to fp32, with a shift and a mask, once for 4 to 16 rows
//                   of A, which have been widened for all columns; then two multiply-adds.
//
// All take the same operands: A as rows, contiguous along k, in strips of 16 rows; B in the tiles
// of pack.h.
#pragma once
#include "llmc/base/hot_loop.h"
#include "llmc/cpu/block_ahead.h"
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

// -------------------------------------------------------------------------------------------------
// the units

// C = A B, or += if add. A has 16 * strips rows of 32 * k_tiles values, a_stride elements apart. B
// has `columns` columns of k_tiles tiles each, b_stride elements apart. C is fp32, its rows ldc
// elements apart. next: next_rows rows that a later product reads are prefetched meanwhile,
// next_stride elements apart.
struct TileProduct {
    float* C;
    int64_t ldc;
    const bf16* A;
    int64_t a_stride, strips;
    const bf16* B;
    int64_t b_stride, columns, k_tiles;
    bool add;
    const bf16* next = nullptr;
    int64_t next_stride = 0, next_rows = 0;
};

constexpr int TILE_VECTORS = TILE_COLS / VEC_FLOATS;  // of the sums of one row

// Rows of A, widened once for all columns: so many that their sums with 16 columns leave a few
// registers free, and so much of k that they stay in the first-level cache.
constexpr int WIDE_ROWS = (VEC_REGISTERS == 32 ? 16 : 12) / TILE_VECTORS;
constexpr int64_t WIDE_TILES = 8;
typedef float WideRows[WIDE_ROWS][WIDE_TILES * TILE_K];

// ROWS widened rows of A, the first number `row`, times one column of tiles.
template <int ROWS>
inline void multiply_wide_rows(const TileProduct& t, const WideRows& a, int64_t row, int64_t column) {
    vfloat acc[ROWS][TILE_VECTORS] = {};
    const bf16* b = t.B + column * t.b_stride;
    for (int64_t k = 0; k < t.k_tiles * TILE_K; k += 2, b += 2 * TILE_COLS) {
        const auto add_products = [&](int64_t at, auto widen) {
            vfloat values[TILE_VECTORS];
            for (int j = 0; j < TILE_VECTORS; j++) values[j] = widen(load_pairs(b + 2 * j * VEC_FLOATS));
#pragma GCC unroll 16
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < TILE_VECTORS; j++) acc[i][j] += broadcast(a[i][at]) * values[j];
        };
        add_products(k + 1, [](vuint pairs) { return widen_second(pairs); });
        add_products(k, [](vuint pairs) { return widen_first(pairs); });
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < TILE_VECTORS; j++) {
            float* c = t.C + (row + i) * t.ldc + column * TILE_COLS + j * VEC_FLOATS;
            store(c, t.add ? load(c) + acc[i][j] : acc[i][j]);
        }
}
inline void multiply_portable(const TileProduct& whole) {
    constexpr int REST = TILE_ROWS % WIDE_ROWS > 0 ? TILE_ROWS % WIDE_ROWS : WIDE_ROWS;  // the last rows of a strip
    alignas(64) WideRows a;
    for (int64_t k = 0; k < whole.k_tiles; k += WIDE_TILES) {
        TileProduct t = whole;
        t.A += k * TILE_K, t.B += k * TILE_ELEMS;
        t.k_tiles = std::min(WIDE_TILES, whole.k_tiles - k), t.add = whole.add || k > 0;
        for (int64_t row = 0; row < t.strips * TILE_ROWS;) {
            const int64_t rows = std::min<int64_t>(WIDE_ROWS, TILE_ROWS - row % TILE_ROWS);
            for (int i = 0; i < rows; i++) copy_values(a[i], t.A + (row + i) * t.a_stride, t.k_tiles * TILE_K);
            if (row < t.next_rows)
                fetch_ahead(t.next + row * t.next_stride + k * TILE_K, t.next_stride, std::min(rows, t.next_rows - row),
                            t.k_tiles * TILE_K);
            const auto multiply = rows == WIDE_ROWS ? multiply_wide_rows<WIDE_ROWS> : multiply_wide_rows<REST>;
            for (int64_t column = 0; column < t.columns; column++) multiply(t, a, row, column);
            row += rows;
        }
    }
}

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
constexpr int NEON_ROWS = 4;
// acc += pair number PAIR of each row of A times the 16 pairs at b.
template <int PAIR>
VEC_INLINE void add_pairs_neon(float32x4_t (&acc)[NEON_ROWS][TILE_VECTORS], const bfloat16x8_t (&a)[NEON_ROWS],
                               const bf16* b) {
    for (int j = 0; j < TILE_VECTORS; j++) {
        const bfloat16x8_t pairs = vld1q_bf16((const bfloat16_t*)b + j * 8);
        for (int i = 0; i < NEON_ROWS; i++) acc[i][j] = vbfdotq_laneq_f32(acc[i][j], pairs, a[i], PAIR);
    }
}
// 4 rows of A times one column of tiles: 16 accumulators, and 4 pairs of each row of A at a time.
inline void multiply_rows_neon(const TileProduct& t, int64_t row, int64_t column) {
    float32x4_t acc[NEON_ROWS][TILE_VECTORS] = {};
    const bf16 *a = t.A + row * t.a_stride, *b = t.B + column * t.b_stride;
    for (int64_t p = 0; p < t.k_tiles * TILE_PAIRS; p += 4, a += 8, b += 8 * TILE_COLS) {
        bfloat16x8_t rows[NEON_ROWS];
        for (int i = 0; i < NEON_ROWS; i++) rows[i] = vld1q_bf16((const bfloat16_t*)(a + i * t.a_stride));
        add_pairs_neon<0>(acc, rows, b);
        add_pairs_neon<1>(acc, rows, b + 2 * TILE_COLS);
        add_pairs_neon<2>(acc, rows, b + 4 * TILE_COLS);
        add_pairs_neon<3>(acc, rows, b + 6 * TILE_COLS);
    }
    for (int i = 0; i < NEON_ROWS; i++)
        for (int j = 0; j < TILE_VECTORS; j++) {
            float* c = t.C + (row + i) * t.ldc + column * TILE_COLS + j * VEC_FLOATS;
            vst1q_f32(c, t.add ? vaddq_f32(vld1q_f32(c), acc[i][j]) : acc[i][j]);
        }
}
inline void multiply_neon(const TileProduct& t) {
    for (int64_t column = 0; column < t.columns; column++)
        for (int64_t row = 0; row < t.strips * TILE_ROWS; row += NEON_ROWS) multiply_rows_neon(t, row, column);
}
#endif

#ifdef __x86_64__
// 8 rows of A times COLS columns of tiles: 8 COLS accumulators, COLS vectors of pairs of B. Each
// pair of A is broadcast from memory. FETCHES: the 8 rows below are prefetched, of which the last
// are those that come next. It is not inlined: as a part of its caller it was 4% slower.
template <int COLS, bool FETCHES>
__attribute__((target("avx512f,avx512bf16"), noinline)) void multiply_rows_avx512(const TileProduct& t, int64_t row,
                                                                                  int64_t column) {
    constexpr int ROWS = 8;
    __m512 acc[ROWS][COLS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < COLS; j++) acc[i][j] = _mm512_setzero_ps();
    const bf16 *a = t.A + row * t.a_stride, *b = t.B + column * t.b_stride;
    for (int64_t p = 0; p < t.k_tiles * TILE_PAIRS; p++, a += 2, b += 2 * TILE_COLS) {
        if (FETCHES && p % TILE_PAIRS == 0)
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; i++) __builtin_prefetch(a + (ROWS + i) * t.a_stride);
        __m512bh pairs[COLS];
#pragma GCC unroll 4
        for (int j = 0; j < COLS; j++) pairs[j] = (__m512bh)_mm512_loadu_si512(b + j * t.b_stride);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            int pair;
            memcpy(&pair, a + i * t.a_stride, 4);
            __m512i copies = _mm512_set1_epi32(pair);
#if defined(__clang__) && __clang_major__ == 16
            asm("" : "+v"(copies));  // else the optimizer of clang 16 crashes
#endif
            const __m512bh ai = (__m512bh)copies;
#pragma GCC unroll 4
            for (int j = 0; j < COLS; j++) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], ai, pairs[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < COLS; j++) {
            float* c = t.C + (row + i) * t.ldc + (column + j) * TILE_COLS;
            _mm512_storeu_ps(c, t.add ? _mm512_add_ps(_mm512_loadu_ps(c), acc[i][j]) : acc[i][j]);
        }
}
template <bool FETCHES>
inline auto rows_avx512(int64_t cols) {
    if (cols == 3) return multiply_rows_avx512<3, FETCHES>;
    return cols == 2 ? multiply_rows_avx512<2, FETCHES> : multiply_rows_avx512<1, FETCHES>;
}
inline void multiply_avx512(const TileProduct& t) {
    for (int64_t column = 0; column < t.columns;) {
        const int64_t cols = std::min<int64_t>(t.columns - column == 4 ? 2 : 3, t.columns - column);
        const auto multiply = t.next && column == 0 ? rows_avx512<true>(cols) : rows_avx512<false>(cols);
        for (int64_t row = 0; row < t.strips * TILE_ROWS; row += 8) multiply(t, row, column);
        column += cols;
    }
}

// The eight matrix registers of AMX, each of 16 rows of 64 bytes: 0 to 3 hold sums of 16 x 16, 4
// and 5 strips of A, 6 and 7 tiles of B, so that each register of A or B is used twice.
//
//                          6: 32 x 16     7: 32 x 16
//                               B              B
//
//     4: 16 x 32   A       0: 16 x 16     1: 16 x 16
//     5: 16 x 32   A       2: 16 x 16     3: 16 x 16        C
struct alignas(64) AmxConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
// The instructions of AMX. Compilers do not use its registers by themselves, so no compiler option
// is needed and no other code changes them.
struct Amx {
    static void open() {
        static constexpr AmxConfig config;
        asm volatile("ldtilecfg %0" ::"m"(config));
    }
    static void close() { asm volatile("tilerelease"); }
    template <int T>
    void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(T));
    }
    template <int T>
    void load(const void* from, int64_t stride_bytes) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(T) : "memory");
    }
    // As load(), of values that are not read again soon: they do not drive others from the
    // first-level cache.
    template <int T>
    void load_once(const void* from, int64_t stride_bytes) {
        asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(T) : "memory");
    }
    template <int T>
    void store(void* to, int64_t stride_bytes) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(T) : "memory");
    }
    template <int C, int A, int B>
    void multiply() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
};
#endif

// AMX in plain C++: what its instructions do, and what tests use where there is none.
struct AmxTwin {
    alignas(64) char tile[8][1024];
    template <int T>
    void zero() {
        memset(tile[T], 0, 1024);
    }
    template <int T>
    void load(const void* from, int64_t stride_bytes) {
        copy_rows(tile[T], 64, from, stride_bytes);
    }
    template <int T>
    void load_once(const void* from, int64_t stride_bytes) {
        load<T>(from, stride_bytes);
    }
    template <int T>
    void store(void* to, int64_t stride_bytes) {
        copy_rows(to, stride_bytes, tile[T], 64);
    }
    template <int C, int A, int B>
    void multiply() {
        multiply_tile((float*)tile[C], (const bf16*)tile[A], (const bf16*)tile[B]);
    }

private:
    __attribute__((noinline)) static void copy_rows(void* to, int64_t to_stride, const void* from, int64_t stride) {
        for (int i = 0; i < 16; i++) memcpy((char*)to + i * to_stride, (const char*)from + i * stride, 64);
    }
    // Widened first, once, and without a sanitizer, which would check each element of these arrays.
    HOT_LOOP __attribute__((noinline, no_sanitize("address", "undefined"))) static void multiply_tile(float* c,
                                                                                                      const bf16* a,
                                                                                                      const bf16* b) {
        float left[512], right[512];
        for (int i = 0; i < 512; i++) left[i] = a[i], right[i] = b[i];
        for (int i = 0; i < 16; i++)
            for (int p = 0; p < 16; p++)
                for (int j = 0; j < 16; j++)
                    c[i * 16 + j] += left[i * 32 + 2 * p] * right[p * 32 + 2 * j] +
                                     left[i * 32 + 2 * p + 1] * right[p * 32 + 2 * j + 1];
    }
};

// Multiplies STRIPS strips of A by COLS columns of tiles, 1 or 2 each. All tiles of a step are
// loaded before the first is multiplied, so that the loads of the next step are under way earlier
// (4% faster than each before its first use), and the sums that come next are prefetched (2%).
template <int STRIPS, int COLS, class Unit>
inline void multiply_tiles_amx(Unit& unit, const TileProduct& t, int64_t strip, int64_t column) {
    const bf16 *a = t.A + strip * TILE_ROWS * t.a_stride, *b = t.B + column * t.b_stride;
    float* c = t.C + strip * TILE_ROWS * t.ldc + column * TILE_COLS;
    const int64_t a_bytes = t.a_stride * 2, c_bytes = t.ldc * 4, below = TILE_ROWS * t.ldc;
    if (t.add) {
        unit.template load_once<0>(c, c_bytes);
        if constexpr (COLS == 2) unit.template load_once<1>(c + TILE_COLS, c_bytes);
        if constexpr (STRIPS == 2) unit.template load_once<2>(c + below, c_bytes);
        if constexpr (STRIPS == 2 && COLS == 2) unit.template load_once<3>(c + below + TILE_COLS, c_bytes);
    } else {
        unit.template zero<0>();
        if constexpr (COLS == 2) unit.template zero<1>();
        if constexpr (STRIPS == 2) unit.template zero<2>();
        if constexpr (STRIPS == 2 && COLS == 2) unit.template zero<3>();
    }
    const float* next_sums = column + COLS < t.columns ? c + COLS * TILE_COLS : t.C + t.strips * TILE_ROWS * t.ldc;
    for (int64_t k = 0; k < t.k_tiles; k++, a += TILE_K, b += TILE_ELEMS) {
        for (int64_t i = 0; i < t.next_rows; i++) fetch_to_second_level(t.next + i * t.next_stride + k * TILE_K);
        for (int64_t i = 2 * k; i < 2 * k + 2 && i < STRIPS * TILE_ROWS; i++)
            for (int64_t j = 0; j < COLS; j++) fetch_to_write(next_sums + i * t.ldc + j * TILE_COLS);
        unit.template load<4>(a, a_bytes);
        unit.template load_once<6>(b, 64);
        if constexpr (COLS == 2) unit.template load_once<7>(b + t.b_stride, 64);
        if constexpr (STRIPS == 2) unit.template load<5>(a + TILE_ROWS * t.a_stride, a_bytes);
        unit.template multiply<0, 4, 6>();
        if constexpr (COLS == 2) unit.template multiply<1, 4, 7>();
        if constexpr (STRIPS == 2) unit.template multiply<2, 5, 6>();
        if constexpr (STRIPS == 2 && COLS == 2) unit.template multiply<3, 5, 7>();
    }
    unit.template store<0>(c, c_bytes);
    if constexpr (COLS == 2) unit.template store<1>(c + TILE_COLS, c_bytes);
    if constexpr (STRIPS == 2) unit.template store<2>(c + below, c_bytes);
    if constexpr (STRIPS == 2 && COLS == 2) unit.template store<3>(c + below + TILE_COLS, c_bytes);
}
template <class Unit>
inline void multiply_amx(const TileProduct& t) {
    Unit unit;
    for (int64_t column = 0; column < t.columns; column += 2)
        for (int64_t strip = 0; strip < t.strips; strip += 2) {
            const bool two_strips = strip + 1 < t.strips, two_columns = column + 1 < t.columns;
            if (two_strips && two_columns) multiply_tiles_amx<2, 2>(unit, t, strip, column);
            else if (two_strips) multiply_tiles_amx<2, 1>(unit, t, strip, column);
            else if (two_columns) multiply_tiles_amx<1, 2>(unit, t, strip, column);
            else multiply_tiles_amx<1, 1>(unit, t, strip, column);
        }
}

// -------------------------------------------------------------------------------------------------
// which unit

constexpr const char* MATRIX_UNIT_NAMES[] = {"fp32 units", "AVX512-BF16", "AMX", "AMX in C++", "NEON BF16"};
// The units that this architecture can have.
#ifdef __aarch64__
constexpr MatrixUnit MATRIX_UNITS[] = {UNIT_PORTABLE, UNIT_AMX_TWIN, UNIT_NEON_BF16};
#else
constexpr MatrixUnit MATRIX_UNITS[] = {UNIT_PORTABLE, UNIT_AMX_TWIN, UNIT_AVX512_BF16, UNIT_AMX};
#endif

// Asks for the 8 KB of matrix registers, which Linux gives to processes that do. Other systems are
// not asked: there AMX is left alone.
inline bool may_use_matrix_registers() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr long REQUEST_PERMISSION = 0x1023, MATRIX_REGISTERS = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, MATRIX_REGISTERS) == 0;
#else
    return false;
#endif
}

// Whether this CPU has the unit, and the system lets the process use it.
inline bool has_matrix_unit(MatrixUnit unit) {
#ifdef __x86_64__
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (unit == UNIT_AVX512_BF16)
        return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
    if (unit == UNIT_AMX) {
        constexpr unsigned BF16_AND_TILE = 1u << 22 | 1u << 24;
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BF16_AND_TILE) == BF16_AND_TILE &&
               may_use_matrix_registers();
    }
#endif
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    if (unit == UNIT_NEON_BF16) return true;
#endif
    return unit == UNIT_PORTABLE || unit == UNIT_AMX_TWIN;
}
// Intel's CPUs since Sapphire Rapids, known by AVX512-FP16, leave bf16 to AMX: their vdpbf16ps
// takes two cycles, as long as four multiply-adds of fp32. Where AMX is hidden, as in some virtual
// machines, the products of a step take 1.6 times as long by it as by the fp32 units
// (dev/cpu/README.md).
inline bool has_slow_avx512_bf16() {
#ifdef __x86_64__
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_is("intel") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 23 & 1);
#else
    return false;
#endif
}
inline MatrixUnit best_matrix_unit() {
    for (MatrixUnit unit : {UNIT_AMX, UNIT_AVX512_BF16, UNIT_NEON_BF16})
        if (has_matrix_unit(unit) && !(unit == UNIT_AVX512_BF16 && has_slow_avx512_bf16())) return unit;
    return UNIT_PORTABLE;
}

// The matrix registers of the calling thread, which multiply_tiles() uses: while this is open, and
// not opened twice. Opening takes as long as a few instructions that multiply.
struct MatrixRegisters {
#ifdef __x86_64__
    MatrixRegisters() {
        if (device.unit == UNIT_AMX) Amx::open();
    }
    ~MatrixRegisters() {
        if (device.unit == UNIT_AMX) Amx::close();
    }
#else
    MatrixRegisters() {}
#endif
    MatrixRegisters(const MatrixRegisters&) = delete;
};

// Computes the product on device.unit, whose MatrixRegisters are open.
inline void multiply_tiles(const TileProduct& t) {
#ifdef __x86_64__
    if (device.unit == UNIT_AMX) return multiply_amx<Amx>(t);
    if (device.unit == UNIT_AVX512_BF16) return multiply_avx512(t);
#endif
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    if (device.unit == UNIT_NEON_BF16) return multiply_neon(t);
#endif
    if (device.unit == UNIT_AMX_TWIN) return multiply_amx<AmxTwin>(t);
    multiply_portable(t);
}
