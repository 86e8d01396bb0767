// Random numbers, of two kinds.
//
// Initial weights are the numbers that PyTorch draws for the same seed, so that both can start from
// the same point: the Mersenne Twister (Matsumoto & Nishimura 1998, doi:10.1145/272991.272995), and
// PyTorch's way of making normal values from it, the Box-Muller transform on blocks of 16.
//
// For everything else (order of the data, samples, stochastic rounding, dropout) a generator is
// created from the seed and the position in the run. It has no state that would have to be saved,
// so a resumed run draws the same numbers.
#pragma once
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

struct MersenneTwister {
    uint32_t state[624];
    int next = 624;
    double spare = 0;  // normal values of short tensors come in pairs: the second of a pair, if has_spare
    bool has_spare = false;

    explicit MersenneTwister(uint64_t seed) {
        state[0] = (uint32_t)seed;
        for (int i = 1; i < 624; i++) state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
    }
    void renew_state() {
        for (int i = 0; i < 624; i++) {
            const uint32_t after = state[i < 623 ? i + 1 : 0], far = state[i < 227 ? i + 397 : i - 227];
            const uint32_t y = (state[i] & 0x80000000u) | (after & 0x7FFFFFFFu);
            state[i] = far ^ (y >> 1) ^ (y & 1 ? 0x9908B0DFu : 0);
        }
        next = 0;
    }
    uint32_t bits32() {
        if (next == 624) renew_state();
        uint32_t y = state[next++];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C5680u;
        y ^= (y << 15) & 0xEFC60000u;
        return y ^ (y >> 18);
    }
    uint64_t bits64() {
        uint64_t high = bits32();
        return high << 32 | bits32();
    }
    float uniform_float() { return (bits32() & 0xFFFFFF) * (1.0f / (1 << 24)); }                // [0, 1), 24 bits
    double uniform_double() { return (bits64() & ((1ull << 53) - 1)) * (1.0 / (1ull << 53)); }  // [0, 1), 53 bits
};

// Draws data (n) ~ N(0, std^2), as torch.Tensor.normal_(0, std) fills a contiguous fp32 tensor on a
// CPU.
inline void normal_fill(MersenneTwister& rng, float* data, int64_t n, float std) {
    const float two_pi = 6.283185307179586f;
    auto block16 = [&](float* p) {  // 8 pairs of uniform values to 8 pairs of normal ones
        for (int j = 0; j < 8; j++) {
            float radius = std::sqrt(-2.0f * std::log(1.0f - p[j])), angle = two_pi * p[j + 8];
            p[j] = radius * std::cos(angle) * std;
            p[j + 8] = radius * std::sin(angle) * std;
        }
    };
    if (n >= 16) {
        for (int64_t i = 0; i < n; i++) data[i] = rng.uniform_float();
        for (int64_t i = 0; i + 16 <= n; i += 16) block16(data + i);
        if (n % 16) {  // the last 16 are drawn again
            for (int64_t i = n - 16; i < n; i++) data[i] = rng.uniform_float();
            block16(data + n - 16);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++, rng.has_spare = !rng.has_spare) {  // few values: one pair at a time, in fp64
        if (rng.has_spare) data[i] = (float)(rng.spare * std);
        else {
            double u = rng.uniform_double(), v = rng.uniform_double(), radius = std::sqrt(-2.0 * std::log1p(-v)),
                   angle = 2.0 * M_PI * u;
            rng.spare = radius * std::sin(angle);
            data[i] = (float)(radius * std::cos(angle) * std);
        }
    }
}

// The generator for one purpose at one position of the run; a and b number the position, as in
// (epoch, shard).
enum RandomPurpose : uint64_t {
    RANDOM_SHARDS = 1,
    RANDOM_WINDOWS = 2,
    RANDOM_SAMPLE = 3,
    RANDOM_ROUNDING = 4,
    RANDOM_DROPOUT = 5
};
inline MersenneTwister generator_for(uint64_t seed, RandomPurpose purpose, uint64_t a, uint64_t b = 0) {
    uint64_t h = seed;
    for (uint64_t word : {(uint64_t)purpose, a, b}) {  // splitmix64 (Steele et al. 2014) over the words
        h += 0x9E3779B97F4A7C15u + word;
        h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
        h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
        h ^= h >> 31;
    }
    return MersenneTwister(h ^ (h >> 32));
}

// The numbers 0 to n - 1 in random order (Fisher & Yates).
inline std::vector<uint32_t> permutation(int64_t n, MersenneTwister rng) {
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    for (int64_t i = n - 1; i > 0; i--) std::swap(order[i], order[rng.bits64() % (uint64_t)(i + 1)]);
    return order;
}
