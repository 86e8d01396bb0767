// Fetches what a product packs next, or the rows that it reads next where they lie, to the
// second-level cache, a few lines at a time while it multiplies, so that it does not wait for
// memory. The CPU's own prefetcher cannot: it follows long runs, and a block of a matrix has many
// short ones.
#pragma once
#include <unistd.h>
#include "llmc/cpu/pack.h"

// The size of the second-level cache; 0 if the system does not say.
inline int64_t second_level_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
    static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes;
#else
    return 0;
#endif
}

// Prefetches rows x columns values, rows ld apart. Called before a product begins, for values that
// are read when it is done.
template <class T>
VEC_INLINE void fetch_ahead(const T* from, int64_t ld, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j += 64 / sizeof(T)) __builtin_prefetch(from + i * ld + j);
}

// A block of a matrix B on its way to the second-level cache.
struct BlockAhead {
    static constexpr int64_t LINE = 64, MOST_AT_ONCE = 8;  // more would keep the loads of the product waiting
    const char* line = nullptr;                            // is fetched next
    int64_t left = 0;                                      // lines
    int64_t of_run = 0, left_of_run = 0;                   // lines of a row, or of a column, whichever is contiguous
    int64_t skip = 0;                                      // bytes from the end of a run to the next
    int64_t at_once = 0;                                   // lines, in a step

    BlockAhead() {}
    // K x N values from B[k][n] on, in so many steps.
    BlockAhead(MatrixView<float> B, int64_t k, int64_t K, int64_t n, int64_t N, int64_t steps) {
        const bool rows = B.col_stride == 1;
        const int64_t runs = rows ? K : N, run_bytes = (rows ? N : K) * (int64_t)sizeof(float);
        if (3 * K * N * (int64_t)sizeof(float) > second_level_bytes()) return;  // it would push out what is in use
        line = (const char*)B.at(k, n);
        of_run = left_of_run = ceil_div(run_bytes, LINE);
        left = runs * of_run, skip = (rows ? B.row_stride : B.col_stride) * (int64_t)sizeof(float) - of_run * LINE;
        at_once = std::min(MOST_AT_ONCE, ceil_div(left, std::max<int64_t>(1, steps)));
    }
    VEC_INLINE void fetch_some() {
        for (int64_t i = 0; i < at_once && left > 0; i++, left--) {
            fetch_to_second_level(line);
            line += LINE;
            if (--left_of_run == 0) line += skip, left_of_run = of_run;
        }
    }
};
