// m and v in fewer than 32 bits (`Kept` in optimizers.h): an optimizer reads them as fp32, updates
// them, and stores them in their format again.
//
// KEEP_BF16: two bytes each, rounded stochastically (bf16.h). With beta2 = 0.999, v changes by a
// thousandth of g^2 - v per step; bf16 numbers are 1/128 to 1/256 of themselves apart. Rounding to
// nearest would undo every change of less than half of that, and v would stay where it is. The mean
// of stochastic rounding is exact.
//
// KEEP_8BIT: one byte each (Dettmers et al. 2022, arXiv:2110.02861). A block of elements has a
// scale, its largest element. An element divided by the scale is rounded to the nearest of 256
// values, the dynamic code. It has 7 decades; each is cut into equal parts, and the code has their
// middles:
//
//     decade             values of m, positive    values of v
//     10^-7 to 10^-6               1                    2
//     10^-6 to 10^-5               2                    4
//      ...                        ...                  ...
//     10^-1 to 1                  64                  128
//
// and 0 and 1; of m also the negative of each value but 1. Rounding changes an element by at most
// half the distance between neighbours in the code, times the scale. In the uppermost decade that
// is 0.9 / 128 = 0.7% of the scale for m, half of it for v; in each decade below, a fifth of that.
//
// Three things differ from the paper. First, blocks have 256 elements, not 2048: a block lies
// within a slice, and takes its whole length in memory, so that shorter ones leave less unused; and
// a warp of a GPU has a block, 8 elements per lane. Second, only 0 becomes 0 in v, because the
// update divides by its root: what is smaller than all values becomes the smallest one. Third, the
// scale has the sign of its element, so that this element is 1 times the scale, and is kept
// exactly. The values that a block stands for therefore have the same scale and codes again: state
// files have them in fp32, and resuming gives the same bits.
//
// Blocks begin where a slice of a bucket begins (tensors.h), as many slices as there are processes,
// in both ZeRO stages; the last block of a slice is shorter. So both stages have the same blocks.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>
#include "llmc/base/bf16.h"
#include "llmc/optim/optimizers.h"
#include "llmc/gpt2/tensors.h"

constexpr bool is_small(Kept kept) { return kept == KEEP_BF16 || kept == KEEP_8BIT; }
// What m and v of an optimizer are in memory, but for KEEP_8BIT.
template <Optimizer optimizer>
using StateType = std::conditional_t<OPTIMIZERS[optimizer].keeps.m == KEEP_BF16, bf16, float>;

// The seed of the random bits that round m (0) or v (1) in bf16; the weights have the seed itself.
HOST_DEVICE inline uint64_t seed_of_state(uint64_t seed, int state) { return seed + 1 + (uint64_t)state; }

constexpr int STATE_BLOCK_ELEMS = 256;
struct StateBlock {
    float scale;
    uint8_t codes[STATE_BLOCK_ELEMS];  // numbers of the values in ascending order
};
inline int64_t blocks_of(int64_t elems) { return ceil_div(elems, STATE_BLOCK_ELEMS); }

// Where the blocks of a process lie: bucket by bucket, slice by slice.
struct BlockMap {
    int64_t layers, slices;           // slices: of each bucket, those that the process keeps
    int64_t layer_elems, last_elems;  // of a slice of a layer's bucket, of a slice of the last bucket
    int64_t layer_blocks, last_blocks;
    // Of these blocks only `count` from `first` on, which are numbered from 0 again (-1: all).
    int64_t first = 0, count = -1;

    HOST_DEVICE int64_t blocks() const { return count >= 0 ? count : first_block(layers) + slices * last_blocks; }
    HOST_DEVICE int64_t first_block(int64_t bucket) const { return bucket * slices * layer_blocks; }
    int64_t slice_blocks(int64_t bucket) const { return bucket < layers ? layer_blocks : last_blocks; }
    // The first element of a block, among all of which the process keeps state, and how many
    // elements the block has.
    HOST_DEVICE int64_t begin(int64_t block, int& elems) const {
        const int64_t in_layers = layers * slices;  // slices
        block += first;
        const bool last = block >= in_layers * layer_blocks;
        const int64_t of_slice = last ? last_elems : layer_elems, blocks = last ? last_blocks : layer_blocks;
        if (last) block -= in_layers * layer_blocks;
        const int64_t at = block % blocks * STATE_BLOCK_ELEMS, left = of_slice - at;
        elems = left < STATE_BLOCK_ELEMS ? (int)left : STATE_BLOCK_ELEMS;
        return (last ? in_layers * layer_elems : 0) + block / blocks * of_slice + at;
    }
};
inline BlockMap block_map(const ParameterLayout& layout, const BucketSlice& slice) {
    const int64_t L = layout.config.L, layer = L > 0 ? layout.slice_elems(0) : 0, last = layout.slice_elems(L);
    return {L, layout.processes / slice.parts, layer, last, blocks_of(layer), blocks_of(last)};
}

// A block whose largest element is smaller than this is kept as zeros. (The values that such a
// block stands for would be below the normal fp32 numbers, too coarse to find their codes again.)
constexpr float LEAST_STATE_SCALE = 0x1p-100f;

// The dynamic code of m, or (!SIGNED) of v.
template <bool SIGNED>
struct DynamicCode {
    static constexpr int DECADES = 7, LEAST = SIGNED ? 1 : 2;  // values in the lowest decade
    static constexpr int MOST = LEAST << (DECADES - 1), ZERO = SIGNED ? 127 : 0;

    // Values are numbered by size: LEAST - 1 is 0, then those of the lowest decade, and so on; the
    // last, 2 MOST, is 1. The value of part j of n, in the decade from 1 / power on, is
    // (1 + 9 (j + 1/2) / n) / power: here a quotient of two numbers that fp32 has exactly.
    HOST_DEVICE static constexpr float value_of_size(int number) {
        if (number < LEAST) return 0;
        if (number == 2 * MOST) return 1;
        int n = LEAST;
        float power = 1e7f;
        while (2 * n <= number) n *= 2, power /= 10;
        return (float)(2 * n + 18 * (number - n) + 9) / (2 * n * power);
    }
    HOST_DEVICE static constexpr float value(int code) {
        const int number = code - ZERO;
        if (!SIGNED) return value_of_size(number + LEAST - 1);
        return number < 0 ? -value_of_size(-number) : value_of_size(number);
    }

    // The code of the value nearest to x, -1 (of v 0) to 1; of a positive v not that of 0.
    HOST_DEVICE static uint8_t nearest(float x) {
        constexpr float least = value_of_size(LEAST) / 2, most = (1 + value_of_size(2 * MOST - 1)) / 2;
        const float size = x < 0 ? -x : x;
        float n = LEAST, power = 1e7f, parts = LEAST, decade = 1e7f;
        for (int i = 1; i < DECADES; i++) {
            // the middle between the last value of this decade and the first of the next
            const bool above = size * decade > 10 + 9 / parts;
            parts *= 2, decade /= 10;
            n = above ? parts : n, power = above ? decade : power;
        }
        float part = (size * power - 1) * (n / 9);
        part = part > 0 ? part : 0.0f;
        part = part < n - 1 ? part : n - 1;
        int number = (int)n + (int)part;
        number = size < least ? (!SIGNED && size > 0 ? LEAST : LEAST - 1) : number;
        number = x > most ? 2 * MOST : number;
        return (uint8_t)(SIGNED ? ZERO + (x < 0 ? -number : number) : number - (LEAST - 1));
    }

    // The scale of a block from its largest and its smallest element, and what elements are
    // multiplied by to divide them by it.
    HOST_DEVICE static float scale(float largest, float smallest) {
        const float scale = largest >= -smallest ? largest : smallest;
        return scale < LEAST_STATE_SCALE && -scale < LEAST_STATE_SCALE ? 0.0f : scale;
    }
    HOST_DEVICE static float inverse(float scale) { return scale == 0 ? 0.0f : 1 / scale; }

    static constexpr std::array<float, 256> table() {
        std::array<float, 256> values{};
        for (int code = 0; code < 256; code++) values[code] = value(code);
        return values;
    }
};

typedef float BlockValues[STATE_BLOCK_ELEMS];

// Computes the values that a block stands for; behind the end of a short block they are 0.
template <bool SIGNED>
__attribute__((noinline)) void decode_block(BlockValues& values, const StateBlock& block) {
    static constexpr std::array<float, 256> TABLE = DynamicCode<SIGNED>::table();
    for (int i = 0; i < STATE_BLOCK_ELEMS; i++) values[i] = TABLE[block.codes[i]] * block.scale;
}
// Makes the block that stands for these values, which must be 0 behind the end of a short block.
template <bool SIGNED>
__attribute__((noinline)) void encode_block(StateBlock& block, const BlockValues& values) {
    typedef DynamicCode<SIGNED> Code;
    constexpr int N = 16;  // as many in parallel
    float largest[N] = {}, smallest[N] = {};
    for (int i = 0; i < STATE_BLOCK_ELEMS; i += N)
        for (int j = 0; j < N; j++) {
            largest[j] = values[i + j] > largest[j] ? values[i + j] : largest[j];
            smallest[j] = values[i + j] < smallest[j] ? values[i + j] : smallest[j];
        }
    for (int half = N / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) {
            largest[j] = largest[j + half] > largest[j] ? largest[j + half] : largest[j];
            smallest[j] = smallest[j + half] < smallest[j] ? smallest[j + half] : smallest[j];
        }
    block.scale = Code::scale(largest[0], smallest[0]);
    const float inverse = Code::inverse(block.scale);
    for (int i = 0; i < STATE_BLOCK_ELEMS; i++) block.codes[i] = Code::nearest(values[i] * inverse);
}

// Decode or encode several blocks, of m (is_signed) or of v.
inline void decode_blocks(std::vector<float>& values, const std::vector<StateBlock>& blocks, bool is_signed) {
    values.resize(blocks.size() * STATE_BLOCK_ELEMS);
    for (size_t i = 0; i < blocks.size(); i++) {
        BlockValues& part = *(BlockValues*)&values[i * STATE_BLOCK_ELEMS];
        if (is_signed) decode_block<true>(part, blocks[i]);
        else decode_block<false>(part, blocks[i]);
    }
}
inline void encode_blocks(std::vector<StateBlock>& blocks, const std::vector<float>& values, bool is_signed) {
    for (size_t i = 0; i < blocks.size(); i++) {
        const BlockValues& part = *(const BlockValues*)&values[i * STATE_BLOCK_ELEMS];
        if (is_signed) encode_block<true>(blocks[i], part);
        else encode_block<false>(blocks[i], part);
    }
}

// A tensor, or what a slice of a bucket has of it: elements begin to end - 1, counted from the
// first of the slice.
struct TensorRange {
    int64_t begin, end;
    bool decayed;
};
// The tensors in elements first to end - 1 of a bucket.
inline std::vector<TensorRange> tensor_ranges(const ParameterLayout& layout, int64_t bucket, int64_t first,
                                              int64_t end) {
    std::vector<TensorRange> ranges;
    for (int i = 0; i < ALL_TENSORS; i++) {
        if (TENSORS[i].per_layer != (bucket < layout.config.L) || !trains(layout.config, i, bucket)) continue;
        const int64_t begin = layout.offset_in_bucket(i, bucket);
        const int64_t low = std::max(begin, first);
        const int64_t high = std::min(begin + tensor_elems(i, layout.config), end);
        if (low < high) ranges.push_back({low - first, high - first, TENSORS[i].decayed});
    }
    return ranges;
}
