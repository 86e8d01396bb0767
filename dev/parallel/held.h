// Memory is counted as it is allocated: that of what a micro-batch keeps from its forward pass on.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

struct Held {
    int64_t bytes = 0, peak_bytes = 0;
};
inline Held held;
template <class X>
struct CountingAllocator : std::allocator<X> {
    template <class Y>
    struct rebind {
        using other = CountingAllocator<Y>;
    };
    X* allocate(size_t n) {
        held.bytes += (int64_t)(n * sizeof(X)), held.peak_bytes = std::max(held.peak_bytes, held.bytes);
        return std::allocator<X>::allocate(n);
    }
    void deallocate(X* p, size_t n) {
        held.bytes -= (int64_t)(n * sizeof(X));
        std::allocator<X>::deallocate(p, n);
    }
};
using Counted = std::vector<float, CountingAllocator<float>>;
