// Memory of the exercises' programs. Each block begins as NaN and lies between margins of 3.4e38,
// the largest in any sum and any maximum: what is read beyond an array, or before it is written,
// shows in the results. What is written beyond it ends the program. Blocks are counted, so that a
// judge can limit them (Judge::within).
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

std::atomic<long long> allocated_bytes{0};

// The sanitizers replace these themselves; in CUDA the simulator has margins of its own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(EXERCISE_IN_CUDA)
constexpr size_t MARGIN = 64;
constexpr unsigned char BEYOND = 0x7F, UNWRITTEN = 0xFF;  // four of them are 3.4e38, NaN

// A block of n bytes: its size, BEYOND up to the 64th byte, the bytes, 64 times BEYOND.
void* operator new(size_t n) {
    char* p = (char*)malloc(n + 2 * MARGIN);
    if (!p) throw std::bad_alloc();
    memcpy(p, &n, sizeof n);
    memset(p + sizeof n, BEYOND, MARGIN - sizeof n);
    memset(p + MARGIN, UNWRITTEN, n), memset(p + MARGIN + n, BEYOND, MARGIN);
    allocated_bytes += (long long)n;
    return p + MARGIN;
}
void operator delete(void* block) noexcept {
    if (!block) return;
    unsigned char* p = (unsigned char*)block - MARGIN;
    size_t n, changed = 0;
    memcpy(&n, p, sizeof n);
    for (size_t i = sizeof n; i < MARGIN; i++) changed += p[i] != BEYOND;
    for (size_t i = MARGIN + n; i < n + 2 * MARGIN; i++) changed += p[i] != BEYOND;
    if (changed) {
        printf("\nhint (bounds): something is written before or behind an array.\n");
        fflush(stdout), _exit(1);
    }
    free(p);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }
#endif
